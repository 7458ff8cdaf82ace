//! The node half of a simulated driver.

use davit_sdk::dra::cdi::{CdiFiles, Edits};
use davit_sdk::dra::{AllocatedClaim, ClaimId, DeviceHealth, Driver, PreparedDevice, Refusal};
use davit_sdk::{async_trait, watch};

use super::file::{DriverFaults, DriverFile, DriverLatency};
use crate::behaviour::{Behaviour, Turn, variable};

/// What changes while the driver runs.
#[derive(Debug)]
pub(super) struct Shared {
    name: String,
    files: CdiFiles,
    pub(super) health: watch::Sender<Vec<DeviceHealth>>,
    pub(super) behaviour: Behaviour<DriverLatency, DriverFaults>,
}

impl Shared {
    pub(super) fn new(driver: &DriverFile, files: CdiFiles, health: Vec<DeviceHealth>) -> Self {
        Self {
            name: driver.name.clone(),
            files,
            health: watch::Sender::new(health),
            behaviour: Behaviour::new(&driver.name, driver.latency, driver.faults.clone()),
        }
    }
}

/// The driver as the SDK sees it.
#[derive(Debug, Clone)]
pub(super) struct Simulated(pub(super) std::sync::Arc<Shared>);

#[async_trait]
impl Driver for Simulated {
    async fn prepare(&self, claim: &AllocatedClaim) -> Result<Vec<PreparedDevice>, Refusal> {
        let turn = self.0.behaviour.turn(
            "NodePrepareResources",
            |l| l.prepare.0,
            |f| f.prepare.clone(),
        );
        let turn = turn.await?;
        if turn == Turn::Empty {
            return Ok(Vec::new());
        }
        let edits = claim.devices().iter().map(|d| {
            // Each device has a variable of its own: edits of several are put together.
            let name = format!("{}_{}", variable(&self.0.name), variable(&d.device));
            (d.device.clone(), Edits::new().env(name, &d.device))
        });
        let names = self
            .0
            .files
            .write(&claim.id().uid, edits)
            .map_err(Refusal::because)?;
        let prepared = claim.devices().iter().map(|d| {
            let name = match turn {
                Turn::Lie => format!("{}=davit-lab-no-such-device", self.0.files.kind()),
                _ => names[&d.device].clone(),
            };
            PreparedDevice::of(d).cdi(name)
        });
        Ok(prepared.collect())
    }

    async fn unprepare(&self, claim: &ClaimId) -> Result<(), Refusal> {
        let turn = self.0.behaviour.turn(
            "NodeUnprepareResources",
            |l| l.unprepare.0,
            |f| f.unprepare.clone(),
        );
        turn.await?;
        self.0.files.remove(&claim.uid).map_err(Refusal::because)
    }

    fn health(&self) -> Option<watch::Receiver<Vec<DeviceHealth>>> {
        Some(self.0.health.subscribe())
    }
}
