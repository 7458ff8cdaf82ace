//! The embedded engine.
//!
//! On disk it is a log in an embedded database: one record for each revision,
//! written by one thread that gathers whatever waits into one batch and one
//! `fdatasync` (group commit). In memory it holds every key and the recent history with its values ([`mvcc`]), so that
//! whoever reads what was written of late never waits for the disk; a value older than the history is read from it
//! ([`records`]), which costs a few microseconds where the kernel has the block, and no memory for what nobody asks about.
//! A write is applied in memory, shown to watchers and acknowledged only after its
//! batch is durable.

mod disk;
mod journal;
mod life;
mod mvcc;
mod queue;
mod records;
mod space;
mod watchers;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use self::disk::Disk;
use self::mvcc::{Mvcc, StoredPair};
use self::queue::{Queue, Request};
use self::records::Records;
use self::watchers::Watchers;
use self::writer::Writer;
use crate::backup::{BackupReader, REVISION_BUMP};
use crate::{Committed, Error, KeyValue, ListOptions, Listing, Result, Store, WatchStream, Write};

/// Limits of the embedded engine. The default suits a cluster of one process.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// How many writes may wait for the writer thread before [`Store::commit`]
    /// waits for a place.
    pub queue: usize,
    /// How many writes one batch takes at most.
    pub batch_writes: usize,
    /// How many bytes of values one batch takes at most (one write always fits).
    pub batch_bytes: usize,
    /// Largest value in bytes.
    pub max_value_bytes: usize,
    /// How many changes may wait for one watcher before it is dropped.
    pub watch_buffer: usize,
    /// History younger than this is kept unless the next two limits are hit.
    pub retention: Duration,
    /// How many changes of history are kept at most.
    pub history_entries: usize,
    /// How many bytes of memory the history takes at most, with the values that its changes wrote and superseded.
    pub history_bytes: usize,
    /// How long a commit waits for a place in the queue, and then again for its
    /// confirmation.
    pub commit_timeout: Duration,
    /// A commit waits for the disk. Without it a crash of the machine, not of the process, loses what came last.
    pub sync: bool,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            queue: 4096,
            batch_writes: 1024,
            batch_bytes: 8 << 20,
            max_value_bytes: 8 << 20,
            watch_buffer: 8192,
            retention: Duration::from_secs(300),
            history_entries: 200_000,
            history_bytes: 32 << 20,
            commit_timeout: Duration::from_secs(30),
            sync: true,
        }
    }
}

/// How often a read of the current state begins anew. Compaction can only overtake it if somebody compacts everything
/// meanwhile, and does not while the state is locked, as it is for the last try.
const OVERTAKEN: u32 = 8;

/// What the handle and the writer thread share.
struct Shared {
    options: EmbeddedOptions,
    state: RwLock<Mvcc>,
    /// The values that the state does not hold.
    records: Arc<dyn Records>,
    watchers: Watchers,
    queue: Queue,
    /// Newest revision that every watcher has been offered.
    published: AtomicU64,
    /// The first failed write, after which none is acknowledged.
    poison: OnceLock<String>,
    /// There is no space for writes that need some.
    full: AtomicBool,
}

