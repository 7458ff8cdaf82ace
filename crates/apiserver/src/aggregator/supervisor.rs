//! Keeps the table of backends and their tasks in step with the APIServices.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use davit_watchcache::{Filter, Watch, WatchItem, WatchOptions, WatchStart};
use futures::FutureExt;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{GROUP, PLURAL, availability, register, set_available};
use crate::aggregation::{Backend, GroupVersion, documents};
use crate::server::ApiServer;

/// Backends are looked at this often when nothing happens.
const RESYNC: Duration = Duration::from_secs(30);
/// Changes that come together are handled together.
const SETTLE: Duration = Duration::from_millis(20);
/// A backend is not checked more often than this.
const CHECK_PAUSE: Duration = Duration::from_millis(200);
/// How long to wait for a watch to be served.
const OPENING: Duration = Duration::from_secs(10);
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Runs until the server is gone; whoever spawns it ends it with the server.
pub(crate) async fn run(server: Weak<ApiServer>) {
    let mut tasks: HashMap<GroupVersion, AbortOnDropHandle<()>> = HashMap::new();
    let mut changes: Option<Changes> = None;
    loop {
        let Some(live) = server.upgrade() else { return };
        // Watches come before the list, so that no change falls between them.
        if changes.is_none() {
            changes = Changes::open(&live).await;
        }
        let mut registry = live.registry().changes();
        let complete = reconcile(&live, &server, &mut tasks).await;
        drop(live);
        let pause = if complete {
            RESYNC
        } else {
            Duration::from_secs(1)
        };
        let until = Instant::now() + pause;
        loop {
            let Some(open) = changes.as_mut() else {
                tokio::time::sleep(Duration::from_secs(1)).await;
                break;
            };
            let change = tokio::select! {
                () = tokio::time::sleep_until(until) => break,
                _ = registry.changed() => break,
                change = open.next() => change,
            };
            match change {
                Some(Change::ApiService) => break,
                Some(Change::Service(namespace, name)) => {
                    let Some(live) = server.upgrade() else { return };
                    recheck(&live, &namespace, &name);
                }
                None => {
                    changes = None;
                    break;
                }
            }
        }
        tokio::time::sleep(SETTLE).await;
        let Some(live) = server.upgrade() else { return };
        if changes.as_mut().is_some_and(|open| !open.drain(&live)) {
            changes = None;
        }
    }
}

/// The backends behind a service are checked soon.
fn recheck(server: &ApiServer, namespace: &str, name: &str) {
    for backend in server.aggregation().backends().values() {
        if backend.service.namespace == namespace && backend.service.name == name {
            backend.recheck.notify_one();
        }
    }
}

async fn reconcile(
    server: &Arc<ApiServer>,
    weak: &Weak<ApiServer>,
    tasks: &mut HashMap<GroupVersion, AbortOnDropHandle<()>>,
) -> bool {
    let objects = match register::all(server).await {
        Ok(objects) => objects,
        Err(status) => {
            tracing::warn!(error = status.message, "reading APIServices");
            return false;
        }
    };
    let names = objects
        .iter()
        .filter_map(|object| object["metadata"]["name"].as_str());
    let names = names.map(str::to_owned).collect();
    server.metrics().aggregation.exist(names);
    let aggregation = server.aggregation();
    let before = aggregation.backends();
    let mut table = HashMap::new();
    for object in &objects {
        if object.pointer("/metadata/deletionTimestamp").is_some() {
            continue;
        }
        let identity = aggregation.identity();
        let Some(new) = Backend::new(object, server.webhooks(), identity) else {
            continue;
        };
        let key = (new.group.clone(), new.version.clone());
        let backend = match before.get(&key) {
            Some(held) if held.spec == new.spec => Arc::clone(held),
            _ => {
                let backend = Arc::new(new);
                let attending = attend(weak.clone(), Arc::clone(&backend));
                tasks.insert(key.clone(), AbortOnDropHandle::new(tokio::spawn(attending)));
                backend
            }
        };
        table.insert(key, backend);
    }
    tasks.retain(|key, _| table.contains_key(key));
    aggregation.replace(table);
    let complete = register::sync(server, &objects).await;
    if complete {
        aggregation.set_registered();
    }
    complete
}

