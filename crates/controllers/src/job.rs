//! Runs pods to their end, as many and as often as a Job asks for.
//!
//! Each pod carries the finalizer `batch.kubernetes.io/job-tracking` until its end has been counted in the job's status,
//! so that a pod that is deleted early is neither lost nor counted twice (KEP-2307). The end is first listed in
//! `uncountedTerminatedPods`, then the finalizer goes, and only then is it a number: whenever the controller dies, the
//! next one sees how far the last has come.

mod backoff;
pub(crate) mod gang;
mod plan;

use crate::pod_control::{Owner, owners_of};
use async_trait::async_trait;
use davit_client::{EventRecorder, Informer, ObjectKey, object_ref};
use davit_reconcile::owners::controller_of;
use davit_reconcile::{
    Context, Error, Informers, Next, Reconcile, Spawner, cause_of, gone_is_none, write_status,
};
use gang::Gangs;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
pub(crate) use plan::condition;
use plan::{End, NewPod, Plan, plan, settle};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Finalizer of pods whose end is not counted yet.
const TRACKING: &str = "batch.kubernetes.io/job-tracking";
/// Annotation and label of the completion index of an Indexed job's pod.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Annotations of a pod whose job has a limit for each index: how many pods of the index failed before it, and of how
/// many more the failure was ignored (KEP-3850).
const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
const INDEX_IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
/// Label with the name of the job.
const JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// What `spec.managedBy` says of jobs that are this controller's (KEP-4368).
const CONTROLLER_NAME: &str = "kubernetes.io/job-controller";
/// What the API server lets a generated name begin with, in bytes.
const MAX_GENERATE_NAME: usize = 58;

struct Jobs {
    client: kube::Client,
    informers: Informers,
    events: EventRecorder,
    /// Where jobs get groups of pods.
    gangs: Option<Gangs>,
}

/// Starts the controller. With an informer of groups, by the workloads that they name, the pods of jobs that want all of them
/// at once are made members of one.
pub(crate) fn spawn(spawner: &mut Spawner<'_>, groups: Option<Informer<PodGroup>>) {
    let Some(spawner) = &mut spawner.start("job-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let events = spawner.events("job-controller");
    let gangs = groups.map(|groups| Gangs::new(spawner, groups, events.clone()));
    let controller = Jobs {
        client: spawner.client.clone(),
        informers: informers.clone(),
        events,
        gangs,
    };
    let queue = spawner.controller(controller);
    spawner.feed(&informers.jobs, &queue, |job: &Job| {
        vec![ObjectKey::of(job)]
    });
    let jobs = informers.jobs.clone();
    spawner.feed(&informers.pods, &queue, move |pod: &Pod| {
        let mut keys = owners_of(&pod.metadata, "Job", &jobs, |job| {
            job.spec.as_ref()?.selector.clone()
        });
        // A pod without an owner may still carry the finalizer of the job that it was made for.
        if is_tracked(pod) && controller_of(&pod.metadata).is_none() {
            keys.extend(job_name(pod).map(|name| ObjectKey {
                namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                name: name.to_owned(),
            }));
        }
        keys
    });
}

/// The name of the job that a pod was made for.
fn job_name(pod: &Pod) -> Option<&str> {
    let labels = pod.metadata.labels.as_ref()?;
    labels.get(JOB_NAME).map(String::as_str)
}

#[async_trait]
impl Reconcile for Jobs {
    const NAME: &'static str = "job";
    const WORKERS: usize = 5;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let api: kube::Api<Job> = kube::Api::namespaced(self.client.clone(), &key.namespace);
        // Counting needs the job as it is now, not as the informer last saw it.
        let job = gone_is_none(api.get(&key.name).await).context(|| format!("read job {key}"))?;
        let Some(job) = job else {
            self.release_all(&self.orphans(key, None)).await?;
            return Ok(Next::Wait);
        };
        let Some(selector) = job.spec.as_ref().and_then(|s| s.selector.clone()) else {
            return Ok(Next::Wait);
        };
        if is_managed_by_another(&job) {
            return Ok(Next::Wait);
        }
        let mut owner = Owner::of(&job, &selector)?;
        owner.finalizer = Some(TRACKING);
        if owner.deleting || outcome(&job).is_some() {
            self.release_all(&owner.live_pods(&self.client).await?)
                .await?;
            let orphans = self.orphans(key, job.metadata.uid.as_deref());
            self.release_all(&orphans).await?;
            return Ok(Next::Wait);
        }
        owner.claim_pods(&self.client, &self.informers).await?;
        let pods = owner.live_pods(&self.client).await?;
        let mut plan = plan(&job, &pods, Timestamp::now());
        if !plan.create.is_empty() && !owner.is_there::<Job>(&self.client).await? {
            return Ok(Next::Wait);
        }
        let group = self.group(&job, &owner, &pods, &plan).await?;
        let created = self.apply(&job, &owner, group.as_deref(), &mut plan).await;
        let ended = self.record(job, &pods, &plan).await?;
        created?;
        match plan.look_again.filter(|_| !ended) {
            None => Ok(Next::Wait),
            Some(after) => Ok(Next::After(after)),
        }
    }
}

