//! Which volumes are to be attached to a node: those of its pods that a CSI driver wants attached.

use crate::pod_control::is_terminal;
use davit_client::{ObjectKey, object_ref};
use davit_volume::binding::{claim_ref, uid_of, volume_name};
use davit_volume::names::csi_volume_name;
use davit_volume::pod::{PodClaim, claims_of, is_made_for};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Access modes with which a volume may be on several nodes.
const SHARED_MODES: [&str; 2] = ["ReadWriteMany", "ReadOnlyMany"];

/// A CSI volume as its PersistentVolume tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CsiSource {
    /// The name of the PersistentVolume; empty where only a node's status tells of the volume.
    pub(super) persistent_volume: String,
    pub(super) driver: String,
    pub(super) handle: String,
    /// Whether it may be attached to one node only.
    pub(super) exclusive: bool,
}

impl CsiSource {
    /// `None` for volumes of other kinds.
    pub(super) fn of(volume: &PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let csi = spec.csi.as_ref()?;
        let modes = spec.access_modes.as_deref().unwrap_or_default();
        let shared = |mode: &String| SHARED_MODES.contains(&mode.as_str());
        Some(Self {
            persistent_volume: volume.metadata.name.clone().unwrap_or_default(),
            driver: csi.driver.clone(),
            handle: csi.volume_handle.clone(),
            exclusive: !modes.is_empty() && !modes.iter().any(shared),
        })
    }

    /// The unique name of the volume.
    pub(super) fn name(&self) -> String {
        csi_volume_name(&self.driver, &self.handle)
    }
}

/// A volume that pods of a node need there.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WantedVolume {
    pub(super) source: CsiSource,
    pub(super) pods: Vec<ObjectReference>,
}

/// What the pods of a node need.
#[derive(Debug, Default)]
pub(super) struct NodeVolumes {
    /// By unique name.
    pub(super) volumes: BTreeMap<String, WantedVolume>,
    /// All claims that were looked at: a change of one of them changes the answer.
    pub(super) claims: BTreeSet<ObjectKey>,
}

/// Where claims, volumes and drivers are looked up.
pub(super) trait StorageObjects {
    fn claim(&self, key: &ObjectKey) -> Option<Arc<PersistentVolumeClaim>>;
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>>;
    /// Whether volumes of the driver are attached; those of a driver that is not described are.
    fn is_attachable(&self, driver: &str) -> bool;
}

/// What these pods, all of one node, need there.
pub(super) fn wanted_volumes(pods: &[Arc<Pod>], objects: &impl StorageObjects) -> NodeVolumes {
    let mut wanted = NodeVolumes::default();
    for pod in pods.iter().filter(|pod| !has_ended(pod)) {
        for claim in claims_of(pod) {
            let key = ObjectKey {
                namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                name: claim.claim.clone(),
            };
            let source = source_of(pod, &claim, &key, objects);
            wanted.claims.insert(key);
            let Some(source) = source.filter(|s| objects.is_attachable(&s.driver)) else {
                continue;
            };
            let volume = wanted.volumes.entry(source.name());
            let volume = volume.or_insert_with(|| WantedVolume {
                source,
                pods: Vec::new(),
            });
            let pod = object_ref(&**pod);
            if !volume.pods.contains(&pod) {
                volume.pods.push(pod);
            }
        }
    }
    wanted
}

/// Whether nothing of the pod runs any more, or ever will.
fn has_ended(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|s| &s.container_statuses);
    let running = |state: &k8s_openapi::api::core::v1::ContainerState| {
        state.terminated.is_none() && state.waiting.is_none()
    };
    let any_runs = statuses
        .flatten()
        .any(|status| status.state.as_ref().is_none_or(running));
    is_terminal(pod) || (pod.metadata.deletion_timestamp.is_some() && !any_runs)
}

