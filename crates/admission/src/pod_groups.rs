//! Groups of pods: PodGroupProtection keeps those that pods belong to, PodGroupWorkloadExists refuses those whose workload
//! does not describe them, JobValidation keeps the parallelism of jobs whose pods are a gang.

use davit_api::features::GENERIC_WORKLOAD;
use davit_api::meta;
use davit_api::status::Status;
use serde_json::Value;

use super::{Attributes, Mutating, Operation, Validating, forbidden};

const GROUP: &str = "scheduling.k8s.io";
/// Taken off by the controllers when no pod that has not ended names the group.
const FINALIZER: &str = "scheduling.k8s.io/podgroup-protection";

/// Whether a group is being made.
fn is_new_group(attributes: &Attributes<'_>) -> bool {
    attributes.is(GROUP, "podgroups")
        && attributes.operation == Operation::Create
        && attributes.server.features().is_on(GENERIC_WORKLOAD)
}

/// Groups stay while pods belong to them.
pub(super) struct PodGroupProtection;

impl Mutating for PodGroupProtection {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let Some(group) = object.filter(|_| is_new_group(attributes)) else {
            return Ok(());
        };
        let mut held = davit_registry::object::finalizers(group);
        if !held.iter().any(|name| name == FINALIZER) {
            held.push(FINALIZER.to_owned());
            davit_registry::object::set_finalizers(group, &held);
        }
        Ok(())
    }
}

/// The template that a group says it is made from exists.
pub(super) struct PodGroupWorkloadExists;

impl Validating for PodGroupWorkloadExists {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(group) = object.filter(|_| is_new_group(attributes)) else {
            return Ok(());
        };
        let Some(template) = group.pointer("/spec/podGroupTemplateRef/workload") else {
            return Ok(());
        };
        let text = |key: &str| template[key].as_str().unwrap_or_default();
        let (name, wanted) = (text("workloadName"), text("podGroupTemplateName"));
        let namespace = attributes.namespace;
        let workload = attributes
            .server
            .object(GROUP, "workloads", namespace, name)
            .await?;
        let Some(workload) = workload else {
            let why = format!("PodGroup rejected: Workload {name:?} not found");
            return Err(forbidden(attributes, object, why));
        };
        if workload.pointer("/metadata/deletionTimestamp").is_some() {
            let why = format!("PodGroup rejected: Workload {name:?} is being deleted");
            return Err(forbidden(attributes, object, why));
        }
        let templates = workload.pointer("/spec/podGroupTemplates");
        let mut templates = templates.and_then(Value::as_array).into_iter().flatten();
        if templates.any(|template| template["name"] == wanted) {
            return Ok(());
        }
        let why = format!(
            "PodGroup rejected: PodGroupTemplate {wanted:?} not found in Workload {name:?}"
        );
        Err(forbidden(attributes, object, why))
    }
}

/// A job whose pods get their nodes together has as many as before: its group never changes.
pub(super) struct JobValidation;

impl Validating for JobValidation {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let concerned = attributes.is("batch", "jobs")
            && attributes.operation == Operation::Update
            && attributes.server.features().is_on(GENERIC_WORKLOAD);
        let (Some(job), Some(old)) = (object.filter(|_| concerned), attributes.old) else {
            return Ok(());
        };
        let parallelism = "/spec/parallelism";
        if job.pointer(parallelism) == old.pointer(parallelism) {
            return Ok(());
        }
        let Some(gang) = gang_of(attributes, old).await? else {
            return Ok(());
        };
        let why = format!(
            "cannot change parallelism for a Job referencing gang-scheduled PodGroup {gang:?}"
        );
        Err(forbidden(attributes, object, why))
    }
}

/// The name of the gang of a job: the group that its pods' template names, or else one that belongs to it.
async fn gang_of(attributes: &Attributes<'_>, job: &Value) -> Result<Option<String>, Status> {
    let (server, namespace) = (attributes.server, attributes.namespace);
    let is_gang = |group: &Value| group.pointer("/spec/schedulingPolicy/gang").is_some();
    let named = job.pointer("/spec/template/spec/schedulingGroup/podGroupName");
    if let Some(name) = named.and_then(Value::as_str) {
        let group = server.object(GROUP, "podgroups", namespace, name).await?;
        let gang = group.filter(|group| is_gang(group));
        return Ok(gang.map(|_| name.to_owned()));
    }
    let uid = meta::uid(job);
    let of_job = |group: &Value| meta::controller_of(group).is_some_and(|owner| owner.uid == uid);
    let groups = server.objects(GROUP, "podgroups", Some(namespace)).await?;
    let gang = groups.iter().find(|group| of_job(group) && is_gang(group));
    Ok(gang.map(|group| meta::name(group).to_owned()))
}
