//! A store in memory, without threads: revisions, compare-and-swap, watches, compaction.
//!
//! It owes what every engine owes (`davit_store::contract`), and besides does what disks and networks do to one: writes take
//! their time, and some are made although nobody hears of it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use davit_store::{
    Change, Committed, Error, Expect, KeyValue, ListOptions, Listing, Marks, Operation, Result,
    Store, WatchEvent, WatchSource, WatchStream, Write,
};
use futures::Stream;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};

/// As the embedded engine's.
const FIRST_REVISION: u64 = 1;
const MAX_VALUE_BYTES: usize = 8 << 20;
/// How many changes may wait for a watcher.
pub const WATCH_LIMIT: usize = 1000;

/// How a store misbehaves.
pub trait StoreFaults: Send + Sync {
    /// What happens to a write.
    fn of_write(&self) -> SlowWrite {
        SlowWrite::default()
    }
    /// How late a watcher hears of a change.
    fn of_watch(&self) -> Duration {
        Duration::ZERO
    }
}

/// A store that does what it is to at once.
#[derive(Debug, Default)]
pub struct NoStoreFaults;

impl StoreFaults for NoStoreFaults {}

/// How long a write takes before and after it is made, and whether its writer is told.
#[derive(Debug, Clone, Copy, Default)]
pub struct SlowWrite {
    /// Before it is made.
    pub before: Duration,
    /// From then to the answer.
    pub after: Duration,
    /// The answer is that nobody knows.
    pub unknown: bool,
}

/// Is told of every change as it is made, before anybody else.
pub type OnChange = Box<dyn FnMut(&Change) + Send>;

struct Version {
    revision: u64,
    pair: Option<KeyValue>,
}

struct Watcher {
    prefix: String,
    after: u64,
    changes: mpsc::Sender<Arc<Change>>,
    marks: Arc<Marks>,
    overflowed: Arc<Mutex<bool>>,
}

struct State {
    /// Of each key its versions, oldest first.
    keys: BTreeMap<Arc<str>, Vec<Version>>,
    log: VecDeque<Arc<Change>>,
    revision: u64,
    compacted: u64,
    watchers: Vec<Watcher>,
    closed: bool,
}

/// The store.
pub struct MemoryStore {
    state: Mutex<State>,
    faults: Mutex<Arc<dyn StoreFaults>>,
    on_change: Mutex<Option<OnChange>>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                keys: BTreeMap::new(),
                log: VecDeque::new(),
                revision: FIRST_REVISION,
                compacted: FIRST_REVISION,
                watchers: Vec::new(),
                closed: false,
            }),
            faults: Mutex::new(Arc::new(NoStoreFaults)),
            on_change: Mutex::new(None),
        }
    }
}

impl State {
    fn check(&self, revision: u64) -> Result<()> {
        if revision < self.compacted {
            return Err(Error::Compacted {
                requested: revision,
                oldest: self.compacted,
            });
        }
        if revision > self.revision {
            return Err(Error::FutureRevision {
                requested: revision,
                current: self.revision,
            });
        }
        Ok(())
    }

    fn at(versions: &[Version], revision: u64) -> Option<&KeyValue> {
        let newer = versions.partition_point(|version| version.revision <= revision);
        versions[..newer].last()?.pair.as_ref()
    }

    fn current(&self, key: &str) -> Option<&KeyValue> {
        Self::at(self.keys.get(key)?, u64::MAX)
    }

    /// The change that `write` is, if what it expects holds.
    fn apply(&mut self, write: Write) -> Result<Arc<Change>> {
        let previous = self.current(&write.key).cloned();
        let holds = match write.expect {
            Expect::Absent => previous.is_none(),
            Expect::Revision(revision) => {
                (previous.as_ref()).is_some_and(|pair| pair.mod_revision == revision)
            }
            Expect::Any => true,
        };
        if !holds {
            return Err(Error::Conflict {
                key: write.key,
                current: previous.map(Box::new),
            });
        }
        if previous.is_none() && write.op == Operation::Delete {
            return Err(Error::NotFound { key: write.key });
        }
        let revision = self.revision + 1;
        let known = self.keys.get_key_value(write.key.as_str());
        let key = known.map_or_else(|| Arc::from(write.key.as_str()), |(key, _)| Arc::clone(key));
        let current = match write.op {
            Operation::Delete => None,
            Operation::Put(value) => Some(KeyValue {
                key: Arc::clone(&key),
                value,
                mod_revision: revision,
                create_revision: previous
                    .as_ref()
                    .map_or(revision, |pair| pair.create_revision),
            }),
        };
        self.revision = revision;
        self.keys
            .entry(Arc::clone(&key))
            .or_default()
            .push(Version {
                revision,
                pair: current.clone(),
            });
        let change = Arc::new(Change {
            revision,
            key,
            current,
            previous,
        });
        self.log.push_back(Arc::clone(&change));
        Ok(change)
    }

