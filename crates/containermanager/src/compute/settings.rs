//! What the CPU, memory and topology managers are told, and what of it makes no sense on this
//! machine.

use std::collections::BTreeMap;
use std::time::Duration;

use davit_topology::cpu::{CpuOptions, CpuPolicy, CpuTopology};
use davit_topology::memory::{MemoryAmounts, MemoryState};
use davit_topology::{CpuSet, Hardware, Policy, PolicyKind};

/// How many NUMA nodes the topology manager takes without being told otherwise.
pub const DEFAULT_MAX_NUMA_NODES: usize = 8;

/// The settings of the resource managers; [`Settings::default`] is the kubelet's default on a
/// machine nobody has described: no manager does anything.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The machine.
    pub hardware: Hardware,
    /// Options of the static CPU manager policy; `None` is the policy `none`.
    pub cpu: Option<CpuOptions>,
    /// `reservedSystemCPUs`.
    pub reserved_cpus: Option<CpuSet>,
    /// CPU of `kubeReserved` and `systemReserved` together, in thousandths.
    pub reserved_cpu_millis: u64,
    /// Containers with CPUs for themselves have a CFS quota like all others.
    pub throttle_exclusive: bool,
    /// How often the CPU sets of running containers are looked at without a reason.
    pub reconcile_period: Duration,
    /// `reservedMemory` for the memory manager's policy `Static`; `None` is the policy `None`.
    pub memory: Option<BTreeMap<u32, MemoryAmounts>>,
    /// Memory of `kubeReserved`, `systemReserved` and the hard eviction threshold together, by
    /// type.
    pub node_reserved: MemoryAmounts,
    /// Topology manager policy.
    pub topology: Policy,
    /// Scope `pod` instead of `container`.
    pub pod_scope: bool,
    /// `max-allowable-numa-nodes`.
    pub max_numa_nodes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            hardware: Hardware::default(),
            cpu: None,
            reserved_cpus: None,
            reserved_cpu_millis: 0,
            throttle_exclusive: false,
            reconcile_period: Duration::from_secs(10),
            memory: None,
            node_reserved: MemoryAmounts::new(),
            topology: Policy::default(),
            pod_scope: false,
            max_numa_nodes: DEFAULT_MAX_NUMA_NODES,
        }
    }
}

/// Why settings cannot be used. Where the kubelet has a text for it, it is that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The description of the machine.
    #[error("machine description: {0}")]
    Hardware(#[from] davit_topology::hardware::HardwareError),
    /// A topology manager policy on too large a machine.
    #[error("unsupported on machines with more than {0} NUMA Nodes")]
    TooManyNodes(usize),
    /// `max-allowable-numa-nodes` below 8.
    #[error("the minimum value of \"max-allowable-numa-nodes\" should not be less than 8")]
    MaxNodes,
    /// No CPU is reserved.
    #[error(
        "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
    )]
    NoReservedCpu,
    /// The machine has fewer CPUs than are to be reserved.
    #[error(
        "[cpumanager] unable to reserve the required amount of CPUs (size of {set} did not equal {count})"
    )]
    ReservedCpus {
        /// What could be reserved.
        set: CpuSet,
        /// How many should have been.
        count: usize,
    },
    /// Options that contradict each other.
    #[error("static policy options {0} and {1} can not be used at the same time")]
    Options(&'static str, &'static str),
    /// `align-by-socket` with single-numa-node.
    #[error(
        "Topology manager {0} policy is incompatible with CPUManager align-by-socket policy option"
    )]
    SocketPolicy(&'static str),
    /// `align-by-socket` on such hardware.
    #[error(
        "Align by socket is not compatible with hardware where number of sockets are more than number of NUMA"
    )]
    SocketHardware,
    /// A reservation on a node that is not there.
    #[error(
        "the reserved memory configuration references a NUMA node {0} that does not exist on this machine"
    )]
    ReservedNode(u32),
    /// Reservations that do not add up.
    #[error(
        "the total amount {given:?} of type {kind:?} is not equal to the value {expected:?} determined by Node Allocatable feature"
    )]
    ReservedMemory {
        /// Memory type.
        kind: String,
        /// Sum over the nodes.
        given: u64,
        /// Sum of the node's reservations.
        expected: u64,
    },
}

