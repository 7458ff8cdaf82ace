//! What controllers read of nodes.

use k8s_openapi::api::core::v1::Node;

/// The taint of nodes that are off.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Whether a node has the taint by which an administrator says that it is off.
pub fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| &spec.taints).flatten();
    taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE)
}

/// Whether a node says that it is ready.
pub fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten();
    conditions.any(|c| c.type_ == "Ready" && c.status == "True")
}
