//! How long a job waits before it replaces pods that failed.

use davit_api::time::age;
use davit_reconcile::pods::phase;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// Doubles with each failure after the last success, from 10 s to 10 min.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

/// What is left of the pause of a job whose failed pods are `failed`.
///
/// Counted from the pods that are there rather than remembered, so that a restart of the controller neither forgets
/// nor repeats a pause.
pub(super) fn left(pods: &[Arc<Pod>], failed: &[&Arc<Pod>], now: Timestamp) -> Duration {
    let successes = pods.iter().filter(|pod| phase(pod) == "Succeeded");
    let last_success = successes.map(|pod| finished_at(pod)).max();
    let ends = failed.iter().map(|pod| finished_at(pod));
    let after: Vec<Timestamp> = ends
        .filter(|end| last_success.is_none_or(|success| *end > success))
        .collect();
    let last = after.iter().max().copied().unwrap_or(now);
    left_of(i32::try_from(after.len()).unwrap_or(i32::MAX), last, now)
}

/// What is left of the pause after `failures` of which the last was at `last`.
pub(super) fn left_of(failures: i32, last: Timestamp, now: Timestamp) -> Duration {
    let Some(doublings) = u32::try_from(failures).ok().and_then(|n| n.checked_sub(1)) else {
        return Duration::ZERO;
    };
    let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
    let pause = BACKOFF.0.saturating_mul(factor).min(BACKOFF.1);
    pause.saturating_sub(age(last, now))
}

/// When a pod ended: when its last container did, else when it ceased to be ready, else when it was deleted.
pub(super) fn finished_at(pod: &Pod) -> Timestamp {
    containers_end(pod)
        .or_else(|| unready_since(pod))
        .or_else(|| {
            let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
            let deleted = pod.metadata.deletion_timestamp.as_ref()?.0;
            deleted.checked_sub(SignedDuration::from_secs(grace)).ok()
        })
        .or_else(|| pod.metadata.creation_timestamp.as_ref().map(|t| t.0))
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Sidecars end after the containers they serve.
fn containers_end(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let containers = pod
        .spec
        .iter()
        .flat_map(|s| s.init_containers.iter().flatten());
    let sidecars: Vec<&str> = containers
        .filter(|c| c.restart_policy.as_deref() == Some("Always"))
        .map(|c| c.name.as_str())
        .collect();
    let ended = |c: &ContainerStatus| {
        let terminated = c.state.as_ref()?.terminated.as_ref()?;
        terminated.finished_at.as_ref().map(|t| t.0)
    };
    let first = status.init_container_statuses.iter().flatten();
    let counted = first.filter(|c| sidecars.contains(&c.name.as_str()));
    let all = status.container_statuses.iter().flatten().chain(counted);
    let ends: Option<Vec<Timestamp>> = all.map(ended).collect();
    ends?.into_iter().max()
}

fn unready_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|c| c.type_ == "Ready")?;
    let since = ready.last_transition_time.as_ref()?;
    (ready.status == "False").then_some(since.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(phase: &str, second: i64) -> Arc<Pod> {
        let at = Timestamp::from_second(second).unwrap().to_string();
        let container = json!({"name": "c", "ready": false, "restartCount": 0, "image": "i", "imageID": "i",
            "state": {"terminated": {"exitCode": 0, "finishedAt": at}}});
        let status = json!({"phase": phase, "containerStatuses": [container]});
        Arc::new(serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap())
    }

    #[test]
    fn the_pause_doubles_with_each_failure_after_the_last_success() {
        let now = Timestamp::from_second(1_000).unwrap();
        let pause = |pods: &[Arc<Pod>]| {
            let failed: Vec<&Arc<Pod>> = pods.iter().filter(|p| phase(p) == "Failed").collect();
            left(pods, &failed, now).as_secs()
        };
        assert_eq!(pause(&[]), 0);
        assert_eq!(pause(&[pod("Failed", 997)]), 7);
        assert_eq!(pause(&[pod("Failed", 900), pod("Failed", 997)]), 17);
        assert_eq!(pause(&[pod("Failed", 900)]), 0, "long ago");
        let success = pod("Succeeded", 950);
        assert_eq!(
            pause(&[pod("Failed", 900), success.clone(), pod("Failed", 997)]),
            7
        );
        assert_eq!(pause(&[pod("Failed", 940), success]), 0);
        assert_eq!(left_of(i32::MAX, now, now), BACKOFF.1);
    }
}
