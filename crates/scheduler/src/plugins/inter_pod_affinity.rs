//! Affinity and anti-affinity between pods.

mod tally;

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tally::{AffinityTally, Counts, Judge};

use crate::cache::Snapshot;
use crate::config::InterPodAffinityArgs;
use crate::framework::{
    Action, ClusterEvent, CycleState, EventObject, EventResource, Filter, Hint, MAX_NODE_SCORE,
    NodeNames, Plugin, Points, PreFilter, PreScore, Score, Status,
};
use crate::node::NodeInfo;
use crate::pod::{AffinityTerm, PodInfo};
use crate::selector::Labels;

/// The plugin `InterPodAffinity`.
#[derive(Debug)]
pub struct InterPodAffinity {
    /// What a required affinity term of a pod that runs already counts for in the score of a new
    /// pod it matches.
    pub hard_pod_affinity_weight: i64,
    /// Whether preferences of pods that run already count only for pods that have some of their own.
    pub ignore_preferred_terms_of_existing_pods: bool,
    tally: Mutex<AffinityTally>,
}

impl InterPodAffinity {
    /// The plugin with these arguments.
    pub fn new(args: &InterPodAffinityArgs) -> Self {
        Self {
            hard_pod_affinity_weight: i64::from(args.hard_pod_affinity_weight),
            ignore_preferred_terms_of_existing_pods: args.ignore_preferred_terms_of_existing_pods,
            tally: Mutex::default(),
        }
    }
}

impl Default for InterPodAffinity {
    fn default() -> Self {
        Self::new(&InterPodAffinityArgs::default())
    }
}

impl InterPodAffinity {
    fn counts(&self, pod: &PodInfo, snapshot: &Snapshot) -> Counts {
        let mut tally = self.tally.lock();
        tally.counts(pod, snapshot, self.hard_pod_affinity_weight)
    }
}

/// How often something is true in a domain, by label key and value. Zeros are not kept.
#[derive(Debug, Clone, Default)]
struct Domains(HashMap<Arc<str>, HashMap<Arc<str>, i64>>);

impl Domains {
    fn add(&mut self, key: &Arc<str>, value: &Arc<str>, amount: i64) {
        let values = self.0.entry(key.clone()).or_default();
        let count = values.entry(value.clone()).or_default();
        *count += amount;
        if *count == 0 {
            values.remove(value);
            if values.is_empty() {
                self.0.remove(key);
            }
        }
    }

    fn get(&self, key: &str, value: &str) -> i64 {
        self.0
            .get(key)
            .and_then(|values| values.get(value))
            .copied()
            .unwrap_or(0)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The sum over the domains a node is in.
    fn of(&self, node: &NodeInfo) -> i64 {
        let in_domain = |(key, values): (&Arc<str>, &HashMap<Arc<str>, i64>)| {
            node.label(key)
                .and_then(|value| values.get(value))
                .copied()
                .unwrap_or(0)
        };
        self.0.iter().map(in_domain).sum()
    }
}

#[derive(Debug, Clone, Default)]
struct FilterState {
    counts: Counts,
    /// Whether the new pod is one of those it wants to be with.
    is_one_of_them: bool,
}

fn matches_all(terms: &[AffinityTerm], pod: &PodInfo, namespace: Option<&Labels>) -> bool {
    terms.iter().all(|t| t.matches(pod, namespace))
}

#[derive(Debug, Clone)]
struct ScoreState {
    sums: Arc<Domains>,
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        "InterPodAffinity"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.pre_filter.push(self.clone());
        points.filter.push(self.clone());
        points.pre_score.push(self.clone());
        points.score.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        let pods = Action::ADD | Action::DELETE | Action::UPDATE_LABEL;
        vec![
            ClusterEvent::new(EventResource::AssignedPod, pods),
            ClusterEvent::new(EventResource::TargetPod, Action::UPDATE_LABEL),
            ClusterEvent::new(EventResource::Node, Action::ADD | Action::UPDATE_LABEL),
            ClusterEvent::new(EventResource::Namespace, Action::ALL),
        ]
    }

