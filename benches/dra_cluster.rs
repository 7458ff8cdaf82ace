//! Dynamic resource allocation end to end, at the sizes people run: a davit process without nodes of its own, nodes and
//! their slices as objects, eight devices each.
//!
//! For 500 and for 5 000 nodes: pods with a claim of one device come and go while none, half, or nearly all of the
//! devices are allocated; then, on the larger cluster, one pod a node at once. Prints one row a measurement.
//! `DAVIT_BENCH_NODES=500` takes one size only. `DAVIT_BENCH_CHURN=600` shows instead what so many seconds of pods that come
//! and go leave in memory and on disk, a row a minute, and what is left two minutes after. `DAVIT_BENCH_BINARY` is another
//! davit to measure, so that two can be compared in turn.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark"
)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use http::{Method, Request};
use serde_json::{Value, json};

const DEVICES: usize = 8;
/// Pods that come and go at the same time.
const LOOPS: usize = 8;
/// How long each steady state is measured.
const STEADY: Duration = Duration::from_secs(10);
const DRIVER: &str = "gpu.example.com";
const PODS: &str = "/api/v1/namespaces/default/pods";
const RESOURCE: &str = "/apis/resource.k8s.io/v1";

struct Cluster {
    process: Child,
    client: kube::Client,
    dir: tempfile::TempDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _status = self.process.wait();
    }
}

impl Cluster {
    async fn up() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let binary = std::env::var("DAVIT_BENCH_BINARY");
        let binary = binary.unwrap_or_else(|_| env!("CARGO_BIN_EXE_davit").to_owned());
        let mut process = Command::new(binary)
            .args(["up", "--no-node", "--port", "0", "--data-dir"])
            .arg(dir.path().join("data"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let kubeconfig = lines
            .find_map(|line| {
                let line = line.unwrap();
                let word = line
                    .split_whitespace()
                    .find_map(|w| w.strip_prefix("kubeconfig="))?;
                Some(PathBuf::from(word))
            })
            .unwrap();
        // What davit prints later is not read, but must not fill the pipe.
        std::thread::spawn(move || lines.count());
        let client = davit_client::from_kubeconfig(&kubeconfig).await.unwrap();
        Self {
            process,
            client,
            dir,
        }
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Result<Value, kube::Error> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(body).unwrap())
            .unwrap();
        self.client.request(request).await
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        self.send(Method::POST, path, &body).await.unwrap()
    }

    async fn post_all(&self, objects: impl Iterator<Item = (String, Value)>) {
        futures::stream::iter(objects)
            .for_each_concurrent(32, |(path, body)| async move {
                self.post(&path, body).await;
            })
            .await;
    }

