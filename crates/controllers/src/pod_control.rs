//! What the workload controllers share about the pods they own.

use davit_api::time::age;
use davit_client::{Informer, ObjectKey};
use davit_reconcile::owners::{controller_key, controller_of};
use davit_reconcile::pods::{is_active, node_of, phase};
use davit_reconcile::{Context, Error, Informers, gone_is_none};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{Selector, SelectorExt};
use std::sync::Arc;
use std::time::Duration;

/// What can be owned: pods, and the replica sets of deployments.
pub(crate) trait Owned:
    kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
    + Clone
    + serde::de::DeserializeOwned
    + std::fmt::Debug
    + Sync
{
}

impl Owned for Pod {}
impl Owned for ReplicaSet {}

/// The object that owns pods: what its pods carry, and which they are.
#[derive(Debug, Clone)]
pub(crate) struct Owner {
    pub(crate) reference: OwnerReference,
    pub(crate) namespace: String,
    pub(crate) selector: Selector,
    /// The owner is being deleted: it adopts nothing any more.
    pub(crate) deleting: bool,
    /// Which pods can be its own, by its name; all that match where there is no rule.
    pub(crate) member: Option<fn(&str, &Pod) -> bool>,
    /// A finalizer of the owner's, which pods get when they are adopted and lose when they are let go.
    pub(crate) finalizer: Option<&'static str>,
}

impl Owner {
    /// Of a namespaced object with a selector.
    pub(crate) fn of<K: kube::Resource<DynamicType = ()>>(
        object: &K,
        selector: &LabelSelector,
    ) -> Result<Self, Error> {
        let meta = object.meta();
        let name = meta.name.clone().unwrap_or_default();
        let kind = K::kind(&());
        let invalid = |what: &str| Error::Invalid(format!("{kind} {name} has {what}"));
        let mut reference = object
            .controller_owner_ref(&())
            .ok_or_else(|| invalid("no uid"))?;
        reference.block_owner_deletion = Some(true);
        let selector: Selector = selector
            .clone()
            .try_into()
            .map_err(|_| invalid("an unusable selector"))?;
        Ok(Self {
            reference,
            namespace: meta.namespace.clone().unwrap_or_default(),
            selector,
            deleting: meta.deletion_timestamp.is_some(),
            member: None,
            finalizer: None,
        })
    }

    /// Whether the object with this metadata is controlled by this owner.
    pub(crate) fn controls(&self, meta: &ObjectMeta) -> bool {
        controller_of(meta).is_some_and(|r| r.uid == self.reference.uid)
    }

    pub(crate) fn matches(&self, meta: &ObjectMeta) -> bool {
        static NONE: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new();
        !self.selector.selects_all() && self.selector.matches(meta.labels.as_ref().unwrap_or(&NONE))
    }

    fn may_own(&self, pod: &Pod) -> bool {
        self.member
            .is_none_or(|rule| rule(&self.reference.name, pod))
    }

    /// The owner's pods as the informer sees them; orphans that match are adopted, pods that no longer match let go.
    pub(crate) async fn claim_pods(
        &self,
        client: &kube::Client,
        informers: &Informers,
    ) -> Result<Vec<Arc<Pod>>, Error> {
        let mut claimed = Vec::new();
        for pod in informers.pods.list_namespace(&self.namespace) {
            match (controller_of(&pod.metadata), self.matches(&pod.metadata)) {
                (Some(reference), matches) if reference.uid == self.reference.uid => {
                    if matches || self.deleting {
                        claimed.push(pod);
                    } else {
                        self.release(client, &*pod).await?;
                    }
                }
                (None, true) if !self.deleting && is_active(&pod) && self.may_own(&pod) => {
                    self.adopt(client, &*pod).await?;
                    claimed.push(pod);
                }
                _ => {}
            }
        }
        Ok(claimed)
    }

    /// The owner's pods as the API server has them now: what decisions to create or delete must rest on, since the
    /// informer may not have seen our own last writes yet.
    pub(crate) async fn live_pods(&self, client: &kube::Client) -> Result<Vec<Arc<Pod>>, Error> {
        let api: kube::Api<Pod> = kube::Api::namespaced(client.clone(), &self.namespace);
        let listed = api
            .list(&ListParams::default().labels_from(&self.selector))
            .await
            .context(|| {
                format!(
                    "list pods of {} {}",
                    self.reference.kind, self.reference.name
                )
            })?;
        Ok(listed
            .items
            .into_iter()
            .filter(|p| self.controls(&p.metadata))
            .map(Arc::new)
            .collect())
    }

