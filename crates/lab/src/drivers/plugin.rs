//! The node half of a simulated driver.

use std::collections::BTreeMap;
use std::time::Duration;

use davit_sdk::dra::cdi::{CdiFiles, Edits};
use davit_sdk::dra::{AllocatedClaim, ClaimId, DeviceHealth, Driver, PreparedDevice, Refusal};
use davit_sdk::{async_trait, watch};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::file::{DriverFaults, DriverFile, DriverLatency};
use crate::devices::{CallFault, Manner};

/// What changes while the driver runs.
#[derive(Debug)]
pub(super) struct Shared {
    name: String,
    files: CdiFiles,
    pub(super) health: watch::Sender<Vec<DeviceHealth>>,
    state: Mutex<State>,
    /// A call that is to kill the driver has come.
    pub(super) crash: Notify,
}

#[derive(Debug)]
struct State {
    latency: DriverLatency,
    faults: DriverFaults,
    hits: BTreeMap<&'static str, u32>,
}

impl Shared {
    pub(super) fn new(driver: &DriverFile, files: CdiFiles, health: Vec<DeviceHealth>) -> Self {
        Self {
            name: driver.name.clone(),
            files,
            health: watch::Sender::new(health),
            state: Mutex::new(State {
                latency: driver.latency,
                faults: driver.faults.clone(),
                hits: BTreeMap::new(),
            }),
            crash: Notify::new(),
        }
    }

    pub(super) fn set_faults(&self, faults: DriverFaults) {
        let mut state = self.state.lock();
        state.faults = faults;
        state.hits.clear();
    }

    pub(super) fn set_latency(&self, latency: DriverLatency) {
        self.state.lock().latency = latency;
    }

    /// Takes the time that the call takes; answers how it goes on.
    async fn turn(
        &self,
        call: &'static str,
        time: impl Fn(&DriverLatency) -> Duration,
        fault: impl Fn(&DriverFaults) -> CallFault,
    ) -> Result<Manner, Refusal> {
        let (time, manner, text) = {
            let mut state = self.state.lock();
            let time = time(&state.latency);
            let (manner, times, text) = fault(&state.faults).parts();
            let hits = state.hits.entry(call).or_default();
            if manner == Manner::None || times.is_some_and(|times| *hits >= times) {
                (time, Manner::None, None)
            } else {
                *hits += 1;
                (time, manner, text)
            }
        };
        tokio::time::sleep(time).await;
        match manner {
            Manner::Fail => {
                Err(Refusal::new(text.unwrap_or_else(|| {
                    format!("simulated fault of {} in {call}", self.name)
                })))
            }
            Manner::Crash => {
                self.crash.notify_one();
                std::future::pending().await
            }
            Manner::Hang => std::future::pending().await,
            other => Ok(other),
        }
    }
}

/// The driver as the SDK sees it.
#[derive(Debug, Clone)]
pub(super) struct Simulated(pub(super) std::sync::Arc<Shared>);

/// `gpu.vendor.example` is seen as `GPU_VENDOR_EXAMPLE_DEVICES`.
fn variable(driver: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    driver.chars().map(plain).collect::<String>()
}

#[async_trait]
impl Driver for Simulated {
    async fn prepare(&self, claim: &AllocatedClaim) -> Result<Vec<PreparedDevice>, Refusal> {
        let turn = self.0.turn(
            "NodePrepareResources",
            |l| l.prepare.0,
            |f| f.prepare.clone(),
        );
        let manner = turn.await?;
        if manner == Manner::Empty {
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
            let name = match manner {
                Manner::Lie => format!("{}=davit-lab-no-such-device", self.0.files.kind()),
                _ => names[&d.device].clone(),
            };
            PreparedDevice::of(d).cdi(name)
        });
        Ok(prepared.collect())
    }

    async fn unprepare(&self, claim: &ClaimId) -> Result<(), Refusal> {
        let turn = self.0.turn(
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
