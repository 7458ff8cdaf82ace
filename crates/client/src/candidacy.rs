//! The candidate's side of coordinated leader election (KEP-4355): a LeaseCandidate, kept alive.

use crate::informer::{Change, Informer};
use davit_task::Task;
use k8s_openapi::api::coordination::v1beta1::{LeaseCandidate, LeaseCandidateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::runtime::watcher;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often the candidate says unasked that it is there, as client-go does. Who has not for half an hour is none any more.
const RENEWAL: Duration = Duration::from_secs(5 * 60);
/// How long a call may take: a ping counts for five seconds.
const CALL: Duration = Duration::from_secs(4);
/// Between tries; it doubles each time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The strategy that Kubernetes' own components ask for.
const STRATEGY: &str = "OldestEmulationVersion";

/// One that stands for a Lease whose holder the API server chooses.
#[derive(Clone)]
pub struct Candidacy {
    client: kube::Client,
    namespace: String,
    lease: String,
    identity: String,
    version: String,
}

impl Candidacy {
    /// The candidate `identity` for the Lease `namespace/lease`. `version` is that of its binary and what it emulates, a
    /// semantic version.
    #[must_use]
    pub fn new(
        client: kube::Client,
        namespace: &str,
        lease: &str,
        identity: &str,
        version: &str,
    ) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            lease: lease.to_owned(),
            identity: identity.to_owned(),
            version: version.to_owned(),
        }
    }

    /// Registers the candidate, answers pings and renews it now and then, until `cancel` is cancelled.
    pub async fn keep(self, cancel: CancellationToken) {
        let task = Task::new("client", "candidacy", cancel.clone());
        let work = || self.answer(cancel.clone());
        task.keep(work).await;
    }

    fn api(&self) -> kube::Api<LeaseCandidate> {
        kube::Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn answer(&self, cancel: CancellationToken) {
        let only = watcher::Config::default().fields(&format!("metadata.name={}", self.identity));
        let mut tasks = JoinSet::new();
        let informer = Informer::spawn(self.api(), only, &mut tasks, cancel.child_token());
        let mut changes = informer.subscribe();
        let mut pause = PAUSE.0;
        loop {
            let next = match tokio::time::timeout(CALL, self.renew()).await {
                Ok(Ok(())) => {
                    pause = PAUSE.0;
                    RENEWAL
                }
                outcome => {
                    if let Ok(Err(error)) = outcome {
                        tracing::debug!(candidate = self.identity, lease = self.lease, %error, "candidate not renewed");
                    }
                    let next = pause;
                    pause = PAUSE.1.min(2 * pause);
                    next
                }
            };
            let due = Instant::now() + next;
            loop {
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => return,
                    () = tokio::time::sleep_until(due) => break,
                    change = changes.next() => match change {
                        Some(Change::Applied { new, .. }) if !is_pinged(&new) => {}
                        Some(Change::Synced) => {}
                        Some(Change::Applied { .. } | Change::Deleted(_)) => break,
                        None => return,
                    },
                }
            }
        }
    }

    /// Says that the candidate is there.
    async fn renew(&self) -> Result<(), kube::Error> {
        let api = self.api();
        let now = Some(MicroTime(Timestamp::now()));
        let found = api.get_opt(&self.identity).await?;
        if let Some(mut candidate) = found {
            candidate.spec.renew_time = now;
            api.replace(&self.identity, &PostParams::default(), &candidate)
                .await?;
            return Ok(());
        }
        let candidate = LeaseCandidate {
            metadata: ObjectMeta {
                name: Some(self.identity.clone()),
                ..ObjectMeta::default()
            },
            spec: LeaseCandidateSpec {
                lease_name: self.lease.clone(),
                binary_version: self.version.clone(),
                emulation_version: Some(self.version.clone()),
                strategy: STRATEGY.to_owned(),
                renew_time: now,
                ping_time: None,
            },
        };
        api.create(&PostParams::default(), &candidate).await?;
        Ok(())
    }
}

/// Whether a candidate was asked for a sign and has not answered.
#[must_use]
pub fn is_pinged(candidate: &LeaseCandidate) -> bool {
    let ping = candidate.spec.ping_time.as_ref();
    let renewed = candidate.spec.renew_time.as_ref();
    ping.is_some_and(|ping| renewed.is_none_or(|renewed| renewed.0 < ping.0))
}

impl std::fmt::Debug for Candidacy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Candidacy({} for {}/{})",
            self.identity, self.namespace, self.lease
        )
    }
}
