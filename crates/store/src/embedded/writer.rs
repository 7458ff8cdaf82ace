//! The writer thread: decides compare-and-swap writes in order of arrival, makes
//! them durable a batch at a time, then applies, publishes and acknowledges them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::Shared;
use super::disk::Disk;
use super::mvcc::Mvcc;
use super::queue::{Request, Taken};
use crate::{Change, Committed, Error, Expect, KeyValue, Operation, Result, Write};

/// How often the age of the history is looked at.
const COMPACTION_INTERVAL: Duration = Duration::from_secs(30);

/// How many batches may pass before the size of the history is looked at.
const BATCHES_PER_CHECK: u32 = 16;

type Reply = oneshot::Sender<Result<Committed>>;

pub(super) struct Writer {
    shared: Arc<Shared>,
    disk: Box<dyn Disk>,
    next_check: Instant,
    batches: u32,
}

/// The decisions of one batch, not yet durable.
#[derive(Default)]
struct Staged {
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
            // Without history there is nothing to compact and no reason to wake up.
            let deadline = self
                .shared
                .state
                .read()
                .has_history()
                .then_some(self.next_check);
            match self.shared.queue.take(writes, bytes, deadline) {
                Taken::Batch(requests) => self.serve(requests),
                Taken::Idle => {}
                Taken::Closed => return,
            }
            self.check_history();
        }
    }

    fn serve(&mut self, requests: Vec<Request>) {
        let mut staged = Staged::default();
        for request in requests {
            match request {
                Request::Write { write, reply } => self.stage(&mut staged, write, reply),
                Request::Compact { revision, reply } => {
                    self.flush(std::mem::take(&mut staged));
                    // Nobody waits for the answer if the caller has gone away.
                    let _ = reply.send(self.compact(revision));
                }
            }
        }
        self.flush(staged);
    }

    fn stage(&self, staged: &mut Staged, write: Write, reply: Reply) {
        let state = self.shared.state.read();
        let decision = staged.decide(&state, write);
        drop(state);
        staged.answers.push((reply, decision));
    }

    /// Makes the staged changes durable, shows them and answers.
    fn flush(&mut self, staged: Staged) {
        let Staged {
            changes, answers, ..
        } = staged;
        let outcome = self.persist(&changes);
        if outcome.is_ok()
            && let Some(last) = changes.last()
        {
            let now = Instant::now();
            let mut state = self.shared.state.write();
            for change in &changes {
                state.apply(Arc::clone(change), now);
            }
            drop(state);
            self.shared.watchers.publish(&changes, last.revision);
            self.shared
                .published
                .store(last.revision, Ordering::Release);
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
            .map_err(|detail| self.poison("write to the store", detail))
    }

    fn poison(&self, action: &'static str, detail: String) -> Error {
        tracing::error!(%detail, "cannot {action}; no further write will be acknowledged");
        let _ = self.shared.poison.set(format!("cannot {action}: {detail}"));
        Error::Io { action, detail }
    }

    fn compact(&mut self, revision: u64) -> Result<()> {
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
            .map_err(|detail| self.poison("compact the store", detail))?;
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
    /// Decides one write against the state and the writes before it in the batch;
    /// answers with the index of its change.
    fn decide(&mut self, state: &Mvcc, write: Write) -> Result<usize> {
        let earlier = self
            .last
            .get(write.key.as_str())
            .map(|index| &self.changes[*index]);
        let previous = match earlier {
            Some(change) => change.current.clone(),
            None => state.get(&write.key),
        };
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
        let revision = self
            .changes
            .last()
            .map_or(state.revision(), |change| change.revision)
            + 1;
        let key = earlier
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
