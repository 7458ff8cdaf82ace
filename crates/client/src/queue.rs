//! A work queue with the semantics that controllers rely on (client-go's workqueue): a key waits at most once, is never
//! handed to two workers at the same time, and a key added while it is being worked on comes again afterwards.

mod metrics;

use davit_task::clock::{ClockWatch, LOOK};
use metrics::{AtWork, QueueMetrics};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use metrics::register_queue_metrics;

/// No key waits longer.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// A de-duplicating queue of keys with per-key exponential back-off. Cheap to clone.
#[derive(Debug)]
pub struct WorkQueue<T> {
    inner: Arc<Inner<T>>,
}

impl<T> Clone for WorkQueue<T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

#[derive(Debug)]
struct Inner<T> {
    state: Mutex<State<T>>,
    wake: Notify,
    base: Duration,
    max: Duration,
}

#[derive(Debug)]
struct State<T> {
    ready: VecDeque<T>,
    /// Keys that wait in `ready` or must come again after the worker that has them now.
    dirty: HashSet<T>,
    /// Keys that are being worked on, and since when.
    processing: HashMap<T, Instant>,
    /// Since when keys of `dirty` wait.
    waiting: HashMap<T, Instant>,
    metrics: Option<QueueMetrics>,
    /// Keys that become ready later, and when; the earliest moment wins.
    due: HashMap<T, Instant>,
    by_time: BTreeMap<Instant, Vec<T>>,
    failures: HashMap<T, u32>,
    clock: ClockWatch,
    shut_down: bool,
}

impl<T: Clone + Eq + Hash> WorkQueue<T> {
    /// A queue whose back-off doubles from `base` to at most `max` for each failure of a key.
    pub fn new(base: Duration, max: Duration) -> Self {
        Self::with_metrics(base, max, None)
    }

