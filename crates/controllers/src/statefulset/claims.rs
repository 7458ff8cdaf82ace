//! The volume claims of a StatefulSet's pods: made before the pod, kept or deleted by policy (KEP-1847).

use super::plan::Shape;
use davit_client::{EventRecorder, object_ref};
use davit_reconcile::{Context, Error, exists_is_none, gone_is_none};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use kube::api::{Patch, PatchParams, PostParams};
use std::collections::BTreeMap;
use std::sync::Arc;

fn templates(set: &StatefulSet) -> &[PersistentVolumeClaim] {
    let spec = set.spec.as_ref();
    spec.and_then(|s| s.volume_claim_templates.as_deref())
        .unwrap_or_default()
}

fn claim_name(set: &StatefulSet, template: &PersistentVolumeClaim, ordinal: i64) -> String {
    let name = |name: &Option<String>| name.clone().unwrap_or_default();
    format!(
        "{}-{}-{ordinal}",
        name(&template.metadata.name),
        name(&set.metadata.name)
    )
}

fn api(client: &kube::Client, set: &StatefulSet) -> kube::Api<PersistentVolumeClaim> {
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    kube::Api::namespaced(client.clone(), namespace)
}

/// Makes the claims of a pod that do not exist.
pub(super) async fn create(
    client: &kube::Client,
    set: &StatefulSet,
    ordinal: i64,
    events: &EventRecorder,
) -> Result<(), Error> {
    let set_name = set.metadata.name.clone().unwrap_or_default();
    for template in templates(set) {
        let name = claim_name(set, template, ordinal);
        let api = api(client, set);
        let held = api.get_opt(&name).await;
        if held.context(|| format!("read claim {name}"))?.is_some() {
            continue;
        }
        let mut claim = template.clone();
        claim.metadata.name = Some(name.clone());
        claim.metadata.namespace.clone_from(&set.metadata.namespace);
        let selector = set
            .spec
            .as_ref()
            .and_then(|s| s.selector.match_labels.clone());
        claim
            .metadata
            .labels
            .get_or_insert_default()
            .extend(selector.unwrap_or_default());
        claim.metadata.owner_references = owners(set, None);
        claim.status = None;
        let made = exists_is_none(api.create(&PostParams::default(), &claim).await);
        if made.context(|| format!("create claim {name}"))?.is_some() {
            let text = format!(
                "create Claim {name} Pod {set_name}-{ordinal} in StatefulSet {set_name} success"
            );
            events.normal(&object_ref(set), "SuccessfulCreate", text);
        }
    }
    Ok(())
}

/// The volumes of the pod refer to its claims.
pub(super) fn mount(set: &StatefulSet, ordinal: i64, spec: &mut PodSpec) {
    for template in templates(set) {
        let name = template.metadata.name.clone().unwrap_or_default();
        let volume = Volume {
            name: name.clone(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim_name(set, template, ordinal),
                read_only: Some(false),
            }),
            ..Volume::default()
        };
        let volumes = spec.volumes.get_or_insert_default();
        volumes.retain(|held| held.name != name);
        volumes.push(volume);
    }
}

/// Whether claims go with the set, and with the pod that is scaled away.
fn policy(set: &StatefulSet) -> (bool, bool) {
    let policy = set.spec.as_ref();
    let policy = policy.and_then(|s| s.persistent_volume_claim_retention_policy.as_ref());
    let deletes = |value: Option<&String>| value.is_some_and(|v| v == "Delete");
    (
        deletes(policy.and_then(|p| p.when_deleted.as_ref())),
        deletes(policy.and_then(|p| p.when_scaled.as_ref())),
    )
}

/// Who a claim goes with: the set, or the pod that is to go for good.
fn owners(set: &StatefulSet, condemned: Option<&Pod>) -> Option<Vec<OwnerReference>> {
    let (when_deleted, when_scaled) = policy(set);
    match condemned.filter(|_| when_scaled) {
        Some(pod) => pod.owner_ref(&()).map(|owner| vec![owner]),
        None if when_deleted => set.controller_owner_ref(&()).map(|owner| vec![owner]),
        None => None,
    }
}

/// Brings the owners of claims in line with the retention policy.
pub(super) async fn settle(
    client: &kube::Client,
    set: &StatefulSet,
    shape: &Shape,
    pods: &BTreeMap<i64, Arc<Pod>>,
) -> Result<(), Error> {
    let (when_deleted, when_scaled) = policy(set);
    let ours = |owner: &OwnerReference| {
        owner.uid == set.metadata.uid.clone().unwrap_or_default()
            || (owner.kind == "Pod"
                && pods
                    .values()
                    .any(|p| p.metadata.uid.as_ref() == Some(&owner.uid)))
    };
    for (ordinal, pod) in pods {
        for template in templates(set) {
            let name = claim_name(set, template, *ordinal);
            let claims = api(client, set);
            let held = claims
                .get_opt(&name)
                .await
                .context(|| format!("read claim {name}"))?;
            let Some(claim) = held else { continue };
            let condemned = !shape.ordinals().contains(ordinal);
            let references = claim.metadata.owner_references.clone().unwrap_or_default();
            if !when_deleted && !when_scaled && !references.iter().any(ours) {
                continue;
            }
            let wanted = owners(set, condemned.then_some(&**pod)).unwrap_or_default();
            let mut changed: Vec<OwnerReference> =
                references.iter().filter(|r| !ours(r)).cloned().collect();
            changed.extend(wanted);
            let uids = |list: &[OwnerReference]| -> Vec<String> {
                list.iter().map(|r| r.uid.clone()).collect()
            };
            if uids(&changed) == uids(&references) {
                continue;
            }
            let patch = serde_json::json!({ "metadata": {
                "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version,
                "ownerReferences": changed,
            } });
            let patched = claims
                .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await;
            gone_is_none(patched).context(|| format!("change the owner of claim {name}"))?;
        }
    }
    Ok(())
}
