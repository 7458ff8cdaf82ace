//! Memory and huge pages for exclusive use on NUMA nodes: the static policy of the memory manager
//! (KEP-1769).
//!
//! Nodes are used either alone or in a group: a group of several nodes is shared only by
//! containers with exactly that mask, so that the memory of a group stays one pool.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::devices::for_subsets;
use crate::hardware::Hardware;
use crate::hints::TopologyHint;
use crate::numa::NumaMask;

/// Resource name of ordinary memory; huge pages are `hugepages-<size>`.
pub const MEMORY: &str = "memory";

/// Bytes by memory type (`memory`, `hugepages-2Mi`).
pub type MemoryAmounts = BTreeMap<String, u64>;

/// Bytes of one memory type on one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryTable {
    /// What the node has.
    pub total: u64,
    /// What the system keeps.
    pub system_reserved: u64,
    /// What can be given out.
    pub allocatable: u64,
    /// What is given out.
    pub reserved: u64,
    /// What is left.
    pub free: u64,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMemory {
    /// Blocks that touch the node.
    pub assignments: usize,
    /// By memory type.
    pub memory: BTreeMap<String, MemoryTable>,
    /// The group the node is used in; itself alone when it is not.
    pub cells: NumaMask,
}

/// Memory of one type in the hands of one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryBlock {
    /// The nodes it comes from.
    pub nodes: NumaMask,
    /// Memory type.
    pub kind: String,
    /// Bytes.
    pub size: u64,
}

/// Memory of a pod's ordinary init containers that later containers can have, by mask and type.
pub type MemoryReuse = BTreeMap<(NumaMask, String), u64>;

/// Why a container does not get its memory. The texts are part of pod status messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Only a placement that is not preferred is left where a preferred one was promised.
    #[error("[memorymanager] failed to find the default preferred hint")]
    DefaultHint,
    /// The same for an extended placement.
    #[error("[memorymanager] failed to find the extended preferred hint")]
    ExtendedHint,
    /// The merged hint is too narrow and nothing contains it.
    #[error("[memorymanager] failed to find NUMA nodes to extend the current topology hint")]
    Extension,
    /// A node would be used alone and in a group, or in two groups.
    #[error("[memorymanager] preferred hint violates NUMA node allocation")]
    Violation,
    /// No nodes have enough.
    #[error(
        "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
    )]
    NotEnough,
}

/// Memory of all nodes: what there is and what is given out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MemoryState {
    nodes: BTreeMap<u32, NodeMemory>,
}

impl MemoryState {
    /// A machine of which nothing is given out. `reserved` is what the system keeps, by node.
    pub fn new(hardware: &Hardware, reserved: &BTreeMap<u32, MemoryAmounts>) -> Self {
        let mut nodes = BTreeMap::new();
        for node in &hardware.numa_nodes {
            let kept = |kind: &str| {
                let of_node = reserved.get(&node.id);
                of_node.and_then(|r| r.get(kind)).copied().unwrap_or(0)
            };
            let table = |kind: &str, total: u64, taken: u64| {
                let system_reserved = kept(kind);
                let allocatable = total.saturating_sub(taken).saturating_sub(system_reserved);
                MemoryTable {
                    total,
                    system_reserved,
                    allocatable,
                    reserved: 0,
                    free: allocatable,
                }
            };
            let mut memory = BTreeMap::new();
            let mut huge = 0;
            for pages in &node.hugepages {
                let kind = format!("hugepages-{}", pages.size);
                let total = pages.size.0 * pages.count;
                huge += total;
                memory.insert(kind.clone(), table(&kind, total, 0));
            }
            memory.insert(MEMORY.to_owned(), table(MEMORY, node.memory.0, huge));
            let cells = NumaMask::single(node.id).unwrap_or(NumaMask::EMPTY);
            nodes.insert(
                node.id,
                NodeMemory {
                    assignments: 0,
                    memory,
                    cells,
                },
            );
        }
        Self { nodes }
    }

    /// The nodes by number.
    pub fn nodes(&self) -> &BTreeMap<u32, NodeMemory> {
        &self.nodes
    }

    fn mask(&self) -> NumaMask {
        NumaMask::from_nodes(self.nodes.keys().copied()).unwrap_or(NumaMask::EMPTY)
    }

    fn sum(&self, mask: NumaMask, kind: &str, of: fn(&MemoryTable) -> u64) -> u64 {
        let tables = mask
            .iter()
            .filter_map(|n| self.nodes.get(&n)?.memory.get(kind));
        tables.map(of).sum()
    }

    /// Books a block: its nodes in ascending order, each filled before the next. What does not
    /// fit is not booked.
    pub fn book(&mut self, block: &MemoryBlock) {
        let mut rest = block.size;
        for id in block.nodes.iter() {
            let Some(node) = self.nodes.get_mut(&id) else {
                continue;
            };
            node.assignments += 1;
            node.cells = block.nodes;
            if let Some(table) = node.memory.get_mut(&block.kind) {
                let part = rest.min(table.free);
                table.reserved += part;
                table.free -= part;
                rest -= part;
            }
        }
    }

