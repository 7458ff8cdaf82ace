//! Keeps a pod to the node it names.

use std::sync::Arc;

use crate::framework::{
    Action, ClusterEvent, CycleState, EventResource, Filter, Plugin, Points, Signature, Status,
};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

/// The plugin `NodeName`.
#[derive(Debug)]
pub struct NodeName;

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.filter.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        vec![ClusterEvent::new(EventResource::Node, Action::ADD)]
    }
}

impl Filter for NodeName {
    fn filter(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        match &pod.node_name {
            Some(name) if *name != node.name => {
                Status::unresolvable("node(s) didn't match the requested node name")
            }
            _ => Status::success(),
        }
    }

    fn sign_pod(&self, pod: &PodInfo, signature: &mut Signature) -> bool {
        signature.add(&pod.node_name);
        true
    }
}
