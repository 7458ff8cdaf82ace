//! The watch cache: the objects of one resource in memory, with their recent events.
//!
//! A cache follows its prefix of the store. It keeps, for each object, a small
//! header (names, labels, selectable fields) and the canonical JSON with the
//! resourceVersion in it, made once per revision and shared by every list and watch;
//! and a ring of recent events, from which watches resume. An event is encoded once
//! for all watchers. Semantics: <https://kubernetes.io/docs/reference/using-api/api-concepts/>
//! and KEP-2340 (consistent reads from cache), KEP-3157 (watch list), KEP-956
//! (bookmarks).
//!
//! Nothing is held and nothing runs for a resource before its first list or watch.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]

mod event;
mod feed;
mod mirror;
mod object;
mod resource_version;
mod ring;
mod state;
mod watch;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use davit_store::{Error as StoreError, KeyValue, ListOptions, Store};
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub use self::event::{Delivery, EventType};
pub use self::mirror::{Followed, Index, Mirror};
pub use self::object::{CachedObject, Decode, Filter, Header, Predicate};
pub(crate) use self::resource_version::with_resource_version;
pub use self::resource_version::{
    append_with_resource_version, copy_without_owners, metadata_of, metadata_range,
    remove_resource_version,
};
pub use self::ring::RingLimits;
use self::state::Shared;
pub use self::watch::{Watch, WatchItem, WatchOptions, WatchStart};

/// How long a read waits for the cache to catch up, as in Kubernetes.
pub const FRESHNESS_TIMEOUT: Duration = Duration::from_secs(3);

/// How many objects are looked at in one go for a page of selected ones.
const SELECTED_PIECE: usize = 1000;

/// How new the state must be that a read sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Whatever the cache has (`resourceVersion=0`).
    Any,
    /// Not older than a revision (`resourceVersion=N`).
    AtLeast(u64),
    /// Every write acknowledged before the call (`resourceVersion` unset).
    Latest,
}

/// Why the cache could not answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CacheError {
    /// The revision is older than the recorded history: HTTP 410, reason Expired.
    #[error("too old resource version: {requested} ({oldest})")]
    Expired {
        /// The revision asked for.
        requested: u64,
        /// The oldest that can be resumed from.
        oldest: u64,
    },
    /// The revision does not exist yet and did not come in time: HTTP 504 with
    /// cause ResourceVersionTooLarge.
    #[error("too large resource version: {requested}, current: {current}")]
    TooLarge {
        /// The revision asked for.
        requested: u64,
        /// The newest revision.
        current: u64,
    },
    /// The cache did not catch up with the store in time: HTTP 429, retry after 1 s.
    #[error("storage is (re)initializing")]
    NotReady,
    /// The watcher did not read its events in time and was dropped.
    #[error("watch of {prefix} is too slow and was closed")]
    TooSlow {
        /// What was watched.
        prefix: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Sizes and times of a cache. The defaults are those of Kubernetes.
#[derive(Debug, Clone)]
pub struct CacheConfig {
    /// What the ring of events keeps.
    pub ring: RingLimits,
    /// How many events may wait for one watcher before it is dropped.
    pub watch_buffer: usize,
    /// How often a watcher that wants bookmarks gets one.
    pub bookmark_interval: Duration,
    /// How long before its deadline a watcher gets a last bookmark.
    pub bookmark_before_deadline: Duration,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            ring: RingLimits::default(),
            watch_buffer: 2048,
            bookmark_interval: Duration::from_secs(60),
            bookmark_before_deadline: Duration::from_secs(2),
        }
    }
}

/// A consistent list.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The objects in key order.
    pub items: Vec<Arc<CachedObject>>,
    /// The revision at which this is the exact state; a watch may start there.
    pub revision: u64,
}

/// Which part of a list a page is.
#[derive(Debug, Clone, Default)]
pub struct PageOptions {
    /// Leave out keys before this one.
    pub start: Option<String>,
    /// At most this many objects, at least one; `None` means all.
    pub limit: Option<usize>,
    /// The exact revision; `None` means the current one.
    pub revision: Option<u64>,
}

