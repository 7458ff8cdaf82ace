//! The pods that spread constraints count, by domain.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Toleration;

use crate::cache::Snapshot;
use crate::node::NodeInfo;
use crate::plugins::node_affinity::allows;
use crate::plugins::taint_toleration::untolerated;
use crate::plugins::tally::{Tallies, Totals};
use crate::pod::{ByGroup, PodInfo, SpreadConstraint};
use crate::selector::NodeTerm;

/// All that the counts of a pod go by.
#[derive(Debug)]
pub(super) struct SpreadKind {
    namespace: Arc<str>,
    constraints: Arc<[SpreadConstraint]>,
    /// Whether only nodes count that have the labels of all constraints.
    all_labels: bool,
    /// Where the pod may run, if a constraint looks at it.
    affinity: Option<NodeRules>,
    /// What the pod tolerates, if a constraint looks at it.
    tolerations: Option<Vec<Toleration>>,
}

/// The nodes where a pod may run.
#[derive(Debug)]
struct NodeRules {
    selector: Option<BTreeMap<String, String>>,
    terms: Option<Vec<NodeTerm>>,
}

fn honors_affinity(constraints: &[SpreadConstraint]) -> bool {
    constraints.iter().any(|c| c.honor_affinity)
}

fn honors_taints(constraints: &[SpreadConstraint]) -> bool {
    constraints.iter().any(|c| c.honor_taints)
}

/// Whether a node has the labels of all constraints.
pub(super) fn has_all_labels(constraints: &[SpreadConstraint], node: &NodeInfo) -> bool {
    constraints
        .iter()
        .all(|c| node.label(&c.topology_key).is_some())
}

impl SpreadKind {
    fn new(pod: &PodInfo, constraints: &Arc<[SpreadConstraint]>, all_labels: bool) -> Self {
        let affinity = || NodeRules {
            selector: pod.spec().node_selector.clone(),
            terms: pod.node_terms.clone(),
        };
        Self {
            namespace: pod.namespace.clone(),
            constraints: constraints.clone(),
            all_labels,
            affinity: honors_affinity(constraints).then(affinity),
            tolerations: honors_taints(constraints).then(|| pod.tolerations().to_vec()),
        }
    }

    fn is_of(&self, pod: &PodInfo, constraints: &[SpreadConstraint], all_labels: bool) -> bool {
        let affinity = |rules: &NodeRules| {
            rules.selector == pod.spec().node_selector && rules.terms == pod.node_terms
        };
        let tolerations = |tolerations: &Vec<_>| *tolerations == pod.tolerations();
        self.all_labels == all_labels
            && self.namespace == pod.namespace
            && *self.constraints == *constraints
            && self.affinity.as_ref().is_none_or(affinity)
            && self.tolerations.as_ref().is_none_or(tolerations)
    }

    /// The constraints with what each counts.
    pub(super) fn with<'a>(
        &'a self,
        counts: &'a SpreadCounts,
    ) -> impl Iterator<Item = (&'a SpreadConstraint, &'a SpreadDomains)> {
        let domains = counts.0.iter().map(|domains| &**domains);
        self.constraints.iter().zip(domains)
    }

    /// Books a pod on a node, or takes it off with sign -1.
    pub(super) fn book(
        &self,
        counts: &mut SpreadCounts,
        pod: &PodInfo,
        other: &PodInfo,
        node: &NodeInfo,
        sign: i64,
    ) {
        if other.is_terminating() {
            return;
        }
        for (at, constraint, value) in domains_of(&self.constraints, self.all_labels, pod, node) {
            if selected(constraint, pod, other) {
                counts.add(at, &Arc::from(value), 0, sign);
            }
        }
    }
}

/// Whether the node takes part in the count.
fn counts_for(constraint: &SpreadConstraint, pod: &PodInfo, node: &NodeInfo) -> bool {
    (!constraint.honor_affinity || allows(pod, &node.name, node.labels()))
        && (!constraint.honor_taints || untolerated(node.taints(), pod.tolerations()).is_none())
}

/// The constraints that a node counts for, by their places, with the domain that it is in.
fn domains_of<'a>(
    constraints: &'a [SpreadConstraint],
    all_labels: bool,
    pod: &'a PodInfo,
    node: &'a NodeInfo,
) -> impl Iterator<Item = (usize, &'a SpreadConstraint, &'a str)> {
    let counts = !all_labels || has_all_labels(constraints, node);
    let constraints = constraints.iter().enumerate().filter(move |_| counts);
    constraints.filter_map(|(at, constraint)| {
        let value = node.label(&constraint.topology_key)?;
        counts_for(constraint, pod, node).then_some((at, constraint, value))
    })
}

