//! The machine's clock, which people and time servers set while davit runs: a box without a battery starts years ago, and is
//! told the time when its network comes up. Timers of the kernel that count from now on do not see that.

use std::time::{Duration, Instant, SystemTime};

/// After how long it is seen at the latest that the clock was set.
pub const LOOK: Duration = Duration::from_secs(10);
/// Less is how clocks go.
const LEAST: Duration = Duration::from_secs(1);

/// Waits until the machine's clock says `at`, however it is set meanwhile (seen within [`LOOK`]).
pub async fn sleep_until(at: SystemTime) {
    while let Ok(left) = at.duration_since(SystemTime::now())
        && !left.is_zero()
    {
        tokio::time::sleep(left.min(LOOK)).await;
    }
}

/// Sees when the clock has been set, or the machine has slept.
#[derive(Debug)]
pub struct ClockWatch {
    begun: Instant,
    /// What the clock said then.
    said: SystemTime,
}

impl Default for ClockWatch {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            said: SystemTime::now(),
        }
    }
}

impl ClockWatch {
    /// Whether the clock was set by a second or more since it was last asked.
    pub fn was_set(&mut self) -> bool {
        self.was_set_at(Instant::now(), SystemTime::now())
    }

    fn was_set_at(&mut self, instant: Instant, clock: SystemTime) -> bool {
        let passed = instant.duration_since(self.begun);
        let expected = self.said.checked_add(passed).unwrap_or(clock);
        (self.begun, self.said) = (instant, clock);
        let off = match clock.duration_since(expected) {
            Ok(ahead) => ahead,
            Err(behind) => behind.duration(),
        };
        off >= LEAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_is_told_from_what_went_on() {
        let mut watch = ClockWatch::default();
        let (instant, clock) = (watch.begun, watch.said);
        let seconds = Duration::from_secs;
        // an hour goes by, half a second faster than the kernel counts
        let (later, says) = (instant + seconds(3600), clock + seconds(3600));
        assert!(!watch.was_set_at(later, says + seconds(1) / 2));
        assert!(watch.was_set_at(later, says - seconds(50 * 365 * 86_400)));
        assert!(!watch.was_set_at(later, says - seconds(50 * 365 * 86_400)));
        assert!(watch.was_set_at(later, says));
    }

    #[tokio::test]
    async fn a_moment_that_is_over_is_not_waited_for() {
        sleep_until(SystemTime::UNIX_EPOCH).await;
        let begun = Instant::now();
        sleep_until(SystemTime::now() + Duration::from_millis(30)).await;
        assert!(begun.elapsed() >= Duration::from_millis(25));
    }
}
