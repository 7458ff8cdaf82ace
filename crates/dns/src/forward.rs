//! Questions about names of others (spec network.md 6.7 rules 5 to 7).

mod cache;
mod exchange;
#[cfg(test)]
mod tests;
mod upstream;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hickory_proto::op::{Message, Query, ResponseCode};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use crate::message::Response;
use crate::metrics::Metrics;
use cache::Cache;
use upstream::Routes;

/// The most questions that are asked at the same time.
const MAX_IN_FLIGHT: usize = 1000;

/// Why a configuration is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// Questions would come back until the sockets run out.
    #[error(
        "upstream {0} is an address of this DNS server itself: questions would go round in a circle"
    )]
    Loop(SocketAddr),
    /// A stub domain is no domain name.
    #[error("stub domain {0:?} is not a domain name")]
    Domain(String),
    /// A stub domain has no servers.
    #[error("stub domain {0:?} has no servers")]
    NoServers(String),
}

/// The servers to ask.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Upstreams {
    /// Those for names no stub domain holds.
    pub default: Vec<SocketAddr>,
    /// Those for a domain and all names below it.
    pub stubs: HashMap<String, Vec<SocketAddr>>,
}

/// How long to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// For one server.
    pub attempt: Duration,
    /// For all servers: less than the five seconds after which the C library asks again.
    pub total: Duration,
    /// Between probes of a server that failed.
    pub probe: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            attempt: Duration::from_secs(2),
            total: Duration::from_millis(4500),
            probe: Duration::from_millis(500),
        }
    }
}

/// What all who asked the same question wait for.
type Pending = watch::Receiver<Option<Arc<Response>>>;

/// Asks others, each question once at a time, and keeps what they said.
#[derive(Debug)]
pub struct Forwarder {
    routes: ArcSwap<Routes>,
    own: Vec<SocketAddr>,
    times: Times,
    cache: Mutex<Cache>,
    pending: Mutex<HashMap<Query, Pending>>,
    in_flight: Arc<Semaphore>,
    metrics: Metrics,
}

impl Forwarder {
    /// A forwarder for a server that listens at `own`.
    ///
    /// # Errors
    /// When an upstream is one of the server's own addresses, or a stub domain is none.
    pub fn new(
        upstreams: &Upstreams,
        own: Vec<SocketAddr>,
        metrics: Metrics,
    ) -> Result<Arc<Self>, ForwardError> {
        Self::with_times(upstreams, own, metrics, Times::default())
    }

    /// As [`Forwarder::new`], with other limits of time.
    ///
    /// # Errors
    /// As [`Forwarder::new`].
    pub fn with_times(
        upstreams: &Upstreams,
        own: Vec<SocketAddr>,
        metrics: Metrics,
        times: Times,
    ) -> Result<Arc<Self>, ForwardError> {
        let routes = Routes::new(upstreams, &own, &Routes::default())?;
        Ok(Arc::new(Self {
            routes: ArcSwap::from_pointee(routes),
            own,
            times,
            cache: Mutex::default(),
            pending: Mutex::default(),
            in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            metrics,
        }))
    }

    /// Replaces the servers while questions are answered (spec network.md 6.7 rule 6).
    ///
    /// # Errors
    /// As [`Forwarder::new`]; the servers stay as they are then.
    pub fn configure(&self, upstreams: &Upstreams) -> Result<(), ForwardError> {
        let routes = Routes::new(upstreams, &self.own, &self.routes.load())?;
        self.routes.store(Arc::new(routes));
        self.cache.lock().clear();
        Ok(())
    }

    /// Asks others. There is always an answer, and in time: SERVFAIL when there is none better.
    pub async fn resolve(self: &Arc<Self>, query: &Query) -> Response {
        // In lower case, so that all spellings share an answer; the asker's own is put back when it is written.
        let query = Query::query(query.name.to_lowercase(), query.query_type);
        if let Some(response) = self.cache.lock().get(&query, Instant::now()) {
            return response;
        }
        let Some(mut pending) = self.join(query) else {
            return Response::of_code(ResponseCode::ServFail);
        };
        match pending.wait_for(Option::is_some).await {
            Ok(answer) => answer.as_deref().cloned(),
            Err(_) => None,
        }
        .unwrap_or_else(|| Response::of_code(ResponseCode::ServFail))
    }

    /// Joins those who wait for the same answer, or asks; none when too many questions are open.
    fn join(self: &Arc<Self>, query: Query) -> Option<Pending> {
        let mut pending = self.pending.lock();
        if let Some(known) = pending.get(&query) {
            return Some(known.clone());
        }
        let permit = self.in_flight.clone().try_acquire_owned().ok()?;
        let (sender, receiver) = watch::channel(None);
        pending.insert(query.clone(), receiver.clone());
        let open = Open {
            forwarder: self.clone(),
            query,
            _permit: permit,
        };
        // A task of its own: the first asker may go away while others wait.
        tokio::spawn(async move {
            let response = open.forwarder.ask(&open.query).await;
            drop(open);
            sender.send_replace(Some(Arc::new(response)));
        });
        Some(receiver)
    }

    /// Asks one server after the other.
    async fn ask(&self, query: &Query) -> Response {
        let end = Instant::now() + self.times.total;
        let routes = self.routes.load_full();
        let servers = upstream::order(routes.servers(&query.name));
        if servers.is_empty() {
            return Response::of_code(ResponseCode::Refused);
        }
        let mut refusal = None;
        for server in servers {
            if Instant::now() >= end {
                break;
            }
            self.metrics.forwarded(server.address);
            let Ok(heard) = server.ask(query, self.times, end).await else {
                continue;
            };
            let code = heard.message.metadata.response_code;
            if matches!(code, ResponseCode::NoError | ResponseCode::NXDomain) {
                self.keep(query, heard.bytes, &heard.message, &routes);
                return cache::response_of(heard.message);
            }
            // Another server may know better.
            refusal = Some(cache::response_of(heard.message));
        }
        refusal.unwrap_or_else(|| Response::of_code(ResponseCode::ServFail))
    }

    /// Keeps an answer, unless the servers were replaced meanwhile.
    fn keep(&self, query: &Query, bytes: Vec<u8>, message: &Message, routes: &Arc<Routes>) {
        let mut cache = self.cache.lock();
        if Arc::ptr_eq(routes, &self.routes.load()) {
            cache.insert(query.clone(), bytes, message, Instant::now());
        }
    }
}

/// A question that is being asked. However that ends, the next asker shall not wait for it.
struct Open {
    forwarder: Arc<Forwarder>,
    query: Query,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.forwarder.pending.lock().remove(&self.query);
    }
}
