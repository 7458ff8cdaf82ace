//! Devices that take of their node's own resources (KEP-5517), in a whole cluster.

use super::*;

/// CPUs that are asked for by number, each time with some memory.
const DRIVERS: &str = "
drivers:
- name: cpu.vendor.example
  devices:
  - name: socket
    capacity: {cores: '64'}
    shareable: true
    nodeAllocatableResourceMappings: {cpu: {capacityKey: cores}, memory: {allocationMultiplier: 64Mi}}
";

const CLAIMS: &str = "
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: cpu}
spec:
  selectors: [{cel: {expression: 'device.driver == \"cpu.vendor.example\"'}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: all-but-one}
spec:
  spec: {devices: {requests: [{name: cores, exactly: {deviceClassName: cpu, capacity: {requests: {cores: COUNT}}}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: holder}
spec:
  resourceClaims: [{name: cores, resourceClaimTemplateName: all-but-one}]
  containers:
  - name: main
    image: none
    resources: {requests: {cpu: 100m}, claims: [{name: cores}]}
";

const PLAIN: &str = "
apiVersion: v1
kind: Pod
metadata: {name: plain}
spec:
  containers:
  - {name: main, image: none, resources: {requests: {cpu: 950m}}}
";

#[test]
fn cpus_that_a_claim_holds_are_not_given_to_others() {
    let Some(kubectl_binary) = any_kubectl() else {
        return;
    };
    let dir = temp_dir();
    let file = dir.path().join("devices.yaml");
    std::fs::write(&file, DRIVERS).unwrap();
    let devices = file.display().to_string();
    let gates = "DRANodeAllocatableResources=true";
    let mut args = vec!["--no-node", "--sim-nodes", "1", "--devices", &devices];
    args.extend(["--feature-gates", gates]);
    let cluster = Cluster::up(&args);
    let ask = |args: &[&str]| kubectl(&cluster, &kubectl_binary, args);
    let long = Duration::from_secs(60);
    eventually("the devices are published", long, || {
        !ask(&["get", "resourceslices", "-o", "name"]).is_empty()
    });
    let cpus = ask(&[
        "get",
        "node",
        "sim-0",
        "-o",
        "jsonpath={.status.allocatable.cpu}",
    ]);
    let cpus: u32 = cpus.parse().unwrap();
    let count = (cpus - 1).to_string();
    let claims = CLAIMS.replace("COUNT", &format!("'{count}'"));
    kubectl_stdin(&cluster, &kubectl_binary, &["apply", "-f", "-"], &claims);
    ask(&[
        "wait",
        "pod/holder",
        "--for=condition=Ready",
        "--timeout=60s",
    ]);
    let taken =
        "jsonpath={.status.nodeAllocatableResourceClaimStatuses[0]['containers','resources']}";
    let told = ask(&["get", "pod", "holder", "-o", taken]);
    assert_eq!(
        told,
        format!(r#"["main"] {{"cpu":"{count}","memory":"64Mi"}}"#)
    );

    kubectl_stdin(&cluster, &kubectl_binary, &["apply", "-f", "-"], PLAIN);
    let message = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}";
    eventually("the node is full", long, || {
        ask(&["get", "pod", "plain", "-o", message]).contains("1 Insufficient cpu")
    });
    ask(&["delete", "pod", "holder", "--now"]);
    ask(&[
        "wait",
        "pod/plain",
        "--for=condition=Ready",
        "--timeout=60s",
    ]);
}
