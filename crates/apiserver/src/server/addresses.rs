//! Where a server is reached, and where nodes of its own process are.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use parking_lot::RwLock;
use tokio::sync::watch;

/// Addresses that are known only when somebody listens.
pub(crate) struct Addresses {
    /// What others are told (`--advertise-address`).
    pub(crate) advertised: Option<IpAddr>,
    listener: RwLock<Option<SocketAddr>>,
    /// Where pods reach a server that listens for its own machine only.
    for_pods: watch::Sender<Option<SocketAddr>>,
    nodes: RwLock<HashMap<String, IpAddr>>,
}

impl Addresses {
    pub(crate) fn new(advertised: Option<IpAddr>) -> Self {
        Self {
            advertised,
            listener: RwLock::new(None),
            for_pods: watch::channel(None).0,
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

    /// What discovery names.
    pub(crate) fn of_server(&self) -> SocketAddr {
        let listener = self.listener();
        let specific = listener.map(|a| a.ip()).filter(|ip| !ip.is_unspecified());
        let ip = self.advertised.or(specific);
        let ip = ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        SocketAddr::new(ip, listener.map_or(443, |address| address.port()))
    }

    pub(crate) fn reach_node(&self, node: &str, address: IpAddr) {
        self.nodes.write().insert(node.to_owned(), address);
    }

    pub(crate) fn node(&self, node: &str) -> Option<IpAddr> {
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
