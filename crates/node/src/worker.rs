//! One task a pod: from its first sight to its removal.
//!
//! The worker observes the runtime, makes a plan, does it, and reports a status, over and over; it keeps nothing that
//! it could not find again after a restart, except back-offs. Stages: admission, running, ending, ended.

mod admit;
mod devices;
mod end;
mod resize;
mod restart_all;
mod retries;
mod start;
mod sync;
mod turns;

pub(crate) use end::remove_all;

use crate::context::Context;
use crate::dial::PodEndpoint;
use crate::probes::PodProbes;
use crate::resize::{IN_PROGRESS, PENDING};
use crate::restart_all::CONDITION as ALL_RESTARTING;
use crate::runtime_state::{PodRuntime, State, observe};
use crate::status::{self, NodeDecision};
use crate::termination;
use crate::worker_input::{Desired, WorkerInput};
use davit_nodelogs::LogFile;
use davit_pods::backoff::Backoff;
use davit_pods::pod::PodExt;
use davit_pods::pod::Waiting;
use davit_podvolumes::Mounted;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How often a pod that is well is looked at, which also brings volumes up to date.
const RESYNC: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Admit,
    Run,
    End,
    Ended,
}

enum Next {
    /// Go on at once.
    Again,
    /// Until something happens, or this time has passed.
    Wait(Option<Duration>),
    /// The pod is no more.
    Exit,
}

/// The worker of one pod.
pub(crate) struct Worker {
    ctx: Arc<Context>,
    input: Arc<WorkerInput>,
    uid: String,
    pod: Arc<Pod>,
    gone: bool,
    stage: Stage,
    accepted: Timestamp,
    seen: Instant,
    started_once: bool,
    backoff: Backoff,
    waiting: BTreeMap<String, Waiting>,
    held: Option<Waiting>,
    verdict: Option<NodeDecision>,
    probes: PodProbes,
    volumes: Mounted,
    /// The pod for which the volumes were made or last brought up to date, and when.
    volumes_of: Option<(Arc<Pod>, Instant)>,
    retries: retries::Retries,
    /// The health of the pod's devices as last seen.
    devices: devices::Watched,
    /// The pod's size: asked for, granted, in its containers.
    sizing: resize::Sizing,
    /// Instances that were ended to be replaced, whatever the restart policy says.
    replaced: BTreeSet<String>,
    /// Termination messages by container ID.
    messages: HashMap<String, String>,
    /// Set when the end is the pod's own: its last status.
    final_status: Option<PodStatus>,
}

impl Worker {
    /// A worker for the pod in `input`.
    pub(crate) fn new(ctx: Arc<Context>, input: Arc<WorkerInput>) -> Self {
        let Desired { pod, gone } = input.read();
        let probes = PodProbes::new(
            ctx.runtime.clone(),
            ctx.recorder.clone(),
            ctx.probes.clone(),
            input.wake(),
        );
        Self {
            uid: pod.uid().to_owned(),
            pod,
            gone,
            stage: Stage::Admit,
            accepted: Timestamp::now(),
            seen: Instant::now(),
            started_once: false,
            backoff: Backoff::container_restarts(ctx.options.restarts),
            waiting: BTreeMap::new(),
            held: None,
            verdict: None,
            probes,
            volumes: Mounted::new(),
            volumes_of: None,
            retries: retries::Retries::default(),
            devices: devices::Watched::default(),
            sizing: resize::Sizing::default(),
            replaced: BTreeSet::new(),
            messages: HashMap::new(),
            final_status: None,
            ctx,
            input,
        }
    }

