//! The pods of a job, counted, and what follows from the counts.

use super::super::backoff;
use super::super::{INDEX, INDEX_FAILURES, INDEX_IGNORED_FAILURES, is_tracked};
use super::{End, MAX_CHANGES, MAX_UNCOUNTED, NewPod, Plan, ending, is_suspended, uid};
use crate::pod_control::sort_for_deletion;
use davit_api::jobs::indexes::CompletionIndexes;
use davit_api::jobs::pod_failure_policy::{PodFailureAction, judge};
use davit_api::jobs::success_policy;
use davit_reconcile::pods::{is_active, is_terminal, node_of, phase};
use k8s_openapi::api::batch::v1::{JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The job's pods and what they amount to.
pub(super) struct JobView<'a> {
    spec: &'a JobSpec,
    pods: &'a [Arc<Pod>],
    now: Timestamp,
    pub(super) active: Vec<Arc<Pod>>,
    /// Pods that failed, counted or not.
    failures: Vec<&'a Arc<Pod>>,
    /// All that the status counts or lists, and all that it will.
    succeeded: i32,
    failed: i32,
    /// CompletionIndexes that succeeded; of Indexed jobs.
    done: CompletionIndexes,
    /// CompletionIndexes that failed; of jobs with a limit for each index.
    broken: Option<CompletionIndexes>,
    /// The last failed pod of each index that waits for its replacement, which has to be told of the failures so far.
    replaced: BTreeMap<i32, &'a Arc<Pod>>,
}

impl<'a> JobView<'a> {
    pub(super) fn new(
        spec: &'a JobSpec,
        status: &JobStatus,
        pods: &'a [Arc<Pod>],
        now: Timestamp,
    ) -> Self {
        let mut view = Self {
            spec,
            pods,
            now,
            active: pods.iter().filter(|p| is_active(p)).cloned().collect(),
            failures: pods.iter().filter(|p| is_failed(p, spec)).collect(),
            succeeded: status.succeeded.unwrap_or(0),
            failed: status.failed.unwrap_or(0),
            done: CompletionIndexes::default(),
            broken: None,
            replaced: BTreeMap::new(),
        };
        let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
        let (done, failed) = (
            uncounted.succeeded.unwrap_or_default(),
            uncounted.failed.unwrap_or_default(),
        );
        let listed = |list: &[String], pod: &Pod| list.iter().any(|u| Some(u.as_str()) == uid(pod));
        let new_failures = view.failures.iter().filter(|p| view.is_pending(p));
        let new_failures = new_failures.filter(|p| !listed(&failed, p) && view.counts(p));
        let new_failures = new_failures.count() + failed.len();
        let succeeded = pods.iter().filter(|p| phase(p) == "Succeeded");
        let succeeded: Vec<&Arc<Pod>> = succeeded.filter(|p| view.is_pending(p)).collect();
        // Whoever may write statuses may have written the largest number.
        view.failed = (view.failed).saturating_add(i32::try_from(new_failures).unwrap_or(0));
        if view.is_indexed() {
            let text = status.completed_indexes.as_deref().unwrap_or_default();
            view.done = CompletionIndexes::parse(text, view.completions());
            let new: CompletionIndexes =
                succeeded.iter().filter_map(|p| view.index_of(p)).collect();
            view.done.extend(&new);
            view.succeeded = view.done.total();
            view.look_at_indexes(status);
        } else {
            let new = succeeded.iter().filter(|p| !listed(&done, p)).count() + done.len();
            view.succeeded = (view.succeeded).saturating_add(i32::try_from(new).unwrap_or(0));
        }
        view
    }

    /// What a limit for each index makes of the failures (KEP-3850).
    fn look_at_indexes(&mut self, status: &JobStatus) {
        let Some(limit) = self.spec.backoff_limit_per_index else {
            return;
        };
        let text = status.failed_indexes.as_deref().unwrap_or_default();
        let mut broken = CompletionIndexes::parse(text, self.completions());
        let failures = self.failures.iter().copied().filter(|pod| is_tracked(pod));
        let failures: Vec<(i32, &Arc<Pod>)> = failures
            .filter_map(|pod| Some((self.index_of(pod)?, pod)))
            .collect();
        for (index, pod) in &failures {
            let fails = match self.judge(pod) {
                PodFailureAction::Ignore => false,
                PodFailureAction::FailIndex => true,
                PodFailureAction::Count | PodFailureAction::FailJob(_) => {
                    index_failures(pod).0 >= limit
                }
            };
            if fails {
                broken.insert(*index);
            }
        }
        let active: CompletionIndexes = self
            .active
            .iter()
            .filter_map(|p| self.index_of(p))
            .collect();
        let age = |pod: &Pod| {
            let (counted, ignored) = index_failures(pod);
            (counted.saturating_add(ignored), backoff::finished_at(pod))
        };
        for (index, pod) in failures {
            if self.done.contains(index) || broken.contains(index) || active.contains(index) {
                continue;
            }
            let last = self.replaced.entry(index).or_insert(pod);
            if age(pod) > age(last) {
                *last = pod;
            }
        }
        self.broken = Some(broken);
    }

