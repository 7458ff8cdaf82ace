//! What the agent does when the node runs short, and when the machine goes down.

use super::devices::{plugin, user};
use super::*;
use crate::eviction::signals::{Signal, Threshold, Value as Least};
use crate::eviction::state::{Observation, Observations};
use crate::eviction::{Config, Measure};
use crate::shutdown::Shutdown;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

/// Memory is what the test says.
struct Told(AtomicI64);

#[async_trait::async_trait]
impl Measure for Told {
    async fn observe(&self, _: &dyn Runtime) -> Observations {
        let seen = Observation {
            available: self.0.load(Ordering::SeqCst),
            capacity: 1 << 30,
        };
        [(Signal::MemoryAvailable, seen)].into()
    }
}

fn below_100_mib() -> Config {
    Config {
        thresholds: vec![Threshold {
            signal: Signal::MemoryAvailable,
            value: Least::Amount(100 << 20),
            grace: Duration::ZERO,
            min_reclaim: None,
        }],
        period: Duration::from_millis(50),
        transition: Duration::from_millis(500),
        ..Config::default()
    }
}

/// Checklist of 7.5: phase, reason, message and condition of an evicted pod; the node's condition; who may start then.
#[tokio::test]
async fn a_pod_is_evicted_when_memory_runs_short() {
    let told = Arc::new(Told(AtomicI64::new(1 << 29)));
    let measure = told.clone();
    let mut node = Node::start_as(move |options| {
        options.measure = measure.clone();
        options.eviction = below_100_mib();
    })
    .await;
    let spec =
        |priority: i64| json!({"containers": [container("main", "sleep")], "priority": priority});
    let (low, high) = (node.pod("low", spec(0)), node.pod("high", spec(100)));
    let critical = node.pod("critical", spec(2_000_001_000));
    for path in [&low, &high, &critical] {
        node.phase(path, "Running").await;
    }
    told.0.store(50 << 20, Ordering::SeqCst);
    let evicted = node.phase(&low, "Failed").await;
    let status = &evicted["status"];
    assert_eq!(status["reason"], "Evicted");
    let message =
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. ";
    assert_eq!(status["message"], message);
    let target = condition(&evicted, "DisruptionTarget").unwrap();
    assert_eq!(target["reason"], "TerminationByKubelet");
    assert_eq!(target["message"], message);
    assert!(
        node.runtime.calls().contains(&"stop main 2".to_owned()),
        "{:?}",
        node.runtime.calls()
    );
    node.phase(&high, "Failed").await;
    let api = node.api.clone();
    let pressed = wait("the node's condition", || {
        condition(&api.get("/api/v1/nodes/n1")?, "MemoryPressure")
    });
    let pressed = pressed.await;
    assert_eq!(pressed["reason"], "KubeletHasInsufficientMemory");
    let late = node.pod("late", spec(0));
    let late = node.phase(&late, "Failed").await;
    assert_eq!(late["status"]["reason"], "Evicted");
    assert_eq!(
        late["status"]["message"],
        "Pod was rejected: The node had condition: [MemoryPressure]. "
    );
    assert_eq!(api.get(&critical).unwrap()["status"]["phase"], "Running");

    told.0.store(1 << 29, Ordering::SeqCst);
    wait("the condition goes", || {
        let node = api.get("/api/v1/nodes/n1")?;
        condition(&node, "MemoryPressure").is_none().then_some(())
    })
    .await;
    let after = node.pod("after", spec(0));
    node.phase(&after, "Running").await;
    node.stop().await;
}

/// Panics twice, then tells what it is told to.
struct Broken(AtomicI64);

#[async_trait::async_trait]
impl Measure for Broken {
    async fn observe(&self, runtime: &dyn Runtime) -> Observations {
        assert!(self.0.fetch_add(1, Ordering::SeqCst) >= 2, "a defect");
        Told(AtomicI64::new(50 << 20)).observe(runtime).await
    }
}

#[tokio::test]
async fn a_loop_that_panics_is_counted_and_goes_on() {
    let mut node = Node::start_as(|options| {
        options.measure = Arc::new(Broken(AtomicI64::new(0)));
        options.eviction = below_100_mib();
    })
    .await;
    let api = node.api.clone();
    wait("the node's condition", || {
        condition(&api.get("/api/v1/nodes/n1")?, "MemoryPressure")
    })
    .await;
    assert_eq!(davit_task::panics("node", "eviction"), 2);
    assert!(davit_task::restarts("node", "eviction") >= 2);
    node.stop().await;
}

