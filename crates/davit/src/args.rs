//! The command line. Names are stable; `docs/` and scripts rely on them.

use crate::access::AccessOptions;
use crate::cluster_flag::Cluster;
use crate::join::JoinFlags;
use crate::kubelet_flags::KubeletFlags;
use crate::live::{self, Live};
use crate::output::{ListOutput, Output};
use crate::page::ColorChoice;
use crate::plugin;
use crate::pod_ranges::{ClusterCidrs, NodeSizes};
use crate::scheduler_flags::SchedulerFlags;
use anyhow::{Context, Result, anyhow, bail};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use davit_api::features::Features;
use davit_controllers::LoadBalancing;
use davit_netplan::{BalancerPool, Network};
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// How processes of davit end (docs/terminal.md).
const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed, with the reason on stderr; 2 a command line that is not understood; \
                          3 something needs attention (`davit status --exit-code`).";

/// A Kubernetes-compatible cluster for devices in one binary.
#[derive(Debug, Parser)]
#[command(name = "davit", version, about, after_help = EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// More log on stderr (-v info, -vv debug); DAVIT_LOG takes a full filter
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
    /// Whether to print in colour
    #[arg(long, value_name = "WHEN", value_enum, default_value_t, global = true)]
    pub(crate) color: ColorChoice,
}

/// What the plugin offers; everything else runs a cluster and is no matter of kubectl.
const PLUGIN_COMMANDS: [&str; 6] = ["devices", "explain", "status", "top", "events", "logs"];

/// `explain pods/x`, as kubectl names objects, is `explain pods x`.
fn with_kinds_apart(line: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut apart: Vec<OsString> = Vec::new();
    for word in line {
        let follows_explain = apart.last().is_some_and(|last| last == "explain");
        match word.to_str().and_then(|word| word.split_once('/')) {
            Some((kind, name)) if follows_explain => apart.extend([kind.into(), name.into()]),
            _ => apart.push(word),
        }
    }
    apart
}

impl Args {
    /// The command line of this process; ends the process when it cannot be understood.
    pub(crate) fn of_process() -> Self {
        if let Some(line) = crate::test_assets::command_line() {
            return Self::parse_from(line);
        }
        let line = with_kinds_apart(std::env::args_os());
        if !plugin::is_running() {
            return Self::configured(line);
        }
        let matches = Self::plugin().get_matches_from(line);
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// The commands with their flags, those of no field of [`Args`] among them.
    pub(crate) fn full_command() -> clap::Command {
        crate::configuration::with_flag(Self::command())
    }

    /// The line with what the environment and the configuration file say.
    fn configured(line: Vec<OsString>) -> Self {
        let mut command = Self::full_command();
        let completed =
            crate::configuration::complete(&command, line, |name| std::env::var_os(name));
        let parsed = completed
            .map_err(|faults| {
                let text = format!("the configuration is not valid:\n{faults}\n");
                command.error(clap::error::ErrorKind::ValueValidation, text)
            })
            .and_then(|completed| command.try_get_matches_from_mut(completed.line))
            .and_then(|matches| Self::from_arg_matches(&matches));
        parsed.unwrap_or_else(|error| error.exit())
    }

    /// The commands as kubectl's users see them.
    pub(crate) fn plugin() -> clap::Command {
        let command = Self::command()
            .name(plugin::NAME)
            .bin_name("kubectl davit")
            .about("Devices of a cluster, and why pods got them or not");
        let names: Vec<String> = command
            .get_subcommands()
            .map(|c| c.get_name().to_owned())
            .filter(|name| !PLUGIN_COMMANDS.contains(&name.as_str()))
            .collect();
        names.into_iter().fold(command, |command, name| {
            command.mut_subcommand(name, |c| c.hide(true))
        })
    }

    /// The log filter when DAVIT_LOG is not set.
    pub(crate) fn default_log(&self) -> &'static str {
        // The client writes answers that it does not understand into the log, whatever is in them.
        match self.verbose {
            // It also logs what it returns, which a command says itself.
            0 if self.command.only_asks() => "warn,kube_client=off",
            0 => "warn,kube_client=error",
            1 => "info,kube_client=error",
            _ => "debug,hyper=info,h2=info,tower=info,rustls=info,kube=info,kube_client=error",
        }
    }
}

