//! The classic kinds of `resource.k8s.io/v1alpha1` (1.26): what never changes and what is valid.
//! They share nothing but names with today's.

use std::collections::HashSet;

use davit_api::classic::{LONGEST_HANDLE, MOST_NODES, MOST_RESERVED};
use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use serde_json::Value;

use super::super::json::{at, bool_at, has, list_at, same, str_at};
use super::super::{KindInfo, Strategy, meta, selectors};
use super::parts;

const MODES: [&str; 2] = ["WaitForFirstConsumer", "Immediate"];

pub(super) struct Class(pub(super) KindInfo);

impl Class {
    fn content(obj: &Value, errors: &mut ErrorList) {
        let driver = Path::new("driverName");
        parts::driver_name(str_at(obj, &["driverName"]), &driver, errors);
        if has(obj, &["parametersRef"]) {
            let reference = at(obj, &["parametersRef"]);
            let path = Path::new("parametersRef");
            parameters(reference, &path, errors);
            let namespace = str_at(reference, &["namespace"]);
            if !namespace.is_empty() {
                let faults = names::check_dns1123_label(namespace);
                errors.extend(invalid_each(&path.child("namespace"), namespace, faults));
            }
        }
        if has(obj, &["suitableNodes"]) {
            let nodes = at(obj, &["suitableNodes"]);
            selectors::node_selector(nodes, &Path::new("suitableNodes"), errors);
        }
    }
}

impl Strategy for Class {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        Self::content(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        Self::content(new, &mut errors);
        errors
    }
}

/// A reference to an object with parameters.
fn parameters(reference: &Value, path: &Path, errors: &mut ErrorList) {
    for key in ["kind", "name"] {
        if str_at(reference, &[key]).is_empty() {
            errors.push(FieldError::required(&path.child(key), ""));
        }
    }
}

/// The spec of a claim, or of a template's claims.
pub(super) fn spec(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let class = str_at(spec, &["resourceClassName"]);
    let at_class = path.child("resourceClassName");
    if class.is_empty() {
        errors.push(FieldError::required(&at_class, ""));
    } else {
        let faults = names::check_dns1123_subdomain(class);
        errors.extend(invalid_each(&at_class, class, faults));
    }
    if has(spec, &["parametersRef"]) {
        let reference = at(spec, &["parametersRef"]);
        parameters(reference, &path.child("parametersRef"), errors);
    }
    let mode = str_at(spec, &["allocationMode"]);
    if !MODES.contains(&mode) {
        let path = path.child("allocationMode");
        errors.push(FieldError::not_supported(&path, mode, &MODES));
    }
}

/// The status of a claim.
pub(super) fn status(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("status");
    let (status, before) = (at(new, &["status"]), at(old, &["status"]));
    let allocated = has(status, &["allocation"]);
    let driver = str_at(status, &["driverName"]);
    if !driver.is_empty() {
        parts::driver_name(driver, &path.child("driverName"), errors);
    } else if allocated {
        let why = "must be specified when `allocation` is set";
        errors.push(FieldError::required(&path.child("driverName"), why));
    }
    if allocated {
        allocation(
            at(status, &["allocation"]),
            &path.child("allocation"),
            errors,
        );
    }
    reservations(new, old, &path, errors);
    let (stored, given) = (at(before, &["allocation"]), at(status, &["allocation"]));
    if has(before, &["allocation"]) && allocated && !is_same_allocation(stored, given) {
        meta::immutable_at(new, old, &["status", "allocation"], errors);
    }
    let flag = path.child("deallocationRequested");
    if bool_at(status, &["deallocationRequested"]) {
        let users = list_at(status, &["reservedFor"]);
        if !bool_at(before, &["deallocationRequested"]) && !users.is_empty() {
            let why = "deallocation cannot be requested while `reservedFor` is set";
            errors.push(FieldError::forbidden(&flag, why));
        }
        if !allocated {
            let why = "not allowed when `allocation` is not set";
            errors.push(FieldError::forbidden(&flag, why));
        }
    }
}

/// Equality in which a member that is left out has its zero value.
fn is_same_allocation(a: &Value, b: &Value) -> bool {
    str_at(a, &["resourceHandle"]) == str_at(b, &["resourceHandle"])
        && bool_at(a, &["shareable"]) == bool_at(b, &["shareable"])
        && same(at(a, &["availableOnNodes"]), at(b, &["availableOnNodes"]))
}