/// The volume behind a pod's claim, if both are bound to each other.
fn source_of(
    pod: &Pod,
    wanted: &PodClaim<'_>,
    key: &ObjectKey,
    objects: &impl StorageObjects,
) -> Option<CsiSource> {
    let claim = objects.claim(key)?;
    if wanted.ephemeral && !is_made_for(&claim, pod) {
        return None;
    }
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
    let name = volume_name(&claim).filter(|_| phase == Some("Bound"))?;
    let volume = objects.volume(name)?;
    let uid = claim_ref(&volume).and_then(uid_of);
    if uid.is_none() || uid != claim.metadata.uid.as_deref() {
        return None;
    }
    CsiSource::of(&volume)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[derive(Default)]
    struct Listed {
        claims: BTreeMap<ObjectKey, Arc<PersistentVolumeClaim>>,
        volumes: BTreeMap<String, Arc<PersistentVolume>>,
        /// Drivers whose volumes are never attached.
        unattached: BTreeSet<String>,
    }

    impl StorageObjects for Listed {
        fn claim(&self, key: &ObjectKey) -> Option<Arc<PersistentVolumeClaim>> {
            self.claims.get(key).cloned()
        }
        fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
            self.volumes.get(name).cloned()
        }
        fn is_attachable(&self, driver: &str) -> bool {
            !self.unattached.contains(driver)
        }
    }

    impl Listed {
        fn put_claim(&mut self, claim: Value) {
            let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
            self.claims.insert(ObjectKey::of(&claim), Arc::new(claim));
        }

        fn put_volume(&mut self, name: &str, claim_uid: &str, modes: Value, handle: &str) {
            let volume = json!({ "metadata": { "name": name }, "spec": { "accessModes": modes,
                "claimRef": { "namespace": "n", "name": "data", "uid": claim_uid },
                "csi": { "driver": "csi.example.com", "volumeHandle": handle } } });
            let volume = serde_json::from_value(volume).unwrap();
            self.volumes.insert(name.to_owned(), Arc::new(volume));
        }
    }

    fn claim(name: &str, volume: &str) -> Value {
        json!({ "metadata": { "namespace": "n", "name": name, "uid": "c" },
            "spec": { "volumeName": volume }, "status": { "phase": "Bound" } })
    }

    fn pod(name: &str, status: Value) -> Arc<Pod> {
        let pod = json!({ "metadata": { "namespace": "n", "name": name, "uid": name },
            "spec": { "containers": [], "volumes": [
                { "name": "v", "persistentVolumeClaim": { "claimName": "data" } } ] },
            "status": status });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn bound() -> Listed {
        let mut objects = Listed::default();
        objects.put_claim(claim("data", "pv"));
        objects.put_volume("pv", "c", json!(["ReadWriteOnce"]), "a^b/c");
        objects
    }

    #[test]
    fn pods_of_a_node_share_a_volume() {
        let pods = [pod("a", json!({})), pod("b", json!({ "phase": "Running" }))];
        let wanted = wanted_volumes(&pods, &bound());
        let volume = &wanted.volumes["kubernetes.io/csi/csi.example.com^a^b/c"];
        assert_eq!(volume.pods.len(), 2);
        assert_eq!(
            volume.source,
            CsiSource {
                persistent_volume: "pv".to_owned(),
                driver: "csi.example.com".to_owned(),
                handle: "a^b/c".to_owned(),
                exclusive: true,
            }
        );
    }

    #[test]
    fn only_what_is_bound_both_ways_is_attached() {
        let one = |objects: &Listed| wanted_volumes(&[pod("a", json!({}))], objects);
        let mut objects = bound();
        objects.put_volume("pv", "another", json!([]), "h");
        assert!(one(&objects).volumes.is_empty());
        objects = bound();
        let mut pending = claim("data", "pv");
        pending["status"]["phase"] = json!("Pending");
        objects.put_claim(pending);
        let wanted = one(&objects);
        assert!(wanted.volumes.is_empty());
        assert_eq!(wanted.claims.len(), 1, "its binding will be looked for");
        assert!(one(&Listed::default()).volumes.is_empty());
    }

    #[test]
    fn drivers_that_attach_nothing_are_passed_over() {
        let mut objects = bound();
        objects.unattached.insert("csi.example.com".to_owned());
        let wanted = wanted_volumes(&[pod("a", json!({}))], &objects);
        assert!(wanted.volumes.is_empty());
    }

    #[test]
    fn pods_that_have_ended_need_nothing() {
        let state = |state: Value| {
            json!({ "phase": "Running", "containerStatuses": [{ "name": "c", "image": "", "imageID": "",
                "ready": false, "restartCount": 0, "state": state }] })
        };
        let wants = |status: Value, deleting: bool| {
            let mut pod = (*pod("a", status)).clone();
            if deleting {
                let at = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
                let at = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at);
                pod.metadata.deletion_timestamp = Some(at);
            }
            !wanted_volumes(&[Arc::new(pod)], &bound())
                .volumes
                .is_empty()
        };
        assert!(!wants(json!({ "phase": "Succeeded" }), false));
        assert!(!wants(json!({ "phase": "Failed" }), false));
        assert!(wants(
            state(json!({ "terminated": { "exitCode": 0 } })),
            false
        ));
        assert!(!wants(
            state(json!({ "terminated": { "exitCode": 0 } })),
            true
        ));
        assert!(wants(state(json!({ "running": {} })), true));
    }

    #[test]
    fn access_modes_say_whether_several_nodes_may_have_it() {
        let exclusive = |modes: Value| {
            let mut objects = bound();
            objects.put_volume("pv", "c", modes, "h");
            CsiSource::of(&objects.volumes["pv"]).unwrap().exclusive
        };
        assert!(exclusive(json!(["ReadWriteOnce"])));
        assert!(exclusive(json!(["ReadWriteOncePod"])));
        assert!(!exclusive(json!(["ReadWriteOnce", "ReadOnlyMany"])));
        assert!(!exclusive(json!(["ReadWriteMany"])));
        assert!(!exclusive(json!([])));
    }

    #[test]
    fn claims_of_ephemeral_volumes_must_be_the_pods_own() {
        let mut objects = Listed::default();
        let mut own = claim("p-v", "pv");
        objects.put_volume("pv", "c", json!([]), "h");
        let pod = json!({ "metadata": { "namespace": "n", "name": "p", "uid": "u" },
            "spec": { "containers": [], "volumes": [{ "name": "v", "ephemeral": {} }] } });
        let pod: Arc<Pod> = Arc::new(serde_json::from_value(pod).unwrap());
        objects.put_claim(own.clone());
        assert!(
            wanted_volumes(std::slice::from_ref(&pod), &objects)
                .volumes
                .is_empty()
        );
        own["metadata"]["ownerReferences"] = json!([
            { "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true } ]);
        objects.put_claim(own);
        assert_eq!(wanted_volumes(&[pod], &objects).volumes.len(), 1);
    }
}
