//! What a machine is made of: NUMA nodes with memory, and CPUs in cores, caches and sockets.
//!
//! The same description is read from sysfs by the node agent and from a file by whoever wants to
//! try another machine than the one at hand.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cpuset::CpuSet;
use crate::numa::{MAX_NODES, Machine, NumaMask};

/// A number of bytes; reads integers and texts such as `32Gi`, prints the shortest text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u32); 4] = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];

impl Bytes {
    /// Reads `32Gi`, `512Mi`, `4Ki` or plain bytes.
    pub fn parse(text: &str) -> Option<Self> {
        let (number, shift) = UNITS
            .iter()
            .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)))
            .unwrap_or((text, 0));
        let number: u64 = number.parse().ok()?;
        number.checked_mul(1 << shift).map(Self)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS
            .iter()
            .find(|(_, shift)| self.0 != 0 && self.0.trailing_zeros() >= *shift);
        match unit {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(u64),
            Text(String),
        }
        match Form::deserialize(d)? {
            Form::Number(n) => Ok(Self(n)),
            Form::Text(text) => Self::parse(&text).ok_or_else(|| {
                serde::de::Error::custom(format!("{text:?} is not a number of bytes"))
            }),
        }
    }
}

/// Huge pages of one size on one NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hugepages {
    /// Size of one page.
    pub size: Bytes,
    /// Number of pages.
    pub count: u64,
}

/// One NUMA node. It may have no memory (a socket whose slots are empty) or no CPU (memory of a
/// GPU, an expander).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HardwareNode {
    /// Number of the node, 0 to 63.
    pub id: u32,
    /// Its memory, huge pages included.
    #[serde(default)]
    pub memory: Bytes,
    /// Huge pages by size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hugepages: Vec<Hugepages>,
    /// Distances to all nodes in ascending order of their numbers; without them the machine is
    /// uniform.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<u32>,
}

/// CPUs that share everything this says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CpuGroup {
    /// Logical CPUs in list format. With `threads` = 2 the first half and the second half of the
    /// sorted list are siblings one by one, as Linux numbers them.
    pub cpus: CpuSet,
    /// NUMA node.
    pub node: u32,
    /// Socket.
    #[serde(default)]
    pub socket: u32,
    /// Last-level ("uncore") cache; without it one a NUMA node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<u32>,
    /// Hardware threads a core.
    #[serde(default = "one")]
    pub threads: u32,
}

fn one() -> u32 {
    1
}

/// A machine's NUMA nodes and CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hardware {
    /// NUMA nodes.
    pub numa_nodes: Vec<HardwareNode>,
    /// CPUs.
    pub cpus: Vec<CpuGroup>,
}

/// Why a description is no machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HardwareError {
    /// A NUMA node has a number above 63.
    #[error("numa node {0} is out of range 0 to 63")]
    NodeRange(u32),
    /// A NUMA node is described twice.
    #[error("numa node {0} is described twice")]
    NodeTwice(u32),
    /// No NUMA node at all.
    #[error("the machine has no numa node")]
    NoNode,
    /// Distances are not one for each node.
    #[error("numa node {node} has {given} distances, there are {nodes} nodes")]
    Distances {
        /// The node.
        node: u32,
        /// How many it has.
        given: usize,
        /// How many nodes there are.
        nodes: usize,
    },
    /// CPUs on a node that is not described.
    #[error("cpus {cpus} are on numa node {node}, which is not described")]
    UnknownNode {
        /// The CPUs.
        cpus: CpuSet,
        /// The node.
        node: u32,
    },
    /// A CPU appears twice.
    #[error("cpu {0} is described twice")]
    CpuTwice(u32),
    /// CPUs do not divide into cores.
    #[error("{count} cpus ({cpus}) do not divide into cores of {threads} threads")]
    Threads {
        /// The CPUs.
        cpus: CpuSet,
        /// How many they are.
        count: usize,
        /// Threads a core.
        threads: u32,
    },
    /// No CPU at all.
    #[error("the machine has no cpu")]
    NoCpu,
    /// Huge pages take more than the node's memory.
    #[error("huge pages of numa node {0} exceed its memory")]
    Hugepages(u32),
}

impl Hardware {
    /// A machine of equal sockets: `nodes` NUMA nodes a socket, `cores` cores a node, `threads`
    /// threads a core, `memory` bytes a node. CPUs are numbered as Linux does on x86: first
    /// threads of all cores, then second threads.
    pub fn grid(sockets: u32, nodes: u32, cores: u32, threads: u32, memory: u64) -> Self {
        let all = sockets * nodes * cores;
        let mut hardware = Self::default();
        for id in 0..sockets * nodes {
            hardware.numa_nodes.push(HardwareNode {
                id,
                memory: Bytes(memory),
                ..HardwareNode::default()
            });
            let first = id * cores;
            let cpus = (0..threads).flat_map(|t| (first..first + cores).map(move |c| c + t * all));
            hardware.cpus.push(CpuGroup {
                cpus: cpus.collect(),
                node: id,
                socket: id / nodes,
                cache: None,
                threads,
            });
        }
        hardware
    }

