//! One of several operators works at a time: whoever holds the Lease.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use std::time::{Duration, Instant};

/// A candidate for the lease.
pub(crate) struct Candidate {
    api: Api<Lease>,
    name: &'static str,
    identity: String,
    /// How long a holder that is silent keeps the lease.
    term: Duration,
    /// What the lease looked like, and since when by this machine's clock: those of others may be wrong.
    seen: Option<(LeaseSpec, Instant)>,
}

impl Candidate {
    pub(crate) fn new(
        api: Api<Lease>,
        name: &'static str,
        identity: String,
        term: Duration,
    ) -> Self {
        Self {
            api,
            name,
            identity,
            term,
            seen: None,
        }
    }

    /// How long it is between tries.
    fn retry(&self) -> Duration {
        self.term / 7
    }

    /// Returns when this candidate holds the lease.
    pub(crate) async fn elected(&mut self) {
        while !self.tried().await {
            tokio::time::sleep(self.retry()).await;
        }
        tracing::info!(identity = self.identity, "leads");
    }

    /// Keeps the lease; returns when it could not be renewed for so long that another may soon take it.
    pub(crate) async fn lost(&mut self) {
        let mut renewed = Instant::now();
        while renewed.elapsed() < self.term / 3 * 2 {
            tokio::time::sleep(self.retry()).await;
            if self.tried().await {
                renewed = Instant::now();
            }
        }
    }

    /// Gives the lease back, so that the next one need not wait.
    pub(crate) async fn release(&mut self) {
        let Ok(Some(mut lease)) = self.api.get_opt(self.name).await else {
            return;
        };
        let Some(spec) = lease
            .spec
            .as_mut()
            .filter(|s| s.holder_identity.as_ref() == Some(&self.identity))
        else {
            return;
        };
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        if let Err(error) = self
            .api
            .replace(self.name, &PostParams::default(), &lease)
            .await
        {
            tracing::warn!(%error, "lease not given back");
        }
    }

    async fn tried(&mut self) -> bool {
        match tokio::time::timeout(self.retry(), self.attempt()).await {
            Ok(Ok(held)) => held,
            Ok(Err(error)) => {
                tracing::warn!(%error, "lease not written");
                false
            }
            Err(_) => false,
        }
    }

    async fn attempt(&mut self) -> Result<bool, kube::Error> {
        let Some(mut lease) = self.api.get_opt(self.name).await? else {
            let metadata = ObjectMeta {
                name: Some(self.name.to_owned()),
                ..ObjectMeta::default()
            };
            let spec = Some(self.wanted(&LeaseSpec::default()));
            let lease = Lease { metadata, spec };
            self.api.create(&PostParams::default(), &lease).await?;
            return Ok(true);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        if !self.may_take(&spec) {
            return Ok(false);
        }
        lease.spec = Some(self.wanted(&spec));
        // refused when somebody else was faster: the resourceVersion says what was read
        self.api
            .replace(self.name, &PostParams::default(), &lease)
            .await?;
        Ok(true)
    }

    fn may_take(&mut self, spec: &LeaseSpec) -> bool {
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if holder.is_empty() || holder == self.identity {
            return true;
        }
        match &self.seen {
            Some((seen, since)) if seen == spec => since.elapsed() > self.term,
            _ => {
                self.seen = Some((spec.clone(), Instant::now()));
                false
            }
        }
    }

    fn wanted(&self, before: &LeaseSpec) -> LeaseSpec {
        let ours = before.holder_identity.as_ref() == Some(&self.identity);
        let now = MicroTime(Timestamp::now());
        let changes = before.lease_transitions.unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.term.as_secs()).ok(),
            acquire_time: if ours {
                before.acquire_time.clone()
            } else {
                Some(now.clone())
            },
            renew_time: Some(now),
            lease_transitions: Some(if ours {
                changes
            } else {
                changes.saturating_add(1)
            }),
            ..LeaseSpec::default()
        }
    }
}