    fn hint(&self, _: &ClusterEvent, pod: &PodInfo, object: &EventObject) -> Hint {
        // Namespace selectors cannot be judged here; a pod that has any is tried again.
        let EventObject::Pod { old, new } = object else {
            return Hint::Queue;
        };
        let concerns = |other: &PodInfo| {
            let own = pod.affinity.iter().chain(&pod.anti_affinity);
            own.clone()
                .any(|t| t.matches(other, None) || t.has_namespace_selector())
                || other
                    .anti_affinity
                    .iter()
                    .any(|t| t.matches(pod, None) || t.has_namespace_selector())
        };
        let changed = [old, new].into_iter().flatten().any(|p| concerns(p));
        if changed { Hint::Queue } else { Hint::Skip }
    }
}

impl PreFilter for InterPodAffinity {
    fn pre_filter(
        &self,
        state: &mut CycleState,
        pod: &PodInfo,
        snapshot: &Snapshot,
    ) -> (Status, NodeNames) {
        let counts =
            match pod.has_affinity() || snapshot.nodes_with_anti_affinity().next().is_some() {
                true => self.counts(pod, snapshot),
                false => Counts::default(),
            };
        let has_required = !(pod.affinity.is_empty() && pod.anti_affinity.is_empty());
        let nothing = !has_required && counts.against.is_empty();
        state.put(FilterState {
            is_one_of_them: matches_all(&pod.affinity, pod, snapshot.namespace(&pod.namespace)),
            counts,
        });
        match nothing {
            true => (Status::skip(), None),
            false => (Status::success(), None),
        }
    }

    fn add_pod(
        &self,
        state: &mut CycleState,
        pod: &PodInfo,
        added: &PodInfo,
        node: &NodeInfo,
        snapshot: &Snapshot,
    ) {
        if let Some(prepared) = state.get_mut::<FilterState>() {
            let mut judge = Judge::new(pod, snapshot, self.hard_pod_affinity_weight);
            prepared.counts.book_pod(&mut judge, added, node, 1);
        }
    }

    fn remove_pod(
        &self,
        state: &mut CycleState,
        pod: &PodInfo,
        removed: &PodInfo,
        node: &NodeInfo,
        snapshot: &Snapshot,
    ) {
        if let Some(prepared) = state.get_mut::<FilterState>() {
            let mut judge = Judge::new(pod, snapshot, self.hard_pod_affinity_weight);
            prepared.counts.book_pod(&mut judge, removed, node, -1);
        }
    }
}

/// Whether the node is where the pod wants to be. The first of a group of pods that want to be with
/// each other may go anywhere.
fn satisfies_affinity(prepared: &FilterState, pod: &PodInfo, node: &NodeInfo) -> bool {
    let mut present = true;
    for term in &pod.affinity {
        let Some(value) = node.label(&term.topology_key) else {
            return false;
        };
        present &= prepared.counts.wanted.get(&term.topology_key, value) > 0;
    }
    present || (prepared.counts.wanted.is_empty() && prepared.is_one_of_them)
}

impl Filter for InterPodAffinity {
    fn filter(&self, state: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        let Some(prepared) = state.get::<FilterState>() else {
            return Status::error("pod affinity has not been prepared");
        };
        if !satisfies_affinity(prepared, pod, node) {
            return Status::unresolvable("node(s) didn't match pod affinity rules");
        }
        let unwanted = pod.anti_affinity.iter().any(|term| {
            node.label(&term.topology_key)
                .is_some_and(|value| prepared.counts.unwanted.get(&term.topology_key, value) > 0)
        });
        if unwanted {
            return Status::unschedulable("node(s) didn't match pod anti-affinity rules");
        }
        if prepared.counts.against.of(node) > 0 {
            return Status::unschedulable(
                "node(s) didn't satisfy existing pods anti-affinity rules",
            );
        }
        Status::success()
    }
}

