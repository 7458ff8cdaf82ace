//! A living pod: observe, plan, do, report.

use super::devices::Outcome;
use super::{Next, RESYNC, Stage, Worker};
use crate::admission::Refusal;
use crate::csi_drivers;
use crate::plan::{self, Kill, KillReason, Plan, Sandbox, Start};
use crate::runtime_state::PodRuntime;
use crate::status::NodeDecision;
use davit_pods::pod::PodExt;
use davit_pods::pod::Waiting;
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use std::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;

/// How long one attempt waits for the node's own object.
const NODE: Duration = Duration::from_secs(10);
/// Volumes are brought up to date when they were so this long ago.
const OLD: Duration = RESYNC.saturating_sub(Duration::from_secs(5));
/// The same where a container is about to start: what it fails without may have come since, as for the kubelet.
const OLD_AT_STARTS: Duration = Duration::from_secs(1);

impl Worker {
    pub(super) async fn sync(&mut self) -> Next {
        let runtime = match self.observe().await {
            Ok(runtime) => runtime,
            Err(error) => {
                return self.unobserved(&error);
            }
        };
        self.probes.sync(&self.pod, &runtime);
        if let Some(verdict) = self.past_deadline() {
            self.ctx
                .recorder
                .normal(&self.pod.reference(), "DeadlineExceeded", &verdict.message);
            self.verdict = Some(verdict);
            self.stage = Stage::End;
            return Next::Again;
        }
        match self.heed_devices(&runtime).await {
            Outcome::GoOn => {}
            Outcome::Killed => return Next::Again,
            Outcome::Over(verdict) => {
                self.verdict = Some(verdict);
                self.stage = Stage::End;
                return Next::Again;
            }
        }
        if let Some(next) = self.restart_all(&runtime).await {
            return next;
        }
        if self.resize(&runtime).await {
            return Next::Again;
        }
        let plan = plan::plan(&plan::Input {
            pod: &self.counted(),
            runtime: &runtime,
            probes: &*self.ctx.probes,
            backoff: &self.backoff,
            replaced: &self.replaced,
            now: Timestamp::now(),
        });
        self.note_back_offs(&plan);
        // As the kubelet, which says nothing of a pod between the end of an instance and the start of its replacement.
        if !self.is_replacing(&runtime, &plan) {
            self.publish(&runtime, false);
        }
        if plan.kill_pod && plan.sandbox == Sandbox::None {
            self.stage = Stage::End;
            return Next::Again;
        }
        self.apply(&runtime, plan).await
    }

    async fn apply(&mut self, runtime: &PodRuntime, plan: Plan) -> Next {
        if plan.kill_pod && !runtime.is_quiet() {
            // A sandbox that was right until now goes because the pod is done.
            if !matches!(plan.sandbox, Sandbox::Keep(_)) {
                let message = "Pod sandbox changed, it will be killed and re-created.";
                self.ctx
                    .recorder
                    .normal(&self.pod.reference(), "SandboxChanged", message);
            }
            self.kill_everything(runtime, None).await;
            return Next::Again;
        }
        if !plan.kill.is_empty() {
            for kill in plan.kill.iter().filter(|k| is_to_be_replaced(&plan, k)) {
                self.will_replace(&kill.name, &kill.id);
            }
            join_all(plan.kill.iter().map(|kill| self.kill_one(runtime, kill))).await;
            return Next::Again;
        }
        let due: Vec<_> = plan
            .start
            .iter()
            .filter(|s| s.wait.is_none())
            .cloned()
            .collect();
        let limit = match () {
            () if self.shows_another() => Duration::ZERO,
            () if due.is_empty() => OLD,
            () => OLD_AT_STARTS,
        };
        if (!due.is_empty() || self.volumes_older(limit))
            && let Err(next) = self.prepare_volumes(runtime, limit).await
        {
            return next;
        }
        let creates = matches!(plan.sandbox, Sandbox::Create { .. });
        if (creates || !due.is_empty())
            && let Err(next) = self.prepare_claims().await
        {
            return next;
        }
        if let Sandbox::Create { attempt } = plan.sandbox {
            return match self.start_sandbox(attempt).await {
                Ok(()) => {
                    self.retries.over();
                    Next::Again
                }
                Err(()) => self.retry_later(),
            };
        }
        let mut started = false;
        let mut failed = false;
        for start in due {
            if self.input.must_end() {
                return Next::Again;
            }
            match self.start_container(runtime, &start).await {
                Ok(()) => started = true,
                Err(waiting) => {
                    failed = true;
                    if let Some(waiting) = waiting {
                        self.waiting.insert(start.name.clone(), waiting);
                    }
                    self.publish(runtime, false);
                }
            }
        }
        if started {
            if !failed {
                self.retries.over();
            }
            return Next::Again;
        }
        if failed {
            return self.retry_later();
        }
        self.retries.over();
        Next::Wait(self.next_look(&plan))
    }

