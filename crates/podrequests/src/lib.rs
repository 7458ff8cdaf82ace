//! What pods ask for and nodes have, as plain numbers.
//!
//! The sums follow the pod resource rules of the API (init containers, sidecars, overhead, pod-level
//! resources, in-place resize), so that scheduler and node agent agree on what fits.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "test values are written where they are used"
    )
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, NodeAllocatableResourceClaimStatus, Pod, PodSpec,
    ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// CPU that a container without a CPU request counts for in scores, in thousandths of a CPU.
const UNSTATED_MILLI_CPU: i64 = 100;
/// Memory that a container without a memory request counts for in scores, in bytes.
const UNSTATED_MEMORY: i64 = 200 * 1024 * 1024;

/// Amounts by resource. CPU is in thousandths, everything else in whole units (bytes, pieces).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Resources {
    /// `cpu`, in thousandths of a CPU.
    pub milli_cpu: i64,
    /// `memory`, in bytes.
    pub memory: i64,
    /// `ephemeral-storage`, in bytes.
    pub ephemeral_storage: i64,
    /// `pods`: how many pods a node takes; 0 in requests.
    pub pods: i64,
    /// Everything else (extended resources, hugepages, attachable volumes), sorted by name.
    scalar: Vec<(Arc<str>, i64)>,
}

type ResourceList = BTreeMap<String, Quantity>;

/// The value of a quantity rounded up to whole units; 0 for a text that is no quantity (the API
/// server does not let one in).
fn value(quantity: &Quantity) -> i64 {
    davit_api::quantity::Quantity::parse(&quantity.0)
        .map_or(0, davit_api::quantity::Quantity::value)
}

fn milli_value(quantity: &Quantity) -> i64 {
    davit_api::quantity::Quantity::parse(&quantity.0)
        .map_or(0, davit_api::quantity::Quantity::milli_value)
}

impl Resources {
    /// The amounts of a resource list of the API.
    pub fn from_list(list: &ResourceList) -> Self {
        let mut resources = Self::default();
        for (name, quantity) in list {
            match name.as_str() {
                "cpu" => resources.milli_cpu = milli_value(quantity),
                "memory" => resources.memory = value(quantity),
                "ephemeral-storage" => resources.ephemeral_storage = value(quantity),
                "pods" => resources.pods = value(quantity),
                // A BTreeMap iterates in order, so the list stays sorted.
                other => resources.scalar.push((Arc::from(other), value(quantity))),
            }
        }
        resources
    }

    /// The amounts that are neither CPU, memory, ephemeral storage nor pods, sorted by name.
    pub fn scalars(&self) -> impl Iterator<Item = (&Arc<str>, i64)> {
        self.scalar.iter().map(|(name, amount)| (name, *amount))
    }

    /// The amount of one such resource; 0 if it is not there.
    pub fn scalar(&self, name: &str) -> i64 {
        self.find(name).map_or(0, |i| self.scalar[i].1)
    }

    /// The amount of any resource by its API name.
    pub fn get(&self, name: &str) -> i64 {
        match name {
            "cpu" => self.milli_cpu,
            "memory" => self.memory,
            "ephemeral-storage" => self.ephemeral_storage,
            "pods" => self.pods,
            other => self.scalar(other),
        }
    }

    /// Sets the amount of a resource by its API name.
    pub fn set(&mut self, name: &str, amount: i64) {
        match name {
            "cpu" => self.milli_cpu = amount,
            "memory" => self.memory = amount,
            "ephemeral-storage" => self.ephemeral_storage = amount,
            "pods" => self.pods = amount,
            other => *self.scalar_mut(other) = amount,
        }
    }

    /// Whether nothing is asked for.
    pub fn is_zero(&self) -> bool {
        self.milli_cpu == 0
            && self.memory == 0
            && self.ephemeral_storage == 0
            && self.scalar.iter().all(|(_, amount)| *amount == 0)
    }

    /// Adds `other`, resource by resource.
    pub fn add(&mut self, other: &Self) {
        self.combine(other, i64::saturating_add);
    }

