//! Pods whose node is gone or declared off, and terminated pods beyond a threshold, are deleted.

use davit_reconcile::nodes::{is_out_of_service, is_ready};
use davit_reconcile::pods::{disruption, is_terminal, node_of};
use davit_reconcile::{Informers, Spawner};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How often to look, and how long a node must be missing before its pods are orphans, as upstream.
const PERIOD: Duration = Duration::from_secs(20);
const QUARANTINE: Duration = Duration::from_secs(40);

/// So many terminated pods may stay; all of them with 0.
pub(crate) fn spawn(spawner: &mut Spawner<'_>, threshold: usize) {
    let Some(spawner) = &mut spawner.start("pod-garbage-collector-controller") else {
        return;
    };
    let (client, informers) = (spawner.client.clone(), spawner.informers.clone());
    spawner.task("pod-gc", async move {
        let mut missing_since: HashMap<String, Instant> = HashMap::new();
        loop {
            tokio::time::sleep(PERIOD).await;
            for (pod, why) in doomed(&informers, threshold, &mut missing_since, Instant::now()) {
                delete(&client, &pod, why).await;
            }
        }
    });
}

/// Why a pod is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Its node is gone.
    Orphaned,
    /// It is being deleted and never had a node.
    NeverScheduled,
    /// It is being deleted, and its node is off: an administrator says that it will not come back to end it.
    OutOfService,
    /// It has ended, and there are too many such pods.
    Surplus,
}

/// The pods to delete now.
fn doomed(
    informers: &Informers,
    threshold: usize,
    missing_since: &mut HashMap<String, Instant>,
    now: Instant,
) -> Vec<(Arc<Pod>, Why)> {
    let nodes = informers.nodes.list();
    let off = |node: &Node| is_out_of_service(node) && !is_ready(node);
    let nodes = nodes.iter().filter_map(|node| {
        let name = node.metadata.name.clone()?;
        Some((name, off(node)))
    });
    let pods = informers.pods.list();
    plan(&pods, &nodes.collect(), threshold, missing_since, now)
}

/// `nodes` says of each node whether it is off.
fn plan(
    pods: &[Arc<Pod>],
    nodes: &HashMap<String, bool>,
    threshold: usize,
    missing_since: &mut HashMap<String, Instant>,
    now: Instant,
) -> Vec<(Arc<Pod>, Why)> {
    let missing: HashSet<String> = pods
        .iter()
        .filter_map(|p| node_of(p))
        .filter(|n| !nodes.contains_key(*n))
        .map(str::to_owned)
        .collect();
    missing_since.retain(|node, _| missing.contains(node));
    for node in &missing {
        missing_since.entry(node.clone()).or_insert(now);
    }
    let is_orphan = |pod: &Pod| {
        node_of(pod)
            .and_then(|n| missing_since.get(n))
            .is_some_and(|at| now.duration_since(*at) >= QUARANTINE)
    };
    let why = |pod: &Pod| {
        let deleting = pod.metadata.deletion_timestamp.is_some();
        match node_of(pod) {
            Some(_) if is_orphan(pod) => Some(Why::Orphaned),
            Some(node) if deleting && nodes.get(node) == Some(&true) => Some(Why::OutOfService),
            None if deleting => Some(Why::NeverScheduled),
            _ => None,
        }
    };
    let mut doomed: Vec<(Arc<Pod>, Why)> = pods
        .iter()
        .filter_map(|pod| Some((pod.clone(), why(pod)?)))
        .collect();
    let mut terminated: Vec<&Arc<Pod>> = pods.iter().filter(|p| is_terminal(p)).collect();
    if threshold > 0 && terminated.len() > threshold {
        terminated.sort_by(|a, b| {
            a.metadata
                .creation_timestamp
                .cmp(&b.metadata.creation_timestamp)
        });
        let surplus = terminated.len() - threshold;
        let oldest = terminated.into_iter().take(surplus);
        doomed.extend(oldest.map(|pod| (pod.clone(), Why::Surplus)));
    }
    doomed
}

