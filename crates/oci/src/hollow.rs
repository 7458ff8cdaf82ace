//! A runtime without containers: pods are admitted, hold their devices and report Running, but nothing runs.
//!
//! For machines on which nothing may run (no root, no container runtime) and for nodes that are only simulated. What it
//! knows is lost with the process, so pods are started anew after a restart.

use crate::runtime::{Error, ExecSession, PodDialer, Result, Runtime, Streaming};
use async_trait::async_trait;
use davit_proto::cri::v1 as cri;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The runtime of `--runtime none`.
#[derive(Debug, Default)]
pub struct Hollow {
    state: Mutex<State>,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    sandboxes: BTreeMap<String, Sandbox>,
    containers: BTreeMap<String, Container>,
    images: BTreeMap<String, cri::Image>,
}

#[derive(Debug, Clone)]
struct Sandbox {
    config: cri::PodSandboxConfig,
    handler: String,
    created_at: i64,
    ready: bool,
}

#[derive(Debug, Clone)]
struct Container {
    sandbox_id: String,
    config: cri::ContainerConfig,
    created_at: i64,
    started_at: i64,
    finished_at: i64,
}

impl Container {
    fn state(&self) -> cri::ContainerState {
        match (self.started_at, self.finished_at) {
            (0, _) => cri::ContainerState::ContainerCreated,
            (_, 0) => cri::ContainerState::ContainerRunning,
            _ => cri::ContainerState::ContainerExited,
        }
    }

    fn end(&mut self) {
        if self.finished_at == 0 {
            self.finished_at = now();
        }
    }
}

/// Nanoseconds since the epoch, as CRI gives times.
fn now() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn nothing_runs<T>(what: &str) -> Result<T> {
    Err(Error::Unimplemented(format!(
        "{what}: this node runs no containers (--runtime none)"
    )))
}

