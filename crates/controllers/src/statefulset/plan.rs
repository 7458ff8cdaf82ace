//! What a StatefulSet does next, as a pure function of the set and its pods.

use crate::pod_control::{ready_since, until_available};

use crate::revisions::HASH;
use davit_reconcile::pods::is_terminal;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The revisions a set is between, by the names of their ControllerRevisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Revisions {
    pub(super) current: String,
    pub(super) update: String,
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    /// Make the pod of an ordinal from the template of a revision.
    Create { ordinal: i64, revision: String },
    /// Delete a pod: it has ended, is too many, or has an old revision.
    Delete(Arc<Pod>),
}

/// One past the last ordinal that a pod can have.
const ORDINALS: i64 = i32::MAX as i64 + 1;

/// The shape of a set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) start: i32,
    pub(super) replicas: i32,
    pub(super) min_ready: i32,
    parallel: bool,
    on_delete: bool,
    partition: Option<i32>,
    /// How many pods may be missing while they are replaced.
    max_unavailable: i32,
    current_replicas: i32,
}

impl Shape {
    pub(super) fn of(set: &StatefulSet) -> Self {
        let spec = set.spec.clone().unwrap_or_default();
        let strategy = spec.update_strategy.unwrap_or_default();
        let rolling = strategy.rolling_update;
        Self {
            start: spec.ordinals.and_then(|o| o.start).unwrap_or(0),
            replicas: spec.replicas.unwrap_or(1),
            min_ready: spec.min_ready_seconds.unwrap_or(0),
            parallel: spec.pod_management_policy.as_deref() == Some("Parallel"),
            on_delete: strategy.type_.as_deref() == Some("OnDelete"),
            partition: rolling.as_ref().and_then(|r| r.partition),
            max_unavailable: rolling
                .and_then(|r| r.max_unavailable)
                .map_or(1, |most| share(&most, spec.replicas.unwrap_or(1)))
                .max(1),
            current_replicas: set
                .status
                .as_ref()
                .and_then(|s| s.current_replicas)
                .unwrap_or(0),
        }
    }

    /// Its ordinals; those that are numbers of an object, as all read them from the names of pods.
    pub(super) fn ordinals(&self) -> Range<i64> {
        let start = i64::from(self.start);
        start..(start + i64::from(self.replicas)).min(ORDINALS)
    }

    /// The first of its pods that cannot be, if it wants pods that have no ordinal.
    pub(super) fn beyond(&self) -> Option<i64> {
        (i64::from(self.start) + i64::from(self.replicas) > ORDINALS).then_some(ORDINALS)
    }

    /// The ordinals from the first that a partition lets be updated.
    fn updated(&self, partition: i32) -> Range<i64> {
        let all = self.ordinals();
        (all.start + i64::from(partition)).min(all.end)..all.end
    }

    /// The revision of a pod that is made now.
    fn revision_of(&self, ordinal: i64, revisions: &Revisions) -> String {
        let old = !self.on_delete
            && match self.partition {
                None => ordinal < self.updated(self.current_replicas).start,
                Some(partition) => ordinal < self.updated(partition).start,
            };
        let name = if old {
            &revisions.current
        } else {
            &revisions.update
        };
        name.clone()
    }
}

/// The ordinal in a pod's name, if it is one of the set's names.
pub(super) fn ordinal_of(set: &str, pod: &Pod) -> Option<i64> {
    let name = pod.metadata.name.as_deref()?;
    let number = name.strip_prefix(set)?.strip_prefix('-')?;
    let plain = number.len() == 1 || !number.starts_with('0');
    let number = number.parse().ok();
    number.filter(|n| plain && (0..ORDINALS).contains(n))
}

pub(super) fn revision_of(pod: &Pod) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|l| l.get(HASH)).map_or("", String::as_str)
}

fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn is_available(pod: &Pod, shape: &Shape, now: Timestamp) -> bool {
    !is_terminating(pod) && until_available(pod, shape.min_ready, now) == Some(Duration::ZERO)
}

