//! kill -9 of davit at random moments, during pod churn with devices: no container that ran is killed or changes devices,
//! no acknowledged object is lost, no device has two owners.

use crate::{harness, node_harness};
use harness::root;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use node_harness::{NodeCluster, Plugin, owners, pod};
use rand::Rng;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often davit is killed; `DAVIT_CRASHES` overrides it.
const CRASHES: usize = 50;
const LASTING: usize = 5;

/// What must outlive every crash: for each lasting pod its container (ID and start) and its devices.
type Survivors = BTreeMap<String, (String, Vec<String>)>;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_in_fifty_crashes() {
    let Some(()) = root() else { return };
    let crashes = std::env::var("DAVIT_CRASHES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(CRASHES);
    let mut node = NodeCluster::up(&[]).await;
    let plugin = node.plugin(40);
    node.wait_for_devices(40).await;
    node.wait_for_service_account().await;
    for n in 0..LASTING {
        node.create(&pod(
            &format!("lasting-{n}"),
            "while :; do sleep 1000; done",
            2,
        ))
        .await;
    }
    for n in 0..LASTING {
        node.wait_for_phase(&format!("lasting-{n}"), "Running")
            .await;
    }
    let before = survivors(&node).await;
    assert_eq!(before.len(), LASTING);
    let mut acknowledged = Vec::new();
    for round in 0..crashes {
        churn(&node, round, &mut acknowledged).await;
        node.cluster.kill();
        node = node.start_again().await;
        assert_eq!(survivors(&node).await, before, "round {round}");
        check_acknowledged(&node, &acknowledged).await;
    }
    node.clean_up().await;
    drop::<Plugin>(plugin);
}

async fn survivors(node: &NodeCluster) -> Survivors {
    let mut client = node.podresources().await;
    let owners = owners(&mut client).await;
    let mut found = Survivors::new();
    for n in 0..LASTING {
        let name = format!("lasting-{n}");
        let pod = node.wait_for_phase(&name, "Running").await;
        let status = pod.status.unwrap().container_statuses.unwrap().remove(0);
        assert_eq!(status.restart_count, 0, "{name} was restarted");
        let started = status.state.unwrap().running.unwrap().started_at.unwrap().0;
        let container = format!("{} started {started}", status.container_id.unwrap());
        let mut devices: Vec<String> = owners
            .iter()
            .filter(|(_, owner)| **owner == format!("{name}/main"))
            .map(|(id, _)| id.clone())
            .collect();
        devices.sort();
        assert_eq!(devices.len(), 2, "{name} holds {devices:?}");
        found.insert(name, (container, devices));
    }
    found
}

/// Creates and deletes pods and objects for a random while; notes what was acknowledged.
async fn churn(node: &NodeCluster, round: usize, acknowledged: &mut Vec<String>) {
    let end = Instant::now() + Duration::from_millis(rand::rng().random_range(0..1500));
    let maps: kube::Api<ConfigMap> = kube::Api::namespaced(node.client.clone(), "default");
    let mut n = 0;
    while Instant::now() < end {
        n += 1;
        let mut map = ConfigMap::default();
        let name = format!("map-{round}-{n}");
        map.metadata.name = Some(name.clone());
        maps.create(&PostParams::default(), &map).await.unwrap();
        acknowledged.push(name);
        if n % 5 == 1 {
            node.create(&pod(&format!("short-{round}-{n}"), "sleep 1000", 1))
                .await;
        }
        if n % 7 == 0 {
            let mine = format!("short-{round}-");
            let pods = node.list().await;
            let victim = pods
                .iter()
                .filter_map(|p| p.metadata.name.clone())
                .find(|p| !p.starts_with("lasting") && *p != mine);
            if let Some(victim) = victim {
                node.delete_now(&victim).await;
            }
        }
    }
}

async fn check_acknowledged(node: &NodeCluster, acknowledged: &[String]) {
    let maps: kube::Api<ConfigMap> = kube::Api::namespaced(node.client.clone(), "default");
    let listed = maps
        .list_metadata(&kube::api::ListParams::default())
        .await
        .unwrap();
    let present: std::collections::BTreeSet<String> = listed
        .items
        .into_iter()
        .filter_map(|m| m.metadata.name)
        .collect();
    for name in acknowledged {
        assert!(
            present.contains(name),
            "{name} was acknowledged and is lost"
        );
    }
}
