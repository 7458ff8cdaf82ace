//! Devices that take CPUs, memory or huge pages of their node (KEP-5517): how much they take for a pod, whether the node has
//! it, and that it stands in the pod's status, by which it counts from then on.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::AllocationResult;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use super::bind::{BindError, within};
use super::{Cycle, DynamicResources, claims};
use crate::devices::{allocation, uid};
use crate::framework::Status;
use crate::node::NodeInfo;
use crate::plugins::node_resources_fit::{Amounts, shortages};
use crate::pod::PodInfo;
use crate::resources::{PodRequests, Resources, TakenByClaim, not_covered};

/// Stands for the name of the claim for extended resources, which does not exist yet.
const EXTENDED: &str = "<extended-resources>";

impl DynamicResources {
    /// Whether a node, on which there are devices for the pod, has what these take of it beside what the containers ask for.
    pub(super) fn look_at_node(&self, cycle: &Cycle, pod: &PodInfo, node: &NodeInfo) -> Status {
        if !self.devices.maps_node_resources() {
            return Status::success();
        }
        let taken = match self.taken(cycle, pod, node) {
            Ok(taken) => taken,
            Err(refusal) => return refusal,
        };
        if taken.is_empty() {
            return Status::success();
        }
        // What is there already is not to be had a second time.
        let is_there = node.pods.iter().any(|p| p.uid == pod.uid);
        if !is_there {
            if let Some(resource) = not_covered(&pod.pod, &taken) {
                return Status::unresolvable(format!(
                    "pod level request for {resource} is insufficient to cover the aggregated container and node-allocatable DRA requests"
                ));
            }
            let mut status = Status::success();
            let wanted = PodRequests::with(&pod.pod, &taken).requests;
            short_of(&wanted, node, |short| short.refuse(&mut status));
            if !status.is_success() {
                return status;
            }
        }
        let mut notes = cycle.notes.lock();
        notes.taken.insert(node.name.clone(), taken.into());
        Status::success()
    }

    /// Adds to a refusal of [`look_at_node`](Self::look_at_node) what the node has less than is wanted.
    pub(super) fn explain_node(
        &self,
        cycle: &Cycle,
        pod: &PodInfo,
        node: &NodeInfo,
        refusal: &mut Status,
    ) {
        if self.devices.maps_node_resources()
            && let Ok(taken) = self.taken(cycle, pod, node)
            && !taken.is_empty()
        {
            let wanted = PodRequests::with(&pod.pod, &taken).requests;
            short_of(&wanted, node, |short| refusal.shortages.push(short.into()));
        }
    }

    /// What the pod's devices take of a node, claim by claim, by their names. `Err` is the refusal of the node.
    fn taken(
        &self,
        cycle: &Cycle,
        pod: &PodInfo,
        node: &NodeInfo,
    ) -> Result<Vec<TakenByClaim>, Status> {
        let is_over = || cycle.searcher().is_some_and(|search| search.is_over());
        let found = cycle.allocation_on(&node.name, &is_over);
        if found.is_none() && cycle.is_found_on(&node.name) {
            let text = format!("node {}: timed out trying to allocate devices", node.name);
            return Err(Status::error(text));
        }
        let found: &[AllocationResult] = found.as_ref().map_or(&[], |(a, _)| &a.results);
        let inventory = self.devices.inventory();
        let amounts = |allocation: &AllocationResult| {
            let amounts = inventory.node_resources(allocation);
            amounts.map_err(|e| Status::unresolvable(e.to_string()))
        };
        let mut taken = Vec::new();
        for (i, claim) in cycle.claims.iter().enumerate() {
            let at = cycle.pending.iter().position(|p| *p == i);
            let decided = at.and_then(|at| found.get(at)).or(allocation(claim));
            let decided = decided.cloned();
            let Some(allocation) = decided.or_else(|| self.devices.allocation_of(claim)) else {
                continue;
            };
            let amounts = amounts(&allocation)?;
            if amounts.is_empty() {
                continue;
            }
            let name = claim.metadata.name.clone().unwrap_or_default();
            let others = node.takers_of_claim(&pod.namespace, &name);
            let how = match others.filter(|other| other.uid != pod.uid).count() {
                0 => None,
                1 => Some("is already used by another pod"),
                _ => Some("shared by multiple pods"),
            };
            if let Some(how) = how {
                let text = format!("node allocatable resource claim {name} {how}");
                return Err(Status::unresolvable(text));
            }
            let containers = self.containers_with(pod, &uid(claim));
            if containers.is_empty() {
                return Err(not_referenced(&name));
            }
            let resources = amounts.into_iter();
            let resources = resources.map(|(name, amount)| (name, Quantity(amount.to_string())));
            taken.push(TakenByClaim {
                containers: Some(containers),
                resource_claim_name: name,
                resources: resources.collect(),
            });
        }
        // No container names the claim for extended resources.
        if let Some(extended) = found.get(cycle.pending.len())
            && !amounts(extended)?.is_empty()
        {
            return Err(not_referenced(EXTENDED));
        }
        taken.sort_by(|a, b| a.resource_claim_name.cmp(&b.resource_claim_name));
        Ok(taken)
    }

