//! The components as separate processes that know each other only through the API server's kubeconfig.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod harness;

use harness::{DAVIT, any_kubectl, eventually, output, run, temp_dir};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Processes that end with the test.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        // In the opposite order, as an operator would: the API server last.
        for child in self.0.iter_mut().rev() {
            let _gone = child.kill();
            let _reaped = child.wait();
        }
    }
}

fn component(dir: &Path, name: &str, args: &[&str]) -> Command {
    let log = std::fs::File::create(dir.join(format!("{name}.log"))).unwrap();
    let mut command = Command::new(DAVIT);
    command
        .arg(name)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    command
}

#[test]
fn components_alone_make_a_cluster_by_kubeconfig() {
    let Some(kubectl) = any_kubectl() else { return };
    let dir = temp_dir();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let mut server = component(
        dir.path(),
        "server",
        &["--data-dir", &path("server"), "--port", "0"],
    )
    .spawn()
    .unwrap();
    let mut ready = String::new();
    BufReader::new(server.stdout.take().unwrap())
        .read_line(&mut ready)
        .unwrap();
    let mut processes = Processes(vec![server]);
    assert!(ready.starts_with("ready in "), "{ready}");
    let kubeconfig = path("server/admin.kubeconfig");
    let attached = ["--kubeconfig", &kubeconfig];
    processes.0.push(
        component(
            dir.path(),
            "scheduler",
            &[&attached[..], &["--leader-elect"]].concat(),
        )
        .spawn()
        .unwrap(),
    );
    processes.0.push(
        component(dir.path(), "controllers", &attached)
            .spawn()
            .unwrap(),
    );
    let (data, root) = (path("node"), path("root"));
    let node = [
        "--data-dir",
        &data,
        "--root",
        &root,
        "--runtime",
        "none",
        "--node-name",
        "alone",
        "--node-port",
        "0",
    ];
    processes.0.push(
        component(dir.path(), "node", &[&attached[..], &node].concat())
            .spawn()
            .unwrap(),
    );

    let kubectl = || {
        let mut command = Command::new(&kubectl);
        command
            .env("KUBECONFIG", &kubeconfig)
            .env("HOME", dir.path());
        command
    };
    let deadline = Duration::from_secs(60);
    eventually("the node is ready", deadline, || {
        let nodes = output(kubectl().args(["get", "nodes", "--no-headers"]));
        String::from_utf8_lossy(&nodes.stdout).contains("Ready")
    });
    run(kubectl().args([
        "create",
        "deployment",
        "web",
        "--image=example.test/web",
        "--replicas=3",
    ]));
    run(kubectl().args(["rollout", "status", "deployment/web", "--timeout=60s"]));
    let holder = "jsonpath={.spec.holderIdentity}";
    assert!(
        !run(kubectl().args([
            "-n",
            "kube-system",
            "get",
            "lease",
            "kube-scheduler",
            "-o",
            holder
        ]))
        .is_empty()
    );

    // A component can be stopped and started at any time, alone.
    let mut controllers = processes.0.remove(2);
    controllers.kill().unwrap();
    controllers.wait().unwrap();
    run(kubectl().args(["scale", "deployment/web", "--replicas=5"]));
    processes.0.insert(
        2,
        component(dir.path(), "controllers", &attached)
            .spawn()
            .unwrap(),
    );
    run(kubectl().args(["rollout", "status", "deployment/web", "--timeout=60s"]));
    let pods = run(kubectl().args(["get", "pods", "-l", "app=web", "--no-headers"]));
    assert_eq!(
        pods.lines().filter(|l| l.contains("Running")).count(),
        5,
        "{pods}"
    );
    run(kubectl().args(["delete", "deployment", "web", "--timeout=60s"]));
    eventually("the pods are collected", deadline, || {
        run(kubectl().args(["get", "pods", "-l", "app=web", "-o", "name"])).is_empty()
    });
}
