//! One container: its record, its phase and its monitor.

mod alive;
mod create;
mod reconnect;

use super::connection::Connection;
use super::record::{self, ContainerRecord};
use super::sandbox::absent_is_fine;
use super::spec;
use super::{Embedded, Inner, blocking, io_error, lock};
use crate::monitor::protocol::{Request, Response};
use crate::monitor::{
    Bundle, ExitRecord, MONITOR_ARG, ProcessMark, RunState, files, now_nanos, read_json,
    write_atomically, write_exit,
};
use crate::netdev;
use crate::runtime::{Error, Result};
use alive::{Alive, end_monitor};
use davit_proto::cri::v1 as cri;
use oci_spec::runtime::Spec;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// The monitor's own limit for starting a container, and a margin.
const START_LIMIT: Duration = Duration::from_secs(150);
/// A container that got SIGKILL must be gone by then; longer means that the kernel cannot end it.
const KILL_LIMIT: Duration = Duration::from_secs(30);
/// Small requests to a monitor.
pub(super) const REQUEST_LIMIT: Duration = Duration::from_secs(15);

/// Where a container is in its life.
#[derive(Debug, Clone)]
pub(super) enum Phase {
    Created,
    Running(RunState),
    Exited(ExitRecord),
}

/// A container in memory.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) dir: PathBuf,
    record: Mutex<ContainerRecord>,
    phase: watch::Sender<Phase>,
    changes: watch::Sender<u64>,
    resources: Mutex<cri::LinuxContainerResources>,
    /// One start, stop or removal at a time.
    changing: tokio::sync::Mutex<()>,
}

fn unknown_exit(message: &str) -> ExitRecord {
    let now = now_nanos();
    ExitRecord {
        code: 255,
        started_at: now,
        finished_at: now,
        reason: "Unknown".to_owned(),
        message: message.to_owned(),
    }
}

impl Container {
    fn new(inner: &Inner, dir: PathBuf, record: ContainerRecord, phase: Phase) -> Arc<Self> {
        let resources = record
            .config
            .0
            .linux
            .as_ref()
            .and_then(|linux| linux.resources.clone())
            .unwrap_or_default();
        Arc::new(Container {
            dir,
            record: Mutex::new(record),
            phase: watch::Sender::new(phase),
            changes: inner.changes.clone(),
            resources: Mutex::new(resources),
            changing: tokio::sync::Mutex::default(),
        })
    }