/// Checks one backend and reads its documents for as long as its APIService says the same.
async fn attend(server: Weak<ApiServer>, backend: Arc<Backend>) {
    let mut failures = 0_u32;
    loop {
        let Some(live) = server.upgrade() else { return };
        let verdict = availability::check(&live, &backend).await;
        let available = verdict.0 == "True";
        if available != backend.is_available() {
            tracing::info!(
                apiservice = backend.name,
                available,
                reason = verdict.1,
                message = verdict.2,
                "availability of an aggregated API server changed"
            );
        }
        let lost = (backend.is_available() && !available).then_some(verdict.1);
        let metrics = &live.metrics().aggregation;
        metrics.found(&backend.name, available, lost);
        backend.set_available(available);
        if available {
            failures = 0;
            let refreshing = documents::refresh(&backend);
            if tokio::time::timeout(OPENING, refreshing).await.is_err() {
                documents::mark_stale(&backend);
            }
        } else {
            failures = failures.saturating_add(1);
            documents::mark_stale(&backend);
        }
        live.aggregation().publish();
        let mut verdict = Some(verdict);
        let told = set_available(&live, &backend.name, verdict.take().unwrap_or_default()).await;
        if let Err(status) = told {
            tracing::debug!(
                apiservice = backend.name,
                error = status.message,
                "telling availability"
            );
        }
        drop(live);
        let delay = if available {
            RESYNC
        } else {
            RESYNC.min(Duration::from_secs(1 << failures.min(5)))
        };
        tokio::select! {
            () = backend.recheck.notified() => tokio::time::sleep(CHECK_PAUSE).await,
            () = tokio::time::sleep(delay) => {}
        }
    }
}

enum Change {
    ApiService,
    /// Something about the service of this namespace and name.
    Service(String, String),
}

/// What can change the verdict on a backend.
struct Changes {
    api_services: Watch,
    services: Watch,
    slices: Watch,
}

impl Changes {
    async fn open(server: &ApiServer) -> Option<Self> {
        Some(Self {
            api_services: watch(server, GROUP, PLURAL).await?,
            services: watch(server, "", "services").await?,
            slices: watch(server, "discovery.k8s.io", "endpointslices").await?,
        })
    }

    /// Takes what has come meanwhile; false when a watch has ended.
    fn drain(&mut self, server: &ApiServer) -> bool {
        while let Some(change) = self.next().now_or_never() {
            match change {
                Some(Change::ApiService) => {}
                Some(Change::Service(namespace, name)) => recheck(server, &namespace, &name),
                None => return false,
            }
        }
        true
    }

    /// The next change; `None` when a watch has ended and all must be opened again.
    async fn next(&mut self) -> Option<Change> {
        loop {
            let (item, kind) = tokio::select! {
                item = self.api_services.next() => (item, 0),
                item = self.services.next() => (item, 1),
                item = self.slices.next() => (item, 2),
            };
            let Some(Ok(WatchItem::Event(delivery))) = item else {
                return None;
            };
            let header = delivery.object().header();
            let namespace = header.namespace.to_string();
            match kind {
                0 => return Some(Change::ApiService),
                1 => return Some(Change::Service(namespace, header.name.to_string())),
                _ => {
                    let label = header.labels.iter().find(|(key, _)| **key == *SERVICE_NAME);
                    if let Some((_, service)) = label {
                        return Some(Change::Service(namespace, service.to_string()));
                    }
                }
            }
        }
    }
}

async fn watch(server: &ApiServer, group: &str, plural: &str) -> Option<Watch> {
    let snapshot = server.registry().snapshot();
    let resource = snapshot.by_group_resource(group, plural)?;
    let options = WatchOptions {
        start: WatchStart::Latest,
        filter: Filter::default(),
        bookmarks: false,
        deadline: None,
    };
    let opened = resource
        .storage
        .cache()
        .watch(options, Instant::now() + OPENING);
    match opened.await {
        Ok(watch) => Some(watch),
        Err(error) => {
            tracing::warn!(%error, plural, "watching for aggregation");
            None
        }
    }
}
