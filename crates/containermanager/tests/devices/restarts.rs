//! The agent starts again; files for other readers (checklist 10.6).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::list;
use crate::plugin::{self, Node, Plugin, R, devices, init_pod, pod, until};

#[tokio::test]
async fn items_043_060_096_100_restart_with_running_containers() {
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
