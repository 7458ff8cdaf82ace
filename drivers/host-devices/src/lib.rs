//! Any device files of the host as extended resources, by a YAML file.
//!
//! ```yaml
//! resources:
//! - name: example.com/serial
//!   devices:
//!   - paths: [/dev/ttyUSB*, /dev/ttyACM*]
//!     attributes: { idVendor: "0403" }
//! - name: example.com/kvm
//!   devices:
//!   - paths: [/dev/kvm]
//!     shares: 100
//! ```
//!
//! docs/host-devices.md describes the file.

#![forbid(unsafe_code)]

mod config;
mod glob;
mod plugin;
mod scan;
mod sysfs;

pub use config::{Config, ConfigError, Group, Mount, Resource};
pub use scan::{Found, Scanner};

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use davit_sdk::deviceplugin::{PluginServer, Route};
use tokio::signal::unix::{SignalKind, signal};

use plugin::HostDevices;

/// Where the plugin reads and serves.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// File that says which devices make which resources (YAML)
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "/etc/davit/host-devices.yaml"
    )]
    pub config: PathBuf,
    /// Folder with the node agent's registration socket
    #[arg(long, value_name = "DIR", default_value = davit_sdk::deviceplugin::DEVICE_PLUGINS_DIR)]
    pub socket_dir: PathBuf,
    /// Use this plugin registry folder instead of calling the registration socket
    #[arg(long, value_name = "DIR")]
    pub registry_dir: Option<PathBuf>,
    /// How often the host is looked at, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(50..))]
    pub interval_ms: u64,
    /// Print what would be served now, and end
    #[arg(long)]
    pub list: bool,
}

/// Serves the devices until SIGTERM or SIGINT.
///
/// # Errors
/// The configuration cannot be used, or a plugin cannot be started.
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

/// Serves the devices until `stop` resolves.
///
/// # Errors
/// As [`run`].
pub async fn run_until(options: Options, stop: impl Future<Output = ()>) -> Result<()> {
    let config = Config::read(&options.config)?;
    let mut scanner = Scanner::new(config, "/");
    let mut found = scanner.scan();
    if options.list {
        for (resource, devices) in &found {
            println!("{resource}");
            for device in devices {
                println!("  {}", device.line());
            }
        }
        return Ok(());
    }
    let route = match &options.registry_dir {
        Some(dir) => Route::Registry(dir.clone()),
        None => Route::Register(options.socket_dir.clone()),
    };
    let mut plugins = Vec::new();
    for (resource, devices) in &found {
        tracing::info!(resource, devices = devices.len(), "serving");
        let plugin = HostDevices::new(devices.clone());
        let server = PluginServer::new(resource, plugin.clone()).route(route.clone());
        let running = server
            .start()
            .with_context(|| format!("plugin of {resource}"))?;
        plugins.push((plugin, running));
    }
    let follow = async {
        loop {
            tokio::time::sleep(Duration::from_millis(options.interval_ms)).await;
            // Reading folders that may hang must not hold up answers to the agent.
            let mut moved = scanner;
            let looked = tokio::task::spawn_blocking(move || {
                let found = moved.scan();
                (moved, found)
            });
            let (back, now) = looked.await.context("look at the host")?;
            (scanner, found) = (back, now);
            for ((plugin, _), (_, devices)) in plugins.iter().zip(&found) {
                plugin.update(devices);
            }
        }
        #[expect(unreachable_code, reason = "names the type of the errors above")]
        anyhow::Ok(())
    };
    let outcome = tokio::select! {
        () = stop => Ok(()),
        ended = follow => ended,
    };
    for (_, running) in plugins {
        running.stop().await;
    }
    outcome
}
