//! The writer thread: decides compare-and-swap writes in order of arrival, makes
//! them durable a batch at a time, then applies, publishes and acknowledges them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::Shared;
use super::disk::{Disk, DiskError};
use super::mvcc::Mvcc;
use super::queue::{Request, Taken};
use super::space::Room;
use crate::{Change, Committed, Error, Expect, KeyValue, Operation, Result, Write};

/// How often the age of the history is looked at.
const COMPACTION_INTERVAL: Duration = Duration::from_secs(30);

/// How many batches may pass before the size of the history is looked at.
const BATCHES_PER_CHECK: u32 = 16;

/// How often a full disk is looked at.
const FULL_INTERVAL: Duration = Duration::from_secs(1);

type Reply = oneshot::Sender<Result<Committed>>;

pub(super) struct Writer {
    shared: Arc<Shared>,
    disk: Box<dyn Disk>,
    next_check: Instant,
    batches: u32,
    room: Room,
    /// The log must be opened anew, and since when that is not tried before.
    stopped: Option<Instant>,
}

/// The decisions of one batch, not yet durable.
struct Staged {
    room: Room,
    changes: Vec<Arc<Change>>,
    /// Index in `changes` of the last change of a key.
    last: HashMap<Arc<str>, usize>,
    /// Answers in order of arrival: the index of the change, or why there is none.
    answers: Vec<(Reply, Result<usize>)>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, disk: Box<dyn Disk>) -> Self {
        let next_check = Instant::now() + COMPACTION_INTERVAL;
        Self {
            shared,
            disk,
            next_check,
            batches: 0,
            room: Room::Enough,
            stopped: None,
        }
    }

    /// Serves the queue until it is closed.
    pub(super) fn run(mut self) {
        let _guard = DeathGuard(Arc::clone(&self.shared));
        let (writes, bytes) = (
            self.shared.options.batch_writes,
            self.shared.options.batch_bytes,
        );
        loop {
            let deadline = self.deadline();
            match self.shared.queue.take(writes, bytes, deadline) {
                Taken::Batch(requests) => self.serve(requests),
                Taken::Idle => self.look_for_room(0),
                Taken::Closed => return self.close(),
            }
            self.check_history();
        }
    }

    /// All that was acknowledged is on the disk.
    fn close(&mut self) {
        if self.stopped.is_none() && self.shared.poison.get().is_none() {
            let revision = self.shared.state.read().revision();
            self.disk.close(revision);
        }
    }

    /// When to look around though nobody asks for anything. Without history there is nothing to compact and no reason to.
    fn deadline(&self) -> Option<Instant> {
        if self.room != Room::Enough || self.stopped.is_some() {
            return Some(Instant::now() + FULL_INTERVAL);
        }
        let has_history = self.shared.state.read().has_history();
        has_history.then_some(self.next_check)
    }

    /// Finds out what may be written, and opens the log anew if it has to be and can be.
    pub(super) fn look_for_room(&mut self, bytes: usize) {
        self.room = self.disk.room(bytes);
        if let Some(not_before) = self.stopped {
            if self.room != Room::None && Instant::now() >= not_before {
                self.reopen();
            }
            if self.stopped.is_some() {
                self.room = Room::None;
            }
        }
        let full = self.room != Room::Enough;
        self.shared.full.store(full, Ordering::Release);
    }

    fn reopen(&mut self) {
        let state = match self.disk.reopen() {
            Ok(state) => state,
            Err(error @ Error::Corrupt { .. }) => {
                self.poison("open the store again", error.to_string());
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot open the store again yet");
                self.stopped = Some(Instant::now() + FULL_INTERVAL);
                return;
            }
        };
        // The batch that failed may have reached the disk after all. Then it has happened, as far as anybody can tell.
        let known = self.shared.state.read().revision();
        match state.changes_after("", known) {
            Ok(missed) => {
                let missed: Vec<_> = missed.into();
                self.show(&missed);
                self.stopped = None;
                tracing::info!(missed = missed.len(), "opened the store again");
            }
            Err(error) => {
                self.poison("open the store again", error.to_string());
            }
        }
    }

    fn serve(&mut self, requests: Vec<Request>) {
        self.look_for_room(requests.iter().map(Request::bytes).sum());
        let mut staged = Staged::new(self.room);
        for request in requests {
            match request {
                Request::Write { write, reply } => self.stage(&mut staged, write, reply),
                Request::Compact { revision, reply } => {
                    self.flush(std::mem::replace(&mut staged, Staged::new(self.room)));
                    staged.room = self.room;
                    // Nobody waits for the answer if the caller has gone away.
                    let _ = reply.send(self.compact(revision));
                }
            }
        }
        self.flush(staged);
    }

    fn stage(&self, staged: &mut Staged, write: Write, reply: Reply) {
        let decision = self
            .before(staged, &write.key)
            .and_then(|previous| staged.decide(&self.shared.state.read(), write, previous));
        staged.answers.push((reply, decision));
    }

    /// The pair that a write of the batch finds. Only this thread changes the state, so that the answer stays true.
    fn before(&self, staged: &Staged, key: &str) -> Result<Option<KeyValue>> {
        if let Some(change) = staged.change_of(key) {
            return Ok(change.current.clone());
        }
        let found = self.shared.state.read().get(key);
        found
            .map(|found| found.resolve(|id| self.shared.records.read(id)))
            .transpose()
    }

    /// Makes the staged changes durable, shows them and answers.
    fn flush(&mut self, staged: Staged) {
        let Staged {
            changes, answers, ..
        } = staged;
        let outcome = self.persist(&changes);
        if outcome.is_ok() {
            self.show(&changes);
        }
        for (reply, decision) in answers {
            // A refusal may rest on a write of the same batch, so that it is only
            // true if the batch is.
            let answer = match (&outcome, decision) {
                (Err(error), _) => Err(error.clone()),
                (Ok(()), Err(refusal)) => Err(refusal),
                (Ok(()), Ok(index)) => Ok(committed(&changes[index])),
            };
            let _ = reply.send(answer);
        }
    }

    /// Applies what is durable and shows it to the watchers.
    fn show(&self, changes: &[Arc<Change>]) {
        let Some(last) = changes.last() else {
            return;
        };
        let now = Instant::now();
        let mut state = self.shared.state.write();
        for change in changes {
            state.apply(Arc::clone(change), now);
        }
        drop(state);
        self.shared.watchers.publish(changes, last.revision);
        self.shared
            .published
            .store(last.revision, Ordering::Release);
    }

    fn persist(&mut self, changes: &[Arc<Change>]) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        if let Some(cause) = self.shared.poison.get() {
            return Err(Error::Poisoned {
                cause: cause.clone(),
            });
        }
        self.disk
            .append(changes)
            .map_err(|error| self.failed("write to the store", error))
    }

    /// What a failure of the disk means for those who wait, and for what comes.
    fn failed(&mut self, action: &'static str, error: DiskError) -> Error {
        match error {
            DiskError::Broken(detail) => self.poison(action, detail),
            DiskError::Stopped(detail) => {
                tracing::warn!(%detail, "cannot {action}; it will be opened again");
                self.stopped = Some(Instant::now());
                self.room = Room::None;
                self.shared.full.store(true, Ordering::Release);
                Error::Full
            }
        }
    }

    fn poison(&self, action: &'static str, detail: String) -> Error {
        tracing::error!(%detail, "cannot {action}; no further write will be acknowledged");
        let _ = self.shared.poison.set(format!("cannot {action}: {detail}"));
        Error::Io { action, detail }
    }

    fn compact(&mut self, revision: u64) -> Result<()> {
        if self.room == Room::None {
            return Err(Error::Full);
        }
        if let Some(cause) = self.shared.poison.get() {
            return Err(Error::Poisoned {
                cause: cause.clone(),
            });
        }
        let garbage = self.shared.state.read().garbage(revision);
        // The mark goes to disk before the history goes from memory: what was
        // refused as compacted stays refused after a restart.
        self.disk
            .forget(&garbage, revision)
            .map_err(|error| self.failed("compact the store", error))?;
        self.shared.state.write().compact(revision);
        tracing::debug!(revision, records = garbage.len(), "compacted");
        Ok(())
    }

    /// Compacts what the limits of the history no longer cover.
    fn check_history(&mut self) {
        self.batches += 1;
        let now = Instant::now();
        if now < self.next_check && self.batches < BATCHES_PER_CHECK {
            return;
        }
        self.batches = 0;
        if now >= self.next_check {
            self.next_check = now + COMPACTION_INTERVAL;
        }
        let options = &self.shared.options;
        let revision = self.shared.state.read().compactable(
            now,
            options.retention,
            options.history_entries,
            options.history_bytes,
        );
        if let Some(revision) = revision
            && let Err(error) = self.compact(revision)
        {
            tracing::warn!(%error, "cannot compact the store");
        }
    }
}

