use super::*;
use crate::job::{INDEX, INDEX_FAILURES, TRACKING};
use davit_reconcile::pods::phase;
use k8s_openapi::api::batch::v1::UncountedTerminatedPods;
use k8s_openapi::jiff::SignedDuration;
use proptest::prelude::*;
use serde_json::json;

fn job(spec: serde_json::Value) -> Job {
    serde_json::from_value(json!({"metadata": {"name": "j"}, "spec": spec})).unwrap()
}

fn completions(completions: i32, parallelism: i32) -> Job {
    job(
        json!({"completions": completions, "parallelism": parallelism, "backoffLimit": 1, "template": {}}),
    )
}

fn indexed(rest: serde_json::Value) -> Job {
    let mut job = job(
        json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed", "backoffLimit": i32::MAX, "template": {}}),
    );
    let mut spec = serde_json::to_value(&job.spec).unwrap();
    for (key, value) in rest.as_object().unwrap() {
        spec[key] = value.clone();
    }
    job.spec = serde_json::from_value(spec).unwrap();
    job
}

fn pod(uid: &str, phase: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": uid, "namespace": "ns", "uid": uid, "finalizers": [TRACKING], "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n", "containers": []},
        "status": {"phase": phase},
    }))
    .unwrap()
}

fn of_index(uid: &str, phase: &str, index: i32, failures: i32) -> Arc<Pod> {
    let mut pod = pod(uid, phase);
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(INDEX.to_owned(), index.to_string());
    annotations.insert(INDEX_FAILURES.to_owned(), failures.to_string());
    Arc::new(pod)
}

fn pods(list: &[(&str, &str)]) -> Vec<Arc<Pod>> {
    list.iter()
        .map(|(uid, phase)| Arc::new(pod(uid, phase)))
        .collect()
}

fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
    pods.iter().filter_map(|p| uid(p)).collect()
}

fn is_true(status: &JobStatus, type_: &str) -> bool {
    condition(status, type_).is_some_and(|c| c.status == "True")
}

fn now() -> Timestamp {
    Timestamp::now()
}

#[test]
fn an_end_is_listed_before_the_pod_goes_and_counted_after() {
    let pods = pods(&[("a", "Succeeded"), ("b", "Running")]);
    let mut plan = plan(&completions(3, 2), &pods, now());
    assert_eq!(names(&plan.release), ["a"]);
    assert_eq!(plan.create.len(), 1);
    assert_eq!(plan.status.succeeded, None);
    assert_eq!(plan.status.active, Some(2));
    let listed = plan.status.uncounted_terminated_pods.clone().unwrap();
    assert_eq!(listed.succeeded, Some(vec!["a".to_owned()]));
    assert!(!settle(&mut plan.status, &["b"].into(), None, now()));
    assert_eq!(plan.status.succeeded, Some(1));
    let listed = plan.status.uncounted_terminated_pods.unwrap();
    assert_eq!(listed, UncountedTerminatedPods::default());
}

#[test]
fn a_status_that_somebody_wrote_is_counted_on_from() {
    let mut job = completions(3, 2);
    let status = json!({ "succeeded": i32::MAX, "failed": i32::MAX,
        "uncountedTerminatedPods": { "succeeded": ["x"], "failed": ["y", "z"] } });
    job.status = serde_json::from_value(status).unwrap();
    let all = pods(&[("a", "Succeeded"), ("b", "Failed")]);
    assert_eq!(
        plan(&job, &all, now()).status.failed,
        Some(i32::MAX),
        "two were let go"
    );
}

#[test]
fn enough_successes_complete_the_job() {
    let mut plan = plan(&completions(1, 1), &pods(&[("a", "Succeeded")]), now());
    assert!(plan.create.is_empty() && is_true(&plan.status, "SuccessCriteriaMet"));
    assert!(!is_true(&plan.status, "Complete"));
    let held = plan.status.clone();
    assert!(
        !settle(&mut plan.status, &["a"].into(), plan.end.as_ref(), now()),
        "the pod could not be let go"
    );
    assert_eq!(plan.status, held);
    assert!(settle(
        &mut plan.status,
        &BTreeSet::new(),
        plan.end.as_ref(),
        now()
    ));
    assert!(is_true(&plan.status, "Complete") && plan.status.completion_time.is_some());
    assert_eq!(plan.status.succeeded, Some(1));
}

