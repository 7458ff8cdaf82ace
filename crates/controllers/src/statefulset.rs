//! Keeps pods with stable names and storage, in order.
//! <https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/>

mod claims;
mod plan;

use crate::pod_control::{Owner, owners_of, ready_since, until_available};
use crate::revisions::{HASH, History};
use async_trait::async_trait;
use davit_client::{EventRecorder, ObjectKey, object_ref};
use davit_reconcile::pods::is_active;
use davit_reconcile::{Error, Informers, Next, Reconcile, Spawner, cause_of, write_status};
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::jiff::Timestamp;
use plan::{Action, Revisions, Shape, ordinal_of, plan, revision_of};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

struct StatefulSets {
    client: kube::Client,
    informers: Informers,
    events: EventRecorder,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("statefulset-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let events = spawner.events("statefulset-controller");
    let queue = spawner.controller(StatefulSets {
        client: spawner.client.clone(),
        informers: informers.clone(),
        events,
    });
    spawner.feed(&informers.stateful_sets, &queue, |set: &StatefulSet| {
        vec![ObjectKey::of(set)]
    });
    let sets = informers.stateful_sets.clone();
    spawner.feed(&informers.pods, &queue, move |pod: &Pod| {
        owners_of(&pod.metadata, "StatefulSet", &sets, |set| {
            set.spec.as_ref().map(|s| s.selector.clone())
        })
    });
}

#[async_trait]
impl Reconcile for StatefulSets {
    const NAME: &'static str = "statefulset";
    const WORKERS: usize = 5;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let set = self
            .informers
            .stateful_sets
            .get(Some(&key.namespace), &key.name);
        let Some(set) = set else {
            return Ok(Next::Wait);
        };
        let Some(spec) = set.spec.clone() else {
            return Ok(Next::Wait);
        };
        let mut owner = Owner::of(&*set, &spec.selector)?;
        owner.member = Some(|name, pod| ordinal_of(name, pod).is_some());
        if owner.deleting {
            return Ok(Next::Wait);
        }
        owner.claim_pods(&self.client, &self.informers).await?;
        let history = History::sync(
            &self.client,
            &owner,
            set.metadata.annotations.as_ref(),
            &spec.template,
        )
        .await?;
        let update = history.name();
        let current = set
            .status
            .as_ref()
            .and_then(|s| s.current_revision.clone())
            .filter(|name| history.template(name).is_some())
            .unwrap_or_else(|| update.clone());
        let revisions = Revisions { current, update };
        let pods: BTreeMap<i64, Arc<Pod>> = owner
            .live_pods(&self.client)
            .await?
            .into_iter()
            .filter_map(|pod| Some((ordinal_of(&key.name, &pod)?, pod)))
            .collect();
        let (shape, now) = (Shape::of(&set), Timestamp::now());
        let actions = plan(&shape, &pods, &revisions, now);
        let creates = actions.iter().any(|a| matches!(a, Action::Create { .. }));
        if creates && !owner.is_there::<StatefulSet>(&self.client).await? {
            return Ok(Next::Wait);
        }
        claims::settle(&self.client, &set, &shape, &pods).await?;
        let applied = self.apply(&set, &owner, &history, actions).await;
        if let Some(ordinal) = shape.beyond().filter(|_| !creates) {
            let name = &key.name;
            let text = format!(
                "create Pod {name}-{ordinal} in StatefulSet {name} failed error: there are no ordinals after {}",
                ordinal - 1
            );
            self.events
                .warning(&object_ref(&*set), "FailedCreate", text);
        }
        self.update_status(&set, &shape, &pods, &revisions, now)
            .await?;
        applied?;
        let prefix = format!("{}-", key.name);
        let mut in_use: Vec<String> = pods
            .values()
            .map(|pod| revision_of(pod))
            .chain([revisions.current.as_str(), revisions.update.as_str()])
            .map(|name| name.strip_prefix(&prefix).unwrap_or(name).to_owned())
            .collect();
        in_use.dedup();
        let limit = spec.revision_history_limit.unwrap_or(10);
        history.truncate(&self.client, limit, &in_use).await?;
        let soon = pods
            .values()
            .filter_map(|pod| until_available(pod, shape.min_ready, now))
            .filter(|left| !left.is_zero())
            .min();
        Ok(soon.map_or(Next::Wait, |left| {
            Next::After(left + Duration::from_millis(100))
        }))
    }
}

