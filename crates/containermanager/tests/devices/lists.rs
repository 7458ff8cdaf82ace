//! What plugins list, and what the node offers then (checklist 10.3).

use std::time::Duration;

use crate::plugin::{Node, Plugin, R, device, devices, pod, until};

#[tokio::test]
async fn items_033_034_036_038_045_lists_reach_node_status() {
    let node = Node::start().await;
    let one = Plugin::new("one.sock").with(devices(2));
    let one_serving = one.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    one.list(vec![device("d0", "Healthy"), device("d1", "Broken")]);
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
async fn items_035_037_047_odd_health_duplicates_and_an_empty_list() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(vec![device("d0", "Foo"), device("d1", "Healthy")]);
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 1).await;
    // Item 47: the last entry of an ID counts.
    plugin.list(vec![
        device("d0", "Healthy"),
        device("d0", "Unhealthy"),
        device("d1", "Healthy"),
    ]);
    node.counts(R, 2, 1).await;
    plugin.list(vec![device("d0", "Unhealthy"), device("d0", "Healthy")]);
    node.counts(R, 1, 1).await;
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
            .map(|n| device(&format!("{n}-{}", "x".repeat(1000)), "Healthy"))
            .collect(),
    );
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 8000, 8000).await;
}

#[tokio::test]
async fn item_048_an_idle_stream_survives_a_day() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(1));
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 1, 1).await;
    for _ in 0..24 {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(3600)).await;
        tokio::time::resume();
        // What has been waiting for the hour to pass has its turn.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    plugin.list(devices(3));
    node.counts(R, 3, 3).await;
    assert_eq!(plugin.count("list"), 1, "the stream is the first one");
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

/// Eight plugins with as many devices as a message has room for: they are left out, the agent and others go on.
#[tokio::test]
async fn plugins_that_list_without_end_harm_nobody_else() {
    let node = Node::start().await;
    let good = Plugin::new("good.sock").with(devices(2));
    let _serving = good.serve(node.root()).await.registered(R).await;
    node.counts(R, 2, 2).await;
    let mut serving = Vec::new();
    for n in 0..8 {
        let all = (0..3900).map(|d| device(&format!("{d}-{}", "x".repeat(4000)), "Healthy"));
        let plugin = Plugin::new(&format!("bad{n}.sock")).with(all.collect());
        let resource = format!("example.com/bad{n}");
        serving.push(plugin.serve(node.root()).await.registered(&resource).await);
    }
    let counts = || node.manager().node_resources();
    until("all have listed", || {
        let bad = counts()
            .into_iter()
            .filter(|(name, _)| name.contains("bad"));
        bad.filter(|(_, c)| c.capacity > 0).count() == 4
    })
    .await;
    node.counts(R, 2, 2).await;
    node.admit(&pod("a", &[(R, 1)])).await.unwrap();
}
