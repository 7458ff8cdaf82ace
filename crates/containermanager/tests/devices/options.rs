//! What plugins answer, on its way to containers (checklist 10.5).

use std::time::Duration;

use crate::plugin::{Node, Plugin, R, devices, pod};

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
