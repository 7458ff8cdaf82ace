//! Flags of the API server.

use crate::access::AccessOptions;
use crate::features::GateFlags;
use crate::serving::TlsFlags;
use std::net::IpAddr;
use std::path::PathBuf;

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "API server")]
pub(crate) struct ServerOptions {
    /// Where state lives [default: /var/lib/davit as root, else ~/.local/share/davit]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Port of the API server (0 = any) [default: 6443]
    #[arg(long, value_name = "N", visible_alias = "secure-port")]
    pub(crate) port: Option<u16>,
    #[command(flatten)]
    pub(crate) tls: TlsFlags,
    /// Address the API server listens on
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub(crate) bind_address: IpAddr,
    /// Address that pods and nodes are told to reach the API server by [default: the bind address, or that of the interface
    /// with the default route; where the server listens for its own machine only, the gateway of the pods]
    #[arg(long, value_name = "IP")]
    pub(crate) advertise_address: Option<IpAddr>,
    /// Where to write the administrator's kubeconfig [default: DATA-DIR/admin.kubeconfig]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) store: crate::etcd::StoreFlags,
    /// File of static bearer tokens, as kube-apiserver takes it: token,user,uid,"group1,group2"
    #[arg(long, value_name = "FILE")]
    pub(crate) token_auth_file: Option<PathBuf>,
    /// Admission plugins to switch on besides those that are on anyway
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) enable_admission_plugins: Vec<String>,
    /// Admission plugins to switch off
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) disable_admission_plugins: Vec<String>,
    /// Configuration of admission plugins, as kube-apiserver takes it (kind AdmissionConfiguration)
    #[arg(long, value_name = "FILE")]
    pub(crate) admission_control_config_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) protection: crate::protection::ProtectionOptions,
    #[command(flatten)]
    pub(crate) access: AccessOptions,
    #[command(flatten)]
    pub(crate) elections: crate::elections::ElectionFlags,
    #[command(flatten)]
    pub(crate) services: crate::serving::ServiceFlags,
    /// Further names and addresses for the serving certificate
    #[arg(long, value_name = "NAME")]
    pub(crate) tls_san: Vec<String>,
    /// Connect to services and pods at loopback addresses, too. For tests: whoever may write endpoints then reaches what
    /// listens for this machine only
    #[arg(long)]
    pub(crate) allow_loopback_endpoints: bool,
    /// Versions of built-in kinds to serve besides those that are always served: `scheduling.k8s.io/v1alpha2` (with feature gate
    /// GenericWorkload), `api/alpha` or `api/all`
    #[arg(
        long,
        value_name = "VERSION=BOOL,...",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) runtime_config: davit_api::runtime_config::RuntimeConfig,
    /// Serve the web page at /console
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(crate) console: bool,
}

#[derive(Debug, Clone, clap::Args)]
#[command(args_override_self = true)]
pub(crate) struct Server {
    #[command(flatten)]
    pub(crate) options: ServerOptions,
    #[command(flatten)]
    pub(crate) serving: crate::serving::ServingFlags,
    #[command(flatten)]
    pub(crate) gates: GateFlags,
}
