use davit_api::kinds::builtin;
use serde_json::json;

use super::*;

fn texts(errors: &ErrorList) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

fn new(kind: &str, value: &Value) -> Vec<String> {
    let types = &builtin().types;
    texts(&validate(types, types.id(kind).unwrap(), value))
}

fn update(kind: &str, value: &Value, old: &Value) -> Vec<String> {
    let types = &builtin().types;
    texts(&validate_update(types, types.id(kind).unwrap(), value, old))
}

#[test]
fn closed_enumerations() {
    assert_eq!(
        new(
            "core/v1.Pod",
            &json!({"spec": {"containers": [{"ports": [{"protocol": "X"}]}], "dnsPolicy": ""}})
        ),
        [
            "spec.containers[0].ports[0].protocol: Unsupported value: \"X\": supported values: \"SCTP\", \"TCP\", \"UDP\""
        ]
    );
}

#[test]
fn phases_of_nodes_are_not_looked_at() {
    assert!(new("core/v1.Node", &json!({"status": {"phase": "x"}})).is_empty());
}

#[test]
fn what_a_pod_says_of_its_quality_of_service_is_not_looked_at() {
    assert!(new("core/v1.Pod", &json!({"status": {"qosClass": "x"}})).is_empty());
}

#[test]
fn names_of_pools() {
    let of = |name: &str| {
        let object = json!({"spec": {"driver": "d", "poolName": name, "limit": 1001}});
        let mut found = new("resource/v1alpha3.ResourcePoolStatusRequest", &object);
        let limit = found.pop().unwrap();
        assert_eq!(
            limit,
            "spec.limit: Invalid value: 1001: must be less than or equal to 1000"
        );
        found
    };
    assert!(of("a/b.c").is_empty());
    assert_eq!(
        of("a//b"),
        ["spec.poolName: Invalid value: \"a//b\": segment 1: must not be empty"]
    );
    let long = "a".repeat(254);
    assert_eq!(
        of(&long),
        [
            "spec.poolName: Too long: may not be more than 253 bytes".to_owned(),
            format!(
                "spec.poolName: Invalid value: \"{long}\": segment 0: must be no more than 253 bytes"
            ),
        ]
    );
}

#[test]
fn numbers_lists_and_formats() {
    assert_eq!(
        new(
            "autoscaling/v2.HorizontalPodAutoscaler",
            &json!({"spec": {"maxReplicas": 0}})
        ),
        ["spec.maxReplicas: Invalid value: 0: must be greater than or equal to 1"]
    );
    let requests: Vec<Value> = (0..33).map(|i| json!({"name": format!("r{i}")})).collect();
    assert_eq!(
        new(
            "resource/v1.ResourceClaim",
            &json!({"spec": {"devices": {"requests": requests}}})
        ),
        ["spec.devices.requests: Too many: 33: must have at most 32 items"]
    );
    assert_eq!(
        new(
            "resource/v1.ResourceClaim",
            &json!({"spec": {"devices": {"requests": [{"name": "a"}, {"name": "a"}]}}})
        ),
        ["spec.devices.requests[1]: Duplicate value: {\"name\":\"a\"}"]
    );
    assert_eq!(
        new("node/v1.RuntimeClass", &json!({"handler": "a.b"})),
        ["handler: Invalid value: \"a.b\": must not contain dots"]
    );
}

#[test]
fn immutable_fields_and_unchanged_values() {
    let old = json!({"handler": "a.b"});
    assert!(update("node/v1.RuntimeClass", &old, &old).is_empty());
    assert_eq!(
        update("node/v1.RuntimeClass", &json!({"handler": "c"}), &old),
        ["handler: Invalid value: \"c\": field is immutable"]
    );
    let claim = |allocation: Value| json!({"status": {"allocation": allocation}});
    let set = claim(json!({"devices": {}}));
    let other = claim(json!({"allocationTimestamp": "2024-01-01T00:00:00Z"}));
    assert!(update("resource/v1.ResourceClaim", &set, &json!({"status": {}})).is_empty());
    assert!(update("resource/v1.ResourceClaim", &json!({"status": {}}), &set).is_empty());
    assert_eq!(update("resource/v1.ResourceClaim", &other, &set).len(), 1);
    // what was stored before nulls were written is no other value
    let workload = |template: Value| json!({"spec": {"podGroupTemplates": [template]}});
    let (old, new) = (
        workload(json!({"name": "g"})),
        workload(json!({"name": "g", "schedulingConstraints": null})),
    );
    assert!(update("scheduling/v1alpha2.Workload", &new, &old).is_empty());
    assert!(update("scheduling/v1alpha2.Workload", &old, &new).is_empty());
    let renamed = workload(json!({"name": "h"}));
    assert_eq!(
        update("scheduling/v1alpha2.Workload", &renamed, &old).len(),
        1
    );
}
