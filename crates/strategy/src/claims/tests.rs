//! Rules of claims, volumes and their classes, with the texts of Kubernetes.

use serde_json::json;

use super::super::strategy;
use super::*;

fn texts(errors: &ErrorList) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

fn claim(change: impl FnOnce(&mut Value)) -> Value {
    let mut claim = json!({
        "metadata": {"name": "c", "namespace": "n", "uid": "u", "resourceVersion": "1"},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": "4Gi"}}},
        "status": {"phase": "Pending"},
    });
    change(&mut claim);
    claim
}

fn update_of(kind: (&str, &str), new: &Value, old: &Value) -> Vec<String> {
    texts(&strategy(kind.0, "v1", kind.1).validate_update(new, old))
}

fn claim_faults(new: &Value, old: &Value) -> Vec<String> {
    update_of(("", "PersistentVolumeClaim"), new, old)
}

#[test]
fn what_of_a_claim_may_change() {
    let pending = claim(|_| {});
    let immutable = "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
    let class = |name: &'static str| claim(move |c| c["spec"]["storageClassName"] = json!(name));
    assert!(claim_faults(&class("standard"), &pending).is_empty());
    assert_eq!(
        claim_faults(&class("other"), &class("standard")),
        [immutable]
    );
    assert_eq!(claim_faults(&pending, &class("standard")), [immutable]);
    let named = claim(|c| c["spec"]["volumeName"] = json!("v"));
    assert!(claim_faults(&named, &pending).is_empty());
    assert_eq!(claim_faults(&pending, &named), [immutable]);
    let larger = claim(|c| c["spec"]["resources"]["requests"]["storage"] = json!("5Gi"));
    assert_eq!(claim_faults(&larger, &pending), [immutable]);
    let any = claim(|c| c["spec"]["selector"] = json!({}));
    assert_eq!(claim_faults(&any, &pending), [immutable]);

    let annotated = claim(|c| c["metadata"]["annotations"] = json!({BETA_CLASS: "old"}));
    let to = |name: &str| {
        let mut claim = annotated.clone();
        claim["spec"]["storageClassName"] = json!(name);
        claim
    };
    assert!(claim_faults(&to("old"), &annotated).is_empty());
    assert!(claim_faults(&class("old"), &annotated).is_empty());
    assert_eq!(claim_faults(&to("new"), &annotated), [immutable]);
    assert!(claim_faults(&pending, &annotated)[0].starts_with("metadata.annotations"));
}

#[test]
fn a_bound_claim_grows_and_shrinks_to_above_what_it_has() {
    let bound = |size: &'static str| {
        claim(move |c| {
            c["spec"]["resources"]["requests"]["storage"] = json!(size);
            c["status"] = json!({"phase": "Bound", "capacity": {"storage": "2Gi"}});
        })
    };
    assert!(claim_faults(&bound("5Gi"), &bound("4Gi")).is_empty());
    assert!(claim_faults(&bound("3Gi"), &bound("4Gi")).is_empty());
    let text =
        "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity";
    assert_eq!(claim_faults(&bound("2Gi"), &bound("4Gi")), [text]);
}

#[test]
fn attributes_are_exchanged_and_never_dropped() {
    let with = |class: Value| {
        claim(move |c| {
            c["spec"][ATTRIBUTES_CLASS] = class;
            c["status"] = json!({"phase": "Bound", "currentVolumeAttributesClassName": "gold"});
        })
    };
    let gold = with(json!("gold"));
    assert!(claim_faults(&with(json!("silver")), &gold).is_empty());
    let text = |to| {
        format!(
            "spec.volumeAttributesClassName: Forbidden: update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil"
        )
    };
    assert_eq!(claim_faults(&with(json!(null)), &gold), [text("nil")]);
    assert_eq!(
        claim_faults(&with(json!("")), &gold),
        [text("empty string")]
    );
}

#[test]
fn data_sources_and_their_references_are_one() {
    let prepared = |spec: Value| {
        let mut claim = claim(|c| {
            for (key, value) in spec.as_object().unwrap() {
                c["spec"][key] = value.clone();
            }
        });
        strategy("", "v1", "PersistentVolumeClaim").prepare_for_create(&mut claim);
        let faults = texts(&strategy("", "v1", "PersistentVolumeClaim").validate(&claim));
        (
            claim["spec"]["dataSource"].clone(),
            claim["spec"]["dataSourceRef"].clone(),
            faults,
        )
    };
    let snapshot =
        json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
    let foreign = json!({"apiGroup": "example.com", "kind": "Image", "name": "i"});
    let both = (snapshot.clone(), snapshot.clone(), vec![]);
    assert_eq!(prepared(json!({"dataSource": snapshot})), both);
    assert_eq!(prepared(json!({"dataSourceRef": snapshot})), both);
    assert_eq!(
        prepared(json!({"dataSource": foreign})),
        (json!(null), json!(null), vec![])
    );
    let kept = (foreign.clone(), foreign.clone(), vec![]);
    assert_eq!(prepared(json!({"dataSourceRef": foreign})), kept);
    let differ = prepared(json!({"dataSource": snapshot, "dataSourceRef": foreign})).2;
    assert_eq!(
        differ,
        ["spec: Invalid value: {}: must match dataSourceRef"]
    );
    let pod = json!({"kind": "Pod", "name": "p"});
    let text = "spec.dataSourceRef: Invalid value: \"Pod\": must be 'PersistentVolumeClaim' when referencing the default apiGroup";
    assert!(
        prepared(json!({"dataSourceRef": pod}))
            .2
            .contains(&text.to_owned())
    );
    let elsewhere = json!({"kind": "PersistentVolumeClaim", "name": "p", "namespace": "other"});
    assert_eq!(
        prepared(json!({"dataSourceRef": elsewhere})),
        (json!(null), json!(null), vec![])
    );
    // a client that does not know of references changes nothing by leaving them out
    let stored = claim(|c| {
        c["spec"]["dataSource"] = foreign.clone();
        c["spec"]["dataSourceRef"] = foreign.clone();
    });
    let mut new = stored.clone();
    remove(&mut new["spec"], "dataSourceRef");
    strategy("", "v1", "PersistentVolumeClaim").prepare_for_update(&mut new, &stored);
    assert!(claim_faults(&new, &stored).is_empty());
}

