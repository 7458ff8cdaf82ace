//! Resource quotas.

use std::collections::BTreeSet;

use davit_api::field::{ErrorList, FieldError, Path};
use davit_api::status::MOST_CAUSES;
use serde_json::Value;

use super::super::json::{at, entries_at, has, list_at, str_at};
use super::super::{KindInfo, Strategy, meta, pod_defaults, resources};

pub(super) struct ResourceQuota(pub(super) KindInfo);

impl Strategy for ResourceQuota {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        for list in [["spec", "hard"], ["status", "hard"], ["status", "used"]] {
            pod_defaults::round_quantities(obj, &list);
        }
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        quota(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        quota(new, &mut errors);
        let set = |quota| -> BTreeSet<&str> {
            let scopes = list_at(quota, &["spec", "scopes"]).iter();
            scopes.filter_map(Value::as_str).collect()
        };
        if set(new) != set(old) {
            let path = Path::new("spec").child("scopes");
            let scopes = at(new, &["spec", "scopes"]).clone();
            errors.push(FieldError::invalid(&path, scopes, "field is immutable"));
        }
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        for list in ["hard", "used"] {
            let path = Path::new("status").child(list);
            amounts(at(new, &["status", list]), &path, &mut errors);
        }
        errors
    }
}

fn quota(obj: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let spec = at(obj, &["spec"]);
    amounts(at(spec, &["hard"]), &path.child("hard"), errors);
    scopes(spec, &path.child("scopes"), errors);
    if has(spec, &["scopeSelector"]) {
        let path = path.child("scopeSelector").child("matchExpressions");
        scope_selector(spec, &path, errors);
    }
}

fn amounts(hard: &Value, path: &Path, errors: &mut ErrorList) {
    for (name, value) in entries_at(hard, &[]) {
        let path = path.key(name);
        resources::name(name, &path, errors);
        if !name.contains('/') && !resources::counted_by_quota(name) {
            let fault = "must be a standard resource for quota";
            errors.push(FieldError::invalid(&path, name.as_str(), fault));
        }
        resources::amount(name, value, &path, errors);
    }
}

/// Scopes a quota can have, beside [`CROSS_NAMESPACE`].
const SCOPES: [&str; 6] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "VolumeAttributesClass",
];
const CROSS_NAMESPACE: &str = "CrossNamespacePodAffinity";
const NO_SCOPE: &str = "unsupported scope";
const NOT_FOR_RESOURCE: &str = "unsupported scope applied to resource";

fn is_scope(scope: &str) -> bool {
    SCOPES.contains(&scope) || scope == CROSS_NAMESPACE
}

/// Whether a scope narrows down what is counted of a resource.
fn scope_fits(scope: &str, resource: &str) -> bool {
    let compute = || {
        let name = ["limits.", "requests."]
            .iter()
            .find_map(|prefix| resource.strip_prefix(prefix))
            .unwrap_or(resource);
        matches!(name, "cpu" | "memory")
    };
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => {
            matches!(resource, "persistentvolumeclaims" | "requests.storage")
        }
        scope if is_scope(scope) => resource == "pods" || compute(),
        _ => true,
    }
}

/// The resources of a quota that the scope says nothing of.
fn misfits<'a>(spec: &'a Value, scope: &str) -> impl Iterator<Item = &'a String> {
    entries_at(spec, &["hard"])
        .map(|(name, _)| name)
        .filter(move |name| resources::counted_by_quota(name) && !scope_fits(scope, name))
}

