//! Removes jobs that have ended once their time to live is over (`ttlSecondsAfterFinished`).

use crate::job::{condition, outcome};
use async_trait::async_trait;
use davit_client::ObjectKey;
use davit_reconcile::{Context, Error, Informers, Next, Reconcile, Spawner, gone_is_none};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Preconditions};
use std::time::Duration;

struct TtlAfterFinished {
    client: kube::Client,
    informers: Informers,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("ttl-after-finished-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let queue = spawner.controller(TtlAfterFinished {
        client: spawner.client.clone(),
        informers: informers.clone(),
    });
    spawner.feed(&informers.jobs, &queue, |job: &Job| {
        let limited = job.spec.as_ref();
        let limited = limited.and_then(|spec| spec.ttl_seconds_after_finished);
        limited.map(|_| ObjectKey::of(job)).into_iter().collect()
    });
}

/// How long a job that has ended may stay; none where that is for ever, or where it has not ended.
fn time_to_live(job: &Job, now: Timestamp) -> Option<Duration> {
    let ttl = job.spec.as_ref()?.ttl_seconds_after_finished?;
    let ended = condition(job.status.as_ref()?, outcome(job)?)?;
    let since = ended.last_transition_time.as_ref()?.0;
    let elapsed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    let ttl = Duration::from_secs(u64::try_from(ttl).unwrap_or(0));
    Some(ttl.saturating_sub(elapsed))
}

#[async_trait]
impl Reconcile for TtlAfterFinished {
    const NAME: &'static str = "ttl-after-finished";
    const WORKERS: usize = 5;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let job = self.informers.jobs.get(Some(&key.namespace), &key.name);
        let Some(job) = job.filter(|job| job.metadata.deletion_timestamp.is_none()) else {
            return Ok(Next::Wait);
        };
        let Some(left) = time_to_live(&job, Timestamp::now()) else {
            return Ok(Next::Wait);
        };
        if !left.is_zero() {
            return Ok(Next::After(left));
        }
        let api: kube::Api<Job> = kube::Api::namespaced(self.client.clone(), &key.namespace);
        // A job that has changed since, its time perhaps with it, is looked at again.
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: job.metadata.uid.clone(),
                resource_version: job.metadata.resource_version.clone(),
            }),
            ..DeleteParams::foreground()
        };
        gone_is_none(api.delete(&key.name, &params).await)
            .context(|| format!("remove finished job {key}"))?;
        Ok(Next::Wait)
    }
}