#[test]
fn too_many_failures_fail_the_job_once_its_pods_have_ended() {
    let mut job = completions(3, 3);
    let all = pods(&[("a", "Failed"), ("b", "Failed"), ("c", "Running")]);
    let first = plan(&job, &all, now());
    assert_eq!(names(&first.delete), ["c"]);
    assert_eq!(names(&first.release), ["a", "b", "c"]);
    assert_eq!(
        (first.status.active, first.status.terminating),
        (None, Some(1))
    );
    let mut status = first.status.clone();
    assert!(!settle(
        &mut status,
        &BTreeSet::new(),
        first.end.as_ref(),
        now()
    ));
    assert!(is_true(&status, "FailureTarget") && !is_true(&status, "Failed"));
    assert_eq!(status.failed, Some(3), "also the pod that ends with it");

    job.status = Some(status);
    let mut second = plan(&job, &[], now());
    let end = second.end.clone().unwrap();
    assert_eq!(end.reason, "BackoffLimitExceeded");
    assert!(settle(
        &mut second.status,
        &BTreeSet::new(),
        Some(&end),
        now()
    ));
    assert!(is_true(&second.status, "Failed"));
}

#[test]
fn a_job_past_its_deadline_fails_and_is_not_looked_at_all_the_time() {
    let mut job = completions(1, 1);
    job.spec.get_or_insert_default().active_deadline_seconds = Some(5);
    let start = now();
    let running = pods(&[("a", "Running")]);
    let first = plan(&job, &running, start);
    assert_eq!(first.look_again, Some(Duration::from_secs(5)));
    job.status = Some(first.status);
    let late = plan(&job, &running, start + SignedDuration::from_secs(6));
    assert_eq!(late.end.unwrap().reason, "DeadlineExceeded");
    assert_eq!(late.look_again, None);
}

#[test]
fn suspended_pods_do_not_count_as_failed() {
    let mut job = completions(2, 2);
    job.spec.get_or_insert_default().suspend = Some(true);
    let running = pods(&[("a", "Running")]);
    let suspended = plan(&job, &running, now());
    assert_eq!(names(&suspended.dismiss), ["a"]);
    assert!(suspended.release.is_empty() && suspended.create.is_empty());
    assert_eq!(suspended.status.failed, None);
    assert_eq!(suspended.resumed_or_suspended, Some("Suspended"));
    assert_eq!(suspended.status.start_time, None);

    job.status = Some(suspended.status);
    assert_eq!(plan(&job, &[], now()).resumed_or_suspended, None);
    job.spec.get_or_insert_default().suspend = Some(false);
    let resumed = plan(&job, &[], now());
    assert_eq!(resumed.resumed_or_suspended, Some("Resumed"));
    assert_eq!(resumed.create.len(), 2);
    let told = condition(&resumed.status, "Suspended").unwrap();
    assert_eq!(
        (told.status.as_str(), told.reason.as_deref()),
        ("False", Some("JobResumed"))
    );
}

#[test]
fn pods_that_are_ending_are_replaced_by_policy() {
    let mut ending = pod("a", "Running");
    ending.metadata.deletion_timestamp = Some(Time(now() - SignedDuration::from_secs(60)));
    let ending = [Arc::new(ending)];
    let created = |policy: &str| {
        let mut job = completions(1, 1);
        job.spec.get_or_insert_default().pod_replacement_policy = Some(policy.to_owned());
        let plan = plan(&job, &ending, now());
        assert_eq!(plan.status.terminating, Some(1));
        (plan.create.len(), plan.release.len())
    };
    assert_eq!(created("TerminatingOrFailed"), (1, 1));
    assert_eq!(created("Failed"), (0, 0), "it has not failed yet");
}

#[test]
fn restarts_in_place_count_against_the_limit() {
    let mut job = completions(1, 1);
    let template = json!({"spec": {"restartPolicy": "OnFailure", "containers": []}});
    job.spec.get_or_insert_default().template = serde_json::from_value(template).unwrap();
    let with = |restarts: i32| {
        let mut pod = pod("a", "Running");
        let container = json!([{"name": "c", "ready": true, "restartCount": restarts, "image": "i", "imageID": "i"}]);
        pod.status.get_or_insert_default().container_statuses =
            serde_json::from_value(container).unwrap();
        plan(&job, &[Arc::new(pod)], now()).end.map(|e| e.reason)
    };
    assert_eq!(with(0), None);
    assert_eq!(with(1).as_deref(), Some("BackoffLimitExceeded"));
}

