//! Building and finding the programs of others.

use crate::harness::{Cluster, kubectl, kubectl_stdin, part, run, tests_dir};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// A program of `tests/packages/{folder}`, built once into `tests/.cache/{name}` when there is a Go toolchain. `package`
/// is what is built, in the words of `go build`.
pub(crate) fn package(folder: &str, package: &str, name: &str) -> Option<PathBuf> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let built = tests_dir().join(".cache").join(name);
    if !built.is_file() {
        let output = Command::new("go")
            .args(["build", "-trimpath", "-ldflags", "-s -w", "-o"])
            .arg(&built)
            .arg(package)
            .current_dir(tests_dir().join("packages").join(folder))
            .output();
        match output {
            Ok(output) if output.status.success() => {}
            Ok(output) => println!(
                "{name} was not built: {}",
                String::from_utf8_lossy(&output.stderr)
            ),
            Err(error) => println!("{name} was not built: {error}"),
        }
    }
    part(name, built.is_file().then_some(built))
}

/// Where the sources of a module are that a folder's programs are built from; nothing without a Go toolchain.
pub(crate) fn module(folder: &str, module: &str) -> Option<PathBuf> {
    let output = Command::new("go")
        .args(["list", "-m", "-f", "{{.Dir}}", module])
        .current_dir(tests_dir().join("packages").join(folder))
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then(|| text.into())
}

/// A program of others that runs beside the cluster; ends with the value.
pub(crate) struct Program {
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts it with its output in a file.
    pub(crate) fn start(program: &Path, args: &[String], log: &Path) -> Self {
        let file = std::fs::File::create(log).unwrap();
        let child = Command::new(program)
            .args(args)
            .env_remove("KUBERNETES_SERVICE_HOST")
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Self {
            child,
            log: log.to_owned(),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(25).collect();
            eprintln!("--- end of {}", self.log.display());
            for line in tail.iter().rev() {
                eprintln!("{line}");
            }
        }
    }
}

/// A port nobody listens on.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// A kubeconfig with a token of a service account.
pub(crate) fn account(c: &Cluster, k: &Path, namespace: &str, name: &str) -> PathBuf {
    let token = kubectl(c, k, ["create", "token", name, "-n", namespace]);
    let config = c.dir.path().join(format!("{name}.kubeconfig"));
    std::fs::copy(&c.kubeconfig, &config).unwrap();
    let token = format!("--token={}", token.trim());
    for args in [
        ["config", "set-credentials", name, token.as_str()],
        [
            "config",
            "set-context",
            "--current",
            &format!("--user={name}"),
        ],
    ] {
        run(c.kubectl(k).env("KUBECONFIG", &config).args(args));
    }
    config
}

/// Puts a program on this machine behind a Service of the cluster.
pub(crate) fn backend(c: &Cluster, k: &Path, namespace: &str, service: &str, port: &str, on: u16) {
    let slice = serde_json::json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "FQDN",
        "metadata": {"name": format!("{service}-beside"), "namespace": namespace,
            "labels": {"kubernetes.io/service-name": service}},
        "endpoints": [{"addresses": ["localhost"], "conditions": {"ready": true}}],
        "ports": [{"name": port, "port": on}],
    });
    kubectl_stdin(c, k, &["create", "-f", "-"], &slice.to_string());
}