    /// Checks the description.
    ///
    /// # Errors
    /// The first thing that cannot be.
    pub fn validate(&self) -> Result<(), HardwareError> {
        let mut nodes = BTreeSet::new();
        for node in &self.numa_nodes {
            if node.id >= MAX_NODES {
                return Err(HardwareError::NodeRange(node.id));
            }
            if !nodes.insert(node.id) {
                return Err(HardwareError::NodeTwice(node.id));
            }
            if !node.distances.is_empty() && node.distances.len() != self.numa_nodes.len() {
                return Err(HardwareError::Distances {
                    node: node.id,
                    given: node.distances.len(),
                    nodes: self.numa_nodes.len(),
                });
            }
            let huge = node.hugepages.iter().try_fold(0u64, |sum, h| {
                sum.checked_add(h.size.0.checked_mul(h.count)?)
            });
            if huge.is_none_or(|huge| huge > node.memory.0) {
                return Err(HardwareError::Hugepages(node.id));
            }
        }
        if nodes.is_empty() {
            return Err(HardwareError::NoNode);
        }
        let mut seen = CpuSet::new();
        for group in &self.cpus {
            if !nodes.contains(&group.node) {
                return Err(HardwareError::UnknownNode {
                    cpus: group.cpus.clone(),
                    node: group.node,
                });
            }
            let count = group.cpus.len();
            if group.threads == 0 || !count.is_multiple_of(group.threads as usize) {
                return Err(HardwareError::Threads {
                    cpus: group.cpus.clone(),
                    count,
                    threads: group.threads,
                });
            }
            if let Some(cpu) = group.cpus.iter().find(|c| !seen.insert(*c)) {
                return Err(HardwareError::CpuTwice(cpu));
            }
        }
        if seen.is_empty() {
            return Err(HardwareError::NoCpu);
        }
        Ok(())
    }

    /// The NUMA nodes as hint merging needs them. Nodes above 63 are left out.
    pub fn machine(&self) -> Machine {
        let mut nodes: Vec<&HardwareNode> = self.numa_nodes.iter().collect();
        nodes.sort_by_key(|n| n.id);
        let mask = NumaMask::from_nodes(nodes.iter().map(|n| n.id).filter(|id| *id < MAX_NODES))
            .unwrap_or(NumaMask::EMPTY);
        if nodes.iter().any(|n| n.distances.is_empty()) {
            return Machine::uniform(mask);
        }
        let rows: Vec<Vec<u32>> = nodes.iter().map(|n| n.distances.clone()).collect();
        Machine::with_distances(mask, &rows)
    }

    /// All logical CPUs.
    pub fn all_cpus(&self) -> CpuSet {
        self.cpus
            .iter()
            .fold(CpuSet::new(), |all, g| all.union(&g.cpus))
    }

    /// Memory of all nodes in bytes, huge pages included.
    pub fn memory(&self) -> u64 {
        self.numa_nodes.iter().map(|n| n.memory.0).sum()
    }

    /// Huge pages of the whole machine: bytes by page size.
    pub fn hugepages(&self) -> BTreeMap<u64, u64> {
        let mut sizes = BTreeMap::new();
        for pages in self.numa_nodes.iter().flat_map(|n| &n.hugepages) {
            *sizes.entry(pages.size.0).or_default() += pages.size.0 * pages.count;
        }
        sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_texts_round_trip() {
        for (text, bytes) in [
            ("0", 0),
            ("5", 5),
            ("4Ki", 4096),
            ("1536Mi", 1536 << 20),
            ("1Ti", 1 << 40),
        ] {
            assert_eq!(Bytes::parse(text), Some(Bytes(bytes)));
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(Bytes::parse("1 Gi"), None);
        assert_eq!(Bytes::parse("99999999Ti"), None);
    }

    #[test]
    fn grids_are_machines() {
        let two = Hardware::grid(2, 1, 4, 2, 1 << 30);
        two.validate().unwrap();
        assert_eq!(two.all_cpus().to_string(), "0-15");
        assert_eq!(two.cpus[1].cpus.to_string(), "4-7,12-15");
        assert_eq!(two.machine().nodes().count(), 2);
        let json = serde_json::to_string(&two).unwrap();
        assert_eq!(serde_json::from_str::<Hardware>(&json).unwrap(), two);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = Hardware::grid(1, 2, 2, 2, 1 << 30);
        let broken = |edit: fn(&mut Hardware)| {
            let mut h = good.clone();
            edit(&mut h);
            h.validate().unwrap_err()
        };
        assert_eq!(
            broken(|h| h.numa_nodes[1].id = 0),
            HardwareError::NodeTwice(0)
        );
        assert_eq!(
            broken(|h| h.numa_nodes[1].id = 64),
            HardwareError::NodeRange(64)
        );
        assert!(matches!(
            broken(|h| h.cpus[0].node = 9),
            HardwareError::UnknownNode { node: 9, .. }
        ));
        assert!(matches!(
            broken(|h| h.cpus[0].threads = 3),
            HardwareError::Threads { threads: 3, .. }
        ));
        assert!(matches!(
            broken(|h| h.cpus[1].cpus = h.cpus[0].cpus.clone()),
            HardwareError::CpuTwice(0)
        ));
        assert!(matches!(
            broken(|h| h.numa_nodes[0].distances = vec![10]),
            HardwareError::Distances { given: 1, .. }
        ));
        assert_eq!(broken(|h| h.cpus.clear()), HardwareError::NoCpu);
        let huge = |h: &mut Hardware| {
            h.numa_nodes[0].hugepages = vec![Hugepages {
                size: Bytes(1 << 30),
                count: 2,
            }];
        };
        assert_eq!(broken(huge), HardwareError::Hugepages(0));
    }
}
