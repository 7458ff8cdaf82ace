//! Does what a restart rule with the action `RestartAllContainers` asks for.

use super::{Next, Worker};
use crate::restart_all::{self, Step};
use crate::runtime_state::{ContainerRecord, PodRuntime, State};
use davit_oci::runtime::Error;
use davit_pods::pod::{PodExt, Role};
use k8s_openapi::api::core::v1::Pod;
use std::sync::Arc;
use std::time::Duration;

impl Worker {
    /// One step, if there is one to be done.
    pub(super) async fn restart_all(&mut self, runtime: &PodRuntime) -> Option<Next> {
        match restart_all::step(&self.counted(), runtime) {
            Step::Nothing => None,
            Step::Removed => {
                self.publish(runtime, false);
                Some(Next::Again)
            }
            Step::Remove(records) => {
                self.publish(runtime, false);
                for record in records {
                    if let Err(error) = self.remove_at_once(record).await {
                        tracing::warn!(pod = %self.pod.format(), container = %record.name, %error, "cannot restart all containers");
                        return Some(self.retry_later());
                    }
                }
                Some(Next::Again)
            }
        }
    }

    /// The pod, with the newest status where that is what counts its restarts.
    pub(super) fn counted(&self) -> Arc<Pod> {
        if restart_all::is_possible(&self.pod) {
            self.known()
        } else {
            self.pod.clone()
        }
    }

    /// Without hooks and without grace, as documented.
    async fn remove_at_once(&self, record: &ContainerRecord) -> Result<(), Error> {
        if matches!(record.state, State::Running | State::Unknown) {
            let role = self
                .pod
                .container(&record.name)
                .map_or(Role::Main, |(r, _)| r);
            let reference = self.pod.container_reference(role, &record.name);
            let text = format!(
                "Stopping container {}: all containers of the pod are restarted",
                record.name
            );
            self.ctx.recorder.normal(&reference, "Killing", text);
            let stopped = self.ctx.runtime.stop_container(&record.id, Duration::ZERO);
            gone(stopped.await)?;
        }
        gone(self.ctx.runtime.remove_container(&record.id).await)
    }
}

fn gone(done: Result<(), Error>) -> Result<(), Error> {
    match done {
        Err(Error::NotFound(_)) => Ok(()),
        other => other,
    }
}
