//! Answers that wait for their client.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::connections::Lease;
use crate::shares::Share;

/// Shorter answers are not worth counting: a connection's streams bound them.
pub(crate) const COUNTED: usize = 8 * 1024;
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

/// Bytes that are counted as long as somebody holds a part of them.
struct Counted {
    bytes: Bytes,
    lease: Lease,
    id: u64,
    _share: Share,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.lease.sent(self.id);
    }
}

pub(crate) fn counted(bytes: Bytes, lease: Lease, share: Share, id: u64) -> Bytes {
    Bytes::from_owner(Counted {
        bytes,
        lease,
        id,
        _share: share,
    })
}
