//! Restarts: of the agent, of the driver, of both in turn.

use std::time::Duration;

use davit_proto::dra::v1;
use serde_json::Value;

use super::answers;
use super::calls::{names, sorted, versions};
use super::cluster::Claim;
use super::plugin::{Driver, PluginSocket, Registry};
use super::{Met, Run};
use crate::check::subject::Life;

const TERMINATE: Duration = Duration::from_secs(10);
/// How long a driver is watched after its socket was removed.
const WATCHED: Duration = Duration::from_secs(1);

impl Run<'_> {
    /// Everything for which something has to end.
    pub(super) async fn lives(&mut self, mut life: Box<dyn Life>, met: Met) {
        self.agent_restart(life.as_mut(), &met).await;
        let Some((mut life, mut met)) = self.restart(life, met).await else {
            return;
        };
        (life, met) = self.update(life, met).await;
        if let Some(mut life) = self.removed(life, &mut met).await {
            self.terminate(life.as_mut(), &met).await;
        }
    }

    /// How the driver is called that has registered.
    fn driver(&self, found: &PluginSocket) -> Result<Driver, String> {
        let channel = found.channel.clone()?;
        Ok(Driver::new(channel, &found.versions, self.options.patience))
    }

    /// A new agent knows nothing: it asks every socket again.
    async fn agent_restart(&mut self, life: &mut dyn Life, met: &Met) {
        self.registry = Registry::default();
        let Some(found) = self.next(life, self.options.patience).await else {
            let seen = self.absent(life);
            self.report.fail("agent-restart", seen);
            return;
        };
        let called = async {
            found.notified.clone()?;
            let driver = self.driver(&found)?;
            let Some(device) = met.devices.first() else {
                return Ok("it was asked again".to_owned());
            };
            let claim = self.cluster.allocated(&met.found.name, device).await?;
            driver.prepare_one(&claim).await?;
            driver.unprepare_one(&claim).await?;
            self.cluster.delete(&claim).await?;
            Ok("it was asked and called again".to_owned())
        };
        let seen = called.await;
        self.report.verdict("agent-restart", seen);
    }

    /// A claim that is prepared, with the answer; `None` when there is no device for it.
    async fn prepared(&self, met: &Met) -> Result<Option<(Claim, Vec<v1::Device>)>, String> {
        let Some(device) = met.devices.first() else {
            return Ok(None);
        };
        let claim = self.cluster.allocated(&met.found.name, device).await?;
        let answer = met.driver.prepare_one(&claim).await?;
        Ok(Some((claim, answer)))
    }

    /// Killed and started again. `None` when it does not come back.
    async fn restart(&mut self, life: Box<dyn Life>, met: Met) -> Option<(Box<dyn Life>, Met)> {
        let held = self.prepared(&met).await;
        // it is killed
        drop(life);
        let begun = tokio::time::Instant::now();
        let started = self.start().await;
        let mut life = match started {
            Ok(life) => life,
            Err(e) => {
                self.report.fail("restart", e);
                return None;
            }
        };
        let found = self.reached(life.as_mut()).await;
        let Some((found, driver)) = found else {
            let seen = self.absent(life.as_mut());
            self.report.fail("restart", seen);
            return None;
        };
        let after = begun.elapsed().as_millis();
        self.report.pass("restart", format!("after {after} ms"));
        let same = async {
            let Some((claim, answer)) = held? else {
                return Ok(None);
            };
            let again = driver.prepare_one(&claim).await?;
            if sorted(again.clone()) != sorted(answer.clone()) {
                return Err(format!("{again:?} instead of {answer:?}"));
            }
            driver.unprepare_one(&claim).await?;
            self.cluster.delete(&claim).await?;
            Ok(Some("the same answer".to_owned()))
        };
        match same.await {
            Ok(Some(seen)) => self.report.pass("restart-prepare", seen),
            Ok(None) => self
                .report
                .skip("restart-prepare", "there is no device for it"),
            Err(why) => self.report.fail("restart-prepare", why),
        }
        let wanted = names(&met.devices);
        let whole = |slices: &[Value]| {
            let seen = answers::check_pools(slices)?;
            let found = names(&answers::devices(slices));
            if found == wanted {
                Ok(seen)
            } else {
                Err(format!("other devices than before: {seen}"))
            }
        };
        let limit = self.options.patience;
        let published = self.cluster.await_slices(&found.name, limit, whole).await;
        let (seen, slices) = match published {
            Ok((seen, slices)) => (Ok(seen), slices),
            Err(why) => (Err(why), met.slices),
        };
        self.report.verdict("restart-slices", seen);
        let met = Met {
            driver,
            found,
            slices,
            devices: met.devices,
        };
        Some((life, met))
    }

    /// The next registration that can be called: a socket that was left behind cannot.
    async fn reached(&mut self, life: &mut dyn Life) -> Option<(PluginSocket, Driver)> {
        let until = tokio::time::Instant::now() + self.options.patience;
        loop {
            let left = until.checked_duration_since(tokio::time::Instant::now())?;
            let found = self.next(life, left).await?;
            if let Ok(driver) = self.driver(&found) {
                return Some((found, driver));
            }
        }
    }

    /// A second instance comes, the first one goes. The one that is left.
    async fn update(&mut self, first: Box<dyn Life>, met: Met) -> (Box<dyn Life>, Met) {
        if !self
            .process
            .command
            .iter()
            .any(|a| a.contains("{instance}"))
        {
            for id in ["update", "update-slices"] {
                self.report.skip(id, "the command has no {instance}");
            }
            return (first, met);
        }
        let mut first = first;
        let held = self.prepared(&met).await;
        let mut second = match self.start().await {
            Ok(second) => second,
            Err(e) => {
                self.report.fail("update", e);
                return (first, met);
            }
        };
        let Some((found, driver)) = self.reached(second.as_mut()).await else {
            let seen = format!("second instance: {}", self.absent(second.as_mut()));
            self.report.fail("update", seen);
            return (first, met);
        };
        let before = versions(&met.slices);
        let outlives = async {
            if found.endpoint == met.found.endpoint {
                return Err("both instances have the same endpoint".to_owned());
            }
            let held = held?;
            if let Some((claim, answer)) = &held {
                let again = driver.prepare_one(claim).await?;
                if sorted(again.clone()) != sorted(answer.clone()) {
                    return Err(format!("{again:?} instead of {answer:?}"));
                }
            }
            let ended = first.terminate(TERMINATE).await;
            ended.ok_or("the first instance did not end")?;
            if !found.socket.exists() {
                return Err("the first took the socket of the second with it".to_owned());
            }
            if let Some((claim, _)) = &held {
                driver.unprepare_one(claim).await?;
                self.cluster.delete(claim).await?;
            }
            Ok("the second instance serves on".to_owned())
        };
        let seen = outlives.await;
        self.report.verdict("update", seen);
        let slices = self.cluster.slices_of(&found.name).await;
        let seen = match &slices {
            Ok(now) if versions(now) == before => Ok("none was written".to_owned()),
            Ok(_) => Err("slices were written".to_owned()),
            Err(e) => Err(e.clone()),
        };
        self.report.verdict("update-slices", seen);
        let met = Met {
            driver,
            found,
            slices: slices.unwrap_or(met.slices),
            devices: met.devices,
        };
        (second, met)
    }

    /// Somebody removes the socket of the registry. The driver cannot know, but its endpoint is still there; an agent
    /// that restarts finds it again when it has been started anew. The one to go on with.
    async fn removed(&mut self, mut life: Box<dyn Life>, met: &mut Met) -> Option<Box<dyn Life>> {
        if let Err(e) = std::fs::remove_file(&met.found.socket) {
            self.report.skip("registry-removed", e.to_string());
            return Some(life);
        }
        tokio::time::sleep(WATCHED).await;
        let seen = match (self.prepared(met).await, life.ended()) {
            (_, Some(ended)) => Ok(format!("it ended: {}", ended.how)),
            (Ok(held), None) => match held {
                Some((claim, _)) => match met.driver.unprepare_one(&claim).await {
                    Ok(()) => Ok("it served on".to_owned()),
                    Err(e) => Err(e),
                },
                None => Ok("it runs on".to_owned()),
            },
            (Err(e), None) => Err(e),
        };
        self.report.verdict("registry-removed", seen);
        drop(life);
        let mut life = match self.start().await {
            Ok(life) => life,
            Err(e) => {
                self.report.fail("terminate", e);
                return None;
            }
        };
        if let Some((found, driver)) = self.reached(life.as_mut()).await {
            (met.found, met.driver) = (found, driver);
        }
        Some(life)
    }

    async fn terminate(&mut self, life: &mut dyn Life, met: &Met) {
        let begun = tokio::time::Instant::now();
        let Some(ended) = life.terminate(TERMINATE).await else {
            let seen = format!("it runs on after {} s", TERMINATE.as_secs());
            self.report.fail("terminate", seen);
            return;
        };
        let after = begun.elapsed().as_millis();
        let seen = format!("{} after {after} ms", ended.how);
        self.report.pass("terminate", seen);
        let socket = &met.found.socket;
        let seen = if socket.exists() {
            Err(format!("{} is left", socket.display()))
        } else {
            Ok("removed".to_owned())
        };
        self.report.verdict("terminate-socket", seen);
    }
}
