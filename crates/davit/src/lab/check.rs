//! `davit lab check`: conformance reports.

use crate::args::{Args, Command};
use crate::components::{RunningServer, start_server};
use crate::shutdown::Signals;
use anyhow::{Context, Result, bail, ensure};
use clap::Parser as _;
use davit_api::features::Features;
use davit_apiserver::KubeletAuthority;
use davit_lab::check::{
    self, Api, ClusterOptions, DriverOptions, KubeletDirectory, MonitorOptions, Parameters,
    PluginOptions, Process, Report, Subject, Target,
};
use davit_lab::span::Span;
use std::path::{Path, PathBuf};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Check {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum What {
    /// A whole cluster: roles, pods, configuration, by the CIS Kubernetes benchmark
    Cluster(Cluster),
    /// A device plugin: registration, lists, allocation, restarts
    DevicePlugin(DevicePlugin),
    /// A driver of dynamic resource allocation: registration, slices, claims, restarts
    DraDriver(DraDriver),
    /// A monitor, or whatever else asks podresources
    PodresourcesClient(PodresourcesClient),
}

#[derive(Debug, Clone, clap::Args)]
struct Program {
    /// The command; {dir}, {device-plugins}, {plugins-registry}, {pod-resources}, {pod-resources-socket} and {cdi-dir} in
    /// its arguments stand for the agent's paths
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// Directory that stands for /var/lib/kubelet [default: one that is made for the check]
    #[arg(long, value_name = "DIR")]
    kubelet_dir: Option<PathBuf>,
    /// Let the command see that directory at /var/lib/kubelet (as root): for programs that look nowhere else
    #[arg(long)]
    at_default_path: bool,
    /// Show the command's output on stderr
    #[arg(long)]
    show_output: bool,
    /// Format of the report, for programs [default: a line a check]
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Output {
    /// JSON
    Json,
    /// YAML
    Yaml,
}

#[derive(Debug, Clone, clap::Args)]
struct DevicePlugin {
    #[command(flatten)]
    program: Program,
    /// Check the plugin that listens here, instead of a command; leaves out what concerns registration
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    socket: Option<PathBuf>,
    /// The resource to look at, when the plugin has several
    #[arg(long, value_name = "NAME")]
    resource: Option<String>,
    /// How long to wait for a registration or a call
    #[arg(long, value_name = "DURATION", default_value = "20s")]
    patience: Span,
    /// Shell command that breaks a device, to see that it is reported
    #[arg(long = "break", value_name = "SHELL")]
    break_command: Option<String>,
    /// Shell command that mends it
    #[arg(long = "mend", value_name = "SHELL", requires = "break_command")]
    mend_command: Option<String>,
}

#[derive(Debug, Clone, clap::Args)]
struct DraDriver {
    #[command(flatten)]
    program: Program,
    /// The cluster to publish to, at whose claims the driver looks [default: an API server of the check's own]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The node's name: {node} in the command, NODE_NAME in its environment
    #[arg(long, value_name = "NAME", default_value = "davit-lab")]
    node: String,
    /// How long to wait for a registration, slices or a call
    #[arg(long, value_name = "DURATION", default_value = "20s")]
    patience: Span,
    /// How many devices are prepared at most
    #[arg(long, value_name = "N", default_value_t = 8)]
    most_devices: usize,
    /// Opaque parameters to try, JSON or YAML: lists `valid` and `invalid` with `parameters`, the latter with what the
    /// error `names`
    #[arg(long, value_name = "FILE")]
    parameters: Option<PathBuf>,
}

#[derive(Debug, Clone, clap::Args)]
struct PodresourcesClient {
    #[command(flatten)]
    program: Program,
    /// How long to wait for a call: longer than the interval in which the monitor asks
    #[arg(long, value_name = "DURATION", default_value = "20s")]
    patience: Span,
}

#[derive(Debug, Clone, clap::Args)]
struct Cluster {
    /// The cluster, with credentials that may read it all [default: KUBECONFIG, or the running davit's]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Do not try by dry runs what is admitted
    #[arg(long)]
    no_dry_run: bool,
    /// Do not try the ports of nodes without credentials
    #[arg(long)]
    no_node_ports: bool,
    /// Namespaces whose pods are the cluster's own, beside those of Kubernetes
    #[arg(long = "exempt", value_name = "NAMESPACE", value_delimiter = ',')]
    exempt: Vec<String>,
    /// In how many namespaces pods are tried at most
    #[arg(long, value_name = "N", default_value_t = 50)]
    most_namespaces: usize,
    /// How long to wait for an answer
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    patience: Span,
    /// Format of the report, for programs [default: a line a check]
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

pub(super) async fn run(args: Check) -> Result<()> {
    let mut signals = Signals::new()?;
    // Dropping the work on a signal ends the program that is checked and removes the directory.
    let work = async {
        match args.what {
            What::Cluster(args) => cluster(args).await,
            What::DevicePlugin(args) => device_plugin(args).await,
            What::DraDriver(args) => dra_driver(args).await,
            What::PodresourcesClient(args) => podresources_client(args).await,
        }
    };
    tokio::select! {
        () = signals.recv() => bail!("interrupted"),
        outcome = work => outcome,
    }
}

async fn cluster(args: Cluster) -> Result<()> {
    let kubeconfig = crate::paths::find_kubeconfig(args.kubeconfig.as_deref())?;
    let config = davit_client::settled(davit_client::kubeconfig(&kubeconfig).await?).await?;
    let options = ClusterOptions {
        dry_run: !args.no_dry_run,
        nodes: !args.no_node_ports,
        most_namespaces: args.most_namespaces,
        exempt: args.exempt.into_iter().collect(),
        patience: args.patience.0,
    };
    let report = check::cluster(config, &options).await;
    show(&report.map_err(anyhow::Error::msg)?, args.output)
}

async fn device_plugin(args: DevicePlugin) -> Result<()> {
    let options = PluginOptions {
        patience: args.patience.0,
        resource: args.resource,
        break_command: args.break_command,
        mend_command: args.mend_command,
        ..PluginOptions::default()
    };
    let (target, _scratch) = match args.socket {
        Some(socket) => (Target::Socket(socket), None),
        None => {
            let (process, place, scratch) = args.program.subject()?;
            (Target::Program(Box::new(process), place), scratch)
        }
    };
    let report = check::device_plugin(target, &options).await;
    show(&report.context("the agent's sockets")?, args.program.output)
}

async fn dra_driver(args: DraDriver) -> Result<()> {
    let parameters = args.parameters.as_deref().map(Parameters::read);
    let (process, place, _scratch) = args.program.subject()?;
    let options = DriverOptions {
        patience: args.patience.0,
        devices: args.most_devices,
        parameters: parameters.transpose()?.unwrap_or_default(),
        ..DriverOptions::default()
    };
    let (mut serving, stop) = (JoinSet::new(), CancellationToken::new());
    let _end = stop.clone().drop_guard();
    let (client, kubeconfig) = match &args.kubeconfig {
        Some(file) => (davit_client::from_kubeconfig(file).await?, file.clone()),
        None => {
            let running = own_server(&place, &mut serving, stop).await?;
            let client = running.client("kubernetes-admin", &["system:masters"]);
            (client, running.kubeconfig.clone())
        }
    };
    let api = Api {
        client,
        kubeconfig: std::path::absolute(kubeconfig)?,
        node: args.node,
    };
    let report = check::dra_driver(&process, &place, api, &options).await;
    show(&report.map_err(anyhow::Error::msg)?, args.program.output)
}

/// An API server that ends with the check, beside the agent's directory.
async fn own_server(
    place: &KubeletDirectory,
    tasks: &mut JoinSet<Result<()>>,
    stop: CancellationToken,
) -> Result<RunningServer> {
    let data_dir = place.dir().join("api-server");
    let arguments = ["davit", "server", "--port", "0"];
    let Command::Server(server) = Args::try_parse_from(arguments)?.command else {
        bail!("the command line of the API server is not that of the API server");
    };
    let (features, nodes) = (Features::default(), KubeletAuthority::Cluster);
    start_server(
        &server.options,
        features,
        nodes,
        None,
        &data_dir,
        tasks,
        stop,
    )
    .await
    .context("API server of the check")
}

async fn podresources_client(args: PodresourcesClient) -> Result<()> {
    let (process, place, _scratch) = args.program.subject()?;
    let options = MonitorOptions {
        patience: args.patience.0,
        ..MonitorOptions::default()
    };
    let subject: &dyn Subject = &process;
    let report = check::podresources_client(subject, &place, &options).await;
    show(&report.context("the agent's sockets")?, args.program.output)
}

impl Program {
    fn subject(&self) -> Result<(Process, KubeletDirectory, Option<Scratch>)> {
        ensure!(
            !self.command.is_empty(),
            "what is to be checked? give a command after --, as in: davit lab check … -- my-program --flag"
        );
        ensure!(
            !self.at_default_path || crate::paths::is_root(),
            "--at-default-path needs root"
        );
        let (dir, scratch) = match &self.kubelet_dir {
            Some(dir) => (std::path::absolute(dir)?, None),
            None => {
                let scratch = Scratch::make()?;
                (scratch.0.clone(), Some(scratch))
            }
        };
        for socket in SOCKETS {
            refuse_agent(&dir.join(socket))?;
        }
        let usual = Path::new(USUAL_DIR);
        let live = SOCKETS.iter().find(|s| is_served(&usual.join(s)));
        if let Some(socket) = live.filter(|_| !self.at_default_path) {
            eprintln!(
                "warning: a node agent listens on {USUAL_DIR}/{socket}; a program that looks there whatever it is told \
                 registers with it instead of with the check: --at-default-path keeps them apart"
            );
        }
        let process = Process {
            command: self.command.clone(),
            at_default_path: self.at_default_path,
            output: self.show_output,
            names: Vec::new(),
        };
        let place =
            KubeletDirectory::new(&dir).with_context(|| format!("directory {}", dir.display()))?;
        Ok((process, place, scratch))
    }
}

/// Where agents have their sockets, and programs look for them.
const USUAL_DIR: &str = "/var/lib/kubelet";
const SOCKETS: [&str; 2] = ["device-plugins/kubelet.sock", "pod-resources/kubelet.sock"];

fn is_served(socket: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(socket).is_ok()
}

/// A node agent that runs must not lose its sockets to a check.
fn refuse_agent(socket: &Path) -> Result<()> {
    ensure!(
        !is_served(socket),
        "a node agent listens on {}; a check would take its place",
        socket.display()
    );
    Ok(())
}

/// A directory that goes with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> Result<Self> {
        // Short: paths of unix sockets have little room.
        let dir = std::env::temp_dir().join(format!("davit-lab-{}", std::process::id()));
        // Not one that somebody else has made there before.
        std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
            .create(&dir)
            .with_context(|| format!("directory {}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("davit: {} was not removed: {error}", self.0.display());
        }
    }
}

fn show(report: &Report, output: Option<Output>) -> Result<()> {
    match output {
        Some(Output::Json) => println!("{}", serde_json::to_string_pretty(report)?),
        Some(Output::Yaml) => print!("{}", serde_saphyr::to_string(report)?),
        None => print!("{}", crate::plain::printable_lines(&report.table())),
    }
    match report.summary.failed {
        0 => Ok(()),
        1 => bail!("1 check failed"),
        n => bail!("{n} checks failed"),
    }
}
