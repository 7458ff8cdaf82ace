//! A cluster of plain values for tests of single plugins.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::cache::{Cache, Snapshot};
use crate::framework::{Code, CycleState, Filter, NodeNames, PreFilter, Score, Status};
use crate::pod::PodInfo;
use davit_volumecache::{StorageKind, VolumeCache};
use k8s_openapi::api::storage::v1::VolumeAttachment;

/// A pod of namespace `default` with this spec.
pub(crate) fn pod(name: &str, spec: Value) -> Arc<PodInfo> {
    labelled(name, json!({}), spec)
}

/// A pod with labels.
pub(crate) fn labelled(name: &str, labels: Value, mut spec: Value) -> Arc<PodInfo> {
    if spec.get("containers").is_none() {
        spec["containers"] = json!([]);
    }
    let metadata = json!({"name": name, "namespace": "default", "uid": name, "labels": labels});
    let pod = json!({"metadata": metadata, "spec": spec});
    Arc::new(PodInfo::new(Arc::new(serde_json::from_value(pod).unwrap())))
}

/// No devices.
pub(crate) fn devices() -> crate::devices::Devices {
    let selectors = davit_allocator::Selectors::kubernetes();
    crate::devices::Devices::new(Arc::new(selectors))
}

/// No devices, and it is known that there are none.
pub(crate) fn known_devices() -> crate::devices::Devices {
    use crate::devices::Watched;
    let devices = devices();
    for what in [
        Watched::Slices,
        Watched::Classes,
        Watched::Claims,
        Watched::Rules,
    ] {
        devices.synced(what);
    }
    devices.classic().set_absent();
    devices
}

/// Storage that is known.
pub(crate) struct Shelf {
    pub(crate) volumes: VolumeCache,
}

fn read<K: serde::de::DeserializeOwned>(value: Value) -> Option<Arc<K>> {
    Some(Arc::new(serde_json::from_value(value).unwrap()))
}

impl Shelf {
    pub(crate) fn new() -> Self {
        let volumes = VolumeCache::default();
        for what in StorageKind::ALL {
            volumes.synced(what);
        }
        Self { volumes }
    }

    /// A claim of namespace `default` with this spec.
    pub(crate) fn claim(&self, name: &str, spec: Value) {
        self.whole_claim(name, json!({}), spec, json!({}));
    }

    pub(crate) fn whole_claim(&self, name: &str, meta: Value, spec: Value, status: Value) {
        let mut claim = json!({"metadata": meta, "spec": spec, "status": status});
        claim["metadata"]["name"] = json!(name);
        claim["metadata"]["namespace"] = json!("default");
        claim["metadata"]["uid"] = json!(name);
        self.volumes.set_claim(None, read(claim));
    }

    pub(crate) fn volume(&self, name: &str, labels: &Value, spec: Value) {
        let meta = json!({"name": name, "uid": name, "labels": labels});
        let volume = json!({"metadata": meta, "spec": spec, "status": {"phase": "Available"}});
        self.volumes.set_volume(None, read(volume));
    }

    pub(crate) fn class(&self, name: &str, mut class: Value) {
        class["metadata"]["name"] = json!(name);
        self.volumes.set_class(None, read(class));
    }

    pub(crate) fn csi_node(&self, name: &str, drivers: Value) {
        let node = json!({"metadata": {"name": name}, "spec": {"drivers": drivers}});
        self.volumes.set_csi_node(None, read(node));
    }

    pub(crate) fn driver(&self, name: &str, spec: Value) {
        let driver = json!({"metadata": {"name": name}, "spec": spec});
        self.volumes.set_driver(None, read(driver));
    }

    pub(crate) fn capacity(&self, name: &str, mut capacity: Value) {
        capacity["metadata"] = json!({"name": name, "namespace": "default"});
        self.volumes.set_capacity(None, read(capacity));
    }

    pub(crate) fn attachment(&self, name: &str, node: &str, driver: &str, volume: &str) {
        let attachment = attachment(name, node, driver, volume);
        self.volumes.set_attachment(None, attachment);
    }

    pub(crate) fn detach(&self, name: &str, node: &str, driver: &str, volume: &str) {
        let attachment = attachment(name, node, driver, volume);
        self.volumes.set_attachment(attachment.as_ref(), None);
    }
}

fn attachment(name: &str, node: &str, driver: &str, volume: &str) -> Option<Arc<VolumeAttachment>> {
    let spec =
        json!({"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": volume}});
    read(json!({"metadata": {"name": name}, "spec": spec}))
}

pub(crate) struct Bed {
    pub(crate) cache: Cache,
    pub(crate) snapshot: Snapshot,
}

impl Bed {
    pub(crate) fn new() -> Self {
        Self {
            cache: Cache::new(),
            snapshot: Snapshot::default(),
        }
    }

    pub(crate) fn node(&mut self, name: &str, mut node: Value) {
        node["metadata"]["name"] = json!(name);
        self.cache
            .set_node(Arc::new(serde_json::from_value(node).unwrap()));
        self.cache.update(&mut self.snapshot);
    }

    pub(crate) fn place(&mut self, pod: &Arc<PodInfo>, node: &str) {
        self.cache.assume(pod.clone(), node).unwrap();
        self.cache.update(&mut self.snapshot);
    }

    pub(crate) fn filter(&self, plugin: &impl Filter, pod: &PodInfo, node: &str) -> Status {
        let at = self.snapshot.position(node).unwrap();
        plugin.filter(&CycleState::new(), pod, self.snapshot.node(at))
    }

    /// What the plugin adds to its refusal.
    pub(crate) fn explain(
        &self,
        plugin: &impl Filter,
        pod: &PodInfo,
        node: &str,
        refusal: &mut Status,
    ) {
        let at = self.snapshot.position(node).unwrap();
        plugin.explain(&CycleState::new(), pod, self.snapshot.node(at), refusal);
    }

    pub(crate) fn pre_filter(&self, plugin: &impl PreFilter, pod: &PodInfo) -> (Status, NodeNames) {
        plugin.pre_filter(&mut CycleState::new(), pod, &self.snapshot)
    }

    /// PreFilter and, unless it skips, Filter on every node.
    pub(crate) fn verdicts<P: PreFilter + Filter>(&self, plugin: &P, pod: &PodInfo) -> Vec<Status> {
        let mut state = CycleState::new();
        let (status, _) = plugin.pre_filter(&mut state, pod, &self.snapshot);
        let nodes = self.snapshot.nodes().iter();
        match status.code {
            Code::Success => nodes.map(|n| plugin.filter(&state, pod, n)).collect(),
            Code::Skip => nodes.map(|_| Status::success()).collect(),
            _ => nodes.map(|_| status.clone()).collect(),
        }
    }

    /// The normalized scores of all nodes, in order of names.
    pub(crate) fn scores(&self, plugin: &impl Score, pod: &PodInfo) -> Vec<i64> {
        self.scores_with(plugin, pod, &CycleState::new())
    }

    pub(crate) fn scores_with(
        &self,
        plugin: &impl Score,
        pod: &PodInfo,
        state: &CycleState,
    ) -> Vec<i64> {
        let places: Vec<usize> = (0..self.snapshot.nodes().len()).collect();
        let score = |&at: &usize| plugin.score(state, pod, self.snapshot.node(at), &self.snapshot);
        let mut scores: Vec<i64> = places.iter().map(score).collect();
        plugin.normalize(state, pod, &self.snapshot, &places, &mut scores);
        scores
    }
}
