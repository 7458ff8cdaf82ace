//! The loop that brings the kernel to what the API says of Services, of this node and of the others.

use crate::health::Checks;
use crate::metrics::PolicyMetrics;
use crate::node::{self, Seen};
use crate::proxy::{Proxy, Services, service_of};
use crate::tables::Tables;
use crate::told::{ProxyOptions, Told};
use crate::{Error, failed};
use davit_client::{Change, Informer, Object, ObjectKey, Subscription};
use davit_netplan::{Network, Node as Here, addresses_of, external_addresses_of};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::runtime::watcher;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Changes that come within this time are written together.
const PAUSE: Duration = Duration::from_millis(50);
/// After a failure, and between looks at whether the table is there.
const RETRY: Duration = Duration::from_secs(2);
/// Between looks at what others may have changed: devices that go down take their routes with them.
const KEEP: Duration = Duration::from_secs(10);
/// How long the API server may take to list everything before that is worth a warning.
const SYNC_WARNING: Duration = Duration::from_secs(30);
/// When an endpoint of a slice has changed, as the controllers say.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// What the proxy is a part of.
pub(crate) trait Host: Send + Sync + 'static {
    /// Brings everything but Services to what is seen. Blocks.
    fn adjust(&self, seen: &Seen) -> Result<(), Error>;
    /// Brings what others may have changed, or what did not work, to what was seen last. Blocks.
    fn keep(&self, seen: &Seen) -> Result<(), Error>;
    /// The table was made anew: enters what others than the proxy have in it. Blocks.
    fn restored(&self) -> Result<(), Error>;
}

/// Follows all objects of a kind.
pub(crate) fn all<K: Object>(
    client: &kube::Client,
    tasks: &mut JoinSet<()>,
    cancel: &CancellationToken,
) -> Informer<K> {
    let config = watcher::Config::default();
    Informer::spawn(Api::all(client.clone()), config, tasks, cancel.clone())
}

/// What the informers say, and what was made of it.
pub(crate) struct Follower {
    host: Arc<dyn Host>,
    tables: Arc<Tables>,
    options: ProxyOptions,
    /// This one: a node may not look at others.
    nodes: Informer<Node>,
    ranges: Informer<ServiceCIDR>,
    pub(crate) services: Services,
    /// One for each table.
    proxies: Arc<Mutex<Vec<Proxy>>>,
    told: Told,
    /// What was written last, and when it was looked after.
    seen: Seen,
    kept: Instant,
    here: Here,
    dirty: BTreeSet<ObjectKey>,
    /// When the changes were made that are to be written.
    triggers: Vec<Timestamp>,
    /// What has changed before is not this run's matter.
    started: Timestamp,
}

/// Everything that changes.
struct Changes {
    nodes: Subscription<Node>,
    ranges: Subscription<ServiceCIDR>,
    services: Subscription<Service>,
    slices: Subscription<EndpointSlice>,
}

/// The object of a change as it is, or was.
fn object<K>(change: Change<K>) -> Option<Arc<K>> {
    match change {
        Change::Applied { new, .. } => Some(new),
        Change::Deleted(old) => Some(old),
        Change::Synced => None,
    }
}

/// When the pods behind a slice have changed, as the controllers say.
pub(crate) fn trigger_of(slice: &EndpointSlice) -> Option<Timestamp> {
    let annotations = slice.metadata.annotations.as_ref()?;
    annotations.get(TRIGGER_TIME)?.parse().ok()
}

impl Follower {
    pub(crate) fn start(
        host: Arc<dyn Host>,
        tables: Arc<Tables>,
        node: String,
        options: ProxyOptions,
        client: &kube::Client,
        tasks: &mut JoinSet<()>,
        cancel: &CancellationToken,
    ) -> Self {
        let slices = Informer::spawn_indexed(
            Api::all(client.clone()),
            watcher::Config::default(),
            service_of,
            tasks,
            cancel.clone(),
        );
        let told = Told::default();
        let own = format!("metadata.name={node}");
        let own = watcher::Config::default().fields(&own);
        let follower = Self {
            host,
            tables,
            options,
            nodes: Informer::spawn(Api::all(client.clone()), own, tasks, cancel.clone()),
            ranges: all(client, tasks, cancel),
            services: Services {
                services: all(client, tasks, cancel),
                slices,
            },
            proxies: Arc::default(),
            told,
            seen: Seen::default(),
            kept: Instant::now(),
            here: Here {
                name: node,
                ..Here::default()
            },
            dirty: BTreeSet::new(),
            triggers: Vec::new(),
            started: Timestamp::now(),
        };
        let told = &follower.told;
        told.serve(
            &follower.options,
            &follower.here.name,
            client,
            tasks,
            cancel,
        );
        follower
    }

