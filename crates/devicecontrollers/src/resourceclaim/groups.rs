//! Claims of groups of pods (KEP-5729): made from templates for the groups that list them.

use super::{Known, SOON, made::ClaimOwner, no_template, reason};
use async_trait::async_trait;
use davit_api::pod_groups::pod_group_of;
use davit_api::resource_claims::{claims_of_group, name_in_group};
use davit_client::{EventRecorder, Informer, ObjectKey, WorkQueue, object_ref};
use davit_reconcile::owners::controller_key;
use davit_reconcile::{Error, Next, Reconcile, Spawner};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::scheduling::v1alpha2::{PodGroup, PodGroupResourceClaim};

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
        let is_told = |entry: &str, claim: &str| name_in_group(&group, entry) == Some(Some(claim));
        self.known.record(&*group, &made, is_told).await?;
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
        let owner = ClaimOwner::group(group);
        let named = name_in_group(group, entry).flatten();
        let claim = self.known.claim_for(&owner, entry, named, template).await?;
        claim.ok_or_else(|| no_template(template))
    }
}