#[derive(Debug, Subcommand)]
#[expect(
    clippy::large_enum_variant,
    reason = "one value a process, taken apart at once"
)]
pub(crate) enum Command {
    /// Run a whole cluster: API server, scheduler, controllers and a node
    Up(Up),
    /// End what a cluster or node runs, and remove it with --purge
    Down(crate::down::Down),
    /// Make davit a service of this machine (systemd): program, unit, configuration
    Install(crate::install::Install),
    /// Take the service away again; with --purge everything that it has stored, too
    Uninstall(crate::install::Uninstall),
    /// Run the API server alone
    #[command(visible_alias = "kube-apiserver")]
    Server(Server),
    /// Run the scheduler alone, against any Kubernetes API server
    #[command(visible_alias = "kube-scheduler")]
    Scheduler(Box<SchedulerFlags>),
    /// Run the controllers alone, against any Kubernetes API server
    Controllers(Box<Controllers>),
    /// Run the node agent alone, against any Kubernetes API server
    Node(Node),
    /// Run the Service proxy alone, where others connect pods
    #[command(visible_alias = "kube-proxy")]
    Proxy(Box<crate::kube_proxy_flags::Proxy>),
    /// Run the cluster's DNS server alone
    Dns(crate::dns_flags::Dns),
    /// Make, list and delete the tokens by which machines join a cluster
    Token(crate::token::TokenArgs),
    /// Show which device is where, healthy or not, and which container holds it
    Devices(crate::devices::Devices),
    /// Say why a pod is pending or refused, or where its devices came from
    Explain(Explain),
    /// Show a cluster at a glance: its parts, nodes, pods, devices, and what needs attention
    Status(crate::status::StatusArgs),
    /// Show devices, pods and nodes live, on the whole terminal
    Top(crate::top::Top),
    /// List what has happened, to one object or to all
    #[command(visible_alias = "ev")]
    Events(crate::events::EventsArgs),
    /// Print what a container of a pod writes
    #[command(visible_alias = "log")]
    Logs(crate::logs::Logs),
    /// Print the kubeconfig of a cluster, or put it into the one of kubectl with --merge
    Kubeconfig(crate::kubeconfig::KubeconfigArgs),
    /// Write a project to begin a device plugin or a driver with
    New(crate::new::New),
    /// Collect what a report of a fault needs
    Debug(crate::debug::Debug),
    /// Manage the images of the embedded runtime
    Image(Image),
    /// Save all objects of a running cluster to a file
    Backup(crate::backup::Backup),
    /// Make a store of a backup, embedded or in etcd
    Restore(crate::backup::Restore),
    /// Read all of a data directory and say what is damaged
    Check(crate::check::Check),
    /// Make the folder that envtest starts its programs from, with davit in their place (docs/envtest.md)
    TestAssets(crate::test_assets::TestAssets),
    /// Stand in for etcd in a test: own the directory in which `davit server` keeps its objects
    #[command(hide = true)]
    Etcd(crate::test_assets::Etcd),
    /// Show what a command would be started with, and where each value comes from (docs/configuration.md)
    Config(crate::configuration::ConfigArgs),
    /// Write a script that completes command lines, for a shell's configuration
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print every command and flag as a page of the docs, or write manual pages
    #[command(hide = true)]
    Reference(crate::reference::ReferenceArgs),
    /// Print the version, as --version does
    Version,
    /// List the feature gates that are known, their stages and defaults
    Features(crate::features::FeaturesArgs),
    /// Serve Prometheus metrics of a node's devices, davit's or a kubelet's
    Exporter(crate::exporter::Options),
    /// Simulated devices and nodes, and conformance checks for plugins and monitors
    Lab(crate::lab::Lab),
    /// The example device plugin (what `up --demo` starts)
    #[command(hide = true)]
    ExampleDevice(example_device::Options),
    /// The test driver of classic dynamic resource allocation
    #[command(hide = true)]
    ClassicTest(classic_test::Options),
    /// The example driver of dynamic resource allocation
    #[command(hide = true)]
    ExampleGpu(example_gpu::Options),
}

