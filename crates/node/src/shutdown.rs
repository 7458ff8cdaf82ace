//! Graceful node shutdown: when the machine goes down its pods are told in time, the critical ones last.
//!
//! Specified by KEP-2000 and the page "Node Shutdowns" of Kubernetes' documentation.

use crate::admission::Refusal;
use crate::context::Context;
use crate::eviction::rank::{CRITICAL, is_critical};
use crate::status::NodeDecision;
use crate::worker_input::{Forced, WorkerInputs};
use davit_containermanager::ActivePods;
use davit_pods::pod::PodExt;
use k8s_openapi::api::core::v1::Pod;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const POLL: Duration = Duration::from_millis(100);
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

/// Pods of this priority on, up to that of the next group, and the time they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// The least priority.
    pub priority: i32,
    /// What its pods have together.
    pub period: Duration,
}

/// How long pods have when the machine goes down: group after group, those of the least priority first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shutdown {
    groups: Vec<Group>,
}

impl Shutdown {
    /// `period` for all pods together, of which `critical` is kept for critical pods.
    #[must_use]
    pub fn new(period: Duration, critical: Duration) -> Self {
        let plain = Group {
            priority: 0,
            period: period.saturating_sub(critical),
        };
        let critical = Group {
            priority: CRITICAL,
            period: critical,
        };
        Self {
            groups: vec![plain, critical],
        }
    }

    /// Groups of one's own (KEP-2712); `None` when two have the same priority.
    #[must_use]
    pub fn by_priority(mut groups: Vec<Group>) -> Option<Self> {
        groups.sort_by_key(|g| g.priority);
        let distinct = groups.windows(2).all(|w| w[0].priority != w[1].priority);
        distinct.then_some(Self { groups })
    }

    /// The groups, the least priority first.
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// What of the time of all pods is kept for critical ones, where it is divided into these two.
    #[must_use]
    pub fn of_critical(&self) -> Option<Duration> {
        match &*self.groups {
            [] => Some(Duration::ZERO),
            [plain, critical] if plain.priority == 0 && critical.priority == CRITICAL => {
                Some(critical.period)
            }
            _ => None,
        }
    }

    /// The time of all groups.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.groups.iter().map(|g| g.period).sum()
    }

    /// Whether pods are ended at all.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.total().is_zero()
    }

    /// The place of a pod's group; pods below all groups belong to the first.
    fn group_of(&self, pod: &Pod) -> usize {
        let own = pod.pod_spec().priority.unwrap_or(0);
        // Static pods are part of the node.
        let priority = if is_critical(pod) {
            own.max(CRITICAL)
        } else {
            own
        };
        let above = self.groups.partition_point(|g| g.priority <= priority);
        above.saturating_sub(1)
    }
}

/// Waits for the machine to go down, ends the pods, then the agent.
pub(crate) async fn run(ctx: Arc<Context>, inputs: WorkerInputs, cancel: CancellationToken) {
    let going_down = ctx.options.going_down.clone();
    tokio::select! {
        () = cancel.cancelled() => return,
        () = going_down.cancelled() => {}
    }
    let shutdown = &ctx.options.shutdown;
    tracing::warn!(
        period = ?shutdown.total(),
        "the node shuts down, its pods are ended"
    );
    for place in 0..shutdown.groups.len() {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = end_pods(&ctx, &inputs, place) => {}
        }
    }
    // The last statuses have to reach the API server.
    let _ = tokio::time::timeout(Duration::from_secs(2), ctx.status.flushed()).await;
    cancel.cancel();
}

/// Ends the pods of one group and waits for them, not longer than the group has.
async fn end_pods(ctx: &Context, inputs: &WorkerInputs, place: usize) {
    let shutdown = &ctx.options.shutdown;
    let limit = shutdown.groups[place].period;
    let deadline = Instant::now() + limit;
    let group = || {
        let mut pods = ctx.pods.active_pods();
        pods.retain(|p| shutdown.group_of(p) == place);
        pods
    };
    for pod in group() {
        let Some(input) = inputs.lock().get(pod.uid()).cloned() else {
            continue;
        };
        let own = pod.pod_spec().termination_grace_period_seconds;
        let own = Duration::from_secs(u64::try_from(own.unwrap_or(30)).unwrap_or(0));
        input.force(Forced {
            verdict: NodeDecision {
                reason: "Terminated".to_owned(),
                message: MESSAGE.to_owned(),
                disruption: true,
            },
            grace: own.min(limit),
        });
    }
    loop {
        let left = group().len();
        if left == 0 {
            return;
        }
        if Instant::now() >= deadline {
            tracing::warn!(
                pods = left,
                group = place,
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pods_belong_to_the_group_below_their_priority() {
        let group = |priority, seconds| Group {
            priority,
            period: Duration::from_secs(seconds),
        };
        let groups = vec![group(100_000, 10), group(0, 60), group(10_000, 180)];
        let shutdown = Shutdown::by_priority(groups).unwrap();
        let of = |priority: i32| {
            let pod = json!({"spec": {"priority": priority, "containers": []}});
            shutdown.group_of(&serde_json::from_value(pod).unwrap())
        };
        let places: Vec<usize> = [-5, 0, 9_999, 10_000, 100_000, CRITICAL].map(of).into();
        assert_eq!(places, [0, 0, 0, 1, 2, 2]);
        assert_eq!(shutdown.total().as_secs(), 250);
        assert!(Shutdown::by_priority(vec![group(1, 1), group(1, 2)]).is_none());
        assert!(!Shutdown::default().is_on());
    }
}
