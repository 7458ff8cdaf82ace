//! What is there of a database: its stateful set and its jobs.

use super::calls::doing;
use super::{Look, Outcome};
use crate::objects::{version_label, work_label};
use crate::plan::{JobState, Work};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::ResourceExt;

/// What the jobs of a database came to.
pub(super) struct Jobs {
    pub(super) init: JobState,
    pub(super) upgrade: JobState,
    pub(super) last: JobState,
    /// The last backup by the clock: when it ended, and what went wrong.
    pub(super) backup: Option<(Time, Option<String>)>,
}

impl Look<'_> {
    /// Whether no pod of the stateful set is there or will be, and whether its pod is ready.
    pub(super) async fn set(&self) -> Outcome<(bool, bool)> {
        let name = self.objects.name();
        let set = self
            .api::<StatefulSet>()
            .get_opt(&name)
            .await
            .map_err(doing(format!("read stateful set {name}")))?;
        let Some(set) = set else {
            return Ok((true, false));
        };
        let generation = set.metadata.generation;
        let wanted = set.spec.and_then(|s| s.replicas);
        let status = set.status.unwrap_or_default();
        let seen = status.observed_generation == generation;
        let updated = status.current_revision == status.update_revision;
        let stopped = wanted == Some(0) && seen && status.replicas == 0;
        Ok((stopped, seen && updated && status.ready_replicas == Some(1)))
    }

    pub(super) async fn jobs(&self) -> Outcome<Jobs> {
        let mut found = Jobs {
            init: JobState::Absent,
            upgrade: JobState::Absent,
            last: JobState::Absent,
            backup: None,
        };
        let upgrade = self
            .objects
            .job_name(Work::Upgrade, self.database.spec.version);
        for job in self.list::<Job>(&self.objects.selector()).await? {
            let work = job.labels().get(&work_label()).map(String::as_str);
            let own = self.owns(job.owner_references());
            match work {
                Some("init") if own => found.init = self.job_state(&job).await?,
                // one to another version that still runs has the data as well
                Some("upgrade") if own => {
                    let state = self.job_state(&job).await?;
                    if job.name_any() == upgrade || state == JobState::Running {
                        found.upgrade = state;
                    }
                }
                Some("last") if own => found.last = self.job_state(&job).await?,
                Some("backup") => self.note_job(&job, &mut found).await?,
                _ => {}
            }
        }
        Ok(found)
    }

    pub(super) async fn note_job(&self, job: &Job, found: &mut Jobs) -> Outcome<()> {
        let Some(ended) = end_of(job) else {
            return Ok(());
        };
        if found
            .backup
            .as_ref()
            .is_none_or(|(before, _)| before.0 < ended.0)
        {
            let failure = match self.job_state(job).await? {
                JobState::Failed(message) => Some(message),
                _ => None,
            };
            found.backup = Some((ended, failure));
        }
        Ok(())
    }

    /// Jobs of an earlier database of the name are none of this one.
    pub(super) fn owns(&self, owners: &[OwnerReference]) -> bool {
        let uid = self.database.uid();
        owners.iter().any(|owner| Some(&owner.uid) == uid.as_ref())
    }

    pub(super) async fn job_state(&self, job: &Job) -> Outcome<JobState> {
        let has = |kind: &str| {
            let conditions = job.status.as_ref().and_then(|s| s.conditions.as_ref());
            conditions.is_some_and(|all| all.iter().any(|c| c.type_ == kind && c.status == "True"))
        };
        if has("Complete") {
            let version = job
                .labels()
                .get(&version_label())
                .and_then(|v| v.parse().ok());
            return Ok(JobState::Complete {
                version: version.unwrap_or_default(),
            });
        }
        if !has("Failed") {
            return Ok(JobState::Running);
        }
        Ok(JobState::Failed(self.last_words(&job.name_any()).await?))
    }

    /// What the last pod of a job said.
    pub(super) async fn last_words(&self, job: &str) -> Outcome<String> {
        let mut pods = self
            .list::<Pod>(&format!("batch.kubernetes.io/job-name={job}"))
            .await?;
        pods.sort_by_key(|pod| pod.creation_timestamp().map(|time| time.0));
        let ends = pods.iter().rev().filter_map(|pod| {
            let container = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
            container
                .state
                .as_ref()?
                .terminated
                .as_ref()?
                .message
                .clone()
        });
        let words = ends
            .filter(|words| !words.is_empty())
            .map(|words| words.trim().to_owned())
            .next();
        Ok(words.unwrap_or_else(|| format!("job {job} has failed")))
    }
}

/// When a job was complete or had failed.
pub(super) fn end_of(job: &Job) -> Option<Time> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let ended = conditions
        .iter()
        .find(|c| c.status == "True" && (c.type_ == "Complete" || c.type_ == "Failed"))?;
    ended.last_transition_time.clone()
}
