//! One node by a file of many of the kubelet's fields, where what they do shows outside only.

use crate::harness;
use crate::pods::{Kube, NODE, pod};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

const FIELDS: &str = "
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
imageGCHighThresholdPercent: 100
providerID: davit-test://one
enableDebuggingHandlers: false
nodeLeaseDurationSeconds: 20
nodeStatusUpdateFrequency: 2s
nodeStatusMaxImages: 0
podsPerCore: 3
cpuCFSQuotaPeriod: 20ms
maxOpenFiles: 4000
oomScoreAdj: 7
featureGates: {QOSReserved: true}
qosReserved: {memory: 50%}
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
maxParallelImagePulls: 2
registryPullQPS: 3
eventRecordQPS: 20
kubeAPIQPS: 50
kubeAPIBurst: 60
containerLogMaxWorkers: 2
containerLogMonitorInterval: 3s
kubeReserved: {cpu: 250m, memory: 3Gi}
enforceNodeAllocatable: [pods, kube-reserved]
";

/// Cgroups of this test alone, in all hierarchies: `agent`, which somebody has made for the node agent, and what the agent makes
/// beside it. They go when the test ends.
struct Groups {
    name: String,
    roots: Vec<PathBuf>,
}

impl Groups {
    fn new() -> Self {
        let root = Path::new("/sys/fs/cgroup");
        let below = fs::read_dir(root).unwrap().flatten();
        let mut roots: Vec<PathBuf> = below.map(|entry| entry.path()).collect();
        roots.push(root.to_owned());
        // A group of the only tree has such a file as well.
        let unified = root.join("cgroup.controllers").exists();
        roots.retain(|dir| dir.join("cgroup.procs").exists() && (!unified || dir == root));
        let this = Self {
            name: format!("davit-test-{}", std::process::id()),
            roots,
        };
        for root in &this.roots {
            if !root.ends_with("cpuset") {
                fs::create_dir_all(root.join(&this.name).join("agent")).unwrap();
            }
        }
        this
    }

    /// A value of a group, by its file's name in either version.
    fn value(&self, group: &str, files: [&str; 2]) -> String {
        let dirs = self
            .roots
            .iter()
            .map(|root| root.join(&self.name).join(group));
        let mut all = dirs.flat_map(|dir| files.map(|file| dir.join(file)));
        let text = all.find_map(|file| fs::read_to_string(file).ok());
        text.unwrap_or_default().trim().to_owned()
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for root in &self.roots {
            remove(&root.join(&self.name));
        }
    }
}

/// Removes a group after those below it. What is still in use stays.
fn remove(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let _in_use = fs::remove_dir(dir);
}

/// Status and body of a plain HTTP request.
fn get(port: u16, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    (status, body.to_owned())
}

pub(crate) fn scenario() {
    if harness::root().is_none() {
        return;
    }
    let groups = Groups::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let dir = harness::temp_dir();
    let file = dir.path().join("kubelet.yaml");
    let text = format!(
        "{FIELDS}readOnlyPort: {port}\ncgroupRoot: /{name}\nkubeReservedCgroup: /{name}/agent\n",
        name = groups.name
    );
    fs::write(&file, text).unwrap();
    let Some(kube) = Kube::up("1.36", &["--config", &file.display().to_string()]) else {
        return;
    };
    let stay = "exec sleep 1000";
    let guaranteed = "resources: {limits: {cpu: 500m, memory: 64Mi}}";
    kube.create(&pod("sized", "Never", stay, guaranteed));
    kube.create(&pod("free", "Never", stay, ""));
    kube.create(&pod("fails", "Always", "exit 1", ""));
    for name in ["sized", "free"] {
        kube.wait_ready(name);
    }
    told(&kube);
    answered(&kube, port);
    held(&kube, &groups);
    // With the kubelet's own delays the fifth would be after two minutes and a half.
    kube.eventually("it is started again each second", || {
        let path = ".status.containerStatuses[0].restartCount";
        kube.field("fails", path).parse().is_ok_and(|n: u32| n >= 5)
    });
    kube.clean_up();
}

