//! What a job needs now: a pure plan from the job and its pods.

mod view;

use super::is_tracked;
use crate::pod_control::ready_since;
use davit_reconcile::pods::{is_active, is_terminal};
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use view::JobView;

/// How many pods are counted in one go: their uids stand in the job's status, which must not grow without bound.
const MAX_UNCOUNTED: usize = 500;
/// How many pods one look creates or removes.
const MAX_CHANGES: usize = 500;

/// What to do, in the order of the fields.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Active pods that end with the job. They are counted.
    pub(super) delete: Vec<Arc<Pod>>,
    /// Active pods that are not wanted any more. Their finalizer goes first, so that they are not counted.
    pub(super) dismiss: Vec<Arc<Pod>>,
    pub(super) create: Vec<NewPod>,
    /// The status to record before any finalizer of `release` goes; it takes all of `create` to be there.
    pub(super) status: JobStatus,
    /// The job was suspended or resumed by this.
    pub(super) resumed_or_suspended: Option<&'static str>,
    /// Pods whose end the status now lists, or that count no more: their finalizer goes.
    pub(super) release: Vec<Arc<Pod>>,
    /// How the job ends, once nothing of it is left.
    pub(super) end: Option<End>,
    pub(super) look_again: Option<Duration>,
}

/// A pod to create.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NewPod {
    /// Its completion index, if the job is Indexed.
    pub(super) index: Option<i32>,
    /// How many pods of the index failed before it and how many of these failures were ignored, where the job has a
    /// limit for each index.
    pub(super) failures: Option<(i32, i32)>,
}

/// Why a job ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    pub(super) success: bool,
    pub(super) reason: String,
    pub(super) message: String,
}

impl End {
    fn failure(reason: &str, message: impl Into<String>) -> Self {
        let (reason, message) = (reason.to_owned(), message.into());
        Self {
            success: false,
            reason,
            message,
        }
    }

    fn success(reason: &str, message: impl Into<String>) -> Self {
        Self {
            success: true,
            ..Self::failure(reason, message)
        }
    }

    /// What an earlier look has decided.
    fn decided(status: &JobStatus) -> Option<Self> {
        let of = |type_: &str, success| {
            let condition = condition(status, type_).filter(|c| c.status == "True")?;
            let reason = condition.reason.clone().unwrap_or_default();
            let message = condition.message.clone().unwrap_or_default();
            Some(Self {
                success,
                reason,
                message,
            })
        };
        of("SuccessCriteriaMet", true).or_else(|| of("FailureTarget", false))
    }

    /// The condition that says that the job is about to end.
    fn interim(&self) -> &'static str {
        if self.success {
            "SuccessCriteriaMet"
        } else {
            "FailureTarget"
        }
    }

    /// The condition of a job that has ended.
    fn terminal(&self) -> &'static str {
        if self.success { "Complete" } else { "Failed" }
    }
}

/// The plan for a job that has not ended and is not being deleted; `pods` are all that it controls.
pub(super) fn plan(job: &Job, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let spec = job.spec.clone().unwrap_or_default();
    let mut status = job.status.clone().unwrap_or_default();
    if status.start_time.is_none() && !is_suspended(&spec) {
        status.start_time = Some(Time(now));
    }
    let tracked = pods.iter().filter(|pod| is_tracked(pod));
    count_released(&mut status, &tracked.filter_map(|p| uid(p)).collect());
    let view = JobView::new(&spec, &status, pods, now);
    let mut plan = Plan {
        end: view.end(&status),
        ..Plan::default()
    };
    if plan.end.is_some() {
        plan.delete.clone_from(&view.active);
    } else {
        plan.look_again = view.until_deadline(&status);
        view.manage(&mut plan);
        plan.end = view.completed(&plan);
        if plan.end.is_none() {
            plan.resumed_or_suspended = note_suspension(&mut status, &spec, now);
        }
    }
    view.track(&mut status, &mut plan);
    if let Some(end) = &plan.end {
        set_condition(
            &mut status,
            end.interim(),
            "True",
            &end.reason,
            &end.message,
            now,
        );
    }
    let lost = plan.delete.len() + plan.dismiss.len();
    let ready = |pods: &[Arc<Pod>]| pods.iter().filter(|p| ready_since(p).is_some()).count();
    let lost_ready = ready(&plan.delete) + ready(&plan.dismiss);
    let active = i32::try_from(view.active.len() + plan.create.len() - lost);
    status.active = active.ok().filter(|n| *n > 0);
    status.ready = i32::try_from(ready(&view.active) - lost_ready).ok();
    status.terminating = i32::try_from(ending(pods).count() + lost).ok();
    plan.status = status;
    plan
}

