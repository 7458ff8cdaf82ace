//! The pod status the node reports: a pure function of the pod, the runtime's state and what the worker knows.

mod conditions;
mod containers;
mod phase;

use crate::plan::ProbeResult;
use crate::resize::Sizes;
use crate::runtime_state::PodRuntime;
use davit_pods::pod::PodExt;
use davit_pods::pod::Waiting;
use davit_pods::resources::{Qos, pod_resources};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    HostIP, Pod, PodCondition, PodIP, PodStatus, ResourceRequirements, ResourceStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::BTreeMap;

/// Readiness and startup as the probes see them, by container ID.
pub(crate) trait ReadyView {
    /// Result of the readiness probe; `None` when there is no such probe.
    fn readiness(&self, container_id: &str) -> Option<ProbeResult>;
    /// Result of the startup probe.
    fn startup(&self, container_id: &str) -> Option<ProbeResult>;
}

/// An end that the node itself decided: admission refusal, deadline, eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeDecision {
    /// `status.reason`.
    pub reason: String,
    /// `status.message`.
    pub message: String,
    /// The node ended the pod for the sake of others: condition `DisruptionTarget`.
    pub disruption: bool,
}

/// What a status is made from.
pub(crate) struct Input<'a> {
    /// The pod with the status last seen in the API.
    pub pod: &'a Pod,
    /// What the runtime has.
    pub runtime: &'a PodRuntime,
    /// Containers that wait and why, by name.
    pub waiting: &'a BTreeMap<String, Waiting>,
    /// Probe results.
    pub ready: &'a dyn ReadyView,
    /// `allocatedResourcesStatus` by container name.
    pub devices: &'a BTreeMap<String, Vec<ResourceStatus>>,
    /// Resources of running containers whose size is not what the pod has been granted, by name.
    pub sizes: &'a BTreeMap<String, ResourceRequirements>,
    /// Resources of the pod as a whole that are in force while it has been granted others.
    pub level: Option<&'a ResourceRequirements>,
    /// Conditions about a resize of the pod; those it does not have are taken away.
    pub resize: &'a [PodCondition],
    /// Failure decided by the node.
    pub verdict: Option<&'a NodeDecision>,
    /// Why the pod as a whole still waits before any container (a plugin that is coming back, a volume).
    pub held: Option<&'a Waiting>,
    /// The worker is ending the pod.
    pub ending: bool,
    /// All containers have ended for good.
    pub ended: bool,
    /// Whether the runtime makes mounts read-only with what is mounted below them.
    pub recursive_read_only: bool,
    /// Name of the runtime, for container IDs.
    pub runtime_name: &'a str,
    /// Addresses of the node.
    pub host_ips: &'a [String],
    /// When the node took the pod over, for pods that have no start time yet.
    pub accepted: Timestamp,
    /// The clock.
    pub now: Timestamp,
}

impl Input<'_> {
    /// Nothing of the pod runs any more. Before that a pod is not said to have failed: others would take what it holds.
    fn is_over(&self) -> bool {
        self.ended || self.runtime.is_quiet()
    }
}

/// Makes the status.
pub(crate) fn generate(input: &Input<'_>) -> PodStatus {
    let pod = input.pod;
    let old = pod.pod_status();
    let mut status = PodStatus {
        conditions: old.conditions.clone(),
        nominated_node_name: old.nominated_node_name.clone(),
        resize: old.resize.clone(),
        resource_claim_statuses: old.resource_claim_statuses.clone(),
        extended_resource_claim_status: old.extended_resource_claim_status.clone(),
        node_allocatable_resource_claim_statuses: old
            .node_allocatable_resource_claim_statuses
            .clone(),
        observed_generation: pod.metadata.generation,
        qos_class: Some(Qos::of(pod).as_str().to_owned()),
        start_time: Some(old.start_time.clone().unwrap_or(Time(input.accepted))),
        ..PodStatus::default()
    };
    addresses(input, &mut status);
    containers::fill(input, &mut status);
    whole(input, &mut status);
    let phase = phase::phase(input, &status);
    // A pod that has failed or succeeded never comes back.
    let phase = match old.phase.as_deref() {
        Some(last @ ("Failed" | "Succeeded")) => last,
        _ => phase,
    };
    status.phase = Some(phase.to_owned());
    if let Some(verdict) = input.verdict.filter(|_| input.is_over()) {
        status.reason = Some(verdict.reason.clone());
        status.message = Some(verdict.message.clone());
    } else if pod.is_terminal() {
        status.reason = old.reason.clone();
        status.message = old.message.clone();
    } else if let Some(held) = input.held {
        status.reason = Some(held.reason.clone());
        status.message = Some(held.message.clone());
    }
    conditions::fill(input, &mut status);
    status
}

/// What the pod as a whole has been granted, and what is in force (KEP-5419).
fn whole(input: &Input<'_>, status: &mut PodStatus) {
    let granted = pod_resources(input.pod);
    status.allocated_resources.clone_from(&granted.requests);
    let in_force = if input.level.is_none() && input.sizes.is_empty() {
        granted
    } else {
        let mut pod = input.pod.clone();
        let sizes = Sizes {
            pod: input.level.cloned(),
            containers: input.sizes.clone(),
        };
        sizes.put_into(&mut pod);
        pod_resources(&pod)
    };
    status.resources = (in_force != ResourceRequirements::default()).then_some(in_force);
}

fn addresses(input: &Input<'_>, status: &mut PodStatus) {
    let old = input.pod.pod_status();
    if let Some(first) = input.host_ips.first() {
        status.host_ip = Some(first.clone());
        status.host_ips = Some(
            input
                .host_ips
                .iter()
                .map(|ip| HostIP { ip: ip.clone() })
                .collect(),
        );
    }
    let ips: Vec<String> = if input.pod.host_network() {
        input.host_ips.to_vec()
    } else {
        in_order_of_node(input.runtime.ips(), input.host_ips)
    };
    if ips.is_empty() {
        // The address stays on record after the sandbox is gone.
        status.pod_ip.clone_from(&old.pod_ip);
        status.pod_ips.clone_from(&old.pod_ips);
    } else {
        status.pod_ip = ips.first().cloned();
        status.pod_ips = Some(ips.into_iter().map(|ip| PodIP { ip }).collect());
    }
}

/// A pod's addresses: the one of the family that is the node's first one comes first, and there is at most one of each.
fn in_order_of_node(ips: &[String], host_ips: &[String]) -> Vec<String> {
    let is_six = |ip: &String| ip.contains(':');
    let first = host_ips.first().or(ips.first()).is_some_and(is_six);
    let of = |six: bool| ips.iter().find(|ip| is_six(ip) == six);
    [first, !first]
        .into_iter()
        .filter_map(of)
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests;