impl Hollow {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Values are replaced whole, so a panic elsewhere leaves the state sound.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn id(&self) -> String {
        format!("{:064x}", self.next.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

fn matches_labels(labels: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

#[async_trait]
impl Runtime for Hollow {
    async fn version(&self) -> Result<cri::VersionResponse> {
        Ok(cri::VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: "hollow".to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: "v1".to_owned(),
        })
    }

    async fn status(&self) -> Result<cri::StatusResponse> {
        let condition = |name: &str| cri::RuntimeCondition {
            r#type: name.to_owned(),
            status: true,
            ..Default::default()
        };
        let conditions = vec![condition("RuntimeReady"), condition("NetworkReady")];
        Ok(cri::StatusResponse {
            status: Some(cri::RuntimeStatus { conditions }),
            // what runs nothing has no groups to be wrong about
            features: Some(cri::RuntimeFeatures {
                supplemental_groups_policy: true,
                ..Default::default()
            }),
            ..Default::default()
        })
    }

    async fn run_pod_sandbox(
        &self,
        config: cri::PodSandboxConfig,
        runtime_handler: &str,
    ) -> Result<String> {
        let id = self.id();
        let sandbox = Sandbox {
            config,
            handler: runtime_handler.to_owned(),
            created_at: now(),
            ready: true,
        };
        self.lock().sandboxes.insert(id.clone(), sandbox);
        Ok(id)
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        let mut state = self.lock();
        state
            .containers
            .values_mut()
            .filter(|c| c.sandbox_id == id)
            .for_each(Container::end);
        if let Some(sandbox) = state.sandboxes.get_mut(id) {
            sandbox.ready = false;
        }
        Ok(())
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        let mut state = self.lock();
        state.containers.retain(|_, c| c.sandbox_id != id);
        state.sandboxes.remove(id);
        Ok(())
    }

    async fn pod_sandbox_status(&self, id: &str) -> Result<cri::PodSandboxStatus> {
        let state = self.lock();
        let sandbox = state
            .sandboxes
            .get(id)
            .ok_or_else(|| Error::NotFound(format!("sandbox {id}")))?;
        Ok(cri::PodSandboxStatus {
            id: id.to_owned(),
            metadata: sandbox.config.metadata.clone(),
            state: sandbox_state(sandbox).into(),
            created_at: sandbox.created_at,
            network: Some(cri::PodSandboxNetworkStatus::default()),
            linux: None,
            labels: sandbox.config.labels.clone(),
            annotations: sandbox.config.annotations.clone(),
            runtime_handler: sandbox.handler.clone(),
        })
    }

    async fn list_pod_sandboxes(
        &self,
        filter: Option<cri::PodSandboxFilter>,
    ) -> Result<Vec<cri::PodSandbox>> {
        let filter = filter.unwrap_or_default();
        let wanted = |id: &str, sandbox: &Sandbox| {
            (filter.id.is_empty() || filter.id == id)
                && filter
                    .state
                    .as_ref()
                    .is_none_or(|s| s.state == i32::from(sandbox_state(sandbox)))
                && matches_labels(&sandbox.config.labels, &filter.label_selector)
        };
        let state = self.lock();
        let found = state
            .sandboxes
            .iter()
            .filter(|(id, sandbox)| wanted(id, sandbox));
        Ok(found
            .map(|(id, sandbox)| cri::PodSandbox {
                id: id.clone(),
                metadata: sandbox.config.metadata.clone(),
                state: sandbox_state(sandbox).into(),
                created_at: sandbox.created_at,
                labels: sandbox.config.labels.clone(),
                annotations: sandbox.config.annotations.clone(),
                runtime_handler: sandbox.handler.clone(),
            })
            .collect())
    }

    async fn create_container(
        &self,
        sandbox_id: &str,
        config: cri::ContainerConfig,
        _sandbox_config: cri::PodSandboxConfig,
    ) -> Result<String> {
        let id = self.id();
        let mut state = self.lock();
        if !state.sandboxes.contains_key(sandbox_id) {
            return Err(Error::NotFound(format!("sandbox {sandbox_id}")));
        }
        let container = Container {
            sandbox_id: sandbox_id.to_owned(),
            config,
            created_at: now(),
            started_at: 0,
            finished_at: 0,
        };
        state.containers.insert(id.clone(), container);
        Ok(id)
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        let mut state = self.lock();
        let container = state
            .containers
            .get_mut(id)
            .ok_or_else(|| Error::NotFound(format!("container {id}")))?;
        container.started_at = now();
        Ok(())
    }

    async fn stop_container(&self, id: &str, _grace: Duration) -> Result<()> {
        if let Some(container) = self.lock().containers.get_mut(id) {
            container.end();
        }
        Ok(())
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        self.lock().containers.remove(id);
        Ok(())
    }

    async fn list_containers(
        &self,
        filter: Option<cri::ContainerFilter>,
    ) -> Result<Vec<cri::Container>> {
        let filter = filter.unwrap_or_default();
        let wanted = |id: &str, container: &Container| {
            (filter.id.is_empty() || filter.id == id)
                && (filter.pod_sandbox_id.is_empty()
                    || filter.pod_sandbox_id == container.sandbox_id)
                && filter
                    .state
                    .as_ref()
                    .is_none_or(|s| s.state == i32::from(container.state()))
                && matches_labels(&container.config.labels, &filter.label_selector)
        };
        let state = self.lock();
        let found = state
            .containers
            .iter()
            .filter(|(id, container)| wanted(id, container));
        Ok(found
            .map(|(id, container)| cri::Container {
                id: id.clone(),
                pod_sandbox_id: container.sandbox_id.clone(),
                metadata: container.config.metadata.clone(),
                image: container.config.image.clone(),
                state: container.state().into(),
                created_at: container.created_at,
                labels: container.config.labels.clone(),
                annotations: container.config.annotations.clone(),
                ..Default::default()
            })
            .collect())
    }

    async fn container_status(&self, id: &str) -> Result<cri::ContainerStatus> {
        let state = self.lock();
        let container = state
            .containers
            .get(id)
            .ok_or_else(|| Error::NotFound(format!("container {id}")))?;
        let ended = container.state() == cri::ContainerState::ContainerExited;
        Ok(cri::ContainerStatus {
            id: id.to_owned(),
            metadata: container.config.metadata.clone(),
            state: container.state().into(),
            created_at: container.created_at,
            started_at: container.started_at,
            finished_at: container.finished_at,
            exit_code: if ended { 137 } else { 0 },
            image: container.config.image.clone(),
            reason: if ended {
                "Error".to_owned()
            } else {
                String::new()
            },
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
            ..Default::default()
        })
    }

    async fn update_container_resources(
        &self,
        _id: &str,
        _resources: cri::LinuxContainerResources,
    ) -> Result<()> {
        Ok(())
    }

    async fn reopen_container_log(&self, _id: &str) -> Result<()> {
        Ok(())
    }

    async fn exec_sync(
        &self,
        _id: &str,
        _command: Vec<String>,
        _timeout: Duration,
        _kept: usize,
    ) -> Result<cri::ExecSyncResponse> {
        nothing_runs("exec")
    }

    async fn exec(&self, _request: cri::ExecRequest) -> Result<Streaming<ExecSession>> {
        nothing_runs("exec")
    }

    async fn attach(&self, _request: cri::AttachRequest) -> Result<Streaming<ExecSession>> {
        nothing_runs("attach")
    }

    async fn port_forward(
        &self,
        _request: cri::PortForwardRequest,
    ) -> Result<Streaming<Box<dyn PodDialer>>> {
        nothing_runs("port-forward")
    }

    async fn container_stats(&self, id: &str) -> Result<cri::ContainerStats> {
        let state = self.lock();
        let container = state
            .containers
            .get(id)
            .ok_or_else(|| Error::NotFound(format!("container {id}")))?;
        Ok(stats(id, container))
    }

    async fn list_container_stats(
        &self,
        _filter: Option<cri::ContainerStatsFilter>,
    ) -> Result<Vec<cri::ContainerStats>> {
        Ok(self
            .lock()
            .containers
            .iter()
            .map(|(id, container)| stats(id, container))
            .collect())
    }

    async fn pull_image(
        &self,
        image: cri::ImageSpec,
        _auth: Option<cri::AuthConfig>,
        _sandbox_config: Option<cri::PodSandboxConfig>,
    ) -> Result<String> {
        let name = image.image.clone();
        let pulled = cri::Image {
            id: name.clone(),
            repo_tags: vec![name.clone()],
            spec: Some(image),
            ..Default::default()
        };
        self.lock().images.insert(name.clone(), pulled);
        Ok(name)
    }

    async fn image_status(&self, image: cri::ImageSpec) -> Result<Option<cri::Image>> {
        Ok(self.lock().images.get(&image.image).cloned())
    }

    async fn list_images(&self, _filter: Option<cri::ImageFilter>) -> Result<Vec<cri::Image>> {
        Ok(self.lock().images.values().cloned().collect())
    }

    async fn remove_image(&self, image: cri::ImageSpec) -> Result<()> {
        self.lock().images.remove(&image.image);
        Ok(())
    }

    async fn image_fs_info(&self) -> Result<cri::ImageFsInfoResponse> {
        Ok(cri::ImageFsInfoResponse::default())
    }
}

fn sandbox_state(sandbox: &Sandbox) -> cri::PodSandboxState {
    if sandbox.ready {
        cri::PodSandboxState::SandboxReady
    } else {
        cri::PodSandboxState::SandboxNotready
    }
}

fn stats(id: &str, container: &Container) -> cri::ContainerStats {
    cri::ContainerStats {
        attributes: Some(cri::ContainerAttributes {
            id: id.to_owned(),
            metadata: container.config.metadata.clone(),
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
        }),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn containers_run_until_they_are_stopped() {
        let runtime = Hollow::default();
        let sandbox = runtime
            .run_pod_sandbox(cri::PodSandboxConfig::default(), "")
            .await
            .unwrap();
        let container = runtime
            .create_container(
                &sandbox,
                cri::ContainerConfig::default(),
                Default::default(),
            )
            .await
            .unwrap();
        let state = async || runtime.container_status(&container).await.unwrap().state();
        assert_eq!(state().await, cri::ContainerState::ContainerCreated);
        runtime.start_container(&container).await.unwrap();
        assert_eq!(state().await, cri::ContainerState::ContainerRunning);
        runtime.stop_pod_sandbox(&sandbox).await.unwrap();
        assert_eq!(state().await, cri::ContainerState::ContainerExited);
        runtime.remove_pod_sandbox(&sandbox).await.unwrap();
        assert!(runtime.container_status(&container).await.is_err());
    }
}