fn selected(constraint: &SpreadConstraint, pod: &PodInfo, other: &PodInfo) -> bool {
    other.namespace == pod.namespace && constraint.selector.matches(other.labels())
}

/// The pods of one node in a domain of one constraint.
#[derive(Debug)]
pub(super) struct SpreadShare {
    /// The constraint's place in its list.
    constraint: usize,
    value: Arc<str>,
    pods: i64,
}

/// For each constraint the pods that it counts.
#[derive(Debug, Clone)]
pub(super) struct SpreadCounts(Box<[Arc<SpreadDomains>]>);

impl SpreadCounts {
    fn add(&mut self, constraint: usize, value: &Arc<str>, nodes: i64, pods: i64) {
        if let Some(domains) = self.0.get_mut(constraint) {
            Arc::make_mut(domains).add(value, nodes, pods);
        }
    }
}

impl Totals for SpreadCounts {
    type Share = SpreadShare;

    fn book(&mut self, share: &SpreadShare, sign: i64) {
        self.add(share.constraint, &share.value, sign, sign * share.pods);
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Held {
    nodes: i64,
    pods: i64,
}

/// The domains of one constraint: those that have a node which counts, with the pods in each.
#[derive(Debug, Clone, Default)]
pub(super) struct SpreadDomains {
    by_value: HashMap<Arc<str>, Held>,
    /// How many domains hold how many pods.
    by_pods: BTreeMap<i64, usize>,
}

impl SpreadDomains {
    /// How many domains there are.
    pub(super) fn len(&self) -> usize {
        self.by_value.len()
    }

    /// The pods in a domain.
    pub(super) fn pods(&self, value: &str) -> i64 {
        self.by_value.get(value).map_or(0, |held| held.pods)
    }

    /// The pods in the domain with the fewest; 0 if there is none.
    pub(super) fn least(&self) -> i64 {
        self.by_pods.keys().next().copied().unwrap_or(0)
    }

    fn add(&mut self, value: &Arc<str>, nodes: i64, pods: i64) {
        let before = self.by_value.get(value).copied();
        let mut held = before.unwrap_or_default();
        held.nodes += nodes;
        held.pods += pods;
        if let Some(before) = before {
            self.leave(before.pods);
        }
        if held == Held::default() {
            self.by_value.remove(value);
            return;
        }
        self.by_value.insert(value.clone(), held);
        *self.by_pods.entry(held.pods).or_default() += 1;
    }

    fn leave(&mut self, pods: i64) {
        if let Some(domains) = self.by_pods.get_mut(&pods) {
            *domains -= 1;
            if *domains == 0 {
                self.by_pods.remove(&pods);
            }
        }
    }
}

/// The counts of the pods that came last.
#[derive(Debug, Default)]
pub(super) struct SpreadTally(Tallies<SpreadKind, SpreadCounts>);

impl SpreadTally {
    /// The counts of a pod's constraints in a cluster. With `all_labels` only nodes count that have the labels of all constraints.
    pub(super) fn counts(
        &mut self,
        pod: &PodInfo,
        snapshot: &Snapshot,
        constraints: &Arc<[SpreadConstraint]>,
        all_labels: bool,
    ) -> (Arc<SpreadKind>, SpreadCounts) {
        let start = || {
            let counts = constraints.iter().map(|_| Arc::default()).collect();
            let kind = SpreadKind::new(pod, constraints, all_labels);
            (kind, SpreadCounts(counts))
        };
        let mut known = Vec::new();
        known.resize_with(constraints.len(), ByGroup::default);
        let shares = |node: &NodeInfo| {
            let share = |(at, constraint, value): (usize, _, &str)| SpreadShare {
                constraint: at,
                value: Arc::from(value),
                pods: matching(constraint, pod, node, &mut known[at]),
            };
            let domains = domains_of(constraints, all_labels, pod, node);
            domains.map(share).collect()
        };
        let is = |kind: &SpreadKind| kind.is_of(pod, constraints, all_labels);
        self.0.counts(snapshot, is, start, shares)
    }
}

/// How many pods of a node a constraint counts.
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

#[cfg(test)]
mod tests;
