//! The scheduler's picture of the cluster, and the snapshot one attempt works on.
//!
//! The cache is fed by informers and by the scheduler's own decisions: a pod it decided to bind is
//! *assumed* on its node until the API confirms it, so that the next attempt need not wait for the
//! write. A snapshot shares everything with the cache; bringing it up to date touches only the nodes
//! that changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;

use crate::node::NodeInfo;
use crate::pod::PodInfo;
use crate::selector::Labels;

/// How long an assumed pod whose binding was written may stay unconfirmed. A confirmation that does
/// not come means that the pod is gone and the watch never told.
const ASSUMED_FOR: Duration = Duration::from_secs(300);

/// Why the cache refused a change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// The pod is already in the cache.
    #[error("pod {0} is already on a node")]
    Known(String),
}

struct Slot {
    info: Arc<NodeInfo>,
    /// Where the node stands in snapshots; `None` while its object is unknown.
    at: Option<usize>,
}

struct Placed {
    pod: Arc<PodInfo>,
    node: Arc<str>,
    assumed: bool,
    /// Set when the binding has been written.
    expires: Option<Instant>,
}

/// All nodes and all pods on them.
#[derive(Default)]
pub struct Cache {
    nodes: HashMap<Arc<str>, Slot>,
    /// How many of them have an object.
    known_nodes: usize,
    pods: HashMap<Arc<str>, Placed>,
    /// Pods that are off their nodes for as long as something is imagined.
    lifted: HashMap<Arc<str>, Placed>,
    /// How many of `pods` are assumed.
    assumed: usize,
    namespaces: Arc<HashMap<String, Labels>>,
    images: HashMap<String, usize>,
    dirty: BTreeSet<Arc<str>>,
    /// How often a node has been changed.
    generation: u64,
    order_changed: bool,
    images_changed: bool,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache")
            .field("nodes", &self.nodes.len())
            .field("pods", &self.pods.len())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("nodes", &self.nodes.len())
            .finish_non_exhaustive()
    }
}

/// The cluster at one instant, in a fixed order of nodes that alternates between zones.
#[derive(Clone, Default)]
pub struct Snapshot {
    nodes: Vec<Arc<NodeInfo>>,
    /// The nodes' generations, side by side: they are looked at more often than the nodes.
    generations: Vec<u64>,
    index: Arc<HashMap<Arc<str>, usize>>,
    with_affinity: BTreeSet<usize>,
    with_anti_affinity: BTreeSet<usize>,
    with_claims: BTreeSet<usize>,
    namespaces: Arc<HashMap<String, Labels>>,
    images: Arc<HashMap<String, usize>>,
}

impl Snapshot {
    /// All nodes.
    pub fn nodes(&self) -> &[Arc<NodeInfo>] {
        &self.nodes
    }

    /// The node at this place.
    pub fn node(&self, at: usize) -> &NodeInfo {
        &self.nodes[at]
    }

    /// The state of the node at this place: the same number is the same state of the same node.
    pub(crate) fn generation(&self, at: usize) -> u64 {
        self.generations[at]
    }

    /// Where the node of this name stands.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied()
    }

    /// The nodes that have pods with pod affinity or anti-affinity of any kind.
    pub fn nodes_with_affinity(&self) -> impl Iterator<Item = &NodeInfo> {
        self.with_affinity.iter().map(|&i| &*self.nodes[i])
    }

    /// The nodes that have pods with required anti-affinity.
    pub fn nodes_with_anti_affinity(&self) -> impl Iterator<Item = &NodeInfo> {
        self.with_anti_affinity.iter().map(|&i| &*self.nodes[i])
    }

    /// How many pods use this claim.
    pub fn claim_users(&self, claim: &str) -> u32 {
        let nodes = self.with_claims.iter().map(|&i| &*self.nodes[i]);
        nodes.map(|node| node.claim_users(claim)).sum()
    }

    /// The labels of all namespaces: another value after each change.
    pub(crate) fn namespaces(&self) -> &Arc<HashMap<String, Labels>> {
        &self.namespaces
    }

    /// The labels of a namespace.
    pub fn namespace(&self, name: &str) -> Option<&Labels> {
        self.namespaces.get(name)
    }

    /// On how many nodes an image is.
    pub fn nodes_with_image(&self, image: &str) -> usize {
        self.images.get(image).copied().unwrap_or(0)
    }

    fn set(&mut self, at: usize, info: Arc<NodeInfo>) {
        for (set, has) in [
            (&mut self.with_affinity, info.has_affinity()),
            (&mut self.with_anti_affinity, info.has_anti_affinity()),
            (&mut self.with_claims, info.has_claims()),
        ] {
            if has {
                set.insert(at);
            } else {
                set.remove(&at);
            }
        }
        self.generations[at] = info.generation;
        self.nodes[at] = info;
    }
}

