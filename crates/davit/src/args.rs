//! The command line. Names are stable; `docs/` and scripts rely on them.

mod concurrency;
mod controllers;
mod explain;
mod image;
mod node;
mod server;
mod up;

pub(crate) use concurrency::ConcurrencyFlags;
pub(crate) use controllers::{ControllerFlags, Controllers};
pub(crate) use explain::{Explain, ExplainWhat, ExplainedClaim, ExplainedHow, ExplainedPod};
pub(crate) use image::{Image, ImageAction};
pub(crate) use node::{Node, NodeOptions, PodNetwork, RuntimeKind};
pub(crate) use server::{Server, ServerOptions};
pub(crate) use up::{BalancerRange, DefaultStorageClass, LoadBalancer, Up};

use crate::page::ColorChoice;
use crate::plugin;
use crate::scheduler_flags::SchedulerFlags;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;

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
