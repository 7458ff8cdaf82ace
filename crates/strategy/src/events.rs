//! Events, stored in the shape of core/v1.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::containers::{choice, required};
use super::json::{has, str_at};
use super::{KindInfo, Propagation, Strategy, meta};

pub(super) struct Event(pub(super) KindInfo);

const FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

impl Strategy for Event {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        content(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        content(new, &mut errors);
        errors
    }

    fn field_names(&self) -> &'static [&'static str] {
        FIELDS
    }

    fn fields(&self, obj: &Value) -> Vec<(&'static str, String)> {
        let text = |name: &str| match name {
            "source" => match str_at(obj, &["source", "component"]) {
                "" => str_at(obj, &["reportingComponent"]),
                component => component,
            },
            name => {
                let path: Vec<&str> = name.split('.').collect();
                str_at(obj, &path)
            }
        };
        FIELDS
            .iter()
            .map(|name| (*name, text(name).to_owned()))
            .collect()
    }

    /// events.k8s.io calls the same fields otherwise.
    fn field_alias<'a>(&self, label: &'a str) -> &'a str {
        match label {
            "reportingController" => "reportingComponent",
            "regarding.kind" => "involvedObject.kind",
            "regarding.namespace" => "involvedObject.namespace",
            "regarding.name" => "involvedObject.name",
            "regarding.uid" => "involvedObject.uid",
            "regarding.apiVersion" => "involvedObject.apiVersion",
            "regarding.resourceVersion" => "involvedObject.resourceVersion",
            "regarding.fieldPath" => "involvedObject.fieldPath",
            label => label,
        }
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn default_propagation(&self) -> Propagation {
        Propagation::Unsupported
    }
}

fn content(event: &Value, errors: &mut ErrorList) {
    const DEFAULTS: [&str; 2] = ["default", "kube-system"];
    let namespace = str_at(event, &["metadata", "namespace"]);
    let involved = str_at(event, &["involvedObject", "namespace"]);
    let fits = if involved.is_empty() {
        // events about cluster-scoped objects live in one of the standing namespaces
        DEFAULTS.contains(&namespace)
    } else {
        namespace == involved
    };
    if !fits {
        let path = Path::new("involvedObject").child("namespace");
        errors.push(FieldError::invalid(
            &path,
            involved,
            "does not match event.namespace",
        ));
    }
    if !has(event, &["eventTime"]) {
        return;
    }
    let root = Path::root();
    let controller = str_at(event, &["reportingComponent"]);
    let path = Path::new("reportingController");
    if controller.is_empty() {
        errors.push(FieldError::required(&path, ""));
    } else {
        errors.extend(invalid_each(
            &path,
            controller,
            names::check_qualified_name(controller),
        ));
    }
    for key in ["reportingInstance", "action", "reason"] {
        required(event, key, &root, errors);
    }
    choice(event, "type", &["Normal", "Warning"], &root, errors);
}