impl Cache {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many nodes have an object.
    pub fn node_count(&self) -> usize {
        self.known_nodes
    }

    /// How many pods are on nodes, assumed ones included.
    pub fn pod_count(&self) -> usize {
        self.pods.len()
    }

    /// How many pods are assumed.
    pub fn assumed_count(&self) -> usize {
        self.assumed
    }

    /// Adds a node or takes over its new state.
    pub fn set_node(&mut self, node: Arc<Node>) {
        let name: Arc<str> = Arc::from(node.metadata.name.as_deref().unwrap_or_default());
        let info = self.slot(&name);
        let known = info.node.is_some();
        let zone = (info.zone().0.to_owned(), info.zone().1.to_owned());
        let images = info.images.clone();
        info.set_node(node);
        let moved = info.zone() != (zone.0.as_str(), zone.1.as_str());
        let new_images = info.images.clone();
        self.order_changed |= !known || moved;
        self.known_nodes += usize::from(!known);
        self.replace_images(&images, &new_images);
    }

    /// Removes a node. Its pods stay known until they are gone too.
    pub fn remove_node(&mut self, name: &str) {
        let Some(slot) = self.nodes.get_mut(name) else {
            return;
        };
        let images = slot.info.images.clone();
        let info = Arc::make_mut(&mut slot.info);
        self.generation += 1;
        info.generation = self.generation;
        let known = info.node.take().is_some();
        info.images = Arc::default();
        let empty = info.pods.is_empty();
        self.known_nodes -= usize::from(known);
        self.replace_images(&images, &Arc::default());
        self.order_changed = true;
        if empty {
            self.nodes.remove(name);
        }
    }

    fn replace_images(&mut self, old: &Arc<HashMap<String, i64>>, new: &Arc<HashMap<String, i64>>) {
        if Arc::ptr_eq(old, new) {
            return;
        }
        self.images_changed = true;
        for image in new.keys() {
            *self.images.entry(image.clone()).or_default() += 1;
        }
        for image in old.keys() {
            if let Some(nodes) = self.images.get_mut(image) {
                *nodes -= 1;
                if *nodes == 0 {
                    self.images.remove(image);
                }
            }
        }
    }

    /// Takes over the labels of a namespace; `None` when it is gone.
    pub fn set_namespace(&mut self, name: &str, labels: Option<Labels>) {
        let namespaces = Arc::make_mut(&mut self.namespaces);
        match labels {
            Some(labels) => namespaces.insert(name.to_owned(), labels),
            None => namespaces.remove(name),
        };
    }

    /// Takes over the state of a bound pod; confirms an assumed one.
    pub fn set_pod(&mut self, pod: Arc<PodInfo>) {
        let Some(node) = pod.node_name.clone() else {
            return;
        };
        self.remove_pod(&pod.uid.clone());
        self.place(pod, node, false);
    }

    /// Books a pod on the node the scheduler chose for it.
    ///
    /// # Errors
    /// When the pod is on a node already.
    pub fn assume(&mut self, pod: Arc<PodInfo>, node: &str) -> Result<(), CacheError> {
        if self.pods.contains_key(&pod.uid) {
            return Err(CacheError::Known(pod.key()));
        }
        self.place(pod, Arc::from(node), true);
        Ok(())
    }

    /// The binding of an assumed pod has been written: from now on it must be confirmed in time.
    pub fn finish_binding(&mut self, uid: &str, now: Instant) {
        if let Some(placed) = self.pods.get_mut(uid).filter(|p| p.assumed) {
            placed.expires = Some(now + ASSUMED_FOR);
        }
    }

    /// Takes an assumed pod off its node again; whether it was assumed.
    pub fn forget(&mut self, uid: &str) -> bool {
        let assumed = self.is_assumed(uid);
        if assumed {
            self.remove_pod(uid);
        }
        assumed
    }

    /// Whether the pod is assumed.
    pub fn is_assumed(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(|p| p.assumed)
    }

    /// The pod, if it is on a node.
    pub fn pod(&self, uid: &str) -> Option<&Arc<PodInfo>> {
        self.pods.get(uid).map(|p| &p.pod)
    }

    /// The node a pod is on.
    pub fn node_of(&self, uid: &str) -> Option<&str> {
        self.pods.get(uid).map(|p| &*p.node)
    }

    /// Takes a pod off its node for as long as something is imagined. Whoever lifts pods puts them back before anything else
    /// happens.
    pub(crate) fn lift(&mut self, uid: &str) {
        if let Some(placed) = self.take(uid) {
            self.lifted.insert(placed.pod.uid.clone(), placed);
        }
    }

    /// Puts a lifted pod back as it was.
    pub(crate) fn put_back(&mut self, uid: &str) {
        if let Some(placed) = self.lifted.remove(uid) {
            self.put(placed);
        }
    }

