//! Leaves out nodes that are marked unschedulable.

use std::sync::Arc;

use davit_api::taint::tolerates;
use k8s_openapi::api::core::v1::Taint;

use crate::framework::{
    Action, ClusterEvent, CycleState, EventObject, EventResource, Filter, Hint, Plugin, Points,
    Signature, Status,
};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

/// The plugin `NodeUnschedulable`: refuses nodes with `spec.unschedulable` unless the pod tolerates
/// the taint that stands for it.
#[derive(Debug)]
pub struct NodeUnschedulable;

fn tolerated(pod: &PodInfo) -> bool {
    let taint = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    pod.tolerations().iter().any(|t| tolerates(t, &taint))
}

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.filter.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        vec![
            ClusterEvent::new(EventResource::Node, Action::ADD | Action::UPDATE_TAINT),
            ClusterEvent::new(EventResource::TargetPod, Action::UPDATE_TOLERATION),
        ]
    }

    fn hint(&self, _: &ClusterEvent, pod: &PodInfo, object: &EventObject) -> Hint {
        match object {
            EventObject::Node {
                new: Some(node), ..
            } => {
                let marked = node
                    .spec
                    .as_ref()
                    .and_then(|s| s.unschedulable)
                    .unwrap_or(false);
                if marked && !tolerated(pod) {
                    Hint::Skip
                } else {
                    Hint::Queue
                }
            }
            _ => Hint::Queue,
        }
    }
}

impl Filter for NodeUnschedulable {
    fn filter(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        if node.is_unschedulable() && !tolerated(pod) {
            return Status::unresolvable("node(s) were unschedulable");
        }
        Status::success()
    }

    fn sign_pod(&self, pod: &PodInfo, signature: &mut Signature) -> bool {
        pod.sign_tolerations(signature);
        true
    }
}
