//! What the containers of a pod have of its claims on a node, for plugins that care where devices are.

use k8s_openapi::api::core::v1::{Container, ContainerExtendedResourceRequest};
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};

use super::claims::{self, Named};
use super::{Data, extended};
use crate::devices::{Devices, uid};
use crate::framework::CycleState;
use crate::pod::PodInfo;

/// A claim, or one request of it, that a container uses.
#[derive(Debug, Clone)]
pub(crate) struct HeldClaim {
    /// The container's name.
    pub(crate) container: String,
    /// The claim's name.
    pub(crate) claim: String,
    /// `None`: all requests.
    pub(crate) request: Option<String>,
    /// What is allocated to the claim, or would be on the node.
    pub(crate) allocation: AllocationResult,
}

/// What the containers of a pod have of claims. With the state of a scheduling cycle, in which DynamicResources has
/// looked at the node, also what it would allocate there. Claims without allocation are left out.
pub(crate) fn held(
    devices: &Devices,
    pod: &PodInfo,
    choice: Option<(&CycleState, &str)>,
) -> Vec<HeldClaim> {
    let status = pod.pod.status.as_ref();
    let generated = status.and_then(|s| s.extended_resource_claim_status.as_ref());
    if !claims::has_claims(pod) && generated.is_none() && choice.is_none() {
        return Vec::new();
    }
    let chosen = choice.map(|(state, node)| Chosen::on(state, node));
    let chosen = chosen.unwrap_or_default();
    let mut held = Vec::new();
    for (entry, claim) in claims::all_of_pod(devices, pod).unwrap_or_default() {
        let Named::Structured(claim) = claim else {
            continue;
        };
        let known = devices.allocation_of(&claim);
        let Some(allocation) = known.or_else(|| chosen.of(&claim)) else {
            continue;
        };
        for (container, request) in users(pod, entry) {
            held.push(HeldClaim {
                container,
                claim: claim.metadata.name.clone().unwrap_or_default(),
                request,
                allocation: allocation.clone(),
            });
        }
    }
    let mut extended = |claim: &str,
                        allocation: &AllocationResult,
                        mappings: &[ContainerExtendedResourceRequest]| {
        held.extend(mappings.iter().map(|mapping| HeldClaim {
            container: mapping.container_name.clone(),
            claim: claim.to_owned(),
            request: Some(mapping.request_name.clone()),
            allocation: allocation.clone(),
        }));
    };
    if let (Some(status), Some(claim)) = (generated, claims::for_extended(devices, pod)) {
        if let Some(allocation) = devices.allocation_of(&claim) {
            let mappings = &status.request_mappings;
            extended(&status.resource_claim_name, &allocation, mappings);
        }
    } else if let Some((made, allocation)) = &chosen.extended {
        let name = made.claim.metadata.name.as_deref().unwrap_or_default();
        extended(name, allocation, &made.mappings);
    }
    held
}

/// Containers that use an entry of the pod's claims, and which request.
fn users(pod: &PodInfo, entry: &str) -> Vec<(String, Option<String>)> {
    let spec = pod.spec();
    let containers = spec.init_containers.iter().flatten();
    let of = |container: &Container| {
        let resources = container.resources.iter();
        let uses = resources.flat_map(|r| r.claims.iter().flatten());
        let own = uses.filter(|used| used.name == entry);
        let named = own.map(|used| {
            let request = used.request.clone().filter(|r| !r.is_empty());
            (container.name.clone(), request)
        });
        named.collect::<Vec<_>>()
    };
    containers.chain(&spec.containers).flat_map(of).collect()
}

/// What DynamicResources has found on a node.
#[derive(Default)]
struct Chosen {
    /// By the claims' UIDs.
    claims: Vec<(String, AllocationResult)>,
    extended: Option<(extended::Claim, AllocationResult)>,
}

impl Chosen {
    fn on(state: &CycleState, node: &str) -> Self {
        let Some(data) = state.get::<Data>() else {
            return Self::default();
        };
        let cycle = &data.cycle;
        let Some((found, planned)) = cycle.allocation_on(node, &|| false) else {
            return Self::default();
        };
        let pending = cycle.pending.iter().map(|&i| uid(&cycle.claims[i]));
        let claims = pending.zip(found.results.iter().cloned()).collect();
        // The claim for extended resources is the last of the plan.
        let last = found.results.last().cloned();
        let extended = planned.extended.clone().zip(last);
        Self { claims, extended }
    }

    fn of(&self, claim: &ResourceClaim) -> Option<AllocationResult> {
        let key = uid(claim);
        let mut known = self.claims.iter().filter(|(uid, _)| *uid == key);
        known.next().map(|(_, allocation)| allocation.clone())
    }
}
