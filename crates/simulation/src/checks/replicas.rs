//! Replicas: never more than somebody asked for a moment ago.

use super::{Checks, DEPLOYMENTS, Judged, PODS, REPLICA_SETS, controller, is_going, is_over, text};

impl Checks {
    pub(super) fn deployments(&mut self, judged: &Judged<'_>) {
        if let Some(new) = judged.new {
            self.want(new);
        }
    }

    /// A rollout has no more replicas than the deployment's and its surge.
    pub(super) fn replica_sets(&mut self, judged: &Judged<'_>, found: &mut Vec<String>) {
        let Some(new) = judged.new else { return };
        self.want(new);
        let replicas = |set: &serde_json::Value| set["spec"]["replicas"].as_i64().unwrap_or(0);
        let before = judged.old.map_or(0, replicas);
        let Some(owner) = controller(new, "Deployment") else {
            return;
        };
        if replicas(new) <= before || self.in_doubt {
            return;
        }
        let mut deployments = self.below(DEPLOYMENTS);
        let Some((key, deployment)) = deployments.find(|(_, d)| text(d, "/metadata/uid") == owner)
        else {
            return;
        };
        let surge = deployment.pointer("/spec/strategy/rollingUpdate/maxSurge");
        let most = self.wanted_of(owner).unwrap_or(0)
            + surge.and_then(serde_json::Value::as_i64).unwrap_or(0);
        let sets = self
            .below(REPLICA_SETS)
            .filter(|(_, set)| controller(set, "Deployment") == Some(owner));
        let all: i64 = sets.map(|(_, set)| replicas(set)).sum();
        if all > most {
            found.push(format!(
                "{key} has {all} replicas in its sets, {most} at most were asked for"
            ));
        }
    }

    /// A replica set makes no more pods than it is to have.
    pub(super) fn pods_of_replica_sets(&self, judged: &Judged<'_>, found: &mut Vec<String>) {
        let (None, Some(new)) = (judged.old, judged.new) else {
            return;
        };
        let Some(owner) = controller(new, "ReplicaSet") else {
            return;
        };
        if self.in_doubt {
            return;
        }
        let Some(most) = self.wanted_of(owner) else {
            return;
        };
        let pods = self
            .below(PODS)
            .filter(|(_, pod)| controller(pod, "ReplicaSet") == Some(owner));
        let live = pods
            .filter(|(_, pod)| !is_over(pod) && !is_going(pod))
            .count();
        if i64::try_from(live).unwrap_or(i64::MAX) > most {
            found.push(format!(
                "{}: its replica set has {live} pods, {most} at most were asked for",
                judged.key
            ));
        }
    }
}
