//! AppArmor: profiles of pods and containers, and the annotations that named them before there were fields
//! (<https://kubernetes.io/docs/tutorials/security/apparmor/>, KEP-24).

use davit_api::app_armor::{ANNOTATION, LOCALHOST, LONGEST_NAME, named};
use davit_api::field::{ErrorList, FieldError, Path};
use serde_json::Value;

use super::json::{at, entries_at, has, list_at, list_mut, object_mut, str_at};

const NAME_MISSING: &str = "must be set when AppArmor type is Localhost";
pub(super) const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Faults of the profile of a pod or a container.
pub(super) fn profile(profile: &Value, path: &Path, errors: &mut ErrorList) {
    if profile.is_null() {
        return;
    }
    let name = at(profile, &["localhostProfile"]).as_str();
    let at_name = path.child("localhostProfile");
    match str_at(profile, &["type"]) {
        "" => {
            let why = "type is required when appArmorProfile is set";
            errors.push(FieldError::required(&path.child("type"), why));
        }
        "Localhost" => {
            let name = name.unwrap_or_default();
            if name != name.trim() {
                let fault = "must not be padded with whitespace";
                errors.push(FieldError::invalid(&at_name, name, fault));
            } else if name.is_empty() {
                errors.push(FieldError::required(&at_name, NAME_MISSING));
            }
            if name.len() > LONGEST_NAME {
                errors.push(FieldError::too_long(&at_name, LONGEST_NAME));
            }
        }
        "RuntimeDefault" | "Unconfined" => {
            if let Some(name) = name {
                let fault = "can only be set when AppArmor type is Localhost";
                errors.push(FieldError::invalid(&at_name, name, fault));
            }
        }
        // the table of kinds has the types there are
        _ => {}
    }
}

/// The profile that an annotation names.
pub(super) fn profile_named(annotation: &str) -> Option<Value> {
    serde_json::to_value(named(annotation)?).ok()
}

/// Gives the containers of a new pod the profiles that its annotations name.
pub(super) fn from_annotations(pod: &mut Value) {
    let wanted: Vec<(String, Value)> = entries_at(pod, &["metadata", "annotations"])
        .filter_map(|(key, value)| {
            let container = key.strip_prefix(ANNOTATION)?.to_owned();
            Some((container, profile_named(value.as_str()?)?))
        })
        .collect();
    let spec = at(pod, &["spec"]);
    if wanted.is_empty() || str_at(spec, &["os", "name"]) == "windows" {
        return;
    }
    let of_pod = at(spec, &["securityContext", "appArmorProfile"]).clone();
    for (name, profile) in wanted.iter().filter(|(_, profile)| *profile != of_pod) {
        for list in LISTS {
            for container in list_mut(pod, &["spec", list]) {
                let is_meant = str_at(container, &["name"]) == name
                    && !has(container, &["securityContext", "appArmorProfile"]);
                if is_meant && let Some(context) = object_mut(container, "securityContext") {
                    context.insert("appArmorProfile".to_owned(), profile.clone());
                }
            }
        }
    }
}

/// Faults of the annotations of a pod or a template; `spec` is at `at_spec`.
pub(super) fn annotations(
    metadata: &Value,
    spec: &Value,
    [at_annotations, at_spec]: [&Path; 2],
    errors: &mut ErrorList,
) {
    let places = |list| {
        let containers = list_at(spec, &[list]).iter().enumerate();
        containers.map(move |(i, container)| (container, at_spec.child(list).index(i)))
    };
    let containers: Vec<(&Value, Path)> = LISTS.into_iter().flat_map(places).collect();
    for (key, value) in entries_at(metadata, &["annotations"]) {
        let Some(name) = key.strip_prefix(ANNOTATION) else {
            continue;
        };
        let value = value.as_str().unwrap_or_default();
        let path = at_annotations.key(key);
        let is_meant = |(container, _): &&(&Value, Path)| str_at(container, &["name"]) == name;
        if !containers.iter().any(|place| is_meant(&place)) {
            errors.push(FieldError::invalid(&path, name, "container not found"));
        }
        let known = ["", "runtime/default", "unconfined"].contains(&value);
        if !known && !value.starts_with(LOCALHOST) {
            let fault = format!("invalid AppArmor profile name: {value:?}");
            errors.push(FieldError::invalid(&path, value, fault));
        }
        for (container, path) in containers.iter().filter(is_meant) {
            matches_field(value, spec, container, path, errors);
        }
    }
}

/// The annotation and the field of a container name the same.
fn matches_field(
    annotation: &str,
    spec: &Value,
    container: &Value,
    path: &Path,
    errors: &mut ErrorList,
) {
    let profile = |of| at(of, &["securityContext", "appArmorProfile"]);
    let mut profiles = [container, spec].map(profile).into_iter();
    let profile = profiles.find(|profile| !profile.is_null());
    let is_windows = str_at(spec, &["os", "name"]) == "windows";
    let Some(profile) = profile.filter(|_| !is_windows) else {
        return;
    };
    let path = path.child("securityContext").child("appArmorProfile");
    let same_type = match str_at(profile, &["type"]) {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => annotation == "runtime/default",
        "Localhost" => annotation.starts_with(LOCALHOST),
        _ => true,
    };
    let name = annotation.strip_prefix(LOCALHOST);
    if !same_type {
        let why = "apparmor type in annotation and field must match";
        errors.push(FieldError::forbidden(&path.child("type"), why));
    } else if str_at(profile, &["type"]) == "Localhost"
        && name != at(profile, &["localhostProfile"]).as_str()
    {
        let why = "apparmor profile in annotation and field must match";
        errors.push(FieldError::forbidden(&path.child("localhostProfile"), why));
    }
}

/// Faults of an update of a pod: its annotations stay.
pub(super) fn annotations_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let of = |pod| at(pod, &["metadata", "annotations"]);
    let path = Path::new("metadata").child("annotations");
    let mut forbid = |key: &str, why| errors.push(FieldError::forbidden(&path.key(key), why));
    let ours = |(key, _): &(&String, &Value)| key.starts_with(ANNOTATION);
    for (key, value) in entries_at(of(old), &[]).filter(ours) {
        if of(new).get(key) != Some(value) {
            forbid(key, "may not remove or update AppArmor annotations");
        }
    }
    for (key, _) in entries_at(of(new), &[]).filter(ours) {
        if of(old).get(key).is_none() {
            forbid(key, "may not add AppArmor annotations");
        }
    }
}

#[cfg(test)]
mod tests;
