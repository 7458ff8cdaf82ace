//! What a job needs now: a pure plan from the job and its pods.

use super::{INDEX, TRACKING};
use crate::pod_control::{is_active, is_terminal, phase, ready_since};
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Back-off between a failed pod and its replacement: doubles from 10 s to 10 min.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

/// What to do.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The status to record, before anything else.
    pub(super) status: JobStatus,
    /// Pods whose end the status now includes: their finalizer goes.
    pub(super) count: Vec<Arc<Pod>>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// Pods to create, with their completion index if the job is Indexed.
    pub(super) create: Vec<Option<i32>>,
    /// The finished job's time to live is over.
    pub(super) expired: bool,
    pub(super) look_again: Option<Duration>,
}

/// Whether a job has a condition that is true.
pub(super) fn has_condition(status: Option<&JobStatus>, type_: &str) -> bool {
    let conditions = status.and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|c| c.iter().any(|c| c.type_ == type_ && c.status == "True"))
}

pub(super) fn plan(job: &Job, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let spec = job.spec.clone().unwrap_or_default();
    let mut status = job.status.clone().unwrap_or_default();
    let mut plan = Plan::default();
    let finished =
        has_condition(Some(&status), "Complete") || has_condition(Some(&status), "Failed");
    let suspended = spec.suspend == Some(true);
    if status.start_time.is_none() && !suspended && !finished {
        status.start_time = Some(Time(now));
    }
    let indexed = spec.completion_mode.as_deref() == Some("Indexed");
    let mut done = parse_indexes(status.completed_indexes.as_deref().unwrap_or_default());
    for pod in pods.iter().filter(|p| is_tracked(p) && has_ended(p)) {
        plan.count.push(pod.clone());
        if finished {
            continue;
        }
        if phase(pod) == "Succeeded" {
            match index_of(pod).filter(|_| indexed) {
                Some(index) => _ = done.insert(index),
                None => status.succeeded = Some(status.succeeded.unwrap_or(0) + 1),
            }
        } else {
            status.failed = Some(status.failed.unwrap_or(0) + 1);
        }
    }
    if indexed {
        status.succeeded = i32::try_from(done.len()).ok().filter(|n| *n > 0);
        status.completed_indexes = (!done.is_empty()).then(|| format_indexes(&done));
    }
    let active: Vec<Arc<Pod>> = pods.iter().filter(|p| is_active(p)).cloned().collect();
    if finished {
        plan.delete.clone_from(&active);
        plan.expired = is_expired(&spec, &status, now, &mut plan.look_again);
    } else {
        decide(&spec, &mut status, &mut plan, &active, pods, &done, now);
    }
    let remaining = active.len() + plan.create.len() - plan.delete.len().min(active.len());
    status.active = i32::try_from(remaining).ok().filter(|n| *n > 0);
    status.ready = i32::try_from(active.iter().filter(|p| ready_since(p).is_some()).count()).ok();
    status.terminating = i32::try_from(
        pods.iter()
            .filter(|p| !is_terminal(p) && !is_active(p))
            .count(),
    )
    .ok();
    plan.status = status;
    plan
}

