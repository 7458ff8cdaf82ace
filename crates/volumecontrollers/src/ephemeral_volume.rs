//! Makes the claims of pods' generic ephemeral volumes.
//!
//! The pod owns them, so that garbage collection deletes them with it. Specified in
//! <https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/#generic-ephemeral-volumes>.

use async_trait::async_trait;
use davit_client::{EventRecorder, ObjectKey, object_ref};
use davit_reconcile::owners::controller_key;
use davit_reconcile::{Context, Error, Informers, Next, Reconcile, Spawner, cause_of};
use davit_volume::names::ephemeral_claim_name;
use davit_volume::pod::is_made_for;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimTemplate, Pod, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::PostParams;

struct EphemeralVolumes {
    client: kube::Client,
    informers: Informers,
    events: EventRecorder,
}

/// Starts the controller.
pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("ephemeral-volume-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let events = spawner.events("ephemeral_volume");
    let queue = spawner.controller(EphemeralVolumes {
        client: spawner.client.clone(),
        informers: informers.clone(),
        events,
    });
    // The volumes of a pod never change, and what becomes of its claims is told by them.
    spawner.feed_changes(
        &informers.pods,
        &queue,
        |_, _| false,
        |pod: &Pod| {
            let some = templates(pod).next().is_some();
            some.then(|| ObjectKey::of(pod)).into_iter().collect()
        },
    );
    spawner.feed_changes(
        &informers.claims,
        &queue,
        |_, _| false,
        |claim: &PersistentVolumeClaim| {
            let pod = controller_key(&claim.metadata, "Pod");
            pod.into_iter().collect()
        },
    );
}

/// The ephemeral volumes of a pod with the templates of their claims.
fn templates(pod: &Pod) -> impl Iterator<Item = (&Volume, &PersistentVolumeClaimTemplate)> {
    let volumes = pod.spec.iter().flat_map(|spec| &spec.volumes).flatten();
    volumes.filter_map(|volume| {
        let source = volume.ephemeral.as_ref()?;
        Some((volume, source.volume_claim_template.as_ref()?))
    })
}

/// The claim of a pod's volume.
fn claim_for(
    pod: &Pod,
    name: &str,
    template: &PersistentVolumeClaimTemplate,
) -> PersistentVolumeClaim {
    let meta = template.metadata.clone().unwrap_or_default();
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: pod.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: meta.annotations,
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name: pod.metadata.name.clone().unwrap_or_default(),
                uid: pod.metadata.uid.clone().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(template.spec.clone()),
        status: None,
    }
}

#[async_trait]
impl Reconcile for EphemeralVolumes {
    const NAME: &'static str = "ephemeral-volume-controller";
    const WORKERS: usize = 5;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let pod = self.informers.pods.get(Some(&key.namespace), &key.name);
        let stays = |pod: &std::sync::Arc<Pod>| pod.metadata.deletion_timestamp.is_none();
        let Some(pod) = pod.filter(stays) else {
            return Ok(Next::Wait);
        };
        for (volume, template) in templates(&pod) {
            if let Err(error) = self.ensure(&pod, volume, template).await {
                let text = format!("ephemeral volume {}: {}", volume.name, words(&error));
                self.events
                    .warning(&object_ref(&*pod), "FailedBinding", text);
                return Err(error);
            }
        }
        Ok(Next::Wait)
    }
}

/// What was attempted and what the API server said to it.
fn words(error: &Error) -> String {
    match error {
        Error::Api { what, .. } => format!("{what}: {}", cause_of(error)),
        other => other.to_string(),
    }
}

impl EphemeralVolumes {
    /// Makes the claim of a volume unless it is there.
    async fn ensure(
        &self,
        pod: &Pod,
        volume: &Volume,
        template: &PersistentVolumeClaimTemplate,
    ) -> Result<(), Error> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
        let name = ephemeral_claim_name(pod_name, &volume.name);
        if let Some(claim) = self.informers.claims.get(Some(namespace), &name) {
            if is_made_for(&claim, pod) {
                return Ok(());
            }
            return Err(Error::Invalid(format!(
                "PVC {namespace}/{name} was not created for pod {namespace}/{pod_name} (pod is not owner)"
            )));
        }
        let claims = kube::Api::namespaced(self.client.clone(), namespace);
        let claim = claim_for(pod, &name, template);
        // A claim that is there already is judged when the informer has it, which the back-off gives time for.
        let made = claims.create(&PostParams::default(), &claim).await;
        made.context(|| format!("create PVC {name}"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_follow_their_template_and_belong_to_the_pod() {
        let template = json!({
            "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                "resources": {"requests": {"storage": "1Gi"}}},
        });
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [], "volumes": [
                {"name": "config", "configMap": {"name": "x"}},
                {"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]},
        }))
        .unwrap();
        let (volume, found) = templates(&pod).next().unwrap();
        assert_eq!(
            (volume.name.as_str(), templates(&pod).count()),
            ("scratch", 1)
        );
        let claim = claim_for(&pod, "p-scratch", found);
        assert!(is_made_for(&claim, &pod));
        let claim = serde_json::to_value(claim).unwrap();
        assert_eq!(claim["spec"], template["spec"]);
        assert_eq!(claim["metadata"]["labels"], template["metadata"]["labels"]);
        assert_eq!(
            claim["metadata"]["annotations"],
            template["metadata"]["annotations"]
        );
        assert_eq!(
            claim["metadata"]["ownerReferences"][0]["blockOwnerDeletion"],
            true
        );
    }
}
