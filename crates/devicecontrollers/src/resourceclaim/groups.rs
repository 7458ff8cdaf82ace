//! Claims of groups of pods (KEP-5729): made from templates for the groups that list them.

use super::{Known, MANAGER, SOON, made::ClaimOwner, reason};
use async_trait::async_trait;
use davit_api::pod_groups::pod_group_of;
use davit_api::resource_claims::{claims_of_group, name_in_group};
use davit_client::{EventRecorder, Informer, ObjectKey, WorkQueue, object_ref};
use davit_reconcile::owners::controller_key;
use davit_reconcile::{Context, Error, Next, Reconcile, Spawner, gone_is_none};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::scheduling::v1alpha2::{PodGroup, PodGroupResourceClaim};
use kube::api::{Patch, PatchParams};
use serde_json::json;

/// Starts what looks after the claims of groups. What becomes of a group concerns its pods (the first queue) and the claims
/// that it has (the second).
pub(super) fn spawn(
    spawner: &mut Spawner<'_>,
    known: &Known,
    groups: &Informer<PodGroup>,
    events: EventRecorder,
    (pods, claims): (&WorkQueue<ObjectKey>, &WorkQueue<ObjectKey>),
) {
    let own = spawner.controller(OfPodGroups {
        known: known.clone(),
        groups: groups.clone(),
        events,
    });
    spawner.feed(groups, &own, |group: &PodGroup| {
        let some = entries(group).next().is_some();
        some.then(|| ObjectKey::of(group)).into_iter().collect()
    });
    spawner.feed(&known.claims, &own, |claim: &ResourceClaim| {
        let owner = controller_key(&claim.metadata, "PodGroup");
        owner.into_iter().collect()
    });
    spawner.feed(groups, claims, claims_of);
    let all = known.pods.clone();
    // Conditions, which change with every attempt to schedule the group, are none of the pods' business here.
    let matters = |old: &PodGroup, new: &PodGroup| claims_of(old) != claims_of(new);
    spawner.feed_changes(groups, pods, matters, move |group: &PodGroup| {
        let namespace = group.metadata.namespace.as_deref().unwrap_or_default();
        let pods = all.list_namespace(namespace);
        let members = pods.iter().filter(|pod| is_member(pod, group));
        members.map(|pod| ObjectKey::of(&**pod)).collect()
    });
}

fn entries(group: &PodGroup) -> impl Iterator<Item = &PodGroupResourceClaim> {
    group.spec.resource_claims.iter().flatten()
}

/// Whether a pod with claims names this group.
fn is_member(pod: &Pod, group: &PodGroup) -> bool {
    pod_group_of(pod) == group.metadata.name.as_deref() && super::entries(pod).next().is_some()
}

/// The claims that a group lists, as far as they have names.
fn claims_of(group: &PodGroup) -> Vec<ObjectKey> {
    let namespace = group.metadata.namespace.clone().unwrap_or_default();
    let key = |name: &str| ObjectKey {
        namespace: namespace.clone(),
        name: name.to_owned(),
    };
    claims_of_group(group).map(key).collect()
}

/// Makes the claims of groups.
struct OfPodGroups {
    known: Known,
    groups: Informer<PodGroup>,
    events: EventRecorder,
}

#[async_trait]
impl Reconcile for OfPodGroups {
    const NAME: &'static str = "resourceclaim-controller-podgroups";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        if !self.known.is_synced() {
            return Ok(Next::After(SOON));
        }
        let Some(group) = self.groups.get(Some(&key.namespace), &key.name) else {
            return Ok(Next::Wait);
        };
        if group.metadata.deletion_timestamp.is_some() {
            return Ok(Next::Wait);
        }
        let mut made = Vec::new();
        for entry in entries(&group) {
            let Some(template) = &entry.resource_claim_template_name else {
                continue;
            };
            if name_in_group(&group, &entry.name) == Some(None) {
                continue;
            }
            match self.claim_for(&group, &entry.name, template).await {
                Ok(name) => made.push((entry.name.as_str(), name)),
                Err(error) => {
                    let text = format!("PodGroupResourceClaim {}: {}", entry.name, reason(&error));
                    let object = object_ref(&*group);
                    self.events
                        .warning(&object, "FailedResourceClaimCreation", text);
                    return Err(error);
                }
            }
        }
        self.record(&group, &made).await?;
        Ok(Next::Wait)
    }
}

impl OfPodGroups {
    /// The name of the claim for an entry with a template; made now if there is none.
    async fn claim_for(
        &self,
        group: &PodGroup,
        entry: &str,
        template: &str,
    ) -> Result<String, Error> {
        let (known, owner) = (&self.known, ClaimOwner::group(group));
        let namespace = &owner.namespace;
        if let Some(name) = name_in_group(group, entry).flatten() {
            match known.claims.get(Some(namespace), name) {
                Some(claim) if owner.owns(&claim) => return Ok(name.to_owned()),
                // A claim of this name that belongs to something else is not touched.
                Some(_) => {
                    return Err(Error::Invalid(format!(
                        "resource claim {namespace}/{name} was not created for the group"
                    )));
                }
                None => {}
            }
        }
        // Made before, and the group's status not written then.
        if let Some(name) = known.made_for(&owner, entry) {
            return Ok(name);
        }
        let Some(found) = known.templates.get(Some(namespace), template) else {
            return Err(Error::Invalid(format!(
                "failed to create ResourceClaim: resourceclaimtemplate.resource.k8s.io \"{template}\" not found"
            )));
        };
        known.make(&owner, entry, &found).await
    }

    /// Writes the names into the group's status, if they are not there.
    async fn record(&self, group: &PodGroup, made: &[(&str, String)]) -> Result<(), Error> {
        let is_told = |(entry, name): &(&str, String)| {
            name_in_group(group, entry) == Some(Some(name.as_str()))
        };
        if made.iter().all(is_told) {
            return Ok(());
        }
        let meta = &group.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let name = meta.name.as_deref().unwrap_or_default();
        let statuses = made.iter();
        let statuses =
            statuses.map(|(entry, claim)| json!({"name": entry, "resourceClaimName": claim}));
        let apply = json!({
            "apiVersion": "scheduling.k8s.io/v1alpha2",
            "kind": "PodGroup",
            "metadata": {"name": name, "namespace": namespace, "uid": meta.uid},
            "status": {"resourceClaimStatuses": statuses.collect::<Vec<_>>()},
        });
        let client = self.known.client.clone();
        let api: kube::Api<PodGroup> = kube::Api::namespaced(client, namespace);
        let params = PatchParams::apply(MANAGER).force();
        let written = api.patch_status(name, &params, &Patch::Apply(&apply)).await;
        gone_is_none(written)
            .context(|| format!("record the claims of group {namespace}/{name}"))?;
        Ok(())
    }
}
