//! Serving an inventory: one plugin a resource, and its script.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use davit_sdk::deviceplugin::{self, PluginServer, Route, Running, State};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::inventory::{Inventory, Resource, RouteKind, Step, put};
use super::plugin::{Handle, Shared, Simulated};
use crate::Say;
use crate::script::Script;

/// How long a plugin that a call has killed is away.
const AFTER_CRASH: Duration = Duration::from_secs(1);

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
        plugins.spawn(player.run(cancel.clone()));
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
    say: Say,
}

/// What ends the wait for the next step.
enum Wake {
    Step(Box<Step>),
    Killed,
    Over,
}

impl Player {
    fn new(resource: Resource, kubelet_dir: &Path, say: Say) -> Self {
        let route = match resource.route {
            RouteKind::Register => Route::Register(kubelet_dir.join("device-plugins")),
            RouteKind::Registry => Route::Registry(kubelet_dir.join("plugins_registry")),
        };
        let shared = Arc::new(Shared::new(&resource));
        Self {
            resource,
            route,
            shared,
            say,
        }
    }

    fn say(&self, what: &str) {
        (self.say)(&format!("{}: {what}", self.resource.name));
    }

    fn start(&self) -> Result<(Running, JoinSet<()>), Error> {
        let simulated = Arc::new(Simulated::new(self.shared.clone()));
        let running = PluginServer::new(&self.resource.name, Handle(simulated.clone()))
            .route(self.route.clone())
            .tampered(simulated)
            .start()
            .map_err(|source| Error::Plugin {
                resource: self.resource.name.clone(),
                source,
            })?;
        let (mut states, say, name) = (
            running.state(),
            self.say.clone(),
            self.resource.name.clone(),
        );
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

    async fn run(self, cancel: CancellationToken) -> Result<(), Error> {
        let mut script = Script::new(self.resource.script.clone(), self.resource.repeat, |s| s.at);
        let (mut running, mut _reporter) = self.start()?;
        self.say(&format!(
            "{} simulated devices",
            self.shared.devices.borrow().len()
        ));
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
                    running.crash().await;
                    AFTER_CRASH
                }
                Wake::Step(step) => {
                    self.change(&step);
                    if let Some(flood) = step.flood {
                        self.flood(flood.0, &cancel).await;
                    }
                    match (step.crash, step.stop) {
                        (Some(away), _) => {
                            self.say(&format!("is killed, back in {away}"));
                            running.crash().await;
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

    /// What a step changes in the list and in the behaviour.
    fn change(&self, step: &Step) {
        if let Some(latency) = step.latency {
            self.say("takes another time for its answers");
            self.shared.set_latency(latency);
        }
        if let Some(faults) = &step.faults {
            self.say("has other faults");
            self.shared.set_faults(faults.clone());
        }
        let lists = [&step.unhealthy, &step.healthy, &step.remove];
        for (what, ids) in ["unhealthy", "healthy", "removed"].into_iter().zip(lists) {
            if !ids.is_empty() {
                self.say(&format!("{what}: {}", ids.join(", ")));
            }
        }
        if !step.add.is_empty() {
            self.say(&format!("added: {} devices", step.add.len()));
        }
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
        self.say(&format!("floods for {} ms", time.as_millis()));
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
        self.say(&format!("changed its list {lists} times"));
    }
}