/// Pods that are made at once. The next ones are when these show: a set may say that it has two thousand million.
const BURST: usize = 500;

/// The steps to take now; what comes after them is decided when they show.
pub(super) fn plan(
    shape: &Shape,
    pods: &BTreeMap<i64, Arc<Pod>>,
    revisions: &Revisions,
    now: Timestamp,
) -> Vec<Action> {
    let mut actions = Vec::new();
    let ordinals = shape.ordinals();
    for ordinal in ordinals.clone() {
        let Some(pod) = pods.get(&ordinal) else {
            let revision = shape.revision_of(ordinal, revisions);
            actions.push(Action::Create { ordinal, revision });
            if shape.parallel && actions.len() < BURST {
                continue;
            }
            return actions;
        };
        if is_terminal(pod) && !is_terminating(pod) {
            // Its successor is made when the name is free.
            actions.push(Action::Delete(Arc::clone(pod)));
        }
        if !shape.parallel && (is_terminal(pod) || !is_available(pod, shape, now)) {
            return actions;
        }
    }
    let condemned = pods
        .iter()
        .rev()
        .filter(|(ordinal, _)| !ordinals.contains(ordinal));
    let first_unhealthy = pods
        .iter()
        .find(|(_, pod)| is_terminating(pod) || ready_since(pod).is_none())
        .map(|(ordinal, _)| *ordinal);
    for (ordinal, pod) in condemned {
        if is_terminating(pod) {
            if shape.parallel {
                continue;
            }
            return actions;
        }
        let unhealthy = ready_since(pod).is_none();
        if !shape.parallel && unhealthy && first_unhealthy != Some(*ordinal) {
            return actions;
        }
        actions.push(Action::Delete(Arc::clone(pod)));
        if !shape.parallel {
            return actions;
        }
    }
    if shape.on_delete || !actions.is_empty() {
        return actions;
    }
    if shape.max_unavailable > 1 {
        return update_many(shape, pods, revisions, now);
    }
    update(shape, pods, revisions, now).into_iter().collect()
}

/// A number, or a percentage of `total` rounded down.
fn share(value: &IntOrString, total: i32) -> i32 {
    match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let share = percent.saturating_mul(total.into()) / 100;
            i32::try_from(share).unwrap_or(i32::MAX)
        }
    }
}

/// The pods to replace now, from the last to the partition: as many as may be missing beside those that are already.
/// Old pods that are not available are replaced in any case.
fn update_many(
    shape: &Shape,
    pods: &BTreeMap<i64, Arc<Pod>>,
    revisions: &Revisions,
    now: Timestamp,
) -> Vec<Action> {
    let available = pods
        .range(shape.ordinals())
        .filter(|(_, pod)| is_available(pod, shape, now))
        .count();
    let missing = shape.replicas - i32::try_from(available).unwrap_or(i32::MAX);
    let mut left = shape.max_unavailable.saturating_sub(missing);
    let mut actions = Vec::new();
    for (_, pod) in pods
        .range(shape.updated(shape.partition.unwrap_or(0)))
        .rev()
    {
        if is_terminating(pod) || revision_of(pod) == revisions.update {
            continue;
        }
        if is_available(pod, shape, now) {
            if left <= 0 {
                continue;
            }
            left -= 1;
        }
        actions.push(Action::Delete(Arc::clone(pod)));
    }
    actions
}