/// `Complete` or `Failed`, when the job has ended.
pub(crate) fn outcome(job: &Job) -> Option<&str> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let ended = conditions
        .iter()
        .find(|c| c.status == "True" && matches!(c.type_.as_str(), "Complete" | "Failed"))?;
    Some(&ended.type_)
}

fn is_managed_by_another(job: &Job) -> bool {
    let manager = job.spec.as_ref().and_then(|s| s.managed_by.as_deref());
    manager.is_some_and(|manager| manager != CONTROLLER_NAME)
}

fn is_tracked(pod: &Pod) -> bool {
    let mut finalizers = pod.metadata.finalizers.iter().flatten();
    finalizers.any(|f| f == TRACKING)
}

impl Jobs {
    /// The group that the pods of the plan are made for; a job that has just begun gets it now, whether it has pods or not.
    async fn group(
        &self,
        job: &Job,
        owner: &Owner,
        pods: &[Arc<Pod>],
        plan: &Plan,
    ) -> Result<Option<Arc<PodGroup>>, Error> {
        let concerned = || !plan.create.is_empty() || gang::is_new(job, pods);
        let gangs = self.gangs.as_ref();
        let Some(gangs) = gangs.filter(|_| gang::is_gang(job) && concerned()) else {
            return Ok(None);
        };
        let group = gangs.group(job, owner, pods).await?;
        Ok(group.filter(|_| gang::is_whole(&plan.status)))
    }

