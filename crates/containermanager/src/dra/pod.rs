//! What is asked of the pod that uses claims.

use k8s_openapi::api::core::v1::{Pod, PodExtendedResourceClaimStatus, PodResourceClaim};

/// The pod's UID, empty when it has none.
pub(super) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// The pod's name.
pub(super) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The pod's namespace.
pub(super) fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or("default")
}

/// The claims that its spec names.
pub(super) fn resource_claims(pod: &Pod) -> impl Iterator<Item = &PodResourceClaim> {
    let claims = pod.spec.as_ref().and_then(|s| s.resource_claims.as_ref());
    claims.into_iter().flatten()
}

/// The claim that was made for its extended resources.
pub(super) fn extended(pod: &Pod) -> Option<&PodExtendedResourceClaimStatus> {
    pod.status.as_ref()?.extended_resource_claim_status.as_ref()
}
