//! Keys of objects to be looked at: each once, never twice at the same time, with pauses that grow
//! after failures.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The first pause after a failure, and the longest one.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(30));

/// The queue. Shared by reference between those that add and the workers.
pub(super) struct Queue<K> {
    state: std::sync::Mutex<State<K>>,
    changed: Notify,
}

struct State<K> {
    ready: VecDeque<K>,
    queued: HashSet<K>,
    /// Being looked at, with whether they were added meanwhile.
    busy: HashMap<K, bool>,
    /// By time, told apart by a number.
    later: BTreeMap<(Instant, u64), K>,
    failures: HashMap<K, u32>,
    number: u64,
}

impl<K: Clone + Eq + Hash> Queue<K> {
    pub(super) fn new() -> Self {
        Self {
            state: std::sync::Mutex::new(State {
                ready: VecDeque::new(),
                queued: HashSet::new(),
                busy: HashMap::new(),
                later: BTreeMap::new(),
                failures: HashMap::new(),
                number: 0,
            }),
            changed: Notify::new(),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State<K>> {
        // A worker that panicked changed nothing half-way: each change is one call.
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Has the key looked at as soon as possible.
    pub(super) fn add(&self, key: K) {
        self.state().add(key);
        self.changed.notify_one();
    }

    /// Has the key looked at after a while.
    pub(super) fn add_after(&self, key: K, pause: Duration) {
        let mut state = self.state();
        state.number += 1;
        let at = (Instant::now() + pause, state.number);
        // One appointment a key: the earlier one.
        let earlier = state
            .later
            .iter()
            .find(|(_, k)| **k == key)
            .map(|(t, _)| *t);
        match earlier {
            Some(known) if known.0 <= at.0 => return,
            Some(known) => {
                state.later.remove(&known);
            }
            None => {}
        }
        state.later.insert(at, key);
        drop(state);
        self.changed.notify_one();
    }

    /// The next key; it is to be given back by [`done`](Self::done) or [`failed`](Self::failed).
    pub(super) async fn next(&self) -> K {
        loop {
            let wake = {
                let mut state = self.state();
                state.ripen(Instant::now());
                if let Some(key) = state.take() {
                    if !state.ready.is_empty() {
                        self.changed.notify_one();
                    }
                    return key;
                }
                state.later.keys().next().map(|(at, _)| *at)
            };
            match wake {
                None => self.changed.notified().await,
                Some(at) => tokio::select! {
                    () = self.changed.notified() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
            }
        }
    }

    /// The key was looked at, all went well.
    pub(super) fn done(&self, key: &K) {
        let mut state = self.state();
        state.failures.remove(key);
        state.release(key);
        drop(state);
        self.changed.notify_one();
    }

    /// The key was looked at in vain, and comes again.
    pub(super) fn failed(&self, key: &K) {
        let mut state = self.state();
        let failures = state.failures.entry(key.clone()).or_default();
        let doubled = 1u32.checked_shl(*failures).unwrap_or(u32::MAX);
        let pause = PAUSE.0.saturating_mul(doubled).min(PAUSE.1);
        *failures = failures.saturating_add(1);
        state.release(key);
        drop(state);
        self.add_after(key.clone(), pause);
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn add(&mut self, key: K) {
        if let Some(again) = self.busy.get_mut(&key) {
            *again = true;
        } else if self.queued.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn ripen(&mut self, now: Instant) {
        while let Some(entry) = self.later.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let key = entry.remove();
            self.add(key);
        }
    }

    fn take(&mut self) -> Option<K> {
        let key = self.ready.pop_front()?;
        self.queued.remove(&key);
        self.busy.insert(key.clone(), false);
        Some(key)
    }

    fn release(&mut self, key: &K) {
        if self.busy.remove(key) == Some(true) {
            self.add(key.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn keys_come_once_and_never_twice_at_once() {
        let queue = Queue::new();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!((queue.next().await, queue.next().await), ("a", "b"));
        queue.add("a");
        let none = tokio::time::timeout(Duration::from_secs(60), queue.next()).await;
        assert!(none.is_err(), "a is being looked at");
        queue.done(&"a");
        assert_eq!(queue.next().await, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_to_half_a_minute_and_end_with_success() {
        let queue = Queue::new();
        queue.add("a");
        let mut pauses = Vec::new();
        for _ in 0..14 {
            let asked = Instant::now();
            assert_eq!(queue.next().await, "a");
            pauses.push(asked.elapsed());
            queue.failed(&"a");
        }
        assert!(pauses[1] < Duration::from_millis(20) && pauses[13] <= PAUSE.1 * 2);
        assert!(
            pauses
                .windows(2)
                .all(|w| w[0] <= w[1] + Duration::from_millis(2))
        );
        assert!(pauses[13] >= PAUSE.1);
        queue.next().await;
        queue.done(&"a");
        queue.add_after("a", Duration::from_secs(30));
        queue.add_after("a", Duration::from_secs(1));
        let asked = Instant::now();
        queue.next().await;
        assert!(
            asked.elapsed() < Duration::from_secs(2),
            "the earlier appointment counts"
        );
    }
}
