//! What can go wrong in a store.

use std::path::PathBuf;

use crate::KeyValue;

/// Result of a store call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a store call failed.
///
/// Errors are cloneable because one failed disk write answers every writer whose
/// record was in the batch.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The expectation of a write did not hold.
    #[error("key {key:?} is not as expected: {}", found(current.as_deref()))]
    Conflict {
        /// The key of the write.
        key: String,
        /// What the store has under the key; `None` if it has nothing.
        current: Option<Box<KeyValue>>,
    },

    /// An unconditional delete found nothing.
    #[error("key {key:?} does not exist")]
    NotFound {
        /// The key of the write.
        key: String,
    },

    /// The revision has been compacted.
    #[error("revision {requested} has been compacted, the oldest available is {oldest}")]
    Compacted {
        /// The revision asked for.
        requested: u64,
        /// The oldest revision that can be asked for.
        oldest: u64,
    },

    /// The revision does not exist yet.
    #[error("revision {requested} is in the future, the current one is {current}")]
    FutureRevision {
        /// The revision asked for.
        requested: u64,
        /// The newest revision.
        current: u64,
    },

    /// A watcher did not read its events in time and was dropped.
    #[error("watcher of {prefix:?} is too slow: more than {limit} events wait for it")]
    Overflow {
        /// The prefix watched.
        prefix: String,
        /// How many events may wait.
        limit: usize,
    },

    /// The value is larger than the store takes.
    #[error("value of key {key:?} has {size} bytes, the limit is {limit}")]
    TooLarge {
        /// The key of the write.
        key: String,
        /// Size of the value in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },

    /// The key is empty, longer than 4096 bytes or holds a NUL byte.
    #[error("key {key:?} is not valid: {reason}")]
    InvalidKey {
        /// The key, cut if it is long.
        key: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// The queue of writes stayed full; the write was not accepted.
    #[error("store is overloaded: no place in the write queue for {waited_ms} ms")]
    Busy {
        /// How long the writer waited.
        waited_ms: u64,
    },

    /// The write was accepted but not confirmed in time: it may or may not happen.
    #[error("write of key {key:?} was not confirmed in time, its outcome is unknown")]
    OutcomeUnknown {
        /// The key of the write.
        key: String,
    },

    /// Another process has the directory open.
    #[error("store at {path} is in use by another process{}", holder.map(|p| format!(" (pid {p})")).unwrap_or_default(), path = path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The process that says it holds the lock.
        holder: Option<u32>,
    },

    /// What is on disk is damaged.
    #[error("store at {path} is damaged: {detail}", path = path.display())]
    Corrupt {
        /// The directory or file.
        path: PathBuf,
        /// What was found.
        detail: String,
    },

    /// Values that are there cannot be read: the key they are encrypted with is lost, or they are damaged.
    #[error("{}", unreadable(found, *more))]
    Unreadable {
        /// The first of them, at most [`MOST_UNREADABLE`], and at least one.
        found: Vec<UnreadableValue>,
        /// There are more.
        more: bool,
    },

    /// The operating system or the database refused.
    #[error("cannot {action}: {detail}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The answer.
        detail: String,
    },

    /// The disk is full. Deletions may still be taken, and all writes are when there is room again.
    #[error("cannot write to the store: no space left on device")]
    Full,

    /// A write failed earlier; no later one is acknowledged until the store is
    /// opened again.
    #[error("store refuses writes after a failed one: {cause}")]
    Poisoned {
        /// The first failure.
        cause: String,
    },

    /// The store has been closed.
    #[error("store is closed")]
    Closed,

    /// A remote engine does not answer; the write was not made. In its words.
    #[error("{0}")]
    Unavailable(String),

    /// A remote engine has refused the request. In its words.
    #[error("{0}")]
    Refused(String),

    /// A restore is refused: there is something that it would replace.
    #[error("the store at {path} is not empty; a backup is restored into an empty one", path = path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },

    /// Another server owns the store.
    #[error("the store is owned by {holder}: one API server uses it at a time")]
    Owned {
        /// How it names itself.
        holder: String,
    },
}

/// How many values that cannot be read an error tells of.
pub const MOST_UNREADABLE: usize = 100;

/// A value that is in the store and cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableValue {
    /// Its key.
    pub key: String,
    /// The revision at which it was written.
    pub revision: u64,
    /// Why it cannot be read.
    pub detail: String,
}

impl From<UnreadableValue> for Error {
    fn from(value: UnreadableValue) -> Self {
        Error::Unreadable {
            found: vec![value],
            more: false,
        }
    }
}

fn unreadable(found: &[UnreadableValue], more: bool) -> String {
    let first = found.first();
    let first = first.map(|value| {
        let UnreadableValue {
            key,
            revision,
            detail,
        } = value;
        format!("{key} of revision {revision}: {detail}")
    });
    let first = first.unwrap_or_default();
    match found.len() {
        1 if !more => format!("stored value cannot be read: {first}"),
        count => {
            let least = if more { "more than " } else { "" };
            format!("{least}{count} stored values cannot be read: {first} …")
        }
    }
}

fn found(current: Option<&KeyValue>) -> String {
    match current {
        Some(pair) => format!("it is at revision {}", pair.mod_revision),
        None => "it does not exist".to_owned(),
    }
}