    fn is_indexed(&self) -> bool {
        self.spec.completion_mode.as_deref() == Some("Indexed")
    }

    fn completions(&self) -> i32 {
        self.spec.completions.unwrap_or(0)
    }

    /// The completion index of a pod, if the job is Indexed and has it.
    fn index_of(&self, pod: &Pod) -> Option<i32> {
        if !self.is_indexed() {
            return None;
        }
        let index = pod
            .metadata
            .annotations
            .as_ref()?
            .get(INDEX)?
            .parse()
            .ok()?;
        (0..self.completions()).contains(&index).then_some(index)
    }

    /// Whether the pod's end can be that of one of the job's completions.
    fn has_place(&self, pod: &Pod) -> bool {
        !self.is_indexed() || self.index_of(pod).is_some()
    }

    /// Whether the pod's end is one to count and has not been counted for good.
    fn is_pending(&self, pod: &Pod) -> bool {
        is_tracked(pod) && self.has_place(pod)
    }

    /// What the job's policy says of a pod that failed.
    fn judge(&self, pod: &Pod) -> PodFailureAction {
        judge(self.spec.pod_failure_policy.as_ref(), pod)
    }

    /// Whether the failure of a pod counts.
    fn counts(&self, pod: &Pod) -> bool {
        self.judge(pod) != PodFailureAction::Ignore
    }

    /// Why the job ends whatever else is to be done, if it does.
    pub(super) fn end(&self, status: &JobStatus) -> Option<End> {
        if let Some(end) = End::decided(status) {
            return Some(end);
        }
        for pod in &self.failures {
            if let PodFailureAction::FailJob(why) = self.judge(pod) {
                return Some(End::failure("PodFailurePolicy", why));
            }
        }
        let limit = self.spec.backoff_limit.unwrap_or(6);
        if self.failed > limit || self.restarts().is_some_and(|n| n > 0 && n >= limit) {
            let message = "Job has reached the specified backoff limit";
            return Some(End::failure("BackoffLimitExceeded", message));
        }
        if self.until_deadline(status) == Some(Duration::ZERO) {
            let message = "Job was active longer than specified deadline";
            return Some(End::failure("DeadlineExceeded", message));
        }
        if let Some(broken) = &self.broken {
            let most = self.spec.max_failed_indexes;
            if most.is_some_and(|most| broken.total() > most) {
                let message = "Job has exceeded the specified maximal number of failed indexes";
                return Some(End::failure("MaxFailedIndexesExceeded", message));
            }
            let ended = broken.total().saturating_add(self.done.total());
            if !broken.is_empty() && ended >= self.completions() {
                return Some(End::failure("FailedIndexes", "Job has failed indexes"));
            }
        }
        let policy = self.spec.success_policy.as_ref();
        let policy = policy.filter(|_| self.is_indexed())?;
        let met = success_policy::met(policy, self.completions(), &self.done)?;
        Some(End::success("SuccessPolicy", met))
    }

    /// How often the containers of the pods that are restarted in place have been restarted.
    fn restarts(&self) -> Option<i32> {
        let template = self.spec.template.spec.as_ref()?;
        if template.restart_policy.as_deref() != Some("OnFailure") {
            return None;
        }
        let going = self.pods.iter().filter(|p| !is_terminal(p));
        let statuses = going.filter_map(|p| p.status.as_ref());
        let containers = statuses.flat_map(|s| {
            let first = s.init_container_statuses.iter().flatten();
            first.chain(s.container_statuses.iter().flatten())
        });
        Some(containers.fold(0, |n: i32, c| n.saturating_add(c.restart_count)))
    }

