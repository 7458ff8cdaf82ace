//! Processes of containers: what they see and reach of the host and of one another.

use crate::harness::root;
use crate::node_harness::{NodeCluster, within};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{LogParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// Set for the copy of this program that runs inside of a container.
const WATCHER: &str = "DAVIT_ATTACK_WATCHER";
/// How long the copy looks around.
const WATCH: Duration = Duration::from_secs(5);

/// A file of the host that is in no container: on a file system of its own, which the image of the host's root lacks.
struct Marker(PathBuf);

impl Marker {
    fn new() -> Self {
        let path = PathBuf::from(format!("/dev/shm/davit-attack-{}", std::process::id()));
        std::fs::write(&path, "host").unwrap();
        Self(path)
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

fn pod(name: &str, spec: Value) -> Pod {
    let mut spec = spec;
    spec["terminationGracePeriodSeconds"] = json!(1);
    spec["automountServiceAccountToken"] = json!(false);
    spec["restartPolicy"] = json!("Never");
    serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
}

fn container(name: &str, script: &str) -> Value {
    json!({ "name": name, "image": "davit.local/host", "command": ["/bin/sh", "-c", script] })
}

/// What Pod Security's level restricted asks of a container.
fn restricted(mut container: Value) -> Value {
    container["securityContext"] = json!({
        "runAsUser": 1000, "runAsNonRoot": true, "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" },
    });
    container
}

/// The pod's end: its phase, and why its container `main` ended.
async fn end(node: &NodeCluster, name: &str) -> (String, String) {
    let pods = node.pods();
    within(
        Duration::from_secs(60),
        &format!("the end of {name}"),
        async || {
            let status = pods.get(name).await.ok()?.status?;
            let phase = status.phase.filter(|p| p == "Failed" || p == "Succeeded")?;
            let mut containers = status.container_statuses.into_iter().flatten();
            let state = containers.find(|c| c.name == "main")?.state?.terminated?;
            Some((phase, state.message.unwrap_or_default()))
        },
    )
    .await
}

async fn log(node: &NodeCluster, name: &str) -> String {
    let params = LogParams {
        container: Some("main".to_owned()),
        ..LogParams::default()
    };
    node.pods().logs(name, &params).await.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_do_not_reach_the_host() {
    if root().is_none() {
        return;
    }
    let marker = Marker::new();
    let node = NodeCluster::up(&[]).await;
    node.wait_for_service_account().await;
    let namespaces: kube::Api<Namespace> = kube::Api::all(node.client.clone());
    let labels =
        json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    let level = Patch::Merge(labels);
    namespaces
        .patch("default", &PatchParams::default(), &level)
        .await
        .unwrap();
    working_directories(&node, &marker).await;
    let labels =
        json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": null } } });
    let level = Patch::Merge(labels);
    namespaces
        .patch("default", &PatchParams::default(), &level)
        .await
        .unwrap();
    first_process(&node, &marker).await;
    neighbours(&node, &marker).await;
    users_of_their_own(&node).await;
    profiles(&node).await;
    node.clean_up().await;
}

/// `workingDir: /proc/1/root` of a pod that shares its processes, admitted as restricted; and the leaked descriptors of
/// CVE-2024-21626.
async fn working_directories(node: &NodeCluster, marker: &Marker) {
    let mut names = Vec::new();
    for (number, cwd) in ["/proc/1/root", "/proc/self/fd/7", "/proc/self/fd/8/../.."]
        .iter()
        .enumerate()
    {
        let name = format!("cwd-{number}");
        let script = format!("cat .{}; cat dev/shm/*; pwd", marker.0.display());
        let mut main = restricted(container("main", &script));
        main["workingDir"] = json!(cwd);
        let spec = json!({ "shareProcessNamespace": true, "containers": [main] });
        node.pods()
            .create(&PostParams::default(), &pod(&name, spec))
            .await
            .unwrap();
        names.push(name);
    }
    for name in names {
        let (phase, message) = end(node, &name).await;
        assert_eq!(phase, "Failed", "{name}: {message}");
        assert!(message.contains("chdir to cwd"), "{name}: {message}");
        assert!(!log(node, &name).await.contains("host"), "{name}");
    }
}

/// The first process of a shared process namespace, seen by a container with SYS_PTRACE.
async fn first_process(node: &NodeCluster, marker: &Marker) {
    let file = marker.0.display();
    let script = format!(
        "echo have $(ls -A /proc/1/root | wc -l) $(ls -A /proc/1/fd | wc -l); cat /proc/1/root{file}; \
         touch /proc/1/root/dev/shm/x; nsenter -t 1 -m cat {file}; grep -E '^(CapPrm|Uid)' /proc/1/status | tr -d '\\t'"
    );
    let mut main = container("main", &script);
    main["securityContext"] = json!({ "capabilities": { "add": ["SYS_PTRACE"] } });
    let spec = json!({ "shareProcessNamespace": true, "containers": [main] });
    node.create(&pod("first", spec)).await;
    end(node, "first").await;
    let log = log(node, "first").await;
    for line in [
        "have 0 0",
        "CapPrm:0000000000000000",
        "Uid:65535655356553565535",
    ] {
        assert!(log.lines().any(|l| l == line), "{log}");
    }
    assert!(!log.lines().any(|l| l == "host"), "{log}");
}

/// Containers and probes that come into a process namespace, seen by a container with SYS_PTRACE that looks all the time
/// (CVE-2016-9962).
async fn neighbours(node: &NodeCluster, marker: &Marker) {
    let exe = std::env::current_exe().unwrap();
    let mut main = json!({
        "name": "main", "image": "davit.local/host",
        "command": ["/attack", "attacks::containers::watcher", "--exact", "--nocapture"],
        "env": [{ "name": WATCHER, "value": marker.0 }],
        "volumeMounts": [{ "name": "attack", "mountPath": "/attack", "readOnly": true }],
        "readinessProbe": { "exec": { "command": ["/bin/true"] }, "periodSeconds": 1 },
        "lifecycle": { "postStart": { "exec": { "command": ["/bin/true"] } } },
    });
    main["securityContext"] = json!({ "capabilities": { "add": ["SYS_PTRACE"] } });
    let mut containers = vec![main];
    for number in 0..6 {
        containers.push(container(&format!("other-{number}"), "sleep 0.1"));
    }
    let volume = json!({ "name": "attack", "hostPath": { "path": exe, "type": "File" } });
    let spec =
        json!({ "shareProcessNamespace": true, "containers": containers, "volumes": [volume] });
    node.create(&pod("neighbours", spec)).await;
    let (phase, message) = end(node, "neighbours").await;
    let log = log(node, "neighbours").await;
    assert_eq!(phase, "Succeeded", "{message} {log}");
    assert!(log.contains("saw ") && !log.contains("FOUND"), "{log}");
}

/// `hostUsers: false`: root with capabilities in a pod is nobody on the host, and nobody in another pod.
async fn users_of_their_own(node: &NodeCluster) {
    let nodes: kube::Api<Node> = kube::Api::all(node.client.clone());
    let handlers = nodes
        .get("node-1")
        .await
        .unwrap()
        .status
        .unwrap()
        .runtime_handlers;
    let features = handlers.into_iter().flatten().find_map(|h| h.features);
    if features.and_then(|f| f.user_namespaces) != Some(true) {
        println!("skipped: this kernel does not map the users of file systems");
        return;
    }
    let script = "awk '{print \"range\", $2}' /proc/self/uid_map; echo user $(id -u); echo volume > /volume/file; \
        mknod /tmp/disk b 8 0 || echo no device; mkdir /tmp/c && mount -t tmpfs none /tmp/c && echo own mounts; \
        for v in /proc/sys/kernel/core_pattern /proc/sysrq-trigger; do (echo x > $v) || echo refused; done; sleep 60";
    let mut ranges = Vec::new();
    for name in ["users-a", "users-b"] {
        let mut main = container("main", script);
        main["securityContext"] = json!({ "capabilities": { "add": ["SYS_ADMIN", "SYS_PTRACE", "MKNOD"] }, "procMount": "Unmasked" });
        main["volumeMounts"] = json!([{ "name": "v", "mountPath": "/volume" }]);
        let volume = json!({ "name": "v", "emptyDir": {} });
        let spec = json!({ "hostUsers": false, "containers": [main], "volumes": [volume] });
        node.create(&pod(name, spec)).await;
        let what = format!("what {name} says");
        let text = within(Duration::from_secs(60), &what, async || {
            Some(log(node, name).await).filter(|text| text.matches("refused").count() == 2)
        })
        .await;
        for line in ["user 0", "no device", "own mounts"] {
            assert!(text.lines().any(|l| l == line), "{name}: {text}");
        }
        let range = text.lines().find_map(|l| l.strip_prefix("range ")).unwrap();
        ranges.push(range.trim().parse::<u32>().unwrap());
        let uid = node.pods().get(name).await.unwrap().metadata.uid.unwrap();
        let file = format!("pods/{uid}/volumes/kubernetes.io~empty-dir/v/file");
        let on_disk = std::fs::metadata(node.kubelet_dir().join(file)).unwrap();
        assert_eq!(
            std::os::unix::fs::MetadataExt::uid(&on_disk),
            0,
            "volumes are as the pod sees them"
        );
    }
    assert!(
        ranges[0] >= 65536 && ranges[1] >= 65536 && ranges[0].abs_diff(ranges[1]) >= 65536,
        "{ranges:?}"
    );
    // Not beside the host's namespaces.
    let spec =
        json!({ "hostUsers": false, "hostPID": true, "containers": [container("main", "true")] });
    let refused = node
        .pods()
        .create(&PostParams::default(), &pod("users-host", spec))
        .await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 422));
}

/// A profile of AppArmor that cannot be enforced is not left out in silence.
async fn profiles(node: &NodeCluster) {
    if std::fs::exists("/sys/module/apparmor").unwrap() {
        return;
    }
    for (name, profile) in [
        ("apparmor-default", json!({ "type": "RuntimeDefault" })),
        (
            "apparmor-local",
            json!({ "type": "Localhost", "localhostProfile": "strict" }),
        ),
    ] {
        let mut main = container("main", "true");
        main["securityContext"] = json!({ "appArmorProfile": profile });
        node.create(&pod(name, json!({ "containers": [main] })))
            .await;
        let status = node.wait_for_phase(name, "Failed").await.status.unwrap();
        assert_eq!(status.reason.as_deref(), Some("AppArmor"), "{status:?}");
    }
}

/// Not a test of its own: what the container above runs. Looks for a process that has the host's files or more
/// capabilities than this one.
#[test]
fn watcher() {
    let Some(marker) = std::env::var_os(WATCHER) else {
        return;
    };
    let marker = marker.to_string_lossy().into_owned();
    let capabilities = |pid: &str| -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find(|l| l.starts_with("CapPrm:"))?;
        u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()
    };
    let own = capabilities("self").unwrap();
    let mut seen = std::collections::BTreeSet::new();
    let end = std::time::Instant::now() + WATCH;
    while std::time::Instant::now() < end {
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let pid = entry.file_name().to_string_lossy().into_owned();
            if !pid.bytes().all(|b| b.is_ascii_digit()) {
                continue;
            }
            if std::fs::metadata(format!("/proc/{pid}/root{marker}")).is_ok() {
                println!("FOUND the host's files by {pid}");
            }
            if let Some(more) = capabilities(&pid).filter(|caps| caps & !own != 0) {
                println!("FOUND {pid} with {more:x}");
            }
            seen.insert(pid);
        }
    }
    println!("saw {} processes", seen.len());
}
