//! All slices of a cluster, by pool and by node.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::device::{Device, PoolId, Reach, Slice};
use crate::fingerprint::{Fingerprint, revision};
use crate::plan::Plan;
use crate::signature::PoolSignature;

/// The slices of one pool, of all generations, in order of their names.
#[derive(Debug, Default)]
pub(crate) struct PoolSlices {
    pub(crate) slices: Vec<Arc<Slice>>,
    /// Another one after every change.
    pub(crate) revision: u64,
    local: OnceLock<bool>,
    whole_without_nodes: OnceLock<bool>,
    /// Its signatures for what was asked for last, by what that sees.
    signatures: Mutex<VecDeque<(Fingerprint, Arc<PoolSignature>)>>,
}

/// How many signatures of a pool are kept.
const SIGNATURES: usize = 8;

impl Clone for PoolSlices {
    fn clone(&self) -> Self {
        Self {
            slices: self.slices.clone(),
            revision: self.revision,
            ..Self::default()
        }
    }
}

impl PoolSlices {
    fn changed(&mut self) {
        self.revision = revision();
        self.local = OnceLock::new();
        self.whole_without_nodes = OnceLock::new();
        self.signatures.get_mut().clear();
    }

    /// The signature of a local pool for a plan, whatever is held of it.
    pub(crate) fn signature(&self, plan: &Plan) -> Arc<PoolSignature> {
        let mut known = self.signatures.lock();
        if let Some((_, signature)) = known.iter().find(|(visible, _)| *visible == plan.visible) {
            return signature.clone();
        }
        let signature = Arc::new(PoolSignature::new(self, plan));
        known.truncate(SIGNATURES - 1);
        known.push_front((plan.visible, signature.clone()));
        signature
    }

    /// Whether the pool is what most are: of one node, one generation, and with a name for each device.
    pub(crate) fn is_local(&self) -> bool {
        *self.local.get_or_init(|| {
            let Some(first) = self.slices.first() else {
                return false;
            };
            let of = |s: &Slice| match &s.reach {
                Reach::Node(node) if !s.per_device => Some((node.clone(), s.generation)),
                _ => None,
            };
            let place = of(first);
            if place.is_none() || self.slices.iter().any(|s| of(s) != place) {
                return false;
            }
            let mut names = HashSet::new();
            let mut devices = self.slices.iter().flat_map(|s| &s.devices);
            devices.all(|d| names.insert(&d.name))
        })
    }

    /// Whether the slices that are not of single nodes are a pool of their own, with all that it says it has.
    pub(crate) fn is_whole_without_nodes(&self) -> bool {
        *self.whole_without_nodes.get_or_init(|| {
            let shared = || self.slices.iter().filter(|s| s.owner().is_none());
            let Some(newest) = shared().map(|s| s.generation).max() else {
                return false;
            };
            let newest: Vec<_> = shared().filter(|s| s.generation == newest).collect();
            i64::try_from(newest.len()) == Ok(newest[0].count)
        })
    }

    /// Whether every node sees the pool alike.
    pub(crate) fn is_uniform(&self) -> bool {
        let all = |s: &Arc<Slice>| matches!(s.reach, Reach::All);
        self.slices.iter().all(all)
    }
}

/// The slices of a cluster. Changing one costs what its pool costs; reading is by node.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    pools: HashMap<PoolId, Arc<PoolSlices>, RandomState>,
    by_node: HashMap<Arc<str>, BTreeSet<PoolId>, RandomState>,
    shared: BTreeSet<PoolId>,
    names: HashMap<Arc<str>, PoolId, RandomState>,
    /// How many slices select nodes by labels.
    selecting: usize,
    /// How many slices have devices that take of their node's resources.
    mapping: usize,
}

/// Whether it depends on a node's labels what it sees of the slice.
fn selects_nodes(slice: &Slice) -> bool {
    let by_labels = |reach: &Reach| matches!(reach, Reach::Selector(..));
    by_labels(&slice.reach) || slice.devices.iter().any(|d| by_labels(&d.reach))
}

/// Whether devices of the slice take of their node's resources.
fn maps_node_resources(slice: &Slice) -> bool {
    slice.devices.iter().any(|d| d.node_resources.is_some())
}

