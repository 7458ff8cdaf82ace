//! How many connections a socket serves at once, and which of them ends where there are more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// How long the end of a connection may take that makes room for another.
const ENDING: Duration = Duration::from_secs(5);

/// The connections of one socket. Where there are as many as may be, one of the process that has most of them ends for a new
/// one, that from which nothing was heard for the longest time: whoever takes all that he can get keeps nobody else out.
pub(super) struct Seats {
    free: Arc<Semaphore>,
    /// How often something was heard, which is the time here.
    heard: AtomicU64,
    taken: Mutex<BTreeMap<u64, Arc<Taken>>>,
}

struct Taken {
    /// The process at the other end, if the kernel tells.
    process: Option<i32>,
    /// When something was heard last.
    heard: AtomicU64,
    end: CancellationToken,
}

/// One connection's.
pub(super) struct Seat {
    of: Arc<Seats>,
    number: u64,
    taken: Arc<Taken>,
    _slot: OwnedSemaphorePermit,
}

impl Seats {
    pub(super) fn new(count: usize) -> Arc<Self> {
        Arc::new(Self {
            free: Arc::new(Semaphore::new(count)),
            heard: AtomicU64::new(0),
            taken: Mutex::default(),
        })
    }

    /// A seat for a new connection, which ends with `stop` at the latest; `None` if none became free.
    pub(super) async fn take(
        self: &Arc<Self>,
        process: Option<i32>,
        stop: &CancellationToken,
    ) -> Option<Seat> {
        let slot = match self.free.clone().try_acquire_owned() {
            Ok(slot) => slot,
            Err(_) => {
                self.end_one();
                let freed = self.free.clone().acquire_owned();
                tokio::time::timeout(ENDING, freed).await.ok()?.ok()?
            }
        };
        let number = self.now();
        let taken = Arc::new(Taken {
            process,
            heard: AtomicU64::new(number),
            end: stop.child_token(),
        });
        self.taken.lock().insert(number, taken.clone());
        Some(Seat {
            of: self.clone(),
            number,
            taken,
            _slot: slot,
        })
    }

    /// Ends a connection of the process with most of them: the one that is silent for the longest time.
    fn end_one(&self) {
        let taken = self.taken.lock();
        let open = || taken.values().filter(|t| !t.end.is_cancelled());
        let mut counts: BTreeMap<Option<i32>, usize> = BTreeMap::new();
        for one in open() {
            *counts.entry(one.process).or_default() += 1;
        }
        let most = counts.values().max();
        let of_most = open().filter(|t| counts.get(&t.process) == most);
        if let Some(silent) = of_most.min_by_key(|t| t.heard.load(Ordering::Relaxed)) {
            silent.end.cancel();
        }
    }

    fn now(&self) -> u64 {
        self.heard.fetch_add(1, Ordering::Relaxed)
    }
}

impl Seat {
    /// Something was heard from the other end.
    pub(super) fn heard(&self) {
        self.taken.heard.store(self.of.now(), Ordering::Relaxed);
    }

    /// Is cancelled when the connection is to end.
    pub(super) fn end(&self) -> &CancellationToken {
        &self.taken.end
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.of.taken.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_has_most_and_is_silent_makes_room() {
        let (seats, stop) = (Seats::new(4), CancellationToken::new());
        // That of another process is older than all, and stays.
        let mut taken = Vec::new();
        for process in [7, 1, 1, 1] {
            taken.push(seats.take(Some(process), &stop).await.unwrap());
        }
        taken[1].heard();
        let silent = taken.remove(2);
        let ends = tokio::spawn(async move {
            silent.end().cancelled().await;
            drop(silent);
        });
        let new = seats.take(Some(1), &stop).await.unwrap();
        ends.await.unwrap();
        assert!(taken.iter().all(|seat| !seat.end().is_cancelled()));
        drop(taken);
        assert_eq!(seats.taken.lock().len(), 1);
        stop.cancel();
        assert!(new.end().is_cancelled());
    }
}
