//! Who may work on a claim: one call at a time, in this process and beside other instances of the driver.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, sleep};

use super::Refusal;

/// How often the lock file of several instances is tried.
const POLL: Duration = Duration::from_millis(20);
/// How long it is tried: as long as the agent waits for an answer.
const LIMIT: Duration = Duration::from_secs(45);

type Turn = Arc<tokio::sync::Mutex<()>>;

#[derive(Debug, Default)]
pub(super) struct Turns {
    /// One after the other, whatever the claim.
    one_at_a_time: bool,
    /// The lock file instances share.
    shared: Option<PathBuf>,
    by_claim: Mutex<BTreeMap<String, Turn>>,
}

/// A turn; ends when it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    _shared: Option<File>,
    _own: OwnedMutexGuard<()>,
}

impl Turns {
    pub(super) fn new(one_at_a_time: bool, shared: Option<PathBuf>) -> Self {
        Self {
            one_at_a_time,
            shared,
            by_claim: Mutex::default(),
        }
    }

    /// Waits for the turn of a claim.
    pub(super) async fn take(&self, uid: &str) -> Result<Held, Refusal> {
        let turn = {
            let mut turns = self.by_claim.lock().unwrap_or_else(PoisonError::into_inner);
            // What only the table knows, nobody holds or waits for.
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            let key = if self.one_at_a_time { "" } else { uid };
            turns.entry(key.to_owned()).or_default().clone()
        };
        let waiting = tokio::time::timeout(LIMIT, turn.lock_owned());
        let own = waiting
            .await
            .map_err(|_| Refusal::new("an earlier call of the driver still goes on"))?;
        Ok(Held {
            _shared: self.share().await?,
            _own: own,
        })
    }

    async fn share(&self) -> Result<Option<File>, Refusal> {
        let Some(path) = &self.shared else {
            return Ok(None);
        };
        let failed = |e: &dyn std::fmt::Display| Refusal::new(format!("{}: {e}", path.display()));
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .map_err(|e| failed(&e))?;
        let end = Instant::now() + LIMIT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                Err(TryLockError::Error(e)) => return Err(failed(&e)),
                Err(TryLockError::WouldBlock) if Instant::now() >= end => {
                    return Err(failed(&"another instance of the driver holds the lock"));
                }
                Err(TryLockError::WouldBlock) => sleep(POLL).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_claim_waits_and_another_does_not() {
        let turns = Turns::new(false, None);
        let first = turns.take("a").await.unwrap();
        drop(turns.take("b").await.unwrap());
        let soon = Duration::from_millis(50);
        let blocked = tokio::time::timeout(soon, turns.take("a")).await;
        assert!(blocked.is_err());
        drop(first);
        drop(turns.take("a").await.unwrap());
        assert!(turns.by_claim.lock().unwrap().len() <= 2);
        let serial = Turns::new(true, None);
        let _held = serial.take("a").await.unwrap();
        let blocked = tokio::time::timeout(soon, serial.take("b")).await;
        assert!(blocked.is_err());
    }

    #[tokio::test]
    async fn instances_wait_for_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("serialize.lock");
        let (old, new) = (
            Turns::new(false, Some(path.clone())),
            Turns::new(false, Some(path)),
        );
        let held = old.take("a").await.unwrap();
        let soon = Duration::from_millis(100);
        assert!(tokio::time::timeout(soon, new.take("b")).await.is_err());
        drop(held);
        new.take("b").await.unwrap();
    }
}
