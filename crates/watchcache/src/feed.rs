//! The task that keeps a cache in step with the store.

use std::sync::Arc;
use std::time::Duration;

use davit_store::{Error as StoreError, ListOptions, Store, WatchEvent, WatchStream};
use davit_task::guard_async;
use futures::FutureExt;
use tokio::time::{Instant, sleep, sleep_until};

use super::object::Decode;
use super::state::Shared;

const TRIM_INTERVAL: Duration = Duration::from_secs(15);
const RETRY: Duration = Duration::from_millis(500);

/// How many changes are applied before others get their turn.
const BURST: usize = 64;

/// Where the feed begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    /// Where it was, or at the oldest state.
    History,
    /// At the state of now: something of the past cannot be read, and may be gone since.
    Present,
}

pub(super) struct Feed {
    store: Arc<dyn Store>,
    prefix: String,
    decode: Decode,
    shared: Arc<Shared>,
}

impl Feed {
    pub(super) fn new(
        store: Arc<dyn Store>,
        prefix: String,
        decode: Decode,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            store,
            prefix,
            decode,
            shared,
        }
    }

    /// Follows the store until it is closed.
    pub(super) async fn run(self) {
        let mut from = From::History;
        loop {
            let following = async {
                match self.connect(from).await {
                    Ok(stream) => {
                        self.shared.set_unreadable(None);
                        self.follow(stream).await
                    }
                    Err(error) => Err(error),
                }
            };
            let result = guard_async("watchcache", "feed", &self.prefix, following).await;
            self.shared.set_marks(None);
            // a panic has been logged
            let Ok(result) = result else {
                sleep(RETRY).await;
                continue;
            };
            match result {
                Ok(()) | Err(StoreError::Closed) => break,
                // Everything since the last change applied is still in the store.
                Err(StoreError::Overflow { .. }) => from = From::History,
                Err(error) => {
                    from = From::History;
                    if matches!(error, StoreError::Unreadable { .. }) {
                        from = From::Present;
                        self.shared.set_unreadable(Some(error.clone()));
                    }
                    tracing::warn!(prefix = %self.prefix, %error, "cannot follow the store");
                    sleep(RETRY).await;
                }
            }
        }
        self.shared.close_watches();
    }

    /// Opens the watch of the store, from where this cache is if that is still
    /// possible, or after loading everything.
    async fn connect(&self, from: From) -> Result<WatchStream, StoreError> {
        if self.shared.is_loaded() && from == From::History {
            match self.store.watch(&self.prefix, self.shared.applied()).await {
                Err(StoreError::Compacted { .. }) => {}
                result => return result,
            }
        }
        loop {
            match self.load(from).await {
                // It was compacted between the question and the use of the answer.
                Err(StoreError::Compacted { .. }) => {}
                result => return result,
            }
        }
    }

    /// Loads the state and opens the watch that continues it.
    ///
    /// The first load begins at the oldest state the store has and runs through its
    /// history, so that clients can resume from before a restart. A later one begins
    /// at the present, because its history has a gap anyway.
    async fn load(&self, from: From) -> Result<WatchStream, StoreError> {
        let revision = if self.shared.is_loaded() || from == From::Present {
            None
        } else {
            Some(self.store.oldest_revision().await?)
        };
        let options = ListOptions {
            revision,
            ..ListOptions::default()
        };
        let listing = self.store.list(&self.prefix, options).await?;
        let mut objects = Vec::with_capacity(listing.items.len());
        for pairs in listing.items.chunks(BURST) {
            objects.extend(pairs.iter().map(|pair| Arc::new((self.decode)(pair))));
            tokio::task::yield_now().await;
        }
        let stream = self.store.watch(&self.prefix, listing.revision).await?;
        self.shared.reset(objects, listing.revision);
        Ok(stream)
    }

    /// Applies what the watch brings. Returns when the store is closed.
    async fn follow(&self, mut stream: WatchStream) -> Result<(), StoreError> {
        self.shared.set_marks(stream.marks());
        // The answer tells that the history has been run through.
        stream.request_progress();
        let mut next_trim = None;
        loop {
            let trim = async {
                match next_trim {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                item = stream.next() => {
                    let Some(item) = item else { return Ok(()) };
                    self.take(item?);
                    self.take_ready(&mut stream).await?;
                    self.shared.notify();
                }
                () = self.shared.progress_request() => stream.request_progress(),
                () = trim => next_trim = None,
            }
            if next_trim.is_none() && self.shared.trim() {
                next_trim = Some(Instant::now() + TRIM_INTERVAL);
            }
        }
    }

    /// Takes what has already arrived. The end of the stream is left to the caller.
    async fn take_ready(&self, stream: &mut WatchStream) -> Result<(), StoreError> {
        for _ in 0..BURST {
            match stream.next().now_or_never() {
                Some(Some(item)) => self.take(item?),
                Some(None) | None => return Ok(()),
            }
        }
        tokio::task::yield_now().await;
        Ok(())
    }

    fn take(&self, item: WatchEvent) {
        match item {
            WatchEvent::Change(change) => {
                self.shared.apply(&change, |pair| (self.decode)(pair));
            }
            WatchEvent::Progress(revision) => {
                self.shared.set_synced(revision);
                self.shared.set_loaded();
            }
        }
    }
}
