//! The container manager against plugins over real unix sockets. Test names carry the numbers
//! of the acceptance checklist they cover.

#![allow(clippy::unwrap_used)]

mod checklist;
mod compute;
mod model;
mod plugin;
mod upgrades;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use davit_node::containermanager::Rejection;
use davit_proto::deviceplugin::v1beta1 as pb;
use davit_proto::podresources::v1::pod_resources_lister_client::PodResourcesListerClient;
use davit_proto::podresources::v1::{
    AllocatableResourcesRequest, GetPodResourcesRequest, ListPodResourcesRequest, PodResources,
};
use davit_proto::podresources::v1alpha1;
use davit_proto::unix;
use parking_lot::Mutex;
use plugin::{Node, Plugin, R, devices, init_pod, pod, until};
use tonic::Code;

/// Devices each container of a pod shows in podresources.
fn held(pod: &PodResources) -> BTreeMap<String, BTreeSet<String>> {
    let ids = |c: &davit_proto::podresources::v1::ContainerResources| {
        c.devices
            .iter()
            .flat_map(|d| d.device_ids.clone())
            .collect()
    };
    pod.containers
        .iter()
        .map(|c| (c.name.clone(), ids(c)))
        .collect()
}

async fn lister(node: &Node) -> PodResourcesListerClient<tonic::transport::Channel> {
    let path = node.root().join("pod-resources/kubelet.sock");
    PodResourcesListerClient::new(unix::connect(path, Duration::from_secs(5)).await.unwrap())
        .max_decoding_message_size(unix::MAX_MESSAGE)
}