impl Command {
    /// It asks a cluster and ends.
    fn only_asks(&self) -> bool {
        matches!(
            self,
            Self::Devices(_)
                | Self::Explain(_)
                | Self::Status(_)
                | Self::Top(_)
                | Self::Events(_)
                | Self::Logs(_)
                | Self::Token(_)
                | Self::Debug(_)
                | Self::Backup(_)
        )
    }
}

/// Where the store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreKind {
    /// In the data directory.
    Embedded,
    /// An etcd cluster, by its URLs.
    Etcd(Vec<davit_etcd::EndpointUrl>),
}

impl FromStr for StoreKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "embedded" => Ok(Self::Embedded),
            Some(("etcd", urls)) => {
                let urls: Result<_, _> = urls.split(',').map(str::parse).collect();
                urls.map(Self::Etcd)
                    .map_err(|error: davit_etcd::EndpointError| error.to_string())
            }
            _ => Err("expected `embedded` or `etcd=URL[,URL...]`".to_owned()),
        }
    }
}

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

/// The class of storage that a cluster begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DefaultStorageClass {
    /// `standard`: directories of nodes.
    Local,
    /// No class.
    None,
}

/// Where Services of type LoadBalancer have their addresses from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LoadBalancer {
    /// They have those of the nodes.
    Node,
    /// Another load balancer gives them some.
    None,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BalancerRange {
    /// Addresses that Services of type LoadBalancer have, one each, instead of those of nodes: addresses of the nodes' own
    /// network that no machine has (`192.0.2.200-192.0.2.220,2001:db8::/120`). A node that is ready answers for each
    #[arg(long, value_name = "RANGE,...", conflicts_with = "load_balancer")]
    load_balancer_range: Option<BalancerPool>,
}

