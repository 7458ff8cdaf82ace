//! A device plugin for the cameras of a machine: docs/device-plugins.md.

use davit_sdk::deviceplugin::{Allocation, Device, DevicePlugin, PluginServer, Refusal};
use davit_sdk::{async_trait, watch};

struct Cameras {
    devices: watch::Sender<Vec<Device>>,
}

#[async_trait]
impl DevicePlugin for Cameras {
    fn devices(&self) -> watch::Receiver<Vec<Device>> {
        self.devices.subscribe()
    }

    async fn allocate(&self, ids: &[String]) -> Result<Allocation, Refusal> {
        let mut given = Allocation::new().env("CAMERAS", ids.join(","));
        for id in ids {
            let (on_the_host, in_the_container) = (format!("/dev/{id}"), format!("/dev/{id}"));
            given = given.device(on_the_host, in_the_container, "rw");
        }
        Ok(given)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let devices = watch::Sender::new(vec![Device::healthy("video0")]);
    let plugin = Cameras {
        devices: devices.clone(),
    };
    let running = PluginServer::new("vendor.example/camera", plugin).start()?;
    // Whoever notices that a camera is gone says so: devices.send_modify(|all| all[0].healthy = false)
    running.run_until_signal().await?;
    Ok(())
}
