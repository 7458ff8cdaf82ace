//! Keeps as many pods alive as a ReplicationController asks for: the elder of ReplicaSets.

use crate::pod_control::{Owner, owners_of, ready_since, until_available};
use crate::replicas::Replicas;
use async_trait::async_trait;
use davit_client::{EventRecorder, ObjectKey, object_ref};
use davit_reconcile::pods::is_active;
use davit_reconcile::{Error, Informers, Next, Reconcile, Spawner, cause_of, write_status};
use k8s_openapi::api::core::v1::{
    Pod, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use k8s_openapi::jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

const FAILURE: &str = "ReplicaFailure";

struct ReplicationControllers {
    client: kube::Client,
    informers: Informers,
    events: EventRecorder,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("replicationcontroller-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let events = spawner.events("replication-controller");
    let queue = spawner.controller(ReplicationControllers {
        client: spawner.client.clone(),
        informers: informers.clone(),
        events,
    });
    let all = &informers.replication_controllers;
    spawner.feed(all, &queue, |rc: &ReplicationController| {
        vec![ObjectKey::of(rc)]
    });
    let all = all.clone();
    spawner.feed(&informers.pods, &queue, move |pod: &Pod| {
        owners_of(&pod.metadata, "ReplicationController", &all, |rc| {
            Some(LabelSelector {
                match_labels: rc.spec.as_ref()?.selector.clone(),
                ..LabelSelector::default()
            })
        })
    });
}

#[async_trait]
impl Reconcile for ReplicationControllers {
    const NAME: &'static str = "replicationcontroller";
    const WORKERS: usize = 5;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let rc = self
            .informers
            .replication_controllers
            .get(Some(&key.namespace), &key.name);
        let Some(rc) = rc else {
            return Ok(Next::Wait);
        };
        let Some(spec) = rc.spec.as_ref() else {
            return Ok(Next::Wait);
        };
        let selector = LabelSelector {
            match_labels: spec.selector.clone(),
            ..LabelSelector::default()
        };
        let owner = Owner::of(&*rc, &selector)?;
        let pods = owner.claim_pods(&self.client, &self.informers).await?;
        let mut active: Vec<Arc<Pod>> = pods.into_iter().filter(|p| is_active(p)).collect();
        let mut failure = None;
        let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
        if !owner.deleting
            && active.len() != wanted
            && owner
                .is_there::<ReplicationController>(&self.client)
                .await?
        {
            active = owner.live_pods(&self.client).await?;
            active.retain(|pod| is_active(pod));
            let replicas = Replicas {
                client: &self.client,
                events: &self.events,
                about: object_ref(&*rc),
                owner: &owner,
            };
            let template = spec.template.clone().unwrap_or_default();
            failure = replicas.scale(&template, &active, wanted).await.err();
        }
        let now = Timestamp::now();
        let status = status_of(&rc, &active, failure.as_ref(), now);
        if rc.status.as_ref() != Some(&status) {
            let changed = ReplicationController {
                status: Some(status),
                ..ReplicationController::clone(&rc)
            };
            write_status(&self.client, &changed).await?;
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        let min_ready = spec.min_ready_seconds.unwrap_or(0);
        let soon = active
            .iter()
            .filter_map(|pod| until_available(pod, min_ready, now))
            .filter(|left| !left.is_zero())
            .min();
        Ok(soon.map_or(Next::Wait, |left| {
            Next::After(left + Duration::from_millis(100))
        }))
    }
}

fn status_of(
    rc: &ReplicationController,
    active: &[Arc<Pod>],
    failure: Option<&Error>,
    now: Timestamp,
) -> ReplicationControllerStatus {
    let spec = rc.spec.clone().unwrap_or_default();
    let wanted_labels = spec
        .template
        .and_then(|t| t.metadata)
        .and_then(|m| m.labels)
        .unwrap_or_default();
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    let count = |is: &dyn Fn(&Pod) -> bool| {
        i32::try_from(active.iter().filter(|pod| is(pod)).count()).unwrap_or(i32::MAX)
    };
    let or_none = |n: i32| (n > 0).then_some(n);
    let labelled = |pod: &Pod| {
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        wanted_labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
    };
    let old = rc.status.clone().unwrap_or_default();
    let mut conditions = old.conditions.unwrap_or_default();
    match failure {
        None => conditions.retain(|c| c.type_ != FAILURE),
        Some(error) if conditions.iter().all(|c| c.type_ != FAILURE) => {
            conditions.push(ReplicationControllerCondition {
                type_: FAILURE.to_owned(),
                status: "True".to_owned(),
                reason: Some("FailedCreate".to_owned()),
                message: Some(cause_of(error)),
                last_transition_time: Some(Time(now)),
            });
        }
        Some(_) => {}
    }
    ReplicationControllerStatus {
        replicas: count(&|_| true),
        fully_labeled_replicas: or_none(count(&labelled)),
        ready_replicas: or_none(count(&|pod| ready_since(pod).is_some())),
        available_replicas: or_none(count(&|pod| {
            until_available(pod, min_ready, now) == Some(Duration::ZERO)
        })),
        observed_generation: rc.metadata.generation,
        conditions: (!conditions.is_empty()).then_some(conditions),
    }
}
