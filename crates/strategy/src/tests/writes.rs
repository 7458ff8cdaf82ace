//! What is asked of a first write and what of later ones: where the two differ in upstream, and single rules of kinds.

use serde_json::{Value, json};

use super::pod;
use crate::strategy;
use crate::testing::faults;

fn told(errors: &davit_api::field::ErrorList) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn ephemeral_containers_come_by_their_subresource_alone() {
    let old = pod(|p| p["metadata"]["resourceVersion"] = json!("1"));
    let mut new = old.clone();
    new["spec"]["ephemeralContainers"] = json!([{"name": "e", "image": "i",
        "imagePullPolicy": "Always", "terminationMessagePolicy": "File"}]);
    let rules = strategy("", "v1", "Pod");
    rules.prepare_for_update(&mut new, &old);
    let found = told(&rules.validate_update(&new, &old)).concat();
    assert!(
        found.contains("pod updates may not change fields"),
        "{found}"
    );
    let mut mirror = old.clone();
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    assert_eq!(
        told(&rules.validate_subresource_update("ephemeralcontainers", &mirror, &mirror)),
        [": Forbidden: static pods do not support ephemeral containers"]
    );
}

#[test]
fn later_writers_are_warned_of_less() {
    let secrets = pod(|p| p["spec"]["imagePullSecrets"] = json!([{}]));
    let rules = strategy("", "v1", "Pod");
    assert!(!rules.warnings(&secrets).is_empty());
    assert!(rules.update_warnings(&secrets, &secrets).is_empty());
    let slice = json!({"addressType": "FQDN"});
    let rules = strategy("discovery.k8s.io", "v1", "EndpointSlice");
    assert_eq!(
        rules.create_warnings(&slice),
        ["spec.addressType: FQDN endpoints are deprecated"]
    );
    assert!(rules.update_warnings(&slice, &slice).is_empty());
}

#[test]
fn a_new_node_may_tell_an_address_twice() {
    let address = json!({"type": "InternalIP", "address": "10.0.0.1"});
    let node = json!({"metadata": {"name": "n", "resourceVersion": "1"},
        "status": {"addresses": [address, address]}});
    let rules = strategy("", "v1", "Node");
    assert!(rules.validate(&node).is_empty());
    let mut old = node.clone();
    old["status"] = json!({});
    let found = told(&rules.validate_update(&node, &old));
    assert!(
        found.len() == 1 && found[0].starts_with("status.addresses[1]: Duplicate"),
        "{found:?}"
    );
}