/// A page of an exact list.
#[derive(Debug, Clone)]
pub struct Page {
    /// The objects in key order.
    pub items: Vec<Arc<CachedObject>>,
    /// The revision of the list.
    pub revision: u64,
    /// Where the next page starts; `None` if this is the last.
    pub next: Option<String>,
    /// How many objects remain, if that is known: not under a selector.
    pub remaining: Option<usize>,
}

/// The watch cache of one resource.
///
/// Keys are `{prefix}{name}`, or `{prefix}{namespace}/{name}` for a namespaced
/// resource. Dropping the cache ends its watches.
pub struct Cache {
    store: Arc<dyn Store>,
    prefix: String,
    decode: Decode,
    config: CacheConfig,
    running: OnceLock<Running>,
    retired: AtomicBool,
}

struct Running {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
        self.shared.close_watches();
    }
}

impl Cache {
    /// A cache of what the store holds under `prefix`, which ends in a slash. Costs
    /// nothing until it is used.
    pub fn new(store: Arc<dyn Store>, prefix: impl Into<String>, decode: Decode) -> Self {
        Self::with_config(store, prefix, decode, CacheConfig::default())
    }

    /// Like [`Cache::new`] with other sizes and times.
    pub fn with_config(
        store: Arc<dyn Store>,
        prefix: impl Into<String>,
        decode: Decode,
        config: CacheConfig,
    ) -> Self {
        Self {
            store,
            prefix: prefix.into(),
            decode,
            config,
            running: OnceLock::new(),
            retired: AtomicBool::new(false),
        }
    }

    /// The objects that pass `filter`.
    ///
    /// Waits until `deadline` for the cache to be as fresh as asked; fails with
    /// [`CacheError::TooLarge`] or [`CacheError::NotReady`] if it does not get there, and with
    /// [`davit_store::Error::Unreadable`] if that is because objects cannot be read.
    pub async fn list(
        &self,
        freshness: Freshness,
        filter: &Filter,
        deadline: Instant,
    ) -> Result<Snapshot, CacheError> {
        let shared = self.start();
        self.wait(shared, freshness, deadline).await?;
        Ok(shared.snapshot(&self.prefix, filter))
    }

    /// A page of the exact state at a revision, straight from the store.
    ///
    /// Under a selector the page is filled up with matching objects. Fails with
    /// [`CacheError::Expired`] if the revision is compacted and with
    /// [`CacheError::TooLarge`] if it does not exist by `deadline`.
    pub async fn page(
        &self,
        options: PageOptions,
        filter: &Filter,
        deadline: Instant,
    ) -> Result<Page, CacheError> {
        let PageOptions {
            mut start,
            limit,
            mut revision,
        } = options;
        if let Some(revision) = revision {
            self.wait_store(revision, deadline).await?;
        }
        let prefix = filter.list_prefix(&self.prefix);
        let limit = limit.unwrap_or(usize::MAX);
        let mut items = Vec::new();
        loop {
            let wanted = limit - items.len();
            let piece = if filter.selects_all() {
                wanted
            } else {
                wanted.max(SELECTED_PIECE)
            };
            let options = ListOptions {
                start: start.take(),
                limit: Some(piece),
                revision,
            };
            let listing = self
                .store
                .list(&prefix, options)
                .await
                .map_err(list_error)?;
            revision = Some(listing.revision);
            for (index, pair) in listing.items.iter().enumerate() {
                let object = self.share_or_decode(pair);
                if filter.matches(&object) {
                    items.push(object);
                }
                let rest = listing.items.len() - index - 1;
                if items.len() == limit || rest == 0 {
                    start = (rest > 0 || listing.more).then(|| format!("{}\0", pair.key));
                    break;
                }
            }
            if items.len() == limit || start.is_none() {
                return Ok(Page {
                    items,
                    revision: listing.revision,
                    next: start,
                    remaining: filter.selects_all().then_some(listing.remaining),
                });
            }
        }
    }

