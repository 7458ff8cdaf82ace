//! Access reviews: what a user may do.

use std::collections::BTreeMap;

use davit_access::authz::rbac::Rule;
use davit_access::authz::{Attributes, Decision};
use davit_access::{RequestInfo, UserInfo};
use davit_api::access_review::{
    Requirement, has_metadata, ignored, no_subject, selector, spec_faults,
};
use davit_api::field::{FieldError, Path};
use davit_api::status::{Qualified, Status};
use serde_json::{Value, json};

use crate::server::ApiServer;

const GROUP: &str = "authorization.k8s.io";

/// `SubjectAccessReview`: the user is in the spec.
pub(super) async fn subject(server: &ApiServer, review: &Value) -> Result<Value, Status> {
    let spec = &review["spec"];
    let user = subject_of(spec);
    let mut faults = spec_faults(spec);
    faults.extend(no_subject(spec));
    faults.extend(has_metadata(review, &[], "must be empty"));
    decide(server, &user, spec, &faults).await
}

/// `LocalSubjectAccessReview`: the same within one namespace.
pub(super) async fn local(
    server: &ApiServer,
    namespace: &str,
    review: &Value,
) -> Result<Value, Status> {
    let spec = &review["spec"];
    let user = subject_of(spec);
    let mut faults = spec_faults(spec);
    faults.extend(no_subject(spec));
    let rest = "must be empty except for namespace";
    faults.extend(has_metadata(review, &["namespace"], rest));
    let path = Path::new("spec").child("resourceAttributes");
    let attributes = &spec["resourceAttributes"];
    let asked = attributes["namespace"].as_str().unwrap_or_default();
    if attributes.is_object() && asked != namespace {
        let why = "must match metadata.namespace";
        faults.push(FieldError::invalid(&path.child("namespace"), asked, why));
    }
    if spec["nonResourceAttributes"].is_object() {
        let path = Path::new("spec").child("nonResourceAttributes");
        let why = "disallowed on this kind of request";
        let given = spec["nonResourceAttributes"].clone();
        faults.push(FieldError::invalid(&path, given, why));
    }
    decide(server, &user, spec, &faults).await
}

/// `SelfSubjectAccessReview`: the user is the caller.
pub(super) async fn own(
    server: &ApiServer,
    user: &UserInfo,
    review: &Value,
) -> Result<Value, Status> {
    let spec = &review["spec"];
    let mut faults = spec_faults(spec);
    faults.extend(has_metadata(review, &[], "must be empty"));
    decide(server, user, spec, &faults).await
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
    faults: &[FieldError],
) -> Result<Value, Status> {
    if !faults.is_empty() {
        // upstream names no kind here
        return Err(Status::invalid(Qualified::new(GROUP, ""), "", faults));
    }
    let attributes = &spec["resourceAttributes"];
    let request = match attributes.is_object() {
        true => resource_request(attributes),
        false => path_request(&spec["nonResourceAttributes"]),
    };
    let authorizer = server.authorizer();
    let request = &request;
    let mut status = match authorizer.decide(&Attributes { user, request }).await {
        Decision::Allow(reason) => with_reason(json!({ "allowed": true }), &reason),
        Decision::Deny(reason) => with_reason(json!({ "allowed": false, "denied": true }), &reason),
        Decision::NoOpinion(reason) => with_reason(json!({ "allowed": false }), &reason),
    };
    let ignored = ignored(attributes);
    if !ignored.is_empty() {
        status["evaluationError"] = json!(ignored);
    }
    Ok(status)
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
        field_selector: selector(attributes, Requirement::Field),
        label_selector: selector(attributes, Requirement::Label),
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
