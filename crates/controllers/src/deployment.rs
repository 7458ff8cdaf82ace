//! Rolls a Deployment's template out through ReplicaSets, one a template, within its surge and unavailability limits.

mod replica_sets;
mod rollout;
mod status;

use crate::pod_control::{Owner, owners_of};
use async_trait::async_trait;
use davit_client::{EventRecorder, ObjectKey, object_ref};
use davit_reconcile::owners::controller_of;
use davit_reconcile::{
    Context, Error, Informers, Next, Reconcile, Spawner, gone_is_none, write_status,
};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use replica_sets::Sets;
pub(crate) use replica_sets::template_hash;
use std::time::Duration;

struct Deployments {
    client: kube::Client,
    informers: Informers,
    events: EventRecorder,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("deployment-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let events = spawner.events("deployment-controller");
    let controller = Deployments {
        client: spawner.client.clone(),
        informers: informers.clone(),
        events,
    };
    let queue = spawner.controller(controller);
    spawner.feed(&informers.deployments, &queue, |d: &Deployment| {
        vec![ObjectKey::of(d)]
    });
    let deployments = informers.deployments.clone();
    spawner.feed(&informers.replica_sets, &queue, move |rs: &ReplicaSet| {
        owners_of(&rs.metadata, "Deployment", &deployments, |deployment| {
            deployment.spec.as_ref().map(|s| s.selector.clone())
        })
    });
}

#[async_trait]
impl Reconcile for Deployments {
    const NAME: &'static str = "deployment";
    const WORKERS: usize = 5;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(deployment) = self
            .informers
            .deployments
            .get(Some(&key.namespace), &key.name)
        else {
            return Ok(Next::Wait);
        };
        let Some(spec) = deployment.spec.clone() else {
            return Ok(Next::Wait);
        };
        let owner = Owner::of(&*deployment, &spec.selector)?;
        // Decisions rest on what the API server has now: the informer may lag behind our own writes.
        let live = self.live_sets(&owner).await?;
        let mut sets = Sets::sort(&spec.template, live);
        if !owner.deleting {
            if sets.current.is_none() && spec.paused != Some(true) {
                sets = self.create_current(&deployment, &owner, sets).await?;
            }
            self.record_revision(&deployment, &sets).await?;
            for (set, replicas) in rollout::plan(&spec, &sets) {
                self.scale(&deployment, &set, replicas).await?;
            }
            if spec.paused != Some(true) {
                self.clean_up(&spec, &sets).await?;
            }
        }
        let now = Timestamp::now();
        self.update_status(&deployment, &sets, now).await?;
        Ok(status::next_check(&deployment, &sets, now).map_or(Next::Wait, Next::After))
    }
}

impl Deployments {
    fn sets_api(&self, namespace: &str) -> kube::Api<ReplicaSet> {
        kube::Api::namespaced(self.client.clone(), namespace)
    }

    /// The deployment's replica sets; orphans that match are adopted, those that no longer match let go.
    async fn live_sets(&self, owner: &Owner) -> Result<Vec<ReplicaSet>, Error> {
        if !owner.deleting {
            for set in self.informers.replica_sets.list_namespace(&owner.namespace) {
                let meta = &set.metadata;
                match (controller_of(meta), owner.matches(meta)) {
                    (None, true) if meta.deletion_timestamp.is_none() => {
                        owner.adopt(&self.client, &*set).await?;
                    }
                    (Some(_), false) if owner.controls(meta) => {
                        owner.release(&self.client, &*set).await?;
                    }
                    _ => {}
                }
            }
        }
        let params = kube::api::ListParams::default().labels_from(&owner.selector);
        let listed = self.sets_api(&owner.namespace).list(&params).await;
        let listed = listed
            .context(|| format!("list replica sets of deployment {}", owner.reference.name))?;
        Ok(listed
            .items
            .into_iter()
            .filter(|rs| owner.controls(&rs.metadata))
            .collect())
    }

