//! What the containers of a pod ask for exclusively, read off the pod.

use std::collections::BTreeMap;

use davit_api::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::devices::ContainerKind;
use crate::memory::{MEMORY, MemoryAmounts};
use crate::numa::NumaMask;

/// What one container asks for exclusively.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerAsk {
    /// The container's name.
    pub container: String,
    /// Whether it starts before the others, and whether it stays.
    pub kind: ContainerKind,
    /// Whole CPUs of a container of class Guaranteed; 0 for the shared pool.
    pub cpus: usize,
    /// Memory and huge pages of a container of class Guaranteed.
    pub memory: MemoryAmounts,
    /// Limits on resources with a name of the form `domain/name`, without zeros.
    pub extended: BTreeMap<String, usize>,
    /// NUMA nodes of the devices it has of resource claims, by the claims' names. Filled in by whoever knows the claims;
    /// those without a place are left out.
    pub claims: BTreeMap<String, NumaMask>,
}

/// The containers of a pod in the order in which they start.
pub fn asks(pod: &Pod) -> Vec<ContainerAsk> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let inits = spec.init_containers.iter().flatten().map(|c| {
        let kind = if c.restart_policy.as_deref() == Some("Always") {
            ContainerKind::Sidecar
        } else {
            ContainerKind::Init
        };
        (c, kind)
    });
    let apps = spec.containers.iter().map(|c| (c, ContainerKind::App));
    let all: Vec<(&Container, ContainerKind)> = inits.chain(apps).collect();
    // Resources of the pod as a whole are not divided by the static policies.
    let exclusive = spec.resources.is_none() && all.iter().all(|(c, _)| is_guaranteed(c));
    let ask = |(c, kind): (&Container, ContainerKind)| ContainerAsk {
        container: c.name.clone(),
        kind,
        cpus: if exclusive { whole_cpus(c) } else { 0 },
        memory: if exclusive {
            memory(c)
        } else {
            MemoryAmounts::new()
        },
        extended: limits(c)
            .filter(|(name, _)| name.contains('/'))
            .filter_map(|(name, q)| Some((name.clone(), usize::try_from(q.value()).ok()?)))
            .filter(|(_, n)| *n > 0)
            .collect(),
        claims: BTreeMap::new(),
    };
    all.into_iter().map(ask).collect()
}

fn limits(container: &Container) -> impl Iterator<Item = (&String, Quantity)> {
    let lists = container.resources.iter().flat_map(|r| &r.limits);
    lists
        .flatten()
        .filter_map(|(name, q)| Some((name, q.0.parse().ok()?)))
}

/// The request of a container: the written one, else the limit.
fn request(container: &Container, name: &str) -> Option<Quantity> {
    let resources = container.resources.as_ref()?;
    let find = |list: &Option<
        BTreeMap<_, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
    >| { list.as_ref()?.get(name)?.0.parse::<Quantity>().ok() };
    find(&resources.requests).or_else(|| find(&resources.limits))
}

fn is_guaranteed(container: &Container) -> bool {
    ["cpu", MEMORY].into_iter().all(|name| {
        let limit = limits(container)
            .find(|(n, _)| *n == name)
            .map(|(_, q)| q.milli_value());
        limit.is_some_and(|n| n > 0) && request(container, name).map(Quantity::milli_value) == limit
    })
}

fn whole_cpus(container: &Container) -> usize {
    let millis = request(container, "cpu").map_or(0, Quantity::milli_value);
    if millis % 1000 == 0 {
        usize::try_from(millis / 1000).unwrap_or(0)
    } else {
        0
    }
}

fn memory(container: &Container) -> MemoryAmounts {
    limits(container)
        .filter(|(name, _)| *name == MEMORY || name.starts_with("hugepages-"))
        .filter_map(|(name, _)| {
            let bytes = u64::try_from(request(container, name)?.value()).ok()?;
            Some((name.clone(), bytes))
        })
        .filter(|(_, bytes)| *bytes > 0)
        .collect()
}
