//! One connection: what happens on it, and when its time is up.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::limits::ConnectionLimits;
use crate::pool::Holder;
use crate::shares::Share;
use crate::unsent::Deadlines;

/// A connection that is asked to end gets so long to finish.
const DRAIN: Duration = Duration::from_secs(10);

/// Where a connection is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConnectionOwner {
    Stranger(IpAddr),
    Known(String),
}

impl ConnectionOwner {
    pub(crate) fn holder(&self) -> Holder {
        match self {
            Self::Stranger(address) => Holder::of(*address),
            Self::Known(user) => Holder::User(user.clone()),
        }
    }
}

impl std::fmt::Display for ConnectionOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stranger(address) => write!(f, "{address}"),
            Self::Known(user) => f.write_str(user),
        }
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    /// Cancelled to end the connection at once.
    pub(crate) closed: CancellationToken,
    /// Cancelled to end it when its requests are answered.
    pub(crate) draining: CancellationToken,
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
    /// A connection of a stranger, on which nothing has happened yet.
    pub(crate) fn new(id: u64, place: ConnectionOwner) -> Self {
        Self {
            id,
            closed: CancellationToken::new(),
            draining: CancellationToken::new(),
            since: Instant::now(),
            active: AtomicU64::new(0),
            state: Mutex::new(State {
                place,
                heard: false,
                requested: false,
                requests: 0,
                session: None,
                idle_since: Instant::now(),
                unsent: Deadlines::default(),
            }),
        }
    }

    /// Where the connection is counted.
    pub(crate) fn place(&self) -> ConnectionOwner {
        self.state.lock().place.clone()
    }

    /// The connection counts among a user's from now on. Where it has been counted, unless it counts as somebody's already.
    pub(crate) fn identify(&self, user: &str) -> Option<ConnectionOwner> {
        let mut state = self.state.lock();
        if matches!(state.place, ConnectionOwner::Known(_)) {
            return None;
        }
        let known = ConnectionOwner::Known(user.to_owned());
        Some(std::mem::replace(&mut state.place, known))
    }

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
    pub(crate) fn overdue(&self, limits: &ConnectionLimits, now: Instant) -> Option<Urgency> {
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

    /// A request has come.
    pub(crate) fn begin(&self) {
        let mut state = self.state.lock();
        state.requests += 1;
        state.requested = true;
    }

    /// A request is answered.
    pub(crate) fn answered(&self) {
        let mut state = self.state.lock();
        state.requests = state.requests.saturating_sub(1);
        state.idle_since = Instant::now();
    }

    /// The connection is none of HTTP from now on.
    pub(crate) fn upgraded(&self, session: Share) {
        self.active();
        self.state.lock().session = Some(session);
    }

    /// What is handed to the connection must be taken by then; until [`Entry::sent`].
    pub(crate) fn handed(&self, deadline: Instant) -> u64 {
        self.state.lock().unsent.insert(deadline)
    }

    pub(crate) fn sent(&self, id: u64) {
        self.state.lock().unsent.remove(id);
    }
}

/// How soon a connection must end.
pub(crate) enum Urgency {
    AtOnce,
    WhenDone,
}
