//! Watch streams.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures::{Stream, StreamExt};

use crate::{Change, Result};

/// An item of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// A committed write. All watchers share the same value.
    Change(Arc<Change>),
    /// Every change up to and including this revision has been delivered on this
    /// stream; the answer to [`WatchStream::request_progress`].
    Progress(u64),
}

/// What an engine implements to provide a watch.
pub trait WatchSource: Stream<Item = Result<WatchEvent>> + Send + Unpin {
    /// Asks for a [`WatchEvent::Progress`]; see [`WatchStream::request_progress`].
    fn request_progress(&mut self);

    /// The marks of this watch, if the engine keeps them.
    fn marks(&self) -> Option<Arc<Marks>> {
        None
    }
}

/// The changes under a prefix, in revision order. After an error the stream ends.
pub struct WatchStream(Box<dyn WatchSource>);

impl WatchStream {
    /// Wraps an engine's source.
    pub fn new(source: impl WatchSource + 'static) -> Self {
        Self(Box::new(source))
    }

    /// The next item; `None` when the store was closed or after an error. Dropping
    /// the returned future loses nothing.
    pub async fn next(&mut self) -> Option<Result<WatchEvent>> {
        StreamExt::next(self).await
    }

    /// Asks for one [`WatchEvent::Progress`]. It comes in order, after the changes
    /// it vouches for, with a revision of at least that of the newest write that
    /// was acknowledged before this call. Requests made before the answer has
    /// arrived may share one.
    pub fn request_progress(&mut self) {
        self.0.request_progress();
    }

    /// Shared counters that tell, without a round trip, whether a consumer has seen
    /// everything; `None` if the engine cannot tell.
    #[must_use]
    pub fn marks(&self) -> Option<Arc<Marks>> {
        self.0.marks()
    }
}

impl Stream for WatchStream {
    type Item = Result<WatchEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.0).poll_next(cx)
    }
}

impl fmt::Debug for WatchStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchStream")
    }
}

/// How far a watch has been filled, readable from anywhere.
///
/// The engine raises `queued` before `published`, so whoever reads `published`
/// first and `queued` second knows that no change of this watch with a revision up
/// to `published` lies beyond `queued`.
#[derive(Debug, Default)]
pub struct Marks {
    published: AtomicU64,
    queued: AtomicU64,
}

impl Marks {
    /// Marks of a watch that starts at `revision`.
    #[must_use]
    pub fn new(revision: u64) -> Self {
        Self {
            published: AtomicU64::new(revision),
            queued: AtomicU64::new(revision),
        }
    }

    /// The newest revision whose change, if it belongs to this watch, has been
    /// queued. Never below the newest acknowledged write.
    #[must_use]
    pub fn published(&self) -> u64 {
        self.published.load(Ordering::Acquire)
    }

    /// Revision of the last change queued for this watch.
    #[must_use]
    pub fn queued(&self) -> u64 {
        self.queued.load(Ordering::Acquire)
    }

    /// The newest revision at which a consumer that has applied everything up to
    /// `applied` is complete: `applied` itself, or later if nothing for this watch
    /// happened since.
    #[must_use]
    pub fn complete_at(&self, applied: u64) -> u64 {
        let published = self.published();
        if self.queued() <= applied {
            published.max(applied)
        } else {
            applied
        }
    }

    /// Records that the change of `revision` was queued. For engines.
    pub fn set_queued(&self, revision: u64) {
        self.queued.store(revision, Ordering::Release);
    }

    /// Records that all changes up to `revision` were offered. For engines.
    pub fn set_published(&self, revision: u64) {
        self.published.store(revision, Ordering::Release);
    }
}
