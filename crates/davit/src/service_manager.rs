//! What the service manager is told (sd_notify(3)), where one has started this process.

use sd_notify::NotifyState;
use std::time::Duration;

/// Told once everything runs.
pub(crate) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Told when a signal has come.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Says again and again that this process works, as often as the service manager wants to hear it: as long as `works` answers
/// in time. Goes on for ever.
pub(crate) async fn watched(works: impl AsyncFn() -> bool) {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return std::future::pending().await;
    };
    let pause = (limit / 3).max(Duration::from_millis(10));
    loop {
        match tokio::time::timeout(pause, works()).await {
            Ok(true) => tell(&[NotifyState::Watchdog]),
            Ok(false) | Err(_) => {
                tracing::error!(
                    "does not answer itself; the service manager is not told that all is well"
                );
            }
        }
        tokio::time::sleep(pause).await;
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}
