use serde_json::json;

use super::*;

/// Converts there and back and returns what was there in between.
fn there_and_back(kind: &str, obj: &Value, from: &str, to: &str) -> Value {
    let mut value = obj.clone();
    convert(kind, &mut value, from, to);
    let between = value.clone();
    convert(kind, &mut value, to, from);
    assert_eq!(&value, obj);
    between
}

#[test]
fn events_change_names() {
    let core = json!({"apiVersion": "v1", "involvedObject": {"name": "p"}, "message": "m",
        "source": {"component": "c"}, "count": 2, "reason": "r",
        "reportingComponent": "", "reportingInstance": ""});
    let new = there_and_back("Event", &core, "v1", "events.k8s.io/v1");
    assert_eq!(new["regarding"]["name"], "p");
    assert_eq!(new["note"], "m");
    assert_eq!(new["deprecatedCount"], 2);
    assert_eq!(new["apiVersion"], "events.k8s.io/v1");
}

#[test]
fn autoscalers_keep_what_the_old_version_cannot_say() {
    let new = json!({"apiVersion": "autoscaling/v2", "metadata": {"name": "a"},
        "spec": {"maxReplicas": 3, "behavior": {"scaleUp": {}}, "metrics": [
            {"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 50}}},
            {"type": "Pods", "pods": {"metric": {"name": "m"}}}]}});
    let old = there_and_back(
        "HorizontalPodAutoscaler",
        &new,
        "autoscaling/v2",
        "autoscaling/v1",
    );
    assert_eq!(old["spec"]["targetCPUUtilizationPercentage"], 50);
    assert!(old["spec"].get("metrics").is_none());
    let notes = old["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(notes.len(), 2);
}

#[test]
fn claims_and_slices_of_v1beta1() {
    const OLD: &str = "resource.k8s.io/v1beta1";
    const NEW: &str = "resource.k8s.io/v1";
    let claim = json!({"apiVersion": OLD, "spec": {"devices": {"requests": [
        {"name": "a", "deviceClassName": "c", "count": 2},
        {"name": "b", "deviceClassName": "", "firstAvailable": [{"name": "x", "deviceClassName": "c"}]}]}}});
    let new = there_and_back("ResourceClaim", &claim, OLD, NEW);
    let requests = &new["spec"]["devices"]["requests"];
    assert_eq!(
        requests[0],
        json!({"name": "a", "exactly": {"deviceClassName": "c", "count": 2}})
    );
    assert_eq!(
        requests[1],
        json!({"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "c"}]})
    );

    let slice = json!({"apiVersion": OLD, "spec": {"driver": "d", "devices": [
        {"name": "x", "basic": {"attributes": {"a": {"int": 1}}}}]}});
    let new = there_and_back("ResourceSlice", &slice, OLD, NEW);
    assert_eq!(
        new["spec"]["devices"][0],
        json!({"name": "x", "attributes": {"a": {"int": 1}}})
    );
}

#[test]
fn versions_of_one_shape_change_their_name_only() {
    let class = json!({"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceClass"});
    let new = there_and_back(
        "DeviceClass",
        &class,
        "resource.k8s.io/v1beta2",
        "resource.k8s.io/v1",
    );
    assert_eq!(
        new,
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"})
    );
}

#[test]
fn stored_definitions_have_all_in_their_versions() {
    let mut definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1beta1", "kind": "CustomResourceDefinition",
        "spec": {
            "group": "example.com", "version": "v1",
            "validation": { "openAPIV3Schema": { "type": "object" } },
            "additionalPrinterColumns": [{ "name": "A", "type": "string", "JSONPath": ".a" }],
            "versions": [
                { "name": "v1", "served": true, "storage": true },
                { "name": "v2", "served": true, "storage": false, "additionalPrinterColumns": [] },
            ],
            "conversion": {
                "strategy": "Webhook", "webhookClientConfig": { "url": "https://a" },
                "conversionReviewVersions": ["v1"],
            },
        },
    });
    convert(
        "CustomResourceDefinition",
        &mut definition,
        "apiextensions.k8s.io/v1beta1",
        "apiextensions.k8s.io/v1",
    );
    let schema = json!({ "openAPIV3Schema": { "type": "object" } });
    assert_eq!(
        definition,
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "spec": {
                "group": "example.com",
                "versions": [
                    {
                        "name": "v1", "served": true, "storage": true, "schema": schema,
                        "additionalPrinterColumns": [{ "name": "A", "type": "string", "jsonPath": ".a" }],
                    },
                    {
                        "name": "v2", "served": true, "storage": false, "schema": schema,
                        "additionalPrinterColumns": [],
                    },
                ],
                "conversion": {
                    "strategy": "Webhook",
                    "webhook": { "clientConfig": { "url": "https://a" }, "conversionReviewVersions": ["v1"] },
                },
            },
        })
    );
    let mut single = json!({ "spec": { "version": "v1" } });
    definitions::from_v1beta1(&mut single);
    let version = json!([{ "name": "v1", "served": true, "storage": true }]);
    assert_eq!(single["spec"], json!({ "versions": version }));
}
