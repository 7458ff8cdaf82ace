//! Kubernetes' own benchmark of schedulers, scheduler_perf, by the names of its workloads: on davit, and on kube-apiserver with
//! etcd, kube-scheduler and kube-controller-manager, by one driver on one machine.
//!
//! The workloads are read from the module of Kubernetes, unchanged: files `performance-config.yaml` and the templates beside
//! them. Arguments say which, by words that their names have to contain; without any, those are run of which the
//! specification of the scheduler has goals. `DAVIT_BENCH_PEERS=davit` leaves Kubernetes out, `DAVIT_BENCH_CASES` is the folder
//! of the workloads where it is not that of the module that the tests build kube-apiserver from, `DAVIT_BENCH_BINARY` another davit.
#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark"
)]

mod api;
mod cases;
mod peers;
mod pods;
mod run;
mod template;

use anyhow::{Context, Result, bail};
use cases::{Case, CaseFile, Workload};
use peers::{Cluster, Peer, Wanted};
use run::{Outcome, Run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is run where nobody says what: name of the workload, in full.
const USUAL: [&str; 13] = [
    "SchedulingBasic/5000Nodes_10000Pods_QueueingHintsEnabled",
    "SchedulingNodeAffinity/5000Nodes_10000Pods_QueueingHintsEnabled",
    "SchedulingPodAntiAffinity/5000Nodes_2000Pods_QueueingHintsEnabled",
    "SchedulingPodAffinity/5000Nodes_5000Pods_QueueingHintsEnabled",
    "TopologySpreading/5000Nodes_5000Pods_QueueingHintsEnabled",
    "PreferredTopologySpreading/5000Nodes_5000Pods_QueueingHintsEnabled",
    "PreemptionBasic/1000Nodes_QueueingHintsEnabled",
    "Unschedulable/5kNodes/100Init/1kPods",
    "SchedulingWithResourceClaimTemplate/5000pods_500nodes_QueueingHintsEnabled",
    "SteadyStateClusterResourceClaimTemplate/empty_500nodes_QueueingHintsEnabled",
    "SteadyStateClusterResourceClaimTemplate/half_500nodes_QueueingHintsEnabled",
    "SteadyStateClusterResourceClaimTemplate/full_500nodes_QueueingHintsEnabled",
    "SchedulingWithResourceClaim/5000pods_500nodes",
];

/// Where the workloads are: in the module that kube-apiserver is built from.
fn root() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("DAVIT_BENCH_CASES") {
        return Ok(dir.into());
    }
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/peers/kube-apiserver");
    let mut go = Command::new("go");
    go.args(["list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"]);
    let out = go.current_dir(&module).output().context("go")?;
    let dir = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    if dir.is_empty() {
        bail!(
            "the module of Kubernetes is not here: cd tests/peers/kube-apiserver && go mod download k8s.io/kubernetes"
        );
    }
    Ok(Path::new(&dir).join("test/integration/scheduler_perf"))
}

fn chosen<'a>(files: &'a [CaseFile], words: &[String]) -> Vec<(&'a Path, &'a Case, &'a Workload)> {
    let all = files.iter().flat_map(|file| {
        let of_file = file.cases.iter();
        of_file.flat_map(move |case| {
            case.workloads
                .iter()
                .map(move |w| (file.dir.as_path(), case, w))
        })
    });
    let mut chosen: Vec<_> = all
        .filter(|(_, case, workload)| {
            let name = full_name(case, workload);
            match words.is_empty() {
                true => USUAL.contains(&name.as_str()),
                false => words.iter().any(|word| name.contains(word)),
            }
        })
        .collect();
    let place = |case: &Case, workload: &Workload| {
        let name = full_name(case, workload);
        USUAL.iter().position(|usual| **usual == name)
    };
    chosen.sort_by_key(|(_, case, workload)| place(case, workload));
    chosen
}

fn full_name(case: &Case, workload: &Workload) -> String {
    format!("{}/{}", case.name, workload.name)
}

async fn measure(peer: Peer, dir: &Path, case: &Case, workload: &Workload) -> Result<Outcome> {
    let config = case
        .scheduler_config_path
        .as_ref()
        .map(|path| dir.join(path));
    let gates = case.gates(workload);
    let wanted = Wanted {
        gates: &gates,
        scheduler_config: config.as_deref(),
    };
    let cluster = Cluster::start(peer, &wanted).await?;
    Run::new(&cluster, dir, case, workload).all().await
}

fn print(peer: Peer, outcome: &Outcome) {
    println!(
        "  {:<11} {:>6.0} pods/s   {:>6.2} ms CPU a pod   to node: median {:>7.1} ms, 99 % {:>8.1} ms   {:>5} MiB   ({} pods)",
        peer.name(),
        outcome.pods_per_second,
        outcome.processor_ms,
        outcome.median_ms,
        outcome.p99_ms,
        outcome.resident_mib,
        outcome.pods,
    );
}

#[tokio::main]
async fn main() -> Result<()> {
    let words = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"));
    let words: Vec<String> = words.collect();
    let files = cases::read_all(&root()?)?;
    let chosen = chosen(&files, &words);
    if chosen.is_empty() {
        bail!("no workload has one of {words:?} in its name");
    }
    let named = std::env::var("DAVIT_BENCH_PEERS").unwrap_or_default();
    let peers: Vec<Peer> = [Peer::Davit, Peer::Kubernetes]
        .into_iter()
        .filter(|peer| named.is_empty() || named.split(',').any(|name| name == peer.name()))
        .collect();
    for (dir, case, workload) in chosen {
        println!(
            "{} [{}]",
            full_name(case, workload),
            workload.labels.join(", ")
        );
        let mut outcomes = Vec::new();
        for peer in &peers {
            match measure(*peer, dir, case, workload).await {
                Ok(outcome) => {
                    print(*peer, &outcome);
                    outcomes.push(outcome);
                }
                Err(error) => println!("  {:<11} not measured: {error:#}", peer.name()),
            }
        }
        if let [davit, kubernetes] = outcomes.as_slice() {
            println!(
                "  {:<11} {:>6.1} × pods/s   {:>5.1} × by CPU   {:.2} × memory",
                "ratio",
                davit.pods_per_second / kubernetes.pods_per_second,
                kubernetes.processor_ms / davit.processor_ms,
                davit.resident_mib as f64 / kubernetes.resident_mib as f64,
            );
        }
    }
    Ok(())
}
