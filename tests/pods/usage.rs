//! What nodes and pods use, without any add-on: `kubectl top`, its API, and an autoscaler that goes by it.

use crate::harness;
use crate::pods::{Kube, NODE};
use serde_json::{Value, json};

const API: &str = "/apis/metrics.k8s.io/v1beta1";

/// One busy container beside one that sleeps, and a deployment that is to be scaled by its processor time.
const WORKLOADS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: busy, labels: {app: busy}}
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
    readinessProbe: {exec: {command: ['true']}, periodSeconds: 1}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: worker}
spec:
  selector: {matchLabels: {app: worker}}
  template:
    metadata: {labels: {app: worker}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: davit.local/host
        command: [sh, -c, 'while true; do :; done']
        resources: {requests: {cpu: 100m}, limits: {cpu: 100m}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: worker}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: worker}
  maxReplicas: 2
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 1}}}]
";

const LOG_QUERIES: &str = "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
enableSystemLogQuery: true
imageGCHighThresholdPercent: 100
";

/// Another server, which does not answer.
const TAKEN_OVER: &str = "
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  group: metrics.k8s.io
  version: v1beta1
  service: {namespace: kube-system, name: metrics-server}
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
";

fn read(kube: &Kube, path: &str) -> Result<Value, String> {
    let text = kube.try_run(["get", "--raw", &format!("{API}{path}")])?;
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

/// Millicores and mebibytes as kubectl shows them.
fn number(column: &str) -> u64 {
    let digits: String = column.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

pub(crate) fn scenario() {
    let dir = harness::temp_dir();
    let config = dir.path().join("kubelet.yaml");
    std::fs::write(&config, LOG_QUERIES).unwrap();
    let Some(kube) = Kube::up("1.36", &["--config", &config.display().to_string()]) else {
        return;
    };
    kube.create(WORKLOADS);
    let mut shown = String::new();
    kube.eventually("use of both containers is shown", || {
        shown = kube
            .try_run(["top", "pod", "busy", "--containers", "--no-headers"])
            .unwrap_or_default();
        shown.lines().count() == 2
    });
    let of = |container: &str| {
        let line = shown.lines().find(|l| l.contains(container)).unwrap();
        let columns: Vec<&str> = line.split_whitespace().collect();
        (number(columns[2]), number(columns[3]))
    };
    assert!((20..400).contains(&of("main").0), "{shown}");
    assert!(of("idle").0 < 20, "{shown}");
    kube.eventually("use of the node is shown", || {
        let nodes = kube.try_run(["top", "nodes", "--no-headers"]);
        let nodes = nodes.unwrap_or_default();
        let columns: Vec<&str> = nodes.split_whitespace().collect();
        columns.first() == Some(&NODE) && number(columns[1]) > 0 && number(columns[3]) > 0
    });
    objects(&kube);
    kube.eventually("the autoscaler has scaled", || {
        let replicas = [
            "get",
            "deployment",
            "worker",
            "-o",
            "jsonpath={.spec.replicas}",
        ];
        kube.try_run(replicas).is_ok_and(|n| n == "2")
    });
    access(&kube);
    another_server(&kube);
    monitored(&kube);
    said_of_the_node(&kube);
    kube.run(["delete", "deployment", "worker"]);
    kube.clean_up();
}

fn objects(kube: &Kube) {
    let pod = read(kube, "/namespaces/default/pods/busy").unwrap();
    assert_eq!(pod["kind"], "PodMetrics");
    assert_eq!(pod["metadata"]["labels"], json!({"app": "busy"}));
    assert_eq!(pod["containers"][0]["name"], "idle", "{pod}");
    assert!(pod["window"].as_str().unwrap().ends_with('s'), "{pod}");
    let names = |path: &str| -> Vec<String> {
        let list = read(kube, path).unwrap();
        let items = list["items"].as_array().unwrap().iter();
        items
            .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names("/pods?labelSelector=app%3Dbusy"), ["busy"]);
    assert_eq!(names("/pods?fieldSelector=metadata.name%3Dbusy"), ["busy"]);
    assert!(names("/namespaces/kube-public/pods").is_empty());
    assert_eq!(
        names("/nodes?labelSelector=kubernetes.io%2Fos%3Dlinux"),
        [NODE]
    );
    let missing = read(kube, "/namespaces/default/pods/nobody").unwrap_err();
    let wanted = "podmetrics.metrics.k8s.io \"default/nobody\" not found";
    assert!(missing.contains(wanted), "{missing}");
    let table = kube.run(["get", "nodes.metrics.k8s.io"]);
    let columns: Vec<&str> = table
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    assert_eq!(columns, ["NAME", "CPU", "MEMORY", "WINDOW"], "{table}");
    let refused = kube
        .try_run(["delete", "nodes.metrics.k8s.io", NODE])
        .unwrap_err();
    assert!(refused.contains("MethodNotAllowed"), "{refused}");
}

/// Whoever may look at a namespace may see what its pods use.
fn access(kube: &Kube) {
    kube.run([
        "create",
        "rolebinding",
        "viewer",
        "--clusterrole=view",
        "--user=bob",
    ]);
    let may = |args: &[&str]| {
        let args = [&["auth", "can-i", "--as=bob"], args].concat();
        kube.try_run(args)
            .is_ok_and(|answer| answer.trim() == "yes")
    };
    kube.eventually("the role has become part of view", || {
        may(&["list", "pods.metrics.k8s.io"])
    });
    assert!(!may(&["list", "nodes.metrics.k8s.io", "-A"]));
}

/// An APIService of somebody else's takes over until it is removed.
fn another_server(kube: &Kube) {
    let services = ["get", "apiservices", "-o", "name"];
    let name = "apiservice.apiregistration.k8s.io/v1beta1.metrics.k8s.io";
    assert!(
        !kube.run(services).contains(name),
        "whoever installs one makes it"
    );
    kube.create(TAKEN_OVER);
    kube.eventually("the other server is asked", || {
        let refused = read(kube, "/nodes").err().unwrap_or_default();
        refused.contains("unavailable") || refused.contains("currently unable")
    });
    kube.run(["delete", "apiservice", "v1beta1.metrics.k8s.io"]);
    kube.eventually("davit answers again", || {
        read(kube, "/nodes").is_ok_and(|list| list["items"][0]["metadata"]["name"] == NODE)
    });
}

/// What monitors read of the node's server.
fn monitored(kube: &Kube) {
    let raw = |path: &str| {
        let path = format!("/api/v1/nodes/{NODE}/proxy{path}");
        kube.run(["get", "--raw", &path])
    };
    let text = raw("/metrics/cadvisor");
    let series = |name: &str, labels: &[&str]| {
        let of_name = |line: &&str| line.starts_with(&format!("{name}{{"));
        let has = |line: &&str| labels.iter().all(|label| line.contains(label));
        text.lines().filter(of_name).any(|line| has(&line))
    };
    let main = [
        r#"container="main""#,
        r#"namespace="default""#,
        r#"pod="busy""#,
    ];
    for name in [
        "container_cpu_usage_seconds_total",
        "container_cpu_cfs_throttled_periods_total",
        "container_memory_working_set_bytes",
        "container_memory_rss",
        "container_fs_usage_bytes",
        "container_start_time_seconds",
        "container_spec_cpu_quota",
    ] {
        assert!(series(name, &main), "{name} in {text}");
    }
    let pod = [
        r#"container="""#,
        r#"id="/kubepods/burstable/pod"#,
        r#"pod="busy""#,
    ];
    assert!(series("container_memory_working_set_bytes", &pod), "{text}");
    let traffic = [r#"interface=""#, r#"pod="busy""#];
    assert!(
        series("container_network_receive_packets_total", &traffic),
        "{text}"
    );
    assert!(
        series("container_cpu_usage_seconds_total", &[r#"id="/""#]),
        "{text}"
    );
    assert!(text.contains("machine_cpu_cores{"), "{text}");
    assert_eq!(raw("/healthz"), "ok");
    let indicators = raw("/metrics/slis");
    let alive = r#"kubernetes_healthcheck{name="syncloop",type="healthz"} 1"#;
    assert!(indicators.contains(alive), "{indicators}");
    let probes = raw("/metrics/probes");
    let idle = r#"prober_probe_total{probe_type="Readiness",result="successful",container="idle",pod="busy","#;
    assert!(probes.contains(idle), "{probes}");
    let logs = raw("/logs/");
    assert!(logs.contains("pods/</a>"), "{logs}");
    let log = kube.dir().join("root/var/log/davit-test-service.log");
    std::fs::write(log, "a line\n").unwrap();
    assert_eq!(raw("/logs/?query=davit-test-service"), "a line\n");
    assert_eq!(raw("/logs/?query=/davit-test-service.log"), "a line\n");
    let path = format!("/api/v1/nodes/{NODE}/proxy/logs/?query=a/../b&query=c");
    let refused = kube.try_run(["get", "--raw", &path]).unwrap_err();
    assert!(
        refused.contains("cannot specify a file and service"),
        "{refused}"
    );
}

fn said_of_the_node(kube: &Kube) {
    let events = [
        "get",
        "events",
        "--field-selector=involvedObject.kind=Node",
        "-o=jsonpath={.items[*].reason}",
    ];
    kube.eventually("the node's events", || {
        let reasons = kube.try_run(events).unwrap_or_default();
        let reasons: Vec<&str> = reasons.split(' ').collect();
        let wanted = [
            "Starting",
            "NodeHasSufficientMemory",
            "NodeHasNoDiskPressure",
            "NodeHasSufficientPID",
            "NodeReady",
            "RegisteredNode",
        ];
        wanted.iter().all(|reason| reasons.contains(reason))
    });
    let groups = "-o=jsonpath={.status.features.supplementalGroupsPolicy}";
    assert_eq!(kube.run(["get", "node", NODE, groups]), "true");
    kube.run(["get", "csinode", NODE]);
}