    /// How much longer the job may be active; it has no limit while it is suspended.
    pub(super) fn until_deadline(&self, status: &JobStatus) -> Option<Duration> {
        let limit = self.spec.active_deadline_seconds?;
        let start = status.start_time.as_ref()?;
        if is_suspended(self.spec) {
            return None;
        }
        let elapsed = Duration::try_from(self.now.duration_since(start.0)).unwrap_or_default();
        let limit = Duration::from_secs(u64::try_from(limit).unwrap_or(0));
        Some(limit.saturating_sub(elapsed))
    }

    /// Brings the number of pods to what is wanted.
    pub(super) fn manage(&self, plan: &mut Plan) {
        if is_suspended(self.spec) {
            plan.dismiss.clone_from(&self.active);
            return;
        }
        let wanted = self.wanted();
        plan.dismiss = self.surplus(self.active.len().saturating_sub(wanted));
        if !plan.dismiss.is_empty() {
            return;
        }
        let held = self.active.len() + self.in_the_way().count();
        let missing = wanted.saturating_sub(held).min(MAX_CHANGES);
        if missing == 0 {
            return;
        }
        let mut pause = Duration::ZERO;
        if self.broken.is_none() {
            pause = backoff::left(self.pods, &self.failures, self.now);
        }
        if pause.is_zero() {
            (plan.create, pause) = self.new_pods(missing);
        }
        if plan.create.is_empty() && !pause.is_zero() {
            plan.look_again = Some(plan.look_again.map_or(pause, |d| d.min(pause)));
        }
    }

    fn wanted(&self) -> usize {
        let parallelism = self.spec.parallelism.unwrap_or(1);
        let wanted = match self.spec.completions {
            Some(completions) => parallelism.min(completions.saturating_sub(self.succeeded)),
            // A work queue: once a pod has succeeded no other is begun.
            None if self.succeeded > 0 => return self.active.len(),
            None => parallelism,
        };
        usize::try_from(wanted).unwrap_or(0)
    }