    pub(super) fn record(&self) -> ContainerRecord {
        lock(&self.record).clone()
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Running(_))
    }

    /// Reads how the container ended; one whose monitor vanished has ended in an unknown way.
    fn ended(&self) -> ExitRecord {
        let file = self.dir.join(files::EXIT);
        if let Ok(Some(record)) = read_json(&file) {
            return record;
        }
        let started = match self.phase() {
            Phase::Running(state) => Some(state.started_at),
            _ => read_json::<RunState>(&self.dir.join(files::STATE))
                .ok()
                .flatten()
                .map(|state| state.started_at),
        };
        let mut record = unknown_exit("the container's monitor is gone");
        record.started_at = started.unwrap_or(record.started_at);
        let _ = write_exit(&self.dir, &record);
        record
    }

    fn set(&self, phase: Phase) {
        self.phase.send_replace(phase);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Waits on a monitor's connection for the container's end.
    pub(super) async fn follow(&self, mut connection: Connection) {
        let record = loop {
            match connection.receive().await {
                Ok(Some((Response::Exited(record), _))) => break record,
                Ok(Some(_)) => {}
                // The monitor may have written the record without being able to tell us.
                Ok(None) | Err(_) => break self.ended(),
            }
        };
        self.set(Phase::Exited(record));
    }

    /// Sends one request and returns its first answer with the connection.
    pub(super) async fn request(
        &self,
        request: &Request,
        fds: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<(Response, Vec<OwnedFd>, Connection)> {
        let record = self.record();
        if !self.is_running() {
            return Err(Error::FailedPrecondition(format!(
                "container {} is not running",
                record.id
            )));
        }
        let lost =
            |e: std::io::Error| Error::Internal(format!("monitor of container {}: {e}", record.id));
        let exchange = async {
            let mut connection = Connection::connect(&record.socket).await.map_err(lost)?;
            connection.send(request, fds).await.map_err(lost)?;
            match connection.receive().await.map_err(lost)? {
                Some((
                    Response::Failed {
                        start: true,
                        message,
                    },
                    _,
                )) => Err(Error::FailedPrecondition(message)),
                Some((Response::Failed { message, .. }, _)) => Err(Error::Internal(message)),
                Some((response, fds)) => Ok((response, fds, connection)),
                None => Err(Error::FailedPrecondition(format!(
                    "container {} has ended",
                    record.id
                ))),
            }
        };
        timeout(REQUEST_LIMIT, exchange)
            .await
            .unwrap_or(Err(Error::DeadlineExceeded {
                call: "container request",
                after: REQUEST_LIMIT,
            }))
    }

    /// Waits for the end; `None` when it has not come within the limit.
    pub(super) async fn wait(&self, limit: Duration) -> Option<ExitRecord> {
        let mut phase = self.phase.subscribe();
        let ended = async {
            match phase
                .wait_for(|phase| matches!(phase, Phase::Exited(_)))
                .await
                .as_deref()
            {
                Ok(Phase::Exited(record)) => Some(record.clone()),
                _ => None,
            }
        };
        timeout(limit, ended).await.ok().flatten()
    }

    pub(super) fn state(&self) -> i32 {
        (match *self.phase.borrow() {
            Phase::Created => cri::ContainerState::ContainerCreated,
            Phase::Running(_) => cri::ContainerState::ContainerRunning,
            Phase::Exited(_) => cri::ContainerState::ContainerExited,
        }) as i32
    }

    pub(super) fn summary(&self) -> cri::Container {
        let record = self.record();
        let config = record.config.0;
        cri::Container {
            id: record.id,
            pod_sandbox_id: record.sandbox_id,
            metadata: config.metadata,
            image: config.image,
            image_ref: record.image_ref,
            state: self.state(),
            created_at: record.created_at,
            labels: config.labels,
            annotations: config.annotations,
            image_id: record.image_id,
        }
    }

    pub(super) fn status(&self) -> cri::ContainerStatus {
        let record = self.record();
        let config = record.config.0;
        let mut status = cri::ContainerStatus {
            id: record.id,
            metadata: config.metadata,
            state: self.state(),
            created_at: record.created_at,
            image: config.image.map(|mut image| {
                if !image.user_specified_image.is_empty() {
                    image.image = image.user_specified_image.clone();
                }
                image
            }),
            image_ref: record.image_ref,
            labels: config.labels,
            annotations: config.annotations,
            mounts: config.mounts,
            log_path: record.log_path,
            resources: Some(cri::ContainerResources {
                linux: Some(lock(&self.resources).clone()),
                ..cri::ContainerResources::default()
            }),
            image_id: record.image_id,
            user: Some(cri::ContainerUser {
                linux: Some(cri::LinuxContainerUser {
                    uid: record.user.0.into(),
                    gid: record.user.1.into(),
                    supplemental_groups: record.user.2.iter().map(|gid| i64::from(*gid)).collect(),
                }),
            }),
            stop_signal: config.stop_signal,
            ..cri::ContainerStatus::default()
        };
        match self.phase() {
            Phase::Created => {}
            Phase::Running(state) => status.started_at = state.started_at,
            Phase::Exited(exit) => {
                (status.started_at, status.finished_at) = (exit.started_at, exit.finished_at);
                (status.exit_code, status.reason, status.message) =
                    (exit.code, exit.reason, exit.message);
            }
        }
        status
    }
}

/// Reads the records of an earlier davit.
pub(super) fn load_all(inner: &Inner) -> Result<Vec<Arc<Container>>> {
    let base = inner.options.root.join("containers");
    let mut found = Vec::new();
    for entry in fs::read_dir(&base)
        .map_err(io_error(base.display()))?
        .flatten()
    {
        let dir = entry.path();
        match record::load::<ContainerRecord>(&dir) {
            Ok(Some(record)) => {
                let phase = match read_json(&dir.join(files::EXIT)) {
                    Ok(Some(exit)) => Phase::Exited(exit),
                    _ => Phase::Created,
                };
                found.push(Container::new(inner, dir, record, phase));
            }
            Ok(None) => {
                let _ = davit_beneath::remove_tree(&dir);
            }
            Err(error) => {
                tracing::error!(container = %dir.display(), %error, "container record cannot be read; left alone");
            }
        }
    }
    Ok(found)
}

impl Embedded {
    pub(super) async fn create(
        &self,
        sandbox_id: &str,
        config: cri::ContainerConfig,
        sandbox_config: cri::PodSandboxConfig,
    ) -> Result<String> {
        let sandbox = self.sandbox(sandbox_id)?;
        if !sandbox.is_ready() {
            return Err(Error::FailedPrecondition(format!(
                "sandbox {sandbox_id} is not ready"
            )));
        }
        let target = config
            .linux
            .as_ref()
            .and_then(|linux| linux.security_context.as_ref()?.namespace_options.as_ref())
            .filter(|options| options.pid == cri::NamespaceMode::Target as i32)
            .and_then(|options| self.container(&options.target_id).ok())
            .and_then(|container| match container.phase() {
                Phase::Running(state) => Some(ProcessMark {
                    pid: state.pid,
                    start_ticks: state.start_ticks,
                }),
                _ => None,
            });
        let inner = self.inner.clone();
        let container =
            blocking(move || create::create(&inner, &sandbox, config, &sandbox_config, target))
                .await?;
        let id = container.record().id;
        lock(&self.inner.containers).insert(id.clone(), container);
        Ok(id)
    }

    pub(super) async fn start(&self, container: &Arc<Container>) -> Result<()> {
        let _one = container.changing.lock().await;
        let id = container.record().id;
        if !matches!(container.phase(), Phase::Created) {
            return Err(Error::FailedPrecondition(format!(
                "container {id} is not in created state"
            )));
        }
        if !self.sandbox(&container.record().sandbox_id)?.is_ready() {
            return Err(Error::FailedPrecondition(format!(
                "the sandbox of container {id} is not ready"
            )));
        }
        // Before the monitor exists, so that a davit that is restarted now looks for it.
        let alive = Alive::mark(&container.dir).map_err(io_error("mark container as started"))?;
        let started = match self.move_devices(container).await {
            Ok(()) => self.spawn_monitor(container, alive).await,
            Err(error) => Err(error),
        };
        match started {
            Ok((state, connection)) => {
                container.set(Phase::Running(state));
                self.watch(container.clone(), connection);
                Ok(())
            }
            Err(error) => {
                let mut exit = container.ended();
                if exit.reason == "Unknown" {
                    let message = error.to_string();
                    exit = ExitRecord {
                        code: 128,
                        reason: "StartError".to_owned(),
                        message,
                        ..exit
                    };
                    let _ = write_exit(&container.dir, &exit);
                }
                container.set(Phase::Exited(exit));
                Err(error)
            }
        }
    }

    /// Moves network devices of the host into the pod, as the container's configuration says.
    async fn move_devices(&self, container: &Container) -> Result<()> {
        let (id, sandbox) = (
            container.record().id,
            self.sandbox(&container.record().sandbox_id)?,
        );
        let file = container.dir.join(files::CONFIG);
        blocking(move || {
            let spec: Option<Spec> = read_json(&file).map_err(io_error(file.display()))?;
            let wanted = spec
                .as_ref()
                .and_then(|spec| spec.linux().as_ref()?.net_devices().as_ref());
            let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) else {
                return Ok(());
            };
            let failed = |why: String| {
                Error::FailedPrecondition(format!("failed to start container {id}: {why}"))
            };
            let renamed = wanted.iter().map(|(host, device)| {
                let name = device.name().clone().filter(|name| !name.is_empty());
                (host.clone(), name.unwrap_or_else(|| host.clone()))
            });
            let netns = sandbox.record().namespaces.net;
            let netns =
                netns.ok_or_else(|| failed("network devices on the host's network".into()))?;
            let _one = sandbox.moving();
            netdev::give(&renamed.collect(), &netns, sandbox.dir())
                .map_err(|e| failed(e.to_string()))
        })
        .await
    }

    async fn spawn_monitor(
        &self,
        container: &Container,
        alive: Alive,
    ) -> Result<(RunState, Connection)> {
        let id = container.record().id;
        let (ours, theirs) =
            std::os::unix::net::UnixStream::pair().map_err(io_error("socket pair"))?;
        let log =
            fs::File::create(container.dir.join("monitor.log")).map_err(io_error("monitor log"))?;
        // The process is not waited for here: it outlives us by design, and tokio reaps it when it ends before us.
        let child = tokio::process::Command::new(&self.inner.exe)
            .arg0("davit-monitor")
            .arg(MONITOR_ARG)
            .arg(&container.dir)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(alive)
            .stderr(Stdio::from(log))
            .kill_on_drop(false)
            .spawn()
            .map_err(io_error("start monitor"))?;
        drop(child);
        let mut connection = Connection::from_std(ours).map_err(io_error("monitor connection"))?;
        match timeout(START_LIMIT, connection.receive()).await {
            Ok(Ok(Some((Response::Running(state), _)))) => Ok((state, connection)),
            Ok(Ok(Some((Response::Failed { message, start }, _)))) => Err(if start {
                Error::FailedPrecondition(format!(
                    "failed to start container {id}: unable to start container process: {message}"
                ))
            } else {
                Error::Internal(format!("failed to start container {id}: {message}"))
            }),
            Ok(Ok(_)) => Err(Error::Internal(format!(
                "failed to start container {id}: its monitor ended"
            ))),
            Ok(Err(error)) => Err(Error::Internal(format!(
                "failed to start container {id}: {error}"
            ))),
            Err(_) => {
                // Or it would begin when the container counts as ended.
                end_monitor(&container.dir).await;
                let cgroup = container.record().cgroup;
                self.inner.hierarchies.cgroup(&cgroup).kill();
                Err(Error::DeadlineExceeded {
                    call: "StartContainer",
                    after: START_LIMIT,
                })
            }
        }
    }

    pub(super) async fn stop(&self, container: &Arc<Container>, grace: Duration) -> Result<()> {
        let _one = container.changing.lock().await;
        if !container.is_running() {
            return Ok(());
        }
        let record = container.record();
        if !grace.is_zero() {
            let request = Request::Kill {
                signal: record.stop_signal,
                all: false,
            };
            match container.request(&request, &[]).await {
                Ok(_) if container.wait(grace).await.is_some() => return Ok(()),
                Err(_) if !container.is_running() => return Ok(()),
                _ => {}
            }
        }
        let request = Request::Kill {
            signal: nix::libc::SIGKILL,
            all: true,
        };
        if container.request(&request, &[]).await.is_err() {
            // No monitor to ask: the cgroup has the processes.
            self.inner.hierarchies.cgroup(&record.cgroup).kill();
        }
        match container.wait(KILL_LIMIT).await {
            Some(_) => Ok(()),
            None => Err(Error::DeadlineExceeded {
                call: "StopContainer",
                after: grace + KILL_LIMIT,
            }),
        }
    }

    pub(super) async fn remove(&self, container: &Arc<Container>) -> Result<()> {
        self.stop(container, Duration::ZERO).await?;
        let _one = container.changing.lock().await;
        let record = container.record();
        let (this, dir) = (self.clone(), container.dir.clone());
        let id = record.id.clone();
        blocking(move || {
            let _ = fs::remove_file(&record.socket);
            // The monitor removes it too; whoever comes second finds nothing.
            let cgroup = this.inner.hierarchies.cgroup(&record.cgroup);
            cgroup.kill();
            if let Err(error) = cgroup.remove(Duration::from_secs(5)) {
                tracing::warn!(container = record.id, %error, "cgroup stays behind");
            }
            // The record goes first: a directory without one is cleared at the next start.
            fs::remove_file(dir.join(files::RECORD))
                .or_else(absent_is_fine)
                .map_err(io_error("remove container"))?;
            davit_beneath::remove_tree(&dir).map_err(|e| io_error("remove container")(e.into()))
        })
        .await?;
        lock(&self.inner.containers).remove(&id);
        let image_id = container.record().image_id;
        let this = self.clone();
        blocking(move || match this.inner.images.find(&image_id)? {
            Some(_) => Ok(()),
            None => this.collect_layers(),
        })
        .await
    }

    pub(super) async fn update(
        &self,
        container: &Arc<Container>,
        resources: cri::LinuxContainerResources,
    ) -> Result<()> {
        let _one = container.changing.lock().await;
        let record = container.record();
        match container.phase() {
            Phase::Exited(_) => {
                return Err(Error::FailedPrecondition(format!(
                    "container {} has ended",
                    record.id
                )));
            }
            Phase::Running(_) => {
                let cgroup = self.inner.hierarchies.cgroup(&record.cgroup);
                let limits = spec::limits(&resources);
                blocking(move || {
                    cgroup
                        .apply(&limits)
                        .map_err(|e| Error::Internal(e.to_string()))
                })
                .await?;
            }
            Phase::Created => {
                let dir = container.dir.clone();
                let limits = spec::limits(&resources);
                blocking(move || {
                    let file = dir.join(files::BUNDLE);
                    let mut bundle: Bundle = read_json(&file)
                        .map_err(io_error("read bundle"))?
                        .ok_or_else(|| Error::Internal("container without bundle".to_owned()))?;
                    merge_limits(&mut bundle.limits, limits);
                    let json =
                        serde_json::to_vec(&bundle).map_err(|e| Error::Internal(e.to_string()))?;
                    write_atomically(&file, &json).map_err(io_error("write bundle"))
                })
                .await?;
            }
        }
        merge(&mut lock(&container.resources), resources);
        Ok(())
    }
}

