//! Whether a node has what a pod asks for, and how well it is filled by it.

use std::sync::Arc;

use crate::cache::Snapshot;
use crate::config::{FitStrategy, NodeResourcesFitArgs};
use crate::devices::Devices;
use crate::framework::{
    Action, ClusterEvent, Code, CycleState, EventObject, EventResource, Filter, Hint,
    MAX_NODE_SCORE, PlacementScore, Plugin, Points, ProposedPlacement, Reason, Score, Shortage,
    Signature, Status,
};
use crate::node::NodeInfo;
use crate::pod::PodInfo;
use crate::resources::Resources;

/// What a good node is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ScoringStrategy {
    /// One that keeps much free.
    #[default]
    LeastAllocated,
    /// One that is full already.
    MostAllocated,
    /// As a function says that is linear between these points, from use in percent to a score up to
    /// [`MAX_NODE_SCORE`]; use rises from point to point.
    RequestedToCapacityRatio(Vec<(i64, i64)>),
}

impl From<&FitStrategy> for ScoringStrategy {
    fn from(strategy: &FitStrategy) -> Self {
        match (
            strategy.kind.as_str(),
            &strategy.requested_to_capacity_ratio,
        ) {
            ("RequestedToCapacityRatio", Some(ratio)) => {
                // Shapes have scores up to 10.
                let points = ratio.shape.iter();
                let points = points.map(|p| (i64::from(p.utilization), i64::from(p.score) * 10));
                Self::RequestedToCapacityRatio(points.collect())
            }
            ("MostAllocated", _) => Self::MostAllocated,
            _ => Self::LeastAllocated,
        }
    }
}

/// The value of a function of this shape.
fn broken_line(shape: &[(i64, i64)], at: i64) -> i64 {
    let Some(next) = shape.iter().position(|(utilization, _)| at <= *utilization) else {
        return shape.last().map_or(0, |(_, score)| *score);
    };
    let (to, high) = shape[next];
    let Some((from, low)) = next.checked_sub(1).map(|before| shape[before]) else {
        return high;
    };
    low + (high - low) * (at - from) / (to - from)
}

/// The plugin `NodeResourcesFit`: CPU, memory, ephemeral storage, the number of pods, hugepages and
/// extended resources.
#[derive(Debug, Clone)]
pub struct NodeResourcesFit {
    /// What a good node is.
    pub strategy: ScoringStrategy,
    /// The resources that are scored, with weights.
    pub scored: Vec<(String, i64)>,
    /// Extended resources that are left to an extender, by name.
    pub ignored: Vec<String>,
    /// Extended resources that are left to an extender, by the part of the name before the slash.
    pub ignored_groups: Vec<String>,
    /// Knows the device classes that stand for extended resources.
    devices: Option<Devices>,
}

impl Default for NodeResourcesFit {
    fn default() -> Self {
        Self {
            strategy: ScoringStrategy::default(),
            scored: vec![("cpu".to_owned(), 1), ("memory".to_owned(), 1)],
            ignored: Vec::new(),
            ignored_groups: Vec::new(),
            devices: None,
        }
    }
}

impl NodeResourcesFit {
    /// The plugin with these arguments.
    pub fn new(args: &NodeResourcesFitArgs) -> Self {
        let resources = args.scoring_strategy.resources.iter();
        Self {
            strategy: ScoringStrategy::from(&args.scoring_strategy),
            scored: resources.map(|r| (r.name.clone(), r.weight)).collect(),
            ignored: args.ignored_resources.clone(),
            ignored_groups: args.ignored_resource_groups.clone(),
            devices: None,
        }
    }
}

/// What a pod asks for of one resource, and what there is of it.
pub(super) struct Amounts<'a> {
    resource: &'a str,
    requested: i64,
    used: i64,
    capacity: i64,
}

