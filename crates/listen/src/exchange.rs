//! Requests and their answers: how many somebody may have under way, and until when the answers must be taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::connections::Lease;
use crate::shares::{Share, Shares};
use crate::unsent::{self, Held};

/// Somebody has as much under way as they may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many requests, please try again later.")]
pub struct Busy;

/// One request and its answer, from the request's head to the last byte handed to the connection.
#[derive(Debug)]
pub struct Exchange {
    lease: Lease,
    kind: Mutex<AnswerKind>,
    /// Of the requests that last, or of the sessions.
    lasting: Mutex<Option<Share>>,
    /// Of the connections to where requests are passed on.
    passed_on: Mutex<Option<Share>>,
    /// What the answer is going to hold.
    reserved: Mutex<Option<Share>>,
    exempt: AtomicBool,
    /// Bytes of its pieces that are not written yet.
    unwritten: Arc<AtomicUsize>,
}

/// How an answer is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    /// All at once.
    Whole,
    /// As events come. A client that takes none for a while is better off with a new watch: what it missed costs memory.
    Watch,
    /// As it comes, to somebody who may read it in a pager.
    Stream,
    /// By a connection that is upgraded.
    Session,
}

impl Exchange {
    pub(crate) fn new(lease: Lease) -> Self {
        Self {
            lease,
            kind: Mutex::new(AnswerKind::Whole),
            lasting: Mutex::new(None),
            passed_on: Mutex::new(None),
            reserved: Mutex::new(None),
            exempt: AtomicBool::new(false),
            unwritten: Arc::default(),
        }
    }

    /// The client has shown who it is.
    pub fn identified(&self, user: &str) {
        self.lease.identified(user);
    }

    /// The client is never refused; what it takes is counted all the same.
    pub fn exempt(&self) {
        self.exempt.store(true, Ordering::Relaxed);
    }

    fn share(&self, of: &Arc<Shares>, amount: usize) -> Result<Share, Busy> {
        let who = self.lease.who();
        if self.exempt.load(Ordering::Relaxed) {
            return Ok(of.take(&who, amount));
        }
        of.try_take(&who, amount).ok_or(Busy)
    }

    /// Whether the request may be answered: its sender takes the answers to others, and has not too many that last.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn may_begin(&self, kind: AnswerKind) -> Result<(), Busy> {
        let connections = self.lease.connections();
        *self.kind.lock() = kind;
        let lasting = match kind {
            AnswerKind::Whole => {
                self.share(&connections.unsent, 0)?;
                return Ok(());
            }
            AnswerKind::Watch | AnswerKind::Stream => &connections.long_running,
            AnswerKind::Session => &connections.sessions,
        };
        *self.lasting.lock() = Some(self.share(lasting, 1)?);
        Ok(())
    }

    /// Whether the request may be passed on, and hold a connection to somebody else for as long as it likes: of HTTP/2 very many
    /// come by one of the client's. They are counted with the sessions, of which each holds one as well.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn may_pass_on(&self) -> Result<(), Busy> {
        let sessions = &self.lease.connections().sessions;
        *self.passed_on.lock() = Some(self.share(sessions, 1)?);
        Ok(())
    }

    /// Whether the client may have an answer of so many bytes, now that they are known: it may have asked for others at
    /// the same time.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn may_answer(&self, bytes: usize) -> Result<(), Busy> {
        if bytes >= unsent::COUNTED {
            let unsent = &self.lease.connections().unsent;
            *self.reserved.lock() = Some(self.share(unsent, bytes)?);
        }
        Ok(())
    }

    /// Counts the bytes of an answer until the client has taken them, for which it has a while.
    pub fn whole(&self, answer: Bytes) -> Bytes {
        if answer.len() < unsent::COUNTED {
            return answer;
        }
        let reserved = self.reserved.lock().take();
        let share = reserved.unwrap_or_else(|| {
            let unsent = &self.lease.connections().unsent;
            unsent.take(&self.lease.who(), answer.len())
        });
        let deadline = unsent::deadline(Instant::now(), answer.len());
        Bytes::from_owner(Counted {
            bytes: answer,
            _piece: self.handed(deadline),
            _share: share,
        })
    }

    /// Counts the bytes of a piece of an answer that is given as it comes, until they are written. What is small and soon gone
    /// is not counted by user. A client that takes nothing while others' answers have filled what it may hold loses its
    /// connection: the stream has a beginning already, and cannot be refused any more.
    pub(crate) fn part(&self, piece: Bytes) -> Bytes {
        let held = Held::new(&self.unwritten, piece.len());
        if held.before + piece.len() <= unsent::UNCOUNTED {
            return unsent::part(piece, held, None);
        }
        let unsent = &self.lease.connections().unsent;
        match self.share(unsent, piece.len()) {
            Ok(share) => unsent::part(piece, held, Some(share)),
            Err(Busy) => {
                self.lease.entry().closed.cancel();
                Bytes::new()
            }
        }
    }

    /// A piece of an answer that is given as it comes is handed over. Dropped when the next one is asked for, which it
    /// must be after a while.
    pub(crate) fn piece(&self, bytes: usize) -> Piece {
        let now = Instant::now();
        let deadline = match *self.kind.lock() {
            AnswerKind::Whole | AnswerKind::Watch => unsent::deadline(now, bytes),
            AnswerKind::Stream | AnswerKind::Session => {
                now + self.lease.connections().limits.session_idle
            }
        };
        self.handed(deadline)
    }

    /// Something is handed over that must be taken by then.
    fn handed(&self, deadline: Instant) -> Piece {
        Piece {
            id: self.lease.entry().handed(deadline),
            lease: self.lease.clone(),
        }
    }

    /// The connection is none of HTTP from now on, and counts as a session as long as there is something to it.
    pub fn upgraded(&self) {
        let begun = self.lasting.lock().take();
        let session = begun.unwrap_or_else(|| {
            let sessions = &self.lease.connections().sessions;
            sessions.take(&self.lease.who(), 1)
        });
        self.lease.entry().upgraded(session);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.lease.entry().answered();
    }
}

/// A piece of an answer that the client has not taken yet.
#[derive(Debug)]
pub(crate) struct Piece {
    lease: Lease,
    id: u64,
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.lease.entry().sent(self.id);
    }
}

/// Bytes that are counted as long as somebody holds a part of them.
struct Counted {
    bytes: Bytes,
    _piece: Piece,
    _share: Share,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