async fn list(node: &Node) -> Vec<PodResources> {
    let mut client = lister(node).await;
    loop {
        match client.list(ListPodResourcesRequest {}).await {
            Ok(answer) => return answer.into_inner().pod_resources,
            Err(e) => assert_eq!(e.message(), "rejected by rate limit"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn message(rejection: &Rejection) -> String {
    assert_eq!(rejection.reason, "UnexpectedAdmissionError");
    let text = rejection
        .message
        .strip_prefix("Allocate failed due to ")
        .unwrap();
    text.strip_suffix(", which is unexpected")
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn items_005_006_007_010_012_registration_refusals() {
    let node = Node::start().await;
    let register = |version: &str, name: &str, endpoint: &str| {
        let request = pb::RegisterRequest {
            version: version.into(),
            endpoint: endpoint.into(),
            resource_name: name.into(),
            options: None,
        };
        plugin::register(node.root(), request)
    };
    let status = register("v1alpha", R, "x.sock").await.unwrap_err();
    assert_eq!(status.code(), Code::Unknown);
    assert_eq!(
        status.message(),
        "requested API version \"v1alpha\" is not supported by kubelet. Supported version is [\"v1beta1\"]"
    );
    let status = register("v1beta1", "mykubernetes.io/x", "x.sock")
        .await
        .unwrap_err();
    assert_eq!(
        status.message(),
        "the ResourceName \"mykubernetes.io/x\" is invalid"
    );
    let status = register("v1beta1", R, "absent.sock").await.unwrap_err();
    assert!(
        status
            .message()
            .starts_with("failed to dial device plugin: "),
        "{status}"
    );
    let status = register("v1beta1", R, "../x.sock").await.unwrap_err();
    assert!(
        status
            .message()
            .starts_with("failed to dial device plugin: "),
        "{status}"
    );
    assert!(node.manager().node_resources().is_empty());
    let mut registry = prometheus_client::registry::Registry::default();
    node.manager().register_metrics(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(
        text.contains(&format!(
            "device_plugin_registration_total{{resource_name=\"{R}\"}} 3"
        )),
        "{text}"
    );
}

#[tokio::test]
async fn items_009_and_011_failing_registrations_change_nothing() {
    let node = Node::start().await;
    let broken = Plugin::new("broken.sock").failing_options();
    let status = broken
        .serve(node.root())
        .await
        .register(R)
        .await
        .unwrap_err();
    assert!(
        status
            .message()
            .starts_with("failed to get device plugin options: rpc error"),
        "{status}"
    );
    assert_eq!(broken.count("options"), 1);
    assert_eq!(broken.count("list"), 0);
    assert!(!node.manager().node_resources().contains_key(R));

    let good = Plugin::new("good.sock").with(devices(2));
    let _good = good.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    broken
        .serve(node.root())
        .await
        .register(R)
        .await
        .unwrap_err();
    node.counts(R, 2, 2).await;
    node.admit(&pod("a", &[(R, 2)])).await.unwrap();
}

#[tokio::test]
async fn item_014_fifty_plugins_at_once() {
    let node = Node::start().await;
    let started = Instant::now();
    let mut serving = Vec::new();
    for n in 0..50 {
        let plugin = Plugin::new(&format!("p{n}.sock")).with(devices(1));
        serving.push(plugin.serve(node.root()).await);
    }
    let all = serving.iter().enumerate().map(|(n, s)| async move {
        s.register(&format!("example.com/r{n}")).await.unwrap();
    });
    futures::future::join_all(all).await;
    until("all listed", || {
        node.manager()
            .node_resources()
            .values()
            .filter(|c| c.allocatable == 1)
            .count()
            == 50
    })
    .await;
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn items_015_016_018_start_sequence() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let plugins = dir.path().join("device-plugins");
    std::fs::create_dir_all(plugins.join("sub")).unwrap();
    std::fs::write(plugins.join("file"), "x").unwrap();
    drop(std::os::unix::net::UnixListener::bind(plugins.join("stale.sock")).unwrap());
    let node = Node::start_in(dir).await;
    assert!(!plugins.join("stale.sock").exists());
    assert!(plugins.join("file").exists() && plugins.join("sub").exists());
    assert!(plugins.join("kubelet.sock").exists());
    let registry = node.root().join("plugins_registry");
    assert_eq!(
        std::fs::metadata(registry).unwrap().permissions().mode() & 0o777,
        0o750
    );
    assert!(node.manager().healthy());
    node.manager().shutdown().await;
    assert!(!node.manager().healthy());
    assert!(!plugins.join("kubelet.sock").exists());
}

#[tokio::test]
async fn items_033_034_036_038_045_lists_reach_node_status() {
    let node = Node::start().await;
    let one = Plugin::new("one.sock").with(devices(2));
    let one_serving = one.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    one.list(vec![
        plugin::device("d0", "Healthy"),
        plugin::device("d1", "Broken"),
    ]);
    node.counts(R, 2, 1).await;
    one.list(devices(1));
    node.counts(R, 1, 1).await;
    let two = Plugin::new("two.sock").with(devices(3));
    let two_serving = two.serve(node.root()).await.registered(R).await;
    node.counts(R, 3, 3).await;
    // The end of the newest gives the word back to the one before it.
    two_serving.stop().await;
    node.counts(R, 1, 1).await;
    one_serving.stop().await;
    node.counts(R, 1, 0).await;
    assert_eq!(one.count("list"), 1);
}

#[tokio::test]
async fn item_044_upgrade_overlap() {
    let node = Node::start().await;
    let old = Plugin::new("old.sock").with(devices(2));
    let old_serving = old.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    let new = Plugin::new("new.sock").with(devices(4));
    let _new_serving = new.serve(node.root()).await.registered(R).await;
    node.counts(R, 4, 4).await;
    old_serving.stop().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    node.counts(R, 4, 4).await;
    node.admit(&pod("a", &[(R, 3)])).await.unwrap();
    assert_eq!((old.count("allocate"), new.count("allocate")), (0, 1));
}

#[tokio::test]
async fn item_046_large_list() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(
        (0..8000)
            .map(|n| plugin::device(&format!("{n}-{}", "x".repeat(1000)), "Healthy"))
            .collect(),
    );
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 8000, 8000).await;
}

#[tokio::test]
async fn item_049_flood_of_lists() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(1000));
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    let mut watch = node.manager().subscribe();
    let mut seen = 0;
    for n in 0..600 {
        let healthy = if n % 2 == 0 { "Healthy" } else { "Unhealthy" };
        let mut all = devices(1000);
        all[0].health = healthy.into();
        plugin.list_when_room(all).await;
        if watch.has_changed().unwrap() {
            watch.borrow_and_update();
            seen += 1;
        }
    }
    assert!(seen < 300, "{seen} changes shown");
    let mut last = devices(7);
    last[0].health = "Unhealthy".into();
    plugin.list(last);
    node.counts(R, 7, 6).await;
    // Others are served meanwhile and after.
    node.admit(&pod("a", &[(R, 1)])).await.unwrap();
}

#[tokio::test]
async fn items_051_053_059_063_078_allocate_and_options() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock")
        .with(devices(4))
        .preferring(&["d3", "foreign", "d1"]);
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    let other = Plugin::new("q.sock").with(devices(4));
    let _other = other
        .serve(node.root())
        .await
        .registered("example.com/bar")
        .await;
    node.counts(R, 4, 4).await;
    node.counts("example.com/bar", 4, 4).await;
    let pod = pod("a", &[(R, 2), ("example.com/bar", 1)]);
    node.admit(&pod).await.unwrap();
    node.admit(&pod).await.unwrap();
    assert_eq!(plugin.allocations(), [["d1", "d3"]]);
    assert_eq!(other.allocations(), [["d0"]]);
    let asked = plugin.asked();
    assert_eq!(asked[0].available_device_i_ds, ["d0", "d1", "d2", "d3"]);
    assert!(asked[0].must_include_device_i_ds.is_empty());
    assert_eq!(asked[0].allocation_size, 2);
    let options = node
        .manager()
        .container_options(&pod, "main")
        .await
        .unwrap();
    let envs: Vec<_> = options
        .envs
        .iter()
        .map(|e| (&*e.key, e.text().into_owned()))
        .collect();
    assert_eq!(
        envs,
        [("DEVICES", "d0".to_owned())],
        "sorted by resource, the first wins"
    );
    assert_eq!(options.devices.len(), 3);
    assert_eq!(options.cdi_devices[0].name, "vendor.com/class=d0");
    assert_eq!(options.annotations.len(), 1);
    assert_eq!(plugin.count("prestart"), 0);
}

#[tokio::test]
async fn items_052_054_055_056_init_containers_and_sidecars() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(4));
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 4, 4).await;
    let pod = init_pod("a", &[("side", true), ("init", false)], &["one", "two"]);
    node.admit(&pod).await.unwrap();
    let calls = plugin.allocations();
    assert_eq!(calls, [["d0"], ["d1"], ["d1"], ["d2"]]);
    let listed = list(&node).await;
    let names: Vec<_> = listed[0]
        .containers
        .iter()
        .map(|c| c.name.clone())
        .collect();
    assert_eq!(names, ["side", "one", "two"]);
    let all: Vec<_> = held(&listed[0]).into_values().flatten().collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
}

