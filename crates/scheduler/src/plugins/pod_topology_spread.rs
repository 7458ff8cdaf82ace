//! Spreads pods over domains of nodes.

mod domains;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use domains::{SpreadCounts, SpreadKind, SpreadTally, has_all_labels};
use parking_lot::Mutex;

use crate::cache::Snapshot;
use crate::config::PodTopologySpreadArgs;
use crate::framework::{
    Action, ClusterEvent, CycleState, EventObject, EventResource, Filter, Hint, MAX_NODE_SCORE,
    NodeNames, Plugin, Points, PreFilter, PreScore, Score, Status,
};
use crate::node::NodeInfo;
use crate::pod::{PodInfo, SpreadConstraint};
use crate::selector::Labels;
use crate::workloads::Workloads;

/// The label whose domains are the nodes themselves.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The label whose domains are zones.
const ZONE: &str = "topology.kubernetes.io/zone";

/// The plugin `PodTopologySpread`: the constraints that a pod states, or else those that all pods have which belong
/// to a Service or a controller.
#[derive(Debug)]
pub struct PodTopologySpread {
    /// Constraints of pods that state none; their selectors are those of [`Workloads::peers`].
    defaults: Vec<SpreadConstraint>,
    /// Whether the defaults are the system's: then nodes that lack a label count by the others.
    by_system: bool,
    workloads: Workloads,
    tally: Mutex<SpreadTally>,
}

impl Default for PodTopologySpread {
    fn default() -> Self {
        Self::new(&PodTopologySpreadArgs::default(), Workloads::default())
    }
}

impl PodTopologySpread {
    /// The plugin with these arguments.
    pub fn new(args: &PodTopologySpreadArgs, workloads: Workloads) -> Self {
        let by_system = args.defaulting_type == "System";
        let none = Labels::new();
        let own = args.default_constraints.iter();
        let defaults = if by_system {
            // https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/#internal-default-constraints
            vec![
                SpreadConstraint::soft(HOSTNAME, 3),
                SpreadConstraint::soft(ZONE, 5),
            ]
        } else {
            own.map(|c| SpreadConstraint::new(c, &none)).collect()
        };
        Self {
            defaults,
            by_system,
            workloads,
            tally: Mutex::default(),
        }
    }

    /// The hard or the soft constraints of a pod.
    fn constraints(&self, pod: &PodInfo, hard: bool) -> Arc<[SpreadConstraint]> {
        if !pod.spread.is_empty() {
            return pod
                .spread
                .iter()
                .filter(|c| c.hard == hard)
                .cloned()
                .collect();
        }
        let defaults = self.defaults.iter().filter(|c| c.hard == hard);
        if defaults.clone().next().is_none() {
            return Arc::default();
        }
        let Some(selector) = self.workloads.peers(pod) else {
            return Arc::default();
        };
        let with_selector = |c: &SpreadConstraint| SpreadConstraint {
            selector: selector.clone(),
            ..c.clone()
        };
        defaults.map(with_selector).collect()
    }

    /// Whether nodes have to have the labels of all constraints to be scored.
    fn needs_all_labels(&self, pod: &PodInfo) -> bool {
        !pod.spread.is_empty() || !self.by_system
    }
}

/// What the hard constraints ask, and the pods that they count.
#[derive(Debug, Clone)]
struct FilterState {
    kind: Arc<SpreadKind>,
    counts: SpreadCounts,
}

/// What the soft constraints ask, the pods that they count, and what a pod counts for.
#[derive(Debug, Clone)]
struct ScoreState {
    kind: Arc<SpreadKind>,
    counts: SpreadCounts,
    weights: Vec<f64>,
    /// Nodes without one of the labels.
    ignored: BTreeSet<Arc<str>>,
}

impl PodTopologySpread {
    fn book(state: &mut CycleState, pod: &PodInfo, other: &PodInfo, node: &NodeInfo, sign: i64) {
        if let Some(FilterState { kind, counts }) = state.get_mut() {
            kind.book(counts, pod, other, node, sign);
        }
    }
}

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        "PodTopologySpread"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.pre_filter.push(self.clone());
        points.filter.push(self.clone());
        points.pre_score.push(self.clone());
        points.score.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        let pods = Action::ADD | Action::DELETE | Action::UPDATE_LABEL;
        let nodes = Action::ADD | Action::DELETE | Action::UPDATE_LABEL | Action::UPDATE_TAINT;
        vec![
            ClusterEvent::new(EventResource::AssignedPod, pods),
            ClusterEvent::new(EventResource::TargetPod, Action::UPDATE_LABEL),
            ClusterEvent::new(EventResource::Node, nodes),
        ]
    }

    fn hint(&self, _: &ClusterEvent, pod: &PodInfo, object: &EventObject) -> Hint {
        if pod.spread.is_empty() {
            // Refused by default constraints, whose selector may be another by now.
            return Hint::Queue;
        }
        let concerned = match object {
            EventObject::Pod { old, new } => [old, new].into_iter().flatten().any(|other| {
                other.namespace == pod.namespace
                    && pod
                        .spread
                        .iter()
                        .any(|c| c.selector.matches(other.labels()))
            }),
            EventObject::Node { old, new } => [old, new].into_iter().flatten().any(|node| {
                let labels = node.metadata.labels.as_ref();
                pod.spread
                    .iter()
                    .filter(|c| c.hard)
                    .all(|c| labels.is_some_and(|l| l.contains_key(&c.topology_key)))
            }),
            _ => true,
        };
        if concerned { Hint::Queue } else { Hint::Skip }
    }
}

