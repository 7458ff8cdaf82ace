//! Claims and volumes are bound, lost, released; claims say what they wait for.

use super::{Cluster, SOON, any_kubectl, eventually, kubectl, kubectl_stdin, value};
use std::path::Path;
use std::time::Duration;

/// What waits for a class or another volume is looked at again every 15 seconds.
const ROUNDS: Duration = Duration::from_secs(40);

fn phase_becomes(cluster: &Cluster, k: &Path, object: &str, phase: &str, within: Duration) {
    eventually(&format!("{object} is {phase}"), within, || {
        value(cluster, k, object, ".status.phase") == phase
    });
}

/// The claim has an event of this reason that says this.
fn is_said(cluster: &Cluster, k: &Path, claim: &str, reason: &str, text: &str) {
    let selector = format!("involvedObject.name={claim},reason={reason}");
    eventually(&format!("{claim}: {reason}"), SOON, || {
        let args = [
            "get",
            "events",
            "--field-selector",
            &selector,
            "-o",
            "jsonpath={.items[*].message}",
        ];
        kubectl(cluster, k, args).contains(text)
    });
}

fn volume(name: &str, size: &str) -> String {
    format!(
        "apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}}}
spec:
  capacity: {{storage: {size}}}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  hostPath: {{path: /nowhere/{name}}}
---
"
    )
}

/// `class` is a line of the spec, or nothing.
fn claim(name: &str, class: &str) -> String {
    format!(
        "apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec:
  {class}
  accessModes: [ReadWriteOnce]
  resources: {{requests: {{storage: 5Gi}}}}
---
"
    )
}

#[test]
fn claims_are_bound_lost_and_released() {
    let Some(k) = any_kubectl() else { return };
    let cluster = Cluster::up(&["--no-node", "--default-storage-class", "none"]);
    let create = |manifest: &str| kubectl_stdin(&cluster, &k, &["create", "-f", "-"], manifest);
    create(
        &[
            volume("large", "20Gi"),
            volume("small", "10Gi"),
            claim("data", "storageClassName: ''"),
        ]
        .concat(),
    );
    phase_becomes(&cluster, &k, "pvc/data", "Bound", ROUNDS);
    phase_becomes(&cluster, &k, "pv/small", "Bound", SOON);
    phase_becomes(&cluster, &k, "pv/large", "Available", SOON);
    assert_eq!(value(&cluster, &k, "pvc/data", ".spec.volumeName"), "small");
    assert_eq!(
        value(&cluster, &k, "pvc/data", ".status.capacity.storage"),
        "10Gi"
    );
    let uid = value(&cluster, &k, "pvc/data", ".metadata.uid");
    assert_eq!(value(&cluster, &k, "pv/small", ".spec.claimRef.uid"), uid);
    let mark = ".metadata.annotations.pv\\.kubernetes\\.io/bound-by-controller";
    for object in ["pv/small", "pvc/data"] {
        assert_eq!(value(&cluster, &k, object, mark), "yes");
    }

    // a retained volume is for nobody else, not even for a claim of that name
    kubectl(&cluster, &k, ["delete", "pvc", "data", "--timeout=30s"]);
    phase_becomes(&cluster, &k, "pv/small", "Released", SOON);
    create(&claim("data", "storageClassName: ''"));
    phase_becomes(&cluster, &k, "pvc/data", "Bound", ROUNDS);
    assert_eq!(value(&cluster, &k, "pvc/data", ".spec.volumeName"), "large");
    let freed = r#"{"spec":{"claimRef":null}}"#;
    kubectl(
        &cluster,
        &k,
        ["patch", "pv", "small", "--type=merge", "-p", freed],
    );
    phase_becomes(&cluster, &k, "pv/small", "Available", SOON);

    // a volume that is taken away by force
    kubectl(&cluster, &k, ["delete", "pv", "large", "--wait=false"]);
    let forced = r#"{"metadata":{"finalizers":null}}"#;
    kubectl(
        &cluster,
        &k,
        ["patch", "pv", "large", "--type=merge", "-p", forced],
    );
    phase_becomes(&cluster, &k, "pvc/data", "Lost", SOON);
    let text = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
    is_said(&cluster, &k, "data", "ClaimLost", text);
}

#[test]
fn claims_say_what_they_wait_for() {
    let Some(k) = any_kubectl() else { return };
    let cluster = Cluster::up(&["--no-node", "--default-storage-class", "none"]);
    let create = |manifest: &str| kubectl_stdin(&cluster, &k, &["create", "-f", "-"], manifest);
    let classes = "apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: later}
provisioner: example.com/disks
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: now}
provisioner: example.com/disks
---
";
    let pod = "apiVersion: v1
kind: Pod
metadata: {name: waits}
spec:
  containers: [{name: c, image: example.test/c:1}]
  volumes: [{name: scratch, ephemeral: {volumeClaimTemplate: {spec: {storageClassName: later,
    accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}]
";
    create(
        &[
            classes,
            &claim("later", "storageClassName: later"),
            &claim("now", "storageClassName: now"),
            &claim("none", "storageClassName: ''"),
            &claim("nil", ""),
            pod,
        ]
        .concat(),
    );
    let text = "waiting for first consumer to be created before binding";
    is_said(&cluster, &k, "later", "WaitForFirstConsumer", text);
    let text =
        "Waiting for a volume to be created either by the external provisioner 'example.com/disks'";
    is_said(&cluster, &k, "now", "ExternalProvisioning", text);
    for key in ["volume", "volume.beta"] {
        let key = key.replace('.', "\\.");
        let path = format!(".metadata.annotations.{key}\\.kubernetes\\.io/storage-provisioner");
        assert_eq!(value(&cluster, &k, "pvc/now", &path), "example.com/disks");
    }
    let text = "no persistent volumes available for this claim and no storage class is set";
    is_said(&cluster, &k, "none", "FailedBinding", text);

    // the claim of an ephemeral volume belongs to its pod, which is on no node
    let owner = ".metadata.ownerReferences[0].name";
    eventually("the pod's claim", SOON, || {
        kubectl(&cluster, &k, ["get", "pvc", "-o", "name"]).contains("waits-scratch")
    });
    assert_eq!(value(&cluster, &k, "pvc/waits-scratch", owner), "waits");
    let text = "waiting for pod waits to be scheduled";
    is_said(&cluster, &k, "waits-scratch", "WaitForPodScheduled", text);

    // a default class that comes later is for claims that name none, not for those that want none
    let marked = "storageclass.kubernetes.io/is-default-class=true";
    kubectl(&cluster, &k, ["annotate", "storageclass", "now", marked]);
    eventually("the default class after the fact", ROUNDS, || {
        value(&cluster, &k, "pvc/nil", ".spec.storageClassName") == "now"
    });
    assert_eq!(
        value(&cluster, &k, "pvc/none", ".spec.storageClassName"),
        ""
    );
}
