//! What this node tells schedulers about its NUMA nodes.

use std::collections::BTreeMap;

use davit_api::devices::NumaPlace;
use davit_topology::published::{Count, NodeState};
use davit_topology::{NumaMask, PolicyKind};

use super::held_cpus;
use crate::devices::Manager;

impl Manager {
    /// The topology manager's policy.
    pub(crate) fn topology_policy(&self) -> PolicyKind {
        self.compute.topology.kind
    }

    /// The machine's NUMA nodes.
    pub(crate) fn numa_places(&self) -> Vec<NumaPlace> {
        self.compute.places.clone()
    }

    /// Everything the decision about a pod depends on, as it is now.
    pub(crate) fn published(&self) -> NodeState {
        let nodes: Vec<u32> = self.compute.machine.nodes().iter().collect();
        let mut counts: BTreeMap<String, Vec<Count>> = BTreeMap::new();
        for (resource, list) in self.lists() {
            // No topology, no preference: the hints do not depend on it.
            if list.values().all(|nodes| nodes.is_empty()) {
                continue;
            }
            let free = self.free(&resource);
            let mut groups: BTreeMap<NumaMask, Count> = BTreeMap::new();
            for (id, &nodes) in &list {
                let group = groups.entry(nodes).or_insert(Count {
                    nodes,
                    all: 0,
                    available: 0,
                    reserved: 0,
                });
                group.all += 1;
                group.available += usize::from(free.contains_key(id));
            }
            counts.insert(resource, groups.into_values().collect());
        }
        let (held, pods, memory) = self.ledger.read(|t| {
            (
                held_cpus(t, |_| true),
                t.pods().keys().cloned().collect(),
                self.compute.booked(t),
            )
        });
        let cpu = self.compute.cpu();
        if let Some(policy) = cpu {
            let free = policy.free(&held);
            let of_node = |node: u32| {
                let nodes = NumaMask::from_bits(1 << node);
                let cpus = policy.topology.in_nodes(nodes);
                Count {
                    nodes,
                    all: cpus.len(),
                    available: cpus.intersection(&free).len(),
                    reserved: cpus.intersection(&policy.reserved).len(),
                }
            };
            let all = policy.topology.node_mask().iter().map(of_node).collect();
            counts.insert("cpu".to_owned(), all);
        }
        let options = cpu.map(|p| p.options).unwrap_or_default();
        let sockets = cpu.filter(|_| options.align_by_socket).map(|p| {
            let all = p.topology.sockets_of(p.topology.node_mask());
            let nodes = |s: u32| p.topology.nodes_of(&p.topology.in_socket(s));
            all.into_iter().map(nodes).collect()
        });
        NodeState {
            policy: self.compute.topology.kind,
            prefer_closest: self.compute.topology.prefer_closest,
            pod_scope: self.compute.pod_scope,
            distances: self.compute.machine.distances(),
            nodes,
            counts,
            cpus_per_core: cpu
                .filter(|_| options.full_pcpus_only)
                .map(|p| p.topology.cpus_per_core()),
            sockets: sockets.unwrap_or_default(),
            memory,
            pcie_roots: BTreeMap::new(),
            pods,
        }
    }
}
