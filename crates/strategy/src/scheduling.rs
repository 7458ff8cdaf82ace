//! What a pod says about nodes and neighbours: tolerations, affinity, spreading.

use std::collections::{HashMap, HashSet};

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::{Value, json};

use super::json::{at, at_mut, entries_at, has, int_at, list_at, list_mut, set, str_at};
use super::{fields, selectors};

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Faults of the effect of a taint or toleration.
pub(super) fn effect(effect: &str, allow_empty: bool, path: &Path, errors: &mut ErrorList) {
    if effect.is_empty() {
        if !allow_empty {
            errors.push(FieldError::required(path, ""));
        }
    } else if !EFFECTS.contains(&effect) {
        errors.push(FieldError::not_supported(path, effect, &EFFECTS));
    }
}

/// Faults of the tolerations of a pod.
pub(super) fn tolerations(tolerations: &[Value], path: &Path, errors: &mut ErrorList) {
    for (i, toleration) in tolerations.iter().enumerate() {
        let path = path.index(i);
        let text = |key: &str| str_at(toleration, &[key]);
        let (key, operator, value) = (text("key"), text("operator"), text("value"));
        if !key.is_empty() {
            errors.extend(invalid_each(
                &path.child("key"),
                key,
                names::check_qualified_name(key),
            ));
        }
        let at_operator = path.child("operator");
        if key.is_empty() && operator != "Exists" {
            let fault = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(FieldError::invalid(&at_operator, operator, fault));
        }
        if has(toleration, &["tolerationSeconds"]) && text("effect") != "NoExecute" {
            let fault = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(
                &path.child("effect"),
                text("effect"),
                fault,
            ));
        }
        match operator {
            "" | "Equal" => {
                let faults = names::check_label_value(value);
                if !faults.is_empty() {
                    errors.push(FieldError::invalid(&at_operator, value, faults.join(";")));
                }
            }
            "Exists" => {
                if !value.is_empty() {
                    let fault = "value must be empty when `operator` is 'Exists'";
                    errors.push(FieldError::invalid(&at_operator, toleration.clone(), fault));
                }
            }
            other => {
                errors.push(FieldError::not_supported(
                    &at_operator,
                    other,
                    &["Equal", "Exists"],
                ));
            }
        }
        effect(text("effect"), true, &path.child("effect"), errors);
    }
}

/// Faults of the group that a pod says it belongs to.
pub(super) fn group(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let group = at(spec, &["schedulingGroup"]);
    if group.is_null() {
        return;
    }
    let path = path.child("schedulingGroup").child("podGroupName");
    match at(group, &["podGroupName"]).as_str() {
        None => {
            let fault = "must specify one of: `podGroupName`";
            errors.push(FieldError::invalid(&path, Value::Null, fault));
        }
        Some(name) => {
            let faults = names::check_dns1123_subdomain(name);
            errors.extend(invalid_each(&path, name, faults));
        }
    }
}

/// Faults of the affinity of a pod.
pub(super) fn affinity(affinity: &Value, path: &Path, errors: &mut ErrorList) {
    let node = at(affinity, &["nodeAffinity"]);
    let at_node = path.child("nodeAffinity");
    if has(node, &[REQUIRED]) {
        selectors::node_selector(at(node, &[REQUIRED]), &at_node.child(REQUIRED), errors);
    }
    for (i, term) in list_at(node, &[PREFERRED]).iter().enumerate() {
        let path = at_node.child(PREFERRED).index(i);
        weight(term, &path, errors);
        let preference = at(term, &["preference"]);
        selectors::node_selector_term(preference, &path.child("preference"), errors);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let (pods, path) = (at(affinity, &[kind]), path.child(kind));
        for (i, term) in list_at(pods, &[REQUIRED]).iter().enumerate() {
            pod_term(term, &path.child(REQUIRED).index(i), errors);
        }
        for (i, term) in list_at(pods, &[PREFERRED]).iter().enumerate() {
            let path = path.child(PREFERRED).index(i);
            weight(term, &path, errors);
            pod_term(
                at(term, &["podAffinityTerm"]),
                &path.child("podAffinityTerm"),
                errors,
            );
        }
    }
}

