//! The contract of [`Runtime`]: what every implementation does alike. Tests of this crate run it on the embedded
//! runtime and on containerd; others may run it on theirs.
//!
//! A test fails by panicking. The image needs busybox with its applets below `/bin`.

#![allow(clippy::missing_panics_doc)] // panicking is how a test reports

mod exec;
mod images;
mod logs;
mod process;
mod resources;
mod sandbox;

use crate::runtime::{Error, ExecSession, Runtime, Streaming};
use davit_proto::cri::v1 as cri;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What the tests run against.
#[derive(Clone)]
pub struct Setup {
    /// The implementation.
    pub runtime: Arc<dyn Runtime>,
    /// Name of a busybox image that is there.
    pub image: String,
    /// Directory for logs and volumes.
    pub dir: PathBuf,
    /// cgroup for pods.
    pub cgroup_parent: String,
}

/// One sandbox of a test, with what a node would keep about it.
pub struct Pod {
    setup: Setup,
    /// Sandbox ID.
    pub id: String,
    /// Its configuration.
    pub config: cri::PodSandboxConfig,
    logs: PathBuf,
}

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A command line that a shell runs.
#[must_use]
pub fn shell(script: &str) -> Vec<String> {
    ["/bin/sh", "-c", script].map(str::to_owned).to_vec()
}