    /// Whether the API server has the owner now, and it is not being deleted: what pods may be made for. Where the informer has
    /// not heard that it went, the garbage collector takes them, and they would be made again, as fast as it goes.
    pub(crate) async fn is_there<K>(&self, client: &kube::Client) -> Result<bool, Error>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        let api: kube::Api<K> = kube::Api::namespaced(client.clone(), &self.namespace);
        let (kind, name) = (&self.reference.kind, &self.reference.name);
        let found = api.get_metadata_opt(name).await;
        let found = found.context(|| format!("get {kind} {}/{name}", self.namespace))?;
        Ok(found.is_some_and(|owner| {
            let meta = owner.metadata;
            meta.uid.as_ref() == Some(&self.reference.uid) && meta.deletion_timestamp.is_none()
        }))
    }

    /// Makes an object without a controller the owner's.
    pub(crate) async fn adopt<K: Owned>(
        &self,
        client: &kube::Client,
        object: &K,
    ) -> Result<(), Error> {
        let mut references = object.meta().owner_references.clone().unwrap_or_default();
        references.push(self.reference.clone());
        let finalizers = self.finalizer.map(|finalizer| {
            let mut all = object.meta().finalizers.clone().unwrap_or_default();
            if all.iter().all(|f| f != finalizer) {
                all.push(finalizer.to_owned());
            }
            all
        });
        self.set_owners(client, object, references, finalizers)
            .await
    }

    /// Lets an object go.
    pub(crate) async fn release<K: Owned>(
        &self,
        client: &kube::Client,
        object: &K,
    ) -> Result<(), Error> {
        let mut references = object.meta().owner_references.clone().unwrap_or_default();
        references.retain(|r| r.uid != self.reference.uid);
        let finalizers = self.finalizer.map(|finalizer| {
            let mut kept = object.meta().finalizers.clone().unwrap_or_default();
            kept.retain(|f| f != finalizer);
            kept
        });
        self.set_owners(client, object, references, finalizers)
            .await
    }

    async fn set_owners<K: Owned>(
        &self,
        client: &kube::Client,
        object: &K,
        references: Vec<OwnerReference>,
        finalizers: Option<Vec<String>>,
    ) -> Result<(), Error> {
        let meta = object.meta();
        let name = meta.name.clone().unwrap_or_default();
        let mut patch = serde_json::json!({
            "metadata": { "uid": meta.uid, "resourceVersion": meta.resource_version, "ownerReferences": references }
        });
        if let Some(finalizers) = finalizers {
            patch["metadata"]["finalizers"] = serde_json::json!(finalizers);
        }
        let api: kube::Api<K> = kube::Api::namespaced(client.clone(), &self.namespace);
        gone_is_none(
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await,
        )
        .context(|| {
            format!(
                "change the owner of {} {}/{name}",
                K::kind(&()),
                self.namespace
            )
        })?;
        Ok(())
    }

    /// A pod of the template, owned by this owner; named by `name` or generated from the owner's name.
    pub(crate) fn pod(&self, template: &PodTemplateSpec, name: Option<String>) -> Pod {
        let meta = template.metadata.clone().unwrap_or_default();
        Pod {
            metadata: ObjectMeta {
                generate_name: name.is_none().then(|| format!("{}-", self.reference.name)),
                name,
                namespace: Some(self.namespace.clone()),
                labels: meta.labels,
                annotations: meta.annotations,
                finalizers: meta.finalizers,
                owner_references: Some(vec![self.reference.clone()]),
                ..ObjectMeta::default()
            },
            spec: template.spec.clone(),
            status: None,
        }
    }

    /// Creates a pod.
    pub(crate) async fn create(&self, client: &kube::Client, pod: &Pod) -> Result<Pod, Error> {
        let api: kube::Api<Pod> = kube::Api::namespaced(client.clone(), &self.namespace);
        api.create(&PostParams::default(), pod).await.context(|| {
            format!(
                "create a pod of {} {}/{}",
                self.reference.kind, self.namespace, self.reference.name
            )
        })
    }

    /// Deletes a pod if it is still the one that was looked at.
    pub(crate) async fn delete(&self, client: &kube::Client, pod: &Pod) -> Result<(), Error> {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let api: kube::Api<Pod> = kube::Api::namespaced(client.clone(), &self.namespace);
        let preconditions = kube::api::Preconditions {
            uid: pod.metadata.uid.clone(),
            resource_version: None,
        };
        let params = DeleteParams {
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        gone_is_none(api.delete(&name, &params).await)
            .context(|| format!("delete pod {}/{name}", self.namespace))?;
        Ok(())
    }
}

