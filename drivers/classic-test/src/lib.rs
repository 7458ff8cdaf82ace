//! A driver for classic dynamic resource allocation to learn from and to try a cluster with.
//!
//! It does what the test driver of Kubernetes 1.26 does, with its flags: the controller copies the
//! parameters of claims (`user_…`) and classes (`admin_…`) into the handle of the allocation, the
//! kubelet plugin turns them into environment variables by a CDI file. How many claims can be
//! allocated, and where, is told by a file ([`Resources`]).

#![forbid(unsafe_code)]

mod controller;
mod parameters;
mod plugin;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use davit_sdk::classic::{Client, Controller, NodePlugin, PLUGINS_DIR, REGISTRY_DIR};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::signal::unix::{SignalKind, signal};

pub use controller::Resources;
use controller::TestController;
use plugin::TestNode;

/// What both halves take, and which half it is.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Name of the resource driver
    #[arg(long, default_value = "test-driver.cdi.k8s.io", global = true)]
    pub drivername: String,
    /// Path of a kubeconfig; by default that of the pod's service account
    #[arg(long, env = "KUBECONFIG", global = true)]
    pub kubeconfig: Option<PathBuf>,
    /// Concurrency with which multiple claims are processed
    #[arg(long, default_value_t = 10, global = true)]
    pub workers: usize,
    /// The half of the driver
    #[command(subcommand)]
    pub half: Half,
}

/// The halves of the driver.
#[derive(Debug, Clone, Subcommand)]
pub enum Half {
    /// Run as resource controller, once in the cluster
    Controller(ControllerOptions),
    /// Run as kubelet plugin, on each node
    KubeletPlugin(PluginOptions),
}

/// What the controller takes.
#[derive(Debug, Clone, Args)]
pub struct ControllerOptions {
    /// JSON file that says how much there is and where; by default unshared, network-attached
    /// resources without limit
    #[arg(long)]
    pub resource_config: Option<PathBuf>,
    /// Also read parameters from objects of any other kind: the members of their spec (the original
    /// reads ConfigMaps only)
    #[arg(long)]
    pub custom_parameters: bool,
}

/// What the kubelet plugin takes.
#[derive(Debug, Clone, Args)]
pub struct PluginOptions {
    /// Directory where the kubelet looks for plugin registration sockets
    #[arg(long, default_value = REGISTRY_DIR)]
    pub plugin_registration_path: PathBuf,
    /// Unix domain socket where the driver listens for the kubelet; by default dra.sock in a
    /// directory of the driver's name
    #[arg(long)]
    pub endpoint: Option<PathBuf>,
    /// The same socket in the file system of the kubelet, if that is another one
    #[arg(long)]
    pub draaddress: Option<PathBuf>,
    /// Directory for dynamically created CDI JSON files
    #[arg(long, default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
    /// Name of the node: claims that were allocated for another one are refused
    #[arg(long)]
    pub node_name: Option<String>,
}

/// Runs the chosen half until SIGTERM or SIGINT.
///
/// # Errors
/// The options make no sense, or the API server cannot be reached as they say.
pub async fn run(options: Options) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("wait for SIGINT")?;
    let end = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let name = options.drivername.clone();
    match &options.half {
        Half::Controller(own) => {
            let resources = own.resource_config.as_deref().map(Resources::read);
            let resources = resources.transpose()?.unwrap_or_default();
            let client = client(options.kubeconfig.as_deref()).await?;
            let reserves = !resources.dont_set_reserved_for;
            let driver = TestController::new(client.clone(), resources, own.custom_parameters);
            let controller = Controller::new(client, name.clone(), driver)
                .workers(options.workers)
                .reserve_for_pods(reserves)
                .start();
            tracing::info!(driver = name, "classic controller");
            end.await;
            controller.stop().await;
        }
        Half::KubeletPlugin(own) => {
            let node = TestNode::new(&name, &own.cdi_dir, own.node_name.clone())?;
            let socket = || Path::new(PLUGINS_DIR).join(&name).join("dra.sock");
            let endpoint = own.endpoint.clone().unwrap_or_else(socket);
            let plugin = NodePlugin::new(name.clone(), node)
                .registry(&own.plugin_registration_path)
                .announced(own.draaddress.clone().unwrap_or_else(|| endpoint.clone()))
                .endpoint(endpoint)
                .start()?;
            tracing::info!(driver = name, "classic kubelet plugin");
            end.await;
            plugin.stop().await;
        }
    }
    Ok(())
}

async fn client(kubeconfig: Option<&Path>) -> Result<Client> {
    let config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path);
            let read = read.with_context(|| format!("read kubeconfig {}", path.display()))?;
            kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("use kubeconfig {}", path.display()))?
        }
        None => kube::Config::incluster().context("neither --kubeconfig nor in a cluster")?,
    };
    Client::try_from(config).context("make a client")
}
