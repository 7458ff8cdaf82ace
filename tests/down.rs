//! Ending: what stays, `davit down`, clusters that leave nothing, and those that end with who started them.

use crate::harness;
use harness::{Cluster, DAVIT, any_kubectl, kubectl_stdin, output, root};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const POD: &str = "apiVersion: v1
kind: Pod
metadata: {name: stays}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: memory, emptyDir: {medium: Memory}}]
  containers:
  - name: main
    image: davit.local/host
    command: [/bin/sh, -c, 'exec sleep 100000']
    volumeMounts: [{name: memory, mountPath: /mnt}]
";

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn mounts_below(dir: &Path) -> Vec<String> {
    let text = std::fs::read_to_string("/proc/thread-self/mounts").unwrap();
    let points = text.lines().filter_map(|line| line.split(' ').nth(1));
    points
        .filter(|point| Path::new(point).starts_with(dir))
        .map(str::to_owned)
        .collect()
}

/// Processes whose command line has this text, containers' monitors among them.
fn processes(text: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .filter(|line| String::from_utf8_lossy(line).contains(text))
        .count()
}

fn start_pod(kubectl: impl Fn() -> Command, apply: impl Fn()) {
    eventually("the default service account", || {
        let mut asked = kubectl();
        let found = asked.args(["get", "serviceaccount", "default"]);
        output(found).status.success()
    });
    apply();
    running(kubectl);
}

fn running(kubectl: impl Fn() -> Command) {
    eventually("the pod runs", || {
        let mut asked = kubectl();
        let phase = [
            "get",
            "pod",
            "stays",
            "-o",
            "jsonpath={.status.phase}{.status.containerStatuses[0].ready}",
        ];
        output(asked.args(phase)).stdout == b"Runningtrue"
    });
}

fn down(dir: &Path, more: &[&str]) -> String {
    let mut command = Command::new(DAVIT);
    command.args(["down", "--grace-period", "1", "--data-dir"]);
    // The node's root is known.
    command.arg(dir.join("data")).args(more);
    let out = output(&mut command);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let failed = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}{failed}");
    said
}

fn start_pod_of(cluster: &Cluster, kubectl: &Path) {
    start_pod(
        || cluster.kubectl(kubectl),
        || {
            kubectl_stdin(cluster, kubectl, &["apply", "-f", "-"], POD);
        },
    );
}

/// How many ranges of pods are held for the cluster with this data directory.
fn ranges_of(data: &str) -> usize {
    let claims = std::fs::read_dir("/run/davit/pod-ranges/clusters");
    let owners = claims.into_iter().flatten().flatten();
    let owners = owners.filter_map(|claim| std::fs::read_to_string(claim.path()).ok());
    owners.filter(|owner| owner == data).count()
}

#[test]
fn containers_stay_until_they_are_ended() {
    let (Some(()), Some(kubectl)) = (root(), any_kubectl()) else {
        return;
    };
    let mut cluster = Cluster::up(&["--node-name", "node-1", "--allow-host-image"]);
    start_pod_of(&cluster, &kubectl);
    // a second one on the same directory is told who is there
    let dir = cluster.dir.path().to_owned();
    let mut second = Command::new(DAVIT);
    second
        .args(["up", "--no-node", "--port", "0", "--data-dir"])
        .arg(dir.join("data"));
    let refused = output(&mut second);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let wanted = format!("`davit up` (process {}) runs with", cluster.pid());
    assert!(
        !refused.status.success() && said.contains(&wanted),
        "{said}"
    );

    // what stays is said
    let data = dir.join("data").display().to_string();
    let ranges = ranges_of(&data);
    assert!(cluster.interrupt().success());
    let left = format!(
        "left running: 1 container (the next start finds them again; `davit down --data-dir {data}` ends them)"
    );
    assert!(cluster.log().contains(&left), "{}", cluster.log());
    assert!(!mounts_below(&dir).is_empty());

    // ended, and nothing holds the directories any more; the next start is one after a reboot
    assert_eq!(down(&dir, &[]), "ended 1 container\n");
    assert_eq!(mounts_below(&dir), Vec::<String>::new());
    assert_eq!(down(&dir, &[]), "ended 0 containers\n");
    // the next start wants the range of pods that is written down: nobody else gets it meanwhile
    assert_eq!(ranges_of(&data), ranges);
    cluster.start_again();
    running(|| cluster.kubectl(&kubectl));

    // while it runs: stopped, ended, removed
    let said = down(&dir, &["--purge"]);
    assert_eq!(
        said,
        format!("stopped `davit up`\nended 1 container\nremoved what was in {data}\n")
    );
    assert!(cluster.ended().success());
    assert!(!dir.join("data").exists());
    assert_eq!(ranges_of(&data), 0);
    assert_eq!(mounts_below(&dir), Vec::<String>::new());
    let logs: Vec<_> = std::fs::read_dir(dir.join("root/var/log/pods"))
        .unwrap()
        .collect();
    assert!(logs.is_empty(), "{logs:?}");
    assert!(!dir.join("root/var/lib/kubelet").exists());
}

