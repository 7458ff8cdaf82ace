//! What a container may not do, and resources that are set by hand.

use crate::pods::{Kube, NODE, harness, pod};
use std::process::Command;

pub(crate) fn scenario(kube: &Kube) {
    let stay = "exec sleep 1000";
    let limits = "resources: {limits: {cpu: 250m, memory: 64Mi}, requests: {cpu: 100m}}";
    kube.create(&pod("plain", "Never", stay, limits));
    kube.create(&pod(
        "free",
        "Never",
        stay,
        "securityContext: {privileged: true}",
    ));
    let hungry = "exec tail /dev/zero";
    kube.create(&pod(
        "hungry",
        "Never",
        hungry,
        "resources: {limits: {memory: 32Mi}}",
    ));
    kube.wait_ready("plain");
    devices(kube);
    cgroups(kube);
    kube.wait_status("hungry", "OOMKilled");
    kube.wait_phase("hungry", "Failed");
    assert_eq!(
        kube.field(
            "hungry",
            ".status.containerStatuses[0].state.terminated.exitCode"
        ),
        "137"
    );
    assert_eq!(kube.field("plain", ".status.qosClass"), "Burstable");
    assert_eq!(
        kube.field("plain", ".status.phase"),
        "Running",
        "the neighbour lives"
    );
}

fn devices(kube: &Kube) {
    // Device nodes of the host are not there, and one made by hand cannot be opened.
    let out = kube.command([
        "exec",
        "plain",
        "--",
        "/bin/sh",
        "-c",
        "ls /dev; mknod /dev/mine c 1 11; head -c1 /dev/mine",
    ]);
    let out = harness::output(&mut { out });
    let (shown, error) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    assert!(
        !shown
            .lines()
            .any(|l| ["kmsg", "vda", "kvm", "fuse"].contains(&l)),
        "{shown}"
    );
    assert!(
        !out.status.success() && error.contains("Operation not permitted"),
        "{error}"
    );
    let open = kube.exec(
        "plain",
        "for d in null zero full random urandom tty ptmx; do [ -e /dev/$d ] || echo $d; done",
    );
    assert_eq!(open, "", "standard devices are missing");
    assert_eq!(
        kube.exec("plain", "head -c 3 /dev/zero | wc -c; echo x >/dev/null")
            .trim(),
        "3"
    );
    // A privileged container has the host's devices.
    kube.wait_ready("free");
    let free = kube.exec(
        "free",
        "test -c /dev/kmsg && dd if=/dev/kmsg of=/dev/null count=1 2>/dev/null && echo read",
    );
    assert_eq!(free, "read\n");
}

/// Reads the limits of the container's own cgroup, of either version.
const LIMITS: &str = "
for f in /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us; do
  [ -e $f ] && { cat $f; break; }
done
for f in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
  [ -e $f ] && { cat $f; break; }
done; :";

fn cgroups(kube: &Kube) {
    let limits = kube.exec("plain", LIMITS);
    let mut words = limits.split_whitespace();
    assert_eq!(words.next(), Some("25000"), "{limits}");
    assert_eq!(words.last(), Some("67108864"), "{limits}");
}

const TOKEN: &str = "extended-resource-token";

/// The documented way to add a resource by hand: curl on the node's status.
pub(crate) fn extended_resource() {
    if harness::program("curl").is_none() {
        return;
    }
    let dir = harness::temp_dir();
    let tokens = dir.path().join("tokens.csv");
    std::fs::write(&tokens, format!("{TOKEN},admin,1,\"system:masters\"\n")).unwrap();
    let args = ["--token-auth-file", &tokens.display().to_string()];
    let Some(mut kube) = Kube::up("1.36", &args) else {
        return;
    };
    let offered = |kube: &Kube, what: &str| {
        let path = format!(r"jsonpath={{.status.{what}.example\.com/dongle}}");
        kube.run(["get", "node", NODE, "-o", &path])
    };
    patch(
        &kube,
        r#"[{"op": "add", "path": "/status/capacity/example.com~1dongle", "value": "4"}]"#,
    );
    assert_eq!(offered(&kube, "capacity"), "4");
    kube.eventually("dongles in allocatable", || {
        offered(&kube, "allocatable") == "4"
    });
    let dongles = |n: u32| format!("resources: {{limits: {{example.com/dongle: {n}}}}}");
    kube.create(&pod("three", "Never", "exec sleep 1000", &dongles(3)));
    kube.wait_ready("three");
    kube.create(&pod("two", "Never", "exec sleep 1000", &dongles(2)));
    kube.eventually("the verdict on the second pod", || {
        let message = kube.field(
            "two",
            ".status.conditions[?(@.type=='PodScheduled')].message",
        );
        message.contains("Insufficient example.com/dongle")
    });
    assert_eq!(kube.field("two", ".status.phase"), "Pending");

    assert!(kube.cluster.interrupt().success());
    kube.cluster.start_again();
    assert_eq!(offered(&kube, "capacity"), "4");
    kube.eventually("dongles after a restart", || {
        offered(&kube, "allocatable") == "4"
    });
    assert_eq!(kube.field("three", ".status.phase"), "Running");
    assert_eq!(
        kube.field("three", ".status.containerStatuses[0].restartCount"),
        "0"
    );
    kube.run(["delete", "pod", "three", "--timeout=60s"]);
    kube.wait_phase("two", "Running");

    patch(
        &kube,
        r#"[{"op": "remove", "path": "/status/capacity/example.com~1dongle"}]"#,
    );
    assert_eq!(offered(&kube, "capacity"), "");
    kube.eventually("no dongles in allocatable", || {
        offered(&kube, "allocatable").is_empty()
    });
    kube.clean_up();
}

fn patch(kube: &Kube, patch: &str) {
    let url = format!("{}/api/v1/nodes/{NODE}/status", kube.cluster.server);
    let answer = harness::run(
        Command::new("curl")
            .args([
                "--silent",
                "--insecure",
                "--fail-with-body",
                "--header",
                "Content-Type: application/json-patch+json",
            ])
            .args(["--header", &format!("Authorization: Bearer {TOKEN}")])
            .args(["--request", "PATCH", "--data", patch, &url]),
    );
    assert!(
        answer.contains("\"kind\":\"Node\"") || answer.contains("\"kind\": \"Node\""),
        "{answer}"
    );
}
