//! Claims for persistent volumes.

mod data_source;

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use davit_api::quantity::Quantity;
use serde_json::{Value, json};

use super::json::{
    at, at_mut, default, entries_at, has, keep, object_mut, remove, same, set, str_at,
};
use super::persistent_volumes::{access_modes, modes_required};
use super::{KindInfo, Strategy, access, meta, pod_defaults, resources, selectors, volumes};

const ATTRIBUTES_CLASS: &str = "volumeAttributesClassName";
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

pub(super) struct PersistentVolumeClaim(pub(super) KindInfo);

impl Strategy for PersistentVolumeClaim {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn default(&self, obj: &mut Value) {
        claim_defaults(obj);
    }

    fn prepare_for_create(&self, obj: &mut Value) {
        set(obj, "status", json!({"phase": "Pending"}));
        if let Some(spec) = at_mut(obj, &["spec"]) {
            data_source::prepare(spec, &Value::Null);
        }
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value) {
        access::keep_status(&self.0, new, old);
        if let Some(spec) = at_mut(new, &["spec"]) {
            data_source::prepare(spec, at(old, &["spec"]));
        }
    }

    fn warnings(&self, obj: &Value) -> Vec<String> {
        let mut warnings = Vec::new();
        let resources = at(obj, &["spec", "resources"]);
        for list in ["requests", "limits"] {
            let path = "spec.resources";
            resources::fractions(resources, list, path, &mut warnings);
        }
        warnings
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        claim_spec(at(obj, &["spec"]), &Path::new("spec"), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let mut found = ErrorList::new();
        claim_spec(at(new, &["spec"]), &Path::new("spec"), &mut found);
        if data_source::has_group(at(old, &["spec"])) {
            found.retain(|fault| !data_source::is_of_group(fault));
        }
        errors.extend(found);
        claim_update(new, old, &mut errors);
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let path = Path::new("status");
        let at_amounts = path.child("allocatedResources");
        for (name, _) in entries_at(new, &["status", "allocatedResources"]) {
            growing(name, &at_amounts, &mut errors);
        }
        let at_statuses = path.child("allocatedResourceStatuses");
        for (name, status) in entries_at(new, &["status", "allocatedResourceStatuses"]) {
            growing(name, &at_statuses, &mut errors);
            if !RESIZE_STATUSES.contains(&status.as_str().unwrap_or_default()) {
                errors.push(FieldError::not_supported(
                    &at_statuses,
                    name.as_str(),
                    &RESIZE_STATUSES,
                ));
            }
        }
        errors
    }
}

/// How far the growing of a claim is.
const RESIZE_STATUSES: [&str; 5] = [
    "ControllerResizeInfeasible",
    "ControllerResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizePending",
];

/// What of a claim may grow: storage, and what drivers have names of their own for.
fn growing(name: &str, path: &Path, errors: &mut ErrorList) {
    let faults = names::check_qualified_name(name);
    let is_native = !name.contains('/') || name.contains("kubernetes.io/");
    if !faults.is_empty() {
        errors.extend(invalid_each(path, name, faults));
    } else if is_native && name != "storage" {
        errors.push(FieldError::not_supported(path, name, &["storage"]));
    }
}

/// Defaults of a claim, also of the templates in stateful sets.
pub(super) fn claim_defaults(claim: &mut Value) {
    if let Some(spec) = at_mut(claim, &["spec"]) {
        default(spec, "volumeMode", "Filesystem");
        for list in ["limits", "requests"] {
            pod_defaults::round_quantities(spec, &["resources", list]);
        }
    }
    if let Some(status) = object_mut(claim, "status") {
        status.entry("phase").or_insert_with(|| json!("Pending"));
    }
    for list in ["capacity", "allocatedResources"] {
        pod_defaults::round_quantities(claim, &["status", list]);
    }
}

/// Faults of the spec of a claim.
pub(super) fn claim_spec(spec: &Value, path: &Path, errors: &mut ErrorList) {
    modes_required(spec, "at least 1 access mode is required", path, errors);
    access_modes(spec, path, errors);
    let selector = at(spec, &["selector"]);
    selectors::label_selector(selector, &path.child("selector"), errors);
    let wanted = at(spec, &["resources", "requests", "storage"]);
    let at_resources = path.child("resources");
    if wanted.is_null() {
        errors.push(FieldError::required(&at_resources.key("storage"), ""));
    } else if Quantity::from_json(wanted).is_ok_and(|q| q.signum() <= 0) {
        let path = at_resources.key("storage");
        let wanted = wanted.as_str().unwrap_or_default();
        errors.push(FieldError::invalid(
            &path,
            wanted,
            "must be greater than zero",
        ));
    }
    let class = str_at(spec, &["storageClassName"]);
    if !class.is_empty() {
        let faults = names::check_dns1123_subdomain(class);
        errors.extend(invalid_each(&path.child("storageClassName"), class, faults));
    }
    volumes::volume_mode(spec, path, errors);
    data_source::validate(spec, path, errors);
    let class = str_at(spec, &[ATTRIBUTES_CLASS]);
    if !class.is_empty() {
        let faults = names::check_dns1123_subdomain(class);
        errors.extend(invalid_each(&path.child(ATTRIBUTES_CLASS), class, faults));
    }
}

fn claim_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let mut stored = at(old, &["spec"]).clone();
    // claims of before there were references get theirs
    data_source::copy(&mut stored);
    let mut rest = at(new, &["spec"]).clone();
    if str_at(&stored, &["volumeName"]).is_empty() {
        keep(&mut rest, &stored, "volumeName");
    }
    if str_at(old, &["status", "phase"]) == "Bound" {
        keep(&mut rest, &stored, ATTRIBUTES_CLASS);
        if let Some(r) = at_mut(&mut rest, &["resources"]) {
            keep(r, at(&stored, &["resources"]), "requests");
        }
    }
    class_update(new, old, &mut rest, errors);
    // A selector without conditions is not none.
    let has_selector = |spec: &Value| at(spec, &["selector"]).is_object();
    if !same(&rest, &stored) || has_selector(&rest) != has_selector(&stored) {
        let why = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.push(FieldError::forbidden(&path, why));
    }
    shrink(new, old, errors);
    let mode = |claim| at(claim, &["spec", "volumeMode"]);
    meta::immutable(mode(new), mode(old), &Path::new("volumeMode"), errors);
    attributes_stay(new, old, errors);
}

