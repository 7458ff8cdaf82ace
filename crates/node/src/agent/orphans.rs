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
    out.retain(|uid| is_uid(uid));
    Ok(out)
}

/// Whether it can be a pod's UID. What others have labelled in the runtime, or have put beside the pods' directories (a file
/// system has its own there), is theirs.
fn is_uid(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (1..=128).contains(&text.len()) && text.bytes().all(fits)
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

#[cfg(test)]
mod tests {
    use super::is_uid;

    #[test]
    fn what_is_no_uid_is_left_alone() {
        for uid in [
            "0b8e7c2e-1c9f-4c6b-9a53-6f0d7a4f1a11",
            "d41d8cd98f00b204",
            "u_1",
        ] {
            assert!(is_uid(uid), "{uid}");
        }
        for other in ["", ".", "..", "/etc", "../x", "a/b", "lost+found", "a b"] {
            assert!(!is_uid(other), "{other}");
        }
    }
}
