//! Startup, readiness and liveness probes.
//!
//! Each probe of each container instance is one task of the pod's worker. Results are kept by container ID, so that
//! those of an instance that is gone mean nothing for the next.

mod check;
mod grpc;
mod http;
mod http_action;
mod metrics;

pub(crate) use check::{Outcome, Target, exec_check, run_check};
#[cfg(test)]
pub(crate) use http::{HttpRequest, HttpResponse, http_get};
pub(crate) use http_action::{HttpActionError, HttpTarget};
pub(crate) use metrics::ProbeMetrics;

use crate::plan::{ProbeResult, ProbeView};
use crate::runtime_state::{ContainerRecord, PodRuntime, State};
use crate::status::ReadyView;
use davit_client::EventRecorder;
use davit_oci::runtime::Runtime;
use davit_pods::pod::{PodExt, Role};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};

/// Which of the three probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Runs first; the others wait for it.
    Startup,
    /// Decides whether the container gets traffic.
    Readiness,
    /// Its failure restarts the container.
    Liveness,
}

impl Kind {
    /// The word in events.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }
}

/// Results of all probes of the node.
#[derive(Default)]
pub(crate) struct Results {
    results: Mutex<HashMap<(String, Kind), ProbeResult>>,
    metrics: ProbeMetrics,
}

impl Results {
    /// The last result.
    pub(crate) fn get(&self, container_id: &str, kind: Kind) -> Option<ProbeResult> {
        self.results
            .lock()
            .get(&(container_id.to_owned(), kind))
            .copied()
    }

    /// Notes a result; tells whether it is another than before.
    pub(crate) fn set(&self, container_id: &str, kind: Kind, result: ProbeResult) -> bool {
        self.results
            .lock()
            .insert((container_id.to_owned(), kind), result)
            != Some(result)
    }

    /// What is counted of the node's probes.
    pub(crate) fn metrics(&self) -> &ProbeMetrics {
        &self.metrics
    }

    fn forget(&self, container_id: &str) {
        self.results.lock().retain(|(id, _), _| id != container_id);
    }
}

impl ProbeView for Results {
    fn liveness(&self, container_id: &str) -> Option<ProbeResult> {
        self.get(container_id, Kind::Liveness)
    }
    fn startup(&self, container_id: &str) -> Option<ProbeResult> {
        self.get(container_id, Kind::Startup)
    }
}

impl ReadyView for Results {
    fn readiness(&self, container_id: &str) -> Option<ProbeResult> {
        self.get(container_id, Kind::Readiness)
    }
    fn startup(&self, container_id: &str) -> Option<ProbeResult> {
        self.get(container_id, Kind::Startup)
    }
}

/// Containers, by name, with the kinds of their probes.
type Probed = BTreeSet<(String, Kind)>;

/// The probes of one pod. Dropping it ends them.
pub(crate) struct PodProbes {
    runtime: Arc<dyn Runtime>,
    recorder: EventRecorder,
    results: Arc<Results>,
    wake: Arc<Notify>,
    tasks: JoinSet<()>,
    running: HashMap<(String, Kind), AbortHandle>,
    /// The pod with the containers that have been probed, whatever their instance.
    probed: Option<(Arc<Pod>, Probed)>,
}

impl PodProbes {
    /// No probes yet; `wake` is notified when a result changes.
    pub(crate) fn new(
        runtime: Arc<dyn Runtime>,
        recorder: EventRecorder,
        results: Arc<Results>,
        wake: Arc<Notify>,
    ) -> Self {
        Self {
            runtime,
            recorder,
            results,
            wake,
            tasks: JoinSet::new(),
            running: HashMap::new(),
            probed: None,
        }
    }

