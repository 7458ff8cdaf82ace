//! What the pods of all nodes mean for a pod by terms of affinity, their own and the pod's.

use super::{Domains, matches_all};
use crate::cache::Snapshot;
use crate::node::NodeInfo;
use crate::plugins::tally::{Tallies, Totals};
use crate::pod::{AffinityTerm, ByGroup, Group, PodInfo};
use crate::selector::Labels;
use std::collections::HashMap;
use std::sync::Arc;

/// All that the counts of a pod go by.
#[derive(Debug)]
struct AffinityKind {
    namespaces: Arc<HashMap<String, Labels>>,
    group: Group,
    affinity: Vec<AffinityTerm>,
    anti_affinity: Vec<AffinityTerm>,
    preferred_affinity: Vec<(i64, AffinityTerm)>,
    preferred_anti_affinity: Vec<(i64, AffinityTerm)>,
}

impl AffinityKind {
    fn new(pod: &PodInfo, snapshot: &Snapshot) -> Self {
        Self {
            namespaces: snapshot.namespaces().clone(),
            group: pod.group,
            affinity: pod.affinity.clone(),
            anti_affinity: pod.anti_affinity.clone(),
            preferred_affinity: pod.preferred_affinity.clone(),
            preferred_anti_affinity: pod.preferred_anti_affinity.clone(),
        }
    }

    fn is_of(&self, pod: &PodInfo, snapshot: &Snapshot) -> bool {
        Arc::ptr_eq(&self.namespaces, snapshot.namespaces())
            && self.group == pod.group
            && self.affinity == pod.affinity
            && self.anti_affinity == pod.anti_affinity
            && self.preferred_affinity == pod.preferred_affinity
            && self.preferred_anti_affinity == pod.preferred_anti_affinity
    }
}

/// Counts by domain.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    /// Pods that want no such pod as the new one in their domain.
    pub(super) against: Arc<Domains>,
    /// Pods the new pod wants to be with: those that match all its terms.
    pub(super) wanted: Arc<Domains>,
    /// Pods the new pod wants to be away from.
    pub(super) unwanted: Arc<Domains>,
    /// What preferences of both sides add up to.
    pub(super) preferred: Arc<Domains>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    Against,
    Wanted,
    Unwanted,
    Preferred,
}

impl Counts {
    /// Books a pod on a node, or takes it off with sign -1.
    pub(super) fn book_pod(
        &mut self,
        judge: &mut Judge<'_>,
        other: &PodInfo,
        node: &NodeInfo,
        sign: i64,
    ) {
        let mut shares = Vec::new();
        judge.of_pod(other, node, &mut shares);
        for share in &shares {
            self.book(share, sign);
        }
    }
}

impl Totals for Counts {
    type Share = Share;

    fn book(&mut self, share: &Share, sign: i64) {
        let domains = match share.count {
            Count::Against => &mut self.against,
            Count::Wanted => &mut self.wanted,
            Count::Unwanted => &mut self.unwanted,
            Count::Preferred => &mut self.preferred,
        };
        let domains = Arc::make_mut(domains);
        domains.add(&share.key, &share.value, sign * share.amount);
    }
}

/// What the pods of one node add to a domain.
#[derive(Debug)]
pub(super) struct Share {
    count: Count,
    key: Arc<str>,
    value: Arc<str>,
    amount: i64,
}

/// The counts of the pods that came last.
#[derive(Debug, Default)]
pub(super) struct AffinityTally(Tallies<AffinityKind, Counts>);

impl AffinityTally {
    /// The counts of a pod in a cluster. `hard_weight` is what a required term of a pod that runs counts for as a preference.
    pub(super) fn counts(
        &mut self,
        pod: &PodInfo,
        snapshot: &Snapshot,
        hard_weight: i64,
    ) -> Counts {
        let mut judge = Judge::new(pod, snapshot, hard_weight);
        let is = |kind: &AffinityKind| kind.is_of(pod, snapshot);
        let start = || (AffinityKind::new(pod, snapshot), Counts::default());
        let shares = |node: &NodeInfo| judge.shares(node);
        let (_, counts) = self.0.counts(snapshot, is, start, shares);
        counts
    }
}

