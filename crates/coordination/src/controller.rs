//! The loop of the server that decides: a key for each Lease that has candidates.

use crate::COMPONENT;
use crate::election::{self, Choice, ElectionError, Step};
use crate::expired;
use davit_client::{Change, Feed, FeedEvent, Informer, ObjectKey, WorkQueue, is_pinged};
use davit_task::{Tasks, guard_async};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::coordination::v1beta1::LeaseCandidate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::runtime::watcher;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// After this long it is looked again at a lease, whatever happens.
const AGAIN: Duration = Duration::from_secs(5);
/// How long a step may take.
const STEP_DEADLINE: Duration = Duration::from_secs(30);
/// How long the candidates may take to be listed before that is worth a warning.
const SYNC_WARNING: Duration = Duration::from_secs(30);

/// Decides until `term` is cancelled, or a task is lost without which that cannot go on.
pub(crate) async fn decide(client: kube::Client, term: CancellationToken) {
    let term = term.child_token();
    let _guard = term.clone().drop_guard();
    let mut tasks = Tasks::new(COMPONENT, term.clone());
    let all = watcher::Config::default;
    let candidates: Informer<LeaseCandidate> = Informer::spawn_indexed(
        kube::Api::all(client.clone()),
        all(),
        |candidate| lease_of(candidate).map(|key| key.to_string()),
        tasks.set(),
        term.clone(),
    );
    while let Err(error) = candidates.wait_synced(SYNC_WARNING).await {
        tracing::warn!(%error, "coordinated leader election waits for the API server");
        if term.is_cancelled() {
            return;
        }
    }
    let leases = Feed::spawn(
        kube::Api::<Lease>::all(client.clone()),
        all(),
        tasks.set(),
        term.clone(),
    );
    let queue = WorkQueue::named(COMPONENT, AGAIN, AGAIN);
    tasks.vital(
        "candidates",
        follow_candidates(candidates.clone(), queue.clone()),
    );
    tasks.vital(
        "leases",
        follow_leases(leases, candidates.clone(), queue.clone()),
    );
    let decider = Arc::new(Decider {
        client: client.clone(),
        candidates: candidates.clone(),
    });
    tasks.keep("decide", {
        let queue = queue.clone();
        move || decider.clone().work(queue.clone())
    });
    tasks.keep("expired", move || {
        expired::sweep(client.clone(), candidates.clone())
    });
    tokio::select! {
        () = term.cancelled() => {}
        ended = tasks.failed() => tracing::error!(%ended, "coordinated leader election"),
    }
    queue.shut_down();
    term.cancel();
    tasks.end().await;
}

/// The Lease that a candidate stands for.
fn lease_of(candidate: &LeaseCandidate) -> Option<ObjectKey> {
    Some(ObjectKey {
        namespace: candidate.metadata.namespace.clone()?,
        name: candidate.spec.lease_name.clone(),
    })
}

async fn follow_candidates(candidates: Informer<LeaseCandidate>, queue: WorkQueue<ObjectKey>) {
    let mut changes = candidates.subscribe();
    while let Some(change) = changes.next().await {
        let concerned = match &change {
            Change::Applied { new, .. } => lease_of(new).filter(|_| !is_pinged(new)),
            Change::Deleted(old) => lease_of(old),
            Change::Synced => None,
        };
        concerned.into_iter().for_each(|key| queue.add(key));
    }
}

/// Nodes have Leases, too, which change all the time: of those without candidates nothing is kept.
async fn follow_leases(
    mut leases: Feed<Lease>,
    candidates: Informer<LeaseCandidate>,
    queue: WorkQueue<ObjectKey>,
) {
    while let Some(event) = leases.next().await {
        let key = match event {
            FeedEvent::Applied { object, .. } => ObjectKey::of(&object),
            FeedEvent::Deleted(key) => key,
            FeedEvent::Synced => continue,
        };
        if !candidates.list_indexed(&key.to_string()).is_empty() {
            queue.add(key);
        }
    }
}

/// Why a step could not be done.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Election(#[from] ElectionError),
    #[error("cannot {0}")]
    Api(&'static str, #[source] kube::Error),
}

struct Decider {
    client: kube::Client,
    candidates: Informer<LeaseCandidate>,
}

