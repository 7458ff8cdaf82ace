//! What the containers of a pod ask for.

use std::collections::BTreeMap;

use davit_api::quantity::Quantity;
pub(crate) use davit_topology::claims::ClaimPlace;
use davit_topology::devices::ContainerKind;
use davit_topology::memory::MemoryAmounts;
use davit_topology::pod::{ContainerAsk, asks};
pub(crate) use davit_topology::published::pod_total;
use k8s_openapi::api::core::v1::{Container, Pod};

/// What one container asks for exclusively.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) container: String,
    pub(crate) kind: ContainerKind,
    /// An ordinary init container that has ended well; it will not run again.
    pub(crate) finished: bool,
    /// The limits that a device plugin may be responsible for: counts by resource name, in order
    /// of names; zeros are left out.
    pub(crate) resources: BTreeMap<String, usize>,
    /// Whole CPUs of a container of class Guaranteed; 0 for the shared pool.
    pub(crate) cpus: usize,
    /// Memory and huge pages of a container of class Guaranteed.
    pub(crate) memory: MemoryAmounts,
    /// Devices of resource claims that have a place.
    pub(crate) claims: Vec<ClaimPlace>,
}

/// The claims of containers, each once, with the devices of all of them.
pub(crate) fn claims<'a>(requests: impl IntoIterator<Item = &'a Request>) -> Vec<ClaimPlace> {
    let mut all: BTreeMap<&str, ClaimPlace> = BTreeMap::new();
    for place in requests.into_iter().flat_map(|r| &r.claims) {
        let known = all
            .entry(&place.claim)
            .or_insert_with(|| ClaimPlace::new(&place.claim));
        known.devices.extend(place.devices.clone());
    }
    all.into_values().collect()
}

/// The requests of a pod, containers in the order in which they start. Names that cannot be
/// device plugin resources are left out, so are those that dynamic allocation serves.
pub(crate) fn of(pod: &Pod) -> Vec<Request> {
    let containers: BTreeMap<&str, &Container> = pod
        .spec
        .iter()
        .flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers))
        .map(|c| (c.name.as_str(), c))
        .collect();
    let request = |ask: ContainerAsk| Request {
        finished: ask.kind == ContainerKind::Init && has_finished(pod, &ask.container),
        resources: containers
            .get(ask.container.as_str())
            .map(|c| resources(pod, c))
            .unwrap_or_default(),
        container: ask.container,
        kind: ask.kind,
        cpus: ask.cpus,
        memory: ask.memory,
        claims: Vec::new(),
    };
    asks(pod).into_iter().map(request).collect()
}

fn resources(pod: &Pod, container: &Container) -> BTreeMap<String, usize> {
    let limits = container
        .resources
        .iter()
        .flat_map(|r| r.limits.iter().flatten());
    let counts = limits.filter_map(|(name, quantity)| {
        if super::names::check(name).is_err() || is_claimed(pod, &container.name, name) {
            return None;
        }
        let count = Quantity::parse(&quantity.0).ok()?.value();
        Some((
            name.clone(),
            usize::try_from(count).ok().filter(|n| *n > 0)?,
        ))
    });
    counts.collect()
}

/// Whether the scheduler has put a generated resource claim in the place of this limit.
fn is_claimed(pod: &Pod, container: &str, resource: &str) -> bool {
    let status = pod
        .status
        .as_ref()
        .and_then(|s| s.extended_resource_claim_status.as_ref());
    let mappings = status.into_iter().flat_map(|s| &s.request_mappings);
    mappings
        .into_iter()
        .any(|m| m.container_name == container && m.resource_name == resource)
}

fn has_finished(pod: &Pod, container: &str) -> bool {
    let status = pod
        .status
        .as_ref()
        .and_then(|s| s.init_container_statuses.as_ref());
    status.into_iter().flatten().any(|s| {
        let ended = s.state.as_ref().and_then(|s| s.terminated.as_ref());
        s.name == container && ended.is_some_and(|t| t.exit_code == 0)
    })
}
