//! What Nodes tell of themselves.

use super::actions::{AttachNode, NodeListing};
use k8s_openapi::api::core::v1::Node;
use std::collections::BTreeMap;

/// The annotation of nodes whose agents leave attaching to this controller.
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// The taint of nodes that are off.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Whether volumes are attached to the node by this controller, and not by its own agent.
pub(super) fn is_managed(node: &Node) -> bool {
    let annotations = node.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(MANAGED))
}

/// Whether a node has the taint by which an administrator says that it is off.
pub(crate) fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| &spec.taints).flatten();
    taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE)
}

/// Whether a node says that it is ready.
pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten();
    conditions.any(|c| c.type_ == "Ready" && c.status == "True")
}

/// What the state has to know of a node.
pub(super) fn facts_of(node: &Node) -> AttachNode {
    let status = node.status.as_ref();
    let in_use = status.and_then(|s| s.volumes_in_use.clone());
    let attached = status.and_then(|s| s.volumes_attached.clone());
    let attached = attached.into_iter().flatten();
    let volumes: BTreeMap<String, String> = attached.map(|v| (v.name, v.device_path)).collect();
    AttachNode {
        ready: is_ready(node),
        out_of_service: is_out_of_service(node),
        in_use: in_use.into_iter().flatten().collect(),
        listing: NodeListing {
            volumes,
            version: version_of(node),
        },
    }
}

/// The resource version of a Node, as a number: later ones are larger.
pub(super) fn version_of(node: &Node) -> u64 {
    let version = node.metadata.resource_version.as_deref();
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}
