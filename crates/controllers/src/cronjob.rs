//! Makes Jobs on a schedule.
//! <https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/>

use crate::job::outcome;
use async_trait::async_trait;
use davit_api::schedule::Schedule;
use davit_api::time::SKEW;
use davit_client::{EventRecorder, ObjectKey, object_ref};
use davit_reconcile::owners::{controller_key, controller_of};
use davit_reconcile::{
    Context, Error, Informers, Next, Reconcile, Spawner, cause_of, exists_is_none, gone_is_none,
    write_status,
};
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Resource;
use kube::api::{DeleteParams, PostParams};
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// More missed times than this are worth a warning: the clock may be wrong.
const MANY_MISSED: usize = 100;
/// Added to the wait for the next time, so that it has come when we look.
const SLACK: Duration = Duration::from_millis(100);

struct CronJobs {
    client: kube::Client,
    informers: Informers,
    events: EventRecorder,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("cronjob-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let events = spawner.events("cronjob-controller");
    let queue = spawner.controller(CronJobs {
        client: spawner.client.clone(),
        informers: informers.clone(),
        events,
    });
    spawner.feed(&informers.cron_jobs, &queue, |cron: &CronJob| {
        vec![ObjectKey::of(cron)]
    });
    spawner.feed(&informers.jobs, &queue, |job: &Job| {
        controller_key(&job.metadata, "CronJob")
            .into_iter()
            .collect()
    });
}

/// The times to catch up with: the last of them, and how many there are, or more than [`MANY_MISSED`].
fn missed(schedule: &Schedule, since: Timestamp, now: Timestamp) -> (Option<Timestamp>, usize) {
    let (mut last, mut count) = (None, 0);
    while let Some(next) = schedule.next(last.unwrap_or(since)).filter(|at| *at <= now) {
        last = Some(next);
        count += 1;
        if count > MANY_MISSED {
            return (Some(schedule.last(next, now)), count);
        }
    }
    (last, count)
}

/// Until when times count as scheduled: the last that was, or when the cron job was made. One to come is of a clock that was set
/// back since: times are counted from now on, and the status keeps that.
fn scheduled_until(status: &mut CronJobStatus, created: Timestamp, now: Timestamp) -> Timestamp {
    let last = status.last_schedule_time.as_ref().map_or(created, |t| t.0);
    if last.duration_since(now) > SKEW {
        status.last_schedule_time = Some(Time(now));
    }
    last.min(now)
}

#[async_trait]
impl Reconcile for CronJobs {
    const NAME: &'static str = "cronjob";
    const WORKERS: usize = 5;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let api: kube::Api<CronJob> = kube::Api::namespaced(self.client.clone(), &key.namespace);
        // Read live: what was started last is in the status.
        let read =
            gone_is_none(api.get(&key.name).await).context(|| format!("read cron job {key}"))?;
        let Some(cron) = read else {
            return Ok(Next::Wait);
        };
        if cron.metadata.deletion_timestamp.is_some() {
            return Ok(Next::Wait);
        }
        let jobs: Vec<Arc<Job>> = self
            .informers
            .jobs
            .list_namespace(&key.namespace)
            .into_iter()
            .filter(|job| {
                controller_of(&job.metadata).map(|r| &r.uid) == cron.metadata.uid.as_ref()
            })
            .collect();
        let mut status = self.account(&cron, &jobs);
        self.keep_unseen(&cron, &jobs, &mut status).await?;
        self.trim(&cron, &jobs).await?;
        let next = self.start(&cron, &jobs, &mut status).await;
        if cron.status.as_ref() != Some(&status) {
            let changed = CronJob {
                status: Some(status),
                ..cron
            };
            write_status(&self.client, &changed).await?;
        }
        next
    }
}

