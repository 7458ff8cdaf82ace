//! The recent events of a resource.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::CacheError;
use super::event::Event;

/// How long the encodings of an event are kept: those who watch get it within moments, and all encodings together are several
/// times as large as what a watch is resumed from.
const ENCODED: Duration = Duration::from_secs(5);

/// What a ring keeps: at least `min` events, all that are younger than `age`, but
/// never more than `max` events, nor more than `min` if they weigh over `bytes`.
#[derive(Debug, Clone)]
pub struct RingLimits {
    /// Kept however old.
    pub min: usize,
    /// Not kept however young.
    pub max: usize,
    /// How long an event can be resumed from; Kubernetes promises 75 s.
    pub age: Duration,
    /// How much memory the superseded objects in it may take.
    pub bytes: usize,
}

impl Default for RingLimits {
    fn default() -> Self {
        Self {
            min: 100,
            max: 100_000,
            age: Duration::from_secs(90),
            bytes: 64 << 20,
        }
    }
}

#[derive(Debug)]
pub(super) struct Ring {
    events: VecDeque<(Arc<Event>, Instant)>,
    weight: usize,
    /// How many of the oldest events have no encodings any more.
    plain: usize,
    /// All events after this revision are in the ring.
    floor: u64,
    limits: RingLimits,
}

impl Ring {
    pub(super) fn new(limits: RingLimits) -> Self {
        Self {
            events: VecDeque::new(),
            weight: 0,
            plain: 0,
            floor: 0,
            limits,
        }
    }

    /// Forgets everything; the history begins after `floor`.
    pub(super) fn reset(&mut self, floor: u64) {
        self.events = VecDeque::new();
        self.weight = 0;
        self.plain = 0;
        self.floor = floor;
    }

    pub(super) fn push(&mut self, event: Arc<Event>, now: Instant) {
        self.weight += event.weight();
        self.events.push_back((event, now));
        self.trim(now);
    }

    /// Drops what the limits do not cover.
    pub(super) fn trim(&mut self, now: Instant) {
        while let Some((event, at)) = self.events.front() {
            let old = now.saturating_duration_since(*at) > self.limits.age;
            let heavy = self.weight > self.limits.bytes;
            let over = self.events.len() > self.limits.max;
            if !over && (self.events.len() <= self.limits.min || !(old || heavy)) {
                break;
            }
            self.weight -= event.weight();
            self.floor = event.revision;
            self.events.pop_front();
            self.plain = self.plain.saturating_sub(1);
        }
        while let Some((event, at)) = self.events.get(self.plain)
            && now.saturating_duration_since(*at) > ENCODED
        {
            event.forget_encodings();
            self.plain += 1;
        }
        if self.events.len() * 4 < self.events.capacity() && self.events.capacity() > 1024 {
            self.events.shrink_to(self.events.len() * 2);
        }
    }

    /// Whether time alone can shrink the ring.
    pub(super) fn can_age(&self) -> bool {
        self.events.len() > self.limits.min || self.plain < self.events.len()
    }

    /// The events after a revision; fails with [`CacheError::Expired`] if some of
    /// them are gone.
    pub(super) fn after(
        &self,
        revision: u64,
    ) -> Result<impl Iterator<Item = &Arc<Event>>, CacheError> {
        if revision < self.floor {
            return Err(CacheError::Expired {
                requested: revision,
                oldest: self.floor,
            });
        }
        let first = self
            .events
            .partition_point(|(event, _)| event.revision <= revision);
        Ok(self.events.range(first..).map(|(event, _)| event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(min: usize, max: usize) -> Ring {
        let age = Duration::from_secs(75);
        let mut ring = Ring::new(RingLimits {
            min,
            max,
            age,
            bytes: usize::MAX,
        });
        ring.reset(10);
        ring
    }

    fn push(ring: &mut Ring, revision: u64, now: Instant) {
        ring.push(Arc::new(Event::new(revision, None, None)), now);
    }

    fn after(ring: &Ring, revision: u64) -> Result<Vec<u64>, u64> {
        match ring.after(revision) {
            Ok(events) => Ok(events.map(|event| event.revision).collect()),
            Err(CacheError::Expired { oldest, .. }) => Err(oldest),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn encodings_go_before_the_events() {
        let mut ring = ring(1, 3);
        let start = Instant::now();
        let keep = |ring: &Ring| -> Vec<bool> {
            let events = ring.events.iter();
            events.map(|(event, _)| event.keeps_encodings()).collect()
        };
        push(&mut ring, 11, start);
        push(&mut ring, 12, start);
        push(&mut ring, 13, start + ENCODED);
        assert_eq!(keep(&ring), [true, true, true]);
        let later = start + ENCODED + Duration::from_millis(1);
        ring.trim(later);
        assert_eq!(keep(&ring), [false, false, true]);
        assert!(ring.can_age());
        push(&mut ring, 14, later);
        assert_eq!(keep(&ring), [false, true, true]);
        ring.trim(later + 2 * ENCODED);
        assert_eq!(keep(&ring), [false, false, false]);
    }

    #[test]
    fn it_resumes_exactly_from_its_floor_on() {
        let mut ring = ring(2, 4);
        let now = Instant::now();
        assert_eq!(after(&ring, 10), Ok(vec![]));
        assert_eq!(after(&ring, 9), Err(10));
        for revision in [12, 15, 16, 20] {
            push(&mut ring, revision, now);
        }
        assert_eq!(after(&ring, 10), Ok(vec![12, 15, 16, 20]));
        assert_eq!(after(&ring, 13), Ok(vec![15, 16, 20]));
        assert_eq!(after(&ring, 20), Ok(vec![]));
        assert_eq!(after(&ring, 99), Ok(vec![]));
        push(&mut ring, 21, now);
        assert_eq!(after(&ring, 11), Err(12));
        assert_eq!(after(&ring, 12), Ok(vec![15, 16, 20, 21]));
    }

    #[test]
    fn age_counts_above_the_minimum() {
        let mut ring = ring(2, 100);
        let start = Instant::now();
        for step in 0..10 {
            push(&mut ring, 11 + step, start + Duration::from_secs(10 * step));
        }
        assert_eq!(after(&ring, 12).unwrap().len(), 8, "two are over 75 s old");
        ring.trim(start + Duration::from_secs(140));
        assert_eq!(after(&ring, 17), Ok(vec![18, 19, 20]));
        assert!(ring.can_age());
        ring.trim(start + Duration::from_secs(1000));
        assert_eq!(after(&ring, 18), Ok(vec![19, 20]));
        assert_eq!(after(&ring, 17), Err(18));
        assert!(!ring.can_age());
    }
}
