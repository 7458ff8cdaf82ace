//! Pods with real containers on a node, driven by the oldest and the newest kubectl that are promised.

mod cgroups;
mod copies;
mod credentials;
mod images;
mod kubelet_config;
mod lifecycle;
mod limits;
mod resize;
mod restarts;
mod shutdown;
mod streams;
mod usage;
mod verbs;
mod volumes;

use crate::harness;
use harness::{Cluster, kubectl_binary, root};
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a step may take on a busy machine.
const STEP: Duration = Duration::from_secs(60);
const NODE: &str = "node-1";

/// A cluster with a node, and the kubectl that drives it.
struct Kube {
    cluster: Cluster,
    binary: PathBuf,
}

impl Kube {
    /// Starts a cluster for kubectl of this release; `None` when something is missing on this machine.
    fn up(release: &str, args: &[&str]) -> Option<Self> {
        root()?;
        let binary = kubectl_binary(release)?;
        let args = [&["--node-name", NODE, "--allow-host-image"], args].concat();
        let kube = Self {
            cluster: Cluster::up(&args),
            binary,
        };
        kube.eventually("the default service account", || {
            kube.try_run(["get", "serviceaccount", "default"]).is_ok()
        });
        Some(kube)
    }

    fn command(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = self.cluster.kubectl(&self.binary);
        command.args(args).stdin(Stdio::null());
        command
    }

