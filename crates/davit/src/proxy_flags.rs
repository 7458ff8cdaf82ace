//! Flags of the Service proxy that a node's agent has in it. `davit proxy` has them under kube-proxy's own names.

use crate::conntrack_flags::ConntrackFlags;
use anyhow::{Context, Result};
use davit_network::{NodePortAddresses, ProxyOptions};
use std::net::{IpAddr, SocketAddr};

/// Port of `/healthz` and `/livez`, unless told otherwise.
pub(crate) const HEALTHZ_PORT: u16 = 10256;
/// Port of `/metrics`, unless told otherwise.
pub(crate) const METRICS_PORT: u16 = 10249;

/// Where something is served; nowhere for an empty text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BindAddress(pub(crate) Option<SocketAddr>);

impl BindAddress {
    /// Nowhere.
    pub(crate) const NOWHERE: Self = Self(None);

    /// An address, with a port or without, or nothing.
    fn parse(text: &str, port: u16) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::NOWHERE);
        }
        let bare = text.parse().map(|ip: IpAddr| SocketAddr::new(ip, port));
        let address = bare.or_else(|_| text.parse());
        let address = address.map_err(|_| "expected ADDRESS[:PORT] or nothing".to_owned())?;
        Ok(Self(Some(address)))
    }

    /// Where health is served.
    pub(crate) fn healthz(text: &str) -> Result<Self, String> {
        Self::parse(text, HEALTHZ_PORT)
    }

    /// Where metrics are served.
    pub(crate) fn metrics(text: &str) -> Result<Self, String> {
        Self::parse(text, METRICS_PORT)
    }
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ProxyFlags {
    /// At which addresses of the node the ports of Services are: `primary` (those by which it is known), or those in these ranges
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    pub(crate) nodeport_addresses: Vec<String>,
    /// Where the Service proxy says how it is (/healthz, /livez); nowhere if empty
    /// [default: port 10256 of the address that the node's server listens on]
    #[arg(long, value_name = "IP[:PORT]", value_parser = BindAddress::healthz)]
    pub(crate) proxy_healthz_bind_address: Option<BindAddress>,
    /// Where the Service proxy serves /metrics; nowhere if empty [default: 127.0.0.1:10249]
    #[arg(long, value_name = "IP[:PORT]", value_parser = BindAddress::metrics)]
    pub(crate) proxy_metrics_bind_address: Option<BindAddress>,
    #[command(flatten)]
    conntrack: ConntrackFlags,
}

impl ProxyFlags {
    /// The flags that were given, for a node that proxies no Services.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        let somewhere = |at: Option<BindAddress>| at.is_some_and(|at| at != BindAddress::NOWHERE);
        let flags = [
            ("--nodeport-addresses", !self.nodeport_addresses.is_empty()),
            (
                "--proxy-healthz-bind-address",
                somewhere(self.proxy_healthz_bind_address),
            ),
            (
                "--proxy-metrics-bind-address",
                somewhere(self.proxy_metrics_bind_address),
            ),
        ];
        let given = flags.into_iter().filter(|(_, is_given)| *is_given);
        let given = given.map(|(flag, _)| flag);
        given.chain(self.conntrack.given()).collect()
    }

    /// No ports but those that were asked for.
    pub(crate) fn keep_to_itself(&mut self) {
        let addresses = [
            &mut self.proxy_healthz_bind_address,
            &mut self.proxy_metrics_bind_address,
        ];
        for address in addresses {
            address.get_or_insert(BindAddress::NOWHERE);
        }
    }

    /// What they say to the proxy of a node whose server listens on `address`.
    ///
    /// # Errors
    /// Ranges that are none.
    pub(crate) fn options(&self, address: IpAddr) -> Result<ProxyOptions> {
        let node_ports = NodePortAddresses::parse(&self.nodeport_addresses);
        let healthz = self.proxy_healthz_bind_address;
        let healthz = healthz.map_or(Some(SocketAddr::new(address, HEALTHZ_PORT)), |at| at.0);
        let metrics = self.proxy_metrics_bind_address;
        let usual = SocketAddr::new([127, 0, 0, 1].into(), METRICS_PORT);
        Ok(ProxyOptions {
            node_ports: node_ports.context("--nodeport-addresses")?,
            healthz,
            metrics: metrics.map_or(Some(usual), |at| at.0),
            conntrack: self.conntrack.limits(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use davit_network::ConntrackLimits;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: ProxyFlags,
    }

    fn options(words: &[&str]) -> Result<ProxyOptions> {
        let line = Line::try_parse_from(std::iter::once(&"davit").chain(words))?;
        line.flags.options([192, 0, 2, 1].into())
    }

    #[test]
    fn where_a_proxy_is_asked() {
        let usual = options(&[]).unwrap();
        assert_eq!(usual.healthz, "192.0.2.1:10256".parse().ok());
        assert_eq!(usual.metrics, "127.0.0.1:10249".parse().ok());
        assert_eq!(usual.node_ports, NodePortAddresses::Primary);
        let healthz = |text: &str| {
            let flag = format!("--proxy-healthz-bind-address={text}");
            options(&[&flag]).map(|options| options.healthz).ok()
        };
        assert_eq!(healthz(""), Some(None));
        assert_eq!(healthz("0.0.0.0"), Some("0.0.0.0:10256".parse().ok()));
        assert_eq!(healthz("[::1]:7"), Some("[::1]:7".parse().ok()));
        assert_eq!(healthz("host:7"), None);
        let both = ["--nodeport-addresses=10.0.0.0/8,192.0.2.0/24"];
        let NodePortAddresses::Within(ranges) = options(&both).unwrap().node_ports else {
            panic!("ranges expected")
        };
        assert_eq!(ranges.len(), 2);
        assert!(options(&["--nodeport-addresses=primary,10.0.0.0/8"]).is_err());
        let mut flags = Line::parse_from(std::iter::once(&"davit").chain(&both)).flags;
        flags.keep_to_itself();
        assert_eq!(flags.given(), ["--nodeport-addresses"]);
        assert_eq!(usual.conntrack, ConntrackLimits::default());
        let less = options(&[
            "--conntrack-max-per-core=0",
            "--conntrack-udp-timeout=1m30s",
        ]);
        let less = less.unwrap().conntrack;
        assert_eq!((less.max_per_core, less.exact), (0, true));
        assert_eq!(less.udp.as_secs(), 90);
        for refused in ["--conntrack-min=-1", "--conntrack-udp-timeout=-1s"] {
            assert!(options(&[refused]).is_err(), "{refused}");
        }
    }
}
