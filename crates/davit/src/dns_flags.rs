//! Flags of `davit dns`.

use davit_network::{DnsAlone, DnsOptions};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Port of questions, unless told otherwise.
const PORT: u16 = 53;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Dns {
    /// How to reach the API server
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub(crate) kubeconfig: PathBuf,
    /// The cluster's domain
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    cluster_domain: String,
    /// The one address at which questions are answered: answers leave from it
    #[arg(long, value_name = "IP[:PORT]", value_parser = address)]
    pub(crate) listen: SocketAddr,
    /// The file that names the servers of other names, unless ConfigMap kube-system/kube-dns does
    #[arg(long, value_name = "FILE", default_value = "/etc/resolv.conf")]
    resolv_conf: PathBuf,
    /// Where /metrics is served; CoreDNS has port 9153 [default: nowhere]
    #[arg(long, value_name = "IP:PORT")]
    metrics_bind_address: Option<SocketAddr>,
}

/// An address, with a port or without. All addresses are none: whoever asks at one is answered from it.
fn address(text: &str) -> Result<SocketAddr, String> {
    let bare = text.parse().map(|ip: IpAddr| SocketAddr::new(ip, PORT));
    let address: Result<SocketAddr, _> = bare.or_else(|_| text.parse());
    match address {
        Ok(address) if address.ip().is_unspecified() => {
            Err("expected one address: answers leave from the one that was asked".to_owned())
        }
        Ok(address) => Ok(address),
        Err(_) => Err("expected ADDRESS[:PORT]".to_owned()),
    }
}

impl Dns {
    /// The server that they ask for.
    pub(crate) fn alone(self) -> DnsAlone {
        DnsAlone {
            dns: DnsOptions {
                domain: self.cluster_domain,
                resolv_conf: self.resolv_conf,
            },
            listen: self.listen,
            metrics: self.metrics_bind_address,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address() {
        assert_eq!(address("10.96.0.10"), Ok("10.96.0.10:53".parse().unwrap()));
        assert_eq!(address("[::1]:54"), Ok("[::1]:54".parse().unwrap()));
        assert!(address("0.0.0.0:53").is_err() && address("::").is_err());
        assert!(address("name").is_err());
    }
}
