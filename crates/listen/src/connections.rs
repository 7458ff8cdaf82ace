//! All connections of a server: who holds them, what happens on them, when they are closed.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::pool::{Holder, Pool};
use crate::shares::{Share, Shares};
use crate::socket::Socket;
use crate::unsent::{self, Deadlines};

/// Files that must remain for what is no connection of the server, in parts of all.
const OF_FILES: usize = 2;
/// A connection that is asked to end gets so long to finish.
const DRAIN: Duration = Duration::from_secs(10);

/// How many connections there may be and how long they may do nothing.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Of strangers on other machines.
    pub strangers: usize,
    /// Of strangers on this machine.
    pub loopback: usize,
    /// Of clients that have shown who they are.
    pub known: usize,
    /// Until the first request has come whole, TLS included.
    pub first_request: Duration,
    /// Without a request under way.
    pub idle: Duration,
    /// Long-running requests (watches, logs) at once.
    pub long_running: usize,
    /// Bytes of answers that nobody has taken yet.
    pub unsent: usize,
}

impl ConnectionLimits {
    /// Scales the numbers of connections to what the process may open: all servers of a process together get half of
    /// that, this one `part` of `parts`.
    #[must_use]
    pub fn within_files(mut self, part: usize, parts: usize) -> Self {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let files = files.and_then(|n| usize::try_from(n).ok());
        let wanted = self.strangers + self.loopback + self.known;
        let have = files.map_or(wanted, |files| {
            (files / OF_FILES).saturating_mul(part) / parts.max(1)
        });
        if have < wanted {
            for count in [&mut self.strangers, &mut self.loopback, &mut self.known] {
                *count = (*count * have / wanted).max(1);
            }
        }
        self
    }
}

/// The connections of a server.
#[derive(Debug)]
pub struct Connections {
    limits: ConnectionLimits,
    pools: Mutex<Pools>,
    long_running: Arc<Shares>,
    unsent: Arc<Shares>,
}

#[derive(Debug)]
struct Pools {
    next: u64,
    strangers: Pool,
    loopback: Pool,
    known: Pool,
}

impl Pools {
    fn of(&mut self, place: &Place) -> &mut Pool {
        match place {
            Place::Stranger(address) if address.is_loopback() => &mut self.loopback,
            Place::Stranger(_) => &mut self.strangers,
            Place::Known(_) => &mut self.known,
        }
    }

    fn insert(&mut self, place: &Place, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        self.of(place).insert(place.holder(), entry)
    }

    fn remove(&mut self, place: &Place, id: u64) -> Option<Arc<Entry>> {
        self.of(place).remove(&place.holder(), id)
    }
}

/// Where a connection is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Stranger(IpAddr),
    Known(String),
}

impl Place {
    fn holder(&self) -> Holder {
        match self {
            Self::Stranger(address) => Holder::of(*address),
            Self::Known(user) => Holder::User(user.clone()),
        }
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    /// Cancelled to end the connection at once.
    closed: CancellationToken,
    /// Cancelled to end it when its requests are answered.
    draining: CancellationToken,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    place: Place,
    /// A byte has come.
    heard: bool,
    /// A request has come whole.
    requested: bool,
    /// Requests under way.
    requests: usize,
    /// The connection is none of HTTP any more.
    upgraded: bool,
    idle_since: Instant,
    unsent: Deadlines,
}

impl Entry {
    /// What would be lost with the connection: more is more.
    pub(crate) fn worth(&self) -> u8 {
        let state = self.state.lock();
        if state.upgraded || state.requests > 0 {
            3
        } else if state.requested {
            2
        } else {
            u8::from(state.heard)
        }
    }

    /// Whether the connection must go, and if so, whether at once.
    fn overdue(&self, limits: &ConnectionLimits, now: Instant) -> Option<Urgency> {
        let state = self.state.lock();
        if state.unsent.overdue(now) {
            return Some(Urgency::AtOnce);
        }
        if state.upgraded || state.requests > 0 {
            return None;
        }
        let idle = now.saturating_duration_since(state.idle_since);
        if !state.requested {
            return (idle >= limits.first_request).then_some(Urgency::AtOnce);
        }
        if idle >= limits.idle + DRAIN {
            return Some(Urgency::AtOnce);
        }
        (idle >= limits.idle).then_some(Urgency::WhenDone)
    }

    pub(crate) fn heard(&self) {
        self.state.lock().heard = true;
    }

    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.closed
    }
}

enum Urgency {
    AtOnce,
    WhenDone,
}

