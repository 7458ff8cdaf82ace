//! NodeRestriction: nodes write only what is theirs.
//!
//! Complements the Node authorizer, which does not see the objects written: a node changes its own
//! Node (labels only from an agreed set, no taints), makes and deletes mirror pods bound to
//! itself, reports the status of its pods, asks for tokens bound to them, and owns its Lease,
//! CSINode and ResourceSlices. See
//! <https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#noderestriction>.

use std::collections::BTreeSet;

use davit_api::status::{Qualified, Status};
use serde_json::{Map, Value};

use super::{Attributes, Mutating, Operation, forbidden};
use crate::authz::node_of;
use crate::object;

const MIRROR: &str = "kubernetes.io/config.mirror";
const LEASES: &str = "kube-node-lease";
const RESTRICTED: &str = "node-restriction.kubernetes.io";

pub(super) struct NodeRestriction;

type Verdict = Result<(), String>;

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
            ("", "nodes", _) => own_node(node, attributes, object),
            ("", "persistentvolumeclaims", "status") => claim_status(node, attributes, object),
            ("", "persistentvolumeclaims", _) => Err("may only update PVC status".to_owned()),
            ("", "serviceaccounts", "token") => return token(node, attributes, object).await,
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
                mirror_pod(node, pod).map_err(refuse)?;
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

/// A pod that a node may make: a copy of a static pod, bound to and owned by the node, that leads
/// to no other object.
fn mirror_pod(node: &str, pod: &Value) -> Verdict {
    let is_mirror = pod["metadata"]["annotations"].get(MIRROR).is_some();
    if !is_mirror {
        return Err(format!(
            "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    if node_name(pod) != node {
        return Err(format!(
            "node {node:?} can only create pods with spec.nodeName set to itself"
        ));
    }
    let owner = match items(&pod["metadata"]["ownerReferences"]) {
        [owner] => owner,
        [] => {
            return Err(format!(
                "node {node:?} can only create pods with an owner reference set to itself"
            ));
        }
        _ => {
            return Err(format!(
                "node {node:?} can only create pods with a single owner reference set to itself"
            ));
        }
    };
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
        return Err(format!(
            "node {node:?} can only create pods with an owner reference set to itself"
        ));
    }
    if owner["controller"] != true {
        return Err(format!(
            "node {node:?} can only create pods with a controller owner reference set to itself"
        ));
    }
    if owner["blockOwnerDeletion"] == true {
        return Err(format!(
            "node {node:?} must not set blockOwnerDeletion on an owner reference"
        ));
    }
    let what = referred_kind(&pod["spec"]);
    what.map_or(Ok(()), |what| {
        Err(format!(
            "node {node:?} can not create pods that reference {what}"
        ))
    })
}

/// What kind of object a pod's spec refers to, if any.
fn referred_kind(spec: &Value) -> Option<&'static str> {
    let account = spec["serviceAccountName"].as_str().unwrap_or_default();
    if !account.is_empty() {
        return Some("a service account");
    }
    let containers = ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|list| items(&spec[list]));
    let from = |key: &str, list: &str, inner: &str| {
        containers
            .clone()
            .flat_map(|container| items(&container[list]))
            .any(|entry| match inner {
                "" => entry.get(key).is_some(),
                inner => entry[inner].get(key).is_some(),
            })
    };
    let volumes = items(&spec["volumes"]);
    let source = |key: &str| volumes.iter().any(|volume| volume.get(key).is_some());
    let projected = |key: &str| {
        volumes
            .iter()
            .flat_map(|volume| items(&volume["projected"]["sources"]))
            .any(|source| source.get(key).is_some())
    };
    let named = volumes.iter().any(|volume| {
        let sources = volume.as_object().into_iter().flatten();
        sources.map(|(_, source)| source).any(|source| {
            source.get("secretRef").is_some() || source.get("nodePublishSecretRef").is_some()
        })
    });
    let secrets = from("secretKeyRef", "env", "valueFrom")
        || from("secretRef", "envFrom", "")
        || source("secret")
        || source("azureFile")
        || projected("secret")
        || named
        || !items(&spec["imagePullSecrets"]).is_empty();
    let maps = from("configMapKeyRef", "env", "valueFrom")
        || from("configMapRef", "envFrom", "")
        || source("configMap")
        || projected("configMap");
    if secrets {
        Some("secrets")
    } else if maps {
        Some("configmaps")
    } else if projected("clusterTrustBundle") {
        Some("clustertrustbundles")
    } else if source("persistentVolumeClaim") {
        Some("persistentvolumeclaims")
    } else if !items(&spec["resourceClaims"]).is_empty() {
        Some("resourceclaims")
    } else {
        None
    }
}

