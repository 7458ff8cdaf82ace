//! Claims of pods: made from templates, and reserved for pods that were put on a node past the scheduler.

use super::made::ClaimOwner;
use super::{
    Known, PodsGroup, SOON, classic, entries, extended_claim_of, no_template, plan, reason,
};
use async_trait::async_trait;
use davit_api::resource_claims::{group_consumer, name_in_group, pod_consumer};
use davit_client::{EventRecorder, ObjectKey, object_ref};
use davit_reconcile::pods::node_of;
use davit_reconcile::{Context, Error, Next, Reconcile, gone_is_none};
use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::ResourceClaimConsumerReference;
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use kube::api::PostParams;

/// Makes the claims of pods.
pub(super) struct OfPods {
    pub(super) known: Known,
    pub(super) events: EventRecorder,
}

#[async_trait]
impl Reconcile for OfPods {
    const NAME: &'static str = "resourceclaim-controller-pods";
    const WORKERS: usize = 50;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let known = &self.known;
        if !known.is_synced() {
            return Ok(Next::After(SOON));
        }
        if known.written_pods.is_ahead(key) {
            return Ok(Next::Wait);
        }
        let Some(pod) = known.pods.get(Some(&key.namespace), &key.name) else {
            return Ok(Next::Wait);
        };
        if plan::is_done(&pod) || pod.metadata.deletion_timestamp.is_some() {
            return Ok(Next::Wait);
        }
        let group = known.group_of(&pod);
        if matches!(group, PodsGroup::Unknown) {
            return Ok(Next::Wait);
        }
        let mut made = Vec::new();
        for entry in entries(&pod) {
            let Some(template) = &entry.resource_claim_template_name else {
                continue;
            };
            if plan::does_without(&pod, &entry.name) {
                continue;
            }
            let found = match group.that_lists(entry) {
                Some(group) => Ok(self.claim_of_group(&pod, entry, group)),
                None => self.claim_for(&pod, entry, template).await,
            };
            match found {
                Ok(Some(name)) => made.push((entry.name.as_str(), name)),
                // The names of classic claims follow from the pods', and those of a group's may come.
                Ok(None) => {}
                Err(error) => {
                    let object = object_ref(&*pod);
                    let text = format!("PodResourceClaim {}: {}", entry.name, reason(&error));
                    self.events
                        .warning(&object, "FailedResourceClaimCreation", text);
                    return Err(error);
                }
            }
        }
        let is_told = |entry: &str, claim: &str| plan::name_in_status(&pod, entry) == Some(claim);
        if let Some(written) = known.record(&*pod, &made, is_told).await? {
            known.written_pods.note(key, &written);
        }
        self.reserve(&pod, &group).await?;
        Ok(Next::Wait)
    }
}

impl OfPods {
    /// The name of the claim that the pod's group has for an entry, once there is one.
    fn claim_of_group(
        &self,
        pod: &Pod,
        entry: &PodResourceClaim,
        group: &PodGroup,
    ) -> Option<String> {
        let (known, owner) = (&self.known, ClaimOwner::group(group));
        let named = plan::name_in_status(pod, &entry.name);
        let named = named.filter(|name| {
            let claim = known.claims.get(Some(&owner.namespace), name);
            claim.is_some_and(|claim| owner.owns(&claim))
        });
        // The group's status may be known before its claim is.
        let named = named.or_else(|| name_in_group(group, &entry.name)?);
        let made = || known.made_for(&owner, &entry.name);
        named.map(str::to_owned).or_else(made)
    }

    /// The name of the claim for an entry with a template; made now if there is none. None for a claim of the classic
    /// API, from a template of the classic API.
    async fn claim_for(
        &self,
        pod: &Pod,
        entry: &PodResourceClaim,
        template: &str,
    ) -> Result<Option<String>, Error> {
        let (known, owner) = (&self.known, ClaimOwner::pod(pod));
        let named = plan::name_in_status(pod, &entry.name);
        if named.is_none() && known.classic.is_made_for(pod, entry) {
            return Ok(None);
        }
        let claim = known.claim_for(&owner, &entry.name, named, template);
        if let Some(name) = claim.await? {
            return Ok(Some(name));
        }
        let Some(found) = known.classic.template(&owner.namespace, template) else {
            return Err(no_template(template));
        };
        classic::make(&known.client, pod, entry, &found).await?;
        Ok(None)
    }

    /// A pod that was put on its node past the scheduler gets a reservation for claims that are allocated, or its group does.
    async fn reserve(&self, pod: &Pod, group: &PodsGroup) -> Result<(), Error> {
        if node_of(pod).is_none() {
            return Ok(());
        }
        for entry in entries(pod) {
            let group = group.that_lists(entry);
            let consumer = group.map_or_else(|| pod_consumer(pod), |group| group_consumer(group));
            let direct = entry.resource_claim_name.as_deref();
            if let Some(name) = direct.or_else(|| plan::name_in_status(pod, &entry.name)) {
                self.reserve_one(pod, name, consumer).await?;
            }
        }
        if let Some(extended) = extended_claim_of(pod) {
            self.reserve_one(pod, extended, pod_consumer(pod)).await?;
        }
        Ok(())
    }

    async fn reserve_one(
        &self,
        pod: &Pod,
        name: &str,
        consumer: ResourceClaimConsumerReference,
    ) -> Result<(), Error> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let claim = self.known.claims.get(Some(namespace), name);
        let Some(claim) = claim.and_then(|claim| plan::with_reservation(&claim, consumer)) else {
            return Ok(());
        };
        let api = self.known.api(namespace);
        let params = PostParams::default();
        let written = api.replace_status(name, &params, &claim);
        let what = || format!("reserve claim {namespace}/{name} for its pod");
        gone_is_none(written.await).context(what)?;
        Ok(())
    }
}
