//! Keeps as many pods of a template alive as a ReplicaSet asks for.

use crate::pod_control::{Owner, owners_of, ready_since, until_available};
use crate::replicas::Replicas;
use async_trait::async_trait;
use davit_client::{EventRecorder, ObjectKey, object_ref};
use davit_reconcile::pods::{is_active, is_terminating};
use davit_reconcile::{Error, Informers, Next, Reconcile, Spawner, cause_of, write_status};
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

struct ReplicaSets {
    client: kube::Client,
    informers: Informers,
    events: EventRecorder,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("replicaset-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let events = spawner.events("replicaset-controller");
    let controller = ReplicaSets {
        client: spawner.client.clone(),
        informers: informers.clone(),
        events,
    };
    let queue = spawner.controller(controller);
    spawner.feed(&informers.replica_sets, &queue, |rs: &ReplicaSet| {
        vec![ObjectKey::of(rs)]
    });
    let sets = informers.replica_sets.clone();
    spawner.feed(&informers.pods, &queue, move |pod: &Pod| {
        owners_of(&pod.metadata, "ReplicaSet", &sets, |rs| {
            rs.spec.as_ref().map(|s| s.selector.clone())
        })
    });
}

#[async_trait]
impl Reconcile for ReplicaSets {
    const NAME: &'static str = "replicaset";
    const WORKERS: usize = 5;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(set) = self
            .informers
            .replica_sets
            .get(Some(&key.namespace), &key.name)
        else {
            return Ok(Next::Wait);
        };
        let Some(spec) = set.spec.as_ref() else {
            return Ok(Next::Wait);
        };
        let owner = Owner::of(&*set, &spec.selector)?;
        let pods = owner.claim_pods(&self.client, &self.informers).await?;
        let terminating = pods.iter().filter(|pod| is_terminating(pod)).count();
        let mut active: Vec<Arc<Pod>> = pods.into_iter().filter(|p| is_active(p)).collect();
        let mut failure = None;
        if !owner.deleting {
            let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
            if active.len() != wanted && owner.is_there::<ReplicaSet>(&self.client).await? {
                active = owner
                    .live_pods(&self.client)
                    .await?
                    .into_iter()
                    .filter(|p| is_active(p))
                    .collect();
                let replicas = Replicas {
                    client: &self.client,
                    events: &self.events,
                    about: object_ref(&*set),
                    owner: &owner,
                };
                let template = spec.template.clone().unwrap_or_default();
                failure = replicas.scale(&template, &active, wanted).await.err();
            }
        }
        self.update_status(&set, &active, terminating, failure.as_ref())
            .await?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        let now = Timestamp::now();
        let min_ready = spec.min_ready_seconds.unwrap_or(0);
        let soon = active
            .iter()
            .filter_map(|p| until_available(p, min_ready, now))
            .filter(|d| !d.is_zero())
            .min();
        Ok(soon.map_or(Next::Wait, |d| Next::After(d + Duration::from_millis(100))))
    }
}

impl ReplicaSets {
    async fn update_status(
        &self,
        set: &ReplicaSet,
        active: &[Arc<Pod>],
        terminating: usize,
        failure: Option<&Error>,
    ) -> Result<(), Error> {
        let status = status_of(set, active, terminating, failure, Timestamp::now());
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let changed = ReplicaSet {
            status: Some(status),
            ..set.clone()
        };
        write_status(&self.client, &changed).await?;
        Ok(())
    }
}

fn status_of(
    set: &ReplicaSet,
    active: &[Arc<Pod>],
    terminating: usize,
    failure: Option<&Error>,
    now: Timestamp,
) -> ReplicaSetStatus {
    let spec = set.spec.clone().unwrap_or_default();
    let template_labels = spec
        .template
        .as_ref()
        .and_then(|t| t.metadata.as_ref())
        .and_then(|m| m.labels.clone())
        .unwrap_or_default();
    let has_template_labels = |pod: &Pod| {
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        template_labels
            .iter()
            .all(|(k, v)| labels.get(k) == Some(v))
    };
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    let count = |is: &dyn Fn(&Pod) -> bool| {
        i32::try_from(active.iter().filter(|p| is(p)).count()).unwrap_or(i32::MAX)
    };
    let or_none = |n: i32| (n > 0).then_some(n);
    let old = set.status.clone().unwrap_or_default();
    let mut conditions = old.conditions.unwrap_or_default();
    match failure {
        None => conditions.retain(|c| c.type_ != "ReplicaFailure"),
        Some(error) if !conditions.iter().any(|c| c.type_ == "ReplicaFailure") => {
            conditions.push(ReplicaSetCondition {
                type_: "ReplicaFailure".to_owned(),
                status: "True".to_owned(),
                reason: Some("FailedCreate".to_owned()),
                message: Some(cause_of(error)),
                last_transition_time: Some(Time(now)),
            });
        }
        Some(_) => {}
    }
    ReplicaSetStatus {
        replicas: count(&|_| true),
        fully_labeled_replicas: or_none(count(&has_template_labels)),
        ready_replicas: or_none(count(&|p| ready_since(p).is_some())),
        available_replicas: or_none(count(&|p| {
            until_available(p, min_ready, now) == Some(Duration::ZERO)
        })),
        observed_generation: set.metadata.generation,
        conditions: (!conditions.is_empty()).then_some(conditions),
        terminating_replicas: i32::try_from(terminating).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod_control::sort_for_deletion;
    use k8s_openapi::api::core::v1::PodCondition;

    fn pod(name: &str, ready: bool) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.to_owned());
        let status = pod.status.get_or_insert_default();
        status.phase = Some(if ready { "Running" } else { "Pending" }.to_owned());
        let condition = PodCondition {
            type_: "Ready".to_owned(),
            status: if ready { "True" } else { "False" }.to_owned(),
            last_transition_time: Some(Time(Timestamp::UNIX_EPOCH)),
            ..PodCondition::default()
        };
        status.conditions = Some(vec![condition]);
        Arc::new(pod)
    }

    #[test]
    fn status_counts_ready_and_available_pods() {
        let status = status_of(
            &ReplicaSet::default(),
            &[pod("a", true), pod("b", false)],
            3,
            None,
            Timestamp::now(),
        );
        assert_eq!(
            (
                status.replicas,
                status.ready_replicas,
                status.available_replicas,
                status.terminating_replicas
            ),
            (2, Some(1), Some(1), Some(3))
        );
    }

    #[test]
    fn pods_that_do_least_go_first() {
        let mut pods = vec![pod("ready", true), pod("pending", false)];
        sort_for_deletion(&mut pods);
        assert_eq!(pods[0].metadata.name.as_deref(), Some("pending"));
    }
}
