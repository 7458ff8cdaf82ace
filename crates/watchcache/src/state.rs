//! What the feed of a cache fills and its readers share.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use davit_store::{Change, Error as StoreError, KeyValue, Marks};
use parking_lot::{Mutex, RwLock};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use super::event::{Delivery, Event};
use super::ring::{Ring, RingLimits};
use super::{CacheError, CachedObject, Filter, Snapshot};

struct State {
    objects: BTreeMap<Arc<str>, Arc<CachedObject>>,
    ring: Ring,
    /// Revision of the newest change in `objects`.
    applied: u64,
    /// The objects are known to be complete at this revision, at least.
    synced: u64,
    /// Tells how far the store has fed the watch, if the engine can.
    marks: Option<Arc<Marks>>,
}

impl State {
    /// The newest revision at which the objects are the exact state.
    fn complete_at(&self) -> u64 {
        let synced = self.synced.max(self.applied);
        match &self.marks {
            Some(marks) => marks.complete_at(self.applied).max(synced),
            None => synced,
        }
    }
}

struct Watcher {
    filter: Filter,
    /// Events up to here were replayed or are not wanted.
    after: u64,
    deliveries: mpsc::Sender<Delivery>,
    overflow: Arc<Overflow>,
}

/// Why the channel of a watcher was closed.
#[derive(Debug, Default)]
pub(super) struct Overflow(Mutex<Option<CacheError>>);

impl Overflow {
    pub(super) fn take(&self) -> Option<CacheError> {
        self.0.lock().take()
    }
}

/// The position a watch starts from, and its channel.
pub(super) struct Opened {
    pub(super) initial: Vec<Arc<CachedObject>>,
    pub(super) replay: Vec<Delivery>,
    pub(super) deliveries: mpsc::Receiver<Delivery>,
    pub(super) overflow: Arc<Overflow>,
    /// The revision the initial state is complete at.
    pub(super) revision: u64,
}

/// From where a watch is opened.
pub(super) enum OpenAt {
    /// The current objects, then their changes.
    Objects,
    /// The changes from now on.
    Now,
    /// The changes after a revision.
    After(u64),
}

pub(super) struct Shared {
    state: RwLock<State>,
    watchers: Mutex<Vec<Watcher>>,
    /// Revision up to which watchers have been offered every event.
    dispatched: AtomicU64,
    /// Changes whenever the objects, or what is known of them, advance.
    advanced: watch::Sender<()>,
    /// Whether the first load is done; reads wait for it.
    loaded: watch::Sender<bool>,
    /// Why the objects cannot be loaded or followed: some cannot be read.
    unreadable: Mutex<Option<StoreError>>,
    progress_wanted: Notify,
}

impl Shared {
    pub(super) fn new(limits: RingLimits) -> Self {
        let state = State {
            objects: BTreeMap::new(),
            ring: Ring::new(limits),
            applied: 0,
            synced: 0,
            marks: None,
        };
        Self {
            state: RwLock::new(state),
            watchers: Mutex::default(),
            dispatched: AtomicU64::new(0),
            advanced: watch::Sender::new(()),
            loaded: watch::Sender::new(false),
            unreadable: Mutex::default(),
            progress_wanted: Notify::new(),
        }
    }

    // What readers use.

    pub(super) fn object(&self, key: &str) -> Option<Arc<CachedObject>> {
        self.state.read().objects.get(key).cloned()
    }

    pub(super) fn object_count(&self) -> usize {
        self.state.read().objects.len()
    }

    #[cfg(test)]
    pub(super) fn watch_count(&self) -> usize {
        self.watchers.lock().len()
    }

    pub(super) fn snapshot(&self, prefix: &str, filter: &Filter) -> Snapshot {
        let (mut items, revision) = {
            let state = self.state.read();
            (candidates(&state, prefix, filter), state.complete_at())
        };
        if !filter.selects_all() {
            items.retain(|object| filter.matches(object));
        }
        Snapshot { items, revision }
    }