#[tokio::test]
async fn when_the_machine_goes_down_critical_pods_end_last() {
    let going_down = CancellationToken::new();
    let token = going_down.clone();
    let mut node = Node::start_as(move |options| {
        options.shutdown = Shutdown::new(Duration::from_secs(20), Duration::from_secs(5));
        options.going_down = token.clone();
    })
    .await;
    let spec = |priority: i64| {
        json!({"containers": [container(&format!("c{priority}"), "sleep")], "priority": priority,
            "terminationGracePeriodSeconds": 9})
    };
    let (first, last) = (
        node.pod("first", spec(1)),
        node.pod("last", spec(2_000_000_000)),
    );
    node.phase(&first, "Running").await;
    node.phase(&last, "Running").await;
    going_down.cancel();
    // It ends by itself.
    let (task, _) = node.agent.take().unwrap();
    task.await.unwrap().unwrap();
    let calls = node.runtime.calls();
    let stops: Vec<&String> = calls.iter().filter(|c| c.starts_with("stop c")).collect();
    assert_eq!(stops, ["stop c1 9", "stop c2000000000 5"]);
    for path in [&first, &last] {
        let pod = node.api.get(path).unwrap();
        assert_eq!(pod["status"]["phase"], "Failed", "{pod}");
        assert_eq!(pod["status"]["reason"], "Terminated");
        assert_eq!(
            pod["status"]["message"],
            "Pod was terminated in response to imminent node shutdown."
        );
        assert!(condition(&pod, "DisruptionTarget").is_some());
    }
}

#[tokio::test]
async fn a_pod_that_fills_its_volume_is_evicted() {
    let mut node = Node::start_as(|options| {
        options.eviction = Config {
            thresholds: Vec::new(),
            period: Duration::from_millis(50),
            ..Config::default()
        };
    })
    .await;
    let spec = || {
        let mut main = container("main", "sleep");
        main["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/scratch"}]);
        json!({"containers": [main],
            "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "64Ki"}}]})
    };
    let (greedy, modest) = (node.pod("greedy", spec()), node.pod("modest", spec()));
    node.phase(&greedy, "Running").await;
    node.phase(&modest, "Running").await;
    let volumes = "kubelet/pods/uid-greedy/volumes/kubernetes.io~empty-dir/scratch";
    let file = node.dir.path().join(volumes).join("file");
    std::fs::write(file, vec![1; 128 << 10]).unwrap();
    let evicted = node.phase(&greedy, "Failed").await;
    assert_eq!(evicted["status"]["reason"], "Evicted");
    assert_eq!(
        evicted["status"]["message"],
        "Usage of EmptyDir volume \"scratch\" exceeds the limit \"64Ki\". "
    );
    // It goes for its own sake.
    assert!(condition(&evicted, "DisruptionTarget").is_none());
    assert_eq!(node.api.get(&modest).unwrap()["status"]["phase"], "Running");
    node.stop().await;
}

#[tokio::test]
async fn item_147_a_node_that_goes_down_refuses_pods_and_has_its_devices_back_afterwards() {
    let going_down = Arc::new(Mutex::new(CancellationToken::new()));
    let token = going_down.clone();
    let mut node = Node::start_as(move |options| {
        options.shutdown = Shutdown::new(Duration::from_secs(20), Duration::from_secs(5));
        options.going_down = token.lock().clone();
    })
    .await;
    let (_running, _devices) = plugin(&node, "a.com/foo");
    let holder = user(&node, "holder", "a.com/foo").await;
    let mut slow = container("slow", "sleep");
    slow["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 2}}});
    let slow = node.pod("slow", json!({"containers": [slow]}));
    node.phase(&slow, "Running").await;
    going_down.lock().cancel();
    let late = node.pod("late", json!({"containers": [container("main", "sleep")]}));
    let late = node.phase(&late, "Failed").await;
    assert_eq!(late["status"]["reason"], "NodeShutdown");
    let (task, _) = node.agent.take().unwrap();
    task.await.unwrap().unwrap();
    let ended = node.api.get(&holder).unwrap();
    assert_eq!(ended["status"]["phase"], "Failed");
    assert_eq!(ended["status"]["reason"], "Terminated");

    *going_down.lock() = CancellationToken::new();
    node.run();
    user(&node, "next", "a.com/foo").await;
    node.stop().await;
}

#[tokio::test]
async fn item_148_the_devices_of_an_evicted_pod_are_free_once_its_containers_are_gone() {
    let told = Arc::new(Told(AtomicI64::new(1 << 29)));
    let measure = told.clone();
    let mut node = Node::start_as(move |options| {
        options.measure = measure.clone();
        options.eviction = below_100_mib();
    })
    .await;
    let (_running, _devices) = plugin(&node, "a.com/foo");
    let holder = user(&node, "holder", "a.com/foo").await;
    told.0.store(50 << 20, Ordering::SeqCst);
    let evicted = node.phase(&holder, "Failed").await;
    assert_eq!(evicted["status"]["reason"], "Evicted");
    let stopped = |calls: &[String]| calls.iter().any(|c| c.starts_with("stop main"));
    assert!(stopped(&node.runtime.calls()));
    let api = node.api.clone();
    wait("the node's condition", || {
        condition(&api.get("/api/v1/nodes/n1")?, "MemoryPressure")
    })
    .await;
    told.0.store(1 << 29, Ordering::SeqCst);
    wait("the condition goes", || {
        let node = api.get("/api/v1/nodes/n1")?;
        condition(&node, "MemoryPressure").is_none().then_some(())
    })
    .await;
    user(&node, "next", "a.com/foo").await;
    node.stop().await;
}