    /// What is counted of network policies, with what is counted of Services.
    pub(crate) fn policies(&self) -> PolicyMetrics {
        self.told.health.metrics.policies()
    }

    /// Follows the API, without end.
    pub(crate) async fn run(&mut self) {
        // What was written before stays until everything is known: nothing vanishes at a restart.
        self.wait_synced().await;
        let mut changes = Changes {
            nodes: self.nodes.subscribe(),
            ranges: self.ranges.subscribe(),
            services: self.services.services.subscribe(),
            slices: self.services.slices.subscribe(),
        };
        // A failure that stays is said once, not at every attempt.
        let mut said = String::new();
        loop {
            self.gather(&mut changes);
            if let Err(error) = self.write().await {
                let failure = error.to_string();
                if failure != said {
                    tracing::error!(%error, "network of the node, trying again");
                    said = failure;
                }
                self.told.health.metrics.failed();
                self.told.health.queued();
                self.dirty = self.all();
                tokio::time::sleep(RETRY).await;
                continue;
            }
            self.written();
            said.clear();
            tokio::time::sleep(PAUSE).await;
            self.wait(&mut changes).await;
        }
    }

    async fn wait_synced(&self) {
        loop {
            let all = async {
                self.nodes.wait_synced(SYNC_WARNING).await?;
                self.ranges.wait_synced(SYNC_WARNING).await?;
                self.services.services.wait_synced(SYNC_WARNING).await?;
                self.services.slices.wait_synced(SYNC_WARNING).await
            };
            match all.await {
                Ok(()) => return,
                Err(error) => tracing::warn!(%error, "the network waits for the API server"),
            }
        }
    }

    fn all(&self) -> BTreeSet<ObjectKey> {
        self.services.keys()
    }

    /// Everything that was seen stands in the kernel.
    fn written(&mut self) {
        self.told.health.updated();
        let now = Timestamp::now();
        for trigger in self.triggers.drain(..) {
            let took = Duration::try_from(now.duration_since(trigger));
            // clocks of machines differ
            self.told
                .health
                .metrics
                .programmed(took.unwrap_or_default());
        }
    }

    /// Waits for a change, or until the table has to be looked at.
    async fn wait(&mut self, changes: &mut Changes) {
        let look = Instant::now() + RETRY;
        loop {
            tokio::select! {
                change = changes.nodes.next() => {
                    if let Some(Change::Applied { old: Some(old), new }) = &change
                        && !node::matters(old, new)
                    {
                        continue;
                    }
                }
                _ = changes.ranges.next() => {}
                change = changes.services.next() => self.service(change),
                change = changes.slices.next() => self.slice(change),
                () = tokio::time::sleep_until(look) => self.guard().await,
            }
            return;
        }
    }

    /// Takes what has changed meanwhile.
    fn gather(&mut self, changes: &mut Changes) {
        while changes.nodes.try_next().is_some() {}
        while changes.ranges.try_next().is_some() {}
        while let Some(change) = changes.services.try_next() {
            self.service(Some(change));
        }
        while let Some(change) = changes.slices.try_next() {
            self.slice(Some(change));
        }
    }

    fn service(&mut self, change: Option<Change<Service>>) {
        let Some(service) = change.and_then(object) else {
            return;
        };
        self.told.health.metrics.services().seen();
        self.told.health.queued();
        self.dirty.insert(ObjectKey::of(service.as_ref()));
    }

    fn slice(&mut self, change: Option<Change<EndpointSlice>>) {
        let (old, new) = match change {
            Some(Change::Applied { old, new }) => (old, Some(new)),
            Some(Change::Deleted(old)) => (Some(old), None),
            Some(Change::Synced) | None => return,
        };
        self.told.health.metrics.endpoints().seen();
        self.told.health.queued();
        let before = old.as_deref().and_then(trigger_of);
        let trigger = new.as_deref().and_then(trigger_of);
        let trigger = trigger.filter(|at| Some(*at) != before && *at > self.started);
        self.triggers.extend(trigger);
        // The label may have changed from one Service to another.
        for slice in [old, new].into_iter().flatten() {
            let key = service_of(&slice);
            let key = key.as_deref().and_then(|key| key.split_once('/'));
            self.dirty.extend(key.map(|(namespace, name)| ObjectKey {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }));
        }
    }

