//! What a Deployment reports: counts, the conditions Available and Progressing that `rollout status` reads, and
//! ReplicaFailure, which its sets say.

use super::MIN_CHECK;
use super::replica_sets::{Sets, actual, available, narrow, wanted};
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentCondition, DeploymentSpec, DeploymentStatus, ReplicaSet,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use std::borrow::Cow;
use std::time::Duration;

/// The status of a deployment whose sets are as given.
pub(super) fn compute(deployment: &Deployment, sets: &Sets, now: Timestamp) -> DeploymentStatus {
    let spec = deployment.spec.clone().unwrap_or_default();
    let before = deployment.status.clone().unwrap_or_default();
    let or_none = |n: i64| (n > 0).then(|| narrow(n));
    let total: i64 = sets.all().map(actual).sum();
    let ready = sets
        .all()
        .map(|rs| {
            let ready = rs.status.as_ref().and_then(|s| s.ready_replicas);
            i64::from(ready.unwrap_or(0))
        })
        .sum();
    let available: i64 = sets.all().map(available).sum();
    let updated = sets.current.as_ref().map_or(0, actual);
    let desired = i64::from(spec.replicas.unwrap_or(1));
    // Pods that cannot even be made are missing all the same.
    let wanted: i64 = sets.all().map(wanted).sum();
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: or_none(total),
        updated_replicas: or_none(updated),
        ready_replicas: or_none(ready),
        available_replicas: or_none(available),
        unavailable_replicas: or_none(wanted - available),
        collision_count: before.collision_count,
        conditions: None,
        terminating_replicas: terminating(sets),
    };
    let mut conditions = before.conditions.clone().unwrap_or_default();
    set_condition(
        &mut conditions,
        availability(&spec, available, desired),
        now,
    );
    if let Some(progress) = progress(deployment, &before, &status, sets, now) {
        set_condition(&mut conditions, progress, now);
    }
    let failure = sets
        .current
        .iter()
        .chain(&sets.old)
        .find_map(replica_failure);
    conditions.retain(|c| c.type_ != REPLICA_FAILURE || failure.is_some());
    if let Some(failure) = failure {
        set_condition(&mut conditions, failure, now);
    }
    status.conditions = Some(conditions);
    status
}

/// How many pods are ending; unknown while a set that was looked at does not say it.
fn terminating(sets: &Sets) -> Option<i32> {
    let mut all = sets.all().map(|set| set.status.clone().unwrap_or_default());
    all.try_fold(0, |sum, status| {
        match (status.terminating_replicas, status.observed_generation) {
            (Some(count), _) => Some(i32::saturating_add(sum, count)),
            (None, None | Some(0)) => Some(sum),
            (None, Some(_)) => None,
        }
    })
}

const REPLICA_FAILURE: &str = "ReplicaFailure";

/// Why a replica set cannot make or remove pods, as it says.
fn replica_failure(set: &ReplicaSet) -> Option<RolloutProgress> {
    let conditions = set.status.as_ref()?.conditions.as_ref()?;
    let failure = conditions.iter().find(|c| c.type_ == REPLICA_FAILURE)?;
    Some(RolloutProgress {
        type_: REPLICA_FAILURE,
        status: failure.status.clone().into(),
        reason: failure.reason.clone().unwrap_or_default().into(),
        message: failure.message.clone().unwrap_or_default(),
        moved: false,
    })
}

struct RolloutProgress {
    type_: &'static str,
    status: Cow<'static, str>,
    reason: Cow<'static, str>,
    message: String,
    /// Progress was made, so the clock of the deadline starts again.
    moved: bool,
}

fn availability(spec: &DeploymentSpec, available: i64, desired: i64) -> RolloutProgress {
    let tolerated = desired - super::rollout::max_unavailable(Some(spec));
    let (status, reason, message) = if available >= tolerated {
        (
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.",
        )
    } else {
        (
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        )
    };
    RolloutProgress {
        type_: "Available",
        status: status.into(),
        reason: reason.into(),
        message: message.to_owned(),
        moved: false,
    }
}

fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let desired = deployment
        .spec
        .as_ref()
        .and_then(|s| s.replicas)
        .unwrap_or(1);
    let count = |n: Option<i32>| n.unwrap_or(0);
    count(status.updated_replicas) == desired
        && count(status.replicas) == desired
        && count(status.available_replicas) == desired
}

