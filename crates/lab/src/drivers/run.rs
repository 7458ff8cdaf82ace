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
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::file::{DriverFile, DriverStep, Taint};
use super::plugin::{Shared, Simulated};
use crate::Say;
use crate::script::Script;

const AFTER_CRASH: Duration = Duration::from_secs(1);
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
pub struct Place {
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
    place: &Place,
    say: &Say,
    cancel: CancellationToken,
) -> Result<(), Error> {
    let mut running = JoinSet::new();
    for driver in drivers {
        let player = Player::new(driver.clone(), place.clone(), say.clone());
        running.spawn(player.run(cancel.clone()));
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    cancel.cancelled().await;
    Ok(())
}

struct Player {
    driver: DriverFile,
    place: Place,
    shared: Arc<Shared>,
    say: Say,
    present: BTreeSet<String>,
    taints: Vec<Taint>,
    /// Counts the changes of storms, for an attribute that differs each time.
    round: i64,
}

enum Wake {
    Step(Box<DriverStep>),
    Killed,
    Over,
}

impl Player {
    fn new(driver: DriverFile, place: Place, say: Say) -> Self {
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
        Self {
            driver,
            place,
            shared,
            say,
            present,
            taints: Vec::new(),
            round: 0,
        }
    }

    fn say(&self, what: &str) {
        (self.say)(&format!("{}: {what}", self.driver.name));
    }

    fn resources(&self) -> Resources {
        let devices = self.driver.described().into_iter().map(|d| d.device);
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
        let pool = Pool::new(devices).counters(self.driver.counter_sets());
        let name = self
            .driver
            .pool
            .clone()
            .unwrap_or_else(|| self.place.node.clone());
        Resources::new().pool(name, pool)
    }

    fn start(&self) -> Result<(Running, JoinSet<()>), Error> {
        let plugins = self.place.kubelet_dir.join("plugins");
        let simulated = Simulated(self.shared.clone());
        let plugin = NodePlugin::new(&self.driver.name, self.place.client.clone(), simulated)
            .registry_dir(self.place.kubelet_dir.join("plugins_registry"))
            .data_dir(plugins.join(&self.driver.name));
        let running = plugin.start().map_err(|source| Error::Plugin {
            driver: self.driver.name.clone(),
            source,
        })?;
        let (mut states, say, name) = (running.state(), self.say.clone(), self.driver.name.clone());
        let mut reporter = JoinSet::new();
        reporter.spawn(async move {
            while states.changed().await.is_ok() {
                match &*states.borrow_and_update() {
                    State::Waiting => say(&format!("{name}: waiting for the node agent")),
                    State::Registered => say(&format!("{name}: registered")),
                    State::Refused(why) => say(&format!("{name}: not registered: {why}")),
                }
            }
        });
        Ok((running, reporter))
    }

    fn invalid(&self, source: Invalid) -> Error {
        Error::Devices {
            driver: self.driver.name.clone(),
            source,
        }
    }

    async fn run(mut self, cancel: CancellationToken) -> Result<(), Error> {
        let scope = Scope::node(&self.place.node);
        let publisher = Publisher::new(self.place.client.clone(), &self.driver.name, scope);
        let publishing = publisher
            .start(self.resources())
            .map_err(|e| self.invalid(e))?;
        let (mut running, mut _reporter) = self.start()?;
        self.say(&format!("{} simulated devices", self.present.len()));
        let mut script = Script::new(self.driver.script.clone(), self.driver.repeat, |s| s.at);
        loop {
            let wake = tokio::select! {
                () = cancel.cancelled() => Wake::Over,
                () = self.shared.crash.notified() => Wake::Killed,
                step = script.next() => Wake::Step(Box::new(step)),
            };
            let away = match wake {
                Wake::Over => break,
                Wake::Killed => {
                    self.say("dies in the middle of a call");
                    drop(running);
                    AFTER_CRASH
                }
                Wake::Step(step) => {
                    self.change(&step, &publishing)?;
                    if let Some(storm) = step.storm {
                        self.storm(storm.0, &publishing, &cancel).await?;
                    }
                    match (step.crash, step.stop) {
                        (Some(away), _) => {
                            self.say(&format!("is lost, back in {away}"));
                            drop(running);
                            away.0
                        }
                        (None, Some(away)) => {
                            self.say(&format!("stops, back in {away}"));
                            running.stop().await;
                            away.0
                        }
                        (None, None) => continue,
                    }
                }
            };
            tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                () = sleep(away) => {}
            }
            (running, _reporter) = self.start()?;
        }
        running.stop().await;
        Ok(())
    }

    fn change(&mut self, step: &DriverStep, publishing: &Publishing) -> Result<(), Error> {
        if let Some(latency) = step.latency {
            self.say("takes another time for its answers");
            self.shared.set_latency(latency);
        }
        if let Some(faults) = &step.faults {
            self.say("has other faults");
            self.shared.set_faults(faults.clone());
        }
        for (what, names) in [
            ("unhealthy", &step.unhealthy),
            ("healthy", &step.healthy),
            ("removed", &step.remove),
            ("added", &step.add),
        ] {
            if !names.is_empty() {
                self.say(&format!("{what}: {}", names.join(", ")));
            }
        }
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
        self.present.extend(step.add.iter().cloned());
        self.present.retain(|name| !step.remove.contains(name));
        if let Some(taints) = &step.taints {
            self.say(&format!("{} taints", taints.len()));
            self.taints.clone_from(taints);
        }
        let changed = !step.add.is_empty() || !step.remove.is_empty() || step.taints.is_some();
        if changed {
            publishing
                .publish(self.resources())
                .map_err(|e| self.invalid(e))?;
        }
        Ok(())
    }

    /// Changes the slices again and again; the last ones are as they were.
    async fn storm(
        &mut self,
        time: Duration,
        publishing: &Publishing,
        cancel: &CancellationToken,
    ) -> Result<(), Error> {
        self.say(&format!("changes its slices for {} ms", time.as_millis()));
        let until = Instant::now() + time;
        while Instant::now() < until && !cancel.is_cancelled() {
            self.round += 1;
            publishing
                .publish(self.resources())
                .map_err(|e| self.invalid(e))?;
            sleep(STORM).await;
        }
        self.round = 0;
        publishing
            .publish(self.resources())
            .map_err(|e| self.invalid(e))
    }
}
