//! Leaves a server alone that fails again and again, so that pods do not wait for it each time.

use std::time::Duration;

use tokio::time::Instant;

/// So many failures in a row and it is left alone.
const FAILURES: u32 = 5;
/// For so long.
const PAUSE: Duration = Duration::from_secs(10);

/// Counts failures. Has no clock of its own.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: u32,
    last: String,
    until: Option<Instant>,
}

/// Whether a call may be made.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Permission {
    Granted,
    /// Not now; the last failure.
    Refused(String),
}

impl Breaker {
    /// Whether a call may be made now. After the pause one more failure begins another.
    pub(super) fn permission(&self, now: Instant) -> Permission {
        match self.until {
            Some(until) if now < until => Permission::Refused(self.last.clone()),
            _ => Permission::Granted,
        }
    }

    /// A call succeeded.
    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// A call failed.
    pub(super) fn failed(&mut self, error: String, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.last = error;
        if self.failures >= FAILURES {
            self.until = Some(now + PAUSE);
        }
    }

    /// Whether the server has failed so often that it is left alone, or was until now.
    pub(super) fn is_open(&self) -> bool {
        self.until.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn five_failures_open_it_and_one_success_closes_it() {
        let mut breaker = Breaker::default();
        for i in 0..5 {
            assert_eq!(breaker.permission(Instant::now()), Permission::Granted);
            breaker.failed(format!("failure {i}"), Instant::now());
        }
        let refused = Permission::Refused("failure 4".to_owned());
        assert_eq!(breaker.permission(Instant::now()), refused);
        assert!(breaker.is_open());
        tokio::time::advance(PAUSE).await;
        assert_eq!(breaker.permission(Instant::now()), Permission::Granted);
        breaker.failed("again".to_owned(), Instant::now());
        assert_eq!(
            breaker.permission(Instant::now()),
            Permission::Refused("again".to_owned())
        );
        tokio::time::advance(PAUSE).await;
        breaker.succeeded();
        assert!(!breaker.is_open());
        breaker.failed("once".to_owned(), Instant::now());
        assert_eq!(breaker.permission(Instant::now()), Permission::Granted);
    }
}
