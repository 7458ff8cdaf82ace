//! What the containers of a pod ask for.

use std::collections::BTreeMap;

use davit_api::quantity::Quantity;
use davit_topology::devices::ContainerKind;
use k8s_openapi::api::core::v1::{Container, Pod};

/// The limits of one container that a device plugin may be responsible for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) container: String,
    pub(super) kind: ContainerKind,
    /// An ordinary init container that has ended well; it will not run again.
    pub(super) finished: bool,
    /// Counts by resource name, in order of names; zeros are left out.
    pub(super) resources: BTreeMap<String, usize>,
}

/// The requests of a pod, containers in the order in which they start. Names that cannot be
/// device plugin resources are left out, so are those that dynamic allocation serves.
pub(super) fn of(pod: &Pod) -> Vec<Request> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let inits = spec.init_containers.iter().flatten().map(|c| {
        let sidecar = c.restart_policy.as_deref() == Some("Always");
        (
            c,
            if sidecar {
                ContainerKind::Sidecar
            } else {
                ContainerKind::Init
            },
        )
    });
    let apps = spec.containers.iter().map(|c| (c, ContainerKind::App));
    inits
        .chain(apps)
        .map(|(c, kind)| Request {
            container: c.name.clone(),
            kind,
            finished: kind == ContainerKind::Init && has_finished(pod, &c.name),
            resources: resources(pod, c),
        })
        .collect()
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
