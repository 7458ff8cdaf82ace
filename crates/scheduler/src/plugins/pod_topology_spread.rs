//! Spreads pods over domains of nodes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::node_affinity::allows;
use super::taint_toleration::untolerated;
use crate::cache::Snapshot;
use crate::config::PodTopologySpreadArgs;
use crate::framework::{
    Action, ClusterEvent, CycleState, EventObject, EventResource, Filter, Hint, MAX_NODE_SCORE,
    NodeNames, Plugin, Points, PreFilter, PreScore, Score, Status,
};
use crate::node::NodeInfo;
use crate::pod::{ByGroup, PodInfo, SpreadConstraint};
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

/// For each hard constraint the matching pods by domain.
#[derive(Debug, Clone, Default)]
struct FilterState {
    constraints: Arc<[SpreadConstraint]>,
    counts: Vec<HashMap<String, i64>>,
}

/// For each soft constraint the matching pods by domain, and what a pod counts for.
#[derive(Debug, Clone, Default)]
struct ScoreState {
    constraints: Arc<[SpreadConstraint]>,
    counts: Vec<HashMap<String, i64>>,
    weights: Vec<f64>,
    /// Nodes without one of the labels.
    ignored: BTreeSet<Arc<str>>,
}

/// Whether the node takes part in the count.
fn counts_for(constraint: &SpreadConstraint, pod: &PodInfo, node: &NodeInfo) -> bool {
    (!constraint.honor_affinity || allows(pod, &node.name, node.labels()))
        && (!constraint.honor_taints || untolerated(node.taints(), pod.tolerations()).is_none())
}

fn counted(constraint: &SpreadConstraint, pod: &PodInfo, other: &PodInfo) -> bool {
    !other.is_terminating() && selected(constraint, pod, other)
}

fn selected(constraint: &SpreadConstraint, pod: &PodInfo, other: &PodInfo) -> bool {
    other.namespace == pod.namespace && constraint.selector.matches(other.labels())
}

fn matching(
    constraint: &SpreadConstraint,
    pod: &PodInfo,
    node: &NodeInfo,
    known: &mut ByGroup<bool>,
) -> i64 {
    let counts = |other: &&Arc<PodInfo>| {
        !other.is_terminating() && *known.get(other, || selected(constraint, pod, other))
    };
    i64::try_from(node.pods.iter().filter(counts).count()).unwrap_or(i64::MAX)
}

fn has_all_labels(constraints: &[SpreadConstraint], node: &NodeInfo) -> bool {
    constraints
        .iter()
        .all(|c| node.label(&c.topology_key).is_some())
}

