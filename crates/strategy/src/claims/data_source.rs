//! What a claim's volume begins with: `dataSource`, and `dataSourceRef`, which takes more kinds and is the same otherwise.
//!
//! Specified in <https://kubernetes.io/docs/concepts/storage/persistent-volumes/#volume-populators-and-data-sources>.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::{Value, json};

use super::super::fields::required;
use super::super::json::{at, entries_at, has, remove, same, set, str_at};

const SOURCE: &str = "dataSource";
const REFERENCE: &str = "dataSourceRef";

/// Drops what was never taken, and fills in whichever of the two is missing. `old` is the spec that is stored, if any.
pub(super) fn prepare(spec: &mut Value, old: &Value) {
    let across_namespaces = !str_at(spec, &[REFERENCE, "namespace"]).is_empty();
    // the feature CrossNamespaceVolumeDataSource is off
    if across_namespaces && !has(old, &[REFERENCE]) {
        remove(spec, REFERENCE);
    }
    let had_one = has(old, &[SOURCE]) || has(old, &[REFERENCE]);
    if !had_one && !has(spec, &[REFERENCE]) && !is_claim_or_snapshot(at(spec, &[SOURCE])) {
        remove(spec, SOURCE);
    }
    copy(spec);
}

/// Fills in whichever of the two is missing.
pub(super) fn copy(spec: &mut Value) {
    let (from, to) = match (has(spec, &[SOURCE]), has(spec, &[REFERENCE])) {
        (true, false) => (SOURCE, REFERENCE),
        (false, true) if str_at(spec, &[REFERENCE, "namespace"]).is_empty() => (REFERENCE, SOURCE),
        _ => return,
    };
    let members = entries_at(spec, &[from]).filter(|(key, _)| *key != "namespace");
    let members: serde_json::Map<_, _> = members.map(|(k, v)| (k.clone(), v.clone())).collect();
    set(spec, to, json!(members));
}

fn is_claim_or_snapshot(source: &Value) -> bool {
    let group = str_at(source, &["apiGroup"]);
    let kind = str_at(source, &["kind"]);
    matches!(
        (group, kind),
        ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
    )
}

/// Whether the source of a claim says of which group it is. What a group has to look like is then not asked of an update:
/// there are claims from before it was.
pub(super) fn has_group(spec: &Value) -> bool {
    [SOURCE, REFERENCE]
        .iter()
        .any(|key| has(spec, &[key, "apiGroup"]))
}

/// Whether a fault is of the name of a group.
pub(super) fn is_of_group(fault: &FieldError) -> bool {
    [SOURCE, REFERENCE]
        .iter()
        .any(|key| fault.field == format!("spec.{key}.apiGroup"))
}

/// Faults of the two, and of what they say together.
pub(super) fn validate(spec: &Value, path: &Path, errors: &mut ErrorList) {
    for key in [SOURCE, REFERENCE] {
        let source = at(spec, &[key]);
        if !source.is_null() {
            one(source, &path.child(key), errors);
        }
    }
    let (source, reference) = (at(spec, &[SOURCE]), at(spec, &[REFERENCE]));
    if source.is_null() || reference.is_null() {
        return;
    }
    let fault = if !str_at(reference, &["namespace"]).is_empty() {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if ["apiGroup", "kind", "name"]
        .iter()
        .any(|key| !same(at(source, &[key]), at(reference, &[key])))
    {
        "must match dataSourceRef"
    } else {
        return;
    };
    // upstream shows the place of the source as an object without members
    errors.push(FieldError::invalid(path, json!({}), fault));
}

fn one(source: &Value, path: &Path, errors: &mut ErrorList) {
    for key in ["name", "kind"] {
        required(source, key, path, errors);
    }
    let (group, kind) = (str_at(source, &["apiGroup"]), str_at(source, &["kind"]));
    if group.is_empty() {
        if kind != "PersistentVolumeClaim" {
            let fault = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.push(FieldError::invalid(path, kind, fault));
        }
    } else {
        let faults = names::check_dns1123_subdomain(group);
        errors.extend(invalid_each(&path.child("apiGroup"), group, faults));
    }
    let namespace = str_at(source, &["namespace"]);
    if !namespace.is_empty() {
        let faults = names::check_dns1123_label(namespace);
        errors.extend(invalid_each(&path.child("namespace"), namespace, faults));
    }
}
