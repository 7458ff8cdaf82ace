//! The log on disk.
//!
//! One keyspace of the embedded database. The key of a record begins with its
//! revision (big-endian), so that the records lie in revision order; the value is
//! the value written, untouched. Record 0 is the header: format and the revision up
//! to which history has been compacted. Above that revision the log has no holes,
//! which is checked when it is opened; below it only the current version of each
//! key is left. The database checksums its journal and its tables.

use std::collections::HashSet;
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode,
};

use super::journal::{self, JournalState};
use super::life;
use super::mvcc::{FIRST_REVISION, Mvcc, RecordId};
use super::records::{FjallRecords, Records};
use super::space::{Room, Space};
use crate::{Change, Error, KeyValue, Result};

/// Where the writer thread puts its batches.
pub(super) trait Disk: Send {
    /// What may be written now, with `bytes` of values to come.
    fn room(&mut self, _bytes: usize) -> Room {
        Room::Enough
    }

    /// Appends changes; durable when it returns.
    fn append(&mut self, changes: &[Arc<Change>]) -> Result<(), DiskError>;

    /// Removes records and notes that history is compacted up to `revision`.
    fn forget(&mut self, garbage: &[RecordId], revision: u64) -> Result<(), DiskError>;

    /// The values that memory does not hold.
    fn records(&self) -> Arc<dyn Records>;

    /// Notes that the store ends in order, and with which revision.
    fn close(&mut self, _revision: u64) {}

    /// Opens the log anew after [`DiskError::Stopped`], and answers with what is in it.
    fn reopen(&mut self) -> Result<Mvcc> {
        Err(Error::Closed)
    }
}

/// Why the disk did not take a batch.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum DiskError {
    /// There is no space, or the database gave up its background work: all that was acknowledged is in the log, which can be
    /// opened anew.
    #[error("{0}")]
    Stopped(String),
    /// What is on the disk is not known.
    #[error("{0}")]
    Broken(String),
}

impl From<fjall::Error> for DiskError {
    fn from(error: fjall::Error) -> Self {
        let full = |error: &std::io::Error| {
            use std::io::ErrorKind::{QuotaExceeded, StorageFull};
            matches!(error.kind(), StorageFull | QuotaExceeded)
        };
        let stopped = match &error {
            fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => {
                full(error)
            }
            // This thread's own failures are told by themselves, and nothing is written after them.
            fjall::Error::Poisoned => true,
            _ => false,
        };
        let detail = error.to_string();
        if stopped {
            Self::Stopped(detail)
        } else {
            Self::Broken(detail)
        }
    }
}

const FORMAT: u32 = 1;
const HEADER_KEY: [u8; 8] = [0; 8];
const KEYSPACE: &str = "revisions";

/// Removals in one batch, so that no commit waits behind many of them.
const FORGET_BATCH: usize = 4096;

// The recent state is in memory, and what is read from the database was not written for minutes: it needs hardly any
// cache beside the kernel's. Its write buffer shares the values with the state.
const CACHE_BYTES: u64 = 2 << 20;
const MEMTABLE_BYTES: u64 = 8 << 20;
const JOURNAL_BYTES: u64 = 128 << 20;

/// What the database may write right after it is opened: what its journal holds beyond the tables.
const OPENING_BYTES: u64 = MEMTABLE_BYTES;

pub(super) struct FjallDisk {
    dir: PathBuf,
    path: PathBuf,
    space: Space,
    /// `None` while there is no space to open it.
    log: Option<Log>,
    records: Arc<FjallRecords>,
    /// What a commit waits for.
    durability: PersistMode,
    /// Held, and with it the lock, until the database is closed.
    _lock: File,
}

/// The open database.
struct Log {
    durability: PersistMode,
    database: Database,
    records: Keyspace,
}

