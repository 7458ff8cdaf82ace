//! The listeners: one socket pair for each address (spec network.md 6.3 and 6.7 rule 1).
//!
//! The zone is behind a lock for readers and one writer, not exchanged as a whole: a change touches the
//! records of one object, microseconds, while a copy of a hundred thousand names would take milliseconds and
//! twice the memory. Answers are copied out under the lock and written after it.

mod clients;
mod tcp;
mod udp;

use std::net::IpAddr;
use std::num::NonZero;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use parking_lot::RwLock;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::forward::Forwarder;
use crate::message::{Forward, Outcome, Reply, Transport, respond};
use crate::metrics::Metrics;
use crate::zone::Zone;
use clients::Clients;

/// The most tasks that read one datagram socket; more than one, so that one core is no bound.
const MAX_READERS: usize = 4;

/// What clients may use (spec network.md 10.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Questions a second of one client.
    pub queries_per_second: u32,
    /// Clients that are told apart.
    pub clients: usize,
    /// Connections at a time.
    pub connections: usize,
    /// Connections of one client at a time.
    pub connections_per_client: usize,
    /// Questions that wait for others at a time.
    pub forwards: usize,
    /// Questions of one client that wait for others at a time.
    pub forwards_per_client: usize,
    /// Questions that wait for others at a time from which on a client has a sixteenth of its share.
    pub crowd: usize,
    /// How long a connection may be silent, or take for a question or an answer (spec network.md 6.3 rule 1).
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queries_per_second: 1000,
            clients: 4096,
            // so that it takes more clients than a node has pods to leave nothing to the others
            connections: 2048,
            connections_per_client: 16,
            forwards: 16_384,
            forwards_per_client: 128,
            // half of what is asked at a time: eight clients with names that nobody answers would leave nothing to the others
            crowd: 500,
            idle: Duration::from_secs(10),
        }
    }
}

/// The DNS server of a node.
#[derive(Debug, Clone)]
pub struct Server {
    zone: Arc<RwLock<Zone>>,
    forwarder: Option<Arc<Forwarder>>,
    metrics: Metrics,
    limits: Limits,
}

impl Server {
    /// A server of a zone, which refuses all other names.
    #[must_use]
    pub fn new(zone: Arc<RwLock<Zone>>) -> Self {
        Self {
            zone,
            forwarder: None,
            metrics: Metrics::default(),
            limits: Limits::default(),
        }
    }

    /// With others to ask for all other names.
    #[must_use]
    pub fn with_forwarder(mut self, forwarder: Arc<Forwarder>) -> Self {
        self.forwarder = Some(forwarder);
        self
    }

    /// With counters that are published.
    #[must_use]
    pub fn with_metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = metrics;
        self
    }

    /// With other limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Answers until it is cancelled. Each socket must be bound to one address: the answer leaves from it.
    pub async fn run(self, listeners: Vec<(UdpSocket, TcpListener)>, cancel: CancellationToken) {
        let readers = std::thread::available_parallelism()
            .map_or(1, NonZero::get)
            .min(MAX_READERS);
        let limits = self.limits;
        let service = Arc::new(Service {
            server: self,
            clients: Arc::new(Clients::new(limits, Instant::now())),
            connections: Arc::new(Semaphore::new(limits.connections)),
            forwards: Arc::new(Semaphore::new(limits.forwards)),
            tasks: TaskTracker::new(),
            cancel,
        });
        for (datagrams, connections) in listeners {
            let datagrams = Arc::new(datagrams);
            for _ in 0..readers {
                let (shared, datagrams) = (service.clone(), datagrams.clone());
                service.keep(move || udp::serve(shared.clone(), datagrams.clone()));
            }
            let (shared, connections) = (service.clone(), Arc::new(connections));
            service.keep(move || tcp::serve(shared.clone(), connections.clone()));
        }
        service.cancel.cancelled().await;
        service.tasks.close();
        service.tasks.wait().await;
    }
}

/// A server that runs.
struct Service {
    server: Server,
    clients: Arc<Clients>,
    connections: Arc<Semaphore>,
    forwards: Arc<Semaphore>,
    tasks: TaskTracker,
    cancel: CancellationToken,
}

impl Service {
    /// Starts a task that ends with the server.
    fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let cancel = self.cancel.clone();
        self.tasks.spawn(async move {
            cancel.run_until_cancelled_owned(task).await;
        });
    }

    /// Starts a task that has no end of its own, and starts it again should a message make it panic: one
    /// such message must not silence a node.
    fn keep<T>(self: &Arc<Self>, task: impl Fn() -> T + Send + 'static)
    where
        T: Future<Output = ()> + Send + 'static,
    {
        self.spawn(async move {
            while AssertUnwindSafe(task()).catch_unwind().await.is_err() {
                tracing::error!("a listener panicked and is started again");
            }
        });
    }

    /// What a message leads to.
    fn respond(&self, bytes: &[u8], transport: Transport) -> Outcome {
        let recursion = self.server.forwarder.is_some();
        respond(bytes, transport, recursion, |query| {
            self.server.zone.read().answer(query)
        })
    }

    /// The answer of others.
    async fn forward(&self, forward: Forward) -> Reply {
        match &self.server.forwarder {
            Some(forwarder) => {
                let response = forwarder.resolve(&forward.query).await;
                forward.reply(response)
            }
            None => forward.fail(),
        }
    }

    fn count(&self, client: IpAddr, transport: Transport, reply: &Reply, started: Instant) {
        self.server
            .metrics
            .answered(client, transport, reply, started.elapsed());
    }
}
