//! A real davit process and the real programs that talk to it.
//!
//! A test asks for a part (kubectl of some release, containerd, root); when the machine lacks it the test prints a line
//! and ends. `DAVIT_REQUIRED_PARTS` lists, separated by blanks, the parts that may not be missing: CI sets it.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses a part of the harness"
)]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The binary under test.
pub const DAVIT: &str = env!("CARGO_BIN_EXE_davit");

/// How long a cluster may take to be ready in a debug build on a busy machine.
const READY: Duration = Duration::from_secs(90);

/// Kubelet flags with which a disk that builds have nearly filled is no reason to evict pods or remove images.
pub const FULL_DISK: [&str; 4] = [
    "--eviction-hard",
    "memory.available<100Mi",
    "--image-gc-high-threshold",
    "100",
];

/// Whether a test's own kubelet configuration says when a disk is full.
fn configures_disk(args: &[&str]) -> bool {
    let file = args.iter().skip_while(|a| **a != "--config").nth(1);
    let text = file.map(|file| std::fs::read_to_string(file).unwrap_or_default());
    text.is_some_and(|text| text.contains("evictionHard"))
}

/// The folder of these tests.
pub fn tests_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

/// `Some` when the part is there; otherwise prints the skip, or fails when the part is required.
pub fn part<T>(name: &str, found: Option<T>) -> Option<T> {
    if found.is_none() {
        let required = std::env::var("DAVIT_REQUIRED_PARTS").unwrap_or_default();
        assert!(
            !required.split_whitespace().any(|p| p == name),
            "{name} is required here but missing"
        );
        println!("skipped: {name} is not on this machine");
    }
    found
}

/// Whether tests that run containers can run.
pub fn root() -> Option<()> {
    part("root", nix::unistd::geteuid().is_root().then_some(()))
}

/// A program on the PATH.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|p| p.is_file());
    part(name, found)
}

/// kubectl of a release (`1.27`, `1.36`), built once from its public module when there is a Go toolchain.
pub fn kubectl_binary(release: &str) -> Option<PathBuf> {
    let built = tests_dir().join(format!(".cache/kubectl-{release}"));
    if !built.is_file() {
        build_kubectl(release, &built);
    }
    part(
        &format!("kubectl-{release}"),
        built.is_file().then_some(built),
    )
}