impl Amounts<'_> {
    /// Whether it does not suffice. Nothing asked for fits even where the node is overcommitted.
    fn is_short(&self) -> bool {
        self.requested > 0 && self.requested > self.capacity.saturating_sub(self.used)
    }

    /// Adds it to a refusal. More than the node has at all is not to be had by removing pods.
    pub(super) fn refuse(&self, status: &mut Status) {
        let never = self.resource != "pods" && self.requested > self.capacity;
        if never {
            status.code = Code::UnschedulableAndUnresolvable;
        } else if status.is_success() {
            status.code = Code::Unschedulable;
        }
        status.reasons.push(reason(self.resource));
    }
}

impl From<Amounts<'_>> for Shortage {
    fn from(amounts: Amounts<'_>) -> Self {
        Self {
            resource: amounts.resource.to_owned(),
            requested: amounts.requested,
            used: amounts.used,
            capacity: amounts.capacity,
        }
    }
}

/// Tells of what a node that has `allocatable`, of which `used` is taken, has less than `wanted`.
pub(super) fn shortages(
    wanted: &Resources,
    allocatable: &Resources,
    used: &Resources,
    ignored: impl Fn(&str) -> bool,
    mut tell: impl FnMut(Amounts<'_>),
) {
    let mut check = |resource, requested: i64, used, capacity: i64| {
        let amounts = Amounts {
            resource,
            requested,
            used,
            capacity,
        };
        if amounts.is_short() {
            tell(amounts);
        }
    };
    check(
        "cpu",
        wanted.milli_cpu,
        used.milli_cpu,
        allocatable.milli_cpu,
    );
    check("memory", wanted.memory, used.memory, allocatable.memory);
    check(
        "ephemeral-storage",
        wanted.ephemeral_storage,
        used.ephemeral_storage,
        allocatable.ephemeral_storage,
    );
    for (name, amount) in wanted.scalars().filter(|(name, _)| !ignored(name)) {
        check(name, amount, used.scalar(name), allocatable.scalar(name));
    }
}

fn reason(resource: &str) -> Reason {
    match resource {
        "pods" => "Too many pods".into(),
        "cpu" => "Insufficient cpu".into(),
        "memory" => "Insufficient memory".into(),
        "ephemeral-storage" => "Insufficient ephemeral-storage".into(),
        other => format!("Insufficient {other}").into(),
    }
}

impl NodeResourcesFit {
    /// Leaves extended resources that a node does not have itself to the devices of a class, if one
    /// stands for them.
    #[must_use]
    pub fn with_devices(mut self, devices: Devices) -> Self {
        self.devices = Some(devices);
        self
    }

    /// Whether devices take the place of the resource on a node with these amounts.
    fn comes_from_devices(&self, name: &str, allocatable: &Resources) -> bool {
        name.contains('/')
            && allocatable.scalar(name) == 0
            && self
                .devices
                .as_ref()
                .is_some_and(|d| d.class_of_resource(name).is_some())
    }

    /// Tells by what the pod does not fit into a node.
    fn shortages(&self, pod: &PodInfo, node: &NodeInfo, mut tell: impl FnMut(Amounts<'_>)) {
        let has = &node.allocatable;
        let pods = Amounts {
            resource: "pods",
            requested: 1,
            used: i64::try_from(node.pods.len()).unwrap_or(i64::MAX),
            capacity: has.pods,
        };
        if pods.is_short() {
            tell(pods);
        }
        let ignored = |name: &str| self.ignores(name) || self.comes_from_devices(name, has);
        let wanted = &pod.requests.requests;
        shortages(wanted, has, &node.requested, ignored, tell);
    }

    fn ignores(&self, name: &str) -> bool {
        self.ignored.iter().any(|n| n == name)
            || name
                .split_once('/')
                .is_some_and(|(group, _)| self.ignored_groups.iter().any(|g| g == group))
    }
}

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.filter.push(self.clone());
        points.placement_score.push(self.clone());
        points.score.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        let freed = Action::DELETE | Action::UPDATE_SCALE_DOWN;
        vec![
            ClusterEvent::new(EventResource::AssignedPod, freed),
            ClusterEvent::new(EventResource::TargetPod, Action::UPDATE_SCALE_DOWN),
            ClusterEvent::new(EventResource::DeviceClass, Action::ADD | Action::UPDATE),
            ClusterEvent::new(
                EventResource::Node,
                Action::ADD | Action::UPDATE_ALLOCATABLE,
            ),
        ]
    }

    fn hint(&self, _: &ClusterEvent, pod: &PodInfo, object: &EventObject) -> Hint {
        let EventObject::Node {
            old,
            new: Some(node),
        } = object
        else {
            return Hint::Queue;
        };
        let amounts = |node: &k8s_openapi::api::core::v1::Node| {
            let list = node.status.as_ref().and_then(|s| s.allocatable.as_ref());
            list.map(Resources::from_list).unwrap_or_default()
        };
        let has = amounts(node);
        let none = Resources::default();
        let ignored = |name: &str| self.ignores(name) || self.comes_from_devices(name, &has);
        let wanted = &pod.requests.requests;
        let mut fits = has.pods > 0;
        shortages(wanted, &has, &none, ignored, |_| fits = false);
        if !fits {
            // Too small even if it were empty.
            return Hint::Skip;
        }
        let Some(old) = old else { return Hint::Queue };
        let had = amounts(old);
        let names = ["cpu", "memory", "ephemeral-storage"].into_iter();
        let scalars = wanted.scalars().map(|(name, _)| &**name);
        let more = has.pods > had.pods
            || names
                .chain(scalars)
                .any(|n| wanted.get(n) > 0 && has.get(n) > had.get(n));
        if more { Hint::Queue } else { Hint::Skip }
    }
}