#[test]
fn each_index_has_a_limit_of_its_own() {
    let job = indexed(json!({"backoffLimitPerIndex": 1, "maxFailedIndexes": 1}));
    let later = now() + SignedDuration::from_secs(700);
    // The first failure of index 0 is replaced by a pod that knows of it, and held until then.
    let mut all = vec![
        of_index("a", "Failed", 0, 0),
        of_index("b", "Running", 1, 0),
        of_index("c", "Running", 2, 0),
    ];
    let first = plan(&job, &all, later);
    let replacement = NewPod {
        index: Some(0),
        failures: Some((1, 0)),
    };
    assert_eq!(first.create, [replacement]);
    assert!(first.release.is_empty());
    all.push(of_index("d", "Running", 0, 1));
    assert_eq!(names(&plan(&job, &all, later).release), ["a"]);
    // The second uses up the limit of the index; the others go on.
    all[3] = of_index("d", "Failed", 0, 1);
    let second = plan(&job, &all, later);
    assert_eq!(second.status.failed_indexes.as_deref(), Some("0"));
    assert!(second.create.is_empty() && second.end.is_none());
    // A second failed index is one too many.
    all[1] = of_index("b", "Failed", 1, 1);
    let third = plan(&job, &all, later);
    assert_eq!(third.status.failed_indexes.as_deref(), Some("0,1"));
    assert_eq!(third.end.unwrap().reason, "MaxFailedIndexesExceeded");
}

#[test]
fn failed_indexes_fail_the_job_when_no_other_is_left() {
    let job = indexed(json!({"backoffLimitPerIndex": 0}));
    let all = [
        of_index("a", "Failed", 0, 0),
        of_index("b", "Succeeded", 1, 0),
        of_index("c", "Succeeded", 2, 0),
    ];
    let plan = plan(&job, &all, now());
    assert_eq!(plan.end.unwrap().reason, "FailedIndexes");
    assert_eq!(plan.status.completed_indexes.as_deref(), Some("1,2"));
    assert_eq!(plan.status.succeeded, Some(2));
}

