//! Autoscalers that take long have a lane of their own: how many metrics one has, and whose servers tell them, is its
//! writer's choice, and he may write as many as he likes. One at a time is looked at of those that were slow.

use davit_client::ObjectKey;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// How long one look may take.
pub(super) const LOOKING: Duration = Duration::from_secs(15);
/// Whoever takes longer is slow.
const SLOW: Duration = Duration::from_secs(3);

/// What became of a look.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Done,
    /// It was not done in time.
    Late,
    /// Another slow one is looked at.
    Waits,
}

#[derive(Debug)]
pub(super) struct Lane {
    slow: Mutex<HashSet<ObjectKey>>,
    one: Semaphore,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            slow: Mutex::default(),
            one: Semaphore::new(1),
        }
    }
}

impl Lane {
    /// Looks at an autoscaler, or says that its turn comes later.
    pub(super) async fn look(&self, key: &ObjectKey, look: impl Future<Output = ()>) -> Turn {
        let was_slow = self.slow.lock().contains(key);
        let turn = was_slow.then(|| self.one.try_acquire());
        if matches!(turn, Some(Err(_))) {
            return Turn::Waits;
        }
        let began = Instant::now();
        let looked = timeout(LOOKING, look).await;
        if began.elapsed() > SLOW {
            self.slow.lock().insert(key.clone());
        } else {
            self.slow.lock().remove(key);
        }
        match looked {
            Ok(()) => Turn::Done,
            Err(_) => Turn::Late,
        }
    }

    /// There is no such autoscaler any more.
    pub(super) fn forget(&self, key: &ObjectKey) {
        self.slow.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    #[tokio::test(start_paused = true)]
    async fn slow_ones_take_turns_and_others_do_not_wait() {
        let lane = Lane::default();
        let key = |name: &str| ObjectKey {
            namespace: "n".to_owned(),
            name: name.to_owned(),
        };
        for name in ["a", "b"] {
            assert_eq!(lane.look(&key(name), pending()).await, Turn::Late);
        }
        let (a, b, c) = (key("a"), key("b"), key("c"));
        let began = Instant::now();
        let (a, b, c) = tokio::join!(
            lane.look(&a, pending()),
            lane.look(&b, pending()),
            lane.look(&c, ready(()))
        );
        assert_eq!((a, b, c), (Turn::Late, Turn::Waits, Turn::Done));
        assert_eq!(began.elapsed(), LOOKING);
        assert_eq!(lane.look(&key("b"), ready(())).await, Turn::Done);
        assert!(!lane.slow.lock().contains(&key("b")));
    }
}
