//! What happens around the plugin: the agent restarts, refuses, is slow; a second instance comes;
//! the plugin ends.

use std::time::Duration;

use davit_proto::unix;

use super::{Met, Run};
use crate::check::agent::{Agent, Manner, Registered, Way};
use crate::check::streams::{self, Lists};
use crate::check::subject::{KubeletDirectory, Life, Subject};

const TERMINATE: Duration = Duration::from_secs(10);

impl Run<'_> {
    pub(super) async fn lives(
        &mut self,
        subject: &dyn Subject,
        place: &KubeletDirectory,
        agent: Agent,
        mut life: Box<dyn Life>,
        met: Met,
    ) -> Result<(), unix::Error> {
        agent.stop().await;
        let slow = Manner {
            slow: self.options.slow_dial,
            ..Manner::default()
        };
        let mut agent = Agent::start(place, &slow)?;
        let again = self.restarted(&mut agent, &mut life, &met).await;
        let mut socket = again
            .as_ref()
            .map_or(met.socket, |again| again.socket.clone());
        drop(again);
        agent.stop().await;
        let mut agent = Agent::start(
            place,
            &Manner {
                refuse: 1,
                ..Manner::default()
            },
        )?;
        if !self.refused(&mut agent, &mut life).await {
            // It may have ended, which is its right: then a new one goes on.
            agent.stop().await;
            agent = Agent::start(place, &Manner::default())?;
            if life.ended().is_some() {
                match subject.start(place).await {
                    Ok(new) => life = new,
                    Err(e) => {
                        self.report.fail("duplicate", e);
                        agent.stop().await;
                        return Ok(());
                    }
                }
            }
            if let Some(again) = self
                .next(&mut agent, life.as_mut(), self.options.patience)
                .await
            {
                socket = again.socket;
            }
        }
        let second = self
            .duplicate(subject, place, &mut agent, life.as_mut())
            .await;
        // The one that is alive is the one that is ended at last.
        let (mut last, socket) = match second {
            Some((second, registered)) => (second, registered.socket),
            None => (life, socket),
        };
        self.terminate(last.as_mut(), &socket, met.way).await;
        agent.stop().await;
        Ok(())
    }

    /// The agent has restarted and takes its time to dial back.
    async fn restarted(
        &mut self,
        agent: &mut Agent,
        life: &mut Box<dyn Life>,
        met: &Met,
    ) -> Option<Registered> {
        let patience = self.options.patience;
        let begun = tokio::time::Instant::now();
        let Some(again) = self.next(agent, life.as_mut(), patience).await else {
            let seen = match life.ended() {
                Some(ended) => format!("it ended: {}", ended.how),
                None => format!("nothing in {} s", patience.as_secs()),
            };
            self.report.fail("agent-restart", seen);
            return None;
        };
        let after = begun.elapsed().as_millis();
        let patient = again
            .dialled
            .as_ref()
            .map(|_| ())
            .and(again.options.as_ref().map(|_| ()));
        if let Err(e) = &patient
            && !again.socket.exists()
        {
            let seen =
                format!("registered after {after} ms, but its own socket was not made again: {e}");
            self.report.fail("agent-restart", seen);
            self.report.skip("slow-dial", "it could not be reached");
            return None;
        }
        let seen = match patient {
            Ok(()) => Ok(format!(
                "it waited {} ms",
                self.options.slow_dial.as_millis()
            )),
            Err(e) => Err(e.clone()),
        };
        self.report.verdict("slow-dial", seen);
        self.report.verdict(
            "agent-restart",
            match again.resource == met.resource {
                true => Ok(format!("registered after {after} ms")),
                false => Err(format!("{} registered after {after} ms", again.resource)),
            },
        );
        if let Ok(client) = &again.dialled {
            let list = async {
                let mut lists = Lists::open(client.clone(), patience).await?;
                lists.next(patience).await
            };
            let seen = match list.await {
                Ok(list) if streams::ids(&list) == streams::ids(&met.devices) => {
                    Ok(format!("{} devices", list.len()))
                }
                Ok(list) => Err(format!(
                    "{} instead of {}",
                    streams::sample(&list),
                    streams::sample(&met.devices)
                )),
                Err(e) => Err(e),
            };
            self.report.verdict("agent-restart-list", seen);
        }
        Some(again)
    }

    /// The agent refuses once. Returns whether the plugin has come again and was taken.
    async fn refused(&mut self, agent: &mut Agent, life: &mut Box<dyn Life>) -> bool {
        let patience = self.options.patience;
        let Some(first) = self.next(agent, life.as_mut(), patience).await else {
            self.report
                .skip("register-refused", "it did not register again");
            return false;
        };
        let registry = first.way == Way::Registry;
        let again = self.next(agent, life.as_mut(), patience).await;
        let (seen, taken) = match (&again, life.ended()) {
            (Some(_), _) => (Ok("it tried again".to_owned()), true),
            (None, Some(ended)) => (Ok(format!("it ended: {}", ended.how)), false),
            // The agent itself asks again for a socket that is still there.
            (None, None) if registry => (
                Ok("its socket stayed for the agent to ask again".to_owned()),
                false,
            ),
            (None, None) => (
                Err(format!(
                    "it ran on without a word for {} s",
                    patience.as_secs()
                )),
                false,
            ),
        };
        self.report.verdict("register-refused", seen);
        taken
    }

    /// The next registration of an instance that can be reached: one that has lost its socket may
    /// go on registering.
    async fn reached(&mut self, agent: &mut Agent, life: &mut dyn Life) -> Option<Registered> {
        let until = tokio::time::Instant::now() + self.options.patience;
        loop {
            let left = until.checked_duration_since(tokio::time::Instant::now())?;
            let registered = self.next(agent, life, left).await?;
            if registered.dialled.is_ok() {
                return Some(registered);
            }
        }
    }

    /// A second instance comes, the first one goes. Returns the second when it is alive.
    async fn duplicate(
        &mut self,
        subject: &dyn Subject,
        place: &KubeletDirectory,
        agent: &mut Agent,
        first: &mut dyn Life,
    ) -> Option<(Box<dyn Life>, Registered)> {
        let mut second = match subject.start(place).await {
            Ok(second) => second,
            Err(e) => {
                self.report.fail("duplicate", e);
                return None;
            }
        };
        let patience = self.options.patience;
        let Some(registered) = self.reached(agent, second.as_mut()).await else {
            let seen = match second.ended() {
                Some(ended) => format!("the second instance ended: {}", ended.how),
                None => format!(
                    "the second instance did not register in {} s",
                    patience.as_secs()
                ),
            };
            self.report.fail("duplicate", seen);
            return None;
        };
        let outlives = async {
            let client = registered.dialled.clone()?;
            let mut lists = Lists::open(client, patience).await?;
            lists.next(patience).await?;
            let ended = first.terminate(TERMINATE).await;
            let watched = lists.watch(Duration::from_secs(1)).await;
            if let Some(why) = watched.ended {
                return Err(format!("when the first instance had ended: {why}"));
            }
            Ok(match ended {
                Some(_) if registered.socket.exists() => "the second instance serves on".to_owned(),
                Some(_) => {
                    "the second instance serves on; the first took the socket's file with it"
                        .to_owned()
                }
                None => "the second instance serves; the first did not end".to_owned(),
            })
        };
        let seen = outlives.await;
        let alive = self.report.verdict("duplicate", seen);
        alive.then_some((second, registered))
    }

    async fn terminate(&mut self, life: &mut dyn Life, socket: &std::path::Path, way: Way) {
        let begun = tokio::time::Instant::now();
        let Some(ended) = life.terminate(TERMINATE).await else {
            self.report.fail(
                "terminate",
                format!("it runs on after {} s", TERMINATE.as_secs()),
            );
            return;
        };
        let after = begun.elapsed().as_millis();
        self.report
            .pass("terminate", format!("{} after {after} ms", ended.how));
        let seen = match (socket.exists(), way) {
            (false, _) => Ok("removed".to_owned()),
            (true, Way::Registry) => Err(format!(
                "{} is left: the agent takes it for a plugin",
                socket.display()
            )),
            (true, Way::Register) => Err(format!("{} is left", socket.display())),
        };
        self.report.verdict("terminate-socket", seen);
    }
}
