//! The node's huge pages: a pod has those of its limits, however many containers it has had.

use crate::harness::{program, root};
use crate::node_harness::NodeCluster;
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use serde_json::{Value, json};
use std::fs;

const PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
/// How many the machine is to have.
const ENOUGH: u32 = 8;

/// Huge pages that the machine has for a test.
struct Reserved {
    before: u32,
}

impl Reserved {
    /// None where the machine has no room for them, or cgroups do not count them.
    fn new() -> Option<Self> {
        let cgroups = fs::read_to_string("/proc/cgroups").ok()?;
        let counted = |line: &str| line.starts_with("hugetlb\t") && line.ends_with("\t1");
        cgroups.lines().any(counted).then_some(())?;
        let pages = || fs::read_to_string(PAGES).ok()?.trim().parse().ok();
        let reserved = Self { before: pages()? };
        fs::write(PAGES, reserved.before.max(ENOUGH).to_string()).ok()?;
        (pages()? >= ENOUGH).then_some(reserved)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let _as_before = fs::write(PAGES, self.before.to_string());
    }
}

/// Takes a huge page, and leaves it in a file of the volume.
fn container(name: &str) -> Value {
    let script = format!("fallocate -l 2M /huge/{name} && echo took one; true");
    json!({
        "name": name, "image": "davit.local/host", "command": ["/bin/sh", "-c", script],
        "resources": { "limits": { "cpu": "100m", "memory": "64Mi", "hugepages-2Mi": "2Mi" } },
        "volumeMounts": [{ "name": "huge", "mountPath": "/huge" }],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_has_no_more_huge_pages_than_its_limits() {
    let (Some(()), Some(_)) = (root(), program("fallocate")) else {
        return;
    };
    let Some(_reserved) = Reserved::new() else {
        println!("skipped: this machine has no huge pages to count");
        return;
    };
    let node = NodeCluster::up(&[]).await;
    node.wait_for_service_account().await;
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "huge" },
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "initContainers": [container("first"), container("second"), container("third")],
            "containers": [container("main")],
            "volumes": [{ "name": "huge", "emptyDir": { "medium": "HugePages" } }],
        },
    }))
    .unwrap();
    node.create(&pod).await;
    node.wait_for_phase("huge", "Succeeded").await;
    let mut took = Vec::new();
    for name in ["first", "second", "third", "main"] {
        let params = LogParams {
            container: Some(name.to_owned()),
            ..LogParams::default()
        };
        let log = node.pods().logs("huge", &params).await.unwrap();
        if log.contains("took one") {
            took.push(name);
        }
    }
    assert_eq!(took, ["first"], "the others have taken more than the limit");
    node.clean_up().await;
}
