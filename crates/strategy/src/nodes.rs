//! Nodes.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::{Value, json};

use super::json::{
    at, at_mut, bool_at, entries_at, has, list_at, object_mut, remove, repeats, same, set, str_at,
};
use super::{KindInfo, Strategy, access, meta, network, resources, scheduling};

pub(super) struct Node(pub(super) KindInfo);

impl Strategy for Node {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        let capacity = at(obj, &["status", "capacity"]).clone();
        if !capacity.is_null()
            && !has(obj, &["status", "allocatable"])
            && let Some(status) = object_mut(obj, "status")
        {
            status.insert("allocatable".to_owned(), capacity);
        }
        for list in ["capacity", "allocatable"] {
            super::pod_defaults::round_quantities(obj, &["status", list]);
        }
        if let Some(spec) = at_mut(obj, &["spec"]) {
            ranges_in_step(spec);
        }
    }

    /// Nodes register themselves with their status, so it is kept; that they are configured through the API is no more.
    fn prepare_for_create(&self, obj: &mut Value) {
        for (part, key) in [("spec", "configSource"), ("status", "config")] {
            if let Some(part) = at_mut(obj, &[part]) {
                remove(part, key);
            }
        }
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value) {
        access::keep_status(&self.0, new, old);
        if !has(old, &["spec", "configSource"])
            && let Some(spec) = at_mut(new, &["spec"])
        {
            remove(spec, "configSource");
        }
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        let is_given = |key: &str| !super::json::is_empty(at(obj, &["spec", key]));
        let texts = [
            ("configSource", "spec.configSource: the feature is removed"),
            (
                "externalID",
                "spec.externalID: this field is deprecated, and is unused by Kubernetes",
            ),
        ];
        let given = texts.into_iter().filter(|(key, _)| is_given(key));
        given.map(|(_, text)| text.to_owned()).collect()
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        content(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        content(new, &mut errors);
        addresses(new, &mut errors);
        spec_update(new, old, &mut errors);
        errors
    }

    fn prepare_status_update(&self, new: &mut Value, old: &Value) {
        access::keep_all_but_status_and_metadata(new, old);
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        content(new, &mut errors);
        addresses(new, &mut errors);
        errors
    }

    fn field_names(&self) -> &'static [&'static str] {
        &["spec.unschedulable"]
    }

    fn fields(&self, obj: &Value) -> Vec<(&'static str, String)> {
        vec![(
            "spec.unschedulable",
            bool_at(obj, &["spec", "unschedulable"]).to_string(),
        )]
    }
}

/// `podCIDR` is the first of `podCIDRs`.
fn ranges_in_step(spec: &mut Value) {
    let one = str_at(spec, &["podCIDR"]).to_owned();
    let first = list_at(spec, &["podCIDRs"]).first().cloned();
    match first {
        Some(first) if one.is_empty() => set(spec, "podCIDR", first),
        first if !one.is_empty() && first != Some(json!(one)) => {
            set(spec, "podCIDRs", json!([one]));
        }
        _ => {}
    }
}

/// Ranges of addresses of the node's pods: one for each family.
fn pod_ranges(node: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec").child("podCIDRs");
    let ranges = list_at(node, &["spec", "podCIDRs"]);
    let before = errors.len();
    for (i, range) in ranges.iter().enumerate() {
        let range = range.as_str().unwrap_or_default();
        network::cidr(range, &path.index(i), errors);
    }
    let six = |range: &&Value| range.as_str().is_some_and(|text| text.contains(':'));
    let sixes = ranges.iter().filter(six).count();
    if errors.len() == before && ranges.len() > 1 && (ranges.len() > 2 || sixes != 1) {
        let fault = "may specify no more than one CIDR for each IP family";
        errors.push(FieldError::invalid(&path, ranges.to_vec(), fault));
    }
}

fn content(node: &Value, errors: &mut ErrorList) {
    pod_ranges(node, errors);
    // so the original calls them
    let path = Path::new("metadata").child("taints");
    taints(list_at(node, &["spec", "taints"]), &path, errors);
    for list in ["capacity", "allocatable"] {
        let path = Path::new("status").child(list);
        for (resource, value) in entries_at(node, &["status", list]) {
            let path = path.child(resource);
            resources::amount(resource, value, &path, errors);
        }
    }
    declared_features(node, errors);
}

