//! In-place resize of pods (KEP-1287): what a pod has been given, what it asks for now, and how one becomes the other.
//!
//! The node works with three sizes of a container: the one its spec asks for, the one the node has granted
//! (`allocatedResources`), and the one its running instance has. Everything but the decision about a resize sees the
//! pod as granted ([`Sizes::put_into`]). Grants of pods that were resized are written to the pod's directory before
//! they take effect; all others stand in the API.

mod order;
mod record;

pub(crate) use order::Precedence;
pub(crate) use record::{Actual, Record};

use davit_api::quantity::Quantity as Exact;
use davit_pods::pod::{PodExt, Role};
use davit_pods::resources::{Amounts, Qos, Quantities, amount, pod_requests};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What can be resized.
const NAMES: [&str; 2] = ["cpu", "memory"];

/// Condition: the pod asks for a size that it has not been granted.
pub(crate) const PENDING: &str = "PodResizePending";
/// Condition: a granted size is on its way into the containers.
pub(crate) const IN_PROGRESS: &str = "PodResizeInProgress";

/// Resources of the containers that can be resized, and of the pod as a whole.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sizes {
    /// `spec.resources`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<ResourceRequirements>,
    /// By container name.
    #[serde(default)]
    pub containers: BTreeMap<String, ResourceRequirements>,
}

/// All but ephemeral containers, which ask for nothing. An init container may be resized before it runs and while it does.
fn is_resizable(role: Role) -> bool {
    matches!(role, Role::Main | Role::Sidecar | Role::Init)
}

impl Sizes {
    /// What the spec of a pod asks for.
    pub(crate) fn of(pod: &Pod) -> Self {
        let containers = pod.all_containers().into_iter();
        let containers = containers.filter(|(role, _)| is_resizable(*role));
        let size = |c: &Container| c.resources.clone().unwrap_or_default();
        Self {
            pod: pod.pod_spec().resources.clone(),
            containers: containers
                .map(|(_, c)| (c.name.clone(), size(&c)))
                .collect(),
        }
    }

    /// What a pod had been granted by the status in the API: for a pod that ran when the node agent was not there.
    pub(crate) fn by_status(pod: &Pod) -> Self {
        let mut sizes = Self::of(pod);
        let status = pod.pod_status();
        let all = status.init_container_statuses.iter().flatten();
        for one in all.chain(status.container_statuses.iter().flatten()) {
            if let Some(size) = sizes.containers.get_mut(&one.name) {
                granted(one, size);
            }
        }
        if let Some(level) = &mut sizes.pod {
            granted_whole(pod, level);
        }
        sizes
    }

    /// Whether cpu and memory are the same everywhere.
    pub(crate) fn same(&self, other: &Self) -> bool {
        let empty = ResourceRequirements::default();
        let level = |s: &Self| s.pod.clone().unwrap_or_default();
        same_size(&level(self), &level(other))
            && self
                .containers
                .iter()
                .all(|(name, size)| same_size(size, other.containers.get(name).unwrap_or(&empty)))
    }

    /// Gives the pod these sizes.
    pub(crate) fn put_into(&self, pod: &mut Pod) {
        let Some(spec) = &mut pod.spec else { return };
        if self.pod.is_some() {
            spec.resources.clone_from(&self.pod);
        }
        let inits = spec.init_containers.iter_mut().flatten();
        for container in inits.chain(&mut spec.containers) {
            if let Some(size) = self.containers.get(&container.name) {
                let is_default = *size == ResourceRequirements::default();
                container.resources = (!is_default).then(|| size.clone());
            }
        }
    }
}

/// Replaces cpu and memory by what the container's status says. A status without resources says nothing.
fn granted(status: &ContainerStatus, size: &mut ResourceRequirements) {
    let Some(actual) = &status.resources else {
        return;
    };
    let requests = status.allocated_resources.as_ref();
    for name in NAMES {
        put(&mut size.requests, name, requests);
        put(&mut size.limits, name, actual.limits.as_ref());
    }
}

/// Replaces what the spec sets for the pod as a whole by what the status tells of it, in which overhead is counted.
fn granted_whole(pod: &Pod, level: &mut ResourceRequirements) {
    let status = pod.pod_status();
    let (Some(requests), Some(in_force)) = (&status.allocated_resources, &status.resources) else {
        return;
    };
    let overhead = pod.pod_spec().overhead.as_ref();
    let bare = |list: &Quantities, name: &str| {
        let own = overhead.and_then(|o| o.get(name)).map(exact);
        Some(exact(list.get(name)?) - own.unwrap_or_default())
    };
    for name in NAMES {
        for (list, told) in [
            (&mut level.requests, Some(requests)),
            (&mut level.limits, in_force.limits.as_ref()),
        ] {
            let set = list.as_mut().and_then(|l| l.get_mut(name));
            if let (Some(set), Some(told)) = (set, told.and_then(|t| bare(t, name))) {
                *set = Quantity(told.to_string());
            }
        }
    }
}

