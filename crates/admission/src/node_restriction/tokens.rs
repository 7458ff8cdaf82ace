//! Tokens of service accounts that a node asks for.
//! <https://kubernetes.io/docs/reference/access-authn-authz/node/#service-account-token-audience-restriction>

use davit_access::RequestInfo;
use davit_access::authz::{self, Decision};
use davit_api::status::Status;
use davit_registry::object;
use serde_json::Value;

use super::{items, node_name, pod_of};
use crate::{Attributes, Operation, forbidden};

/// A token is for a pod of the node, and for an audience that the pod names.
pub(super) async fn check(
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
    let audiences = items(&request["spec"]["audiences"]);
    let asked = match audiences {
        [] => "",
        [one] => one.as_str().unwrap_or_default(),
        _ => return Err(refuse("node may only request 0 or 1 audiences")),
    };
    if names_audience(attributes, &pod, asked).await? || is_granted(attributes, asked).await {
        return Ok(());
    }
    let user = &attributes.user.name;
    Err(refuse(&format!(
        "audience {asked:?} not found in pod spec volume, {user} is not authorized to request tokens for this audience"
    )))
}

/// Whether a volume of the pod has tokens for this audience: a projected one, or one of a CSI driver that gets such.
async fn names_audience(
    attributes: &Attributes<'_>,
    pod: &Value,
    audience: &str,
) -> Result<bool, Status> {
    let is_asked = |source: &Value| source["audience"].as_str().unwrap_or_default() == audience;
    for volume in items(&pod["spec"]["volumes"]) {
        let sources = items(&volume["projected"]["sources"]).iter();
        let mut tokens = sources.filter_map(|source| source.get("serviceAccountToken"));
        if tokens.any(is_asked) {
            return Ok(true);
        }
        let Some(driver) = driver(attributes, pod, volume).await? else {
            continue;
        };
        let server = attributes.server;
        let driver = server.object("storage.k8s.io", "csidrivers", "", &driver);
        let driver = driver.await?.unwrap_or_default();
        if items(&driver["spec"]["tokenRequests"]).iter().any(is_asked) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The CSI driver of a volume: its own, or that of the volume which its claim is bound to.
async fn driver(
    attributes: &Attributes<'_>,
    pod: &Value,
    volume: &Value,
) -> Result<Option<String>, Status> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    if let Some(inline) = volume.get("csi") {
        return Ok(text(&inline["driver"]));
    }
    let claim = match volume["persistentVolumeClaim"]["claimName"].as_str() {
        Some(claim) => claim.to_owned(),
        None if volume.get("ephemeral").is_some() => {
            let name = volume["name"].as_str().unwrap_or_default();
            format!("{}-{name}", object::name(pod))
        }
        None => return Ok(None),
    };
    let server = attributes.server;
    let claim = server.object("", "persistentvolumeclaims", attributes.namespace, &claim);
    let claim = claim.await?.unwrap_or_default();
    let Some(volume) = text(&claim["spec"]["volumeName"]) else {
        return Ok(None);
    };
    let volume = server.object("", "persistentvolumes", "", &volume).await?;
    Ok(volume.and_then(|volume| text(&volume["spec"]["csi"]["driver"])))
}

/// Whether the node was given the audience, as credential providers of images need it.
async fn is_granted(attributes: &Attributes<'_>, audience: &str) -> bool {
    if audience.is_empty() {
        return false;
    }
    let request = RequestInfo {
        verb: "request-serviceaccounts-token-audience".to_owned(),
        is_resource: true,
        prefix: "api".to_owned(),
        version: "v1".to_owned(),
        namespace: Some(attributes.namespace.to_owned()),
        resource: audience.to_owned(),
        name: attributes.name.to_owned(),
        ..RequestInfo::default()
    };
    let asked = authz::Attributes {
        user: attributes.user,
        request: &request,
    };
    let decision = attributes.server.authorizer().decide(&asked).await;
    matches!(decision, Decision::Allow(_))
}
