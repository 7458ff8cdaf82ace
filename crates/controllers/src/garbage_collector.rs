//! Deletes what nobody owns any more, and carries out foreground and orphaning deletion.
//!
//! A graph of owner references is kept from metadata watches of every kind that can be deleted, custom ones included.
//! The graph only says where to look: before anything is deleted the object and its owners are read from the API server.
//! Specified by the garbage collection page of the Kubernetes documentation.

mod graph;
mod metadata;
mod resources;

use davit_client::slow_kinds::SlowKinds;
use davit_client::{WorkQueue, path_segment};
use davit_reconcile::{Context, Error, Spawner, attempt, gone_is_none};
use graph::{Graph, Identity};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{
    DeleteParams, DynamicObject, Patch, PatchParams, Preconditions, PropagationPolicy,
};
use parking_lot::Mutex;
use resources::Resources;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";
const WORKERS: usize = 20;
const SYNC_DEADLINE: Duration = Duration::from_secs(30);
/// Claims of a pod are deleted with it by a controller of their own, which has so long for it.
const OTHERS_FIRST: Duration = Duration::from_secs(1);
const PODS: &str = "pods.";
const CLAIMS: &str = "resourceclaims.resource.k8s.io";

/// The name of its queue, and in logs.
const NAME: &str = "garbage-collector";

/// UID of an object.
type Uid = String;

pub(crate) struct GarbageCollector {
    client: kube::Client,
    resources: Resources,
    slow: SlowKinds,
    graph: Mutex<Graph>,
    queue: WorkQueue<Uid>,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("garbage-collector-controller") else {
        return;
    };
    let collector = Arc::new(GarbageCollector {
        client: spawner.client.clone(),
        resources: Resources::default(),
        slow: SlowKinds::default(),
        graph: Mutex::default(),
        queue: WorkQueue::named(NAME, Duration::from_millis(10), Duration::from_secs(300)),
    });
    spawner.task(
        "garbage-collector-graph",
        resources::follow(collector.clone()),
    );
    for _ in 0..spawner.workers.unwrap_or(WORKERS) {
        let collector = collector.clone();
        spawner.workers(NAME, move || work(collector.clone()));
    }
}

async fn work(collector: Arc<GarbageCollector>) {
    while let Some(uid) = collector.queue.get().await {
        match attempt(SYNC_DEADLINE, NAME, &uid, collector.sync(&uid)).await {
            Ok(()) => collector.queue.forget(&uid),
            Err(error) => {
                tracing::debug!(controller = NAME, uid, %error, "trying again");
                collector.queue.add_rate_limited(uid.clone());
            }
        }
        collector.queue.done(&uid);
    }
}

/// What is known of one owner of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnerState {
    /// It is there.
    Solid,
    /// It is gone, or another object has its name.
    Gone,
    /// It is there, but waits for its dependents to be deleted.
    Waiting,
}

impl GarbageCollector {
    /// Notes an object as a watch shows it.
    fn observe(&self, identity: Identity, meta: &ObjectMeta) {
        let of = identity.clone();
        let owner_of = |owner: &OwnerReference| self.resources.owner_identity(&of, owner);
        let interesting = self.graph.lock().observe(identity, meta, owner_of);
        interesting.into_iter().for_each(|uid| self.queue.add(uid));
    }

    /// Notes that an object of a resource is gone.
    fn forget(&self, uid: &str, resource: &str) {
        let mut graph = self.graph.lock();
        for uid in graph.remove(uid, resource) {
            let identity = graph.identity(&uid);
            let is_claim = resource == PODS && identity.is_some_and(|i| i.resource == CLAIMS);
            match is_claim {
                true => self.queue.add_after(uid, OTHERS_FIRST),
                false => self.queue.add(uid),
            }
        }
    }

    async fn sync(&self, uid: &str) -> Result<(), Error> {
        let Some(identity) = self.graph.lock().identity(uid) else {
            return Ok(());
        };
        let Some(meta) = self
            .live(&identity)
            .await?
            .filter(|meta| meta.uid.as_deref() == Some(uid))
        else {
            self.forget(uid, &identity.resource);
            return Ok(());
        };
        if meta.deletion_timestamp.is_some() {
            return self.finish_deletion(uid, &identity, &meta).await;
        }
        self.collect(uid, &identity, &meta).await
    }