fn progress(
    deployment: &Deployment,
    before: &DeploymentStatus,
    status: &DeploymentStatus,
    sets: &Sets,
    now: Timestamp,
) -> Option<RolloutProgress> {
    let spec = deployment.spec.as_ref()?;
    let deadline = deadline(spec)?;
    let known = before
        .conditions
        .as_ref()
        .and_then(|c| c.iter().find(|c| c.type_ == "Progressing"));
    let name = sets
        .current
        .as_ref()
        .and_then(|rs| rs.metadata.name.clone())
        .unwrap_or_default();
    let verdict = |status: &'static str, reason: &'static str, message, moved| RolloutProgress {
        type_: "Progressing",
        status: status.into(),
        reason: reason.into(),
        message,
        moved,
    };
    if spec.paused == Some(true) {
        return Some(verdict(
            "Unknown",
            "DeploymentPaused",
            "Deployment is paused".to_owned(),
            false,
        ));
    }
    if is_complete(deployment, status) {
        let text = format!("ReplicaSet \"{name}\" has successfully progressed.");
        return Some(verdict("True", "NewReplicaSetAvailable", text, false));
    }
    let count = |n: Option<i32>| n.unwrap_or(0);
    let old = |s: &DeploymentStatus| count(s.replicas) - count(s.updated_replicas);
    let moved = count(status.updated_replicas) > count(before.updated_replicas)
        || old(status) < old(before)
        || count(status.ready_replicas) > count(before.ready_replicas)
        || count(status.available_replicas) > count(before.available_replicas)
        || before.observed_generation != deployment.metadata.generation;
    if moved || known.is_none() {
        let text = format!("ReplicaSet \"{name}\" is progressing.");
        return Some(verdict("True", "ReplicaSetUpdated", text, true));
    }
    let since = known
        .and_then(|c| c.last_update_time.as_ref())
        .map_or(now, |t| t.0);
    let waited = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    let done = known.is_some_and(|c| c.reason.as_deref() == Some("NewReplicaSetAvailable"));
    (waited > deadline && !done).then(|| {
        let text = format!("ReplicaSet \"{name}\" has timed out progressing.");
        verdict("False", "ProgressDeadlineExceeded", text, false)
    })
}

fn deadline(spec: &DeploymentSpec) -> Option<Duration> {
    let seconds = spec.progress_deadline_seconds.unwrap_or(600);
    // The largest value stands for no deadline.
    (seconds != i32::MAX).then(|| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

fn set_condition(
    conditions: &mut Vec<DeploymentCondition>,
    verdict: RolloutProgress,
    now: Timestamp,
) {
    let known = conditions.iter().position(|c| c.type_ == verdict.type_);
    let before = known.map(|at| conditions.remove(at));
    let same_status = before.as_ref().is_some_and(|c| c.status == verdict.status);
    let same_reason = before
        .as_ref()
        .is_some_and(|c| c.reason.as_deref() == Some(&*verdict.reason));
    let stamp = |keep: bool, old: Option<&Time>| old.filter(|_| keep).cloned().or(Some(Time(now)));
    let condition = DeploymentCondition {
        type_: verdict.type_.to_owned(),
        status: verdict.status.into_owned(),
        reason: Some(verdict.reason.into_owned()),
        message: Some(verdict.message),
        last_transition_time: stamp(
            same_status,
            before
                .as_ref()
                .and_then(|c| c.last_transition_time.as_ref()),
        ),
        last_update_time: stamp(
            same_status && same_reason && !verdict.moved,
            before.as_ref().and_then(|c| c.last_update_time.as_ref()),
        ),
    };
    conditions.insert(known.unwrap_or(conditions.len()), condition);
}

/// When to look again because a deadline runs although nothing changes.
pub(super) fn next_check(deployment: &Deployment, sets: &Sets, now: Timestamp) -> Option<Duration> {
    let status = compute(deployment, sets, now);
    if is_complete(deployment, &status) {
        return None;
    }
    let progressing = status
        .conditions
        .as_ref()?
        .iter()
        .find(|c| c.type_ == "Progressing" && c.status == "True")?;
    let since = progressing.last_update_time.as_ref().map_or(now, |t| t.0);
    let waited = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    Some((deadline(deployment.spec.as_ref()?)?.saturating_sub(waited)).max(MIN_CHECK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_set_that_cannot_make_its_pod_leaves_one_unavailable() {
        let set = |wanted: i32, there: i32| -> ReplicaSet {
            let status =
                json!({"replicas": there, "readyReplicas": there, "availableReplicas": there});
            serde_json::from_value(json!({"spec": {"replicas": wanted}, "status": status})).unwrap()
        };
        let deployment: Deployment =
            serde_json::from_value(json!({"spec": {"replicas": 1}})).unwrap();
        let unavailable = |current: ReplicaSet, old: ReplicaSet| {
            let (current, old) = (Some(current), vec![old]);
            compute(&deployment, &Sets { current, old }, Timestamp::now()).unavailable_replicas
        };
        assert_eq!(unavailable(set(1, 0), set(1, 1)), Some(1));
        assert_eq!(unavailable(set(1, 1), set(0, 0)), None);
        assert_eq!(unavailable(set(1, 1), set(0, 1)), None, "more than wanted");
        let most = i32::MAX;
        assert_eq!(unavailable(set(most, most), set(most, most)), None);
        assert_eq!(unavailable(set(most, 0), set(most, 0)), Some(most));
    }
}