/// From here on, this thread and what it starts see mounts of their own, shared as systemd leaves them on most hosts.
fn among_shared_mounts() {
    use nix::mount::MsFlags;
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    for how in [MsFlags::MS_PRIVATE, MsFlags::MS_SHARED] {
        let none = None::<&str>;
        nix::mount::mount(none, "/", none, how | MsFlags::MS_REC, none).unwrap();
    }
}

#[test]
fn shared_mounts_are_ended_too() {
    let (Some(()), Some(kubectl)) = (root(), any_kubectl()) else {
        return;
    };
    among_shared_mounts();
    let mut cluster = Cluster::up(&["--node-name", "node-1", "--allow-host-image"]);
    start_pod_of(&cluster, &kubectl);
    let dir = cluster.dir.path().to_owned();
    // each once: nothing is bound to itself to be shared that is so already
    let mounted = mounts_below(&dir);
    let volumes = mounted.iter().filter(|point| point.ends_with("/memory"));
    assert_eq!(volumes.count(), 1, "{mounted:?}");
    let said = down(&dir, &["--purge"]);
    assert!(said.contains("ended 1 container\n"), "{said}");
    assert!(cluster.ended().success());
    assert_eq!(mounts_below(&dir), Vec::<String>::new());
    assert!(!dir.join("data").exists());
}

/// Where the directory of volumes was shared beside what it lies on (by an earlier release, or by somebody), all that is
/// mounted in it is mounted there as well, and goes with it.
#[test]
fn what_is_mounted_twice_is_ended() {
    let (Some(()), Some(kubectl)) = (root(), any_kubectl()) else {
        return;
    };
    among_shared_mounts();
    let args = ["--node-name", "node-1", "--allow-host-image"];
    let mut cluster = Cluster::up_after(&args, |dir| {
        let pods = dir.join("root/var/lib/kubelet/pods");
        std::fs::create_dir_all(&pods).unwrap();
        let (none, flags) = (None::<&str>, nix::mount::MsFlags::MS_BIND);
        nix::mount::mount(Some(&pods), &pods, none, flags, none).unwrap();
    });
    start_pod_of(&cluster, &kubectl);
    let dir = cluster.dir.path().to_owned();
    let said = down(&dir, &["--purge"]);
    assert!(said.contains("ended 1 container\n"), "{said}");
    assert!(cluster.ended().success());
    assert_eq!(mounts_below(&dir), Vec::<String>::new());
}

#[test]
fn what_is_the_administrators_stays() {
    if root().is_none() {
        return;
    }
    let tmp = harness::temp_dir();
    let data = tmp.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let mount = |at: &Path| {
        let none = None::<&str>;
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("tmpfs"), at, Some("tmpfs"), flags, none).unwrap();
    };
    mount(&data);
    std::fs::write(data.join("letter"), "mine").unwrap();
    let mut up = Command::new(DAVIT);
    up.args(["up", "--no-node", "--port", "0", "--data-dir"])
        .arg(&data);
    let mut davit = up
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(davit.stdout.as_mut().unwrap())
        .read_line(&mut ready)
        .unwrap();
    assert!(ready.starts_with("ready in "), "{ready}");
    // a disk for the volumes: nothing is removed
    std::fs::create_dir_all(data.join("volumes")).unwrap();
    mount(&data.join("volumes"));
    let mut purge = Command::new(DAVIT);
    purge
        .args(["down", "--purge", "--data-dir"])
        .arg(&data)
        .arg("--root")
        .arg(tmp.path().join("root"));
    let refused = output(&mut purge);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("volumes is mounted: nothing is removed"),
        "{said}"
    );
    assert!(davit.wait().unwrap().success());
    nix::mount::umount(&data.join("volumes")).unwrap();
    // the data directory has a file system of its own, and a file of somebody's
    let root = tmp.path().join("root").display().to_string();
    down(tmp.path(), &["--purge", "--root", &root]);
    let left: Vec<_> = std::fs::read_dir(&data)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left, ["letter"]);
    assert_eq!(mounts_below(&data), [data.display().to_string()]);
    nix::mount::umount(&data).unwrap();
}

