//! The real kube-apiserver, on an etcd.

use crate::harness::{eventually, output, part, run, temp_dir, tests_dir};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Who may ask by which token.
pub(crate) const TOKENS: &str =
    "admin,admin,admin,\"system:masters\"\nplain,plain,plain-uid,\"plain-group\"\n";
const READY: Duration = Duration::from_secs(120);

/// The real kube-apiserver; it ends with the value.
pub(crate) struct KubeApiserver {
    child: Child,
    pub(crate) dir: tempfile::TempDir,
    port: u16,
    kubectl: PathBuf,
}

impl Drop for KubeApiserver {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// The binary, built from tests/peers/kube-apiserver.
pub(crate) fn kube_apiserver() -> Option<PathBuf> {
    let path = tests_dir().join(".cache/kube-apiserver");
    part("kube-apiserver", path.is_file().then_some(path))
}

impl KubeApiserver {
    /// One on an etcd, ready, with flags more than it needs.
    pub(crate) fn start(binary: &Path, etcd: &str, kubectl: &Path, flags: &[&str]) -> Self {
        let dir = temp_dir();
        let file = |name: &str| dir.path().join(name).display().to_string();
        run(Command::new("openssl").args(["genrsa", "-out", &file("sa.key"), "2048"]));
        std::fs::write(file("tokens"), TOKENS).unwrap();
        // free again when it is known
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = port.unwrap().port();
        let log = std::fs::File::create(file("log")).unwrap();
        let child = Command::new(binary)
            .args(["--etcd-servers", etcd, "--bind-address", "127.0.0.1"])
            .args([
                "--secure-port",
                &port.to_string(),
                "--cert-dir",
                &file("certs"),
            ])
            .args(["--service-account-issuer", "https://kubernetes.default.svc"])
            .args(["--service-account-signing-key-file", &file("sa.key")])
            .args(["--service-account-key-file", &file("sa.key")])
            .args(["--service-cluster-ip-range", "10.96.0.0/16"])
            .args(["--service-node-port-range", "30100-30109"])
            .args([
                "--authorization-mode",
                "RBAC",
                "--token-auth-file",
                &file("tokens"),
            ])
            .args(["--advertise-address", "192.0.2.21"])
            .args(flags)
            .stderr(Stdio::from(log))
            .spawn()
            .unwrap();
        let server = Self {
            child,
            dir,
            port,
            kubectl: kubectl.to_owned(),
        };
        eventually("kube-apiserver to be ready", READY, || {
            server.try_run(&["get", "--raw", "/readyz"]).is_ok()
        });
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    pub(crate) fn try_run(&self, args: &[&str]) -> Result<String, String> {
        let url = self.url();
        let mut command = Command::new(&self.kubectl);
        command
            .env("HOME", self.dir.path())
            .env_remove("KUBECONFIG");
        command.args([
            "--server",
            &url,
            "--insecure-skip-tls-verify",
            "--token",
            "admin",
        ]);
        let out = output(command.args(args));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match out.status.success() {
            true => Ok(text(&out.stdout)),
            false => Err(text(&out.stderr)),
        }
    }

    pub(crate) fn run(&self, args: &[&str]) -> String {
        self.try_run(args)
            .unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }
}
