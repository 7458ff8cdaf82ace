//! Arithmetic on resource quantities of pods: requests, QoS class, out-of-memory scores, and what the runtime gets.
//!
//! Amounts are integers in the smallest unit the node works with: millicores for `cpu`, whole units otherwise.

mod limits;

pub use limits::{
    CpuQuotas, LimitRules, SwapBehavior, linux_resources, overhead, sandbox_resources,
};

use crate::pod::{PodExt, Role};
use davit_api::quantity::Quantity as Exact;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;
use std::ops::AddAssign;

/// Amounts by resource name, `cpu` in millicores.
pub type Amounts = BTreeMap<String, i64>;
/// Quantities by resource name as the API has them.
pub type Quantities = BTreeMap<String, Quantity>;

const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;

/// A quantity rounded up to whole units; zero when it cannot be read (the API server refuses such values).
pub fn value(quantity: &Quantity) -> i64 {
    quantity.0.parse::<Exact>().map_or(0, Exact::value)
}

/// A quantity in thousandths, rounded up.
pub fn milli(quantity: &Quantity) -> i64 {
    quantity.0.parse::<Exact>().map_or(0, Exact::milli_value)
}

/// The amount of resource `name`.
pub fn amount(name: &str, quantity: &Quantity) -> i64 {
    if name == "cpu" {
        milli(quantity)
    } else {
        value(quantity)
    }
}

/// Writes an amount of resource `name` as a quantity.
pub fn quantity(name: &str, amount: i64) -> Quantity {
    if name == "cpu" && amount % 1000 != 0 {
        return Quantity(format!("{amount}m"));
    }
    Quantity(if name == "cpu" {
        (amount / 1000).to_string()
    } else {
        amount.to_string()
    })
}

/// A request of one container: the written one, else the limit.
pub fn container_request(container: &Container, name: &str) -> Option<i64> {
    let resources = container.resources.as_ref()?;
    let find = |list: &Option<Quantities>| {
        list.as_ref()
            .and_then(|l| l.get(name))
            .map(|q| amount(name, q))
    };
    find(&resources.requests).or_else(|| find(&resources.limits))
}

/// A limit of one container.
pub fn container_limit(container: &Container, name: &str) -> Option<i64> {
    container
        .resources
        .as_ref()?
        .limits
        .as_ref()?
        .get(name)
        .map(|q| amount(name, q))
}

/// Adds one list to another.
fn add<T: Copy + Default + AddAssign>(into: &mut BTreeMap<String, T>, other: &BTreeMap<String, T>) {
    for (name, n) in other {
        *into.entry(name.clone()).or_default() += *n;
    }
}

/// Raises each entry to that of another list.
fn raise<T: Copy + Default + Ord>(into: &mut BTreeMap<String, T>, other: &BTreeMap<String, T>) {
    for (name, n) in other {
        let entry = into.entry(name.clone()).or_default();
        *entry = (*entry).max(*n);
    }
}

/// What a pod comes to as a whole: app containers and sidecars together, or the greediest init container with the
/// sidecars that run beside it, whichever is more, and `devices` with that; what is set for the pod replaces the sum. Without
/// overhead.
fn total<T: Copy + Default + Ord + AddAssign>(
    pod: &Pod,
    devices: &BTreeMap<String, T>,
    of: impl Fn(&ResourceRequirements) -> BTreeMap<String, T>,
) -> BTreeMap<String, T> {
    let mut running = BTreeMap::new();
    let mut sidecars = BTreeMap::new();
    let mut init_peak = BTreeMap::new();
    for (role, container) in pod.all_containers() {
        let own = container.resources.as_ref().map(&of).unwrap_or_default();
        match role {
            Role::Main => add(&mut running, &own),
            Role::Sidecar => {
                add(&mut running, &own);
                add(&mut sidecars, &own);
                raise(&mut init_peak, &sidecars);
            }
            Role::Init => {
                let mut together = sidecars.clone();
                add(&mut together, &own);
                raise(&mut init_peak, &together);
            }
            Role::Ephemeral => {}
        }
    }
    raise(&mut running, &init_peak);
    add(&mut running, devices);
    if let Some(level) = &pod.pod_spec().resources {
        running.extend(of(level));
    }
    running
}

