//! The cgroups above containers: what a pod as a whole weighs and may use.

use crate::pods::{Kube, pod};
use std::fs;
use std::path::{Path, PathBuf};

/// A pod's cgroup on the host, of either version.
pub(crate) struct PodGroup {
    path: String,
}

impl PodGroup {
    pub(crate) fn of(kube: &Kube, name: &str, class: &str) -> Self {
        let uid = kube.field(name, ".metadata.uid");
        let path = match class {
            "Guaranteed" => format!("kubepods/pod{uid}"),
            class => format!("kubepods/{}/pod{uid}", class.to_lowercase()),
        };
        Self { path }
    }

    fn file(&self, controller: &str, v1: &str, v2: &str) -> PathBuf {
        let root = Path::new("/sys/fs/cgroup");
        let unified = root.join(&self.path).join(v2);
        if unified.exists() {
            return unified;
        }
        root.join(controller).join(&self.path).join(v1)
    }

    fn read(file: &Path) -> String {
        fs::read_to_string(file)
            .unwrap_or_default()
            .trim()
            .to_owned()
    }

    /// Bytes of memory; none where there is no limit.
    pub(crate) fn memory(&self) -> Option<u64> {
        let file = self.file("memory", "memory.limit_in_bytes", "memory.max");
        let limit = Self::read(&file).parse().ok();
        // Version 1 has no word for "unlimited".
        limit.filter(|bytes| *bytes < 1 << 60)
    }

    /// Microseconds of CPU in a tenth of a second; none where there is no limit.
    pub(crate) fn quota(&self) -> Option<u64> {
        let text = Self::read(&self.file("cpu", "cpu.cfs_quota_us", "cpu.max"));
        text.split_whitespace().next()?.parse().ok()
    }

    /// The weight as version 1 counts it, with version 2's loss.
    fn shares(&self) -> u64 {
        let file = self.file("cpu", "cpu.shares", "cpu.weight");
        let value: u64 = Self::read(&file).parse().unwrap_or_default();
        if file.ends_with("cpu.weight") {
            2 + (value.max(1) - 1) * 262_142 / 9999
        } else {
            value
        }
    }

    fn processes(&self) -> String {
        Self::read(&self.file("pids", "pids.max", "pids.max"))
    }

    fn is_there(&self) -> bool {
        self.file("pids", "pids.max", "pids.max").exists()
            || self.file("memory", "cgroup.procs", "cgroup.procs").exists()
    }
}

/// Tries to have 400 processes, then says how many it got.
const BOMB: &str = "i=0; while [ $i -lt 400 ]; do sleep 100 & i=$((i+1)); echo $i; done; wait";

pub(crate) fn scenario() {
    let Some(mut kube) = Kube::up("1.36", &["--pod-max-pids", "64"]) else {
        return;
    };
    let stay = "exec sleep 1000";
    let sized = "resources: {limits: {cpu: 500m, memory: 64Mi}, requests: {cpu: 250m}}";
    kube.create(&pod("sized", "Never", stay, sized));
    kube.create(&pod("free", "Never", stay, ""));
    kube.create(&pod("bomb", "Never", BOMB, ""));
    kube.create(TOGETHER);
    for name in ["sized", "free", "together"] {
        kube.wait_ready(name);
    }

    let group = PodGroup::of(&kube, "sized", "Burstable");
    assert_eq!(group.memory(), Some(64 << 20));
    assert_eq!(group.quota(), Some(50_000));
    assert!((200..=256).contains(&group.shares()), "{}", group.shares());
    assert_eq!(group.processes(), "64");

    let free = PodGroup::of(&kube, "free", "BestEffort");
    assert_eq!((free.memory(), free.quota()), (None, None));
    assert_eq!(free.shares(), 2);

    // Two containers without limits of their own share what the pod has.
    let together = PodGroup::of(&kube, "together", "Burstable");
    assert_eq!(together.memory(), Some(48 << 20));
    assert_eq!(together.quota(), Some(30_000));

    // A pod that makes processes without end comes to its limit, and its neighbours do not notice.
    kube.wait_phase("bomb", "Failed");
    let made = kube.run(["logs", "bomb"]);
    let numbers = made.lines().filter_map(|line| line.parse().ok());
    let most: u32 = numbers.max().unwrap_or_default();
    assert!((1..64).contains(&most), "{most} processes");
    assert_eq!(kube.exec("sized", "echo here").trim(), "here");

    // It stays so after a restart, and goes with the pod.
    kube.cluster.kill();
    kube.cluster.start_again();
    kube.wait_ready("sized");
    assert_eq!(group.memory(), Some(64 << 20));
    kube.run([
        "delete",
        "pod",
        "sized",
        "--grace-period=1",
        "--timeout=60s",
    ]);
    kube.eventually("the end of the pod's cgroup", || !group.is_there());
    kube.clean_up();
}

const TOGETHER: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: together}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  resources: {limits: {cpu: 300m, memory: 48Mi}, requests: {cpu: 100m}}
  containers:
  - {name: a, image: davit.local/host, command: [/bin/sh, -c, exec sleep 1000]}
  - {name: b, image: davit.local/host, command: [/bin/sh, -c, exec sleep 1000]}
"#;
