//! Pods leave nodes with NoExecute taints once their tolerations run out.

use async_trait::async_trait;
use davit_api::taint::tolerates;
use davit_client::ObjectKey;
use davit_reconcile::pods::{disrupt, node_of};
use davit_reconcile::{Context, Error, Informers, Next, Reconcile, Spawner, cluster_key};
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

struct TaintEviction {
    client: kube::Client,
    informers: Informers,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("taint-eviction-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let queue = spawner.controller(TaintEviction {
        client: spawner.client.clone(),
        informers: informers.clone(),
    });
    let retainted = |old: &Node, new: &Node| taints_of(old).ne(taints_of(new));
    spawner.feed_changes(&informers.nodes, &queue, retainted, |node: &Node| {
        vec![ObjectKey::of(node)]
    });
    // A pod that comes to a tainted node may have to leave it.
    let moved = |old: &Pod, new: &Pod| node_of(old) != node_of(new);
    spawner.feed_changes(&informers.pods, &queue, moved, |pod: &Pod| {
        node_of(pod).map(cluster_key).into_iter().collect()
    });
}

/// The taints that pods have to leave for.
fn taints_of(node: &Node) -> impl Iterator<Item = &Taint> {
    let taints = node.spec.iter().flat_map(|spec| &spec.taints).flatten();
    taints.filter(|taint| taint.effect == "NoExecute")
}

#[async_trait]
impl Reconcile for TaintEviction {
    const NAME: &'static str = "taint-eviction";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(node) = self.informers.nodes.get(None, &key.name) else {
            return Ok(Next::Wait);
        };
        let taints: Vec<Taint> = taints_of(&node).cloned().collect();
        if taints.is_empty() {
            return Ok(Next::Wait);
        }
        let next = self.evict(&node, &taints).await?;
        Ok(next.map_or(Next::Wait, Next::After))
    }
}

impl TaintEviction {
    /// Deletes pods whose toleration of the node's NoExecute taints has run out; when the next one does.
    async fn evict(&self, node: &Node, taints: &[Taint]) -> Result<Option<Duration>, Error> {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let mut next: Option<Duration> = None;
        for pod in self.informers.pods.list_indexed(name) {
            if pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_deref());
            match time_left(taints, tolerations.unwrap_or_default(), Timestamp::now()) {
                None => {}
                Some(left) if left.is_zero() => self.delete(&pod).await?,
                Some(left) => next = Some(next.map_or(left, |n| n.min(left))),
            }
        }
        Ok(next)
    }

    async fn delete(&self, pod: &Pod) -> Result<(), Error> {
        let (namespace, name) = (
            pod.metadata.namespace.clone().unwrap_or_default(),
            pod.metadata.name.clone().unwrap_or_default(),
        );
        tracing::info!(pod = %format_args!("{namespace}/{name}"), "evicting pod from tainted node");
        let message = "Taint manager: deleting due to NoExecute taint";
        disrupt(&self.client, pod, "DeletionByTaintManager", message)
            .await
            .context(|| format!("evict pod {namespace}/{name}"))
    }
}

/// How long a pod may stay under NoExecute taints: `None` for ever, zero not at all.
fn time_left(taints: &[Taint], tolerations: &[Toleration], now: Timestamp) -> Option<Duration> {
    let mut left: Option<Duration> = None;
    for taint in taints {
        let matching: Vec<&Toleration> =
            tolerations.iter().filter(|t| tolerates(t, taint)).collect();
        if matching.is_empty() {
            return Some(Duration::ZERO);
        }
        // The shortest limit among the matching tolerations counts, as upstream.
        let Some(seconds) = matching.iter().filter_map(|t| t.toleration_seconds).min() else {
            continue;
        };
        let since = taint.time_added.as_ref().map_or(now, |t| t.0);
        let elapsed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
        let allowed = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let remaining = allowed.saturating_sub(elapsed);
        left = Some(left.map_or(remaining, |l| l.min(remaining)));
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

    #[test]
    fn toleration_seconds_count_from_the_taint() {
        let now = Timestamp::now();
        let taint = Taint {
            key: UNREACHABLE.into(),
            effect: "NoExecute".into(),
            time_added: Some(Time(
                now - k8s_openapi::jiff::SignedDuration::from_secs(100),
            )),
            value: None,
        };
        let tolerating = |seconds| Toleration {
            key: Some(UNREACHABLE.into()),
            operator: Some("Exists".into()),
            effect: Some("NoExecute".into()),
            toleration_seconds: seconds,
            ..Toleration::default()
        };
        let taints = std::slice::from_ref(&taint);
        assert_eq!(time_left(taints, &[], now), Some(Duration::ZERO));
        assert_eq!(time_left(taints, &[tolerating(None)], now), None);
        assert_eq!(
            time_left(taints, &[tolerating(Some(300))], now),
            Some(Duration::from_secs(200))
        );
        assert_eq!(
            time_left(taints, &[tolerating(Some(60))], now),
            Some(Duration::ZERO)
        );
    }
}
