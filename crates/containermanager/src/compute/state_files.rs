//! The files `cpu_manager_state` and `memory_manager_state` in the kubelet's JSON shape: written
//! for programs that read them, checked at start as the kubelet does, and read once when this
//! agent takes over from a kubelet. The truth is the allocation log.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use davit_topology::devices::ContainerKind;
use davit_topology::memory::{MemoryBlock, MemoryState};
use davit_topology::{CpuSet, NumaMask};
use serde::{Deserialize, Serialize};

use super::{Compute, held_cpus};
use crate::allocation::{Change, ComputeHold, Ledger, PodName, Table};
use crate::devices::Manager;

const CPU_FILE: &str = "cpu_manager_state";
const MEMORY_FILE: &str = "memory_manager_state";
/// Changes that come in quick succession are written once.
/// The largest file that is read; a larger one is damage.
const MAX_FILE: u64 = 64 * 1024 * 1024;
const PAUSE: Duration = Duration::from_millis(100);

/// A state file that does not fit the configuration or the machine.
#[derive(Debug, thiserror::Error)]
#[error(
    "could not restore state from checkpoint: {cause}, please drain this node and delete the {what} manager checkpoint file {path:?} before restarting Kubelet"
)]
pub struct StateError {
    what: &'static str,
    path: PathBuf,
    cause: String,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CpuState {
    policy_name: String,
    #[serde(default)]
    default_cpu_set: CpuSet,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, CpuSet>>,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MemoryFile {
    policy_name: String,
    #[serde(default)]
    machine_state: BTreeMap<u32, NodeState>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, Vec<Block>>>,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeState {
    number_of_assignments: usize,
    #[serde(default)]
    memory_map: BTreeMap<String, Amounts>,
    #[serde(default)]
    cells: Vec<u32>,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Amounts {
    total: u64,
    system_reserved: u64,
    allocatable: u64,
    reserved: u64,
    free: u64,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Block {
    numa_affinity: Vec<u32>,
    #[serde(rename = "type")]
    kind: String,
    size: u64,
}

fn cpu_policy_name(compute: &Compute) -> &'static str {
    if compute.cpu().is_some() {
        "static"
    } else {
        "none"
    }
}

fn memory_policy_name(compute: &Compute) -> &'static str {
    if compute.memory().is_some() {
        "Static"
    } else {
        "None"
    }
}

/// Keeps the files in step with the log until the manager stops.
pub(crate) async fn keep(manager: Arc<Manager>) {
    let mut changes = manager.subscribe();
    changes.mark_changed();
    let mut written: BTreeMap<&'static str, Vec<u8>> = BTreeMap::new();
    loop {
        tokio::select! {
            () = manager.cancel.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
        }
        changes.borrow_and_update();
        let files = manager.ledger.read(|t| {
            [
                (CPU_FILE, encode(&cpu_state(&manager.compute, t))),
                (MEMORY_FILE, encode(&memory_file(&manager.compute, t))),
            ]
        });
        if let Some(policy) = manager.compute.cpu() {
            let held = manager.ledger.read(|t| held_cpus(t, |_| true));
            manager.metrics.cpus(policy.shared(&held).len(), held.len());
            for node in policy.topology.node_mask().iter() {
                let on_node = policy
                    .topology
                    .in_nodes(NumaMask::single(node).unwrap_or_default());
                manager
                    .metrics
                    .cpus_on_node(node, on_node.intersection(&held).len());
            }
        }
        for (name, bytes) in files {
            let bytes = match bytes {
                Ok(bytes) if written.get(name) == Some(&bytes) => continue,
                Ok(bytes) => bytes,
                Err(e) => {
                    tracing::warn!(file = name, error = %e, "state file not encoded");
                    continue;
                }
            };
            let (path, copy) = (manager.config.root_dir.join(name), bytes.clone());
            match tokio::task::spawn_blocking(move || write(&path, &copy)).await {
                Ok(Ok(())) => {
                    written.insert(name, bytes);
                }
                Ok(Err(e)) => tracing::warn!(file = name, error = %e, "state file not written"),
                Err(e) => tracing::warn!(file = name, error = %e, "state file not written"),
            }
        }
        tokio::select! {
            () = manager.cancel.cancelled() => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

fn cpu_state(compute: &Compute, table: &Table) -> CpuState {
    let mut state = CpuState {
        policy_name: cpu_policy_name(compute).to_owned(),
        ..CpuState::default()
    };
    if let Some(policy) = compute.cpu() {
        state.default_cpu_set = policy.shared(&held_cpus(table, |_| true));
        for (pod, container, held) in table.containers() {
            if !held.cpus.is_empty() {
                let pod = state.entries.entry(pod.uid.clone()).or_default();
                pod.insert(container.clone(), held.cpus.clone());
            }
        }
    }
    state
}

fn memory_file(compute: &Compute, table: &Table) -> MemoryFile {
    let mut file = MemoryFile {
        policy_name: memory_policy_name(compute).to_owned(),
        ..MemoryFile::default()
    };
    if let Some(state) = compute.booked(table) {
        file.machine_state = machine_state(&state);
        for (pod, container, held) in table.containers() {
            if held.memory.is_empty() {
                continue;
            }
            let block = |b: &MemoryBlock| Block {
                numa_affinity: b.nodes.iter().collect(),
                kind: b.kind.clone(),
                size: b.size,
            };
            let pod = file.entries.entry(pod.uid.clone()).or_default();
            pod.insert(container.clone(), held.memory.iter().map(block).collect());
        }
    }
    file
}

fn machine_state(state: &MemoryState) -> BTreeMap<u32, NodeState> {
    let node = |(id, n): (&u32, &davit_topology::memory::NodeMemory)| {
        let memory = n.memory.iter().map(|(kind, t)| {
            let amounts = Amounts {
                total: t.total,
                system_reserved: t.system_reserved,
                allocatable: t.allocatable,
                reserved: t.reserved,
                free: t.free,
            };
            (kind.clone(), amounts)
        });
        let node = NodeState {
            number_of_assignments: n.assignments,
            memory_map: memory.collect(),
            cells: n.cells.iter().collect(),
        };
        (*id, node)
    };
    state.nodes().iter().map(node).collect()
}

fn encode<T: Serialize>(state: &T) -> serde_json::Result<Vec<u8>> {
    // The kubelet's checksum covers a dump in a form of Go's own; readers do not check it.
    let mut value = serde_json::to_value(state)?;
    let sum = serde_json::to_vec(&value)?
        .iter()
        .fold(0x811c_9dc5_u32, |h, b| {
            (h ^ u32::from(*b)).wrapping_mul(0x0100_0193)
        });
    if let Some(object) = value.as_object_mut() {
        object.insert("checksum".to_owned(), sum.into());
    }
    serde_json::to_vec(&value)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    Ok(davit_beneath::write_private(path, bytes)?)
}

fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, String> {
    match davit_beneath::read_own(path, MAX_FILE).map_err(io::Error::from) {
        Ok(bytes) if bytes.is_empty() => Ok(None),
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|_| "checkpoint is corrupted".to_owned()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e.to_string()),
    }
}

/// Checks the state files below `root` against configuration and machine.
///
/// # Errors
/// A file is damaged or says something else; the agent must not start then.
pub(crate) fn check_states(root: &Path, compute: &Compute) -> Result<(), StateError> {
    let path = root.join(CPU_FILE);
    let checked =
        read::<CpuState>(&path).and_then(|state| state.map_or(Ok(()), |s| check_cpus(&s, compute)));
    checked.map_err(|cause| StateError {
        what: "CPU",
        path,
        cause,
    })?;
    let path = root.join(MEMORY_FILE);
    let checked = read::<MemoryFile>(&path)
        .and_then(|state| state.map_or(Ok(()), |s| check_memory(&s, compute)));
    checked.map_err(|cause| StateError {
        what: "memory",
        path,
        cause,
    })
}

fn check_cpus(state: &CpuState, compute: &Compute) -> Result<(), String> {
    let (old, new) = (&state.policy_name, cpu_policy_name(compute));
    if old != new {
        return Err(format!(
            "configured policy {new:?} differs from state checkpoint policy {old:?}"
        ));
    }
    let Some(policy) = compute.cpu() else {
        return Ok(());
    };
    let default = &state.default_cpu_set;
    let strict = policy.options.strict_reservation;
    let reserved = &policy.reserved;
    if strict && !reserved.is_disjoint(default) {
        return Err(format!(
            "some of strictly reserved cpus: \"{}\" are present in defaultCpuSet: \"{default}\"",
            reserved.intersection(default)
        ));
    }
    if !strict && !reserved.is_subset(default) {
        return Err(format!(
            "not all reserved cpus: \"{reserved}\" are present in defaultCpuSet: \"{default}\""
        ));
    }
    let mut known = default.clone();
    for (pod, containers) in &state.entries {
        for (container, cpus) in containers {
            if !cpus.is_disjoint(default) {
                return Err(format!(
                    "pod: {pod}, container: {container} cpuset: \"{cpus}\" overlaps with default cpuset \"{default}\""
                ));
            }
            known = known.union(cpus);
        }
    }
    if strict {
        known = known.union(reserved);
    }
    let machine = policy.topology.all();
    if known != *machine {
        return Err(format!(
            "current set of available CPUs \"{machine}\" doesn't match with CPUs in state \"{known}\""
        ));
    }
    Ok(())
}

fn check_memory(file: &MemoryFile, compute: &Compute) -> Result<(), String> {
    let (old, new) = (&file.policy_name, memory_policy_name(compute));
    if old != new {
        return Err(format!(
            "[memorymanager] configured policy {new:?} differs from state checkpoint policy {old:?}"
        ));
    }
    let Some(machine) = compute.memory() else {
        return Ok(());
    };
    if file.machine_state.is_empty() {
        return Ok(());
    }
    let shape = |nodes: &BTreeMap<u32, NodeState>| -> Vec<(u32, String, u64, u64, u64)> {
        nodes
            .iter()
            .flat_map(|(id, n)| {
                n.memory_map.iter().map(|(kind, a)| {
                    let kind = kind.clone();
                    (*id, kind, a.total, a.system_reserved, a.allocatable)
                })
            })
            .collect()
    };
    if shape(&file.machine_state) != shape(&machine_state(machine)) {
        return Err(
            "[memorymanager] the expected machine state is different from the real one".to_owned(),
        );
    }
    Ok(())
}

/// What a kubelet has given out, as changes for an empty log. The files were checked before.
pub(crate) fn import(root: &Path, compute: &Compute) -> Vec<Change> {
    let mut holds: BTreeMap<(String, String), ComputeHold> = BTreeMap::new();
    let since = jiff::Timestamp::now().as_millisecond();
    let hold = |uid: &String, container: &String| ComputeHold {
        pod: PodName {
            uid: uid.clone(),
            namespace: String::new(),
            name: String::new(),
        },
        container: container.clone(),
        kind: ContainerKind::App,
        cpus: CpuSet::new(),
        memory: Vec::new(),
        since,
    };
    if let (Some(_), Ok(Some(state))) = (compute.cpu(), read::<CpuState>(&root.join(CPU_FILE))) {
        for (uid, containers) in &state.entries {
            for (name, cpus) in containers {
                let entry = holds.entry((uid.clone(), name.clone()));
                entry.or_insert_with(|| hold(uid, name)).cpus = cpus.clone();
            }
        }
    }
    if let (Some(_), Ok(Some(file))) = (
        compute.memory(),
        read::<MemoryFile>(&root.join(MEMORY_FILE)),
    ) {
        for (uid, containers) in &file.entries {
            for (name, blocks) in containers {
                let block = |b: &Block| MemoryBlock {
                    nodes: NumaMask::from_nodes(b.numa_affinity.iter().copied())
                        .unwrap_or(NumaMask::EMPTY),
                    kind: b.kind.clone(),
                    size: b.size,
                };
                let entry = holds.entry((uid.clone(), name.clone()));
                entry.or_insert_with(|| hold(uid, name)).memory =
                    blocks.iter().map(block).collect();
            }
        }
    }
    let mut given: Vec<ComputeHold> = Vec::new();
    for mut hold in holds.into_values() {
        if let Some(other) = given
            .iter()
            .find(|h| h.pod.uid != hold.pod.uid && !h.cpus.is_disjoint(&hold.cpus))
        {
            tracing::error!(
                pod = hold.pod.uid,
                holder = other.pod.uid,
                "cpus of the state file have two owners"
            );
            hold.cpus = hold.cpus.difference(&other.cpus);
        }
        // Inside a pod only an init container shares CPUs, with those after it.
        for earlier in &mut given {
            if earlier.pod.uid == hold.pod.uid && !earlier.cpus.is_disjoint(&hold.cpus) {
                earlier.kind = ContainerKind::Init;
            }
        }
        given.push(hold);
    }
    given.into_iter().map(Change::Compute).collect()
}

/// Fits what the log says to policies and a machine that may be others than before: CPUs that are
/// gone, or reserved now, and what no manager manages any more, is given up.
pub(crate) async fn migrate(ledger: &Ledger, compute: &Compute) {
    let changes: Vec<Change> = ledger.read(|t| {
        t.containers()
            .filter_map(|(pod, container, held)| {
                let cpus = compute
                    .cpu()
                    .map_or_else(CpuSet::new, |p| held.cpus.intersection(&p.allocatable()));
                let whole = cpus == held.cpus;
                let known = |b: &MemoryBlock| {
                    compute
                        .memory()
                        .is_some_and(|m| b.nodes.iter().all(|n| m.nodes().contains_key(&n)))
                };
                let memory_stays = held.memory.iter().all(known);
                if whole && memory_stays {
                    return None;
                }
                tracing::warn!(
                    pod = pod.uid,
                    container,
                    cpus = %held.cpus,
                    "cpus or memory of the container are no longer managed and are given up"
                );
                Some(Change::Compute(ComputeHold {
                    pod: pod.clone(),
                    container: container.clone(),
                    kind: held.kind,
                    cpus: if whole { cpus } else { CpuSet::new() },
                    memory: if memory_stays {
                        held.memory.clone()
                    } else {
                        Vec::new()
                    },
                    since: held.compute_since,
                }))
            })
            .collect()
    });
    if changes.is_empty() {
        return;
    }
    if let Err(e) = ledger.commit(changes, ledger.reservation("")).await {
        tracing::error!(error = %e, "change of policy not recorded");
    }
}

#[cfg(test)]
mod tests;
