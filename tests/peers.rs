//! Programs of others against the real binary: built on client-go, controller-runtime, the official Python client,
//! kube-rs, and the official gRPC modules of the node agent. Their sources are below `tests/peers`.

#[path = "peers/kube-rs/controller.rs"]
mod kube_rs;
mod node;
mod operator;
pub(crate) mod parts;

use crate::harness;
use harness::{Cluster, run};
use std::process::Command;

#[test]
fn a_client_go_program_finds_its_ways() {
    let Some(program) = parts::go_peer("clientgo") else {
        return;
    };
    let cluster = Cluster::up(&["--no-node"]);
    let told = run(Command::new(program)
        .arg("--kubeconfig")
        .arg(&cluster.kubeconfig));
    println!("{told}");
}

#[test]
fn the_python_package_starts_clusters() {
    let Some(python) = parts::python() else {
        return;
    };
    let told = run(Command::new(python)
        .args(["-m", "pytest", "-q", "-p", "davit_testing.pytest_plugin"])
        .args(["-p", "no:cacheprovider"])
        .arg(harness::tests_dir().join("peers/python/test_clusters.py"))
        .env("PYTHONPATH", harness::tests_dir().join("../python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("DAVIT_BINARY", harness::DAVIT));
    println!("{told}");
}

#[test]
fn the_python_client_finds_its_ways() {
    let Some(python) = parts::python() else {
        return;
    };
    let cluster = Cluster::up(&["--no-node"]);
    let told = run(Command::new(python)
        .arg(harness::tests_dir().join("peers/python/client.py"))
        .arg(&cluster.kubeconfig));
    println!("{told}");
}