impl Connections {
    /// No connections yet.
    pub fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            pools: Mutex::new(Pools {
                next: 0,
                strangers: Pool::new(limits.strangers),
                loopback: Pool::new(limits.loopback),
                known: Pool::new(limits.known),
            }),
            long_running: Shares::new(limits.long_running),
            unsent: Shares::new(limits.unsent),
        })
    }

    /// Enters a connection that was accepted. It is counted until its socket is dropped.
    pub fn admit(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) -> (Socket, Lease) {
        let place = Place::Stranger(peer.ip().to_canonical());
        let mut pools = self.pools.lock();
        pools.next += 1;
        let entry = Arc::new(Entry {
            id: pools.next,
            closed: CancellationToken::new(),
            draining: CancellationToken::new(),
            state: Mutex::new(State {
                place: place.clone(),
                heard: false,
                requested: false,
                requests: 0,
                upgraded: false,
                idle_since: Instant::now(),
                unsent: Deadlines::default(),
            }),
        });
        let gives_way = pools.insert(&place, Arc::clone(&entry));
        drop(pools);
        if let Some(other) = gives_way {
            other.closed.cancel();
        }
        let lease = Lease {
            connections: Arc::clone(self),
            entry,
            peer,
        };
        (Socket::new(stream, lease.clone()), lease)
    }

    /// Closes the connections whose time is up.
    pub fn sweep(&self, now: Instant) {
        let mut due = Vec::new();
        {
            let pools = self.pools.lock();
            for pool in [&pools.strangers, &pools.loopback, &pools.known] {
                for entry in pool.entries() {
                    if let Some(urgency) = entry.overdue(&self.limits, now) {
                        due.push((Arc::clone(entry), urgency));
                    }
                }
            }
        }
        for (entry, urgency) in due {
            match urgency {
                Urgency::AtOnce => entry.closed.cancel(),
                Urgency::WhenDone => entry.draining.cancel(),
            }
        }
    }

    /// Closes a connection of a stranger, so that there is room for another: files have run out.
    pub fn shed(&self) {
        let mut pools = self.pools.lock();
        let pools = &mut *pools;
        let pool = if pools.strangers.total() >= pools.loopback.total() {
            &mut pools.strangers
        } else {
            &mut pools.loopback
        };
        if let Some(entry) = pool.take_from_largest() {
            entry.closed.cancel();
        }
    }

    /// How many connections there are.
    pub fn count(&self) -> usize {
        let pools = self.pools.lock();
        pools.strangers.total() + pools.loopback.total() + pools.known.total()
    }

    /// How many of them are of clients that have shown who they are.
    pub fn known(&self) -> usize {
        self.pools.lock().known.total()
    }

    /// Bytes of answers that are not taken yet.
    pub fn unsent(&self) -> usize {
        self.unsent.taken()
    }
}

/// A connection as those know it who serve it.
#[derive(Debug, Clone)]
pub struct Lease {
    connections: Arc<Connections>,
    entry: Arc<Entry>,
    peer: SocketAddr,
}

impl Lease {
    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Waits until the connection must end at once.
    pub async fn closed(&self) {
        self.entry.closed.cancelled().await;
    }

    /// Waits until the connection is to end when its requests are answered.
    pub async fn draining(&self) {
        self.entry.draining.cancelled().await;
    }

    /// The client has shown who it is: from now on the connection counts among that user's. The first one named stays,
    /// whoever is named later.
    pub fn identified(&self, user: &str) {
        let mut pools = self.connections.pools.lock();
        let place = {
            let mut state = self.entry.state.lock();
            if matches!(state.place, Place::Known(_)) {
                return;
            }
            let known = Place::Known(user.to_owned());
            std::mem::replace(&mut state.place, known)
        };
        // one that has given way already is not entered again
        let Some(entry) = pools.remove(&place, self.entry.id) else {
            return;
        };
        let gives_way = pools.insert(&Place::Known(user.to_owned()), entry);
        drop(pools);
        if let Some(other) = gives_way {
            other.closed.cancel();
        }
    }

    /// A request has come.
    pub fn begin(&self) -> Arc<Exchange> {
        let mut state = self.entry.state.lock();
        state.requests += 1;
        state.requested = true;
        drop(state);
        Arc::new(Exchange {
            lease: self.clone(),
            long_running: Mutex::new(None),
            reserved: Mutex::new(None),
            exempt: AtomicBool::new(false),
        })
    }

    fn who(&self) -> String {
        match &self.entry.state.lock().place {
            Place::Stranger(address) => address.to_string(),
            Place::Known(user) => user.clone(),
        }
    }

    pub(crate) fn leave(&self) {
        let mut pools = self.connections.pools.lock();
        let place = self.entry.state.lock().place.clone();
        pools.remove(&place, self.entry.id);
    }

    pub(crate) fn sent(&self, id: u64) {
        self.entry.state.lock().unsent.remove(id);
    }
}

/// Somebody has as much under way as they may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many requests, please try again later.")]
pub struct Busy;

/// One request and its answer, from the request's head to the last byte handed to the connection.
#[derive(Debug)]
pub struct Exchange {
    lease: Lease,
    long_running: Mutex<Option<Share>>,
    /// What the answer is going to hold.
    reserved: Mutex<Option<Share>>,
    exempt: AtomicBool,
}

impl Exchange {
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
    pub fn may_begin(&self, long_running: bool) -> Result<(), Busy> {
        let connections = &self.lease.connections;
        if long_running {
            *self.long_running.lock() = Some(self.share(&connections.long_running, 1)?);
        } else {
            self.share(&connections.unsent, 0)?;
        }
        Ok(())
    }

    /// Whether the client may have an answer of so many bytes, now that they are known: it may have asked for others at
    /// the same time.
    ///
    /// # Errors
    /// [`Busy`].
    pub fn may_answer(&self, bytes: usize) -> Result<(), Busy> {
        if bytes >= unsent::COUNTED {
            let unsent = &self.lease.connections.unsent;
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
            let unsent = &self.lease.connections.unsent;
            unsent.take(&self.lease.who(), answer.len())
        });
        let deadline = unsent::deadline(Instant::now(), answer.len());
        let id = self.lease.entry.state.lock().unsent.insert(deadline);
        unsent::counted(answer, self.lease.clone(), share, id)
    }

    /// The connection is none of HTTP from now on; it is idle as long as it likes.
    pub fn upgraded(&self) {
        self.lease.entry.state.lock().upgraded = true;
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let mut state = self.lease.entry.state.lock();
        state.requests = state.requests.saturating_sub(1);
        state.idle_since = Instant::now();
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
