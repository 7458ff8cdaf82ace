//! Flags of `davit proxy`, under kube-proxy's names.

use crate::conntrack_flags::ConntrackFlags;
use crate::proxy_config::KubeProxyConfiguration;
use crate::proxy_flags::BindAddress;
use anyhow::{Context, Result, bail};
use davit_network::ProxyAlone;
use std::path::PathBuf;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Proxy {
    /// KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1), as kubeadm writes it
    #[arg(long, value_name = "FILE", conflicts_with = "conntrack")]
    config: Option<PathBuf>,
    /// How to reach the API server; the configuration's clientConnection.kubeconfig wins
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Name of the node [default: the configuration's hostnameOverride, else the host's name]
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// `nftables`, or `iptables`, which is done by nf_tables as well
    #[arg(long, value_name = "MODE", conflicts_with = "config")]
    proxy_mode: Option<String>,
    /// Addresses of the cluster's pods, which keep their sources on the way to cluster addresses; others are masqueraded
    #[arg(long, value_name = "CIDR", conflicts_with = "config")]
    cluster_cidr: Option<String>,
    /// How pods are known: `ClusterCIDR` or `NodeCIDR`
    #[arg(long, value_name = "MODE", conflicts_with = "config")]
    detect_local_mode: Option<String>,
    /// At which addresses of the node the ports of Services are: `primary`, or those in these ranges
    /// [default: all, in mode nftables `primary`]
    #[arg(
        long,
        value_name = "CIDR,...",
        value_delimiter = ',',
        conflicts_with = "config",
        visible_alias = "node-port-addresses"
    )]
    nodeport_addresses: Vec<String>,
    /// Where /healthz and /livez are served; nowhere if empty [default: 0.0.0.0:10256]
    #[arg(long, value_name = "IP[:PORT]", conflicts_with = "config", value_parser = BindAddress::healthz)]
    healthz_bind_address: Option<BindAddress>,
    /// Where /metrics is served; nowhere if empty [default: 127.0.0.1:10249]
    #[arg(long, value_name = "IP[:PORT]", conflicts_with = "config", value_parser = BindAddress::metrics)]
    metrics_bind_address: Option<BindAddress>,
    /// Masquerade whatever goes to cluster addresses
    #[arg(long, conflicts_with = "config")]
    masquerade_all: bool,
    #[command(flatten)]
    conntrack: ConntrackFlags,
    /// Remove what a proxy has left in the kernel, and end
    #[arg(long)]
    pub(crate) cleanup: bool,
}

impl Proxy {
    /// The configuration in force.
    pub(crate) fn configuration(&self) -> Result<KubeProxyConfiguration> {
        if let Some(file) = &self.config {
            let what = || format!("configuration of the proxy {}", file.display());
            let text = std::fs::read_to_string(file).with_context(what)?;
            return KubeProxyConfiguration::parse(&text).with_context(what);
        }
        let mut of_flags = KubeProxyConfiguration::default();
        of_flags.mode = self.proxy_mode.clone().unwrap_or_default();
        of_flags.cluster_cidr = self.cluster_cidr.clone().unwrap_or_default();
        of_flags.detect_local_mode = self.detect_local_mode.clone().unwrap_or_default();
        of_flags.node_port_addresses = Some(self.nodeport_addresses.clone());
        of_flags.iptables.masquerade_all = self.masquerade_all;
        of_flags.nftables.masquerade_all = self.masquerade_all;
        Ok(of_flags)
    }

    /// The proxy that it asks for; `host` says how the machine is called.
    pub(crate) fn alone(
        &self,
        configuration: &KubeProxyConfiguration,
        host: impl FnOnce() -> Result<String>,
    ) -> Result<ProxyAlone> {
        let node = self.hostname_override.clone();
        let named = &configuration.hostname_override;
        let node = node.or_else(|| (!named.is_empty()).then(|| named.clone()));
        let node = node.map_or_else(host, Ok)?;
        let mut alone = configuration.proxy(node.to_lowercase())?;
        if let Some(address) = self.healthz_bind_address {
            alone.proxy.healthz = address.0;
        }
        if let Some(address) = self.metrics_bind_address {
            alone.proxy.metrics = address.0;
        }
        if self.config.is_none() {
            alone.proxy.conntrack = self.conntrack.limits();
        }
        Ok(alone)
    }

    /// The file by which the API server is reached.
    pub(crate) fn kubeconfig(&self, configuration: &KubeProxyConfiguration) -> Result<PathBuf> {
        let named = &configuration.client_connection.kubeconfig;
        match &self.kubeconfig {
            _ if !named.is_empty() => Ok(named.into()),
            Some(file) => Ok(file.clone()),
            None => bail!(
                "--kubeconfig or clientConnection.kubeconfig of --config must name the API server"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use davit_network::{LocalPods, NodePortAddresses};

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        proxy: Proxy,
    }

    fn line(words: &[&str]) -> Result<Proxy> {
        let words = std::iter::once(&"davit").chain(words);
        Ok(Line::try_parse_from(words)?.proxy)
    }

    fn alone(words: &[&str]) -> Result<ProxyAlone> {
        let proxy = line(words)?;
        proxy.alone(&proxy.configuration()?, || Ok("host".to_owned()))
    }

    #[test]
    fn flags_of_kube_proxy() {
        let usual = alone(&["--hostname-override=Node-1"]).unwrap();
        assert_eq!(usual.node, "node-1");
        assert_eq!(usual.proxy.healthz, "0.0.0.0:10256".parse().ok());
        assert_eq!(usual.proxy.metrics, "127.0.0.1:10249".parse().ok());
        let all = ["0.0.0.0/0", "::/0"].map(|range| range.parse().unwrap());
        let all = NodePortAddresses::Within(all.into());
        assert_eq!(
            (usual.pods, usual.proxy.node_ports),
            (LocalPods::Unknown, all)
        );
        let other = [
            "--proxy-mode=nftables",
            "--cluster-cidr=10.244.0.0/16",
            "--healthz-bind-address=",
            "--metrics-bind-address=0.0.0.0",
            "--masquerade-all",
        ];
        let other = alone(&other).unwrap();
        assert_eq!(
            other.pods,
            LocalPods::Within(["10.244.0.0/16".parse().unwrap()].into())
        );
        assert_eq!(other.proxy.node_ports, NodePortAddresses::Primary);
        assert_eq!(other.proxy.healthz, None);
        assert_eq!(other.proxy.metrics, "0.0.0.0:10249".parse().ok());
        assert!(other.masquerade_all);
        assert!(alone(&["--proxy-mode=ipvs"]).is_err());
        // What a file says is not said again.
        assert!(line(&["--config=f", "--cluster-cidr=10.0.0.0/8"]).is_err());
        assert!(line(&["--config=f", "--conntrack-min=1"]).is_err());
        let conntrack = alone(&["--conntrack-min=1", "--conntrack-tcp-be-liberal"]);
        let conntrack = conntrack.unwrap().proxy.conntrack;
        assert!(conntrack.exact && conntrack.min == 1 && conntrack.tcp_be_liberal);
        assert!(line(&["--config=f", "--hostname-override=n"]).is_ok());
    }
}
