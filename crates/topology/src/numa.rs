//! Masks of NUMA nodes and the machine's distances.

use std::fmt;
use std::ops::{BitAnd, BitOr};

use serde::{Deserialize, Serialize};

/// A set of NUMA nodes, numbers 0 to 63.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NumaMask(u64);

/// Largest number of NUMA nodes a machine can have, as in the kubelet.
pub const MAX_NODES: u32 = 64;

/// A node number above 63.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("numa node {0} is out of range 0 to 63")]
pub struct NodeOutOfRange(pub u32);

impl NumaMask {
    /// No node.
    pub const EMPTY: Self = Self(0);

    /// The mask with these raw bits; bit `n` stands for node `n`.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The raw bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The mask of one node.
    ///
    /// # Errors
    /// When `node` is above 63.
    pub fn single(node: u32) -> Result<Self, NodeOutOfRange> {
        if node < MAX_NODES {
            Ok(Self(1 << node))
        } else {
            Err(NodeOutOfRange(node))
        }
    }

    /// The mask of several nodes.
    ///
    /// # Errors
    /// When a node is above 63.
    pub fn from_nodes(nodes: impl IntoIterator<Item = u32>) -> Result<Self, NodeOutOfRange> {
        nodes
            .into_iter()
            .try_fold(Self::EMPTY, |mask, n| Ok(mask | Self::single(n)?))
    }

    /// Number of nodes.
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether no node is set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether `node` is set.
    pub const fn contains(self, node: u32) -> bool {
        node < MAX_NODES && self.0 & (1 << node) != 0
    }

    /// Whether a node is set in both masks.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether every node of this mask is in `other`.
    pub const fn is_subset(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// The nodes in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let node = rest.trailing_zeros();
            rest &= rest - 1;
            Some(node)
        })
    }

    /// The `n` lowest nodes of this mask: the smallest mask value of `n` nodes inside it.
    pub(crate) fn lowest(self, n: u32) -> Self {
        let mut rest = self.0;
        for _ in 0..n.min(self.count()) {
            rest &= rest - 1;
        }
        Self(self.0 & !rest)
    }
}

impl BitAnd for NumaMask {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for NumaMask {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for NumaMask {
    /// Prints the node numbers, for example `{0,2}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (i, node) in self.iter().enumerate() {
            write!(f, "{}{node}", if i == 0 { "" } else { "," })?;
        }
        f.write_str("}")
    }
}

impl fmt::Debug for NumaMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NumaMask{self}")
    }
}

/// The NUMA nodes of one machine and their distances (the kernel's units, 10 = local).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    nodes: NumaMask,
    /// Row and column by node number, 64 a row only as far as the highest node goes.
    distances: Vec<Vec<u32>>,
}

impl Machine {
    /// A machine whose nodes are all equally far from each other (local 10, remote 20).
    pub fn uniform(nodes: NumaMask) -> Self {
        let size = (MAX_NODES - nodes.bits().leading_zeros()) as usize;
        let row = |i: usize| (0..size).map(|j| if i == j { 10 } else { 20 }).collect();
        Self {
            nodes,
            distances: (0..size).map(row).collect(),
        }
    }

    /// A machine with the distances of `/sys/devices/system/node/node<N>/distance`: `rows` holds
    /// one entry per node, its distances in ascending order of the nodes. Values that are missing
    /// count as 255 (unreachable, as in ACPI's SLIT).
    pub fn with_distances(nodes: NumaMask, rows: &[Vec<u32>]) -> Self {
        let mut machine = Self::uniform(nodes);
        for (i, a) in nodes.iter().enumerate() {
            for (j, b) in nodes.iter().enumerate() {
                let distance = rows.get(i).and_then(|r| r.get(j)).copied().unwrap_or(255);
                machine.distances[a as usize][b as usize] = distance;
            }
        }
        machine
    }

    /// All nodes of the machine.
    pub fn nodes(&self) -> NumaMask {
        self.nodes
    }

    /// The distances, a row a node, both in ascending order of the nodes.
    pub fn distances(&self) -> Vec<Vec<u32>> {
        let row = |a: u32| {
            let of = self.distances.get(a as usize);
            let each = self
                .nodes
                .iter()
                .filter_map(|b| of?.get(b as usize).copied());
            each.collect()
        };
        self.nodes.iter().map(row).collect()
    }

    /// Sum of the distances over all ordered pairs of nodes of `mask`, each node with itself
    /// included. Among masks of equal size this orders like the average.
    pub fn distance_sum(&self, mask: NumaMask) -> u64 {
        let inside = mask & self.nodes;
        inside
            .iter()
            .flat_map(|a| inside.iter().map(move |b| (a, b)))
            .map(|(a, b)| u64::from(self.distances[a as usize][b as usize]))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_hold_nodes_0_to_63() {
        let mask = NumaMask::from_nodes([0, 35, 63]).unwrap();
        assert_eq!(mask.to_string(), "{0,35,63}");
        assert_eq!(mask.count(), 3);
        assert!(mask.contains(63) && !mask.contains(64));
        assert_eq!(NumaMask::single(64), Err(NodeOutOfRange(64)));
        assert_eq!(mask.lowest(2).to_string(), "{0,35}");
        assert_eq!(mask.lowest(9), mask);
    }

    #[test]
    fn distances_are_taken_by_node_number() {
        let nodes = NumaMask::from_nodes([0, 4]).unwrap();
        let machine = Machine::with_distances(nodes, &[vec![10, 31], vec![32, 10]]);
        assert_eq!(machine.distance_sum(nodes), 10 + 31 + 32 + 10);
        assert_eq!(machine.distance_sum(NumaMask::from_bits(1 << 4)), 10);
        assert_eq!(
            Machine::uniform(NumaMask::EMPTY).distance_sum(NumaMask::EMPTY),
            0
        );
    }
}