    /// Hints for a request, one list for all types; empty when nothing fits.
    pub fn hints(&self, request: &MemoryAmounts, reuse: &MemoryReuse) -> Vec<TopologyHint> {
        let all = self.mask();
        let mut least = all.count();
        let mut found = Vec::new();
        for_subsets(all, self.least_size(request), &mut |mask| {
            if self.could_hold(mask, request) {
                least = least.min(mask.count());
                if !self.violates(mask) && self.holds(mask, request, reuse) {
                    found.push(mask);
                }
            }
            found.len()
        });
        found
            .into_iter()
            .map(|m| TopologyHint::new(m, m.count() == least))
            .collect()
    }

    /// No set of fewer nodes can hold the request.
    fn least_size(&self, request: &MemoryAmounts) -> u32 {
        let of_kind = |(kind, size): (&String, &u64)| {
            let mut each: Vec<u64> = self
                .nodes
                .values()
                .filter_map(|n| Some(n.memory.get(kind)?.allocatable))
                .collect();
            each.sort_unstable_by(|a, b| b.cmp(a));
            let mut sum = 0;
            let enough = each.into_iter().zip(1..).find(|(bytes, _)| {
                sum += bytes;
                sum >= *size
            });
            enough.map_or(self.mask().count(), |(_, n)| n)
        };
        request.iter().map(of_kind).max().unwrap_or(1).max(1)
    }

    fn could_hold(&self, mask: NumaMask, request: &MemoryAmounts) -> bool {
        request
            .iter()
            .all(|(kind, size)| self.sum(mask, kind, |t| t.allocatable) >= *size)
    }

    fn holds(&self, mask: NumaMask, request: &MemoryAmounts, reuse: &MemoryReuse) -> bool {
        request.iter().all(|(kind, size)| {
            let reusable = reuse.get(&(mask, kind.clone())).copied().unwrap_or(0);
            self.sum(mask, kind, |t| t.free) + reusable >= *size
        })
    }

    /// Whether using these nodes together would mix single use and groups.
    fn violates(&self, mask: NumaMask) -> bool {
        let mut nodes = mask.iter().filter_map(|n| self.nodes.get(&n));
        nodes.any(|n| n.assignments > 0 && n.cells != mask)
    }

    /// Chooses the nodes for a container's request. `hint` is the merged hint stored for it.
    ///
    /// # Errors
    /// See [`MemoryError`].
    pub fn choose(
        &self,
        request: &MemoryAmounts,
        reuse: &MemoryReuse,
        hint: TopologyHint,
    ) -> Result<Vec<MemoryBlock>, MemoryError> {
        let (mut mask, preferred) = match hint.mask {
            Some(mask) => (mask, hint.preferred),
            None => {
                let best = best(self.hints(request, reuse)).ok_or(MemoryError::NotEnough)?;
                if !best.preferred && hint.preferred {
                    return Err(MemoryError::DefaultHint);
                }
                (best.mask.unwrap_or(NumaMask::EMPTY), best.preferred)
            }
        };
        if !self.holds(mask, request, &MemoryReuse::new()) {
            let wider = self.hints(request, reuse).into_iter();
            let wider = wider.filter(|h| h.mask.is_some_and(|m| mask.is_subset(m)));
            let best = best(wider.collect()).ok_or(MemoryError::Extension)?;
            if !best.preferred && preferred {
                return Err(MemoryError::ExtendedHint);
            }
            mask = best.mask.unwrap_or(mask);
        }
        if self.violates(mask) {
            return Err(MemoryError::Violation);
        }
        let block = |(kind, size): (&String, &u64)| MemoryBlock {
            nodes: mask,
            kind: kind.clone(),
            size: *size,
        };
        Ok(request.iter().map(block).collect())
    }
}

/// The preferred hint of fewest nodes, else the narrowest; ties by the mask's value.
fn best(hints: Vec<TopologyHint>) -> Option<TopologyHint> {
    hints.into_iter().min_by_key(|h| {
        let mask = h.mask.unwrap_or(NumaMask::EMPTY);
        (!h.preferred, mask.count(), mask.bits())
    })
}

/// Adds the blocks of an ordinary init container to what later containers of the pod can have.
pub fn offer(reuse: &mut MemoryReuse, blocks: &[MemoryBlock]) {
    for block in blocks {
        *reuse.entry((block.nodes, block.kind.clone())).or_default() += block.size;
    }
}

/// Takes what a container's blocks reuse out of `reuse` and out of the init containers' blocks,
/// so that the blocks of a pod add up to what is booked for it.
pub fn take_over(
    reuse: &mut MemoryReuse,
    inits: &mut [(String, Vec<MemoryBlock>)],
    blocks: &[MemoryBlock],
) {
    for block in blocks {
        let Some(left) = reuse.get_mut(&(block.nodes, block.kind.clone())) else {
            continue;
        };
        let mut taken = block.size.min(*left);
        *left -= taken;
        let same = inits
            .iter_mut()
            .flat_map(|(_, blocks)| blocks)
            .filter(|b| b.nodes == block.nodes && b.kind == block.kind);
        for init in same {
            let part = taken.min(init.size);
            init.size -= part;
            taken -= part;
        }
    }
}

#[cfg(test)]
mod tests;