impl Decider {
    async fn work(self: Arc<Self>, queue: WorkQueue<ObjectKey>) {
        while let Some(key) = queue.get().await {
            let name = key.to_string();
            let work = guard_async(COMPONENT, "decide", &name, self.step(&key));
            let stands = match tokio::time::timeout(STEP_DEADLINE, work).await {
                Ok(Ok(Ok(stands))) => stands,
                Ok(Ok(Err(error))) => {
                    note(&name, &error);
                    true
                }
                // a panic has been logged
                Ok(Err(_)) => true,
                Err(_) => {
                    tracing::warn!(lease = name, "a step of an election took too long");
                    true
                }
            };
            queue.done(&key);
            if stands {
                queue.add_after(key, AGAIN);
            }
        }
    }

    /// One step of the election for a Lease; whether somebody stands for it.
    async fn step(&self, key: &ObjectKey) -> Result<bool, StepError> {
        let candidates = self.candidates.list_indexed(&key.to_string());
        if candidates.is_empty() {
            return Ok(false);
        }
        let leases: kube::Api<Lease> = kube::Api::namespaced(self.client.clone(), &key.namespace);
        let lease = leases.get_opt(&key.name).await;
        let lease = lease.map_err(|error| StepError::Api("read the lease", error))?;
        let spec = lease.as_ref().map(|lease| lease.spec.clone());
        let spec = spec.map(Option::unwrap_or_default);
        let now = Timestamp::now();
        match election::step(&candidates, spec.as_ref(), now)? {
            Step::Rest => return Ok(false),
            Step::Wait => {}
            Step::Ping(names) => self.ping(&candidates, &names, now).await?,
            Step::Elect(choice) => write(&leases, key, lease, &choice, now).await?,
        }
        Ok(true)
    }

    async fn ping(
        &self,
        candidates: &[Arc<LeaseCandidate>],
        names: &[String],
        now: Timestamp,
    ) -> Result<(), StepError> {
        for candidate in candidates {
            let (Some(name), Some(namespace)) =
                (&candidate.metadata.name, &candidate.metadata.namespace)
            else {
                continue;
            };
            if !names.contains(name) {
                continue;
            }
            let mut asked = LeaseCandidate::clone(candidate);
            asked.spec.ping_time = Some(MicroTime(now));
            let api: kube::Api<LeaseCandidate> =
                kube::Api::namespaced(self.client.clone(), namespace);
            let written = api.replace(name, &PostParams::default(), &asked).await;
            written.map_err(|error| StepError::Api("ask a candidate", error))?;
        }
        Ok(())
    }
}

/// Makes or changes the Lease as was chosen.
async fn write(
    leases: &kube::Api<Lease>,
    key: &ObjectKey,
    lease: Option<Lease>,
    choice: &Choice,
    now: Timestamp,
) -> Result<(), StepError> {
    let params = PostParams::default();
    let Some(mut lease) = lease else {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(key.name.clone()),
                namespace: Some(key.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(election::first_lease(choice, now)),
        };
        let made = leases.create(&params, &lease).await;
        made.map_err(|error| StepError::Api("make the lease", error))?;
        tracing::info!(lease = %key, holder = choice.holder, "elected");
        return Ok(());
    };
    if !election::enter(choice, lease.spec.get_or_insert_default(), now) {
        return Ok(());
    }
    let written = leases.replace(&key.name, &params, &lease).await;
    written.map_err(|error| StepError::Api("write the lease", error))?;
    tracing::info!(lease = %key, holder = choice.holder, "elected");
    Ok(())
}

/// Where somebody else has written meanwhile that will be looked at, and who is silent may come back.
fn note(lease: &str, error: &StepError) {
    let is_usual = match error {
        StepError::Api(_, kube::Error::Api(status)) => status.code == 409,
        StepError::Election(error) => *error == ElectionError::Silent,
        StepError::Api(..) => false,
    };
    if is_usual {
        tracing::debug!(lease, %error, "an election goes on");
        return;
    }
    let cause = match error {
        StepError::Api(_, cause) => davit_client::message_of(cause),
        StepError::Election(_) => String::new(),
    };
    tracing::warn!(lease, %error, cause, "an election goes on");
}