fn exact(quantity: &Quantity) -> Exact {
    quantity.0.parse().unwrap_or_default()
}

fn put(list: &mut Option<Quantities>, name: &str, from: Option<&Quantities>) {
    match from.and_then(|l| l.get(name)) {
        Some(quantity) => {
            let list = list.get_or_insert_default();
            list.insert(name.to_owned(), quantity.clone());
        }
        None => {
            if let Some(list) = list {
                list.remove(name);
            }
        }
    }
}

fn of(list: Option<&Quantities>, name: &str) -> Option<i64> {
    list.and_then(|l| l.get(name)).map(|q| amount(name, q))
}

fn same_resource(a: &ResourceRequirements, b: &ResourceRequirements, name: &str) -> bool {
    of(a.requests.as_ref(), name) == of(b.requests.as_ref(), name)
        && of(a.limits.as_ref(), name) == of(b.limits.as_ref(), name)
}

/// Whether cpu and memory are the same, however they are written.
pub(crate) fn same_size(a: &ResourceRequirements, b: &ResourceRequirements) -> bool {
    NAMES.iter().all(|name| same_resource(a, b, name))
}

/// A container's size with the limits of the pod as a whole, which hold for a container that has none of its own (KEP-2837).
pub(crate) fn within(
    size: &ResourceRequirements,
    pod: Option<&ResourceRequirements>,
) -> ResourceRequirements {
    let mut size = size.clone();
    let limits = pod.and_then(|pod| pod.limits.as_ref());
    for name in NAMES {
        if of(size.limits.as_ref(), name).unwrap_or(0) == 0
            && let Some(limit) = limits.and_then(|limits| limits.get(name))
        {
            let own = size.limits.get_or_insert_default();
            own.insert(name.to_owned(), limit.clone());
        }
    }
    size
}

/// Whether a container has to be started anew to get from one size to another, by its `resizePolicy`.
pub(crate) fn needs_restart(
    container: &Container,
    from: &ResourceRequirements,
    to: &ResourceRequirements,
) -> bool {
    container.resize_policy.iter().flatten().any(|policy| {
        policy.restart_policy == "RestartContainer"
            && NAMES.contains(&policy.resource_name.as_str())
            && !same_resource(from, to, &policy.resource_name)
    })
}

/// What the decision depends on beside the pod.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeLimits<'a> {
    /// The CPU manager hands out CPUs for exclusive use.
    pub static_cpus: bool,
    /// The memory manager pins memory.
    pub static_memory: bool,
    /// What pods can have of this node.
    pub allocatable: &'a Amounts,
}

/// Why this node can never give `wanted` its size; `None` when it is a matter of what others hold.
pub(crate) fn infeasible(wanted: &Pod, granted: &Sizes, node: &NodeLimits<'_>) -> Option<String> {
    if wanted.is_static() {
        return Some("In-place resize of static-pods is not supported".to_owned());
    }
    if Qos::of(wanted) == Qos::Guaranteed {
        let sizes = Sizes::of(wanted);
        let empty = ResourceRequirements::default();
        let changes = |name: &str| {
            sizes.containers.iter().any(|(container, size)| {
                let granted = granted.containers.get(container).unwrap_or(&empty);
                !same_resource(size, granted, name)
            })
        };
        let fixed = |manager: &str, policy: &str| {
            format!(
                "Resize is infeasible for Guaranteed Pods alongside {manager} Manager policy \"{policy}\""
            )
        };
        if node.static_cpus && changes("cpu") {
            return Some(fixed("CPU", "static"));
        }
        if node.static_memory && changes("memory") {
            return Some(fixed("Memory", "Static"));
        }
    }
    let requests = pod_requests(wanted);
    ["memory", "cpu"].into_iter().find_map(|name| {
        let requested = *requests.get(name)?;
        let capacity = *node.allocatable.get(name)?;
        (requested > capacity).then(|| {
            format!("Node didn't have enough capacity: {name}, requested: {requested}, capacity: {capacity}")
        })
    })
}

/// What events about a resize tell in machine-readable form.
pub(crate) fn details(pod: &Pod, error: Option<&str>) -> String {
    let list = |wanted: &[Role]| -> Vec<Value> {
        let all = pod.all_containers().into_iter();
        let some = all.filter(|(role, _)| wanted.contains(role));
        some.map(
            |(_, c)| json!({"name": c.name, "resources": c.resources.clone().unwrap_or_default()}),
        )
        .collect()
    };
    let mut out = serde_json::Map::new();
    for (key, roles) in [
        ("initContainers", &[Role::Init, Role::Sidecar][..]),
        ("containers", &[Role::Main]),
    ] {
        let list = list(roles);
        if !list.is_empty() {
            out.insert(key.to_owned(), Value::Array(list));
        }
    }
    out.insert(
        "generation".to_owned(),
        json!(pod.metadata.generation.unwrap_or(0)),
    );
    if let Some(error) = error {
        out.insert("error".to_owned(), json!(error));
    }
    Value::Object(out).to_string()
}

#[cfg(test)]
mod tests;
