//! Leader election by a Lease, as client-go does it: of several replicas one works at a time. Who leads is settled among the
//! candidates, or, where election is coordinated (KEP-4355), by the API server, for which a
//! [`Candidacy`](crate::Candidacy) stands.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use std::future::Future;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Durations and identity of one candidate. Defaults are client-go's: 15 s lease, 10 s renew deadline, 2 s retry period.
#[derive(Clone)]
pub struct LeaderElector {
    client: kube::Client,
    namespace: String,
    name: String,
    identity: String,
    lease_duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
    coordinated: bool,
}

/// What an attempt to hold the lease came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// It is ours, and has been renewed.
    Held,
    /// It is not ours now, or could not be renewed; that may change.
    NotHeld,
    /// Another one holds it, or is to hold it: who leads gives way at once.
    TermOver,
}

impl LeaderElector {
    /// A candidate called `identity` for the Lease `namespace/name`.
    pub fn new(client: kube::Client, namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            coordinated: false,
        }
    }

    /// The same candidate with other durations: how long a leader that is silent stays one, how long one that cannot renew
    /// goes on, and how long it is between tries.
    #[must_use]
    pub fn with_durations(mut self, lease: Duration, renew: Duration, retry: Duration) -> Self {
        self.lease_duration = lease;
        self.renew_deadline = renew;
        self.retry_period = retry;
        self
    }

    /// The same candidate, which never takes the lease by itself: it leads when the API server has entered it as the holder,
    /// and gives way when another one is preferred.
    #[must_use]
    pub fn coordinated(mut self) -> Self {
        self.coordinated = true;
        self
    }

    /// Waits for leadership, runs `lead`, and ends its token when leadership is lost or `cancel` is cancelled.
    /// Returns when `lead` has ended; leadership is given up then, so that another replica need not wait.
    pub async fn run<F>(&self, cancel: CancellationToken, lead: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()>,
    {
        let mut seen = Observed {
            holder: String::new(),
            renewed: None,
            at: Instant::now(),
        };
        loop {
            if self.try_hold(&mut seen).await == Attempt::Held {
                break;
            }
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(self.retry_period) => {}
            }
        }
        tracing::info!(lease = %format_args!("{}/{}", self.namespace, self.name), identity = self.identity, "became leader");
        let term = cancel.child_token();
        let work = lead(term.clone());
        let mut work = std::pin::pin!(work);
        let mut renewed = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = &mut work => break,
                () = tokio::time::sleep(self.retry_period) => {
                    let attempt = self.try_hold(&mut seen).await;
                    if attempt == Attempt::Held {
                        renewed = Instant::now();
                    }
                    let over = attempt == Attempt::TermOver || renewed.elapsed() > self.renew_deadline;
                    if over && !term.is_cancelled() {
                        tracing::warn!(lease = self.name, "leadership lost");
                        term.cancel();
                    }
                }
            }
        }
        self.release().await;
    }

    fn api(&self) -> kube::Api<Lease> {
        kube::Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// One attempt to take or renew the lease.
    async fn try_hold(&self, seen: &mut Observed) -> Attempt {
        let attempt = async {
            match self.coordinated {
                true => self.renew_coordinated(seen).await,
                false => self.take_or_renew(seen).await,
            }
        };
        match tokio::time::timeout(self.retry_period, attempt).await {
            Ok(Ok(attempt)) => attempt,
            Ok(Err(error)) => {
                tracing::debug!(lease = self.name, %error, "lease not written");
                Attempt::NotHeld
            }
            Err(_) => Attempt::NotHeld,
        }
    }

    async fn take_or_renew(&self, seen: &mut Observed) -> Result<Attempt, kube::Error> {
        let api = self.api();
        let now = MicroTime(Timestamp::now());
        let Some(mut lease) = api.get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.spec(None, now)),
            };
            api.create(&PostParams::default(), &lease).await?;
            return Ok(Attempt::Held);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        seen.look_at(&spec);
        let ours = seen.holder == self.identity;
        if !ours && !seen.holder.is_empty() && seen.at.elapsed() < self.lease_duration {
            return Ok(Attempt::TermOver);
        }
        lease.spec = Some(self.spec(Some((&spec, ours)), now));
        api.replace(&self.name, &PostParams::default(), &lease)
            .await?;
        Ok(Attempt::Held)
    }

    /// Renews what the API server has given, as long as nobody else is preferred.
    async fn renew_coordinated(&self, seen: &mut Observed) -> Result<Attempt, kube::Error> {
        let api = self.api();
        let Some(mut lease) = api.get_opt(&self.name).await? else {
            return Ok(Attempt::NotHeld);
        };
        let spec = lease.spec.get_or_insert_default();
        seen.look_at(spec);
        let is_named = |name: &Option<String>| name.as_ref().is_some_and(|name| !name.is_empty());
        if seen.holder != self.identity {
            let taken = is_named(&spec.holder_identity);
            return Ok(if taken {
                Attempt::TermOver
            } else {
                Attempt::NotHeld
            });
        }
        if is_named(&spec.preferred_holder) {
            return Ok(Attempt::TermOver);
        }
        let lasts = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
        if seen.at.elapsed() > Duration::from_secs(lasts) {
            return Ok(Attempt::NotHeld);
        }
        let now = MicroTime(Timestamp::now());
        spec.acquire_time.get_or_insert_with(|| now.clone());
        spec.renew_time = Some(now);
        spec.lease_duration_seconds = i32::try_from(self.lease_duration.as_secs()).ok();
        api.replace(&self.name, &PostParams::default(), &lease)
            .await?;
        Ok(Attempt::Held)
    }

    fn spec(&self, previous: Option<(&LeaseSpec, bool)>, now: MicroTime) -> LeaseSpec {
        let (acquire_time, transitions) = match previous {
            Some((spec, true)) => (
                spec.acquire_time.clone(),
                spec.lease_transitions.unwrap_or(0),
            ),
            Some((spec, false)) => (Some(now.clone()), spec.lease_transitions.unwrap_or(0) + 1),
            None => (Some(now.clone()), 0),
        };
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.lease_duration.as_secs()).ok(),
            acquire_time,
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    async fn release(&self) {
        let give_up = async {
            let mut lease = self.api().get(&self.name).await?;
            if let Some(spec) = lease
                .spec
                .as_mut()
                .filter(|s| s.holder_identity.as_ref() == Some(&self.identity))
            {
                spec.holder_identity = Some(String::new());
                spec.lease_duration_seconds = Some(1);
                self.api()
                    .replace(&self.name, &PostParams::default(), &lease)
                    .await?;
            }
            Ok::<_, kube::Error>(())
        };
        match tokio::time::timeout(self.retry_period, give_up).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(lease = self.name, %error, "lease not released"),
            Err(_) => tracing::debug!(lease = self.name, "lease not released in time"),
        }
    }
}

impl std::fmt::Debug for LeaderElector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "LeaderElector({}/{} as {})",
            self.namespace, self.name, self.identity
        )
    }
}

struct Observed {
    holder: String,
    renewed: Option<MicroTime>,
    at: Instant,
}

impl Observed {
    /// Expiry is judged by our own clock from when we saw the record change, never by the holder's clock.
    fn look_at(&mut self, spec: &LeaseSpec) {
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if self.holder != holder || self.renewed != spec.renew_time {
            *self = Self {
                holder: holder.to_owned(),
                renewed: spec.renew_time.clone(),
                at: Instant::now(),
            };
        }
    }
}

#[cfg(test)]
mod tests;
