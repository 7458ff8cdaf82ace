//! What happens without anybody telling: containers that end, devices whose health changes, logs that grow.

use crate::context::Context;
use crate::metrics::ContainerState;
use crate::runtime_state::{State, keys};
use crate::worker_input::WorkerInputs;
use davit_nodelogs::{LogFile, rotate_if_large};
use davit_oci::runtime::Error;
use davit_proto::cri::v1 as cri;
use futures::{StreamExt as _, stream};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const PERIOD: Duration = Duration::from_secs(1);

/// (pod UID, state) by container or sandbox ID.
type Seen = HashMap<String, (String, i32)>;

/// How long changes are gathered: containers of a pod often start and end together.
const GATHER: Duration = Duration::from_millis(5);

/// Lists the runtime's containers each second, and when it says that something changed; wakes the workers of pods where
/// it did.
pub(super) async fn run(ctx: Arc<Context>, inputs: WorkerInputs, cancel: CancellationToken) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut before = Seen::new();
    let mut last: Option<Instant> = None;
    let mut told = ctx.runtime.changes();
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = ticks.tick() => {}
            () = changed(&mut told) => tokio::time::sleep(GATHER).await,
        }
        // What changes from here on is in the list, or told again.
        if let Some(told) = &mut told {
            told.borrow_and_update();
        }
        let begun = Instant::now();
        if let Some(last) = last.replace(begun) {
            let interval = begun.duration_since(last).as_secs_f64();
            ctx.metrics.relist_interval.observe(interval);
        }
        let now = match list(&ctx).await {
            Ok(now) => now,
            Err(error) => {
                tracing::warn!(%error, "cannot list the runtime's containers");
                continue;
            }
        };
        ctx.metrics.relist.observe(begun.elapsed().as_secs_f64());
        let changed = changes(&before, &now);
        before = now;
        if !changed.is_empty() {
            wake(&inputs, &changed);
        }
    }
}

/// Waits until the runtime tells of a change; for ever when it never does.
async fn changed(told: &mut Option<tokio::sync::watch::Receiver<u64>>) {
    let ended = match told {
        Some(receiver) => receiver.changed().await.is_err(),
        None => std::future::pending().await,
    };
    if ended {
        *told = None;
    }
}

async fn list(ctx: &Context) -> Result<Seen, Error> {
    let (sandboxes, containers) = tokio::try_join!(
        ctx.runtime.list_pod_sandboxes(None),
        ctx.runtime.list_containers(None)
    )?;
    let mut out = Seen::new();
    let mut ready = 0;
    for sandbox in sandboxes {
        ready += i64::from(sandbox.state == cri::PodSandboxState::SandboxReady as i32);
        if let Some(uid) = sandbox.labels.get(keys::POD_UID) {
            out.insert(sandbox.id, (uid.clone(), sandbox.state));
        }
    }
    let mut counts = [0_i64; 4];
    for container in containers {
        let slot = match State::from_cri(container.state) {
            State::Created => 0,
            State::Running => 1,
            State::Exited => 2,
            State::Unknown => 3,
        };
        counts[slot] += 1;
        if let Some(uid) = container.labels.get(keys::POD_UID) {
            out.insert(container.id, (uid.clone(), container.state));
        }
    }
    ctx.metrics.running_pods.set(ready);
    for (name, count) in ["created", "running", "exited", "unknown"]
        .into_iter()
        .zip(counts)
    {
        let label = ContainerState {
            container_state: name.to_owned(),
        };
        ctx.metrics
            .running_containers
            .get_or_create(&label)
            .set(count);
    }
    Ok(out)
}

fn changes(before: &Seen, now: &Seen) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for (id, (uid, state)) in now {
        if before.get(id).is_none_or(|(_, old)| old != state) {
            out.insert(uid.clone());
        }
    }
    for (id, (uid, _)) in before {
        if !now.contains_key(id) {
            out.insert(uid.clone());
        }
    }
    out
}

