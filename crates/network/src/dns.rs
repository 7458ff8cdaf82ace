//! The cluster's DNS server on this node: fed by informers, listening where its pods reach everything (spec network.md
//! 6.7).

mod others;

use crate::follower::{all, trigger_of};
use crate::{Error, failed, http};
use davit_client::{Change, Informer, Subscription};
use davit_dns::{Forwarder, Metrics, Server, Upstreams, Zone};
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use others::Others;
use parking_lot::RwLock;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) use others::settings;

const PORT: u16 = 53;
/// Where CoreDNS serves its metrics.
const METRICS_PORT: u16 = 9153;
/// Slices of Services without an address of their own.
const HEADLESS: &str = "service.kubernetes.io/headless";
/// How long answers are good: short, because asking again costs next to nothing here.
const TTL: u32 = 5;
/// Between tries to listen.
const RETRY: Duration = Duration::from_secs(10);

/// How names are resolved.
#[derive(Debug, Clone)]
pub struct DnsOptions {
    /// The cluster's domain, `cluster.local`.
    pub domain: String,
    /// The file that names the servers for all other names.
    pub resolv_conf: PathBuf,
}

/// What the zone is made of, and what is said of others' names.
pub(crate) struct Sources {
    pub(crate) services: Informer<Service>,
    pub(crate) slices: Informer<EndpointSlice>,
    pub(crate) namespaces: Informer<Namespace>,
    pub(crate) settings: Informer<ConfigMap>,
}

impl Sources {
    /// Those of a server that shares none of its informers.
    pub(crate) fn follow(
        client: &kube::Client,
        tasks: &mut JoinSet<()>,
        cancel: &CancellationToken,
    ) -> Self {
        Self {
            services: all(client, tasks, cancel),
            slices: all(client, tasks, cancel),
            namespaces: all(client, tasks, cancel),
            settings: settings(client, tasks, cancel),
        }
    }
}

/// Follows the informers and answers at the gateways' addresses, from when there are any until it is cancelled.
pub(crate) async fn run_at_gateways(
    options: DnsOptions,
    sources: Sources,
    mut gateways: watch::Receiver<Vec<IpAddr>>,
    cancel: CancellationToken,
) {
    let waiting = async {
        let found = gateways.wait_for(|found| !found.is_empty()).await;
        found.ok().map(|found| Places::at(&found))
    };
    let found = tokio::select! {
        () = cancel.cancelled() => return,
        found = waiting => found,
    };
    if let Some(places) = found {
        run(options, sources, places, cancel).await;
    }
}

/// Follows the informers and answers until it is cancelled.
pub(crate) async fn run(
    options: DnsOptions,
    sources: Sources,
    places: Places,
    cancel: CancellationToken,
) {
    let zone = match Zone::new(&options.domain, TTL) {
        Ok(zone) => Arc::new(RwLock::new(zone)),
        Err(error) => {
            tracing::error!(domain = options.domain, %error, "no DNS: not a domain");
            return;
        }
    };
    let metrics = Metrics::default();
    let others = Others::new(options.resolv_conf, sources.settings.subscribe());
    let feeding = feed(zone.clone(), sources, metrics.clone());
    let serving = serve(others, zone, places, metrics, &cancel);
    tokio::select! {
        biased;
        () = cancel.cancelled() => {}
        () = feeding => {}
        () = serving => {}
    }
}

/// Enters every change. Names that are not found are not said to be missing before everything was seen once.
async fn feed(zone: Arc<RwLock<Zone>>, sources: Sources, metrics: Metrics) {
    let started = Timestamp::now();
    let mut services = sources.services.subscribe();
    let mut slices = sources.slices.subscribe();
    let mut namespaces = sources.namespaces.subscribe();
    loop {
        tokio::select! {
            change = services.next() => match change {
                Some(change) => service(&zone, change),
                None => return,
            },
            change = slices.next() => match change {
                Some(change) => {
                    let trigger = trigger(&change).filter(|at| *at > started);
                    slice(&zone, change);
                    if let Some(at) = trigger {
                        let took = Duration::try_from(Timestamp::now().duration_since(at));
                        // clocks of machines differ
                        metrics.programmed(took.unwrap_or_default());
                    }
                }
                None => return,
            },
            change = namespaces.next() => match change {
                Some(change) => namespace(&zone, change),
                None => return,
            },
        }
        let synced = services.is_synced() && slices.is_synced() && namespaces.is_synced();
        if synced && !zone.read().is_synced() {
            drain(&zone, &mut services, service);
            drain(&zone, &mut slices, slice);
            drain(&zone, &mut namespaces, namespace);
            zone.write().set_synced(true);
        }
    }
}

/// Takes what is there already.
fn drain<K>(
    zone: &RwLock<Zone>,
    subscription: &mut Subscription<K>,
    enter: fn(&RwLock<Zone>, Change<K>),
) {
    while let Some(change) = subscription.try_next() {
        enter(zone, change);
    }
}

fn service(zone: &RwLock<Zone>, change: Change<Service>) {
    match change {
        Change::Applied { new, .. } => zone.write().apply_service(&new),
        Change::Deleted(old) => {
            let namespace = old.namespace().unwrap_or_default();
            zone.write().remove_service(&namespace, &old.name_any());
        }
        Change::Synced => {}
    }
}

