//! What the scheduler knows of claims, volumes and classes of storage, with what it has decided and not yet written.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use davit_client::{Change, Informer};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::framework::{Action, ClusterEvent, EventResource};

/// How long the first lists may take before decisions are made without them.
const SYNC: Duration = Duration::from_secs(10);

/// The informers of the kinds of storage.
#[derive(Clone)]
pub(crate) struct StorageInformers {
    pub(crate) claims: Informer<PersistentVolumeClaim>,
    pub(crate) volumes: Informer<PersistentVolume>,
    pub(crate) classes: Informer<StorageClass>,
    pub(crate) csi_nodes: Informer<CSINode>,
    pub(crate) csi_drivers: Informer<CSIDriver>,
    pub(crate) capacities: Informer<CSIStorageCapacity>,
    pub(crate) attachments: Informer<VolumeAttachment>,
}

impl StorageInformers {
    /// Waits until all that exists is known, or for a while.
    pub(crate) async fn wait_synced(&self) {
        let all = tokio::join!(
            self.claims.wait_synced(SYNC),
            self.volumes.wait_synced(SYNC),
            self.classes.wait_synced(SYNC),
            self.csi_nodes.wait_synced(SYNC),
            self.csi_drivers.wait_synced(SYNC),
            self.capacities.wait_synced(SYNC),
            self.attachments.wait_synced(SYNC),
        );
        let all = [all.0, all.1, all.2, all.3, all.4, all.5, all.6];
        if let Some(error) = all.into_iter().find_map(Result::err) {
            tracing::warn!(%error, "pods with volumes are placed before all volumes are known");
        }
    }
}

/// Namespace and name; no namespace for volumes.
type Key = (String, String);

/// Objects as they were decided or written, until the informer has seen something newer.
struct Assumed<K> {
    by_key: HashMap<Key, Arc<K>>,
}

impl<K> Default for Assumed<K> {
    fn default() -> Self {
        Self {
            by_key: HashMap::new(),
        }
    }
}

fn version(meta: &ObjectMeta) -> u64 {
    let version = meta.resource_version.as_deref();
    version.and_then(|v| v.parse().ok()).unwrap_or(0)
}

impl<K: kube::Resource> Assumed<K> {
    /// The newer of the two; what was assumed counts as long as nobody has written since.
    fn newest(&mut self, key: &Key, seen: Option<Arc<K>>) -> Option<Arc<K>> {
        let Some(assumed) = self.by_key.get(key) else {
            return seen;
        };
        let keep = seen
            .as_ref()
            .is_some_and(|seen| version(seen.meta()) <= version(assumed.meta()));
        if keep {
            return Some(assumed.clone());
        }
        self.by_key.remove(key);
        seen
    }
}

#[derive(Default)]
struct State {
    volumes: Assumed<PersistentVolume>,
    claims: Assumed<PersistentVolumeClaim>,
}

/// Objects that do not come from informers, for tests.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Fixed {
    pub(crate) claims: Vec<Arc<PersistentVolumeClaim>>,
    pub(crate) volumes: Vec<Arc<PersistentVolume>>,
    pub(crate) classes: Vec<Arc<StorageClass>>,
    pub(crate) drivers: Vec<Arc<CSIDriver>>,
    pub(crate) capacities: Vec<Arc<CSIStorageCapacity>>,
    pub(crate) csi_nodes: Vec<Arc<CSINode>>,
}

/// What is known of storage. Knows nothing until informers are [followed](Self::follow). Shared.
#[derive(Clone)]
pub struct Storage {
    informers: Arc<RwLock<Option<StorageInformers>>>,
    state: Arc<Mutex<State>>,
    /// Events that the queue has not been told yet, by kind.
    pending: Arc<Mutex<BTreeMap<EventResource, Action>>>,
    changes: watch::Sender<u64>,
    #[cfg(test)]
    pub(crate) fixed: Arc<RwLock<Fixed>>,
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            informers: Arc::default(),
            state: Arc::default(),
            pending: Arc::default(),
            changes: watch::Sender::new(0),
            #[cfg(test)]
            fixed: Arc::default(),
        }
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Storage")
    }
}

macro_rules! seen {
    ($self:ident, $kind:ident, $fixed:ident) => {{
        #[cfg(test)]
        if $self.informers.read().is_none() {
            return $self.fixed.read().$fixed.clone();
        }
        let informers = $self.informers.read();
        informers.as_ref().map_or_else(Vec::new, |i| i.$kind.list())
    }};
}

impl Storage {
    /// Answers by what these informers know from now on.
    pub(crate) fn follow(&self, informers: StorageInformers) {
        *self.informers.write() = Some(informers);
    }

    /// Watches for changes; the number has no meaning.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The changes since the last call.
    pub(crate) fn take_events(&self) -> Vec<ClusterEvent> {
        self.drop_old();
        let pending = std::mem::take(&mut *self.pending.lock());
        pending
            .into_iter()
            .map(|(resource, action)| ClusterEvent::new(resource, action))
            .collect()
    }

    /// Drops what was assumed and has been seen, or written by others, since.
    fn drop_old(&self) {
        let mut state = self.state.lock();
        let volumes: Vec<Key> = state.volumes.by_key.keys().cloned().collect();
        for key in volumes {
            let seen = self.seen_volume(&key.1);
            state.volumes.newest(&key, seen);
        }
        let claims: Vec<Key> = state.claims.by_key.keys().cloned().collect();
        for key in claims {
            let seen = self.seen_claim(&key);
            state.claims.newest(&key, seen);
        }
    }

