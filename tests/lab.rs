//! The laboratory with real parts: simulated nodes and devices in a whole cluster, checks of real plugins and monitors.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod harness;

#[path = "peers/parts.rs"]
#[allow(dead_code, reason = "each test program uses a part of it")]
mod parts;

use harness::{Cluster, DAVIT, any_kubectl, eventually, kubectl, kubectl_stdin, output, temp_dir};
use std::process::Command;
use std::time::Duration;

const INVENTORY: &str = "
resources:
- name: hardware-vendor.example/foo
  count: 4
  numaNodes: [0, 1]
- name: hardware-vendor.example/rare
  count: 2
  nodes: [sim-1]
  script: [{at: 1h, unhealthy: [rare-0]}]
";

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: users}
spec:
  replicas: 6
  selector: {matchLabels: {app: users}}
  template:
    metadata: {labels: {app: users}}
    spec:
      containers:
      - name: main
        image: none
        resources: {limits: {hardware-vendor.example/foo: 2}}
---
apiVersion: v1
kind: Pod
metadata: {name: picky}
spec:
  containers:
  - name: main
    image: none
    resources: {limits: {hardware-vendor.example/rare: 1}}
";

#[test]
fn pods_are_scheduled_on_simulated_nodes_and_get_their_devices() {
    let Some(kubectl_binary) = any_kubectl() else {
        return;
    };
    let dir = temp_dir();
    let file = dir.path().join("devices.yaml");
    std::fs::write(&file, INVENTORY).unwrap();
    let devices = file.display().to_string();
    let cluster = Cluster::up(&["--no-node", "--sim-nodes", "3", "--devices", &devices]);
    let ask = |args: &[&str]| kubectl(&cluster, &kubectl_binary, args);
    let long = Duration::from_secs(90);
    eventually("the devices are on all nodes", long, || {
        let path =
            r"jsonpath={range .items[*]}{.status.allocatable.hardware-vendor\.example/foo} {end}";
        ask(&["get", "nodes", "-l", "davit.dev/simulated=true", "-o", path]).trim() == "4 4 4"
    });
    kubectl_stdin(&cluster, &kubectl_binary, &["apply", "-f", "-"], DEPLOYMENT);
    ask(&["rollout", "status", "deployment/users", "--timeout=90s"]);
    ask(&[
        "wait",
        "pod/picky",
        "--for=condition=Ready",
        "--timeout=60s",
    ]);
    let node = ask(&["get", "pod", "picky", "-o", "jsonpath={.spec.nodeName}"]);
    assert_eq!(node, "sim-1");
    // All twelve devices are held, each by one container.
    let told = output(
        Command::new(DAVIT)
            .args(["devices", "-o", "json", "--kubeconfig"])
            .arg(&cluster.kubeconfig),
    );
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    let all = told["nodes"].as_array().unwrap().iter();
    let devices: Vec<_> = all.flat_map(|n| n["devices"].as_array().unwrap()).collect();
    let held = |resource: &str, holders: usize| {
        let of = devices.iter().filter(|d| d["resource"] == resource);
        let holding =
            |d: &&&&serde_json::Value| d["holders"].as_array().map_or(0, Vec::len) == holders;
        of.filter(|d| holding(&d)).count()
    };
    assert_eq!(held("hardware-vendor.example/foo", 1), 12, "{told}");
    assert_eq!(held("hardware-vendor.example/rare", 1), 1, "{told}");
}

const DRIVERS: &str = "
drivers:
- name: gpu.vendor.example
  devices:
  - name: gpu-{n}
    count: 2
    attributes: {index: '{n}'}
  latency: {prepare: 100ms}
  faults: {prepare: {manner: crash, times: 1}}
";

const CLAIMS: &str = "
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec:
  selectors: [{cel: {expression: 'device.driver == \"gpu.vendor.example\"'}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec:
  spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu}}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: claimers}
spec:
  replicas: 4
  selector: {matchLabels: {app: claimers}}
  template:
    metadata: {labels: {app: claimers}}
    spec:
      resourceClaims: [{name: gpu, resourceClaimTemplateName: one}]
      containers:
      - name: main
        image: none
        resources: {claims: [{name: gpu}]}
";