#[tokio::test]
async fn items_057_058_061_068_refusals() {
    let node = Node::start_with(|c| c.plugin_wait = Duration::ZERO).await;
    let plugin = Plugin::new("p.sock").with(devices(2));
    let serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    let error = message(&node.admit(&pod("a", &[(R, 3)])).await.unwrap_err());
    assert_eq!(
        error,
        format!("requested number of devices unavailable for {R}. Requested: 3, Available: 2")
    );
    plugin.empty_answers();
    let error = message(&node.admit(&pod("b", &[(R, 1)])).await.unwrap_err());
    assert!(
        error.starts_with("no containers return in allocation response "),
        "{error}"
    );
    plugin.failing("out of luck");
    let error = message(&node.admit(&pod("c", &[(R, 2)])).await.unwrap_err());
    assert_eq!(
        error,
        "rpc error: code = FailedPrecondition desc = out of luck"
    );
    plugin.working();
    node.admit(&pod("d", &[(R, 2)])).await.unwrap();
    plugin.list(vec![
        plugin::device("d0", "Unhealthy"),
        plugin::device("d1", "Unhealthy"),
    ]);
    node.counts(R, 2, 0).await;
    let error = message(&node.admit(&pod("e", &[(R, 1)])).await.unwrap_err());
    assert_eq!(
        error,
        format!("no healthy devices present; cannot allocate unhealthy devices {R}")
    );
    let error = message(&node.admit(&pod("d", &[(R, 2)])).await.unwrap_err());
    assert_eq!(
        error,
        format!("no healthy devices present; cannot allocate unhealthy devices {R}")
    );
    plugin.list(vec![
        plugin::device("d0", "Unhealthy"),
        plugin::device("d1", "Healthy"),
    ]);
    node.counts(R, 2, 1).await;
    let error = message(&node.admit(&pod("d", &[(R, 2)])).await.unwrap_err());
    assert_eq!(
        error,
        format!(
            "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {R}"
        )
    );
    let error = message(&node.admit(&pod("d", &[(R, 1)])).await.unwrap_err());
    assert_eq!(
        error,
        format!(
            "pod \"uid-d\" container \"main\" changed request for resource \"{R}\" from 2 to 1"
        )
    );
    node.admit(&pod("f", &[(R, 0)])).await.unwrap();
    node.admit(&pod("g", &[("example.com/unknown", 1)]))
        .await
        .unwrap();
    serving.stop().await;
    node.counts(R, 2, 0).await;
    let error = message(&node.admit(&pod("h", &[(R, 1)])).await.unwrap_err());
    assert_eq!(
        error,
        format!("no healthy devices present; cannot allocate unhealthy devices {R}")
    );
}