    async fn create_current(
        &self,
        deployment: &Deployment,
        owner: &Owner,
        mut sets: Sets,
    ) -> Result<Sets, Error> {
        let wanted = replica_sets::new_set(deployment, owner, &sets);
        let created = match self
            .sets_api(&owner.namespace)
            .create(&PostParams::default(), &wanted)
            .await
        {
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
                // Another template has the same hash: count the collision and try again under another name.
                self.count_collision(deployment).await?;
                return Err(Error::Invalid(format!(
                    "name of the new replica set of {} is taken",
                    owner.reference.name
                )));
            }
            other => other.context(|| {
                format!(
                    "create a replica set of deployment {}",
                    owner.reference.name
                )
            })?,
        };
        let (name, replicas) = (
            created.metadata.name.clone().unwrap_or_default(),
            replica_sets::wanted(&created),
        );
        if replicas > 0 {
            let text = format!("Scaled up replica set {name} from 0 to {replicas}");
            self.events
                .normal(&object_ref(deployment), "ScalingReplicaSet", text);
        }
        sets.current = Some(created);
        Ok(sets)
    }

    async fn count_collision(&self, deployment: &Deployment) -> Result<(), Error> {
        let count = deployment
            .status
            .as_ref()
            .and_then(|s| s.collision_count)
            .unwrap_or(0)
            .saturating_add(1);
        let patch = serde_json::json!({ "status": { "collisionCount": count } });
        self.patch_status(deployment, &patch).await
    }

    async fn patch_status(
        &self,
        deployment: &Deployment,
        patch: &serde_json::Value,
    ) -> Result<(), Error> {
        let key = ObjectKey::of(deployment);
        let api: kube::Api<Deployment> = kube::Api::namespaced(self.client.clone(), &key.namespace);
        let patched = api
            .patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        gone_is_none(patched).context(|| format!("update deployment {key}"))?;
        Ok(())
    }

    /// The revision of the current set goes up to the newest; the deployment shows it.
    async fn record_revision(&self, deployment: &Deployment, sets: &Sets) -> Result<(), Error> {
        let Some(current) = &sets.current else {
            return Ok(());
        };
        let revision = replica_sets::revision(current).max(replica_sets::next_revision(&sets.old));
        if revision != replica_sets::revision(current) {
            let name = current.metadata.name.clone().unwrap_or_default();
            let patch = serde_json::json!({
                "metadata": { "annotations": { replica_sets::REVISION: revision.to_string() } }
            });
            let api = self.sets_api(deployment.metadata.namespace.as_deref().unwrap_or_default());
            gone_is_none(
                api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                    .await,
            )
            .context(|| format!("record the revision of replica set {name}"))?;
        }
        let shown = deployment
            .metadata
            .annotations
            .as_ref()
            .and_then(|a| a.get(replica_sets::REVISION));
        if shown != Some(&revision.to_string()) {
            let patch = serde_json::json!({
                "metadata": { "annotations": { replica_sets::REVISION: revision.to_string() } }
            });
            // By the status, as Kubernetes' own controller does: a write of the object would count in its generation.
            self.patch_status(deployment, &patch).await?;
        }
        Ok(())
    }

    async fn scale(
        &self,
        deployment: &Deployment,
        set: &ReplicaSet,
        replicas: i32,
    ) -> Result<(), Error> {
        let name = set.metadata.name.clone().unwrap_or_default();
        let from = replica_sets::narrow(replica_sets::wanted(set));
        let desired = deployment
            .spec
            .as_ref()
            .and_then(|s| s.replicas)
            .unwrap_or(1);
        let annotated = set
            .metadata
            .annotations
            .as_ref()
            .and_then(|a| a.get(replica_sets::DESIRED));
        if from == replicas && annotated == Some(&desired.to_string()) {
            return Ok(());
        }
        let max = i64::from(desired) + rollout::max_surge(deployment.spec.as_ref());
        let patch = serde_json::json!({
            "metadata": {
                "resourceVersion": set.metadata.resource_version,
                "annotations": { replica_sets::DESIRED: desired.to_string(), replica_sets::MAX: max.to_string() },
            },
            "spec": { "replicas": replicas },
        });
        let api = self.sets_api(deployment.metadata.namespace.as_deref().unwrap_or_default());
        gone_is_none(
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await,
        )
        .context(|| format!("scale replica set {name}"))?;
        if from != replicas {
            let direction = if replicas > from { "up" } else { "down" };
            let text = format!("Scaled {direction} replica set {name} from {from} to {replicas}");
            self.events
                .normal(&object_ref(deployment), "ScalingReplicaSet", text);
        }
        Ok(())
    }

    /// Removes old, empty replica sets beyond the history limit.
    async fn clean_up(
        &self,
        spec: &k8s_openapi::api::apps::v1::DeploymentSpec,
        sets: &Sets,
    ) -> Result<(), Error> {
        let limit = usize::try_from(spec.revision_history_limit.unwrap_or(10)).unwrap_or(0);
        let mut idle: Vec<&ReplicaSet> = sets
            .old
            .iter()
            .filter(|rs| replica_sets::is_idle(rs))
            .collect();
        if idle.len() <= limit {
            return Ok(());
        }
        idle.sort_by_key(|rs| replica_sets::revision(rs));
        for set in &idle[..idle.len() - limit] {
            let key = ObjectKey::of(*set);
            gone_is_none(
                self.sets_api(&key.namespace)
                    .delete(&key.name, &DeleteParams::background())
                    .await,
            )
            .context(|| format!("remove old replica set {key}"))?;
        }
        Ok(())
    }

    async fn update_status(
        &self,
        deployment: &Deployment,
        sets: &Sets,
        now: Timestamp,
    ) -> Result<(), Error> {
        let status = status::compute(deployment, sets, now);
        if deployment.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let changed = Deployment {
            status: Some(status),
            ..deployment.clone()
        };
        write_status(&self.client, &changed).await?;
        Ok(())
    }
}

/// How soon to look again at a rollout whose deadline runs.
const MIN_CHECK: Duration = Duration::from_secs(1);
