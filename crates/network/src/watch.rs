//! The loop that brings the kernel to what the API says.

use crate::node::{self, Seen};
use crate::pods::PodLinks;
use crate::proxy::{Proxy, Services, service_of};
use crate::ranges::{self, Claims};
use crate::ruleset::Ruleset;
use crate::{DnsOptions, Error, dns, failed, links_of, metric_of, policy, sweep, table_of};
use davit_client::{Change, Informer, Object, ObjectKey, Subscription};
use davit_netplan::{Network, Node as Here};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::Api;
use kube::runtime::watcher;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Changes that come within this time are written together.
const PAUSE: Duration = Duration::from_millis(50);
/// After a failure, and between looks at whether the table is there.
const RETRY: Duration = Duration::from_secs(2);
/// How long the API server may take to list everything before that is worth a warning.
const SYNC_WARNING: Duration = Duration::from_secs(30);

/// What a node's network is made from.
#[derive(Debug, Clone)]
pub struct Options {
    /// The node's name.
    pub node: String,
    /// Where state lives; `network` below it. It also tells several clusters of one machine apart.
    pub data_dir: PathBuf,
    /// Answers pods' questions for names; nobody does without.
    pub dns: Option<DnsOptions>,
}

/// A node's network.
#[derive(Debug)]
pub struct NodeNetwork {
    options: Options,
    ruleset: Arc<Ruleset>,
    links: PodLinks,
    gateway: watch::Sender<Option<Ipv4Addr>>,
    /// Where nodes answer questions for names.
    resolvers: watch::Sender<BTreeSet<Ipv4Addr>>,
}

impl NodeNetwork {
    /// Takes over what an earlier run left in the kernel. Blocks.
    ///
    /// # Errors
    /// Without the right to change the network, or a kernel without nf_tables; when the state cannot be read.
    pub fn open(options: Options) -> Result<Self, Error> {
        if let Some(dns) = &options.dns {
            dns::check(dns)?;
        }
        sweep(&options.data_dir)?;
        let links = links_of(&options.data_dir);
        let ruleset = Ruleset::open(&table_of(&links), &links);
        let ruleset = Arc::new(ruleset.map_err(failed("nf_tables"))?);
        let dir = options.data_dir.join("network/pods");
        let links = PodLinks::open(dir, ruleset.clone(), &links);
        Ok(Self {
            options,
            ruleset,
            links: links.map_err(failed("records of pods' networks"))?,
            gateway: watch::channel(None).0,
            resolvers: watch::channel(BTreeSet::new()).0,
        })
    }

    /// What connects pods.
    #[must_use]
    pub fn links(&self) -> PodLinks {
        self.links.clone()
    }

    /// The address of this node by which its pods reach everything, once there is one.
    #[must_use]
    pub fn gateway(&self) -> watch::Receiver<Option<Ipv4Addr>> {
        self.gateway.subscribe()
    }

    /// Follows the API until `cancel` is cancelled.
    pub async fn run(self, client: kube::Client, cancel: CancellationToken) {
        let mut tasks = JoinSet::new();
        let (options, gateway) = (self.options.dns.clone(), self.gateway());
        let namespaces = all(&client, &mut tasks, &cancel);
        let known = policy::Known {
            namespaces: namespaces.clone(),
            resolvers: self.resolvers.subscribe(),
        };
        let table = policy::Table {
            ruleset: self.ruleset.clone(),
            links: self.links(),
        };
        tasks.spawn(policy::run(client.clone(), known, table, cancel.clone()));
        let mut follower = Follower::start(self, &client, &mut tasks, &cancel);
        if let Some(options) = options {
            let sources = dns::Sources {
                services: follower.services.services.clone(),
                slices: follower.services.slices.clone(),
                namespaces,
            };
            tasks.spawn(dns::run(options, sources, gateway, cancel.clone()));
        }
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            () = follower.run() => {}
        }
        tasks.shutdown().await;
    }
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
struct Follower {
    network: Arc<NodeNetwork>,
    /// This one: a node may not look at others.
    nodes: Informer<Node>,
    ranges: Informer<ServiceCIDR>,
    services: Services,
    proxy: Arc<Mutex<Proxy>>,
    /// What was written last.
    seen: Seen,
    here: Here,
    dirty: BTreeSet<ObjectKey>,
}

/// Everything that changes.
struct Changes {
    nodes: Subscription<Node>,
    ranges: Subscription<ServiceCIDR>,
    services: Subscription<Service>,
    slices: Subscription<k8s_openapi::api::discovery::v1::EndpointSlice>,
}

/// The object of a change as it is, or was.
fn object<K>(change: Change<K>) -> Option<Arc<K>> {
    match change {
        Change::Applied { new, .. } => Some(new),
        Change::Deleted(old) => Some(old),
        Change::Synced => None,
    }
}

