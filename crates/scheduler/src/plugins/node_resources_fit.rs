//! Whether a node has what a pod asks for, and how well it is filled by it.

use std::sync::Arc;

use crate::cache::Snapshot;
use crate::devices::Devices;
use crate::framework::{
    Action, ClusterEvent, Code, CycleState, EventObject, EventResource, Filter, Hint,
    MAX_NODE_SCORE, Plugin, Points, Reason, Score, Shortage, Status,
};
use crate::node::NodeInfo;
use crate::pod::PodInfo;
use crate::resources::Resources;

/// What a good node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ScoringStrategy {
    /// One that keeps much free.
    #[default]
    LeastAllocated,
    /// One that is full already.
    MostAllocated,
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

/// By what the pod does not fit into a node that has `allocatable` and of which `used` is taken by
/// `pods` pods.
fn shortages(
    pod: &PodInfo,
    allocatable: &Resources,
    used: &Resources,
    pods: i64,
    ignored: impl Fn(&str) -> bool,
) -> Vec<Shortage> {
    let mut shortages = Vec::new();
    let mut check = |resource: &str, requested: i64, used: i64, capacity: i64| {
        // Nothing asked for fits even where the node is overcommitted.
        if requested > 0 && requested > capacity.saturating_sub(used) {
            let resource = resource.to_owned();
            shortages.push(Shortage {
                resource,
                requested,
                used,
                capacity,
            });
        }
    };
    let wanted = &pod.requests.requests;
    check("pods", 1, pods, allocatable.pods);
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
    shortages
}

fn reason(shortage: &Shortage) -> Reason {
    match shortage.resource.as_str() {
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
        if !shortages(pod, &has, &none, 0, ignored).is_empty() {
            // Too small even if it were empty.
            return Hint::Skip;
        }
        let Some(old) = old else { return Hint::Queue };
        let had = amounts(old);
        let wanted = &pod.requests.requests;
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
        let pods = i64::try_from(node.pods.len()).unwrap_or(i64::MAX);
        let ignored =
            |name: &str| self.ignores(name) || self.comes_from_devices(name, &node.allocatable);
        let shortages = shortages(pod, &node.allocatable, &node.requested, pods, ignored);
        if shortages.is_empty() {
            return Status::success();
        }
        // More than the node has at all is not to be had by removing pods.
        let never = shortages
            .iter()
            .any(|s| s.resource != "pods" && s.requested > s.capacity);
        let code = if never {
            Code::UnschedulableAndUnresolvable
        } else {
            Code::Unschedulable
        };
        let reasons = shortages.iter().map(reason).collect();
        Status {
            code,
            reasons,
            shortages,
            ..Status::success()
        }
    }
}

impl Score for NodeResourcesFit {
    fn score(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo, _: &Snapshot) -> i64 {
        let (mut sum, mut weights) = (0, 0);
        for (name, weight) in &self.scored {
            let capacity = node.allocatable.get(name);
            let wanted = match name.as_str() {
                "cpu" => node.scored_milli_cpu + pod.requests.scored_milli_cpu,
                "memory" => node.scored_memory + pod.requests.scored_memory,
                // A pod that does not ask for a device is not judged by it.
                other if pod.requests.requests.get(other) == 0 => continue,
                other => node.requested.get(other) + pod.requests.requests.get(other),
            };
            if capacity == 0 {
                continue;
            }
            weights += weight;
            sum += weight
                * match self.strategy {
                    _ if wanted > capacity => 0,
                    ScoringStrategy::LeastAllocated => share(capacity - wanted, capacity),
                    ScoringStrategy::MostAllocated => share(wanted, capacity),
                };
        }
        if weights == 0 { 0 } else { sum / weights }
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
        let refused = bed.filter(
            &fit,
            &pod("p", asks(json!({"cpu": "1", "example.com/foo": "2"}))),
            "n",
        );
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
