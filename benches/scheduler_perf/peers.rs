//! What is measured: davit, or Kubernetes' own programs, each in a folder of its own.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const READY: Duration = Duration::from_secs(120);
/// As scheduler_perf switches off: pods need no service account, nodes that nobody has heard of are not tainted.
const NO_ADMISSION: &str = "ServiceAccount,TaintNodesByCondition,Priority";
/// The controllers that scheduler_perf runs.
const CONTROLLERS: &str =
    "garbage-collector-controller,namespace-controller,resourceclaim-controller";
/// Requests a second of the scheduler and the controllers, as scheduler_perf has it.
const RATE: u32 = 5000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    Davit,
    Kubernetes,
}

impl Peer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Davit => "davit",
            Self::Kubernetes => "kubernetes",
        }
    }
}

/// What a workload asks of its cluster.
pub(crate) struct Wanted<'a> {
    pub(crate) gates: &'a BTreeMap<String, bool>,
    pub(crate) scheduler_config: Option<&'a Path>,
}

/// A cluster without node agents; it ends with the value.
pub(crate) struct Cluster {
    processes: Vec<Child>,
    pub(crate) client: kube::Client,
    _dir: tempfile::TempDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            let _gone = process.kill();
            let _status = process.wait();
        }
    }
}

/// Processor time and memory of all processes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    pub(crate) processor: Duration,
    pub(crate) resident_mib: u64,
}

impl Cluster {
    pub(crate) async fn start(peer: Peer, wanted: &Wanted<'_>) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        match peer {
            Peer::Davit => davit(dir, wanted).await,
            Peer::Kubernetes => kubernetes(dir, wanted).await,
        }
    }

    pub(crate) fn used(&self) -> Result<Used> {
        let mut used = Used {
            processor: Duration::ZERO,
            resident_mib: 0,
        };
        for process in &self.processes {
            let dir = PathBuf::from("/proc").join(process.id().to_string());
            let stat = std::fs::read_to_string(dir.join("stat")).context("a process has ended")?;
            let (_, fields) = stat.rsplit_once(')').context("stat")?;
            // utime and stime, in hundredths of a second
            let ticks = fields.split_whitespace().skip(11).take(2);
            let ticks: u64 = ticks.filter_map(|field| field.parse::<u64>().ok()).sum();
            used.processor += Duration::from_millis(ticks * 10);
            let status = std::fs::read_to_string(dir.join("status"))?;
            let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let resident = resident.and_then(|line| line.split_whitespace().next()?.parse().ok());
            used.resident_mib += resident.unwrap_or(0_u64) / 1024;
        }
        Ok(used)
    }
}

fn gates(gates: &BTreeMap<String, bool>) -> String {
    let gates = gates.iter().map(|(name, value)| format!("{name}={value}"));
    gates.collect::<Vec<_>>().join(",")
}