impl PodTopologySpread {
    fn book(state: &mut CycleState, pod: &PodInfo, other: &PodInfo, node: &NodeInfo, amount: i64) {
        let Some(state) = state.get_mut::<FilterState>() else {
            return;
        };
        if !has_all_labels(&state.constraints, node) {
            return;
        }
        for (constraint, counts) in state.constraints.iter().zip(&mut state.counts) {
            if !counted(constraint, pod, other) || !counts_for(constraint, pod, node) {
                continue;
            }
            if let Some(value) = node.label(&constraint.topology_key) {
                *counts.entry(value.to_owned()).or_default() += amount;
            }
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
        let mut counts = vec![HashMap::new(); hard.len()];
        let mut known: Vec<ByGroup<bool>> = hard.iter().map(|_| ByGroup::default()).collect();
        for node in snapshot.nodes().iter().filter(|n| has_all_labels(&hard, n)) {
            for ((constraint, counts), known) in hard.iter().zip(&mut counts).zip(&mut known) {
                let Some(value) = node.label(&constraint.topology_key) else {
                    continue;
                };
                if counts_for(constraint, pod, node) {
                    // An empty domain counts, with nothing in it.
                    *counts.entry(value.to_owned()).or_default() +=
                        matching(constraint, pod, node, known);
                }
            }
        }
        state.put(FilterState {
            constraints: hard,
            counts,
        });
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
        for (constraint, counts) in state.constraints.iter().zip(&state.counts) {
            let Some(value) = node.label(&constraint.topology_key) else {
                return Status::unresolvable(
                    "node(s) didn't match pod topology spread constraints (missing required label)",
                );
            };
            let domains = i64::try_from(counts.len()).unwrap_or(i64::MAX);
            let least = if domains < constraint.min_domains {
                0
            } else {
                counts.values().copied().min().unwrap_or(0)
            };
            let own = i64::from(constraint.selector.matches(pod.labels()));
            let here = counts.get(value).copied().unwrap_or(0);
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
        let mut result = ScoreState {
            constraints: soft.clone(),
            counts: vec![HashMap::new(); soft.len()],
            ..ScoreState::default()
        };
        for node in nodes.iter().map(|&at| snapshot.node(at)) {
            if all_labels && !has_all_labels(&soft, node) {
                result.ignored.insert(node.name.clone());
                continue;
            }
            for (constraint, counts) in soft.iter().zip(&mut result.counts) {
                // Nodes without the label are a domain of their own, which only counts as one.
                let value = node.label(&constraint.topology_key).unwrap_or_default();
                counts.entry(value.to_owned()).or_insert(0);
            }
        }
        let mut known: Vec<ByGroup<bool>> = soft.iter().map(|_| ByGroup::default()).collect();
        let scored = nodes.len() - result.ignored.len();
        result.weights = soft
            .iter()
            .zip(&result.counts)
            .map(|(constraint, counts)| {
                // Few domains hold many pods each; the logarithm evens that out.
                let domains = if constraint.topology_key == HOSTNAME {
                    scored
                } else {
                    counts.len()
                };
                (domains as f64 + 2.0).ln()
            })
            .collect();
        for node in snapshot
            .nodes()
            .iter()
            .filter(|n| !all_labels || has_all_labels(&soft, n))
        {
            let per_constraint = soft.iter().zip(&mut result.counts).zip(&mut known);
            for ((constraint, counts), known) in per_constraint {
                let domain = node.label(&constraint.topology_key);
                let Some(count) = domain.and_then(|value| counts.get_mut(value)) else {
                    continue;
                };
                if counts_for(constraint, pod, node) {
                    *count += matching(constraint, pod, node, known);
                }
            }
        }
        state.put(result);
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
        let soft = state.constraints.iter();
        let parts =
            soft.zip(&state.counts)
                .zip(&state.weights)
                .filter_map(|((c, counts), weight)| {
                    let domain = node.label(&c.topology_key)?;
                    let here = counts.get(domain).copied().unwrap_or(0);
                    Some(here as f64 * weight + (c.max_skew - 1) as f64)
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
mod tests {
    use super::*;
    use crate::plugins::testing::{Bed, labelled};
    use crate::selector::Selector;
    use serde_json::{Value, json};

    fn constraint(key: &str, when: &str) -> Value {
        json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when,
               "labelSelector": {"matchLabels": {"app": "web"}}})
    }

    fn bed() -> Bed {
        let mut bed = Bed::new();
        for (name, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
            bed.node(
                name,
                json!({"metadata": {"labels": {"zone": zone, HOSTNAME: name}}}),
            );
        }
        bed
    }

    fn web(name: &str, constraints: Value) -> Arc<PodInfo> {
        labelled(
            name,
            json!({"app": "web"}),
            json!({"topologySpreadConstraints": constraints}),
        )
    }

    fn by_name(bed: &Bed, values: &[Status]) -> Vec<bool> {
        ["a1", "a2", "b1"]
            .map(|n| values[bed.snapshot.position(n).unwrap()].is_success())
            .into()
    }

    #[test]
    fn hard_constraints_keep_the_skew() {
        let mut bed = bed();
        bed.place(&web("w1", json!([])), "a1");
        let pod = web("w2", json!([constraint("zone", "DoNotSchedule")]));
        let verdicts = bed.verdicts(&PodTopologySpread::default(), &pod);
        assert_eq!(by_name(&bed, &verdicts), [false, false, true]);
        let at = bed.snapshot.position("a1").unwrap();
        assert_eq!(
            verdicts[at],
            Status::unschedulable("node(s) didn't match pod topology spread constraints")
        );
        bed.node("c1", json!({}));
        let verdicts = bed.verdicts(&PodTopologySpread::default(), &pod);
        let at = bed.snapshot.position("c1").unwrap();
        assert_eq!(
            verdicts[at],
            Status::unresolvable(
                "node(s) didn't match pod topology spread constraints (missing required label)"
            )
        );
    }

    #[test]
    fn too_few_domains_count_as_an_empty_one() {
        let mut bed = bed();
        bed.place(&web("w1", json!([])), "a1");
        bed.place(&web("w2", json!([])), "b1");
        let mut wants = constraint("zone", "DoNotSchedule");
        let verdicts = bed.verdicts(&PodTopologySpread::default(), &web("p", json!([wants])));
        assert_eq!(by_name(&bed, &verdicts), [true; 3]);
        wants["minDomains"] = json!(3);
        let verdicts = bed.verdicts(&PodTopologySpread::default(), &web("p", json!([wants])));
        assert_eq!(by_name(&bed, &verdicts), [false; 3]);
    }

    #[test]
    fn imagined_changes_are_booked() {
        let mut bed = bed();
        let running = web("w1", json!([]));
        bed.place(&running, "a1");
        let pod = web("p", json!([constraint("zone", "DoNotSchedule")]));
        let mut state = CycleState::new();
        PodTopologySpread::default().pre_filter(&mut state, &pod, &bed.snapshot);
        let node = bed.snapshot.node(bed.snapshot.position("a2").unwrap());
        assert!(
            !PodTopologySpread::default()
                .filter(&state, &pod, node)
                .is_success()
        );
        PodTopologySpread::default().remove_pod(&mut state, &pod, &running, node, &bed.snapshot);
        assert!(
            PodTopologySpread::default()
                .filter(&state, &pod, node)
                .is_success()
        );
    }

    #[test]
    fn soft_constraints_prefer_emptier_domains() {
        let mut bed = bed();
        bed.place(&web("w1", json!([])), "a1");
        bed.node("c1", json!({}));
        let pod = web("p", json!([constraint("zone", "ScheduleAnyway")]));
        let places: Vec<usize> = (0..4).collect();
        let mut state = CycleState::new();
        PodTopologySpread::default().pre_score(&mut state, &pod, &bed.snapshot, &places);
        let scores = bed.scores_with(&PodTopologySpread::default(), &pod, &state);
        let score = |name| scores[bed.snapshot.position(name).unwrap()];
        assert_eq!(
            [score("a1"), score("a2"), score("b1"), score("c1")],
            [0, 0, 100, 0]
        );
    }

    /// A Service of one namespace that everybody with `app=web` belongs to.
    fn workloads() -> Workloads {
        let peers = Selector::new(Some(
            &serde_json::from_value(json!({"matchLabels": {"app": "web"}})).unwrap(),
        ));
        Workloads::fixed(peers)
    }

    #[test]
    fn pods_of_a_service_are_spread_softly_without_being_asked() {
        let mut bed = Bed::new();
        for (name, zone) in [
            ("a1", Some("a")),
            ("a2", Some("a")),
            ("b1", Some("b")),
            ("bare", None),
        ] {
            let mut labels = json!({HOSTNAME: name});
            if let Some(zone) = zone {
                labels[ZONE] = json!(zone);
            }
            bed.node(name, json!({"metadata": {"labels": labels}}));
        }
        bed.place(&web("w1", json!([])), "a1");
        let plugin = PodTopologySpread::new(&PodTopologySpreadArgs::default(), workloads());
        let pod = web("w2", json!([]));
        assert!(bed.pre_filter(&plugin, &pod).0.is_skip());
        let places: Vec<usize> = (0..4).collect();
        let mut state = CycleState::new();
        assert!(
            plugin
                .pre_score(&mut state, &pod, &bed.snapshot, &places)
                .is_success()
        );
        let scores = bed.scores_with(&plugin, &pod, &state);
        let of = |name: &str| scores[bed.snapshot.position(name).unwrap()];
        // Another zone is better than another node of the same, and that better than the same node.
        assert!(of("b1") > of("a2") && of("a2") > of("a1"), "{scores:?}");
        // A node without a zone counts by its name alone.
        assert!(of("bare") > of("a2"), "{scores:?}");
        // Whoever states constraints, or belongs to nothing, is not concerned.
        let nobody = PodTopologySpread::default();
        assert!(
            nobody
                .pre_score(&mut CycleState::new(), &pod, &bed.snapshot, &places)
                .is_skip()
        );
        let own = web("w3", json!([constraint("zone", "DoNotSchedule")]));
        assert!(
            plugin
                .pre_score(&mut CycleState::new(), &own, &bed.snapshot, &places)
                .is_skip()
        );
    }

    #[test]
    fn a_list_of_defaults_can_be_hard() {
        let mut bed = bed();
        bed.place(&web("w1", json!([])), "a1");
        let args = serde_json::from_value(json!({"defaultingType": "List", "defaultConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]}));
        let plugin = PodTopologySpread::new(&args.unwrap(), workloads());
        let verdicts = bed.verdicts(&plugin, &web("w2", json!([])));
        assert_eq!(by_name(&bed, &verdicts), [false, false, true]);
    }
}