    /// Nodes with their slices, a class, a template.
    async fn furnish(&self, nodes: usize) {
        let class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"},
            "spec": {"selectors": [{"cel": {"expression": format!("device.driver == '{DRIVER}'")}}]}});
        self.post(&format!("{RESOURCE}/deviceclasses"), class).await;
        let template = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": "one"}, "spec": {"spec": one_device()}});
        let path = format!("{RESOURCE}/namespaces/default/resourceclaimtemplates");
        self.post(&path, template).await;
        self.post_all((0..nodes).map(|n| ("/api/v1/nodes".to_owned(), node(n))))
            .await;
        let slices = format!("{RESOURCE}/resourceslices");
        self.post_all((0..nodes).map(|n| (slices.clone(), slice(n))))
            .await;
    }

    /// Claims that hold the first devices of a node.
    async fn allocate(&self, node: usize, from: usize, to: usize) {
        let claims = format!("{RESOURCE}/namespaces/default/resourceclaims");
        for device in from..to {
            let name = format!("held-{node}-{device}");
            let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                "metadata": {"name": name}, "spec": one_device()});
            let mut claim = self.post(&claims, claim).await;
            claim["status"] = json!({"allocation": {
                "devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": format!("node-{node}"),
                    "device": format!("gpu-{device}")}]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                    {"key": "metadata.name", "operator": "In", "values": [format!("node-{node}")]}]}]},
            }});
            let path = format!("{claims}/{name}/status");
            self.send(Method::PUT, &path, &claim).await.unwrap();
        }
    }

    /// The pod's node is known: how long that took.
    async fn come_and_go(&self, name: &str) -> Duration {
        let started = Instant::now();
        self.post(PODS, pod(name)).await;
        let path = format!("{PODS}?watch=1&fieldSelector=metadata.name%3D{name}");
        let request = Request::get(path).body(Vec::new()).unwrap();
        let mut lines = self.client.request_stream(request).await.unwrap().lines();
        while let Some(line) = lines.try_next().await.unwrap() {
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["object"]["spec"]["nodeName"].is_string() {
                break;
            }
        }
        let took = started.elapsed();
        let now = json!({"gracePeriodSeconds": 0});
        let path = format!("{PODS}/{name}");
        self.send(Method::DELETE, &path, &now).await.unwrap();
        took
    }

    async fn steady(&self, what: &str, length: Duration) {
        let spent = self.processor_time();
        let end = Instant::now() + length;
        let loops = (0..LOOPS).map(|l| async move {
            let mut took = Vec::new();
            while Instant::now() < end {
                let name = format!("pod-{}-{l}-{}", what.replace(' ', "-"), took.len());
                took.push(self.come_and_go(&name).await);
            }
            took
        });
        let mut took: Vec<Duration> = futures::future::join_all(loops).await.concat();
        took.sort();
        let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
        let rate = took.len() as f64 / length.as_secs_f64();
        let spent = (self.processor_time() - spent).as_secs_f64() * 1e3 / took.len() as f64;
        println!(
            "  {what:<22} {rate:>7.0} pods/s   {spent:>5.1} ms CPU a pod   to node: median {:>6.1} ms, 99 % {:>7.1} ms   {}",
            at(0.5),
            at(0.99),
            self.memory()
        );
    }

    /// As many pods as nodes, at once.
    async fn burst(&self, count: usize) {
        let path = format!("{PODS}?watch=1&fieldSelector=spec.nodeName%21%3D");
        let request = Request::get(path).body(Vec::new()).unwrap();
        let mut lines = self.client.request_stream(request).await.unwrap().lines();
        let (started, spent) = (Instant::now(), self.processor_time());
        let creating = self.post_all((0..count).map(|n| (PODS.into(), pod(&format!("burst-{n}")))));
        let counting = async {
            let mut bound = BTreeSet::new();
            while bound.len() < count {
                let line = lines.try_next().await.unwrap().unwrap();
                let event: Value = serde_json::from_str(&line).unwrap();
                bound.insert(event["object"]["metadata"]["name"].to_string());
            }
        };
        futures::join!(creating, counting);
        let took = started.elapsed().as_secs_f64();
        let rate = count as f64 / took;
        let spent = (self.processor_time() - spent).as_secs_f64() * 1e3 / count as f64;
        println!(
            "  {:<22} {rate:>7.0} pods/s   {spent:>5.1} ms CPU a pod   all in {took:.1} s   {}",
            format!("{count} pods at once"),
            self.memory()
        );
    }

    /// What the process has used of the processors so far.
    fn processor_time(&self) -> Duration {
        let path = format!("/proc/{}/stat", self.process.id());
        let stat = std::fs::read_to_string(path).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let fields: Vec<&str> = fields.split_whitespace().collect();
        // utime and stime, in hundredths of a second
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }

    fn memory(&self) -> String {
        let path = format!("/proc/{}/status", self.process.id());
        let status = std::fs::read_to_string(path).unwrap();
        let kib = |field: &str| -> u64 {
            let line = status.lines().find(|l| l.starts_with(field)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        format!(
            "{} MiB resident, {} anonymous",
            kib("VmRSS:") / 1024,
            kib("RssAnon:") / 1024
        )
    }

    /// What the store takes on disk.
    fn store(&self) -> String {
        let mut bytes = 0;
        let mut dirs = vec![self.dir.path().join("data/store")];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).unwrap().flatten() {
                let Ok(meta) = entry.metadata() else { continue };
                match meta.is_dir() {
                    true => dirs.push(entry.path()),
                    false => bytes += meta.len(),
                }
            }
        }
        format!("{} MiB of store", bytes >> 20)
    }
}

