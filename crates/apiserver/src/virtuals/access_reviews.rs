//! Access reviews: what a user may do.

use std::collections::BTreeMap;

use davit_api::field::{FieldError, Path};
use davit_api::status::{Qualified, Status};
use serde_json::{Value, json};

use crate::authz::rbac::Rule;
use crate::authz::{Attributes, Decision};
use crate::request_info::RequestInfo;
use crate::server::ApiServer;
use crate::user::UserInfo;

const GROUP: &str = "authorization.k8s.io";

/// `SubjectAccessReview`: the user is in the spec.
pub(super) async fn subject(server: &ApiServer, review: &Value) -> Result<Value, Status> {
    let spec = &review["spec"];
    let user = subject_of(spec);
    if user.name.is_empty() && user.groups.is_empty() {
        let why = "at least one of user or group must be specified";
        let faults = [FieldError::invalid(
            &Path::new("spec").child("user"),
            "",
            why,
        )];
        return Err(Status::invalid(
            Qualified::new(GROUP, "SubjectAccessReview"),
            "",
            &faults,
        ));
    }
    decide(server, &user, spec, "SubjectAccessReview").await
}

/// `LocalSubjectAccessReview`: the same within one namespace.
pub(super) async fn local(
    server: &ApiServer,
    namespace: &str,
    review: &Value,
) -> Result<Value, Status> {
    let asked = review
        .pointer("/spec/resourceAttributes/namespace")
        .and_then(Value::as_str);
    if asked != Some(namespace) {
        return Err(Status::bad_request(format!(
            "spec.resourceAttributes.namespace must match namespace: {namespace}"
        )));
    }
    decide(
        server,
        &subject_of(&review["spec"]),
        &review["spec"],
        "LocalSubjectAccessReview",
    )
    .await
}

/// `SelfSubjectAccessReview`: the user is the caller.
pub(super) async fn own(
    server: &ApiServer,
    user: &UserInfo,
    review: &Value,
) -> Result<Value, Status> {
    decide(server, user, &review["spec"], "SelfSubjectAccessReview").await
}

fn subject_of(spec: &Value) -> UserInfo {
    let text = |key: &str| spec[key].as_str().unwrap_or_default().to_owned();
    let texts = |value: &Value| -> Vec<String> {
        let list = value.as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let extra: BTreeMap<String, Vec<String>> = spec["extra"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, values)| (key.clone(), texts(values)))
        .collect();
    UserInfo {
        name: text("user"),
        uid: text("uid"),
        groups: texts(&spec["groups"]),
        extra,
    }
}

