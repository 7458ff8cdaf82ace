//! Measures the volumes of pods as long as the agent runs.

use crate::context::Context;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How soon volumes are measured that never were.
const NEW: Duration = Duration::from_secs(10);

/// Measures all volumes every `period`, and new ones sooner, until `cancel`.
pub(super) async fn run(ctx: Arc<Context>, period: Duration, cancel: CancellationToken) {
    let mut ticks = tokio::time::interval(NEW.min(period));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut measured = Instant::now();
    // Each by itself: one that hangs holds up no other.
    let mut under_way = JoinSet::new();
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = ticks.tick() => {
                let all = measured.elapsed() >= period;
                if all {
                    measured = Instant::now();
                }
                for due in ctx.volumes.due(all) {
                    let ctx = ctx.clone();
                    under_way.spawn(async move { ctx.volumes.measure(due).await });
                }
            }
            Some(ended) = under_way.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a volume was not measured");
                }
            }
        }
    }
}