impl Filter for NodeResourcesFit {
    fn filter(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        let mut status = Status::success();
        self.shortages(pod, node, |short| short.refuse(&mut status));
        status
    }

    fn explain(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo, refusal: &mut Status) {
        self.shortages(pod, node, |short| refusal.shortages.push(short.into()));
    }

    fn sign_pod(&self, pod: &PodInfo, signature: &mut Signature) -> bool {
        let wanted = &pod.requests.requests;
        signature.add(wanted);
        for (name, _) in wanted.scalars() {
            let class = |d: &Devices| d.class_of_resource(name).is_some();
            signature.add(&self.devices.as_ref().is_some_and(class));
        }
        true
    }
}

impl ScoringStrategy {
    /// The score of what is taken of resources: of each its weight, how much is taken, and how much there is.
    fn rate(&self, parts: impl Iterator<Item = (i64, i64, i64)>) -> i64 {
        let (mut sum, mut weights) = (0, 0);
        for (weight, taken, capacity) in parts.filter(|(_, _, capacity)| *capacity > 0) {
            let score = match self {
                Self::RequestedToCapacityRatio(shape) => {
                    broken_line(shape, share(taken.min(capacity), capacity))
                }
                _ if taken > capacity => 0,
                Self::LeastAllocated => share(capacity - taken, capacity),
                Self::MostAllocated => share(taken, capacity),
            };
            let by_shape = matches!(self, Self::RequestedToCapacityRatio(_));
            if by_shape && score == 0 {
                // As in the original: what scores nothing does not pull the others down.
                continue;
            }
            weights += weight;
            sum += weight * score;
        }
        match (self, weights) {
            (_, 0) => 0,
            // The one strategy that rounds.
            (Self::RequestedToCapacityRatio(_), weights) => (2 * sum + weights) / (2 * weights),
            (_, weights) => sum / weights,
        }
    }
}

/// What the pods of a node count for in scores, of one resource.
fn scored(node: &NodeInfo, resource: &str) -> i64 {
    match resource {
        "cpu" => node.scored_milli_cpu,
        "memory" => node.scored_memory,
        other => node.requested.get(other),
    }
}

/// Whether a resource matters for what asks for so much of it: who does not ask for a device is not judged by it.
fn matters(resource: &str, asked: i64) -> bool {
    asked > 0 || matches!(resource, "cpu" | "memory")
}

