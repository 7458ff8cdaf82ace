//! The rules of binding, one by one, with the texts of Kubernetes.

use super::super::{Notice, Referenced, Then};
use super::model::{Model, from};
use davit_volume::annotations::{
    BETA_STORAGE_PROVISIONER, BIND_COMPLETED, BOUND_BY_CONTROLLER, IN_TREE_PROVISIONER,
    IS_DEFAULT_CLASS, PRE_RESIZE_CAPACITY, PROVISIONED_BY, SELECTED_NODE, STORAGE_PROVISIONER,
};
use davit_volume::binding::{annotation, claim_ref, uid_of, volume_name};
use serde_json::{Value, json};
use std::sync::Arc;

fn volume(size: &str) -> Value {
    json!({"storage": size, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain"})
}

fn claim(size: &str) -> Value {
    json!({"storage": size, "accessModes": ["ReadWriteOnce"], "storageClassName": ""})
}

fn with(mut spec: Value, key: &str, value: Value) -> Value {
    spec[key] = value;
    spec
}

fn said(notices: &[Notice]) -> Vec<(&str, &str)> {
    let said = notices.iter().map(|n| (n.reason, n.message.as_str()));
    said.collect()
}

/// A claim `c` that is bound to the volume `v`.
fn bound(policy: &str) -> Model {
    let mut model = Model::default();
    let spec = with(
        volume("10Gi"),
        "persistentVolumeReclaimPolicy",
        json!(policy),
    );
    model.add_volume("v", spec);
    model.add_claim("c", "u", claim("5Gi"));
    model.settle();
    assert_eq!(
        (model.claim_phase("c"), model.volume_phase("v")),
        ("Bound", "Bound")
    );
    model
}

#[test]
fn a_binding_is_four_writes() {
    let mut model = Model::default();
    model.add_volume("v", volume("10Gi"));
    model.add_claim("c", "u", claim("5Gi"));
    assert_eq!(model.sync_volume("v", 9).1, 1);
    assert_eq!(model.sync_claim("c", 9).1, 4);
    let (volume, claim) = (&model.volumes["v"], &model.claims["c"]);
    assert_eq!(claim_ref(volume).and_then(uid_of), Some("u"));
    assert_eq!(
        annotation(&volume.metadata, BOUND_BY_CONTROLLER),
        Some("yes")
    );
    assert_eq!(volume_name(claim), Some("v"));
    for key in [BIND_COMPLETED, BOUND_BY_CONTROLLER] {
        assert_eq!(annotation(&claim.metadata, key), Some("yes"));
    }
    let status = serde_json::to_value(&claim.status).unwrap();
    let expected = json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Gi"}});
    assert_eq!(status, expected);
    assert_eq!(model.sync_claim("c", 9), (vec![], 0));
    assert_eq!(model.sync_volume("v", 9), (vec![], 0));
}

#[test]
fn a_file_system_that_has_not_grown_keeps_its_size() {
    let mut model = Model::default();
    let meta = json!({"annotations": {PRE_RESIZE_CAPACITY: "4Gi"}});
    model.add_volume_with("v", meta, volume("10Gi"));
    model.add_claim("c", "u", claim("3Gi"));
    model.settle();
    let status = model.claims["c"].status.clone().unwrap();
    assert_eq!(status.capacity.unwrap()["storage"].0, "4Gi");
}

#[test]
fn what_a_claim_waits_for() {
    let mut model = Model::default();
    model.add_class(
        "later",
        "example.com/p",
        json!({"volumeBindingMode": "WaitForFirstConsumer"}),
    );
    model.add_class(
        "now",
        "example.com/p",
        json!({"volumeBindingMode": "Immediate"}),
    );
    model.add_class("static", "kubernetes.io/no-provisioner", json!({}));
    model.add_claim("none", "1", claim("1Gi"));
    for class in ["later", "now", "static", "gone"] {
        let spec = with(claim("1Gi"), "storageClassName", json!(class));
        model.add_claim(class, class, spec);
    }
    let waits = |model: &mut Model, name: &str| {
        let notices = model.sync_claim(name, 9).0;
        assert_eq!(notices.len(), 1, "{name}");
        assert_eq!(model.claim_phase(name), "Pending");
        format!("{}: {}", notices[0].reason, notices[0].message)
    };
    assert_eq!(
        waits(&mut model, "none"),
        "FailedBinding: no persistent volumes available for this claim and no storage class is set"
    );
    assert_eq!(
        waits(&mut model, "later"),
        "WaitForFirstConsumer: waiting for first consumer to be created before binding"
    );
    model.pods = vec!["a".to_owned()];
    assert_eq!(
        waits(&mut model, "later"),
        "WaitForPodScheduled: waiting for pod a to be scheduled"
    );
    model.pods.push("b".to_owned());
    assert_eq!(
        waits(&mut model, "later"),
        "WaitForPodScheduled: waiting for pods a,b to be scheduled"
    );
    assert_eq!(
        waits(&mut model, "static"),
        "ProvisioningFailed: no volume plugin matched name: kubernetes.io/no-provisioner"
    );
    assert_eq!(
        waits(&mut model, "gone"),
        "ProvisioningFailed: storageclass.storage.k8s.io \"gone\" not found"
    );
    let external = "ExternalProvisioning: Waiting for a volume to be created either by the external provisioner \
        'example.com/p' or manually by the system administrator. If volume creation is delayed, please verify that \
        the provisioner is running and correctly registered.";
    assert_eq!(waits(&mut model, "now"), external);
    for key in [STORAGE_PROVISIONER, BETA_STORAGE_PROVISIONER] {
        assert_eq!(
            annotation(&model.claims["now"].metadata, key),
            Some("example.com/p")
        );
    }
    // asked once, said again
    assert_eq!(model.sync_claim("now", 9).1, 0);
    let later = Arc::make_mut(model.claims.get_mut("later").unwrap());
    let annotations = later.metadata.annotations.get_or_insert_default();
    annotations.insert(SELECTED_NODE.to_owned(), "node".to_owned());
    assert_eq!(waits(&mut model, "later"), external);
}

#[test]
fn a_claim_that_waits_for_pods_takes_only_what_is_kept_for_it() {
    let mut model = Model::default();
    model.add_class(
        "later",
        "example.com/p",
        json!({"volumeBindingMode": "WaitForFirstConsumer"}),
    );
    let spec = with(volume("1Gi"), "storageClassName", json!("later"));
    model.add_volume("free", spec.clone());
    model.add_claim(
        "c",
        "u",
        with(claim("1Gi"), "storageClassName", json!("later")),
    );
    model.settle();
    assert_eq!(model.claim_phase("c"), "Pending");
    model.add_volume(
        "kept",
        with(
            spec,
            "claimRef",
            json!({"namespace": "n", "name": "c", "uid": "u"}),
        ),
    );
    model.settle();
    assert_eq!(volume_name(&model.claims["c"]), Some("kept"));
    assert_eq!(model.volume_phase("free"), "Available");
}

#[test]
fn the_default_class_comes_later() {
    let mut model = Model::default();
    let mut nil = claim("1Gi");
    nil.as_object_mut().unwrap().remove("storageClassName");
    model.add_claim("nil", "1", nil);
    model.add_claim("none", "2", claim("1Gi"));
    model.add_volume(
        "v",
        with(volume("1Gi"), "storageClassName", json!("standard")),
    );
    model.settle();
    assert_eq!(model.claim_phase("nil"), "Pending");
    let marked = json!({"metadata": {"annotations": {IS_DEFAULT_CLASS: "true"}}});
    model.add_class("standard", "example.com/p", marked);
    model.settle();
    assert_eq!(volume_name(&model.claims["nil"]), Some("v"));
    let class = |name: &str| model.claims[name].spec.clone().unwrap().storage_class_name;
    assert_eq!(class("nil").as_deref(), Some("standard"));
    assert_eq!(class("none").as_deref(), Some(""));
    assert_eq!(model.claim_phase("none"), "Pending");
}

#[test]
fn a_named_volume_must_satisfy_the_claim_and_be_free() {
    let mut model = Model::default();
    model.add_volume("small", volume("1Gi"));
    model.add_volume(
        "taken",
        with(
            volume("9Gi"),
            "claimRef",
            json!({"namespace": "n", "name": "other"}),
        ),
    );
    for name in ["small", "taken", "absent"] {
        model.add_claim(name, name, with(claim("2Gi"), "volumeName", json!(name)));
    }
    let text = "Cannot bind to requested volume \"small\": requested PV is too small";
    assert_eq!(
        said(&model.sync_claim("small", 9).0),
        [("VolumeMismatch", text)]
    );
    let text = "volume \"taken\" already bound to a different claim.";
    assert_eq!(
        said(&model.sync_claim("taken", 9).0),
        [("FailedBinding", text)]
    );
    assert_eq!(model.sync_claim("absent", 9), (vec![], 0));
    // as soon as it is freed, the claim gets it
    let volume = Arc::make_mut(model.volumes.get_mut("taken").unwrap());
    volume.spec.as_mut().unwrap().claim_ref = None;
    model.settle();
    assert_eq!(model.claim_phase("taken"), "Bound");
    // a link of the controller's that another has is tried again, not accepted
    let claim = Arc::make_mut(model.claims.get_mut("small").unwrap());
    let annotations = claim.metadata.annotations.get_or_insert_default();
    annotations.insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
    claim.spec.as_mut().unwrap().volume_name = Some("taken".to_owned());
    assert!(matches!(model.claim_step("small").then, Then::Fail(_)));
}

#[test]
fn lost_and_found() {
    let mut model = bound("Retain");
    let volume = model.volumes.remove("v").unwrap();
    let text = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
    let notices = model.sync_claim("c", 9).0;
    assert_eq!(said(&notices), [("ClaimLost", text)]);
    assert!(notices[0].warning);
    assert_eq!(model.claim_phase("c"), "Lost");
    assert_eq!(model.sync_claim("c", 9), (vec![], 0));
    model.volumes.insert("v".to_owned(), volume);
    model.settle();
    assert_eq!(model.claim_phase("c"), "Bound");

    let claim = Arc::make_mut(model.claims.get_mut("c").unwrap());
    claim.spec.as_mut().unwrap().volume_name = None;
    let text = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
    assert_eq!(said(&model.sync_claim("c", 9).0), [("ClaimLost", text)]);

    let mut model = bound("Retain");
    let volume = Arc::make_mut(model.volumes.get_mut("v").unwrap());
    let reference = volume.spec.as_mut().unwrap().claim_ref.as_mut().unwrap();
    reference.uid = Some("another".to_owned());
    let text = "Two claims are bound to the same volume, this one is bound incorrectly";
    assert_eq!(said(&model.sync_claim("c", 9).0), [("ClaimMisbound", text)]);
}

#[test]
fn a_retained_volume_is_for_nobody_else() {
    let mut model = bound("Retain");
    model.claims.clear();
    model.settle();
    assert_eq!(model.volume_phase("v"), "Released");
    model.add_claim("c", "u2", claim("5Gi"));
    model.settle();
    assert_eq!(
        (model.claim_phase("c"), model.volume_phase("v")),
        ("Pending", "Released")
    );
    let volume = Arc::make_mut(model.volumes.get_mut("v").unwrap());
    volume.spec.as_mut().unwrap().claim_ref = None;
    model.settle();
    assert_eq!(
        (model.claim_phase("c"), model.volume_phase("v")),
        ("Bound", "Bound")
    );
}

#[test]
fn who_deletes() {
    let released = |source: &str, provisioner: Option<&str>, policy: &str| {
        let spec = with(
            volume("1Gi"),
            "persistentVolumeReclaimPolicy",
            json!(policy),
        );
        let mut spec = with(
            spec,
            "claimRef",
            json!({"namespace": "n", "name": "gone", "uid": "u"}),
        );
        spec[source] = match source {
            "csi" => json!({"driver": "d", "volumeHandle": "h"}),
            "nfs" => json!({"server": "s", "path": "/p"}),
            _ => json!({"path": "/tmp/x"}),
        };
        let mut model = Model::default();
        let annotations = provisioner.map(|p| json!({PROVISIONED_BY: p}));
        model.add_volume_with("v", json!({"annotations": annotations}), spec);
        let notices = model.sync_volume("v", 9).0;
        let volume = &model.volumes["v"];
        let message = volume.status.clone().unwrap().message;
        assert_eq!(notices.first().map(|n| n.message.clone()), message);
        assert_eq!(
            model.volume_phase("v"),
            if notices.is_empty() {
                "Released"
            } else {
                "Failed"
            }
        );
        let held = volume.metadata.finalizers.clone().unwrap_or_default();
        let said = notices
            .first()
            .map(|n| format!("{}: {}", n.reason, n.message));
        // the reason stays to be seen
        let mut again = model;
        assert_eq!(again.sync_volume("v", 9), (vec![], 0));
        (said, held)
    };
    let nobody = (None, vec![]);
    assert_eq!(released("local", None, "Retain"), nobody);
    assert_eq!(released("csi", None, "Delete"), nobody);
    assert_eq!(released("local", Some("local.davit.dev"), "Delete"), nobody);
    let fails = |why: &str| (Some(why.to_owned()), vec![]);
    let text = "VolumeFailedDelete: error getting deleter volume plugin for volume \"v\": no volume plugin matched";
    assert_eq!(released("local", None, "Delete"), fails(text));
    let text = "VolumeFailedDelete: error getting deleter volume plugin for volume \"v\": no deletable volume plugin matched";
    assert_eq!(released("nfs", None, "Delete"), fails(text));
    assert_eq!(released("hostPath", None, "Delete"), fails(text));
    let text = "VolumeFailedRecycle: No recycler plugin found for the volume!";
    assert_eq!(released("nfs", None, "Recycle"), fails(text));
    let text = "VolumeUnknownReclaimPolicy: Volume has unrecognized PersistentVolumeReclaimPolicy";
    assert_eq!(released("nfs", None, "Burn"), fails(text));
    let (said, held) = released("hostPath", Some("kubernetes.io/host-path"), "Delete");
    assert_eq!(
        said.as_deref(),
        Some("VolumeFailedDelete: no volume plugin matched name: kubernetes.io/host-path")
    );
    assert_eq!(held, [IN_TREE_PROVISIONER]);
}

#[test]
fn a_volume_whose_claim_has_another_is_freed() {
    let elsewhere = |meta: Value, policy: &str| {
        let mut model = bound("Retain");
        let reference = json!({"namespace": "n", "name": "c", "uid": "u"});
        let spec = with(
            volume("9Gi"),
            "persistentVolumeReclaimPolicy",
            json!(policy),
        );
        model.add_volume_with("second", meta, with(spec, "claimRef", reference));
        model.sync_volume("second", 9);
        let left = claim_ref(&model.volumes["second"]).map(|r| uid_of(r).map(str::to_owned));
        (model.volume_phase("second").to_owned(), left)
    };
    let by_controller = json!({"annotations": {BOUND_BY_CONTROLLER: "yes"}});
    assert_eq!(
        elsewhere(by_controller, "Retain"),
        ("Available".to_owned(), None)
    );
    // what the user has kept for the claim stays kept
    assert_eq!(
        elsewhere(json!({}), "Retain"),
        ("Available".to_owned(), Some(None))
    );
    let made =
        json!({"annotations": {PROVISIONED_BY: "example.com/p", BOUND_BY_CONTROLLER: "yes"}});
    let uid = Some(Some("u".to_owned()));
    assert_eq!(elsewhere(made, "Delete"), ("Released".to_owned(), uid));
}

#[test]
fn modes_that_differ_are_said_to_both() {
    let mut model = Model::default();
    let reference = json!({"namespace": "n", "name": "c", "uid": "u"});
    model.add_volume("v", with(volume("9Gi"), "claimRef", reference));
    model.add_claim("c", "u", with(claim("1Gi"), "volumeMode", json!("Block")));
    let (notices, writes) = model.sync_volume("v", 9);
    let to_volume = "Cannot bind PersistentVolume to requested PersistentVolumeClaim \"c\" due to incompatible volumeMode.";
    let to_claim = "Cannot bind PersistentVolume \"v\" to requested PersistentVolumeClaim due to incompatible volumeMode.";
    assert_eq!(
        said(&notices),
        [("VolumeMismatch", to_volume), ("VolumeMismatch", to_claim)]
    );
    assert_eq!(writes, 0);
}

#[test]
fn only_the_server_says_that_a_claim_is_gone() {
    let model = bound("Retain");
    let (mut volume, claim) = (model.volumes["v"].clone(), &model.claims["c"]);
    assert_eq!(Referenced::by(&volume, Some(claim)), Referenced::Cache);
    assert_eq!(Referenced::by(&volume, None), Referenced::Server);
    let mut older = (**claim).clone();
    older.metadata.uid = Some("older".to_owned());
    assert_eq!(Referenced::by(&volume, Some(&older)), Referenced::Server);
    let status = Arc::make_mut(&mut volume).status.as_mut().unwrap();
    status.phase = Some("Released".to_owned());
    assert_eq!(Referenced::by(&volume, None), Referenced::Cache);
    assert_eq!(Referenced::by(&volume, Some(&older)), Referenced::Server);
    assert_eq!(
        Referenced::by(&from(json!({"metadata": {}})), None),
        Referenced::Nowhere
    );
}