fn scopes(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let given = at(spec, &["scopes"]);
    let list: Vec<&str> = list_at(spec, &["scopes"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    for scope in &list {
        // Each fault shows all scopes: of a thousand and more nothing is kept.
        if errors.len() > MOST_CAUSES {
            break;
        }
        if !is_scope(scope) {
            errors.push(FieldError::invalid(path, given.clone(), NO_SCOPE));
        }
        for _ in misfits(spec, scope).take(MOST_CAUSES) {
            errors.push(FieldError::invalid(path, given.clone(), NOT_FOR_RESOURCE));
        }
    }
    conflicts(&list, given, path, errors);
}

fn conflicts(list: &[&str], given: &Value, path: &Path, errors: &mut ErrorList) {
    for pair in [
        ["BestEffort", "NotBestEffort"],
        ["Terminating", "NotTerminating"],
    ] {
        if pair.iter().all(|scope| list.contains(scope)) {
            let fault = "conflicting scopes";
            errors.push(FieldError::invalid(path, given.clone(), fault));
        }
    }
}

fn scope_selector(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let expressions = list_at(spec, &["scopeSelector", "matchExpressions"]);
    let mut seen = Vec::new();
    for requirement in expressions {
        let scope = str_at(requirement, &["scopeName"]);
        seen.push(scope);
        if !is_scope(scope) {
            let path = path.child("scopeName");
            errors.push(FieldError::invalid(&path, scope, NO_SCOPE));
        }
        for _ in misfits(spec, scope) {
            let selector = at(spec, &["scopeSelector"]).clone();
            errors.push(FieldError::invalid(path, selector, NOT_FOR_RESOURCE));
        }
        requirement_faults(requirement, scope, path, errors);
    }
    conflicts(&seen, at(spec, &["scopes"]), path, errors);
}

fn requirement_faults(requirement: &Value, scope: &str, path: &Path, errors: &mut ErrorList) {
    let operator = str_at(requirement, &["operator"]);
    let at_operator = path.child("operator");
    let has_values = !matches!(scope, "PriorityClass" | "VolumeAttributesClass");
    if is_scope(scope) && has_values && operator != "Exists" {
        let fault = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
        errors.push(FieldError::invalid(&at_operator, operator, fault));
    }
    let values = list_at(requirement, &["values"]);
    match operator {
        "In" | "NotIn" => {
            if values.is_empty() {
                let why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.push(FieldError::required(&path.child("values"), why));
            }
        }
        "Exists" | "DoesNotExist" => {
            if !values.is_empty() {
                let fault = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                let path = path.child("values");
                errors.push(FieldError::invalid(&path, values.to_vec(), fault));
            }
        }
        _ => {
            let fault = "not a valid selector operator";
            errors.push(FieldError::invalid(&at_operator, operator, fault));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{faults, none, update_faults};

    fn quota_of(spec: Value) -> Value {
        json!({"metadata": {"name": "q", "namespace": "default"}, "spec": spec})
    }

    #[test]
    fn faults_of_quotas() {
        let selector = |requirement: Value| json!({"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [requirement]}});
        let at_selector = "spec.scopeSelector.matchExpressions";
        let cases = [
            (json!({"hard": {"foo": "1"}}), "spec.hard[foo]: Invalid value: \"foo\": must be a standard resource type or fully qualified\n\
                spec.hard[foo]: Invalid value: \"foo\": must be a standard resource for quota".to_owned()),
            (json!({"hard": {"storage": "1"}}),
                "spec.hard[storage]: Invalid value: \"storage\": must be a standard resource for quota".to_owned()),
            (json!({"hard": {"pods": "1"}, "scopes": ["Sometimes"]}),
                "spec.scopes: Invalid value: [\"Sometimes\"]: unsupported scope".to_owned()),
            (json!({"hard": {"cpu": "1"}, "scopes": ["BestEffort"]}),
                "spec.scopes: Invalid value: [\"BestEffort\"]: unsupported scope applied to resource".to_owned()),
            (json!({"hard": {"pods": "1"}, "scopes": ["Terminating", "NotTerminating"]}),
                "spec.scopes: Invalid value: [\"Terminating\",\"NotTerminating\"]: conflicting scopes".to_owned()),
            (selector(json!({"scopeName": "PriorityClass", "operator": "In"})),
                format!("{at_selector}.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector")),
            (selector(json!({"scopeName": "PriorityClass", "operator": "Near"})),
                format!("{at_selector}.operator: Invalid value: \"Near\": not a valid selector operator")),
            (selector(json!({"scopeName": "x", "operator": "Exists", "values": ["a"]})),
                format!("{at_selector}.scopeName: Invalid value: \"x\": unsupported scope\n\
                    {at_selector}.values: Invalid value: [\"a\"]: must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector")),
        ];
        for (spec, wanted) in cases {
            assert_eq!(faults("", "v1", "ResourceQuota", &quota_of(spec)), wanted);
        }
        for spec in [
            json!({"hard": {"count/deployments.apps": "1", "requests.example.com/gpu": "2"}}),
            selector(json!({"scopeName": "PriorityClass", "operator": "In", "values": ["high"]})),
            selector(json!({"scopeName": "CrossNamespacePodAffinity", "operator": "Exists"})),
        ] {
            none("", "v1", "ResourceQuota", &quota_of(spec));
        }
    }

    #[test]
    fn scopes_stay() {
        let of = |scopes: Value| quota_of(json!({"hard": {"pods": "1"}, "scopes": scopes}));
        let (one, two) = (json!(["Terminating"]), json!(["NotTerminating"]));
        let found = update_faults("", "v1", "ResourceQuota", &of(two), &of(one));
        let wanted = "spec.scopes: Invalid value: [\"NotTerminating\"]: field is immutable";
        assert_eq!(found, wanted);
    }
}