/// Requests, or the limit of what only has a limit.
fn requests<T>(
    resources: &ResourceRequirements,
    read: impl Fn(&str, &Quantity) -> T,
) -> BTreeMap<String, T> {
    let (limits, requests) = (&resources.limits, &resources.requests);
    let both = limits.iter().flatten().chain(requests.iter().flatten());
    both.map(|(name, q)| (name.clone(), read(name, q)))
        .collect()
}

/// What a pod asks of the node, its overhead included.
pub fn pod_requests(pod: &Pod) -> Amounts {
    requests_with(pod, &Amounts::new())
}

/// What a pod takes of the node: what it asks for, and what its status says that its devices take (KEP-5517).
pub fn pod_holdings(pod: &Pod) -> Amounts {
    let mut devices = Amounts::new();
    let status = pod.status.iter();
    let claims = status.flat_map(|s| &s.node_allocatable_resource_claim_statuses);
    for (name, q) in claims.flatten().flat_map(|claim| &claim.resources) {
        *devices.entry(name.clone()).or_default() += amount(name, q);
    }
    requests_with(pod, &devices)
}

fn requests_with(pod: &Pod, devices: &Amounts) -> Amounts {
    let mut all = total(pod, devices, |r| requests(r, amount));
    for (name, q) in pod.pod_spec().overhead.iter().flatten() {
        *all.entry(name.clone()).or_default() += amount(name, q);
    }
    all
}

/// What a pod is limited to as a whole; its overhead is added to limits that are there. A container without a limit
/// adds nothing, so that the sum means something only where all have one.
pub fn pod_limits(pod: &Pod) -> Amounts {
    let limits = pod_resources(pod).limits.into_iter().flatten();
    limits
        .map(|(name, q)| {
            let amount = amount(&name, &q);
            (name, amount)
        })
        .collect()
}

/// What a pod is held to as a whole: its own limit, or the sum of those of its containers where each that shares its life with
/// others has one; with its overhead.
pub fn pod_limit(pod: &Pod, name: &str) -> Option<i64> {
    let is_limited = |c: &Container| container_limit(c, name).is_some_and(|n| n > 0);
    let is_declared = || {
        let mut containers = pod.all_containers().into_iter();
        pod_level(pod).as_ref().is_some_and(is_limited)
            || containers.all(|(role, container)| role == Role::Ephemeral || is_limited(&container))
    };
    let limit = pod_limits(pod).get(name).copied().filter(|n| *n > 0);
    limit.filter(|_| is_declared())
}

/// The resources of the pod as such, as if they were a container's.
pub fn pod_level(pod: &Pod) -> Option<Container> {
    let resources = pod.pod_spec().resources.clone()?;
    Some(Container {
        resources: Some(resources),
        ..Container::default()
    })
}

/// Requests and limits of a pod as a whole, its overhead included, as its status tells them.
pub fn pod_resources(pod: &Pod) -> ResourceRequirements {
    let exact = |_: &str, q: &Quantity| q.0.parse::<Exact>().unwrap_or_default();
    let limit = |(name, q): (&String, &Quantity)| (name.clone(), exact(name, q));
    let none = BTreeMap::new();
    let mut requests = total(pod, &none, |r| requests(r, exact));
    let limits_of = |r: &ResourceRequirements| r.limits.iter().flatten().map(limit).collect();
    let mut limits = total(pod, &none, limits_of);
    for (name, q) in pod.pod_spec().overhead.iter().flatten() {
        *requests.entry(name.clone()).or_default() += exact(name, q);
        // What has no limit gets none by its overhead.
        if let Some(limit) = limits.get_mut(name).filter(|l| !l.is_zero()) {
            *limit += exact(name, q);
        }
    }
    let written = |list: BTreeMap<String, Exact>| -> Option<Quantities> {
        let list = list.into_iter();
        let list: Quantities = list.map(|(k, q)| (k, Quantity(q.to_string()))).collect();
        (!list.is_empty()).then_some(list)
    };
    ResourceRequirements {
        requests: written(requests),
        limits: written(limits),
        claims: None,
    }
}

/// Quality-of-service class of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Qos {
    /// Every container (or the pod) has cpu and memory limits equal to its requests.
    Guaranteed,
    /// Some cpu or memory is asked for.
    Burstable,
    /// Nothing is asked for.
    BestEffort,
}

impl Qos {
    /// The name in `status.qosClass`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }

    /// Computes the class from cpu and memory only; extended resources do not count.
    pub fn of(pod: &Pod) -> Self {
        match pod.pod_status().qos_class.as_deref() {
            Some("Guaranteed") => return Self::Guaranteed,
            Some("Burstable") => return Self::Burstable,
            Some("BestEffort") => return Self::BestEffort,
            _ => {}
        }
        if let Some(level) = pod_level(pod) {
            return Self::of_containers(&[&level]);
        }
        let spec = pod.pod_spec();
        let all: Vec<&Container> = spec
            .init_containers
            .iter()
            .flatten()
            .chain(&spec.containers)
            .collect();
        Self::of_containers(&all)
    }

    fn of_containers(containers: &[&Container]) -> Self {
        let mut any = false;
        let mut guaranteed = !containers.is_empty();
        for container in containers {
            for name in ["cpu", "memory"] {
                let request = container_request(container, name).filter(|n| *n > 0);
                let limit = container_limit(container, name).filter(|n| *n > 0);
                any |= request.is_some() || limit.is_some();
                guaranteed &= limit.is_some() && request == limit;
            }
        }
        match (any, guaranteed) {
            (false, _) => Self::BestEffort,
            (true, true) => Self::Guaranteed,
            (true, false) => Self::Burstable,
        }
    }
}

/// `oom_score_adj` of a container; `memory_capacity` is the machine's in bytes.
pub fn oom_score_adj(pod: &Pod, role: Role, container: &Container, memory_capacity: i64) -> i64 {
    const SYSTEM_NODE_CRITICAL: i32 = 2_000_001_000;
    if pod.pod_spec().priority.unwrap_or(0) >= SYSTEM_NODE_CRITICAL {
        return -997;
    }
    match Qos::of(pod) {
        Qos::Guaranteed => return -997,
        Qos::BestEffort => return 1000,
        Qos::Burstable => {}
    }
    let own = burstable_score(
        container_request(container, "memory").unwrap_or(0),
        memory_capacity,
    );
    if role != Role::Sidecar {
        return own;
    }
    // A sidecar must not be killed before the containers it serves.
    pod.pod_spec()
        .containers
        .iter()
        .map(|c| burstable_score(container_request(c, "memory").unwrap_or(0), memory_capacity))
        .chain([own])
        .min()
        .unwrap_or(own)
}

fn burstable_score(request: i64, capacity: i64) -> i64 {
    let score = 1000 - (1000 * i128::from(request) / i128::from(capacity.max(1))) as i64;
    score.clamp(3, 999)
}