impl FjallDisk {
    /// Opens or creates the log in `dir` and reads the state from it.
    pub(super) fn open(dir: &Path, sync: bool) -> Result<(Self, Mvcc)> {
        let durability = if sync {
            PersistMode::SyncData
        } else {
            PersistMode::Buffer
        };
        // Objects are in here as they are, Secrets too.
        davit_beneath::private_dir(dir, 0o700)
            .map_err(|error| io("create the store directory", &error.into()))?;
        life::look(dir).map_err(|error| io("look at the store directory", &error))?;
        let lock = lock(dir)?;
        let mut space = Space::open(dir).map_err(|error| io("look at the space", &error))?;
        // Opening writes a little, and a full disk may still hold the reserve.
        space
            .room(0)
            .map_err(|error| io("look at the space", &error))?;
        let path = dir.join(life::DATABASE);
        let complete = life::is_complete(dir);
        let closed = life::closed_at(dir);
        if complete {
            check_journal(&path, closed.is_some())?;
        } else {
            refuse_whole(dir, &path, durability)?;
            life::clear(&path)?;
        }
        let log = Log::open(&path, durability)?;
        if !complete {
            log.write_header(FIRST_REVISION)
                .map_err(|error| Error::Io {
                    action: "create the store",
                    detail: error.to_string(),
                })?;
            life::finish(dir).map_err(|error| io("create the store", &error))?;
        }
        let state = log.load(&path)?;
        if let Some(closed) = closed.filter(|closed| *closed > state.revision()) {
            let first = state.revision() + 1;
            let detail = format!(
                "revisions {first} to {closed} are missing at its end, by the file \"closed\""
            );
            return Err(Error::Corrupt { path, detail });
        }
        life::reopen(dir).map_err(|error| io("open the store", &error))?;
        let disk = Self {
            dir: dir.to_owned(),
            records: Arc::new(FjallRecords::new(path.clone(), log.records.clone())),
            path,
            space,
            log: Some(log),
            durability,
            _lock: lock,
        };
        Ok((disk, state))
    }

    /// Makes a log of a backup: its pairs with their revisions, their history compacted up to `revision`. Until all of it
    /// is on the disk there is no store in the directory.
    pub(super) fn create_from(
        dir: &Path,
        revision: u64,
        pairs: impl Iterator<Item = Result<KeyValue>>,
    ) -> Result<()> {
        davit_beneath::private_dir(dir, 0o700)
            .map_err(|error| io("create the store directory", &error.into()))?;
        let _lock = lock(dir)?;
        let path = dir.join(life::DATABASE);
        if life::is_complete(dir) {
            return Err(Error::NotEmpty {
                path: dir.to_owned(),
            });
        }
        life::clear(&path)?;
        let failed = |error: &dyn std::fmt::Display| Error::Io {
            action: "restore the store",
            detail: error.to_string(),
        };
        let log = Log::open(&path, PersistMode::SyncData)?;
        let mut seen = HashSet::new();
        let mut batch = log.batch();
        for pair in pairs {
            let pair = pair?;
            if !seen.insert(pair.mod_revision) || pair.mod_revision > revision {
                let fault = format!("revision {} is not its own", pair.mod_revision);
                return Err(failed(&fault));
            }
            let key = record_key(pair.mod_revision, pair.create_revision, false, &pair.key);
            batch.insert(&log.records, key, pair.value);
            if seen.len() % FORGET_BATCH == 0 {
                let full = std::mem::replace(&mut batch, log.batch());
                full.commit().map_err(|error| failed(&error))?;
            }
        }
        batch.commit().map_err(|error| failed(&error))?;
        log.write_header(revision).map_err(|error| failed(&error))?;
        life::finish(dir).map_err(|error| io("restore the store", &error))
    }

    fn log(&self) -> Result<&Log, DiskError> {
        let closed = || DiskError::Stopped("the log is not open".to_owned());
        self.log.as_ref().ok_or_else(closed)
    }
}

