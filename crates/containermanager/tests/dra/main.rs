//! The node's side of dynamic resource allocation against scripted drivers, by the checklist's numbers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod alignment;
mod driver;

use davit_containermanager::dra::ClassicClaim;
use davit_proto::drahealth::v1::HealthStatus;
use driver::{Driver, KEEP, Node, claim, pod, until};
use std::time::Duration;

const V1: &[&str] = &["v1.DRAPlugin", "v1.DRAResourceHealth"];

#[tokio::test]
async fn items_103_104_107_108_one_call_a_driver_with_all_claims_of_the_pod() {
    let node = Node::start().await;
    let (a, b) = (Driver::new("a.dev", V1), Driver::new("b.dev", V1));
    let _a = a.serve(&node, "a.sock").await;
    let _b = b.serve(&node, "b.sock").await;
    assert_eq!(a.notified(), [(true, String::new())]);
    for (name, driver) in [("c1", "a"), ("c2", "a"), ("c3", "b"), ("c4", "b")] {
        let result = format!("r {driver}.dev 0");
        node.add(claim(name, &["p", "q"], &[&result]));
    }
    let p = pod("p", &["c1", "c2", "c3", "c4"]);
    node.prepare(&p).await.unwrap();
    assert_eq!(a.calls(), ["prepare c1,c2"]);
    assert_eq!(b.calls(), ["prepare c3,c4"]);
    assert_eq!(
        node.cdi(&p).await,
        [
            "a.dev/c=c1-dev",
            "a.dev/c=c2-dev",
            "b.dev/c=c3-dev",
            "b.dev/c=c4-dev"
        ]
    );
    // Again is nothing, and another pod needs only what is new.
    node.prepare(&p).await.unwrap();
    node.add(claim("c5", &["q"], &["r a.dev 1"]));
    let q = pod("q", &["c1", "c5"]);
    node.prepare(&q).await.unwrap();
    assert_eq!(a.calls(), ["prepare c5"]);

    // Item 110: undone once, after the last pod.
    node.manager().unprepare_claims("uid-p").await.unwrap();
    assert_eq!(a.calls(), ["unprepare c2"]);
    assert_eq!(b.calls(), ["unprepare c3,c4"]);
    let metrics = || {
        let mut registry = prometheus_client::registry::Registry::default();
        node.manager().register_claim_metrics(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    };
    assert!(metrics().contains("dra_resource_claims_in_use{driver_name=\"a.dev\"} 2"));
    node.manager().unprepare_claims("uid-q").await.unwrap();
    node.manager().unprepare_claims("uid-q").await.unwrap();
    assert_eq!(a.calls(), ["unprepare c1,c5"]);
    let text = metrics();
    assert!(
        text.contains("dra_resource_claims_in_use{driver_name=\"<any>\"} 0"),
        "{text}"
    );
    let call = "dra_grpc_operations_duration_seconds_count{driver_name=\"b.dev\",method_name=\"NodeUnprepareResources\",grpc_status_code=\"OK\"} 1";
    assert!(text.contains(call), "{text}");
    let operation = "dra_operations_duration_seconds_count{operation_name=\"PrepareResources\",is_error=\"false\"} 3";
    assert!(text.contains(operation), "{text}");
}

#[tokio::test]
async fn items_102_105_106_refusals_and_failures() {
    let node = Node::start().await;
    let old = Driver::new("old.dev", &["0.9.0"]);
    let _old = old.serve(&node, "old.sock").await;
    let (registered, text) = old.notified().remove(0);
    assert!(!registered);
    assert!(
        text.starts_with("RegisterPlugin error -- plugin validation failed with err: invalid supported gRPC versions of DRA driver plugin old.dev at endpoint "),
        "{text}"
    );

    let (a, b) = (Driver::new("a.dev", V1), Driver::new("b.dev", V1));
    node.add(claim("both", &["p"], &["r a.dev 0", "s b.dev 0"]));
    let p = pod("p", &["both"]);
    let _a = a.serve(&node, "a.sock").await;
    assert_eq!(
        node.prepare(&p).await.unwrap_err(),
        "DRA driver b.dev is not registered"
    );
    assert!(a.calls().is_empty());
    // Nothing was recorded, so the pod can go without any driver.
    node.manager().unprepare_claims("uid-p").await.unwrap();
    assert!(a.calls().is_empty());

    let _b = b.serve(&node, "b.sock").await;
    b.fail("both");
    assert_eq!(
        node.prepare(&p).await.unwrap_err(),
        "NodePrepareResources failed for ResourceClaim both: told to fail"
    );
    assert_eq!((a.calls().len(), b.calls().len()), (1, 1));
    let early = node.manager().container_options(&p, "main").await;
    early.unwrap_err();
    // Only the one that failed is asked again.
    b.work();
    node.prepare(&p).await.unwrap();
    assert_eq!((a.calls().len(), b.calls().len()), (0, 1));

    b.hang(true);
    node.add(claim("hung", &["h"], &["r b.dev 1"]));
    let hung = node.prepare(&pod("h", &["hung"])).await.unwrap_err();
    assert_eq!(
        hung,
        "NodePrepareResources: rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    );

    let stranger = pod("stranger", &["both"]);
    assert_eq!(
        node.prepare(&stranger).await.unwrap_err(),
        "pod stranger (uid-stranger) is not allowed to use ResourceClaim both (uid-both)"
    );
    let missing = pod("m", &["nowhere"]);
    assert_eq!(
        node.prepare(&missing).await.unwrap_err(),
        "fetch ResourceClaim nowhere: resourceclaims.resource.k8s.io \"nowhere\" not found"
    );
}

/// Counts the lines of this thread's log that have these words.
struct Said(&'static str, std::sync::Arc<std::sync::atomic::AtomicUsize>);

struct Words<'a>(&'static str, &'a mut bool);

impl tracing::field::Visit for Words<'_> {
    fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        *self.1 |= format!("{value:?}").contains(self.0);
    }
}

impl tracing::Subscriber for Said {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut found = false;
        event.record(&mut Words(self.0, &mut found));
        self.1
            .fetch_add(usize::from(found), std::sync::atomic::Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn claims_that_cannot_be_undone_are_tried_often_and_told_of_seldom() {
    let said = std::sync::Arc::default();
    let _log =
        tracing::subscriber::set_default(Said("cannot be undone", std::sync::Arc::clone(&said)));
    // While there is one subscriber, tracing asks that of the thread which comes to a line of the log first, and remembers
    // the answer for all: with another test's thread, which has none, this one would hear nothing. Of two, both are asked.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new());
    let node = Node::start().await;
    let driver = Driver::new("a.dev", V1);
    let _serving = driver.serve(&node, "a.sock").await;
    node.add(claim("own", &["p"], &["r a.dev 0"]));
    node.prepare(&pod("p", &["own"])).await.unwrap();
    driver.calls();
    driver.fail("own");
    node.pods.remove("uid-p");
    let tried = std::sync::atomic::AtomicUsize::new(0);
    until("tries to undo the claim", || {
        let calls = driver.calls().len();
        tried.fetch_add(calls, std::sync::atomic::Ordering::Relaxed) + calls >= 6
    })
    .await;
    let lines = said.load(std::sync::atomic::Ordering::Relaxed);
    assert!((2..=3).contains(&lines), "{lines} lines");
}

#[tokio::test]
async fn a_driver_may_register_before_it_serves() {
    let node = Node::start().await;
    let driver = Driver::new("a.dev", V1);
    let plugins = node.dir.path().join("plugins");
    std::fs::create_dir_all(&plugins).unwrap();
    driver.elsewhere(&plugins.join("a.sock"));
    let _registrar = driver.serve(&node, "a-reg.sock").await;
    assert_eq!(driver.notified(), [(true, String::new())]);
    node.add(claim("own", &["p"], &["r a.dev 0"]));
    let p = pod("p", &["own"]);
    node.prepare(&p).await.unwrap_err();
    assert!(driver.calls().is_empty());
    let _service = driver.begin(&plugins, "a.sock");
    let end = tokio::time::Instant::now() + Duration::from_secs(10);
    while let Err(error) = node.prepare(&p).await {
        assert!(tokio::time::Instant::now() < end, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(driver.calls(), ["prepare own"]);
}

#[tokio::test]
async fn a_partial_preparation_is_kept_for_a_while_and_then_undone() {
    let node = Node::start().await;
    let (a, b) = (Driver::new("a.dev", V1), Driver::new("b.dev", V1));
    let _a = a.serve(&node, "a.sock").await;
    let _b = b.serve(&node, "b.sock").await;
    node.add(claim("own", &["p"], &["r a.dev 0", "s b.dev 0"]));
    node.add(claim("shared", &["p", "q"], &["r a.dev 1"]));
    let (p, q) = (pod("p", &["own", "shared"]), pod("q", &["shared"]));
    node.prepare(&q).await.unwrap();
    assert_eq!(a.calls(), ["prepare shared"]);
    b.fail("own");
    node.prepare(&p).await.unwrap_err();
    node.prepare(&p).await.unwrap_err();
    // The one that works is asked once, and nothing is undone while it may go on in a moment.
    assert_eq!(a.calls(), ["prepare own"]);
    tokio::time::sleep(KEEP).await;
    b.calls();
    node.prepare(&p).await.unwrap_err();
    assert_eq!(a.calls(), ["unprepare own"]);
    // Now the one that fails has to work before the others are bothered.
    node.prepare(&p).await.unwrap_err();
    assert_eq!(
        (a.calls().len(), b.calls()),
        (0, vec!["prepare own".to_owned(); 2])
    );
    node.manager()
        .container_options(&p, "main")
        .await
        .unwrap_err();
    b.work();
    node.prepare(&p).await.unwrap();
    assert_eq!(a.calls(), ["prepare own"]);
    assert_eq!(
        node.cdi(&p).await,
        ["a.dev/c=own-dev", "b.dev/c=own-dev", "a.dev/c=shared-dev"]
    );
    // With the pod everything is undone; the other pod keeps what it has.
    b.calls();
    node.manager().unprepare_claims("uid-p").await.unwrap();
    assert_eq!(a.calls(), ["unprepare own"]);
    assert_eq!(b.calls(), ["unprepare own"]);
    assert_eq!(node.cdi(&q).await, ["a.dev/c=shared-dev"]);
}

#[tokio::test]
async fn items_111_112_118_restarts_and_claims_of_the_same_name() {
    let mut node = Node::start().await;
    let a = Driver::new("a.dev", V1);
    let serving = a.serve(&node, "a.sock").await;
    node.add(claim("c", &["p"], &["r a.dev 0"]));
    let p = pod("p", &["c"]);
    node.prepare(&p).await.unwrap();
    a.calls();
    let file = node.dir.path().join("dra_manager_state");
    until("the kubelet's file is written", || {
        let Ok(bytes) = std::fs::read(&file) else {
            return false;
        };
        let outer: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let data: serde_json::Value =
            serde_json::from_str(outer["Data"].as_str().unwrap()).unwrap();
        let claim = &data["ClaimInfoStateList"][0];
        let device = &claim["DriverState"]["a.dev"]["Devices"][0];
        data["apiVersion"] == "checkpoint.dra.kubelet.k8s.io/v1"
            && outer["Checksum"].is_u64()
            && claim["ClaimName"] == "c"
            && claim["PodUIDs"] == serde_json::json!({"uid-p": {}})
            && device["CDIDeviceIDs"] == serde_json::json!(["a.dev/c=c-dev"])
    })
    .await;

    // After a restart the log knows the claim, even while the API is away; the driver is asked once more.
    *node.api.down.lock() = true;
    node.again().await;
    assert_eq!(node.cdi(&p).await, ["a.dev/c=c-dev"]);
    until("registered again", || a.notified().len() == 2).await;
    node.prepare(&p).await.unwrap();
    node.prepare(&p).await.unwrap();
    assert_eq!(a.calls(), ["prepare c"]);

    // A driver that is being replaced does not keep a container from starting again.
    serving.stop().await;
    node.again().await;
    node.prepare(&p).await.unwrap();
    assert_eq!(node.cdi(&p).await, ["a.dev/c=c-dev"]);
    let _serving = a.serve(&node, "a2.sock").await;

    *node.api.down.lock() = false;
    let mut newer = claim("c", &["q"], &["r a.dev 0"]);
    newer.metadata.uid = Some("uid-newer".to_owned());
    node.add(newer);
    let q = pod("q", &["c"]);
    assert_eq!(
        node.prepare(&q).await.unwrap_err(),
        "old ResourceClaim with same name c and different UID uid-c still exists (previous pod force-deleted?!)"
    );
    node.manager().unprepare_claims("uid-p").await.unwrap();
    node.prepare(&q).await.unwrap();
}

#[tokio::test]
async fn a_driver_that_is_gone_holds_nobody_up_for_ever_and_undoes_when_it_is_back() {
    let node = Node::start().await;
    let a = Driver::new("a.dev", V1);
    let serving = a.serve(&node, "a.sock").await;
    node.add(claim("c", &["p", "gone"], &["r a.dev 0"]));
    let p = pod("p", &["c"]);
    node.prepare(&p).await.unwrap();
    node.prepare(&pod("gone", &["c"])).await.unwrap();
    // Item 110: a pod that vanished without a word.
    node.pods.remove("uid-gone");
    serving.stop().await;
    until("the loss is seen", || {
        std::fs::read_dir(node.dir.path().join("plugins_registry")).is_ok_and(|d| d.count() == 0)
    })
    .await;
    let began = std::time::Instant::now();
    loop {
        match node.manager().unprepare_claims("uid-p").await {
            Ok(()) => break,
            Err(error) => {
                let text = error.to_string();
                assert!(
                    text == "DRA driver a.dev is not registered"
                        || text.starts_with("NodeUnprepareResources: rpc error"),
                    "{text}"
                );
            }
        }
        assert!(began.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Item 113: its slices go too; all old ones went at the start.
    until("slices wiped", || {
        node.api.wiped.lock().contains(&Some("a.dev".to_owned()))
    })
    .await;
    assert_eq!(node.api.wiped.lock().first(), Some(&None));
    node.pods.remove("uid-p");
    a.calls();
    let _back = a.serve(&node, "a.sock").await;
    let seen = std::cell::RefCell::new(Vec::new());
    until("undone", || {
        seen.borrow_mut().extend(a.calls());
        !seen.borrow().is_empty()
    })
    .await;
    assert_eq!(seen.borrow()[0], "unprepare c");
}

#[tokio::test]
async fn classic_drivers_are_called_by_their_protocol() {
    let node = Node::start().await;
    let driver = Driver::new("classic.dev", &["1.0.0"]);
    let _serving = driver.serve(&node, "c.sock").await;
    let claim = ClassicClaim {
        uid: "uid-cat".into(),
        owners: vec!["uid-p".into()],
        reserved_for: vec!["uid-p".into()],
        driver: "classic.dev".into(),
        handle: Some("handle".into()),
    };
    node.api.classic.lock().insert("p-cat".into(), claim);
    let mut p = pod("p", &["cat"]);
    let entry = &mut p.spec.as_mut().unwrap().resource_claims.as_mut().unwrap()[0];
    entry.resource_claim_name = None;
    entry.resource_claim_template_name = Some("cats".into());
    node.prepare(&p).await.unwrap();
    assert_eq!(driver.calls(), ["classic-prepare p-cat handle"]);
    assert_eq!(node.cdi(&p).await, ["classic.dev/test=claim-uid-cat"]);
    node.manager().unprepare_claims("uid-p").await.unwrap();
    assert_eq!(
        driver.calls(),
        ["classic-unprepare p-cat classic.dev/test=claim-uid-cat"]
    );
}

#[tokio::test]
async fn item_115_health_reaches_the_pods_status() {
    let node = Node::start().await;
    let a = Driver::new("a.dev", V1);
    let serving = a.serve(&node, "a.sock").await;
    node.add(claim("c", &["p"], &["r a.dev c-dev"]));
    let p = pod("p", &["c"]);
    node.prepare(&p).await.unwrap();
    let status = || {
        let all = node.manager().allocated_resources_status(&p, "main");
        assert_eq!(all[0].name, "claim:c");
        let one = all[0].resources.as_ref().unwrap()[0].clone();
        (one.resource_id, one.health.unwrap(), one.message)
    };
    let expect = |health: &str, message: Option<&str>| {
        let message = message.map(str::to_owned);
        ("a.dev/c=c-dev".to_owned(), health.to_owned(), message)
    };
    assert_eq!(status(), expect("Unknown", None));
    until("health is watched", || a.watched()).await;
    a.report("c-dev", HealthStatus::Unhealthy, "hot");
    let woken = tokio::time::timeout(Duration::from_secs(5), node.manager().device_health());
    assert!(woken.await.unwrap().contains("uid-p"));
    assert_eq!(status(), expect("Unhealthy", Some("hot")));
    a.report("c-dev", HealthStatus::Healthy, "");
    until("healthy again", || status() == expect("Healthy", None)).await;
    serving.stop().await;
    until("unknown without the driver", || {
        status() == expect("Unknown", None)
    })
    .await;
}

#[tokio::test]
async fn item_114_the_newest_instance_is_called_and_the_old_one_takes_over_again() {
    let node = Node::start().await;
    let (old, new) = (Driver::new("a.dev", V1), Driver::new("a.dev", V1));
    let _old = old.serve(&node, "old.sock").await;
    for name in ["c1", "c2", "c3"] {
        node.add(claim(name, &["p"], &["r a.dev 0"]));
    }
    node.prepare(&pod("p", &["c1"])).await.unwrap();
    let serving = new.serve(&node, "new.sock").await;
    node.prepare(&pod("p", &["c2"])).await.unwrap();
    serving.stop().await;
    until("the new instance is gone", || {
        !node.dir.path().join("plugins_registry/new.sock").exists()
    })
    .await;
    node.prepare(&pod("p", &["c3"])).await.unwrap();
    assert_eq!(old.calls(), ["prepare c1", "prepare c3"]);
    assert_eq!(new.calls(), ["prepare c2"]);
    assert!(!node.api.wiped.lock().contains(&Some("a.dev".to_owned())));
}

#[tokio::test]
async fn item_101_drivers_of_the_first_version_are_called_by_it() {
    let node = Node::start().await;
    let a = Driver::new("a.dev", &["v1beta1.DRAPlugin"]);
    let _a = a.serve(&node, "a.sock").await;
    node.add(claim("c", &["p"], &["r a.dev 0"]));
    let p = pod("p", &["c"]);
    a.fail("c");
    assert_eq!(
        node.prepare(&p).await.unwrap_err(),
        "NodePrepareResources failed for ResourceClaim c: told to fail"
    );
    a.work();
    node.prepare(&p).await.unwrap();
    assert_eq!(node.cdi(&p).await, ["a.dev/c=c-dev"]);
    node.manager().unprepare_claims("uid-p").await.unwrap();
    assert_eq!(a.calls(), ["prepare c", "prepare c", "unprepare c"]);
}

/// One device that comes with a CDI name.
struct Gadget(tokio::sync::watch::Sender<Vec<davit_sdk::deviceplugin::Device>>);

#[tonic::async_trait]
impl davit_sdk::deviceplugin::DevicePlugin for Gadget {
    fn devices(&self) -> tokio::sync::watch::Receiver<Vec<davit_sdk::deviceplugin::Device>> {
        self.0.subscribe()
    }

    async fn allocate(
        &self,
        ids: &[String],
    ) -> Result<davit_sdk::deviceplugin::Allocation, davit_sdk::deviceplugin::Refusal> {
        let allocation = davit_sdk::deviceplugin::Allocation::new();
        // The same name as the claim's is not given twice.
        let allocation = allocation.cdi("a.dev/c=c1-dev");
        Ok(ids.iter().fold(allocation, |all, id| {
            all.cdi(format!("vendor.example/x={id}"))
        }))
    }
}

/// Item 32: types of plugins side by side in one directory. Item 84: CDI devices of claims come before those of device
/// plugins.
#[tokio::test]
async fn items_032_084_drivers_and_device_plugins_side_by_side() {
    use davit_sdk::deviceplugin::{Device, PluginServer, Route};
    let node = Node::start().await;
    let registry = node.dir.path().join("plugins_registry");
    let gadget = Gadget(tokio::sync::watch::Sender::new(vec![Device::healthy("x0")]));
    let plugin = PluginServer::new("example.com/x", gadget);
    let _plugin = plugin.route(Route::Registry(registry)).start().unwrap();
    let driver = Driver::new("a.dev", V1);
    let _driver = driver.serve(&node, "a.sock").await;
    until("the plugin's device", || {
        let resources = node.manager().node_resources();
        resources
            .get("example.com/x")
            .is_some_and(|c| c.allocatable == 1)
    })
    .await;
    node.add(claim("c1", &["p"], &["r a.dev 0"]));
    let mut p = pod("p", &["c1"]);
    let container = &mut p.spec.as_mut().unwrap().containers[0];
    let limits = serde_json::from_value(serde_json::json!({"example.com/x": "1"})).unwrap();
    container.resources.as_mut().unwrap().limits = Some(limits);
    node.pods.set(&p);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    node.manager().admit(&p, deadline, &|_| ()).await.unwrap();
    node.prepare(&p).await.unwrap();
    assert_eq!(
        node.cdi(&p).await,
        ["a.dev/c=c1-dev", "vendor.example/x=x0"]
    );
}

#[tokio::test]
async fn item_109_init_containers_and_sidecars_get_their_devices() {
    let node = Node::start().await;
    let driver = Driver::new("a.dev", V1);
    let _running = driver.serve(&node, "a.sock").await;
    node.add(claim("c1", &["p"], &["r a.dev 0"]));
    let mut p = pod("p", &["c1"]);
    let spec = p.spec.as_mut().unwrap();
    let init = |name: &str, policy: Option<&str>| {
        let mut container = spec.containers[0].clone();
        container.name = name.to_owned();
        container.restart_policy = policy.map(str::to_owned);
        container
    };
    let (first, beside) = (init("first", None), init("beside", Some("Always")));
    let mut without = init("without", None);
    without.resources = None;
    spec.init_containers = Some(vec![first, beside, without]);
    node.prepare(&p).await.unwrap();
    for (container, wanted) in [
        ("first", &["a.dev/c=c1-dev"][..]),
        ("beside", &["a.dev/c=c1-dev"]),
        ("without", &[]),
        ("main", &["a.dev/c=c1-dev"]),
    ] {
        assert_eq!(node.cdi_of(&p, container).await, wanted, "{container}");
    }
    assert_eq!(driver.calls(), ["prepare c1"]);
}
