//! Devices from the plugin to the container, on a node that runs real containers.

use crate::{harness, node_harness};
use harness::{DAVIT, output, root};
use node_harness::{NodeCluster, RESOURCE, owners, pod, within};
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

const STAY: &str = "while :; do sleep 1000; done";

/// Item 1 of every introduction: two devices asked for, exactly two held, everybody says the same.
#[tokio::test(flavor = "multi_thread")]
async fn container_holds_exactly_the_devices_it_asked_for() {
    let Some(()) = root() else { return };
    let node = NodeCluster::up(&[]).await;
    let _plugin = node.plugin(4);
    node.wait_for_devices(4).await;
    node.wait_for_service_account().await;
    node.create(&pod("holder", &format!("env; ls /dev/foo; {STAY}"), 2))
        .await;
    node.wait_for_phase("holder", "Running").await;
    let held = owners(&mut node.podresources().await).await;
    assert_eq!(held.len(), 2, "{held:?}");
    let log = within(
        Duration::from_secs(20),
        "the container's output",
        async || {
            let log = node
                .pods()
                .logs("holder", &kube::api::LogParams::default())
                .await
                .ok()?;
            log.contains("FOO_DEVICES=").then_some(log)
        },
    )
    .await;
    for id in held.keys() {
        assert!(
            log.contains(id),
            "{id} is not in what the container was given:\n{log}"
        );
    }
    let table = Command::new(DAVIT)
        .args(["devices", "--kubeconfig"])
        .arg(&node.cluster.kubeconfig)
        .output()
        .unwrap();
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert_eq!(
        table
            .lines()
            .filter(|l| l.contains("default/holder"))
            .count(),
        2,
        "{table}"
    );
    assert_eq!(
        table.lines().filter(|l| l.contains(RESOURCE)).count(),
        4,
        "{table}"
    );

    // More than what is left is not scheduled, and says so.
    node.create(&pod("too-many", STAY, 3)).await;
    let message = within(
        Duration::from_secs(20),
        "the scheduler's verdict",
        async || {
            let pod = node.pods().get("too-many").await.ok()?;
            let conditions = pod.status?.conditions?;
            conditions
                .into_iter()
                .find(|c| c.type_ == "PodScheduled" && c.status == "False")?
                .message
        },
    )
    .await;
    assert!(
        message.starts_with(&format!(
            "0/1 nodes are available: 1 Insufficient {RESOURCE}."
        )),
        "{message}"
    );
    let explained = output(
        Command::new(DAVIT)
            .args(["explain", "pod", "too-many", "--kubeconfig"])
            .arg(&node.cluster.kubeconfig),
    );
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(
        explained.contains("requested 3, used 2, capacity 4"),
        "{explained}"
    );
    let holders = explained.split("Who holds what is in use:").nth(1);
    let holders = holders.unwrap_or_default().lines();
    let holders = holders.filter(|line| line.contains("default/holder"));
    assert_eq!(holders.count(), 2, "{explained}");
    let nowhere = output(
        Command::new(DAVIT)
            .args(["devices", "--node", "nowhere", "--kubeconfig"])
            .arg(&node.cluster.kubeconfig),
    );
    assert_eq!(nowhere.status.code(), Some(1));
    let said = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert_eq!(said, "davit: there is no node nowhere\n");

    // When the holder goes, its devices do.
    node.delete_now("holder").await;
    node.wait_for_phase("too-many", "Running").await;
    assert_eq!(owners(&mut node.podresources().await).await.len(), 3);
    node.clean_up().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hundred_pods_at_once_run_and_never_share_a_device() {
    let Some(()) = root() else { return };
    let node = NodeCluster::up(&[]).await;
    let _plugin = node.plugin(200);
    node.wait_for_devices(200).await;
    node.wait_for_service_account().await;
    let mut watcher = node.podresources().await;
    let checking = tokio::spawn(async move {
        let mut most = 0;
        loop {
            // Panics when a device has two owners.
            most = most.max(owners(&mut watcher).await.len());
            if most == 200 {
                return most;
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    });
    let names: Vec<String> = (0..100).map(|n| format!("pod-{n}")).collect();
    futures::future::join_all(
        names
            .iter()
            .map(|name| async { node.create(&pod(name, STAY, 2)).await }),
    )
    .await;
    for name in &names {
        node.wait_for_phase(name, "Running").await;
    }
    assert_eq!(
        tokio::time::timeout(Duration::from_secs(20), checking)
            .await
            .unwrap()
            .unwrap(),
        200
    );

    // Churn: a quarter goes, as many come; the checks go on.
    let mut watcher = node.podresources().await;
    let churning = async {
        for name in names.iter().take(25) {
            node.delete_now(name).await;
        }
        let fresh: Vec<String> = (0..25).map(|n| format!("fresh-{n}")).collect();
        for name in &fresh {
            node.create(&pod(name, STAY, 2)).await;
        }
        for name in &fresh {
            node.wait_for_phase(name, "Running").await;
        }
    };
    let mut churning = std::pin::pin!(churning);
    loop {
        tokio::select! {
            () = &mut churning => break,
            () = tokio::time::sleep(Duration::from_millis(30)) => { owners(&mut watcher).await; }
        }
    }
    let devices: BTreeSet<String> = owners(&mut watcher).await.into_keys().collect();
    assert_eq!(devices.len(), 200);
    node.clean_up().await;
}