fn weight(term: &Value, path: &Path, errors: &mut ErrorList) {
    let weight = int_at(term, &["weight"]).unwrap_or(0);
    if !(1..=100).contains(&weight) {
        let fault = "must be in the range 1-100";
        errors.push(FieldError::invalid(&path.child("weight"), weight, fault));
    }
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// What a new pod's terms and spread constraints say by the keys of its labels stands in their selectors.
pub(super) fn merge_label_keys(pod: &mut Value) {
    let labels = at(pod, &["metadata", "labels"]).clone();
    let Some(spec) = at_mut(pod, &["spec"]) else {
        return;
    };
    for kind in ["podAffinity", "podAntiAffinity"] {
        for term in list_mut(spec, &["affinity", kind, PREFERRED]) {
            if let Some(term) = at_mut(term, &["podAffinityTerm"]) {
                merge_keys(term, &labels);
            }
        }
        for term in list_mut(spec, &["affinity", kind, REQUIRED]) {
            merge_keys(term, &labels);
        }
    }
    for constraint in list_mut(spec, &["topologySpreadConstraints"]) {
        merge_keys(constraint, &labels);
    }
}

/// A term without a selector matches nothing, whatever its keys.
fn merge_keys(term: &mut Value, labels: &Value) {
    if !has(term, &["labelSelector"]) {
        return;
    }
    let mut added = Vec::new();
    for (list, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        for key in list_at(term, &[list]).iter().filter_map(Value::as_str) {
            if let Some(value) = labels.get(key) {
                added.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    let Some(selector) = at_mut(term, &["labelSelector"]).filter(|_| !added.is_empty()) else {
        return;
    };
    let missing = !has(selector, &["matchExpressions"]);
    if missing {
        set(selector, "matchExpressions", json!([]));
    }
    if let Some(Value::Array(expressions)) = at_mut(selector, &["matchExpressions"]) {
        // a second attempt to create the pod does not add them again
        let there: HashSet<&Value> = expressions.iter().collect();
        added.retain(|one| !there.contains(one));
        expressions.append(&mut added);
    }
}

/// Faults of the keys of labels that a term is told.
fn label_keys(term: &Value, path: &Path, errors: &mut ErrorList) {
    let selector = at(term, &["labelSelector"]);
    let keys = |list: &str| -> Vec<&str> {
        let keys = list_at(term, &[list]).iter();
        keys.filter_map(Value::as_str).collect()
    };
    for list in ["matchLabelKeys", "mismatchLabelKeys"] {
        let (keys, path) = (keys(list), path.child(list));
        if !keys.is_empty() && selector.is_null() {
            let why = "must not be specified when labelSelector is not set";
            errors.push(FieldError::forbidden(&path, why));
            continue;
        }
        for (i, key) in keys.iter().enumerate() {
            let faults = names::check_qualified_name(key);
            errors.extend(invalid_each(&path.index(i), key, faults));
        }
    }
    let (wanted, unwanted) = (keys("matchLabelKeys"), keys("mismatchLabelKeys"));
    let mut seen: HashSet<&str> = entries_at(selector, &["matchLabels"])
        .map(|(key, _)| key.as_str())
        .collect();
    // the last of equal keys is named
    let last: HashMap<&str, usize> = wanted.iter().enumerate().map(|(i, k)| (*k, i)).collect();
    for requirement in list_at(selector, &["matchExpressions"]) {
        let key = str_at(requirement, &["key"]);
        // the key itself has made one expression
        let is_new = seen.insert(key);
        if let Some(i) = last.get(key).filter(|_| !is_new) {
            let fault = "exists in both matchLabelKeys and labelSelector";
            errors.push(FieldError::invalid(&path.index(*i), key, fault));
        }
    }
    let unwanted: HashSet<&str> = unwanted.into_iter().collect();
    for (i, key) in wanted.iter().enumerate() {
        if unwanted.contains(key) {
            let fault = "exists in both matchLabelKeys and mismatchLabelKeys";
            let path = path.child("matchLabelKeys").index(i);
            errors.push(FieldError::invalid(&path, *key, fault));
        }
    }
}

fn pod_term(term: &Value, path: &Path, errors: &mut ErrorList) {
    label_keys(term, path, errors);
    for key in ["labelSelector", "namespaceSelector"] {
        selectors::label_selector(at(term, &[key]), &path.child(key), errors);
    }
    for namespace in list_at(term, &["namespaces"]) {
        let namespace = namespace.as_str().unwrap_or_default();
        // the original calls the field so
        let path = path.child("namespace");
        let faults = names::check_dns1123_label(namespace);
        errors.extend(invalid_each(&path, namespace, faults));
    }
    let key = str_at(term, &["topologyKey"]);
    let path = path.child("topologyKey");
    if key.is_empty() {
        errors.push(FieldError::required(&path, "can not be empty"));
    }
    errors.extend(invalid_each(&path, key, names::check_qualified_name(key)));
}

/// Faults of the topology spread constraints of a pod.
pub(super) fn spread(constraints: &[Value], path: &Path, errors: &mut ErrorList) {
    let mut seen = HashSet::new();
    for (i, constraint) in constraints.iter().enumerate() {
        let path = path.index(i);
        let skew = int_at(constraint, &["maxSkew"]).unwrap_or(0);
        if skew <= 0 {
            let fault = "must be greater than zero";
            errors.push(FieldError::invalid(&path.child("maxSkew"), skew, fault));
        }
        let key = str_at(constraint, &["topologyKey"]);
        let at_key = path.child("topologyKey");
        if key.is_empty() {
            errors.push(FieldError::required(&at_key, "can not be empty"));
        }
        let action = str_at(constraint, &["whenUnsatisfiable"]);
        let actions = ["DoNotSchedule", "ScheduleAnyway"];
        if !actions.contains(&action) {
            let path = path.child("whenUnsatisfiable");
            errors.push(FieldError::not_supported(&path, action, &actions));
        }
        if !seen.insert((key, action)) {
            let path = path.child("{topologyKey, whenUnsatisfiable}");
            errors.push(FieldError::duplicate(&path, format!("{{{key}, {action}}}")));
        }
        let domains = int_at(constraint, &["minDomains"]);
        if let Some(domains) = domains.filter(|d| *d <= 0) {
            let fault = "must be greater than zero";
            errors.push(FieldError::invalid(
                &path.child("minDomains"),
                domains,
                fault,
            ));
        }
        if domains.is_some() && action != "DoNotSchedule" {
            let fault =
                format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
            errors.push(FieldError::invalid(
                &path.child("minDomains"),
                domains,
                fault,
            ));
        }
        for key in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if has(constraint, &[key]) {
                fields::one_of(constraint, key, &["Honor", "Ignore"], &path, errors);
            }
        }
        label_keys(constraint, &path, errors);
        let selector = at(constraint, &["labelSelector"]);
        selectors::label_selector(selector, &path.child("labelSelector"), errors);
    }
}
