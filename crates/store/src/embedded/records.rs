//! Values that memory does not hold: they are read from the log on the disk.

use std::path::PathBuf;

use bytes::Bytes;
use fjall::Keyspace;
use parking_lot::RwLock;

use super::disk::{database_error, record_key};
use super::mvcc::RecordId;
use crate::{Error, Result};

/// Where the values of records are.
pub(super) trait Records: Send + Sync {
    /// The value of a record. It may wait for the disk.
    ///
    /// # Errors
    /// [`Error::Compacted`] if there is no such record: what it said has been superseded, and that has been compacted.
    fn read(&self, id: &RecordId) -> Result<Bytes>;
}

/// The records of the log, as long as it is open.
pub(super) struct FjallRecords {
    path: PathBuf,
    keyspace: RwLock<Option<Keyspace>>,
}

impl FjallRecords {
    pub(super) fn new(path: PathBuf, keyspace: Keyspace) -> Self {
        Self {
            path,
            keyspace: RwLock::new(Some(keyspace)),
        }
    }

    /// Another log takes the place of the one before, or none does for now; waits for those who read.
    pub(super) fn replace(&self, keyspace: Option<Keyspace>) {
        *self.keyspace.write() = keyspace;
    }
}

impl Records for FjallRecords {
    fn read(&self, id: &RecordId) -> Result<Bytes> {
        let keyspace = self.keyspace.read();
        let Some(keyspace) = &*keyspace else {
            return Err(Error::Full);
        };
        let key = record_key(id.revision, id.create_revision, id.delete, &id.key);
        let value = keyspace
            .get(key)
            .map_err(|error| database_error(&self.path, "read the store", &error))?;
        // A copy of exactly the value: a slice would keep a whole block alive.
        value
            .map(|value| Bytes::copy_from_slice(&value))
            .ok_or(Error::Compacted {
                requested: id.revision,
                oldest: id.revision + 1,
            })
    }
}
