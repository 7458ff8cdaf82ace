//! Flags of nodes.

use crate::join::JoinFlags;
use crate::kubelet_flags::KubeletFlags;
use anyhow::{Context, Result, anyhow, bail};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Which container runtime the node drives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RuntimeKind {
    /// davit's own.
    Embedded,
    /// A CRI runtime behind a unix socket.
    Cri(PathBuf),
    /// No containers: pods are admitted and hold devices, but nothing runs.
    None,
}

impl FromStr for RuntimeKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "embedded" => Ok(Self::Embedded),
            "none" => Ok(Self::None),
            _ => match text.strip_prefix("unix://") {
                Some(path) if path.starts_with('/') => Ok(Self::Cri(path.into())),
                _ => Err("expected `embedded`, `none` or `unix:///path/to/cri.sock`".to_owned()),
            },
        }
    }
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Node")]
pub(crate) struct NodeOptions {
    /// Where /var/lib/kubelet, /var/log/pods and friends live [default: / as root, else below the data dir]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// `embedded`, `unix:///path/to/cri.sock` or `none` [default: the configuration's containerRuntimeEndpoint, else embedded]
    #[arg(
        long,
        value_name = "RUNTIME",
        visible_alias = "container-runtime-endpoint"
    )]
    runtime: Option<RuntimeKind>,
    /// Where the images of an external runtime are, unix:///path/to/images.sock, if not at its own socket
    #[arg(long, value_name = "ENDPOINT")]
    image_service_endpoint: Option<String>,
    /// Name of the node [default: the host's name]
    #[arg(long, value_name = "NAME", visible_alias = "hostname-override")]
    pub(crate) node_name: Option<String>,
    /// Port of the node's own HTTPS server (0 = any) [default: 10250]
    #[arg(long, value_name = "N")]
    pub(crate) node_port: Option<u16>,
    /// Address the node's server listens on [default: in `davit up` the API server's, else the configuration's address or all]
    #[arg(long, value_name = "IP")]
    pub(crate) node_address: Option<IpAddr>,
    /// Allow the image `davit.local/host`: the host's root, read-only
    #[arg(long)]
    pub(crate) allow_host_image: bool,
    /// Directories of CDI files for the embedded runtime, the one that wins last
    /// [default: etc/cdi,var/run/cdi below the root]
    #[arg(long, value_name = "DIR,...", value_delimiter = ',')]
    pub(crate) cdi_spec_dirs: Vec<PathBuf>,
    /// How pods are connected by the embedded runtime: `own` (links made by davit), `none` (a loopback device only), or
    /// networks (`10.88.0.0/16,fd01::/64`, the first of them without a value) of a bridge made by CNI plugins
    /// [default: by CNI where /etc/cni/net.d has a configuration, else own]
    #[arg(
        long,
        value_name = "NETWORK",
        value_delimiter = ',',
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "10.88.0.0/16",
        conflicts_with = "cni_conf_dir"
    )]
    pod_network: Option<Vec<String>>,
    /// Answer pods' questions for names, where davit connects them. Without it names are somebody else's matter (CoreDNS)
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(crate) dns: bool,
    #[command(flatten)]
    pub(crate) proxy: crate::proxy_flags::ProxyFlags,
    #[command(flatten)]
    pub(crate) routes: crate::route_flags::RouteFlags,
    /// End connections that a new network policy forbids within seconds, where davit connects pods. Without it policies
    /// decide about new ones
    #[arg(long)]
    pub(crate) network_policy_strict: bool,
    /// Where the volumes of class `standard` are kept on this node [default: `volumes` below the data dir]
    #[arg(long, value_name = "DIR")]
    pub(crate) volumes_dir: Option<PathBuf>,
    /// Directory of CNI network configurations for the embedded runtime; its first file counts, and pods wait as long as
    /// there is none
    #[arg(long, value_name = "DIR")]
    pub(crate) cni_conf_dir: Option<PathBuf>,
    /// Directories of CNI plugins, the first that has a plugin wins
    #[arg(
        long,
        value_name = "DIR,...",
        value_delimiter = ',',
        default_value = "/opt/cni/bin,/usr/lib/cni"
    )]
    pub(crate) cni_bin_dir: Vec<PathBuf>,
    /// Let whoever creates a pod choose its addresses by the annotation `davit.dev/pod-ips`, those of other pods included,
    /// where a CNI plugin has the capability `ips`. Without it such pods do not start
    #[arg(long)]
    pub(crate) cni_pod_ips: bool,
    /// Handlers of runtime classes that the embedded runtime takes; it runs all of them alike
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) runtime_handlers: Vec<String>,
    #[command(flatten)]
    pub(crate) kubelet: KubeletFlags,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Node {
    /// How to reach the API server [default: of a node that joins, node.kubeconfig in the data directory; else $KUBECONFIG]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) join: JoinFlags,
    /// How to reach the API server to ask for the node's certificate, with a bootstrap token; the kubeconfig is written then
    #[arg(long, value_name = "FILE")]
    pub(crate) bootstrap_kubeconfig: Option<PathBuf>,
    /// Renew the certificate that was asked for before it ends [default: the configuration's rotateCertificates, else true]
    #[arg(long, value_name = "BOOL", default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    rotate_certificates: Option<bool>,
    /// Where the runtime's state lives [default: /var/lib/davit as root, else ~/.local/share/davit]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) options: NodeOptions,
}

