//! The cluster's DNS server on this node: fed by informers, listening where its pods reach everything (spec network.md
//! 6.7).

use crate::{Error, failed};
use davit_client::{Change, Informer, Subscription};
use davit_dns::{Forwarder, Metrics, Server, Upstreams, Zone, resolv_conf};
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use parking_lot::RwLock;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const PORT: u16 = 53;
/// How long answers are good: short, because asking again costs next to nothing here.
const TTL: u32 = 5;
/// Between tries to listen, and looks at the file of the machine's own servers.
const RETRY: Duration = Duration::from_secs(10);

/// How names are resolved.
#[derive(Debug, Clone)]
pub struct DnsOptions {
    /// The cluster's domain, `cluster.local`.
    pub domain: String,
    /// The file that names the servers for all other names.
    pub resolv_conf: PathBuf,
}

/// What the zone is made of.
pub(crate) struct Sources {
    pub(crate) services: Informer<Service>,
    pub(crate) slices: Informer<EndpointSlice>,
    pub(crate) namespaces: Informer<Namespace>,
}

/// Follows the informers and answers at the gateway's address, from when there is one until it is cancelled.
pub(crate) async fn run(
    options: DnsOptions,
    sources: Sources,
    gateway: watch::Receiver<Option<Ipv4Addr>>,
    cancel: CancellationToken,
) {
    let zone = match Zone::new(&options.domain, TTL) {
        Ok(zone) => Arc::new(RwLock::new(zone)),
        Err(error) => {
            tracing::error!(domain = options.domain, %error, "no DNS: not a domain");
            return;
        }
    };
    let feeding = feed(zone.clone(), sources);
    let serving = serve(options, zone, gateway, &cancel);
    tokio::select! {
        biased;
        () = cancel.cancelled() => {}
        () = feeding => {}
        () = serving => {}
    }
}

/// Enters every change. Names that are not found are not said to be missing before everything was seen once.
async fn feed(zone: Arc<RwLock<Zone>>, sources: Sources) {
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
                Some(change) => slice(&zone, change),
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

fn namespace(zone: &RwLock<Zone>, change: Change<Namespace>) {
    match change {
        Change::Applied { new, .. } => zone.write().apply_namespace(&new.name_any()),
        Change::Deleted(old) => zone.write().remove_namespace(&old.name_any()),
        Change::Synced => {}
    }
}

/// Listens and answers; looks again from time to time whom others' names are asked of.
async fn serve(
    options: DnsOptions,
    zone: Arc<RwLock<Zone>>,
    mut gateway: watch::Receiver<Option<Ipv4Addr>>,
    cancel: &CancellationToken,
) {
    let Ok(address) = gateway.wait_for(Option::is_some).await.map(|found| *found) else {
        return;
    };
    let address = SocketAddr::new(address.unwrap_or(Ipv4Addr::LOCALHOST).into(), PORT);
    zone.write().set_servers(vec![address.ip()]);
    let listeners = loop {
        match listen(address).await {
            Ok(listeners) => break listeners,
            Err(error) => tracing::error!(%address, %error, "DNS for pods: cannot listen"),
        }
        tokio::time::sleep(RETRY).await;
    };
    let metrics = Metrics::default();
    let mut upstreams = upstreams(&options, address.ip());
    let forwarder = match Forwarder::new(&upstreams, vec![address], metrics.clone()) {
        Ok(forwarder) => forwarder,
        Err(error) => {
            tracing::error!(%error, "DNS for pods");
            return;
        }
    };
    let server = Server::new(zone)
        .with_metrics(metrics)
        .with_forwarder(forwarder.clone());
    let looking = async {
        loop {
            tokio::time::sleep(RETRY).await;
            let found = self::upstreams(&options, address.ip());
            if found != upstreams {
                if let Err(error) = forwarder.configure(&found) {
                    tracing::error!(%error, "DNS for pods: servers of other names");
                }
                upstreams = found;
            }
        }
    };
    tokio::select! {
        () = server.run(vec![listeners], cancel.child_token()) => {}
        () = looking => {}
    }
}

async fn listen(address: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    Ok((
        UdpSocket::bind(address).await?,
        TcpListener::bind(address).await?,
    ))
}

/// The machine's own servers. Where it has none, other names are not known.
fn upstreams(options: &DnsOptions, own: IpAddr) -> Upstreams {
    let file = &options.resolv_conf;
    let servers = resolv_conf::read(file);
    let servers = servers.unwrap_or_else(|error| {
        tracing::debug!(%error, "DNS for pods: no servers of other names");
        Vec::new()
    });
    // The cluster's own address leads here.
    let others = servers.into_iter().filter(|server| server.ip() != own);
    Upstreams {
        default: others.collect(),
        ..Upstreams::default()
    }
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
