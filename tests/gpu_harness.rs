//! The example GPU driver as a process beside a cluster, and what to ask of it.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses a part of the harness"
)]

use crate::harness::{Cluster, DAVIT, kubectl, kubectl_stdin};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Name of the driver.
pub const DRIVER: &str = "gpu.davit.dev";

/// Where the parts of a cluster are that a driver needs; outlives restarts of the cluster.
#[derive(Debug, Clone)]
pub struct Site {
    pub dir: PathBuf,
    pub kubeconfig: PathBuf,
}

impl Site {
    pub fn of(cluster: &Cluster) -> Self {
        let site = Self {
            dir: cluster.dir.path().to_owned(),
            kubeconfig: cluster.kubeconfig.clone(),
        };
        std::fs::create_dir_all(site.dev_dir()).unwrap();
        site
    }

    pub fn cdi_dir(&self) -> PathBuf {
        self.dir.join("root/var/run/cdi")
    }

    pub fn kubelet_dir(&self) -> PathBuf {
        self.dir.join("root/var/lib/kubelet")
    }

    /// The folder with the lists of broken and tainted devices.
    pub fn dev_dir(&self) -> PathBuf {
        self.dir.join("gpus")
    }

    /// Whether an instance serves.
    pub fn serves(&self, instance: &str) -> bool {
        let socket = format!("{DRIVER}-{instance}-reg.sock");
        let path = self.kubelet_dir().join("plugins_registry").join(socket);
        std::os::unix::net::UnixStream::connect(path).is_ok()
    }

    /// The driver's CDI files.
    pub fn cdi_files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.cdi_dir()).into_iter().flatten();
        let names = entries
            .flatten()
            .map(|e| e.file_name().into_string().unwrap());
        names.filter(|n| n.contains(".davit.dev")).collect()
    }
}

/// An instance of the driver; killed when it is dropped.
pub struct Gpus {
    child: Child,
}

impl Gpus {
    pub fn start(site: &Site, instance: &str, args: &[&str]) -> Self {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(site.dir.join("driver.log"))
            .unwrap();
        let child = Command::new(DAVIT)
            .args([
                "example-gpu",
                "--node-name",
                "node-1",
                "--instance",
                instance,
            ])
            .arg("--kubeconfig")
            .arg(&site.kubeconfig)
            .arg("--kubelet-dir")
            .arg(site.kubelet_dir())
            .arg("--cdi-dir")
            .arg(site.cdi_dir())
            .arg("--dev-dir")
            .arg(site.dev_dir())
            .args(args)
            .env("DAVIT_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child }
    }

    /// Ends it as a power cut would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it as an orderly update does.
    pub fn stop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Gpus {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill();
        }
    }
}

/// A class of all devices of another driver of the same kind.
pub fn class_of(name: &str, driver: &str) -> String {
    format!(
        "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {{name: {name}}}\nspec:\n  selectors:\n  \
         - cel: {{expression: \"device.driver == '{driver}'\"}}\n---\n"
    )
}

/// A class of the driver's devices that a CEL expression selects.
pub fn class(name: &str, kinds: &str) -> String {
    format!(
        "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {{name: {name}}}\nspec:\n  selectors:\n  \
         - cel: {{expression: \"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type in [{kinds}]\"}}\n---\n"
    )
}

/// A claim with such a spec.
pub fn claim(name: &str, devices: &str) -> String {
    format!(
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {{name: {name}}}\nspec:\n  devices:\n{devices}\n---\n"
    )
}

/// A pod whose containers, `name: claims`, write what they have of the driver and stay.
pub fn pod(name: &str, claims: &[&str], containers: &[(&str, &str)]) -> String {
    let claims: String = claims
        .iter()
        .map(|c| format!("  - {{name: {c}, resourceClaimName: {c}}}\n"))
        .collect();
    let containers: String = containers
        .iter()
        .map(|(container, claims)| {
            format!(
                "  - name: {container}\n    image: davit.local/host\n    resources: {{claims: [{claims}]}}\n    command: \
                 [/bin/sh, -c, 'env | grep ^GPU_DEVICE | sort; ls /dev/davit-gpu; echo done; while :; do sleep 1000; done']\n"
            )
        })
        .collect();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         automountServiceAccountToken: false\n  restartPolicy: Never\n  resourceClaims:\n{claims}  containers:\n{containers}---\n"
    )
}

/// Applies manifests.
pub fn apply(cluster: &Cluster, binary: &Path, manifest: &str) {
    kubectl_stdin(cluster, binary, &["apply", "-f", "-"], manifest);
}

/// Waits until pods run.
pub fn running(cluster: &Cluster, binary: &Path, pods: &[&str]) {
    let mut args = vec!["wait", "--for=condition=Ready", "--timeout=150s"];
    let names: Vec<String> = pods.iter().map(|p| format!("pod/{p}")).collect();
    args.extend(names.iter().map(String::as_str));
    kubectl(cluster, binary, args);
}

/// The devices a container has, by its environment, and all it has written.
pub fn devices(
    cluster: &Cluster,
    binary: &Path,
    pod: &str,
    container: &str,
) -> (Vec<String>, String) {
    let mut text = String::new();
    crate::harness::eventually(
        "the container has written",
        std::time::Duration::from_secs(60),
        || {
            text = kubectl(cluster, binary, ["logs", pod, "-c", container]);
            text.ends_with("done\n")
        },
    );
    let lines = text
        .lines()
        .filter(|l| !l.starts_with("GPU_DEVICE") && *l != "done");
    (lines.map(str::to_owned).collect(), text)
}