    /// Deletes the object if none of its owners is left; drops references to owners that are gone otherwise.
    async fn collect(
        &self,
        uid: &str,
        identity: &Identity,
        meta: &ObjectMeta,
    ) -> Result<(), Error> {
        let owners = meta.owner_references.clone().unwrap_or_default();
        if owners.is_empty() {
            return Ok(());
        }
        let mut states = Vec::with_capacity(owners.len());
        for owner in &owners {
            states.push(self.owner_state(identity, owner).await?);
        }
        if states.contains(&OwnerState::Solid) {
            if states.iter().all(|s| *s == OwnerState::Solid) {
                return Ok(());
            }
            let kept = owners
                .into_iter()
                .zip(&states)
                .filter(|(_, s)| **s == OwnerState::Solid)
                .map(|(o, _)| o);
            return self.set_owners(identity, meta, kept.collect()).await;
        }
        let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|f| f == finalizer);
        let waits_with_dependents =
            states.contains(&OwnerState::Waiting) && self.graph.lock().has_dependents(uid);
        if waits_with_dependents {
            self.break_circle(uid, identity, meta).await?;
        }
        let policy = if has(ORPHAN) {
            PropagationPolicy::Orphan
        } else if has(FOREGROUND) || waits_with_dependents {
            PropagationPolicy::Foreground
        } else {
            PropagationPolicy::Background
        };
        tracing::debug!(object = %identity, ?policy, "deleting, its owners are gone");
        let preconditions = Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        };
        let params = DeleteParams {
            propagation_policy: Some(policy),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        let Some((api, name)) = self.api(identity) else {
            return Ok(());
        };
        let deleted = self.ask(identity, api.delete(&name, &params)).await?;
        gone_is_none(deleted).context(|| format!("delete {identity}"))?;
        Ok(())
    }

    /// An object that waits for its dependents: deletes or orphans them, then lets it go.
    async fn finish_deletion(
        &self,
        uid: &str,
        identity: &Identity,
        meta: &ObjectMeta,
    ) -> Result<(), Error> {
        let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|f| f == finalizer);
        if has(ORPHAN) {
            let dependents = self.graph.lock().dependents(uid);
            for dependent in dependents {
                if let Some(theirs) = self.live(&dependent).await? {
                    let kept = theirs.owner_references.clone().unwrap_or_default();
                    let kept: Vec<OwnerReference> =
                        kept.into_iter().filter(|o| o.uid != uid).collect();
                    self.set_owners(&dependent, &theirs, kept).await?;
                }
            }
            return self.remove_finalizer(identity, meta, ORPHAN).await;
        }
        if has(FOREGROUND) {
            let (dependents, blocking) = {
                let graph = self.graph.lock();
                (graph.idle_dependents(uid), graph.blocking_dependents(uid))
            };
            dependents
                .into_iter()
                .for_each(|dependent| self.queue.add(dependent));
            if blocking == 0 {
                return self.remove_finalizer(identity, meta, FOREGROUND).await;
            }
            return self.break_circle(uid, identity, meta).await;
        }
        Ok(())
    }

    async fn owner_state(
        &self,
        dependent: &Identity,
        owner: &OwnerReference,
    ) -> Result<OwnerState, Error> {
        let Some(identity) = self.resources.owner_identity(dependent, owner) else {
            // Its kind is not served (yet): nothing can be said, so nothing is deleted.
            return Err(Error::Invalid(format!(
                "{dependent} is owned by the unknown kind {}",
                owner.kind
            )));
        };
        if self.graph.lock().is_gone(&owner.uid, &identity.resource) {
            return Ok(OwnerState::Gone);
        }
        let Some(meta) = self
            .live(&identity)
            .await?
            .filter(|m| m.uid.as_deref() == Some(owner.uid.as_str()))
        else {
            return Ok(OwnerState::Gone);
        };
        let waits = meta.deletion_timestamp.is_some()
            && meta.finalizers.iter().flatten().any(|f| f == FOREGROUND);
        Ok(if waits {
            OwnerState::Waiting
        } else {
            OwnerState::Solid
        })
    }

    /// How an object is reached, and its name in paths; `None` for what cannot be an object: names in references to owners
    /// are whatever users write.
    fn api<'a>(&self, identity: &'a Identity) -> Option<(kube::Api<DynamicObject>, Cow<'a, str>)> {
        let resource = self.resources.get(&identity.resource)?;
        let name = path_segment(&identity.name)?;
        let api = if identity.namespace.is_empty() {
            kube::Api::all_with(self.client.clone(), &resource)
        } else {
            kube::Api::namespaced_with(self.client.clone(), &identity.namespace, &resource)
        };
        Some((api, name))
    }

    /// Asks about one object.
    async fn ask<T>(
        &self,
        identity: &Identity,
        question: impl Future<Output = T>,
    ) -> Result<T, Error> {
        match self.resources.get(&identity.resource) {
            Some(resource) => Ok(self.slow.ask(&resource, question).await?),
            None => Ok(question.await),
        }
    }

    /// The object's metadata as it is now.
    async fn live(&self, identity: &Identity) -> Result<Option<ObjectMeta>, Error> {
        let Some((api, name)) = self.api(identity) else {
            return Ok(None);
        };
        let found = self.ask(identity, api.get_metadata(&name)).await?;
        let found = gone_is_none(found).context(|| format!("look at {identity}"))?;
        Ok(found.map(|object| object.metadata))
    }

    async fn set_owners(
        &self,
        identity: &Identity,
        meta: &ObjectMeta,
        owners: Vec<OwnerReference>,
    ) -> Result<(), Error> {
        let patch = serde_json::json!({
            "metadata": { "uid": meta.uid, "resourceVersion": meta.resource_version, "ownerReferences": owners }
        });
        self.patch(identity, &patch, "change the owners of").await
    }

    /// Lets the object's owners go without it if it would wait for them as they wait for it.
    async fn break_circle(
        &self,
        uid: &str,
        identity: &Identity,
        meta: &ObjectMeta,
    ) -> Result<(), Error> {
        let mut owners = meta.owner_references.clone().unwrap_or_default();
        let blocks = |owner: &OwnerReference| owner.block_owner_deletion == Some(true);
        if !owners.iter().any(blocks) || !self.graph.lock().in_circle(uid) {
            return Ok(());
        }
        tracing::debug!(object = %identity, "waits for itself through its owners, which need not wait for it");
        for owner in &mut owners {
            owner.block_owner_deletion = Some(false);
        }
        self.set_owners(identity, meta, owners).await
    }

    async fn remove_finalizer(
        &self,
        identity: &Identity,
        meta: &ObjectMeta,
        finalizer: &str,
    ) -> Result<(), Error> {
        let kept: Vec<&String> = meta
            .finalizers
            .iter()
            .flatten()
            .filter(|f| *f != finalizer)
            .collect();
        let patch = serde_json::json!({
            "metadata": { "uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": kept }
        });
        self.patch(identity, &patch, "finish the deletion of").await
    }

    async fn patch(
        &self,
        identity: &Identity,
        patch: &serde_json::Value,
        what: &str,
    ) -> Result<(), Error> {
        let Some((api, name)) = self.api(identity) else {
            return Ok(());
        };
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let patched = api.patch_metadata(&name, &params, &patch);
        let patched = self.ask(identity, patched).await?;
        gone_is_none(patched).context(|| format!("{what} {identity}"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use std::convert::Infallible;
    use tokio::time::Instant;

    /// Nothing is asked of its API server.
    fn collector() -> GarbageCollector {
        let service = tower::service_fn(|_: Request<Body>| async {
            Ok::<_, Infallible>(Response::new(Body::empty()))
        });
        GarbageCollector {
            client: davit_client::in_process(service, "default"),
            resources: Resources::default(),
            slow: SlowKinds::default(),
            graph: Mutex::default(),
            queue: WorkQueue::new(Duration::from_millis(10), Duration::from_secs(300)),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn claims_of_a_pod_that_went_are_left_to_their_controller_at_first() {
        let collector = collector();
        let observe = |resource: &str, uid: &str, owner: Option<&str>| {
            let owner = owner.map(|uid| OwnerReference {
                uid: uid.to_owned(),
                ..OwnerReference::default()
            });
            let meta = ObjectMeta {
                uid: Some(uid.to_owned()),
                owner_references: owner.map(|owner| vec![owner]),
                ..ObjectMeta::default()
            };
            let identity = Identity {
                resource: resource.to_owned(),
                namespace: "ns".to_owned(),
                name: uid.to_owned(),
            };
            collector.graph.lock().observe(identity, &meta, |_| None);
        };
        observe(PODS, "pod", None);
        observe(CLAIMS, "claim", Some("pod"));
        observe("configmaps.", "map", Some("pod"));
        let began = Instant::now();
        collector.forget("pod", PODS);
        assert_eq!(collector.queue.get().await.as_deref(), Some("map"));
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!(collector.queue.get().await.as_deref(), Some("claim"));
        assert!(began.elapsed() >= OTHERS_FIRST);
    }
}
