//! What the node asks of a container runtime: the CRI v1 calls as a Rust trait.
//!
//! Two implementations stand behind it: [`crate::Embedded`], which runs containers itself, and
//! [`crate::cri::Remote`], which speaks CRI over a unix socket (containerd, CRI-O). One contract suite runs on both.
//! Messages are the CRI v1 protobuf types, so that nothing is translated for an external runtime.
//! Specified by the CRI API (`runtime.v1`), see KEP-2371 and KEP-4188 for the parts about stats and image pulls.

use async_trait::async_trait;
use davit_beneath::DiskUse;
use davit_proto::cri::v1 as cri;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};

/// Result of a runtime call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a runtime call failed; the variants mirror the gRPC codes that callers tell apart.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object named in the call does not exist.
    #[error("{0} not found")]
    NotFound(String),
    /// The object exists already, or is in a state that forbids the call.
    #[error("{0}")]
    FailedPrecondition(String),
    /// The request makes no sense as written.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),
    /// The runtime cannot do this (an older runtime, or a feature that is not built).
    #[error("not supported by the runtime: {0}")]
    Unimplemented(String),
    /// The call did not finish in time.
    #[error("{call} did not finish within {after:?}")]
    DeadlineExceeded {
        /// The CRI call.
        call: &'static str,
        /// The deadline it had.
        after: Duration,
    },
    /// The runtime cannot be reached.
    #[error("runtime unavailable: {0}")]
    Unavailable(String),
    /// Anything else; the text is what the runtime said.
    #[error("{0}")]
    Internal(String),
}

/// Where an exec, attach or port-forward stream is to be found.
pub enum Streaming<T> {
    /// The runtime serves the stream itself under this URL (external runtimes); the node proxies the upgraded connection.
    Url(String),
    /// The runtime hands over the live ends (embedded runtime); the node serves the protocols.
    Direct(T),
}

/// A boxed byte source.
pub type Reader = Box<dyn AsyncRead + Send + Unpin>;
/// A boxed byte sink.
pub type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Size of a terminal in character cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

/// The live ends of an exec'd or attached process.
pub struct ExecSession {
    /// Write here what the process reads; dropping it closes the process's standard input. `None` when stdin was not asked for.
    pub stdin: Option<Writer>,
    /// What the process writes (with a terminal: the terminal's output). `None` when not asked for.
    pub stdout: Option<Reader>,
    /// Standard error; `None` with a terminal or when not asked for.
    pub stderr: Option<Reader>,
    /// Terminal size changes go here (bounded; drop to stop). `None` without a terminal.
    pub resize: Option<tokio::sync::mpsc::Sender<TerminalSize>>,
    /// Resolves to the exit code once the process has ended (128+n for signal n); for attach, once the container has.
    pub exit: futures::future::BoxFuture<'static, Result<i32>>,
}

/// A connection to a port inside a pod's network namespace.
pub trait PodConnection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> PodConnection for T {}

/// What went over the network interfaces of a pod since they are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxTraffic {
    /// The pod's sandbox.
    pub sandbox_id: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Without the loopback interface.
    pub interfaces: Vec<InterfaceTraffic>,
}

/// What went over one network interface. External runtimes do not count packets and drops.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterfaceTraffic {
    /// Its name in the pod.
    pub name: String,
    /// Bytes that came.
    pub received_bytes: u64,
    /// Packets that came.
    pub received_packets: Option<u64>,
    /// Faults while receiving.
    pub receive_errors: u64,
    /// Packets that came and were dropped.
    pub receive_drops: Option<u64>,
    /// Bytes that were sent.
    pub sent_bytes: u64,
    /// Packets that were sent.
    pub sent_packets: Option<u64>,
    /// Faults while sending.
    pub send_errors: u64,
    /// Packets that were to be sent and were dropped.
    pub send_drops: Option<u64>,
}

/// Opens connections into one pod for port-forward.
#[async_trait]
pub trait PodDialer: Send + Sync {
    /// Connects to `localhost:port` inside the pod's network namespace.
    async fn dial(&self, port: u16) -> Result<Box<dyn PodConnection>>;
}

