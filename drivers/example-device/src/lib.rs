//! A device plugin to learn from and to try a cluster with.
//!
//! It advertises devices of one extended resource. Where it may (as root) each device is a real
//! character device, made like `/dev/null`; elsewhere containers get the environment variable
//! and the mount only. A file named `unhealthy` in its folder lists devices, one ID a line, that
//! are to be reported as broken.

#![forbid(unsafe_code)]

mod devices;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use davit_sdk::async_trait;
use davit_sdk::deviceplugin::{Allocation, Device, DevicePlugin, PluginServer, Refusal, Route};
use davit_sdk::watch;
use tokio::signal::unix::{SignalKind, signal};

use devices::Folder;

/// How often the file of broken devices is looked at.
const HEALTH_POLL: Duration = Duration::from_millis(250);

/// What the plugin serves, and where.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Extended resource to advertise
    #[arg(long, default_value = "hardware-vendor.example/foo")]
    pub resource: String,
    /// Number of devices
    #[arg(long, default_value_t = 2)]
    pub count: u32,
    /// Spread the devices over this many NUMA nodes (0: no topology)
    #[arg(long, default_value_t = 0)]
    pub numa_nodes: u32,
    /// Folder with the node agent's registration socket
    #[arg(long, default_value = davit_sdk::deviceplugin::DEVICE_PLUGINS_DIR)]
    pub socket_dir: PathBuf,
    /// Use this plugin registry folder instead of calling the registration socket
    #[arg(long)]
    pub registry_dir: Option<PathBuf>,
    /// Folder of its own for device nodes and the file `unhealthy`
    #[arg(long, default_value = "/run/davit-example-device")]
    pub dev_dir: PathBuf,
}

/// Serves the devices until SIGTERM or SIGINT, then removes what it made.
///
/// # Errors
/// The options make no sense, or the folder cannot be made.
pub async fn run(options: Options) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("wait for SIGINT")?;
    run_until(options, async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
    .await
}

/// Serves the devices until `stop` resolves, then removes what it made.
///
/// # Errors
/// As [`run`].
pub async fn run_until(options: Options, stop: impl Future<Output = ()>) -> Result<()> {
    ensure!(options.count > 0, "at least one device is needed");
    let ids: Vec<String> = (0..options.count).map(|n| format!("foo-{n}")).collect();
    let folder = Arc::new(Folder::make(&options.dev_dir, &ids)?);
    tracing::info!(
        resource = options.resource,
        devices = options.count,
        real = folder.has_nodes(),
        folder = %options.dev_dir.display(),
        "example device plugin"
    );
    let list = list(&options, &folder, &ids);
    let devices = watch::Sender::new(list.clone());
    let plugin = Foo {
        devices: devices.clone(),
        folder: folder.clone(),
        resource: options.resource.clone(),
    };
    let route = match &options.registry_dir {
        Some(dir) => Route::Registry(dir.clone()),
        None => Route::Register(options.socket_dir.clone()),
    };
    let running = PluginServer::new(&options.resource, plugin)
        .route(route)
        .start()?;
    let follow = async {
        loop {
            tokio::time::sleep(HEALTH_POLL).await;
            let now = self::list(&options, &folder, &ids);
            devices.send_if_modified(|old| {
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
    running.stop().await;
    folder.remove();
    Ok(())
}

fn list(options: &Options, folder: &Folder, ids: &[String]) -> Vec<Device> {
    let broken = folder.broken();
    let device = |(n, id): (u32, &String)| {
        let mut device = Device::healthy(id);
        device.healthy = !broken.contains(id);
        match n.checked_rem(options.numa_nodes) {
            Some(node) => device.on_numa_node(i64::from(node)),
            None => device,
        }
    };
    (0..).zip(ids).map(device).collect()
}

/// The plugin.
struct Foo {
    devices: watch::Sender<Vec<Device>>,
    folder: Arc<Folder>,
    resource: String,
}

#[async_trait]
impl DevicePlugin for Foo {
    fn devices(&self) -> watch::Receiver<Vec<Device>> {
        self.devices.subscribe()
    }

    async fn allocate(&self, ids: &[String]) -> Result<Allocation, Refusal> {
        let joined = ids.join(",");
        let info = self
            .folder
            .write_info(&self.resource)
            .map_err(|e| Refusal::new(e.to_string()))?;
        let mut given = Allocation::new()
            .env("FOO_DEVICES", &joined)
            .annotation("hardware-vendor.example/foo-devices", &joined)
            .read_only_mount(info.display().to_string(), "/etc/foo");
        for id in ids {
            if let Some(node) = self.folder.node(id) {
                given = given.device(node.display().to_string(), format!("/dev/foo/{id}"), "rw");
            }
        }
        tracing::info!(devices = joined, "allocated");
        Ok(given)
    }
}