    /// As [`WorkQueue::new`], with metrics under this name ([`register_queue_metrics`]).
    pub fn named(name: &'static str, base: Duration, max: Duration) -> Self
    where
        T: Send + Sync + 'static,
    {
        let queue = Self::with_metrics(base, max, Some(QueueMetrics::new(name)));
        let inner: Arc<dyn AtWork> = queue.inner.clone();
        QueueMetrics::follow(name, Arc::downgrade(&inner));
        queue
    }

    fn with_metrics(base: Duration, max: Duration, metrics: Option<QueueMetrics>) -> Self {
        let state = State {
            ready: VecDeque::new(),
            dirty: HashSet::new(),
            processing: HashMap::new(),
            waiting: HashMap::new(),
            metrics,
            due: HashMap::new(),
            by_time: BTreeMap::new(),
            failures: HashMap::new(),
            clock: ClockWatch::default(),
            shut_down: false,
        };
        Self {
            inner: Arc::new(Inner {
                state: Mutex::new(state),
                wake: Notify::new(),
                base,
                max,
            }),
        }
    }

    /// Makes a key ready now.
    pub fn add(&self, key: T) {
        self.inner.state.lock().add(key);
        self.inner.wake.notify_one();
    }

    /// Makes a key ready after a while, or when the machine's clock is set: the while may have been counted by it. An earlier
    /// moment already set for the key stays.
    pub fn add_after(&self, key: T, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        // objects say moments beyond all time, too
        let at = Instant::now() + delay.min(LONGEST);
        let mut state = self.inner.state.lock();
        if let Some(metrics) = &state.metrics {
            metrics.retried();
        }
        if state.shut_down || state.due.get(&key).is_some_and(|known| *known <= at) {
            return;
        }
        state.due.insert(key.clone(), at);
        state.by_time.entry(at).or_default().push(key);
        drop(state);
        self.inner.wake.notify_one();
    }

    /// Makes a key ready after its back-off, which doubles with each call until [`WorkQueue::forget`].
    pub fn add_rate_limited(&self, key: T) {
        let failures = {
            let mut state = self.inner.state.lock();
            let count = state.failures.entry(key.clone()).or_insert(0);
            *count = count.saturating_add(1);
            *count
        };
        let factor = 1u32.checked_shl(failures - 1).unwrap_or(u32::MAX);
        self.add_after(
            key,
            self.inner.base.saturating_mul(factor).min(self.inner.max),
        );
    }

    /// Ends the back-off of a key: its work succeeded.
    pub fn forget(&self, key: &T) {
        self.inner.state.lock().failures.remove(key);
    }

    /// How often the key has failed since it was last forgotten.
    pub fn num_failures(&self, key: &T) -> u32 {
        self.inner
            .state
            .lock()
            .failures
            .get(key)
            .copied()
            .unwrap_or(0)
    }

    /// The next key; waits for one. `None` once the queue is shut down. The caller must say [`WorkQueue::done`]. Cancel-safe.
    pub async fn get(&self) -> Option<T> {
        loop {
            let next_due = {
                let mut state = self.inner.state.lock();
                if state.clock.was_set() {
                    state.promote_all();
                }
                state.promote(Instant::now());
                if let Some(key) = state.ready.pop_front() {
                    state.take(&key, Instant::now());
                    if !state.ready.is_empty() {
                        self.inner.wake.notify_one();
                    }
                    return Some(key);
                }
                if state.shut_down {
                    self.inner.wake.notify_waiters();
                    return None;
                }
                state.by_time.keys().next().copied()
            };
            let woken = self.inner.wake.notified();
            match next_due {
                Some(at) => {
                    let at = at.min(Instant::now() + LOOK);
                    tokio::select! { () = woken => {} () = tokio::time::sleep_until(at) => {} }
                }
                None => woken.await,
            }
        }
    }

    /// The worker has finished with the key.
    pub fn done(&self, key: &T) {
        let mut state = self.inner.state.lock();
        state.finish(key, Instant::now());
        if state.dirty.contains(key) {
            state.push(key.clone());
            drop(state);
            self.inner.wake.notify_one();
        }
    }

    /// How many keys are ready now.
    pub fn len(&self) -> usize {
        self.inner.state.lock().ready.len()
    }

    /// Whether no key is ready now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// No key is accepted any more; workers get what is ready and then `None`.
    pub fn shut_down(&self) {
        self.inner.state.lock().shut_down = true;
        self.inner.wake.notify_waiters();
        self.inner.wake.notify_one();
    }
}

impl<T> Drop for Inner<T> {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if let Some(metrics) = &state.metrics {
            metrics.dropped(state.ready.len());
        }
    }
}

impl<T: Send + Sync> AtWork for Inner<T> {
    fn ages(&self) -> Vec<Duration> {
        let state = self.state.lock();
        state.processing.values().map(Instant::elapsed).collect()
    }
}

impl<T: Clone + Eq + Hash> State<T> {
    fn add(&mut self, key: T) {
        if self.shut_down || !self.dirty.insert(key.clone()) {
            return;
        }
        if let Some(metrics) = &self.metrics {
            metrics.added();
            self.waiting.insert(key.clone(), Instant::now());
        }
        if !self.processing.contains_key(&key) {
            self.push(key);
        }
    }

    fn push(&mut self, key: T) {
        if let Some(metrics) = &self.metrics {
            metrics.ready();
        }
        self.ready.push_back(key);
    }

    /// A worker has the key.
    fn take(&mut self, key: &T, now: Instant) {
        self.dirty.remove(key);
        self.processing.insert(key.clone(), now);
        if let Some(metrics) = &self.metrics {
            let since = self.waiting.remove(key).unwrap_or(now);
            metrics.taken(now.duration_since(since));
        }
    }

    /// The worker is done with it.
    fn finish(&mut self, key: &T, now: Instant) {
        if let (Some(since), Some(metrics)) = (self.processing.remove(key), &self.metrics) {
            metrics.done(now.duration_since(since));
        }
    }

    /// Moments by a clock that was set are others now: whoever asked for them looks again.
    fn promote_all(&mut self) {
        for keys in std::mem::take(&mut self.by_time).into_values() {
            for key in keys {
                if self.due.remove(&key).is_some() {
                    self.add(key);
                }
            }
        }
    }

