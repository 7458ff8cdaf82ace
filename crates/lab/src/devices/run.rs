//! Serving an inventory: one plugin a resource, and its script.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use davit_sdk::deviceplugin::{self, PluginServer, Route, Running, State};
use davit_sdk::{async_trait, watch};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::inventory::{Inventory, Resource, RouteKind, Step, put};
use super::plugin::{Handle, Shared, Simulated};
use crate::Say;
use crate::player::{Happens, Leave, Simulation, Voice, leaves, play};
use crate::span::Span;

/// Why an inventory is not served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A plugin does not start.
    #[error("plugin of {resource}: {source}")]
    Plugin {
        /// Its resource.
        resource: String,
        /// Why.
        source: deviceplugin::Error,
    },
    /// A plugin's task has failed.
    #[error("a simulated plugin failed: {0}")]
    Failed(#[from] tokio::task::JoinError),
}

/// Serves the devices of an inventory to the agent with this directory (the equivalent of
/// `/var/lib/kubelet`) until `cancel`. What happens by the scripts is told to `say`.
///
/// # Errors
/// A plugin cannot be started, such as for the length of its socket's path.
pub async fn serve(
    inventory: &Inventory,
    kubelet_dir: &Path,
    say: &Say,
    cancel: CancellationToken,
) -> Result<(), Error> {
    let mut plugins = JoinSet::new();
    for resource in &inventory.resources {
        let player = Player::new(resource.clone(), kubelet_dir, say.clone());
        let (script, repeat) = (resource.script.clone(), resource.repeat);
        plugins.spawn(play(player, script, repeat, cancel.clone()));
    }
    while let Some(ended) = plugins.join_next().await {
        // One that cannot be served must not hide behind those that can.
        ended??;
    }
    cancel.cancelled().await;
    Ok(())
}

struct Player {
    resource: Resource,
    route: Route,
    shared: Arc<Shared>,
    voice: Voice,
}

impl Happens for Step {
    fn at(&self) -> Span {
        self.at
    }

    fn leaves(&self) -> Option<(Leave, Span)> {
        leaves(self.crash, self.stop)
    }
}

#[async_trait]
impl Simulation for Player {
    type Step = Step;
    type Running = Running;
    type Error = Error;

    fn voice(&self) -> &Voice {
        &self.voice
    }

    fn crashes(&self) -> &Notify {
        &self.shared.behaviour.crash
    }

    fn start(&self) -> Result<(Running, watch::Receiver<State>), Error> {
        let simulated = Arc::new(Simulated::new(self.shared.clone()));
        let running = PluginServer::new(&self.resource.name, Handle(simulated.clone()))
            .route(self.route.clone())
            .tampered(simulated)
            .start()
            .map_err(|source| Error::Plugin {
                resource: self.resource.name.clone(),
                source,
            })?;
        let states = running.state();
        Ok((running, states))
    }

    async fn leave(running: Running, how: Leave) {
        match how {
            Leave::Crash => running.crash().await,
            Leave::Stop => running.stop().await,
        }
    }

    async fn change(&mut self, step: &Step, cancel: &CancellationToken) -> Result<(), Error> {
        self.apply(step);
        if let Some(flood) = step.flood {
            self.flood(flood.0, cancel).await;
        }
        Ok(())
    }
}

impl Player {
    fn new(resource: Resource, kubelet_dir: &Path, say: Say) -> Self {
        let route = match resource.route {
            RouteKind::Register => Route::Register(kubelet_dir.join("device-plugins")),
            RouteKind::Registry => Route::Registry(kubelet_dir.join("plugins_registry")),
        };
        let shared = Arc::new(Shared::new(&resource));
        let voice = Voice::new(say, &resource.name);
        let count = shared.devices.borrow().len();
        voice.say(&format!("{count} simulated devices"));
        Self {
            resource,
            route,
            shared,
            voice,
        }
    }

    /// What a step changes in the list and in the behaviour.
    fn apply(&self, step: &Step) {
        let voice = &self.voice;
        if let Some(latency) = step.latency {
            voice.say("takes another time for its answers");
            self.shared.behaviour.set_latency(latency);
        }
        if let Some(faults) = &step.faults {
            voice.say("has other faults");
            self.shared.set_faults(faults.clone());
        }
        let added = step.add.iter().map(|device| device.id.clone()).collect();
        voice.list(&[
            ("unhealthy", &step.unhealthy),
            ("healthy", &step.healthy),
            ("removed", &step.remove),
            ("added", &added),
        ]);
        self.shared.devices.send_if_modified(|all| {
            let before = all.clone();
            step.add.iter().for_each(|device| put(all, device));
            all.retain(|d| !step.remove.contains(&d.id));
            for device in all.iter_mut() {
                if step.unhealthy.contains(&device.id) {
                    device.healthy = false;
                }
                if step.healthy.contains(&device.id) {
                    device.healthy = true;
                }
            }
            *all != before
        });
    }

    /// Sends lists as fast as they are taken; the last one is as it was before.
    async fn flood(&self, time: Duration, cancel: &CancellationToken) {
        self.voice
            .say(&format!("floods for {} ms", time.as_millis()));
        let until = Instant::now() + time;
        let before = self.shared.devices.borrow().clone();
        let mut lists = 0_u64;
        while Instant::now() < until && !cancel.is_cancelled() {
            self.shared.devices.send_modify(|all| {
                for device in all.iter_mut() {
                    device.healthy = !device.healthy;
                }
            });
            lists += 1;
            // The stream's task takes the list, the agent's window slows it down.
            tokio::task::yield_now().await;
        }
        self.shared.devices.send_replace(before);
        self.voice.say(&format!("changed its list {lists} times"));
    }
}
