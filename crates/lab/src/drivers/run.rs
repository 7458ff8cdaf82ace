//! Running simulated drivers and their scripts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use davit_sdk::dra::cdi::CdiFiles;
use davit_sdk::dra::{
    self, DeviceExt as _, DeviceHealth, Invalid, NodePlugin, Pool, Publisher, Publishing,
    Resources, Running, Scope, State,
};
use davit_sdk::{async_trait, watch};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::file::{DriverFile, DriverStep, Taint};
use super::plugin::{Shared, Simulated};
use crate::Say;
use crate::player::{Happens, Leave, Simulation, Voice, leaves, play};
use crate::span::Span;

/// Between two changes of a storm of slices.
const STORM: Duration = Duration::from_millis(10);

/// Why a driver does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its node plugin does not start.
    #[error("driver {driver}: {source}")]
    Plugin {
        /// Its name.
        driver: String,
        /// Why.
        source: dra::Error,
    },
    /// Its devices cannot be published.
    #[error("driver {driver}: {source}")]
    Devices {
        /// Its name.
        driver: String,
        /// Why.
        source: Invalid,
    },
    /// A task has failed.
    #[error("a simulated driver failed: {0}")]
    Failed(#[from] tokio::task::JoinError),
}

/// Where drivers run.
#[derive(Clone)]
pub struct DriverPaths {
    /// Reads claims and writes slices.
    pub client: kube::Client,
    /// Name of the node.
    pub node: String,
    /// The agent's directory, the equivalent of `/var/lib/kubelet`.
    pub kubelet_dir: PathBuf,
    /// Where CDI files go.
    pub cdi_dir: PathBuf,
}

