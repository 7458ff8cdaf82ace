//! A watch: what one client sees of a cache.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::{Instant, sleep_until};

use super::event::Delivery;
use super::state::{OpenAt, Overflow, Shared};
use super::{CacheConfig, CacheError, Filter, Freshness};

/// From where a watch starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchStart {
    /// With the objects that exist, as synthetic ADDED events, and then their changes
    /// (`sendInitialEvents=true`, or resourceVersion unset or 0).
    Initial(Freshness),
    /// With the changes after a revision, which may be yet to come.
    After(u64),
    /// With the changes after this moment.
    Latest,
}

/// What a watch shows, and how.
#[derive(Debug, Clone)]
pub struct WatchOptions {
    /// From where it starts.
    pub start: WatchStart,
    /// Which objects it shows.
    pub filter: Filter,
    /// Whether bookmarks are sent (`allowWatchBookmarks`). After initial objects the
    /// first one comes at once and marks their end.
    pub bookmarks: bool,
    /// When the watch ends by itself (`timeoutSeconds`).
    pub deadline: Option<Instant>,
}

/// An item of a watch.
#[derive(Debug, Clone)]
pub enum WatchItem {
    /// Something about an object.
    Event(Delivery),
    /// Everything up to this revision has been sent.
    Bookmark {
        /// The revision.
        revision: u64,
        /// Whether it marks the end of the initial objects (annotation
        /// `k8s.io/initial-events-end`).
        initial_events_end: bool,
    },
}

/// The events of a watch in order of revision, after the initial ones.
///
/// Initial objects come in order of their revisions as well, so that a client which
/// is cut off among them and resumes from the last one misses nothing.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    waiting: VecDeque<Delivery>,
    deliveries: mpsc::Receiver<Delivery>,
    overflow: Arc<Overflow>,
    /// The revision of the bookmark that ends the initial objects, until it is sent.
    initial_end: Option<u64>,
    /// The client knows everything up to here.
    seen: u64,
    bookmark_at: Option<Instant>,
    bookmark_interval: Duration,
    last_bookmark_at: Option<Instant>,
    deadline: Option<Instant>,
    ended: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl Watch {
    pub(super) fn open(
        shared: &Arc<Shared>,
        prefix: &str,
        options: WatchOptions,
        config: &CacheConfig,
    ) -> Result<Self, CacheError> {
        let WatchOptions {
            start,
            filter,
            bookmarks,
            deadline,
        } = options;
        let at = match start {
            WatchStart::Initial(_) => OpenAt::Objects,
            WatchStart::Latest => OpenAt::Now,
            WatchStart::After(revision) => OpenAt::After(revision),
        };
        let mut opened = shared.open(prefix, &filter, &at, config.watch_buffer)?;
        opened
            .initial
            .sort_unstable_by_key(|object| object.revision());
        let initial = opened.initial.into_iter().map(Delivery::initial);
        let initial_end = matches!(at, OpenAt::Objects).then_some(opened.revision);
        let now = Instant::now();
        // A last bookmark only makes sense if the watch lives longer than that.
        let last = deadline.and_then(|at| at.checked_sub(config.bookmark_before_deadline));
        Ok(Self {
            shared: Arc::clone(shared),
            waiting: initial.chain(opened.replay).collect(),
            deliveries: opened.deliveries,
            overflow: opened.overflow,
            initial_end: initial_end.filter(|_| bookmarks),
            seen: match start {
                WatchStart::After(revision) => revision,
                WatchStart::Initial(_) | WatchStart::Latest => opened.revision,
            },
            bookmark_at: bookmarks.then(|| now + config.bookmark_interval),
            bookmark_interval: config.bookmark_interval,
            last_bookmark_at: last.filter(|last| bookmarks && *last > now),
            deadline,
            ended: false,
        })
    }

    /// The next item; `None` when the watch has ended: at its deadline, because the
    /// cache was closed, or after an error. Dropping the returned future loses
    /// nothing.
    pub async fn next(&mut self) -> Option<Result<WatchItem, CacheError>> {
        loop {
            if self.ended {
                return None;
            }
            let now = Instant::now();
            if self.deadline.is_some_and(|deadline| deadline <= now) {
                return self.end();
            }
            if let Some(delivery) = self.waiting.pop_front() {
                return Some(Ok(self.event(delivery)));
            }
            if let Some(revision) = self.initial_end.take() {
                return Some(Ok(self.bookmark(revision, true)));
            }
            // Read before the look into the channel: see `Shared::offered`.
            let due = self.bookmark_due(now).then(|| self.shared.offered());
            match self.deliveries.try_recv() {
                Ok(delivery) => return Some(Ok(self.event(delivery))),
                Err(TryRecvError::Disconnected) => return self.end_with_reason(),
                Err(TryRecvError::Empty) => {}
            }
            if let Some(offered) = due {
                self.schedule_bookmark(now);
                // A watch that starts in the future has nothing to confirm yet.
                if offered >= self.seen {
                    return Some(Ok(self.bookmark(offered, false)));
                }
            }
            let wake = [self.deadline, self.bookmark_at, self.last_bookmark_at];
            let wake = wake.into_iter().flatten().min();
            tokio::select! {
                biased;
                delivery = self.deliveries.recv() => {
                    return match delivery {
                        Some(delivery) => Some(Ok(self.event(delivery))),
                        None => self.end_with_reason(),
                    };
                }
                () = sleep_to(wake) => {}
            }
        }
    }

    fn event(&mut self, delivery: Delivery) -> WatchItem {
        self.seen = self.seen.max(delivery.revision());
        WatchItem::Event(delivery)
    }

    fn bookmark(&mut self, revision: u64, initial_events_end: bool) -> WatchItem {
        self.seen = self.seen.max(revision);
        WatchItem::Bookmark {
            revision,
            initial_events_end,
        }
    }

    fn bookmark_due(&self, now: Instant) -> bool {
        let passed = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        passed(self.bookmark_at) || passed(self.last_bookmark_at)
    }

    fn schedule_bookmark(&mut self, now: Instant) {
        self.bookmark_at = self.bookmark_at.map(|_| now + self.bookmark_interval);
        self.last_bookmark_at = self.last_bookmark_at.filter(|at| *at > now);
    }

    fn end(&mut self) -> Option<Result<WatchItem, CacheError>> {
        self.ended = true;
        self.deliveries.close();
        None
    }

    fn end_with_reason(&mut self) -> Option<Result<WatchItem, CacheError>> {
        self.end();
        self.overflow.take().map(Err)
    }
}

async fn sleep_to(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