impl Pod {
    /// Runs a sandbox, after `change` has been at its configuration.
    pub async fn run_with(setup: &Setup, change: impl FnOnce(&mut cri::PodSandboxConfig)) -> Pod {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("pod-{}-{number}", std::process::id());
        let logs = setup.dir.join("logs").join(&name);
        std::fs::create_dir_all(&logs).expect("the test directory is writable");
        let mut config = cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                name: name.clone(),
                uid: format!("uid-{name}"),
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            log_directory: logs.to_string_lossy().into_owned(),
            labels: [("test".to_owned(), name.clone())].into(),
            linux: Some(cri::LinuxPodSandboxConfig {
                cgroup_parent: format!("{}/{name}", setup.cgroup_parent),
                security_context: Some(cri::LinuxSandboxSecurityContext {
                    namespace_options: Some(cri::NamespaceOption {
                        network: cri::NamespaceMode::Node as i32,
                        pid: cri::NamespaceMode::Container as i32,
                        ..cri::NamespaceOption::default()
                    }),
                    ..cri::LinuxSandboxSecurityContext::default()
                }),
                ..cri::LinuxPodSandboxConfig::default()
            }),
            ..cri::PodSandboxConfig::default()
        };
        change(&mut config);
        let id = setup
            .runtime
            .run_pod_sandbox(config.clone(), "")
            .await
            .expect("run sandbox");
        Pod {
            setup: setup.clone(),
            id,
            config,
            logs,
        }
    }

    /// Runs a sandbox with a network of its own.
    pub async fn run_isolated(setup: &Setup) -> Pod {
        Self::run_with(setup, |config| {
            config.hostname = "contract".to_owned();
            namespace_options(config).network = cri::NamespaceMode::Pod as i32;
        })
        .await
    }

    /// Runs a sandbox in the host's network.
    pub async fn run(setup: &Setup) -> Pod {
        Self::run_with(setup, |_| ()).await
    }

    /// A container configuration for a command.
    #[must_use]
    pub fn container(&self, command: Vec<String>) -> cri::ContainerConfig {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let options = self
            .config
            .linux
            .as_ref()
            .and_then(|linux| linux.security_context.as_ref())
            .and_then(|context| context.namespace_options.clone());
        cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata {
                name: format!("c{number}"),
                attempt: 0,
            }),
            image: Some(cri::ImageSpec {
                image: self.setup.image.clone(),
                ..cri::ImageSpec::default()
            }),
            command,
            log_path: format!("c{number}.log"),
            labels: [("container".to_owned(), format!("c{number}"))].into(),
            annotations: BTreeMap::new(),
            linux: Some(cri::LinuxContainerConfig {
                resources: Some(cri::LinuxContainerResources::default()),
                security_context: Some(cri::LinuxContainerSecurityContext {
                    namespace_options: options,
                    ..cri::LinuxContainerSecurityContext::default()
                }),
            }),
            ..cri::ContainerConfig::default()
        }
    }

    /// Creates a container.
    pub async fn create(&self, config: cri::ContainerConfig) -> String {
        self.setup
            .runtime
            .create_container(&self.id, config, self.config.clone())
            .await
            .expect("create container")
    }

    /// Creates and starts a container.
    pub async fn start(&self, config: cri::ContainerConfig) -> String {
        let id = self.create(config).await;
        self.setup
            .runtime
            .start_container(&id)
            .await
            .expect("start container");
        id
    }

    /// Waits for the container's end.
    pub async fn wait(&self, id: &str) -> cri::ContainerStatus {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let status = self
                .setup
                .runtime
                .container_status(id)
                .await
                .expect("container status");
            if status.state == cri::ContainerState::ContainerExited as i32 {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "container {id} does not end: {status:?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The text of a log, without times and tags.
    #[must_use]
    pub fn log(&self, config: &cri::ContainerConfig) -> String {
        let text = std::fs::read_to_string(self.logs.join(&config.log_path)).unwrap_or_default();
        let mut out = String::new();
        for line in text.lines() {
            let mut parts = line.splitn(4, ' ');
            let (time, stream, tag) = (parts.next(), parts.next(), parts.next());
            assert!(time.is_some_and(|time| time.contains('T')), "{line}");
            assert!(matches!(stream, Some("stdout" | "stderr")), "{line}");
            out.push_str(parts.next().unwrap_or_default());
            if tag == Some("F") {
                out.push('\n');
            }
        }
        out
    }

    /// Runs a container to its end; its exit code and output.
    pub async fn output(&self, config: cri::ContainerConfig) -> (i32, String) {
        let id = self.start(config.clone()).await;
        let status = self.wait(&id).await;
        (status.exit_code, self.log(&config))
    }

    /// Runs a script to its end.
    pub async fn script(&self, script: &str) -> (i32, String) {
        self.output(self.container(shell(script))).await
    }

    /// Removes the sandbox with all that is in it.
    pub async fn remove(self) {
        self.setup
            .runtime
            .stop_pod_sandbox(&self.id)
            .await
            .expect("stop sandbox");
        self.setup
            .runtime
            .remove_pod_sandbox(&self.id)
            .await
            .expect("remove sandbox");
        let left = self
            .setup
            .runtime
            .list_containers(None)
            .await
            .expect("list containers");
        assert!(
            left.iter().all(|c| c.pod_sandbox_id != self.id),
            "containers stay behind"
        );
    }
}

fn namespace_options(config: &mut cri::PodSandboxConfig) -> &mut cri::NamespaceOption {
    let linux = config.linux.get_or_insert_default();
    linux
        .security_context
        .get_or_insert_default()
        .namespace_options
        .get_or_insert_default()
}

fn security(config: &mut cri::ContainerConfig) -> &mut cri::LinuxContainerSecurityContext {
    config
        .linux
        .get_or_insert_default()
        .security_context
        .get_or_insert_default()
}

fn resources(config: &mut cri::ContainerConfig) -> &mut cri::LinuxContainerResources {
    config
        .linux
        .get_or_insert_default()
        .resources
        .get_or_insert_default()
}

type TestFuture = futures::future::BoxFuture<'static, ()>;

/// A test of the contract: its name and its body.
pub type Test = (&'static str, fn(Setup) -> TestFuture);

macro_rules! tests {
    ($($part:ident: $($name:ident),*;)*) => {
        /// All tests of the contract.
        pub const TESTS: &[Test] = &[$($((stringify!($name), |setup| Box::pin($part::$name(setup)))),*),*];
    };
}

tests! {
    sandbox: versions, sandbox_life;
    process: exit_codes;
    logs: logs, log_rotation;
    process: environment, arguments, working_directory, users;
    exec: exec_sync, exec_sync_timeout, exec_streams, exec_terminal, attach;
    resources: mounts, devices;
    process: capabilities, seccomp, readonly_root, masked_paths;
    resources: memory_limit, cpu_limit;
    process: stop_gracefully, stop_stubborn, start_errors;
    sandbox: listing, shared_memory, isolated_network, shared_processes, removal;
    images: images;
}

async fn eventually(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "it does not come");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Runs a script in a container; its output must come with code 0.
async fn run(setup: &Setup, id: &str, script: &str) -> String {
    let answer = setup
        .runtime
        .exec_sync(id, shell(script), Duration::from_secs(10), 1 << 20)
        .await
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(
        answer.exit_code,
        0,
        "{script}: {} {}",
        text(&answer.stdout),
        text(&answer.stderr)
    );
    text(&answer.stdout)
}
