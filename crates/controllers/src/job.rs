//! Runs pods to their end, as many and as often as a Job asks for.
//!
//! Each pod carries the finalizer `batch.kubernetes.io/job-tracking` until its end has been counted in the job's status,
//! so that a pod that is deleted early is neither lost nor counted twice (KEP-2307).

mod plan;

use crate::controller::{Context, Error, Next, Reconcile, Spawner, gone_is_none};
use crate::pod_control::{Owner, controller_key};
use async_trait::async_trait;
use davit_client::{EventRecorder, ObjectKey, object_ref};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use plan::{Plan, plan};

/// Finalizer of pods whose end is not counted yet.
const TRACKING: &str = "batch.kubernetes.io/job-tracking";
/// Annotation and label of the completion index of an Indexed job's pod.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

struct Jobs {
    client: kube::Client,
    events: EventRecorder,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let informers = spawner.informers.clone();
    let events = spawner.events("job-controller");
    let controller = Jobs {
        client: spawner.client.clone(),
        events,
    };
    let queue = spawner.controller(controller);
    spawner.feed(&informers.jobs, &queue, |job: &Job| {
        vec![ObjectKey::of(job)]
    });
    spawner.feed(&informers.pods, &queue, |pod: &Pod| {
        controller_key(&pod.metadata, "Job").into_iter().collect()
    });
}

#[async_trait]
impl Reconcile for Jobs {
    const NAME: &'static str = "job";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let api: kube::Api<Job> = kube::Api::namespaced(self.client.clone(), &key.namespace);
        // Counting needs the job as it is now, not as the informer last saw it.
        let job = gone_is_none(api.get(&key.name).await).context(|| format!("read job {key}"))?;
        let Some(job) = job else {
            return Ok(Next::Wait);
        };
        let Some(selector) = job.spec.as_ref().and_then(|s| s.selector.clone()) else {
            return Ok(Next::Wait);
        };
        let owner = Owner::of(&job, &selector)?;
        let pods = owner.live_pods(&self.client).await?;
        if owner.deleting {
            for pod in &pods {
                self.release(pod).await?;
            }
            return Ok(Next::Wait);
        }
        let now = Timestamp::now();
        let plan = plan(&job, &pods, now);
        // Order matters: first the count, durable, then the finalizers go, then new pods come.
        self.update_status(&job, &plan.status).await?;
        for pod in &plan.count {
            self.release(pod).await?;
        }
        self.apply(&job, &owner, &plan).await?;
        if plan.expired {
            let params = DeleteParams::background();
            gone_is_none(api.delete(&key.name, &params).await)
                .context(|| format!("remove finished job {key}"))?;
        }
        Ok(plan.look_again.map_or(Next::Wait, Next::After))
    }
}

impl Jobs {
    async fn apply(&self, job: &Job, owner: &Owner, plan: &Plan) -> Result<(), Error> {
        for pod in &plan.delete {
            owner.delete(&self.client, pod).await?;
            let name = pod.metadata.name.clone().unwrap_or_default();
            self.events.normal(
                &object_ref(job),
                "SuccessfulDelete",
                format!("Deleted pod: {name}"),
            );
        }
        for index in &plan.create {
            let pod = pod_for(job, owner, *index);
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
                    let cause = std::error::Error::source(&error)
                        .map(ToString::to_string)
                        .unwrap_or_default();
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

    /// The pod's end is counted, or counts no more: it may go.
    async fn release(&self, pod: &Pod) -> Result<(), Error> {
        let finalizers = pod.metadata.finalizers.clone().unwrap_or_default();
        if !finalizers.iter().any(|f| f == TRACKING) {
            return Ok(());
        }
        let key = ObjectKey::of(pod);
        let kept: Vec<&String> = finalizers.iter().filter(|f| *f != TRACKING).collect();
        let patch = serde_json::json!({
            "metadata": { "uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version, "finalizers": kept }
        });
        let api: kube::Api<Pod> = kube::Api::namespaced(self.client.clone(), &key.namespace);
        gone_is_none(
            api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch))
                .await,
        )
        .context(|| format!("release pod {key}"))?;
        Ok(())
    }

    async fn update_status(&self, job: &Job, status: &JobStatus) -> Result<(), Error> {
        if job.status.as_ref() == Some(status) {
            return Ok(());
        }
        let key = ObjectKey::of(job);
        let changed = Job {
            status: Some(status.clone()),
            ..job.clone()
        };
        let api: kube::Api<Job> = kube::Api::namespaced(self.client.clone(), &key.namespace);
        gone_is_none(
            api.replace_status(&key.name, &PostParams::default(), &changed)
                .await,
        )
        .context(|| format!("update status of job {key}"))?;
        let new_condition = |type_: &str| {
            let has = |s: Option<&JobStatus>| plan::has_condition(s, type_);
            has(Some(status)) && !has(job.status.as_ref())
        };
        if new_condition("Complete") {
            self.events
                .normal(&object_ref(job), "Completed", "Job completed");
        } else if new_condition("Failed") {
            let failed = status
                .conditions
                .iter()
                .flatten()
                .find(|c| c.type_ == "Failed");
            let reason = failed.and_then(|c| c.reason.clone()).unwrap_or_default();
            let message = failed.and_then(|c| c.message.clone()).unwrap_or_default();
            self.events.warning(&object_ref(job), &reason, message);
        }
        Ok(())
    }
}

fn pod_for(job: &Job, owner: &Owner, index: Option<i32>) -> Pod {
    let template = job
        .spec
        .as_ref()
        .map(|s| s.template.clone())
        .unwrap_or_default();
    let mut pod = owner.pod(&template, None);
    pod.metadata
        .finalizers
        .get_or_insert_default()
        .push(TRACKING.to_owned());
    let Some(index) = index else { return pod };
    pod.metadata.generate_name = Some(format!("{}-{index}-", owner.reference.name));
    pod.metadata
        .annotations
        .get_or_insert_default()
        .insert(INDEX.to_owned(), index.to_string());
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
