//! Which volumes are to be attached to a node: those of its pods whose CSI or FlexVolume driver wants them attached.

use davit_client::{ObjectKey, object_ref};
use davit_flexvolume::FlexVolume;
use davit_reconcile::pods::is_terminal;
use davit_volume::binding::{claim_ref, uid_of, volume_name};
use davit_volume::names::{csi_volume_name, unique_volume_name};
use davit_volume::pod::{PodClaim, claims_of, is_made_for};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Access modes with which a volume may be on several nodes.
const SHARED_MODES: [&str; 2] = ["ReadWriteMany", "ReadOnlyMany"];

/// A volume as its object tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AttachSource {
    Csi(CsiSource),
    Flex(FlexSource),
}

/// A volume of a FlexVolume driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FlexSource {
    pub(super) driver: String,
    /// How the volume is called, see [`FlexVolume::name`].
    pub(super) volume: String,
    /// What the driver is told of it, as JSON; empty where only a node's status tells of the volume.
    pub(super) options: String,
    /// Whether it may be attached to one node only.
    pub(super) exclusive: bool,
}

impl AttachSource {
    /// `None` for volumes that are not attached; `read_only` is what the pod wants.
    pub(super) fn of(volume: &PersistentVolume, read_only: bool) -> Option<Self> {
        if let Some(source) = CsiSource::of(volume) {
            return Some(Self::Csi(source));
        }
        let found = FlexVolume::persistent(volume, read_only)?.ok()?;
        Some(Self::Flex(FlexSource::of(&found, is_exclusive(volume))))
    }

    /// The name of the PersistentVolume, or of the volume in its pod; empty where only a node's status tells of it.
    pub(super) fn volume(&self) -> &str {
        match self {
            Self::Csi(source) => &source.persistent_volume,
            Self::Flex(source) => &source.volume,
        }
    }

    /// Whether it may be attached to one node only.
    pub(super) fn exclusive(&self) -> bool {
        match self {
            Self::Csi(source) => source.exclusive,
            Self::Flex(source) => source.exclusive,
        }
    }

    /// The unique name of the volume.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Csi(source) => csi_volume_name(&source.driver, &source.handle),
            Self::Flex(source) => unique_volume_name(&source.driver, &source.volume),
        }
    }
}

impl FlexSource {
    fn of(volume: &FlexVolume, exclusive: bool) -> Self {
        Self {
            driver: volume.driver.to_string(),
            volume: volume.name.clone(),
            options: volume.options(),
            exclusive,
        }
    }
}

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
        let csi = volume.spec.as_ref()?.csi.as_ref()?;
        Some(Self {
            persistent_volume: volume.metadata.name.clone().unwrap_or_default(),
            driver: csi.driver.clone(),
            handle: csi.volume_handle.clone(),
            exclusive: is_exclusive(volume),
        })
    }
}

/// Whether the access modes of a volume let it be on one node only.
fn is_exclusive(volume: &PersistentVolume) -> bool {
    let modes = volume.spec.as_ref().and_then(|s| s.access_modes.as_deref());
    let modes = modes.unwrap_or_default();
    let shared = |mode: &String| SHARED_MODES.contains(&mode.as_str());
    !modes.is_empty() && !modes.iter().any(shared)
}

/// A volume that pods of a node need there.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WantedVolume {
    pub(super) source: AttachSource,
    pub(super) pods: Vec<ObjectReference>,
}

/// What the pods of a node need.
#[derive(Debug, Default)]
pub(super) struct NodeVolumes {
    /// By unique name.
    pub(super) volumes: BTreeMap<String, WantedVolume>,
    /// All claims that were looked at: a change of one of them changes the answer.
    pub(super) claims: BTreeSet<ObjectKey>,
    /// All FlexVolume drivers of these pods: what they can do changes the answer.
    pub(super) flex_drivers: BTreeSet<String>,
}