impl Inventory {
    /// Adds a slice, or puts it in the place of the one of the same name.
    pub fn set(&mut self, slice: Arc<Slice>) {
        self.remove(&slice.name);
        let id = slice.pool.clone();
        self.names.insert(slice.name.clone(), id.clone());
        match &slice.reach {
            Reach::Node(node) => {
                let pools = self.by_node.entry(node.clone()).or_default();
                pools.insert(id.clone());
            }
            _ => {
                self.shared.insert(id.clone());
            }
        }
        self.selecting += usize::from(selects_nodes(&slice));
        self.mapping += usize::from(maps_node_resources(&slice));
        let pool = Arc::make_mut(self.pools.entry(id).or_default());
        let at = pool.slices.partition_point(|s| s.name < slice.name);
        pool.slices.insert(at, slice);
        pool.changed();
    }

    /// Removes the slice of this name.
    pub fn remove(&mut self, name: &str) {
        let Some(id) = self.names.remove(name) else {
            return;
        };
        let Some(entry) = self.pools.get_mut(&id) else {
            return;
        };
        let pool = Arc::make_mut(entry);
        let Some(at) = pool.slices.iter().position(|s| &*s.name == name) else {
            return;
        };
        let gone = pool.slices.remove(at);
        pool.changed();
        self.selecting -= usize::from(selects_nodes(&gone));
        self.mapping -= usize::from(maps_node_resources(&gone));
        let same = |s: &Arc<Slice>| match (&s.reach, &gone.reach) {
            (Reach::Node(a), Reach::Node(b)) => a == b,
            (Reach::Node(_), _) | (_, Reach::Node(_)) => false,
            _ => true,
        };
        if !pool.slices.iter().any(same) {
            match &gone.reach {
                Reach::Node(node) => {
                    if let Some(pools) = self.by_node.get_mut(node) {
                        pools.remove(&id);
                        if pools.is_empty() {
                            self.by_node.remove(node);
                        }
                    }
                }
                _ => {
                    self.shared.remove(&id);
                }
            }
        }
        if pool.slices.is_empty() {
            self.pools.remove(&id);
        }
    }

    /// Every slice.
    pub fn slices(&self) -> impl Iterator<Item = &Arc<Slice>> {
        self.pools.values().flat_map(|p| &p.slices)
    }

    /// The slices with a node's own devices.
    pub fn local(&self, node: &str) -> impl Iterator<Item = &Arc<Slice>> {
        let ids = self.by_node.get(node).into_iter().flatten();
        let slices = ids.filter_map(|id| self.pools.get(id));
        let own = |s: &&Arc<Slice>| matches!(&s.reach, Reach::Node(of) if **of == *node);
        slices.flat_map(|pool| &pool.slices).filter(own)
    }

    /// Whether some slice, or device, is for nodes with certain labels.
    pub fn selects_nodes(&self) -> bool {
        self.selecting > 0
    }

    /// Whether some device takes of its node's resources.
    pub fn maps_node_resources(&self) -> bool {
        self.mapping > 0
    }

    /// A device by driver, pool and name: as the newest slice that has it describes it.
    pub fn device(&self, driver: &str, pool: &str, name: &str) -> Option<&Device> {
        let id = PoolId {
            driver: driver.into(),
            pool: pool.into(),
        };
        let mut newest: Option<(i64, &Device)> = None;
        for slice in &self.pools.get(&id)?.slices {
            let found = slice.devices.iter().find(|d| *d.name == *name);
            if let Some(device) = found
                && newest.is_none_or(|(generation, _)| slice.generation > generation)
            {
                newest = Some((slice.generation, device));
            }
        }
        newest.map(|(_, device)| device)
    }

    /// The pool of the slice of this name.
    pub fn pool_of(&self, slice: &str) -> Option<&PoolId> {
        self.names.get(slice)
    }

    /// Which nodes the slices of a pool are for.
    pub(crate) fn reaches(&self, pool: &PoolId) -> impl Iterator<Item = &Reach> {
        let slices = self.pools.get(pool).into_iter().flat_map(|p| &p.slices);
        slices.map(|s| &s.reach)
    }

    /// How many slices there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is no slice.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The pools that a node may reach, in the order of their ids.
    pub(crate) fn pools_of(&self, node: &str) -> Vec<(&PoolId, &Arc<PoolSlices>)> {
        let local = self.by_node.get(node).into_iter().flatten();
        let mut ids: Vec<&PoolId> = local.chain(&self.shared).collect();
        if !self.shared.is_empty() {
            ids.sort_unstable();
            ids.dedup();
        }
        let pool = |id| self.pools.get(id).map(|p| (id, p));
        ids.into_iter().filter_map(pool).collect()
    }
}
