//! Topology hints for devices of one resource.

use std::collections::BTreeMap;

use super::{DeviceMap, DeviceSet};
use crate::hints::TopologyHint;
use crate::numa::{Machine, NumaMask};

/// Most hints one request yields. Devices on up to 12 NUMA nodes stay below it, so every subset is
/// named as the kubelet does; beyond that the narrowest subsets are named and the full set.
pub const HINT_LIMIT: usize = 4096;

/// Most subsets looked at for one request; bounds the time on machines with dozens of nodes.
const SUBSET_LIMIT: usize = 1 << 17;

/// What hints are computed from.
#[derive(Debug, Clone, Copy)]
pub struct HintInput<'a> {
    /// The machine; its nodes are used when no known node carries a device.
    pub machine: &'a Machine,
    /// Every device of the resource, healthy or not, free or not.
    pub devices: &'a DeviceMap,
    /// Healthy devices nobody holds.
    pub available: &'a DeviceSet,
    /// Devices of the pod's init containers that can be taken over; empty in pod scope.
    pub reusable: &'a DeviceSet,
    /// Devices the container (or pod) holds already, if it holds any.
    pub held: Option<&'a DeviceSet>,
    /// How many devices are asked for.
    pub request: usize,
}

/// The hints for one resource: `None` where the resource has no topology at all, an empty list
/// where the request cannot be met.
pub fn device_hints(input: HintInput<'_>) -> Option<Vec<TopologyHint>> {
    if input.devices.values().all(|m| m.is_empty()) {
        return None;
    }
    let none = DeviceSet::new();
    let (available, reusable) = match input.held {
        Some(held) if held.len() != input.request => return Some(Vec::new()),
        Some(held) => (held, &none),
        None if input.available.union(input.reusable).count() < input.request => {
            return Some(Vec::new());
        }
        None => (input.available, input.reusable),
    };
    let counts = Counts::new(input.devices, available, reusable);
    let carrying = counts.nodes() & input.machine.nodes();
    let nodes = if carrying.is_empty() {
        input.machine.nodes()
    } else {
        carrying
    };
    Some(subset_hints(nodes, &counts.groups, input.request).0)
}

/// Devices (or CPUs) grouped by the nodes they sit on; masks are few however many devices there
/// are.
struct Counts {
    groups: Vec<Group>,
}

/// What sits on the same nodes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Group {
    pub(crate) nodes: NumaMask,
    /// Of any state.
    pub(crate) all: usize,
    /// Free, those that can be reused left out.
    pub(crate) available: usize,
    /// Of init containers of the pod.
    pub(crate) reusable: usize,
}

impl Counts {
    fn new(devices: &DeviceMap, available: &DeviceSet, reusable: &DeviceSet) -> Self {
        let mut groups: BTreeMap<NumaMask, Group> = BTreeMap::new();
        for (id, &nodes) in devices.iter().filter(|(_, nodes)| !nodes.is_empty()) {
            let group = groups.entry(nodes).or_default();
            group.nodes = nodes;
            group.all += 1;
            group.available += usize::from(available.contains(id));
            group.reusable += usize::from(reusable.contains(id));
        }
        Self {
            groups: groups.into_values().collect(),
        }
    }

    /// The nodes that carry a device.
    fn nodes(&self) -> NumaMask {
        self.groups
            .iter()
            .fold(NumaMask::EMPTY, |mask, g| mask | g.nodes)
    }
}

/// Devices of any state on `mask`; and the devices a request could get there, or none if a
/// reusable device lies outside.
fn on(groups: &[Group], mask: NumaMask) -> (usize, Option<usize>) {
    let (mut all, mut usable, mut outside) = (0, 0, false);
    for group in groups {
        if group.nodes.intersects(mask) {
            all += group.all;
            usable += group.available + group.reusable;
        } else {
            outside |= group.reusable > 0;
        }
    }
    (all, (!outside).then_some(usable))
}

/// No subset of fewer nodes can hold `request` devices.
fn least_size(groups: &[Group], nodes: NumaMask, request: usize) -> u32 {
    let on_node = |n| groups.iter().filter(move |g: &&Group| g.nodes.contains(n));
    let mut counts: Vec<usize> = nodes
        .iter()
        .map(|n| on_node(n).map(|g| g.all).sum())
        .collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let mut sum = 0;
    for (size, count) in (1..).zip(counts) {
        sum += count;
        if sum >= request {
            return size;
        }
    }
    nodes.count()
}

/// Hints over the subsets of `nodes`, and the size of the narrowest subset that could hold the
/// request if nothing were taken.
pub(crate) fn subset_hints(
    nodes: NumaMask,
    groups: &[Group],
    request: usize,
) -> (Vec<TopologyHint>, u32) {
    let mut found: Vec<NumaMask> = Vec::new();
    let mut least = nodes.count();
    let mut look = |mask: NumaMask, found: &mut Vec<NumaMask>| {
        let (all, usable) = on(groups, mask);
        if all >= request {
            least = least.min(mask.count());
        }
        if usable.is_some_and(|n| n >= request) {
            found.push(mask);
        }
    };
    // Narrower subsets can neither give a hint nor lower the least size.
    let first = least_size(groups, nodes, request).max(1);
    for_subsets(nodes, first, &mut |mask| {
        look(mask, &mut found);
        found.len()
    });
    let hints = found
        .into_iter()
        .map(|m| TopologyHint::new(m, m.count() == least))
        .collect();
    (hints, least)
}

/// Visits the subsets of `nodes` from `first` members on, by size, then order. On machines with
/// too many of them it stops once enough were looked at or found (`visit` returns how many were)
/// and visits the full set.
pub(crate) fn for_subsets(nodes: NumaMask, first: u32, visit: &mut dyn FnMut(NumaMask) -> usize) {
    let mut looked = 0;
    let small = nodes.count() < usize::BITS && (1usize << nodes.count()) <= HINT_LIMIT;
    for size in first..=nodes.count() {
        for mask in subsets(nodes, size) {
            let found = visit(mask);
            looked += 1;
            if !small && (found + 1 >= HINT_LIMIT || looked >= SUBSET_LIMIT) {
                if mask != nodes {
                    visit(nodes);
                }
                return;
            }
        }
    }
}

/// The subsets of `nodes` with `size` members, in lexical order of their members.
fn subsets(nodes: NumaMask, size: u32) -> impl Iterator<Item = NumaMask> {
    let members: Vec<u64> = nodes.iter().map(|n| 1 << n).collect();
    let size = size as usize;
    let mut at: Option<Vec<usize>> = (size <= members.len()).then(|| (0..size).collect());
    std::iter::from_fn(move || {
        let current = at.as_mut()?;
        let mask = NumaMask::from_bits(current.iter().map(|&i| members[i]).sum());
        let movable = (0..size)
            .rev()
            .find(|&i| current[i] < members.len() - size + i);
        match movable {
            None => at = None,
            Some(i) => {
                let next = current[i] + 1;
                for (place, member) in current[i..].iter_mut().zip(next..) {
                    *place = member;
                }
            }
        }
        Some(mask)
    })
}

#[cfg(test)]
mod tests;