/// cgroup cpu shares for millicores.
pub fn cpu_shares(milli: i64) -> i64 {
    if milli == 0 {
        MIN_SHARES
    } else {
        (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
    }
}

/// Whether a pod is one that the node needs: static ones, and those of the two highest priorities.
pub fn is_critical(pod: &Pod) -> bool {
    const CRITICAL: i32 = 2_000_000_000;
    pod.is_static() || pod.is_mirror() || pod.pod_spec().priority.unwrap_or(0) >= CRITICAL
}

/// Resource name of a huge page size in bytes (`hugepages-2Mi`).
pub fn hugepage_resource(size: u64) -> String {
    let (n, unit) = binary_unit(size);
    format!("hugepages-{n}{unit}i")
}

/// The size in bytes that a resource of huge pages is named after.
pub fn hugepage_size_of(resource: &str) -> Option<u64> {
    let size = resource.strip_prefix("hugepages-")?.parse::<Exact>();
    u64::try_from(size.ok()?.value()).ok()
}

/// The runtime's name of a huge page size (`2MB`).
pub fn hugepage_size_text(size: u64) -> String {
    let (n, unit) = binary_unit(size);
    format!("{n}{}B", unit.to_uppercase())
}

fn binary_unit(size: u64) -> (u64, &'static str) {
    const KI: u64 = 1024;
    if size.is_multiple_of(KI * KI * KI) {
        (size / (KI * KI * KI), "G")
    } else if size.is_multiple_of(KI * KI) {
        (size / (KI * KI), "M")
    } else {
        (size / KI, "K")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[expect(
        clippy::needless_pass_by_value,
        reason = "reads best with json! in place"
    )]
    pub(super) fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    pub(super) fn c(name: &str, cpu: &str, mem: &str) -> serde_json::Value {
        json!({"name": name, "resources": {"requests": {"cpu": cpu, "memory": mem}, "limits": {"cpu": cpu, "memory": mem}}})
    }

    #[test]
    fn devices_take_of_the_node_what_the_status_says() {
        let mut pod =
            pod(json!({"overhead": {"cpu": "250m"}, "containers": [c("a", "1", "100Mi")]}));
        let status = json!({"nodeAllocatableResourceClaimStatuses": [
            {"resourceClaimName": "x", "resources": {"cpu": "2", "memory": "1Mi"}},
            {"resourceClaimName": "y", "resources": {"cpu": "1500m", "hugepages-2Mi": "2Mi"}}]});
        pod.status = Some(serde_json::from_value(status).unwrap());
        let holdings = Amounts::from([
            ("cpu".into(), 4750),
            ("memory".into(), 101 << 20),
            ("hugepages-2Mi".into(), 2 << 20),
        ]);
        assert_eq!(pod_holdings(&pod), holdings);
        assert_eq!(pod_requests(&pod)["cpu"], 1250);
        // what the pod asks for as a whole is for them, too
        pod.spec.get_or_insert_default().resources =
            Some(serde_json::from_value(json!({"requests": {"cpu": "5"}})).unwrap());
        assert_eq!(pod_holdings(&pod)["cpu"], 5250);
    }

    #[test]
    fn requests_take_the_init_peak_with_sidecars() {
        let mut sidecar = c("s", "100m", "10");
        sidecar["restartPolicy"] = json!("Always");
        let p = pod(json!({
            "initContainers": [sidecar, c("i", "1", "100")],
            "containers": [c("a", "200m", "20"), c("b", "300m", "30")],
            "overhead": {"cpu": "10m"},
        }));
        let r = pod_requests(&p);
        assert_eq!(r["cpu"], 1110);
        assert_eq!(r["memory"], 110);
    }

    #[test]
    fn the_status_tells_the_pod_as_a_whole() {
        let p = pod(json!({
            "containers": [c("a", "200m", "1Gi"), {"name": "b", "resources": {"requests": {"cpu": "1"}}}],
            "overhead": {"cpu": "50m", "ephemeral-storage": "1Gi"},
        }));
        assert_eq!(
            serde_json::to_value(pod_resources(&p)).unwrap(),
            json!({"requests": {"cpu": "1250m", "memory": "1Gi", "ephemeral-storage": "1Gi"},
                "limits": {"cpu": "250m", "memory": "1Gi"}})
        );
        let p = pod(json!({
            "containers": [c("a", "200m", "1Gi")],
            "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "3"}},
        }));
        assert_eq!(
            serde_json::to_value(pod_resources(&p)).unwrap(),
            json!({"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "3", "memory": "1Gi"}})
        );
        let empty = pod_resources(&pod(json!({"containers": [{"name": "a"}]})));
        assert_eq!(empty, ResourceRequirements::default());
    }

    #[test]
    fn qos_classes() {
        assert_eq!(
            Qos::of(&pod(json!({"containers": [{"name": "a"}]}))),
            Qos::BestEffort
        );
        assert_eq!(
            Qos::of(&pod(json!({"containers": [c("a", "1", "1Gi")]}))),
            Qos::Guaranteed
        );
        let mixed = json!({"containers": [c("a", "1", "1Gi"), {"name": "b"}]});
        assert_eq!(Qos::of(&pod(mixed)), Qos::Burstable);
        let device = json!({"containers": [{"name": "a", "resources": {"limits": {"example.com/foo": "1"}}}]});
        assert_eq!(Qos::of(&pod(device)), Qos::BestEffort);
    }

    #[test]
    fn scores_and_shares() {
        let p = pod(
            json!({"containers": [{"name": "a", "resources": {"requests": {"memory": "1Gi"}}}]}),
        );
        let container = &p.pod_spec().containers[0];
        assert_eq!(oom_score_adj(&p, Role::Main, container, 4 << 30), 750);
        assert_eq!(oom_score_adj(&p, Role::Main, container, 1 << 30), 3);
        assert_eq!(cpu_shares(0), 2);
        assert_eq!(cpu_shares(250), 256);
        assert_eq!(hugepage_size_of("hugepages-2Mi"), Some(2 << 20));
        assert_eq!(hugepage_size_of("memory"), None);
        assert_eq!(hugepage_resource(2 << 20), "hugepages-2Mi");
        assert_eq!(hugepage_size_text(1 << 30), "1GB");
        assert_eq!(hugepage_resource(64 << 10), "hugepages-64Ki");
    }
}