    /// Starts the probes of containers that run and ends those of containers that do not.
    pub(crate) fn sync(&mut self, pod: &Arc<Pod>, runtime: &PodRuntime) {
        while self.tasks.try_join_next().is_some() {}
        let lives = |id: &str| runtime.by_id(id).is_some_and(|c| c.state == State::Running);
        let dead: Vec<(String, Kind)> = self
            .running
            .keys()
            .filter(|(id, _)| !lives(id))
            .cloned()
            .collect();
        for key in dead {
            if let Some(task) = self.running.remove(&key) {
                task.abort();
            }
            self.results.forget(&key.0);
        }
        for (role, container) in pod.all_containers() {
            if role != Role::Main && role != Role::Sidecar {
                continue;
            }
            let Some(record) = runtime
                .latest(&container.name)
                .filter(|r| r.state == State::Running)
            else {
                continue;
            };
            let probes = [
                (Kind::Startup, &container.startup_probe),
                (Kind::Readiness, &container.readiness_probe),
                (Kind::Liveness, &container.liveness_probe),
            ];
            for (kind, probe) in probes {
                if let Some(probe) = probe {
                    self.start(pod, role, &container, record, kind, probe, runtime);
                }
            }
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one call, and every argument is a different thing"
    )]
    fn start(
        &mut self,
        pod: &Arc<Pod>,
        role: Role,
        container: &Container,
        record: &ContainerRecord,
        kind: Kind,
        probe: &Probe,
        runtime: &PodRuntime,
    ) {
        let key = (record.id.clone(), kind);
        if self.running.contains_key(&key) {
            return;
        }
        if self.results.get(&record.id, kind).is_none() {
            self.results
                .set(&record.id, kind, first_result(pod, role, record, kind));
        }
        let sandbox = runtime.ready_sandbox();
        let target = Target {
            pod: pod.clone(),
            container: container.clone(),
            container_id: record.id.clone(),
            reach: crate::dial::PodEndpoint {
                sandbox: sandbox.map(|s| s.id.clone()).unwrap_or_default(),
                ips: sandbox.map(|s| s.ips.clone()).unwrap_or_default(),
            },
        };
        let task = Task {
            runtime: self.runtime.clone(),
            recorder: self.recorder.clone(),
            results: self.results.clone(),
            wake: self.wake.clone(),
            role,
            kind,
            probe: probe.clone(),
            target,
            started: record.started.unwrap_or(record.created),
        };
        let handle = self.tasks.spawn(task.run());
        self.running.insert(key, handle);
        let (_, probed) = self
            .probed
            .get_or_insert_with(|| (pod.clone(), BTreeSet::new()));
        probed.insert((container.name.clone(), kind));
    }

    /// Ends startup and liveness probes; readiness goes on while a pod ends.
    pub(crate) fn stop_restarting(&mut self) {
        self.running.retain(|(_, kind), task| {
            if *kind == Kind::Readiness {
                return true;
            }
            task.abort();
            false
        });
    }
}

impl Drop for PodProbes {
    fn drop(&mut self) {
        for (id, _) in self.running.keys() {
            self.results.forget(id);
        }
        // A task that is still under way would count again.
        self.tasks.abort_all();
        if let Some((pod, probed)) = &self.probed {
            for (container, kind) in probed {
                self.results.metrics.forget(pod, container, *kind);
            }
        }
    }
}

/// Result before the first check. A container that the API shows as ready or started when the node comes back stays so
/// until a check says otherwise.
fn first_result(pod: &Pod, role: Role, record: &ContainerRecord, kind: Kind) -> ProbeResult {
    let status = pod.pod_status();
    let list = if role == Role::Sidecar {
        &status.init_container_statuses
    } else {
        &status.container_statuses
    };
    let suffix = format!("//{}", record.id);
    let known = list.iter().flatten().find(|s| {
        s.container_id
            .as_deref()
            .is_some_and(|id| id.ends_with(&suffix))
    });
    match kind {
        Kind::Liveness => ProbeResult::Success,
        Kind::Readiness if known.is_some_and(|s| s.ready) => ProbeResult::Success,
        Kind::Readiness => ProbeResult::Failure,
        Kind::Startup if known.is_some_and(|s| s.started == Some(true)) => ProbeResult::Success,
        Kind::Startup => ProbeResult::Unknown,
    }
}

