//! Profiles, and annotations that name them.

use super::*;
use crate::strategy;
use crate::testing::faults;
use serde_json::json;

fn pod(annotations: Value, context: Value, of_container: Value) -> Value {
    json!({
        "metadata": {"name": "p", "namespace": "n", "annotations": annotations},
        "spec": {
            "securityContext": context,
            "containers": [{"name": "c", "image": "i", "securityContext": of_container}],
        },
    })
}

fn made(mut pod: Value) -> Value {
    let strategy = strategy("", "v1", "Pod");
    strategy.default(&mut pod);
    strategy.prepare_for_create(&mut pod);
    pod
}

/// Faults with `AT` for the profile of the container.
fn found(pod: &Value) -> String {
    let at = "spec.containers[0].securityContext.appArmorProfile";
    faults("", "v1", "Pod", pod).replace(at, "AT")
}

#[test]
fn names_belong_to_profiles_of_the_node() {
    let of = |kind: &str, name: Value| {
        let profile = json!({"appArmorProfile": {"type": kind, "localhostProfile": name}});
        found(&made(pod(json!({}), json!({}), profile)))
    };
    let none = Value::Null;
    assert_eq!(of("RuntimeDefault", none.clone()), "");
    assert_eq!(of("Localhost", json!("x")), "");
    let missing = format!("AT.localhostProfile: Required value: {NAME_MISSING}");
    assert_eq!(of("Localhost", none.clone()), missing);
    let only = "can only be set when AppArmor type is Localhost";
    for (kind, name, why) in [
        ("RuntimeDefault", "x", only),
        ("Unconfined", "", only),
        ("Localhost", " x", "must not be padded with whitespace"),
    ] {
        let wanted = format!("AT.localhostProfile: Invalid value: {name:?}: {why}");
        assert_eq!(of(kind, json!(name)), wanted);
    }
    let wanted = "AT.type: Required value: type is required when appArmorProfile is set";
    assert_eq!(of("", none), wanted);
    let whole = json!({"appArmorProfile": {"type": "Localhost"}});
    assert!(found(&made(pod(json!({}), whole, json!({})))).contains(NAME_MISSING));
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
    let open = of("unconfined", json!({}));
    assert_eq!(profile(&open), json!({"type": "Unconfined"}));
    let given = |value: &str| of(value, json!({"appArmorProfile": local}));
    assert_eq!(profile(&given("unconfined")), local);
    let why = "Forbidden: apparmor type in annotation and field must match";
    assert_eq!(found(&given("unconfined")), format!("AT.type: {why}"));
    let why = "Forbidden: apparmor profile in annotation and field must match";
    let wanted = format!("AT.localhostProfile: {why}");
    assert_eq!(found(&given("localhost/b")), wanted);
    let odd = of("nope", json!({}));
    assert_eq!(profile(&odd), Value::Null);
    let why = "invalid AppArmor profile name: \"nope\"";
    let wanted = format!("metadata.annotations[{key}]: Invalid value: \"nope\": {why}");
    assert_eq!(found(&odd), wanted);
    let other = json!({format!("{ANNOTATION}d"): "unconfined"});
    assert!(found(&made(pod(other, json!({}), json!({})))).ends_with("container not found"));
    let mut without = open.clone();
    without["metadata"]["annotations"] = json!({});
    for (new, old, what) in [
        (&without, &open, "remove or update"),
        (&open, &without, "add"),
    ] {
        let mut errors = ErrorList::new();
        annotations_update(new, old, &mut errors);
        let why = format!("Forbidden: may not {what} AppArmor annotations");
        let found: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(found, [format!("metadata.annotations[{key}]: {why}")]);
    }
}
