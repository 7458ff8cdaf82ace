//! API aggregation: groups and versions that other servers answer.
//!
//! An `APIService` with a service is a [`backend::Backend`]: its requests are forwarded with the
//! front-proxy certificate and the caller's identity in `X-Remote-*` headers. Each backend has a
//! task of its own that checks it and fetches its discovery and OpenAPI documents, so that a slow
//! or dead one harms no other. Requests read a table that never waits for a backend.
//! For everything served here `APIService` objects are kept automatically ([`register`]).
//! <https://kubernetes.io/docs/concepts/extend-kubernetes/api-extension/apiserver-aggregation/>

mod availability;
mod backend;
mod documents;
mod forward;
mod register;
mod supervisor;
mod view;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use davit_access::RequestInfo;
use davit_api::status::Status;
use davit_webhook::tls::ShownIdentity;
use parking_lot::Mutex;
use serde_json::Value;

use crate::ownership::Tracking;
use crate::server::ApiServer;
use crate::writes::{Author, Writer};

use backend::Backend;
pub(crate) use forward::{Peer, handle};
pub(crate) use supervisor::run;
pub(crate) use view::{AggregationView, RemoteVersion};

pub(super) const GROUP: &str = "apiregistration.k8s.io";
pub(super) const PLURAL: &str = "apiservices";

/// The field manager of what is kept automatically.
const MANAGER: &str = "kube-aggregator";

/// Group and version.
pub(super) type GroupVersion = (String, String);

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

    fn backends(&self) -> Arc<HashMap<GroupVersion, Arc<Backend>>> {
        self.table.load_full()
    }

    fn replace(&self, table: HashMap<GroupVersion, Arc<Backend>>) {
        self.table.store(Arc::new(table));
        self.publish();
    }

    /// Makes what the backends say now visible in discovery.
    fn publish(&self) {
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

/// Runs `write` with a writer of APIServices on behalf of the aggregator.
async fn with_writer<T, F>(server: &ApiServer, write: F) -> Result<T, Status>
where
    F: AsyncFnOnce(&Writer<'_>) -> Result<T, Status>,
{
    let snapshot = server.registry().snapshot();
    let Some(resource) = snapshot.by_group_resource(GROUP, PLURAL) else {
        return Err(Status::internal("APIServices are not served"));
    };
    let author = Author::named(availability::USER);
    let writer = author.writer(server, resource, "", Tracking::Update(MANAGER.to_owned()));
    write(&writer).await
}

/// Sets the Available condition if it says something else.
async fn set_available(
    server: &ApiServer,
    name: &str,
    (status, reason, message): (&str, &str, String),
) -> Result<(), Status> {
    let mut transform = |current: &Value| {
        let mut new = current.clone();
        let mut conditions = current
            .pointer("/status/conditions")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let mut condition = serde_json::json!({
            "type": "Available", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": davit_registry::object::now(),
        });
        let at = conditions.iter().position(|c| c["type"] == "Available");
        if let Some(held) = at.map(|at| conditions.remove(at))
            && held["status"] == status
        {
            condition["lastTransitionTime"] = held["lastTransitionTime"].clone();
        }
        conditions.insert(at.unwrap_or(0), condition);
        new["status"]["conditions"] = Value::Array(conditions);
        Ok(new)
    };
    with_writer(server, async |writer| {
        writer.update(name, "status", &mut transform).await
    })
    .await
    .map(|_| ())
}