impl LoadBalancer {
    /// Where addresses come from: a range that was given is it.
    ///
    /// # Errors
    /// It has addresses of `inside`, those of the cluster's Services and pods: nothing would be reached at them, or somebody else.
    pub(crate) fn or_range(
        self,
        range: &BalancerRange,
        inside: impl IntoIterator<Item = Network>,
    ) -> Result<LoadBalancing> {
        match (&range.load_balancer_range, self) {
            (Some(pool), _) => {
                for network in inside {
                    if let Some((first, last)) = pool.within(network) {
                        bail!(
                            "--load-balancer-range: {first}-{last} overlaps {network}, addresses of Services or pods"
                        );
                    }
                }
                Ok(LoadBalancing::Range(pool.clone()))
            }
            (None, Self::Node) => Ok(LoadBalancing::Nodes),
            (None, Self::None) => Ok(LoadBalancing::Others),
        }
    }
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
pub(crate) struct Up {
    #[command(flatten)]
    pub(crate) server: ServerOptions,
    #[command(flatten)]
    pub(crate) node: NodeOptions,
    /// The storage class that the cluster begins with: `local` makes class `standard`, whose volumes are directories of
    /// nodes, once in the cluster's life
    #[arg(long, value_name = "CLASS", value_enum, default_value_t = DefaultStorageClass::Local)]
    pub(crate) default_storage_class: DefaultStorageClass,
    /// Where Services of type LoadBalancer have their addresses from: `node`, those of the nodes that are ready, or `none`,
    /// from another load balancer
    #[arg(long, value_name = "FROM", value_enum, default_value_t = LoadBalancer::Node, conflicts_with = "no_controllers")]
    pub(crate) load_balancer: LoadBalancer,
    #[command(flatten)]
    pub(crate) balancer_range: BalancerRange,
    /// Directory of the executables of FlexVolume drivers that attach volumes [default: that of --volume-plugin-dir]
    #[arg(long, value_name = "DIR")]
    pub(crate) flex_volume_plugin_dir: Option<PathBuf>,
    /// Only the control plane; needs no privileges
    #[arg(long)]
    pub(crate) no_node: bool,
    /// Serve the simulated devices of this inventory on the node, and on the simulated ones (docs/lab.md)
    #[arg(long, value_name = "FILE")]
    pub(crate) devices: Option<PathBuf>,
    /// Add so many simulated nodes sim-0, sim-1, …: real node agents with devices, whose containers run nothing
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) sim_nodes: usize,
    /// In directories of its own, without waiting for disks; everything is removed at the end. Ports are any unless given
    #[arg(long, conflicts_with_all = ["data_dir", "root", "volumes_dir"])]
    pub(crate) ephemeral: bool,
    /// Begin with a copy of this data directory, which no davit uses
    #[arg(long, value_name = "DIR", requires = "ephemeral")]
    pub(crate) template: Option<PathBuf>,
    /// Stop when the process that has started this one ends, however it does
    #[arg(long)]
    pub(crate) exit_with_parent: bool,
    /// Start the example device plugin and a pod that holds two of its devices, and show who holds what
    #[arg(long, conflicts_with_all = ["no_node", "no_scheduler"])]
    pub(crate) demo: bool,
    /// Addresses of all pods of the cluster, of which each node gets a part: one range, or one of each family
    /// [default: of each family of --service-cluster-ip-range one; the first of 10.244.0.0/16, 10.245.0.0/16, … and of fd00:10:244::/56, … that this machine does not use]
    #[arg(long, value_name = "CIDR[,CIDR]")]
    pub(crate) cluster_cidr: Option<ClusterCidrs>,
    #[command(flatten)]
    pub(crate) node_sizes: NodeSizes,
    /// KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1) of the scheduler (docs/scheduler.md)
    #[arg(long, value_name = "FILE", conflicts_with = "no_scheduler")]
    pub(crate) scheduler_config: Option<PathBuf>,
    /// Leave the scheduler out: another one places the pods
    #[arg(long)]
    pub(crate) no_scheduler: bool,
    /// Leave the controllers out: others run them
    #[arg(long, conflicts_with = "demo")]
    pub(crate) no_controllers: bool,
    /// End after the demo has shown everything, instead of waiting for Ctrl-C
    #[arg(long, requires = "demo", hide = true)]
    pub(crate) exit_after_demo: bool,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "API server")]
pub(crate) struct ServerOptions {
    /// Where state lives [default: /var/lib/davit as root, else ~/.local/share/davit]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Port of the API server (0 = any) [default: 6443]
    #[arg(long, value_name = "N", visible_alias = "secure-port")]
    pub(crate) port: Option<u16>,
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
    /// Handlers of runtime classes that the embedded runtime takes; it runs all of them alike
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) runtime_handlers: Vec<String>,
    #[command(flatten)]
    pub(crate) kubelet: KubeletFlags,
}

/// The gates of a command that has no configuration file for them.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct GateFlags {
    /// Feature gates, by Kubernetes' names (`davit features` lists them); those of fields are the API server's
    #[arg(
        long,
        value_name = "K=V,...",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) feature_gates: Features,
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

