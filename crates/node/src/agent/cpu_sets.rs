//! Keeps the CPU sets of running containers what they should be: the shared pool shrinks and grows
//! as containers with exclusive CPUs come and go.

use crate::context::Context;
use crate::runtime_state::{State, keys};
use davit_proto::cri::v1 as cri;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Changes that come together are applied together.
const SETTLE: Duration = Duration::from_millis(10);
/// How long the runtime may take for one container.
const DEADLINE: Duration = Duration::from_secs(10);

/// Looks at all running containers after each change of who holds what, and from time to time.
pub(super) async fn run(ctx: Arc<Context>, cancel: CancellationToken) {
    if !ctx.devices.manages_cpus() {
        return cancel.cancelled().await;
    }
    let mut changes = ctx.devices.subscribe();
    let mut ticks = tokio::time::interval(ctx.devices.reconcile_period());
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut applied: HashMap<String, String> = HashMap::new();
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = ticks.tick() => {}
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                tokio::time::sleep(SETTLE).await;
            }
        }
        changes.borrow_and_update();
        tokio::select! {
            () = cancel.cancelled() => return,
            () = reconcile(&ctx, &mut applied) => {}
        }
    }
}

async fn reconcile(ctx: &Context, applied: &mut HashMap<String, String>) {
    let containers = match ctx.runtime.list_containers(None).await {
        Ok(containers) => containers,
        Err(error) => {
            tracing::warn!(%error, "cannot list containers to set their cpus");
            return;
        }
    };
    let running: Vec<cri::Container> = containers
        .into_iter()
        .filter(|c| State::from_cri(c.state) == State::Running)
        .collect();
    applied.retain(|id, _| running.iter().any(|c| c.id == *id));
    for container in running {
        let labels = &container.labels;
        let (Some(uid), Some(name)) = (labels.get(keys::POD_UID), labels.get(keys::CONTAINER_NAME))
        else {
            continue;
        };
        let cpus = ctx.devices.compute_options(uid, name).cpus.to_string();
        if cpus.is_empty() || applied.get(&container.id) == Some(&cpus) {
            continue;
        }
        let update = cri::LinuxContainerResources {
            cpuset_cpus: cpus.clone(),
            ..cri::LinuxContainerResources::default()
        };
        let update = ctx
            .runtime
            .update_container_resources(&container.id, update);
        match tokio::time::timeout(DEADLINE, update).await {
            Ok(Ok(())) => {
                applied.insert(container.id, cpus);
            }
            // It is tried again at the next tick.
            Ok(Err(error)) => {
                tracing::warn!(container = %container.id, %cpus, %error, "cannot set the container's cpus");
            }
            Err(_) => {
                tracing::warn!(container = %container.id, %cpus, "the runtime does not set the container's cpus");
            }
        }
    }
}