    /// Whether an instance that was ended to be replaced (another image, a resize) is about to be.
    fn is_replacing(&self, runtime: &PodRuntime, plan: &Plan) -> bool {
        let latest = |start: &Start| runtime.latest(&start.name);
        plan.start.iter().any(|start| {
            start.wait.is_none()
                && latest(start).is_some_and(|latest| self.replaced.contains(&latest.id))
        })
    }

    /// Containers that wait for their back-off are shown so; others that have no new start due are not.
    fn note_back_offs(&mut self, plan: &Plan) {
        let names: Vec<String> = plan.start.iter().map(|s| s.name.clone()).collect();
        self.waiting.retain(|name, _| names.contains(name));
        for start in &plan.start {
            let Some(wait) = start.wait else { continue };
            let message = format!(
                "back-off {} restarting failed container={} pod={}",
                go_duration(wait.of),
                start.name,
                self.pod.format()
            );
            let waiting = Waiting {
                reason: "CrashLoopBackOff".to_owned(),
                message,
            };
            if self
                .waiting
                .insert(start.name.clone(), waiting.clone())
                .as_ref()
                != Some(&waiting)
            {
                let reference = self.pod.container_reference(start.role, &start.name);
                let text = format!(
                    "Back-off restarting failed container {} in pod {}",
                    start.name,
                    self.pod.format()
                );
                self.ctx.recorder.warning(&reference, "BackOff", text);
            }
        }
    }

    fn next_look(&self, plan: &Plan) -> Option<Duration> {
        let back_off = plan.next_wait().and_then(|w| Duration::try_from(w).ok());
        let deadline = self
            .deadline()
            .map(|at| Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default());
        [back_off, deadline, self.sizing.retry()]
            .into_iter()
            .flatten()
            .min()
            .map(|d| d + Duration::from_millis(10))
    }

    fn deadline(&self) -> Option<Timestamp> {
        let seconds = self.pod.pod_spec().active_deadline_seconds?;
        let start = self
            .pod
            .pod_status()
            .start_time
            .as_ref()
            .map_or(self.accepted, |t| t.0);
        start.checked_add(SignedDuration::from_secs(seconds)).ok()
    }

    fn past_deadline(&self) -> Option<NodeDecision> {
        (self.deadline()? <= Timestamp::now()).then(|| NodeDecision {
            reason: "DeadlineExceeded".to_owned(),
            message: "Pod was active on the node longer than the specified deadline".to_owned(),
            disruption: false,
        })
    }

    /// The volumes were brought up to date this long ago, or never were.
    fn volumes_older(&self, than: Duration) -> bool {
        let of = self.volumes_of.as_ref();
        of.is_none_or(|(_, at)| at.elapsed() >= than)
    }

    /// The pod has changed since its volumes were brought up to date, in what they may show of it. As for the kubelet, any such
    /// change is a reason to look at the objects that they show, too:
    /// <https://kubernetes.io/docs/tasks/configure-pod-container/configure-pod-configmap/#mounted-configmaps-are-updated-automatically>
    fn shows_another(&self) -> bool {
        self.volumes_of.as_ref().is_some_and(|(of, _)| {
            let (was, is) = (&of.metadata, &self.pod.metadata);
            was.labels != is.labels || was.annotations != is.annotations || of.spec != self.pod.spec
        })
    }

