//! How long a watch that cannot be had is left alone.

use kube::runtime::watcher;
use rand::Rng;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(800);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The longest pause before a server is asked again for a kind that it does not serve.
const UNSERVED_PAUSE: Duration = Duration::from_secs(300);

/// The pause between attempts that fail: it doubles, up to a limit.
pub(crate) struct Pause {
    next: Duration,
    /// It has been said that the kind is not served.
    is_told: bool,
}

impl Default for Pause {
    fn default() -> Self {
        Self {
            next: FIRST_PAUSE,
            is_told: false,
        }
    }
}

impl Pause {
    /// Begins anew when the watch has told something. That a list begins is no success yet.
    pub(crate) fn heed<K>(&mut self, event: &Result<watcher::Event<K>, watcher::Error>) {
        if !matches!(event, Ok(watcher::Event::Init) | Err(_)) {
            *self = Self::default();
        }
    }

    /// Says what went wrong, and waits. Of a kind that the server does not serve it is said once.
    pub(crate) async fn after(&mut self, error: &watcher::Error, kind: &str) {
        let is_served = !is_not_served(error);
        if is_served {
            tracing::warn!(kind, %error, "watch interrupted, trying again");
        } else if !self.is_told {
            self.is_told = true;
            tracing::info!(kind, "the API server does not serve this kind, or not yet");
        }
        let spread = rand::rng().random_range(0.5..1.0);
        tokio::time::sleep(self.next.mul_f64(spread)).await;
        let limit = if is_served {
            LONGEST_PAUSE
        } else {
            UNSERVED_PAUSE
        };
        self.next = (self.next * 2).min(limit);
    }
}

/// Whether the server has no such resource.
fn is_not_served(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(cause) | watcher::Error::WatchStartFailed(cause)) =
        error
    else {
        return false;
    };
    matches!(cause, kube::Error::Api(status) if status.code == 404)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    fn refused(code: u16) -> watcher::Error {
        let status = kube::core::Status::failure("no", "NotFound").with_code(code);
        watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_not_served_is_asked_for_ever_more_rarely() {
        let mut pause = Pause::default();
        for _ in 0..12 {
            pause.after(&refused(404), "Kind").await;
        }
        let before = Instant::now();
        pause.after(&refused(404), "Kind").await;
        assert!(before.elapsed() >= UNSERVED_PAUSE / 2);
        assert!(pause.is_told);
        // another fault: the server is there, and may answer soon
        pause.after(&refused(500), "Kind").await;
        let before = Instant::now();
        pause.after(&refused(500), "Kind").await;
        assert!(before.elapsed() <= LONGEST_PAUSE);
    }
}