    fn publish(&mut self, change: &Arc<Change>) {
        self.watchers.retain(|watcher| watcher.offer(change));
    }

    fn compact(&mut self, revision: u64) {
        while self.log.front().is_some_and(|c| c.revision <= revision) {
            self.log.pop_front();
        }
        self.compacted = self.compacted.max(revision);
        for versions in self.keys.values_mut() {
            let newer = versions.partition_point(|version| version.revision <= revision);
            versions.drain(..newer.saturating_sub(1));
            if versions.len() == 1 && versions[0].pair.is_none() && versions[0].revision <= revision
            {
                versions.clear();
            }
        }
        self.keys.retain(|_, versions| !versions.is_empty());
    }

    fn list(&self, prefix: &str, opts: &ListOptions) -> Result<Listing> {
        let revision = opts.revision.unwrap_or(self.revision);
        self.check(revision)?;
        let start = opts.start.as_deref().filter(|start| *start > prefix);
        let from = start.unwrap_or(prefix);
        let mut listing = Listing {
            items: Vec::new(),
            revision,
            more: false,
            remaining: 0,
        };
        let range = self
            .keys
            .range::<str, _>((Bound::Included(from), Bound::Unbounded));
        for (_, versions) in range.take_while(|(key, _)| key.starts_with(prefix)) {
            let Some(pair) = Self::at(versions, revision) else {
                continue;
            };
            if listing.items.len() < opts.limit.unwrap_or(usize::MAX) {
                listing.items.push(pair.clone());
            } else {
                listing.more = true;
                listing.remaining += 1;
            }
        }
        Ok(listing)
    }
}

impl Watcher {
    /// Whether it is to be kept.
    fn offer(&self, change: &Arc<Change>) -> bool {
        if change.revision > self.after && change.key.starts_with(&self.prefix) {
            match self.changes.try_send(Arc::clone(change)) {
                Ok(()) => self.marks.set_queued(change.revision),
                Err(mpsc::error::TrySendError::Full(_)) => {
                    *self.overflowed.lock() = true;
                    return false;
                }
                Err(mpsc::error::TrySendError::Closed(_)) => return false,
            }
        }
        self.marks.set_published(change.revision);
        !self.changes.is_closed()
    }
}

impl MemoryStore {
    /// From now on it behaves so.
    pub fn set_faults(&self, faults: Arc<dyn StoreFaults>) {
        *self.faults.lock() = faults;
    }

    /// From now on every change is told to `on_change`.
    pub fn on_change(&self, on_change: OnChange) {
        *self.on_change.lock() = Some(on_change);
    }

    /// All watches end as if their readers had been too slow.
    pub fn drop_watchers(&self) {
        for watcher in self.state.lock().watchers.drain(..) {
            *watcher.overflowed.lock() = true;
        }
    }

    /// What there is, by key.
    pub fn everything(&self) -> Vec<KeyValue> {
        let state = self.state.lock();
        let versions = state.keys.values();
        versions
            .filter_map(|versions| State::at(versions, u64::MAX).cloned())
            .collect()
    }

