//! A container runtime in memory. Containers do what their image's name says: `sleep` runs until it is stopped, as does
//! `obeys`, which then ends well; `true` and `false` end at once, `missing` cannot be pulled.

use async_trait::async_trait;
use davit_oci::runtime::{Error, ExecSession, PodDialer, Result, Runtime, Streaming};
use davit_proto::cri::v1 as cri;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[derive(Default)]
struct State {
    next: u64,
    sandboxes: BTreeMap<String, (cri::PodSandboxConfig, bool, i64)>,
    containers: BTreeMap<String, Container>,
    /// What was called, for the order of things.
    calls: Vec<String>,
    refuse_updates: bool,
}

#[derive(Clone)]
pub(super) struct Container {
    sandbox: String,
    pub(super) config: cri::ContainerConfig,
    state: cri::ContainerState,
    created: i64,
    started: i64,
    finished: i64,
    exit_code: i32,
}

#[derive(Default)]
pub(super) struct FakeRuntime {
    state: Mutex<State>,
}

fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_nanos() as i64
}

fn unsupported<T>(what: &str) -> Result<T> {
    Err(Error::Unimplemented(what.to_owned()))
}

impl FakeRuntime {
    pub(super) fn calls(&self) -> Vec<String> {
        self.state.lock().calls.clone()
    }

    pub(super) fn running(&self) -> Vec<(String, Container)> {
        let state = self.state.lock();
        let running = state
            .containers
            .iter()
            .filter(|(_, c)| c.state == cri::ContainerState::ContainerRunning);
        running.map(|(id, c)| (id.clone(), c.clone())).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.sandboxes.is_empty() && state.containers.is_empty()
    }

    /// Whether updates of running containers fail.
    pub(super) fn refuse_updates(&self, refuse: bool) {
        self.state.lock().refuse_updates = refuse;
    }

    /// Ends a container as if by itself.
    pub(super) fn exit(&self, id: &str, code: i32) {
        let mut state = self.state.lock();
        let container = state.containers.get_mut(id).unwrap();
        container.state = cri::ContainerState::ContainerExited;
        container.exit_code = code;
        container.finished = now();
    }
}

fn matches(labels: &BTreeMap<String, String>, selector: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(k, v)| labels.get(k) == Some(v))
}