    /// Starts a watch.
    ///
    /// Fails with [`CacheError::Expired`] if the events after the start are no longer
    /// recorded, and as [`Cache::list`] does if the initial state is not fresh enough
    /// by `deadline`.
    pub async fn watch(
        &self,
        options: WatchOptions,
        deadline: Instant,
    ) -> Result<Watch, CacheError> {
        let shared = self.start();
        // A watch from a revision to come starts at once and waits for its events.
        let freshness = match options.start {
            WatchStart::Initial(freshness) => freshness,
            WatchStart::Latest => Freshness::Latest,
            WatchStart::After(_) => Freshness::Any,
        };
        self.wait(shared, freshness, deadline).await?;
        let watch = Watch::open(shared, &self.prefix, options, &self.config);
        if self.retired.load(Ordering::Acquire) {
            // opened by a request that found the cache before it was replaced
            self.close_watches();
        }
        watch
    }

    /// Ends all watches, cleanly, so that clients list again: when the meaning of the
    /// objects changes, as that of custom resources does with their definition. Watches that are
    /// opened later end at once too.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        self.close_watches();
    }

    /// Ends all watches, cleanly.
    fn close_watches(&self) {
        if let Some(running) = self.running.get() {
            running.shared.close_watches();
        }
    }

    /// The number of objects in memory; `None` if the cache was never used.
    pub fn object_count(&self) -> Option<usize> {
        let running = self.running.get()?;
        Some(running.shared.object_count())
    }

    fn start(&self) -> &Arc<Shared> {
        let running = self.running.get_or_init(|| {
            let shared = Arc::new(Shared::new(self.config.ring.clone()));
            let feed = feed::Feed::new(
                Arc::clone(&self.store),
                self.prefix.clone(),
                Arc::clone(&self.decode),
                Arc::clone(&shared),
            );
            let task = tokio::spawn(feed.run());
            Running { shared, task }
        });
        &running.shared
    }

    fn share_or_decode(&self, pair: &KeyValue) -> Arc<CachedObject> {
        self.running
            .get()
            .and_then(|running| running.shared.object(&pair.key))
            .filter(|object| object.revision() == pair.mod_revision)
            .unwrap_or_else(|| Arc::new((self.decode)(pair)))
    }

    async fn wait(
        &self,
        shared: &Shared,
        freshness: Freshness,
        deadline: Instant,
    ) -> Result<u64, CacheError> {
        let wanted = match freshness {
            Freshness::Any => 0,
            Freshness::AtLeast(revision) => revision,
            Freshness::Latest => self.store.current_revision().await?,
        };
        let waited = shared.wait_complete(wanted, deadline).await;
        if let (Err(_), Some(error)) = (waited, shared.unreadable()) {
            return Err(error.into());
        }
        match waited {
            Ok(revision) => Ok(revision),
            Err(_) if wanted > self.store.revision() => Err(CacheError::TooLarge {
                requested: wanted,
                current: self.store.revision(),
            }),
            Err(_) => Err(CacheError::NotReady),
        }
    }

    /// Waits until the store has a revision. Returns at once in all usual cases.
    async fn wait_store(&self, revision: u64, deadline: Instant) -> Result<(), CacheError> {
        const POLL: Duration = Duration::from_millis(25);
        let mut current = self.store.revision();
        while current < revision {
            current = self.store.current_revision().await?;
            if current >= revision {
                break;
            }
            if Instant::now() >= deadline {
                return Err(CacheError::TooLarge {
                    requested: revision,
                    current,
                });
            }
            tokio::time::sleep_until(deadline.min(Instant::now() + POLL)).await;
        }
        Ok(())
    }
}

fn list_error(error: StoreError) -> CacheError {
    match error {
        StoreError::Compacted { requested, oldest } => CacheError::Expired { requested, oldest },
        StoreError::FutureRevision { requested, current } => {
            CacheError::TooLarge { requested, current }
        }
        other => other.into(),
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache")
            .field("prefix", &self.prefix)
            .field("objects", &self.object_count())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
