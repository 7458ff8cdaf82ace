use super::*;
use crate::framework::{Code, PreBind};
use crate::plugins::testing::{Bed, pod};
use serde_json::{Value, json};
use std::sync::Arc;

fn object<K: serde::de::DeserializeOwned>(value: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(value).unwrap())
}

fn claim(name: &str, spec: Value) -> Arc<PersistentVolumeClaim> {
    let mut made = json!({"metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
        "resourceVersion": "5"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "5Gi"}}}});
    made["spec"]
        .as_object_mut()
        .unwrap()
        .extend(spec.as_object().unwrap().clone());
    object(made)
}

fn bound(name: &str, volume: &str) -> Arc<PersistentVolumeClaim> {
    let claim = claim(name, json!({"volumeName": volume}));
    let mut claim = (*claim).clone();
    let annotations = claim.metadata.annotations.get_or_insert_default();
    annotations.insert(
        "pv.kubernetes.io/bind-completed".to_owned(),
        "yes".to_owned(),
    );
    Arc::new(claim)
}

fn volume(name: &str, host: &str) -> Arc<PersistentVolume> {
    object(
        json!({"metadata": {"name": name, "resourceVersion": "5"}, "spec": {
        "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "late",
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}]}}},
        "status": {"phase": "Available"}}),
    )
}

fn class(name: &str, provisioner: &str) -> Arc<k8s_openapi::api::storage::v1::StorageClass> {
    object(
        json!({"metadata": {"name": name}, "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer"}),
    )
}

fn user(name: &str, claims: &[&str]) -> Arc<PodInfo> {
    let volumes = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}));
    pod(name, json!({"volumes": volumes.collect::<Vec<_>>()}))
}

struct Cluster {
    bed: Bed,
    storage: Storage,
    plugin: VolumeBinding,
}

impl Cluster {
    fn new() -> Self {
        let mut bed = Bed::new();
        for name in ["a", "b"] {
            let labels = json!({"kubernetes.io/hostname": name});
            bed.node(name, json!({"metadata": {"labels": labels}}));
        }
        let storage = Storage::default();
        storage.fixed.write().classes = vec![
            class("late", "example.com/p"),
            class("static", "kubernetes.io/no-provisioner"),
        ];
        let plugin = VolumeBinding::new(None, storage.clone(), Duration::from_millis(300));
        Self {
            bed,
            storage,
            plugin,
        }
    }

    /// The state after PreFilter, and what Filter says of nodes a and b.
    fn decide(&self, pod: &PodInfo) -> (CycleState, Status, Vec<Status>) {
        let mut state = CycleState::new();
        let (status, _) = self.plugin.pre_filter(&mut state, pod, &self.bed.snapshot);
        let nodes = ["a", "b"].map(|name| {
            let node = self
                .bed
                .snapshot
                .nodes()
                .iter()
                .find(|n| &*n.name == name)
                .unwrap();
            self.plugin.filter(&state, pod, node)
        });
        (state, status, nodes.to_vec())
    }
}

#[test]
fn items_023_and_024_claims_that_hold_the_pod_back_say_why() {
    let c = Cluster::new();
    let text = |claims: &[&str]| c.decide(&user("p", claims)).1;
    assert!(text(&[]).is_skip());
    let missing = text(&["data"]);
    assert_eq!(missing.code, Code::UnschedulableAndUnresolvable);
    assert_eq!(
        missing.message(),
        "persistentvolumeclaim \"data\" not found"
    );
    let ephemeral = pod("p", json!({"volumes": [{"name": "v", "ephemeral": {}}]}));
    assert_eq!(
        c.decide(&ephemeral).1.message(),
        "waiting for ephemeral volume controller to create the persistentvolumeclaim \"p-v\""
    );
    let mut lost = (*bound("lost", "gone")).clone();
    lost.status = serde_json::from_value(json!({"phase": "Lost"})).unwrap();
    let mut going = (*claim("going", json!({}))).clone();
    going.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    c.storage.fixed.write().claims =
        vec![claim("data", json!({})), Arc::new(lost), Arc::new(going)];
    for (name, expected) in [
        ("data", "pod has unbound immediate PersistentVolumeClaims"),
        (
            "lost",
            "persistentvolumeclaim \"lost\" bound to non-existent persistentvolume \"gone\"",
        ),
        ("going", "persistentvolumeclaim \"going\" is being deleted"),
    ] {
        assert_eq!(text(&[name]).message(), expected);
    }
}