/// After pods have been released: those that are not `tracked` any more are counted, and when nothing of the job is left
/// it has ended. Whether it has.
pub(super) fn settle(
    status: &mut JobStatus,
    tracked: &BTreeSet<&str>,
    end: Option<&End>,
    now: Timestamp,
) -> bool {
    count_released(status, tracked);
    let uncounted = status.uncounted_terminated_pods.iter();
    let waiting = uncounted.flat_map(|u| u.failed.iter().chain(&u.succeeded).flatten());
    let Some(end) = end.filter(|_| waiting.count() == 0 && status.terminating.unwrap_or(0) == 0)
    else {
        return false;
    };
    set_condition(
        status,
        end.terminal(),
        "True",
        &end.reason,
        &end.message,
        now,
    );
    if end.success {
        status.completion_time = Some(Time(now));
    }
    true
}

/// The pods of the uncounted lists that have been let go are counted for good.
fn count_released(status: &mut JobStatus, tracked: &BTreeSet<&str>) {
    let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
    let count = |waiting: &mut Option<Vec<String>>, counter: &mut Option<i32>| {
        let all = waiting.as_ref().map_or(0, Vec::len);
        if let Some(list) = waiting {
            list.retain(|uid| tracked.contains(uid.as_str()));
        }
        let left = waiting.as_ref().map_or(0, Vec::len);
        let counted = i32::try_from(all - left).unwrap_or(0);
        *counter = Some(counter.unwrap_or(0).saturating_add(counted)).filter(|n| *n > 0);
        if left == 0 {
            *waiting = None;
        }
    };
    count(&mut uncounted.succeeded, &mut status.succeeded);
    count(&mut uncounted.failed, &mut status.failed);
}

/// Records that the job is suspended or goes on; the reason of the event about it if it is news.
fn note_suspension(status: &mut JobStatus, spec: &JobSpec, now: Timestamp) -> Option<&'static str> {
    if is_suspended(spec) {
        let (reason, message) = ("JobSuspended", "Job suspended");
        let news = set_condition(status, "Suspended", "True", reason, message, now);
        return news.then(|| {
            status.start_time = None;
            "Suspended"
        });
    }
    let (reason, message) = ("JobResumed", "Job resumed");
    let news = set_condition(status, "Suspended", "False", reason, message, now);
    news.then(|| {
        // The deadline counts from here.
        status.start_time = Some(Time(now));
        "Resumed"
    })
}

/// The condition of a type.
pub(crate) fn condition<'a>(status: &'a JobStatus, type_: &str) -> Option<&'a JobCondition> {
    let conditions = status.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == type_)
}

/// Sets a condition and tells whether that changed it. One that is not there is not set to `False`.
fn set_condition(
    status: &mut JobStatus,
    type_: &str,
    value: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> bool {
    let same = |c: &JobCondition| {
        c.status == value
            && c.reason.as_deref() == Some(reason)
            && c.message.as_deref() == Some(message)
    };
    let held = condition(status, type_);
    if held.map_or(value == "False", same) {
        return false;
    }
    let condition = JobCondition {
        type_: type_.to_owned(),
        status: value.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    };
    let conditions = status.conditions.get_or_insert_default();
    match conditions.iter_mut().find(|c| c.type_ == type_) {
        Some(held) => *held = condition,
        None => conditions.push(condition),
    }
    true
}

fn is_suspended(spec: &JobSpec) -> bool {
    spec.suspend == Some(true)
}

/// The pods that are being deleted and have not ended yet.
fn ending(pods: &[Arc<Pod>]) -> impl Iterator<Item = &Arc<Pod>> {
    pods.iter().filter(|p| !is_terminal(p) && !is_active(p))
}

fn uid(pod: &Pod) -> Option<&str> {
    pod.metadata.uid.as_deref()
}

#[cfg(test)]
mod tests;
