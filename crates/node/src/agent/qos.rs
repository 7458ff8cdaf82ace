//! Keeps the cgroups of all pods and of the classes of service what they should be.

use crate::context::{Context, node_reference};
use davit_client::EventRecorder;
use davit_containermanager::ActivePods;
use davit_machine::{PodCgroups, ReservedError};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often the weights are set although no pod came: others may have written to the cgroups.
const PERIOD: Duration = Duration::from_secs(60);

/// Holds the cgroups of the system and of the agent to what is kept for them, and says so on the node.
///
/// # Errors
/// One of them is not there, or cannot be limited.
pub(super) fn enforce_reserved(
    groups: &PodCgroups,
    node: &str,
    recorder: &EventRecorder,
) -> Result<(), ReservedError> {
    for (keeper, cgroup) in groups.enforce_reserved()? {
        let text = format!(
            "Updated limits on {} cgroup {cgroup}",
            keeper.to_string().to_lowercase()
        );
        recorder.normal(&node_reference(node), "NodeAllocatableEnforced", text);
    }
    Ok(())
}

/// Looks every minute until `cancel`, and says once on the node how limiting all pods went.
pub(super) async fn run(ctx: Arc<Context>, cancel: CancellationToken) {
    let Some(groups) = ctx.cgroups.clone() else {
        return cancel.cancelled().await;
    };
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut said = None;
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let set = groups.set_up(ctx.machine.milli_cpus(), ctx.machine.memory);
        if groups.enforces() && said != Some(set.is_ok()) {
            said = Some(set.is_ok());
            let node = ctx.node_reference();
            match &set {
                Ok(()) => {
                    let text = "Updated Node Allocatable limit across pods";
                    ctx.recorder.normal(&node, "NodeAllocatableEnforced", text);
                }
                Err(error) => {
                    let text = format!("Failed to update Node Allocatable Limits: {error}");
                    let reason = "FailedNodeAllocatableEnforcement";
                    ctx.recorder.warning(&node, reason, text);
                }
            }
        }
        let pods = ctx.pods.active_pods();
        if let Err(error) = set.and_then(|()| groups.weigh(pods.iter().map(|pod| &**pod))) {
            tracing::warn!(%error, "cannot set the weights of all pods");
        }
    }
}
