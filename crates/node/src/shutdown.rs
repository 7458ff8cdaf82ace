//! Graceful node shutdown: when the machine goes down its pods are told in time, the critical ones last.
//!
//! Specified by KEP-2000 and the page "Node Shutdowns" of Kubernetes' documentation.

use crate::admission::Refusal;
use crate::agent::Inputs;
use crate::containermanager::ActivePods;
use crate::context::Context;
use crate::eviction::rank::is_critical;
use crate::pod::PodExt;
use crate::status::Verdict;
use crate::worker::Forced;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const POLL: Duration = Duration::from_millis(100);
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

/// How long pods have when the machine goes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shutdown {
    /// All of them together; zero leaves them running.
    pub period: Duration,
    /// Of it, what is kept for critical pods.
    pub critical: Duration,
}

impl Shutdown {
    /// Whether pods are ended at all.
    #[must_use]
    pub fn is_on(self) -> bool {
        !self.period.is_zero()
    }
}

/// Waits for the machine to go down, ends the pods, then the agent.
pub(crate) async fn run(ctx: Arc<Context>, inputs: Inputs, cancel: CancellationToken) {
    let going_down = ctx.options.going_down.clone();
    tokio::select! {
        () = cancel.cancelled() => return,
        () = going_down.cancelled() => {}
    }
    let Shutdown { period, critical } = ctx.options.shutdown;
    tracing::warn!(
        ?period,
        ?critical,
        "the node shuts down, its pods are ended"
    );
    for (last, limit) in [(false, period.saturating_sub(critical)), (true, critical)] {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = end_pods(&ctx, &inputs, last, limit) => {}
        }
    }
    // The last statuses have to reach the API server.
    let _ = tokio::time::timeout(Duration::from_secs(2), ctx.status.flushed()).await;
    cancel.cancel();
}

/// Ends the pods of one group and waits for them, not longer than the group has.
async fn end_pods(ctx: &Context, inputs: &Inputs, critical: bool, limit: Duration) {
    let deadline = Instant::now() + limit;
    for pod in ctx
        .pods
        .active_pods()
        .iter()
        .filter(|p| is_critical(p) == critical)
    {
        let Some(input) = inputs.lock().get(pod.uid()).cloned() else {
            continue;
        };
        let own = pod.pod_spec().termination_grace_period_seconds;
        let own = Duration::from_secs(u64::try_from(own.unwrap_or(30)).unwrap_or(0));
        input.force(Forced {
            verdict: Verdict {
                reason: "Terminated".to_owned(),
                message: MESSAGE.to_owned(),
                disruption: true,
            },
            grace: own.min(limit),
        });
    }
    let left = || {
        let pods = ctx.pods.active_pods();
        pods.iter().filter(|p| is_critical(p) == critical).count()
    };
    while left() > 0 {
        if Instant::now() >= deadline {
            tracing::warn!(
                pods = left(),
                critical,
                "pods did not end in the time the node has left"
            );
            return;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// No pod starts on a node that goes down.
///
/// # Errors
/// `NodeShutdown`
pub(crate) fn admit(going_down: &CancellationToken) -> Result<(), Refusal> {
    match going_down.is_cancelled() {
        false => Ok(()),
        true => Err(Refusal {
            reason: "NodeShutdown".to_owned(),
            message: "Pod was rejected as the node is shutting down.".to_owned(),
            misfit: None,
        }),
    }
}