    fn note(&self, resource: EventResource, action: Action) {
        let mut pending = self.pending.lock();
        let held = pending.entry(resource).or_insert(Action::NONE);
        *held = *held | action;
        drop(pending);
        self.changes.send_modify(|n| *n += 1);
    }

    /// Notes what happens to the objects of a kind, until its informer ends.
    pub(crate) async fn watch<K: davit_client::Object>(
        self,
        informer: Informer<K>,
        resource: EventResource,
    ) {
        let mut changes = informer.subscribe();
        while let Some(change) = changes.next().await {
            match change {
                Change::Synced => {}
                Change::Applied { old: None, .. } => self.note(resource, Action::ADD),
                Change::Applied { old: Some(_), .. } => self.note(resource, Action::UPDATE),
                Change::Deleted(_) => self.note(resource, Action::DELETE),
            }
        }
    }

    /// A claim.
    pub fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        let key = (namespace.to_owned(), name.to_owned());
        let seen = self.seen_claim(&key);
        self.state.lock().claims.newest(&key, seen)
    }

    fn seen_claim(&self, key: &Key) -> Option<Arc<PersistentVolumeClaim>> {
        #[cfg(test)]
        if self.informers.read().is_none() {
            let is = |claim: &&Arc<PersistentVolumeClaim>| {
                claim.metadata.namespace.as_ref() == Some(&key.0)
                    && claim.metadata.name.as_ref() == Some(&key.1)
            };
            return self.fixed.read().claims.iter().find(is).cloned();
        }
        let informers = self.informers.read();
        informers.as_ref()?.claims.get(Some(&key.0), &key.1)
    }

    /// A volume.
    pub fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        let key = (String::new(), name.to_owned());
        let seen = self.seen_volume(name);
        self.state.lock().volumes.newest(&key, seen)
    }

    fn seen_volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        #[cfg(test)]
        if self.informers.read().is_none() {
            let is =
                |volume: &&Arc<PersistentVolume>| volume.metadata.name.as_deref() == Some(name);
            return self.fixed.read().volumes.iter().find(is).cloned();
        }
        let informers = self.informers.read();
        informers.as_ref()?.volumes.get(None, name)
    }

    /// All volumes.
    pub fn volumes(&self) -> Vec<Arc<PersistentVolume>> {
        let seen = self.seen_volumes();
        let mut state = self.state.lock();
        if state.volumes.by_key.is_empty() {
            return seen;
        }
        let newest = seen.into_iter().filter_map(|volume| {
            let name = volume.metadata.name.clone().unwrap_or_default();
            state.volumes.newest(&(String::new(), name), Some(volume))
        });
        newest.collect()
    }

    fn seen_volumes(&self) -> Vec<Arc<PersistentVolume>> {
        seen!(self, volumes, volumes)
    }

    /// A class.
    pub fn class(&self, name: &str) -> Option<Arc<StorageClass>> {
        #[cfg(test)]
        if self.informers.read().is_none() {
            let is = |class: &&Arc<StorageClass>| class.metadata.name.as_deref() == Some(name);
            return self.fixed.read().classes.iter().find(is).cloned();
        }
        let informers = self.informers.read();
        informers.as_ref()?.classes.get(None, name)
    }

    /// What a CSI driver says of itself.
    pub fn csi_driver(&self, name: &str) -> Option<Arc<CSIDriver>> {
        #[cfg(test)]
        if self.informers.read().is_none() {
            let is = |driver: &&Arc<CSIDriver>| driver.metadata.name.as_deref() == Some(name);
            return self.fixed.read().drivers.iter().find(is).cloned();
        }
        let informers = self.informers.read();
        informers.as_ref()?.csi_drivers.get(None, name)
    }

    /// The CSI drivers of a node.
    pub fn csi_node(&self, name: &str) -> Option<Arc<CSINode>> {
        #[cfg(test)]
        if self.informers.read().is_none() {
            let is = |node: &&Arc<CSINode>| node.metadata.name.as_deref() == Some(name);
            return self.fixed.read().csi_nodes.iter().find(is).cloned();
        }
        let informers = self.informers.read();
        informers.as_ref()?.csi_nodes.get(None, name)
    }

    /// How much room there is for volumes, and where.
    pub fn capacities(&self) -> Vec<Arc<CSIStorageCapacity>> {
        seen!(self, capacities, capacities)
    }

    /// Volumes that are attached to nodes, or to be.
    pub fn attachments(&self) -> Vec<Arc<VolumeAttachment>> {
        let informers = self.informers.read();
        informers
            .as_ref()
            .map_or_else(Vec::new, |i| i.attachments.list())
    }

    /// Goes by this volume until something newer is seen.
    pub(crate) fn assume_volume(&self, volume: Arc<PersistentVolume>) {
        let name = volume.metadata.name.clone().unwrap_or_default();
        let key = (String::new(), name);
        self.state.lock().volumes.by_key.insert(key, volume);
    }

    /// Goes by this claim until something newer is seen.
    pub(crate) fn assume_claim(&self, claim: Arc<PersistentVolumeClaim>) {
        let meta = &claim.metadata;
        let key = (
            meta.namespace.clone().unwrap_or_default(),
            meta.name.clone().unwrap_or_default(),
        );
        self.state.lock().claims.by_key.insert(key, claim);
    }

    /// Goes by what is seen again.
    pub(crate) fn forget_volume(&self, name: &str) {
        let key = (String::new(), name.to_owned());
        self.state.lock().volumes.by_key.remove(&key);
    }

    /// Goes by what is seen again.
    pub(crate) fn forget_claim(&self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        self.state.lock().claims.by_key.remove(&key);
    }
}