/// The next pod to replace, from the last to the partition, each when those after it are well.
fn update(
    shape: &Shape,
    pods: &BTreeMap<i64, Arc<Pod>>,
    revisions: &Revisions,
    now: Timestamp,
) -> Option<Action> {
    for ordinal in shape.updated(shape.partition.unwrap_or(0)).rev() {
        let pod = pods.get(&ordinal)?;
        if is_terminating(pod) {
            return None;
        }
        if revision_of(pod) != revisions.update {
            return Some(Action::Delete(Arc::clone(pod)));
        }
        if !is_available(pod, shape, now) {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(spec: serde_json::Value) -> Shape {
        let set = json!({ "metadata": { "name": "web" }, "spec": spec });
        Shape::of(&serde_json::from_value(set).unwrap())
    }

    fn pod(ordinal: i64, ready: bool, revision: &str) -> (i64, Arc<Pod>) {
        let ready = if ready { "True" } else { "False" };
        let pod = json!({
            "metadata": { "name": format!("web-{ordinal}"), "labels": { HASH: revision } },
            "status": { "phase": "Running", "conditions": [
                { "type": "Ready", "status": ready, "lastTransitionTime": "2020-01-01T00:00:00Z" }] },
        });
        (ordinal, Arc::new(serde_json::from_value(pod).unwrap()))
    }

    #[test]
    fn huge_numbers_take_no_more_than_others() {
        let revisions = Revisions {
            current: "a".to_owned(),
            update: "b".to_owned(),
        };
        let most = i32::MAX;
        for rolling in [
            json!({}),
            json!({ "maxUnavailable": most, "partition": most }),
        ] {
            let shape = set(
                json!({ "replicas": most, "podManagementPolicy": "Parallel", "ordinals": { "start": 7 },
                "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": rolling } }),
            );
            let actions = plan(&shape, &BTreeMap::new(), &revisions, Timestamp::now());
            assert_eq!(actions.len(), BURST);
            let pods: BTreeMap<i64, Arc<Pod>> = (7..20).map(|o| pod(o, true, "a")).collect();
            update_many(&shape, &pods, &revisions, Timestamp::now());
            update(&shape, &pods, &revisions, Timestamp::now());
        }
    }

    #[test]
    fn the_last_ordinal_is_made_and_what_is_beyond_is_told() {
        let most = i32::MAX;
        let at_the_end = |replicas: i32| {
            set(
                json!({ "replicas": replicas, "podManagementPolicy": "Parallel",
                "ordinals": { "start": most } }),
            )
        };
        let last = format!("+{most}@a");
        assert_eq!(
            next(&at_the_end(1), &[], "a", "a"),
            std::slice::from_ref(&last)
        );
        assert_eq!(at_the_end(1).beyond(), None);
        assert_eq!(next(&at_the_end(3), &[], "a", "a"), [last]);
        assert_eq!(at_the_end(3).beyond(), Some(1 << 31));
        assert!(next(&at_the_end(3), &[pod(most.into(), true, "a")], "a", "a").is_empty());
    }

    fn names(actions: &[Action]) -> Vec<String> {
        let name = |action: &Action| match action {
            Action::Create { ordinal, revision } => format!("+{ordinal}@{revision}"),
            Action::Delete(pod) => format!("-{}", pod.metadata.name.as_deref().unwrap()),
        };
        actions.iter().map(name).collect()
    }

    fn next(shape: &Shape, pods: &[(i64, Arc<Pod>)], current: &str, update: &str) -> Vec<String> {
        let revisions = Revisions {
            current: current.to_owned(),
            update: update.to_owned(),
        };
        let pods = pods.iter().cloned().collect();
        names(&plan(shape, &pods, &revisions, Timestamp::now()))
    }

    #[test]
    fn pods_come_one_after_the_other_unless_parallel() {
        let ordered = set(json!({ "replicas": 3 }));
        assert_eq!(next(&ordered, &[], "a", "a"), ["+0@a"]);
        assert!(next(&ordered, &[pod(0, false, "a")], "a", "a").is_empty());
        assert_eq!(next(&ordered, &[pod(0, true, "a")], "a", "a"), ["+1@a"]);
        let parallel = set(json!({ "replicas": 3, "podManagementPolicy": "Parallel" }));
        assert_eq!(
            next(&parallel, &[pod(1, false, "a")], "a", "a"),
            ["+0@a", "+2@a"]
        );
        let shifted = set(json!({ "replicas": 1, "ordinals": { "start": 5 } }));
        assert_eq!(next(&shifted, &[], "a", "a"), ["+5@a"]);
    }

    #[test]
    fn scaling_down_takes_the_last_and_waits_for_the_others() {
        let one = set(json!({ "replicas": 1 }));
        let three = [pod(0, true, "a"), pod(1, true, "a"), pod(2, true, "a")];
        assert_eq!(next(&one, &three, "a", "a"), ["-web-2"]);
        let sick = [pod(0, true, "a"), pod(1, false, "a"), pod(2, true, "a")];
        assert_eq!(next(&one, &sick, "a", "a"), ["-web-2"]);
        let both = [pod(0, true, "a"), pod(1, false, "a"), pod(2, false, "a")];
        assert!(next(&one, &both, "a", "a").is_empty());
    }

    #[test]
    fn updates_go_from_the_last_to_the_partition() {
        let all = set(json!({ "replicas": 3, "updateStrategy": { "type": "RollingUpdate" } }));
        let old = [pod(0, true, "a"), pod(1, true, "a"), pod(2, true, "a")];
        assert_eq!(next(&all, &old, "a", "b"), ["-web-2"]);
        let half = [pod(0, true, "a"), pod(1, true, "a"), pod(2, true, "b")];
        assert_eq!(next(&all, &half, "a", "b"), ["-web-1"]);
        let waiting = [pod(0, true, "a"), pod(1, true, "a"), pod(2, false, "b")];
        assert!(next(&all, &waiting, "a", "b").is_empty());
        // What was taken away comes back new, even while the status still counts it as old.
        let rolling = set(json!({ "replicas": 2,
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "partition": 0 } } }));
        let counted = Shape {
            current_replicas: 2,
            ..rolling
        };
        assert_eq!(next(&counted, &old[..1], "a", "b"), ["+1@b"]);
        let partition = set(
            json!({ "replicas": 3, "updateStrategy": { "rollingUpdate": { "partition": 2 } } }),
        );
        assert!(next(&partition, &half, "a", "b").is_empty());
        // Below the partition a lost pod comes back as it was.
        assert_eq!(next(&partition, &half[1..], "a", "b"), ["+0@a"]);
        let manual = set(json!({ "replicas": 3, "updateStrategy": { "type": "OnDelete" } }));
        assert!(next(&manual, &old, "a", "b").is_empty());
    }

    #[test]
    fn several_pods_are_replaced_at_once_where_that_many_may_be_missing() {
        let spec = |most: serde_json::Value| {
            set(json!({ "replicas": 4, "podManagementPolicy": "Parallel",
                "updateStrategy": { "rollingUpdate": { "maxUnavailable": most } } }))
        };
        let old: Vec<_> = (0..4).map(|n| pod(n, true, "a")).collect();
        assert_eq!(next(&spec(json!(2)), &old, "a", "b"), ["-web-3", "-web-2"]);
        assert_eq!(
            next(&spec(json!("50%")), &old, "a", "b"),
            ["-web-3", "-web-2"]
        );
        assert_eq!(next(&spec(json!("1%")), &old, "a", "b"), ["-web-3"]);
        let half = [
            pod(0, true, "a"),
            pod(1, true, "a"),
            pod(2, true, "b"),
            pod(3, false, "b"),
        ];
        assert_eq!(next(&spec(json!(2)), &half, "a", "b"), ["-web-1"]);
        let sick = [
            pod(0, false, "a"),
            pod(1, false, "a"),
            pod(2, true, "b"),
            pod(3, false, "b"),
        ];
        assert_eq!(next(&spec(json!(2)), &sick, "a", "b"), ["-web-1", "-web-0"]);
    }

    #[test]
    fn only_the_sets_own_names_have_ordinals() {
        let named = |name: &str| {
            let pod = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
            ordinal_of("web", &pod)
        };
        assert_eq!(named("web-10"), Some(10));
        assert_eq!(named("web-0"), Some(0));
        assert_eq!(named("web-01"), None);
        assert_eq!(named("web-x"), None);
        assert_eq!(named("other-1"), None);
    }
}