#[tokio::test]
async fn item_066_preference_that_fails() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(2)).failing_preference();
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    let error = message(&node.admit(&pod("a", &[(R, 1)])).await.unwrap_err());
    assert_eq!(
        error,
        "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = no taste"
    );
    assert_eq!(node.manager().allocated(), BTreeMap::new());
}

#[tokio::test]
async fn items_069_070_a_plugin_that_hangs() {
    let node = Node::start_with(|c| c.allocate_timeout = Duration::from_secs(4)).await;
    let hanging = Plugin::new("h.sock").with(devices(2));
    let _hanging = hanging.serve(node.root()).await.registered(R).await;
    let good = Plugin::new("g.sock").with(devices(200));
    let _good = good
        .serve(node.root())
        .await
        .registered("example.com/good")
        .await;
    node.counts(R, 2, 2).await;
    node.counts("example.com/good", 200, 200).await;
    hanging.hanging();
    let started = Instant::now();
    let stuck = pod("stuck", &[(R, 2)]);
    let waits = node.admit(&stuck);
    let others = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        for n in 0..20 {
            node.admit(&pod(&format!("g{n}"), &[("example.com/good", 2)]))
                .await
                .unwrap();
            node.admit(&pod(&format!("n{n}"), &[])).await.unwrap();
        }
        started.elapsed()
    };
    let (stuck, others) = tokio::join!(waits, others);
    assert!(others < Duration::from_secs(4), "others took {others:?}");
    let error = message(&stuck.unwrap_err());
    assert!(
        error.contains("DeadlineExceeded") && error.contains("did not answer Allocate within"),
        "{error}"
    );
    hanging.working();
    node.admit(&pod("next", &[(R, 2)])).await.unwrap();
}

#[tokio::test]
async fn a_plugin_that_vanishes_in_the_middle_is_waited_for() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(2));
    let serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    plugin.hanging();
    let said = Arc::new(Mutex::new(Vec::new()));
    let waiting = pod("a", &[(R, 2)]);
    let admission = node.admit_saying(&waiting, said.clone());
    let script = async {
        until("call arrives", || plugin.count("allocate") == 1).await;
        serving.stop().await;
        // The slow call may have been named before.
        let reason = format!("waiting for the device plugin of {R}");
        let is_told = || said.lock().iter().any(|s: &String| s.contains(&reason));
        until("reason is told", is_told).await;
        assert_eq!(node.manager().allocated(), BTreeMap::new());
        plugin.working();
        plugin.serve(node.root()).await.registered(R).await
    };
    let (admitted, _serving) = tokio::join!(admission, script);
    admitted.unwrap();
    assert_eq!(node.manager().allocated()[R], 2);
}

#[tokio::test]
async fn items_071_072_073_churn_never_shares_a_device() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(200));
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 200, 200).await;
    let churn = |worker: usize| {
        let node = &node;
        async move {
            for round in 0..10 {
                let pod = pod(&format!("{worker}-{round}"), &[(R, 2)]);
                node.admit(&pod).await.unwrap();
                tokio::task::yield_now().await;
                node.finish(&pod, round % 2 == 0).await;
            }
        }
    };
    let workers = futures::future::join_all((0..100).map(churn));
    let watch = async {
        loop {
            let mut seen = BTreeSet::new();
            for pod in list(&node).await {
                for id in held(&pod).into_values().flatten() {
                    assert!(seen.insert(id.clone()), "{id} is listed twice");
                }
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    };
    tokio::select! {
        _ = workers => {}
        () = watch => {}
    }
    node.manager().sources_ready();
    node.clear_pods();
    list(&node).await;
    assert_eq!(node.manager().allocated(), BTreeMap::new());
}

#[tokio::test]
async fn items_060_096_100_restart_with_running_containers() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(4));
    let serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 4, 4).await;
    let a = pod("a", &[(R, 2)]);
    node.admit(&a).await.unwrap();
    let before = list(&node).await;
    serving.stop().await;
    let node = node.restart().await;
    node.adopt("uid-a", "main", true);
    node.counts(R, 0, 0).await;
    node.admit(&a).await.unwrap();
    assert_eq!(list(&node).await, before);
    let options = node.manager().container_options(&a, "main").await.unwrap();
    assert_eq!(options.devices.len(), 2);
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 4, 4).await;
    assert_eq!(plugin.count("allocate"), 1);
    node.admit(&pod("b", &[(R, 2)])).await.unwrap();
    assert_eq!(plugin.allocations(), [["d0", "d1"], ["d2", "d3"]]);
}

