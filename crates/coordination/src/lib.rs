//! Coordinated leader election (<https://kep.k8s.io/4355>): components register LeaseCandidates, and the API server decides
//! which of them holds the Lease that they stand for: the one that emulates the oldest version, so that while a cluster is
//! upgraded nothing newer leads than what all can follow.
//!
//! Of several API servers one decides, elected by the Lease `leader-election-controller` in the plain way. [`election`] is the
//! decision, [`run`] asks candidates and writes Leases.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::needless_pass_by_value,
        reason = "tests hand over what they write in place"
    )
)]

mod controller;
mod election;
mod expired;

use davit_client::LeaderElector;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The component in names of tasks, and the Lease of the server that decides.
pub(crate) const COMPONENT: &str = "leader-election-controller";
/// The namespace of that Lease.
const NAMESPACE: &str = "kube-system";

/// How the server that decides is elected itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeciderTimers {
    /// How long one that is silent stays it.
    pub lease_duration: Duration,
    /// How long one that cannot renew goes on; shorter.
    pub renew_deadline: Duration,
    /// Between tries; shorter than that.
    pub retry_period: Duration,
}

/// Takes part, as `identity`, in the election of the server that decides, and decides when it is the one, until `cancel` is
/// cancelled. `client` may read and write all Leases and LeaseCandidates.
pub async fn run(
    client: kube::Client,
    identity: String,
    timers: DeciderTimers,
    cancel: CancellationToken,
) {
    let elector = LeaderElector::new(client.clone(), NAMESPACE, COMPONENT, &identity)
        .with_durations(
            timers.lease_duration,
            timers.renew_deadline,
            timers.retry_period,
        );
    while !cancel.is_cancelled() {
        let decide = |term| controller::decide(client.clone(), term);
        elector.run(cancel.clone(), decide).await;
        // whoever lost its task or its term leaves the next one to others
        tokio::select! {
            () = cancel.cancelled() => {}
            () = tokio::time::sleep(timers.retry_period) => {}
        }
    }
}
