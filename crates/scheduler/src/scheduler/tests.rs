//! The whole scheduler against a small API server in memory.

mod classic;
mod devices;
mod extenders;
mod fake;
mod groups;
mod node_resources;
mod profiles;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::config::KubeSchedulerConfiguration;
use crate::framework::{Code, CycleState, Permit, Plugin, Points, Profile, Status};
use crate::plugins::{Budgets, default_profile};
use crate::verdict::{Record, VERDICT_ANNOTATION};
use fake::Fake;

struct Bed {
    api: Arc<Fake>,
    scheduler: Scheduler,
    cancel: CancellationToken,
    run: JoinHandle<Result<(), SchedulerError>>,
}

impl Bed {
    fn start(options: SchedulerOptions) -> Self {
        Self::start_on(Fake::new(), options)
    }

    fn start_on(api: Arc<Fake>, options: SchedulerOptions) -> Self {
        let scheduler = Scheduler::new(api.client(), options).unwrap();
        let cancel = CancellationToken::new();
        let (running, token) = (scheduler.clone(), cancel.clone());
        let run = tokio::spawn(async move { running.run(token).await });
        Self {
            api,
            scheduler,
            cancel,
            run,
        }
    }

    /// With what stands in a configuration after its kind.
    fn configured(rest: &str) -> Self {
        Self::start(options(rest))
    }