impl CronJobs {
    /// What the jobs say about the cron job.
    fn account(&self, cron: &CronJob, jobs: &[Arc<Job>]) -> CronJobStatus {
        let mut status = cron.status.clone().unwrap_or_default();
        let was_active = status.active.take().unwrap_or_default();
        for job in jobs {
            let listed = was_active.iter().any(|r| r.uid == job.metadata.uid);
            match outcome(job) {
                None => status
                    .active
                    .get_or_insert_default()
                    .push(object_ref(&**job)),
                Some(how) if listed => {
                    let name = job.metadata.name.clone().unwrap_or_default();
                    let text = format!("Saw completed job: {name}, condition: {how}");
                    self.events
                        .normal(&object_ref(cron), "SawCompletedJob", text);
                }
                Some(_) => {}
            }
            let ended = job.status.as_ref().and_then(|s| s.completion_time.clone());
            if outcome(job) == Some("Complete")
                && ended.as_ref().map(|t| t.0) > status.last_successful_time.as_ref().map(|t| t.0)
            {
                status.last_successful_time = ended;
            }
        }
        status
    }

    /// Active jobs that the informer does not show: one just made may not have been seen yet and keeps its place; of one
    /// that is gone an event tells.
    async fn keep_unseen(
        &self,
        cron: &CronJob,
        jobs: &[Arc<Job>],
        status: &mut CronJobStatus,
    ) -> Result<(), Error> {
        for reference in unseen(cron, jobs) {
            if is_there(&self.client, cron, reference).await? {
                status
                    .active
                    .get_or_insert_default()
                    .push(reference.clone());
            } else {
                let name = reference.name.clone().unwrap_or_default();
                let text = format!("Active job went missing: {name}");
                self.events.normal(&object_ref(cron), "MissingJob", text);
            }
        }
        if let Some(active) = status.active.as_mut() {
            active.sort_by(|a, b| a.name.cmp(&b.name));
        }
        Ok(())
    }

    /// Removes ended jobs beyond the history limits, the oldest first.
    async fn trim(&self, cron: &CronJob, jobs: &[Arc<Job>]) -> Result<(), Error> {
        let spec = cron.spec.clone();
        let limits = [
            ("Complete", spec.successful_jobs_history_limit.unwrap_or(3)),
            ("Failed", spec.failed_jobs_history_limit.unwrap_or(1)),
        ];
        for (how, limit) in limits {
            let mut ended: Vec<&Arc<Job>> = jobs
                .iter()
                .filter(|job| outcome(job) == Some(how))
                .collect();
            let started = |job: &Job| job.status.as_ref()?.start_time.clone().map(|t| t.0);
            // One to come is of before the clock was set back.
            let now = Timestamp::now();
            let before = |at: &Timestamp| at.duration_since(now) <= SKEW;
            ended.sort_by_key(|job| Reverse(started(job).filter(before)));
            for job in ended.into_iter().skip(usize::try_from(limit).unwrap_or(0)) {
                self.delete(cron, job).await?;
            }
        }
        Ok(())
    }

    async fn delete(&self, cron: &CronJob, job: &Job) -> Result<(), Error> {
        let key = ObjectKey::of(job);
        let api: kube::Api<Job> = kube::Api::namespaced(self.client.clone(), &key.namespace);
        let gone = gone_is_none(api.delete(&key.name, &DeleteParams::background()).await);
        if gone.context(|| format!("delete job {key}"))?.is_some() {
            let text = format!("Deleted job {}", key.name);
            self.events
                .normal(&object_ref(cron), "SuccessfulDelete", text);
        }
        Ok(())
    }

