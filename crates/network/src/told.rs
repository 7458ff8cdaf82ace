//! What the proxy tells others: how it is, what it has done, and load balancers where endpoints are.

use crate::conntrack_limits::ConntrackLimits;
use crate::health::{CheckPorts, Checks, Health};
use crate::http;
use crate::node_ports::NodePortAddresses;
use davit_client::EventRecorder;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What `/proxyMode` says.
const MODE: &str = "nftables";

/// How the Service proxy of a node is reached and what it does.
#[derive(Debug, Clone, Default)]
pub struct ProxyOptions {
    /// At which addresses of the node the ports of Services are.
    pub node_ports: NodePortAddresses,
    /// Where `/healthz` and `/livez` are served; nowhere without.
    pub healthz: Option<SocketAddr>,
    /// Where `/metrics` and `/proxyMode` are served; nowhere without.
    pub metrics: Option<SocketAddr>,
    /// How many connections the kernel remembers, and how long.
    pub conntrack: ConntrackLimits,
}

/// What there is to tell.
pub(crate) struct Told {
    pub(crate) health: Arc<Health>,
    checks: watch::Sender<Checks>,
    addresses: watch::Sender<BTreeSet<IpAddr>>,
}

impl Default for Told {
    fn default() -> Self {
        Self {
            health: Health::new(),
            checks: watch::channel(Checks::new()).0,
            addresses: watch::channel(BTreeSet::new()).0,
        }
    }
}

impl Told {
    /// The ports of nodes are at these addresses.
    pub(crate) fn reached_at(&self, addresses: &BTreeSet<IpAddr>) {
        self.addresses.send_if_modified(|known| {
            let differ = known != addresses;
            known.clone_from(addresses);
            differ
        });
    }

    /// Load balancers ask for these.
    pub(crate) fn asked_for(&self, checks: Checks) {
        self.checks.send_if_modified(|known| {
            let differ = *known != checks;
            *known = checks;
            differ
        });
    }

    /// Answers who asks, in tasks that end with `cancel`.
    pub(crate) fn serve(
        &self,
        options: &ProxyOptions,
        node: &str,
        client: &kube::Client,
        tasks: &mut JoinSet<()>,
        cancel: &CancellationToken,
    ) {
        let cancel = || cancel.clone();
        let events = EventRecorder::spawn(client.clone(), "kube-proxy", node, tasks, cancel());
        let ports = CheckPorts {
            node: node.to_owned(),
            health: self.health.clone(),
            checks: self.checks.subscribe(),
            addresses: self.addresses.subscribe(),
            events,
        };
        tasks.spawn(ports.run(cancel()));
        if let Some(address) = options.healthz {
            let (what, pages) = ("health of the Service proxy", self.health.pages());
            tasks.spawn(http::keep(what, address, pages, cancel()));
        }
        if let Some(address) = options.metrics {
            let (what, pages) = ("metrics of the Service proxy", self.pages());
            tasks.spawn(http::keep(what, address, pages, cancel()));
        }
    }

    fn pages(&self) -> http::Pages {
        let metrics = self.health.metrics.clone();
        Arc::new(move |path| match path {
            "/metrics" => Some(http::Page::metrics(metrics.encode())),
            "/proxyMode" => Some(http::Page::text(MODE)),
            "/healthz" => Some(http::Page::text("ok")),
            _ => None,
        })
    }
}
