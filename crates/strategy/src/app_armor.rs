//! AppArmor: profiles of pods and containers, and the annotations that named them before there were fields
//! (<https://kubernetes.io/docs/tutorials/security/apparmor/>, KEP-24).

use davit_api::field::{ErrorList, FieldError, Path};
use serde_json::{Value, json};

use super::json::{at, entries_at, has, list_at, list_mut, object_mut, str_at};

/// What comes before the container's name in an annotation of a pod.
const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
/// Where the names of profiles of the node begin in an annotation.
const LOCALHOST: &str = "localhost/";
/// The longest name of a profile, in bytes.
const LONGEST: usize = 4095;
const NAME_MISSING: &str = "must be set when AppArmor type is Localhost";
const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

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
            if name.len() > LONGEST {
                errors.push(FieldError::too_long(&at_name, LONGEST));
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
fn named(annotation: &str) -> Option<Value> {
    match annotation {
        "unconfined" => Some(json!({"type": "Unconfined"})),
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        _ => {
            let name = annotation.strip_prefix(LOCALHOST)?;
            let named = !name.is_empty() && name == name.trim() && name.len() <= LONGEST;
            named.then(|| json!({"type": "Localhost", "localhostProfile": name}))
        }
    }
}

fn is_windows(spec: &Value) -> bool {
    str_at(spec, &["os", "name"]) == "windows"
}

/// Gives the containers of a new pod the profiles that its annotations name.
pub(super) fn from_annotations(pod: &mut Value) {
    let wanted: Vec<(String, Value)> = entries_at(pod, &["metadata", "annotations"])
        .filter_map(|(key, value)| {
            let container = key.strip_prefix(ANNOTATION)?.to_owned();
            Some((container, named(value.as_str()?)?))
        })
        .collect();
    let spec = at(pod, &["spec"]);
    if wanted.is_empty() || is_windows(spec) {
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
    let containers = || {
        LISTS
            .into_iter()
            .flat_map(|list| places(spec, list, at_spec))
    };
    for (key, value) in entries_at(metadata, &["annotations"]) {
        let Some(name) = key.strip_prefix(ANNOTATION) else {
            continue;
        };
        let value = value.as_str().unwrap_or_default();
        let path = at_annotations.key(key);
        if !containers().any(|(container, _)| str_at(container, &["name"]) == name) {
            errors.push(FieldError::invalid(&path, name, "container not found"));
        }
        let known = ["", "runtime/default", "unconfined"].contains(&value);
        if !known && !value.starts_with(LOCALHOST) {
            let fault = format!("invalid AppArmor profile name: {value:?}");
            errors.push(FieldError::invalid(&path, value, fault));
        }
        if is_windows(spec) {
            continue;
        }
        let meant = containers().filter(|(container, _)| str_at(container, &["name"]) == name);
        for (container, path) in meant {
            matches_field(value, spec, container, &path, errors);
        }
    }
}

fn places<'a>(
    spec: &'a Value,
    list: &'a str,
    path: &'a Path,
) -> impl Iterator<Item = (&'a Value, Path)> {
    let containers = list_at(spec, &[list]).iter().enumerate();
    containers.map(move |(i, container)| (container, path.child(list).index(i)))
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
    let profile = [container, spec].map(profile);
    let Some(profile) = profile.into_iter().find(|profile| !profile.is_null()) else {
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
mod tests {
    use super::*;
    use crate::strategy;
    use crate::testing::faults;

    fn pod(annotations: Value, context: Value, of_container: Value) -> Value {
        json!({
            "metadata": {"name": "p", "namespace": "n", "annotations": annotations},
            "spec": {
                "securityContext": context,
                "containers": [{"name": "c", "image": "i", "securityContext": of_container}],
            },
        })
    }

    #[test]
    fn names_belong_to_profiles_of_the_node() {
        let of = |profile: Value| {
            let context = json!({"appArmorProfile": profile});
            faults("", "v1", "Pod", &made(pod(json!({}), json!({}), context)))
        };
        let at = "spec.containers[0].securityContext.appArmorProfile";
        assert_eq!(of(json!({"type": "RuntimeDefault"})), "");
        assert_eq!(
            of(json!({"type": "Localhost", "localhostProfile": "x"})),
            ""
        );
        assert_eq!(
            of(json!({"type": "RuntimeDefault", "localhostProfile": "x"})),
            format!(
                "{at}.localhostProfile: Invalid value: \"x\": can only be set when AppArmor type is Localhost"
            )
        );
        assert_eq!(
            of(json!({"type": "Localhost"})),
            format!("{at}.localhostProfile: Required value: {NAME_MISSING}")
        );
        assert_eq!(
            of(json!({"type": "Localhost", "localhostProfile": " x"})),
            format!(
                "{at}.localhostProfile: Invalid value: \" x\": must not be padded with whitespace"
            )
        );
        assert_eq!(
            of(json!({})),
            format!("{at}.type: Required value: type is required when appArmorProfile is set")
        );
        let whole = json!({"appArmorProfile": {"type": "Unconfined", "localhostProfile": ""}});
        assert_eq!(
            faults("", "v1", "Pod", &made(pod(json!({}), whole, json!({})))),
            "spec.securityContext.appArmorProfile.localhostProfile: Invalid value: \"\": can only be set when AppArmor type is Localhost"
        );
    }

    fn made(mut pod: Value) -> Value {
        let strategy = strategy("", "v1", "Pod");
        strategy.default(&mut pod);
        strategy.prepare_for_create(&mut pod);
        pod
    }

    #[test]
    fn annotations_become_fields_and_agree_with_them() {
        let key = format!("{ANNOTATION}c");
        let of = |value: &str, field: Value| made(pod(json!({&key: value}), json!({}), field));
        let profile = |pod: &Value| {
            let path = "/spec/containers/0/securityContext/appArmorProfile";
            pod.pointer(path).cloned().unwrap_or_default()
        };
        let local = json!({"type": "Localhost", "localhostProfile": "a"});
        assert_eq!(profile(&of("localhost/a", json!({}))), local);
        assert_eq!(
            profile(&of("unconfined", json!({}))),
            json!({"type": "Unconfined"})
        );
        assert_eq!(profile(&of("nope", json!({}))), Value::Null);
        let given = of("unconfined", json!({"appArmorProfile": local}));
        assert_eq!(profile(&given), local);
        let found = |pod: &Value| faults("", "v1", "Pod", pod);
        let at = "spec.containers[0].securityContext.appArmorProfile";
        assert_eq!(
            found(&given),
            format!("{at}.type: Forbidden: apparmor type in annotation and field must match")
        );
        assert_eq!(
            found(&of("localhost/b", json!({"appArmorProfile": local}))),
            format!(
                "{at}.localhostProfile: Forbidden: apparmor profile in annotation and field must match"
            )
        );
        assert_eq!(
            found(&of("nope", json!({}))),
            format!(
                "metadata.annotations[{key}]: Invalid value: \"nope\": invalid AppArmor profile name: \"nope\""
            )
        );
        let other = format!("{ANNOTATION}d");
        assert_eq!(
            found(&made(pod(
                json!({&other: "unconfined"}),
                json!({}),
                json!({})
            ))),
            format!("metadata.annotations[{other}]: Invalid value: \"d\": container not found")
        );
        let (old, mut new) = (of("unconfined", json!({})), of("unconfined", json!({})));
        new["metadata"]["annotations"] = json!({});
        let update = |new, old| {
            let mut errors = ErrorList::new();
            annotations_update(new, old, &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let forbidden = |what| {
            vec![format!(
                "metadata.annotations[{key}]: Forbidden: may not {what} AppArmor annotations"
            )]
        };
        assert_eq!(update(&new, &old), forbidden("remove or update"));
        assert_eq!(update(&old, &new), forbidden("add"));
    }
}