    /// Pods that are ending, where they have to be gone before they are replaced (KEP-3939).
    fn in_the_way(&self) -> impl Iterator<Item = &'a Arc<Pod>> {
        let waits = only_replaces_failed(self.spec);
        ending(self.pods).filter(move |_| waits)
    }

    /// Active pods to do without: at least so many, and those whose index another has or that have none.
    fn surplus(&self, least: usize) -> Vec<Arc<Pod>> {
        let (mut surplus, mut left) = (Vec::new(), Vec::new());
        let mut by_index: BTreeMap<i32, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in &self.active {
            match self.index_of(pod) {
                Some(index) => by_index.entry(index).or_default().push(pod.clone()),
                None if self.is_indexed() => surplus.push(pod.clone()),
                None => left.push(pod.clone()),
            }
        }
        for (_, mut same) in by_index {
            sort_for_deletion(&mut same);
            left.extend(same.pop());
            surplus.append(&mut same);
        }
        sort_for_deletion(&mut left);
        let more = least.saturating_sub(surplus.len());
        surplus.extend(left.into_iter().take(more));
        surplus.truncate(MAX_CHANGES);
        surplus
    }

    /// The pods to create now, at most so many; if there are none, how long until there may be one.
    fn new_pods(&self, missing: usize) -> (Vec<NewPod>, Duration) {
        if !self.is_indexed() {
            return (vec![NewPod::default(); missing], Duration::ZERO);
        }
        let mut taken = self.done.clone();
        let held = self.active.iter().chain(self.in_the_way());
        taken.extend(&held.filter_map(|pod| self.index_of(pod)).collect());
        if let Some(broken) = &self.broken {
            taken.extend(broken);
        }
        let free: Vec<i32> = taken.missing(self.completions()).take(missing).collect();
        let pauses = free.iter().map(|index| (*index, self.pause_of(*index)));
        let (ready, waiting): (Vec<_>, Vec<_>) = pauses.partition(|(_, pause)| pause.is_zero());
        let shortest = waiting.into_iter().map(|(_, pause)| pause).min();
        let create = ready.into_iter().map(|(index, _)| NewPod {
            index: Some(index),
            failures: self.broken.as_ref().map(|_| self.failures_of(index)),
        });
        (create.collect(), shortest.unwrap_or_default())
    }

    fn pause_of(&self, index: i32) -> Duration {
        let Some(last) = self.replaced.get(&index) else {
            return Duration::ZERO;
        };
        let (counted, ignored) = index_failures(last);
        let failures = counted.saturating_add(ignored).saturating_add(1);
        backoff::left_of(failures, backoff::finished_at(last), self.now)
    }

    /// The failures of an index, with that of the pod that is being replaced; those that count and those that do not.
    fn failures_of(&self, index: i32) -> (i32, i32) {
        let Some(last) = self.replaced.get(&index) else {
            return (0, 0);
        };
        let (counted, ignored) = index_failures(last);
        if self.counts(last) {
            (counted.saturating_add(1), ignored)
        } else {
            (counted, ignored.saturating_add(1))
        }
    }

    /// Whether the job is complete once the plan is carried out.
    pub(super) fn completed(&self, plan: &Plan) -> Option<End> {
        let none_left = self.active.len() == plan.dismiss.len() && plan.create.is_empty();
        let enough = match self.spec.completions {
            Some(completions) => self.succeeded >= completions,
            None => self.succeeded > 0,
        };
        (enough && none_left).then(|| {
            let message = "Reached expected number of succeeded pods";
            End::success("CompletionsReached", message)
        })
    }

    /// Lists the ends that are not counted yet in the status, and the pods that may go once it is recorded.
    pub(super) fn track(&self, status: &mut JobStatus, plan: &mut Plan) {
        let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
        let fails = plan.end.as_ref().is_some_and(|end| !end.success);
        let dismissed: BTreeSet<Option<&str>> = plan.dismiss.iter().map(|p| uid(p)).collect();
        for pod in self.pods.iter().filter(|p| is_tracked(p)) {
            let failed = is_failed(pod, self.spec);
            if dismissed.contains(&uid(pod)) || !self.may_go(pod, failed, plan.end.is_some()) {
                continue;
            }
            if plan.release.len() >= MAX_UNCOUNTED {
                // What is left is counted at the next look; the end has to wait for it.
                plan.end = None;
                plan.look_again = Some(Duration::ZERO);
                break;
            }
            plan.release.push(pod.clone());
            if phase(pod) == "Succeeded" {
                if !self.is_indexed() {
                    list(uncounted, pod, true);
                }
            } else if (failed || fails) && self.has_place(pod) && self.counts(pod) {
                list(uncounted, pod, false);
            }
        }
        if self.is_indexed() {
            status.succeeded = Some(self.done.total()).filter(|n| *n > 0);
            status.completed_indexes = Some(self.done.to_string()).filter(|t| !t.is_empty());
            status.failed_indexes = self.broken.as_ref().map(ToString::to_string);
        }
    }

    /// Whether a pod is needed no more: its end is known, or that of the job.
    fn may_go(&self, pod: &Arc<Pod>, failed: bool, ends: bool) -> bool {
        let awaits_replacement = || {
            let last = self.index_of(pod).and_then(|i| self.replaced.get(&i));
            last.is_some_and(|last| uid(last) == uid(pod))
        };
        ends || phase(pod) == "Succeeded" || (failed && !awaits_replacement())
    }
}

/// Lists a pod as one that has ended and is not counted, unless it is listed.
fn list(uncounted: &mut UncountedTerminatedPods, pod: &Pod, success: bool) {
    let Some(uid) = uid(pod) else { return };
    let is_listed = |list: &Option<Vec<String>>| list.iter().flatten().any(|u| u == uid);
    if is_listed(&uncounted.succeeded) || is_listed(&uncounted.failed) {
        return;
    }
    let list = if success {
        &mut uncounted.succeeded
    } else {
        &mut uncounted.failed
    };
    list.get_or_insert_default().push(uid.to_owned());
}

fn only_replaces_failed(spec: &JobSpec) -> bool {
    spec.pod_replacement_policy.as_deref() == Some("Failed") || spec.pod_failure_policy.is_some()
}

/// Whether a pod counts as failed: also one that is being deleted, unless the job waits for its end, which a pod without
/// a node never sees.
fn is_failed(pod: &Pod, spec: &JobSpec) -> bool {
    let deleted = pod.metadata.deletion_timestamp.is_some() && phase(pod) != "Succeeded";
    phase(pod) == "Failed" || (deleted && (!only_replaces_failed(spec) || node_of(pod).is_none()))
}

/// How many pods of its index failed before a pod, and how many of these failures were ignored.
fn index_failures(pod: &Pod) -> (i32, i32) {
    let number = |key: &str| {
        let text = pod.metadata.annotations.as_ref()?.get(key)?;
        text.parse::<i32>().ok().filter(|n| *n >= 0)
    };
    (
        number(INDEX_FAILURES).unwrap_or(0),
        number(INDEX_IGNORED_FAILURES).unwrap_or(0),
    )
}
