//! Keeps pods off nodes that do not declare what the pods need (KEP-5328).

use std::sync::Arc;

use davit_api::declared_features::{missing, needed};

use crate::cache::Snapshot;
use crate::framework::{
    Action, ClusterEvent, CycleState, EventObject, EventResource, Filter, Hint, NodeNames, Plugin,
    Points, PreFilter, Signature, Status,
};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

/// The plugin `NodeDeclaredFeatures`.
#[derive(Debug)]
pub struct NodeDeclaredFeatures;

fn is_fit(pod: &PodInfo, node: &k8s_openapi::api::core::v1::Node) -> bool {
    let needed = needed(pod.spec());
    let status = node.status.as_ref();
    let declared = status.and_then(|s| s.declared_features.as_deref());
    missing(&needed, declared.unwrap_or_default()).is_empty()
}

impl Plugin for NodeDeclaredFeatures {
    fn name(&self) -> &'static str {
        "NodeDeclaredFeatures"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.pre_filter.push(self.clone());
        points.filter.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        let node = Action::ADD | Action::UPDATE_DECLARED_FEATURES;
        vec![ClusterEvent::new(EventResource::Node, node)]
    }

    fn hint(&self, _: &ClusterEvent, pod: &PodInfo, object: &EventObject) -> Hint {
        match object {
            EventObject::Node {
                new: Some(node), ..
            } if !is_fit(pod, node) => Hint::Skip,
            _ => Hint::Queue,
        }
    }
}

impl PreFilter for NodeDeclaredFeatures {
    fn pre_filter(&self, _: &mut CycleState, pod: &PodInfo, _: &Snapshot) -> (Status, NodeNames) {
        let status = match needed(pod.spec()).is_empty() {
            true => Status::skip(),
            false => Status::success(),
        };
        (status, None)
    }
}

impl Filter for NodeDeclaredFeatures {
    fn filter(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        if node.node.as_deref().is_none_or(|node| is_fit(pod, node)) {
            return Status::success();
        }
        Status::unresolvable("node(s) didn't match Pod's required features")
    }

    fn sign_pod(&self, pod: &PodInfo, signature: &mut Signature) -> bool {
        signature.add(&needed(pod.spec()));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::pod;
    use serde_json::json;

    fn node(features: &[&str]) -> NodeInfo {
        let node = json!({"metadata": {"name": "n"}, "status": {"declaredFeatures": features}});
        let mut info = NodeInfo::new("n".into());
        info.set_node(Arc::new(serde_json::from_value(node).unwrap()));
        info
    }

    #[test]
    fn nodes_need_what_pods_ask_for() {
        let plain = pod("plain", json!({}));
        let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}});
        let together = pod(
            "together",
            json!({"containers": [{"name": "a", "restartPolicyRules": [rule]}]}),
        );
        let refused = |pod: &PodInfo, node: &NodeInfo| {
            let status = NodeDeclaredFeatures.filter(&CycleState::default(), pod, node);
            status.reasons.join(",")
        };
        let (old, new) = (node(&[]), node(&["RestartAllContainersOnContainerExits"]));
        assert_eq!(refused(&plain, &old), "");
        assert_eq!(
            refused(&together, &old),
            "node(s) didn't match Pod's required features"
        );
        assert_eq!(refused(&together, &new), "");
    }
}
