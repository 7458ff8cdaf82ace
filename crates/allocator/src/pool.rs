//! Pools as one node sees them.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use davit_api::quantity::Quantity;

use crate::device::{Device, DeviceId, PoolId, Slice};
use crate::features::Features;
use crate::inventory::PoolSlices;
use crate::node::NodeView;
use crate::usage::{DeviceUse, PoolUse};

/// Whether devices can be taken from a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Complete,
    Incomplete { have: usize, want: i64 },
    Invalid(String),
}

/// Counters by set and name.
pub(crate) type Counters = HashMap<String, BTreeMap<String, Quantity>>;

/// A pool as one node sees it.
#[derive(Debug)]
pub(crate) struct PoolView {
    pub(crate) id: PoolId,
    pub(crate) state: State,
    /// The devices the node may reach, in the order in which they are tried.
    pub(crate) devices: Vec<(Arc<Slice>, usize)>,
    /// Slices of the same generation that other nodes reach.
    elsewhere: Vec<Arc<Slice>>,
    counters: Counters,
    used: Option<Arc<PoolUse>>,
    left: OnceLock<Counters>,
    pub(crate) has_conditions: bool,
}

impl PoolView {
    fn without_devices(id: &PoolId, state: State) -> Self {
        Self {
            id: id.clone(),
            state,
            devices: Vec::new(),
            elsewhere: Vec::new(),
            counters: HashMap::new(),
            used: None,
            left: OnceLock::new(),
            has_conditions: false,
        }
    }

    /// The pool as `node` sees it; `None` if it sees nothing of it.
    pub(crate) fn new(
        id: &PoolId,
        pool: &PoolSlices,
        node: NodeView<'_>,
        features: Features,
        used: Option<Arc<PoolUse>>,
    ) -> Option<Self> {
        let mut seen: Vec<&Arc<Slice>> = Vec::new();
        let of_all = pool.is_whole_without_nodes();
        for slice in &pool.slices {
            // What a node's credential adds to a pool that is whole without it would be taken for devices of all.
            if of_all && slice.owner().is_some() {
                continue;
            }
            if is_of_another(slice, node) {
                continue;
            }
            match sees(slice, node, features) {
                Ok(true) => {}
                Ok(false) => continue,
                // Whoever wrote it, the pools of others are not touched.
                Err(why) => return Some(Self::without_devices(id, State::Invalid(why))),
            }
            let newest = seen.first().map_or(slice.generation, |s| s.generation);
            if slice.generation > newest {
                seen.clear();
            }
            if slice.generation >= newest {
                seen.push(slice);
            }
        }
        let first = seen.first().copied()?;
        let whole = |have: usize| i64::try_from(have) == Ok(first.count);
        let mut elsewhere = Vec::new();
        if !whole(seen.len()) && features.partitionable_devices {
            // Counters are needed whichever nodes the devices are on.
            let counters = pool.slices.iter().filter(|s| !s.counters.is_empty());
            let others = counters.filter(|s| is_of_another(s, node));
            seen.extend(others.filter(|s| s.generation == first.generation));
        }
        if !whole(seen.len()) {
            let generation = first.generation;
            if pool.slices.iter().any(|s| s.generation > generation) {
                // The driver is replacing what this node still sees.
                return None;
            }
            let current = pool.slices.iter().filter(|s| s.generation == generation);
            let current: Vec<_> = current.collect();
            if !whole(current.len()) {
                let (have, want) = (current.len(), first.count);
                let state = State::Incomplete { have, want };
                return Some(Self::without_devices(id, state));
            }
            let other = |s: &&Arc<Slice>| !seen.iter().any(|t| t.name == s.name);
            elsewhere = current.into_iter().filter(other).cloned().collect();
        }
        Some(Self::build(id, &seen, elsewhere, features, used))
    }

