//! NodeRestriction: nodes write only what is theirs.
//!
//! Complements the Node authorizer, which does not see the objects written: a node changes its own
//! Node (labels only from an agreed set, no taints), makes and deletes mirror pods bound to
//! itself, reports the status of its pods, asks for tokens and certificates bound to them and for
//! certificates of its own, says what became of the local volumes that it keeps, and owns its Lease, CSINode and
//! ResourceSlices. See
//! <https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#noderestriction>.

mod certificates;
mod mirror;
mod own_node;
mod tokens;
mod volumes;

use std::sync::Arc;

use davit_access::authz::node_of;
use davit_api::status::{Qualified, Status};
use davit_registry::object;
use serde_json::{Map, Value};

pub use own_node::is_nodes_label;

use super::{Attributes, Mutating, Operation, forbidden};

const MIRROR: &str = "kubernetes.io/config.mirror";
const LEASES: &str = "kube-node-lease";

pub(super) struct NodeRestriction;

type RestrictionResult = Result<(), String>;

impl Mutating for NodeRestriction {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        if !attributes.server.restricts_nodes() || attributes.operation == Operation::Connect {
            return Ok(());
        }
        let Some(node) = node_of(attributes.user) else {
            return Ok(());
        };
        let object = object.map(|object| &*object);
        let refuse = |why: String| forbidden(attributes, object, why);
        if node.is_empty() {
            let name = &attributes.user.name;
            return Err(refuse(format!(
                "could not determine node from user {name:?}"
            )));
        }
        let row = &attributes.resource.row;
        let verdict = match (row.group, row.plural, attributes.subresource) {
            ("", "pods", "") => return self.pod(node, attributes, object).await,
            ("", "pods", "status") => pod_status(node, attributes, object),
            ("", "pods", "eviction") => return eviction(node, attributes, object).await,
            ("", "pods", other) => Err(format!(
                "unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"
            )),
            ("", "nodes", _) => own_node::check(node, attributes, object),
            ("", "persistentvolumeclaims", "status") => claim_status(node, attributes, object),
            ("", "persistentvolumeclaims", _) => Err("may only update PVC status".to_owned()),
            ("", "persistentvolumes", _) => volumes::check(node, attributes, object),
            ("", "serviceaccounts", "token") => {
                return tokens::check(node, attributes, object).await;
            }
            ("certificates.k8s.io", "podcertificaterequests", _) => {
                return certificates::of_pod(node, attributes, object).await;
            }
            ("certificates.k8s.io", "certificatesigningrequests", "") => {
                certificates::of_node(node, attributes, object)
            }
            ("coordination.k8s.io", "leases", _) => lease(node, attributes, object),
            ("storage.k8s.io", "csinodes", _) => named_as_node(node, attributes, object)
                .then_some(())
                .ok_or_else(|| {
                    "can only access CSINode with the same name as the requesting node".to_owned()
                }),
            ("topology.node.k8s.io", "noderesourcetopologies", _) => named_as_node(
                node, attributes, object,
            )
            .then_some(())
            .ok_or_else(|| {
                "can only access NodeResourceTopology with the same name as the requesting node"
                    .to_owned()
            }),
            ("resource.k8s.io", "resourceslices", _) => slice(node, attributes, object),
            _ => Ok(()),
        };
        verdict.map_err(refuse)
    }
}

impl NodeRestriction {
    async fn pod(
        &self,
        node: &str,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let refuse = |why: String| forbidden(attributes, object, why);
        match (attributes.operation, object, attributes.old) {
            (Operation::Create, Some(pod), _) => {
                mirror::check(node, pod).map_err(refuse)?;
                let held = attributes.server.object("", "nodes", "", node).await?;
                let held =
                    held.ok_or_else(|| Status::not_found(Qualified::new("", "nodes"), node))?;
                let claimed = pod["metadata"]["ownerReferences"][0]["uid"]
                    .as_str()
                    .unwrap_or_default();
                let uid = object::uid(&held);
                if claimed != uid {
                    return Err(refuse(format!(
                        "node {node} UID mismatch: expected {claimed} got {uid}"
                    )));
                }
                Ok(())
            }
            (Operation::Delete, _, Some(old)) => {
                if node_name(old) == node {
                    return Ok(());
                }
                Err(refuse(format!(
                    "node {node:?} can only delete pods with spec.nodeName set to itself"
                )))
            }
            (operation, ..) => Err(refuse(format!(
                "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
                word(operation)
            ))),
        }
    }
}

fn word(operation: Operation) -> &'static str {
    match operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
        Operation::Connect => "CONNECT",
    }
}

