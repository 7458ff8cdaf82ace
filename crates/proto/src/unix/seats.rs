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

/// The connections of one socket. Where there are as many as may be, the one from which nothing was heard for the longest
/// time ends for a new one: whoever takes all that he can get keeps nobody else out.
pub(super) struct Seats {
    free: Arc<Semaphore>,
    /// How often something was heard, which is the time here.
    heard: AtomicU64,
    taken: Mutex<BTreeMap<u64, Arc<Taken>>>,
}

struct Taken {
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
    pub(super) async fn take(self: &Arc<Self>, stop: &CancellationToken) -> Option<Seat> {
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

    /// Ends the connection that is silent for the longest time.
    fn end_one(&self) {
        let taken = self.taken.lock();
        let open = taken.values().filter(|t| !t.end.is_cancelled());
        if let Some(silent) = open.min_by_key(|t| t.heard.load(Ordering::Relaxed)) {
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
    async fn who_is_silent_for_the_longest_time_makes_room() {
        let (seats, stop) = (Seats::new(3), CancellationToken::new());
        let mut taken = Vec::new();
        for _ in 0..3 {
            taken.push(seats.take(&stop).await.unwrap());
        }
        taken[0].heard();
        let silent = taken.remove(1);
        let ends = tokio::spawn(async move {
            silent.end().cancelled().await;
            drop(silent);
        });
        let new = seats.take(&stop).await.unwrap();
        ends.await.unwrap();
        assert!(taken.iter().all(|seat| !seat.end().is_cancelled()));
        drop(taken);
        assert_eq!(seats.taken.lock().len(), 1);
        stop.cancel();
        assert!(new.end().is_cancelled());
    }
}