#[test]
fn where_nothing_is_nothing_is_ended() {
    let tmp = harness::temp_dir();
    let mut command = Command::new(DAVIT);
    command
        .args(["down", "--data-dir"])
        .arg(tmp.path().join("none"));
    let out = output(&mut command);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        !out.status.success() && said.contains("there is no cluster in"),
        "{said}"
    );
}

/// `davit up --ephemeral`, started by a shell that waits for it.
struct Ephemeral {
    /// A directory for temporary files whose name leaves no room for sockets.
    _temp: tempfile::TempDir,
    shell: Child,
    process: u32,
    dir: PathBuf,
    kubeconfig: PathBuf,
}

impl Ephemeral {
    fn up(args: &str) -> Self {
        let script = format!(
            "{DAVIT} up --ephemeral --node-name node-1 --allow-host-image {args} & echo $!; wait"
        );
        let temp = tempfile::Builder::new()
            .prefix("for-temporary-files-of-one-who-likes-long-names-")
            .tempdir()
            .unwrap();
        let mut shell = Command::new("sh")
            .args(["-c", &script])
            .env("DAVIT_LOG", "warn")
            .env("TMPDIR", temp.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(shell.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let process: u32 = lines.next().unwrap().parse().unwrap();
        let ready = lines.next().unwrap();
        let kubeconfig = ready
            .split_whitespace()
            .find_map(|word| word.strip_prefix("kubeconfig="));
        let kubeconfig = PathBuf::from(kubeconfig.unwrap());
        Self {
            _temp: temp,
            shell,
            process,
            dir: Path::new("/tmp").join(format!("davit-ephemeral-{process}")),
            kubeconfig,
        }
    }

    fn kubectl(&self, binary: &Path) -> Command {
        let mut command = Command::new(binary);
        command.env("KUBECONFIG", &self.kubeconfig);
        command
    }

    fn with_pod(self, binary: &Path) -> Self {
        start_pod(
            || self.kubectl(binary),
            || {
                let mut child = self
                    .kubectl(binary)
                    .args(["apply", "-f", "-"])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::null())
                    .spawn()
                    .unwrap();
                std::io::Write::write_all(&mut child.stdin.take().unwrap(), POD.as_bytes())
                    .unwrap();
                assert!(child.wait().unwrap().success());
            },
        );
        self
    }

    fn is_gone(&self) -> bool {
        let name = self.dir.display().to_string();
        !self.dir.exists() && processes(&name) == 0 && mounts_below(&self.dir).is_empty()
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.process).unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }
}

impl Drop for Ephemeral {
    fn drop(&mut self) {
        let _gone = self.shell.kill();
        let _reaped = self.shell.wait();
    }
}

#[test]
fn an_ephemeral_cluster_leaves_nothing() {
    let (Some(()), Some(kubectl)) = (root(), any_kubectl()) else {
        return;
    };
    // killed with its pod, it leaves everything to the next one
    let killed = Ephemeral::up("").with_pod(&kubectl);
    killed.signal(nix::sys::signal::Signal::SIGKILL);
    eventually("killed", || {
        !Path::new(&format!("/proc/{}/exe", killed.process)).exists()
    });
    assert!(killed.dir.exists() && !mounts_below(&killed.dir).is_empty());
    // it ends with its parent, whatever becomes of that
    let mut cluster = Ephemeral::up("--exit-with-parent --sim-nodes 1").with_pod(&kubectl);
    eventually("the killed one is gone", || killed.is_gone());
    cluster.shell.kill().unwrap();
    cluster.shell.wait().unwrap();
    eventually("gone with its parent", || cluster.is_gone());
}
