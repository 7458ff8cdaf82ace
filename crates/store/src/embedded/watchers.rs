//! The watchers of the embedded engine.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures::Stream;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

use crate::{Change, Error, Marks, Result, WatchEvent, WatchSource, WatchStream};

struct Watcher {
    prefix: String,
    /// Changes up to here were replayed or are not wanted.
    after: u64,
    changes: mpsc::Sender<Arc<Change>>,
    marks: Arc<Marks>,
    overflowed: Arc<AtomicBool>,
}

#[derive(Default)]
struct Registered {
    watchers: Vec<Watcher>,
    closed: bool,
}

/// All open watches.
#[derive(Default)]
pub(super) struct Watchers(Mutex<Registered>);

impl Watchers {
    /// Adds a watcher of changes after `after`, of which `replay` holds those up to
    /// `current`. The caller must keep `current` from advancing meanwhile.
    pub(super) fn add(
        &self,
        prefix: &str,
        after: u64,
        current: u64,
        replay: VecDeque<Arc<Change>>,
        limit: usize,
    ) -> Result<WatchStream> {
        let (sender, receiver) = mpsc::channel(limit);
        let marks = Arc::new(Marks::new(current));
        marks.set_queued(replay.back().map_or(0, |change| change.revision));
        let overflowed = Arc::new(AtomicBool::new(false));
        let mut registered = self.0.lock();
        if registered.closed {
            return Err(Error::Closed);
        }
        registered.watchers.push(Watcher {
            prefix: prefix.to_owned(),
            after: after.max(current),
            changes: sender,
            marks: Arc::clone(&marks),
            overflowed: Arc::clone(&overflowed),
        });
        drop(registered);
        Ok(WatchStream::new(EmbeddedWatch {
            prefix: prefix.to_owned(),
            limit,
            replay,
            changes: receiver,
            marks,
            overflowed,
            progress_wanted: false,
            ended: false,
        }))
    }

    /// Offers changes to the watchers; never waits for them. Those that are full or
    /// gone are dropped.
    pub(super) fn publish(&self, changes: &[Arc<Change>], revision: u64) {
        self.0
            .lock()
            .watchers
            .retain(|watcher| watcher.offer(changes, revision));
    }

    /// Ends all watches and refuses new ones.
    pub(super) fn close(&self) {
        let mut registered = self.0.lock();
        registered.closed = true;
        registered.watchers.clear();
    }
}

impl Watcher {
    /// Returns whether the watcher is to be kept.
    fn offer(&self, changes: &[Arc<Change>], revision: u64) -> bool {
        let mut queued = None;
        for change in changes {
            if change.revision <= self.after || !change.key.starts_with(&self.prefix) {
                continue;
            }
            match self.changes.try_send(Arc::clone(change)) {
                Ok(()) => queued = Some(change.revision),
                Err(mpsc::error::TrySendError::Full(_)) => {
                    self.overflowed.store(true, Ordering::Release);
                    return false;
                }
                Err(mpsc::error::TrySendError::Closed(_)) => return false,
            }
        }
        if let Some(queued) = queued {
            self.marks.set_queued(queued);
        }
        self.marks.set_published(revision);
        !self.changes.is_closed()
    }
}

struct EmbeddedWatch {
    prefix: String,
    limit: usize,
    replay: VecDeque<Arc<Change>>,
    changes: mpsc::Receiver<Arc<Change>>,
    marks: Arc<Marks>,
    overflowed: Arc<AtomicBool>,
    progress_wanted: bool,
    ended: bool,
}

impl EmbeddedWatch {
    fn end(&mut self) -> Option<Result<WatchEvent>> {
        self.ended = true;
        self.overflowed.load(Ordering::Acquire).then(|| {
            Err(Error::Overflow {
                prefix: self.prefix.clone(),
                limit: self.limit,
            })
        })
    }
}

impl Stream for EmbeddedWatch {
    type Item = Result<WatchEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        if let Some(change) = this.replay.pop_front() {
            return Poll::Ready(Some(Ok(WatchEvent::Change(change))));
        }
        if this.progress_wanted {
            // Read before the look into the channel: what is published by now is in
            // it, so that an empty channel means that all of it was delivered.
            let published = this.marks.published();
            match this.changes.try_recv() {
                Ok(change) => return Poll::Ready(Some(Ok(WatchEvent::Change(change)))),
                Err(TryRecvError::Empty) => {
                    this.progress_wanted = false;
                    return Poll::Ready(Some(Ok(WatchEvent::Progress(published))));
                }
                Err(TryRecvError::Disconnected) => return Poll::Ready(this.end()),
            }
        }
        match this.changes.poll_recv(cx) {
            Poll::Ready(Some(change)) => Poll::Ready(Some(Ok(WatchEvent::Change(change)))),
            Poll::Ready(None) => Poll::Ready(this.end()),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl WatchSource for EmbeddedWatch {
    fn request_progress(&mut self) {
        self.progress_wanted = true;
    }

    fn marks(&self) -> Option<Arc<Marks>> {
        Some(Arc::clone(&self.marks))
    }
}
