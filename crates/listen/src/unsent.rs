//! Answers that wait for their client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::shares::Share;

/// Shorter answers are not worth counting: a connection's streams bound them.
pub(crate) const COUNTED: usize = 8 * 1024;
/// What of a stream is not counted: an event or two that are on their way.
pub(crate) const UNCOUNTED: usize = 4 * 1024;
/// What every answer gets.
const PATIENCE: Duration = Duration::from_secs(60);
/// And the slowest that a client may read beyond it, bytes a second.
const SLOWEST: usize = 64 * 1024;

/// Until when a client must have taken an answer of so many bytes.
pub(crate) fn deadline(now: Instant, bytes: usize) -> Instant {
    now + PATIENCE + Duration::from_secs((bytes / SLOWEST) as u64)
}

/// When the answers of a connection must be taken.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    next: u64,
    by: BTreeMap<u64, Instant>,
}

impl Deadlines {
    pub(crate) fn insert(&mut self, deadline: Instant) -> u64 {
        self.next += 1;
        self.by.insert(self.next, deadline);
        self.next
    }

    pub(crate) fn remove(&mut self, id: u64) {
        self.by.remove(&id);
    }

    pub(crate) fn overdue(&self, now: Instant) -> bool {
        self.by.values().any(|deadline| *deadline <= now)
    }
}

/// Bytes of a stream that are on their way.
#[derive(Debug)]
pub(crate) struct Held {
    of: Arc<AtomicUsize>,
    amount: usize,
    /// What was on its way before.
    pub(crate) before: usize,
}

impl Held {
    pub(crate) fn new(of: &Arc<AtomicUsize>, amount: usize) -> Self {
        Self {
            of: Arc::clone(of),
            amount,
            before: of.fetch_add(amount, Ordering::Relaxed),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

/// A piece of a stream, with what counts it.
struct Part {
    bytes: Bytes,
    _held: Held,
    _share: Option<Share>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

pub(crate) fn part(bytes: Bytes, held: Held, share: Option<Share>) -> Bytes {
    Bytes::from_owner(Part {
        bytes,
        _held: held,
        _share: share,
    })
}
