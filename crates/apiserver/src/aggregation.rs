//! API aggregation: groups and versions that other servers answer.
//!
//! An `APIService` with a service is a [`Backend`]: its requests are forwarded with the front-proxy certificate and the
//! caller's identity in `X-Remote-*` headers. Requests read a table that never waits for a backend; the
//! [`aggregator`](crate::aggregator) keeps it.
//! <https://kubernetes.io/docs/concepts/extend-kubernetes/api-extension/apiserver-aggregation/>

mod backend;
pub(crate) mod documents;
mod identity;
mod view;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use davit_access::RequestInfo;
use davit_webhook::tls::ShownIdentity;
use parking_lot::Mutex;

pub(crate) use backend::Backend;
pub(crate) use identity::identity_headers;
pub(crate) use view::{AggregationView, RemoteVersion};

/// Who the aggregator is towards backends.
pub(crate) const USER: &str = "system:kube-aggregator";

/// Group and version.
pub(crate) type GroupVersion = (String, String);

/// What is aggregated now.
pub(crate) struct Aggregation {
    table: ArcSwap<HashMap<GroupVersion, Arc<Backend>>>,
    view: ArcSwap<AggregationView>,
    generation: AtomicU64,
    /// Publishing reads all backends and replaces the view: one at a time.
    publishing: Mutex<()>,
    identity: Option<Arc<ShownIdentity>>,
    /// The identity was given by configuration.
    configured: bool,
    /// Each APIService of this server's own has been there and available once.
    registered: AtomicBool,
}

impl std::fmt::Debug for Aggregation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Aggregation({} backends)", self.table.load().len())
    }
}

impl Aggregation {
    /// Nothing is aggregated yet; backends are shown `identity`.
    pub(crate) fn new(identity: Option<Arc<ShownIdentity>>, configured: bool) -> Self {
        Self {
            table: ArcSwap::default(),
            view: ArcSwap::default(),
            generation: AtomicU64::new(0),
            publishing: Mutex::new(()),
            identity,
            configured,
            registered: AtomicBool::new(false),
        }
    }

    /// Whether backends are shown a certificate that was given by configuration.
    pub(crate) fn has_own_identity(&self) -> bool {
        self.configured
    }

    /// Whether all APIServices of this server's own have been there and available once.
    pub(crate) fn is_registered(&self) -> bool {
        self.registered.load(Ordering::Acquire)
    }

    /// The backend that answers a request, if it is not for this server.
    pub(crate) fn backend(&self, info: &RequestInfo) -> Option<Arc<Backend>> {
        let table = self.table.load();
        if table.is_empty() {
            return None;
        }
        if info.is_resource {
            if info.prefix != "apis" {
                return None;
            }
            let key = (info.group.clone(), info.version.clone());
            return table.get(&key).cloned();
        }
        let mut parts = info.path.split('/').filter(|part| !part.is_empty());
        if parts.next() != Some("apis") {
            return None;
        }
        let key = (parts.next()?.to_owned(), parts.next()?.to_owned());
        table.get(&key).cloned()
    }

    /// Whether another server answers a version of a group.
    pub(crate) fn answers(&self, group: &str, version: &str) -> bool {
        let table = self.table.load();
        table.contains_key(&(group.to_owned(), version.to_owned()))
    }

    /// What discovery and OpenAPI tell of the backends.
    pub(crate) fn view(&self) -> Arc<AggregationView> {
        self.view.load_full()
    }

    /// The certificate that backends are shown.
    pub(crate) fn identity(&self) -> Option<Arc<ShownIdentity>> {
        self.identity.clone()
    }

    /// All APIServices of this server's own are there and available.
    pub(crate) fn set_registered(&self) {
        self.registered.store(true, Ordering::Release);
    }

    /// The backends there are.
    pub(crate) fn backends(&self) -> Arc<HashMap<GroupVersion, Arc<Backend>>> {
        self.table.load_full()
    }

    /// Has these be the backends.
    pub(crate) fn replace(&self, table: HashMap<GroupVersion, Arc<Backend>>) {
        self.table.store(Arc::new(table));
        self.publish();
    }

    /// Makes what the backends say now visible in discovery.
    pub(crate) fn publish(&self) {
        let _one = self.publishing.lock();
        let mut versions: Vec<RemoteVersion> =
            self.table.load().values().map(|b| b.describe()).collect();
        versions.sort_by(|a, b| (&a.group, &a.version).cmp(&(&b.group, &b.version)));
        if self.view.load().versions == versions {
            return;
        }
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        self.view.store(Arc::new(AggregationView {
            generation,
            versions,
        }));
    }
}