/// What an update does not mention stays.
fn merge_limits(old: &mut crate::cgroup::Limits, new: crate::cgroup::Limits) {
    old.cpu_shares = new.cpu_shares.or(old.cpu_shares);
    old.cpu_quota = new.cpu_quota.or(old.cpu_quota);
    old.cpu_period = new.cpu_period.or(old.cpu_period);
    old.cpus = new.cpus.or(old.cpus.take());
    old.mems = new.mems.or(old.mems.take());
    old.memory = new.memory.or(old.memory);
    old.memory_swap = new.memory_swap.or(old.memory_swap);
    old.unified.extend(new.unified);
    if !new.hugepages.is_empty() {
        old.hugepages = new.hugepages;
    }
}

/// The same for what status reports.
fn merge(old: &mut cri::LinuxContainerResources, new: cri::LinuxContainerResources) {
    let number = |old: &mut i64, new: i64| *old = if new == 0 { *old } else { new };
    number(&mut old.cpu_period, new.cpu_period);
    number(&mut old.cpu_quota, new.cpu_quota);
    number(&mut old.cpu_shares, new.cpu_shares);
    number(&mut old.memory_limit_in_bytes, new.memory_limit_in_bytes);
    number(
        &mut old.memory_swap_limit_in_bytes,
        new.memory_swap_limit_in_bytes,
    );
    if !new.cpuset_cpus.is_empty() {
        old.cpuset_cpus = new.cpuset_cpus;
    }
    if !new.cpuset_mems.is_empty() {
        old.cpuset_mems = new.cpuset_mems;
    }
    old.unified.extend(new.unified);
}