impl Staged {
    fn new(room: Room) -> Self {
        Self {
            room,
            changes: Vec::new(),
            last: HashMap::new(),
            answers: Vec::new(),
        }
    }

    /// The last change of a key in the batch.
    fn change_of(&self, key: &str) -> Option<&Change> {
        self.last.get(key).map(|index| &*self.changes[*index])
    }

    /// Decides one write, which finds `previous`, in the state and after the writes before it in the batch; answers with
    /// the index of its change.
    fn decide(&mut self, state: &Mvcc, write: Write, previous: Option<KeyValue>) -> Result<usize> {
        let expected = match write.expect {
            Expect::Any => true,
            Expect::Absent => previous.is_none(),
            Expect::Revision(revision) => previous
                .as_ref()
                .is_some_and(|pair| pair.mod_revision == revision),
        };
        if !expected {
            return Err(Error::Conflict {
                key: write.key,
                current: previous.map(Box::new),
            });
        }
        if previous.is_none() && write.op == Operation::Delete {
            return Err(Error::NotFound { key: write.key });
        }
        let fits = match self.room {
            Room::Enough => true,
            Room::Little => write.op == Operation::Delete,
            Room::None => false,
        };
        if !fits {
            return Err(Error::Full);
        }
        let revision = self
            .changes
            .last()
            .map_or(state.revision(), |change| change.revision)
            + 1;
        let key = self
            .change_of(&write.key)
            .map(|change| Arc::clone(&change.key))
            .or_else(|| state.shared_key(&write.key))
            .unwrap_or_else(|| Arc::from(write.key));
        let current = match write.op {
            Operation::Put(value) => Some(KeyValue {
                key: Arc::clone(&key),
                value,
                mod_revision: revision,
                create_revision: previous
                    .as_ref()
                    .map_or(revision, |pair| pair.create_revision),
            }),
            Operation::Delete => None,
        };
        self.last.insert(Arc::clone(&key), self.changes.len());
        self.changes.push(Arc::new(Change {
            revision,
            key,
            current,
            previous,
        }));
        Ok(self.changes.len() - 1)
    }
}

fn committed(change: &Change) -> Committed {
    Committed {
        revision: change.revision,
        current: change.current.clone(),
        previous: change.previous.clone(),
    }
}

/// Leaves no caller waiting if the writer thread ends, in whatever way.
struct DeathGuard(Arc<Shared>);

impl Drop for DeathGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.poison.set("the writer thread panicked".to_owned());
        }
        self.0.queue.close();
        self.0.queue.clear();
        self.0.watchers.close();
    }
}