#[test]
fn ignored_failures_neither_count_nor_use_up_a_limit() {
    let disrupted = |uid: &str, index| {
        let mut pod = Pod::clone(&of_index(uid, "Failed", index, 0));
        let condition = json!([{"type": "DisruptionTarget", "status": "True"}]);
        pod.status.get_or_insert_default().conditions = serde_json::from_value(condition).unwrap();
        Arc::new(pod)
    };
    let policy = json!({"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]});
    let job = indexed(json!({"backoffLimitPerIndex": 0, "podFailurePolicy": policy}));
    let all = [
        disrupted("a", 0),
        of_index("b", "Running", 1, 0),
        of_index("c", "Running", 2, 0),
    ];
    let plan = plan(&job, &all, now() + SignedDuration::from_secs(700));
    let replacement = NewPod {
        index: Some(0),
        failures: Some((0, 1)),
    };
    assert_eq!(plan.create, [replacement]);
    assert!(plan.end.is_none());
    assert_eq!(plan.status.failed_indexes.as_deref(), Some(""));
}

#[test]
fn a_success_policy_ends_the_pods_that_are_left() {
    let policy = json!({"rules": [{"succeededIndexes": "0"}]});
    let job = indexed(json!({ "successPolicy": policy }));
    let all = [
        of_index("a", "Succeeded", 0, 0),
        of_index("b", "Running", 1, 0),
        of_index("c", "Running", 2, 0),
    ];
    let plan = plan(&job, &all, now());
    assert_eq!(names(&plan.delete), ["b", "c"]);
    let end = plan.end.unwrap();
    assert_eq!((end.success, end.reason.as_str()), (true, "SuccessPolicy"));
    let uncounted = plan.status.uncounted_terminated_pods.unwrap();
    assert_eq!(uncounted.failed, None, "they have not failed");
}

#[test]
fn of_pods_with_one_index_one_is_kept() {
    let job = indexed(json!({}));
    let all = [
        of_index("a", "Running", 0, 0),
        of_index("b", "Pending", 0, 0),
        of_index("c", "Running", 9, 0),
    ];
    let plan = plan(&job, &all, now());
    let mut dismissed = names(&plan.dismiss);
    dismissed.sort_unstable();
    assert_eq!(dismissed, ["b", "c"]);
}

/// What happens to a job between the looks of its controller.
#[derive(Debug, Clone)]
enum Step {
    /// A look, which is cut after so many writes.
    Look(usize),
    Succeed(usize),
    Fail(usize),
    Evict(usize),
    Parallelism(i32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..12usize).prop_map(Step::Look),
        3 => (0..6usize).prop_map(Step::Succeed),
        2 => (0..6usize).prop_map(Step::Fail),
        1 => (0..6usize).prop_map(Step::Evict),
        1 => (0..5i32).prop_map(Step::Parallelism),
    ];
    proptest::collection::vec(step, 1..60)
}

/// A cluster with one job, as far as the controller sees it.
struct World {
    job: Job,
    pods: Vec<Pod>,
    created: usize,
    now: Timestamp,
    /// Ends of pods that carried the job's finalizer at the time.
    succeeded: i32,
    failed: i32,
}

impl World {
    fn new(completions: i32) -> Self {
        let spec = json!({"completions": completions, "parallelism": 3, "backoffLimit": 1000, "template": {}});
        Self {
            job: job(spec),
            pods: Vec::new(),
            created: 0,
            now: now(),
            succeeded: 0,
            failed: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        let running = |pod: &Pod| is_active(pod) && phase(pod) == "Running";
        let end = |world: &mut Self, place: usize, phase: &str| {
            let mut going = world.pods.iter_mut().filter(|p| running(p));
            let Some(pod) = going.nth(place) else {
                return false;
            };
            pod.status.get_or_insert_default().phase = Some(phase.to_owned());
            is_tracked(pod)
        };
        match step {
            Step::Look(writes) => _ = self.look(*writes),
            Step::Succeed(place) => self.succeeded += i32::from(end(self, *place, "Succeeded")),
            Step::Fail(place) => self.failed += i32::from(end(self, *place, "Failed")),
            Step::Evict(place) => {
                let now = Time(self.now);
                let mut going = self.pods.iter_mut().filter(|p| running(p));
                if let Some(pod) = going.nth(*place) {
                    pod.metadata.deletion_timestamp = Some(now);
                    pod.status.get_or_insert_default().phase = Some("Failed".to_owned());
                    self.failed += i32::from(is_tracked(pod));
                }
            }
            Step::Parallelism(pods) => {
                self.job.spec.get_or_insert_default().parallelism = Some(*pods);
            }
        }
    }

    /// What the shell does with a plan, in its order. Pods that are deleted are gone as soon as nothing holds them.
    fn look(&mut self, mut writes: usize) -> Option<()> {
        let mut write = move || {
            writes = writes.checked_sub(1)?;
            Some(())
        };
        if is_true(&self.job.status.clone().unwrap_or_default(), "Complete") {
            return Some(());
        }
        self.now += SignedDuration::from_secs(700);
        let all: Vec<Arc<Pod>> = self.pods.iter().cloned().map(Arc::new).collect();
        let plan = plan(&self.job, &all, self.now);
        for pod in &plan.dismiss {
            write()?;
            self.release(pod);
        }
        for pod in plan.delete.iter().chain(&plan.dismiss) {
            write()?;
            self.change(pod, |p| {
                p.metadata.deletion_timestamp = Some(Time(Timestamp::now()));
            });
        }
        for _ in &plan.create {
            write()?;
            self.created += 1;
            self.pods.push(pod(&self.created.to_string(), "Running"));
        }
        write()?;
        self.set_status(plan.status.clone());
        for pod in &plan.release {
            write()?;
            self.release(pod);
        }
        write()?;
        let tracked: Vec<Pod> = self
            .pods
            .iter()
            .filter(|p| is_tracked(p))
            .cloned()
            .collect();
        let tracked = tracked.iter().filter_map(uid).collect();
        let mut status = plan.status;
        settle(&mut status, &tracked, plan.end.as_ref(), self.now);
        self.set_status(status);
        Some(())
    }

    fn change(&mut self, pod: &Pod, change: impl Fn(&mut Pod)) {
        for held in self
            .pods
            .iter_mut()
            .filter(|p| p.metadata.uid == pod.metadata.uid)
        {
            change(held);
        }
        self.pods
            .retain(|p| p.metadata.deletion_timestamp.is_none() || is_tracked(p));
    }

    fn release(&mut self, pod: &Pod) {
        self.change(pod, |p| p.metadata.finalizers = None);
    }

    fn set_status(&mut self, status: JobStatus) {
        let before = self.job.status.replace(status.clone()).unwrap_or_default();
        let grows = |a: Option<i32>, b: Option<i32>| a.unwrap_or(0) <= b.unwrap_or(0);
        assert!(grows(before.succeeded, status.succeeded) && grows(before.failed, status.failed));
        assert!(status.ready.unwrap_or(0) <= status.active.unwrap_or(0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Wherever the controller is cut: each end is counted once, no pod is held for ever, and the job completes with what
    /// was asked for.
    #[test]
    fn each_end_is_counted_once_wherever_the_controller_is_cut(steps in steps(), completions in 1..6i32) {
        let mut world = World::new(completions);
        for step in &steps {
            world.step(step);
        }
        world.step(&Step::Parallelism(2));
        for _ in 0..40 {
            world.step(&Step::Look(usize::MAX));
            world.step(&Step::Succeed(0));
        }
        let status = world.job.status.unwrap_or_default();
        prop_assert!(is_true(&status, "Complete"), "{status:?}");
        prop_assert_eq!(status.succeeded.unwrap_or(0), world.succeeded);
        prop_assert_eq!(status.failed.unwrap_or(0), world.failed);
        prop_assert!(world.succeeded >= completions);
        prop_assert!(!world.pods.iter().any(is_tracked));
    }
}
