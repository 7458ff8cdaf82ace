//! envtest of controller-runtime, unchanged, on what `davit test-assets` makes; and the flags that it gives.

use crate::{harness, peers::parts};
use harness::{Cluster, run};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn davit() -> Command {
    Command::new(env!("CARGO_BIN_EXE_davit"))
}

/// Made in `dir` by the command that people use.
fn assets(dir: &Path) -> PathBuf {
    let assets = dir.join("assets");
    let told = run(davit().arg("test-assets").arg(&assets));
    assert_eq!(
        told.trim(),
        format!("export KUBEBUILDER_ASSETS='{}'", assets.display())
    );
    assets
}

#[test]
fn a_suite_runs_on_it_unchanged_and_nothing_is_left() {
    let Some(program) = parts::go_peer("envtest") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let temporary = dir.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let told = run(Command::new(program)
        .env("KUBEBUILDER_ASSETS", assets(dir.path()))
        .env("TMPDIR", &temporary));
    println!("{told}");
    for name in ["objects", "webhook", "users", "tokens", "services"] {
        assert!(told.contains(&format!("ok {name}\n")), "{name}");
    }
    let left: Vec<_> = std::fs::read_dir(&temporary).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let running = std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&*dir.path().to_string_lossy())
    });
    assert!(!running, "a program of the suite goes on");
}

/// A program of the folder, killed at the end.
struct Program(Child);

impl Program {
    fn start(path: &Path, flags: &[&str]) -> Self {
        let mut command = Command::new(path);
        let command = command.args(flags).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn terminate(&mut self) {
        run(Command::new("kill").arg(self.0.id().to_string()));
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn objects_are_where_etcd_says_and_a_new_certificate_is_shown() {
    let Some(curl) = harness::program("curl") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let assets = assets(dir.path());
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    let (certs, data) = (dir.path().join("certs"), dir.path().join("etcd"));
    std::fs::create_dir(&certs).unwrap();
    let certify = |name: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![name.to_owned(), "127.0.0.1".to_owned()]);
        let certificate = params.unwrap().self_signed(&key).unwrap();
        std::fs::write(certs.join("apiserver.crt"), certificate.pem()).unwrap();
        // Long enough that the certificate is seen without its key.
        if certs.join("apiserver.key").exists() {
            std::thread::sleep(Duration::from_millis(1500));
        }
        std::fs::write(certs.join("apiserver.key"), key.serialize_pem()).unwrap();
    };
    certify("first.test");
    let etcd = format!("http://127.0.0.1:{}", free_port());
    let _etcd = Program::start(
        &assets.join("etcd"),
        &[
            "--data-dir",
            &text(data.clone()),
            "--listen-client-urls",
            &etcd,
            "--unsafe-no-fsync=true",
        ],
    );
    let answers = |url: &str, name: Option<&str>| -> Option<String> {
        let mut command = Command::new(&curl);
        command.args(["--silent", "--fail", "--max-time", "5"]);
        if let Some(name) = name {
            command.arg("--cacert").arg(certs.join("apiserver.crt"));
            let port = url.rsplit(':').next()?.split('/').next()?;
            command.args(["--resolve", &format!("{name}:{port}:127.0.0.1")]);
            command.arg(url.replace("127.0.0.1", name));
        } else {
            command.arg(url);
        }
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(told)
    };
    let health = eventually("etcd's health", || answers(&format!("{etcd}/health"), None));
    assert!(health.contains(r#""health":"true""#), "{health}");
    let port = free_port().to_string();
    let flags = [
        "--cert-dir",
        &text(certs.clone()),
        "--etcd-servers",
        &etcd,
        "--secure-port",
        // The last one counts, as everywhere in Kubernetes.
        "1",
        "--secure-port",
        &port,
        "--allow-privileged=true",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--disable-admission-plugins=ServiceAccount",
    ];
    let url = format!("https://127.0.0.1:{port}/readyz");
    let mut server = Program::start(&assets.join("kube-apiserver"), &flags);
    eventually("ready", || answers(&url, Some("first.test")));
    // The administrator's kubeconfig knows the cluster's own authority only.
    let kubectl = |words: &[&str]| {
        let kubectl = harness::kubectl_binary("1.36")?;
        let mut command = Command::new(kubectl);
        command.env("KUBECONFIG", certs.join("admin.kubeconfig"));
        Some(run(command.args(words)))
    };
    let has_kubectl = kubectl(&["create", "namespace", "kept"]).is_some();
    certify("second.test");
    eventually("the new certificate", || answers(&url, Some("second.test")));
    server.terminate();
    drop(server);
    // The directory is etcd's, and a server that starts anew finds in it what was written.
    assert!(data.join("davit").is_dir());
    let _server = Program::start(&assets.join("kube-apiserver"), &flags);
    eventually("ready again", || answers(&url, Some("second.test")));
    if has_kubectl {
        kubectl(&["get", "namespace", "kept"]);
    }
}

#[test]
fn services_have_the_addresses_and_ports_of_the_flags_for_life() {
    let Some(kubectl) = harness::kubectl_binary("1.36") else {
        return;
    };
    let mut cluster = Cluster::up(&[
        "--no-node",
        "--service-cluster-ip-range=10.123.0.0/29",
        "--service-node-port-range=31000-31001",
    ]);
    let create = |name: &str, kind: &str| {
        let mut command = cluster.kubectl(&kubectl);
        command.args(["create", "service", kind, name, "--tcp=80"]);
        command.output().unwrap()
    };
    let shown = |path: &str, what: &str| {
        let mut command = cluster.kubectl(&kubectl);
        run(command.args(["get", what, "-o", &format!("jsonpath={{{path}}}")]))
    };
    assert_eq!(shown(".spec.clusterIP", "service/kubernetes"), "10.123.0.1");
    assert_eq!(
        shown(".spec.cidrs", "servicecidr/kubernetes"),
        r#"["10.123.0.0/29"]"#
    );
    for name in ["a", "b"] {
        let output = create(name, "nodeport");
        assert!(output.status.success(), "{output:?}");
    }
    let ports = shown(".items[*].spec.ports[*].nodePort", "services");
    let mut ports: Vec<&str> = ports.split_whitespace().collect();
    ports.sort_unstable();
    assert_eq!(ports, ["31000", "31001"]);
    let full = create("c", "nodeport");
    assert!(
        String::from_utf8_lossy(&full.stderr).contains("range is full"),
        "{full:?}"
    );
    // .1 and two of ours of six
    let mut more = 0;
    while create(&format!("d{more}"), "clusterip").status.success() {
        more += 1;
        assert!(more < 6, "a range of six addresses does not end");
    }
    assert_eq!(more, 3);
    cluster.interrupt();
    let data = cluster.dir.path().join("data");
    let output = davit()
        .args(["up", "--no-node", "--port", "0", "--data-dir"])
        .arg(&data)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("start it with --service-cluster-ip-range=10.123.0.0/29"),
        "{said}"
    );
}