#[tokio::test]
async fn items_097_099_a_late_plugin_is_waited_for() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(2));
    let serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    let old = pod("old", &[(R, 1)]);
    node.admit(&old).await.unwrap();
    serving.stop().await;

    // A reboot: nothing runs, the plugin is late.
    let node = node.restart().await;
    let said = Arc::new(Mutex::new(Vec::new()));
    let new = pod("new", &[(R, 1)]);
    let (old_admission, new_admission) = (node.admit(&old), node.admit_saying(&new, said.clone()));
    let script = async {
        until("reason is told", || !said.lock().is_empty()).await;
        plugin.serve(node.root()).await.registered(R).await
    };
    let (old_admitted, new_admitted, serving) = tokio::join!(old_admission, new_admission, script);
    old_admitted.unwrap();
    new_admitted.unwrap();
    assert_eq!(plugin.allocations(), [["d0"], ["d1"]]);
    serving.stop().await;

    // The wait is bounded, and zero is the kubelet's way.
    let node = node
        .restart_with(|c| c.plugin_wait = Duration::from_millis(300))
        .await;
    let started = Instant::now();
    node.admit(&pod("third", &[(R, 1)])).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn item_098_finished_init_container() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(2));
    let serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    let mut pod = init_pod("a", &[("init", false)], &[]);
    node.admit(&pod).await.unwrap();
    serving.stop().await;
    let node = node.restart_with(|c| c.plugin_wait = Duration::ZERO).await;
    plugin::finish_init(&mut pod, "init");
    node.admit(&pod).await.unwrap();
}

#[tokio::test]
async fn items_087_088_089_pre_start() {
    let node = Node::start_with(|c| c.pre_start_timeout = Duration::from_millis(300)).await;
    let plugin = Plugin::new("p.sock").with(devices(2)).wanting_pre_start();
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    let pod = pod("a", &[(R, 2)]);
    node.admit(&pod).await.unwrap();
    for n in 1..=2 {
        node.manager()
            .container_options(&pod, "main")
            .await
            .unwrap();
        assert_eq!(plugin.count("prestart"), n);
    }
    plugin.failing("not now");
    let error = node
        .manager()
        .container_options(&pod, "main")
        .await
        .unwrap_err();
    assert_eq!(
        error.0,
        "device plugin PreStartContainer rpc failed with err: rpc error: code = FailedPrecondition desc = not now"
    );
    plugin.hanging();
    let error = node
        .manager()
        .container_options(&pod, "main")
        .await
        .unwrap_err();
    assert!(error.0.contains("DeadlineExceeded"), "{error}");
}

