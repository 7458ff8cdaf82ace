//! Certificates that a node asks for: its own, and those of its pods.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use davit_api::status::{Qualified, Status};
use davit_client::subject::Subject;
use davit_registry::object;
use serde_json::Value;

use super::{MIRROR, RestrictionResult, items, node_name, pod_of};
use crate::{Attributes, Operation, forbidden};

const OF_NODES: [&str; 2] = [
    "kubernetes.io/kubelet-serving",
    "kubernetes.io/kube-apiserver-client-kubelet",
];

/// A node asks for certificates of nodes in its own name only.
pub(super) fn of_node(
    node: &str,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
) -> RestrictionResult {
    let Some(request) = object.filter(|_| attributes.operation == Operation::Create) else {
        return Ok(());
    };
    let spec = &request["spec"];
    let signer = spec["signerName"].as_str().unwrap_or_default();
    if !OF_NODES.contains(&signer) {
        return Ok(());
    }
    let pem = STANDARD.decode(spec["request"].as_str().unwrap_or_default());
    let pem = pem.map_err(|error| format!("unable to parse csr: {error}"))?;
    let subject =
        Subject::of_request(&pem).map_err(|error| format!("unable to parse csr: {error}"))?;
    if subject.common_name == format!("system:node:{node}") {
        return Ok(());
    }
    Err(format!(
        "can only create a node CSR with CN=system:node:{node}"
    ))
}

/// A certificate for a pod is asked for by the node it runs on, for what it is, and for a signer that one of its volumes
/// names.
pub(super) async fn of_pod(
    node: &str,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
) -> Result<(), Status> {
    let refuse = |why: String| Err(forbidden(attributes, object, why));
    if attributes.operation != Operation::Create {
        return refuse(format!(
            "unexpected operation {:?}",
            attributes.operation.name()
        ));
    }
    if !attributes.subresource.is_empty() {
        return refuse(format!("unexpected subresource {}", attributes.subresource));
    }
    let spec = object.map(|request| request["spec"].clone());
    let spec = spec.unwrap_or_default();
    let text = |key: &str| spec[key].as_str().unwrap_or_default();
    if text("nodeName") != node {
        return refuse(format!(
            "PodCertificateRequest.Spec.NodeName={:?}, which is not the requesting node {node:?}",
            text("nodeName")
        ));
    }
    let server = attributes.server;
    let held = server.object("", "nodes", "", node).await?;
    let held = held.ok_or_else(|| Status::not_found(Qualified::new("", "nodes"), node))?;
    let name = text("podName");
    let place = format!("{}/{name}", attributes.namespace);
    let mismatch = |what: &str, said: &str, is: &str| {
        format!(
            "PodCertificateRequest for pod {place:?} names {what} {said:?}, which differs from {is:?}"
        )
    };
    if text("nodeUID") != object::uid(&held) {
        return refuse(mismatch("node UID", text("nodeUID"), object::uid(&held)));
    }
    let pod = pod_of(attributes, name).await?;
    if text("podUID") != object::uid(&pod) {
        return refuse(mismatch("pod UID", text("podUID"), object::uid(&pod)));
    }
    if node_name(&pod) != node {
        return refuse(format!(
            "pod {place:?} is not running on node {node:?} named in the PodCertificateRequest"
        ));
    }
    if pod["metadata"]["annotations"].get(MIRROR).is_some() {
        return refuse(format!("pod {place:?} is a mirror pod"));
    }
    let account = text("serviceAccountName");
    let runs_as = pod["spec"]["serviceAccountName"].as_str();
    let runs_as = runs_as.unwrap_or_default();
    if account != runs_as {
        return refuse(mismatch("service account", account, runs_as));
    }
    let held = server.object("", "serviceaccounts", attributes.namespace, account);
    let held = held.await?;
    let held =
        held.ok_or_else(|| Status::not_found(Qualified::new("", "serviceaccounts"), account))?;
    let uid = text("serviceAccountUID");
    if uid != object::uid(&held) {
        return refuse(mismatch("service account UID", uid, object::uid(&held)));
    }
    let signer = text("signerName");
    let volumes = items(&pod["spec"]["volumes"]).iter();
    let sources = volumes.flat_map(|volume| items(&volume["projected"]["sources"]));
    let mut named = sources.map(|source| &source["podCertificate"]["signerName"]);
    if named.any(|named| named.as_str() == Some(signer)) {
        return Ok(());
    }
    refuse(format!(
        "no volume of pod {place:?} has a certificate of signer {signer:?}"
    ))
}
