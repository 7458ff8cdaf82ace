//! The whole agent against a runtime and an API server in memory.

mod devices;
mod ending;
mod env_files;
mod fake_api;
mod fake_runtime;
mod node_server;
mod pressure;
mod resize;
mod restart_all;
mod static_pods;

use super::*;
use fake_api::FakeApi;
use fake_runtime::FakeRuntime;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;
use tokio::task::JoinHandle;

struct Node {
    api: FakeApi,
    runtime: Arc<FakeRuntime>,
    dir: tempfile::TempDir,
    change: Box<dyn Fn(&mut NodeOptions) + Send>,
    agent: Option<(JoinHandle<Result<(), Error>>, CancellationToken)>,
}

impl Node {
    async fn start() -> Self {
        Self::start_as(|_| ()).await
    }

    async fn start_with(client_ca: Option<Vec<u8>>) -> Self {
        Self::start_as(move |options| options.client_ca = client_ca.clone()).await
    }

    async fn start_as(change: impl Fn(&mut NodeOptions) + Send + 'static) -> Self {
        let mut this = Self {
            api: FakeApi::new(),
            runtime: Arc::default(),
            dir: tempfile::tempdir().unwrap(),
            change: Box::new(change),
            agent: None,
        };
        this.run();
        let api = this.api.clone();
        wait("node is ready", || {
            condition(&api.get("/api/v1/nodes/n1")?, "Ready")
        })
        .await;
        this
    }

    fn run(&mut self) {
        let cancel = CancellationToken::new();
        let root = self.dir.path().join("kubelet");
        let mut options = NodeOptions::new("n1", root, self.runtime.clone() as Arc<dyn Runtime>);
        options.log_dir = self.dir.path().join("log/pods");
        options.static_pod_dir = Some(self.dir.path().join("manifests"));
        options.address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        options.mounts = false;
        options.cgroups = None;
        // How full the disk of the machine is that runs the tests is not their subject.
        options.eviction.thresholds.clear();
        (self.change)(&mut options);
        let agent = NodeAgent::new(self.api.client(), options);
        let token = cancel.clone();
        self.agent = Some((tokio::spawn(async move { agent.run(token).await }), cancel));
    }

    async fn stop(&mut self) {
        let (task, cancel) = self.agent.take().unwrap();
        cancel.cancel();
        task.await.unwrap().unwrap();
    }

    fn pod(&self, name: &str, spec: Value) -> String {
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        let mut spec = spec;
        spec["nodeName"] = json!("n1");
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
            "spec": spec, "status": {"phase": "Pending"}});
        self.api.put(&path, pod);
        path
    }

    async fn phase(&self, path: &str, phase: &str) -> Value {
        let api = self.api.clone();
        wait(&format!("{path} is {phase}"), || {
            api.get(path).filter(|p| p["status"]["phase"] == phase)
        })
        .await
    }

    fn delete(&self, path: &str, grace: i64) {
        let mut pod = self.api.get(path).unwrap();
        pod["metadata"]["deletionTimestamp"] = json!("2030-01-01T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        self.api.put(path, pod);
    }
}

fn condition(object: &Value, kind: &str) -> Option<Value> {
    let list = object["status"]["conditions"].as_array()?;
    list.iter()
        .find(|c| c["type"] == kind && c["status"] == "True")
        .cloned()
}

