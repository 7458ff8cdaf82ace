//! What controllers of all kinds read of pods, and how they end one.

use crate::controller::gone_is_none;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};

/// The node that the pod is bound to.
pub fn node_of(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref()?.node_name.as_deref();
    node.filter(|name| !name.is_empty())
}

/// Neither ended nor being deleted.
pub fn is_active(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && !is_terminal(pod)
}

/// Being deleted, and not ended yet.
pub fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some() && !is_terminal(pod)
}

/// Ended for good.
pub fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// `status.phase`, empty before the pod has one.
pub fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|s| s.phase.as_deref())
        .unwrap_or_default()
}

/// A patch of a pod's status: it ends for the sake of others (condition `DisruptionTarget`, KEP-3329).
pub fn disruption(pod: &Pod, reason: &str, message: &str) -> serde_json::Value {
    let now = Time(Timestamp::now());
    serde_json::json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [{
        "type": "DisruptionTarget", "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": now,
    }]}})
}

/// Ends a pod for the sake of others: says so, and deletes it. One that has gone is left.
///
/// # Errors
/// When the API server takes neither.
pub async fn disrupt(
    client: &kube::Client,
    pod: &Pod,
    reason: &str,
    message: &str,
) -> Result<(), kube::Error> {
    let (namespace, name) = (
        pod.metadata.namespace.as_deref().unwrap_or_default(),
        pod.metadata.name.as_deref().unwrap_or_default(),
    );
    let api: kube::Api<Pod> = kube::Api::namespaced(client.clone(), namespace);
    let patch = Patch::Strategic(disruption(pod, reason, message));
    let params = PatchParams::default();
    let marked = gone_is_none(api.patch_status(name, &params, &patch).await)?;
    if marked.is_none() {
        return Ok(());
    }
    let params = DeleteParams {
        preconditions: Some(kube::api::Preconditions {
            uid: pod.metadata.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    gone_is_none(api.delete(name, &params).await).map(drop)
}
