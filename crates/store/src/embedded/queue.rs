//! The bounded queue in front of the writer thread: async on the one side, blocking
//! on the other, emptied a batch at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::{Committed, Error, Operation, Result, Write};

/// What the writer thread is asked to do.
pub(super) enum Request {
    Write {
        write: Write,
        reply: oneshot::Sender<Result<Committed>>,
    },
    Compact {
        revision: u64,
        reply: oneshot::Sender<Result<()>>,
    },
}

impl Request {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Write {
                write:
                    Write {
                        key,
                        op: Operation::Put(value),
                        ..
                    },
                ..
            } => key.len() + value.len(),
            Self::Write { .. } | Self::Compact { .. } => 0,
        }
    }
}

/// A place in the queue.
pub(super) struct Slot {
    _permit: OwnedSemaphorePermit,
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<(Request, Slot)>,
    closed: bool,
}

pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    ready: Condvar,
    slots: Arc<Semaphore>,
}

/// What [`Queue::take`] found.
pub(super) enum Taken {
    /// Requests in order of arrival, at least one.
    Batch(Vec<Request>),
    /// Nothing until the deadline.
    Idle,
    /// The queue is closed and empty.
    Closed,
}

impl Queue {
    pub(super) fn new(size: usize) -> Self {
        Self {
            waiting: Mutex::default(),
            ready: Condvar::new(),
            slots: Arc::new(Semaphore::new(size)),
        }
    }

    /// Waits for a place. Fails with [`Error::Closed`].
    pub(super) async fn slot(&self) -> Result<Slot> {
        let permit = Arc::clone(&self.slots).acquire_owned().await;
        permit
            .map(|permit| Slot { _permit: permit })
            .map_err(|_| Error::Closed)
    }

    /// Adds a request. Fails with [`Error::Closed`].
    pub(super) fn push(&self, request: Request, slot: Slot) -> Result<()> {
        let mut waiting = self.waiting.lock();
        if waiting.closed {
            return Err(Error::Closed);
        }
        waiting.requests.push_back((request, slot));
        drop(waiting);
        self.ready.notify_one();
        Ok(())
    }

    /// Takes what waits, up to the limits of a batch; blocks until there is
    /// something or the deadline, if any, has passed.
    pub(super) fn take(&self, writes: usize, bytes: usize, deadline: Option<Instant>) -> Taken {
        let mut waiting = self.waiting.lock();
        while waiting.requests.is_empty() {
            if waiting.closed {
                return Taken::Closed;
            }
            match deadline {
                None => self.ready.wait(&mut waiting),
                Some(deadline) => {
                    let timed_out = self.ready.wait_until(&mut waiting, deadline).timed_out();
                    if timed_out && waiting.requests.is_empty() {
                        return Taken::Idle;
                    }
                }
            }
        }
        let mut batch = Vec::new();
        let mut size = 0;
        while let Some((request, _)) = waiting.requests.front() {
            size += request.bytes();
            if !batch.is_empty() && (batch.len() >= writes || size > bytes) {
                break;
            }
            if let Some((request, _slot)) = waiting.requests.pop_front() {
                batch.push(request);
            }
        }
        Taken::Batch(batch)
    }

    /// Refuses further requests; the waiting ones are still served.
    pub(super) fn close(&self) {
        self.waiting.lock().closed = true;
        self.slots.close();
        self.ready.notify_one();
    }

    /// Whether requests are refused.
    pub(super) fn is_closed(&self) -> bool {
        self.slots.is_closed()
    }

    /// Drops what waits. For a writer that has died.
    pub(super) fn clear(&self) {
        self.waiting.lock().requests.clear();
    }
}
