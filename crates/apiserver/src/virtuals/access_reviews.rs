//! Access reviews: what a user may do.

use std::collections::BTreeMap;

use davit_api::field::{FieldError, Path};
use davit_api::status::{Qualified, Status};
use serde_json::{Value, json};

use crate::authz::{Attributes, Decision};
use crate::request_info::RequestInfo;
use crate::server::ApiServer;
use crate::user::{MASTERS, UserInfo};

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
        ..RequestInfo::default()
    }
}

fn path_request(attributes: &Value) -> RequestInfo {
    let text = |key: &str| attributes[key].as_str().unwrap_or_default().to_owned();
    RequestInfo {
        verb: text("verb"),
        path: text("path"),
        ..RequestInfo::default()
    }
}

/// `SelfSubjectRulesReview`: what the caller may do in a namespace. Until RBAC tells rules apart
/// the answer follows from two probes: everything, or what everyone may read.
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
    let probe = RequestInfo {
        verb: "*".to_owned(),
        is_resource: true,
        group: "*".to_owned(),
        version: "*".to_owned(),
        resource: "*".to_owned(),
        namespace: Some(namespace.to_owned()),
        ..RequestInfo::default()
    };
    let decision = server
        .authorizer()
        .decide(&Attributes {
            user,
            request: &probe,
        })
        .await;
    let everything = user.in_group(MASTERS) || matches!(decision, Decision::Allow(_));
    Ok(if everything {
        json!({
            "resourceRules": [{ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] }],
            "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }],
            "incomplete": false,
        })
    } else {
        json!({
            "resourceRules": [],
            "nonResourceRules": [{
                "verbs": ["get"],
                "nonResourceURLs": ["/healthz", "/livez", "/readyz", "/version"],
            }],
            "incomplete": true,
        })
    })
}
