//! What the scheduler knows of storage: claims, volumes, classes, drivers, what they can still hold and what is attached;
//! and the bindings that it has decided and that are on their way to the API server.
//!
//! Claims and volumes are shown as they will be once the decided bindings are written, so that of two pods that are
//! scheduled one after the other the second finds taken what the first was given.

#![forbid(unsafe_code)]

mod assumed;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use davit_volume::class::volume_class;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use kube::ResourceExt;
use parking_lot::RwLock;
use tokio::sync::Notify;

pub use assumed::{AssumeError, StaticBinding, with_selected_node};
use assumed::{AssumedClaim, AssumedVolume};

/// Storage, shared by the plugins of all profiles. Cheap to clone.
#[derive(Clone, Default)]
pub struct VolumeCache {
    inner: Arc<RwLock<Inner>>,
    /// Told of every change that a binding may wait for.
    changed: Arc<Notify>,
    /// How many bindings wait, and who is told when one begins to.
    waiting: Arc<AtomicUsize>,
    began: Arc<Notify>,
}

/// Namespace and name.
type ClaimKey = (String, String);

#[derive(Default)]
struct Inner {
    synced: BTreeSet<StorageKind>,
    claims: HashMap<ClaimKey, Arc<PersistentVolumeClaim>>,
    volumes: HashMap<String, Arc<PersistentVolume>>,
    /// The names of the volumes of a class.
    by_class: HashMap<String, BTreeSet<String>>,
    assumed_claims: HashMap<ClaimKey, AssumedClaim>,
    assumed_volumes: HashMap<String, AssumedVolume>,
    classes: HashMap<String, Arc<StorageClass>>,
    csi_nodes: HashMap<String, Arc<CSINode>>,
    drivers: HashMap<String, Arc<CSIDriver>>,
    /// By class, then by namespace and name.
    capacities: HashMap<String, BTreeMap<ClaimKey, Arc<CSIStorageCapacity>>>,
    /// By node and name.
    attachments: HashMap<String, BTreeMap<String, Arc<VolumeAttachment>>>,
    nodes: HashMap<String, Arc<Node>>,
    /// The UIDs of pods whose volumes are being bound.
    binding: HashSet<Arc<str>>,
}

/// The kinds that are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are those of the kinds")]
pub enum StorageKind {
    Claims,
    Volumes,
    Classes,
    CsiNodes,
    Drivers,
    Capacities,
    Attachments,
}

impl StorageKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Claims,
        Self::Volumes,
        Self::Classes,
        Self::CsiNodes,
        Self::Drivers,
        Self::Capacities,
        Self::Attachments,
    ];
}

impl fmt::Debug for VolumeCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner.read();
        f.debug_struct("VolumeCache")
            .field("claims", &inner.claims.len())
            .field("volumes", &inner.volumes.len())
            .finish_non_exhaustive()
    }
}

/// Whether an object is older than one of the same UID that is known.
fn is_older<K: ResourceExt>(known: &K, new: &K) -> bool {
    let version = |object: &K| object.resource_version()?.parse::<u64>().ok();
    known.uid() == new.uid()
        && matches!((version(known), version(new)), (Some(known), Some(new)) if known > new)
}

