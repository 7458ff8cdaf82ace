//! Plugins found in the plugins registry (checklist 10.2).

use std::time::{Duration, Instant};

use crate::plugin::{Node, Plugin, R, devices, until};

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
async fn items_020_to_023_025_and_030_who_is_registered_and_who_is_told_why_not() {
    let dir = tempfile::tempdir().unwrap();
    let registry = dir.path().join("plugins_registry");
    std::fs::create_dir_all(registry.join("sub")).unwrap();
    // Items 23 and 30: there before the agent; its endpoint is the registration socket itself.
    let early = Plugin::new("early.sock").with(devices(2));
    let early_serving = early
        .serve_registry(&registry.join("sub"), "DevicePlugin", R, &["v1beta1"])
        .await;
    let node = Node::start_in(dir).await;
    node.counts(R, 2, 2).await;
    until("told", || early.notified() == [(true, String::new())]).await;

    // Item 21, and a name that is not one of an extended resource.
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
    // Item 22.
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

    // Item 25.
    let begun = Instant::now();
    early_serving.stop().await;
    node.counts(R, 2, 0).await;
    assert!(begun.elapsed() < Duration::from_secs(2));
    let _again = early
        .serve_registry(&registry.join("sub"), "DevicePlugin", R, &["v1beta1"])
        .await;
    node.counts(R, 2, 2).await;
}

#[tokio::test]
async fn item_025_without_its_socket_in_the_registry_a_plugin_is_out_of_service() {
    let node = Node::start().await;
    let registry = node.root().join("plugins_registry");
    let plugin = Plugin::new("p.sock").with(devices(2));
    let _serving = plugin
        .serve_registry(&registry, "DevicePlugin", R, &["v1beta1"])
        .await;
    node.counts(R, 2, 2).await;
    // The plugin goes on serving; only its file is gone.
    let begun = Instant::now();
    std::fs::remove_file(registry.join("p.sock")).unwrap();
    node.counts(R, 2, 0).await;
    assert!(begun.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn item_028_a_plugin_that_does_not_take_the_answer_is_deregistered_and_asked_again() {
    let node = Node::start().await;
    let registry = node.root().join("plugins_registry");
    let plugin = Plugin::new("p.sock").with(devices(2)).failing_notify(2);
    let _serving = plugin
        .serve_registry(&registry, "DevicePlugin", R, &["v1beta1"])
        .await;
    until("the first answer", || plugin.notified().len() == 1).await;
    // Out of service until the next attempt, half a second later.
    until("it is deregistered", || {
        let now = node.manager().node_resources();
        now.get(R).is_some_and(|c| c.allocatable == 0) && plugin.notified().len() == 1
    })
    .await;
    until("the third answer", || plugin.notified().len() == 3).await;
    assert_eq!(plugin.count("options"), 3, "each attempt is a whole one");
    assert!(plugin.notified().iter().all(|(registered, _)| *registered));
    node.counts(R, 2, 2).await;
}

#[tokio::test]
async fn item_029_a_registration_server_that_hangs_delays_nobody() {
    let node = Node::start().await;
    let registry = node.root().join("plugins_registry");
    let stuck = Plugin::new("stuck.sock").hanging_info();
    let _stuck = stuck
        .serve_registry(&registry, "DevicePlugin", "example.com/stuck", &["v1beta1"])
        .await;
    until("it hangs", || stuck.count("info") == 1).await;
    let plugin = Plugin::new("p.sock").with(devices(2));
    let begun = Instant::now();
    let _serving = plugin
        .serve_registry(&registry, "DevicePlugin", R, &["v1beta1"])
        .await;
    node.counts(R, 2, 2).await;
    assert!(begun.elapsed() < Duration::from_secs(2));
    // The call has a limit of a second; then it is tried again.
    until("it is asked again", || stuck.count("info") == 2).await;
}
