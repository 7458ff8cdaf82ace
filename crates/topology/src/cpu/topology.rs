//! Where each CPU sits.

use std::collections::BTreeMap;

use crate::cpuset::CpuSet;
use crate::hardware::Hardware;
use crate::numa::{MAX_NODES, NumaMask};

/// The place of one logical CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuPlace {
    /// Its core, named by the core's lowest CPU; unique on the machine.
    pub core: u32,
    /// Its last-level cache.
    pub cache: u32,
    /// Its NUMA node.
    pub node: u32,
    /// Its socket.
    pub socket: u32,
}

/// A kind of unit CPUs come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Core,
    Cache,
    Node,
    Socket,
}

/// All CPUs of a machine with their places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuTopology {
    cpus: BTreeMap<u32, CpuPlace>,
    all: CpuSet,
    cores: BTreeMap<u32, CpuSet>,
    caches: BTreeMap<u32, CpuSet>,
    nodes: BTreeMap<u32, CpuSet>,
    sockets: BTreeMap<u32, CpuSet>,
}

impl CpuTopology {
    /// The CPUs of a machine that has been [validated](Hardware::validate).
    pub fn new(hardware: &Hardware) -> Self {
        let mut cpus = BTreeMap::new();
        for group in &hardware.cpus {
            let list: Vec<u32> = group.cpus.iter().collect();
            let cores = (list.len() / group.threads.max(1) as usize).max(1);
            for (i, cpu) in list.iter().enumerate() {
                let place = CpuPlace {
                    core: list[i % cores],
                    // Caches nobody named must not meet those that have a name.
                    cache: group.cache.unwrap_or(u32::MAX - group.node),
                    node: group.node,
                    socket: group.socket,
                };
                cpus.insert(*cpu, place);
            }
        }
        let by = |key: fn(&CpuPlace) -> u32| {
            let mut units: BTreeMap<u32, CpuSet> = BTreeMap::new();
            for (cpu, place) in &cpus {
                units.entry(key(place)).or_default().insert(*cpu);
            }
            units
        };
        Self {
            all: cpus.keys().copied().collect(),
            cores: by(|p| p.core),
            caches: by(|p| p.cache),
            nodes: by(|p| p.node),
            sockets: by(|p| p.socket),
            cpus,
        }
    }

    /// All CPUs.
    pub fn all(&self) -> &CpuSet {
        &self.all
    }

    /// The place of a CPU.
    pub fn place(&self, cpu: u32) -> Option<CpuPlace> {
        self.cpus.get(&cpu).copied()
    }

    pub(super) fn units(&self, level: Level) -> &BTreeMap<u32, CpuSet> {
        match level {
            Level::Core => &self.cores,
            Level::Cache => &self.caches,
            Level::Node => &self.nodes,
            Level::Socket => &self.sockets,
        }
    }

    /// Threads a core; on machines with cores of several kinds the average, rounded down, as the
    /// kubelet has it.
    pub fn cpus_per_core(&self) -> usize {
        (self.cpus.len() / self.cores.len().max(1)).max(1)
    }

    /// NUMA nodes that have CPUs.
    pub fn node_mask(&self) -> NumaMask {
        NumaMask::from_nodes(self.nodes.keys().copied().filter(|n| *n < MAX_NODES))
            .unwrap_or(NumaMask::EMPTY)
    }

    /// Number of NUMA nodes that have CPUs.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Number of sockets.
    pub fn socket_count(&self) -> usize {
        self.sockets.len()
    }

    /// CPUs of the nodes of `mask`.
    pub fn in_nodes(&self, mask: NumaMask) -> CpuSet {
        mask.iter()
            .filter_map(|n| self.nodes.get(&n))
            .fold(CpuSet::new(), |all, cpus| all.union(cpus))
    }

    /// Sockets that have CPUs on nodes of `mask`.
    pub fn sockets_of(&self, mask: NumaMask) -> Vec<u32> {
        let on = |cpus: &CpuSet| {
            cpus.iter()
                .any(|c| self.cpus.get(&c).is_some_and(|p| mask.contains(p.node)))
        };
        self.sockets
            .iter()
            .filter(|(_, cpus)| on(cpus))
            .map(|(id, _)| *id)
            .collect()
    }

    /// CPUs of a socket.
    pub fn in_socket(&self, socket: u32) -> CpuSet {
        self.sockets.get(&socket).cloned().unwrap_or_default()
    }

    /// All CPUs of the cores that `cpus` touches.
    #[must_use]
    pub fn with_siblings(&self, cpus: &CpuSet) -> CpuSet {
        cpus.iter()
            .filter_map(|c| self.cores.get(&self.cpus.get(&c)?.core))
            .fold(CpuSet::new(), |all, core| all.union(core))
    }

    /// The NUMA nodes `cpus` are on.
    pub fn nodes_of(&self, cpus: &CpuSet) -> NumaMask {
        let nodes = cpus.iter().filter_map(|c| Some(self.cpus.get(&c)?.node));
        NumaMask::from_nodes(nodes.filter(|n| *n < MAX_NODES)).unwrap_or(NumaMask::EMPTY)
    }

    /// Whether `cpus` are whole cores.
    pub fn is_whole_cores(&self, cpus: &CpuSet) -> bool {
        self.with_siblings(cpus) == *cpus
    }

    /// How many last-level caches `cpus` touch.
    pub fn cache_count(&self, cpus: &CpuSet) -> usize {
        self.caches
            .values()
            .filter(|c| !c.is_disjoint(cpus))
            .count()
    }
}
