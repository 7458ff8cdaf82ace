//! Pods whose node is gone, and terminated pods beyond a threshold, are deleted.

use crate::controller::Spawner;
use crate::informers::Informers;
use crate::pod_control::{disruption, is_terminal, node_of};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How often to look, and how long a node must be missing before its pods are orphans, as upstream.
const PERIOD: Duration = Duration::from_secs(20);
const QUARANTINE: Duration = Duration::from_secs(40);
/// Terminated pods that may stay, as upstream's `--terminated-pod-gc-threshold`.
const TERMINATED_THRESHOLD: usize = 12_500;

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let (client, informers) = (spawner.client.clone(), spawner.informers.clone());
    spawner.task(async move {
        let mut missing_since: HashMap<String, Instant> = HashMap::new();
        loop {
            tokio::time::sleep(PERIOD).await;
            for pod in doomed(&informers, &mut missing_since, Instant::now()) {
                delete(&client, &pod).await;
            }
        }
    });
}

/// The pods to delete now.
fn doomed(
    informers: &Informers,
    missing_since: &mut HashMap<String, Instant>,
    now: Instant,
) -> Vec<Arc<Pod>> {
    let nodes: HashSet<String> = informers
        .nodes
        .list()
        .iter()
        .filter_map(|n| n.metadata.name.clone())
        .collect();
    plan(&informers.pods.list(), &nodes, missing_since, now)
}

fn plan(
    pods: &[Arc<Pod>],
    nodes: &HashSet<String>,
    missing_since: &mut HashMap<String, Instant>,
    now: Instant,
) -> Vec<Arc<Pod>> {
    let missing: HashSet<String> = pods
        .iter()
        .filter_map(|p| node_of(p))
        .filter(|n| !nodes.contains(*n))
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
    let never_scheduled_and_deleted =
        |pod: &Pod| pod.metadata.deletion_timestamp.is_some() && node_of(pod).is_none();
    let mut doomed: Vec<Arc<Pod>> = pods
        .iter()
        .filter(|p| is_orphan(p) || never_scheduled_and_deleted(p))
        .cloned()
        .collect();
    let mut terminated: Vec<&Arc<Pod>> = pods.iter().filter(|p| is_terminal(p)).collect();
    if terminated.len() > TERMINATED_THRESHOLD {
        terminated.sort_by(|a, b| {
            a.metadata
                .creation_timestamp
                .cmp(&b.metadata.creation_timestamp)
        });
        let surplus = terminated.len() - TERMINATED_THRESHOLD;
        doomed.extend(terminated.into_iter().take(surplus).cloned());
    }
    doomed
}

/// What to say about a pod before it goes, since no node will: it has failed, and why if its node is gone.
fn failure(pod: &Pod) -> Option<serde_json::Value> {
    if is_terminal(pod) {
        return None;
    }
    let mut patch = match node_of(pod) {
        Some(_) => disruption(pod, "DeletionByPodGC", "PodGC: node no longer exists"),
        None => serde_json::json!({"metadata": {"uid": pod.metadata.uid}, "status": {}}),
    };
    patch["status"]["phase"] = serde_json::json!("Failed");
    Some(patch)
}

async fn delete(client: &kube::Client, pod: &Pod) {
    let (Some(namespace), Some(name)) = (&pod.metadata.namespace, &pod.metadata.name) else {
        return;
    };
    let api: kube::Api<Pod> = kube::Api::namespaced(client.clone(), namespace);
    let deleted = async {
        if let Some(patch) = failure(pod) {
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
            tracing::info!(pod = %format_args!("{namespace}/{name}"), "orphaned or surplus pod deleted");
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

    #[tokio::test(start_paused = true)]
    async fn pods_of_a_node_are_orphans_only_after_the_quarantine() {
        let pods = [pod("a", "here"), pod("b", "gone")];
        let nodes = HashSet::from(["here".to_owned()]);
        let mut missing = HashMap::new();
        assert!(plan(&pods, &nodes, &mut missing, Instant::now()).is_empty());
        tokio::time::advance(QUARANTINE).await;
        let doomed = plan(&pods, &nodes, &mut missing, Instant::now());
        assert_eq!(
            doomed
                .iter()
                .map(|p| p.metadata.name.as_deref())
                .collect::<Vec<_>>(),
            [Some("b")]
        );
        let back = HashSet::from(["here".to_owned(), "gone".to_owned()]);
        assert!(plan(&pods, &back, &mut missing, Instant::now()).is_empty());
        assert!(missing.is_empty(), "a node that came back starts afresh");
    }
}
