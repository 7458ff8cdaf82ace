//! Items of the acceptance checklist, 10.1 to 10.6, that stand alone.

use std::time::{Duration, Instant};

use davit_proto::deviceplugin::v1beta1 as pb;
use k8s_openapi::api::core::v1::{
    ContainerExtendedResourceRequest, PodExtendedResourceClaimStatus, PodStatus,
};

use crate::message;
use crate::plugin::{Node, Plugin, R, device, devices, nodes, pod, until};

#[tokio::test]
async fn item_008_serving_too_late_is_no_deadlock() {
    let node = Node::start().await;
    let request = pb::RegisterRequest {
        version: pb::VERSION.into(),
        endpoint: "late.sock".into(),
        resource_name: R.into(),
        options: None,
    };
    let begun = Instant::now();
    let refused = crate::plugin::register(node.root(), request)
        .await
        .unwrap_err();
    assert!(
        refused
            .message()
            .starts_with("failed to dial device plugin: "),
        "{refused}"
    );
    assert!(begun.elapsed() < Duration::from_secs(10));
    let plugin = Plugin::new("late.sock").with(devices(1));
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 1, 1).await;
}

#[tokio::test]
async fn item_013_register_is_answered_before_the_first_list() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").silent();
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    until("the stream is open", || plugin.count("list") == 1).await;
    plugin.list(devices(2));
    node.counts(R, 2, 2).await;
}

#[tokio::test]
async fn item_019_sockets_anywhere_below_the_registry_are_found_soon() {
    let node = Node::start().await;
    let dir = node.root().join("plugins_registry/vendor/deep");
    std::fs::create_dir_all(&dir).unwrap();
    let plugin = Plugin::new("p.sock").with(devices(2));
    let begun = Instant::now();
    let _serving = plugin
        .serve_registry(&dir, "DevicePlugin", R, &["v1beta1"])
        .await;
    until("it is told that it is registered", || {
        plugin.notified() == [(true, String::new())]
    })
    .await;
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    node.counts(R, 2, 2).await;
}

#[tokio::test]
async fn items_035_037_odd_health_and_an_empty_list() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(vec![device("d0", "Foo"), device("d1", "Healthy")]);
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 1).await;
    plugin.list(Vec::new());
    node.counts(R, 0, 0).await;
}

#[tokio::test]
async fn items_039_040_041_a_plugin_that_goes_and_comes_back() {
    let node = Node::start_with(|c| c.grace = Duration::from_secs(2)).await;
    let plugin = Plugin::new("p.sock").with(devices(2));
    let serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    serving.stop().await;
    node.counts(R, 2, 0).await;
    // Within the grace period.
    let serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    serving.stop().await;
    node.counts(R, 2, 0).await;
    // After it: zeros, with the key kept.
    node.counts(R, 0, 0).await;
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
}

#[tokio::test]
async fn item_042_a_stream_that_fails_at_once() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(2)).failing_list();
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    until("the stream was asked for", || plugin.count("list") == 1).await;
    node.counts(R, 0, 0).await;
}

#[tokio::test]
async fn item_050_one_stream_a_registration() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(1));
    let serving = plugin.serve(node.root()).await.registered(R).await;
    for count in [2, 3, 1] {
        plugin.list(devices(count));
        node.counts(R, count as u64, count as u64).await;
    }
    node.admit(&pod("a", &[(R, 1)])).await.unwrap();
    assert_eq!((plugin.count("list"), plugin.count("options")), (1, 1));
    serving.register(R).await.unwrap();
    until("the second stream", || plugin.count("list") == 2).await;
    assert_eq!(plugin.count("options"), 2);
}

#[tokio::test]
async fn items_062_067_no_preference_and_a_failed_call() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(2));
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    plugin.failing("no power");
    let error = message(&node.admit(&pod("a", &[(R, 2)])).await.unwrap_err());
    assert_eq!(
        error,
        "rpc error: code = FailedPrecondition desc = no power"
    );
    plugin.working();
    // All of them are free again for the next pod.
    node.admit(&pod("b", &[(R, 2)])).await.unwrap();
    assert_eq!(plugin.allocations(), [["d0", "d1"]]);
    assert!(plugin.asked().is_empty());
}