impl Log {
    fn open(path: &Path, durability: PersistMode) -> Result<Self> {
        let database = Database::builder(path)
            .cache_size(CACHE_BYTES)
            .max_journaling_size(JOURNAL_BYTES)
            .journal_compression(CompressionType::None)
            .manual_journal_persist(true)
            .worker_threads(1)
            .open()
            .map_err(|error| database_error(path, "open the store", &error))?;
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(MEMTABLE_BYTES)
                .manual_journal_persist(true)
        };
        let records = database
            .keyspace(KEYSPACE, options)
            .map_err(|error| database_error(path, "open the store", &error))?;
        Ok(Self {
            durability,
            database,
            records,
        })
    }

    /// Reads the state, and removes what an interrupted compaction left.
    fn load(&self, path: &Path) -> Result<Mvcc> {
        let (state, garbage) = self.read(path)?;
        if !garbage.is_empty() {
            self.forget(&garbage, state.oldest())
                .map_err(|error| Error::Io {
                    action: "clean up the store",
                    detail: error.to_string(),
                })?;
        }
        Ok(state)
    }

    /// A batch that is durable when it is committed, as far as asked for.
    fn batch(&self) -> OwnedWriteBatch {
        self.database.batch().durability(Some(self.durability))
    }

    fn write_header(&self, compacted: u64) -> Result<(), DiskError> {
        let mut batch = self.batch();
        batch.insert(&self.records, HEADER_KEY, header(compacted));
        Ok(batch.commit()?)
    }

    fn append(&self, changes: &[Arc<Change>]) -> Result<(), DiskError> {
        let mut batch = self.batch();
        for change in changes {
            let (create_revision, value) = match &change.current {
                Some(pair) => (pair.create_revision, pair.value.clone()),
                None => (0, Bytes::new()),
            };
            let delete = change.current.is_none();
            let key = record_key(change.revision, create_revision, delete, &change.key);
            batch.insert(&self.records, key, value);
        }
        Ok(batch.commit()?)
    }

    fn forget(&self, garbage: &[RecordId], revision: u64) -> Result<(), DiskError> {
        // The header goes first: what is removed before a crash was then already
        // compacted, and what is not is found and removed at the next start.
        self.write_header(revision)?;
        for some in garbage.chunks(FORGET_BATCH) {
            let mut batch = self.batch();
            for id in some {
                let key = record_key(id.revision, id.create_revision, id.delete, &id.key);
                batch.remove(&self.records, key);
            }
            batch.commit()?;
        }
        Ok(())
    }

    /// Rebuilds the state, and finds records that an interrupted compaction left.
    fn read(&self, path: &Path) -> Result<(Mvcc, Vec<RecordId>)> {
        let corrupt = |detail: String| Error::Corrupt {
            path: path.to_owned(),
            detail,
        };
        let mut entries = self.records.iter().map(|guard| {
            guard
                .into_inner()
                .map_err(|error| database_error(path, "read the store", &error))
        });
        let compacted = match entries.next().transpose()? {
            Some((key, value)) if *key == HEADER_KEY => parse_header(&value).map_err(corrupt)?,
            _ => return Err(corrupt("the header is missing".to_owned())),
        };
        let reader = FjallRecords::new(path.to_owned(), self.records.clone());
        let mut state = Mvcc::new(compacted);
        let mut garbage = Vec::new();
        let now = Instant::now();
        let mut previous_revision = 0;
        for entry in entries {
            let (key, value) = entry?;
            let record = Record::parse(&key).map_err(corrupt)?;
            if record.revision <= previous_revision {
                return Err(corrupt(format!(
                    "revision {} occurs twice",
                    record.revision
                )));
            }
            previous_revision = record.revision;
            if record.revision <= compacted {
                restore(&mut state, &mut garbage, &record);
            } else if record.revision == state.revision() + 1 {
                // A copy of exactly the value: a slice would keep a whole block alive.
                let value = (!record.delete).then(|| Bytes::copy_from_slice(&value));
                let previous = state
                    .get(record.key)
                    .map(|found| found.resolve(|id| reader.read(id)))
                    .transpose()?;
                let change = replay(&state, &record, value, previous).map_err(corrupt)?;
                state.apply(Arc::new(change), now);
            } else {
                let detail = format!(
                    "revisions {} to {} are missing",
                    state.revision() + 1,
                    record.revision - 1
                );
                return Err(corrupt(detail));
            }
        }
        Ok((state, garbage))
    }
}

impl Disk for FjallDisk {
    fn room(&mut self, bytes: usize) -> Room {
        let asked = if self.log.is_some() {
            bytes as u64
        } else {
            // Reading the log is worth while only if it stays open then.
            OPENING_BYTES
        };
        self.space.room(asked).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot tell how much space is left for the store");
            Room::Enough
        })
    }

    fn append(&mut self, changes: &[Arc<Change>]) -> Result<(), DiskError> {
        self.log()?.append(changes)
    }

    fn forget(&mut self, garbage: &[RecordId], revision: u64) -> Result<(), DiskError> {
        self.log()?.forget(garbage, revision)
    }

    fn records(&self) -> Arc<dyn Records> {
        Arc::clone(&self.records) as _
    }

    fn close(&mut self, revision: u64) {
        // Without syncs what was written may still be lost, and that is no damage then.
        if self.log.is_none() || self.durability != PersistMode::SyncData {
            return;
        }
        if let Err(error) = life::close(&self.dir, revision) {
            tracing::debug!(%error, "cannot note that the store was closed");
        }
    }

    fn reopen(&mut self) -> Result<Mvcc> {
        self.records.replace(None);
        self.log = None;
        check_journal(&self.path, false)?;
        let log = Log::open(&self.path, self.durability)?;
        let state = log.load(&self.path)?;
        self.records.replace(Some(log.records.clone()));
        self.log = Some(log);
        Ok(state)
    }
}