    /// Runs until the pod is gone, or `cancel`; containers keep running then.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        loop {
            let begun = Instant::now();
            let next = tokio::select! {
                () = cancel.cancelled() => return,
                next = self.step() => next,
            };
            let operation = crate::metrics::Operation {
                operation_type: "sync".to_owned(),
            };
            self.ctx
                .metrics
                .worker_duration
                .get_or_create(&operation)
                .observe(begun.elapsed().as_secs_f64());
            let limit = match next {
                Next::Again => continue,
                Next::Exit => return,
                Next::Wait(limit) => limit.unwrap_or(RESYNC).min(RESYNC),
            };
            let wake = self.input.wake();
            tokio::select! {
                () = cancel.cancelled() => return,
                () = wake.notified() => {}
                () = self.sizing.room() => {}
                () = tokio::time::sleep(limit) => {}
            }
        }
    }

    async fn step(&mut self) -> Next {
        let Desired { pod, gone } = self.input.read();
        self.pod = self.sizing.view(&pod);
        self.gone = gone;
        self.ctx.pods.set(&self.pod);
        if matches!(self.stage, Stage::Admit | Stage::Run) && self.verdict.is_none() {
            self.verdict = self.input.forced().map(|f| f.verdict);
        }
        match self.stage {
            Stage::Admit => self.admit().await,
            Stage::Run if self.input.must_end() => {
                self.stage = Stage::End;
                Next::Again
            }
            Stage::Run => self.sync().await,
            Stage::End => self.end().await,
            Stage::Ended => self.ended().await,
        }
    }

    /// The wait after an error, longer each time.
    fn retry_later(&mut self) -> Next {
        Next::Wait(Some(self.retries.later()))
    }

    /// The runtime could not be asked.
    fn unobserved(&mut self, error: &davit_oci::runtime::Error) -> Next {
        if self.retries.is_news(&error.to_string()) {
            tracing::warn!(pod = %self.pod.format(), %error, "cannot ask the runtime about the pod");
        }
        self.retry_later()
    }

    /// Asks the runtime, and remembers what containers said at their end.
    async fn observe(&mut self) -> Result<PodRuntime, davit_oci::runtime::Error> {
        let runtime = self.look().await?;
        self.messages.retain(|id, _| runtime.by_id(id).is_some());
        for record in runtime
            .containers
            .iter()
            .filter(|c| c.state == State::Exited)
        {
            let id = record.id.clone();
            self.messages.entry(id).or_insert(record.message.clone());
        }
        self.replaced.retain(|id| runtime.by_id(id).is_some());
        Ok(runtime)
    }

    /// Asks the runtime, and completes the records with termination messages.
    async fn look(&self) -> Result<PodRuntime, davit_oci::runtime::Error> {
        let mut runtime = observe(&*self.ctx.runtime, &self.uid).await?;
        let log_dir = self
            .ctx
            .paths
            .pod_log_dir(self.pod.ns(), self.pod.pod_name(), &self.uid);
        for record in runtime
            .containers
            .iter_mut()
            .filter(|c| c.state == State::Exited)
        {
            let message = if let Some(known) = self.messages.get(&record.id) {
                known.clone()
            } else {
                let log = LogFile::new(&self.ctx.paths, &log_dir.join(&record.log_path));
                let dir = self.ctx.paths.container(&self.uid, &record.name);
                termination::message(record, &dir, log).await
            };
            if !message.is_empty() {
                record.message = message;
            }
        }
        Ok(runtime)
    }

    fn reach(&self, runtime: &PodRuntime) -> PodEndpoint {
        let sandbox = runtime.sandboxes.first();
        PodEndpoint {
            sandbox: sandbox.map(|s| s.id.clone()).unwrap_or_default(),
            ips: sandbox.map(|s| s.ips.clone()).unwrap_or_default(),
        }
    }

    /// Reports the status as it is now.
    /// The pod with the newest status of our own, which the API may not have yet.
    fn known(&self) -> Arc<Pod> {
        let Some(mut status) = self.ctx.status.get(&self.uid) else {
            return self.pod.clone();
        };
        let mut pod = (*self.pod).clone();
        let foreign = pod.status.take().unwrap_or_default().conditions;
        merge_foreign(&mut status, foreign.unwrap_or_default());
        pod.status = Some(status);
        Arc::new(pod)
    }

    fn publish(&self, runtime: &PodRuntime, ended: bool) -> PodStatus {
        let devices = self
            .pod
            .pod_spec()
            .containers
            .iter()
            .map(|c| {
                (
                    c.name.clone(),
                    self.ctx
                        .devices
                        .allocated_resources_status(&self.pod, &c.name),
                )
            })
            .collect();
        let status = status::generate(&status::Input {
            pod: &self.known(),
            runtime,
            waiting: &self.waiting,
            ready: &*self.ctx.probes,
            devices: &devices,
            sizes: &self.sizing.differing(),
            level: self.sizing.level(),
            resize: &self.sizing.conditions(),
            verdict: self.verdict.as_ref(),
            held: self.held.as_ref(),
            ending: self.stage == Stage::End,
            ended,
            recursive_read_only: self.ctx.recursive_mounts,
            runtime_name: &self.ctx.runtime_name,
            host_ips: &self.ctx.addresses.texts(),
            accepted: self.accepted,
            now: Timestamp::now(),
        });
        self.ctx.status.set(&self.pod, status.clone());
        status
    }
}

/// Conditions that others own are taken from the API's version.
fn merge_foreign(status: &mut PodStatus, api: Vec<k8s_openapi::api::core::v1::PodCondition>) {
    const OURS: &[&str] = &[
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        ALL_RESTARTING,
        PENDING,
        IN_PROGRESS,
    ];
    let list = status.conditions.get_or_insert_default();
    for condition in api {
        if OURS.contains(&condition.type_.as_str()) {
            continue;
        }
        match list.iter_mut().find(|c| c.type_ == condition.type_) {
            Some(old) => *old = condition,
            None => list.push(condition),
        }
    }
}