#[test]
fn users_of_the_pods_own_and_devices_do_not_go_together() {
    let part = |users: Value| {
        pod(|p| {
            p["spec"]["hostUsers"] = users;
            p["spec"]["volumes"] =
                json!([{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]);
            p["spec"]["containers"][0]["volumeDevices"] =
                json!([{"name": "v", "devicePath": "/dev/v"}]);
        })
    };
    assert_eq!(faults("", "v1", "Pod", &part(json!(true))), "");
    assert_eq!(
        faults("", "v1", "Pod", &part(json!(false))),
        "spec.containers[0].volumeDevices: Forbidden: when `hostUsers` is false"
    );
}

#[test]
fn claims_and_resources_of_a_pod_are_told_as_upstream_does() {
    let told = |change: fn(&mut Value)| faults("", "v1", "Pod", &pod(|p| change(&mut p["spec"])));
    assert_eq!(
        told(|spec| spec["resourceClaims"] = json!([{"name": "a"}])),
        "spec.resourceClaims[0]: Invalid value: {\"Name\":\"a\",\"ResourceClaimName\":null,\"ResourceClaimTemplateName\":null}: \
         must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
    );
    assert!(
        told(|spec| spec["resourceClaims"] = json!([{"name": "a", "resourceClaimName": ""}]))
            .starts_with("spec.resourceClaims[0].resourceClaimName: Invalid value: \"\"")
    );
    assert_eq!(
        told(|spec| spec["resources"] = json!({"claims": [], "limits": {"k0": "1"}})),
        "spec.resources.claims: Forbidden: claims may not be set for Resources at pod-level\n\
         spec.resources.limits[k0]: Invalid value: \"k0\": must be a standard resource type or fully qualified"
    );
}

#[test]
fn devices_are_claims_that_nobody_mounts() {
    let told = |devices: Value| {
        let pod = pod(|p| {
            p["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "v"}},
                {"name": "g", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}}}}}},
                {"name": "m", "persistentVolumeClaim": {"claimName": "m"}}, {"name": "e", "emptyDir": {}}]);
            p["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "m", "mountPath": "/m"}]);
            p["spec"]["containers"][0]["volumeDevices"] = devices;
        });
        faults("", "v1", "Pod", &pod)
    };
    let both =
        json!([{"name": "v", "devicePath": "/dev/v"}, {"name": "g", "devicePath": "/dev/g"}]);
    assert_eq!(told(both), "");
    for (devices, part) in [
        (
            json!([{"name": "e", "devicePath": "/e"}]),
            "can only use volume source type",
        ),
        (json!([{"name": "v", "devicePath": "/a/../b"}]), "backsteps"),
        (
            json!([{"name": "v", "devicePath": "/m"}]),
            "as a path in volumeMounts",
        ),
        (
            json!([{"name": "v", "devicePath": "/m"}]),
            "as a path in volumeDevices",
        ),
        (
            json!([{"name": "m", "devicePath": "/d"}]),
            "exist in volumeMounts",
        ),
        (
            json!([{"name": "m", "devicePath": "/d"}]),
            "exist in volumeDevices",
        ),
        (
            json!([{"name": "v", "devicePath": "/d"}, {"name": "g", "devicePath": "/d"}]),
            "volumeDevices[1].devicePath: Invalid value: \"/d\": must be unique",
        ),
        (
            json!([{"name": "v", "devicePath": "/d"}, {"name": "v", "devicePath": "/e"}]),
            "volumeDevices[1].name: Invalid value: \"v\": must be unique",
        ),
        (json!([{"name": "x", "devicePath": "/d"}]), "Not found"),
        (json!([{"name": "v"}]), "devicePath: Required"),
    ] {
        let said = told(devices);
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn many_devices_beside_many_mounts_cost_their_number() {
    let many = |path: &str| -> Vec<Value> {
        let entry = |n: usize| json!({"name": format!("{path}{n}"), path: format!("/{path}/{n}")});
        (0..40_000).map(entry).collect()
    };
    let pod = pod(|p| {
        p["spec"]["containers"][0]["volumeMounts"] = json!(many("mountPath"));
        p["spec"]["containers"][0]["volumeDevices"] = json!(many("devicePath"));
    });
    // each entry of one list was compared with each of the other: minutes
    let begun = std::time::Instant::now();
    assert!(!faults("", "v1", "Pod", &pod).is_empty());
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
}

#[test]
fn candidates_are_called_as_keys_of_config_maps() {
    let of = |name: &str| {
        let spec = json!({"leaseName": "l", "binaryVersion": "1.36.0",
            "emulationVersion": "1.35.0", "strategy": "OldestEmulationVersion"});
        let object = json!({"metadata": {"name": name, "namespace": "d"}, "spec": spec});
        faults("coordination.k8s.io", "v1beta1", "LeaseCandidate", &object)
    };
    assert_eq!(of("A_b.C"), "");
    assert!(of("a/b").starts_with("metadata.name: Invalid value: \"a/b\": a valid config key"));
}

#[test]
fn an_answer_about_pools_counts_them() {
    let rules = strategy("resource.k8s.io", "v1alpha3", "ResourcePoolStatusRequest");
    let object = |status: Value| json!({"metadata": {"name": "r", "resourceVersion": "1"}, "spec": {"driver": "d"}, "status": status});
    let mut old = object(Value::Null);
    old.as_object_mut().unwrap().remove("status");
    assert_eq!(
        told(&rules.validate_status_update(&object(json!({})), &old)),
        ["status.poolCount: Required value"]
    );
    let answered = object(json!({"poolCount": 0}));
    assert!(rules.validate_status_update(&answered, &old).is_empty());
}

#[test]
fn a_bundle_without_a_name_has_one_fault_of_it() {
    let object = json!({"metadata": {}, "spec": {"trustBundle": ""}});
    let found = faults(
        "certificates.k8s.io",
        "v1beta1",
        "ClusterTrustBundle",
        &object,
    );
    assert_eq!(found.matches("metadata.name").count(), 1, "{found}");
}
