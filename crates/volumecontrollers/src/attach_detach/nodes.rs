//! What Nodes tell of themselves.

use super::actions::{AttachNode, NodeListing};
use davit_reconcile::nodes::{is_out_of_service, is_ready};
use k8s_openapi::api::core::v1::Node;
use std::collections::BTreeMap;

/// The annotation of nodes whose agents leave attaching to this controller.
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// Whether volumes are attached to the node by this controller, and not by its own agent.
pub(super) fn is_managed(node: &Node) -> bool {
    let annotations = node.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(MANAGED))
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