#[test]
fn items_025_and_027_nodes_are_ruled_out_with_their_reason() {
    let c = Cluster::new();
    c.storage.fixed.write().volumes = vec![volume("pv-b", "b")];
    c.storage.fixed.write().claims = vec![
        bound("here", "pv-b"),
        bound("nowhere", "gone"),
        claim("static", json!({"storageClassName": "static"})),
        claim("late", json!({"storageClassName": "late"})),
    ];
    let on_a = |claim: &str| c.decide(&user("p", &[claim])).2[0].message();
    assert_eq!(
        on_a("here"),
        "node(s) didn't match PersistentVolume's node affinity"
    );
    assert_eq!(
        on_a("nowhere"),
        "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
    );
    assert_eq!(
        on_a("static"),
        "node(s) didn't find available persistent volumes to bind"
    );
    assert_eq!(on_a("late"), "");
    // the driver says how much there is
    c.storage.fixed.write().drivers = vec![object(
        json!({"metadata": {"name": "example.com/p"}, "spec": {"storageCapacity": true}}),
    )];
    assert_eq!(on_a("late"), "node(s) did not have enough free storage");
    let capacity = |size: &str| {
        vec![object(
            json!({"metadata": {"name": "c"}, "storageClassName": "late", "capacity": size,
            "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": "a"}}}),
        )]
    };
    c.storage.fixed.write().capacities = capacity("4Gi");
    assert_eq!(on_a("late"), "node(s) did not have enough free storage");
    c.storage.fixed.write().capacities = capacity("20Gi");
    assert_eq!(on_a("late"), "");
}

#[test]
fn items_026_and_034_no_volume_is_taken_twice() {
    let c = Cluster::new();
    c.storage.fixed.write().volumes = vec![volume("one", "a"), volume("two", "a")];
    let claims = ["x", "y", "z"].map(|name| claim(name, json!({"storageClassName": "late"})));
    c.storage.fixed.write().claims = claims.to_vec();
    c.storage.fixed.write().classes = vec![class("late", "kubernetes.io/no-provisioner")];
    let both = user("p", &["x", "y"]);
    let (mut state, _, nodes) = c.decide(&both);
    assert!(nodes[0].is_success() && !nodes[1].is_success());
    assert!(c.plugin.reserve(&mut state, &both, "a").is_success());
    // another pod, before anything is written
    let third = user("q", &["z"]);
    assert!(!c.decide(&third).2[0].is_success());
    // the first one's attempt fails: its volumes are free again
    c.plugin.unreserve(&mut state, &both, "a");
    assert!(c.decide(&third).2[0].is_success());
}

#[test]
fn what_was_assumed_counts_until_somebody_else_has_written() {
    let c = Cluster::new();
    let held = volume("one", "a");
    c.storage.fixed.write().volumes = vec![held.clone()];
    let assumed = davit_volume::binding::bind_volume(&held, &claim("x", json!({}))).unwrap();
    c.storage.assume_volume(Arc::new(assumed));
    assert!(
        c.storage
            .volume("one")
            .unwrap()
            .spec
            .as_ref()
            .unwrap()
            .claim_ref
            .is_some()
    );
    let mut newer = (*held).clone();
    newer.metadata.resource_version = Some("6".to_owned());
    c.storage.fixed.write().volumes = vec![Arc::new(newer)];
    assert!(
        c.storage
            .volume("one")
            .unwrap()
            .spec
            .as_ref()
            .unwrap()
            .claim_ref
            .is_none()
    );
}

#[tokio::test]
async fn items_028_and_029_the_pod_waits_for_its_volumes() {
    let c = Cluster::new();
    c.storage.fixed.write().claims = vec![claim("data", json!({"storageClassName": "late"}))];
    let p = user("p", &["data"]);
    let attempt = || {
        let (mut state, _, nodes) = c.decide(&p);
        assert!(nodes[0].is_success());
        assert!(c.plugin.reserve(&mut state, &p, "a").is_success());
        state
    };
    let state = attempt();
    assert_eq!(
        c.plugin.pre_bind(&state, &p, "a").await.message(),
        "binding volumes: context deadline exceeded"
    );
    // the provisioner takes the choice back
    let mut refused = (*claim("data", json!({"storageClassName": "late"}))).clone();
    refused.metadata.resource_version = Some("7".to_owned());
    c.storage.fixed.write().claims = vec![Arc::new(refused)];
    assert_eq!(
        c.plugin.pre_bind(&state, &p, "a").await.message(),
        "binding volumes: provisioning failed for PVC \"data\""
    );
    // the volume is made, but elsewhere
    let mut done = (*bound("data", "pv")).clone();
    done.metadata.resource_version = Some("8".to_owned());
    c.storage.fixed.write().claims = vec![Arc::new(done)];
    c.storage.fixed.write().volumes = vec![volume("pv", "b")];
    assert_eq!(
        c.plugin.pre_bind(&state, &p, "a").await.message(),
        "binding volumes: pv \"pv\" node affinity doesn't match node \"a\": no matching NodeSelectorTerms"
    );
    c.storage.fixed.write().volumes = vec![volume("pv", "a")];
    assert!(c.plugin.pre_bind(&state, &p, "a").await.is_success());
}