#[test]
fn simulated_drivers_serve_claims_although_they_die_in_the_middle() {
    let Some(kubectl_binary) = any_kubectl() else {
        return;
    };
    let dir = temp_dir();
    let file = dir.path().join("drivers.yaml");
    std::fs::write(&file, DRIVERS).unwrap();
    let devices = file.display().to_string();
    let cluster = Cluster::up(&["--no-node", "--sim-nodes", "2", "--devices", &devices]);
    kubectl_stdin(&cluster, &kubectl_binary, &["apply", "-f", "-"], CLAIMS);
    let status = ["rollout", "status", "deployment/claimers", "--timeout=120s"];
    kubectl(&cluster, &kubectl_binary, status);
    let path = "jsonpath={range .items[*]}{.spec.nodeName}/{.spec.devices[*].name} {end}";
    let slices = kubectl(
        &cluster,
        &kubectl_binary,
        ["get", "resourceslices", "-o", path],
    );
    assert!(slices.contains("sim-0/gpu-0 gpu-1"), "{slices}");
    let path = "jsonpath={range .items[*]}{.status.allocation.devices.results[0].pool}/{.status.allocation.devices.results[0].device} {end}";
    let given = kubectl(
        &cluster,
        &kubectl_binary,
        ["get", "resourceclaims", "-o", path],
    );
    let mut given: Vec<&str> = given.split_whitespace().collect();
    given.sort_unstable();
    assert_eq!(
        given,
        ["sim-0/gpu-0", "sim-0/gpu-1", "sim-1/gpu-0", "sim-1/gpu-1"]
    );
}

fn check(kind: &str, args: &[&str], command: &[&str]) -> (bool, serde_json::Value) {
    let told = output(
        Command::new(DAVIT)
            .args(["lab", "check", kind, "-o", "json"])
            .args(args)
            .arg("--")
            .args(command),
    );
    let report = serde_json::from_slice(&told.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&told.stderr)));
    (told.status.success(), report)
}

fn failed(report: &serde_json::Value) -> Vec<&str> {
    let checks = report["checks"].as_array().unwrap().iter();
    checks
        .filter(|c| c["verdict"] == "fail")
        .map(|c| c["id"].as_str().unwrap())
        .collect()
}

#[test]
fn the_example_plugin_passes_every_check() {
    let dir = temp_dir();
    let own = dir.path().join("dev").display().to_string();
    for route in [
        ["--socket-dir", "{device-plugins}"],
        ["--registry-dir", "{plugins-registry}"],
    ] {
        let breaks = format!("echo foo-0 > {own}/unhealthy");
        let mends = format!("rm {own}/unhealthy");
        let args = ["--break", &breaks, "--mend", &mends];
        let command = [
            DAVIT,
            "example-device",
            "--dev-dir",
            &own,
            route[0],
            route[1],
        ];
        let (fine, report) = check("device-plugin", &args, &command);
        assert!(fine, "{report:#}");
        let change = report["checks"]
            .as_array()
            .unwrap()
            .iter()
            .find(|c| c["id"] == "health-change")
            .unwrap();
        assert_eq!(change["verdict"], "pass", "{report:#}");
        assert_eq!(report["resources"][0], "hardware-vendor.example/foo");
    }
}

#[test]
fn a_program_that_is_no_plugin_fails() {
    let (fine, report) = check("device-plugin", &["--patience", "2s"], &["sleep", "1000"]);
    assert!(!fine);
    assert_eq!(failed(&report), ["register"]);
    let (fine, report) = check("device-plugin", &[], &["false"]);
    assert!(!fine);
    assert_eq!(failed(&report), ["start", "register"]);
}

#[test]
fn a_go_plugin_and_a_go_monitor_are_checked() {
    if let Some(plugin) = parts::go_peer("deviceplugin") {
        let plugin = plugin.display().to_string();
        let (_, report) = check(
            "device-plugin",
            &[],
            &[&plugin, "--dir", "{device-plugins}"],
        );
        println!("{report:#}");
        // It answers for devices that it does not have, and does not make its socket again when the agent has
        // removed it.
        assert_eq!(
            failed(&report),
            ["allocate-unknown", "agent-restart"],
            "{report:#}"
        );
    }
    if let Some(monitor) = parts::go_peer("podresources") {
        let monitor = monitor.display().to_string();
        let command = [monitor.as_str(), "--socket", "{pod-resources-socket}"];
        let (_, report) = check("podresources-client", &[], &command);
        // It keeps the 4 MiB that Go's library takes.
        assert_eq!(failed(&report), ["large"], "{report:#}");
    }
}