/// The workload's configuration of the scheduler with what this cluster needs of it.
fn scheduler_config(wanted: &Wanted<'_>, dir: &Path, add: &Value) -> Result<PathBuf> {
    let mut config: Value = match wanted.scheduler_config {
        Some(path) => serde_saphyr::from_str(&std::fs::read_to_string(path)?)?,
        None => json!({}),
    };
    config["apiVersion"] = json!("kubescheduler.config.k8s.io/v1");
    config["kind"] = json!("KubeSchedulerConfiguration");
    for (key, value) in add.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    let path = dir.join("scheduler.yaml");
    std::fs::write(&path, serde_json::to_vec(&config)?)?;
    Ok(path)
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn spawn(command: &mut Command, log: &Path) -> Result<Child> {
    let program = command.get_program().display().to_string();
    let log = File::create(log)?;
    let command = command.stdout(log.try_clone()?).stderr(log);
    command.spawn().with_context(|| program)
}

/// The last lines of a log, for a process that does not become ready.
fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(4).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

async fn davit(dir: tempfile::TempDir, wanted: &Wanted<'_>) -> Result<Cluster> {
    let binary = std::env::var("DAVIT_BENCH_BINARY");
    let binary = binary.unwrap_or_else(|_| env!("CARGO_BIN_EXE_davit").to_owned());
    let (data, log) = (dir.path().join("data"), dir.path().join("davit.log"));
    let config = scheduler_config(wanted, dir.path(), &json!({}))?;
    let mut command = Command::new(binary);
    command
        .args(["up", "--no-node", "--port", "0", "--data-dir"])
        .arg(&data)
        .args(["--disable-admission-plugins", NO_ADMISSION])
        .arg(format!("--controllers={CONTROLLERS}"))
        .arg("--scheduler-config")
        .arg(config);
    if !wanted.gates.is_empty() {
        command.arg(format!("--feature-gates={}", gates(wanted.gates)));
    }
    let mut process = spawn(&mut command, &log)?;
    let end = Instant::now() + READY;
    let kubeconfig = loop {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let mut words = text.split_whitespace();
        if let Some(path) = words.find_map(|word| word.strip_prefix("kubeconfig=")) {
            break PathBuf::from(path);
        }
        if process.try_wait()?.is_some() || Instant::now() > end {
            let _gone = process.kill();
            bail!("davit is not ready: {}", tail(&log));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let client = davit_client::from_kubeconfig(&kubeconfig).await?;
    Ok(Cluster {
        processes: vec![process],
        client,
        _dir: dir,
    })
}

/// A program of Kubernetes that the tests have built, or say how.
fn built(name: &str) -> Result<PathBuf> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
    let path = tests.join(".cache").join(name);
    if path.is_file() {
        return Ok(path.canonicalize()?);
    }
    let how = match name {
        "etcd-3.6" => "cd tests/peers/etcd && go build -o ../../.cache/etcd-3.6 .".to_owned(),
        _ => format!(
            "cd tests/peers/kube-apiserver && go build -o ../../.cache/{name} k8s.io/kubernetes/cmd/{name}"
        ),
    };
    bail!("{name} is not built: {how}")
}

async fn kubernetes(dir: tempfile::TempDir, wanted: &Wanted<'_>) -> Result<Cluster> {
    let file = |name: &str| dir.path().join(name);
    let text = |name: &str| file(name).display().to_string();
    let mut processes = Processes(Vec::new());
    let (etcd, peers) = (free_port()?, free_port()?);
    processes.0.push(spawn(
        Command::new(built("etcd-3.6")?)
            .args(["--data-dir", &text("etcd"), "--log-level", "error"])
            .arg(format!("--listen-client-urls=http://127.0.0.1:{etcd}"))
            .arg(format!("--advertise-client-urls=http://127.0.0.1:{etcd}"))
            .arg(format!("--listen-peer-urls=http://127.0.0.1:{peers}"))
            .arg(format!(
                "--initial-advertise-peer-urls=http://127.0.0.1:{peers}"
            ))
            .arg(format!(
                "--initial-cluster=default=http://127.0.0.1:{peers}"
            )),
        &file("etcd.log"),
    )?);
    let mut openssl = Command::new("openssl");
    let made = openssl
        .args(["genrsa", "-out", &text("sa.key"), "2048"])
        .output();
    made.context("openssl")?;
    std::fs::write(file("tokens"), "admin,admin,admin,\"system:masters\"\n")?;
    let port = free_port()?;
    let gates = gates(wanted.gates);
    let gated = |command: &mut Command| {
        if !gates.is_empty() {
            command.arg(format!("--feature-gates={gates}"));
        }
    };
    let mut apiserver = Command::new(built("kube-apiserver")?);
    apiserver
        .arg(format!("--etcd-servers=http://127.0.0.1:{etcd}"))
        .args(["--bind-address", "127.0.0.1", "--cert-dir", &text("certs")])
        .arg(format!("--secure-port={port}"))
        .args(["--service-account-issuer", "https://kubernetes.default.svc"])
        .args(["--service-account-signing-key-file", &text("sa.key")])
        .args(["--service-account-key-file", &text("sa.key")])
        .args(["--service-cluster-ip-range", "10.96.0.0/16"])
        .args(["--authorization-mode", "RBAC"])
        .args(["--token-auth-file", &text("tokens")])
        .args(["--disable-admission-plugins", NO_ADMISSION])
        .arg("--runtime-config=resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true,resource.k8s.io/v1alpha3=true");
    gated(&mut apiserver);
    processes
        .0
        .push(spawn(&mut apiserver, &file("kube-apiserver.log"))?);
    let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("https://127.0.0.1:{port}"), "insecure-skip-tls-verify": true}}],
        "users": [{"name": "u", "user": {"token": "admin"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
    std::fs::write(file("kubeconfig"), serde_json::to_vec(&kubeconfig)?)?;
    let client = davit_client::from_kubeconfig(&file("kubeconfig")).await?;
    processes
        .until_ready(&client, &file("kube-apiserver.log"))
        .await?;
    let connection = json!({"leaderElection": {"leaderElect": false},
        "clientConnection": {"kubeconfig": text("kubeconfig"), "qps": RATE, "burst": RATE}});
    let config = scheduler_config(wanted, dir.path(), &connection)?;
    let mut scheduler = Command::new(built("kube-scheduler")?);
    scheduler
        .arg("--config")
        .arg(config)
        .arg(format!("--secure-port={}", free_port()?));
    gated(&mut scheduler);
    processes
        .0
        .push(spawn(&mut scheduler, &file("kube-scheduler.log"))?);
    let mut manager = Command::new(built("kube-controller-manager")?);
    manager
        .args(["--kubeconfig", &text("kubeconfig"), "--leader-elect=false"])
        .arg(format!("--controllers={CONTROLLERS}"))
        .arg(format!("--kube-api-qps={RATE}"))
        .arg(format!("--kube-api-burst={RATE}"))
        .arg(format!("--secure-port={}", free_port()?));
    gated(&mut manager);
    processes
        .0
        .push(spawn(&mut manager, &file("kube-controller-manager.log"))?);
    // A component that refuses its flags does so at once.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for (process, log) in processes
        .0
        .iter_mut()
        .skip(2)
        .zip(["scheduler", "controller-manager"])
    {
        if process.try_wait()?.is_some() {
            bail!(
                "kube-{log} has ended: {}",
                tail(&file(&format!("kube-{log}.log")))
            );
        }
    }
    Ok(Cluster {
        processes: std::mem::take(&mut processes.0),
        client,
        _dir: dir,
    })
}

/// Processes on their way to be a cluster.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _gone = process.kill();
            let _status = process.wait();
        }
    }
}

impl Processes {
    async fn until_ready(&mut self, client: &kube::Client, log: &Path) -> Result<()> {
        let end = Instant::now() + READY;
        loop {
            let request = http::Request::get("/readyz").body(Vec::new())?;
            if client.request_text(request).await.is_ok() {
                return Ok(());
            }
            let mut ended = false;
            for process in &mut self.0 {
                ended |= process.try_wait()?.is_some();
            }
            if ended || Instant::now() > end {
                bail!("kube-apiserver is not ready: {}", tail(log));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}