fn pod_status(node: &str, attributes: &Attributes<'_>, object: Option<&Value>) -> Verdict {
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

async fn pod_of(attributes: &Attributes<'_>, name: &str) -> Result<Value, Status> {
    let found = attributes
        .server
        .object("", "pods", attributes.namespace, name)
        .await?;
    found.ok_or_else(|| Status::not_found(Qualified::new("", "pods"), name))
}

async fn token(
    node: &str,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
) -> Result<(), Status> {
    let refuse = |why: &str| forbidden(attributes, object, why);
    let Some(request) = object.filter(|_| attributes.operation == Operation::Create) else {
        return Ok(());
    };
    let bound = &request["spec"]["boundObjectRef"];
    let text = |key: &str| bound[key].as_str().unwrap_or_default();
    if text("apiVersion") != "v1" || text("kind") != "Pod" || text("name").is_empty() {
        return Err(refuse("node requested token not bound to a pod"));
    }
    if text("uid").is_empty() {
        return Err(refuse(
            "node requested token with a pod binding without a uid",
        ));
    }
    let pod = pod_of(attributes, text("name")).await?;
    if object::uid(&pod) != text("uid") {
        let uid = text("uid");
        return Err(refuse(&format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. \
             The object might have been deleted and then recreated"
        )));
    }
    if node_name(&pod) != node {
        return Err(refuse(
            "node requested token bound to a pod scheduled on a different node",
        ));
    }
    Ok(())
}

fn own_node(node: &str, attributes: &Attributes<'_>, object: Option<&Value>) -> Verdict {
    let name = match attributes.name {
        "" => object.map(object::name).unwrap_or_default(),
        name => name,
    };
    if name != node {
        return Err(format!(
            "node {node:?} is not allowed to modify node {name:?}"
        ));
    }
    let Some(new) = object else { return Ok(()) };
    match (attributes.operation, attributes.old) {
        (Operation::Create, _) => {
            let forbidden = forbidden_labels(labels(new), None);
            if forbidden.is_empty() {
                return Ok(());
            }
            Err(format!(
                "node {node:?} is not allowed to set the following labels: {}",
                forbidden.join(", ")
            ))
        }
        (Operation::Update, Some(old)) => {
            if items(&new["spec"]["taints"]) != items(&old["spec"]["taints"]) {
                return Err(format!("node {node:?} is not allowed to modify taints"));
            }
            let forbidden = forbidden_labels(labels(new), labels(old));
            if forbidden.is_empty() {
                return Ok(());
            }
            Err(format!(
                "is not allowed to modify labels: {}",
                forbidden.join(", ")
            ))
        }
        _ => Ok(()),
    }
}

fn labels(object: &Value) -> Option<&Map<String, Value>> {
    object["metadata"]["labels"]
        .as_object()
        .filter(|labels| !labels.is_empty())
}

/// The changed labels that a node may not change, sorted.
fn forbidden_labels(
    new: Option<&Map<String, Value>>,
    old: Option<&Map<String, Value>>,
) -> Vec<String> {
    let keys = |labels: Option<&Map<String, Value>>| -> BTreeSet<String> {
        labels
            .into_iter()
            .flatten()
            .map(|(key, _)| key.clone())
            .collect()
    };
    let value = |labels: Option<&Map<String, Value>>, key: &str| {
        labels.and_then(|labels| labels.get(key).cloned())
    };
    keys(new)
        .union(&keys(old))
        .filter(|key| value(new, key) != value(old, key))
        .filter(|key| !is_nodes_label(key))
        .cloned()
        .collect()
}

/// Labels of kubernetes.io that nodes set themselves.
const NODES_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// Whole label domains that nodes set themselves.
const NODES_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

fn is_nodes_label(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let within = |of: &str| {
        domain == of
            || domain
                .strip_suffix(of)
                .is_some_and(|rest| rest.ends_with('.'))
    };
    if within(RESTRICTED) {
        return false;
    }
    if !within("kubernetes.io") && !within("k8s.io") {
        return true;
    }
    NODES_LABELS.contains(&key) || NODES_DOMAINS.iter().any(|of| within(of))
}

fn claim_status(node: &str, attributes: &Attributes<'_>, object: Option<&Value>) -> Verdict {
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

fn lease(node: &str, attributes: &Attributes<'_>, object: Option<&Value>) -> Verdict {
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

fn slice(node: &str, attributes: &Attributes<'_>, object: Option<&Value>) -> Verdict {
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_of_other_domains_and_the_agreed_ones_are_the_nodes_own() {
        for key in [
            "example.com/a",
            "plain",
            "kubernetes.io/hostname",
            "node.kubernetes.io/anything",
            "sub.kubelet.kubernetes.io/x",
        ] {
            assert!(is_nodes_label(key), "{key}");
        }
        for key in [
            "node-restriction.kubernetes.io/a",
            "a.node-restriction.kubernetes.io/a",
            "kubernetes.io/other",
            "node-role.kubernetes.io/control-plane",
            "other.k8s.io/x",
        ] {
            assert!(!is_nodes_label(key), "{key}");
        }
    }

    #[test]
    fn mirror_pods_lead_to_nothing() {
        let pod = json!({
            "metadata": {
                "annotations": {MIRROR: "x"},
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true,
                }],
            },
            "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
        });
        assert_eq!(mirror_pod("n", &pod), Ok(()));
        assert!(mirror_pod("m", &pod).is_err());
        let mut with_secret = pod.clone();
        with_secret["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": "s"}}]);
        assert_eq!(
            mirror_pod("n", &with_secret),
            Err("node \"n\" can not create pods that reference secrets".to_owned())
        );
        let mut by_env = pod;
        by_env["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "m"}}]);
        assert_eq!(
            mirror_pod("n", &by_env),
            Err("node \"n\" can not create pods that reference configmaps".to_owned())
        );
    }
}
