//! Claims that are reserved or made for what has gone: freed, let go, deleted.

use super::{FINALIZER, Known, SOON, plan};
use async_trait::async_trait;
use davit_api::resource_claims::{is_pod, is_pod_group};
use davit_client::{Informer, ObjectKey};
use davit_reconcile::owners::controller_of;
use davit_reconcile::{Context, Error, Next, Reconcile, gone_is_none};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use kube::api::{DeleteParams, PostParams, Preconditions};
use std::sync::Arc;

/// Frees and deletes claims.
pub(super) struct OfClaims {
    pub(super) known: Known,
}

#[async_trait]
impl Reconcile for OfClaims {
    const NAME: &'static str = "resourceclaim-controller";
    const WORKERS: usize = 50;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        if !self.known.is_synced() {
            return Ok(Next::After(SOON));
        }
        let written = &self.known.written_claims;
        if written.is_ahead(key) {
            return Ok(Next::Wait);
        }
        let Some(claim) = self.known.claims.get(Some(&key.namespace), &key.name) else {
            return Ok(Next::Wait);
        };
        let api = self.known.api(&key.namespace);
        let mut users = Vec::new();
        let mut gone = Vec::new();
        for user in plan::users(&claim) {
            match self.state_of(key, &user).await? {
                Consumer::Uses => users.push(user),
                Consumer::Done => {}
                Consumer::Gone => gone.push(user.uid),
            }
        }
        let mut claim = (*claim).clone();
        let is_live = claim.metadata.deletion_timestamp.is_none();
        if users.is_empty() && is_live && self.is_orphan(&claim, &gone) {
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: claim.metadata.uid.clone(),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            let deleted = api.delete(&key.name, &params).await;
            let deleted = gone_is_none(deleted).context(|| format!("delete claim {key}"))?;
            let Some(deleted) = deleted else {
                return Ok(Next::Wait);
            };
            // without its finalizer it would be gone at once
            let Some(deleting) = deleted.left() else {
                return Ok(Next::Wait);
            };
            claim = deleting;
        }
        if let Some(status) = plan::freed_status(&claim, users.clone()) {
            claim.status = Some(status);
            let write = api
                .replace_status(&key.name, &PostParams::default(), &claim)
                .await;
            match gone_is_none(write).context(|| format!("free claim {key}"))? {
                Some(freed) => claim = freed,
                None => return Ok(Next::Wait),
            }
        }
        if plan::drops_finalizer(&claim, &users) {
            let finalizers = claim.metadata.finalizers.get_or_insert_default();
            finalizers.retain(|f| f != FINALIZER);
            let write = api.replace(&key.name, &PostParams::default(), &claim).await;
            let what = || format!("remove the finalizer of claim {key}");
            match gone_is_none(write).context(what)? {
                Some(open) => claim = open,
                None => return Ok(Next::Wait),
            }
        }
        written.note(key, &claim);
        Ok(Next::Wait)
    }
}

impl OfClaims {
    /// What became of a consumer.
    async fn state_of(
        &self,
        key: &ObjectKey,
        user: &ResourceClaimConsumerReference,
    ) -> Result<Consumer, Error> {
        if let Some(groups) = self.known.groups.as_ref().filter(|_| is_pod_group(user)) {
            return self.state_of_group(key, user, groups).await;
        }
        if !is_pod(user) {
            // Whoever reserved it for something else takes that away.
            return Ok(Consumer::Uses);
        }
        let same = |pod: &Pod| pod.metadata.uid.as_deref() == Some(&*user.uid);
        let known = self.known.pods.get(Some(&key.namespace), &user.name);
        if let Some(pod) = known.filter(|pod| same(pod)) {
            return Ok(Consumer::of(&pod));
        }
        if self
            .known
            .pods
            .has_gone(Some(&key.namespace), &user.name, &user.uid)
        {
            return Ok(Consumer::Gone);
        }
        // The informer may be behind; only the API server can say that a pod is gone which it has not seen go.
        let api: kube::Api<Pod> = kube::Api::namespaced(self.known.client.clone(), &key.namespace);
        let pod = api.get_opt(&user.name).await;
        let pod = pod.context(|| format!("look for pod {} that uses claim {key}", user.name))?;
        Ok(pod
            .filter(same)
            .map_or(Consumer::Gone, |pod| Consumer::of(&pod)))
    }

    /// What became of a consumer that is a group.
    async fn state_of_group(
        &self,
        key: &ObjectKey,
        user: &ResourceClaimConsumerReference,
        groups: &Informer<PodGroup>,
    ) -> Result<Consumer, Error> {
        let same = |group: &PodGroup| group.metadata.uid.as_deref() == Some(&*user.uid);
        let known = groups.get(Some(&key.namespace), &user.name);
        if known.is_some_and(|group| same(&group)) {
            return Ok(Consumer::Uses);
        }
        if groups.has_gone(Some(&key.namespace), &user.name, &user.uid) {
            return Ok(Consumer::Gone);
        }
        let client = self.known.client.clone();
        let api: kube::Api<PodGroup> = kube::Api::namespaced(client, &key.namespace);
        let group = api.get_opt(&user.name).await;
        let what = || format!("look for group {} that uses claim {key}", user.name);
        let is_there = group.context(what)?.is_some_and(|group| same(&group));
        Ok(if is_there {
            Consumer::Uses
        } else {
            Consumer::Gone
        })
    }

    /// Whether the pod that the claim was made for has ended, was replaced, or is among those that are `gone` for sure. One of
    /// which nothing is known is left to garbage collection.
    fn is_orphan(&self, claim: &ResourceClaim, gone: &[String]) -> bool {
        let Some(owner) = controller_of(&claim.metadata).filter(|o| o.kind == "Pod") else {
            return false;
        };
        let namespace = claim.metadata.namespace.as_deref();
        let pod: Option<Arc<Pod>> = self.known.pods.get(namespace, &owner.name);
        gone.contains(&owner.uid)
            || pod.is_some_and(|p| {
                p.metadata.uid.as_deref() != Some(&*owner.uid) || plan::is_done(&p)
            })
    }
}

/// What became of a pod or group that a claim is reserved for.
enum Consumer {
    /// It is there and may use the claim.
    Uses,
    /// It is there and will not use the claim any more.
    Done,
    /// It is not there.
    Gone,
}

impl Consumer {
    fn of(pod: &Pod) -> Self {
        if plan::is_done(pod) {
            Self::Done
        } else {
            Self::Uses
        }
    }
}
