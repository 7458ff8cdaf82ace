//! CPUs and memory for exclusive use: the CPU manager, the memory manager and the machine they
//! work on. Decisions are made by `davit-topology`, who holds what stands in the allocation log.

mod desk;
mod explain;
mod publish;
mod rebuild;
mod settings;
mod state_files;

pub(crate) use desk::{Desk, Reuse, Ticket};
pub use explain::{Misfit, MisfitOption, MisfitResource, Occupant, REFUSAL_ANNOTATION};
pub(crate) use explain::{Need, Part};
pub use rebuild::PinnedContainer;
pub(crate) use rebuild::exclusive;
pub use settings::{DEFAULT_MAX_NUMA_NODES, Settings, SettingsError, option};
pub use state_files::StateError;
pub(crate) use state_files::{check_states, import, keep, migrate};

use std::collections::BTreeMap;

use davit_api::devices::NumaPlace;
use davit_topology::cpu::{CpuError, CpuPolicy};
use davit_topology::memory::{MemoryError, MemoryState};
use davit_topology::{CpuSet, Hardware, Machine, Policy};
use parking_lot::Mutex;

use crate::allocation::{ComputeHold, Table};
use crate::devices::Request;

/// CPUs and memory of this node.
pub(crate) struct Compute {
    pub(crate) machine: Machine,
    pub(crate) places: Vec<NumaPlace>,
    pub(crate) topology: Policy,
    pub(crate) pod_scope: bool,
    throttle_exclusive: bool,
    cpu: Option<CpuPolicy>,
    /// The machine with nothing given out.
    memory: Option<MemoryState>,
    pending: Mutex<Pending>,
}

/// What admissions under way have chosen and not yet recorded. Choices are made one at a time
/// under this lock, so that two never choose the same.
#[derive(Default)]
struct Pending {
    next: u64,
    drafts: BTreeMap<u64, BTreeMap<String, ComputeHold>>,
}

/// Why a container does not get CPUs or memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ComputeError {
    #[error(transparent)]
    Cpu(#[from] CpuError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// Where a container may run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ComputeOptions {
    /// For `cpuset_cpus`; empty where the node does not set it.
    pub cpus: CpuSet,
    /// Whether `cpus` are for this container alone.
    pub exclusive: bool,
    /// Whether it has no CFS quota.
    pub unthrottled: bool,
    /// NUMA nodes for `cpuset_mems`; empty where the node does not set it.
    pub mems: Vec<u32>,
}

/// The NUMA nodes as the device table tells them.
fn places(hardware: &Hardware) -> Vec<NumaPlace> {
    let cpus_of = |id: u32| {
        let groups = hardware.cpus.iter().filter(|group| group.node == id);
        groups.fold(CpuSet::new(), |all, group| all.union(&group.cpus))
    };
    let nodes = hardware.numa_nodes.iter();
    let mut places: Vec<NumaPlace> = nodes
        .map(|node| NumaPlace {
            id: node.id.into(),
            cpus: cpus_of(node.id).to_string(),
            memory: node.memory.0,
        })
        .collect();
    places.sort_by_key(|place| place.id);
    places
}

impl Compute {
    pub(crate) fn new(settings: &Settings) -> Result<Self, SettingsError> {
        settings.validate()?;
        Ok(Self {
            machine: settings.hardware.machine(),
            places: places(&settings.hardware),
            topology: settings.topology,
            pod_scope: settings.pod_scope,
            throttle_exclusive: settings.throttle_exclusive,
            cpu: settings.cpu_policy()?,
            memory: settings.memory_state()?,
            pending: Mutex::default(),
        })
    }

    /// The static CPU policy, if it is in force.
    pub(crate) fn cpu(&self) -> Option<&CpuPolicy> {
        self.cpu.as_ref()
    }

    /// The machine's memory with nothing given out, if the static memory policy is in force.
    pub(crate) fn memory(&self) -> Option<&MemoryState> {
        self.memory.as_ref()
    }

    /// Whether the container asks for CPUs or memory that are managed.
    pub(crate) fn concerns(&self, request: &Request) -> bool {
        (self.cpu.is_some() && request.cpus > 0)
            || (self.memory.is_some() && !request.memory.is_empty())
    }

    /// CPUs of the shared pool now.
    pub(crate) fn shared(&self, table: &Table) -> CpuSet {
        self.cpu.as_ref().map_or_else(CpuSet::new, |policy| {
            policy.shared(&held_cpus(table, |_| true))
        })
    }

    /// Where a container may run, by what the log says.
    pub(crate) fn options(&self, table: &Table, uid: &str, container: &str) -> ComputeOptions {
        let held = table.pods().get(uid);
        let held = held.and_then(|p| p.containers.get(container));
        let cpus = held.map_or_else(CpuSet::new, |h| h.cpus.clone());
        let exclusive = self.cpu.is_some() && !cpus.is_empty();
        let mems = match (&self.memory, held) {
            (Some(_), Some(h)) => {
                let nodes = h.memory.iter().flat_map(|b| b.nodes.iter());
                let nodes: std::collections::BTreeSet<u32> = nodes.collect();
                nodes.into_iter().collect()
            }
            _ => Vec::new(),
        };
        ComputeOptions {
            cpus: if exclusive { cpus } else { self.shared(table) },
            exclusive,
            unthrottled: exclusive && !self.throttle_exclusive,
            mems,
        }
    }

    /// Memory with everything booked that the log says.
    pub(crate) fn booked(&self, table: &Table) -> Option<MemoryState> {
        let mut state = self.memory.clone()?;
        for (_, _, held) in table.containers() {
            held.memory.iter().for_each(|b| state.book(b));
        }
        Some(state)
    }
}

/// CPUs that pods hold, those for which `counts` says so.
pub(crate) fn held_cpus(table: &Table, counts: impl Fn(&str) -> bool) -> CpuSet {
    table
        .containers()
        .filter(|(pod, ..)| counts(&pod.uid))
        .fold(CpuSet::new(), |all, (_, _, c)| all.union(&c.cpus))
}

impl ComputeOptions {
    /// Writes them into what the runtime gets.
    pub fn apply(&self, resources: &mut davit_proto::cri::v1::LinuxContainerResources) {
        if !self.cpus.is_empty() {
            resources.cpuset_cpus = self.cpus.to_string();
        }
        if !self.mems.is_empty() {
            let nodes: Vec<String> = self.mems.iter().map(u32::to_string).collect();
            resources.cpuset_mems = nodes.join(",");
        }
        if self.unthrottled {
            // Throttling would take back what exclusive CPUs give (kubernetes issue 70585).
            resources.cpu_quota = -1;
        }
    }
}