/// Names of the static CPU policy's options (`cpuManagerPolicyOptions`).
pub mod option {
    /// Whole cores only.
    pub const FULL_PCPUS: &str = "full-pcpus-only";
    /// Evenly over NUMA nodes where one does not suffice.
    pub const ACROSS_NUMA: &str = "distribute-cpus-across-numa";
    /// Within one socket rather than within one NUMA node.
    pub const BY_SOCKET: &str = "align-by-socket";
    /// Threads of different cores.
    pub const ACROSS_CORES: &str = "distribute-cpus-across-cores";
    /// Reserved CPUs are not part of the shared pool.
    pub const STRICT: &str = "strict-cpu-reservation";
    /// Within one group of cores that share their last-level cache, where possible.
    pub const UNCORE: &str = "prefer-align-cpus-by-uncorecache";
}

impl Settings {
    /// Checks the settings against the machine.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if self.cpu.is_some() || self.memory.is_some() || self.topology.kind != PolicyKind::None {
            self.hardware.validate()?;
        }
        if self.max_numa_nodes < DEFAULT_MAX_NUMA_NODES {
            return Err(SettingsError::MaxNodes);
        }
        if self.topology.kind != PolicyKind::None
            && self.hardware.numa_nodes.len() > self.max_numa_nodes
        {
            return Err(SettingsError::TooManyNodes(self.max_numa_nodes));
        }
        self.cpu_policy()?;
        self.memory_state().map(drop)
    }

    /// The static CPU policy, if it is chosen.
    pub(super) fn cpu_policy(&self) -> Result<Option<CpuPolicy>, SettingsError> {
        let Some(options) = self.cpu else {
            return Ok(None);
        };
        let topology = CpuTopology::new(&self.hardware);
        self.check_options(options, &topology)?;
        let reserved = match &self.reserved_cpus {
            Some(set) if !set.is_empty() => {
                let known = set.intersection(topology.all());
                if known != *set {
                    let count = set.len();
                    return Err(SettingsError::ReservedCpus { set: known, count });
                }
                known
            }
            _ => {
                let count = self.reserved_cpu_millis.div_ceil(1000);
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                if count == 0 {
                    return Err(SettingsError::NoReservedCpu);
                }
                CpuPolicy::reserve(&topology, count).map_err(|_| SettingsError::ReservedCpus {
                    set: topology.all().clone(),
                    count,
                })?
            }
        };
        Ok(Some(CpuPolicy {
            topology,
            options,
            reserved,
        }))
    }

    fn check_options(&self, o: CpuOptions, topology: &CpuTopology) -> Result<(), SettingsError> {
        use option::{ACROSS_CORES, ACROSS_NUMA, FULL_PCPUS, UNCORE};
        for (clash, first, second) in [
            (
                o.full_pcpus_only && o.distribute_across_cores,
                FULL_PCPUS,
                ACROSS_CORES,
            ),
            (
                o.distribute_across_numa && o.distribute_across_cores,
                ACROSS_NUMA,
                ACROSS_CORES,
            ),
            (
                o.prefer_uncore_cache && o.distribute_across_cores,
                UNCORE,
                ACROSS_CORES,
            ),
            (
                o.prefer_uncore_cache && o.distribute_across_numa,
                UNCORE,
                ACROSS_NUMA,
            ),
        ] {
            if clash {
                return Err(SettingsError::Options(first, second));
            }
        }
        if o.align_by_socket {
            if self.topology.kind == PolicyKind::SingleNumaNode {
                return Err(SettingsError::SocketPolicy("single-numa-node"));
            }
            if topology.socket_count() > topology.node_count() {
                return Err(SettingsError::SocketHardware);
            }
        }
        Ok(())
    }

    /// The memory of a machine of which nothing is given out, if the static policy is chosen.
    pub(super) fn memory_state(&self) -> Result<Option<MemoryState>, SettingsError> {
        let Some(reserved) = &self.memory else {
            return Ok(None);
        };
        let known = |id: &u32| self.hardware.numa_nodes.iter().any(|n| n.id == *id);
        if let Some(id) = reserved.keys().find(|id| !known(id)) {
            return Err(SettingsError::ReservedNode(*id));
        }
        let mut sums = MemoryAmounts::new();
        for (kind, bytes) in reserved.values().flatten() {
            *sums.entry(kind.clone()).or_default() += bytes;
        }
        let kinds = sums.keys().chain(self.node_reserved.keys());
        for kind in kinds {
            let given = sums.get(kind).copied().unwrap_or(0);
            let expected = self.node_reserved.get(kind).copied().unwrap_or(0);
            if given != expected {
                return Err(SettingsError::ReservedMemory {
                    kind: kind.clone(),
                    given,
                    expected,
                });
            }
        }
        Ok(Some(MemoryState::new(&self.hardware, reserved)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_topology::memory::MEMORY;

    fn settings(nodes: u32) -> Settings {
        Settings {
            hardware: Hardware::grid(nodes, 1, 4, 2, 1 << 30),
            cpu: Some(CpuOptions::default()),
            reserved_cpu_millis: 500,
            ..Settings::default()
        }
    }

    fn refused(edit: impl FnOnce(&mut Settings)) -> String {
        let mut s = settings(2);
        edit(&mut s);
        s.validate().unwrap_err().to_string()
    }

    #[test]
    fn item_113_nine_numa_nodes() {
        let mut s = settings(9);
        s.topology.kind = PolicyKind::BestEffort;
        assert_eq!(
            s.validate().unwrap_err().to_string(),
            "unsupported on machines with more than 8 NUMA Nodes"
        );
        s.max_numa_nodes = 16;
        s.validate().unwrap();
        s.topology.kind = PolicyKind::None;
        s.max_numa_nodes = 8;
        s.validate().unwrap();
        assert_eq!(
            refused(|s| s.max_numa_nodes = 7),
            "the minimum value of \"max-allowable-numa-nodes\" should not be less than 8"
        );
    }

    #[test]
    fn options_that_contradict_each_other() {
        assert_eq!(
            refused(|s| {
                s.cpu = Some(CpuOptions {
                    full_pcpus_only: true,
                    distribute_across_cores: true,
                    ..CpuOptions::default()
                });
            }),
            "static policy options full-pcpus-only and distribute-cpus-across-cores can not be used at the same time"
        );
        let by_socket = CpuOptions {
            align_by_socket: true,
            ..CpuOptions::default()
        };
        assert!(
            refused(|s| {
                s.cpu = Some(by_socket);
                s.topology.kind = PolicyKind::SingleNumaNode;
            })
            .contains("single-numa-node")
        );
        let one_node = |s: &mut Settings| {
            s.cpu = Some(by_socket);
            s.hardware.numa_nodes.truncate(1);
            s.hardware.cpus.iter_mut().for_each(|g| g.node = 0);
        };
        assert!(refused(one_node).contains("number of sockets"));
    }

    #[test]
    fn reservations() {
        assert!(refused(|s| s.reserved_cpu_millis = 0).contains("greater than zero"));
        assert!(refused(|s| s.reserved_cpu_millis = 17_000).contains("did not equal 17"));
        assert!(
            refused(|s| s.reserved_cpus = Some("90".parse().unwrap())).contains("did not equal 1")
        );
        let s = settings(2);
        assert_eq!(s.cpu_policy().unwrap().unwrap().reserved.to_string(), "0");
        let mebi = |n: u64| MemoryAmounts::from([(MEMORY.to_owned(), n << 20)]);
        let memory = |s: &mut Settings| {
            s.memory = Some(BTreeMap::from([(0, mebi(100)), (1, mebi(100))]));
            s.node_reserved = mebi(100);
        };
        assert_eq!(
            refused(memory),
            "the total amount 209715200 of type \"memory\" is not equal to the value 104857600 determined by Node Allocatable feature"
        );
        let mut s = settings(2);
        memory(&mut s);
        s.node_reserved = mebi(200);
        s.validate().unwrap();
        s.memory = Some(BTreeMap::from([(7, mebi(200))]));
        assert_eq!(s.validate(), Err(SettingsError::ReservedNode(7)));
    }
}
