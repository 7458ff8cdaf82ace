//! Choosing the device IDs for one container and one resource.

use std::collections::BTreeMap;

use super::{DeviceMap, DeviceSet};
use crate::numa::NumaMask;

/// Why devices cannot be chosen. The texts are part of the pod's rejection message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// Fewer devices are free than are still needed.
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}"
    )]
    Unavailable {
        /// The resource name.
        resource: String,
        /// Devices still needed after those that could be reused.
        requested: usize,
        /// Devices that are healthy and free.
        available: usize,
    },
    /// The sets did not hold what they promised.
    #[error(
        "unexpectedly allocated less resources than required. Requested: {requested}, Got: {got}"
    )]
    TooFew {
        /// The full request.
        requested: usize,
        /// Devices chosen.
        got: usize,
    },
}

/// What a choice starts from: one consistent view of the resource.
#[derive(Debug, Clone)]
pub struct ChoiceInput {
    /// The resource name, for error texts.
    pub resource: String,
    /// How many devices the container asks for. Devices the container already holds are not the
    /// choice's business: a container that holds what it asks for needs none.
    pub request: usize,
    /// Healthy devices nobody holds, with their NUMA nodes.
    pub available: DeviceMap,
    /// Devices of ordinary init containers of the same pod that may be taken over
    /// ([`ReuseTable`](super::ReuseTable)); the caller leaves out unhealthy ones.
    pub reusable: DeviceSet,
    /// The mask of the hint the topology manager stored for the container, if there is one.
    pub affinity: Option<NumaMask>,
    /// Whether any device of the resource (available or not) has topology.
    pub has_topology: bool,
}

/// What the plugin is to be asked by GetPreferredAllocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// `available_deviceIDs`: devices to choose from, those of `must_include` among them.
    pub available: DeviceSet,
    /// `must_include_deviceIDs`: devices that are already taken for the container.
    pub must_include: DeviceSet,
    /// `allocation_size`: the full request.
    pub size: usize,
}

/// The state of a choice.
#[derive(Debug)]
pub enum Step {
    /// The plugin may have a preference. Call GetPreferredAllocation if it offers that, and go on
    /// with [`Choice::resume`]; without such a call resume with an empty answer.
    AskPreferred(Ask, Choice),
    /// The devices for the container.
    Done(DeviceSet),
    /// There is no choice.
    Failed(ChoiceError),
}

/// Free devices by how well they fit the stored hint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Split {
    /// On a node of the hint.
    pub aligned: DeviceSet,
    /// Only on other nodes.
    pub unaligned: DeviceSet,
    /// Without topology, or everything where there is no hint.
    pub no_affinity: DeviceSet,
}

/// Splits free devices by the hint's mask: a device belongs to the hint if any of its nodes does.
pub fn split_by_affinity(
    available: &DeviceMap,
    affinity: Option<NumaMask>,
    has_topology: bool,
) -> Split {
    let mut split = Split::default();
    for (id, &nodes) in available {
        let part = match affinity {
            Some(mask) if has_topology && nodes.intersects(mask) => &mut split.aligned,
            Some(_) if has_topology && !nodes.is_empty() => &mut split.unaligned,
            _ => &mut split.no_affinity,
        };
        part.insert(id.clone());
    }
    split
}

/// A choice that waits for the plugin's preference. It holds no lock and marks nothing: the caller
/// checks, when it books the result, that the devices are still free, and starts again if not.
#[derive(Debug)]
pub struct Choice {
    request: usize,
    taken: DeviceSet,
    /// What the plugin's answer is cut to.
    offered: DeviceSet,
    /// Where the rest comes from, in this order.
    fallback: Vec<DeviceSet>,
}

impl Choice {
    /// Starts the choice. Reusable devices come first, then devices on the hint's nodes, then what
    /// the plugin prefers among the rest, then other nodes, then devices without topology.
    pub fn start(input: ChoiceInput) -> Step {
        let ChoiceInput {
            resource,
            request,
            mut available,
            reusable,
            affinity,
            has_topology,
        } = input;
        let mut choice = Self {
            request,
            taken: DeviceSet::new(),
            offered: DeviceSet::new(),
            fallback: Vec::new(),
        };
        if request == 0 || choice.take(&reusable) {
            return Step::Done(choice.taken);
        }
        available.retain(|id, _| !choice.taken.contains(id));
        let need = choice.need();
        if available.len() < need {
            let available = available.len();
            return Step::Failed(ChoiceError::Unavailable {
                resource,
                requested: need,
                available,
            });
        }
        let split = split_by_affinity(&available, affinity, has_topology);
        if need < split.aligned.len() {
            choice.offered = split.aligned.clone();
            choice.fallback = vec![split.aligned];
        } else {
            if choice.take(&split.aligned) {
                return Step::Done(choice.taken);
            }
            choice.offered = available.into_keys().collect();
            choice.fallback = vec![split.unaligned, split.no_affinity];
        }
        let ask = Ask {
            available: choice.offered.union(&choice.taken).cloned().collect(),
            must_include: choice.taken.clone(),
            size: request,
        };
        Step::AskPreferred(ask, choice)
    }

    /// Goes on with the plugin's answer: IDs that were not offered are left out, a long answer is
    /// cut, a short one filled up. Never asks again.
    pub fn resume(mut self, preferred: &DeviceSet) -> Step {
        let offered = std::mem::take(&mut self.offered);
        let wanted: DeviceSet = preferred.intersection(&offered).cloned().collect();
        let fallback = std::mem::take(&mut self.fallback);
        if std::iter::once(&wanted)
            .chain(&fallback)
            .any(|set| self.take(set))
        {
            return Step::Done(self.taken);
        }
        let got = self.taken.len();
        Step::Failed(ChoiceError::TooFew {
            requested: self.request,
            got,
        })
    }

    fn need(&self) -> usize {
        self.request - self.taken.len()
    }

    /// Takes from `set` what is needed and not yet taken; whether nothing more is needed.
    fn take(&mut self, set: &DeviceSet) -> bool {
        let need = self.need();
        let new: Vec<_> = set.difference(&self.taken).take(need).cloned().collect();
        self.taken.extend(new);
        self.need() == 0
    }
}

/// Groups devices by NUMA node for the checkpoint and podresources: a device appears under each of
/// its nodes, one without topology under -1.
pub fn by_node(devices: &DeviceMap) -> BTreeMap<i64, DeviceSet> {
    let mut nodes: BTreeMap<i64, DeviceSet> = BTreeMap::new();
    for (id, mask) in devices {
        if mask.is_empty() {
            nodes.entry(-1).or_default().insert(id.clone());
        }
        for node in mask.iter() {
            nodes.entry(i64::from(node)).or_default().insert(id.clone());
        }
    }
    nodes
}

#[cfg(test)]
mod tests;