/// A component that runs against an API server elsewhere.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Attached {
    /// How to reach the API server
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub(crate) kubeconfig: PathBuf,
    /// Take part in leader election, so that of several replicas one works at a time
    #[arg(long)]
    pub(crate) leader_elect: bool,
    #[command(flatten)]
    pub(crate) gates: GateFlags,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Controllers {
    #[command(flatten)]
    pub(crate) attached: Attached,
    /// Certificate of the authority that signs certificate requests (pki/ca.crt of the server's data directory)
    #[arg(long, value_name = "FILE", requires = "cluster_signing_key_file")]
    pub(crate) cluster_signing_cert_file: Option<PathBuf>,
    /// Key of the authority that signs certificate requests
    #[arg(long, value_name = "FILE", requires = "cluster_signing_cert_file")]
    pub(crate) cluster_signing_key_file: Option<PathBuf>,
    /// How long certificates are valid that are signed on request, unless they ask for less (`8760h`)
    #[arg(long, value_name = "TIME", default_value = "8760h", value_parser = crate::protection::duration)]
    pub(crate) cluster_signing_duration: std::time::Duration,
    /// Authority of the API server, for pods (`kube-root-ca.crt`) [default: that of the kubeconfig]
    #[arg(long, value_name = "FILE")]
    pub(crate) root_ca_file: Option<PathBuf>,
    /// The key that signs service account tokens, to fill Secrets with them (pki/sa.key of the server's data directory)
    #[arg(long, value_name = "FILE")]
    pub(crate) service_account_private_key_file: Option<PathBuf>,
    /// Give each node a part of the pods' addresses
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(crate) allocate_node_cidrs: bool,
    /// Addresses of all pods of the cluster
    #[arg(long, value_name = "CIDR[,CIDR]", default_value = "10.244.0.0/16")]
    pub(crate) cluster_cidr: ClusterCidrs,
    #[command(flatten)]
    pub(crate) node_sizes: NodeSizes,
    /// Addresses of Services, which no pod gets
    #[arg(long, value_name = "CIDR[,CIDR]", default_value_t)]
    pub(crate) service_cluster_ip_range: davit_apiserver::ServiceRanges,
    /// The storage class that the cluster begins with: `local` makes class `standard`, whose volumes are directories of
    /// nodes, once in the cluster's life
    #[arg(long, value_name = "CLASS", value_enum, default_value_t = DefaultStorageClass::None)]
    pub(crate) default_storage_class: DefaultStorageClass,
    /// Where Services of type LoadBalancer have their addresses from: `node`, those of the nodes that are ready, or `none`,
    /// from another load balancer
    #[arg(long, value_name = "FROM", value_enum, default_value_t = LoadBalancer::None)]
    pub(crate) load_balancer: LoadBalancer,
    #[command(flatten)]
    pub(crate) balancer_range: BalancerRange,
    /// Directory of the executables of FlexVolume drivers that attach volumes
    /// [default: /usr/libexec/kubernetes/kubelet-plugins/volume/exec/]
    #[arg(long, value_name = "DIR")]
    pub(crate) flex_volume_plugin_dir: Option<PathBuf>,
    /// Make the Service kube-dns when nodes answer questions for names
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(crate) dns: bool,
    /// Port of /healthz, /livez, /readyz, /metrics and /configz; 0 for none, 10257 is kube-controller-manager's
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10257,
        help_heading = "Serving"
    )]
    pub(crate) secure_port: u16,
    #[command(flatten)]
    pub(crate) serving: crate::component_serving::ComponentServingFlags,
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

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Explain {
    #[command(subcommand)]
    pub(crate) what: ExplainWhat,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ExplainWhat {
    /// A pod
    #[command(visible_aliases = ["pods", "po"])]
    Pod(ExplainedPod),
    /// A resource claim
    #[command(visible_aliases = ["claims", "resourceclaim", "resourceclaims"])]
    Claim(ExplainedClaim),
    /// A node: how it is, and its devices, CPUs and memory drawn by NUMA node
    #[command(visible_aliases = ["nodes", "no"])]
    Node(ExplainedNode),
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ExplainedPod {
    /// Name of the pod
    #[arg(add = live::names(Live::Pods))]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) how: ExplainedHow,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ExplainedClaim {
    /// Name of the claim
    #[arg(add = live::names(Live::Claims))]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) how: ExplainedHow,
}

/// Which cluster and namespace an object is in, and how it is shown.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ExplainedHow {
    /// Namespace of the object [default: the kubeconfig's]
    #[arg(short, long, add = live::names(Live::Namespaces))]
    pub(crate) namespace: Option<String>,
    /// `json` for programs
    #[arg(short, long, value_enum)]
    pub(crate) output: Option<Output>,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ExplainedNode {
    /// Name of the node
    #[arg(add = live::names(Live::Nodes))]
    pub(crate) name: String,
    /// `json` for programs
    #[arg(short, long, value_enum)]
    pub(crate) output: Option<Output>,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Image {
    #[command(subcommand)]
    pub(crate) action: ImageAction,
    /// Where the runtime's state lives [default: beside the admin.kubeconfig that $KUBECONFIG names, else /var/lib/davit
    /// as root or ~/.local/share/davit]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) data_dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ImageAction {
    /// Import an OCI or Docker archive
    Import {
        /// The archive (tar, tar.gz) or an OCI layout directory
        file: PathBuf,
    },
    /// Pull images from their registries, without credentials
    Pull {
        /// Names, as pods have them
        #[arg(required = true)]
        images: Vec<String>,
    },
    /// List images
    #[command(visible_alias = "ls")]
    List {
        /// Output format
        #[arg(short, long, value_enum)]
        output: Option<ListOutput>,
    },
    /// Remove images
    Rm {
        /// Names, digests or IDs
        #[arg(required = true)]
        images: Vec<String>,
    },
}

#[cfg(test)]
mod documented;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_may_be_named_as_kubectl_names_them() {
        let apart = |line: &str| {
            let words = with_kinds_apart(line.split(' ').map(OsString::from));
            words.join(std::ffi::OsStr::new(" ")).into_string().unwrap()
        };
        assert_eq!(
            apart("davit explain pods/x -n y"),
            "davit explain pods x -n y"
        );
        assert_eq!(apart("davit image rm a/b"), "davit image rm a/b");
        let line = apart("davit explain claims/x");
        assert!(Args::try_parse_from(line.split(' ')).is_ok());
    }

    #[test]
    fn load_balancers_have_no_addresses_of_the_cluster() {
        let inside = ["10.96.0.0/16", "10.244.0.0/16"].map(|range| range.parse().unwrap());
        let of = |text: &str| {
            let range = BalancerRange {
                load_balancer_range: Some(text.parse().unwrap()),
            };
            LoadBalancer::Node.or_range(&range, inside)
        };
        assert!(of("192.0.2.200-192.0.2.220,2001:db8::/120").is_ok());
        for wrong in [
            "192.0.2.1,10.96.255.0/24",
            "10.0.0.1-10.255.0.1",
            "10.244.3.7",
        ] {
            let error = of(wrong).unwrap_err().to_string();
            assert!(error.contains("overlaps 10."), "{error}");
        }
    }

    #[test]
    fn command_line_is_consistent() {
        Args::full_command().debug_assert();
    }

    #[test]
    fn stable_flags_are_understood() {
        let line = "davit up --data-dir d --port 0 --kubeconfig k --root r --runtime unix:///run/c.sock \
                    --store etcd=http://a:1,http://b:1 --node-name n --demo";
        let Command::Up(up) = Args::parse_from(line.split_whitespace()).command else {
            panic!("up expected")
        };
        assert_eq!(
            up.node.runtime().unwrap(),
            RuntimeKind::Cri("/run/c.sock".into())
        );
        assert_eq!(
            up.server.store.store,
            "etcd=http://a:1,http://b:1".parse().unwrap()
        );
        assert!(Args::try_parse_from(["davit", "up", "--runtime", "docker"]).is_err());
        assert!(Args::try_parse_from(["davit", "up", "--store", "etcd="]).is_err());
    }
}