impl Score for NodeResourcesFit {
    fn score(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo, _: &Snapshot) -> i64 {
        let wanted = |name: &str| match name {
            "cpu" => pod.requests.scored_milli_cpu,
            "memory" => pod.requests.scored_memory,
            other => pod.requests.requests.get(other),
        };
        let judged = self.scored.iter();
        let judged = judged.filter(|(name, _)| matters(name, wanted(name)));
        self.strategy.rate(judged.map(|(name, weight)| {
            let taken = scored(node, name) + wanted(name);
            (*weight, taken, node.allocatable.get(name))
        }))
    }
}

impl PlacementScore for NodeResourcesFit {
    /// The fuller its nodes are, the better, whatever a good node is: large placements stay free for large groups.
    fn score_placement(&self, proposed: ProposedPlacement<'_>) -> i64 {
        let nodes = proposed.placement.nodes.iter();
        let nodes = nodes.map(|&at| proposed.snapshot.node(at));
        let sum =
            |of: &dyn Fn(&NodeInfo) -> i64| nodes.clone().map(of).fold(0, i64::saturating_add);
        let asked = |name: &str| {
            let pods = proposed.pods.iter();
            pods.map(|pod| pod.requests.requests.get(name))
                .max()
                .unwrap_or(0)
        };
        let judged = self.scored.iter();
        let judged = judged.filter(|(name, _)| matters(name, asked(name)));
        ScoringStrategy::MostAllocated.rate(judged.map(|(name, weight)| {
            let capacity = sum(&|node| node.allocatable.get(name));
            let taken = sum(&|node| scored(node, name));
            (*weight, taken.min(capacity), capacity)
        }))
    }
}

