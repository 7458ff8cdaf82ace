//! From pod sources to pod workers: one worker a UID, told of every change, started and ended here only.

use super::{orphans, pod_informer, static_pods::StaticPods};
use crate::context::Context;
use crate::worker::Worker;
use crate::worker_input::{WorkerInput, WorkerInputs};
use davit_client::{Change, Informer};
use davit_pods::pod::{CONFIG_MIRROR, PodExt};
use davit_task::guard_async;
use k8s_openapi::api::core::v1::Pod;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How often statuses are compared with the API's, and the runtime and disk with the pods.
const RECONCILE: Duration = Duration::from_secs(30);

/// Starts and informs workers.
pub(super) struct Dispatcher {
    ctx: Arc<Context>,
    inputs: WorkerInputs,
    workers: JoinSet<()>,
    /// Pod UIDs by task, to find the pod of a worker that panicked.
    uids: HashMap<tokio::task::Id, String>,
    cancel: CancellationToken,
    statics: StaticPods,
    clean_up: JoinSet<()>,
}

impl Dispatcher {
    pub(super) fn new(ctx: Arc<Context>, cancel: CancellationToken) -> (WorkerInputs, Self) {
        let inputs = WorkerInputs::default();
        let statics = StaticPods::new(ctx.clone());
        let this = Self {
            ctx,
            inputs: inputs.clone(),
            workers: JoinSet::new(),
            uids: HashMap::new(),
            cancel,
            statics,
            clean_up: JoinSet::new(),
        };
        (inputs, this)
    }

    pub(super) async fn run(mut self) {
        let mut tasks = JoinSet::new();
        let informer = pod_informer(&self.ctx, &mut tasks, &self.cancel);
        let mut changes = informer.subscribe();
        let mut reconcile = tokio::time::interval(RECONCILE);
        let mut statics = tokio::time::interval(self.ctx.options.manifest_check);
        let cancel = self.cancel.clone();
        let mut ready = false;
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                change = changes.next() => match change {
                    Some(Change::Applied { new, .. }) => self.applied(&new),
                    Some(Change::Deleted(pod)) => self.deleted(&pod),
                    Some(Change::Synced) if !ready => {
                        ready = true;
                        self.read_static().await;
                        self.ctx.devices.sources_ready();
                        self.reconcile(&informer).await;
                    }
                    Some(Change::Synced) => {}
                    None => break,
                },
                _ = statics.tick() => {
                    self.read_static().await;
                    if ready {
                        self.statics.sync_mirrors(&informer).await;
                    }
                }
                _ = reconcile.tick(), if ready => self.reconcile(&informer).await,
                Some(ended) = self.workers.join_next_with_id() => self.worker_ended(&ended),
                Some(_) = self.clean_up.join_next() => {}
            }
        }
        while self.workers.join_next().await.is_some() {}
        tasks.shutdown().await;
    }

    fn applied(&mut self, pod: &Arc<Pod>) {
        if pod.annotation(CONFIG_MIRROR).is_some() {
            return;
        }
        self.tell(pod);
    }

    fn tell(&mut self, pod: &Arc<Pod>) {
        let uid = pod.uid().to_owned();
        if uid.is_empty() {
            return;
        }
        let mut inputs = self.inputs.lock();
        if let Some(input) = inputs.get(&uid) {
            if pod.is_deleting() {
                self.ctx.pods.set_ending(&uid);
            }
            input.update(pod.clone());
            return;
        }
        let input = Arc::new(WorkerInput::new(pod.clone()));
        inputs.insert(uid.clone(), input.clone());
        drop(inputs);
        self.ctx.pods.set(pod);
        let worker = Worker::new(self.ctx.clone(), input);
        let cancel = self.cancel.clone();
        // One that panics is started anew at the next comparison.
        let key = uid.clone();
        let work = async move {
            let work = worker.run(cancel);
            // what it said has been logged
            let _ = guard_async("node", "pod-worker", &key, work).await;
        };
        let task = self.workers.spawn(work);
        self.uids.insert(task.id(), uid);
    }

    fn deleted(&mut self, pod: &Arc<Pod>) {
        let input = self.inputs.lock().get(pod.uid()).cloned();
        if let Some(input) = input {
            self.ctx.pods.set_ending(pod.uid());
            input.update(pod.clone());
            input.set_gone();
        }
    }

    fn worker_ended(&mut self, ended: &Result<(tokio::task::Id, ()), tokio::task::JoinError>) {
        let id = match ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        let Some(uid) = self.uids.remove(&id) else {
            return;
        };
        self.inputs.lock().remove(&uid);
    }

    async fn read_static(&mut self) {
        for pod in self.statics.read().await {
            self.deleted(&pod);
        }
        let inputs = self.inputs.clone();
        for pod in self.statics.due(|uid| inputs.lock().contains_key(uid)) {
            self.tell(&pod);
        }
    }

    /// Compares what should be with what is.
    async fn reconcile(&mut self, informer: &Informer<Pod>) {
        for pod in informer.list() {
            if pod.is_mirror() {
                continue;
            }
            self.ctx.status.observed(&pod);
            if !self.inputs.lock().contains_key(pod.uid()) {
                self.tell(&pod);
            }
        }
        let known: Vec<String> = self.inputs.lock().keys().cloned().collect();
        if self.clean_up.is_empty() {
            match orphans::find(&self.ctx, &known).await {
                Ok(found) => {
                    for uid in found {
                        let ctx = self.ctx.clone();
                        self.clean_up
                            .spawn(async move { orphans::remove(&ctx, &uid).await });
                    }
                }
                Err(error) => tracing::warn!(%error, "cannot look for containers without pod"),
            }
        }
    }
}