/// A claim without a class may get one, the one of its old annotation if it has that; the annotation stays.
fn class_update(new: &Value, old: &Value, rest: &mut Value, errors: &mut ErrorList) {
    let annotation = |claim| at(claim, &["metadata", "annotations", BETA_CLASS]);
    let (before, after) = (annotation(old), annotation(new));
    let class = at(new, &["spec", "storageClassName"]);
    let first = !has(old, &["spec", "storageClassName"]) && class.is_string();
    let of_annotation = first && !before.is_null() && class == before;
    if first && (before.is_null() || of_annotation) {
        remove(rest, "storageClassName");
    }
    let moved = of_annotation && after.is_null();
    if !same(before, after) && !moved {
        let path = Path::new("metadata").child("annotations").key(BETA_CLASS);
        meta::immutable(after, before, &path, errors);
    }
}

fn shrink(new: &Value, old: &Value, errors: &mut ErrorList) {
    let wanted =
        |claim| Quantity::from_json(at(claim, &["spec", "resources", "requests", "storage"]));
    let has_now = Quantity::from_json(at(old, &["status", "capacity", "storage"])).ok();
    if let (Ok(now), Ok(before)) = (wanted(new), wanted(old))
        && now < before
        && has_now.is_some_and(|capacity| now <= capacity)
    {
        let path = Path::new("spec").child("resources").child("requests");
        let why = "field can not be less than status.capacity";
        errors.push(FieldError::forbidden(&path.child("storage"), why));
    }
}

/// Once a claim has attributes it may get others, not none.
fn attributes_stay(new: &Value, old: &Value, errors: &mut ErrorList) {
    let wanted = at(new, &["spec", ATTRIBUTES_CLASS]);
    let has_some = has(old, &["status", "currentVolumeAttributesClassName"]);
    if !has_some || same(wanted, at(old, &["spec", ATTRIBUTES_CLASS])) {
        return;
    }
    let to = match wanted.as_str() {
        None => "nil",
        Some("") => "empty string",
        Some(_) => return,
    };
    let path = Path::new("spec").child(ATTRIBUTES_CLASS);
    let why = format!(
        "update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil"
    );
    errors.push(FieldError::forbidden(&path, why));
}

#[cfg(test)]
mod tests;
