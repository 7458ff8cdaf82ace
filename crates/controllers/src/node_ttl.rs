//! How long nodes may keep Secrets and ConfigMaps without asking for them again: the annotation
//! `node.alpha.kubernetes.io/ttl`, in seconds, longer in large clusters.

use async_trait::async_trait;
use davit_client::ObjectKey;
use davit_reconcile::{Context, Error, Informers, Next, Reconcile, Spawner, gone_is_none};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;

const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// Smallest and largest number of nodes, and the seconds for them. They overlap, so that a cluster at a boundary does
/// not go to and fro.
const STEPS: [(usize, usize, u32); 5] = [
    (0, 100, 0),
    (90, 500, 15),
    (450, 1000, 30),
    (900, 2000, 60),
    (1800, usize::MAX, 300),
];

struct Ttl {
    client: kube::Client,
    informers: Informers,
    step: Mutex<usize>,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("ttl-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let queue = spawner.controller(Ttl {
        client: spawner.client.clone(),
        informers: informers.clone(),
        step: Mutex::new(0),
    });
    let all = informers.nodes.clone();
    // heartbeats change nothing here
    let matters = |old: &Node, new: &Node| old.metadata.annotations != new.metadata.annotations;
    spawner.feed_changes(&informers.nodes, &queue, matters, move |node: &Node| {
        let count = all.len();
        if STEPS
            .iter()
            .any(|(low, high, _)| count == *low || count == high.saturating_add(1))
        {
            return all
                .list()
                .iter()
                .map(|node| ObjectKey::of(node.as_ref()))
                .collect();
        }
        vec![ObjectKey::of(node)]
    });
}

/// The step for so many nodes, coming from another.
fn step(mut at: usize, nodes: usize) -> usize {
    while at + 1 < STEPS.len() && nodes > STEPS[at].1 {
        at += 1;
    }
    while at > 0 && nodes < STEPS[at].0 {
        at -= 1;
    }
    at
}

#[async_trait]
impl Reconcile for Ttl {
    const NAME: &'static str = "ttl";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(node) = self.informers.nodes.get(None, &key.name) else {
            return Ok(Next::Wait);
        };
        let seconds = {
            let mut held = self.step.lock();
            *held = step(*held, self.informers.nodes.len());
            STEPS[*held].2
        };
        let annotations = node.metadata.annotations.as_ref();
        let held = annotations.and_then(|all| all.get(ANNOTATION));
        if held.and_then(|text| text.parse().ok()) == Some(seconds) {
            return Ok(Next::Wait);
        }
        let patch = json!({ "metadata": { "annotations": { ANNOTATION: seconds.to_string() } } });
        let api: kube::Api<Node> = kube::Api::all(self.client.clone());
        let params = PatchParams::default();
        let written = api
            .patch(&key.name, &params, &Patch::Strategic(patch))
            .await;
        gone_is_none(written).context(|| format!("annotate node {}", key.name))?;
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_overlap() {
        assert_eq!(step(0, 1), 0);
        assert_eq!(step(0, 100), 0);
        assert_eq!(step(0, 101), 1);
        assert_eq!(step(1, 95), 1);
        assert_eq!(step(1, 89), 0);
        assert_eq!(step(0, 5000), 4);
        assert_eq!(step(4, 10), 0);
    }
}