impl Follower {
    fn start(
        network: NodeNetwork,
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
        let proxy = Proxy::new(network.ruleset.clone());
        let own = format!("metadata.name={}", network.options.node);
        let own = watcher::Config::default().fields(&own);
        Self {
            nodes: Informer::spawn(Api::all(client.clone()), own, tasks, cancel.clone()),
            ranges: all(client, tasks, cancel),
            services: Services {
                services: all(client, tasks, cancel),
                slices,
            },
            proxy: Arc::new(Mutex::new(proxy)),
            seen: Seen::default(),
            here: Here {
                name: network.options.node.clone(),
                zone: None,
            },
            dirty: BTreeSet::new(),
            network: Arc::new(network),
        }
    }

    async fn run(&mut self) {
        // What was written before stays until everything is known: nothing vanishes at a restart.
        self.wait_synced().await;
        let mut changes = Changes {
            nodes: self.nodes.subscribe(),
            ranges: self.ranges.subscribe(),
            services: self.services.services.subscribe(),
            slices: self.services.slices.subscribe(),
        };
        loop {
            self.gather(&mut changes);
            if let Err(error) = self.write().await {
                tracing::error!(%error, "network of the node");
                self.dirty = self.all();
                tokio::time::sleep(RETRY).await;
                continue;
            }
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
        let services = self.services.services.list();
        services.iter().map(|s| ObjectKey::of(s.as_ref())).collect()
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
        let service = change.and_then(object);
        self.dirty
            .extend(service.map(|s| ObjectKey::of(s.as_ref())));
    }

    fn slice(&mut self, change: Option<Change<k8s_openapi::api::discovery::v1::EndpointSlice>>) {
        let Some(Change::Applied { .. } | Change::Deleted(_)) = &change else {
            return;
        };
        let (old, new) = match change {
            Some(Change::Applied { old, new }) => (old, Some(new)),
            Some(Change::Deleted(old)) => (Some(old), None),
            _ => (None, None),
        };
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
        let name = &self.network.options.node;
        let own = self.nodes.get(None, name);
        let nodes = self.services.slices.list_indexed(node::NODES);
        let ranges = self.ranges.list();
        let texts = ranges
            .iter()
            .filter_map(|r| r.spec.as_ref()?.cidrs.as_ref())
            .flatten();
        let services: BTreeSet<Network> = texts.filter_map(|text| text.parse().ok()).collect();
        let nodes = nodes.iter().map(AsRef::as_ref);
        let seen = Seen::new(own.as_deref(), nodes, services);
        let labels = own.as_ref().and_then(|node| node.metadata.labels.as_ref());
        let zone = labels.and_then(|labels| labels.get("topology.kubernetes.io/zone"));
        let here = Here {
            name: name.clone(),
            zone: zone.cloned(),
        };
        (seen, here)
    }

    /// Writes what has changed.
    async fn write(&mut self) -> Result<(), Error> {
        let (seen, here) = self.look();
        if here != self.here {
            self.here = here;
            self.dirty = self.all();
        }
        if seen != self.seen {
            let (network, new) = (self.network.clone(), seen.clone());
            blocking(move || network.adjust(&new)).await?;
            self.seen = seen;
        }
        let keys = std::mem::take(&mut self.dirty);
        let (proxy, services, here) =
            (self.proxy.clone(), self.services.clone(), self.here.clone());
        blocking(move || {
            let done = proxy.lock().sync(&keys, &services, &here);
            done.map_err(failed("Services"))
        })
        .await
    }

    /// Whether somebody has removed the table; then everything is told again.
    async fn guard(&mut self) {
        let network = self.network.clone();
        let restored = blocking(move || {
            let restored = network.ruleset.restore().map_err(failed("nf_tables"))?;
            if restored {
                let entered = network.links.enter_all();
                entered.map_err(failed("pods' ports"))?;
            }
            Ok(restored)
        });
        match restored.await {
            Ok(false) => {}
            Ok(true) => {
                tracing::warn!("the network's table was removed by somebody: made anew");
                self.seen = Seen::default();
                self.proxy.lock().forget();
            }
            Err(error) => tracing::warn!(%error, "looking at the network's table"),
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

impl NodeNetwork {
    /// Brings everything but Services to what is seen. Blocks.
    fn adjust(&self, seen: &Seen) -> Result<(), Error> {
        node::write_sets(&self.ruleset, seen).map_err(failed("sets of addresses"))?;
        let own = seen.own.filter(|_| self.options.dns.is_some());
        let resolvers = own.into_iter().chain(seen.others.keys().copied());
        self.resolvers
            .send_replace(resolvers.map(Network::gateway).collect());
        if let Some(range) = seen.own {
            let taken = self.take(range);
            self.links
                .set_fault(taken.as_ref().err().map(ToString::to_string));
            taken?;
        }
        let metric = metric_of(&self.options.data_dir);
        let lost = node::write_routes(seen, metric).map_err(failed("routes to other nodes"))?;
        for node in lost {
            tracing::warn!(%node, "a node on none of this machine's networks: no way to its pods");
        }
        Ok(())
    }

    fn take(&self, range: Network) -> Result<(), Error> {
        ranges::check_free(range)?;
        Claims::of_nodes().claim(&self.options.data_dir, range)?;
        let made = node::become_gateway(range, &self.links);
        made.map_err(failed("gateway of the pods"))?;
        self.gateway.send_replace(Some(range.gateway()));
        Ok(())
    }
}