/// A store in a directory of this machine, used by one process at a time.
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    dir: PathBuf,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl EmbeddedStore {
    /// Opens the store in `dir`, creating both if they do not exist, and verifies
    /// what it finds.
    ///
    /// A disk that is full is no error here: the store reads, deletes, and refuses other writes with [`Error::Full`] until
    /// there is space again.
    ///
    /// Fails with [`Error::Locked`] if another process (or another handle of this
    /// one) has it open, with [`Error::Corrupt`] if acknowledged writes are damaged
    /// or missing, and with [`Error::Io`]. A write that was cut short by a crash was
    /// not acknowledged and is dropped without an error.
    pub async fn open(dir: impl AsRef<Path>, options: EmbeddedOptions) -> Result<Self> {
        let dir = dir.as_ref().to_owned();
        tokio::task::spawn_blocking(move || Self::open_blocking(&dir, options))
            .await
            .map_err(|error| Error::Io {
                action: "open the store",
                detail: error.to_string(),
            })?
    }

    /// Makes a store of a backup, in a directory that has none. Pairs keep their revisions; the store's own is
    /// [`backup::REVISION_BUMP`](crate::backup::REVISION_BUMP) above the backup's and all history is compacted, so that
    /// whoever watches begins anew. For threads that may block.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], or what is wrong with the backup or the disk; there is no store then.
    pub fn restore<R: std::io::Read>(dir: &Path, backup: BackupReader<R>) -> Result<()> {
        let revision = backup.revision() + REVISION_BUMP;
        let pairs = backup.map(|pair| {
            pair.map_err(|error| Error::Io {
                action: "read the backup",
                detail: error.to_string(),
            })
        });
        disk::FjallDisk::create_from(dir, revision, pairs)
    }

    /// Like [`EmbeddedStore::open`], for threads that may block.
    pub fn open_blocking(dir: &Path, options: EmbeddedOptions) -> Result<Self> {
        let (disk, state) = disk::FjallDisk::open(dir, options.sync)?;
        Self::start(dir, options, Box::new(disk), state)
    }

    fn start(
        dir: &Path,
        options: EmbeddedOptions,
        disk: Box<dyn Disk>,
        state: Mvcc,
    ) -> Result<Self> {
        let revision = state.revision();
        let shared = Arc::new(Shared {
            queue: Queue::new(options.queue),
            options,
            state: RwLock::new(state),
            records: disk.records(),
            watchers: Watchers::default(),
            published: AtomicU64::new(revision),
            poison: OnceLock::new(),
            full: AtomicBool::new(false),
        });
        let mut writer = Writer::new(Arc::clone(&shared), disk);
        writer.look_for_room(0);
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(|error| Error::Io {
                action: "start the writer thread of the store",
                detail: error.to_string(),
            })?;
        Ok(Self {
            shared,
            dir: dir.to_owned(),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// The directory of the store.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn check_writable(&self) -> Result<()> {
        match self.shared.poison.get() {
            Some(cause) => Err(Error::Poisoned {
                cause: cause.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Puts a request into the writer's queue and waits for the answer.
    async fn ask<T>(
        &self,
        key: &str,
        request: impl FnOnce(oneshot::Sender<Result<T>>) -> Request,
    ) -> Result<T> {
        self.check_writable()?;
        let timeout = self.shared.options.commit_timeout;
        let slot = match tokio::time::timeout(timeout, self.shared.queue.slot()).await {
            Ok(slot) => slot?,
            Err(_) => {
                return Err(Error::Busy {
                    waited_ms: timeout.as_millis() as u64,
                });
            }
        };
        let (reply, answer) = oneshot::channel();
        self.shared.queue.push(request(reply), slot)?;
        match tokio::time::timeout(timeout, answer).await {
            Ok(Ok(result)) => result,
            // The writer never drops a request unanswered unless it has died.
            Ok(Err(_)) | Err(_) => Err(Error::OutcomeUnknown {
                key: key.to_owned(),
            }),
        }
    }

    /// The listing at an exact revision, taken in pieces so that the writer never
    /// waits for a long one.
    async fn list_at(&self, prefix: &str, opts: &ListOptions, revision: u64) -> Result<Listing> {
        const PIECE: usize = 2048;
        let mut page = mvcc::Page::new(prefix, opts);
        loop {
            let state = self.shared.state.read();
            state.check_revision(revision)?;
            if state.fill(&mut page, revision, PIECE) {
                break;
            }
        }
        self.with_records(page.is_held(), move |shared| {
            page.finish(revision, |id| shared.records.read(id))
        })
        .await
    }

    /// The pair at an exact revision.
    async fn pair_at(&self, key: &str, revision: u64) -> Result<Option<KeyValue>> {
        let found = {
            let state = self.shared.state.read();
            state.check_revision(revision)?;
            state.get_at(key, revision)
        };
        let Some(found) = found else { return Ok(None) };
        self.with_records(matches!(found, StoredPair::Pair(_)), move |shared| {
            found.resolve(|id| shared.records.read(id)).map(Some)
        })
        .await
    }

    /// Does what may read records where it may wait for the disk; at once if everything is `held` in memory.
    async fn with_records<T: Send + 'static>(
        &self,
        held: bool,
        read: impl FnOnce(&Shared) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if held {
            return read(&self.shared);
        }
        let shared = Arc::clone(&self.shared);
        tokio::task::spawn_blocking(move || read(&shared))
            .await
            .map_err(|error| Error::Io {
                action: "read the store",
                detail: error.to_string(),
            })?
    }

    fn stop(&self) {
        self.shared.queue.close();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!(dir = %self.dir.display(), "the writer thread of the store panicked");
        }
        self.shared.watchers.close();
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    fn revision(&self) -> u64 {
        self.shared.published.load(Ordering::Acquire)
    }

    async fn current_revision(&self) -> Result<u64> {
        Ok(self.revision())
    }

    async fn oldest_revision(&self) -> Result<u64> {
        Ok(self.shared.state.read().oldest())
    }

    async fn get(&self, key: &str) -> Result<Option<KeyValue>> {
        for _ in 0..OVERTAKEN {
            let revision = self.shared.state.read().revision();
            match self.pair_at(key, revision).await {
                Err(Error::Compacted { .. }) => {}
                result => return result,
            }
        }
        let key = key.to_owned();
        self.with_records(false, move |shared| {
            let state = shared.state.read();
            let found = state.get(&key);
            found
                .map(|found| found.resolve(|id| shared.records.read(id)))
                .transpose()
        })
        .await
    }

    async fn get_at(&self, key: &str, revision: u64) -> Result<Option<KeyValue>> {
        self.pair_at(key, revision).await
    }

    async fn list(&self, prefix: &str, opts: ListOptions) -> Result<Listing> {
        if let Some(revision) = opts.revision {
            return self.list_at(prefix, &opts, revision).await;
        }
        for _ in 0..OVERTAKEN {
            let revision = self.shared.state.read().revision();
            match self.list_at(prefix, &opts, revision).await {
                Err(Error::Compacted { .. }) => {}
                result => return result,
            }
        }
        let mut page = mvcc::Page::new(prefix, &opts);
        self.with_records(false, move |shared| {
            let state = shared.state.read();
            let revision = state.revision();
            state.fill(&mut page, revision, usize::MAX);
            page.finish(revision, |id| shared.records.read(id))
        })
        .await
    }

    async fn commit(&self, write: Write) -> Result<Committed> {
        write.check(self.shared.options.max_value_bytes)?;
        let key = write.key.clone();
        self.ask(&key, |reply| Request::Write { write, reply })
            .await
    }

    async fn watch(&self, prefix: &str, after: u64) -> Result<WatchStream> {
        // Holding the state from the look at the history until the watcher is
        // registered leaves no gap: the writer needs it to apply the next batch.
        let state = self.shared.state.read();
        let replay = state.changes_after(prefix, after)?;
        self.shared.watchers.add(
            prefix,
            after,
            state.revision(),
            replay,
            self.shared.options.watch_buffer,
        )
    }

    async fn compact(&self, revision: u64) -> Result<()> {
        {
            let state = self.shared.state.read();
            if revision > state.revision() {
                return Err(Error::FutureRevision {
                    requested: revision,
                    current: state.revision(),
                });
            }
            if revision <= state.oldest() {
                return Ok(());
            }
        }
        self.ask("", |reply| Request::Compact { revision, reply })
            .await
    }

    async fn health(&self) -> Result<()> {
        self.check_writable()?;
        if self.shared.queue.is_closed() {
            Err(Error::Closed)
        } else if self.shared.full.load(Ordering::Acquire) {
            Err(Error::Full)
        } else {
            Ok(())
        }
    }

    async fn size(&self) -> Option<u64> {
        let dir = self.dir.clone();
        let measured = tokio::task::spawn_blocking(move || disk::allocated(&dir)).await;
        measured.ok()?.ok()
    }

    async fn close(&self) {
        self.shared.queue.close();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && !matches!(
                tokio::task::spawn_blocking(move || thread.join()).await,
                Ok(Ok(()))
            )
        {
            tracing::error!(dir = %self.dir.display(), "the writer thread of the store panicked");
        }
        self.shared.watchers.close();
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedStore")
            .field("dir", &self.dir)
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