    /// Deletes and creates the pods of the plan. Where a pod cannot be created the plan's status loses those that are
    /// missing, so that it can be recorded in any case.
    async fn apply(
        &self,
        job: &Job,
        owner: &Owner,
        group: Option<&PodGroup>,
        plan: &mut Plan,
    ) -> Result<(), Error> {
        self.release_all(&plan.dismiss).await?;
        for pod in plan.delete.iter().chain(&plan.dismiss) {
            owner.delete(&self.client, pod).await?;
            let name = pod.metadata.name.clone().unwrap_or_default();
            self.events.normal(
                &object_ref(job),
                "SuccessfulDelete",
                format!("Deleted pod: {name}"),
            );
        }
        for (created, new) in plan.create.iter().enumerate() {
            let mut pod = pod_for(job, owner, new);
            if let Some(group) = group {
                gang::join(&mut pod, group);
            }
            match owner.create(&self.client, &pod).await {
                Ok(pod) => {
                    let name = pod.metadata.name.unwrap_or_default();
                    self.events.normal(
                        &object_ref(job),
                        "SuccessfulCreate",
                        format!("Created pod: {name}"),
                    );
                }
                Err(error) => {
                    let missing = i32::try_from(plan.create.len() - created).unwrap_or(0);
                    let active = plan.status.active.unwrap_or(0) - missing;
                    plan.status.active = Some(active).filter(|n| *n > 0);
                    let cause = cause_of(&error);
                    self.events.warning(
                        &object_ref(job),
                        "FailedCreate",
                        format!("Error creating: {cause}"),
                    );
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Lists what has ended, lets it go, counts it; whether the job has ended with that.
    async fn record(&self, mut job: Job, pods: &[Arc<Pod>], plan: &Plan) -> Result<bool, Error> {
        if !self.update_status(&mut job, &plan.status).await? {
            return Ok(true);
        }
        if let Some(reason) = plan.resumed_or_suspended {
            let message = format!("Job {}", reason.to_lowercase());
            self.events.normal(&object_ref(&job), reason, message);
        }
        let released = self.release_all(&plan.release).await;
        let gone: BTreeSet<&str> = match &released {
            Ok(()) => uids(&plan.release).collect(),
            // Which of them went is seen at the next look.
            Err(_) => BTreeSet::new(),
        };
        let tracked = pods.iter().filter(|pod| is_tracked(pod));
        let left = uids(tracked).filter(|uid| !gone.contains(uid)).collect();
        let mut status = plan.status.clone();
        let ended = settle(&mut status, &left, plan.end.as_ref(), Timestamp::now());
        let there = self.update_status(&mut job, &status).await?;
        if let Some(end) = plan.end.as_ref().filter(|_| ended && there) {
            self.tell_end(&job, end);
        }
        released?;
        Ok(ended)
    }

    fn tell_end(&self, job: &Job, end: &End) {
        let job_ref = object_ref(job);
        if !end.success {
            self.events
                .warning(&job_ref, &end.reason, end.message.clone());
            return;
        }
        let succeeded = job.status.as_ref().and_then(|s| s.succeeded);
        let wanted = job.spec.as_ref().and_then(|s| s.completions);
        if wanted.is_some() && succeeded > wanted {
            self.events.warning(
                &job_ref,
                "TooManySucceededPods",
                "Too many succeeded pods running after completion count reached",
            );
        }
        self.events.normal(&job_ref, "Completed", "Job completed");
    }

    /// Pods that carry the finalizer of a job of this name and belong to no job, or to one that is gone; `uid` is that of
    /// the job that is there.
    fn orphans(&self, key: &ObjectKey, uid: Option<&str>) -> Vec<Arc<Pod>> {
        let is_orphan = |pod: &Pod| match controller_of(&pod.metadata) {
            None => job_name(pod) == Some(&key.name),
            Some(job) => job.kind == "Job" && job.name == key.name && Some(&*job.uid) != uid,
        };
        let mut pods = self.informers.pods.list_namespace(&key.namespace);
        pods.retain(|pod| is_orphan(pod));
        pods
    }

    async fn release_all(&self, pods: &[Arc<Pod>]) -> Result<(), Error> {
        for pod in pods.iter().filter(|pod| is_tracked(pod)) {
            let key = ObjectKey::of(&**pod);
            let api: kube::Api<Pod> = kube::Api::namespaced(self.client.clone(), &key.namespace);
            // A directive, so that what others change about the pod meanwhile does not matter.
            let patch = serde_json::json!({
                "metadata": { "uid": pod.metadata.uid, "$deleteFromPrimitiveList/finalizers": [TRACKING] }
            });
            let patched = api
                .patch(&key.name, &PatchParams::default(), &Patch::Strategic(patch))
                .await;
            match gone_is_none(patched) {
                // Another pod has the name by now.
                Err(kube::Error::Api(status)) if matches!(status.code, 409 | 422) => {}
                other => _ = other.context(|| format!("release pod {key}"))?,
            }
        }
        Ok(())
    }

    /// Records a status if it is news and makes it the job's; whether the job is still there.
    async fn update_status(&self, job: &mut Job, status: &JobStatus) -> Result<bool, Error> {
        if job.status.as_ref() == Some(status) {
            return Ok(true);
        }
        job.status = Some(status.clone());
        let Some(updated) = write_status(&self.client, &*job).await? else {
            return Ok(false);
        };
        *job = updated;
        Ok(true)
    }
}

fn uids<'a>(pods: impl IntoIterator<Item = &'a Arc<Pod>>) -> impl Iterator<Item = &'a str> {
    let uids = pods.into_iter().map(|pod| pod.metadata.uid.as_deref());
    uids.flatten()
}

fn pod_for(job: &Job, owner: &Owner, new: &NewPod) -> Pod {
    let template = job
        .spec
        .as_ref()
        .map(|s| s.template.clone())
        .unwrap_or_default();
    let mut pod = owner.pod(&template, None);
    if !is_tracked(&pod) {
        let finalizers = pod.metadata.finalizers.get_or_insert_default();
        finalizers.push(TRACKING.to_owned());
    }
    let Some(index) = new.index else { return pod };
    let name = &owner.reference.name;
    let suffix = format!("-{index}-");
    let room = MAX_GENERATE_NAME.saturating_sub(suffix.len());
    let prefix = name.get(..room).unwrap_or(name);
    pod.metadata.generate_name = Some(format!("{prefix}{suffix}"));
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(INDEX.to_owned(), index.to_string());
    if let Some((counted, ignored)) = new.failures {
        annotations.insert(INDEX_FAILURES.to_owned(), counted.to_string());
        if ignored > 0 {
            annotations.insert(INDEX_IGNORED_FAILURES.to_owned(), ignored.to_string());
        }
    }
    pod.metadata
        .labels
        .get_or_insert_default()
        .insert(INDEX.to_owned(), index.to_string());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(format!("{}-{index}", owner.reference.name));
    let variable = EnvVar {
        name: "JOB_COMPLETION_INDEX".to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                api_version: None,
                field_path: format!("metadata.labels['{INDEX}']"),
            }),
            ..EnvVarSource::default()
        }),
    };
    for container in spec
        .containers
        .iter_mut()
        .chain(spec.init_containers.iter_mut().flatten())
    {
        let env = container.env.get_or_insert_default();
        if env.iter().all(|v| v.name != variable.name) {
            env.push(variable.clone());
        }
    }
    pod
}
