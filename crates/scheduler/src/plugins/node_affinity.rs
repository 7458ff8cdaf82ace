//! Node selectors and node affinity.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{NodeSelector, PreferredSchedulingTerm};

use crate::cache::Snapshot;
use crate::config::NodeAffinityArgs;
use crate::framework::{
    Action, ClusterEvent, CycleState, EventObject, EventResource, Filter, Hint, NodeNames, Plugin,
    Points, PreFilter, PreScore, Score, Signature, Status, default_normalize,
};
use crate::node::NodeInfo;
use crate::pod::PodInfo;
use crate::selector::{Labels, NodeTerm};

/// The plugin `NodeAffinity`: `spec.nodeSelector` and required and preferred node affinity, of pods and of the profile.
#[derive(Debug, Default)]
pub struct NodeAffinity {
    /// Terms of which the profile demands one of every node; `None`: it demands nothing.
    added_terms: Option<Vec<NodeTerm>>,
    /// What the profile prefers, with weights.
    added_preferred: Vec<(i64, NodeTerm)>,
}

impl NodeAffinity {
    /// The plugin with these arguments.
    pub fn new(args: &NodeAffinityArgs) -> Self {
        let added = args.added_affinity.as_ref();
        let required = added.and_then(|a| {
            a.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
        let preferred = added.and_then(|a| {
            a.preferred_during_scheduling_ignored_during_execution
                .as_ref()
        });
        let terms = |s: &NodeSelector| {
            s.node_selector_terms
                .iter()
                .filter_map(NodeTerm::new)
                .collect()
        };
        let weighted = |t: &PreferredSchedulingTerm| {
            Some((i64::from(t.weight), NodeTerm::new(&t.preference)?))
        };
        Self {
            added_terms: required.map(terms),
            added_preferred: preferred
                .into_iter()
                .flatten()
                .filter_map(weighted)
                .collect(),
        }
    }

    /// Whether the profile's own affinity allows a node.
    fn enforces(&self, name: &str, labels: &Labels) -> bool {
        let terms = self.added_terms.as_ref();
        terms.is_none_or(|terms| terms.iter().any(|t| t.matches(name, labels)))
    }
}

/// Whether the pod's node selector and required node affinity allow a node.
pub(crate) fn allows(pod: &PodInfo, name: &str, labels: &Labels) -> bool {
    let selected = pod
        .spec()
        .node_selector
        .iter()
        .flatten()
        .all(|(k, v)| labels.get(k) == Some(v));
    let terms = pod.node_terms.as_ref();
    selected && terms.is_none_or(|terms| terms.iter().any(|t| t.matches(name, labels)))
}

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.pre_filter.push(self.clone());
        points.filter.push(self.clone());
        points.pre_score.push(self.clone());
        points.score.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        vec![ClusterEvent::new(
            EventResource::Node,
            Action::ADD | Action::UPDATE_LABEL,
        )]
    }

    fn hint(&self, _: &ClusterEvent, pod: &PodInfo, object: &EventObject) -> Hint {
        let EventObject::Node {
            new: Some(node), ..
        } = object
        else {
            return Hint::Queue;
        };
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let none = Labels::new();
        let labels = node.metadata.labels.as_ref().unwrap_or(&none);
        if self.enforces(name, labels) && allows(pod, name, labels) {
            Hint::Queue
        } else {
            Hint::Skip
        }
    }
}

impl PreFilter for NodeAffinity {
    fn pre_filter(&self, _: &mut CycleState, pod: &PodInfo, _: &Snapshot) -> (Status, NodeNames) {
        let Some(terms) = &pod.node_terms else {
            let selects = pod
                .spec()
                .node_selector
                .as_ref()
                .is_some_and(|s| !s.is_empty());
            return (
                if selects || self.added_terms.is_some() {
                    Status::success()
                } else {
                    Status::skip()
                },
                None,
            );
        };
        // If every term names nodes, no other node need be looked at.
        let mut names = BTreeSet::new();
        for term in terms {
            match term.names() {
                Some(list) => names.extend(list.into_iter().map(str::to_owned)),
                None => return (Status::success(), None),
            }
        }
        if terms.is_empty() {
            return (Status::success(), None);
        }
        if names.is_empty() {
            return (Status::unresolvable("pod affinity terms conflict"), None);
        }
        (Status::success(), Some(names))
    }
}

impl Filter for NodeAffinity {
    fn filter(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        if !self.enforces(&node.name, node.labels()) {
            return Status::unresolvable("node(s) didn't match scheduler-enforced node affinity");
        }
        if allows(pod, &node.name, node.labels()) {
            return Status::success();
        }
        Status::unresolvable("node(s) didn't match Pod's node affinity/selector")
    }