    /// Waits until the objects are loaded and complete at `revision`. Returns the
    /// revision they are complete at; fails with the one they got to.
    pub(super) async fn wait_complete(&self, revision: u64, deadline: Instant) -> Result<u64, u64> {
        // Somebody else's writes advance the store without a notice to this cache, so
        // that the counters are looked at again now and then.
        const LOOK_AGAIN: Duration = Duration::from_millis(10);
        let mut loaded = self.loaded.subscribe();
        if !*loaded.borrow_and_update() {
            let ready = loaded.wait_for(|loaded| *loaded);
            if !matches!(tokio::time::timeout_at(deadline, ready).await, Ok(Ok(_))) {
                return Err(0);
            }
        }
        let mut advanced = self.advanced.subscribe();
        loop {
            advanced.borrow_and_update();
            let (complete, has_marks) = {
                let state = self.state.read();
                (state.complete_at(), state.marks.is_some())
            };
            if complete >= revision {
                return Ok(complete);
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(complete);
            }
            if !has_marks {
                self.progress_wanted.notify_one();
            }
            let wake = deadline.min(now + LOOK_AGAIN);
            // Either way the loop looks at the state again.
            let _ = tokio::time::timeout_at(wake, advanced.changed()).await;
        }
    }

    /// Which objects keep this cache from being in step with the store, if any do.
    pub(super) fn unreadable(&self) -> Option<StoreError> {
        self.unreadable.lock().clone()
    }

    /// The revision up to which a watcher whose channel is empty has seen everything.
    /// To be read before the look into the channel.
    pub(super) fn offered(&self) -> u64 {
        let dispatched = self.dispatched.load(Ordering::Acquire);
        match &self.state.read().marks {
            Some(marks) => marks.complete_at(dispatched),
            None => dispatched,
        }
    }

    /// Registers a watcher, without a gap to what it gets from the present state.
    pub(super) fn open(
        &self,
        prefix: &str,
        filter: &Filter,
        at: &OpenAt,
        buffer: usize,
    ) -> Result<Opened, CacheError> {
        let (sender, receiver) = mpsc::channel(buffer);
        let overflow = Arc::new(Overflow::default());
        // The feed needs this lock to apply the next change, and offers changes to
        // watchers only after it has applied them.
        let state = self.state.read();
        let revision = state.complete_at();
        let mut initial = Vec::new();
        let mut replay = Vec::new();
        let mut after = state.applied;
        match *at {
            OpenAt::Objects => initial = candidates(&state, prefix, filter),
            OpenAt::Now => {}
            OpenAt::After(requested) => {
                let events = state.ring.after(requested)?;
                replay.extend(events.filter_map(|event| event.for_filter(filter)));
                after = after.max(requested);
            }
        }
        let mut watchers = self.watchers.lock();
        watchers.retain(|watcher| !watcher.deliveries.is_closed());
        watchers.push(Watcher {
            filter: filter.clone(),
            after,
            deliveries: sender,
            overflow: Arc::clone(&overflow),
        });
        drop(watchers);
        drop(state);
        initial.retain(|object| filter.matches(object));
        Ok(Opened {
            initial,
            replay,
            deliveries: receiver,
            overflow,
            revision,
        })
    }

    /// Ends all watches, cleanly.
    pub(super) fn close_watches(&self) {
        self.watchers.lock().clear();
    }

    // What the feed uses.

    /// Waits until somebody wants to know how far the store is.
    pub(super) async fn progress_request(&self) {
        self.progress_wanted.notified().await;
    }

    /// Replaces everything by the state at a revision. Watches that were open miss
    /// events now and are ended.
    pub(super) fn reset(&self, objects: Vec<Arc<CachedObject>>, revision: u64) {
        let mut state = self.state.write();
        let requested = state.applied;
        state.objects = objects
            .into_iter()
            .map(|object| (Arc::clone(object.key()), object))
            .collect();
        state.ring.reset(revision);
        state.applied = revision;
        state.synced = revision;
        state.marks = None;
        self.dispatched.store(revision, Ordering::Release);
        let mut watchers = self.watchers.lock();
        for watcher in watchers.drain(..) {
            *watcher.overflow.0.lock() = Some(CacheError::Expired {
                requested,
                oldest: revision,
            });
        }
        drop(watchers);
        drop(state);
        self.advanced.send_replace(());
    }

