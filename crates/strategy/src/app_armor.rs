//! Profiles of AppArmor: the field, and the annotations that came before it, which count for containers without the field.
//! <https://kubernetes.io/docs/tutorials/security/apparmor/>, KEP-24.

use davit_api::field::{ErrorList, FieldError, Path};
use serde_json::{Value, json};

use super::fields::choice;
use super::json::{at, entries_at, has, list_at, list_mut, str_at};

/// Prefix of the annotations; the container's name follows.
const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const RUNTIME_DEFAULT: &str = "runtime/default";
const UNCONFINED: &str = "unconfined";
const LOCALHOST: &str = "localhost/";
/// Bytes of a profile's name.
const MAX_NAME: usize = 4095;

const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Faults of the field in a security context of a pod or container.
pub(super) fn profile(context: &Value, path: &Path, errors: &mut ErrorList) {
    let profile = at(context, &["appArmorProfile"]);
    if profile.is_null() {
        return;
    }
    let path = path.child("appArmorProfile");
    let types = ["Localhost", "RuntimeDefault", "Unconfined"];
    choice(profile, "type", &types, &path, errors);
    let is_local = str_at(profile, &["type"]) == "Localhost";
    let name = str_at(profile, &["localhostProfile"]);
    let path = path.child("localhostProfile");
    let fault = if !is_local && has(profile, &["localhostProfile"]) {
        FieldError::invalid(
            &path,
            name,
            "can only be set when AppArmor type is Localhost",
        )
    } else if !is_local {
        return;
    } else if name != name.trim() {
        FieldError::invalid(&path, name, "must not be padded with whitespace")
    } else if name.is_empty() {
        FieldError::required(&path, "must be set when AppArmor type is Localhost")
    } else if name.len() > MAX_NAME {
        FieldError::too_long(&path, MAX_NAME)
    } else {
        return;
    };
    errors.push(fault);
}

/// The profile that an annotation means; `None` where it means none.
fn meant(annotation: &str) -> Option<Value> {
    match annotation {
        RUNTIME_DEFAULT => Some(json!({"type": "RuntimeDefault"})),
        UNCONFINED => Some(json!({"type": "Unconfined"})),
        name => {
            let name = name.strip_prefix(LOCALHOST)?;
            let is_name = !name.is_empty() && name == name.trim() && name.len() <= MAX_NAME;
            is_name.then(|| json!({"type": "Localhost", "localhostProfile": name}))
        }
    }
}

fn is_windows(spec: &Value) -> bool {
    str_at(spec, &["os", "name"]) == "windows"
}

/// Puts what annotations mean into the containers that have no profile of their own.
pub(super) fn settle(pod: &mut Value) {
    let annotated = |(key, value): (&String, &Value)| {
        let container = key.strip_prefix(ANNOTATION)?;
        Some((container.to_owned(), meant(value.as_str()?)?))
    };
    let meta = entries_at(pod, &["metadata", "annotations"]);
    let meant: Vec<(String, Value)> = meta.filter_map(annotated).collect();
    if meant.is_empty() || is_windows(at(pod, &["spec"])) {
        return;
    }
    let of_pod = at(pod, &["spec", "securityContext", "appArmorProfile"]).clone();
    for list in CONTAINERS {
        for container in list_mut(pod, &["spec", list]) {
            let name = str_at(container, &["name"]);
            let found = meant.iter().find(|(of, _)| of == name);
            let own = has(container, &["securityContext", "appArmorProfile"]);
            let Some((_, profile)) = found.filter(|(_, profile)| !own && *profile != of_pod) else {
                continue;
            };
            if !has(container, &["securityContext"]) {
                container["securityContext"] = json!({});
            }
            container["securityContext"]["appArmorProfile"] = profile.clone();
        }
    }
}

/// Faults of the annotations of a pod or template.
pub(super) fn annotations(meta: &Value, spec: &Value, path: &Path, errors: &mut ErrorList) {
    let path = path.child("annotations");
    for (key, value) in entries_at(meta, &["annotations"]) {
        let Some(container) = key.strip_prefix(ANNOTATION) else {
            continue;
        };
        let lists = CONTAINERS.iter().flat_map(|list| list_at(spec, &[list]));
        if !lists.into_iter().any(|c| str_at(c, &["name"]) == container) {
            let fault = "container not found";
            errors.push(FieldError::invalid(&path.key(key), container, fault));
        }
        let value = value.as_str().unwrap_or_default();
        let known = ["", RUNTIME_DEFAULT, UNCONFINED].contains(&value);
        if !known && !value.starts_with(LOCALHOST) {
            let fault = format!("invalid AppArmor profile name: {value:?}");
            errors.push(FieldError::invalid(&path.key(key), value, fault));
        }
    }
}

