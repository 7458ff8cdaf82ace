//! Plugins that are replaced by newer instances while pods come and go.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::plugin::{Node, Plugin, R, devices, pod};

/// How many upgrades: 1 000 when `DAVIT_UPGRADES` says so, fewer where time counts.
fn upgrades() -> usize {
    std::env::var("DAVIT_UPGRADES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(40)
}

/// Item 045 and more: old and new overlap, no admission fails, allocatable never touches 0.
#[tokio::test]
async fn overlapped_upgrades_under_churn_refuse_nobody() {
    let node = Node::start().await;
    let first = Plugin::new("p0.sock").with(devices(8));
    let mut serving = first.serve(node.root()).await.registered(R).await;
    node.counts(R, 8, 8).await;
    let upgraded = AtomicBool::new(false);
    let admitted = AtomicUsize::new(0);
    let upgrade = async {
        for n in 1..=upgrades() {
            let next_plugin = Plugin::new(&format!("p{}.sock", n % 7)).with(devices(8));
            let next = next_plugin.serve(node.root()).await.registered(R).await;
            // A careful plugin stops the old instance once the new one has told its devices.
            let told = || next_plugin.count("list") > 0;
            crate::plugin::until("the new instance's list", told).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
            std::mem::replace(&mut serving, next).stop().await;
        }
        upgraded.store(true, Ordering::Release);
    };
    let churn = async {
        while !upgraded.load(Ordering::Acquire) {
            let n = admitted.fetch_add(1, Ordering::Relaxed);
            let p = pod(&format!("c{n}"), &[(R, 2)]);
            node.admit(&p)
                .await
                .unwrap_or_else(|e| panic!("pod {n}: {e}"));
            node.finish(&p, true).await;
        }
    };
    let watch = async {
        let mut changes = node.manager().subscribe();
        while !upgraded.load(Ordering::Acquire) {
            let count = node.manager().node_resources()[R].allocatable;
            assert!(count > 0, "allocatable has touched 0");
            let _ = tokio::time::timeout(Duration::from_millis(20), changes.changed()).await;
        }
    };
    tokio::join!(upgrade, churn, watch);
    assert!(admitted.load(Ordering::Relaxed) > 0);
    node.counts(R, 8, 8).await;
}

/// Item 069 as a figure: what a plugin that hangs for ever costs a pod that does not need it.
#[tokio::test]
async fn a_hanging_plugin_costs_others_less_than_50_ms() {
    let node = Node::start_with(|c| c.allocate_timeout = Duration::from_secs(30)).await;
    let hanging = Plugin::new("h.sock").with(devices(2));
    let _hanging = hanging.serve(node.root()).await.registered(R).await;
    let good = Plugin::new("g.sock").with(devices(64));
    let good = good.serve(node.root()).await;
    let _good = good.registered("example.com/good").await;
    node.counts(R, 2, 2).await;
    node.counts("example.com/good", 64, 64).await;
    let admit = async |prefix: &str| {
        let mut each = Vec::new();
        for n in 0..15 {
            let started = Instant::now();
            let p = pod(&format!("{prefix}{n}"), &[("example.com/good", 1)]);
            node.admit(&p).await.unwrap();
            each.push(started.elapsed());
            node.finish(&p, true).await;
        }
        each.sort();
        each[each.len() / 2]
    };
    let before = admit("before").await;
    hanging.hanging();
    let stuck = pod("stuck", &[(R, 2)]);
    let meanwhile = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        admit("while").await
    };
    let meanwhile = tokio::select! {
        refused = node.admit(&stuck) => panic!("it hangs for ever: {refused:?}"),
        meanwhile = meanwhile => meanwhile,
    };
    assert!(
        meanwhile < before + Duration::from_millis(50),
        "{before:?} before, {meanwhile:?} while the plugin hangs"
    );
}