fn allocation(allocation: &Value, path: &Path, errors: &mut ErrorList) {
    if str_at(allocation, &["resourceHandle"]).len() > LONGEST_HANDLE {
        let path = path.child("resourceHandle");
        errors.push(FieldError::too_long(&path, LONGEST_HANDLE));
    }
    if has(allocation, &["availableOnNodes"]) {
        let nodes = at(allocation, &["availableOnNodes"]);
        selectors::node_selector(nodes, &path.child("availableOnNodes"), errors);
    }
}

fn reservations(new: &Value, old: &Value, path: &Path, errors: &mut ErrorList) {
    let users = list_at(new, &["status", "reservedFor"]);
    let path = path.child("reservedFor");
    parts::too_many(users, MOST_RESERVED, &path, errors);
    let mut seen = HashSet::new();
    for (i, user) in users.iter().enumerate() {
        let path = path.index(i);
        for key in ["resource", "name", "uid"] {
            if str_at(user, &[key]).is_empty() {
                errors.push(FieldError::required(&path.child(key), ""));
            }
        }
        let uid = str_at(user, &["uid"]);
        if !seen.insert(uid) {
            errors.push(FieldError::duplicate(&path.child("uid"), uid));
        }
    }
    if users.is_empty() {
        return;
    }
    if !has(new, &["status", "allocation"]) {
        let why = "may not be specified when `allocated` is not set";
        return errors.push(FieldError::forbidden(&path, why));
    }
    if users.len() > 1 && !bool_at(new, &["status", "allocation", "shareable"]) {
        let why = "may not be reserved more than once";
        errors.push(FieldError::forbidden(&path, why));
    }
    // Users may go while the claim is on its way out, but not come.
    let leaving = bool_at(new, &["status", "deallocationRequested"])
        || has(old, &["metadata", "deletionTimestamp"]);
    let before = list_at(old, &["status", "reservedFor"]);
    let known: HashSet<&str> = before.iter().map(|u| str_at(u, &["uid"])).collect();
    if leaving && !seen.is_subset(&known) {
        let why = "new users may not be added while `deallocationRequested` or `deletionTimestamp` are set";
        errors.push(FieldError::forbidden(&path, why));
    }
}

pub(super) struct PodScheduling(pub(super) KindInfo);

impl PodScheduling {
    fn content(obj: &Value, errors: &mut ErrorList) {
        let path = Path::new("spec");
        let selected = str_at(obj, &["spec", "selectedNode"]);
        if !selected.is_empty() {
            let faults = names::check_dns1123_subdomain(selected);
            errors.extend(invalid_each(&path.child("selectedNode"), selected, faults));
        }
        let potential = list_at(obj, &["spec", "potentialNodes"]);
        nodes(potential, &path.child("potentialNodes"), errors);
    }
}

/// A set of names of nodes.
fn nodes(list: &[Value], path: &Path, errors: &mut ErrorList) {
    parts::too_many(list, MOST_NODES, path, errors);
    let mut seen = HashSet::new();
    for (i, name) in list.iter().enumerate() {
        let (name, path) = (name.as_str().unwrap_or_default(), path.index(i));
        let faults = names::check_dns1123_subdomain(name);
        errors.extend(invalid_each(&path, name, faults));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path, name));
        }
    }
}

impl Strategy for PodScheduling {
    fn kind(&self) -> &KindInfo {
        &self.0
    }

    fn validate(&self, obj: &Value) -> ErrorList {
        let mut errors = meta::validate(&self.0, obj);
        Self::content(obj, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        Self::content(new, &mut errors);
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = meta::validate_update(&self.0, new, old);
        let path = Path::new("status").child("resourceClaims");
        let mut seen = HashSet::new();
        let claims = list_at(new, &["status", "resourceClaims"]);
        for (i, claim) in claims.iter().enumerate() {
            let path = path.index(i);
            let name = str_at(claim, &["name"]);
            if !seen.insert(name) {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
            let unsuitable = list_at(claim, &["unsuitableNodes"]);
            nodes(unsuitable, &path.child("unsuitableNodes"), &mut errors);
        }
        errors
    }
}
