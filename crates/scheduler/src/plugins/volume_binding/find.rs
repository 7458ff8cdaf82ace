//! What a node has for the claims of a pod.

use std::sync::Arc;

use davit_volume::binding::{selected_node, volume_name};
use davit_volume::class::{can_provision, claim_class};
use davit_volume::matching::{find_volume_on_node, fits_node, request_of};
use k8s_openapi::api::core::v1::{
    Node, PersistentVolume, PersistentVolumeClaim, TopologySelectorTerm,
};

use super::{Data, capacity};
use crate::framework::Status;
use crate::node::NodeInfo;
use crate::storage::Storage;

const ELSEWHERE: &str = "node(s) didn't match PersistentVolume's node affinity";
const NONE_TO_BIND: &str = "node(s) didn't find available persistent volumes to bind";
const NO_ROOM: &str = "node(s) did not have enough free storage";
const MISSING: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";

/// What is to be written for a pod on a node.
#[derive(Debug, Clone, Default)]
pub(super) struct Found {
    /// The node.
    pub(super) node: Option<Arc<Node>>,
    /// Volumes that claims get.
    pub(super) bindings: Vec<(Arc<PersistentVolumeClaim>, Arc<PersistentVolume>)>,
    /// Claims whose volumes are to be made on the node.
    pub(super) provisions: Vec<Arc<PersistentVolumeClaim>>,
    /// All claims that have no volume yet, which the pod waits for.
    pub(super) waits: Vec<Arc<PersistentVolumeClaim>>,
}

pub(super) fn on_node(storage: &Storage, data: &Data, node: &NodeInfo) -> Result<Found, Status> {
    for claim in &data.claims.bound {
        let name = volume_name(claim).unwrap_or_default();
        let volume = storage.volume(name);
        let volume = volume.ok_or_else(|| Status::unresolvable(MISSING))?;
        if !fits_node(&volume, node.labels()) {
            return Err(Status::unresolvable(ELSEWHERE));
        }
    }
    let mut found = Found {
        node: node.node.clone(),
        waits: data.claims.delayed.clone(),
        ..Found::default()
    };
    let mut unmatched = Vec::new();
    let mut delayed = data.claims.delayed.clone();
    delayed.sort_by_key(|claim| request_of(claim));
    for claim in delayed {
        if let Some(selected) = selected_node(&claim) {
            if selected != &*node.name {
                return Err(Status::unresolvable(NONE_TO_BIND));
            }
            unmatched.push(claim);
            continue;
        }
        let taken = |volume: &PersistentVolume| {
            let name = &volume.metadata.name;
            found
                .bindings
                .iter()
                .any(|(_, other)| other.metadata.name == *name)
        };
        let volumes = data.volumes.iter().map(|volume| &**volume);
        let name = find_volume_on_node(&claim, volumes, node.labels(), taken)
            .and_then(|volume| volume.metadata.name.clone());
        match name.and_then(|name| storage.volume(&name)) {
            Some(volume) => found.bindings.push((claim, volume)),
            None => unmatched.push(claim),
        }
    }
    for claim in unmatched {
        provisionable(storage, &claim, node)?;
        found.provisions.push(claim);
    }
    Ok(found)
}

/// Whether a volume can be made for the claim on the node.
fn provisionable(
    storage: &Storage,
    claim: &PersistentVolumeClaim,
    node: &NodeInfo,
) -> Result<(), Status> {
    let none = || Status::unresolvable(NONE_TO_BIND);
    let class = claim_class(claim).and_then(|name| storage.class(name));
    let class = class
        .filter(|class| can_provision(class))
        .ok_or_else(none)?;
    let allowed = class.allowed_topologies.as_deref().unwrap_or_default();
    if !allowed.is_empty() && !allowed.iter().any(|term| selects(term, node)) {
        return Err(none());
    }
    if capacity::is_enough(storage, &class, claim, node) {
        return Ok(());
    }
    Err(Status::unresolvable(NO_ROOM))
}

fn selects(term: &TopologySelectorTerm, node: &NodeInfo) -> bool {
    let mut expressions = term.match_label_expressions.iter().flatten();
    expressions.all(|expression| {
        let value = node.label(&expression.key);
        value.is_some_and(|value| expression.values.iter().any(|v| v == value))
    })
}