    /// Starts the job whose time has come.
    async fn start(
        &self,
        cron: &CronJob,
        jobs: &[Arc<Job>],
        status: &mut CronJobStatus,
    ) -> Result<Next, Error> {
        let spec = cron.spec.clone();
        if spec.suspend == Some(true) {
            return Ok(Next::Wait);
        }
        let reference = object_ref(cron);
        let schedule = match Schedule::parse(&spec.schedule, spec.time_zone.as_deref()) {
            Ok(schedule) => schedule,
            Err(error) => {
                let text = format!("unparseable schedule {:?} : {error}", spec.schedule);
                self.events.warning(&reference, "UnparseableSchedule", text);
                return Ok(Next::Wait);
            }
        };
        let now = Timestamp::now();
        let wait = |from: Timestamp| match schedule.next(from) {
            Some(at) => {
                let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
                Next::After(left + SLACK)
            }
            None => Next::Wait,
        };
        let created = cron
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(now, |t| t.0);
        let mut since = scheduled_until(status, created, now);
        if let Some(deadline) = spec.starting_deadline_seconds {
            let first = now.checked_sub(SignedDuration::from_secs(deadline));
            since = since.max(first.unwrap_or(created));
        }
        let (due, count) = missed(&schedule, since, now);
        if count > MANY_MISSED {
            let text = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
            self.events.warning(&reference, "TooManyMissedTimes", text);
        }
        let Some(due) = due else {
            return Ok(wait(now));
        };
        let running: Vec<&Arc<Job>> = jobs.iter().filter(|job| outcome(job).is_none()).collect();
        match spec.concurrency_policy.as_deref() {
            Some("Forbid") if status.active.iter().flatten().next().is_some() => {
                let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
                self.events.normal(&reference, "JobAlreadyActive", text);
                return Ok(wait(now));
            }
            Some("Replace") => {
                for job in running {
                    self.delete(cron, job).await?;
                }
            }
            _ => {}
        }
        let job = job_for(cron, &schedule, due);
        let name = job.metadata.name.clone().unwrap_or_default();
        let namespace = cron.metadata.namespace.clone().unwrap_or_default();
        let api: kube::Api<Job> = kube::Api::namespaced(self.client.clone(), &namespace);
        match exists_is_none(api.create(&PostParams::default(), &job).await) {
            Ok(Some(made)) => {
                let text = format!("Created job {name}");
                self.events.normal(&reference, "SuccessfulCreate", text);
                status
                    .active
                    .get_or_insert_default()
                    .push(object_ref(&made));
            }
            // Made by an earlier attempt whose status update failed.
            Ok(None) => {}
            Err(error) => {
                let error = Err::<(), _>(error).context(|| format!("create job {name}"));
                if let Err(error) = &error {
                    let text = format!("Error creating job: {}", cause_of(error));
                    self.events.warning(&reference, "FailedCreate", text);
                }
                error?;
            }
        }
        status.last_schedule_time = Some(Time(due));
        Ok(wait(now))
    }
}

/// What the status names as active and is not among `jobs`.
fn unseen<'a>(
    cron: &'a CronJob,
    jobs: &'a [Arc<Job>],
) -> impl Iterator<Item = &'a ObjectReference> {
    let active = cron.status.iter().flat_map(|s| &s.active).flatten();
    active.filter(|r| !jobs.iter().any(|job| job.metadata.uid == r.uid))
}

/// Whether the very job that a reference names is there; its informer may be behind.
async fn is_there(
    client: &kube::Client,
    cron: &CronJob,
    reference: &ObjectReference,
) -> Result<bool, Error> {
    let namespace = cron.metadata.namespace.as_deref().unwrap_or_default();
    let name = reference.name.as_deref().unwrap_or_default();
    let api: kube::Api<Job> = kube::Api::namespaced(client.clone(), namespace);
    let job = api.get_opt(name).await;
    let job = job.context(|| format!("look for job {namespace}/{name}"))?;
    Ok(job.is_some_and(|job| job.metadata.uid == reference.uid))
}