async fn wait<T>(what: &str, mut test: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = test() {
            return found;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "not in time: {what}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn container(name: &str, image: &str) -> Value {
    json!({"name": name, "image": image, "imagePullPolicy": "IfNotPresent"})
}

#[tokio::test]
async fn a_pod_runs_and_is_deleted_in_order() {
    let mut node = Node::start().await;
    let mut sidecar = container("side", "sleep");
    sidecar["restartPolicy"] = json!("Always");
    let mut main = container("main", "sleep");
    main["lifecycle"] = json!({"preStop": {"exec": {"command": ["bye"]}}});
    let path = node.pod("a", json!({"initContainers": [container("init", "true"), sidecar], "containers": [main], "terminationGracePeriodSeconds": 7}));
    let pod = node.phase(&path, "Running").await;
    let api = node.api.clone();
    wait("ready", || condition(&api.get(&path)?, "Ready")).await;
    assert_eq!(pod["status"]["hostIP"], "127.0.0.1");
    assert_eq!(pod["status"]["qosClass"], "BestEffort");
    node.delete(&path, 7);
    wait("pod is gone", || api.get(&path).is_none().then_some(())).await;
    let runtime = node.runtime.clone();
    wait("runtime is empty", || runtime.is_empty().then_some(())).await;
    let calls = node.runtime.calls();
    let order: Vec<&str> = calls.iter().map(String::as_str).collect();
    assert_eq!(
        order,
        [
            "run_pod_sandbox",
            "create init",
            "start init",
            "create side",
            "start side",
            "create main",
            "start main",
            "exec bye",
            "stop main 7",
            "stop side 7",
            "stop_pod_sandbox",
            "stop_pod_sandbox",
        ]
    );
    let dir = node.dir.path().join("kubelet/pods/uid-a");
    wait("the pod's directory is gone", || {
        (!dir.exists()).then_some(())
    })
    .await;
    node.stop().await;
}

/// Annotations are written by whoever makes a pod: static pods are none that come from the API server.
#[tokio::test]
async fn a_pod_that_calls_itself_static_is_none() {
    let mut node = Node::start().await;
    let path = "/api/v1/namespaces/default/pods/a";
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "a", "namespace": "default", "uid": "uid-a",
            "annotations": {"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": "h"}},
        "spec": {"nodeName": "n1", "containers": [container("main", "sleep")]}, "status": {"phase": "Pending"}});
    node.api.put(path, pod);
    node.phase(path, "Running").await;
    node.delete(path, 1);
    let api = node.api.clone();
    wait("pod is gone", || api.get(path).is_none().then_some(())).await;
    node.stop().await;
}

/// As with the kubelet: only an agent that starts registers its node.
#[tokio::test]
async fn a_deleted_node_stays_away_until_its_agent_starts_again() {
    let mut node = Node::start().await;
    let api = node.api.clone();
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
    let owned = wait("the lease has its owner", || {
        api.get(lease)
            .filter(|l| !l["metadata"]["ownerReferences"].is_null())
    });
    owned.await;
    api.remove("/api/v1/nodes/n1");
    api.remove(lease);
    // By then the agent has long seen that the node is gone.
    let path = node.pod("a", json!({"containers": [container("main", "sleep")]}));
    node.phase(&path, "Running").await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!((api.get("/api/v1/nodes/n1"), api.get(lease)), (None, None));
    node.stop().await;
    node.run();
    wait("node is back", || {
        condition(&api.get("/api/v1/nodes/n1")?, "Ready")
    })
    .await;
    node.stop().await;
}

#[tokio::test]
async fn a_restart_of_the_agent_touches_nothing_that_runs() {
    let mut node = Node::start().await;
    let path = node.pod("a", json!({"containers": [container("main", "sleep")]}));
    let gone = node.pod(
        "b",
        json!({"containers": [container("main", "sleep")], "terminationGracePeriodSeconds": 1}),
    );
    node.phase(&path, "Running").await;
    node.phase(&gone, "Running").await;
    let before = node.runtime.calls();
    node.stop().await;
    assert_eq!(node.runtime.running().len(), 2);
    // Deleted while the agent is down.
    node.api.remove(&gone);
    node.run();
    let runtime = node.runtime.clone();
    wait("the orphan is removed", || {
        (runtime.running().len() == 1).then_some(())
    })
    .await;
    let api = node.api.clone();
    wait("still running", || {
        api.get(&path).filter(|p| p["status"]["phase"] == "Running")
    })
    .await;
    let created = |calls: &[String]| calls.iter().filter(|c| c.starts_with("create")).count();
    assert_eq!(created(&node.runtime.calls()), created(&before));
    node.stop().await;
}

#[tokio::test]
async fn jobs_end_and_crashes_back_off() {
    let mut node = Node::start().await;
    let good = node.pod(
        "good",
        json!({"restartPolicy": "Never", "containers": [container("main", "true")]}),
    );
    let bad = node.pod(
        "bad",
        json!({"restartPolicy": "Never", "containers": [container("main", "false")]}),
    );
    let crash = node.pod("crash", json!({"containers": [container("main", "false")]}));
    let missing = node.pod(
        "missing",
        json!({"containers": [container("main", "missing")]}),
    );
    let pod = node.phase(&good, "Succeeded").await;
    assert_eq!(
        pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"],
        "Completed"
    );
    let pod = node.phase(&bad, "Failed").await;
    assert_eq!(
        pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"],
        1
    );
    let api = node.api.clone();
    let reason = |path: &str, reason: &str| {
        let status = api.get(path)?["status"]["containerStatuses"][0].clone();
        (status["state"]["waiting"]["reason"] == reason).then_some(status)
    };
    let status = wait("crash loop", || reason(&crash, "CrashLoopBackOff")).await;
    assert_eq!(status["restartCount"], 1);
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 1);
    assert_eq!(
        status["state"]["waiting"]["message"],
        "back-off 10s restarting failed container=main pod=crash_default(uid-crash)"
    );
    wait("image cannot be pulled", || {
        reason(&missing, "ErrImagePull").or_else(|| reason(&missing, "ImagePullBackOff"))
    })
    .await;
    node.stop().await;
}

