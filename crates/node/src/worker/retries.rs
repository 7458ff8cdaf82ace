//! Trying again what has failed: later each time, and without saying the same again and again.

use davit_task::RepeatedFailure;
use std::time::Duration;

/// The first wait after an error.
const FIRST: Duration = Duration::from_millis(500);
/// The longest wait after an error.
const LONGEST: Duration = Duration::from_secs(10);

/// The attempts of one worker that have failed since something went well.
#[derive(Debug, Default)]
pub(super) struct Retries {
    wait: Duration,
    failure: RepeatedFailure,
}

impl Retries {
    /// How long to wait now, longer each time.
    pub(super) fn later(&mut self) -> Duration {
        self.wait = (self.wait * 2).clamp(FIRST, LONGEST);
        self.wait
    }

    /// Something went well: the next failure is a first one.
    pub(super) fn over(&mut self) {
        *self = Self::default();
    }

    /// Whether a failure is worth a line in the log; see [`RepeatedFailure::is_news`].
    pub(super) fn is_news(&mut self, failure: &str) -> bool {
        self.failure.is_news(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_limit_and_begin_anew() {
        let mut retries = Retries::default();
        let waits: Vec<u128> = (0..7).map(|_| retries.later().as_millis()).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
        retries.over();
        assert_eq!(retries.later(), FIRST);
    }

    #[test]
    fn what_repeats_itself_is_said_less_and_less() {
        let mut retries = Retries::default();
        let said = |retries: &mut Retries| (1..=100).filter(|_| retries.is_news("gone")).count();
        assert_eq!(said(&mut retries), 7);
        assert!(retries.is_news("another") && retries.is_news("gone"));
        retries.over();
        assert_eq!(said(&mut retries), 7);
    }
}