#[tokio::test]
async fn items_101_to_105_health_in_pod_status() {
    let node = Node::start_with(|c| c.grace = Duration::from_millis(400)).await;
    let plugin = Plugin::new("p.sock").with(devices(2));
    let serving = plugin.serve(node.root()).await.registered(R).await;
    // The same IDs in another resource, in other hands.
    let twin = Plugin::new("t.sock").with(devices(2));
    let _twin = twin
        .serve(node.root())
        .await
        .registered("example.com/twin")
        .await;
    node.counts(R, 2, 2).await;
    node.counts("example.com/twin", 2, 2).await;
    node.admit(&pod("a", &[(R, 2)])).await.unwrap();
    node.admit(&pod("b", &[("example.com/twin", 2)]))
        .await
        .unwrap();
    let health = || {
        let status = node
            .manager()
            .allocated_resources_status(&pod("a", &[]), "main");
        assert_eq!(status[0].name, R);
        let all = status[0].resources.clone().unwrap();
        all.iter()
            .map(|r| (r.resource_id.clone(), r.health.clone().unwrap()))
            .collect::<Vec<_>>()
    };
    let expect = |a: &str, b: &str| {
        vec![
            ("d0".to_owned(), a.to_owned()),
            ("d1".to_owned(), b.to_owned()),
        ]
    };
    assert_eq!(health(), expect("Healthy", "Healthy"));
    let changed = || tokio::time::timeout(Duration::from_secs(5), node.manager().device_health());
    let only_a: BTreeSet<String> = ["uid-a".to_owned()].into();
    for (second, word) in [("Unhealthy", "Unhealthy"), ("Healthy", "Healthy")] {
        plugin.list(vec![
            plugin::device("d0", "Healthy"),
            plugin::device("d1", second),
        ]);
        assert_eq!(changed().await.unwrap(), only_a);
        assert_eq!(health(), expect("Healthy", word));
    }
    plugin.list(devices(1));
    assert_eq!(changed().await.unwrap(), only_a);
    assert_eq!(health(), expect("Healthy", "Unknown"));
    serving.stop().await;
    assert_eq!(changed().await.unwrap(), only_a);
    assert_eq!(health(), expect("Unhealthy", "Unhealthy"));
    node.counts(R, 0, 0).await;
    let table = node.manager().devices();
    let rows: Vec<_> = table
        .iter()
        .map(|d| (&*d.resource, &*d.id, &*d.health, &*d.holders[0].pod))
        .collect();
    let twin = "example.com/twin";
    assert_eq!(
        rows,
        [
            (R, "d0", "Unhealthy", "a"),
            (R, "d1", "Unhealthy", "a"),
            (twin, "d0", "Healthy", "b"),
            (twin, "d1", "Healthy", "b")
        ]
    );
}

#[tokio::test]
async fn items_126_to_132_podresources() {
    let node = Node::start().await;
    let mut all = devices(4);
    all[0].topology = Some(plugin::nodes(&[0, 1]));
    all[1].topology = Some(plugin::nodes(&[]));
    all[3].health = "Unhealthy".into();
    let plugin = Plugin::new("p.sock").with(all);
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 4, 3).await;
    node.admit(&pod("b", &[(R, 2)])).await.unwrap();
    node.admit(&pod("a", &[])).await.unwrap();
    let listed = list(&node).await;
    let names: Vec<_> = listed.iter().map(|p| &*p.name).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(listed[0].containers[0].devices.is_empty());
    let shape = |devices: &[davit_proto::podresources::v1::ContainerDevices]| {
        let node = |d: &davit_proto::podresources::v1::ContainerDevices| {
            let nodes = d
                .topology
                .as_ref()
                .map(|t| t.nodes.iter().map(|n| n.id).collect::<Vec<_>>());
            (d.device_ids.join(","), nodes)
        };
        devices.iter().map(node).collect::<Vec<_>>()
    };
    let d0 = [
        ("d0".to_owned(), Some(vec![0])),
        ("d0".to_owned(), Some(vec![1])),
    ];
    let d1 = ("d1".to_owned(), None);
    let two = [d0[0].clone(), d0[1].clone(), d1.clone()];
    assert_eq!(shape(&listed[1].containers[0].devices), two);
    let mut client = lister(&node).await;
    let allocatable = client
        .get_allocatable_resources(AllocatableResourcesRequest {})
        .await
        .unwrap();
    let mut three = two.to_vec();
    three.push(("d2".to_owned(), None));
    assert_eq!(shape(&allocatable.get_ref().devices), three);
    let get = |name: &str| GetPodResourcesRequest {
        pod_name: name.into(),
        pod_namespace: "default".into(),
    };
    let one = client
        .get(get("b"))
        .await
        .unwrap()
        .into_inner()
        .pod_resources
        .unwrap();
    assert_eq!(one, listed[1]);
    let status = client.get(get("nobody")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unknown);
    assert_eq!(
        status.message(),
        "pod nobody in namespace default not found"
    );
    let channel = unix::connect(
        node.root().join("pod-resources/kubelet.sock"),
        Duration::from_secs(5),
    )
    .await
    .unwrap();
    let mut old = v1alpha1::pod_resources_lister_client::PodResourcesListerClient::new(channel);
    let answer = old
        .list(v1alpha1::ListPodResourcesRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        answer.pod_resources[1].containers[0].devices[0].device_ids,
        ["d0", "d1"]
    );
}