    /// Puts all lifted pods back.
    pub(crate) fn put_all_back(&mut self) {
        for (_, placed) in std::mem::take(&mut self.lifted) {
            self.put(placed);
        }
    }

    /// The pods that are lifted.
    pub(crate) fn lifted(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.lifted.values().map(|placed| &placed.pod)
    }

    /// Removes a pod; returns it if it was there.
    pub fn remove_pod(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        self.take(uid).map(|placed| placed.pod)
    }

    fn take(&mut self, uid: &str) -> Option<Placed> {
        let placed = self.pods.remove(uid)?;
        self.assumed -= usize::from(placed.assumed);
        let info = self.slot(&placed.node);
        info.remove_pod(uid);
        let unused = info.pods.is_empty() && info.node.is_none();
        if unused {
            self.nodes.remove(&placed.node);
        }
        Some(placed)
    }

    /// Removes assumed pods whose confirmation is overdue and returns them.
    pub fn expire(&mut self, now: Instant) -> Vec<Arc<PodInfo>> {
        let overdue = |p: &Placed| p.assumed && p.expires.is_some_and(|at| at <= now);
        let uids: Vec<Arc<str>> = self
            .pods
            .iter()
            .filter(|(_, p)| overdue(p))
            .map(|(uid, _)| uid.clone())
            .collect();
        uids.iter().filter_map(|uid| self.remove_pod(uid)).collect()
    }

    fn place(&mut self, pod: Arc<PodInfo>, node: Arc<str>, assumed: bool) {
        self.put(Placed {
            pod,
            node,
            assumed,
            expires: None,
        });
    }

    fn put(&mut self, placed: Placed) {
        self.slot(&placed.node).add_pod(placed.pod.clone());
        self.assumed += usize::from(placed.assumed);
        let before = self.pods.insert(placed.pod.uid.clone(), placed);
        self.assumed -= usize::from(before.is_some_and(|p| p.assumed));
    }

    /// The node's record for a change.
    fn slot(&mut self, name: &Arc<str>) -> &mut NodeInfo {
        if !self.dirty.contains(name) {
            self.dirty.insert(name.clone());
        }
        let slot = self.nodes.entry(name.clone()).or_insert_with(|| Slot {
            info: Arc::new(NodeInfo::new(name.clone())),
            at: None,
        });
        let info = Arc::make_mut(&mut slot.info);
        self.generation += 1;
        info.generation = self.generation;
        info
    }

    /// Brings a snapshot of this cache up to date. A cache feeds one snapshot.
    pub fn update(&mut self, snapshot: &mut Snapshot) {
        if self.order_changed {
            self.rebuild(snapshot);
        } else {
            for name in std::mem::take(&mut self.dirty) {
                let Some(slot) = self.nodes.get(&name) else {
                    continue;
                };
                if let Some(at) = slot.at {
                    snapshot.set(at, slot.info.clone());
                }
            }
        }
        if self.images_changed {
            snapshot.images = Arc::new(self.images.clone());
            self.images_changed = false;
        }
        if !Arc::ptr_eq(&snapshot.namespaces, &self.namespaces) {
            snapshot.namespaces = self.namespaces.clone();
        }
    }

    fn rebuild(&mut self, snapshot: &mut Snapshot) {
        let mut zones: BTreeMap<(String, String), Vec<Arc<str>>> = BTreeMap::new();
        for (name, slot) in &mut self.nodes {
            slot.at = None;
            if slot.info.node.is_some() {
                let (region, zone) = slot.info.zone();
                zones
                    .entry((region.to_owned(), zone.to_owned()))
                    .or_default()
                    .push(name.clone());
            }
        }
        for names in zones.values_mut() {
            names.sort();
        }
        // One node of each zone in turn, so that looking at a part of the nodes looks at all zones.
        let longest = zones.values().map(Vec::len).max().unwrap_or(0);
        let order: Vec<Arc<str>> = (0..longest)
            .flat_map(|i| zones.values().filter_map(move |names| names.get(i)))
            .cloned()
            .collect();
        *snapshot = Snapshot {
            nodes: Vec::with_capacity(order.len()),
            generations: vec![0; order.len()],
            index: Arc::new(order.iter().cloned().zip(0..).collect()),
            namespaces: snapshot.namespaces.clone(),
            images: snapshot.images.clone(),
            ..Snapshot::default()
        };
        for (at, name) in order.iter().enumerate() {
            let slot = self
                .nodes
                .get_mut(name)
                .expect("ordered names are keys of the map");
            slot.at = Some(at);
            snapshot.nodes.push(slot.info.clone());
            snapshot.set(at, slot.info.clone());
        }
        self.order_changed = false;
        self.dirty.clear();
    }
}

#[cfg(test)]
mod tests;