/// Takes in a record from before the history.
fn restore(state: &mut Mvcc, garbage: &mut Vec<RecordId>, record: &Record<'_>) {
    garbage.extend(state.record_of(record.key));
    let key = state
        .shared_key(record.key)
        .unwrap_or_else(|| Arc::from(record.key));
    let id = RecordId {
        revision: record.revision,
        create_revision: record.create_revision,
        delete: record.delete,
        key,
    };
    if record.delete {
        garbage.push(id.clone());
    }
    state.restore(id);
}

/// The change a record of the history stands for.
fn replay(
    state: &Mvcc,
    record: &Record<'_>,
    value: Option<Bytes>,
    previous: Option<KeyValue>,
) -> Result<Change, String> {
    let revision = record.revision;
    let created = previous
        .as_ref()
        .map_or(revision, |pair| pair.create_revision);
    if value.is_some() && record.create_revision != created {
        return Err(format!(
            "revision {revision} does not follow from the one before"
        ));
    }
    let key = state
        .shared_key(record.key)
        .unwrap_or_else(|| Arc::from(record.key));
    let current = value.map(|value| KeyValue {
        key: Arc::clone(&key),
        value,
        mod_revision: revision,
        create_revision: created,
    });
    Ok(Change {
        revision,
        key,
        current,
        previous,
    })
}

/// The key of a record, taken apart.
struct Record<'a> {
    revision: u64,
    create_revision: u64,
    delete: bool,
    key: &'a str,
}

const PUT: u8 = 1;
const DELETE: u8 = 2;

pub(super) fn record_key(revision: u64, create_revision: u64, delete: bool, key: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(17 + key.len());
    bytes.extend_from_slice(&revision.to_be_bytes());
    bytes.push(if delete { DELETE } else { PUT });
    bytes.extend_from_slice(&create_revision.to_be_bytes());
    bytes.extend_from_slice(key.as_bytes());
    bytes
}

impl<'a> Record<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        let broken = || format!("record key {bytes:02x?} has a wrong form");
        let (revision, rest) = bytes.split_first_chunk::<8>().ok_or_else(broken)?;
        let (operation, rest) = rest.split_first().ok_or_else(broken)?;
        let (create_revision, key) = rest.split_first_chunk::<8>().ok_or_else(broken)?;
        let delete = match *operation {
            PUT => false,
            DELETE => true,
            _ => return Err(broken()),
        };
        Ok(Self {
            revision: u64::from_be_bytes(*revision),
            create_revision: u64::from_be_bytes(*create_revision),
            delete,
            key: std::str::from_utf8(key).map_err(|_| broken())?,
        })
    }
}

fn header(compacted: u64) -> Vec<u8> {
    [&FORMAT.to_be_bytes()[..], &compacted.to_be_bytes()[..]].concat()
}

fn parse_header(bytes: &[u8]) -> Result<u64, String> {
    let broken = || "the header has a wrong form".to_owned();
    let (format, compacted) = bytes.split_first_chunk::<4>().ok_or_else(broken)?;
    let format = u32::from_be_bytes(*format);
    if format != FORMAT {
        return Err(format!(
            "format {format} is not known to this version (it knows {FORMAT})"
        ));
    }
    let compacted: [u8; 8] = compacted.try_into().map_err(|_| broken())?;
    Ok(u64::from_be_bytes(compacted))
}

/// How long a lock is waited for. A process that is killed while it starts a program leaves the lock to that program's
/// first moment, in which it has not let go of inherited files yet.
const LOCK_WAIT: Duration = Duration::from_millis(200);