    fn sign_pod(&self, pod: &PodInfo, signature: &mut Signature) -> bool {
        signature.add(&pod.spec().node_selector);
        let affinity = pod.spec().affinity.as_ref();
        let terms = affinity.and_then(|a| a.node_affinity.as_ref());
        let words = terms.map(serde_json::to_vec).transpose();
        words.is_ok_and(|words| {
            signature.add(&words);
            true
        })
    }
}

impl PreScore for NodeAffinity {
    fn pre_score(&self, _: &mut CycleState, pod: &PodInfo, _: &Snapshot, _: &[usize]) -> Status {
        if pod.preferred_node_terms.is_empty() && self.added_preferred.is_empty() {
            Status::skip()
        } else {
            Status::success()
        }
    }
}

impl Score for NodeAffinity {
    fn score(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo, _: &Snapshot) -> i64 {
        let labels = node.labels();
        let preferred = pod.preferred_node_terms.iter().chain(&self.added_preferred);
        let matching = preferred.filter(|(_, t)| t.matches(&node.name, labels));
        matching.map(|(weight, _)| weight).sum()
    }

    fn normalize(
        &self,
        _: &CycleState,
        _: &PodInfo,
        _: &Snapshot,
        _: &[usize],
        scores: &mut [i64],
    ) {
        default_normalize(scores, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{Bed, pod};
    use serde_json::json;

    fn bed() -> Bed {
        let mut bed = Bed::new();
        bed.node(
            "a",
            json!({"metadata": {"labels": {"disk": "ssd", "size": "3"}}}),
        );
        bed.node("b", json!({"metadata": {"labels": {"disk": "hdd"}}}));
        bed
    }

    fn required(terms: serde_json::Value) -> serde_json::Value {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": terms
        }}}})
    }

    #[test]
    fn selector_and_required_affinity_must_both_hold() {
        let bed = bed();
        let ssd = pod("p", json!({"nodeSelector": {"disk": "ssd"}}));
        assert!(bed.filter(&NodeAffinity::default(), &ssd, "a").is_success());
        assert_eq!(
            bed.filter(&NodeAffinity::default(), &ssd, "b"),
            Status::unresolvable("node(s) didn't match Pod's node affinity/selector")
        );
        let size = required(json!([
            {"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["2"]}]},
        ]));
        assert!(
            bed.filter(&NodeAffinity::default(), &pod("p", size.clone()), "a")
                .is_success()
        );
        assert!(
            !bed.filter(&NodeAffinity::default(), &pod("p", size), "b")
                .is_success()
        );
        let empty = required(json!([{}]));
        assert!(
            !bed.filter(&NodeAffinity::default(), &pod("p", empty), "a")
                .is_success()
        );
    }

    #[test]
    fn terms_that_name_nodes_limit_the_search() {
        let bed = bed();
        let by_name = |names: serde_json::Value| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": names}]});
        let limit = |spec| bed.pre_filter(&NodeAffinity::default(), &pod("p", spec));
        let (status, names) = limit(required(json!([
            by_name(json!(["b"])),
            by_name(json!(["a"]))
        ])));
        assert!(status.is_success());
        assert_eq!(names, Some(["a".to_owned(), "b".to_owned()].into()));
        let (_, names) = limit(required(json!([
            by_name(json!(["b"])),
            {"matchExpressions": [{"key": "disk", "operator": "Exists"}]},
        ])));
        assert_eq!(names, None);
        assert!(limit(json!({})).0.is_skip());
    }

    #[test]
    fn preferred_terms_add_their_weights() {
        let bed = bed();
        let preferred = json!({"affinity": {"nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 10, "preference": {"matchExpressions": [
                    {"key": "disk", "operator": "Exists"}]}},
                {"weight": 30, "preference": {"matchExpressions": [
                    {"key": "disk", "operator": "In", "values": ["hdd"]}]}},
            ]
        }}});
        assert_eq!(
            bed.scores(&NodeAffinity::default(), &pod("p", preferred)),
            [25, 100]
        );
    }

    #[test]
    fn what_the_profile_adds_holds_for_every_pod() {
        let bed = bed();
        let plugin = NodeAffinity::new(
            &serde_json::from_value(json!({"addedAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "preference":
                    {"matchExpressions": [{"key": "size", "operator": "Exists"}]}}],
            }}))
            .unwrap(),
        );
        let any = pod("p", json!({}));
        let (status, names) = bed.pre_filter(&plugin, &any);
        assert!(status.is_success() && names.is_none());
        assert!(bed.filter(&plugin, &any, "a").is_success());
        let enforced =
            Status::unresolvable("node(s) didn't match scheduler-enforced node affinity");
        assert_eq!(bed.filter(&plugin, &any, "b"), enforced);
        // Both must hold.
        let other = pod("p", json!({"nodeSelector": {"disk": "hdd"}}));
        assert!(!bed.filter(&plugin, &other, "a").is_success());
        assert!(!bed.filter(&plugin, &other, "b").is_success());
        assert_eq!(bed.scores(&plugin, &any), [100, 0]);
    }
}