fn decide(
    spec: &JobSpec,
    status: &mut JobStatus,
    plan: &mut Plan,
    active: &[Arc<Pod>],
    pods: &[Arc<Pod>],
    done: &BTreeSet<i32>,
    now: Timestamp,
) {
    let (succeeded, failed) = (status.succeeded.unwrap_or(0), status.failed.unwrap_or(0));
    if let Some((reason, message)) = failure(spec, status, failed, now, &mut plan.look_again) {
        plan.delete = active.to_vec();
        finish(status, "Failed", &reason, message, now);
        return;
    }
    let complete = match spec.completions {
        Some(completions) => succeeded >= completions,
        // A work queue: done when one pod succeeded and no other is left.
        None => succeeded > 0 && active.is_empty(),
    };
    if complete {
        plan.delete = active.to_vec();
        finish(
            status,
            "Complete",
            "CompletionsReached",
            "Reached expected number of succeeded pods".to_owned(),
            now,
        );
        status.completion_time = Some(Time(now));
        return;
    }
    if spec.suspend == Some(true) {
        plan.delete = active.to_vec();
        set_condition(
            status,
            "Suspended",
            "JobSuspended",
            "Job suspended".to_owned(),
            now,
        );
        status.start_time = None;
        return;
    }
    if let Some(conditions) = status.conditions.as_mut() {
        conditions.retain(|c| c.type_ != "Suspended");
    }
    let parallelism = spec.parallelism.unwrap_or(1);
    let wanted = match spec.completions {
        Some(completions) => parallelism.min(completions - succeeded),
        None if succeeded > 0 => i32::try_from(active.len()).unwrap_or(0),
        None => parallelism,
    };
    let wanted = usize::try_from(wanted).unwrap_or(0);
    if active.len() > wanted {
        let mut surplus = active.to_vec();
        crate::pod_control::sort_for_deletion(&mut surplus);
        plan.delete
            .extend(surplus.into_iter().take(active.len() - wanted));
    } else if active.len() < wanted {
        if let Some(pause) = backoff_left(pods, failed, now) {
            plan.look_again = Some(plan.look_again.map_or(pause, |d| d.min(pause)));
            return;
        }
        let missing = wanted - active.len();
        plan.create = match spec
            .completions
            .filter(|_| spec.completion_mode.as_deref() == Some("Indexed"))
        {
            None => vec![None; missing],
            Some(completions) => {
                let taken: BTreeSet<i32> = active.iter().filter_map(|p| index_of(p)).collect();
                let free = (0..completions).filter(|i| !done.contains(i) && !taken.contains(i));
                free.take(missing).map(Some).collect()
            }
        };
    }
}

/// Why the job has failed, if it has.
fn failure(
    spec: &JobSpec,
    status: &JobStatus,
    failed: i32,
    now: Timestamp,
    look_again: &mut Option<Duration>,
) -> Option<(String, String)> {
    if failed > spec.backoff_limit.unwrap_or(6) {
        return Some((
            "BackoffLimitExceeded".to_owned(),
            "Job has reached the specified backoff limit".to_owned(),
        ));
    }
    let (limit, start) = (spec.active_deadline_seconds?, status.start_time.as_ref()?);
    let elapsed = Duration::try_from(now.duration_since(start.0)).unwrap_or_default();
    let limit = Duration::from_secs(u64::try_from(limit).unwrap_or(0));
    if elapsed >= limit {
        return Some((
            "DeadlineExceeded".to_owned(),
            "Job was active longer than specified deadline".to_owned(),
        ));
    }
    *look_again = Some(limit - elapsed);
    None
}

/// How long to wait before a failed pod is replaced.
fn backoff_left(pods: &[Arc<Pod>], failed: i32, now: Timestamp) -> Option<Duration> {
    let doublings = u32::try_from(failed).ok()?.checked_sub(1)?;
    let pause = BACKOFF
        .0
        .saturating_mul(1u32.checked_shl(doublings).unwrap_or(u32::MAX))
        .min(BACKOFF.1);
    let ended = pods
        .iter()
        .filter(|p| phase(p) == "Failed")
        .filter_map(|p| ended_at(p))
        .max()?;
    let elapsed = Duration::try_from(now.duration_since(ended)).unwrap_or_default();
    (elapsed < pause).then(|| pause - elapsed)
}

fn ended_at(pod: &Pod) -> Option<Timestamp> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let ends = statuses
        .iter()
        .filter_map(|s| s.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref());
    ends.map(|t| t.0).max()
}

fn is_expired(
    spec: &JobSpec,
    status: &JobStatus,
    now: Timestamp,
    look_again: &mut Option<Duration>,
) -> bool {
    let Some(ttl) = spec.ttl_seconds_after_finished else {
        return false;
    };
    let finished = status
        .conditions
        .iter()
        .flatten()
        .filter(|c| c.type_ == "Complete" || c.type_ == "Failed");
    let Some(since) = finished
        .filter_map(|c| c.last_transition_time.as_ref())
        .map(|t| t.0)
        .max()
    else {
        return false;
    };
    let elapsed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    let ttl = Duration::from_secs(u64::try_from(ttl).unwrap_or(0));
    if elapsed >= ttl {
        return true;
    }
    *look_again = Some(ttl - elapsed);
    false
}