/// How pods are connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PodNetwork {
    /// By CNI where there is a configuration, else by davit's own links, where the kernel lets it make some.
    Usual,
    /// By davit's own links.
    Own,
    /// Not at all.
    None,
    /// By CNI, with the administrator's configuration.
    Cni(PathBuf),
    /// By CNI, with a bridge of these networks.
    Bridge(Vec<String>),
}

impl NodeOptions {
    /// What the flags say of the pods' network.
    pub(crate) fn pod_network(&self) -> Result<PodNetwork> {
        if let Some(dir) = &self.cni_conf_dir {
            return Ok(PodNetwork::Cni(dir.clone()));
        }
        let embedded = self.runtime()? == RuntimeKind::Embedded;
        let network = match self.pod_network.as_deref() {
            None if embedded => PodNetwork::Usual,
            None => PodNetwork::None,
            Some([own]) if own == "own" => PodNetwork::Own,
            Some([none]) if none == "none" => PodNetwork::None,
            Some(networks) => PodNetwork::Bridge(networks.to_vec()),
        };
        if !embedded && network != PodNetwork::None {
            return Err(anyhow!(
                "--pod-network is for the embedded runtime; others have a CNI configuration of their own"
            ));
        }
        Ok(network)
    }

    /// The socket of an external runtime's images that the flags or the kubelet's configuration name, if it is another one.
    pub(crate) fn image_socket(&self) -> Result<Option<PathBuf>> {
        let given = self.image_service_endpoint.clone();
        let given = match given.filter(|endpoint| !endpoint.is_empty()) {
            Some(endpoint) => Some(endpoint),
            None => self.kubelet.parsed()?.image_endpoint().map(str::to_owned),
        };
        let Some(endpoint) = given else {
            return Ok(None);
        };
        let path = endpoint.strip_prefix("unix://");
        let path = path.filter(|path| path.starts_with('/')).map(PathBuf::from);
        let path = path.with_context(|| {
            format!("imageServiceEndpoint {endpoint:?}: expected unix:///path/to/images.sock")
        })?;
        if !matches!(self.runtime()?, RuntimeKind::Cri(_)) {
            bail!(
                "imageServiceEndpoint is for external runtimes, which containerRuntimeEndpoint names"
            );
        }
        Ok(Some(path))
    }

    /// The runtime that the flags or the kubelet's configuration name.
    pub(crate) fn runtime(&self) -> Result<RuntimeKind> {
        if let Some(runtime) = &self.runtime {
            return Ok(runtime.clone());
        }
        match self.kubelet.parsed()?.runtime_endpoint() {
            None => Ok(RuntimeKind::Embedded),
            Some(endpoint) => endpoint
                .parse()
                .map_err(|why| anyhow!("containerRuntimeEndpoint {endpoint:?}: {why}")),
        }
    }
}

impl Node {
    /// The kubeconfig of the node: as asked for; of a node that joins, in its data directory; else `$KUBECONFIG`.
    pub(crate) fn kubeconfig(&self, data_dir: &Path) -> Result<PathBuf> {
        if let Some(file) = &self.kubeconfig {
            return Ok(file.clone());
        }
        if self.join.are_given() {
            return Ok(data_dir.join("node.kubeconfig"));
        }
        let named = std::env::var_os("KUBECONFIG").filter(|file| !file.is_empty());
        let named = named.map(PathBuf::from);
        named.context(
            "which cluster? --kubeconfig FILE names one that this node belongs to, --join HOST:PORT one to join",
        )
    }

    /// Whether the node's certificate is renewed.
    pub(crate) fn rotates_certificates(&self) -> Result<bool> {
        if let Some(rotate) = self.rotate_certificates {
            return Ok(rotate);
        }
        let file = self.options.kubelet.parsed()?;
        Ok(file.rotate_certificates().unwrap_or(true))
    }
}