fn one_device() -> Value {
    json!({"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}})
}

fn node(n: usize) -> Value {
    let name = format!("node-{n}");
    json!({"apiVersion": "v1", "kind": "Node",
    "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
    "status": {
        "allocatable": {"cpu": "32", "memory": "256Gi", "pods": "110"},
        "capacity": {"cpu": "32", "memory": "256Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }})
}

fn slice(n: usize) -> Value {
    let devices: Vec<Value> = (0..DEVICES)
        .map(|d| {
            json!({"name": format!("gpu-{d}"), "attributes": {
                "model": {"string": "a1"}, "numa": {"int": d % 2}, "uuid": {"string": format!("gpu-{n}-{d}")}}})
        })
        .collect();
    let name = format!("node-{n}");
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": format!("{name}-{DRIVER}")},
        "spec": {"driver": DRIVER, "nodeName": name, "devices": devices,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}}})
}

/// A pod that minds no taint: its nodes have no agent.
fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "tolerations": [{"operator": "Exists"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}],
        "containers": [{"name": "c", "image": "example.test/c", "resources": {"claims": [{"name": "gpu"}]}}],
    }})
}

async fn measure(nodes: usize) {
    let cluster = Cluster::up().await;
    let started = Instant::now();
    cluster.furnish(nodes).await;
    println!(
        "{nodes} nodes, {} devices (written in {:.1} s, {})",
        nodes * DEVICES,
        started.elapsed().as_secs_f64(),
        cluster.memory()
    );
    cluster.steady("empty", STEADY).await;
    let each = |from, to| {
        let cluster = &cluster;
        futures::stream::iter(0..nodes - nodes / 100).for_each_concurrent(32, move |n| async move {
            cluster.allocate(n, from, to).await;
        })
    };
    each(0, DEVICES / 2).await;
    cluster.steady("half", STEADY).await;
    each(DEVICES / 2, DEVICES).await;
    // One node in a hundred has devices left.
    cluster.steady("full", STEADY).await;
}

async fn at_once(nodes: usize) {
    let cluster = Cluster::up().await;
    cluster.furnish(nodes).await;
    cluster.burst(nodes).await;
}

/// Pods that come and go for so long.
async fn churn(length: Duration) {
    const MINUTE: Duration = Duration::from_secs(60);
    let cluster = Cluster::up().await;
    cluster.furnish(10).await;
    println!("at first: {}, {}", cluster.memory(), cluster.store());
    let minutes = length.as_secs().div_ceil(60);
    for minute in 1..=minutes {
        cluster.steady(&format!("minute {minute}"), MINUTE).await;
        println!("    {}", cluster.store());
    }
    for minute in 1..=2 {
        tokio::time::sleep(MINUTE).await;
        let (memory, store) = (cluster.memory(), cluster.store());
        println!("{minute} minutes after: {memory}, {store}");
    }
}

#[tokio::main]
async fn main() {
    if let Ok(seconds) = std::env::var("DAVIT_BENCH_CHURN") {
        return churn(Duration::from_secs(seconds.parse().unwrap())).await;
    }
    let only = std::env::var("DAVIT_BENCH_NODES").ok();
    for nodes in [500, 5000] {
        if only.as_ref().is_some_and(|o| *o != nodes.to_string()) {
            continue;
        }
        measure(nodes).await;
        at_once(nodes).await;
    }
}