    /// The revisions of the changes under `prefix` after one, and what was done: `true` for a deletion.
    pub fn changes_after(&self, prefix: &str, after: u64) -> Vec<Arc<Change>> {
        let state = self.state.lock();
        let first = state.log.partition_point(|c| c.revision <= after);
        let changes = state.log.range(first..);
        changes
            .filter(|c| c.key.starts_with(prefix))
            .cloned()
            .collect()
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn revision(&self) -> u64 {
        self.state.lock().revision
    }

    async fn current_revision(&self) -> Result<u64> {
        Ok(self.revision())
    }

    async fn oldest_revision(&self) -> Result<u64> {
        Ok(self.state.lock().compacted)
    }

    async fn get(&self, key: &str) -> Result<Option<KeyValue>> {
        Ok(self.state.lock().current(key).cloned())
    }

    async fn get_at(&self, key: &str, revision: u64) -> Result<Option<KeyValue>> {
        let state = self.state.lock();
        state.check(revision)?;
        let versions = state.keys.get(key);
        Ok(versions.and_then(|versions| State::at(versions, revision).cloned()))
    }

    async fn list(&self, prefix: &str, opts: ListOptions) -> Result<Listing> {
        self.state.lock().list(prefix, &opts)
    }

    async fn commit(&self, write: Write) -> Result<Committed> {
        write.check(MAX_VALUE_BYTES)?;
        let slow = self.faults.lock().of_write();
        if !slow.before.is_zero() {
            tokio::time::sleep(slow.before).await;
        }
        let key = write.key.clone();
        let change = {
            let mut state = self.state.lock();
            if state.closed {
                return Err(Error::Closed);
            }
            let change = state.apply(write)?;
            if let Some(on_change) = &mut *self.on_change.lock() {
                on_change(&change);
            }
            state.publish(&change);
            change
        };
        if !slow.after.is_zero() {
            tokio::time::sleep(slow.after).await;
        }
        if slow.unknown {
            return Err(Error::OutcomeUnknown { key });
        }
        Ok(Committed {
            revision: change.revision,
            current: change.current.clone(),
            previous: change.previous.clone(),
        })
    }

    async fn watch(&self, prefix: &str, after: u64) -> Result<WatchStream> {
        let faults = Arc::clone(&self.faults.lock());
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::Closed);
        }
        if after < state.compacted {
            return Err(Error::Compacted {
                requested: after,
                oldest: state.compacted,
            });
        }
        let first = state.log.partition_point(|c| c.revision <= after);
        let past = state.log.range(first..);
        let replay: VecDeque<_> = past
            .filter(|c| c.key.starts_with(prefix))
            .cloned()
            .collect();
        let (sender, changes) = mpsc::channel(WATCH_LIMIT);
        let marks = Arc::new(Marks::new(state.revision));
        marks.set_queued(replay.back().map_or(0, |change| change.revision));
        let overflowed = Arc::new(Mutex::new(false));
        let after = after.max(state.revision);
        state.watchers.push(Watcher {
            prefix: prefix.to_owned(),
            after,
            changes: sender,
            marks: Arc::clone(&marks),
            overflowed: Arc::clone(&overflowed),
        });
        Ok(WatchStream::new(Watch {
            prefix: prefix.to_owned(),
            replay,
            changes,
            marks,
            overflowed,
            faults,
            late: None,
            progress_wanted: false,
            ended: false,
        }))
    }

    async fn compact(&self, revision: u64) -> Result<()> {
        let mut state = self.state.lock();
        if revision > state.revision {
            return Err(Error::FutureRevision {
                requested: revision,
                current: state.revision,
            });
        }
        state.compact(revision);
        Ok(())
    }

    async fn health(&self) -> Result<()> {
        match self.state.lock().closed {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    async fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.watchers.clear();
    }
}

struct Watch {
    prefix: String,
    replay: VecDeque<Arc<Change>>,
    changes: mpsc::Receiver<Arc<Change>>,
    marks: Arc<Marks>,
    overflowed: Arc<Mutex<bool>>,
    faults: Arc<dyn StoreFaults>,
    /// A change that is not told yet.
    late: Option<(Arc<Change>, Pin<Box<Sleep>>)>,
    progress_wanted: bool,
    ended: bool,
}

impl Watch {
    fn end(&mut self) -> Option<Result<WatchEvent>> {
        self.ended = true;
        self.overflowed.lock().then(|| {
            Err(Error::Overflow {
                prefix: self.prefix.clone(),
                limit: WATCH_LIMIT,
            })
        })
    }

    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<Option<Arc<Change>>> {
        let Some((change, sleep)) = &mut self.late else {
            return Poll::Ready(None);
        };
        ready!(sleep.as_mut().poll(cx));
        let change = Arc::clone(change);
        self.late = None;
        Poll::Ready(Some(change))
    }
}

impl Stream for Watch {
    type Item = Result<WatchEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        if let Some(change) = ready!(this.poll_late(cx)) {
            return Poll::Ready(Some(Ok(WatchEvent::Change(change))));
        }
        if let Some(change) = this.replay.pop_front() {
            return Poll::Ready(Some(Ok(WatchEvent::Change(change))));
        }
        let published = this.marks.published();
        let change = match this.changes.poll_recv(cx) {
            Poll::Ready(Some(change)) => change,
            Poll::Ready(None) => return Poll::Ready(this.end()),
            Poll::Pending if this.progress_wanted => {
                this.progress_wanted = false;
                return Poll::Ready(Some(Ok(WatchEvent::Progress(published))));
            }
            Poll::Pending => return Poll::Pending,
        };
        let delay = this.faults.of_watch();
        if delay.is_zero() {
            return Poll::Ready(Some(Ok(WatchEvent::Change(change))));
        }
        let sleep = Box::pin(tokio::time::sleep_until(Instant::now() + delay));
        this.late = Some((change, sleep));
        match ready!(this.poll_late(cx)) {
            Some(change) => Poll::Ready(Some(Ok(WatchEvent::Change(change)))),
            None => Poll::Pending,
        }
    }
}

impl WatchSource for Watch {
    fn request_progress(&mut self) {
        self.progress_wanted = true;
    }

    fn marks(&self) -> Option<Arc<Marks>> {
        Some(Arc::clone(&self.marks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_store::contract;

    struct Memory;

    #[async_trait]
    impl contract::Harness for Memory {
        async fn open(&self) -> Arc<dyn Store> {
            Arc::new(MemoryStore::default())
        }

        fn watch_limit(&self) -> Option<usize> {
            Some(WATCH_LIMIT)
        }
    }

    davit_store::contract_tests!(Memory);
}