/// Each address is there once; of a node that registers itself it is not asked.
fn addresses(node: &Value, errors: &mut ErrorList) {
    let addresses = list_at(node, &["status", "addresses"]);
    let twins = addresses.iter().enumerate().zip(repeats(addresses));
    for ((i, address), _) in twins.filter(|(_, is_twin)| *is_twin) {
        let path = Path::new("status").child("addresses").index(i);
        errors.push(FieldError::duplicate(&path, address.clone()));
    }
}

/// KEP-5328: names in camel case, sorted, each once.
fn declared_features(node: &Value, errors: &mut ErrorList) {
    const MOST: usize = 253;
    let path = Path::new("status").child("declaredFeatures");
    let list = list_at(node, &["status", "declaredFeatures"]);
    let mut before = "";
    for (i, feature) in list.iter().enumerate() {
        let name = feature.as_str().unwrap_or_default();
        let path = path.index(i);
        let mut invalid = |why: &str| errors.push(FieldError::invalid(&path, name, why));
        let word = |(i, part): (usize, &str)| {
            let starts = |c: char| c.is_ascii_uppercase() || (i > 0 && c.is_ascii_lowercase());
            part.starts_with(starts) && part.chars().all(|c| c.is_ascii_alphanumeric())
        };
        if name.len() > MOST {
            invalid(&format!(
                "invalid feature name {name:?}: must be no more than {MOST} characters"
            ));
        } else if !name.split('/').enumerate().all(word) {
            invalid(&format!(
                "invalid feature name {name:?}: must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"
            ));
        }
        if i > 0 && name < before {
            invalid("list must be sorted alphabetically");
        } else if i > 0 && name == before {
            errors.push(FieldError::duplicate(&path, name));
        }
        before = name;
    }
}

fn taints(taints: &[Value], path: &Path, errors: &mut ErrorList) {
    let twins = repeats(
        taints
            .iter()
            .map(|t| ["key", "effect"].map(|k| str_at(t, &[k]))),
    );
    for ((i, taint), is_twin) in taints.iter().enumerate().zip(twins) {
        let path = path.index(i);
        let text = |key: &str| str_at(taint, &[key]);
        let faults = names::check_qualified_name(text("key"));
        errors.extend(invalid_each(&path.child("key"), text("key"), faults));
        let faults = names::check_label_value(text("value"));
        if !faults.is_empty() {
            let fault = faults.join(";");
            errors.push(FieldError::invalid(
                &path.child("value"),
                text("value"),
                fault,
            ));
        }
        scheduling::effect(text("effect"), false, &path.child("effect"), errors);
        if is_twin {
            let what = "taints must be unique by key and effect pair";
            let mut error = FieldError::duplicate(&path, taint.clone());
            what.clone_into(&mut error.detail);
            errors.push(error);
        }
    }
}

fn spec_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let spec = Path::new("spec");
    for key in ["podCIDRs", "providerID"] {
        let (now, before) = (at(new, &["spec", key]), at(old, &["spec", key]));
        if !super::json::is_empty(before) && !same(now, before) {
            let name = if key == "podCIDRs" { "podCIDR" } else { key };
            let why = format!("node updates may not change {name} except from \"\" to valid");
            errors.push(FieldError::forbidden(&spec.child(key), why));
        }
    }
    if str_at(new, &["spec", "externalID"]) != str_at(old, &["spec", "externalID"]) {
        errors.push(FieldError::forbidden(
            &spec.child("externalID"),
            "may not be updated",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy;
    use crate::testing::faults;

    #[test]
    fn ranges_of_pods() {
        let node = |spec: Value| json!({"metadata": {"name": "n"}, "spec": spec});
        let cases = [
            (
                json!({"podCIDRs": ["10.0.0.0"]}),
                "spec.podCIDRs[0]: Invalid value: \"10.0.0.0\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
            ),
            (
                json!({"podCIDRs": ["10.0.0.0/24", "10.0.1.0/24"]}),
                "spec.podCIDRs: Invalid value: [\"10.0.0.0/24\",\"10.0.1.0/24\"]: may specify no more than one CIDR for each IP family",
            ),
            (json!({"podCIDRs": ["10.0.0.0/24", "fd00::/64"]}), ""),
        ];
        for (spec, wanted) in cases {
            assert_eq!(faults("", "v1", "Node", &node(spec)), wanted);
        }
        let mut obj = node(json!({"podCIDR": "10.0.0.0/24"}));
        strategy("", "v1", "Node").default(&mut obj);
        assert_eq!(obj["spec"]["podCIDRs"], json!(["10.0.0.0/24"]));
    }
}