/// What to say about a pod before it goes, since no node will: it has failed, and why if its node is gone.
fn failure(pod: &Pod, why: Why) -> Option<serde_json::Value> {
    if is_terminal(pod) {
        return None;
    }
    let mut patch = if why == Why::Orphaned {
        disruption(pod, "DeletionByPodGC", "PodGC: node no longer exists")
    } else {
        serde_json::json!({"metadata": {"uid": pod.metadata.uid}, "status": {}})
    };
    patch["status"]["phase"] = serde_json::json!("Failed");
    Some(patch)
}

async fn delete(client: &kube::Client, pod: &Pod, why: Why) {
    let (Some(namespace), Some(name)) = (&pod.metadata.namespace, &pod.metadata.name) else {
        return;
    };
    let api: kube::Api<Pod> = kube::Api::namespaced(client.clone(), namespace);
    let deleted = async {
        if let Some(patch) = failure(pod, why) {
            let params = PatchParams::default();
            api.patch_status(name, &params, &Patch::Strategic(patch))
                .await?;
        }
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::default()
        };
        api.delete(name, &params).await
    };
    match deleted.await {
        Ok(_) => {
            tracing::info!(pod = %format_args!("{namespace}/{name}"), ?why, "pod deleted");
        }
        Err(error) => {
            tracing::warn!(pod = %format_args!("{namespace}/{name}"), %error, "pod not deleted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: &str) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
        Arc::new(pod)
    }

    fn names(doomed: &[(Arc<Pod>, Why)]) -> Vec<(&str, Why)> {
        doomed
            .iter()
            .filter_map(|(pod, why)| Some((pod.metadata.name.as_deref()?, *why)))
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn pods_of_a_node_are_orphans_only_after_the_quarantine() {
        let pods = [pod("a", "here"), pod("b", "gone")];
        let nodes = HashMap::from([("here".to_owned(), false)]);
        let mut missing = HashMap::new();
        assert!(plan(&pods, &nodes, 1, &mut missing, Instant::now()).is_empty());
        tokio::time::advance(QUARANTINE).await;
        let doomed = plan(&pods, &nodes, 1, &mut missing, Instant::now());
        assert_eq!(names(&doomed), [("b", Why::Orphaned)]);
        let back = HashMap::from([("here".to_owned(), false), ("gone".to_owned(), false)]);
        assert!(plan(&pods, &back, 1, &mut missing, Instant::now()).is_empty());
        assert!(missing.is_empty(), "a node that came back starts afresh");
    }

    #[tokio::test]
    async fn of_a_node_that_is_off_only_terminating_pods_go() {
        let mut terminating = (*pod("b", "off")).clone();
        let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
        terminating.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
        let pods = [pod("a", "off"), Arc::new(terminating.clone())];
        let plan = |off: bool| {
            let nodes = HashMap::from([("off".to_owned(), off)]);
            plan(&pods, &nodes, 1, &mut HashMap::new(), Instant::now())
        };
        assert_eq!(names(&plan(true)), [("b", Why::OutOfService)]);
        assert!(plan(false).is_empty());
        let failed = failure(&terminating, Why::OutOfService).unwrap();
        assert_eq!(failed["status"], serde_json::json!({ "phase": "Failed" }));
    }

    #[test]
    fn a_node_is_off_when_it_is_declared_so_and_not_ready() {
        let node = |taint: &str, ready: &str| -> Node {
            serde_json::from_value(serde_json::json!({
                "spec": { "taints": [{ "key": taint, "effect": "NoSchedule" }] },
                "status": { "conditions": [{ "type": "Ready", "status": ready }] } }))
            .unwrap()
        };
        let taint = "node.kubernetes.io/out-of-service";
        assert!(is_out_of_service(&node(taint, "True")) && is_ready(&node(taint, "True")));
        assert!(!is_ready(&node(taint, "Unknown")));
        assert!(!is_out_of_service(&node("another", "False")));
    }
}
