//! Whom preemption may remove: pods one by one, and groups that go whole (KEP-5710); and what is spared first.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use parking_lot::RwLock;

use crate::cache::Snapshot;
use crate::framework::{CycleState, Profile};
use crate::node::NodeInfo;
use crate::pod::PodInfo;
use crate::pod_groups::{PodGroupKey, PodGroups};
use crate::selector::Selector;

/// A pod with the place of its node in the snapshot.
pub(crate) type PodAt = (usize, Arc<PodInfo>);

/// The pods of a group that go together or not at all.
#[derive(Debug)]
pub(crate) struct WholeGroup {
    key: PodGroupKey,
    pods: Vec<PodAt>,
    priority: i32,
}

/// What preemption removes, as a whole.
#[derive(Debug, Clone)]
pub(crate) enum Victim {
    Pod(PodAt),
    Group(Arc<WholeGroup>),
}

impl Victim {
    /// Its pods, wherever they are.
    pub(crate) fn pods(&self) -> &[PodAt] {
        match self {
            Self::Pod(pod) => std::slice::from_ref(pod),
            Self::Group(group) => &group.pods,
        }
    }

    /// The pod's, or the group's.
    pub(crate) fn priority(&self) -> i32 {
        match self {
            Self::Pod((_, pod)) => pod.priority,
            Self::Group(group) => group.priority,
        }
    }

    /// The group, of a namespace, that goes whole.
    pub(crate) fn group(&self) -> Option<&PodGroupKey> {
        match self {
            Self::Pod(_) => None,
            Self::Group(group) => Some(&group.key),
        }
    }

    fn started(&self) -> Timestamp {
        let starts = self.pods().iter().map(|(_, pod)| pod.start_time());
        starts.min().unwrap_or(Timestamp::MAX)
    }

    /// Orders the most important first: by priority, then groups before pods and large groups before small ones, then those
    /// that have run longer.
    pub(crate) fn order(&self) -> impl Ord + use<> {
        let size = self.group().map_or(0, |_| self.pods().len());
        (Reverse(self.priority()), Reverse(size), self.started())
    }

    /// Imagines it there or away, for a pod that is tried on the node at this place.
    pub(crate) fn set_there(
        &self,
        there: bool,
        (profile, snapshot): (&Profile, &Snapshot),
        state: &mut CycleState,
        pod: &PodInfo,
        (at, node): (usize, &mut NodeInfo),
    ) {
        for (place, one) in self.pods() {
            let other = (&**one, there);
            match (*place == at, there) {
                (true, true) => node.add_pod(one.clone()),
                (true, false) => _ = node.remove_pod(&one.uid),
                (false, _) => {
                    let elsewhere = snapshot.node(*place);
                    profile.imagine(state, pod, other, elsewhere, snapshot);
                    continue;
                }
            }
            profile.imagine(state, pod, other, node, snapshot);
        }
    }
}

/// Who may be removed for a pod or a group.
#[derive(Debug)]
pub(crate) struct Removable {
    /// Only what is of a lower priority.
    below: i32,
    /// The group for which others are removed. Its own pods are not.
    own: Option<PodGroupKey>,
    whole: HashMap<PodGroupKey, Arc<WholeGroup>>,
    /// Pods that are being removed, by UID, though the API may not say so yet.
    removing: HashSet<Arc<str>>,
}

impl Removable {
    /// For a pod on its own.
    pub(crate) fn for_pod(pod: &PodInfo, groups: &PodGroups, snapshot: &Snapshot) -> Self {
        Self {
            below: pod.priority,
            own: None,
            whole: whole_groups(groups, snapshot, &HashSet::new()),
            removing: HashSet::new(),
        }
    }

    /// For the group, of this priority, that a pod belongs to. What is being removed counts as gone.
    pub(crate) fn for_group(
        member: &PodInfo,
        priority: i32,
        groups: &PodGroups,
        removing: HashSet<Arc<str>>,
        snapshot: &Snapshot,
    ) -> Self {
        Self {
            below: priority,
            own: PodGroupKey::of(member),
            whole: whole_groups(groups, snapshot, &removing),
            removing,
        }
    }

    /// Whether a pod goes by itself.
    fn is_leaving(&self, pod: &PodInfo) -> bool {
        pod.is_terminating() || self.removing.contains(&pod.uid)
    }

    /// What goes if a pod goes; `None`: it may not be removed.
    pub(crate) fn victim(&self, at: usize, pod: &Arc<PodInfo>) -> Option<Victim> {
        let key = self.key_of(pod);
        if key.is_some() && key == self.own {
            return None;
        }
        // One that is being deleted goes by itself.
        let key = key.filter(|_| !self.is_leaving(pod));
        let group = key.and_then(|key| self.whole.get(&key));
        let victim = group.map_or_else(
            || Victim::Pod((at, pod.clone())),
            |group| Victim::Group(group.clone()),
        );
        (victim.priority() < self.below).then_some(victim)
    }

    /// The key of a pod's group where groups matter.
    fn key_of(&self, pod: &PodInfo) -> Option<PodGroupKey> {
        let matters = self.own.is_some() || !self.whole.is_empty();
        PodGroupKey::of(pod).filter(|_| matters)
    }

    /// What may be removed of the pods on a node.
    pub(crate) fn on(&self, at: usize, node: &NodeInfo) -> Vec<Victim> {
        if self.own.is_none() && self.whole.is_empty() {
            let below = node.pods_below(self.below);
            return below.map(|pod| Victim::Pod((at, pod.clone()))).collect();
        }
        let mut seen = HashSet::new();
        let victims = node.pods.iter().filter_map(|pod| self.victim(at, pod));
        victims
            .filter(|victim| match victim.group() {
                Some(key) => seen.insert(key.clone()),
                None => true,
            })
            .collect()
    }