fn wake(inputs: &WorkerInputs, uids: &BTreeSet<String>) {
    let inputs = inputs.lock();
    for uid in uids {
        if let Some(input) = inputs.get(uid) {
            input.kick();
        }
    }
}

/// Wakes the workers of pods that hold a device whose health changed.
pub(super) async fn watch_devices(
    ctx: Arc<Context>,
    inputs: WorkerInputs,
    cancel: CancellationToken,
) {
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            uids = ctx.devices.device_health() => wake(&inputs, &uids),
        }
    }
}

/// Rotates the logs of running containers.
pub(super) async fn rotate_logs(ctx: Arc<Context>, cancel: CancellationToken) {
    let mut ticks = tokio::time::interval(ctx.options.log_rotation.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // An ID's log path never changes.
    let mut paths: HashMap<String, PathBuf> = HashMap::new();
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let Ok(containers) = ctx.runtime.list_containers(None).await else {
            continue;
        };
        let running: Vec<String> = containers
            .into_iter()
            .filter(|c| State::from_cri(c.state) == State::Running)
            .map(|c| c.id)
            .collect();
        paths.retain(|id, _| running.contains(id));
        for id in running {
            if paths.contains_key(&id) {
                continue;
            }
            if let Ok(status) = ctx.runtime.container_status(&id).await {
                paths.insert(id, PathBuf::from(status.log_path));
            }
        }
        let logs = paths.iter().filter(|(_, log)| log.is_absolute());
        let workers = ctx.options.log_rotation.workers;
        let rotating =
            stream::iter(logs).for_each_concurrent(workers, |(id, log)| rotate(&ctx, id, log));
        tokio::select! {
            () = cancel.cancelled() => return,
            () = rotating => {}
        }
    }
}

/// Rotates the log of a container if it is large.
async fn rotate(ctx: &Context, id: &str, log: &Path) {
    let rotation = ctx.options.log_rotation;
    let log = LogFile::new(&ctx.paths, log);
    match tokio::task::spawn_blocking(move || rotate_if_large(&log, rotation)).await {
        Ok(Ok(true)) => {
            if let Err(error) = ctx.runtime.reopen_container_log(id).await {
                tracing::warn!(container = %id, %error, "runtime cannot reopen the container's log");
            }
        }
        Ok(Ok(false)) | Err(_) => {}
        Ok(Err(error)) => {
            tracing::warn!(container = %id, %error, "cannot rotate the container's log");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_told_change_ends_the_wait() {
        let (sender, receiver) = tokio::sync::watch::channel(0);
        let mut told = Some(receiver);
        let short = Duration::from_secs(1);
        assert!(
            tokio::time::timeout(short, changed(&mut told))
                .await
                .is_err()
        );
        sender.send_modify(|n| *n += 1);
        assert!(
            tokio::time::timeout(short, changed(&mut told))
                .await
                .is_ok()
        );
        drop(sender);
        assert!(
            tokio::time::timeout(short, changed(&mut told))
                .await
                .is_ok()
        );
        assert!(told.is_none());
        assert!(
            tokio::time::timeout(short, changed(&mut told))
                .await
                .is_err(),
            "a runtime that ended tells nothing"
        );
    }

    #[test]
    fn only_pods_with_changes_are_woken() {
        let seen = |list: &[(&str, &str, i32)]| {
            list.iter()
                .map(|(id, uid, s)| ((*id).to_owned(), ((*uid).to_owned(), *s)))
                .collect::<Seen>()
        };
        let before = seen(&[("1", "a", 1), ("2", "b", 1), ("3", "c", 1)]);
        let now = seen(&[("1", "a", 1), ("2", "b", 2), ("4", "d", 0)]);
        assert_eq!(
            changes(&before, &now).into_iter().collect::<Vec<_>>(),
            ["b", "c", "d"]
        );
    }
}
