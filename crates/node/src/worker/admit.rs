//! Admission: may this pod run here? What runs already is not asked again.

use super::{Next, Stage, Worker};
use crate::admission::{Refusal, check_node};
use crate::metrics::Reason;
use crate::runtime_state::PodRuntime;
use crate::status::NodeDecision;
use crate::{eviction, shutdown};
use davit_containermanager::Rejection;
use davit_containermanager::compute::REFUSAL_ANNOTATION;
use davit_pods::pod::PodExt;
use davit_pods::pod::Waiting;
use davit_pods::resources::{Amounts, amount};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::Notify;

/// How long admission waits for plugins at most; the container manager's own limits are shorter.
const DEADLINE: Duration = Duration::from_secs(10 * 60);
/// How often to look whether a pod that is ending has given back what it holds.
const RELEASE_POLL: Duration = Duration::from_millis(50);

impl Worker {
    pub(super) async fn admit(&mut self) -> Next {
        let runtime = match self.observe().await {
            Ok(runtime) => runtime,
            Err(error) => {
                return self.unobserved(&error);
            }
        };
        self.retries.over();
        if self.input.must_end() || self.pod.is_terminal() {
            self.stage = Stage::End;
            return Next::Again;
        }
        // It was admitted before; a running container is re-adopted, never re-decided.
        if !runtime.containers.is_empty() {
            self.recall_size();
            self.ctx.pods.set(&self.pod);
            self.ctx.pods.adopt(&self.pod);
            self.started_once = true;
            self.stage = Stage::Run;
            return Next::Again;
        }
        match self.check(&runtime).await {
            Ok(true) => {
                self.held = None;
                self.sizing.admitted(&self.pod);
                self.stage = Stage::Run;
            }
            // Deletion came in between.
            Ok(false) => self.stage = Stage::End,
            Err(refusal) => self.refuse(&runtime, refusal),
        }
        Next::Again
    }

    async fn check(&mut self, runtime: &PodRuntime) -> Result<bool, Refusal> {
        let pressure = self.ctx.pressure.borrow().clone();
        eviction::admit(&self.pod, &pressure)?;
        if let Some(node) = self.ctx.node_object() {
            check_node(&self.pod, &node, &self.ctx.options.sysctls)?;
        }
        if !self.admit_devices(runtime).await? {
            return Ok(false);
        }
        let available = self.available();
        if self.ctx.options.shutdown.is_on() {
            shutdown::admit(&self.ctx.options.going_down)?;
        }
        let managed = self.ctx.devices.node_resources();
        // Devices were given out by the container manager, which has the last word on them.
        let skip = |name: &str| managed.contains_key(name);
        self.reserve(&available, &skip).await
    }

    /// Reserves what the pod asks for, its host ports as well. Waits while pods that are ending hold it: the scheduler does not see that their
    /// containers have not ended yet. False when the pod has to end first.
    async fn reserve(
        &self,
        available: &Amounts,
        skip: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<bool, Refusal> {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            let Err(refused) = self.ctx.pods.reserve(&self.pod, available, skip) else {
                return Ok(true);
            };
            if !refused.waiting_helps() || tokio::time::Instant::now() > deadline {
                return Err(Refusal {
                    reason: refused.reason(),
                    message: refused.to_string(),
                    misfit: None,
                });
            }
            if self.input.must_end() {
                return Ok(false);
            }
            tokio::time::sleep(RELEASE_POLL).await;
        }
    }

    /// Gives the pod its devices, reporting what it waits for. False when the pod has to end first.
    async fn admit_devices(&mut self, runtime: &PodRuntime) -> Result<bool, Refusal> {
        let ctx = self.ctx.clone();
        let (pod, input) = (self.pod.clone(), self.input.clone());
        let waiting: Mutex<Option<String>> = Mutex::new(None);
        let changed = Notify::new();
        let report = |text: &str| {
            *waiting.lock() = Some(text.to_owned());
            changed.notify_one();
        };
        let deadline = tokio::time::Instant::now() + DEADLINE;
        let admission = ctx.devices.admit(&pod, deadline, &report);
        tokio::pin!(admission);
        let ending = input.ending();
        tokio::pin!(ending);
        loop {
            tokio::select! {
                result = &mut admission => {
                    return match result {
                        Ok(()) => Ok(true),
                        Err(Rejection { reason, message, misfit, .. }) => Err(Refusal { reason, message, misfit }),
                    };
                }
                () = changed.notified() => {
                    let text = waiting.lock().clone().unwrap_or_default();
                    self.held = Some(Waiting { reason: "WaitingForDevicePlugin".to_owned(), message: text.clone() });
                    ctx.recorder.warning(&pod.reference(), "WaitingForDevicePlugin", text);
                    self.publish(runtime, false);
                }
                () = &mut ending => return Ok(false),
            }
        }
    }

    pub(super) fn available(&self) -> Amounts {
        let mut all = self.ctx.machine.allocatable(self.ctx.max_pods());
        // Extended resources that were set by hand stand in the node's status only.
        if let Some(status) = self.ctx.node_object().and_then(|n| n.status.clone()) {
            for (name, quantity) in status.allocatable.into_iter().flatten() {
                all.entry(name).or_insert(quantity);
            }
        }
        all.iter()
            .map(|(name, quantity)| (name.clone(), amount(name, quantity)))
            .collect()
    }

    pub(super) fn refuse(&mut self, runtime: &PodRuntime, refusal: Refusal) {
        let Refusal {
            reason,
            message,
            misfit,
        } = refusal;
        tracing::info!(pod = %self.pod.format(), %reason, %message, "pod refused");
        let (recorder, reference) = (&self.ctx.recorder, self.pod.reference());
        match misfit.and_then(|m| serde_json::to_string(&m).ok()) {
            Some(record) => {
                let annotation = (REFUSAL_ANNOTATION, record);
                recorder.warning_with(&reference, &reason, &message, annotation);
            }
            None => recorder.warning(&reference, &reason, &message),
        }
        let extended = reason
            .strip_prefix("OutOf")
            .is_some_and(|r| r.contains('/'));
        let label = if extended {
            "OutOfExtendedResources".to_owned()
        } else {
            reason.clone()
        };
        self.ctx
            .metrics
            .rejections
            .get_or_create(&Reason { reason: label })
            .inc();
        self.held = None;
        self.verdict = Some(NodeDecision {
            reason,
            message: format!("Pod was rejected: {message}"),
            disruption: false,
        });
        self.publish(runtime, true);
        self.stage = Stage::End;
    }
}
