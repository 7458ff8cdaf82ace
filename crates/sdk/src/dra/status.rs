//! Telling users about allocated devices in the status of their claims (KEP-4817).

use std::time::Duration;

use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, ResourceClaim};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::ClaimId;

const REQUEST: Duration = Duration::from_secs(30);

/// Why a status was not written.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// The server did not answer in time.
    #[error("ResourceClaim {0}: no answer in time")]
    Timeout(ClaimId),
    /// The server refused: the claim is gone or another one, a device is not allocated, or the
    /// driver lacks a permission (`resourceclaims/driver`).
    #[error("ResourceClaim {id}: {source}")]
    Api {
        /// The claim.
        id: ClaimId,
        /// What the client says.
        source: Box<kube::Error>,
    },
}

/// Writes what a driver has to say about its devices in a claim: conditions, addresses, data.
/// Entries of other drivers stay; own ones that are left out go.
///
/// # Errors
/// The server did not take it.
pub async fn report_status(
    client: kube::Client,
    driver: &str,
    id: &ClaimId,
    devices: &[AllocatedDeviceStatus],
) -> Result<(), StatusError> {
    let api: Api<ResourceClaim> = Api::namespaced(client, &id.namespace);
    // With the UID, so that a claim that replaced this one is left alone.
    let patch = json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": id.name, "uid": id.uid},
        "status": {"devices": devices},
    });
    let params = PatchParams::apply(driver).force();
    let patch = Patch::Apply(patch);
    let write = api.patch_status(&id.name, &params, &patch);
    let answer = tokio::time::timeout(REQUEST, write).await;
    let answer = answer.map_err(|_| StatusError::Timeout(id.clone()))?;
    answer.map(drop).map_err(|source| StatusError::Api {
        id: id.clone(),
        source: Box::new(source),
    })
}
