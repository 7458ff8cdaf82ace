//! All connections of a server: who holds them, what happens on them, when they are closed.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::exchange::Exchange;
use crate::handshakes::{Handshakes, Turn};
use crate::pool::{Holder, Pool};
use crate::shares::{Share, Shares};
use crate::socket::Socket;
use crate::unsent::Deadlines;

/// Files that must remain for what is no connection of the server, in parts of all.
const OF_FILES: usize = 2;
/// A connection that is asked to end gets so long to finish.
const DRAIN: Duration = Duration::from_secs(10);

/// How long a connection on which nothing is asked for stays open. Longer than the 90 seconds for which clients keep one (Go's
/// `DefaultTransport`, hyper's pool): who closes it must be the one who asks, or a question can meet the close and is lost.
pub const IDLE: Duration = Duration::from_secs(120);

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
    /// Upgraded connections (exec, attach, port-forward) at once.
    pub sessions: usize,
    /// Until an upgraded connection on which nothing comes or goes is closed, and one whose client takes nothing of a
    /// stream that is no watch.
    pub session_idle: Duration,
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
        // each holds a second one, to where it leads
        self.sessions = self.sessions.min(self.known);
        self
    }
}

/// The connections of a server.
#[derive(Debug)]
pub struct Connections {
    pub(crate) limits: ConnectionLimits,
    pools: Mutex<Pools>,
    handshakes: Arc<Handshakes>,
    pub(crate) long_running: Arc<Shares>,
    pub(crate) sessions: Arc<Shares>,
    pub(crate) unsent: Arc<Shares>,
}

#[derive(Debug)]
struct Pools {
    next: u64,
    strangers: Pool,
    loopback: Pool,
    known: Pool,
}

impl Pools {
    fn of(&mut self, place: &ConnectionOwner) -> &mut Pool {
        match place {
            ConnectionOwner::Stranger(address) if address.is_loopback() => &mut self.loopback,
            ConnectionOwner::Stranger(_) => &mut self.strangers,
            ConnectionOwner::Known(_) => &mut self.known,
        }
    }

    fn insert(&mut self, place: &ConnectionOwner, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        self.of(place).insert(place.holder(), entry)
    }

    fn remove(&mut self, place: &ConnectionOwner, id: u64) -> Option<Arc<Entry>> {
        self.of(place).remove(&place.holder(), id)
    }
}

/// Where a connection is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ConnectionOwner {
    Stranger(IpAddr),
    Known(String),
}

impl ConnectionOwner {
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
    since: Instant,
    /// When bytes last came or went, in milliseconds after `since`.
    active: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    place: ConnectionOwner,
    /// A byte has come.
    heard: bool,
    /// A request has come whole.
    requested: bool,
    /// Requests under way.
    requests: usize,
    /// The connection is none of HTTP any more; what it counts for.
    session: Option<Share>,
    idle_since: Instant,
    unsent: Deadlines,
}

impl Entry {
    /// What would be lost with the connection: more is more.
    pub(crate) fn worth(&self) -> u8 {
        let state = self.state.lock();
        if state.session.is_some() || state.requests > 0 {
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
        if state.session.is_some() {
            let active = Duration::from_millis(self.active.load(Ordering::Relaxed));
            let idle = now.saturating_duration_since(self.since + active);
            return (idle >= limits.session_idle).then_some(Urgency::AtOnce);
        }
        if state.requests > 0 {
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

    /// Bytes have come or gone.
    pub(crate) fn active(&self) {
        let millis = self.since.elapsed().as_millis();
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        self.active.store(millis, Ordering::Relaxed);
    }

    pub(crate) fn heard(&self) {
        self.state.lock().heard = true;
    }

    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.closed
    }
}

/// How many handshakes are worked on at once: half of the cores stay for requests.
fn at_once() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() / 2)
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
            handshakes: Handshakes::new(at_once()),
            long_running: Shares::new(limits.long_running),
            sessions: Shares::new(limits.sessions),
            unsent: Shares::new(limits.unsent),
        })
    }

    /// Enters a connection that was accepted. It is counted until its socket is dropped.
    pub fn admit(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) -> (Socket, Lease) {
        let place = ConnectionOwner::Stranger(peer.ip().to_canonical());
        let mut pools = self.pools.lock();
        pools.next += 1;
        let entry = Arc::new(Entry {
            id: pools.next,
            closed: CancellationToken::new(),
            draining: CancellationToken::new(),
            since: Instant::now(),
            active: AtomicU64::new(0),
            state: Mutex::new(State {
                place: place.clone(),
                heard: false,
                requested: false,
                requests: 0,
                session: None,
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

    /// Waits until it is this client's turn to be worked for.
    pub(crate) async fn turn(&self) -> Turn {
        let holder = Holder::of(self.peer.ip());
        self.connections.handshakes.turn(holder).await
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
            if matches!(state.place, ConnectionOwner::Known(_)) {
                return;
            }
            let holder = Holder::of(self.peer.ip());
            self.connections.handshakes.know(holder);
            let known = ConnectionOwner::Known(user.to_owned());
            std::mem::replace(&mut state.place, known)
        };
        // one that has given way already is not entered again
        let Some(entry) = pools.remove(&place, self.entry.id) else {
            return;
        };
        let gives_way = pools.insert(&ConnectionOwner::Known(user.to_owned()), entry);
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
        Arc::new(Exchange::new(self.clone()))
    }

    pub(crate) fn connections(&self) -> &Connections {
        &self.connections
    }

    /// A request is answered.
    pub(crate) fn answered(&self) {
        let mut state = self.entry.state.lock();
        state.requests = state.requests.saturating_sub(1);
        state.idle_since = Instant::now();
    }

    /// The connection is none of HTTP from now on.
    pub(crate) fn upgraded(&self, session: Share) {
        self.entry.active();
        self.entry.state.lock().session = Some(session);
    }

    pub(crate) fn who(&self) -> String {
        match &self.entry.state.lock().place {
            ConnectionOwner::Stranger(address) => address.to_string(),
            ConnectionOwner::Known(user) => user.clone(),
        }
    }

    pub(crate) fn leave(&self) {
        let mut pools = self.connections.pools.lock();
        let place = self.entry.state.lock().place.clone();
        pools.remove(&place, self.entry.id);
    }

    /// What is handed to the connection must be taken by then; until [`Lease::sent`].
    pub(crate) fn handed(&self, deadline: Instant) -> u64 {
        self.entry.state.lock().unsent.insert(deadline)
    }

    pub(crate) fn sent(&self, id: u64) {
        self.entry.state.lock().unsent.remove(id);
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