    /// Takes `other` away, resource by resource.
    pub fn sub(&mut self, other: &Self) {
        self.combine(other, i64::saturating_sub);
    }

    /// Raises each resource to the amount in `other` where that is larger.
    pub fn max(&mut self, other: &Self) {
        self.combine(other, i64::max);
    }

    fn combine(&mut self, other: &Self, op: impl Fn(i64, i64) -> i64) {
        self.milli_cpu = op(self.milli_cpu, other.milli_cpu);
        self.memory = op(self.memory, other.memory);
        self.ephemeral_storage = op(self.ephemeral_storage, other.ephemeral_storage);
        self.pods = op(self.pods, other.pods);
        for (name, amount) in &other.scalar {
            let own = self.scalar_mut(name);
            *own = op(*own, *amount);
        }
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.scalar
            .binary_search_by(|(own, _)| (**own).cmp(name))
            .ok()
    }

    fn scalar_mut(&mut self, name: &str) -> &mut i64 {
        let at = match self.scalar.binary_search_by(|(own, _)| (**own).cmp(name)) {
            Ok(at) => at,
            Err(at) => {
                self.scalar.insert(at, (Arc::from(name), 0));
                at
            }
        };
        &mut self.scalar[at].1
    }
}

/// What a pod asks for, and the CPU and memory it counts for in scores.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodRequests {
    /// What must be free on a node.
    pub requests: Resources,
    /// CPU in thousandths with the default for containers that state none.
    pub scored_milli_cpu: i64,
    /// Memory in bytes with the default for containers that state none.
    pub scored_memory: i64,
}

/// What the devices of one of a pod's claims take of the node, as it stands in the pod's status (KEP-5517).
pub type TakenByClaim = NodeAllocatableResourceClaimStatus;

/// What the devices of a pod that has a node take of it. For others that is not decided, whatever an attempt has left behind.
pub fn taken_by_claims(pod: &Pod) -> &[TakenByClaim] {
    let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref());
    let taken = pod
        .status
        .as_ref()
        .filter(|_| node.is_some_and(|n| !n.is_empty()));
    let taken = taken.and_then(|s| s.node_allocatable_resource_claim_statuses.as_deref());
    taken.unwrap_or_default()
}

impl PodRequests {
    /// Computes the requests of a pod from its spec and, for a pod that has a node, its status: for a resize, and what devices
    /// take.
    pub fn of(pod: &Pod) -> Self {
        Self::with(pod, taken_by_claims(pod))
    }

    /// The requests of a pod whose devices take this of the node.
    pub fn with(pod: &Pod, taken: &[TakenByClaim]) -> Self {
        let requests = total(pod, taken, |list| list);
        let scored = total(pod, taken, |mut list| {
            list.entry(CPU).or_insert(UNSTATED_MILLI_CPU);
            list.entry(MEMORY).or_insert(UNSTATED_MEMORY);
            list
        });
        Self {
            requests,
            scored_milli_cpu: scored.milli_cpu,
            scored_memory: scored.memory,
        }
    }
}

const CPU: &str = "cpu";
const MEMORY: &str = "memory";

/// Amounts by name, CPU in thousandths.
type Amounts<'a> = BTreeMap<&'a str, i64>;

fn amounts(list: Option<&ResourceList>) -> Amounts<'_> {
    let amount = |name: &str, q: &Quantity| {
        if name == CPU {
            milli_value(q)
        } else {
            value(q)
        }
    };
    list.into_iter()
        .flatten()
        .map(|(name, q)| (name.as_str(), amount(name, q)))
        .collect()
}

fn add<'a>(sum: &mut Amounts<'a>, more: &Amounts<'a>) {
    for (name, amount) in more {
        *sum.entry(name).or_default() += amount;
    }
}

fn raise<'a>(most: &mut Amounts<'a>, other: &Amounts<'a>) {
    for (name, amount) in other {
        let own = most.entry(name).or_insert(*amount);
        *own = (*own).max(*amount);
    }
}