#[tokio::test]
async fn items_133_and_135_rate_limit_and_restart() {
    let node = Node::start().await;
    let client = lister(&node).await;
    let calls = (0..100).map(|_| {
        let mut client = client.clone();
        async move { client.list(ListPodResourcesRequest {}).await }
    });
    let answers = futures::future::join_all(calls).await;
    let refused: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
    assert!(!refused.is_empty());
    for status in refused {
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(status.message(), "rejected by rate limit");
    }
    let node = node.restart().await;
    assert!(list(&node).await.is_empty());
}

#[tokio::test]
async fn items_020_to_030_plugin_registry() {
    let dir = tempfile::tempdir().unwrap();
    let registry = dir.path().join("plugins_registry");
    std::fs::create_dir_all(registry.join("sub")).unwrap();
    // There before the agent; endpoint is the registration socket itself.
    let early = Plugin::new("early.sock").with(devices(2));
    let early_serving = early
        .serve_registry(&registry.join("sub"), "DevicePlugin", R, &["v1beta1"])
        .await;
    let node = Node::start_in(dir).await;
    node.counts(R, 2, 2).await;
    until("told", || early.notified() == [(true, String::new())]).await;

    for (name, kind, resource, versions, error) in [
        (
            "v",
            "DevicePlugin",
            "example.com/v",
            &["v1alpha", "v2"][..],
            "RegisterPlugin error -- plugin validation failed with err: manager version, v1beta1, is not among plugin \
             supported versions [v1alpha v2]",
        ),
        (
            "n",
            "DevicePlugin",
            "cpu",
            &["v1beta1"],
            "RegisterPlugin error -- plugin validation failed with err: invalid name of device plugin socket: the \
             ResourceName \"cpu\" is invalid",
        ),
    ] {
        let bad = Plugin::new(&format!("{name}.sock"));
        let _serving = bad
            .serve_registry(&registry, kind, resource, versions)
            .await;
        until("refused", || !bad.notified().is_empty()).await;
        assert_eq!(bad.notified()[0], (false, error.to_owned()));
    }
    let unknown = Plugin::new("u.sock");
    let _unknown = unknown
        .serve_registry(&registry, "Toaster", "t", &["v1"])
        .await;
    until("refused", || !unknown.notified().is_empty()).await;
    assert_eq!(
        unknown.notified()[0].1,
        format!(
            "RegisterPlugin error -- no handler registered for plugin type: Toaster at socket {}",
            registry.join("u.sock").display()
        )
    );
    let driver = Plugin::new("d.sock");
    let _driver = driver
        .serve_registry(&registry, "DRAPlugin", "d.example.com", &["v1.DRAPlugin"])
        .await;
    until("refused", || !driver.notified().is_empty()).await;
    assert!(
        driver.notified()[0]
            .1
            .ends_with("dynamic resource allocation is off on this node")
    );

    early_serving.stop().await;
    node.counts(R, 2, 0).await;
    let _again = early
        .serve_registry(&registry.join("sub"), "DevicePlugin", R, &["v1beta1"])
        .await;
    node.counts(R, 2, 2).await;
}

#[tokio::test]
async fn item_091_checkpoint_is_written() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(2));
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    node.admit(&pod("a", &[(R, 1)])).await.unwrap();
    let path = node
        .root()
        .join("device-plugins/kubelet_internal_checkpoint");
    let entry = || {
        let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?;
        let entry = json["Data"]["PodDeviceEntries"].get(0)?.clone();
        (json["Data"]["RegisteredDevices"][R].as_array()?.len() == 2).then_some(entry)
    };
    until("written", || entry().is_some()).await;
    let entry = entry().unwrap();
    assert_eq!(entry["PodUID"], "uid-a");
    assert_eq!(entry["DeviceIDs"]["-1"], serde_json::json!(["d0"]));
}

#[tokio::test]
async fn release_is_lazy_only_when_sources_are_ready() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(2));
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    node.admit(&pod("a", &[(R, 2)])).await.unwrap();
    let node = node.restart().await;
    node.clear_pods();
    list(&node).await;
    assert_eq!(node.manager().allocated()[R], 2);
    node.manager().sources_ready();
    list(&node).await;
    assert_eq!(node.manager().allocated(), BTreeMap::new());
}