fn volume(change: impl FnOnce(&mut Value)) -> Value {
    let mut volume = json!({
        "metadata": {"name": "v", "uid": "u", "resourceVersion": "1"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
            "csi": {"driver": "d", "volumeHandle": "h"}},
        "status": {"phase": "Available", "lastPhaseTransitionTime": "2026-01-01T00:00:00Z"},
    });
    change(&mut volume);
    volume
}

#[test]
fn what_of_a_volume_may_change() {
    let kind = ("", "PersistentVolume");
    let zone = |zone: &str| {
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "zone", "operator": "In", "values": [zone]}]}]}})
    };
    let free = volume(|_| {});
    let there = volume(|v| v["spec"]["nodeAffinity"] = zone("a"));
    assert!(update_of(kind, &there, &free).is_empty());
    let elsewhere = volume(|v| v["spec"]["nodeAffinity"] = zone("b"));
    assert!(update_of(kind, &elsewhere, &there)[0].starts_with("nodeAffinity: Invalid value"));
    assert!(update_of(kind, &free, &there)[0].starts_with("nodeAffinity: Invalid value"));
    let secret = |name: &'static str| {
        volume(move |v| {
            v["spec"]["csi"]["controllerExpandSecretRef"] = json!({"name": name, "namespace": "n"});
        })
    };
    assert!(update_of(kind, &secret("s"), &free).is_empty());
    let text = "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation";
    assert_eq!(update_of(kind, &secret("t"), &secret("s")), [text]);
    let gold = volume(|v| v["spec"][ATTRIBUTES_CLASS] = json!("gold"));
    let text =
        "spec.volumeAttributesClassName: Forbidden: update from non-nil value to nil is forbidden";
    assert_eq!(update_of(kind, &free, &gold), [text]);
}

#[test]
fn a_change_of_phase_says_when() {
    let rules = strategy("", "v1", "PersistentVolume");
    let when = |v: &Value| {
        v["status"]["lastPhaseTransitionTime"]
            .as_str()
            .map(str::to_owned)
    };
    let old = volume(|_| {});
    let mut bound = volume(|v| v["status"]["phase"] = json!("Bound"));
    rules.prepare_status_update(&mut bound, &old);
    assert!(when(&bound) > when(&old));
    let mut same = volume(|v| v["status"] = json!({"phase": "Available"}));
    rules.prepare_status_update(&mut same, &old);
    assert_eq!(when(&same), when(&old));
    let mut new = volume(|_| {});
    rules.prepare_for_create(&mut new);
    assert_eq!(new["status"]["phase"], "Pending");
    assert!(when(&new) > when(&old));
}

#[test]
fn classes_and_drivers_stay_as_they_are() {
    let class = |driver: &str, parameters: Value| {
        json!({"metadata": {"name": "gold", "uid": "u", "resourceVersion": "1"},
            "driverName": driver, "parameters": parameters})
    };
    let kind = ("storage.k8s.io", "VolumeAttributesClass");
    let gold = class("d", json!({"iops": "1"}));
    let faults = update_of(kind, &class("e", json!({"iops": "2"})), &gold);
    let text = |key| format!("{key}: Forbidden: updates to {key} are forbidden.");
    assert_eq!(faults, [text("driverName"), text("parameters")]);
    let none = texts(&strategy(kind.0, "v1", kind.1).validate(&class("d", json!({}))));
    assert_eq!(
        none,
        ["parameters: Required value: must contain at least one key/value pair"]
    );

    let node = |id: &str, count: i64| {
        json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}, "spec": {"drivers": [
            {"name": "d", "nodeID": id, "allocatable": {"count": count}}]}})
    };
    let kind = ("storage.k8s.io", "CSINode");
    assert!(update_of(kind, &node("a", 2), &node("a", 1)).is_empty());
    assert!(
        update_of(kind, &node("b", 1), &node("a", 1))[0].starts_with("spec.drivers: Invalid value")
    );
    let long = texts(&strategy(kind.0, "v1", kind.1).validate(&node(&"x".repeat(257), 1)));
    assert!(
        long[0].ends_with("must be 256 characters or less"),
        "{long:?}"
    );
}