    /// Pods that are being deleted, or about to be, and would have been removable: they make room by themselves.
    pub(crate) fn leaving<'s>(
        &'s self,
        snapshot: &'s Snapshot,
    ) -> impl Iterator<Item = &'s Arc<PodInfo>> {
        let nodes = snapshot.nodes().iter().enumerate();
        let pods = nodes.flat_map(|(at, node)| node.pods.iter().map(move |pod| (at, pod)));
        let leaving =
            pods.filter(|(at, pod)| self.is_leaving(pod) && self.victim(*at, pod).is_some());
        leaving.map(|(_, pod)| pod)
    }
}

/// The groups that go whole, with their pods.
fn whole_groups(
    groups: &PodGroups,
    snapshot: &Snapshot,
    removing: &HashSet<Arc<str>>,
) -> HashMap<PodGroupKey, Arc<WholeGroup>> {
    let priorities = groups.going_whole();
    if priorities.is_empty() {
        return HashMap::new();
    }
    let mut pods: HashMap<PodGroupKey, Vec<PodAt>> = HashMap::new();
    for (at, node) in snapshot.nodes().iter().enumerate() {
        let leaving = |pod: &PodInfo| pod.is_terminating() || removing.contains(&pod.uid);
        let staying = node.pods.iter().filter(|pod| !leaving(pod));
        for pod in staying.filter(|pod| pod.pod_group.is_some()) {
            if let Some(key) = PodGroupKey::of(pod).filter(|key| priorities.contains_key(key)) {
                pods.entry(key).or_default().push((at, pod.clone()));
            }
        }
    }
    let whole = pods.into_iter().map(|(key, pods)| {
        let group = WholeGroup {
            key: key.clone(),
            pods,
            priority: priorities.get(&key).copied().unwrap_or(0),
        };
        (key, Arc::new(group))
    });
    whole.collect()
}

/// How much removing something hurts; less is better: budgets that are broken, the priority of the most important, the sum of
/// all priorities, how many pods, how long the most important have run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PreemptionCost(usize, i32, i64, usize, Reverse<Timestamp>);

impl PreemptionCost {
    pub(crate) fn of(victims: &[Victim], violations: usize) -> Self {
        let highest = victims.iter().map(Victim::priority).max();
        let highest = highest.unwrap_or(i32::MIN);
        // Shifted so that more victims of negative priority do not look better.
        let weight = |v: &Victim| {
            let each = i64::from(v.priority()) + i64::from(i32::MAX) + 1;
            each.saturating_mul(i64::try_from(v.pods().len()).unwrap_or(i64::MAX))
        };
        let sum = victims.iter().map(weight).fold(0, i64::saturating_add);
        let most_important = victims.iter().filter(|v| v.priority() == highest);
        let oldest = most_important.map(Victim::started).min();
        let count = victims.iter().map(|v| v.pods().len()).sum();
        let oldest = Reverse(oldest.unwrap_or(Timestamp::MAX));
        Self(violations, highest, sum, count, oldest)
    }
}

/// The disruption budgets of the cluster, as far as they are known. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Budgets {
    list: Arc<RwLock<Vec<Arc<PodDisruptionBudget>>>>,
}

impl Budgets {
    /// Takes over the budgets as they are now.
    pub fn replace(&self, budgets: Vec<Arc<PodDisruptionBudget>>) {
        *self.list.write() = budgets;
    }

    /// The budgets with their selectors ready.
    pub(crate) fn compiled(&self) -> Vec<CompiledBudget> {
        let compile = |budget: &Arc<PodDisruptionBudget>| {
            let status = budget.status.as_ref();
            let selector = budget.spec.as_ref().and_then(|s| s.selector.as_ref());
            CompiledBudget {
                namespace: budget.metadata.namespace.clone().unwrap_or_default(),
                selector: Selector::new(selector),
                allowed: status.and_then(|s| s.disruptions_allowed).unwrap_or(0),
                disrupted: status
                    .and_then(|s| s.disrupted_pods.as_ref())
                    .map(|pods| pods.keys().cloned().collect())
                    .unwrap_or_default(),
            }
        };
        self.list.read().iter().map(compile).collect()
    }
}

/// A budget.
#[derive(Debug)]
pub(crate) struct CompiledBudget {
    namespace: String,
    selector: Selector,
    allowed: i32,
    disrupted: Vec<String>,
}

/// Those whose removal would break a budget, if the others go first; and those others. A group breaks one if one of its pods
/// does.
pub(crate) fn split_by_budgets(
    victims: &[Victim],
    budgets: &[CompiledBudget],
) -> (Vec<Victim>, Vec<Victim>) {
    let mut allowed: Vec<i32> = budgets.iter().map(|b| b.allowed).collect();
    let mut violates = |pod: &PodInfo| {
        let mut violates = false;
        for (budget, allowed) in budgets.iter().zip(&mut allowed) {
            let covers = *budget.namespace == *pod.namespace
                && !pod.labels().is_empty()
                && budget.selector.matches(pod.labels());
            if covers && !budget.disrupted.iter().any(|name| **name == *pod.name) {
                *allowed -= 1;
                violates |= *allowed < 0;
            }
        }
        violates
    };
    victims.iter().cloned().partition(|victim| {
        let pods = victim.pods().iter();
        pods.fold(false, |broken, (_, pod)| violates(pod) | broken)
    })
}
