//! Annotations that once said what fields say now: what the writer of a pod or template is warned about, in the words of
//! kube-apiserver.

use davit_api::app_armor::ANNOTATION;
use serde_json::Value;

use super::super::app_armor;
use super::super::json::{at, entries_at, has, list_at, str_at};

/// Annotations without effect, and what says the same.
const WITHOUT_EFFECT: [(&str, &str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "v1.16+",
        "priorityClassName",
    ),
    ("security.alpha.kubernetes.io/sysctls", "v1.11+", "sysctls"),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "v1.11+",
        "sysctls",
    ),
];
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
/// More warnings than a client is shown.
const MAX: usize = 128;

/// Warnings about the annotations of a pod or template, whose metadata is at `path`.
pub(crate) fn annotation_warnings(of: &Value, path: &str) -> Vec<String> {
    let held = at(of, &["metadata", "annotations"]);
    let mut warnings = Vec::new();
    let mut warn = |key: &str, since: &str, field: &str| {
        warnings.push(format!(
            "{path}.annotations[{key}]: non-functional in {since}; use the \"{field}\" field instead"
        ));
    };
    for (key, since, field) in WITHOUT_EFFECT {
        if held.get(key).is_some() {
            warn(key, since, field);
        }
    }
    let has_profile = |of| has(of, &["securityContext", "seccompProfile"]);
    let spec = at(of, &["spec"]);
    if held.get(SECCOMP_POD).is_some() && !has_profile(spec) {
        warn(SECCOMP_POD, "v1.27+", "seccompProfile");
    }
    for container in annotated(of, SECCOMP_CONTAINER).filter(|c| !has_profile(c)) {
        let key = format!("{SECCOMP_CONTAINER}{}", str_at(container, &["name"]));
        warn(&key, "v1.27+", "seccompProfile");
    }
    warnings
}

const PROFILE: [&str; 2] = ["securityContext", "appArmorProfile"];

/// Warnings about AppArmor's annotations of a template: where no field stands, unless the pod as a whole has the same
/// profile.
pub(crate) fn app_armor_of_template(template: &Value, path: &str) -> Vec<String> {
    let of_pod = at(template, &["spec", "securityContext", "appArmorProfile"]);
    let without_field = annotated(template, ANNOTATION).filter(|c| !has(c, &PROFILE));
    let named = without_field.filter_map(|container| {
        let key = format!("{ANNOTATION}{}", str_at(container, &["name"]));
        let profile = at(template, &["metadata", "annotations", &key]).as_str();
        let profile = profile.and_then(app_armor::profile_named).unwrap_or_default();
        (of_pod.is_null() || *of_pod != profile).then(|| {
            format!("{path}.annotations[{key}]: deprecated since v1.30; use the \"appArmorProfile\" field instead")
        })
    });
    named.collect()
}

/// Of a new pod, whose annotations are about to become fields: where they do, or cannot.
pub(crate) fn app_armor_of_pod(pod: &Value) -> Vec<String> {
    if str_at(pod, &["spec", "os", "name"]) == "windows" {
        return Vec::new();
    }
    app_armor_of_template(pod, "metadata")
}

/// The containers that annotations with this prefix name, so many as anybody is warned about.
fn annotated<'a>(of: &'a Value, prefix: &'static str) -> impl Iterator<Item = &'a Value> {
    let names: std::collections::HashSet<&str> = entries_at(of, &["metadata", "annotations"])
        .filter_map(|(key, _)| key.strip_prefix(prefix))
        .collect();
    let lists = app_armor::LISTS.into_iter();
    let containers = lists.flat_map(move |list| list_at(of, &["spec", list]));
    let named = containers.filter(move |c| names.contains(str_at(c, &["name"])));
    named.take(MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn old_annotations_are_warned_about_unless_fields_say_the_same() {
        let container =
            |name: &str, context: Value| json!({"name": name, "securityContext": context});
        let pod = json!({
            "metadata": {"annotations": {
                "scheduler.alpha.kubernetes.io/critical-pod": "",
                "seccomp.security.alpha.kubernetes.io/pod": "runtime/default",
                "container.seccomp.security.alpha.kubernetes.io/a": "unconfined",
                "container.seccomp.security.alpha.kubernetes.io/b": "unconfined",
                "container.apparmor.security.beta.kubernetes.io/a": "unconfined",
                "container.apparmor.security.beta.kubernetes.io/b": "runtime/default",
            }},
            "spec": {"containers": [
                container("a", json!({"appArmorProfile": {"type": "Unconfined"}})),
                container("b", json!({"seccompProfile": {"type": "Unconfined"}})),
            ]},
        });
        assert_eq!(
            annotation_warnings(&pod, "spec.template.metadata"),
            [
                "spec.template.metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the \"priorityClassName\" field instead",
                "spec.template.metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: non-functional in v1.27+; use the \"seccompProfile\" field instead",
                "spec.template.metadata.annotations[container.seccomp.security.alpha.kubernetes.io/a]: non-functional in v1.27+; use the \"seccompProfile\" field instead",
            ]
        );
        let deprecated = |path: &str, name: &str| {
            [format!(
                "{path}.annotations[container.apparmor.security.beta.kubernetes.io/{name}]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
            )]
        };
        assert_eq!(
            app_armor_of_template(&pod, "t.metadata"),
            deprecated("t.metadata", "b")
        );
        assert_eq!(app_armor_of_pod(&pod), deprecated("metadata", "b"));
        let mut windows = pod.clone();
        windows["spec"]["os"] = json!({"name": "windows"});
        assert!(app_armor_of_pod(&windows).is_empty());
        let mut same = pod.clone();
        same["spec"]["securityContext"] = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
        assert!(app_armor_of_template(&same, "t.metadata").is_empty());
    }
}
