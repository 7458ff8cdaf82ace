//! Health of devices in the status of pods (checklist 10.7).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::plugin::{self, Node, Plugin, R, devices, pod};

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