/// Runs drivers until `cancel`. What happens by the scripts is told to `say`.
///
/// # Errors
/// A driver that cannot be run.
pub async fn serve(
    drivers: &[DriverFile],
    place: &DriverPaths,
    say: &Say,
    cancel: CancellationToken,
) -> Result<(), Error> {
    let mut running = JoinSet::new();
    for driver in drivers {
        let player = Player::new(driver.clone(), place.clone(), say.clone())?;
        let (script, repeat) = (driver.script.clone(), driver.repeat);
        running.spawn(play(player, script, repeat, cancel.clone()));
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    cancel.cancelled().await;
    Ok(())
}

struct Player {
    driver: DriverFile,
    place: DriverPaths,
    shared: Arc<Shared>,
    voice: Voice,
    publishing: Publishing,
    stock: Stock,
}

/// What is published of a driver's devices.
struct Stock {
    present: BTreeSet<String>,
    taints: Vec<Taint>,
    /// Counts the changes of storms, for an attribute that differs each time.
    round: i64,
}

impl Happens for DriverStep {
    fn at(&self) -> Span {
        self.at
    }

    fn leaves(&self) -> Option<(Leave, Span)> {
        leaves(self.crash, self.stop)
    }
}

#[async_trait]
impl Simulation for Player {
    type Step = DriverStep;
    type Running = Running;
    type Error = Error;

    fn voice(&self) -> &Voice {
        &self.voice
    }

    fn crashes(&self) -> &Notify {
        &self.shared.behaviour.crash
    }

    fn start(&self) -> Result<(Running, watch::Receiver<State>), Error> {
        let plugins = self.place.kubelet_dir.join("plugins");
        let simulated = Simulated(self.shared.clone());
        let plugin = NodePlugin::new(&self.driver.name, self.place.client.clone(), simulated)
            .registry_dir(self.place.kubelet_dir.join("plugins_registry"))
            .data_dir(plugins.join(&self.driver.name));
        let running = plugin.start().map_err(|source| Error::Plugin {
            driver: self.driver.name.clone(),
            source,
        })?;
        let states = running.state();
        Ok((running, states))
    }

    async fn leave(running: Running, how: Leave) {
        match how {
            Leave::Crash => drop(running),
            Leave::Stop => running.stop().await,
        }
    }

    async fn change(&mut self, step: &DriverStep, cancel: &CancellationToken) -> Result<(), Error> {
        self.apply(step)?;
        if let Some(storm) = step.storm {
            self.storm(storm.0, cancel).await?;
        }
        Ok(())
    }
}

impl Stock {
    fn resources(&self, driver: &DriverFile, node: &str) -> Resources {
        let devices = driver.described().into_iter().map(|d| d.device);
        let devices = devices
            .filter(|d| self.present.contains(&d.name))
            .map(|mut device| {
                let name = device.name.clone();
                for taint in self.taints.iter().filter(|t| t.devices.contains(&name)) {
                    device = device.taint(&taint.key, &taint.value, &taint.effect);
                }
                if self.round > 0 {
                    device.int("stormRound", self.round)
                } else {
                    device
                }
            });
        let pool = Pool::new(devices).counters(driver.counter_sets());
        let name = driver.pool.clone().unwrap_or_else(|| node.to_owned());
        Resources::new().pool(name, pool)
    }
}

impl Player {
    fn new(driver: DriverFile, place: DriverPaths, say: Say) -> Result<Self, Error> {
        let described = driver.described();
        let present = described
            .iter()
            .filter(|d| d.present)
            .map(|d| d.device.name.clone())
            .collect();
        let pool = driver.pool.clone().unwrap_or_else(|| place.node.clone());
        let health = described
            .iter()
            .map(|d| DeviceHealth::healthy(&pool, &d.device.name))
            .collect();
        let files = CdiFiles::new(&place.cdi_dir, &driver.name);
        let shared = Arc::new(Shared::new(&driver, files, health));
        let stock = Stock {
            present,
            taints: Vec::new(),
            round: 0,
        };
        let scope = Scope::node(&place.node);
        let publisher = Publisher::new(place.client.clone(), &driver.name, scope);
        let publishing = publisher
            .start(stock.resources(&driver, &place.node))
            .map_err(|source| invalid(&driver, source))?;
        let voice = Voice::new(say, &driver.name);
        voice.say(&format!("{} simulated devices", stock.present.len()));
        Ok(Self {
            driver,
            place,
            shared,
            voice,
            publishing,
            stock,
        })
    }

    fn publish(&self) -> Result<(), Error> {
        let resources = self.stock.resources(&self.driver, &self.place.node);
        self.publishing
            .publish(resources)
            .map_err(|source| invalid(&self.driver, source))
    }

    fn apply(&mut self, step: &DriverStep) -> Result<(), Error> {
        let voice = &self.voice;
        if let Some(latency) = step.latency {
            voice.say("takes another time for its answers");
            self.shared.behaviour.set_latency(latency);
        }
        if let Some(faults) = &step.faults {
            voice.say("has other faults");
            self.shared.behaviour.set_faults(faults.clone());
        }
        voice.list(&[
            ("unhealthy", &step.unhealthy),
            ("healthy", &step.healthy),
            ("removed", &step.remove),
            ("added", &step.add),
        ]);
        let broken: BTreeMap<&String, bool> = step
            .unhealthy
            .iter()
            .map(|name| (name, true))
            .chain(step.healthy.iter().map(|name| (name, false)))
            .collect();
        if !broken.is_empty() {
            self.shared.health.send_modify(|all| {
                for health in all.iter_mut() {
                    match broken.get(&health.device) {
                        Some(true) => *health = health.clone().broken("by the script"),
                        Some(false) => {
                            *health = DeviceHealth::healthy(&health.pool, &health.device);
                        }
                        None => {}
                    }
                }
            });
        }
        self.stock.present.extend(step.add.iter().cloned());
        self.stock
            .present
            .retain(|name| !step.remove.contains(name));
        if let Some(taints) = &step.taints {
            self.voice.say(&format!("{} taints", taints.len()));
            self.stock.taints.clone_from(taints);
        }
        let changed = !step.add.is_empty() || !step.remove.is_empty() || step.taints.is_some();
        if changed {
            self.publish()?;
        }
        Ok(())
    }

    /// Changes the slices again and again; the last ones are as they were.
    async fn storm(&mut self, time: Duration, cancel: &CancellationToken) -> Result<(), Error> {
        self.voice
            .say(&format!("changes its slices for {} ms", time.as_millis()));
        let until = Instant::now() + time;
        while Instant::now() < until && !cancel.is_cancelled() {
            self.stock.round += 1;
            self.publish()?;
            sleep(STORM).await;
        }
        self.stock.round = 0;
        self.publish()
    }
}

fn invalid(driver: &DriverFile, source: Invalid) -> Error {
    Error::Devices {
        driver: driver.name.clone(),
        source,
    }
}