fn node_name(pod: &Value) -> &str {
    pod.pointer("/spec/nodeName")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn pod_status(
    node: &str,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
) -> RestrictionResult {
    let (Operation::Update, Some(new), Some(old)) = (attributes.operation, object, attributes.old)
    else {
        return Err(format!(
            "unexpected operation {:?}",
            word(attributes.operation)
        ));
    };
    if node_name(old) != node {
        return Err(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    if labels(new) != labels(old) {
        return Err(format!(
            "node {node:?} cannot update labels through pod status"
        ));
    }
    for key in ["finalizers", "ownerReferences"] {
        if items(&new["metadata"][key]) != items(&old["metadata"][key]) {
            return Err(format!(
                "node {node:?} cannot update {key} through pod status"
            ));
        }
    }
    let claims = |pod: &Value| items(&pod["status"]["resourceClaimStatuses"]).to_vec();
    let extended = |pod: &Value| pod["status"]["extendedResourceClaimStatus"].clone();
    if claims(new) != claims(old) {
        return Err(format!(
            "node {node:?} cannot update resource claim statues"
        ));
    }
    if extended(new) != extended(old) {
        return Err(format!(
            "node {node:?} cannot update extended resource claim status"
        ));
    }
    Ok(())
}

async fn eviction(
    node: &str,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
) -> Result<(), Status> {
    let name = Some(attributes.name)
        .filter(|name| !name.is_empty())
        .or_else(|| object.map(object::name))
        .unwrap_or_default();
    let pod = pod_of(attributes, name).await?;
    if node_name(&pod) == node {
        return Ok(());
    }
    let why = format!("node {node} can only evict pods with spec.nodeName set to itself");
    Err(forbidden(attributes, object, why))
}

async fn pod_of(attributes: &Attributes<'_>, name: &str) -> Result<Arc<Value>, Status> {
    let found = attributes
        .server
        .object("", "pods", attributes.namespace, name)
        .await?;
    found.ok_or_else(|| Status::not_found(Qualified::new("", "pods"), name))
}

fn labels(object: &Value) -> Option<&Map<String, Value>> {
    object["metadata"]["labels"]
        .as_object()
        .filter(|labels| !labels.is_empty())
}

fn claim_status(
    node: &str,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
) -> RestrictionResult {
    let (Operation::Update, Some(new), Some(old)) = (attributes.operation, object, attributes.old)
    else {
        return Err(format!(
            "unexpected operation {:?}",
            word(attributes.operation)
        ));
    };
    let rest = |claim: &Value| {
        let mut claim = claim.clone();
        object::remove_meta(&mut claim, &["resourceVersion", "managedFields"]);
        if let Some(status) = claim.get_mut("status").and_then(Value::as_object_mut) {
            for key in [
                "capacity",
                "conditions",
                "allocatedResources",
                "allocatedResourceStatuses",
            ] {
                status.remove(key);
            }
        }
        claim
    };
    if rest(new) == rest(old) {
        return Ok(());
    }
    Err(format!(
        "node {node:?} is not allowed to update fields other than status.capacity and status.conditions"
    ))
}

fn named_as_node(node: &str, attributes: &Attributes<'_>, object: Option<&Value>) -> bool {
    match attributes.operation {
        Operation::Create => object.map(object::name) == Some(node),
        _ => attributes.name == node,
    }
}

fn lease(node: &str, attributes: &Attributes<'_>, object: Option<&Value>) -> RestrictionResult {
    if attributes.namespace != LEASES {
        return Err(format!(
            "can only access leases in the {LEASES:?} system namespace"
        ));
    }
    if named_as_node(node, attributes, object) {
        return Ok(());
    }
    Err("can only access node lease with the same name as the requesting node".to_owned())
}

fn slice(node: &str, attributes: &Attributes<'_>, object: Option<&Value>) -> RestrictionResult {
    let of = |slice: &Value| {
        ["/spec/nodeName", "/nodeName"]
            .iter()
            .find_map(|pointer| slice.pointer(pointer).and_then(Value::as_str))
            .map(str::to_owned)
    };
    match attributes.operation {
        Operation::Create if object.and_then(of).as_deref() != Some(node) => Err(
            "can only create ResourceSlice with the same NodeName as the requesting node"
                .to_owned(),
        ),
        Operation::Delete if attributes.old.and_then(of).as_deref() != Some(node) => Err(
            "can only delete ResourceSlice with the same NodeName as the requesting node"
                .to_owned(),
        ),
        _ => Ok(()),
    }
}