impl StatefulSets {
    async fn apply(
        &self,
        set: &StatefulSet,
        owner: &Owner,
        history: &History,
        actions: Vec<Action>,
    ) -> Result<(), Error> {
        let set_name = &owner.reference.name;
        for action in actions {
            match action {
                Action::Create { ordinal, revision } => {
                    let template = history.template(&revision).ok_or_else(|| {
                        Error::Invalid(format!("revision {revision} of {set_name} is gone"))
                    })?;
                    claims::create(&self.client, set, ordinal, &self.events).await?;
                    let pod = pod_for(set, owner, &template, ordinal, &revision);
                    let name = pod.metadata.name.clone().unwrap_or_default();
                    match owner.create(&self.client, &pod).await {
                        Ok(_) => self.events.normal(
                            &object_ref(set),
                            "SuccessfulCreate",
                            format!("create Pod {name} in StatefulSet {set_name} successful"),
                        ),
                        Err(error) => {
                            let cause = cause_of(&error);
                            let text = format!(
                                "create Pod {name} in StatefulSet {set_name} failed error: {cause}"
                            );
                            self.events.warning(&object_ref(set), "FailedCreate", text);
                            return Err(error);
                        }
                    }
                }
                Action::Delete(pod) => {
                    owner.delete(&self.client, &pod).await?;
                    let name = pod.metadata.name.clone().unwrap_or_default();
                    self.events.normal(
                        &object_ref(set),
                        "SuccessfulDelete",
                        format!("delete Pod {name} in StatefulSet {set_name} successful"),
                    );
                }
            }
        }
        Ok(())
    }

    async fn update_status(
        &self,
        set: &StatefulSet,
        shape: &Shape,
        pods: &BTreeMap<i64, Arc<Pod>>,
        revisions: &Revisions,
        now: Timestamp,
    ) -> Result<(), Error> {
        let status = status_of(set, shape, pods, revisions, now);
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let changed = StatefulSet {
            status: Some(status),
            ..set.clone()
        };
        write_status(&self.client, &changed).await?;
        Ok(())
    }
}

fn pod_for(
    set: &StatefulSet,
    owner: &Owner,
    template: &PodTemplateSpec,
    ordinal: i64,
    revision: &str,
) -> Pod {
    let name = format!("{}-{ordinal}", owner.reference.name);
    let mut pod = owner.pod(template, Some(name.clone()));
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME.to_owned(), name.clone());
    labels.insert(POD_INDEX.to_owned(), ordinal.to_string());
    labels.insert(HASH.to_owned(), revision.to_owned());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(name);
    spec.subdomain = set.spec.as_ref().and_then(|s| s.service_name.clone());
    claims::mount(set, ordinal, spec);
    pod
}

fn status_of(
    set: &StatefulSet,
    shape: &Shape,
    pods: &BTreeMap<i64, Arc<Pod>>,
    revisions: &Revisions,
    now: Timestamp,
) -> StatefulSetStatus {
    let count = |is: &dyn Fn(&Pod) -> bool| {
        i32::try_from(pods.values().filter(|pod| is(pod)).count()).unwrap_or(i32::MAX)
    };
    let of_revision = |name: &str| count(&|pod: &Pod| is_active(pod) && revision_of(pod) == name);
    let ready = count(&|pod| is_active(pod) && ready_since(pod).is_some());
    let available = count(&|pod| {
        is_active(pod) && until_available(pod, shape.min_ready, now) == Some(Duration::ZERO)
    });
    let replicas = count(&|_| true);
    let updated = of_revision(&revisions.update);
    let complete = updated == shape.replicas && ready == shape.replicas && replicas == updated;
    let old = set.status.clone().unwrap_or_default();
    let (current_revision, current_replicas) = if complete {
        (revisions.update.clone(), updated)
    } else {
        (revisions.current.clone(), of_revision(&revisions.current))
    };
    let or_none = |n: i32| (n > 0).then_some(n);
    StatefulSetStatus {
        replicas,
        ready_replicas: or_none(ready),
        available_replicas: Some(available),
        current_replicas: or_none(current_replicas),
        updated_replicas: or_none(updated),
        current_revision: Some(current_revision),
        update_revision: Some(revisions.update.clone()),
        collision_count: Some(old.collision_count.unwrap_or(0)),
        observed_generation: set.metadata.generation,
        ..old
    }
}
