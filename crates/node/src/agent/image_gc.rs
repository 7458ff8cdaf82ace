//! Removes images now and then, and says on the node when that does not help.

use crate::context::Context;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const PERIOD: Duration = Duration::from_secs(5 * 60);
/// How soon after a failure to look again.
const SOONEST: Duration = Duration::from_secs(10);
/// A look at the images takes as long as the runtime's lists; removing them may take minutes.
const DEADLINE: Duration = Duration::from_secs(10 * 60);

/// Looks every five minutes until `cancel`; once sooner if it did not help: images that were too young may be old enough
/// then.
pub(super) async fn run(ctx: Arc<Context>, cancel: CancellationToken) {
    let min_age = ctx.options.image_gc.min_age;
    let mut pause = Duration::ZERO;
    let mut failed_before = false;
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = PERIOD;
        let collected = tokio::select! {
            () = cancel.cancelled() => return,
            collected = tokio::time::timeout(DEADLINE, ctx.image_collector.collect()) => collected,
        };
        let Ok(collected) = collected else {
            tracing::warn!("image garbage collection did not end in time");
            continue;
        };
        let failed = collected.is_err();
        if let Err(error) = ctx.images.forget_gone().await {
            tracing::debug!(%error, "records of images' pulls are kept: the runtime does not say what is there");
        }
        if let Err(error) = collected {
            tracing::warn!(%error, "image garbage collection failed");
            // Once may be chance: a runtime that has just started has no figures yet.
            if failed_before {
                let reference = ctx.node_reference();
                ctx.recorder
                    .warning(&reference, error.reason(), error.to_string());
            } else {
                pause = min_age.clamp(SOONEST, PERIOD);
            }
        }
        failed_before = failed;
    }
}