    fn promote(&mut self, now: Instant) {
        while let Some(entry) = self.by_time.first_entry() {
            if *entry.key() > now {
                return;
            }
            let (at, keys) = entry.remove_entry();
            for key in keys {
                // A key that was set to an earlier moment since has left this one behind.
                if self.due.get(&key) == Some(&at) {
                    self.due.remove(&key);
                    self.add(key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> WorkQueue<u32> {
        WorkQueue::new(Duration::from_millis(5), Duration::from_millis(40))
    }

    #[tokio::test(start_paused = true)]
    async fn key_waits_once_and_is_never_worked_on_twice_at_a_time() {
        let queue = queue();
        queue.add(1);
        queue.add(1);
        assert_eq!(queue.get().await, Some(1));
        queue.add(1);
        let second = tokio::time::timeout(Duration::from_secs(1), queue.get()).await;
        assert!(second.is_err(), "the key is still being worked on");
        queue.done(&1);
        assert_eq!(queue.get().await, Some(1));
        queue.done(&1);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn earliest_moment_wins() {
        let queue = queue();
        queue.add_after(1, Duration::from_secs(10));
        queue.add_after(1, Duration::from_secs(2));
        queue.add_after(1, Duration::from_secs(5));
        let start = Instant::now();
        assert_eq!(queue.get().await, Some(1));
        assert_eq!(start.elapsed().as_secs(), 2);
        queue.done(&1);
        assert!(
            tokio::time::timeout(Duration::from_secs(60), queue.get())
                .await
                .is_err()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_put_off_comes_when_the_clock_is_set() {
        let queue = queue();
        queue.add_after(1, Duration::from_secs(3600));
        queue.inner.state.lock().promote_all();
        let start = Instant::now();
        assert_eq!(queue.get().await, Some(1));
        assert!(start.elapsed().is_zero());
        queue.done(&1);
        assert!(queue.inner.state.lock().due.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn back_off_doubles_to_its_limit_and_is_forgotten() {
        let queue = queue();
        for expected in [5, 10, 20, 40, 40] {
            let start = Instant::now();
            queue.add_rate_limited(7);
            assert_eq!(queue.get().await, Some(7));
            queue.done(&7);
            assert_eq!(start.elapsed().as_millis(), expected);
        }
        queue.forget(&7);
        assert_eq!(queue.num_failures(&7), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn queues_with_names_have_metrics() {
        let (base, max) = (Duration::from_millis(5), Duration::from_millis(40));
        let queue = WorkQueue::named("test", base, max);
        queue.add(1);
        queue.add(1);
        queue.add(2);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(queue.get().await, Some(1));
        tokio::time::advance(Duration::from_secs(3)).await;
        queue.add_rate_limited(3);
        let mut registry = prometheus_client::registry::Registry::default();
        register_queue_metrics(&mut registry);
        let page = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text
        };
        let text = page();
        for line in [
            "workqueue_depth{name=\"test\"} 1",
            "workqueue_adds_total{name=\"test\"} 2",
            "workqueue_retries_total{name=\"test\"} 1",
            "workqueue_queue_duration_seconds_sum{name=\"test\"} 2.0",
            "workqueue_unfinished_work_seconds{name=\"test\"} 3.0",
            "workqueue_longest_running_processor_seconds{name=\"test\"} 3.0",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        queue.done(&1);
        let worked = "workqueue_work_duration_seconds_sum{name=\"test\"} 3.0";
        assert!(page().contains(worked), "{}", page());
        assert!(page().contains("workqueue_unfinished_work_seconds{name=\"test\"} 0.0"));
    }

    #[tokio::test]
    async fn shut_down_wakes_every_worker() {
        let queue = queue();
        let workers: Vec<_> = (0..3)
            .map(|_| {
                tokio::spawn({
                    let q = queue.clone();
                    async move { q.get().await }
                })
            })
            .collect();
        tokio::task::yield_now().await;
        queue.shut_down();
        for worker in workers {
            let got = tokio::time::timeout(Duration::from_secs(5), worker).await;
            assert!(matches!(got, Ok(Ok(None))));
        }
    }
}