    /// Makes the volumes, or brings those up to date that were so `limit` ago or longer.
    async fn prepare_volumes(&mut self, runtime: &PodRuntime, limit: Duration) -> Result<(), Next> {
        let fresh = !self.volumes_older(limit);
        // An ephemeral container may use a volume that no other does.
        if fresh && davit_podvolumes::are_all(&self.pod, &self.volumes) {
            return Ok(());
        }
        let (ctx, pod, input) = (self.ctx.clone(), self.pod.clone(), self.input.clone());
        // A task of its own, which ends with this wait: drivers and the API server lie deep below it.
        let (of, wanted, ips) = (ctx.clone(), pod.clone(), runtime.ips().to_vec());
        let setup = tokio::spawn(async move {
            // In the first moments of an agent its node's labels, by which volumes say where they are, are not known. Static
            // pods need no API server.
            if !wanted.is_static()
                && let Err(error) = of.node.wait_synced(NODE).await
            {
                tracing::warn!(pod = %wanted.format(), %error, "volumes are not told of the node's labels");
            }
            let facts = of.facts(&wanted, &ips);
            of.volumes.setup(&wanted, &facts).await
        });
        let made = tokio::select! {
            made = AbortOnDropHandle::new(setup) => made,
            // A driver that hangs does not hold up the pod's end.
            () = input.ending() => return Err(Next::Again),
        };
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                tracing::error!(pod = %pod.format(), %error, "the pod's volumes were not made");
                return Err(self.retry_later());
            }
        };
        let errors = match made {
            Ok(mounted) => {
                self.volumes = mounted;
                self.volumes_of = Some((pod, Instant::now()));
                return Ok(());
            }
            Err(errors) => errors,
        };
        let full = errors
            .iter()
            .find_map(|e| Some((e.full_driver()?.to_owned(), e.to_string())));
        if let Some((driver, why)) = full {
            return Err(self.reject_for_volumes(runtime, &driver, &why).await);
        }
        let reference = pod.reference();
        let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let news = self.retries.is_news(&all.join("; "));
        for error in errors {
            if news {
                tracing::warn!(pod = %pod.format(), %error, "volumes are not ready");
            }
            ctx.recorder
                .warning(&reference, error.reason(), error.to_string());
        }
        if self.volumes_of.is_some() {
            // What was mounted is there as it was; the next look may bring it up to date.
            self.volumes_of = Some((pod, Instant::now()));
            return Ok(());
        }
        Err(self.retry_later())
    }

    /// Ends a pod whose volumes the node does not take, so that another is made elsewhere, and has the driver say how many
    /// it takes.
    async fn reject_for_volumes(&mut self, runtime: &PodRuntime, driver: &str, why: &str) -> Next {
        csi_drivers::refresh(&self.ctx, driver).await;
        let refusal = Refusal {
            reason: "VolumeAttachmentLimitExceeded".to_owned(),
            message: format!("Node has reached its volume attachment limit, rejecting pod. {why}"),
            misfit: None,
        };
        self.refuse(runtime, refusal);
        Next::Again
    }

    /// Has the drivers of the pod's resource claims prepare them. A driver that hangs does not hold up the pod's end.
    async fn prepare_claims(&mut self) -> Result<(), Next> {
        let (ctx, pod, input) = (self.ctx.clone(), self.pod.clone(), self.input.clone());
        let prepared = tokio::select! {
            prepared = ctx.devices.prepare_claims(&pod) => prepared,
            () = input.ending() => return Err(Next::Again),
        };
        let Err(error) = prepared else {
            return Ok(());
        };
        if self.retries.is_news(&error.to_string()) {
            tracing::warn!(pod = %pod.format(), %error, "resource claims are not ready");
        }
        ctx.recorder.warning(
            &pod.reference(),
            "FailedPrepareDynamicResources",
            format!("Failed to prepare dynamic resources: prepare dynamic resources: {error}"),
        );
        Err(self.retry_later())
    }

    pub(super) async fn kill_one(&self, runtime: &PodRuntime, kill: &Kill) {
        let Some(record) = runtime.by_id(&kill.id) else {
            return;
        };
        let container = self.pod.container(&kill.name);
        let probe = container.as_ref().and_then(|(_, c)| match kill.reason {
            KillReason::Liveness => c.liveness_probe.as_ref(),
            KillReason::Startup => c.startup_probe.as_ref(),
            KillReason::Changed | KillReason::Resized | KillReason::Unknown => None,
        });
        let own = probe.and_then(|p| p.termination_grace_period_seconds);
        let grace = own
            .or(self.pod.pod_spec().termination_grace_period_seconds)
            .unwrap_or(30);
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        self.kill_container(runtime, record, grace, Some(&kill.message))
            .await;
    }
}

/// Whether an instance ends only for another to begin. What a probe ended begins again as its restart policy says of failures,
/// however well it ends.
fn is_to_be_replaced(plan: &Plan, kill: &Kill) -> bool {
    match kill.reason {
        KillReason::Changed => true,
        KillReason::Liveness | KillReason::Startup => {
            plan.start.iter().any(|s| s.name == kill.name)
        }
        KillReason::Resized | KillReason::Unknown => false,
    }
}

/// Writes a duration as Go does, for whole seconds: `10s`, `1m20s`, `5m0s`.
pub(super) fn go_duration(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    if seconds < 60 {
        format!("{seconds}s")
    } else {
        format!("{}m{}s", seconds / 60, seconds % 60)
    }
}
