//! Keeps claims that pods use, and volumes that claims use, from going away under them: puts the protection finalizers
//! on, and takes them off when nothing uses the object any more.

use crate::controller::{Context, Error, Next, Reconcile, Spawner, gone_is_none};
use crate::informers::Informers;
use crate::pod_control::{is_terminal, node_of};
use async_trait::async_trait;
use davit_client::ObjectKey;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use serde::de::DeserializeOwned;

const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";

struct Claims {
    client: kube::Client,
    informers: Informers,
}

struct Volumes {
    client: kube::Client,
    informers: Informers,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let informers = spawner.informers.clone();
    let claims = spawner.controller(Claims {
        client: spawner.client.clone(),
        informers: informers.clone(),
    });
    spawner.feed(
        &informers.claims,
        &claims,
        |claim: &PersistentVolumeClaim| vec![ObjectKey::of(claim)],
    );
    spawner.feed(&informers.pods, &claims, |pod: &Pod| claims_of(pod));
    let volumes = spawner.controller(Volumes {
        client: spawner.client.clone(),
        informers: informers.clone(),
    });
    spawner.feed(&informers.volumes, &volumes, |volume: &PersistentVolume| {
        vec![ObjectKey::of(volume)]
    });
}

/// The claims a pod names, those of generic ephemeral volumes included.
fn claims_of(pod: &Pod) -> Vec<ObjectKey> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let pod_name = pod.metadata.name.clone().unwrap_or_default();
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_ref());
    volumes
        .into_iter()
        .flatten()
        .filter_map(
            |volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
                (Some(claim), _) => Some(claim.claim_name.clone()),
                (None, Some(_)) => Some(format!("{pod_name}-{}", volume.name)),
                (None, None) => None,
            },
        )
        .map(|name| ObjectKey {
            namespace: namespace.clone(),
            name,
        })
        .collect()
}

fn uses(pod: &Pod, claim: &ObjectKey) -> bool {
    // A pod that was never placed or has ended has nothing mounted.
    node_of(pod).is_some() && !is_terminal(pod) && claims_of(pod).contains(claim)
}

#[async_trait]
impl Reconcile for Claims {
    const NAME: &'static str = "pvc-protection";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(claim) = self.informers.claims.get(Some(&key.namespace), &key.name) else {
            return Ok(Next::Wait);
        };
        let api: kube::Api<PersistentVolumeClaim> =
            kube::Api::namespaced(self.client.clone(), &key.namespace);
        let deleting = claim.metadata.deletion_timestamp.is_some();
        if deleting {
            let pods = self.informers.pods.list_namespace(&key.namespace);
            if pods.iter().any(|pod| uses(pod, key)) {
                return Ok(Next::Wait);
            }
            // The informer may lag behind: only the API server knows that nothing uses it.
            let pods: kube::Api<Pod> = kube::Api::namespaced(self.client.clone(), &key.namespace);
            let pods = pods.list(&ListParams::default()).await;
            let pods = pods.context(|| format!("list pods that use claim {key}"))?;
            if pods.items.iter().any(|pod| uses(pod, key)) {
                return Ok(Next::Wait);
            }
        }
        settle(&api, &*claim, CLAIM_FINALIZER, deleting).await?;
        Ok(Next::Wait)
    }
}

#[async_trait]
impl Reconcile for Volumes {
    const NAME: &'static str = "pv-protection";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(volume) = self.informers.volumes.get(None, &key.name) else {
            return Ok(Next::Wait);
        };
        let api: kube::Api<PersistentVolume> = kube::Api::all(self.client.clone());
        let deleting = volume.metadata.deletion_timestamp.is_some();
        let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
        if deleting && phase == Some("Bound") {
            return Ok(Next::Wait);
        }
        settle(&api, &*volume, VOLUME_FINALIZER, deleting).await?;
        Ok(Next::Wait)
    }
}

/// Puts the finalizer on an object that stays, takes it off one that may go.
async fn settle<K>(
    api: &kube::Api<K>,
    object: &K,
    finalizer: &str,
    deleting: bool,
) -> Result<(), Error>
where
    K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let meta = object.meta();
    let mut finalizers = meta.finalizers.clone().unwrap_or_default();
    let held = finalizers.iter().any(|f| f == finalizer);
    match (held, deleting) {
        (true, true) => finalizers.retain(|f| f != finalizer),
        (false, false) => finalizers.push(finalizer.to_owned()),
        _ => return Ok(()),
    }
    let name = meta.name.clone().unwrap_or_default();
    let patch = serde_json::json!({ "metadata": {
        "uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers,
    } });
    gone_is_none(
        api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await,
    )
    .context(|| format!("change the finalizers of {name}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn placed_pods_hold_the_claims_they_name() {
        let pod = |node: &str, phase: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": { "name": "p", "namespace": "n" },
                "spec": { "nodeName": node, "containers": [], "volumes": [
                    { "name": "a", "persistentVolumeClaim": { "claimName": "data" } },
                    { "name": "scratch", "ephemeral": {} }, { "name": "e", "emptyDir": {} } ] },
                "status": { "phase": phase },
            }))
            .unwrap()
        };
        let key = |name: &str| ObjectKey {
            namespace: "n".to_owned(),
            name: name.to_owned(),
        };
        let running = pod("node", "Running");
        assert_eq!(claims_of(&running), [key("data"), key("p-scratch")]);
        assert!(uses(&running, &key("data")));
        assert!(!uses(&running, &key("other")));
        assert!(!uses(&pod("", "Pending"), &key("data")));
        assert!(!uses(&pod("node", "Succeeded"), &key("data")));
    }
}