    fn build(
        id: &PoolId,
        seen: &[&Arc<Slice>],
        elsewhere: Vec<Arc<Slice>>,
        features: Features,
        used: Option<Arc<PoolUse>>,
    ) -> Self {
        let invalid = |why: String| Self::without_devices(id, State::Invalid(why));
        let mut names = HashSet::new();
        let mut devices = Vec::new();
        for slice in seen {
            // Slices with counters have no devices; the API server sees to it.
            if features.partitionable_devices && !slice.counters.is_empty() {
                continue;
            }
            for (i, device) in slice.devices.iter().enumerate() {
                if !names.insert(&*device.name) {
                    return invalid(format!("duplicate device name {}", device.name));
                }
                devices.push((Arc::clone(slice), i));
            }
        }
        let mut counters = Counters::new();
        if features.partitionable_devices {
            for (name, set) in seen.iter().flat_map(|s| &s.counters) {
                if counters.insert(name.clone(), set.clone()).is_some() {
                    return invalid(format!("duplicate counter set name {name}"));
                }
            }
            let all = seen.iter().copied().chain(&elsewhere);
            for consumption in all.flat_map(|s| &s.devices).flat_map(|d| &d.consumes) {
                let Some(set) = counters.get(&consumption.set) else {
                    return invalid(format!("counter set {} not found", consumption.set));
                };
                let unknown = consumption.counters.keys().find(|c| !set.contains_key(*c));
                if let Some(counter) = unknown {
                    let set = &consumption.set;
                    return invalid(format!("counter {counter} not found in counter set {set}"));
                }
            }
        }
        let conditions =
            |(slice, i): &(Arc<Slice>, usize)| !slice.devices[*i].binding_conditions.is_empty();
        Self {
            has_conditions: devices.iter().any(conditions),
            id: id.clone(),
            state: State::Complete,
            devices,
            elsewhere,
            counters,
            used,
            left: OnceLock::new(),
        }
    }

    pub(crate) fn device(&self, at: usize) -> (&Slice, &Device) {
        let (slice, i) = &self.devices[at];
        (slice, &slice.devices[*i])
    }

    pub(crate) fn device_id(&self, at: usize) -> DeviceId {
        DeviceId {
            pool: self.id.clone(),
            device: self.device(at).1.name.clone(),
        }
    }

    /// What others hold of a device of the slice.
    pub(crate) fn used(&self, slice: &Slice, device: &str) -> Option<Cow<'_, DeviceUse>> {
        self.used.as_ref()?.of(slice.owner(), device)
    }

    /// What allocated devices, on whatever node, have left of the counters. Below zero when more
    /// was given away than there is.
    pub(crate) fn left(&self) -> &Counters {
        self.left.get_or_init(|| {
            let mut left = self.counters.clone();
            let here = self.devices.iter().map(|(s, i)| (s, &s.devices[*i]));
            let there = self.elsewhere.iter();
            let there = there.flat_map(|s| s.devices.iter().map(move |d| (s, d)));
            for (slice, device) in here.chain(there) {
                let used = self.used(slice, &device.name);
                let held = used.is_some_and(|used| used.is_allocated());
                if device.consumes.is_empty() || !held {
                    continue;
                }
                for consumption in &device.consumes {
                    let Some(set) = left.get_mut(&consumption.set) else {
                        continue;
                    };
                    for (name, amount) in &consumption.counters {
                        if let Some(value) = set.get_mut(name) {
                            *value = value.checked_sub(*amount).unwrap_or(Quantity::ZERO);
                        }
                    }
                }
            }
            left
        })
    }
}

/// Whether a slice is of another node. What its credential writes into a pool that is whole without it counts for nothing
/// here: it may name any pool, and any generation of it.
fn is_of_another(slice: &Slice, node: NodeView<'_>) -> bool {
    slice.owner().is_some_and(|owner| owner != node.name)
}

/// Whether a slice concerns a node; where its selector says nothing that can be understood, why.
fn sees(slice: &Slice, node: NodeView<'_>, features: Features) -> Result<bool, String> {
    let counters = !slice.counters.is_empty();
    if !features.partitionable_devices && (slice.per_device_set || counters) {
        return Ok(false);
    }
    if counters {
        // Needed whichever nodes the devices are on.
        return Ok(true);
    }
    let fault = |error: &crate::node::NodeSelectorError| {
        format!(
            "failed to perform node selection for slice {}: {error}",
            slice.name
        )
    };
    if slice.per_device {
        for device in &slice.devices {
            if device.reach.matches(node).map_err(fault)? {
                return Ok(true);
            }
        }
        return Ok(false);
    }
    slice.reach.matches(node).map_err(fault)
}
