//! The controllers of devices that pods claim (dynamic resource allocation, KEP-4381 and those after it): claims made and
//! given back, pods evicted for the taints of their devices, the state of pools.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]

mod device_taint_eviction;
mod resourceclaim;
mod resourcepool_status;

use davit_client::Informer;
use davit_reconcile::Spawner;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;

/// Starts them all; the informer of the claims is shared with others. With an informer of groups they look after the claims of
/// groups, too (KEP-5729).
pub fn spawn(
    spawner: &mut Spawner<'_>,
    groups: Option<&Informer<PodGroup>>,
) -> Informer<ResourceClaim> {
    let claims = resourceclaim::spawn(spawner, groups.cloned());
    let slices = resourceclaim::watch_slices(spawner);
    let rules = spawner.informer();
    let consumers = resourceclaim::consumers(groups);
    device_taint_eviction::spawn(
        spawner,
        claims.clone(),
        slices.clone(),
        rules.clone(),
        consumers,
    );
    resourcepool_status::spawn(spawner, claims.clone(), slices, rules);
    claims
}
