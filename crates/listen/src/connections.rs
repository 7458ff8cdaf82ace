//! All connections of a server: who holds them, and which of them are closed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::net::TcpStream;

use crate::entry::{ConnectionOwner, Entry, Urgency};
use crate::exchange::Exchange;
use crate::handshakes::{Handshakes, Turn};
use crate::limits::ConnectionLimits;
use crate::pool::{Holder, Pool};
use crate::shares::Shares;
use crate::socket::Socket;

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

/// How many handshakes are worked on at once: half of the cores stay for requests.
fn at_once() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() / 2)
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
        let entry = Arc::new(Entry::new(pools.next, place.clone()));
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
        let Some(place) = self.entry.identify(user) else {
            return;
        };
        self.connections.handshakes.know(Holder::of(self.peer.ip()));
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
        self.entry.begin();
        Arc::new(Exchange::new(self.clone()))
    }

    pub(crate) fn connections(&self) -> &Connections {
        &self.connections
    }

    /// For whom the connection counts, in words.
    pub(crate) fn who(&self) -> String {
        self.entry.place().to_string()
    }

    pub(crate) fn leave(&self) {
        let mut pools = self.connections.pools.lock();
        pools.remove(&self.entry.place(), self.entry.id);
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
