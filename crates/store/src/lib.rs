//! The store: revisions, compare-and-swap, watch, compaction.
//!
//! A [`Store`] maps keys to bytes. Every committed write takes one revision, a
//! `u64` that is unique and strictly increasing over the whole store and is never
//! reused, not even after a crash: it is what Kubernetes calls `resourceVersion`.
//! Reads can ask for the state at an older revision and watches can resume from
//! one, until it is compacted.
//!
//! The embedded engine is [`embedded::EmbeddedStore`]; that on etcd is the crate `davit-etcd`.
//! What every engine owes is written as tests in `contract` (feature
//! `test-support`).

#![forbid(unsafe_code)]

pub mod backup;
#[cfg(feature = "test-support")]
pub mod contract;
pub mod embedded;
mod error;
mod types;
mod watch;

use async_trait::async_trait;

pub use error::{Error, MOST_UNREADABLE, Result, UnreadableValue};
pub use types::{
    Change, Committed, Expect, KeyValue, ListOptions, Listing, Operation, Write, prefix_end,
};
pub use watch::{Marks, WatchEvent, WatchSource, WatchStream};

/// Keys, bytes and revisions.
///
/// All methods are linearizable unless they say otherwise: what one call has
/// acknowledged, every later call sees.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The newest revision this handle knows, without asking anybody.
    ///
    /// The embedded engine answers exactly; over a remote engine it is a lower
    /// bound, and [`Store::current_revision`] asks.
    fn revision(&self) -> u64;

    /// The revision of the newest acknowledged write.
    async fn current_revision(&self) -> Result<u64>;

    /// The oldest revision at which [`Store::list`] still answers and after which
    /// [`Store::watch`] can resume. An engine that cannot tell answers with the
    /// current revision.
    async fn oldest_revision(&self) -> Result<u64>;

    /// The current value of `key`.
    async fn get(&self, key: &str) -> Result<Option<KeyValue>>;

    /// The value `key` had at `revision`.
    ///
    /// Fails with [`Error::Compacted`] or [`Error::FutureRevision`] if the store
    /// does not have that revision.
    async fn get_at(&self, key: &str, revision: u64) -> Result<Option<KeyValue>>;

    /// The pairs whose key starts with `prefix`, in key order: one exact snapshot,
    /// of `opts.revision` or of the current revision.
    ///
    /// Fails with [`Error::Compacted`] or [`Error::FutureRevision`] if the store
    /// does not have that revision.
    async fn list(&self, prefix: &str, opts: ListOptions) -> Result<Listing>;

    /// Applies one compare-and-swap write and returns when it is durable.
    ///
    /// Fails with [`Error::Conflict`], which carries the current pair, if
    /// `write.expect` does not hold, and with [`Error::NotFound`] if an
    /// unconditional delete finds nothing. If the returned future is dropped the
    /// write may still happen; the same holds for [`Error::OutcomeUnknown`].
    async fn commit(&self, write: Write) -> Result<Committed>;

    /// The changes to keys under `prefix` with a revision greater than `after`, in
    /// revision order, each once.
    ///
    /// `after` may lie in the future; the changes up to it are then left out.
    /// Fails with [`Error::Compacted`] if `after` is older than
    /// [`Store::oldest_revision`]. A watcher that does not keep up gets
    /// [`Error::Overflow`] as its last item and can resume from the last revision
    /// it has seen; it never delays a writer.
    async fn watch(&self, prefix: &str, after: u64) -> Result<WatchStream>;

    /// Forgets history before `revision`: lists and watches from older revisions
    /// fail afterwards. Compacting an already compacted revision does nothing.
    async fn compact(&self, revision: u64) -> Result<()>;

    /// Whether pairs that were written with a time to live go when it is over.
    fn expires(&self) -> bool {
        false
    }

    /// Whether the store can acknowledge writes, as far as it knows; for readiness
    /// checks.
    async fn health(&self) -> Result<()> {
        self.current_revision().await.map(drop)
    }

    /// What it takes on its disk, in bytes; `None` if the engine cannot tell.
    async fn size(&self) -> Option<u64> {
        None
    }

    /// Stops accepting writes, waits until the accepted ones are done and releases
    /// what the engine holds. Watches end.
    async fn close(&self);
}