/// Takes the lock of the directory; the kernel releases it with the process.
fn lock(dir: &Path) -> Result<File> {
    let action = "lock the store directory";
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(dir.join("lock"))
        .map_err(|error| io(action, &error))?;
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                let holder = file
                    .read_to_string(&mut text)
                    .ok()
                    .and_then(|_| text.trim().parse().ok());
                return Err(Error::Locked {
                    path: dir.to_owned(),
                    holder,
                });
            }
            Err(TryLockError::Error(error)) => return Err(io(action, &error)),
        }
    }
    file.set_len(0)
        .and_then(|()| file.seek(SeekFrom::Start(0)))
        .map_err(|error| io(action, &error))?;
    // For the message of the next one only, and a full disk does not take it.
    if let Err(error) = writeln!(file, "{}", std::process::id()) {
        tracing::debug!(%error, "cannot note who holds the store");
    }
    Ok(file)
}

/// A store that has lost its marker is not one that was never finished: that would have nothing in it.
fn refuse_whole(dir: &Path, path: &Path, durability: PersistMode) -> Result<()> {
    let holds = |log: Log| {
        let mut entries = log.records.iter().map(fjall::Guard::key);
        let first = entries.next().and_then(Result::ok);
        first.is_some_and(|key| *key == HEADER_KEY) && entries.next().is_some()
    };
    if path.exists() && Log::open(path, durability).is_ok_and(holds) {
        return Err(Error::Corrupt {
            path: dir.to_owned(),
            detail: "the file \"complete\" is gone, though there is a whole store (an empty file of that name says so)".to_owned(),
        });
    }
    Ok(())
}

/// Cuts a torn batch off the journal, and refuses a journal that is damaged before
/// its end, or at all if the store was closed: the database would silently drop what follows.
fn check_journal(path: &Path, closed: bool) -> Result<()> {
    let action = "check the journal of the store";
    let Some(journal) = journal::active(path).map_err(|error| io(action, &error))? else {
        return Ok(());
    };
    match journal::inspect(&journal).map_err(|error| io(action, &error))? {
        JournalState::Sound => Ok(()),
        JournalState::Torn { valid } if closed => Err(Error::Corrupt {
            path: journal,
            detail: format!("byte {valid} is damaged, or one of those that follow"),
        }),
        JournalState::Torn { valid } => {
            tracing::info!(journal = %journal.display(), valid, "dropping a write cut short");
            journal::truncate(&journal, valid).map_err(|error| io(action, &error))
        }
        JournalState::Damaged { at } => Err(Error::Corrupt {
            path: journal,
            detail: format!("byte {at} is damaged and acknowledged writes follow it"),
        }),
    }
}

/// What the files below `dir` take on the disk. The journal is mostly a hole; files that go meanwhile take nothing.
pub(super) fn allocated(dir: &Path) -> std::io::Result<u64> {
    const BLOCK: u64 = 512;
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        bytes += if metadata.is_dir() {
            allocated(&entry.path()).unwrap_or(0)
        } else {
            metadata.blocks() * BLOCK
        };
    }
    Ok(bytes)
}

pub(super) fn io(action: &'static str, error: &std::io::Error) -> Error {
    Error::Io {
        action,
        detail: error.to_string(),
    }
}

pub(super) fn database_error(path: &Path, action: &'static str, error: &fjall::Error) -> Error {
    let path = || PathBuf::from(path);
    match error {
        fjall::Error::Locked => Error::Locked {
            path: path(),
            holder: None,
        },
        fjall::Error::Io(error) => io(action, error),
        fjall::Error::Storage(fjall::LsmError::Io(error)) => io(action, error),
        other => Error::Corrupt {
            path: path(),
            detail: other.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_keys_round_trip_in_revision_order() {
        let one = record_key(255, 3, false, "/pods/a");
        let two = record_key(256, 0, true, "");
        assert!(one < two);
        assert!(HEADER_KEY.as_slice() < one.as_slice());
        let record = Record::parse(&one).unwrap();
        assert_eq!((record.revision, record.create_revision), (255, 3));
        assert_eq!((record.delete, record.key), (false, "/pods/a"));
        assert!(Record::parse(&two).unwrap().delete);
    }

    #[test]
    fn broken_records_are_refused() {
        assert!(Record::parse(&HEADER_KEY).is_err());
        assert!(Record::parse(&[0; 17]).is_err());
        let mut key = record_key(1, 1, false, "a");
        key.push(0xff);
        assert!(Record::parse(&key).is_err());
        assert!(parse_header(&header(7)).is_ok_and(|compacted| compacted == 7));
        assert!(parse_header(&[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(parse_header(b"").is_err());
    }
}