    /// Cluster and node as they are now.
    fn look(&self) -> (Seen, Here) {
        let name = &self.here.name;
        let own = self.nodes.get(None, name);
        self.told.health.see(own.as_deref());
        let nodes = self.services.slices.list_indexed(node::NODES);
        let ranges = self.ranges.list();
        let texts = ranges
            .iter()
            .filter_map(|r| r.spec.as_ref()?.cidrs.as_ref())
            .flatten();
        let services: BTreeSet<Network> = texts.filter_map(|text| text.parse().ok()).collect();
        let nodes = nodes.iter().map(AsRef::as_ref);
        let mut seen = Seen::new(own.as_deref(), nodes, services);
        let addresses = self.services.slices.list_indexed(node::ADDRESSES);
        seen.announced = node::announced_by(name, addresses.iter().map(AsRef::as_ref));
        let labels = own.as_ref().and_then(|node| node.metadata.labels.as_ref());
        let zone = labels.and_then(|labels| labels.get("topology.kubernetes.io/zone"));
        let here = Here {
            name: name.clone(),
            zone: zone.cloned(),
            internal: own.iter().flat_map(|node| addresses_of(node)).collect(),
            external: own
                .iter()
                .flat_map(|node| external_addresses_of(node))
                .collect(),
        };
        (seen, here)
    }

    /// Writes what has changed.
    async fn write(&mut self) -> Result<(), Error> {
        let (mut seen, here) = self.look();
        if here != self.here {
            self.here = here;
            self.dirty = self.all();
        }
        let (node_ports, known) = (self.options.node_ports.clone(), seen.addresses);
        let found = blocking(move || {
            node_ports
                .of(known)
                .map_err(failed("addresses of the node"))
        });
        seen.addresses = found.await?;
        // on a device of this machine, and none of its own
        let announced = &seen.announced;
        seen.addresses
            .retain(|address| !announced.contains(address));
        if seen != self.seen {
            let (host, new) = (self.host.clone(), seen.clone());
            blocking(move || host.adjust(&new)).await?;
            self.told.reached_at(&seen.addresses);
            self.seen = seen;
        }
        let keys = std::mem::take(&mut self.dirty);
        let (proxies, services, here) = (
            self.proxies.clone(),
            self.services.clone(),
            self.here.clone(),
        );
        let (tables, metrics) = (self.tables.clone(), self.told.health.metrics.clone());
        let checks = blocking(move || {
            let mut proxies = proxies.lock();
            let known = proxies.len();
            for ruleset in tables.all() {
                if proxies
                    .iter()
                    .all(|proxy| proxy.family() != ruleset.family())
                {
                    proxies.push(Proxy::new(ruleset, &metrics));
                }
            }
            // one that is new has everything to tell
            let all = match known < proxies.len() {
                true => services.keys(),
                false => BTreeSet::new(),
            };
            let mut checks = Checks::new();
            for (index, proxy) in proxies.iter_mut().enumerate() {
                let keys = if index < known { &keys } else { &all };
                let done = proxy.sync(keys, &services, &here);
                done.map_err(failed("Services"))?;
                // a Service of both families has its endpoints in both
                for (service, check) in proxy.checks() {
                    checks
                        .entry(service.clone())
                        .or_insert_with(|| check.clone());
                }
            }
            Ok(checks)
        });
        self.told.asked_for(checks.await?);
        Ok(())
    }

    /// Whether somebody has removed the table; then everything is told again.
    async fn guard(&mut self) {
        let (tables, host) = (self.tables.clone(), self.host.clone());
        let restored = blocking(move || {
            let mut restored = false;
            for ruleset in tables.all() {
                restored |= ruleset.restore().map_err(failed("nf_tables"))?;
            }
            if restored {
                host.restored()?;
            }
            Ok(restored)
        });
        match restored.await {
            Ok(false) => self.keep().await,
            Ok(true) => {
                tracing::warn!("the network's table was removed by somebody: made anew");
                self.seen = Seen::default();
                self.proxies.lock().iter_mut().for_each(Proxy::forget);
            }
            Err(error) => tracing::warn!(%error, "looking at the network's table"),
        }
    }
}

impl Follower {
    async fn keep(&mut self) {
        if self.kept.elapsed() < KEEP {
            return;
        }
        self.kept = Instant::now();
        let (host, seen) = (self.host.clone(), self.seen.clone());
        if let Err(error) = blocking(move || host.keep(&seen)).await {
            tracing::warn!(%error, "network of the node");
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(failed("network")(std::io::Error::other(error))),
    }
}
