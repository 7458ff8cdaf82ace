//! A device plugin, to begin with: it has simulated devices until `discover` finds yours.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use davit_sdk::deviceplugin::{
    Allocation, DEVICE_PLUGINS_DIR, Device, DevicePlugin, PluginServer, Refusal, Route,
};
use davit_sdk::{async_trait, watch};

/// What pods ask for.
const RESOURCE: &str = "vendor.example/widget";
/// How often the machine is looked at.
const LOOK: Duration = Duration::from_secs(2);

/// Serves the devices of this machine to its node agent.
#[derive(Debug, Parser)]
struct Args {
    /// Folder with the node agent's registration socket
    #[arg(long, env = "DEVICE_PLUGINS_DIR", default_value = DEVICE_PLUGINS_DIR)]
    socket_dir: PathBuf,
    /// Number of simulated devices
    #[arg(long, default_value_t = 2)]
    count: u32,
}

/// Which devices there are, and whether they work. Yours go here: files below /dev or /sys, what a library of the vendor
/// lists. An ID is the same as long as the device is, also after a restart.
fn discover(args: &Args) -> Vec<Device> {
    let device = |n| {
        // `.on_numa_node(N)` where the machine has several and the device is close to one.
        Device::healthy(format!("widget-{n}"))
    };
    (0..args.count).map(device).collect()
}

struct Plugin {
    devices: watch::Sender<Vec<Device>>,
}

#[async_trait]
impl DevicePlugin for Plugin {
    fn devices(&self) -> watch::Receiver<Vec<Device>> {
        self.devices.subscribe()
    }

    /// What a container gets that was given these devices.
    async fn allocate(&self, ids: &[String]) -> Result<Allocation, Refusal> {
        let mut given = Allocation::new().env("WIDGETS", ids.join(","));
        for id in ids {
            // On the host, in the container. A simulated device is /dev/null.
            given = given.device("/dev/null", format!("/dev/widgets/{id}"), "rw");
        }
        Ok(given)
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let devices = watch::Sender::new(discover(&args));
    let plugin = Plugin {
        devices: devices.clone(),
    };
    let running = PluginServer::new(RESOURCE, plugin)
        .route(Route::Register(args.socket_dir.clone()))
        .start()?;
    tokio::select! {
        ended = running.run_until_signal() => ended?,
        () = follow(&args, &devices) => {}
    }
    Ok(())
}

/// Tells the node agent whenever something has changed.
async fn follow(args: &Args, devices: &watch::Sender<Vec<Device>>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let now = discover(args);
        devices.send_if_modified(|before| {
            let changed = *before != now;
            *before = now;
            changed
        });
    }
}