/// Says what pods mean for one pod.
pub(super) struct Judge<'a> {
    pod: &'a PodInfo,
    snapshot: &'a Snapshot,
    hard_weight: i64,
    /// Whether a term of the pod is about others with the labels of a group: most are none of the terms' business.
    concerns: ByGroup<bool>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(pod: &'a PodInfo, snapshot: &'a Snapshot, hard_weight: i64) -> Self {
        Self {
            pod,
            snapshot,
            hard_weight,
            concerns: ByGroup::default(),
        }
    }

    /// What the pods of a node add.
    fn shares(&mut self, node: &NodeInfo) -> Box<[Share]> {
        let mut shares = Vec::new();
        if self.pod.has_affinity() || node.has_affinity() {
            for other in &node.pods {
                self.of_pod(other, node, &mut shares);
            }
        }
        shares.into()
    }

    fn of_pod(&mut self, other: &PodInfo, node: &NodeInfo, shares: &mut Vec<Share>) {
        if other.has_affinity() {
            self.of_theirs(other, node, shares);
        }
        let (pod, snapshot) = (self.pod, self.snapshot);
        let concerns = || concerns(pod, other, snapshot);
        if pod.has_affinity() && *self.concerns.get(other, concerns) {
            self.of_ours(other, node, shares);
        }
    }

    /// By the terms of a pod that runs.
    fn of_theirs(&self, other: &PodInfo, node: &NodeInfo, shares: &mut Vec<Share>) {
        let ours = self.snapshot.namespace(&self.pod.namespace);
        let about = |term: &&AffinityTerm| term.matches(self.pod, ours);
        for term in other.anti_affinity.iter().filter(about) {
            add(shares, Count::Against, node, term, 1);
        }
        for term in other.affinity.iter().filter(about) {
            add(shares, Count::Preferred, node, term, self.hard_weight);
        }
        for (list, sign) in [
            (&other.preferred_affinity, 1),
            (&other.preferred_anti_affinity, -1),
        ] {
            for (weight, term) in list.iter().filter(|(_, term)| about(&term)) {
                add(shares, Count::Preferred, node, term, sign * weight);
            }
        }
    }

    /// By the new pod's own terms.
    fn of_ours(&self, other: &PodInfo, node: &NodeInfo, shares: &mut Vec<Share>) {
        let pod = self.pod;
        let theirs = self.snapshot.namespace(&other.namespace);
        let about = |term: &&AffinityTerm| term.matches(other, theirs);
        if !pod.affinity.is_empty() && matches_all(&pod.affinity, other, theirs) {
            for term in &pod.affinity {
                add(shares, Count::Wanted, node, term, 1);
            }
        }
        for term in pod.anti_affinity.iter().filter(about) {
            add(shares, Count::Unwanted, node, term, 1);
        }
        for (list, sign) in [
            (&pod.preferred_affinity, 1),
            (&pod.preferred_anti_affinity, -1),
        ] {
            for (weight, term) in list.iter().filter(|(_, term)| about(&term)) {
                add(shares, Count::Preferred, node, term, sign * weight);
            }
        }
    }
}

/// Whether one of the pod's own terms is about `other`.
fn concerns(pod: &PodInfo, other: &PodInfo, snapshot: &Snapshot) -> bool {
    let namespace = snapshot.namespace(&other.namespace);
    let preferred = pod.preferred_affinity.iter();
    let preferred = preferred.chain(&pod.preferred_anti_affinity);
    let required = pod.affinity.iter().chain(&pod.anti_affinity);
    let mut terms = required.chain(preferred.map(|(_, term)| term));
    terms.any(|term| term.matches(other, namespace))
}

fn add(shares: &mut Vec<Share>, count: Count, node: &NodeInfo, term: &AffinityTerm, amount: i64) {
    let key = term.topology_key.as_str();
    let Some(value) = node.label(key) else { return };
    let same = |share: &&mut Share| share.count == count && *share.key == *key;
    match shares.iter_mut().find(same) {
        Some(share) => share.amount += amount,
        None => shares.push(Share {
            count,
            key: Arc::from(key),
            value: Arc::from(value),
            amount,
        }),
    }
}

#[cfg(test)]
mod tests;
