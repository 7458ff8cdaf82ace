//! Keeps a pod off nodes that would refuse it because its devices, CPUs and memory cannot be
//! aligned there: runs the node's own decision on what the node publishes.

use std::sync::Arc;

use davit_topology::PolicyKind;
use davit_topology::pod::{ContainerAsk, asks};

use crate::framework::{
    Action, ClusterEvent, CycleState, EventResource, Filter, Plugin, Points, Status,
};
use crate::node::NodeInfo;
use crate::pod::PodInfo;
use crate::topology::Topologies;

/// The plugin `NodeResourceTopologyMatch`.
#[derive(Debug)]
pub struct NodeResourceTopology {
    topologies: Topologies,
}

impl NodeResourceTopology {
    /// The plugin over these topologies.
    pub fn new(topologies: Topologies) -> Self {
        Self { topologies }
    }
}

impl Plugin for NodeResourceTopology {
    fn name(&self) -> &'static str {
        "NodeResourceTopologyMatch"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.filter.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        vec![
            ClusterEvent::new(EventResource::NodeResourceTopology, Action::ALL),
            ClusterEvent::new(EventResource::AssignedPod, Action::DELETE),
        ]
    }
}

fn wants(asks: &[ContainerAsk]) -> bool {
    asks.iter()
        .any(|a| a.cpus > 0 || !a.memory.is_empty() || !a.extended.is_empty())
}

impl Filter for NodeResourceTopology {
    fn filter(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        let Some(published) = self.topologies.get(&node.name) else {
            return Status::success();
        };
        let strict = matches!(
            published.policy,
            PolicyKind::Restricted | PolicyKind::SingleNumaNode
        );
        if !strict && published.cpus_per_core.is_none() {
            return Status::success();
        }
        let wanted = asks(&pod.pod);
        if !wants(&wanted) {
            return Status::success();
        }
        let mut state = (*published).clone();
        // Pods that were bound since the node has last published come first.
        for other in &node.pods {
            let earlier = asks(&other.pod);
            if !published.pods.contains(&*other.uid) && wants(&earlier) {
                // If the node is going to refuse that one, it takes nothing.
                let mut with = state.clone();
                if with.place(&earlier).is_ok() {
                    state = with;
                }
            }
        }
        match state.place(&wanted) {
            Ok(()) => Status::success(),
            Err(refusal) => Status::unschedulable(refusal.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Code;
    use crate::plugins::testing::{Bed, pod};
    use davit_topology::NumaMask;
    use davit_topology::published::{Count, NodeState};
    use serde_json::json;

    fn cpus(n: u32) -> serde_json::Value {
        let list = json!({"cpu": n.to_string(), "memory": "1Gi"});
        json!({"containers": [{"name": "c", "resources": {"requests": list, "limits": list}}]})
    }

    fn published(available: [usize; 2], pods: &[&str]) -> NodeState {
        let count = |node: u64, available| Count {
            nodes: NumaMask::from_bits(1 << node),
            all: 4,
            available,
        };
        serde_json::from_value(json!({
            "policy": "single-numa-node",
            "nodes": [0, 1],
            "counts": {"cpu": [count(0, available[0]), count(1, available[1])]},
            "pods": pods,
        }))
        .unwrap()
    }

    #[test]
    fn what_the_node_would_refuse_is_not_bound_there() {
        let mut bed = Bed::new();
        bed.node("n", json!({}));
        let topologies = Topologies::default();
        let plugin = NodeResourceTopology::new(topologies.clone());
        let filter = |bed: &Bed, n| bed.filter(&plugin, &pod("p", cpus(n)), "n").code;
        assert_eq!(filter(&bed, 5), Code::Success, "nothing is published");
        topologies.set("n", Some(published([4, 4], &[])));
        assert_eq!(filter(&bed, 4), Code::Success);
        assert_eq!(filter(&bed, 5), Code::Unschedulable);
        // Two pods are on their way there; the node has counted one of them.
        bed.place(&pod("a", cpus(3)), "n");
        bed.place(&pod("b", cpus(3)), "n");
        topologies.set("n", Some(published([1, 4], &["a"])));
        assert_eq!(filter(&bed, 2), Code::Unschedulable);
        assert_eq!(filter(&bed, 1), Code::Success);
        topologies.set("n", None);
        assert_eq!(filter(&bed, 5), Code::Success);
    }
}