/// Faults of a new pod whose annotations say something else than its fields.
pub(super) fn disagreements(pod: &Value, path: &Path, errors: &mut ErrorList) {
    let spec = at(pod, &["spec"]);
    if is_windows(spec) {
        return;
    }
    let of_pod = at(spec, &["securityContext", "appArmorProfile"]);
    for list in CONTAINERS {
        for (i, container) in list_at(spec, &[list]).iter().enumerate() {
            let key = format!("{ANNOTATION}{}", str_at(container, &["name"]));
            let own = at(container, &["securityContext", "appArmorProfile"]);
            let profile = if own.is_null() { of_pod } else { own };
            let annotation = at(pod, &["metadata", "annotations", &key]);
            let Some(annotation) = annotation.as_str().filter(|_| !profile.is_null()) else {
                continue;
            };
            let path = path.child(list).index(i).child("securityContext");
            let path = path.child("appArmorProfile");
            let (kind, name) = match annotation {
                UNCONFINED => ("Unconfined", ""),
                RUNTIME_DEFAULT => ("RuntimeDefault", ""),
                other => match other.strip_prefix(LOCALHOST) {
                    Some(name) => ("Localhost", name),
                    None => ("", ""),
                },
            };
            if kind != str_at(profile, &["type"]) {
                let why = "apparmor type in annotation and field must match";
                errors.push(FieldError::forbidden(&path.child("type"), why));
            } else if name != str_at(profile, &["localhostProfile"]) {
                let why = "apparmor profile in annotation and field must match";
                errors.push(FieldError::forbidden(&path.child("localhostProfile"), why));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(check: impl FnOnce(&mut ErrorList)) -> Vec<String> {
        let mut errors = ErrorList::default();
        check(&mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    fn pod(annotation: &str, of_pod: Value, own: Value) -> Value {
        json!({
            "metadata": {"annotations": {format!("{ANNOTATION}c"): annotation}},
            "spec": {"securityContext": {"appArmorProfile": of_pod},
                "containers": [{"name": "c", "securityContext": {"appArmorProfile": own}}, {"name": "d"}]},
        })
    }

    /// What was misspelt ran without a profile.
    #[test]
    fn profiles_are_looked_at() {
        let of = |value: Value| {
            let context = json!({"appArmorProfile": value});
            faults(|errors| profile(&context, &Path::new("c"), errors)).join("\n")
        };
        let local = |name: &str| of(json!({"type": "Localhost", "localhostProfile": name}));
        assert_eq!(of(json!({"type": "RuntimeDefault"})), "");
        assert_eq!(of(json!({"type": "Unconfined"})), "");
        assert_eq!(local("mine"), "");
        for (wrong, part) in [
            (
                of(json!({"type": "runtimeDefault"})),
                "c.appArmorProfile.type: Unsupported value",
            ),
            (of(json!({})), "c.appArmorProfile.type: Required"),
            (
                of(json!({"type": "Localhost"})),
                "localhostProfile: Required",
            ),
            (
                of(json!({"type": "Unconfined", "localhostProfile": "x"})),
                "can only be set when",
            ),
            (local(" mine"), "padded with whitespace"),
            (local(&"x".repeat(MAX_NAME + 1)), "Too long"),
        ] {
            assert!(wrong.contains(part), "{wrong} {part}");
        }
    }

    /// They were ignored: who asked for a profile ran without.
    #[test]
    fn annotations_count_where_no_field_does() {
        let own = |annotation: &str, of_pod: Value, own: Value| {
            let mut pod = pod(annotation, of_pod, own);
            settle(&mut pod);
            assert!(
                !has(&pod, &["spec", "containers", "1"])
                    || pod["spec"]["containers"][1]["securityContext"].is_null()
            );
            pod["spec"]["containers"][0]["securityContext"]["appArmorProfile"].clone()
        };
        let (none, default) = (Value::Null, json!({"type": "RuntimeDefault"}));
        let mine = json!({"type": "Localhost", "localhostProfile": "mine"});
        assert_eq!(own("runtime/default", none.clone(), none.clone()), default);
        assert_eq!(own("localhost/mine", default.clone(), none.clone()), mine);
        assert_eq!(own("runtime/default", default.clone(), none.clone()), none);
        assert_eq!(own("runtime/default", none.clone(), mine.clone()), mine);
        assert_eq!(own("localhost/", none.clone(), none.clone()), none);
        let mut bare = json!({"metadata": {"annotations": {format!("{ANNOTATION}c"): "unconfined"}},
            "spec": {"containers": [{"name": "c"}]}});
        settle(&mut bare);
        let kind = &bare["spec"]["containers"][0]["securityContext"]["appArmorProfile"]["type"];
        assert_eq!(kind, "Unconfined");
    }

    #[test]
    fn annotations_are_of_a_container_and_say_what_fields_say() {
        let at_annotations = |pod: &Value| {
            let path = Path::new("metadata");
            faults(|errors| annotations(&pod["metadata"], &pod["spec"], &path, errors)).join("\n")
        };
        let fine = pod("localhost/x", Value::Null, Value::Null);
        assert_eq!(at_annotations(&fine), "");
        let odd = at_annotations(&pod("confined", Value::Null, Value::Null));
        assert!(
            odd.contains("invalid AppArmor profile name: \"confined\""),
            "{odd}"
        );
        let mut nobody = fine.clone();
        nobody["spec"]["containers"][0]["name"] = json!("other");
        assert!(at_annotations(&nobody).contains("container not found"));

        let between = |annotation: &str, own: Value| {
            let pod = pod(annotation, Value::Null, own);
            faults(|errors| disagreements(&pod, &Path::new("spec"), errors)).join("\n")
        };
        let mine = json!({"type": "Localhost", "localhostProfile": "mine"});
        assert_eq!(between("localhost/mine", mine.clone()), "");
        assert!(
            between("localhost/other", mine.clone()).contains("apparmor profile in annotation")
        );
        assert!(between("unconfined", mine).contains("apparmor type in annotation"));
    }
}
