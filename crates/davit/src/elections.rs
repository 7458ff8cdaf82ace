//! The API server's part of coordinated leader election: flags with the names and defaults of kube-apiserver, and where it runs.

use crate::components::RunningServer;
use crate::paths;
use anyhow::{Result, ensure};
use davit_api::features::{COORDINATED_LEADER_ELECTION, Features};
use davit_coordination::DeciderTimers;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Clone, clap::Args)]
#[command(
    next_help_heading = "Coordinated leader election (feature gate CoordinatedLeaderElection)"
)]
pub(crate) struct ElectionFlags {
    /// How long the server that decides who leads stays it when it is silent
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = crate::protection::duration)]
    coordinated_leadership_lease_duration: Duration,
    /// How long it goes on when it cannot renew
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = crate::protection::duration)]
    coordinated_leadership_renew_deadline: Duration,
    /// Between tries of servers to become the one that decides
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = crate::protection::duration)]
    coordinated_leadership_retry_period: Duration,
}

impl ElectionFlags {
    /// Checks them as kube-apiserver does.
    pub(crate) fn timers(&self) -> Result<DeciderTimers> {
        let timers = DeciderTimers {
            lease_duration: self.coordinated_leadership_lease_duration,
            renew_deadline: self.coordinated_leadership_renew_deadline,
            retry_period: self.coordinated_leadership_retry_period,
        };
        ensure!(
            timers.lease_duration > timers.renew_deadline,
            "--coordinated-leadership-lease-duration must be greater than --coordinated-leadership-renew-deadline"
        );
        ensure!(
            timers.renew_deadline > timers.retry_period,
            "--coordinated-leadership-renew-deadline must be greater than --coordinated-leadership-retry-period"
        );
        ensure!(
            !timers.retry_period.is_zero(),
            "--coordinated-leadership-retry-period must be greater than zero"
        );
        Ok(timers)
    }
}

/// Has a server take part in deciding who leads, where the feature gate is on.
pub(crate) fn spawn(
    server: &RunningServer,
    timers: DeciderTimers,
    features: &Features,
    tasks: &mut JoinSet<Result<()>>,
    cancel: CancellationToken,
) -> Result<()> {
    if !features.is_on(COORDINATED_LEADER_ELECTION) {
        return Ok(());
    }
    let client = server.client("system:apiserver", &["system:masters"]);
    let identity = format!("{}_{}", paths::host_name()?, uuid::Uuid::new_v4());
    tasks.spawn(async move {
        davit_coordination::run(client, identity, timers, cancel).await;
        Ok(())
    });
    Ok(())
}
