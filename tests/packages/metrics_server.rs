//! Item 167: metrics-server behind the aggregation layer; it reads what nodes serve under `/metrics/resource`, and takes
//! over from davit, which answers its API until then.

use crate::harness::{Cluster, any_kubectl, eventually, kubectl, kubectl_stdin, output, root, run};
use crate::packages::programs::{Program, account, backend, free_port, module, package};
use serde_json::Value;
use std::time::Duration;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "metrics-server";

const BUSY: &str = "
apiVersion: v1
kind: Pod
metadata: {name: busy}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: davit.local/host
    command: [sh, -c, 'while true; do :; done']
    resources: {limits: {cpu: 200m}}
  - name: idle
    image: davit.local/host
    command: [sleep, '3600']
";

/// Millicores and mebibytes as kubectl shows them.
fn number(column: &str) -> u64 {
    let digits: String = column.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

#[test]
fn item_167_metrics_server_shows_nodes_and_pods() {
    let (Some(program), Some(k), Some(())) = (
        package(
            "metrics-server",
            "sigs.k8s.io/metrics-server/cmd/metrics-server",
            NAME,
        ),
        any_kubectl(),
        root(),
    ) else {
        return;
    };
    let source = module("metrics-server", "sigs.k8s.io/metrics-server").unwrap();
    // it asks nodes at their addresses, not through the API server
    let c = Cluster::up(&[
        "--node-name",
        "node-1",
        "--allow-host-image",
        "--node-address",
        "0.0.0.0",
        "--allow-loopback-endpoints",
    ]);
    kubectl_stdin(&c, &k, &["apply", "-f", "-"], BUSY);
    let base = source.join("manifests/base");
    run(c.kubectl(&k).args(["apply", "-k"]).arg(&base));
    // It runs beside the cluster instead, as its account.
    kubectl(&c, &k, ["delete", "deployment", NAME, "-n", NAMESPACE]);
    let config = account(&c, &k, NAMESPACE, NAME);
    let config = config.display();
    let port = free_port();
    let args = [
        format!("--kubeconfig={config}"),
        format!("--authentication-kubeconfig={config}"),
        format!("--authorization-kubeconfig={config}"),
        format!("--cert-dir={}", c.dir.path().join(NAME).display()),
        format!("--secure-port={port}"),
        "--kubelet-preferred-address-types=InternalIP,Hostname".to_owned(),
        "--kubelet-use-node-status-port".to_owned(),
        "--kubelet-insecure-tls".to_owned(),
        "--metric-resolution=10s".to_owned(),
        "--kubelet-request-timeout=5s".to_owned(),
    ];
    let _server = Program::start(&program, &args, &c.dir.path().join("metrics-server.log"));
    backend(&c, &k, NAMESPACE, NAME, "https", port);
    let api = "apiservice/v1beta1.metrics.k8s.io";
    let available = "--for=condition=Available";
    kubectl(&c, &k, ["wait", available, api, "--timeout=60s"]);

    let top = |args: &[&str]| {
        let out = output(c.kubectl(&k).args([&["top"], args].concat()));
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        out.status.success().then_some(text)
    };
    let mut shown = None;
    eventually("use is shown", Duration::from_secs(90), || {
        shown = top(&["pods", "--containers", "--no-headers"]).filter(|t| t.lines().count() == 2);
        shown.is_some()
    });
    let shown = shown.unwrap();
    let of = |container: &str| {
        let line = shown.lines().find(|l| l.contains(container)).unwrap();
        let columns: Vec<&str> = line.split_whitespace().collect();
        (number(columns[2]), number(columns[3]))
    };
    assert!((20..400).contains(&of("main").0), "{shown}");
    assert!(of("idle").0 < 20, "{shown}");
    let nodes = top(&["nodes", "--no-headers"]).unwrap();
    let columns: Vec<&str> = nodes.split_whitespace().collect();
    assert_eq!(columns[0], "node-1", "{nodes}");
    assert!(number(columns[1]) > 0 && number(columns[3]) > 0, "{nodes}");
    let sorted = top(&["pods", "-A", "--sort-by=cpu", "--sum=true"]).unwrap();
    assert!(sorted.contains("busy"), "{sorted}");

    let raw = kubectl(
        &c,
        &k,
        [
            "get",
            "--raw",
            "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/busy",
        ],
    );
    let raw: Value = serde_json::from_str(&raw).unwrap();
    assert_eq!(raw["kind"], "PodMetrics");
    assert_eq!(raw["containers"].as_array().unwrap().len(), 2, "{raw}");
    // its role is part of `view`
    let bind = [
        "create",
        "rolebinding",
        "viewer",
        "--clusterrole=view",
        "--user=bob",
    ];
    kubectl(&c, &k, bind);
    let may = ["auth", "can-i", "list", "pods.metrics.k8s.io", "--as=bob"];
    assert_eq!(kubectl(&c, &k, may).trim(), "yes");
    // the same numbers straight from the node
    let path = "/api/v1/nodes/node-1/proxy/metrics/resource";
    let text = kubectl(&c, &k, ["get", "--raw", path]);
    let busy =
        r#"container_cpu_usage_seconds_total{container="main",namespace="default",pod="busy"}"#;
    assert!(text.contains(busy), "{text}");
    let path = "/api/v1/nodes/node-1/proxy/stats/summary";
    let summary: Value = serde_json::from_str(&kubectl(&c, &k, ["get", "--raw", path])).unwrap();
    assert_eq!(summary["node"]["nodeName"], "node-1");
    assert_eq!(summary["pods"][0]["podRef"]["name"], "busy");
    // and what is in force there, as NFD's topology updater asks for it
    let path = "/api/v1/nodes/node-1/proxy/configz";
    let shown: Value = serde_json::from_str(&kubectl(&c, &k, ["get", "--raw", path])).unwrap();
    assert_eq!(shown["kubeletconfig"]["topologyManagerScope"], "container");
    assert_eq!(shown["kubeletconfig"]["maxPods"], 110);
    kubectl(&c, &k, ["delete", api]);
    eventually("davit answers again", Duration::from_secs(60), || {
        top(&["nodes", "--no-headers"]).is_some_and(|text| text.contains("node-1"))
    });
    // containers outlive davit
    kubectl(&c, &k, ["delete", "pod", "busy", "--timeout=60s"]);
}
