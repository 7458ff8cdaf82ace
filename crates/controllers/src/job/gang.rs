//! Jobs whose pods are of use only together (KEP-5547, gate `WorkloadWithJob`): the Workload and the PodGroup that are made
//! for them, so that the scheduler gives all their pods nodes at once, or none.
//!
//! Both belong to the job and go with it. A job that had begun before there was a Workload of its own goes on without.

use super::plan::condition;
use crate::pod_control::Owner;
use davit_api::names::{LABEL_MAX, SUBDOMAIN_MAX, short_hash};
use davit_client::{EventRecorder, Informer, Object, object_ref};
use davit_reconcile::owners::controller_of;
use davit_reconcile::{Context, Error, Spawner, cause_of, exists_is_none};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::{Pod, PodSchedulingGroup};
use k8s_openapi::api::scheduling::v1alpha2::{
    GangSchedulingPolicy, PodGroup, PodGroupSchedulingPolicy, PodGroupSpec, PodGroupTemplate,
    PodGroupTemplateReference, TypedLocalObjectReference, Workload,
    WorkloadPodGroupTemplateReference, WorkloadSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use kube::api::PostParams;
use kube::core::NamespaceResourceScope;
use std::sync::Arc;
use std::time::Duration;

/// The group of jobs.
const BATCH: &str = "batch";
/// What the name of a job's only template ends with.
const TEMPLATE: &str = "-pgt-0";
/// How long the kinds may take to be listed before the job is looked at again: they need not be served.
const LISTING: Duration = Duration::from_secs(1);

/// Makes and finds the Workloads and PodGroups of jobs.
pub(super) struct Gangs {
    client: kube::Client,
    /// By the job that they name.
    workloads: Informer<Workload>,
    /// By the workload that they name.
    groups: Informer<PodGroup>,
    events: EventRecorder,
}

/// What an index has: names are of one namespace.
fn in_namespace(meta: &ObjectMeta, name: &str) -> String {
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{name}")
}

/// The job that a workload names.
fn job_of(workload: &Workload) -> Option<String> {
    let job = workload.spec.controller_ref.as_ref()?;
    let is_job = job.api_group.as_deref() == Some(BATCH) && job.kind == "Job";
    is_job.then(|| in_namespace(&workload.metadata, &job.name))
}

/// The workload that a group names as the one that it was made from, with its namespace.
pub(crate) fn workload_of(group: &PodGroup) -> Option<String> {
    let template = group.spec.pod_group_template_ref.as_ref()?;
    let workload = template.workload.as_ref()?;
    Some(in_namespace(&group.metadata, &workload.workload_name))
}

/// Whether the pods of a job are to be a gang: all of them run at once, each with an index of its own, and the user has not
/// put them into a group himself.
pub(super) fn is_gang(job: &Job) -> bool {
    let Some(spec) = &job.spec else { return false };
    let pods = spec.template.spec.as_ref();
    let (parallelism, indexed) = (spec.parallelism, spec.completion_mode.as_deref());
    parallelism.is_some_and(|pods| pods > 1)
        && spec.completions == parallelism
        && indexed == Some("Indexed")
        && pods.is_none_or(|spec| spec.scheduling_group.is_none())
}

/// Whether pods made now still belong to the gang. One of which an index has ended for good is never complete again: what
/// replaces a pod of it then would wait for ever.
pub(super) fn is_whole(status: &JobStatus) -> bool {
    let ended = [&status.completed_indexes, &status.failed_indexes];
    ended
        .iter()
        .all(|indexes| indexes.as_deref().is_none_or(str::is_empty))
}

/// Whether nothing of the job has ever begun. One that was suspended before it had a pod may have been so without a Workload.
pub(super) fn is_new(job: &Job, pods: &[Arc<Pod>]) -> bool {
    let began = |status: &JobStatus| {
        status.start_time.is_some()
            || status.succeeded.unwrap_or(0) != 0
            || status.failed.unwrap_or(0) != 0
            || condition(status, "Suspended").is_some()
    };
    pods.is_empty() && !job.status.as_ref().is_some_and(began)
}

/// `head`, cut so that the whole has no more than `most` bytes, and `tail`. Both are ASCII, as the names of objects are.
fn joined(head: &str, tail: &str, most: usize) -> String {
    let room = most.saturating_sub(tail.len());
    let head = head.get(..room).unwrap_or(head);
    format!("{}{tail}", head.trim_end_matches(['-', '.']))
}

/// The Workload of a job; whoever makes it twice makes the same.
fn workload_for(job: &Job, owner: &Owner) -> Workload {
    let (name, uid) = (&owner.reference.name, &owner.reference.uid);
    let hash = short_hash(uid.bytes());
    let spec = job.spec.as_ref();
    let template = PodGroupTemplate {
        name: joined(name, TEMPLATE, LABEL_MAX),
        scheduling_policy: PodGroupSchedulingPolicy {
            basic: None,
            gang: Some(GangSchedulingPolicy {
                min_count: spec.and_then(|spec| spec.parallelism).unwrap_or(1),
            }),
        },
        ..PodGroupTemplate::default()
    };
    Workload {
        metadata: ObjectMeta {
            name: Some(joined(name, &format!("-{hash}"), SUBDOMAIN_MAX)),
            namespace: Some(owner.namespace.clone()),
            owner_references: Some(vec![owner.reference.clone()]),
            ..ObjectMeta::default()
        },
        spec: WorkloadSpec {
            controller_ref: Some(TypedLocalObjectReference {
                api_group: Some(BATCH.to_owned()),
                kind: "Job".to_owned(),
                name: name.clone(),
            }),
            pod_group_templates: vec![template],
        },
    }
}

/// The PodGroup of a job by the template of its Workload.
fn group_for(owner: &Owner, workload: &Workload, template: &PodGroupTemplate) -> PodGroup {
    let of = workload.metadata.name.as_deref().unwrap_or_default();
    let hash = short_hash(of.bytes().chain(template.name.bytes()));
    let tail = format!("-{}-{hash}", template.name);
    // The group belongs to it as well, and does not hold it up.
    let made_from = OwnerReference {
        api_version: Workload::api_version(&()).into_owned(),
        kind: Workload::kind(&()).into_owned(),
        name: of.to_owned(),
        uid: workload.metadata.uid.clone().unwrap_or_default(),
        controller: None,
        block_owner_deletion: None,
    };
    PodGroup {
        metadata: ObjectMeta {
            name: Some(joined(of, &tail, SUBDOMAIN_MAX)),
            namespace: Some(owner.namespace.clone()),
            owner_references: Some(vec![owner.reference.clone(), made_from]),
            ..ObjectMeta::default()
        },
        spec: PodGroupSpec {
            pod_group_template_ref: Some(PodGroupTemplateReference {
                workload: Some(WorkloadPodGroupTemplateReference {
                    pod_group_template_name: template.name.clone(),
                    workload_name: of.to_owned(),
                }),
            }),
            scheduling_policy: template.scheduling_policy.clone(),
            scheduling_constraints: template.scheduling_constraints.clone(),
            resource_claims: template.resource_claims.clone(),
            disruption_mode: template.disruption_mode.clone(),
            priority_class_name: template.priority_class_name.clone(),
            // Follows from the class.
            priority: None,
        },
        status: None,
    }
}

/// Puts a pod into a group. It is not the group's to own: when the job goes its pods have to go, for which the group waits.
pub(super) fn join(pod: &mut Pod, group: &PodGroup) {
    let spec = pod.spec.get_or_insert_default();
    spec.scheduling_group = Some(PodSchedulingGroup {
        pod_group_name: group.metadata.name.clone(),
    });
}

/// Which of the objects that name a job, or its Workload, is the job's.
#[derive(Debug, PartialEq, Eq)]
enum Found<T> {
    Nothing,
    Own(T),
    /// Several, or one that the user or somebody else made: the job's pods go one by one.
    NotOurs,
}

fn own<K: Resource>(mut found: Vec<Arc<K>>, owner: &Owner) -> Found<Arc<K>> {
    // What is left of a job of this name that has gone does not speak of this one.
    found.retain(|object| !is_of_former(object.meta(), owner));
    match (found.pop(), found.is_empty()) {
        (None, _) => Found::Nothing,
        (Some(one), true) if owner.controls(one.meta()) => Found::Own(one),
        _ => Found::NotOurs,
    }
}

/// Whether an object is controlled by another job of the same name.
fn is_of_former(meta: &ObjectMeta, owner: &Owner) -> bool {
    controller_of(meta).is_some_and(|controller| {
        controller.kind == owner.reference.kind
            && controller.name == owner.reference.name
            && controller.uid != owner.reference.uid
    })
}

impl Gangs {
    pub(super) fn new(
        spawner: &mut Spawner<'_>,
        groups: Informer<PodGroup>,
        events: EventRecorder,
    ) -> Self {
        Self {
            client: spawner.client.clone(),
            workloads: spawner.informer_indexed(job_of),
            groups,
            events,
        }
    }

    /// The group that the pods of a job belong to, `pods` being all that it has; made if the job is new. None where its pods go
    /// one by one.
    ///
    /// # Errors
    /// When something could not be made, or what there is is not known.
    pub(super) async fn group(
        &self,
        job: &Job,
        owner: &Owner,
        pods: &[Arc<Pod>],
    ) -> Result<Option<Arc<PodGroup>>, Error> {
        let synced = tokio::try_join!(
            self.workloads.wait_synced(LISTING),
            self.groups.wait_synced(LISTING),
        );
        synced.map_err(|error| {
            let text =
                format!("Error creating PodGroup: {error}; is scheduling.k8s.io/v1alpha2 served?");
            self.events.warning(&object_ref(job), "FailedCreate", text);
            Error::Invalid(format!("its gang is not known: {error}"))
        })?;
        let Some(workload) = self.workload(job, owner, pods).await? else {
            return Ok(None);
        };
        let [template] = workload.spec.pod_group_templates.as_slice() else {
            return Ok(None);
        };
        let name = workload.metadata.name.as_deref().unwrap_or_default();
        let groups = self
            .groups
            .list_indexed(&format!("{}/{name}", owner.namespace));
        match own(groups, owner) {
            Found::Own(group) => Ok(Some(group)),
            Found::NotOurs => Ok(None),
            Found::Nothing => {
                let group = group_for(owner, &workload, template);
                self.make(job, owner, group).await
            }
        }
    }

    async fn workload(
        &self,
        job: &Job,
        owner: &Owner,
        pods: &[Arc<Pod>],
    ) -> Result<Option<Arc<Workload>>, Error> {
        let key = format!("{}/{}", owner.namespace, owner.reference.name);
        match own(self.workloads.list_indexed(&key), owner) {
            Found::Own(workload) => Ok(Some(workload)),
            Found::NotOurs => Ok(None),
            Found::Nothing if is_new(job, pods) => {
                let workload = self.make(job, owner, workload_for(job, owner)).await?;
                if let Some(workload) = &workload {
                    let made = workload.metadata.name.as_deref().unwrap_or_default();
                    let text = format!("Created Workload {made} for Job {}", owner.reference.name);
                    self.events
                        .normal(&object_ref(job), "WorkloadCreated", text);
                }
                Ok(workload)
            }
            // The informer may not show yet what an earlier look has made.
            Found::Nothing => self.made(owner, &workload_for(job, owner)).await,
        }
    }

    /// Makes an object of the job's, or finds that it has been made; none where its name is another's.
    async fn make<K>(&self, job: &Job, owner: &Owner, object: K) -> Result<Option<Arc<K>>, Error>
    where
        K: Object + serde::Serialize + Resource<Scope = NamespaceResourceScope>,
    {
        let api: kube::Api<K> = kube::Api::namespaced(self.client.clone(), &owner.namespace);
        let created = api.create(&PostParams::default(), &object).await;
        let created = exists_is_none(created).context(|| {
            let kind = K::kind(&());
            format!("create the {kind} of job {}", owner.reference.name)
        });
        match created {
            Ok(Some(created)) => Ok(Some(Arc::new(created))),
            Ok(None) => self.made(owner, &object).await,
            Err(error) => {
                let text = format!("Error creating {}: {}", K::kind(&()), cause_of(&error));
                self.events.warning(&object_ref(job), "FailedCreate", text);
                Err(error)
            }
        }
    }

    /// The object of this name that the API server has, if it is the job's.
    async fn made<K>(&self, owner: &Owner, object: &K) -> Result<Option<Arc<K>>, Error>
    where
        K: Object + Resource<Scope = NamespaceResourceScope>,
    {
        let api: kube::Api<K> = kube::Api::namespaced(self.client.clone(), &owner.namespace);
        let name = object.meta().name.as_deref().unwrap_or_default();
        let found = api.get_opt(name).await;
        let found = found.context(|| format!("get {} {}/{name}", K::kind(&()), owner.namespace))?;
        Ok(found
            .filter(|found| owner.controls(found.meta()))
            .map(Arc::new))
    }
}

#[cfg(test)]
mod tests;
