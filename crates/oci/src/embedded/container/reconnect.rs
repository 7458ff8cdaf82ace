//! What became of a container while davit was away.

use super::alive::{Alive, end_monitor};
use super::{Container, Phase, START_LIMIT};
use crate::cgroup::Hierarchies;
use crate::embedded::connection::Connection;
use crate::embedded::record::ContainerRecord;
use crate::monitor::protocol::{Request, Response};
use crate::monitor::{RunState, files, kill_that_began, read_json};
use std::fs;
use std::time::Duration;
use tokio::time::timeout;

impl Container {
    /// After a restart of davit: finds out what became of the container. A connection means that it runs. One of which
    /// nothing shows that it ever ran is as it was created.
    pub(in crate::embedded) async fn reconnect(
        &self,
        hierarchies: &Hierarchies,
    ) -> Option<Connection> {
        if !matches!(self.phase(), Phase::Created) || !self.dir.join(files::STARTED).exists() {
            return None;
        }
        let ContainerRecord { socket, cgroup, .. } = self.record();
        let deadline = tokio::time::Instant::now() + START_LIMIT;
        for attempt in 0.. {
            let is_alive = Alive::is_held(&self.dir);
            if self.dir.join(files::EXIT).exists() {
                break;
            }
            let watch = async {
                let mut connection = Connection::connect(&socket).await.ok()?;
                connection.send(&Request::Watch, &[]).await.ok()?;
                match connection.receive().await {
                    Ok(Some((Response::Running(state), _))) => Some((connection, state)),
                    _ => None,
                }
            };
            // A monitor answers once its container runs, which hooks may hold up.
            if let Ok(Some((connection, state))) = timeout(START_LIMIT, watch).await {
                self.set(Phase::Running(state));
                return Some(connection);
            }
            // A monitor that is just beginning has no socket yet; one of an older davit cannot be seen to be alive.
            let had_run = self.dir.join(files::STATE).exists();
            let attempts = if had_run { 5 } else { 40 };
            let now = tokio::time::Instant::now();
            if (!is_alive && attempt >= attempts) || now >= deadline {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // One that lives and does not answer might yet begin, when the container counts as ended.
        if !self.dir.join(files::EXIT).exists()
            && Alive::is_held(&self.dir)
            && !end_monitor(&self.dir).await
        {
            tracing::error!(container = %self.dir.display(), "the container's monitor cannot be ended");
        }
        if self.never_ran() {
            // Not even its monitor's beginnings are left.
            hierarchies.cgroup(&cgroup).kill();
            match fs::remove_file(self.dir.join(files::STARTED)) {
                Ok(()) => return None,
                Err(error) => {
                    let container = self.dir.display();
                    tracing::warn!(%container, %error, "a container that never ran cannot be started again");
                }
            }
        }
        if let Ok(Some(state)) = read_json::<RunState>(&self.dir.join(files::STATE)) {
            // Without a monitor nobody would know when and how it ends.
            kill_that_began(state.pid, state.start_ticks);
        }
        hierarchies.cgroup(&cgroup).kill();
        let record = self.ended();
        self.set(Phase::Exited(record));
        None
    }

    /// Whether no monitor lives and none has left a trace of the container.
    fn never_ran(&self) -> bool {
        let has = |file| self.dir.join(file).exists();
        !Alive::is_held(&self.dir) && !has(files::STATE) && !has(files::EXIT)
    }
}
