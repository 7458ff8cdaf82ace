//! Where a server is reached, and where nodes of its own process are.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use davit_listen::addresses::{is_own, outgoing_address};
use parking_lot::RwLock;
use tokio::sync::watch;

/// Addresses that are known only when somebody listens.
pub(crate) struct Addresses {
    /// What others are told (`--advertise-address`).
    pub(crate) advertised: Option<IpAddr>,
    listener: RwLock<Option<SocketAddr>>,
    /// Where pods reach a server that listens for its own machine only.
    for_pods: watch::Sender<Option<SocketAddr>>,
    /// Where pods of this machine reach a server that listens everywhere, whatever network there is.
    gateway: RwLock<Option<IpAddr>>,
    /// The address of this machine by which the server was reached last, as it was found.
    found: RwLock<Option<IpAddr>>,
    nodes: RwLock<HashMap<String, NodeHere>>,
}

/// A node of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeHere {
    pub(crate) at: IpAddr,
    /// Whether its certificate is of its name for sure: addresses of machines change.
    pub(crate) is_named: bool,
}

impl Addresses {
    pub(crate) fn new(advertised: Option<IpAddr>) -> Self {
        Self {
            advertised,
            listener: RwLock::new(None),
            for_pods: watch::channel(None).0,
            gateway: RwLock::default(),
            found: RwLock::default(),
            nodes: RwLock::default(),
        }
    }

    pub(crate) fn listens_at(&self, address: SocketAddr) {
        *self.listener.write() = Some(address);
    }

    pub(crate) fn listener(&self) -> Option<SocketAddr> {
        *self.listener.read()
    }

    pub(crate) fn pods_reach(&self, address: SocketAddr) {
        self.for_pods.send_replace(Some(address));
    }

    pub(crate) fn for_pods(&self) -> watch::Receiver<Option<SocketAddr>> {
        self.for_pods.subscribe()
    }

    pub(crate) fn has_gateway(&self, address: IpAddr) {
        *self.gateway.write() = Some(address);
    }

    /// The address of this machine by which others reach it; while it has none by which it reaches others the last one that it
    /// still has, and if there is none the gateway of its pods.
    pub(crate) fn outgoing(&self, any: IpAddr) -> Option<IpAddr> {
        let now = outgoing_address(any);
        if now.is_some() {
            *self.found.write() = now;
            return now;
        }
        let before = self.found.read().filter(|before| is_own(*before));
        let gateway = self.gateway.read();
        before.or_else(|| gateway.filter(|gateway| gateway.is_ipv4() == any.is_ipv4()))
    }

    /// What discovery names.
    pub(crate) fn of_server(&self) -> SocketAddr {
        let listener = self.listener();
        let specific = listener.map(|a| a.ip()).filter(|ip| !ip.is_unspecified());
        let ip = self.advertised.or(specific);
        let ip = ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        SocketAddr::new(ip, listener.map_or(443, |address| address.port()))
    }

    pub(crate) fn reach_node(&self, node: &str, here: NodeHere) {
        self.nodes.write().insert(node.to_owned(), here);
    }

    pub(crate) fn node(&self, node: &str) -> Option<NodeHere> {
        self.nodes.read().get(node).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discovery_names_an_address_that_somebody_can_reach() {
        let plain = Addresses::new(None);
        assert_eq!(plain.of_server().to_string(), "127.0.0.1:443");
        plain.listens_at("[::]:6443".parse().unwrap());
        assert_eq!(plain.of_server().to_string(), "127.0.0.1:6443");
        plain.listens_at("192.0.2.7:6443".parse().unwrap());
        assert_eq!(plain.of_server().to_string(), "192.0.2.7:6443");
        let told = Addresses::new(Some("192.0.2.9".parse().unwrap()));
        told.listens_at("0.0.0.0:8443".parse().unwrap());
        assert_eq!(told.of_server().to_string(), "192.0.2.9:8443");
    }
}
