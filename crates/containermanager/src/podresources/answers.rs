//! The answers' content. Pure.

use std::sync::Arc;

use davit_proto::podresources::{v1, v1alpha1};
use davit_topology::memory::{MemoryBlock, MemoryState, NodeMemory};
use davit_topology::{CpuSet, NumaMask};
use k8s_openapi::api::core::v1::Pod;

use crate::allocation::Table;

/// The answer to List for these pods, sorted by namespace and name. Sidecars come before app
/// containers; ordinary init and ephemeral containers are left out.
pub fn list(pods: &[Arc<Pod>], table: &Table) -> v1::ListPodResourcesResponse {
    v1::ListPodResourcesResponse {
        pod_resources: sorted(pods).into_iter().map(|p| pod(p, table)).collect(),
    }
}

pub(super) fn sorted(pods: &[Arc<Pod>]) -> Vec<&Pod> {
    let mut pods: Vec<&Pod> = pods.iter().map(AsRef::as_ref).collect();
    pods.sort_by(|a, b| {
        let key = |p: &Pod| {
            (
                p.metadata.namespace.clone(),
                p.metadata.name.clone(),
                p.metadata.uid.clone(),
            )
        };
        key(a).cmp(&key(b))
    });
    pods
}

/// One pod's part of an answer.
pub(super) fn pod(pod: &Pod, table: &Table) -> v1::PodResources {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let spec = pod.spec.as_ref();
    let inits = spec.iter().flat_map(|s| s.init_containers.iter().flatten());
    let sidecars = inits.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let apps = spec.iter().flat_map(|s| &s.containers);
    let holdings = table.pods().get(uid);
    let containers = sidecars.chain(apps).map(|c| {
        let held = holdings.and_then(|h| h.containers.get(&c.name));
        let resources = held.into_iter().flat_map(|h| &h.devices);
        v1::ContainerResources {
            name: c.name.clone(),
            devices: resources
                .flat_map(|(resource, held)| {
                    let each = held.devices.iter();
                    each.flat_map(move |(id, numa)| entries(resource, id.as_str(), *numa))
                })
                .collect(),
            cpu_ids: held.map_or_else(Vec::new, |h| cpu_ids(&h.cpus)),
            memory: held.map_or_else(Vec::new, |h| h.memory.iter().map(block).collect()),
            dynamic_resources: crate::dra::view::dynamic_resources(pod, c, table),
        }
    });
    v1::PodResources {
        name: pod.metadata.name.clone().unwrap_or_default(),
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        containers: containers.collect(),
        ..Default::default()
    }
}

/// One entry for each NUMA node of a device, one without topology when it has none.
pub(super) fn entries(resource: &str, id: &str, numa: NumaMask) -> Vec<v1::ContainerDevices> {
    let entry = |topology| v1::ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: vec![id.to_owned()],
        topology,
    };
    if numa.is_empty() {
        return vec![entry(None)];
    }
    let node = |n| v1::TopologyInfo {
        nodes: vec![v1::NumaNode { id: i64::from(n) }],
    };
    numa.iter().map(|n| entry(Some(node(n)))).collect()
}

/// CPU numbers as the API has them.
pub(super) fn cpu_ids(cpus: &CpuSet) -> Vec<i64> {
    cpus.iter().map(i64::from).collect()
}

/// One block of memory with all its NUMA nodes.
fn block(block: &MemoryBlock) -> v1::ContainerMemory {
    memory(&block.kind, block.size, block.nodes)
}

pub(super) fn memory(kind: &str, size: u64, nodes: NumaMask) -> v1::ContainerMemory {
    let node = |n| v1::NumaNode { id: i64::from(n) };
    v1::ContainerMemory {
        memory_type: kind.to_owned(),
        size,
        topology: Some(v1::TopologyInfo {
            nodes: nodes.iter().map(node).collect(),
        }),
    }
}

/// The answer to GetAllocatableResources for CPUs and memory: what could be given out, node by
/// node and type by type.
pub(super) fn allocatable_memory(state: &MemoryState) -> Vec<v1::ContainerMemory> {
    let of_node = |(id, node): (&u32, &NodeMemory)| {
        let mask = NumaMask::single(*id).unwrap_or(NumaMask::EMPTY);
        let given = node.memory.iter().filter(|(_, t)| t.allocatable > 0);
        given
            .map(|(kind, t)| memory(kind, t.allocatable, mask))
            .collect::<Vec<_>>()
    };
    state.nodes().iter().flat_map(of_node).collect()
}

/// The answer to v1alpha1 List: app containers only.
pub(super) fn list_v1alpha1(
    pods: &[Arc<Pod>],
    table: &Table,
) -> v1alpha1::ListPodResourcesResponse {
    let container = |uid: &str, name: &str| {
        let held = table.pods().get(uid).and_then(|p| p.containers.get(name));
        let resources = held.into_iter().flat_map(|h| &h.devices);
        v1alpha1::ContainerResources {
            name: name.to_owned(),
            devices: resources
                .map(|(resource, held)| v1alpha1::ContainerDevices {
                    resource_name: resource.clone(),
                    device_ids: held
                        .devices
                        .keys()
                        .map(|id| id.as_str().to_owned())
                        .collect(),
                })
                .collect(),
        }
    };
    let pod = |p: &Pod| {
        let uid = p.metadata.uid.as_deref().unwrap_or_default();
        let containers = p.spec.iter().flat_map(|s| &s.containers);
        v1alpha1::PodResources {
            name: p.metadata.name.clone().unwrap_or_default(),
            namespace: p.metadata.namespace.clone().unwrap_or_default(),
            containers: containers.map(|c| container(uid, &c.name)).collect(),
        }
    };
    v1alpha1::ListPodResourcesResponse {
        pod_resources: sorted(pods).into_iter().map(pod).collect(),
    }
}