fn slice(zone: &RwLock<Zone>, change: Change<EndpointSlice>) {
    match change {
        Change::Applied { new, .. } => zone.write().apply_slice(&new),
        Change::Deleted(old) => {
            let namespace = old.namespace().unwrap_or_default();
            zone.write().remove_slice(&namespace, &old.name_any());
        }
        Change::Synced => {}
    }
}

/// When the pods of a headless Service have changed, if that is what the change is about.
fn trigger(change: &Change<EndpointSlice>) -> Option<Timestamp> {
    let Change::Applied { old, new } = change else {
        return None;
    };
    let is_headless = new.labels().contains_key(HEADLESS);
    let at = trigger_of(new).filter(|_| is_headless);
    at.filter(|at| old.as_deref().and_then(trigger_of) != Some(*at))
}

fn namespace(zone: &RwLock<Zone>, change: Change<Namespace>) {
    match change {
        Change::Applied { new, .. } => zone.write().apply_namespace(&new.name_any()),
        Change::Deleted(old) => zone.write().remove_namespace(&old.name_any()),
        Change::Synced => {}
    }
}

/// Where the server is reached.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// Questions.
    pub(crate) dns: Vec<SocketAddr>,
    /// `/metrics`.
    pub(crate) metrics: Vec<SocketAddr>,
}

impl Places {
    /// Those of a node's server.
    fn at(gateways: &[IpAddr]) -> Self {
        let at = |port| {
            let places = gateways
                .iter()
                .map(|gateway| SocketAddr::new(*gateway, port));
            places.collect()
        };
        Self {
            dns: at(PORT),
            metrics: at(METRICS_PORT),
        }
    }
}

/// Listens and answers; looks again from time to time whom others' names are asked of.
async fn serve(
    others: Others,
    zone: Arc<RwLock<Zone>>,
    places: Places,
    metrics: Metrics,
    cancel: &CancellationToken,
) {
    let own: Vec<IpAddr> = places.dns.iter().map(SocketAddr::ip).collect();
    zone.write().set_servers(own.clone());
    let mut listeners = Vec::new();
    for address in &places.dns {
        loop {
            match listen(*address).await {
                Ok(listener) => break listeners.push(listener),
                Err(error) => tracing::error!(%address, %error, "DNS for pods: cannot listen"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }
    let forwarder = Forwarder::new(&Upstreams::default(), places.dns, metrics.clone());
    let forwarder = match forwarder {
        Ok(forwarder) => forwarder,
        Err(error) => {
            tracing::error!(%error, "DNS for pods");
            return;
        }
    };
    let server = Server::new(zone)
        .with_metrics(metrics.clone())
        .with_forwarder(forwarder.clone());
    let telling = async {
        let each = places.metrics.into_iter().map(|address| {
            let pages = pages(metrics.clone());
            http::keep("metrics of DNS", address, pages, cancel.clone())
        });
        futures::future::join_all(each).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = server.run(listeners, cancel.child_token()) => {}
        () = others.follow(&forwarder, &own) => {}
        () = telling => {}
    }
}

fn pages(metrics: Metrics) -> http::Pages {
    Arc::new(move |path| {
        (path == "/metrics").then(|| {
            let mut registry = Registry::default();
            metrics.register(&mut registry);
            let mut text = String::new();
            if let Err(error) = encode(&mut text, &registry) {
                // a String takes everything
                tracing::debug!(%error, "metrics");
            }
            http::Page::metrics(text)
        })
    })
}

async fn listen(address: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    Ok((
        UdpSocket::bind(address).await?,
        TcpListener::bind(address).await?,
    ))
}

/// Whether the domain can be served.
///
/// # Errors
/// When it is no domain name.
pub(crate) fn check(options: &DnsOptions) -> Result<(), Error> {
    let zone = Zone::new(&options.domain, TTL);
    zone.map(drop)
        .map_err(|error| failed("cluster domain")(io::Error::other(error)))
}

/// A DNS server that runs alone.
#[derive(Debug, Clone)]
pub struct DnsAlone {
    /// How names are resolved.
    pub dns: DnsOptions,
    /// Where questions are answered.
    pub listen: SocketAddr,
    /// Where `/metrics` is served; nowhere without.
    pub metrics: Option<SocketAddr>,
}

impl DnsAlone {
    /// Answers until `cancel` is cancelled.
    ///
    /// # Errors
    /// When the cluster's domain is none, or the address cannot be listened on.
    pub fn run(
        self,
        client: kube::Client,
        cancel: CancellationToken,
    ) -> BoxFuture<'static, Result<(), Error>> {
        self.run_until(client, cancel).boxed()
    }

    async fn run_until(self, client: kube::Client, cancel: CancellationToken) -> Result<(), Error> {
        check(&self.dns)?;
        // Later on it waits for an address; one that cannot be had at the start is a mistake.
        listen(self.listen)
            .await
            .map_err(failed("listening for questions"))?;
        let mut tasks = JoinSet::new();
        let sources = Sources::follow(&client, &mut tasks, &cancel);
        let places = Places {
            dns: vec![self.listen],
            metrics: self.metrics.into_iter().collect(),
        };
        run(self.dns, sources, places, cancel).await;
        tasks.shutdown().await;
        Ok(())
    }
}