#[tokio::test]
async fn item_065_preferences_are_filled_up_and_cut() {
    let node = Node::start().await;
    let short = Plugin::new("short.sock")
        .with(devices(4))
        .preferring(&["d2"]);
    let long = Plugin::new("long.sock")
        .with(devices(4))
        .preferring(&["d3", "d2", "d1", "d0"]);
    let _short = short
        .serve(node.root())
        .await
        .registered("example.com/short")
        .await;
    let _long = long
        .serve(node.root())
        .await
        .registered("example.com/long")
        .await;
    node.counts("example.com/short", 4, 4).await;
    node.counts("example.com/long", 4, 4).await;
    node.admit(&pod(
        "a",
        &[("example.com/short", 2), ("example.com/long", 2)],
    ))
    .await
    .unwrap();
    let given = &short.allocations()[0];
    assert!(
        given.len() == 2 && given.contains(&"d2".to_owned()),
        "{given:?}"
    );
    assert_eq!(long.allocations()[0].len(), 2);
}

#[tokio::test]
async fn item_076_resources_served_by_claims_do_not_reach_the_plugin() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(1));
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 1, 1).await;
    let mut mapped = pod("a", &[(R, 5)]);
    let mapping = ContainerExtendedResourceRequest {
        container_name: "main".into(),
        request_name: "container-0-request-0".into(),
        resource_name: R.into(),
    };
    mapped.status = Some(PodStatus {
        extended_resource_claim_status: Some(PodExtendedResourceClaimStatus {
            request_mappings: vec![mapping],
            resource_claim_name: "a-extended".into(),
        }),
        ..Default::default()
    });
    node.admit(&mapped).await.unwrap();
    assert_eq!(plugin.count("allocate"), 0);
    node.admit(&pod("b", &[(R, 1)])).await.unwrap();
}

#[tokio::test]
async fn items_081_082_083_duplicates_are_merged_in_order() {
    let node = Node::start().await;
    // Two plugins with the same socket name give the same device paths.
    let names = ["example.com/a", "example.com/b"];
    let plugin = Plugin::new("p.sock").with(devices(1));
    let _first = plugin.serve(node.root()).await.registered(names[0]).await;
    node.counts(names[0], 1, 1).await;
    let registry = node.root().join("plugins_registry");
    let serving = plugin.serve_registry(&registry, "DevicePlugin", names[1], &["v1beta1"]);
    let _second = serving.await;
    node.counts(names[1], 1, 1).await;
    let pod = pod("a", &[(names[0], 1), (names[1], 1)]);
    node.admit(&pod).await.unwrap();
    let options = node
        .manager()
        .container_options(&pod, "main")
        .await
        .unwrap();
    assert_eq!(plugin.allocations().len(), 2);
    assert_eq!(options.envs.len(), 1);
    assert_eq!(options.devices.len(), 1);
    assert_eq!(options.devices[0].container_path, "/dev/p.sock-d0");
    assert_eq!(options.cdi_devices.len(), 1, "item 83");
}

#[tokio::test]
async fn metrics_have_the_kubelets_names() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(vec![pb::Device {
        topology: Some(nodes(&[0])),
        ..device("d0", "Healthy")
    }]);
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 1, 1).await;
    node.admit(&pod("a", &[(R, 1)])).await.unwrap();
    let mut registry = prometheus_client::registry::Registry::default();
    node.manager()
        .register_metrics(registry.sub_registry_with_prefix("kubelet"));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    // Families with labels are shown from their first sample on, as everywhere.
    for name in [
        "kubelet_device_plugin_registration_total{",
        "kubelet_device_plugin_alloc_duration_seconds_bucket{",
        "kubelet_topology_manager_admission_requests_total ",
        "kubelet_topology_manager_admission_errors_total ",
        "kubelet_topology_manager_admission_duration_ms_count 1",
        "kubelet_cpu_manager_pinning_requests_total ",
        "kubelet_cpu_manager_pinning_errors_total ",
        "kubelet_cpu_manager_shared_pool_size_millicores ",
        "kubelet_cpu_manager_exclusive_cpu_allocation_count ",
        "kubelet_memory_manager_pinning_requests_total ",
        "kubelet_memory_manager_pinning_errors_total ",
    ] {
        assert!(text.contains(name), "{name} is missing:\n{text}");
    }
}
