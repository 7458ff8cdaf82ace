//! The laboratory with real parts: simulated nodes and devices in a whole cluster, checks of real plugins and monitors.

mod glance;
mod new;
mod node_resources;
mod pod_group_claims;

use crate::{harness, peers::parts};
use harness::{
    Cluster, DAVIT, any_kubectl, eventually, kubectl, kubectl_stdin, output, run, temp_dir,
};
use std::process::{Child, Command, Stdio};
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
    let logs = output(cluster.kubectl(&kubectl_binary).args(["logs", "picky"]));
    let said = String::from_utf8_lossy(&logs.stderr);
    assert!(
        said.contains("container \"main\" in pod \"picky\" has no log"),
        "{said}"
    );
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

/// Ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

const SPREAD: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: spread}
spec:
  replicas: 20
  selector: {matchLabels: {app: spread}}
  template:
    metadata: {labels: {app: spread}}
    spec:
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: spread}}}
      containers:
      - name: main
        image: none
        resources: {limits: {hardware-vendor.example/foo: 1}}
";

#[test]
fn simulated_nodes_join_a_cluster_that_runs() {
    let Some(kubectl_binary) = any_kubectl() else {
        return;
    };
    let cluster = Cluster::up(&["--no-node"]);
    let ask = |args: &[&str]| kubectl(&cluster, &kubectl_binary, args);
    let lab = |count: &str| {
        let log = std::fs::File::create(cluster.dir.path().join("lab.log")).unwrap();
        let child = Command::new(DAVIT)
            .args(["lab", "nodes", "--count", count, "--prefix", "far-"])
            .arg("--kubeconfig")
            .arg(&cluster.kubeconfig)
            .arg("--dir")
            .arg(cluster.dir.path().join("sim"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        Process(child.unwrap())
    };
    let nodes = lab("10");
    let long = Duration::from_secs(120);
    eventually("ten nodes with devices", long, || {
        let path =
            r"jsonpath={range .items[*]}{.status.allocatable.hardware-vendor\.example/foo} {end}";
        ask(&["get", "nodes", "-o", path]).trim() == ["8"; 10].join(" ")
    });
    let table = run(Command::new(DAVIT)
        .args(["devices", "--kubeconfig"])
        .arg(&cluster.kubeconfig));
    assert_eq!(table.lines().count(), 1 + 10 * 8, "{table}");
    kubectl_stdin(&cluster, &kubectl_binary, &["apply", "-f", "-"], SPREAD);
    ask(&["rollout", "status", "deployment/spread", "--timeout=120s"]);
    let each = |field: &str| {
        let path = format!("jsonpath={{range .items[*]}}{{{field}}} {{end}}");
        let told = ask(&["get", "pods", "-l", "app=spread", "-o", &path]);
        told.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let mut used = each(".spec.nodeName");
    assert_eq!(used.len(), 20);
    used.sort_unstable();
    used.dedup();
    assert_eq!(used.len(), 10, "two pods on each node: {used:?}");
    // They go and come back; the pods stay theirs.
    let before = each(".metadata.uid");
    drop(nodes);
    let _nodes = lab("10");
    eventually("the pods run again", long, || {
        let ready = each(".status.containerStatuses[0].ready");
        ready.len() == 20 && ready.iter().all(|r| r == "true")
    });
    assert_eq!(each(".metadata.uid"), before);
}

const TWO_SOCKETS: &str = r#"
numaNodes:
- {id: 0, memory: 64Gi, distances: [10, 21]}
- {id: 1, memory: 64Gi, distances: [21, 10]}
cpus:
- {cpus: "0-15,32-47", node: 0, socket: 0, threads: 2}
- {cpus: "16-31,48-63", node: 1, socket: 1, threads: 2}
"#;

/// Each node has room for all of it, on no NUMA node.
const WIDE: &str = "
apiVersion: v1
kind: Pod
metadata: {name: wide}
spec:
  containers:
  - {name: main, image: none, resources: {limits: {cpu: 40, memory: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: narrow}
spec:
  containers:
  - {name: main, image: none, resources: {limits: {cpu: 20, memory: 1Gi}}}
";

#[test]
fn what_every_node_would_refuse_is_bound_to_none() {
    let Some(kubectl_binary) = any_kubectl() else {
        return;
    };
    let dir = temp_dir();
    let machine = dir.path().join("machine.yaml");
    std::fs::write(&machine, TWO_SOCKETS).unwrap();
    let mut args = vec!["--no-node", "--sim-nodes", "2", "--machine-file"];
    args.push(machine.to_str().unwrap());
    args.extend(["--cpu-manager-policy", "static", "--reserved-cpus", "0"]);
    args.extend(["--topology-manager-policy", "single-numa-node"]);
    let cluster = Cluster::up(&args);
    let ask = |args: &[&str]| kubectl(&cluster, &kubectl_binary, args);
    let long = Duration::from_secs(60);
    eventually("both nodes publish their topology", long, || {
        let mut list = Command::new(&kubectl_binary);
        list.arg("--kubeconfig").arg(&cluster.kubeconfig);
        list.args(["get", "noderesourcetopologies", "-o", "name"]);
        String::from_utf8_lossy(&output(&mut list).stdout)
            .lines()
            .count()
            == 2
    });
    // The scheduler looks for the kind every few seconds until it is there.
    std::thread::sleep(Duration::from_secs(6));
    kubectl_stdin(&cluster, &kubectl_binary, &["apply", "-f", "-"], WIDE);
    ask(&[
        "wait",
        "--for=condition=Ready",
        "pod/narrow",
        "--timeout=60s",
    ]);
    let message = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}";
    eventually("the scheduler's verdict", long, || {
        ask(&["get", "pod", "wide", "-o", message])
            .contains("2 node(s) cannot align the resources of the pod on NUMA nodes")
    });
    assert_eq!(
        ask(&["get", "pod", "wide", "-o", "jsonpath={.status.phase}"]),
        "Pending"
    );
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

/// It is tried for as long as it takes, told where users look, and not written into the log each time.
#[test]
fn a_driver_that_cannot_undo_a_claim_is_told_of_and_not_again_and_again() {
    let Some(kubectl_binary) = any_kubectl() else {
        return;
    };
    let dir = temp_dir();
    let file = dir.path().join("drivers.yaml");
    let drivers = "drivers: [{name: gpu.vendor.example, devices: [{name: gpu}], faults: {unprepare: {manner: fail, text: stuck}}}]";
    std::fs::write(&file, drivers).unwrap();
    let devices = file.display().to_string();
    let cluster = Cluster::up(&["--no-node", "--sim-nodes", "1", "--devices", &devices]);
    let ask = |args: &[&str]| kubectl(&cluster, &kubectl_binary, args);
    let one = CLAIMS.replace("replicas: 4", "replicas: 1");
    kubectl_stdin(&cluster, &kubectl_binary, &["apply", "-f", "-"], &one);
    let status = ["rollout", "status", "deployment/claimers", "--timeout=120s"];
    ask(&status);
    ask(&["delete", "deployment", "claimers", "--wait=false"]);
    let long = Duration::from_secs(90);
    eventually("the event's seventh time", long, || {
        let reason = "--field-selector=reason=FailedUnprepareDynamicResources";
        // An index would be an error of kubectl while there is no event yet.
        let path = "jsonpath={.items[*].count} {.items[*].message}";
        let told = ask(&["get", "events", reason, "-o", path]);
        let (count, message) = told.split_once(' ').unwrap_or_default();
        count.parse().is_ok_and(|n: u32| n >= 7) && message.contains("stuck")
    });
    let log = cluster.log();
    let lines = log.matches("cannot unprepare dynamic resources").count();
    assert!((1..=4).contains(&lines), "{lines} lines");
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

const PLACES: [&str; 8] = [
    "--kubelet-dir",
    "{dir}",
    "--cdi-dir",
    "{cdi-dir}",
    "--kubeconfig",
    "{kubeconfig}",
    "--instance",
    "{instance}",
];

#[test]
fn the_example_driver_passes_every_check() {
    let command = [
        &[DAVIT, "example-gpu", "--partitions", "--shared", "1"],
        &PLACES[..],
    ]
    .concat();
    let dir = temp_dir();
    let file = dir.path().join("parameters.yaml");
    let parameters = |valid: &str, invalid: &str| {
        let form = |sharing: &str| {
            format!(
                "parameters: {{apiVersion: gpu.davit.dev/v1, kind: GpuConfig, sharing: {{{sharing}}}}}"
            )
        };
        let text = format!(
            "valid:\n- {}\ninvalid:\n- {}\n  names: timeSlice\n- {}\n  names: Forever\n",
            form(valid),
            form("timeSlices: Long"),
            form(invalid),
        );
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let path = parameters("timeSlice: Long", "timeSlice: Forever");
    let options = ["--most-devices", "4", "--parameters", &path];
    let (fine, report) = check("dra-driver", &options, &command);
    assert!(fine, "{report:#}");
    assert_eq!(report["resources"][0], "gpu.davit.dev");
    assert_eq!(report["summary"]["skipped"], 0, "{report:#}");
    // The other way round both are found out.
    let path = parameters("timeSlice: Forever", "timeSlice: Long");
    let options = ["--most-devices", "1", "--parameters", &path];
    let (fine, report) = check("dra-driver", &options, &command);
    assert!(!fine);
    let found = ["parameters-valid", "parameters-invalid"];
    assert_eq!(failed(&report), found, "{report:#}");
}

#[test]
fn a_go_driver_is_checked() {
    let Some(driver) = parts::go_peer("dradriver") else {
        return;
    };
    let driver = driver.display().to_string();
    let command = [&[driver.as_str(), "--node", "{node}"], &PLACES[..]].concat();
    let (_, report) = check("dra-driver", &[], &command);
    println!("{report:#}");
    assert_eq!(failed(&report), Vec::<&str>::new(), "{report:#}");
}

#[test]
fn a_driver_that_lies_and_dies_fails() {
    let dir = temp_dir();
    let file = dir.path().join("drivers.yaml");
    let faulty = |fault: &str| {
        let text = format!(
            "drivers: [{{name: gpu.vendor.example, devices: [{{name: gpu}}], faults: {{{fault}}}}}]"
        );
        std::fs::write(&file, text).unwrap();
        let path = file.display().to_string();
        let command = [
            DAVIT,
            "lab",
            "devices",
            "-f",
            &path,
            "--node",
            "{node}",
            "--kubelet-dir",
            "{dir}",
            "--cdi-dir",
            "{cdi-dir}",
            "--kubeconfig",
            "{kubeconfig}",
        ];
        let (fine, report) = check("dra-driver", &["--patience", "3s"], &command);
        assert!(!fine);
        report
    };
    let report = faulty("prepare: lie");
    assert_eq!(failed(&report), ["cdi-files"], "{report:#}");
    let report = faulty("unprepare: {manner: fail, text: stuck}");
    let found = failed(&report);
    assert!(
        found.contains(&"unprepare") && found.contains(&"unprepare-gone"),
        "{report:#}"
    );
    assert!(!found.contains(&"prepare"), "{report:#}");
}

const BAD_OBJECTS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: app}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: ci, namespace: app}
---
apiVersion: v1
kind: Pod
metadata: {name: bad, namespace: app}
spec:
  nodeName: nowhere
  hostPID: true
  hostIPC: true
  hostNetwork: true
  volumes: [{name: host, hostPath: {path: /}}]
  containers:
  - name: main
    image: none
    ports: [{containerPort: 80, hostPort: 80}]
    env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]
    securityContext: {privileged: true, allowPrivilegeEscalation: true, runAsUser: 0, capabilities: {add: [NET_RAW, SYS_ADMIN]}}
---
apiVersion: v1
kind: Pod
metadata: {name: silent, namespace: default}
spec:
  nodeName: nowhere
  containers: [{name: main, image: none}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: too-much}
rules:
- {apiGroups: ['*'], resources: ['*'], verbs: ['*']}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: everybody}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: too-much}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'system:unauthenticated'}
";

#[test]
fn a_cluster_is_checked_by_the_cis_benchmark() {
    let Some(kubectl_binary) = any_kubectl() else {
        return;
    };
    let cluster = Cluster::up(&["--no-node", "--sim-nodes", "1"]);
    let ask = || {
        let kubeconfig = cluster.kubeconfig.display().to_string();
        let args = [
            "lab",
            "check",
            "cluster",
            "-o",
            "json",
            "--kubeconfig",
            &kubeconfig,
        ];
        let told = output(Command::new(DAVIT).args(args));
        let report: serde_json::Value = serde_json::from_slice(&told.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&told.stderr)));
        (told.status.code(), report)
    };
    let verdict = |report: &serde_json::Value, id: &str| {
        let mut checks = report["checks"].as_array().unwrap().iter();
        let check = checks.find(|c| c["id"] == id).unwrap();
        check["verdict"].as_str().unwrap().to_owned()
    };
    // As it comes a cluster has no faults, and what nobody can see through the API is said not to be seen.
    let (code, report) = ask();
    assert_eq!((code, failed(&report)), (Some(0), Vec::new()), "{report:#}");
    for id in [
        "1.2.6", "1.2.7", "1.2.8", "1.2.12", "1.2.13", "1.2.14", "1.2.15", "1.2.24", "5.1.1",
        "5.1.2",
    ] {
        assert_eq!(verdict(&report, id), "pass", "{id}: {report:#}");
    }
    assert_eq!(verdict(&report, "1.2.1"), "warn", "{report:#}");
    assert_eq!(verdict(&report, "2.1"), "skip", "{report:#}");
    kubectl_stdin(
        &cluster,
        &kubectl_binary,
        &["apply", "-f", "-"],
        BAD_OBJECTS,
    );
    let (code, report) = ask();
    let expected = [
        "1.2.1", "5.1.1", "5.1.2", "5.1.3", "5.1.4", "5.1.5", "5.1.6", "5.1.8", "5.1.9", "5.1.10",
        "5.1.11", "5.1.12", "5.1.13", "5.2.1", "5.2.2", "5.2.3", "5.2.4", "5.2.5", "5.2.6",
        "5.2.7", "5.2.8", "5.2.9", "5.2.11", "5.2.12", "5.3.2", "5.4.1", "5.6.2", "5.6.3", "5.6.4",
    ];
    assert_eq!(
        (code, failed(&report).as_slice()),
        (Some(1), &expected[..]),
        "{report:#}"
    );
    // What was tried was not done.
    let pods = kubectl(
        &cluster,
        &kubectl_binary,
        ["get", "pods,nodes,services", "-A", "-o", "name"],
    );
    assert!(!pods.contains("davit-lab"), "{pods}");
}