async fn decide(
    server: &ApiServer,
    user: &UserInfo,
    spec: &Value,
    kind: &str,
) -> Result<Value, Status> {
    let request = match (
        spec["resourceAttributes"].is_object(),
        spec["nonResourceAttributes"].is_object(),
    ) {
        (true, false) => resource_request(&spec["resourceAttributes"]),
        (false, true) => path_request(&spec["nonResourceAttributes"]),
        (both, _) => {
            let path = Path::new("spec").child("resourceAttributes");
            let why = if both {
                "cannot be specified in combination with nonResourceAttributes"
            } else {
                "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            };
            let fault = FieldError::invalid(&path, Value::Null, why);
            return Err(Status::invalid(Qualified::new(GROUP, kind), "", &[fault]));
        }
    };
    Ok(
        match server
            .authorizer()
            .decide(&Attributes {
                user,
                request: &request,
            })
            .await
        {
            Decision::Allow(reason) => with_reason(json!({ "allowed": true }), &reason),
            Decision::Deny(reason) => {
                with_reason(json!({ "allowed": false, "denied": true }), &reason)
            }
            Decision::NoOpinion(reason) => with_reason(json!({ "allowed": false }), &reason),
        },
    )
}

fn with_reason(mut status: Value, reason: &str) -> Value {
    if !reason.is_empty() {
        status["reason"] = json!(reason);
    }
    status
}

fn resource_request(attributes: &Value) -> RequestInfo {
    let text = |key: &str| attributes[key].as_str().unwrap_or_default().to_owned();
    RequestInfo {
        verb: text("verb"),
        is_resource: true,
        group: text("group"),
        version: text("version"),
        namespace: Some(text("namespace")).filter(|namespace| !namespace.is_empty()),
        resource: text("resource"),
        subresource: text("subresource"),
        name: text("name"),
        field_selector: selector(&attributes["fieldSelector"], Requirement::Field),
        label_selector: selector(&attributes["labelSelector"], Requirement::Label),
        ..RequestInfo::default()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Requirement {
    Field,
    Label,
}

/// Whether a text stands in a selector for itself, and cannot be read as several.
fn is_plain(text: &str, kind: Requirement) -> bool {
    let plain = |c: char| match kind {
        Requirement::Label => c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/'),
        Requirement::Field => {
            !c.is_control() && !c.is_whitespace() && !matches!(c, '\\' | ',' | '=' | '!')
        }
    };
    text.chars().all(plain)
}

/// The selector of an access review as a list request would carry it. What cannot be said in it, or what would say
/// something else there, is left out: fewer conditions never allow more.
fn selector(given: &Value, kind: Requirement) -> String {
    if let Some(raw) = given["rawSelector"].as_str().filter(|raw| !raw.is_empty()) {
        return raw.to_owned();
    }
    let requirements = given["requirements"].as_array().into_iter().flatten();
    let terms = requirements.filter_map(|requirement| {
        let key = requirement["key"].as_str()?;
        let values: Vec<&str> = requirement["values"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let operator = requirement["operator"].as_str()?;
        let words = [key].into_iter().chain(values.iter().copied());
        if key.is_empty() || !words.into_iter().all(|word| is_plain(word, kind)) {
            return None;
        }
        match (operator, values.as_slice(), kind) {
            ("In", [value], _) => Some(format!("{key}={value}")),
            ("NotIn", [value], _) => Some(format!("{key}!={value}")),
            ("In", several, Requirement::Label) => {
                Some(format!("{key} in ({})", several.join(",")))
            }
            ("NotIn", several, Requirement::Label) => {
                Some(format!("{key} notin ({})", several.join(",")))
            }
            ("Exists", _, Requirement::Label) => Some(key.to_owned()),
            ("DoesNotExist", _, Requirement::Label) => Some(format!("!{key}")),
            _ => None,
        }
    });
    terms.collect::<Vec<_>>().join(",")
}

fn path_request(attributes: &Value) -> RequestInfo {
    let text = |key: &str| attributes[key].as_str().unwrap_or_default().to_owned();
    RequestInfo {
        verb: text("verb"),
        path: text("path"),
        ..RequestInfo::default()
    }
}

/// `SelfSubjectRulesReview`: what the caller may do in a namespace.
pub(super) async fn rules(
    server: &ApiServer,
    user: &UserInfo,
    review: &Value,
) -> Result<Value, Status> {
    let namespace = review
        .pointer("/spec/namespace")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let found = server.authorizer().rules(user, namespace).await;
    let (paths, resources): (Vec<_>, Vec<_>) =
        found.rules.iter().partition(|rule| !rule.urls.is_empty());
    let values =
        |rules: Vec<&Rule>| -> Vec<Value> { rules.into_iter().map(Rule::to_value).collect() };
    let mut status = json!({
        "resourceRules": values(resources),
        "nonResourceRules": values(paths),
        "incomplete": found.incomplete,
    });
    if !found.faults.is_empty() {
        status["evaluationError"] = json!(found.faults.join(", "));
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A requirement about one field said something about another.
    #[test]
    fn a_requirement_is_one_condition() {
        let of = |key: &str, value: &str| {
            let given =
                json!({"requirements": [{"key": key, "operator": "In", "values": [value]}]});
            [Requirement::Field, Requirement::Label].map(|kind| selector(&given, kind))
        };
        assert_eq!(of("spec.nodeName", "n1"), ["spec.nodeName=n1"; 2]);
        for (key, value) in [
            ("metadata.name", "a,spec.nodeName=n1"),
            ("metadata.name=a,spec.nodeName", "n1"),
            ("!x", "n1"),
            ("a", "b\\"),
            ("", "a"),
            ("a", "b c"),
        ] {
            assert_eq!(of(key, value), ["", ""], "{key} {value}");
        }
    }
}
