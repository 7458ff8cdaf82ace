//! The contract of [`Runtime`]: what every implementation does alike. Tests of this crate run it on the embedded
//! runtime and on containerd; others may run it on theirs.
//!
//! A test fails by panicking. The image needs busybox with its applets below `/bin`.

#![allow(clippy::missing_panics_doc)] // panicking is how a test reports

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
    ($($name:ident),* $(,)?) => {
        /// All tests of the contract.
        pub const TESTS: &[Test] = &[$((stringify!($name), |setup| Box::pin($name(setup)))),*];
    };
}

tests! {
    versions, sandbox_life, exit_codes, logs, log_rotation, environment, arguments, working_directory, users, exec_sync,
    exec_sync_timeout, exec_streams, exec_terminal, attach, mounts, devices, capabilities, seccomp, readonly_root,
    masked_paths, memory_limit, cpu_limit, stop_gracefully, stop_stubborn, start_errors, listing, shared_memory,
    isolated_network, shared_processes, removal, images,
}

async fn versions(setup: Setup) {
    let version = setup.runtime.version().await.unwrap();
    assert_eq!(version.runtime_api_version, "v1");
    let status = setup.runtime.status().await.unwrap().status.unwrap();
    assert!(
        status
            .conditions
            .iter()
            .any(|c| c.r#type == "RuntimeReady" && c.status),
        "{status:?}"
    );
}

async fn sandbox_life(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let status = setup.runtime.pod_sandbox_status(&pod.id).await.unwrap();
    assert_eq!(status.state, cri::PodSandboxState::SandboxReady as i32);
    assert_eq!(status.metadata, pod.config.metadata);
    assert_eq!(status.labels, pod.config.labels);
    let filter = cri::PodSandboxFilter {
        label_selector: pod.config.labels.clone(),
        ..Default::default()
    };
    let listed = setup
        .runtime
        .list_pod_sandboxes(Some(filter))
        .await
        .unwrap();
    assert_eq!(listed.iter().map(|s| &s.id).collect::<Vec<_>>(), [&pod.id]);
    setup.runtime.stop_pod_sandbox(&pod.id).await.unwrap();
    setup.runtime.stop_pod_sandbox(&pod.id).await.unwrap();
    let status = setup.runtime.pod_sandbox_status(&pod.id).await.unwrap();
    assert_eq!(status.state, cri::PodSandboxState::SandboxNotready as i32);
    let id = pod.id.clone();
    pod.remove().await;
    assert!(matches!(
        setup.runtime.pod_sandbox_status(&id).await,
        Err(Error::NotFound(_))
    ));
    setup.runtime.remove_pod_sandbox(&id).await.unwrap();
}

async fn exit_codes(setup: Setup) {
    let pod = Pod::run(&setup).await;
    for (script, code, reason) in [
        ("true", 0, "Completed"),
        ("exit 7", 7, "Error"),
        ("kill -9 $$ ; sleep 9", 137, "Error"),
    ] {
        // A first process cannot kill itself, a child of it can.
        let script = if code == 137 {
            "sh -c 'kill -9 $$'; exit $?"
        } else {
            script
        };
        let before = unix_nanos();
        let id = pod.start(pod.container(shell(script))).await;
        let status = pod.wait(&id).await;
        assert_eq!(
            (status.exit_code, status.reason.as_str()),
            (code, reason),
            "{script}"
        );
        assert!(
            before <= status.started_at && status.finished_at <= unix_nanos(),
            "{status:?}"
        );
        // containerd writes down the start of a very short container after its end.
        let slack = 100_000_000;
        assert!(
            status.started_at <= status.finished_at + slack
                && status.created_at <= status.started_at
        );
    }
    pod.remove().await;
}

fn unix_nanos() -> i64 {
    crate::monitor::now_nanos()
}

async fn logs(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let config = pod.container(shell("echo one; echo two >&2; printf three"));
    let (_, text) = pod.output(config.clone()).await;
    // Two streams come in any order.
    for line in ["one\n", "two\n", "three"] {
        assert!(text.contains(line), "{text:?}");
    }
    let raw = std::fs::read_to_string(pod.logs.join(&config.log_path)).unwrap();
    assert!(
        raw.lines().any(|l| l.ends_with(" stdout F one"))
            && raw.lines().any(|l| l.ends_with(" stderr F two")),
        "{raw}"
    );
    assert!(raw.lines().any(|l| l.ends_with(" stdout P three")), "{raw}");
    pod.remove().await;
}

async fn log_rotation(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let config = pod.container(shell(
        "echo before; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo after; sleep 60",
    ));
    let id = pod.start(config.clone()).await;
    eventually(|| pod.log(&config) == "before\n").await;
    let file = pod.logs.join(&config.log_path);
    std::fs::rename(&file, file.with_extension("old")).unwrap();
    setup.runtime.reopen_container_log(&id).await.unwrap();
    run(&setup, &id, "mkdir -p /tmp; touch /tmp/go").await;
    eventually(|| pod.log(&config) == "after\n").await;
    pod.remove().await;
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
        .exec_sync(id, shell(script), Duration::from_secs(10))
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

async fn environment(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(shell(
        "echo $A-$B-$HOME; echo $PATH; [ $(hostname) = $HOSTNAME ] && echo same",
    ));
    config.envs = vec![
        cri::KeyValue::new("A", "1"),
        cri::KeyValue::new("B", "x=y z"),
        cri::KeyValue::new("A", "2"),
    ];
    let (code, text) = pod.output(config).await;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((code, lines[0], lines[2]), (0, "2-x=y z-/", "same"));
    assert!(lines[1].contains("/bin"), "{text}");
    pod.remove().await;
}

async fn arguments(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(vec!["/bin/echo".into(), "a b".into()]);
    config.args = vec!["c".into()];
    assert_eq!(pod.output(config).await, (0, "a b c\n".to_owned()));
    let mut config = pod.container(Vec::new());
    config.args = shell("echo from args");
    assert_eq!(pod.output(config).await, (0, "from args\n".to_owned()));
    pod.remove().await;
}

async fn working_directory(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(shell("pwd"));
    config.working_dir = "/new/place".to_owned();
    assert_eq!(pod.output(config).await, (0, "/new/place\n".to_owned()));
    pod.remove().await;
}

async fn users(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(shell(
        "id -u; id -g; id -G; touch /x 2>/dev/null && echo may write",
    ));
    let context = security(&mut config);
    context.run_as_user = Some(cri::Int64Value { value: 1234 });
    context.run_as_group = Some(cri::Int64Value { value: 2345 });
    context.supplemental_groups = vec![3456];
    let (_, text) = pod.output(config).await;
    assert_eq!(text, "1234\n2345\n2345 3456\n");
    pod.remove().await;
}

async fn exec_sync(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(shell("sleep 60"));
    config.envs = vec![cri::KeyValue::new("A", "1")];
    let id = pod.start(config).await;
    let limit = Duration::from_secs(10);
    let answer = setup
        .runtime
        .exec_sync(&id, shell("echo $A; echo err >&2; exit 3"), limit)
        .await
        .unwrap();
    assert_eq!(
        (&answer.stdout[..], &answer.stderr[..], answer.exit_code),
        (&b"1\n"[..], &b"err\n"[..], 3)
    );
    let answer = setup
        .runtime
        .exec_sync(&id, shell("head -c 1000000 /dev/zero"), limit)
        .await
        .unwrap();
    assert_eq!(answer.stdout.len(), 1_000_000);
    let missing = setup
        .runtime
        .exec_sync(&id, vec!["/no/such".into()], limit)
        .await;
    assert!(missing.is_err(), "{missing:?}");
    setup
        .runtime
        .stop_container(&id, Duration::ZERO)
        .await
        .unwrap();
    assert!(
        setup
            .runtime
            .exec_sync(&id, shell("true"), limit)
            .await
            .is_err()
    );
    pod.remove().await;
}

async fn exec_sync_timeout(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let id = pod.start(pod.container(shell("sleep 60"))).await;
    let begin = Instant::now();
    let answer = setup
        .runtime
        .exec_sync(
            &id,
            vec!["/bin/sleep".into(), "50".into()],
            Duration::from_secs(1),
        )
        .await;
    assert!(
        matches!(answer, Err(Error::DeadlineExceeded { .. })),
        "{answer:?}"
    );
    assert!(begin.elapsed() < Duration::from_secs(5));
    let deadline = Instant::now() + Duration::from_secs(5);
    while run(&setup, &id, "ps").await.contains("sleep 50") {
        assert!(Instant::now() < deadline, "the process lives on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    pod.remove().await;
}

/// The live ends, or `None` for a runtime that serves streams itself.
async fn session(setup: &Setup, request: cri::ExecRequest) -> Option<ExecSession> {
    match setup.runtime.exec(request).await.unwrap() {
        Streaming::Direct(session) => Some(session),
        Streaming::Url(url) => {
            assert!(url.starts_with("http"), "{url}");
            None
        }
    }
}

async fn exec_streams(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let id = pod.start(pod.container(shell("sleep 60"))).await;
    let request = cri::ExecRequest {
        container_id: id,
        cmd: shell("cat; echo done >&2; exit 5"),
        stdin: true,
        stdout: true,
        stderr: true,
        ..cri::ExecRequest::default()
    };
    if let Some(mut session) = session(&setup, request).await {
        let text = vec![b'x'; 300_000];
        let mut stdin = session.stdin.take().unwrap();
        let (mut stdout, mut stderr) = (
            session.stdout.take().unwrap(),
            session.stderr.take().unwrap(),
        );
        let sent = text.clone();
        let (mut out, mut err) = (Vec::new(), String::new());
        let write = async {
            stdin.write_all(&sent).await.unwrap();
            drop(stdin);
        };
        let (_, read, _, code) = tokio::join!(
            write,
            stdout.read_to_end(&mut out),
            stderr.read_to_string(&mut err),
            session.exit
        );
        read.unwrap();
        assert!(out == text, "{} bytes came back", out.len());
        assert_eq!((err.as_str(), code.unwrap()), ("done\n", 5));
    }
    pod.remove().await;
}

async fn exec_terminal(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let id = pod.start(pod.container(shell("sleep 60"))).await;
    let request = cri::ExecRequest {
        container_id: id,
        cmd: shell("tty; read line; stty size; echo got $line"),
        stdin: true,
        stdout: true,
        tty: true,
        ..cri::ExecRequest::default()
    };
    if let Some(mut session) = session(&setup, request).await {
        let mut stdout = session.stdout.take().unwrap();
        let mut stdin = session.stdin.take().unwrap();
        assert!(session.stderr.is_none());
        let resize = session.resize.take().unwrap();
        let talk = async {
            resize
                .send(crate::runtime::TerminalSize {
                    width: 101,
                    height: 33,
                })
                .await
                .unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
            stdin.write_all(b"hello\n").await.unwrap();
            let mut text = String::new();
            stdout.read_to_string(&mut text).await.unwrap();
            text
        };
        let (text, code) = tokio::join!(talk, session.exit);
        assert_eq!(code.unwrap(), 0);
        assert!(
            text.contains("/dev/pts/") && text.contains("33 101") && text.contains("got hello"),
            "{text:?}"
        );
    }
    pod.remove().await;
}

async fn attach(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(shell(
        "read line; echo out $line; echo err >&2; cat >/dev/null; exit 4",
    ));
    (config.stdin, config.stdin_once) = (true, true);
    let id = pod.start(config.clone()).await;
    let request = cri::AttachRequest {
        container_id: id,
        stdin: true,
        stdout: true,
        stderr: true,
        ..Default::default()
    };
    if let Streaming::Direct(mut session) = setup.runtime.attach(request).await.unwrap() {
        let mut stdin = session.stdin.take().unwrap();
        let (mut stdout, mut stderr) = (
            session.stdout.take().unwrap(),
            session.stderr.take().unwrap(),
        );
        let (mut out, mut err) = (String::new(), String::new());
        let write = async {
            stdin.write_all(b"words\n").await.unwrap();
            drop(stdin);
        };
        let (_, _, _, code) = tokio::join!(
            write,
            stdout.read_to_string(&mut out),
            stderr.read_to_string(&mut err),
            session.exit
        );
        assert_eq!(
            (out.as_str(), err.as_str(), code.unwrap()),
            ("out words\n", "err\n", 4)
        );
        assert!(
            pod.log(&config).contains("out words\n"),
            "attached output is logged too"
        );
    }
    pod.remove().await;
}

async fn mounts(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let dir = setup.dir.join(format!("volume-{}", pod.id));
    std::fs::create_dir_all(dir.join("sub")).unwrap();
    std::fs::write(dir.join("file"), "content\n").unwrap();
    let mount = |target: &str, source: PathBuf, readonly| cri::Mount {
        container_path: target.to_owned(),
        host_path: source.to_string_lossy().into_owned(),
        readonly,
        ..cri::Mount::default()
    };
    let script = "cat /ro/file /etc/one; echo x > /ro/file && echo bad; echo y > /rw/new; echo z > /rw/deep/er/f; ls /rw";
    let mut config = pod.container(shell(script));
    // The child is listed before its parent.
    config.mounts = vec![
        mount("/rw/deep/er", dir.join("sub"), false),
        mount("/ro", dir.clone(), true),
        mount("/rw", dir.clone(), false),
        mount("/etc/one", dir.join("file"), true),
    ];
    let (_, text) = pod.output(config).await;
    // Standard error has a pipe of its own: its lines may come before.
    let shown = text.lines().filter(|line| *line == "content").count();
    assert!(shown == 2 && !text.contains("bad"), "{text}");
    assert_eq!(std::fs::read_to_string(dir.join("new")).unwrap(), "y\n");
    assert_eq!(std::fs::read_to_string(dir.join("sub/f")).unwrap(), "z\n");
    pod.remove().await;
    assert!(dir.join("file").exists(), "volumes outlive pods");
}

async fn devices(setup: Setup) {
    if !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("skipped: no /dev/fuse to hand over");
        return;
    }
    let pod = Pod::run(&setup).await;
    // Item 86 of the node's checklist: without `m` there is no right to make nodes.
    // Subshells, because a shell ends when a redirection of its own commands fails.
    let script = "head -c 2 /dev/zero | wc -c; echo x > /dev/null && echo null; \
        mknod /dev/evil c 1 11; (: < /dev/evil) && echo escaped; \
        [ -c /dev/given ] && echo given; (: < /dev/given) && echo readable; (: > /dev/given) || echo not writable; \
        mknod /tmpnode c 10 229; (: < /tmpnode) && echo same device";
    let mut config = pod.container(shell(script));
    config.devices = vec![cri::Device {
        container_path: "/dev/given".to_owned(),
        host_path: "/dev/fuse".to_owned(),
        permissions: "r".to_owned(),
    }];
    let (_, text) = pod.output(config).await;
    let has = |line: &str| text.lines().any(|l| l == line);
    assert!(
        has("2") && has("null") && has("given") && has("readable") && has("not writable"),
        "{text}"
    );
    assert!(has("same device") && !has("escaped"), "{text}");
    pod.remove().await;
}

async fn capabilities(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let caps = "grep -E 'CapEff|NoNewPrivs' /proc/self/status | tr -d '\\t' | tr '\\n' ' '";
    let (_, text) = pod.script(caps).await;
    assert!(text.contains("CapEff:00000000a80425fb"), "{text}");
    let mut config = pod.container(shell(caps));
    let context = security(&mut config);
    context.capabilities = Some(cri::Capability {
        add_capabilities: vec!["NET_ADMIN".into()],
        drop_capabilities: vec!["ALL".into()],
        ..cri::Capability::default()
    });
    context.no_new_privs = true;
    let (_, text) = pod.output(config).await;
    assert!(
        text.contains("CapEff:0000000000001000") && text.contains("NoNewPrivs:1"),
        "{text}"
    );
    pod.remove().await;
}

async fn seccomp(setup: Setup) {
    use cri::security_profile::ProfileType;
    let pod = Pod::run(&setup).await;
    for (kind, mode) in [
        (ProfileType::RuntimeDefault, "2"),
        (ProfileType::Unconfined, "0"),
    ] {
        let mut config = pod.container(shell("sleep 60"));
        security(&mut config).seccomp = Some(cri::SecurityProfile {
            profile_type: kind as i32,
            localhost_ref: String::new(),
        });
        let id = pod.start(config).await;
        let status = run(
            &setup,
            &id,
            "grep Seccomp: /proc/1/status /proc/self/status",
        )
        .await;
        assert_eq!(
            status
                .lines()
                .filter(|l| l.ends_with(&format!("\t{mode}")))
                .count(),
            2,
            "{kind:?}: {status}"
        );
        let unshare = setup
            .runtime
            .exec_sync(&id, shell("unshare -U true"), Duration::from_secs(5))
            .await
            .unwrap();
        if kind == ProfileType::RuntimeDefault {
            assert_ne!(unshare.exit_code, 0, "a new user namespace is refused");
        }
    }
    pod.remove().await;
}

async fn readonly_root(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(shell(
        "touch /x 2>/dev/null && echo bad; echo y > /dev/shm/y && echo shm",
    ));
    security(&mut config).readonly_rootfs = true;
    assert_eq!(pod.output(config).await.1, "shm\n");
    pod.remove().await;
}

async fn masked_paths(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let script = "cat /proc/version | wc -c; ls /proc/acpi /sys/firmware 2>/dev/null | grep -v : | tr -d '\\n'; \
        echo 1 2>/dev/null > /proc/sys/kernel/core_uses_pid || echo protected";
    let mut config = pod.container(shell(script));
    let context = security(&mut config);
    context.masked_paths = ["/proc/version", "/proc/acpi", "/sys/firmware", "/no/such"]
        .map(str::to_owned)
        .to_vec();
    context.readonly_paths = ["/proc/sys", "/no/such"].map(str::to_owned).to_vec();
    let (_, text) = pod.output(config).await;
    assert!(
        text.starts_with("0\n") && text.trim_end().ends_with("protected"),
        "{text:?}"
    );
    pod.remove().await;
}

async fn memory_limit(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(shell(
        "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}",
    ));
    let limits = resources(&mut config);
    limits.memory_limit_in_bytes = 32 << 20;
    limits.memory_swap_limit_in_bytes = 32 << 20;
    limits.oom_score_adj = 500;
    let id = pod.start(config).await;
    let status = pod.wait(&id).await;
    assert_eq!(status.reason, "OOMKilled", "{status:?}");
    pod.remove().await;
}

async fn cpu_limit(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let mut config = pod.container(shell("sleep 60"));
    let limits = resources(&mut config);
    (limits.cpu_period, limits.cpu_quota, limits.cpu_shares) = (100_000, 50_000, 512);
    limits.memory_limit_in_bytes = 64 << 20;
    let id = pod.start(config).await;
    let read = "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || cut -d' ' -f1 /sys/fs/cgroup/cpu.max";
    let own = setup.runtime.version().await.unwrap().runtime_name == "davit";
    if own {
        assert_eq!(run(&setup, &id, read).await, "50000\n");
    }
    let update = cri::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 70_000,
        ..Default::default()
    };
    setup
        .runtime
        .update_container_resources(&id, update)
        .await
        .unwrap();
    if own {
        assert_eq!(run(&setup, &id, read).await, "70000\n");
    }
    let stats = setup.runtime.container_stats(&id).await.unwrap();
    assert!(stats.cpu.unwrap().usage_core_nano_seconds.unwrap().value > 0);
    assert!(stats.memory.unwrap().working_set_bytes.unwrap().value > 0);
    pod.remove().await;
}

async fn stop_gracefully(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let config = pod.container(shell(
        "trap 'echo bye; exit 9' TERM; echo ready; while true; do sleep 0.05; done",
    ));
    let id = pod.start(config.clone()).await;
    eventually(|| pod.log(&config).contains("ready")).await;
    setup
        .runtime
        .stop_container(&id, Duration::from_secs(20))
        .await
        .unwrap();
    let status = pod.wait(&id).await;
    assert_eq!(status.exit_code, 9);
    assert!(pod.log(&config).contains("bye"));
    setup
        .runtime
        .stop_container(&id, Duration::from_secs(20))
        .await
        .unwrap();
    pod.remove().await;
}

async fn stop_stubborn(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let config = pod.container(shell(
        "trap '' TERM; echo ready; sleep 60 & sleep 60; sleep 60",
    ));
    let id = pod.start(config.clone()).await;
    eventually(|| pod.log(&config).contains("ready")).await;
    let begin = Instant::now();
    setup
        .runtime
        .stop_container(&id, Duration::from_secs(1))
        .await
        .unwrap();
    assert!(
        begin.elapsed() >= Duration::from_millis(900) && begin.elapsed() < Duration::from_secs(8)
    );
    assert_eq!(pod.wait(&id).await.exit_code, 137);
    pod.remove().await;
}

async fn start_errors(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let id = pod
        .create(pod.container(vec!["no-such-program".into()]))
        .await;
    let error = setup.runtime.start_container(&id).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("executable file not found in $PATH"),
        "{error}"
    );
    let status = setup.runtime.container_status(&id).await.unwrap();
    assert_eq!(
        (status.exit_code, status.reason.as_str()),
        (128, "StartError"),
        "{status:?}"
    );
    assert!(status.message.contains("no-such-program"), "{status:?}");
    let mut config = pod.container(shell("true"));
    config.image.as_mut().unwrap().image = "contract.test/no/such:image".to_owned();
    assert!(
        setup
            .runtime
            .create_container(&pod.id, config, pod.config.clone())
            .await
            .is_err()
    );
    assert!(
        setup
            .runtime
            .start_container("no-such-container")
            .await
            .is_err()
    );
    pod.remove().await;
}

async fn listing(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let (one, two) = (
        pod.container(shell("sleep 60")),
        pod.container(shell("true")),
    );
    let running = pod.start(one.clone()).await;
    let ended = pod.start(two).await;
    pod.wait(&ended).await;
    let created = pod.create(pod.container(shell("true"))).await;
    let list = async |change: fn(&mut cri::ContainerFilter)| {
        let mut filter = cri::ContainerFilter {
            pod_sandbox_id: pod.id.clone(),
            ..Default::default()
        };
        change(&mut filter);
        let mut ids: Vec<_> = setup
            .runtime
            .list_containers(Some(filter))
            .await
            .unwrap()
            .into_iter()
            .map(|c| (c.id, c.state))
            .collect();
        ids.sort();
        ids
    };
    assert_eq!(list(|_| ()).await.len(), 3);
    assert_eq!(
        list(|f| f.state = Some(cri::ContainerStateValue { state: 1 })).await,
        [(running.clone(), 1)]
    );
    assert_eq!(
        list(|f| f.state = Some(cri::ContainerStateValue { state: 0 })).await,
        [(created.clone(), 0)]
    );
    let filter = cri::ContainerFilter {
        id: ended.clone(),
        ..Default::default()
    };
    let found = setup.runtime.list_containers(Some(filter)).await.unwrap();
    assert_eq!(
        found.iter().map(|c| (&c.id, c.state)).collect::<Vec<_>>(),
        [(&ended, 2)]
    );
    let filter = cri::ContainerFilter {
        label_selector: one.labels.clone(),
        pod_sandbox_id: pod.id.clone(),
        ..Default::default()
    };
    let found = setup.runtime.list_containers(Some(filter)).await.unwrap();
    assert_eq!(found.iter().map(|c| &c.id).collect::<Vec<_>>(), [&running]);
    pod.remove().await;
}

async fn shared_memory(setup: Setup) {
    let pod = Pod::run(&setup).await;
    assert_eq!(pod.script("echo shared > /dev/shm/x").await.0, 0);
    assert_eq!(
        pod.script("cat /dev/shm/x").await,
        (0, "shared\n".to_owned())
    );
    pod.remove().await;
}

async fn isolated_network(setup: Setup) {
    let pod = Pod::run_isolated(&setup).await;
    let id = pod
        .start(pod.container(shell("while true; do echo hello | nc -l -p 8080; done")))
        .await;
    let deadline = Instant::now() + Duration::from_secs(10);
    // 0x1F90 is 8080, 0A is LISTEN
    while !run(&setup, &id, "cat /proc/net/tcp /proc/net/tcp6")
        .await
        .contains(":1F90 ")
    {
        assert!(Instant::now() < deadline, "nobody listens");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(
        tokio::net::TcpStream::connect("127.0.0.1:8080")
            .await
            .is_err(),
        "not in the host's network"
    );
    assert!(run(&setup, &id, "cat /proc/net/dev").await.contains("lo:"));
    assert_eq!(
        run(&setup, &id, "hostname; echo $HOSTNAME").await,
        "contract\ncontract\n"
    );
    let request = cri::PortForwardRequest {
        pod_sandbox_id: pod.id.clone(),
        port: vec![8080],
    };
    if let Streaming::Direct(dialer) = setup.runtime.port_forward(request).await.unwrap() {
        let mut stream = dialer.dial(8080).await.unwrap();
        let mut text = String::new();
        // The other side waits for our end; what it says comes first.
        let mut buffer = [0; 16];
        let count = stream.read(&mut buffer).await.unwrap();
        text.push_str(&String::from_utf8_lossy(&buffer[..count]));
        assert_eq!(text, "hello\n");
        assert!(dialer.dial(9).await.is_err());
    }
    pod.remove().await;
}

async fn shared_processes(setup: Setup) {
    let pod = Pod::run_with(&setup, |config| {
        namespace_options(config).pid = cri::NamespaceMode::Pod as i32;
    })
    .await;
    let id = pod.start(pod.container(shell("sleep 61"))).await;
    let other = pod.start(pod.container(shell("sleep 62"))).await;
    let seen = run(&setup, &other, "ps").await;
    assert!(
        seen.contains("sleep 61") && seen.contains("sleep 62"),
        "{seen}"
    );
    setup
        .runtime
        .stop_container(&id, Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(pod.wait(&id).await.exit_code, 137);
    let seen = run(&setup, &other, "ps").await;
    assert!(
        !seen.contains("sleep 61") && seen.contains("sleep 62"),
        "{seen}"
    );
    pod.remove().await;
}

async fn removal(setup: Setup) {
    let pod = Pod::run(&setup).await;
    let id = pod.start(pod.container(shell("sleep 60"))).await;
    setup.runtime.remove_container(&id).await.unwrap();
    setup.runtime.remove_container(&id).await.unwrap();
    assert!(matches!(
        setup.runtime.container_status(&id).await,
        Err(Error::NotFound(_))
    ));
    pod.remove().await;
}

async fn images(setup: Setup) {
    let spec = |image: &str| cri::ImageSpec {
        image: image.to_owned(),
        ..cri::ImageSpec::default()
    };
    let image = setup
        .runtime
        .image_status(spec(&setup.image))
        .await
        .unwrap()
        .unwrap();
    assert!(
        image.id.starts_with("sha256:") && !image.repo_tags.is_empty(),
        "{image:?}"
    );
    let by_id = setup
        .runtime
        .image_status(spec(&image.id))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(by_id.id, image.id);
    assert!(
        setup
            .runtime
            .list_images(None)
            .await
            .unwrap()
            .iter()
            .any(|i| i.id == image.id)
    );
    assert!(
        setup
            .runtime
            .image_status(spec("contract.test/no/such:image"))
            .await
            .unwrap()
            .is_none()
    );
    setup
        .runtime
        .remove_image(spec("contract.test/no/such:image"))
        .await
        .unwrap();
    let info = setup.runtime.image_fs_info().await.unwrap();
    assert!(!info.image_filesystems.is_empty());
}