    fn node(&self, name: &str, foo: &str) {
        self.api.put("nodes", json!({
            "metadata": {"name": name, "uid": name},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "20", "example.com/foo": foo}},
        }));
    }

    fn pod(&self, name: &str, foo: &str, extra: Value) {
        self.api.put("pods", pod(name, foo, extra));
    }

    fn node_of(&self, pod: &str) -> Option<String> {
        let pod = self.api.get("pods", "default", pod)?;
        pod["spec"]["nodeName"].as_str().map(str::to_owned)
    }

    fn message(&self, pod: &str) -> Option<String> {
        let pod = self.api.get("pods", "default", pod)?;
        let conditions = pod["status"]["conditions"].as_array()?;
        let scheduled = conditions.iter().find(|c| c["type"] == "PodScheduled")?;
        (scheduled["status"] == "False").then(|| scheduled["message"].as_str().unwrap().to_owned())
    }

    fn events(&self, reason: &str) -> Vec<Value> {
        self.api
            .all("events")
            .into_iter()
            .filter(|e| e["reason"] == reason)
            .collect()
    }

    async fn until(&self, what: &str, check: impl Fn(&Self) -> bool) {
        for _ in 0..3000 {
            if check(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never happened: {what}; log: {:#?}", self.api.log());
    }

    async fn stop(self) {
        self.cancel.cancel();
        self.run.await.unwrap().unwrap();
    }
}

fn options(rest: &str) -> SchedulerOptions {
    let header = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
    let configuration = KubeSchedulerConfiguration::parse(&format!("{header}{rest}")).unwrap();
    configuration.validate().unwrap();
    SchedulerOptions {
        configuration,
        ..SchedulerOptions::default()
    }
}

fn pod(name: &str, foo: &str, extra: Value) -> Value {
    let mut spec = json!({"containers": [
        {"name": "c", "image": "x", "resources": {"requests": {"example.com/foo": foo}}}
    ]});
    for (key, value) in extra.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({"metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
           "spec": spec, "status": {"phase": "Pending"}})
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_to_a_node_that_has_what_it_asks_for() {
    let bed = Bed::start(SchedulerOptions::default());
    bed.node("small", "0");
    bed.node("large", "2");
    bed.pod("p", "1", json!({}));
    bed.until("bound", |b| b.node_of("p").as_deref() == Some("large"))
        .await;
    bed.until("event", |b| !b.events("Scheduled").is_empty())
        .await;
    let event = bed.events("Scheduled").remove(0);
    assert_eq!(event["message"], "Successfully assigned default/p to large");
    assert_eq!(event["source"]["component"], "default-scheduler");
    let binding = bed
        .api
        .log()
        .into_iter()
        .find(|l| l.path.ends_with("/binding"))
        .unwrap();
    assert_eq!(
        binding.body["target"],
        json!({"kind": "Node", "name": "large"})
    );
    assert_eq!(binding.body["metadata"]["uid"], "uid-p");
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_unschedulable_pod_says_why_and_is_tried_again_when_it_may_fit() {
    let bed = Bed::start(SchedulerOptions::default());
    bed.node("a", "0");
    bed.api.put(
        "nodes",
        json!({
            "metadata": {"name": "b", "uid": "b"},
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
            "status": {"allocatable": {"pods": "5"}},
        }),
    );
    bed.pod("p", "1", json!({}));
    let expected = "0/2 nodes are available: 1 Insufficient example.com/foo, \
                    1 node(s) had untolerated taint(s). preemption: 0/2 nodes are available: \
                    2 Preemption is not helpful for scheduling.";
    bed.until("condition", |b| b.message("p").as_deref() == Some(expected))
        .await;
    bed.until("event", |b| !b.events("FailedScheduling").is_empty())
        .await;
    let event = bed.events("FailedScheduling").remove(0);
    assert_eq!(event["message"], expected);
    assert_eq!(event["type"], "Warning");
    let record = event["metadata"]["annotations"][VERDICT_ANNOTATION]
        .as_str()
        .unwrap();
    let record: Record = serde_json::from_str(record).unwrap();
    assert_eq!(record.reasons["Insufficient example.com/foo"], 1);
    let shortage = record
        .nodes
        .iter()
        .find_map(|n| n.shortages.first())
        .unwrap();
    assert_eq!((shortage.requested, shortage.capacity), (1, 0));
    assert_eq!((record.total_nodes, record.nodes.len()), (2, 2));
    assert_eq!((record.attempt, record.more_nodes), (1, 0));

    bed.node("a", "1");
    bed.until("bound", |b| b.node_of("p").as_deref() == Some("a"))
        .await;
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_nodes_the_usual_sentence() {
    let bed = Bed::start(SchedulerOptions::default());
    bed.pod("p", "0", json!({}));
    let expected = "no nodes available to schedule pods";
    bed.until("condition", |b| b.message("p").as_deref() == Some(expected))
        .await;
    bed.node("n", "0");
    bed.until("bound", |b| b.node_of("p").is_some()).await;
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn item_203_only_own_pods_and_no_gated_or_dying_ones() {
    let bed = Bed::configured("profiles: [{schedulerName: mine}]");
    bed.node("n", "9");
    bed.pod("foreign", "1", json!({}));
    bed.pod(
        "gated",
        "1",
        json!({"schedulerName": "mine", "schedulingGates": [{"name": "g"}]}),
    );
    let mut dying = pod("dying", "1", json!({"schedulerName": "mine"}));
    dying["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    bed.api.put("pods", dying);
    bed.pod("own", "1", json!({"schedulerName": "mine"}));
    bed.until("bound", |b| b.node_of("own").is_some()).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    for name in ["foreign", "gated", "dying"] {
        assert_eq!(bed.node_of(name), None, "{name}");
        assert_eq!(bed.message(name), None, "{name}");
    }
    bed.pod("gated", "1", json!({"schedulerName": "mine"}));
    bed.until("gate gone", |b| b.node_of("gated").is_some())
        .await;
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_binding_is_tried_again() {
    let bed = Bed::start(SchedulerOptions::default());
    bed.api.refuse_bindings(2);
    bed.node("n", "1");
    bed.pod("p", "1", json!({}));
    bed.until("bound", |b| b.node_of("p").is_some()).await;
    let tries = bed
        .api
        .log()
        .iter()
        .filter(|l| l.path.ends_with("/binding"))
        .count();
    assert_eq!(tries, 3);
    // The message of the failure must not be written after the success.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(bed.message("p"), None);
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_last_device_goes_to_one_pod_and_then_to_the_next() {
    let bed = Bed::start(SchedulerOptions::default());
    bed.node("n", "1");
    bed.pod("p", "1", json!({}));
    bed.pod("q", "1", json!({}));
    bed.until("one bound", |b| {
        b.node_of("p").is_some() || b.node_of("q").is_some()
    })
    .await;
    let (first, second) = if bed.node_of("p").is_some() {
        ("p", "q")
    } else {
        ("q", "p")
    };
    let refused = "0/1 nodes are available: 1 Insufficient example.com/foo. preemption: 0/1 nodes \
                   are available: 1 No preemption victims found for incoming pod.";
    bed.until("refused", |b| b.message(second).as_deref() == Some(refused))
        .await;
    bed.api.delete("pods", "default", first);
    bed.until("the other bound", |b| b.node_of(second).is_some())
        .await;
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_were_there_before_are_taken_into_account() {
    let api = Fake::new();
    api.put("pods", pod("old", "2", json!({"nodeName": "n"})));
    let bed = Bed::start_on(api, SchedulerOptions::default());
    bed.pod("p", "1", json!({}));
    bed.node("n", "2");
    bed.until("refused", |b| {
        b.message("p").is_some_and(|m| m.contains("Insufficient"))
    })
    .await;
    let mut ended = pod("old", "2", json!({"nodeName": "n"}));
    ended["status"]["phase"] = json!("Succeeded");
    bed.api.put("pods", ended);
    bed.until("bound", |b| b.node_of("p").is_some()).await;
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn many_pods_at_once_never_overcommit() {
    let bed = Bed::start(SchedulerOptions::default());
    for i in 0..5 {
        bed.node(&format!("n{i}"), "3");
    }
    for i in 0..20 {
        bed.pod(&format!("p{i}"), "1", json!({}));
    }
    let bound = |b: &Bed| {
        (0..20)
            .filter_map(|i| b.node_of(&format!("p{i}")))
            .collect::<Vec<_>>()
    };
    bed.until("all devices used", |b| bound(b).len() == 15)
        .await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let nodes = bound(&bed);
    assert_eq!(nodes.len(), 15);
    for i in 0..5 {
        assert_eq!(nodes.iter().filter(|n| **n == format!("n{i}")).count(), 3);
    }
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_more_important_pod_gets_room() {
    let bed = Bed::start(SchedulerOptions::default());
    bed.node("n", "1");
    bed.pod("low", "1", json!({"priority": 1}));
    bed.until("low bound", |b| b.node_of("low").is_some()).await;
    bed.pod(
        "polite",
        "1",
        json!({"priority": 10, "preemptionPolicy": "Never"}),
    );
    let expected = "0/1 nodes are available: 1 Insufficient example.com/foo. \
                    preemption: not eligible due to preemptionPolicy=Never.";
    bed.until("refused", |b| {
        b.message("polite").as_deref() == Some(expected)
    })
    .await;
    bed.pod("high", "1", json!({"priority": 20}));
    bed.until("nominated or bound", |b| {
        let high = b.api.get("pods", "default", "high").unwrap();
        high["status"]["nominatedNodeName"] == "n" || b.node_of("high").is_some()
    })
    .await;
    bed.until("high bound", |b| b.node_of("high").is_some())
        .await;
    assert!(bed.api.get("pods", "default", "low").is_none());
    let log = bed.api.log();
    let mark = log
        .iter()
        .find(|l| l.path.ends_with("/low/status"))
        .unwrap();
    let condition = &mark.body["status"]["conditions"][0];
    assert_eq!(condition["type"], "DisruptionTarget");
    assert_eq!(
        condition["message"],
        "default-scheduler: preempting to accommodate a higher priority pod"
    );
    bed.stop().await;
}

/// Makes every pod wait.
struct Patience;

impl Plugin for Patience {
    fn name(&self) -> &'static str {
        "Patience"
    }
    fn attach(self: Arc<Self>, points: &mut Points) {
        points.permit.push(self);
    }
}

impl Permit for Patience {
    fn permit(&self, _: &mut CycleState, _: &PodInfo, _: &str) -> (Status, Duration) {
        (
            Status {
                code: Code::Wait,
                ..Status::success()
            },
            Duration::from_secs(60),
        )
    }
}

/// Has a defect that pods called `bad` show.
struct Defective;

impl Plugin for Defective {
    fn name(&self) -> &'static str {
        "Defective"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.permit.push(self);
    }
}

impl Permit for Defective {
    fn permit(&self, _: &mut CycleState, pod: &PodInfo, _: &str) -> (Status, Duration) {
        assert_ne!(&*pod.name, "bad", "a defect");
        (Status::success(), Duration::ZERO)
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_the_failure_of_one_pod_and_scheduling_goes_on() {
    let api = Fake::new();
    let devices = crate::plugins::testing::devices();
    let profile = default_profile(
        "default-scheduler",
        Some(api.client()),
        Budgets::default(),
        &devices,
    );
    let options = SchedulerOptions {
        profiles: vec![profile.with(Arc::new(Defective), 0)],
        ..SchedulerOptions::default()
    };
    let bed = Bed::start_on(api, options);
    bed.node("n", "2");
    bed.pod("bad", "1", json!({}));
    bed.until("the pod is told", |b| {
        b.message("bad")
            .is_some_and(|why| why.contains("the scheduler panicked"))
    })
    .await;
    assert!(davit_task::panics("scheduler", "cycle") >= 1);
    // what was booked for it has been given back
    bed.pod("good", "2", json!({}));
    bed.until("others are scheduled", |b| b.node_of("good").is_some())
        .await;
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_can_be_held_at_permit() {
    let api = Fake::new();
    let profile: Profile = default_profile(
        "default-scheduler",
        Some(api.client()),
        Budgets::default(),
        &crate::plugins::testing::devices(),
    )
    .with(Arc::new(Patience), 0);
    let options = SchedulerOptions {
        profiles: vec![profile],
        ..SchedulerOptions::default()
    };
    let bed = Bed::start_on(api, options);
    bed.node("n", "2");
    bed.pod("yes", "1", json!({}));
    bed.pod("no", "1", json!({}));
    bed.until("both wait", |b| {
        b.scheduler.waiting_pods().list().len() == 2
    })
    .await;
    bed.scheduler.waiting_pods().allow("uid-yes", "Patience");
    assert!(
        bed.scheduler
            .waiting_pods()
            .reject("uid-no", "Patience", "held back")
    );
    bed.until("bound", |b| b.node_of("yes").is_some()).await;
    let refused = "0/1 nodes are available: 1 held back.";
    bed.until("refused", |b| b.message("no").as_deref() == Some(refused))
        .await;
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn metrics_tell_of_each_point_and_of_who_refuses() {
    let bed = Bed::start(SchedulerOptions::default());
    bed.node("n", "2");
    bed.pod("small", "1", json!({}));
    bed.until("bound", |b| b.node_of("small").is_some()).await;
    bed.pod("large", "8", json!({}));
    bed.until("refused", |b| b.message("large").is_some()).await;
    let of = |point: &str, status: &str| {
        format!(
            "scheduler_framework_extension_point_duration_seconds_count{{extension_point=\"{point}\",status=\"{status}\",profile=\"default-scheduler\"}} "
        )
    };
    let refusing =
        "scheduler_unschedulable_pods{plugin=\"NodeResourcesFit\",profile=\"default-scheduler\"} ";
    bed.until("one refuses", |b| {
        page(&b.scheduler).contains(&format!("{refusing}1"))
    })
    .await;
    let text = page(&bed.scheduler);
    for line in [
        of("PreFilter", "Success") + "2",
        of("Filter", "Success") + "1",
        of("Filter", "Unschedulable") + "1",
        of("PostFilter", "Unschedulable") + "1",
        of("Reserve", "Success") + "1",
        of("Permit", "Success") + "1",
        of("PreBind", "Success") + "1",
        of("Bind", "Success") + "1",
        of("PostBind", "Success") + "1",
    ] {
        assert!(text.contains(&line), "{line} is missing in\n{text}");
    }
    bed.api.delete("pods", "default", "large");
    bed.until("none refuses", |b| {
        page(&b.scheduler).contains(&format!("{refusing}0"))
    })
    .await;
    bed.stop().await;
}

fn page(scheduler: &Scheduler) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    scheduler.metrics().register(&mut registry);
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
    page
}

#[tokio::test]
async fn who_waits_for_its_lease_is_ready_and_who_lists_is_not() {
    let scheduler = Scheduler::new(Fake::new().client(), SchedulerOptions::default()).unwrap();
    assert!(scheduler.is_idle_or_synced());
    assert!(scheduler.pods().is_empty());
    scheduler.progress.store(SYNCING, Ordering::Relaxed);
    assert!(!scheduler.is_idle_or_synced());
    let page = page(&scheduler);
    let preemption = "scheduler_preemption_attempts_total";
    assert!(page.contains(preemption), "{page}");
}