fn build_kubectl(release: &str, target: &Path) {
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _guard = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let minor = release.trim_start_matches("1.");
    let version = "k8s.io/component-base/version";
    let ldflags = format!(
        "-s -w -X {version}.gitVersion=v{release}.0 -X {version}.gitMajor=1 -X {version}.gitMinor={minor}"
    );
    let built = Command::new("go")
        .args([
            "build",
            &format!("-modfile=go-{release}.mod"),
            "-trimpath",
            "-ldflags",
            &ldflags,
            "-o",
        ])
        .arg(target)
        .arg(".")
        .current_dir(tests_dir().join("kubectl"))
        .output();
    if let Ok(output) = built.as_ref()
        && !output.status.success()
    {
        println!(
            "kubectl {release} was not built: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// A directory that goes when the test ends; short, since unix socket paths are.
pub fn temp_dir() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("davit-")
        .tempdir_in("/tmp")
        .unwrap()
}

/// A running `davit up`.
pub struct Cluster {
    child: Child,
    args: Vec<String>,
    /// What davit's environment has beside ours.
    env: Vec<(&'static str, String)>,
    pub dir: tempfile::TempDir,
    pub kubeconfig: PathBuf,
    pub server: String,
    /// Milliseconds the ready line names.
    pub ready_ms: u64,
}

impl Cluster {
    /// Starts `davit up` with a data directory of its own, any port, and `args`; waits for the ready line.
    pub fn up(args: &[&str]) -> Self {
        Self::up_after(args, |_| {})
    }

    /// The same, with something done in the directory in which `data` will be.
    pub fn up_after(args: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        Self::up_with(Vec::new(), args, prepare)
    }

    /// The same, with more in its environment.
    pub fn up_with(
        env: Vec<(&'static str, String)>,
        args: &[&str],
        prepare: impl FnOnce(&Path),
    ) -> Self {
        let dir = temp_dir();
        prepare(dir.path());
        let mut all = vec![
            "up".to_owned(),
            "--data-dir".to_owned(),
            dir.path().join("data").display().to_string(),
        ];
        all.extend(["--port", "0"].map(str::to_owned));
        if !args.contains(&"--no-node") {
            all.extend(["--node-port", "0"].map(str::to_owned));
        }
        all.extend([
            "--root".to_owned(),
            dir.path().join("root").display().to_string(),
        ]);
        all.extend(args.iter().map(|a| (*a).to_owned()));
        if !configures_disk(args) {
            all.extend(FULL_DISK.map(str::to_owned));
        }
        let (child, ready) = start(&all, &env, dir.path());
        let mut cluster = Self {
            child,
            args: all,
            env,
            dir,
            kubeconfig: PathBuf::new(),
            server: String::new(),
            ready_ms: 0,
        };
        cluster.read_ready(&ready);
        cluster
    }

    fn read_ready(&mut self, line: &str) {
        let field = |name: &str| {
            line.split_whitespace()
                .find_map(|w| w.strip_prefix(name))
                .unwrap_or_else(|| panic!("no {name} in {line:?}"))
        };
        self.kubeconfig = field("kubeconfig=").into();
        self.server = field("server=").to_owned();
        self.ready_ms = line
            .split_whitespace()
            .nth(2)
            .and_then(|n| n.parse().ok())
            .unwrap();
    }

    /// The process id of davit.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends davit as a power cut would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Has davit listen on the same port when it is started again, for those who know it by that.
    pub fn keep_port(&mut self) {
        let port = self.server.rsplit(':').next().unwrap().to_owned();
        let at = self.args.iter().position(|a| a == "--port").unwrap();
        self.args[at + 1] = port.trim_end_matches('/').to_owned();
    }

    /// Starts davit again with the arguments it had.
    pub fn start_again(&mut self) {
        let (child, ready) = start(&self.args, &self.env, self.dir.path());
        self.child = child;
        self.read_ready(&ready);
    }

    /// Ends davit as Ctrl-C does and returns how it exited.
    pub fn interrupt(&mut self) -> std::process::ExitStatus {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        self.ended()
    }

    /// How davit exited, which it was told to before.
    pub fn ended(&mut self) -> std::process::ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "davit did not end within 60 s of the signal"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A kubectl command against this cluster.
    pub fn kubectl(&self, binary: &Path) -> Command {
        let mut command = Command::new(binary);
        command
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", self.dir.path())
            // it ends before a collection pays: a third of its processor time
            .env("GOGC", "off")
            .env_remove("KUBERNETES_SERVICE_HOST");
        command
    }

    /// What davit has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("davit.log")).unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(60).collect();
            eprintln!("--- end of davit's log");
            for line in tail.iter().rev() {
                eprintln!("{line}");
            }
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            self.interrupt();
        }
        end_containers(self.dir.path());
    }
}

/// Containers outlive davit; those of a test that has failed must not, nor what was mounted for its pods, nor the directory.
pub fn end_containers(dir: &Path) {
    let containers = std::fs::read_dir(dir.join("data/runtime/containers"));
    for container in containers.into_iter().flatten().flatten() {
        let state = std::fs::read(container.path().join("state.json")).unwrap_or_default();
        let state: serde_json::Value = serde_json::from_slice(&state).unwrap_or_default();
        let pid = state["pid"].as_i64().and_then(|n| i32::try_from(n).ok());
        let begun = state["start_ticks"].as_u64();
        if let Some(pid) = pid.filter(|pid| start_ticks(*pid).is_some_and(|t| Some(t) == begun)) {
            let pid = nix::unistd::Pid::from_raw(pid);
            // Its monitor sees the end and goes, too.
            let _gone = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
    // Those of this thread: a test may have mounts of its own.
    let mounts = std::fs::read_to_string("/proc/thread-self/mounts").unwrap_or_default();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let own: Vec<&str> = places.filter(|p| Path::new(p).starts_with(dir)).collect();
    for place in own.iter().rev() {
        let _gone = nix::mount::umount2(*place, nix::mount::MntFlags::MNT_DETACH);
    }
    // Monitors may still write what they have seen. A directory that stays keeps the addresses that its node has claimed.
    let until = Instant::now() + Duration::from_secs(5);
    while std::fs::remove_dir_all(dir).is_err() && dir.exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// When a process began, in clock ticks since boot.
fn start_ticks(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.rsplit_once(')')?.1;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

fn start(args: &[String], env: &[(&str, String)], dir: &Path) -> (Child, String) {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.join("davit.log"))
        .unwrap();
    let mut child = Command::new(DAVIT)
        .args(args)
        .env(
            "DAVIT_LOG",
            std::env::var("DAVIT_LOG").unwrap_or_else(|_| "info,hyper=warn,kube=warn".to_owned()),
        )
        .envs(env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let stdout = child.stdout.take().unwrap();
    let (lines, ready) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if line.starts_with("ready in ") {
                let _gone = lines.send(line);
            } else {
                println!("davit: {line}");
            }
        }
    });
    match ready.recv_timeout(READY) {
        Ok(line) => (child, line),
        Err(error) => {
            let _dead = child.kill();
            let log = std::fs::read_to_string(dir.join("davit.log")).unwrap_or_default();
            panic!("davit {args:?} did not become ready ({error}); its log:\n{log}");
        }
    }
}

/// Runs a command to its end and returns its output, whatever its exit code.
pub fn output(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs a command that must succeed and returns what it wrote to standard output.
pub fn run(command: &mut Command) -> String {
    let out = output(command);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success(),
        "{command:?} failed with {}:\n{text}{}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    text
}

/// Runs kubectl with arguments; it must succeed.
pub fn kubectl(
    cluster: &Cluster,
    binary: &Path,
    args: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> String {
    run(cluster.kubectl(binary).args(args))
}

/// Runs kubectl with a manifest on its standard input; it must succeed.
pub fn kubectl_stdin(cluster: &Cluster, binary: &Path, args: &[&str], manifest: &str) -> String {
    use std::io::Write;
    let mut child = cluster
        .kubectl(binary)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(manifest.as_bytes())
        .unwrap();
    let out = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success(),
        "kubectl {args:?}: {text}{}",
        String::from_utf8_lossy(&out.stderr)
    );
    text
}

/// Waits until a condition holds. It is looked at less often the longer it takes: most look by kubectl, which computes for a
/// tenth of a second.
pub fn eventually(what: &str, deadline: Duration, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + deadline;
    let mut pause = Duration::from_millis(50);
    while !holds() {
        assert!(Instant::now() < end, "not within {deadline:?}: {what}");
        std::thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(500));
    }
}

/// A shared kubectl for tests that do not care which; the newest.
pub fn any_kubectl() -> Option<PathBuf> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND.get_or_init(|| kubectl_binary("1.36")).clone()
}
