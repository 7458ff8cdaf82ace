//! Device plugins and a podresources client in Go, on the official modules, and a device plugin in Python.

use crate::harness::tests_dir;
use crate::node_harness::{NodeCluster, RESOURCE, pod, within};
use crate::{harness, peers::parts};
use k8s_openapi::api::core::v1::Node;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(60);

/// A plugin of others as a process; ends with the value.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// What the Go client of podresources reads from a node.
fn read_podresources(client: &Path, node: &NodeCluster, args: &[&str]) -> serde_json::Value {
    let socket = node.kubelet_dir().join("pod-resources/kubelet.sock");
    let told = harness::run(Command::new(client).arg("--socket").arg(socket).args(args));
    serde_json::from_str(&told).unwrap()
}

fn devices_of(answer: &serde_json::Value, pod: &str) -> Vec<String> {
    let pods = answer["list"]["pod_resources"].as_array().unwrap();
    let pod = pods.iter().find(|p| p["name"] == pod).unwrap();
    let mut ids: Vec<String> = pod["containers"][0]["devices"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|d| d["device_ids"].as_array().unwrap())
        .map(|id| id.as_str().unwrap().to_owned())
        .collect();
    ids.sort();
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn a_go_device_plugin_and_a_go_monitor_agree() {
    let (Some(()), Some(plugin), Some(monitor)) = (
        harness::root(),
        parts::go_peer("deviceplugin"),
        parts::go_peer("podresources"),
    ) else {
        return;
    };
    let node = NodeCluster::up(&[]).await;
    node.wait_for_service_account().await;
    let running = Process::start(
        Command::new(&plugin)
            .arg("--dir")
            .arg(node.kubelet_dir().join("device-plugins"))
            .args(["--resource", RESOURCE, "--count", "4"]),
    );
    node.wait_for_devices(4).await;
    let command = r#"test -n "$PEER_THINGS" && exec sleep 600"#;
    node.create(&pod("holder", command, 2)).await;
    node.wait_for_phase("holder", "Running").await;
    let answer = read_podresources(&monitor, &node, &[]);
    // the plugin prefers its last devices
    assert_eq!(devices_of(&answer, "holder"), ["thing-2", "thing-3"]);
    let numa =
        &answer["list"]["pod_resources"][0]["containers"][0]["devices"][0]["topology"]["nodes"];
    assert!(numa.as_array().is_some_and(|n| n.len() == 1), "{answer}");

    running.signal(nix::sys::signal::Signal::SIGUSR1);
    node.wait_for_devices(3).await;
    running.signal(nix::sys::signal::Signal::SIGUSR2);
    node.wait_for_devices(4).await;
    node.clean_up().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_device_plugin_serves_a_pod() {
    let (Some(()), Some(python)) = (harness::root(), parts::python()) else {
        return;
    };
    let node = NodeCluster::up(&[]).await;
    node.wait_for_service_account().await;
    let generated = harness::temp_dir();
    parts::python_proto(&python, "deviceplugin/v1beta1.proto", generated.path());
    let _running = Process::start(
        Command::new(&python)
            .arg(tests_dir().join("peers/python/device_plugin.py"))
            .arg(generated.path())
            .arg(node.kubelet_dir().join("device-plugins"))
            .args([RESOURCE, "2"]),
    );
    node.wait_for_devices(2).await;
    let check = r#"test "$PY_THINGS" = py-0,py-1"#;
    let mut user = pod("user", check, 2);
    user.spec.as_mut().unwrap().restart_policy = Some("Never".to_owned());
    node.create(&user).await;
    within(WAIT, "the pod to end", async || {
        let pod = node.pods().get("user").await.ok()?;
        let phase = pod.status?.phase?;
        assert_ne!(phase, "Failed", "the container was not given both devices");
        (phase == "Succeeded").then_some(())
    })
    .await;
    node.clean_up().await;
}

/// Items 1, 2, 3, 31 and 125: however a Go program dials, it is served, and it sees `localhost` of us.
#[tokio::test(flavor = "multi_thread")]
async fn go_programs_dial_as_they_like_and_see_localhost() {
    let (Some(()), Some(plugin), Some(monitor)) = (
        harness::root(),
        parts::go_peer("deviceplugin"),
        parts::go_peer("podresources"),
    ) else {
        return;
    };
    let node = NodeCluster::up(&[]).await;
    let (device_plugins, registry) = (
        node.kubelet_dir().join("device-plugins"),
        node.kubelet_dir().join("plugins_registry"),
    );
    let told = |name: &str| node.cluster.dir.path().join(format!("{name}.told"));
    let start = |name: &str, args: &[&str]| {
        let mut command = Command::new(&plugin);
        command.arg("--dir").arg(&device_plugins).args(args);
        command.args(["--resource", &format!("peers.davit.dev/{name}")]);
        command.args(["--socket", &format!("{name}.sock")]);
        let file = std::fs::File::create(told(name)).unwrap();
        Process(command.stdout(file).spawn().unwrap())
    };
    let styles = ["unix", "path", "passthrough", "raw"];
    let mut running: Vec<Process> = Vec::new();
    for style in styles {
        running.push(start(style, &["--dial", style]));
    }
    running.push(start("found", &["--registry", registry.to_str().unwrap()]));
    let nodes: kube::Api<Node> = kube::Api::all(node.client.clone());
    within(WAIT, "the devices of all five plugins", async || {
        let allocatable = nodes.get("node-1").await.ok()?.status?.allocatable?;
        let of = |name: &str| allocatable.get(&format!("peers.davit.dev/{name}"));
        let mut names = styles.into_iter().chain(["found"]);
        names
            .all(|n| of(n).is_some_and(|q| q.0 == "4"))
            .then_some(())
    })
    .await;
    for name in styles.into_iter().chain(["found"]) {
        let told = std::fs::read_to_string(told(name)).unwrap();
        let calls: Vec<&str> = told.lines().filter(|l| l.starts_with('/')).collect();
        let of = |method: &str| calls.iter().any(|c| c.contains(method));
        assert!(of("/ListAndWatch "), "{name}: {told}");
        assert_eq!(of("/GetInfo "), name == "found", "{name}: {told}");
        assert!(
            calls.iter().all(|c| c.ends_with(" [localhost]")),
            "{name}: {told}"
        );
    }
    for style in styles {
        for limit in ["4194304", "16777216"] {
            let args = ["--dial", style, "--limit", limit];
            let answer = read_podresources(&monitor, &node, &args);
            let devices = answer["allocatable"]["devices"].as_array().unwrap();
            assert_eq!(devices.len(), 20, "{style}: {answer}");
        }
    }
    node.clean_up().await;
}