fn finish(status: &mut JobStatus, type_: &str, reason: &str, message: String, now: Timestamp) {
    let interim = if type_ == "Complete" {
        "SuccessCriteriaMet"
    } else {
        "FailureTarget"
    };
    set_condition(status, interim, reason, message.clone(), now);
    set_condition(status, type_, reason, message, now);
}

fn set_condition(
    status: &mut JobStatus,
    type_: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) {
    let conditions = status.conditions.get_or_insert_default();
    if conditions
        .iter()
        .any(|c| c.type_ == type_ && c.status == "True")
    {
        return;
    }
    conditions.retain(|c| c.type_ != type_);
    conditions.push(JobCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    });
}

fn is_tracked(pod: &Pod) -> bool {
    pod.metadata
        .finalizers
        .iter()
        .flatten()
        .any(|f| f == TRACKING)
}

/// Ended, or gone before it could: a pod that is deleted while it waits for its node counts as failed.
fn has_ended(pod: &Pod) -> bool {
    let unscheduled = pod
        .spec
        .as_ref()
        .and_then(|s| s.node_name.as_deref())
        .is_none_or(str::is_empty);
    is_terminal(pod) || (pod.metadata.deletion_timestamp.is_some() && unscheduled)
}

fn index_of(pod: &Pod) -> Option<i32> {
    pod.metadata.annotations.as_ref()?.get(INDEX)?.parse().ok()
}

/// `0,3-5` as a set.
fn parse_indexes(text: &str) -> BTreeSet<i32> {
    let mut set = BTreeSet::new();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
            set.extend(first..=last);
        }
    }
    set
}

/// A set as `0,3-5`; runs of three and more are shortened, pairs are listed, as upstream.
fn format_indexes(set: &BTreeSet<i32>) -> String {
    let mut runs: Vec<(i32, i32)> = Vec::new();
    for index in set {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => runs.push((*index, *index)),
        }
    }
    let text = runs.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    });
    text.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn job(completions: i32, parallelism: i32) -> Job {
        let spec = JobSpec {
            completions: Some(completions),
            parallelism: Some(parallelism),
            backoff_limit: Some(1),
            ..JobSpec::default()
        };
        Job {
            spec: Some(spec),
            ..Job::default()
        }
    }

    fn pod(phase: &str) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.finalizers = Some(vec![TRACKING.to_owned()]);
        pod.spec.get_or_insert_default().node_name = Some("n".to_owned());
        pod.status.get_or_insert_default().phase = Some(phase.to_owned());
        Arc::new(pod)
    }

    #[test]
    fn an_end_is_counted_once_and_the_rest_is_created() {
        let plan = plan(
            &job(3, 2),
            &[pod("Succeeded"), pod("Running")],
            Timestamp::now(),
        );
        assert_eq!(plan.status.succeeded, Some(1));
        assert_eq!((plan.count.len(), plan.create.len()), (1, 1));
        assert_eq!(plan.status.active, Some(2));
    }

    #[test]
    fn enough_successes_complete_the_job() {
        let plan = plan(&job(1, 1), &[pod("Succeeded")], Timestamp::now());
        assert!(has_condition(Some(&plan.status), "Complete"));
        assert!(plan.status.completion_time.is_some() && plan.create.is_empty());
    }

    #[test]
    fn too_many_failures_fail_the_job_and_end_its_pods() {
        let plan = plan(
            &job(3, 3),
            &[pod("Failed"), pod("Failed"), pod("Running")],
            Timestamp::now(),
        );
        assert!(has_condition(Some(&plan.status), "Failed"));
        assert_eq!(plan.delete.len(), 1);
        assert_eq!(plan.status.active, None);
    }

    proptest! {
        #[test]
        fn indexes_survive_their_text(set in proptest::collection::btree_set(0..60i32, 0..40)) {
            prop_assert_eq!(parse_indexes(&format_indexes(&set)), set);
        }
    }
}