/// What the cluster is told of the node.
fn told(kube: &Kube) {
    let field = |path: &str| kube.run(["get", "node", NODE, &format!("-o=jsonpath={{{path}}}")]);
    assert_eq!(field(".spec.providerID"), "davit-test://one");
    assert_eq!(field(".status.images"), "");
    let cpus: u32 = field(".status.capacity.cpu").parse().unwrap();
    let most = (3 * cpus).min(110);
    assert_eq!(field(".status.capacity.pods"), most.to_string());
    let lease = [
        "get",
        "lease",
        NODE,
        "-n=kube-node-lease",
        "-o=jsonpath={.spec.leaseDurationSeconds}",
    ];
    assert_eq!(kube.run(lease), "20");
    // Half a minute passes until it is renewed, with the kubelet's own number.
    let renewed = || {
        let time = "-o=jsonpath={.spec.renewTime}";
        kube.run(["get", "lease", NODE, "-n=kube-node-lease", time])
    };
    let before = renewed();
    kube.eventually("the lease is renewed", || renewed() != before);
}

/// What the node answers, and what not.
fn answered(kube: &Kube, port: u16) {
    let refused = kube.try_run(["logs", "sized"]).unwrap_err();
    assert!(
        refused.contains("Debug endpoints are disabled."),
        "{refused}"
    );
    kube.try_run(["exec", "sized", "--", "true"]).unwrap_err();
    let (status, pods) = get(port, "/pods");
    assert!(
        status == 200 && pods.contains(r#""name":"sized""#),
        "{pods}"
    );
    for path in [
        "/metrics",
        "/metrics/cadvisor",
        "/stats/summary",
        "/healthz",
    ] {
        assert_eq!(get(port, path).0, 200, "{path}");
    }
    let metrics = get(port, "/metrics").1;
    for series in [
        "kubelet_pleg_relist_interval_seconds_count",
        r#"kubelet_cgroup_manager_duration_seconds_count{operation_type="create"}"#,
        r#"rest_client_requests_total{code="200",method="GET"}"#,
    ] {
        assert!(metrics.contains(series), "{series} in {metrics}");
    }
    let (status, why) = get(port, "/containerLogs/default/sized/main");
    assert_eq!((status, &*why), (405, "Debug endpoints are disabled.\n"));
    assert_eq!(get(port, "/logs/").0, 405);
    assert_eq!(get(port, "/configz").0, 404);
}

/// To what processes are held.
fn held(kube: &Kube, groups: &Groups) {
    let uid = kube.field("sized", ".metadata.uid");
    let pod = format!("kubepods/pod{uid}");
    let quota = groups.value(&pod, ["cpu.cfs_quota_us", "cpu.max"]);
    assert_eq!(quota.split(' ').next(), Some("10000"), "half of the period");
    let weight = groups.value("agent", ["cpu.shares", "cpu.weight"]);
    assert!(["256", "10"].contains(&&*weight), "{weight}");
    let limit = |group: &str| -> u64 {
        let text = groups.value(group, ["memory.limit_in_bytes", "memory.max"]);
        text.parse().unwrap_or_default()
    };
    assert_eq!(limit("agent"), 3 << 30);
    let node = |path: &str| kube.run(["get", "node", NODE, &format!("-o=jsonpath={{{path}}}")]);
    let capacity = node(".status.capacity.memory");
    let kib: u64 = capacity.trim_end_matches("Ki").parse().unwrap();
    let others = (kib << 10) - (3 << 30) - (32 << 20);
    for class in ["kubepods/burstable", "kubepods/besteffort"] {
        kube.eventually("memory is kept for pods that asked for it", || {
            others.abs_diff(limit(class)) < 1 << 20
        });
    }
    let of_process = |file: &str| {
        let path = format!("/proc/{}/{file}", kube.cluster.pid());
        fs::read_to_string(path).unwrap()
    };
    assert_eq!(of_process("oom_score_adj").trim(), "7");
    let limits = of_process("limits");
    let files = limits.lines().find(|l| l.starts_with("Max open files"));
    let words: Vec<&str> = files.unwrap().split_whitespace().collect();
    assert_eq!(words[3..5], ["4000", "4000"], "{limits}");
}