#[tokio::test]
async fn pods_that_do_not_fit_are_refused() {
    let mut node = Node::start().await;
    let mut greedy = container("main", "sleep");
    greedy["resources"] = json!({"requests": {"cpu": "100000"}});
    let path = node.pod("greedy", json!({"containers": [greedy]}));
    let pod = node.phase(&path, "Failed").await;
    assert_eq!(pod["status"]["reason"], "OutOfcpu");
    let message = pod["status"]["message"].as_str().unwrap();
    assert!(
        message.starts_with(
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 100000000, used: 0"
        ),
        "{message}"
    );
    assert!(node.runtime.is_empty());
    node.stop().await;
}

#[tokio::test]
async fn item_139_hand_made_resources_become_allocatable_and_survive() {
    let mut node = Node::start().await;
    let patched = |api: &FakeApi, value: Value| {
        let mut object = api.get("/api/v1/nodes/n1").unwrap();
        object["status"]["capacity"]["example.com/dongle"] = value;
        api.put("/api/v1/nodes/n1", object);
    };
    patched(&node.api, json!("4"));
    let api = node.api.clone();
    let allocatable = || {
        api.get("/api/v1/nodes/n1")
            .map(|n| n["status"]["allocatable"]["example.com/dongle"].clone())
    };
    wait("allocatable", || allocatable().filter(|v| v == "4")).await;
    node.stop().await;
    node.run();
    let mut greedy = container("main", "sleep");
    greedy["resources"] =
        json!({"limits": {"example.com/dongle": "5"}, "requests": {"example.com/dongle": "5"}});
    let path = node.pod("greedy", json!({"containers": [greedy]}));
    let pod = node.phase(&path, "Failed").await;
    assert_eq!(pod["status"]["reason"], "OutOfexample.com/dongle");
    assert_eq!(allocatable().unwrap(), "4");
    let mut object = node.api.get("/api/v1/nodes/n1").unwrap();
    object["status"]["capacity"]
        .as_object_mut()
        .unwrap()
        .remove("example.com/dongle");
    node.api.put("/api/v1/nodes/n1", object);
    wait("gone from allocatable", || {
        allocatable().filter(Value::is_null)
    })
    .await;
    node.stop().await;
}

#[tokio::test]
async fn liveness_failures_restart_and_readiness_holds() {
    let mut node = Node::start().await;
    let mut main = container("main", "sleep");
    main["livenessProbe"] =
        json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1});
    main["readinessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let path = node.pod(
        "sick",
        json!({"containers": [main], "terminationGracePeriodSeconds": 3}),
    );
    let api = node.api.clone();
    let restarts = || {
        api.get(&path)?["status"]["containerStatuses"][0]["restartCount"]
            .as_i64()
            .filter(|n| *n >= 1)
    };
    wait("restarted", restarts).await;
    assert!(node.runtime.calls().contains(&"stop main 3".to_owned()));
    node.stop().await;
}

#[tokio::test]
async fn a_container_that_ends_by_itself_is_started_again() {
    let mut node = Node::start().await;
    let path = node.pod("a", json!({"containers": [container("main", "sleep")]}));
    node.phase(&path, "Running").await;
    let (id, _) = node.runtime.running().remove(0);
    node.runtime.exit(&id, 3);
    let api = node.api.clone();
    let status = wait("second instance", || {
        let status = api.get(&path)?["status"]["containerStatuses"][0].clone();
        (status["restartCount"] == 1 && !status["state"]["running"].is_null()).then_some(status)
    })
    .await;
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 3);
    node.stop().await;
}

#[tokio::test]
async fn static_pods_run_and_are_mirrored() {
    let mut node = Node::start().await;
    let dir = node.dir.path().join("manifests");
    std::fs::create_dir_all(&dir).unwrap();
    let manifest = dir.join("web.yaml");
    std::fs::write(
        &manifest,
        "kind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: c\n    image: sleep\n",
    )
    .unwrap();
    let path = "/api/v1/namespaces/default/pods/web-n1";
    let mirror = node.phase(path, "Running").await;
    assert!(mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_string());
    std::fs::remove_file(&manifest).unwrap();
    let (api, runtime) = (node.api.clone(), node.runtime.clone());
    wait("mirror is gone", || api.get(path).is_none().then_some(())).await;
    wait("runtime is empty", || runtime.is_empty().then_some(())).await;
    node.stop().await;
}