/// Reason of events about probes that fail.
const UNHEALTHY: &str = "Unhealthy";

struct Task {
    runtime: Arc<dyn Runtime>,
    recorder: EventRecorder,
    results: Arc<Results>,
    wake: Arc<Notify>,
    role: Role,
    kind: Kind,
    probe: Probe,
    target: Target,
    started: Timestamp,
}

impl Task {
    async fn run(self) {
        let seconds = |n: Option<i32>, default: u64| {
            Duration::from_secs(n.and_then(|n| u64::try_from(n).ok()).unwrap_or(default))
        };
        let period = seconds(self.probe.period_seconds, 10).max(Duration::from_secs(1));
        let timeout = seconds(self.probe.timeout_seconds, 1).max(Duration::from_secs(1));
        let delay = seconds(self.probe.initial_delay_seconds, 0);
        let age = Timestamp::now().duration_since(self.started);
        let age = Duration::try_from(age).unwrap_or_default();
        tokio::time::sleep(delay.saturating_sub(age)).await;
        let mut last = None;
        let mut count = 0;
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if self.must_wait() {
                // Look again soon after the startup probe has passed, not a whole period later.
                ticks.reset_after(period.min(Duration::from_secs(1)));
                continue;
            }
            if self.kind == Kind::Startup && self.current() == Some(ProbeResult::Success) {
                return;
            }
            let begun = Instant::now();
            let outcome = run_check(&*self.runtime, &self.probe, &self.target, timeout).await;
            let (metrics, target) = (&self.results.metrics, &self.target);
            let container = &target.container.name;
            metrics.ended(&target.pod, container, self.kind, &outcome, begun.elapsed());
            // A check that could not be made says nothing about the container.
            let Some(result) = self.judge(outcome) else {
                continue;
            };
            if last == Some(result) {
                count += 1;
            } else {
                last = Some(result);
                count = 1;
            }
            if self.below_threshold(result, count) {
                continue;
            }
            if self
                .results
                .set(&self.target.container_id, self.kind, result)
            {
                self.wake.notify_one();
            }
            let over = match self.kind {
                Kind::Startup => true,
                Kind::Liveness => result == ProbeResult::Failure,
                Kind::Readiness => false,
            };
            if over {
                return;
            }
        }
    }

    fn current(&self) -> Option<ProbeResult> {
        self.results.get(&self.target.container_id, self.kind)
    }

    /// Readiness and liveness wait for the startup probe.
    fn must_wait(&self) -> bool {
        self.kind != Kind::Startup
            && self.target.container.startup_probe.is_some()
            && self.results.get(&self.target.container_id, Kind::Startup)
                != Some(ProbeResult::Success)
    }

    fn below_threshold(&self, result: ProbeResult, count: i32) -> bool {
        match result {
            ProbeResult::Success => count < self.probe.success_threshold.unwrap_or(1),
            ProbeResult::Failure => count < self.probe.failure_threshold.unwrap_or(3),
            ProbeResult::Unknown => true,
        }
    }

    fn judge(&self, outcome: Outcome) -> Option<ProbeResult> {
        let kind = self.kind.as_str();
        let (result, reason, text) = match outcome {
            Outcome::Success => return Some(ProbeResult::Success),
            Outcome::Warning(output) => (
                Some(ProbeResult::Success),
                "ProbeWarning",
                format!("{kind} probe warning: {output}"),
            ),
            Outcome::Failure(output) => (
                Some(ProbeResult::Failure),
                UNHEALTHY,
                format!("{kind} probe failed: {output}"),
            ),
            Outcome::Error(error) => (
                None,
                UNHEALTHY,
                format!("{kind} probe errored and resulted in unknown state: {error}"),
            ),
        };
        let reference = self
            .target
            .pod
            .container_reference(self.role, &self.target.container.name);
        self.recorder.warning(&reference, reason, text);
        result
    }
}
