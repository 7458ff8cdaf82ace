//! Taints and tolerations.

use std::sync::Arc;

use davit_api::taint::{self, tolerates};
use k8s_openapi::api::core::v1::{Taint, Toleration};

use crate::cache::Snapshot;
use crate::framework::{
    Action, ClusterEvent, CycleState, EventObject, EventResource, Filter, Hint, Plugin, Points,
    Score, Signature, Status, default_normalize,
};
use crate::node::NodeInfo;
use crate::pod::PodInfo;

/// The plugin `TaintToleration`.
#[derive(Debug)]
pub struct TaintToleration;

/// The first taint that keeps new pods away and that none of the tolerations tolerates.
pub(crate) fn untolerated<'a>(
    taints: &'a [Taint],
    tolerations: &[Toleration],
) -> Option<&'a Taint> {
    taint::untolerated(taints, tolerations, &["NoSchedule", "NoExecute"])
}

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.filter.push(self.clone());
        points.score.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        vec![
            ClusterEvent::new(EventResource::Node, Action::ADD | Action::UPDATE_TAINT),
            ClusterEvent::new(EventResource::TargetPod, Action::UPDATE_TOLERATION),
        ]
    }

    fn hint(&self, _: &ClusterEvent, pod: &PodInfo, object: &EventObject) -> Hint {
        match object {
            EventObject::Node {
                new: Some(node), ..
            } => {
                let taints = node
                    .spec
                    .as_ref()
                    .and_then(|s| s.taints.as_deref())
                    .unwrap_or_default();
                let kept_away = untolerated(taints, pod.tolerations()).is_some();
                if kept_away { Hint::Skip } else { Hint::Queue }
            }
            _ => Hint::Queue,
        }
    }
}

impl Filter for TaintToleration {
    fn filter(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        match untolerated(node.taints(), pod.tolerations()) {
            None => Status::success(),
            Some(_) => Status::unresolvable("node(s) had untolerated taint(s)"),
        }
    }

    fn sign_pod(&self, pod: &PodInfo, signature: &mut Signature) -> bool {
        pod.sign_tolerations(signature);
        true
    }
}

impl Score for TaintToleration {
    /// The number of untolerated taints that only ask to stay away; fewer is better.
    fn score(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo, _: &Snapshot) -> i64 {
        let relevant =
            |t: &&Toleration| matches!(t.effect.as_deref(), None | Some("" | "PreferNoSchedule"));
        let taints = node
            .taints()
            .iter()
            .filter(|t| t.effect == "PreferNoSchedule");
        let disliked = taints.filter(|taint| {
            !pod.tolerations()
                .iter()
                .filter(relevant)
                .any(|t| tolerates(t, taint))
        });
        i64::try_from(disliked.count()).unwrap_or(i64::MAX)
    }

    fn normalize(
        &self,
        _: &CycleState,
        _: &PodInfo,
        _: &Snapshot,
        _: &[usize],
        scores: &mut [i64],
    ) {
        default_normalize(scores, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{Bed, pod};
    use serde_json::json;

    fn taint(key: &str, value: &str, effect: &str) -> serde_json::Value {
        json!({"key": key, "value": value, "effect": effect})
    }

    #[test]
    fn untolerated_taints_keep_pods_away() {
        let mut bed = Bed::new();
        bed.node(
            "n",
            json!({"spec": {"taints": [taint("k", "v", "NoSchedule")]}}),
        );
        let refused = bed.filter(&TaintToleration, &pod("p", json!({})), "n");
        assert_eq!(
            refused,
            Status::unresolvable("node(s) had untolerated taint(s)")
        );
        for (toleration, tolerated) in [
            (json!({"key": "k", "value": "v"}), true),
            (
                json!({"key": "k", "operator": "Equal", "value": "w"}),
                false,
            ),
            (json!({"key": "k", "operator": "Exists"}), true),
            (json!({"operator": "Exists"}), true),
            (
                json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}),
                false,
            ),
            (json!({"key": "other", "operator": "Exists"}), false),
        ] {
            let pod = pod("p", json!({"tolerations": [toleration]}));
            assert_eq!(
                bed.filter(&TaintToleration, &pod, "n").is_success(),
                tolerated,
                "{toleration}"
            );
        }
    }

    #[test]
    fn taints_that_only_ask_lower_the_score() {
        let mut bed = Bed::new();
        bed.node(
            "a",
            json!({"spec": {"taints": [taint("k", "v", "PreferNoSchedule")]}}),
        );
        bed.node("b", json!({}));
        let pod = pod("p", json!({}));
        assert!(bed.filter(&TaintToleration, &pod, "a").is_success());
        assert_eq!(bed.scores(&TaintToleration, &pod), [0, 100]);
    }
}