/// Scaled to the range of scores; bytes of large machines would overflow otherwise.
fn share(part: i64, whole: i64) -> i64 {
    let scaled = i128::from(part) * i128::from(MAX_NODE_SCORE) / i128::from(whole);
    i64::try_from(scaled).unwrap_or(MAX_NODE_SCORE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{Bed, pod};
    use serde_json::json;

    fn asks(list: serde_json::Value) -> serde_json::Value {
        json!({"containers": [{"name": "c", "resources": {"requests": list}}]})
    }

    fn bed() -> Bed {
        let mut bed = Bed::new();
        bed.node("n", json!({"status": {"allocatable": {
            "cpu": "2", "memory": "4Gi", "pods": "2", "example.com/foo": "2", "hugepages-2Mi": "4Mi",
        }}}));
        bed
    }

    #[test]
    fn what_is_missing_is_named_with_numbers() {
        let mut bed = bed();
        bed.place(
            &pod("x", asks(json!({"cpu": "1500m", "example.com/foo": "1"}))),
            "n",
        );
        let fit = NodeResourcesFit::default();
        let big = pod("p", asks(json!({"cpu": "1", "example.com/foo": "2"})));
        let mut refused = bed.filter(&fit, &big, "n");
        assert_eq!(refused.shortages, []);
        bed.explain(&fit, &big, "n", &mut refused);
        assert_eq!(refused.code, Code::Unschedulable);
        assert_eq!(
            refused.reasons,
            ["Insufficient cpu", "Insufficient example.com/foo"]
        );
        assert_eq!(
            refused.shortages[0],
            Shortage {
                resource: "cpu".to_owned(),
                requested: 1000,
                used: 1500,
                capacity: 2000
            }
        );
        let never = bed.filter(&fit, &pod("p", asks(json!({"example.com/foo": "3"}))), "n");
        assert_eq!(never.code, Code::UnschedulableAndUnresolvable);
        bed.place(&pod("y", json!({})), "n");
        assert_eq!(
            bed.filter(&fit, &pod("p", json!({})), "n").reasons,
            ["Too many pods"]
        );
    }

    #[test]
    fn every_kind_of_resource_counts() {
        let bed = bed();
        let fit = NodeResourcesFit::default();
        for (list, fits) in [
            (json!({"cpu": "2", "memory": "4Gi"}), true),
            (json!({"memory": "4097Mi"}), false),
            (json!({"hugepages-2Mi": "4Mi"}), true),
            (json!({"hugepages-2Mi": "6Mi"}), false),
            (json!({"ephemeral-storage": "1"}), false),
            (json!({"example.com/none": "0"}), true),
            (json!({"example.com/none": "1"}), false),
        ] {
            let pod = pod("p", asks(list.clone()));
            assert_eq!(bed.filter(&fit, &pod, "n").is_success(), fits, "{list}");
        }
    }

    #[test]
    fn ignored_resources_are_left_to_others() {
        let bed = bed();
        let fit = NodeResourcesFit {
            ignored: vec!["a.example/x".to_owned()],
            ignored_groups: vec!["b.example".to_owned()],
            ..NodeResourcesFit::default()
        };
        let pod = pod("p", asks(json!({"a.example/x": "1", "b.example/y": "1"})));
        assert!(bed.filter(&fit, &pod, "n").is_success());
    }

    #[test]
    fn emptier_nodes_score_higher() {
        let mut bed = Bed::new();
        let has = json!({"status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}});
        bed.node("a", has.clone());
        bed.node("b", has);
        bed.place(&pod("x", asks(json!({"cpu": "2", "memory": "4Gi"}))), "a");
        let wants = pod("p", asks(json!({"cpu": "1", "memory": "2Gi"})));
        assert_eq!(bed.scores(&NodeResourcesFit::default(), &wants), [25, 75]);
        let fullest = NodeResourcesFit {
            strategy: ScoringStrategy::MostAllocated,
            ..Default::default()
        };
        assert_eq!(bed.scores(&fullest, &wants), [75, 25]);
    }

    /// The example of the documentation: packing by an extended resource and CPU.
    /// <https://kubernetes.io/docs/concepts/scheduling-eviction/resource-bin-packing/>
    #[test]
    fn a_shape_packs_devices() {
        let args = json!({"scoringStrategy": {
            "type": "RequestedToCapacityRatio",
            "resources": [{"name": "example.com/foo", "weight": 5}, {"name": "example.com/bar", "weight": 3}],
            "requestedToCapacityRatio": {"shape": [
                {"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]},
        }});
        let plugin = NodeResourcesFit::new(&serde_json::from_value(args).unwrap());
        let mut bed = Bed::new();
        let has = json!({"status": {"allocatable": {"cpu": "8", "example.com/foo": "4",
            "example.com/bar": "8", "pods": "10"}}});
        bed.node("a", has.clone());
        bed.node("b", has);
        let holds = json!({"example.com/foo": "1", "example.com/bar": "2"});
        bed.place(&pod("x", asks(holds)), "a");
        let wants = pod(
            "p",
            asks(json!({"example.com/foo": "2", "example.com/bar": "1"})),
        );
        // a: 3/4 and 3/8, so (75*5 + 37*3) / 8; b: 2/4 and 1/8, so (50*5 + 12*3) / 8
        assert_eq!(bed.scores(&plugin, &wants), [61, 36]);
    }

    #[test]
    fn shapes_are_linear_between_their_points() {
        let shape = [(20, 100), (40, 0), (80, 50)];
        for (at, value) in [
            (0, 100),
            (20, 100),
            (30, 50),
            (40, 0),
            (60, 25),
            (80, 50),
            (100, 50),
        ] {
            assert_eq!(broken_line(&shape, at), value, "{at}");
        }
    }

    #[test]
    fn hints_leave_out_nodes_that_are_too_small() {
        let fit = NodeResourcesFit::default();
        let wants = pod("p", asks(json!({"example.com/foo": "2"})));
        let node = |foo: &str| {
            let status = json!({"allocatable": {"pods": "5", "example.com/foo": foo}});
            Arc::new(serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap())
        };
        let hint = |old: Option<&str>, new: &str| {
            let object = EventObject::Node {
                old: old.map(node),
                new: Some(node(new)),
            };
            let event = ClusterEvent::new(EventResource::Node, Action::UPDATE_ALLOCATABLE);
            fit.hint(&event, &wants, &object)
        };
        assert_eq!(hint(None, "1"), Hint::Skip);
        assert_eq!(hint(None, "2"), Hint::Queue);
        assert_eq!(hint(Some("1"), "2"), Hint::Queue);
        assert_eq!(hint(Some("3"), "2"), Hint::Skip);
    }
}
