//! Host ports.

use std::sync::Arc;

use crate::cache::Snapshot;
use crate::framework::{
    Action, ClusterEvent, CycleState, EventObject, EventResource, Filter, Hint, NodeNames, Plugin,
    Points, PreFilter, Signature, Status,
};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

/// The plugin `NodePorts`: a host port is given out once a node.
#[derive(Debug)]
pub struct NodePorts;

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.pre_filter.push(self.clone());
        points.filter.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        vec![
            ClusterEvent::new(EventResource::AssignedPod, Action::DELETE),
            ClusterEvent::new(EventResource::Node, Action::ADD),
        ]
    }

    fn hint(&self, _: &ClusterEvent, pod: &PodInfo, object: &EventObject) -> Hint {
        match object {
            EventObject::Pod {
                old: Some(gone), ..
            } => {
                let wanted = |port: i32| pod.host_ports.iter().any(|p| p.port == port);
                let frees = gone.host_ports.iter().any(|p| wanted(p.port));
                if frees { Hint::Queue } else { Hint::Skip }
            }
            _ => Hint::Queue,
        }
    }
}

impl PreFilter for NodePorts {
    fn pre_filter(&self, _: &mut CycleState, pod: &PodInfo, _: &Snapshot) -> (Status, NodeNames) {
        (
            if pod.host_ports.is_empty() {
                Status::skip()
            } else {
                Status::success()
            },
            None,
        )
    }
}

impl Filter for NodePorts {
    fn filter(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        if pod.host_ports.iter().any(|port| node.port_conflicts(port)) {
            return Status::unschedulable(
                "node(s) didn't have free ports for the requested pod ports",
            );
        }
        Status::success()
    }

    fn sign_pod(&self, pod: &PodInfo, signature: &mut Signature) -> bool {
        signature.add(&pod.host_ports);
        true
    }
}