/// The container runtime as the node agent sees it. All calls may be made concurrently.
/// Implementations bound every call by a deadline of their own; `stop_container` by its grace period plus a margin.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// Name and versions of the runtime.
    async fn version(&self) -> Result<cri::VersionResponse>;
    /// Runtime and network conditions (`RuntimeReady`, `NetworkReady`).
    async fn status(&self) -> Result<cri::StatusResponse>;
    /// Who makes the cgroups (`RuntimeConfig`); `None` when the runtime does not say, as containerd before 2.0.
    async fn cgroup_driver(&self) -> Result<Option<cri::CgroupDriver>> {
        Ok(None)
    }
    /// A number that changes whenever a container has started or ended, for those who would rather not wait for their
    /// next look. `None` when the runtime cannot tell; lists remain the truth in any case.
    fn changes(&self) -> Option<tokio::sync::watch::Receiver<u64>> {
        None
    }

    /// Creates and starts a pod's sandbox; returns its ID.
    async fn run_pod_sandbox(
        &self,
        config: cri::PodSandboxConfig,
        runtime_handler: &str,
    ) -> Result<String>;
    /// Stops everything in the sandbox and releases its network. Idempotent.
    async fn stop_pod_sandbox(&self, id: &str) -> Result<()>;
    /// Removes the sandbox and its containers. Idempotent: an unknown ID is success.
    async fn remove_pod_sandbox(&self, id: &str) -> Result<()>;
    /// State of one sandbox.
    async fn pod_sandbox_status(&self, id: &str) -> Result<cri::PodSandboxStatus>;
    /// Sandboxes that match the filter (all when `None`).
    async fn list_pod_sandboxes(
        &self,
        filter: Option<cri::PodSandboxFilter>,
    ) -> Result<Vec<cri::PodSandbox>>;

    /// Creates a container in a sandbox; returns its ID.
    async fn create_container(
        &self,
        sandbox_id: &str,
        config: cri::ContainerConfig,
        sandbox_config: cri::PodSandboxConfig,
    ) -> Result<String>;
    /// Starts a created container.
    async fn start_container(&self, id: &str) -> Result<()>;
    /// Sends the stop signal, then SIGKILL after `grace`. Idempotent.
    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()>;
    /// Removes a container, killing it when it runs. Idempotent: an unknown ID is success.
    async fn remove_container(&self, id: &str) -> Result<()>;
    /// Containers that match the filter (all when `None`).
    async fn list_containers(
        &self,
        filter: Option<cri::ContainerFilter>,
    ) -> Result<Vec<cri::Container>>;
    /// State of one container.
    async fn container_status(&self, id: &str) -> Result<cri::ContainerStatus>;
    /// Changes cpu, memory and cpuset limits of a running container.
    async fn update_container_resources(
        &self,
        id: &str,
        resources: cri::LinuxContainerResources,
    ) -> Result<()>;
    /// Reopens the container's log file after the node rotated it.
    async fn reopen_container_log(&self, id: &str) -> Result<()>;

    /// Runs a command to its end and returns its output, the first `kept` bytes of each stream.
    async fn exec_sync(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: Duration,
        kept: usize,
    ) -> Result<cri::ExecSyncResponse>;
    /// Starts a command in the container for streaming.
    async fn exec(&self, request: cri::ExecRequest) -> Result<Streaming<ExecSession>>;
    /// Connects to the container's main process for streaming.
    async fn attach(&self, request: cri::AttachRequest) -> Result<Streaming<ExecSession>>;
    /// Prepares forwarding to ports of the sandbox.
    async fn port_forward(
        &self,
        request: cri::PortForwardRequest,
    ) -> Result<Streaming<Box<dyn PodDialer>>>;

    /// Resource use of one container.
    async fn container_stats(&self, id: &str) -> Result<cri::ContainerStats>;
    /// Resource use of the containers that match the filter.
    async fn list_container_stats(
        &self,
        filter: Option<cri::ContainerStatsFilter>,
    ) -> Result<Vec<cri::ContainerStats>>;
    /// What went over the network interfaces of pods that have their own; nothing where the runtime does not tell.
    async fn pod_traffic(&self) -> Result<Vec<SandboxTraffic>> {
        Ok(Vec::new())
    }

    /// Pulls an image unless the reference is satisfied locally by content; returns the image's ID.
    async fn pull_image(
        &self,
        image: cri::ImageSpec,
        auth: Option<cri::AuthConfig>,
        sandbox_config: Option<cri::PodSandboxConfig>,
    ) -> Result<String>;
    /// The image a reference or ID stands for, `None` when it is not there.
    async fn image_status(&self, image: cri::ImageSpec) -> Result<Option<cri::Image>>;
    /// All images.
    async fn list_images(&self, filter: Option<cri::ImageFilter>) -> Result<Vec<cri::Image>>;
    /// Removes an image. Idempotent.
    async fn remove_image(&self, image: cri::ImageSpec) -> Result<()>;
    /// What containers have written, by ID, as far as it is measured by `until`; of those that are not in it the statistics
    /// tell. Those do not say whether all was counted.
    async fn layers_in_use(&self, _until: Instant) -> Result<BTreeMap<String, DiskUse>> {
        Ok(BTreeMap::new())
    }
    /// Where images are kept, an absolute path: for those who want to know how full that file system is, without anything
    /// being measured.
    async fn image_directory(&self) -> Result<Option<PathBuf>> {
        let info = self.image_fs_info().await?;
        let first = info.image_filesystems.into_iter().next();
        let dir = first.and_then(|first| Some(PathBuf::from(first.fs_id?.mountpoint)));
        Ok(dir.filter(|dir| dir.is_absolute()))
    }
    /// Disk use of the image store.
    async fn image_fs_info(&self) -> Result<cri::ImageFsInfoResponse>;
}