/// What one container holds: the larger of what its spec asks for and what it was given, as long as
/// a resize is under way.
fn container_amounts<'a>(
    container: &'a Container,
    mut statuses: impl Iterator<Item = &'a ContainerStatus>,
    infeasible: bool,
) -> Amounts<'a> {
    let spec = amounts(
        container
            .resources
            .as_ref()
            .and_then(|r| r.requests.as_ref()),
    );
    let Some(status) = statuses.find(|s| s.name == container.name) else {
        return spec;
    };
    let actual = status.resources.as_ref().and_then(|r| r.requests.as_ref());
    if actual.is_none() && status.allocated_resources.is_none() {
        return spec;
    }
    let mut most = amounts(actual);
    raise(&mut most, &amounts(status.allocated_resources.as_ref()));
    if infeasible {
        // The node will never grant the resize: what the spec asks for does not count. Resources
        // the status does not speak of do.
        for (name, amount) in spec {
            most.entry(name).or_insert(amount);
        }
    } else {
        raise(&mut most, &spec);
    }
    most
}

/// What containers and devices come to, where a pod has requests of its own for less than that: the name of the resource.
pub fn not_covered(pod: &Pod, taken: &[TakenByClaim]) -> Option<String> {
    let sum = sum(pod, taken, &|list| list);
    let mut level = pod_level(pod).into_iter();
    let short = level.find(|(name, amount)| sum.get(name).is_some_and(|sum| sum > amount));
    short.map(|(name, _)| name.to_owned())
}

/// The requests that a pod has as a whole.
fn pod_level(pod: &Pod) -> Amounts<'_> {
    let spec = pod.spec.as_ref();
    level(spec.and_then(|s| s.resources.as_ref()?.requests.as_ref()))
}

/// Of requests or limits of a pod as a whole, those that there can be.
fn level(list: Option<&ResourceList>) -> Amounts<'_> {
    let mut level = amounts(list);
    level.retain(|name, _| *name == CPU || *name == MEMORY || name.starts_with("hugepages-"));
    level
}

fn resources(amounts: Amounts<'_>) -> Resources {
    let mut resources = Resources::default();
    for (name, amount) in amounts {
        resources.set(name, amount);
    }
    resources
}

fn total<'a>(
    pod: &'a Pod,
    taken: &'a [TakenByClaim],
    adjust: impl Fn(Amounts<'a>) -> Amounts<'a>,
) -> Resources {
    let mut sum = sum(pod, taken, &adjust);
    // Pod-level requests stand for the sum of the containers, and of what devices take, where they are given.
    sum.extend(pod_level(pod));
    let overhead = pod.spec.as_ref().and_then(|s| s.overhead.as_ref());
    add(&mut sum, &amounts(overhead));
    resources(sum)
}

/// What the containers of a pod come to with what its devices take.
fn sum<'a>(
    pod: &'a Pod,
    taken: &'a [TakenByClaim],
    adjust: &impl Fn(Amounts<'a>) -> Amounts<'a>,
) -> Amounts<'a> {
    let Some(spec) = &pod.spec else {
        return Amounts::new();
    };
    let status = pod.status.as_ref();
    let infeasible = status
        .and_then(|s| s.conditions.as_ref())
        .into_iter()
        .flatten()
        .any(|c| c.type_ == "PodResizePending" && c.reason.as_deref() == Some("Infeasible"));
    let all = status.map(|s| [&s.container_statuses, &s.init_container_statuses]);
    let all = all.into_iter().flatten().flatten().flatten();
    let mut sum = together(spec, |container| {
        adjust(container_amounts(container, all.clone(), infeasible))
    });
    for claim in taken {
        add(&mut sum, &amounts(Some(&claim.resources)));
    }
    sum
}

/// What containers come to that take `of` each: those that run at once, or more where one that runs before them does.
fn together<'a>(spec: &'a PodSpec, of: impl Fn(&'a Container) -> Amounts<'a>) -> Amounts<'a> {
    let mut sum = Amounts::new();
    for container in &spec.containers {
        add(&mut sum, &of(container));
    }
    // An init container runs beside the sidecars started before it and before everything else.
    let mut sidecars = Amounts::new();
    let mut init = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let own = of(container);
        let mut at_once = sidecars.clone();
        add(&mut at_once, &own);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut sum, &own);
            sidecars = at_once.clone();
        }
        raise(&mut init, &at_once);
    }
    raise(&mut sum, &init);
    sum
}