    /// The counters of the watch the feed reads from now.
    pub(super) fn set_marks(&self, marks: Option<Arc<Marks>>) {
        self.state.write().marks = marks;
    }

    /// Notes that objects cannot be read, or that all can be again.
    pub(super) fn set_unreadable(&self, error: Option<StoreError>) {
        *self.unreadable.lock() = error;
    }

    /// Notes that the first load is done.
    pub(super) fn set_loaded(&self) {
        self.loaded.send_replace(true);
    }

    /// Whether the first load is done.
    pub(super) fn is_loaded(&self) -> bool {
        *self.loaded.borrow()
    }

    /// The revision to resume the feed from.
    pub(super) fn applied(&self) -> u64 {
        self.state.read().applied
    }

    /// Applies a change and offers it to the watchers.
    pub(super) fn apply(&self, change: &Change, decode: impl Fn(&KeyValue) -> CachedObject) {
        let current = change.current.as_ref().map(|pair| Arc::new(decode(pair)));
        let now = Instant::now();
        let event = {
            let mut state = self.state.write();
            let previous = match &current {
                Some(object) => state
                    .objects
                    .insert(Arc::clone(&change.key), Arc::clone(object)),
                None => state.objects.remove(&change.key),
            };
            let event = Arc::new(Event::new(change.revision, current, previous));
            state.ring.push(Arc::clone(&event), now);
            state.applied = change.revision;
            event
        };
        self.watchers.lock().retain(|watcher| watcher.offer(&event));
        self.dispatched.store(change.revision, Ordering::Release);
    }

    /// Notes that the objects are complete at `revision`.
    pub(super) fn set_synced(&self, revision: u64) {
        let mut state = self.state.write();
        state.synced = state.synced.max(revision);
        drop(state);
        self.dispatched.fetch_max(revision, Ordering::AcqRel);
        self.notify();
    }

    /// Wakes those who wait for the cache to advance.
    pub(super) fn notify(&self) {
        self.advanced.send_replace(());
    }

    /// Lets old events go. Returns whether time will let more go.
    pub(super) fn trim(&self) -> bool {
        if !self.state.read().ring.can_age() {
            return false;
        }
        let mut state = self.state.write();
        state.ring.trim(Instant::now());
        state.ring.can_age()
    }
}

impl Watcher {
    /// Returns whether the watcher is to be kept.
    fn offer(&self, event: &Arc<Event>) -> bool {
        if event.revision <= self.after {
            return true;
        }
        let Some(delivery) = event.for_filter(&self.filter) else {
            return true;
        };
        match self.deliveries.try_send(delivery) {
            Ok(()) => true,
            Err(TrySendError::Closed(_)) => false,
            Err(TrySendError::Full(delivery)) => {
                let prefix = delivery.object().key().to_string();
                *self.overflow.0.lock() = Some(CacheError::TooSlow { prefix });
                false
            }
        }
    }
}

/// The objects that can pass the filter, by their keys alone.
fn candidates(state: &State, prefix: &str, filter: &Filter) -> Vec<Arc<CachedObject>> {
    if let Some(key) = filter.only_key(prefix) {
        return state
            .objects
            .get(key.as_str())
            .cloned()
            .into_iter()
            .collect();
    }
    if filter.namespace.is_none() {
        return state.objects.values().cloned().collect();
    }
    let prefix = filter.list_prefix(prefix);
    state
        .objects
        .range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded))
        .take_while(|(key, _)| key.starts_with(&prefix))
        .map(|(_, object)| Arc::clone(object))
        .collect()
}