impl PreFilter for PodTopologySpread {
    fn pre_filter(
        &self,
        state: &mut CycleState,
        pod: &PodInfo,
        snapshot: &Snapshot,
    ) -> (Status, NodeNames) {
        let hard = self.constraints(pod, true);
        if hard.is_empty() {
            return (Status::skip(), None);
        }
        let (kind, counts) = self.tally.lock().counts(pod, snapshot, &hard, true);
        state.put(FilterState { kind, counts });
        (Status::success(), None)
    }

    fn add_pod(
        &self,
        state: &mut CycleState,
        pod: &PodInfo,
        added: &PodInfo,
        node: &NodeInfo,
        _: &Snapshot,
    ) {
        Self::book(state, pod, added, node, 1);
    }

    fn remove_pod(
        &self,
        state: &mut CycleState,
        pod: &PodInfo,
        removed: &PodInfo,
        node: &NodeInfo,
        _: &Snapshot,
    ) {
        Self::book(state, pod, removed, node, -1);
    }
}

impl Filter for PodTopologySpread {
    fn filter(&self, state: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        let Some(state) = state.get::<FilterState>() else {
            return Status::error("topology spread has not been prepared");
        };
        for (constraint, domains) in state.kind.with(&state.counts) {
            let Some(value) = node.label(&constraint.topology_key) else {
                return Status::unresolvable(
                    "node(s) didn't match pod topology spread constraints (missing required label)",
                );
            };
            let known = i64::try_from(domains.len()).unwrap_or(i64::MAX);
            let least = if known < constraint.min_domains {
                0
            } else {
                domains.least()
            };
            let own = i64::from(constraint.selector.matches(pod.labels()));
            let here = domains.pods(value);
            if here + own - least > constraint.max_skew {
                return Status::unschedulable(
                    "node(s) didn't match pod topology spread constraints",
                );
            }
        }
        Status::success()
    }
}

impl PreScore for PodTopologySpread {
    #[allow(clippy::cast_precision_loss)]
    fn pre_score(
        &self,
        state: &mut CycleState,
        pod: &PodInfo,
        snapshot: &Snapshot,
        nodes: &[usize],
    ) -> Status {
        let soft = self.constraints(pod, false);
        if soft.is_empty() {
            return Status::skip();
        }
        let all_labels = self.needs_all_labels(pod);
        let (kind, counts) = self.tally.lock().counts(pod, snapshot, &soft, all_labels);
        let (scored, ignored): (Vec<&NodeInfo>, Vec<&NodeInfo>) = nodes
            .iter()
            .map(|&at| snapshot.node(at))
            .partition(|node| !all_labels || has_all_labels(&soft, node));
        let weight = |constraint: &SpreadConstraint| {
            // Few domains hold many pods each; the logarithm evens that out.
            let domains = if constraint.topology_key == HOSTNAME {
                scored.len()
            } else {
                // Nodes without the label are a domain of their own, which only counts as one.
                let values = scored.iter().map(|n| n.label(&constraint.topology_key));
                values.collect::<HashSet<_>>().len()
            };
            (domains as f64 + 2.0).ln()
        };
        state.put(ScoreState {
            weights: soft.iter().map(weight).collect(),
            ignored: ignored.iter().map(|node| node.name.clone()).collect(),
            kind,
            counts,
        });
        Status::success()
    }
}

impl Score for PodTopologySpread {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    fn score(&self, state: &CycleState, _: &PodInfo, node: &NodeInfo, _: &Snapshot) -> i64 {
        let Some(state) = state.get::<ScoreState>() else {
            return 0;
        };
        if state.ignored.contains(&node.name) {
            return 0;
        }
        let constraints = state.kind.with(&state.counts).zip(&state.weights);
        let parts = constraints.filter_map(|((constraint, domains), weight)| {
            let value = node.label(&constraint.topology_key)?;
            let here = domains.pods(value) as f64;
            Some(here * weight + (constraint.max_skew - 1) as f64)
        });
        parts.sum::<f64>().round() as i64
    }

    /// Fewer is better; nodes without the labels get nothing.
    fn normalize(
        &self,
        state: &CycleState,
        _: &PodInfo,
        snapshot: &Snapshot,
        nodes: &[usize],
        scores: &mut [i64],
    ) {
        let Some(state) = state.get::<ScoreState>() else {
            return;
        };
        let ignored = |at: usize| state.ignored.contains(&snapshot.node(at).name);
        let scored = || {
            let pairs = nodes.iter().zip(scores.iter());
            pairs
                .filter(|(at, _)| !ignored(**at))
                .map(|(_, score)| *score)
        };
        let (least, most) = (scored().min().unwrap_or(0), scored().max().unwrap_or(0));
        for (score, &at) in scores.iter_mut().zip(nodes) {
            *score = match most {
                _ if ignored(at) => 0,
                0 => MAX_NODE_SCORE,
                most => MAX_NODE_SCORE * (most + least - *score) / most,
            };
        }
    }
}

#[cfg(test)]
mod tests;
