//! A DRA driver to learn from and to try a cluster with: simulated GPUs.
//!
//! Containers get the environment variables `GPU_DEVICE_<DEVICE>` and, on request, a device node
//! `/dev/davit-gpu/<device>` that behaves like `/dev/null`. In the folder of `--dev-dir`, the file
//! `unhealthy` lists devices that are to be reported as broken, the file `tainted` those that are
//! to be kept for pods that tolerate `gpu.davit.dev/maintenance`, one a line.

#![forbid(unsafe_code)]

mod inventory;
mod parameters;
mod prepare;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use davit_sdk::dra::cdi::{CDI_DIR, CdiFiles};
use davit_sdk::dra::{DeviceHealth, NodePlugin, PLUGINS_DIR, Publisher, Resources, Scope};
use davit_sdk::kube::config::{KubeConfigOptions, Kubeconfig};
use davit_sdk::{kube, watch};
use tokio::signal::unix::{SignalKind, signal};

use prepare::Gpus;

/// Name of the driver unless another one is asked for.
pub const DRIVER: &str = "gpu.davit.dev";

/// How often the files of broken and tainted devices are looked at.
const POLL: Duration = Duration::from_millis(250);

/// What the driver has, and where.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Name of the driver
    #[arg(long, default_value = DRIVER)]
    pub driver_name: String,
    /// Node whose devices these are
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// Kubeconfig; without it KUBECONFIG or the pod's service account
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Whole GPUs
    #[arg(long, default_value_t = 4)]
    pub gpus: u32,
    /// Cut each GPU into halves and quarters as well
    #[arg(long)]
    pub partitions: bool,
    /// Leave so many of them, the last ones, whole all the same
    #[arg(long, default_value_t = 0)]
    pub uncut: u32,
    /// GPUs beside these whose memory is given out in amounts
    #[arg(long, default_value_t = 0)]
    pub shared: u32,
    /// Memory of each GPU in GiB, divisible by 4
    #[arg(long, default_value_t = 40)]
    pub memory: u32,
    /// Spread the GPUs over so many NUMA nodes
    #[arg(long, default_value_t = 1)]
    pub numa_nodes: u32,
    /// Whole GPUs have to be attached first: pods are bound when the condition `gpu.davit.dev/attached` of the device
    /// stands in the claim's status, and tried elsewhere on `gpu.davit.dev/attach-failed`
    #[arg(long)]
    pub attach: bool,
    /// Tell containers by files which devices they have
    #[arg(long)]
    pub device_metadata: bool,
    /// Give containers device nodes
    #[arg(long)]
    pub device_nodes: bool,
    /// The node agent's folder
    #[arg(long, default_value = "/var/lib/kubelet")]
    pub kubelet_dir: PathBuf,
    /// Folder for CDI files
    #[arg(long, default_value = CDI_DIR)]
    pub cdi_dir: PathBuf,
    /// Folder with the files `unhealthy` and `tainted`
    #[arg(long)]
    pub dev_dir: Option<PathBuf>,
    /// One of several instances, told apart by this text: for an update without a gap
    #[arg(long)]
    pub instance: Option<String>,
    /// Wait so many milliseconds before and after each preparation, like slow hardware
    #[arg(long, default_value_t = 0)]
    pub slow: u64,
}

/// Serves the devices until SIGTERM or SIGINT. What is prepared stays so.
///
/// # Errors
/// The options make no sense, there is no API server to talk to, or sockets cannot be made.
pub async fn run(options: Options) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("wait for SIGINT")?;
    let client = client(&options).await?;
    run_until(options, client, async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
    .await
}

async fn client(options: &Options) -> Result<kube::Client> {
    let Some(path) = &options.kubeconfig else {
        return kube::Client::try_default().await.context("kubeconfig");
    };
    let kubeconfig =
        Kubeconfig::read_from(path).with_context(|| format!("kubeconfig {}", path.display()))?;
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

/// Serves the devices until `stop` resolves.
///
/// # Errors
/// As [`run`].
pub async fn run_until(
    options: Options,
    client: kube::Client,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    ensure!(
        options.memory > 0 && options.memory.is_multiple_of(4),
        "the memory of a GPU is divisible by 4"
    );
    let driver = options.driver_name.clone();
    let health = watch::Sender::new(health(&options));
    let files = CdiFiles::new(&options.cdi_dir, &driver);
    let gpus = Gpus::new(&options, files, health.clone())?;
    let own_dir = PLUGINS_DIR.rsplit('/').next().unwrap_or_default();
    let mut plugin = NodePlugin::new(&driver, client.clone(), gpus)
        .registry_dir(options.kubelet_dir.join("plugins_registry"))
        .data_dir(options.kubelet_dir.join(own_dir).join(&driver));
    if let Some(uid) = &options.instance {
        plugin = plugin.instance(uid);
    }
    if options.device_metadata {
        plugin = plugin.device_metadata(&options.cdi_dir);
    }
    let running = plugin.start()?;
    let scope = Scope::node(&options.node_name);
    let publishing = Publisher::new(client, &driver, scope).start(resources(&options))?;
    tracing::info!(driver, node = options.node_name, "example DRA driver");

    let follow = async {
        loop {
            tokio::time::sleep(POLL).await;
            if let Err(e) = publishing.publish(resources(&options)) {
                tracing::error!(error = %e, "devices not published");
            }
            let now = self::health(&options);
            health.send_if_modified(|old| {
                let changed = *old != now;
                *old = now;
                changed
            });
        }
    };
    tokio::select! {
        () = stop => {}
        () = follow => {}
    }
    // The agent turns to another instance, if there is one, before this one stops publishing.
    running.stop().await;
    publishing.stop().await;
    Ok(())
}

fn resources(options: &Options) -> Resources {
    Resources::new().pool(&options.node_name, inventory::pool(options))
}

fn health(options: &Options) -> Vec<DeviceHealth> {
    let broken = options
        .dev_dir
        .as_deref()
        .map(inventory::listed("unhealthy"));
    let broken = broken.unwrap_or_default();
    let devices = inventory::pool(options).devices.into_iter();
    let told = devices.map(|d| {
        let is_broken = broken.contains(&d.name);
        let health = DeviceHealth::healthy(&options.node_name, d.name);
        if is_broken {
            health.broken("listed as unhealthy")
        } else {
            health
        }
    });
    told.collect()
}