    /// Runs kubectl; the error is what it wrote to standard error.
    fn try_run(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<String, String> {
        let out = harness::output(&mut self.command(args));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if out.status.success() {
            Ok(text(&out.stdout))
        } else {
            Err(text(&out.stderr))
        }
    }

    /// Runs kubectl, which must succeed.
    fn run(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
        harness::run(&mut self.command(args))
    }

    /// Runs kubectl with bytes on its standard input.
    fn pipe(&self, args: &[&str], input: &[u8]) -> Output {
        let mut child = self.spawn(args);
        let mut stdin = child.stdin.take().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // The other side may have seen enough.
                let _closed = stdin.write_all(input);
            });
            child.wait_with_output().unwrap()
        })
    }

    fn spawn(&self, args: &[&str]) -> Child {
        let mut command = self.command(args);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn create(&self, manifest: &str) -> String {
        let out = self.pipe(&["create", "-f", "-"], manifest.as_bytes());
        assert!(
            out.status.success(),
            "{manifest}\n{}",
            String::from_utf8_lossy(&out.stderr)
        );
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// A field of a pod, empty when it is not there.
    fn field(&self, pod: &str, path: &str) -> String {
        self.try_run(["get", "pod", pod, "-o", &format!("jsonpath={{{path}}}")])
            .unwrap_or_default()
    }

    fn wait_phase(&self, pod: &str, phase: &str) {
        self.eventually(&format!("pod {pod} in phase {phase}"), || {
            self.field(pod, ".status.phase") == phase
        });
    }

    fn wait_ready(&self, pod: &str) {
        self.run([
            "wait",
            "--for=condition=Ready",
            &format!("pod/{pod}"),
            "--timeout=60s",
        ]);
    }

    /// The row of a pod in `kubectl get pods`, in words.
    fn row(&self, pod: &str) -> Vec<String> {
        let table = self
            .try_run(["get", "pod", pod, "--no-headers"])
            .unwrap_or_default();
        table.split_whitespace().map(str::to_owned).collect()
    }

    /// Waits until a pod's STATUS column says so.
    fn wait_status(&self, pod: &str, status: &str) -> Vec<String> {
        self.eventually(&format!("pod {pod} shown as {status}"), || {
            self.row(pod).get(2).is_some_and(|s| s == status)
        });
        self.row(pod)
    }

    fn exec(&self, pod: &str, script: &str) -> String {
        let args = ["exec", pod, "-c", "main", "--", "/bin/sh", "-c", script];
        // kubectl before 1.36 reads from its WebSocket before it has made its streams, and loses what comes at once.
        match self.try_run(args) {
            Ok(text) => text,
            Err(error) if error.contains("Unknown stream id") => self.run(args),
            Err(error) => panic!("exec in {pod}: {error}"),
        }
    }

    /// Waits until a condition holds; says what the pods look like when it does not.
    fn eventually(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let end = Instant::now() + STEP;
        while !holds() {
            if Instant::now() >= end {
                let state = self.try_run(["describe", "pods", "-A"]);
                panic!(
                    "not within {STEP:?}: {what}\n{}",
                    state.unwrap_or_else(|e| e)
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn dir(&self) -> &Path {
        self.cluster.dir.path()
    }

    /// Deletes all pods and waits until they are gone.
    fn clean_up(&self) {
        self.run([
            "delete",
            "pods",
            "--all",
            "--grace-period=1",
            "--timeout=60s",
        ]);
    }
}

impl Drop for Kube {
    fn drop(&mut self) {
        // A failed test may not leave containers behind either; davit is still there.
        if std::thread::panicking() {
            let _failed_anyway = self.try_run([
                "delete",
                "pods",
                "--all",
                "--grace-period=1",
                "--timeout=30s",
            ]);
        }
    }
}

/// A test of the scenario for each kubectl.
macro_rules! for_each_kubectl {
    ($oldest:ident, $newest:ident, $scenario:path) => {
        #[test]
        fn $oldest() {
            if let Some(kube) = Kube::up("1.27", &[]) {
                $scenario(&kube);
                kube.clean_up();
            }
        }

        #[test]
        fn $newest() {
            if let Some(kube) = Kube::up("1.36", &[]) {
                $scenario(&kube);
                kube.clean_up();
            }
        }
    };
}

for_each_kubectl!(
    streams_with_kubectl_1_27,
    streams_with_kubectl_1_36,
    streams::scenario
);
for_each_kubectl!(
    lifecycle_with_kubectl_1_27,
    lifecycle_with_kubectl_1_36,
    lifecycle::scenario
);
for_each_kubectl!(
    volumes_with_kubectl_1_27,
    volumes_with_kubectl_1_36,
    volumes::scenario
);
for_each_kubectl!(
    limits_with_kubectl_1_27,
    limits_with_kubectl_1_36,
    limits::scenario
);
for_each_kubectl!(
    verbs_with_kubectl_1_27,
    verbs_with_kubectl_1_36,
    verbs::scenario
);

#[test]
fn imported_image_runs_the_example_of_a_device_pod() {
    images::scenario();
}

#[test]
fn a_credential_provider_knows_the_registrys_password() {
    credentials::scenario();
}

#[test]
fn pods_are_told_when_the_machine_goes_down() {
    shutdown::scenario();
}

#[test]
fn extended_resource_by_hand() {
    limits::extended_resource();
}

#[test]
fn a_pod_as_a_whole_has_weight_and_limits() {
    cgroups::scenario();
}

#[test]
fn pods_are_resized_in_place_and_held_to_their_storage() {
    resize::scenario();
}

#[test]
fn rules_of_containers_start_them_again() {
    restarts::scenario();
}

#[test]
fn what_nodes_and_pods_use_is_shown_and_scales() {
    usage::scenario();
}

#[test]
fn a_node_follows_a_file_of_the_kubelets() {
    kubelet_config::scenario();
}

#[test]
fn images_that_nobody_uses_are_removed() {
    images::collected();
}

#[test]
fn a_private_image_is_for_who_could_have_pulled_it() {
    credentials::others();
}

#[test]
fn a_container_that_lies_to_kubectl_cp_writes_nothing_elsewhere() {
    copies::scenario();
}

#[test]
fn item_116_images_are_volumes() {
    images::volumes();
}

#[test]
fn containerd_runs_pods() {
    images::containerd();
}

/// A pod with one container that runs a shell script on the host's root; `more` are further lines of the container.
fn pod(name: &str, policy: &str, script: &str, more: &str) -> String {
    let more: String = more.lines().map(|line| format!("    {line}\n")).collect();
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: {policy}
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers:
  - name: main
    image: davit.local/host
    command: [/bin/sh, -c, {}]
{more}---
",
        serde_json::to_string(script).unwrap()
    )
}
