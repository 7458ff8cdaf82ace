//! Many at once: a hundred pods, a hundred thousand devices, a health change a second. Prints one row each.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    dead_code,
    reason = "a benchmark"
)]

#[path = "../tests/devices/plugin.rs"]
mod plugin;

use std::time::{Duration, Instant};

use plugin::{Node, Plugin, R, device, devices, pod};

const CHANGES: u32 = 20;

async fn pods_at_once() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(200));
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 200, 200).await;
    let pods: Vec<_> = (0..100).map(|n| pod(&format!("p{n}"), &[(R, 2)])).collect();
    let started = Instant::now();
    let admitted = futures::future::join_all(pods.iter().map(|p| node.admit(p))).await;
    let took = started.elapsed();
    assert!(admitted.iter().all(Result::is_ok));
    println!("100 pods with 2 devices admitted at once   {took:?}");
}

async fn one_long_list() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(100_000));
    let started = Instant::now();
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    let known = || {
        node.manager()
            .node_resources()
            .get(R)
            .map(|c| c.allocatable)
    };
    while known() != Some(100_000) {
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", known());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!(
        "100 000 devices, from registration to known   {:?}",
        started.elapsed()
    );
    let mut list = devices(100_000);
    list[77] = device("d77", "Unhealthy");
    let started = Instant::now();
    plugin.list(list);
    while known() != Some(99_999) {
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", known());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!(
        "100 000 devices, one turns unhealthy   {:?}",
        started.elapsed()
    );
}

/// Bytes this process has made the kernel write to disks.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = io.lines().find(|l| l.starts_with("write_bytes:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

async fn health_changes() {
    let node = Node::start().await;
    let plugin = Plugin::new("p.sock").with(devices(1000));
    let _serving = plugin.serve(node.root()).await.registered(R).await;
    node.counts(R, 1000, 1000).await;
    node.admit(&pod("p", &[(R, 8)])).await.unwrap();
    let before = written();
    for change in 0..CHANGES {
        let mut list = devices(1000);
        if change % 2 == 0 {
            list[999] = device("d999", "Unhealthy");
        }
        plugin.list(list);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let a_minute = (written() - before) * 60 / u64::from(CHANGES);
    println!("a health change a second over 1 000 devices   {a_minute} bytes written a minute");
}

#[tokio::main]
async fn main() {
    pods_at_once().await;
    one_long_list().await;
    health_changes().await;
}