/// The owners of a kind that an object concerns: the one that controls it or, if it has no owner, those that might adopt
/// it.
pub(crate) fn owners_of<K>(
    owned: &ObjectMeta,
    kind: &str,
    owners: &Informer<K>,
    selector: impl Fn(&K) -> Option<LabelSelector>,
) -> Vec<ObjectKey>
where
    K: davit_client::Object,
{
    if let Some(key) = controller_key(owned, kind) {
        return vec![key];
    }
    if owned.owner_references.iter().flatten().next().is_some() {
        return Vec::new();
    }
    let labels = owned.labels.clone().unwrap_or_default();
    let could_adopt = |owner: &K| {
        let selector = selector(owner).and_then(|s| Selector::try_from(s).ok());
        selector.is_some_and(|s| !s.selects_all() && s.matches(&labels))
    };
    let namespace = owned.namespace.as_deref().unwrap_or_default();
    owners
        .list_namespace(namespace)
        .iter()
        .filter(|owner| could_adopt(owner))
        .map(|owner| ObjectKey::of(&**owner))
        .collect()
}

/// When the pod became ready, if it is.
pub(crate) fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions
        .iter()
        .find(|c| c.type_ == "Ready" && c.status == "True")?;
    Some(
        ready
            .last_transition_time
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |t| t.0),
    )
}

/// How long until the pod has been ready for `min_ready` seconds: zero when it is available, `None` when not ready.
pub(crate) fn until_available(pod: &Pod, min_ready: i32, now: Timestamp) -> Option<Duration> {
    let since = ready_since(pod)?;
    let needed = Duration::from_secs(u64::try_from(min_ready).unwrap_or(0));
    Some(needed.saturating_sub(age(since, now)))
}

/// Orders pods by how little is lost with them: unscheduled first, then not running, not ready, restarted, youngest.
pub(crate) fn sort_for_deletion(pods: &mut [Arc<Pod>]) {
    let cost = |pod: &Pod| {
        let key = "controller.kubernetes.io/pod-deletion-cost";
        let annotated = pod.metadata.annotations.as_ref().and_then(|a| a.get(key));
        annotated.and_then(|c| c.parse::<i32>().ok()).unwrap_or(0)
    };
    let restarts = |pod: &Pod| {
        let statuses = pod
            .status
            .as_ref()
            .and_then(|s| s.container_statuses.as_ref());
        statuses.map_or(0, |s| s.iter().map(|c| c.restart_count).max().unwrap_or(0))
    };
    let rank = |pod: &Pod| {
        let progress = match phase(pod) {
            "Running" => 2,
            "Unknown" => 1,
            _ => 0,
        };
        let scheduled = node_of(pod).is_some();
        (scheduled, progress, ready_since(pod).is_some(), cost(pod))
    };
    pods.sort_by(|a, b| {
        rank(a)
            .cmp(&rank(b))
            .then_with(|| ready_since(b).cmp(&ready_since(a)))
            .then_with(|| restarts(b).cmp(&restarts(a)))
            .then_with(|| {
                b.metadata
                    .creation_timestamp
                    .cmp(&a.metadata.creation_timestamp)
            })
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::served::one_object;
    use serde_json::json;

    /// A server that has one replica set, `web` with UID `1`, which is to go if `going`.
    fn server(going: bool) -> kube::Client {
        let going = going.then_some("2026-01-01T00:00:00Z");
        one_object(
            "/apis/apps/v1/namespaces/n/replicasets/web",
            json!({ "metadata": { "name": "web", "uid": "1", "deletionTimestamp": going } }),
        )
    }

    /// Whether pods may be made for a replica set that the informer has.
    async fn is_there(name: &str, uid: &str, going: bool) -> bool {
        let set = json!({ "metadata": { "name": name, "namespace": "n", "uid": uid } });
        let set: ReplicaSet = serde_json::from_value(set).unwrap();
        let owner = Owner::of(&set, &LabelSelector::default()).unwrap();
        owner.is_there::<ReplicaSet>(&server(going)).await.unwrap()
    }

    #[test]
    fn pods_that_were_ready_before_the_clock_was_set_back_are_available() {
        let ready = |at: &str| -> Pod {
            let condition = json!({ "type": "Ready", "status": "True", "lastTransitionTime": at });
            serde_json::from_value(json!({ "status": { "conditions": [condition] } })).unwrap()
        };
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let left = |at| until_available(&ready(at), 60, now).map(|left| left.as_secs());
        assert_eq!(left("2025-12-31T23:59:20Z"), Some(20));
        assert_eq!(left("2026-01-01T00:00:02Z"), Some(60), "clocks differ");
        assert_eq!(left("2031-01-01T00:00:00Z"), Some(0));
    }

    /// A simulation's seed: pods were made and collected without end while the informer had not heard of a deletion.
    #[tokio::test]
    async fn no_pods_are_made_for_an_owner_that_went_unheard() {
        assert!(is_there("web", "1", false).await);
        assert!(!is_there("web", "1", true).await, "it is being deleted");
        assert!(!is_there("web", "2", false).await, "another of its name");
        assert!(!is_there("gone", "1", false).await);
    }
}