impl PreScore for InterPodAffinity {
    fn pre_score(
        &self,
        state: &mut CycleState,
        pod: &PodInfo,
        snapshot: &Snapshot,
        _: &[usize],
    ) -> Status {
        let has_preferences =
            !(pod.preferred_affinity.is_empty() && pod.preferred_anti_affinity.is_empty());
        let others = !self.ignore_preferred_terms_of_existing_pods
            && snapshot.nodes_with_affinity().next().is_some();
        if !has_preferences && !others {
            return Status::skip();
        }
        let sums = self.counts(pod, snapshot).preferred;
        if sums.is_empty() {
            return Status::skip();
        }
        state.put(ScoreState { sums });
        Status::success()
    }
}

impl Score for InterPodAffinity {
    fn score(&self, state: &CycleState, _: &PodInfo, node: &NodeInfo, _: &Snapshot) -> i64 {
        state.get::<ScoreState>().map_or(0, |s| s.sums.of(node))
    }

    fn normalize(
        &self,
        _: &CycleState,
        _: &PodInfo,
        _: &Snapshot,
        _: &[usize],
        scores: &mut [i64],
    ) {
        let least = scores.iter().copied().min().unwrap_or(0);
        let range = scores.iter().copied().max().unwrap_or(0) - least;
        for score in scores {
            *score = if range > 0 {
                MAX_NODE_SCORE * (*score - least) / range
            } else {
                0
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{Bed, labelled};
    use serde_json::{Value, json};

    fn term(app: &str, key: &str) -> Value {
        json!({"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key})
    }

    fn with(kind: &str, list: &str, terms: Value) -> Value {
        json!({"affinity": {kind: {list: terms}}})
    }

    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

    fn bed() -> Bed {
        let mut bed = Bed::new();
        for (name, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
            bed.node(
                name,
                json!({"metadata": {"labels": {"zone": zone, "host": name}}}),
            );
        }
        bed
    }

    fn passes(bed: &Bed, pod: &PodInfo) -> Vec<bool> {
        bed.verdicts(&InterPodAffinity::default(), pod)
            .iter()
            .map(Status::is_success)
            .collect()
    }

    #[test]
    fn anti_affinity_works_in_both_directions() {
        let mut bed = bed();
        let spread = with("podAntiAffinity", REQUIRED, json!([term("web", "zone")]));
        bed.place(&labelled("w1", json!({"app": "web"}), spread.clone()), "a1");
        let second = labelled("w2", json!({"app": "web"}), spread);
        assert_eq!(passes(&bed, &second), [false, false, true]);
        assert_eq!(
            bed.verdicts(&InterPodAffinity::default(), &second)[0].reasons,
            ["node(s) didn't match pod anti-affinity rules"]
        );
        let plain = labelled("p", json!({"app": "web"}), json!({}));
        assert_eq!(
            bed.verdicts(&InterPodAffinity::default(), &plain)[0],
            Status::unschedulable("node(s) didn't satisfy existing pods anti-affinity rules")
        );
        assert_eq!(
            passes(&bed, &labelled("q", json!({"app": "db"}), json!({}))),
            [true; 3]
        );
    }

    #[test]
    fn affinity_needs_a_pod_in_the_domain_unless_the_pod_is_the_first_of_its_kind() {
        let mut bed = bed();
        let near = with("podAffinity", REQUIRED, json!([term("web", "zone")]));
        let stranger = labelled("p", json!({"app": "db"}), near.clone());
        assert_eq!(passes(&bed, &stranger), [false; 3]);
        assert_eq!(
            passes(&bed, &labelled("w", json!({"app": "web"}), near.clone())),
            [true; 3]
        );
        bed.place(&labelled("w", json!({"app": "web"}), json!({})), "b1");
        assert_eq!(passes(&bed, &stranger), [false, false, true]);
        assert_eq!(
            passes(&bed, &labelled("w2", json!({"app": "web"}), near)),
            [false, false, true]
        );
    }

    #[test]
    fn imagined_changes_are_booked() {
        let mut bed = bed();
        let spread = with("podAntiAffinity", REQUIRED, json!([term("web", "host")]));
        let first = labelled("w1", json!({"app": "web"}), spread.clone());
        bed.place(&first, "a1");
        let second = labelled("w2", json!({"app": "web"}), spread);
        let plugin = InterPodAffinity::default();
        let mut state = CycleState::new();
        plugin.pre_filter(&mut state, &second, &bed.snapshot);
        let at = bed.snapshot.position("a1").unwrap();
        let node = bed.snapshot.node(at);
        assert!(!plugin.filter(&state, &second, node).is_success());
        plugin.remove_pod(&mut state, &second, &first, node, &bed.snapshot);
        assert!(plugin.filter(&state, &second, node).is_success());
        plugin.add_pod(&mut state, &second, &first, node, &bed.snapshot);
        assert!(!plugin.filter(&state, &second, node).is_success());
    }

    #[test]
    fn preferences_are_summed_over_domains() {
        let mut bed = bed();
        bed.place(&labelled("w", json!({"app": "web"}), json!({})), "a1");
        let near = json!([{"weight": 10, "podAffinityTerm": term("web", "zone")},
                          {"weight": 30, "podAffinityTerm": term("web", "host")}]);
        let pod = labelled("p", json!({}), with("podAffinity", PREFERRED, near));
        let plugin = InterPodAffinity::default();
        let mut state = CycleState::new();
        assert!(
            plugin
                .pre_score(&mut state, &pod, &bed.snapshot, &[])
                .is_success()
        );
        let by_name = |bed: &Bed| {
            let scores = bed.scores_with(&plugin, &pod, &state);
            ["a1", "a2", "b1"].map(|n| scores[bed.snapshot.position(n).unwrap()])
        };
        assert_eq!(by_name(&bed), [100, 25, 0]);
        let indifferent = labelled("q", json!({}), json!({}));
        assert!(
            plugin
                .pre_score(&mut CycleState::new(), &indifferent, &bed.snapshot, &[])
                .is_skip()
        );
    }

    #[test]
    fn other_namespaces_count_only_where_named() {
        let mut bed = bed();
        bed.cache.set_namespace(
            "default",
            Some([("team".to_owned(), "x".to_owned())].into()),
        );
        bed.cache.update(&mut bed.snapshot);
        bed.place(&labelled("w", json!({"app": "web"}), json!({})), "a1");
        let check = |extra: Value| {
            let mut anti = term("web", "host");
            for (key, value) in extra.as_object().unwrap() {
                anti[key] = value.clone();
            }
            let mut pod = json!({"metadata": {"name": "p", "namespace": "other", "uid": "p"},
                                 "spec": with("podAntiAffinity", REQUIRED, json!([anti]))});
            pod["spec"]["containers"] = json!([]);
            let pod = PodInfo::new(Arc::new(serde_json::from_value(pod).unwrap()));
            !passes(&bed, &pod)[bed.snapshot.position("a1").unwrap()]
        };
        assert!(!check(json!({})));
        assert!(check(json!({"namespaces": ["default"]})));
        assert!(check(json!({"namespaceSelector": {}})));
        assert!(check(
            json!({"namespaceSelector": {"matchLabels": {"team": "x"}}})
        ));
        assert!(!check(
            json!({"namespaceSelector": {"matchLabels": {"team": "y"}}})
        ));
    }

    #[test]
    fn preferences_of_others_can_be_left_out() {
        let mut bed = bed();
        let wish = json!([{"weight": 5, "podAffinityTerm": term("web", "host")}]);
        let fond = labelled(
            "fond",
            json!({"app": "db"}),
            with("podAffinity", PREFERRED, wish),
        );
        bed.place(&fond, "a1");
        let places = [0, 1, 2];
        let plain = labelled("p", json!({"app": "web"}), json!({}));
        let own = json!([{"weight": 1, "podAffinityTerm": term("none", "host")}]);
        let picky = labelled(
            "q",
            json!({"app": "web"}),
            with("podAffinity", PREFERRED, own),
        );
        let ignoring = InterPodAffinity::new(&InterPodAffinityArgs {
            ignore_preferred_terms_of_existing_pods: true,
            ..InterPodAffinityArgs::default()
        });
        for (plugin, pod, skips) in [
            (&InterPodAffinity::default(), &plain, false),
            (&ignoring, &plain, true),
            (&ignoring, &picky, false),
        ] {
            let status = plugin.pre_score(&mut CycleState::new(), pod, &bed.snapshot, &places);
            assert_eq!(status.is_skip(), skips, "{}", pod.name);
        }
    }
}