/// The requests or the limits of a pod by its spec alone, those that it has as a whole before those of its containers.
fn by_spec(
    spec: &PodSpec,
    list: fn(&ResourceRequirements) -> Option<&ResourceList>,
) -> Amounts<'_> {
    let mut sum = together(spec, |container| {
        amounts(container.resources.as_ref().and_then(list))
    });
    sum.extend(level(spec.resources.as_ref().and_then(list)));
    sum
}

/// What a pod asks for by its spec alone, whatever it was given.
pub fn spec_requests(pod: &Pod) -> Resources {
    let Some(spec) = &pod.spec else {
        return Resources::default();
    };
    let mut sum = by_spec(spec, |resources| resources.requests.as_ref());
    add(&mut sum, &amounts(spec.overhead.as_ref()));
    resources(sum)
}

/// What a pod is limited to by its spec alone. Its overhead goes on top of limits that there are.
pub fn spec_limits(pod: &Pod) -> Resources {
    let Some(spec) = &pod.spec else {
        return Resources::default();
    };
    let mut sum = by_spec(spec, |resources| resources.limits.as_ref());
    let mut overhead = amounts(spec.overhead.as_ref());
    overhead.retain(|name, _| sum.get(name).is_some_and(|limit| *limit != 0));
    add(&mut sum, &overhead);
    resources(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn requests(spec: serde_json::Value) -> PodRequests {
        let pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        PodRequests::of(&pod)
    }

    fn asks(list: serde_json::Value) -> serde_json::Value {
        json!({"name": "c", "resources": {"requests": list}})
    }

    #[test]
    fn containers_add_up_and_init_containers_take_the_maximum() {
        let sums = requests(json!({
            "containers": [
                asks(json!({"cpu": "1", "memory": "1Gi", "example.com/foo": "1"})),
                asks(json!({"cpu": "500m", "example.com/foo": "2"})),
            ],
            "initContainers": [asks(json!({"cpu": "2", "example.com/foo": "1"}))],
            "overhead": {"cpu": "100m"},
        }));
        assert_eq!(sums.requests.milli_cpu, 2100);
        assert_eq!(sums.requests.memory, 1 << 30);
        assert_eq!(sums.requests.scalar("example.com/foo"), 3);
        assert_eq!(sums.requests.scalar("example.com/bar"), 0);
    }

    #[test]
    fn limits_and_requests_by_the_spec() {
        let both = |cpu: &str, more: serde_json::Value| {
            let list = json!({"cpu": cpu});
            let mut one = json!({"name": "c", "resources": {"requests": list, "limits": list}});
            one.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            one
        };
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {
                "containers": [both("1", json!({}))],
                "initContainers": [both("500m", json!({"restartPolicy": "Always"})), both("3", json!({}))],
                "overhead": {"cpu": "100m", "memory": "1Mi"},
            },
            "status": {"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "resources": {"requests": {"cpu": "9"}}}]},
        }))
        .unwrap();
        let (asked, limited) = (spec_requests(&pod), spec_limits(&pod));
        assert_eq!((asked.milli_cpu, asked.memory), (3600, 1 << 20));
        assert_eq!((limited.milli_cpu, limited.memory), (3600, 0));
        let mut whole = pod.clone();
        let spec = whole.spec.as_mut().unwrap();
        spec.resources =
            serde_json::from_value(json!({"limits": {"cpu": "2"}, "requests": {"memory": "1Gi"}}))
                .unwrap();
        assert_eq!(spec_limits(&whole).milli_cpu, 2100);
        assert_eq!(spec_requests(&whole).memory, (1 << 30) + (1 << 20));
    }

    #[test]
    fn sidecars_run_beside_everything_that_starts_after_them() {
        let mut sidecar = asks(json!({"cpu": "1"}));
        sidecar["restartPolicy"] = json!("Always");
        let init = asks(json!({"cpu": "3"}));
        let app = asks(json!({"cpu": "1"}));
        let before = requests(json!({"containers": [app], "initContainers": [sidecar, init]}));
        assert_eq!(before.requests.milli_cpu, 4000);
        let after = requests(json!({"containers": [app], "initContainers": [init, sidecar]}));
        assert_eq!(after.requests.milli_cpu, 3000);
    }

    #[test]
    fn unstated_cpu_and_memory_count_in_scores_only() {
        let sums = requests(json!({"containers": [asks(json!({"cpu": "1"})), asks(json!({}))]}));
        assert_eq!(sums.requests.milli_cpu, 1000);
        assert_eq!(sums.requests.memory, 0);
        assert_eq!(sums.scored_milli_cpu, 1100);
        assert_eq!(sums.scored_memory, 2 * UNSTATED_MEMORY);
    }

    #[test]
    fn a_resize_counts_with_the_larger_of_asked_and_given() {
        let pod = |conditions: serde_json::Value| {
            let pod = serde_json::from_value(json!({
                "metadata": {"name": "p"},
                "spec": {"containers": [asks(json!({"cpu": "1", "example.com/foo": "1"}))]},
                "status": {"conditions": conditions, "containerStatuses": [{
                    "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "resources": {"requests": {"cpu": "500m"}},
                }]},
            }))
            .unwrap();
            PodRequests::of(&pod).requests
        };
        assert_eq!(pod(json!([])).milli_cpu, 1000);
        let refused = pod(json!([
            {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
        ]));
        assert_eq!(refused.milli_cpu, 500);
        assert_eq!(refused.scalar("example.com/foo"), 1);
    }

    #[test]
    fn devices_take_of_the_node_of_a_pod_that_has_one() {
        let pod = |node: &str, level: serde_json::Value| -> Pod {
            let spec = json!({"nodeName": node, "overhead": {"cpu": "10m"}, "resources": level,
                "containers": [asks(json!({"cpu": "1"}))], "initContainers": [asks(json!({"cpu": "2"}))]});
            let status = json!({"nodeAllocatableResourceClaimStatuses": [
                {"resourceClaimName": "a", "containers": ["c"], "resources": {"cpu": "3", "memory": "1Gi"}},
                {"resourceClaimName": "b", "containers": ["c"], "resources": {"cpu": "500m", "hugepages-2Mi": "4Mi"}}]});
            serde_json::from_value(
                json!({"metadata": {"name": "p"}, "spec": spec, "status": status}),
            )
            .unwrap()
        };
        let sums = PodRequests::of(&pod("n", json!({})));
        assert_eq!(
            (sums.requests.milli_cpu, sums.scored_milli_cpu),
            (5510, 5510)
        );
        assert_eq!(
            (sums.requests.memory, sums.scored_memory),
            (1 << 30, (1 << 30) + UNSTATED_MEMORY)
        );
        assert_eq!(sums.requests.scalar("hugepages-2Mi"), 4 << 20);
        assert_eq!(
            PodRequests::of(&pod("", json!({}))).requests.milli_cpu,
            2010
        );
        // what the pod asks for as a whole covers its devices, or not
        for (cpu, short) in [("6", None), ("5", Some("cpu"))] {
            let pod = pod("n", json!({"requests": {"cpu": cpu}}));
            let whole = PodRequests::of(&pod).requests;
            assert_eq!(whole.milli_cpu, milli_value(&Quantity(cpu.to_owned())) + 10);
            let taken = taken_by_claims(&pod);
            assert_eq!(not_covered(&pod, taken).as_deref(), short);
        }
    }

    #[test]
    fn pod_level_requests_replace_the_sum() {
        let sums = requests(json!({
            "containers": [asks(json!({"cpu": "1", "example.com/foo": "1"}))],
            "resources": {"requests": {"cpu": "4"}},
        }));
        assert_eq!(sums.requests.milli_cpu, 4000);
        assert_eq!(sums.requests.scalar("example.com/foo"), 1);
    }
}
