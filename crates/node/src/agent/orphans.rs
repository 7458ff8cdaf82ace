//! What belongs to pods that are no more: deleted while the agent was down, or left by a crash.

use crate::context::Context;
use crate::runtime_state::{keys, observe};
use crate::worker::remove_all;
use davit_oci::runtime::Error;
use futures::future::join_all;
use std::collections::BTreeSet;
use std::time::Duration;

/// The longest time such a container gets to end.
const MAX_GRACE: Duration = Duration::from_secs(60);

/// UIDs of pods that the runtime or the disk has and no worker knows.
pub(super) async fn find(ctx: &Context, known: &[String]) -> Result<BTreeSet<String>, Error> {
    let mut out = BTreeSet::new();
    for sandbox in ctx.runtime.list_pod_sandboxes(None).await? {
        out.extend(sandbox.labels.get(keys::POD_UID).cloned());
    }
    for container in ctx.runtime.list_containers(None).await? {
        out.extend(container.labels.get(keys::POD_UID).cloned());
    }
    for entry in std::fs::read_dir(ctx.paths.pods())
        .into_iter()
        .flatten()
        .flatten()
    {
        out.insert(entry.file_name().to_string_lossy().into_owned());
    }
    for uid in known {
        out.remove(uid);
    }
    Ok(out)
}

/// Ends and removes everything of such a pod.
pub(super) async fn remove(ctx: &Context, uid: &str) {
    // The pod may have come back, or be one that was only just seen.
    if ctx.pods.get(uid).is_some() {
        return;
    }
    let runtime = match observe(&*ctx.runtime, uid).await {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::warn!(%uid, %error, "cannot ask the runtime about an orphaned pod");
            return;
        }
    };
    let stops = runtime.alive().map(|c| {
        let note = |key: &str| c.annotations.get(key).and_then(|n| n.parse::<u64>().ok());
        let grace = note(keys::POD_DELETION_GRACE)
            .or_else(|| note(keys::POD_GRACE))
            .unwrap_or(30);
        ctx.runtime
            .stop_container(&c.id, Duration::from_secs(grace).min(MAX_GRACE))
    });
    for result in join_all(stops).await {
        if let Err(error) = result {
            tracing::warn!(%uid, %error, "cannot stop a container of an orphaned pod");
        }
    }
    ctx.devices.release(uid).await;
    match remove_all(ctx, uid).await {
        Ok(()) => tracing::info!(%uid, "removed what was left of a pod that is no more"),
        Err(error) => {
            tracing::warn!(%uid, %error, "cannot remove what is left of a pod that is no more");
        }
    }
}