fn job_for(cron: &CronJob, schedule: &Schedule, due: Timestamp) -> Job {
    let template = cron.spec.clone().job_template;
    let meta = template.metadata.unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED.to_owned(), schedule.local_text(due));
    let name = cron.metadata.name.clone().unwrap_or_default();
    Job {
        metadata: ObjectMeta {
            name: Some(format!("{name}-{}", due.as_second() / 60)),
            namespace: cron.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: Some(annotations),
            owner_references: cron.controller_owner_ref(&()).map(|mut owner| {
                owner.block_owner_deletion = Some(true);
                vec![owner]
            }),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::served::one_object;
    use serde_json::json;

    #[test]
    fn the_last_missed_time_counts() {
        let schedule = Schedule::parse("*/10 * * * *", None).unwrap();
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let (last, count) = missed(
            &schedule,
            at("2026-01-01T10:05:00Z"),
            at("2026-01-01T10:35:00Z"),
        );
        assert_eq!((last, count), (Some(at("2026-01-01T10:30:00Z")), 3));
        let (last, count) = missed(
            &schedule,
            at("2026-01-01T10:30:00Z"),
            at("2026-01-01T10:35:00Z"),
        );
        assert_eq!((last, count), (None, 0));
        // a box that began in 1970 has been told the time
        let (last, count) = missed(&schedule, Timestamp::UNIX_EPOCH, at("2026-01-01T10:35:00Z"));
        assert_eq!(last, Some(at("2026-01-01T10:30:00Z")));
        assert!(count > MANY_MISSED);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_end_a_schedule() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let (later, now) = (at("2036-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z"));
        let mut status = CronJobStatus::default();
        assert_eq!(scheduled_until(&mut status, later, now), now);
        let minute = at("2026-01-01T00:01:00Z");
        assert_eq!(scheduled_until(&mut status, later, minute), now);
        status.last_schedule_time = Some(Time(at("2026-01-01T00:01:01Z")));
        let until = scheduled_until(&mut status, now, minute);
        assert_eq!(until, minute, "another controller's clock is ahead");
        assert_eq!(
            status.last_schedule_time,
            Some(Time(at("2026-01-01T00:01:01Z")))
        );
    }

    /// A server that has one job, `made` with UID `1`.
    fn server() -> kube::Client {
        one_object(
            "/apis/batch/v1/namespaces/n/jobs/made",
            json!({ "metadata": { "name": "made", "namespace": "n", "uid": "1" } }),
        )
    }

    #[tokio::test]
    async fn a_job_just_made_stays_active_before_the_informer_shows_it() {
        let cron: CronJob = serde_json::from_value(json!({
            "metadata": { "name": "c", "namespace": "n" },
            "spec": { "schedule": "@hourly", "jobTemplate": {} },
            "status": { "active": [
                { "name": "seen", "uid": "0" },
                { "name": "made", "uid": "1" },
                { "name": "made", "uid": "another" },
                { "name": "gone", "uid": "2" },
            ] },
        }))
        .unwrap();
        let seen: Job =
            serde_json::from_value(json!({ "metadata": { "name": "seen", "uid": "0" } })).unwrap();
        let jobs = [Arc::new(seen)];
        let mut kept = Vec::new();
        for reference in unseen(&cron, &jobs) {
            if is_there(&server(), &cron, reference).await.unwrap() {
                kept.push(reference.uid.as_deref().unwrap());
            }
        }
        assert_eq!(kept, ["1"]);
    }

    #[test]
    fn a_job_is_named_after_its_minute() {
        let cron: CronJob = serde_json::from_value(json!({
            "metadata": { "name": "c", "namespace": "n", "uid": "u" },
            "spec": { "schedule": "* * * * *", "jobTemplate": { "metadata": { "labels": { "a": "b" } } } },
        }))
        .unwrap();
        let schedule = Schedule::parse("* * * * *", None).unwrap();
        let job = job_for(&cron, &schedule, "2026-01-01T10:30:00Z".parse().unwrap());
        assert_eq!(job.metadata.name.as_deref(), Some("c-29454390"));
        assert_eq!(
            job.metadata.annotations.unwrap()[SCHEDULED],
            "2026-01-01T10:30:00Z"
        );
        assert_eq!(job.metadata.owner_references.unwrap()[0].kind, "CronJob");
    }
}