fn key<K: ResourceExt>(object: &K) -> ClaimKey {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Takes over the new state of an object that is found by its name, or its end.
fn enter<K: ResourceExt>(
    known: &mut HashMap<String, Arc<K>>,
    old: Option<&Arc<K>>,
    new: Option<Arc<K>>,
) {
    match (old, new) {
        (_, Some(new)) => {
            known.insert(new.name_any(), new);
        }
        (Some(old), None) => {
            known.remove(&old.name_any());
        }
        (None, None) => {}
    }
}

impl VolumeCache {
    /// Everything of this kind that exists is known now.
    pub fn synced(&self, what: StorageKind) {
        self.inner.write().synced.insert(what);
    }

    /// Whether a decision about volumes can be made.
    pub fn is_synced(&self) -> bool {
        self.inner.read().synced.len() == StorageKind::ALL.len()
    }

    /// Takes a claim over as the API shows it; what is known to be newer stays.
    pub fn set_claim(
        &self,
        old: Option<&Arc<PersistentVolumeClaim>>,
        new: Option<Arc<PersistentVolumeClaim>>,
    ) {
        let mut inner = self.inner.write();
        match (old, new) {
            (_, Some(new)) => {
                let key = key(&*new);
                if inner
                    .claims
                    .get(&key)
                    .is_some_and(|k| is_older(&**k, &*new))
                {
                    return;
                }
                inner.renew_assumed_claim(&key, &new);
                inner.claims.insert(key, new);
            }
            (Some(old), None) => {
                let key = key(&**old);
                let same = |known: &Arc<PersistentVolumeClaim>| known.uid() == old.uid();
                if inner.claims.get(&key).is_some_and(same) {
                    inner.claims.remove(&key);
                    inner.assumed_claims.remove(&key);
                }
            }
            (None, None) => {}
        }
        drop(inner);
        self.changed.notify_waiters();
    }

    /// Takes a volume over as the API shows it; what is known to be newer stays.
    pub fn set_volume(
        &self,
        old: Option<&Arc<PersistentVolume>>,
        new: Option<Arc<PersistentVolume>>,
    ) {
        let mut inner = self.inner.write();
        match (old, new) {
            (_, Some(new)) => {
                let name = new.name_any();
                let known = inner.volumes.get(&name);
                if known.is_some_and(|k| is_older(&**k, &*new)) {
                    return;
                }
                inner.forget_class(&name);
                let class = inner.by_class.entry(volume_class(&new).to_owned());
                class.or_default().insert(name.clone());
                inner.renew_assumed_volume(&name, &new);
                inner.volumes.insert(name, new);
            }
            (Some(old), None) => {
                let name = old.name_any();
                let same = |known: &Arc<PersistentVolume>| known.uid() == old.uid();
                if inner.volumes.get(&name).is_some_and(same) {
                    inner.forget_class(&name);
                    inner.volumes.remove(&name);
                    inner.assumed_volumes.remove(&name);
                }
            }
            (None, None) => {}
        }
        drop(inner);
        self.changed.notify_waiters();
    }

    /// Takes a class over, or its end.
    pub fn set_class(&self, old: Option<&Arc<StorageClass>>, new: Option<Arc<StorageClass>>) {
        enter(&mut self.inner.write().classes, old, new);
    }

    /// Takes over what a node's drivers say, or its end.
    pub fn set_csi_node(&self, old: Option<&Arc<CSINode>>, new: Option<Arc<CSINode>>) {
        enter(&mut self.inner.write().csi_nodes, old, new);
    }

    /// Takes a driver's description over, or its end.
    pub fn set_driver(&self, old: Option<&Arc<CSIDriver>>, new: Option<Arc<CSIDriver>>) {
        enter(&mut self.inner.write().drivers, old, new);
    }

    /// Takes over how much there is somewhere, or that nothing is said of it any more.
    pub fn set_capacity(
        &self,
        old: Option<&Arc<CSIStorageCapacity>>,
        new: Option<Arc<CSIStorageCapacity>>,
    ) {
        let capacities = &mut self.inner.write().capacities;
        if let Some(old) = old
            && let Some(of_class) = capacities.get_mut(&old.storage_class_name)
        {
            of_class.remove(&key(&**old));
            if of_class.is_empty() {
                capacities.remove(&old.storage_class_name);
            }
        }
        if let Some(new) = new {
            let of_class = capacities.entry(new.storage_class_name.clone());
            of_class.or_default().insert(key(&*new), new);
        }
    }

    /// Takes an attachment over, or its end.
    pub fn set_attachment(
        &self,
        old: Option<&Arc<VolumeAttachment>>,
        new: Option<Arc<VolumeAttachment>>,
    ) {
        let attachments = &mut self.inner.write().attachments;
        if let Some(old) = old
            && let Some(of_node) = attachments.get_mut(&old.spec.node_name)
        {
            of_node.remove(&old.name_any());
            if of_node.is_empty() {
                attachments.remove(&old.spec.node_name);
            }
        }
        if let Some(new) = new {
            let of_node = attachments.entry(new.spec.node_name.clone());
            of_node.or_default().insert(new.name_any(), new);
        }
    }

    /// Takes a node over, or its end.
    pub fn set_node(&self, name: &str, node: Option<Arc<Node>>) {
        let nodes = &mut self.inner.write().nodes;
        match node {
            Some(node) => nodes.insert(name.to_owned(), node),
            None => nodes.remove(name),
        };
    }

    /// A claim, as it will be when what is decided is written.
    pub fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        let key = (namespace.to_owned(), name.to_owned());
        let inner = self.inner.read();
        let assumed = inner.assumed_claims.get(&key).map(|a| &a.object);
        assumed.or_else(|| inner.claims.get(&key)).cloned()
    }

    /// A volume, as it will be when what is decided is written.
    pub fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.inner.read().volume(name).cloned()
    }

    /// The volumes of a class, as they will be when what is decided is written.
    pub fn volumes_of_class(&self, class: &str) -> Vec<Arc<PersistentVolume>> {
        let inner = self.inner.read();
        let names = inner.by_class.get(class).into_iter().flatten();
        names
            .filter_map(|name| inner.volume(name).cloned())
            .collect()
    }

    /// A claim as the API shows it.
    pub fn written_claim(&self, key: &ClaimKey) -> Option<Arc<PersistentVolumeClaim>> {
        self.inner.read().claims.get(key).cloned()
    }

    /// A volume as the API shows it.
    pub fn written_volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.inner.read().volumes.get(name).cloned()
    }

    /// A class.
    pub fn class(&self, name: &str) -> Option<Arc<StorageClass>> {
        self.inner.read().classes.get(name).cloned()
    }

    /// What a node's drivers say.
    pub fn csi_node(&self, node: &str) -> Option<Arc<CSINode>> {
        self.inner.read().csi_nodes.get(node).cloned()
    }

    /// A driver's description.
    pub fn driver(&self, name: &str) -> Option<Arc<CSIDriver>> {
        self.inner.read().drivers.get(name).cloned()
    }

    /// A node.
    pub fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.inner.read().nodes.get(name).cloned()
    }

    /// What is said about how much there is of a class.
    pub fn capacities(&self, class: &str) -> Vec<Arc<CSIStorageCapacity>> {
        let inner = self.inner.read();
        let of_class = inner.capacities.get(class).into_iter().flatten();
        of_class.map(|(_, capacity)| capacity.clone()).collect()
    }

    /// The attachments to a node.
    pub fn attachments(&self, node: &str) -> Vec<Arc<VolumeAttachment>> {
        let inner = self.inner.read();
        let of_node = inner.attachments.get(node).into_iter().flatten();
        of_node.map(|(_, attachment)| attachment.clone()).collect()
    }

    /// How many bindings wait for others to do their part.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns when a binding has begun to wait since this was last asked.
    pub async fn wait_began(&self) {
        self.began.notified().await;
    }

    /// Looks at every change of claims, volumes and pods until there is an answer. The caller sets a deadline. Cancel-safe.
    pub async fn wait<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        let _counted = WaitingBinding::begin(self);
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // from here on no change is missed
            changed.as_mut().enable();
            if let Some(answer) = look() {
                return answer;
            }
            changed.await;
        }
    }
}

/// Counts a binding as waiting for as long as it lives.
struct WaitingBinding(Arc<AtomicUsize>);

impl WaitingBinding {
    fn begin(cache: &VolumeCache) -> Self {
        cache.waiting.fetch_add(1, Ordering::Relaxed);
        cache.began.notify_one();
        Self(cache.waiting.clone())
    }
}

impl Drop for WaitingBinding {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inner {
    fn volume(&self, name: &str) -> Option<&Arc<PersistentVolume>> {
        let assumed = self.assumed_volumes.get(name).map(|a| &a.object);
        assumed.or_else(|| self.volumes.get(name))
    }

    /// Takes a volume out of the index of classes.
    fn forget_class(&mut self, name: &str) {
        let Some(known) = self.volumes.get(name) else {
            return;
        };
        let class = volume_class(known).to_owned();
        if let Some(names) = self.by_class.get_mut(&class) {
            names.remove(name);
            if names.is_empty() {
                self.by_class.remove(&class);
            }
        }
    }
}