#[async_trait]
impl Runtime for FakeRuntime {
    async fn version(&self) -> Result<cri::VersionResponse> {
        Ok(cri::VersionResponse {
            runtime_name: "fake".into(),
            runtime_version: "1".into(),
            ..Default::default()
        })
    }
    async fn status(&self) -> Result<cri::StatusResponse> {
        let ready = |kind: &str| cri::RuntimeCondition {
            r#type: kind.to_owned(),
            status: true,
            ..Default::default()
        };
        Ok(cri::StatusResponse {
            status: Some(cri::RuntimeStatus {
                conditions: vec![ready("RuntimeReady"), ready("NetworkReady")],
            }),
            ..Default::default()
        })
    }
    async fn run_pod_sandbox(&self, config: cri::PodSandboxConfig, _: &str) -> Result<String> {
        let mut state = self.state.lock();
        state.next += 1;
        let id = format!("s{}", state.next);
        state.calls.push("run_pod_sandbox".into());
        state.sandboxes.insert(id.clone(), (config, true, now()));
        Ok(id)
    }
    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        let mut state = self.state.lock();
        state.calls.push("stop_pod_sandbox".into());
        if let Some(sandbox) = state.sandboxes.get_mut(id) {
            sandbox.1 = false;
        }
        Ok(())
    }
    async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        let mut state = self.state.lock();
        state.sandboxes.remove(id);
        state.containers.retain(|_, c| c.sandbox != id);
        Ok(())
    }
    async fn pod_sandbox_status(&self, id: &str) -> Result<cri::PodSandboxStatus> {
        let state = self.state.lock();
        let (config, ready, created) = state
            .sandboxes
            .get(id)
            .ok_or_else(|| Error::NotFound(id.into()))?;
        Ok(cri::PodSandboxStatus {
            id: id.into(),
            metadata: config.metadata.clone(),
            state: i32::from(!ready),
            created_at: *created,
            labels: config.labels.clone(),
            network: Some(cri::PodSandboxNetworkStatus {
                // s7 has 10.0.0.7
                ip: format!("10.0.0.{}", &id[1..]),
                ..Default::default()
            }),
            ..Default::default()
        })
    }
    async fn list_pod_sandboxes(
        &self,
        filter: Option<cri::PodSandboxFilter>,
    ) -> Result<Vec<cri::PodSandbox>> {
        let selector = filter.unwrap_or_default().label_selector;
        let state = self.state.lock();
        let wanted = state
            .sandboxes
            .iter()
            .filter(|(_, (c, _, _))| matches(&c.labels, &selector));
        Ok(wanted
            .map(|(id, (config, ready, created))| cri::PodSandbox {
                id: id.clone(),
                metadata: config.metadata.clone(),
                state: i32::from(!ready),
                created_at: *created,
                labels: config.labels.clone(),
                ..Default::default()
            })
            .collect())
    }
    async fn create_container(
        &self,
        sandbox_id: &str,
        config: cri::ContainerConfig,
        _: cri::PodSandboxConfig,
    ) -> Result<String> {
        let mut state = self.state.lock();
        state.next += 1;
        let id = format!("c{}", state.next);
        let name = config.metadata.as_ref().unwrap().name.clone();
        state.calls.push(format!("create {name}"));
        let container = Container {
            sandbox: sandbox_id.into(),
            config,
            state: cri::ContainerState::ContainerCreated,
            created: now(),
            started: 0,
            finished: 0,
            exit_code: 0,
        };
        state.containers.insert(id.clone(), container);
        Ok(id)
    }
    async fn start_container(&self, id: &str) -> Result<()> {
        let mut state = self.state.lock();
        let container = state
            .containers
            .get_mut(id)
            .ok_or_else(|| Error::NotFound(id.into()))?;
        container.started = now();
        let image = container.config.image.clone().unwrap().image;
        if image == "true" || image == "false" {
            container.state = cri::ContainerState::ContainerExited;
            container.exit_code = i32::from(image == "false");
            container.finished = now();
        } else {
            container.state = cri::ContainerState::ContainerRunning;
        }
        let name = container.config.metadata.as_ref().unwrap().name.clone();
        state.calls.push(format!("start {name}"));
        Ok(())
    }
    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let mut state = self.state.lock();
        let Some(container) = state.containers.get_mut(id) else {
            return Ok(());
        };
        if container.state == cri::ContainerState::ContainerRunning {
            container.state = cri::ContainerState::ContainerExited;
            let image = container.config.image.as_ref().map(|i| i.image.as_str());
            container.exit_code = if image == Some("obeys") { 0 } else { 143 };
            container.finished = now();
        }
        let name = container.config.metadata.as_ref().unwrap().name.clone();
        state
            .calls
            .push(format!("stop {name} {}", grace.as_secs_f64().round()));
        Ok(())
    }
    async fn remove_container(&self, id: &str) -> Result<()> {
        self.state.lock().containers.remove(id);
        Ok(())
    }
    async fn list_containers(
        &self,
        filter: Option<cri::ContainerFilter>,
    ) -> Result<Vec<cri::Container>> {
        let selector = filter.unwrap_or_default().label_selector;
        let state = self.state.lock();
        let wanted = state
            .containers
            .iter()
            .filter(|(_, c)| matches(&c.config.labels, &selector));
        Ok(wanted
            .map(|(id, c)| cri::Container {
                id: id.clone(),
                pod_sandbox_id: c.sandbox.clone(),
                state: c.state as i32,
                labels: c.config.labels.clone(),
                ..Default::default()
            })
            .collect())
    }
    async fn container_status(&self, id: &str) -> Result<cri::ContainerStatus> {
        let state = self.state.lock();
        let c = state
            .containers
            .get(id)
            .ok_or_else(|| Error::NotFound(id.into()))?;
        Ok(cri::ContainerStatus {
            id: id.into(),
            metadata: c.config.metadata.clone(),
            state: c.state as i32,
            created_at: c.created,
            started_at: c.started,
            finished_at: c.finished,
            exit_code: c.exit_code,
            image: c.config.image.clone(),
            image_ref: "sha256:fake".into(),
            labels: c.config.labels.clone(),
            log_path: state
                .sandboxes
                .get(&c.sandbox)
                .map(|(s, _, _)| format!("{}/{}", s.log_directory, c.config.log_path))
                .unwrap_or_default(),
            annotations: c.config.annotations.clone(),
            mounts: c.config.mounts.clone(),
            ..Default::default()
        })
    }
    async fn update_container_resources(
        &self,
        id: &str,
        new: cri::LinuxContainerResources,
    ) -> Result<()> {
        let mut state = self.state.lock();
        if state.refuse_updates {
            return unsupported("update");
        }
        let container = state
            .containers
            .get_mut(id)
            .ok_or_else(|| Error::NotFound(id.into()))?;
        let name = container.config.metadata.as_ref().unwrap().name.clone();
        state.calls.push(format!(
            "update {name} shares={} quota={} memory={}",
            new.cpu_shares, new.cpu_quota, new.memory_limit_in_bytes
        ));
        Ok(())
    }
    async fn reopen_container_log(&self, _: &str) -> Result<()> {
        Ok(())
    }
    async fn exec_sync(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: Duration,
        _: usize,
    ) -> Result<cri::ExecSyncResponse> {
        self.state
            .lock()
            .calls
            .push(format!("exec {}", command.join(" ")));
        if command.first().is_some_and(|c| c == "hang") {
            // until its container is gone, or its time is up
            let until = tokio::time::Instant::now() + timeout;
            let runs = || {
                let state = self.state.lock();
                let container = state.containers.get(id);
                container.is_some_and(|c| c.state == cri::ContainerState::ContainerRunning)
            };
            while runs() && tokio::time::Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let outcome = if runs() { "cut off" } else { "ended" };
            self.state.lock().calls.push(format!("exec was {outcome}"));
        }
        let known = self.state.lock().containers.contains_key(id);
        let exit_code = i32::from(!known || command.first().is_some_and(|c| c == "false"));
        Ok(cri::ExecSyncResponse {
            exit_code,
            ..Default::default()
        })
    }
    async fn exec(&self, _: cri::ExecRequest) -> Result<Streaming<ExecSession>> {
        unsupported("exec")
    }
    async fn attach(&self, _: cri::AttachRequest) -> Result<Streaming<ExecSession>> {
        unsupported("attach")
    }
    async fn port_forward(
        &self,
        _: cri::PortForwardRequest,
    ) -> Result<Streaming<Box<dyn PodDialer>>> {
        unsupported("port-forward")
    }
    async fn container_stats(&self, _: &str) -> Result<cri::ContainerStats> {
        unsupported("stats")
    }
    async fn list_container_stats(
        &self,
        _: Option<cri::ContainerStatsFilter>,
    ) -> Result<Vec<cri::ContainerStats>> {
        Ok(Vec::new())
    }
    async fn pull_image(
        &self,
        image: cri::ImageSpec,
        _: Option<cri::AuthConfig>,
        _: Option<cri::PodSandboxConfig>,
    ) -> Result<String> {
        if image.image == "missing" {
            return Err(Error::NotFound("image missing".into()));
        }
        Ok(image.image)
    }
    async fn image_status(&self, image: cri::ImageSpec) -> Result<Option<cri::Image>> {
        let there = image.image != "missing";
        Ok(there.then(|| cri::Image {
            id: image.image,
            ..Default::default()
        }))
    }
    async fn list_images(&self, _: Option<cri::ImageFilter>) -> Result<Vec<cri::Image>> {
        Ok(Vec::new())
    }
    async fn remove_image(&self, _: cri::ImageSpec) -> Result<()> {
        Ok(())
    }
    async fn image_fs_info(&self) -> Result<cri::ImageFsInfoResponse> {
        Ok(cri::ImageFsInfoResponse::default())
    }
}
