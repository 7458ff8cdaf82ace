//! Exponential back-off with upstream's rules for container restarts and image pulls.
//!
//! An entry grows at each failure and is forgotten when nothing failed for twice the maximum. The first retry is
//! immediate: only an item that failed before waits.

use davit_api::time::age;
use jiff::{SignedDuration, Timestamp};
use std::collections::HashMap;
use std::time::Duration;

#[derive(Debug, Clone, Copy)]
struct Entry {
    wait: SignedDuration,
    updated: Timestamp,
}

/// How long containers that end wait until they are started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartDelays {
    /// After the second end; twice as long after each further one.
    pub first: Duration,
    /// At most (`crashLoopBackOff.maxContainerRestartPeriod`).
    pub most: Duration,
}

impl Default for RestartDelays {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(10),
            most: Duration::from_secs(300),
        }
    }
}

/// Back-off of several items, each by its key.
#[derive(Debug, Clone)]
pub struct Backoff {
    initial: SignedDuration,
    max: SignedDuration,
    entries: HashMap<String, Entry>,
}

impl Backoff {
    /// Waits from `initial` doubling to `max`.
    pub fn new(initial: SignedDuration, max: SignedDuration) -> Self {
        Self {
            initial,
            max,
            entries: HashMap::new(),
        }
    }

    /// Container restarts, forgotten after twice the longest wait without failure.
    pub fn container_restarts(delays: RestartDelays) -> Self {
        let signed = |time| SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
        Self::new(signed(delays.first), signed(delays.most))
    }

    /// The whole wait that applies to `key`, zero when it never failed.
    pub fn wait(&self, key: &str) -> SignedDuration {
        self.entries
            .get(key)
            .map_or(SignedDuration::ZERO, |e| e.wait)
    }

    /// What is left of the wait when the last failure was at `since`; `None` when the item may go on.
    pub fn remaining(&self, key: &str, since: Timestamp, now: Timestamp) -> Option<SignedDuration> {
        let entry = self.entries.get(key)?;
        if self.expired(entry, since) {
            return None;
        }
        let passed = SignedDuration::try_from(age(since, now)).unwrap_or(SignedDuration::MAX);
        let left = entry.wait.saturating_sub(passed);
        left.is_positive().then_some(left)
    }

    /// Notes an attempt after a failure at `since`: the next wait is twice as long, or the initial one after a quiet time.
    pub fn next(&mut self, key: &str, since: Timestamp, now: Timestamp) {
        let wait = match self.entries.get(key) {
            Some(entry) if !self.expired(entry, since) => (entry.wait * 2).min(self.max),
            _ => self.initial,
        };
        self.entries
            .insert(key.to_owned(), Entry { wait, updated: now });
    }

    /// Forgets one item.
    pub fn forget(&mut self, key: &str) {
        self.entries.remove(key);
    }

    fn expired(&self, entry: &Entry, since: Timestamp) -> bool {
        since.duration_since(entry.updated) > self.max * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: i64) -> Timestamp {
        Timestamp::from_second(s).unwrap()
    }

    #[test]
    fn first_retry_is_immediate_then_doubles_to_the_limit() {
        let mut b = Backoff::container_restarts(RestartDelays::default());
        assert_eq!(b.remaining("c", at(0), at(0)), None);
        let mut expected = 10;
        let mut now = 0;
        for _ in 0..8 {
            b.next("c", at(now), at(now));
            assert_eq!(b.wait("c").as_secs(), expected);
            assert_eq!(
                b.remaining("c", at(now + 1), at(now + 2))
                    .map(|d| d.as_secs()),
                Some(expected - 1)
            );
            assert_eq!(b.remaining("c", at(now + 1), at(now + 1 + expected)), None);
            now += expected;
            expected = (expected * 2).min(300);
        }
    }

    #[test]
    fn a_clock_that_was_set_back_delays_nobody_for_years() {
        let mut b = Backoff::container_restarts(RestartDelays::default());
        b.next("c", at(1_000_000_000), at(1_000_000_000));
        assert_eq!(b.remaining("c", at(1_000_000_000), at(0)), None);
        b.next("c", at(0), at(0));
        assert_eq!(b.wait("c").as_secs(), 20);
    }

    #[test]
    fn ten_quiet_minutes_reset() {
        let mut b = Backoff::container_restarts(RestartDelays::default());
        b.next("c", at(0), at(0));
        b.next("c", at(1), at(1));
        assert_eq!(b.wait("c").as_secs(), 20);
        assert_eq!(b.remaining("c", at(700), at(700)), None);
        b.next("c", at(700), at(700));
        assert_eq!(b.wait("c").as_secs(), 10);
    }
}
