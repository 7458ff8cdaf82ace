//! Simulated devices through the real device manager, over real sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use davit_containermanager::{ActivePods, Config, ContainerManager, Rejection};
use davit_lab::Say;
use davit_lab::devices::{Inventory, serve};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

#[derive(Default)]
struct Pods(Mutex<Vec<Arc<Pod>>>);

impl ActivePods for Pods {
    fn active_pods(&self) -> Vec<Arc<Pod>> {
        self.0.lock().clone()
    }

    fn ending_pods(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    fn all_pods(&self) -> Vec<Arc<Pod>> {
        self.active_pods()
    }
}

struct Node {
    _dir: tempfile::TempDir,
    manager: ContainerManager,
    pods: Arc<Pods>,
    said: Arc<Mutex<Vec<String>>>,
    _stop: DropGuard,
}

impl Node {
    async fn with(inventory: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pods = Arc::new(Pods::default());
        let mut config = Config::new(dir.path());
        config.allocate_timeout = Duration::from_secs(2);
        let manager = ContainerManager::start(config, pods.clone()).await.unwrap();
        let inventory = Inventory::parse(inventory).unwrap();
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let (stop, kubelet, lines) = (
            CancellationToken::new(),
            dir.path().to_owned(),
            said.clone(),
        );
        let cancel = stop.clone();
        let say: Say = Arc::new(move |line: &str| lines.lock().push(line.to_owned()));
        tokio::spawn(async move { serve(&inventory, &kubelet, &say, cancel).await.unwrap() });
        Self {
            _dir: dir,
            manager,
            pods,
            said,
            _stop: stop.drop_guard(),
        }
    }

    async fn until(&self, what: &str, done: impl Fn(&BTreeMap<String, (u64, u64)>) -> bool) {
        for _ in 0..1500 {
            let counts = self.manager.node_resources();
            let counts: BTreeMap<_, _> = counts
                .iter()
                .map(|(r, c)| (r.clone(), (c.capacity, c.allocatable)))
                .collect();
            if done(&counts) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!(
            "never: {what}; {:?}; {:?}",
            self.manager.node_resources(),
            self.said.lock()
        );
    }

    async fn counts(&self, resource: &str, capacity: u64, allocatable: u64) {
        let what = format!("{resource} {capacity}/{allocatable}");
        self.until(&what, |c| c.get(resource) == Some(&(capacity, allocatable)))
            .await;
    }

    async fn admit(&self, name: &str, resource: &str, count: u64) -> Result<(), Rejection> {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(format!("uid-{name}"));
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.namespace = Some("default".to_owned());
        let limits = BTreeMap::from([(resource.to_owned(), Quantity(count.to_string()))]);
        let resources = ResourceRequirements {
            limits: Some(limits),
            ..Default::default()
        };
        pod.spec = Some(PodSpec {
            containers: vec![Container {
                name: "main".to_owned(),
                resources: Some(resources),
                ..Default::default()
            }],
            ..Default::default()
        });
        self.pods.0.lock().push(Arc::new(pod.clone()));
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        self.manager.admit(&pod, deadline, &|_: &str| {}).await
    }
}

#[tokio::test]
async fn devices_break_vanish_appear_and_come_back_by_the_script() {
    let node = Node::with(
        "
resources:
- name: a.example/foo
  count: 4
  numaNodes: [0, 1]
  script:
  - {at: 1s, unhealthy: [foo-1]}
  - {at: 3s, healthy: [foo-1], remove: [foo-0], add: [{id: new}, {id: newer}]}
- name: a.example/bar
  count: 2
  route: registry
",
    )
    .await;
    node.counts("a.example/foo", 4, 4).await;
    node.counts("a.example/bar", 2, 2).await;
    node.counts("a.example/foo", 4, 3).await;
    node.counts("a.example/foo", 5, 5).await;
    assert!(
        node.said
            .lock()
            .iter()
            .any(|line| line.contains("unhealthy: foo-1"))
    );
}

#[tokio::test]
async fn a_killed_plugin_leaves_its_socket_and_comes_back() {
    let node =
        Node::with("resources: [{name: a.example/foo, count: 2, script: [{at: 1s, crash: 2s}]}]")
            .await;
    node.counts("a.example/foo", 2, 2).await;
    node.counts("a.example/foo", 2, 0).await;
    node.counts("a.example/foo", 2, 2).await;
}

#[tokio::test]
async fn calls_go_wrong_as_the_file_says() {
    let node = Node::with(
        "
resources:
- {name: a.example/fails, count: 2, faults: {allocate: {manner: fail, times: 1, text: no power}}}
- {name: a.example/hangs, count: 2, faults: {allocate: hang}}
- {name: a.example/empty, count: 2, faults: {allocate: empty}}
- {name: a.example/dies, count: 2, faults: {allocate: {manner: crash, times: 1}}}
- {name: a.example/odd, count: 2, faults: {list: oddHealth}}
- {name: a.example/twice, count: 2, faults: {list: duplicates}}
- {name: a.example/prefers, count: 3, preferred: last, faults: {preferred: {manner: lie, times: 1}}}
- {name: a.example/mute, count: 1, faults: {options: {manner: fail, times: 1}}}
",
    )
    .await;
    node.until("everything is there", |c| {
        c.len() == 8 && c["a.example/prefers"].1 == 3 && c["a.example/hangs"].1 == 2
    })
    .await;
    let refused = node.admit("f1", "a.example/fails", 1).await.unwrap_err();
    assert!(refused.message.contains("no power"), "{refused}");
    node.admit("f2", "a.example/fails", 1).await.unwrap();
    let refused = node.admit("h", "a.example/hangs", 1).await.unwrap_err();
    assert!(refused.message.contains("a.example/hangs"), "{refused}");
    let refused = node.admit("e", "a.example/empty", 1).await.unwrap_err();
    assert!(
        refused
            .message
            .contains("no containers return in allocation response"),
        "{refused}"
    );
    // It dies in the middle of the call; the pod waits until it is back.
    node.admit("d", "a.example/dies", 1).await.unwrap();
    node.counts("a.example/dies", 2, 2).await;
    assert!(
        node.said
            .lock()
            .iter()
            .any(|line| line.contains("dies in the middle"))
    );
    node.counts("a.example/odd", 2, 0).await;
    node.counts("a.example/twice", 2, 0).await;
    // A lie about what is preferred is no harm.
    node.admit("p", "a.example/prefers", 1).await.unwrap();
    node.counts("a.example/mute", 1, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_lists_loses_nothing() {
    let node = Node::with(
        "resources: [{name: a.example/foo, count: 100, script: [{at: 500ms, flood: 1s}, {at: 2s, remove: [foo-7]}]}]",
    )
    .await;
    node.counts("a.example/foo", 99, 99).await;
    let lists = node
        .said
        .lock()
        .iter()
        .filter_map(|l| {
            l.strip_prefix("a.example/foo: changed its list ")?
                .split(' ')
                .next()?
                .parse::<u64>()
                .ok()
        })
        .max();
    assert!(lists.is_some_and(|n| n > 100), "{:?}", node.said.lock());
}