    /// The containers that name the claim of this UID, init containers first.
    fn containers_with(&self, pod: &PodInfo, claim: &str) -> Vec<String> {
        let entries = claims::all_of_pod(&self.devices, pod).unwrap_or_default();
        let is_entry = |name: &str| {
            entries.iter().any(|(entry, named)| {
                let same = |c: &claims::Named| matches!(c, claims::Named::Structured(c) if uid(c) == claim);
                *entry == name && same(named)
            })
        };
        let having = pod.containers().filter(|container| {
            let resources = container.resources.iter();
            let mut names = resources.flat_map(|r| &r.claims).flatten();
            names.any(|named| is_entry(&named.name))
        });
        having.map(|container| container.name.clone()).collect()
    }

    /// Writes into the pod's status what its devices take of the node, in the place of what an earlier attempt has left.
    pub(super) async fn record_taken(
        &self,
        client: &kube::Client,
        cycle: &Cycle,
        pod: &PodInfo,
    ) -> Result<(), BindError> {
        let taken = cycle.notes.lock().taken.values().next().cloned();
        let status = pod.pod.status.as_ref();
        let left = status.and_then(|s| s.node_allocatable_resource_claim_statuses.as_ref());
        if taken.is_none() && left.is_none_or(Vec::is_empty) {
            return Ok(());
        }
        cycle.notes.lock().recorded = taken.is_some();
        record(client, &pod.pod, taken.as_deref()).await
    }
}

/// Takes out of a pod's status what its devices were to take of a node.
pub(super) async fn take_back(client: kube::Client, pod: Arc<Pod>) {
    if let Err(error) = record(&client, &pod, None).await {
        tracing::info!(%error, "the next attempt overwrites it");
    }
}

async fn record(
    client: &kube::Client,
    pod: &Pod,
    taken: Option<&[TakenByClaim]>,
) -> Result<(), BindError> {
    let status = json!({"nodeAllocatableResourceClaimStatuses": taken});
    let meta = &pod.metadata;
    let patch = Patch::Merge(json!({"metadata": {"uid": meta.uid}, "status": status}));
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = PatchParams::default();
    let name = meta.name.as_deref().unwrap_or_default();
    let write = pods.patch_status(name, &params, &patch);
    let claims = taken.unwrap_or_default().iter();
    let claims: Vec<&str> = claims.map(|t| t.resource_claim_name.as_str()).collect();
    let what = "record in the pod's status what the node gives for";
    within(what, &claims.join(", "), write).await.map(|_| ())
}

/// Tells of what the node has less than is wanted of its own resources.
fn short_of(wanted: &Resources, node: &NodeInfo, tell: impl FnMut(Amounts<'_>)) {
    let is_elsewhere = |name: &str| !name.starts_with("hugepages-");
    shortages(
        wanted,
        &node.allocatable,
        &node.requested,
        is_elsewhere,
        tell,
    );
}

fn not_referenced(claim: &str) -> Status {
    Status::unresolvable(format!(
        "claim {claim}: node-allocatable resource claim not referenced by any container within the pod"
    ))
}