/// Where claims, volumes and drivers are looked up.
pub(super) trait StorageObjects {
    fn claim(&self, key: &ObjectKey) -> Option<Arc<PersistentVolumeClaim>>;
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>>;
    /// Whether volumes of the CSI driver are attached; those of a driver that is not described are.
    fn is_attachable(&self, driver: &str) -> bool;
    /// Whether volumes of the FlexVolume driver are attached; those of a driver that is not known yet are not.
    fn is_flex_attachable(&self, driver: &str) -> bool;
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
            wanted.add(pod, source, objects);
        }
        let volumes = pod.spec.iter().flat_map(|spec| &spec.volumes).flatten();
        for volume in volumes {
            let inline = volume.flex_volume.as_ref();
            let inline = inline.and_then(|source| FlexVolume::inline(&volume.name, source).ok());
            let source = inline.map(|v| AttachSource::Flex(FlexSource::of(&v, false)));
            wanted.add(pod, source, objects);
        }
    }
    wanted
}

impl NodeVolumes {
    /// Enters a volume of a pod, if its driver wants it attached.
    fn add(&mut self, pod: &Pod, source: Option<AttachSource>, objects: &impl StorageObjects) {
        let Some(source) = source else { return };
        let attachable = match &source {
            AttachSource::Csi(source) => objects.is_attachable(&source.driver),
            AttachSource::Flex(source) => {
                self.flex_drivers.insert(source.driver.clone());
                objects.is_flex_attachable(&source.driver)
            }
        };
        if !attachable {
            return;
        }
        let volume = self.volumes.entry(source.name());
        let volume = volume.or_insert_with(|| WantedVolume {
            source,
            pods: Vec::new(),
        });
        let pod = object_ref(pod);
        if !volume.pods.contains(&pod) {
            volume.pods.push(pod);
        }
    }
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
) -> Option<AttachSource> {
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
    AttachSource::of(&volume, wanted.read_only)
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
        fn is_flex_attachable(&self, driver: &str) -> bool {
            driver == "acme/disk"
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
            AttachSource::Csi(CsiSource {
                persistent_volume: "pv".to_owned(),
                driver: "csi.example.com".to_owned(),
                handle: "a^b/c".to_owned(),
                exclusive: true,
            })
        );
    }

    #[test]
    fn flex_volumes_are_attached_where_the_driver_can() {
        let mut objects = bound();
        let volume = json!({ "metadata": { "name": "pv" }, "spec": { "accessModes": ["ReadWriteOnce"],
            "claimRef": { "namespace": "n", "name": "data", "uid": "c" },
            "flexVolume": { "driver": "acme/disk", "options": { "a": "b" } } } });
        let volume = serde_json::from_value(volume).unwrap();
        objects.volumes.insert("pv".to_owned(), Arc::new(volume));
        let mut with_inline = (*pod("a", json!({}))).clone();
        let inline = json!([{ "name": "own", "flexVolume": { "driver": "acme/disk" } },
            { "name": "pv", "flexVolume": { "driver": "acme/disk" } },
            { "name": "plain", "flexVolume": { "driver": "acme/mem" } },
            { "name": "odd", "flexVolume": { "driver": "../x" } }]);
        let inline: Vec<k8s_openapi::api::core::v1::Volume> =
            serde_json::from_value(inline).unwrap();
        let volumes = &mut with_inline.spec.as_mut().unwrap().volumes;
        volumes.as_mut().unwrap().extend(inline);
        let wanted = wanted_volumes(&[Arc::new(with_inline)], &objects);
        let names: Vec<&str> = wanted.volumes.keys().map(String::as_str).collect();
        // A volume that a pod calls as a PersistentVolume is another: it would have been given that one's files.
        let [inline, "acme/disk/pv", other] = names[..] else {
            panic!("{names:?}");
        };
        assert!(other.starts_with("acme/disk/pv~"), "{other}");
        assert!(inline.starts_with("acme/disk/own~"), "{inline}");
        let own = &wanted.volumes[inline].source;
        let bound = &wanted.volumes["acme/disk/pv"].source;
        assert!(bound.exclusive() && !own.exclusive());
        let AttachSource::Flex(source) = bound else {
            panic!("{bound:?}");
        };
        assert_eq!(
            source.options,
            r#"{"a":"b","kubernetes.io/fsType":"","kubernetes.io/pvOrVolumeName":"pv","kubernetes.io/readwrite":"rw"}"#
        );
        let drivers: Vec<&String> = wanted.flex_drivers.iter().collect();
        assert_eq!(drivers, ["acme/disk", "acme/mem"]);
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
