//! Which of several replicas of a component works, under the flag names that kube-scheduler and kube-controller-manager share.

use crate::protection::duration;
use anyhow::{Context, Result};
use davit_scheduler::config::LeaderElectionConfiguration;
use std::time::Duration;

/// Flags that win over a configuration.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Leader election")]
pub(crate) struct LeaderElectionFlags {
    /// Take part in leader election, so that of several replicas one works at a time
    /// [default: true of the scheduler, false of the controllers]
    #[arg(long, value_name = "BOOL", default_missing_value = "true", num_args = 0..=1, require_equals = true)]
    leader_elect: Option<bool>,
    /// How long a leader that is silent stays one [default: 15s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    leader_elect_lease_duration: Option<Duration>,
    /// How long a leader that cannot renew goes on [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    leader_elect_renew_deadline: Option<Duration>,
    /// Between tries [default: 2s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    leader_elect_retry_period: Option<Duration>,
    /// The kind of lock; there is only `leases`
    #[arg(long, value_name = "KIND")]
    leader_elect_resource_lock: Option<String>,
    /// Name of the Lease [default: kube-scheduler, kube-controller-manager]
    #[arg(long, value_name = "NAME")]
    leader_elect_resource_name: Option<String>,
    /// Namespace of the Lease [default: kube-system]
    #[arg(long, value_name = "NAMESPACE")]
    leader_elect_resource_namespace: Option<String>,
}

impl LeaderElectionFlags {
    pub(crate) fn apply(&self, to: &mut LeaderElectionConfiguration) -> Result<()> {
        if let Some(elect) = self.leader_elect {
            to.leader_elect = elect;
        }
        for (flag, field) in [
            (self.leader_elect_lease_duration, &mut to.lease_duration),
            (self.leader_elect_renew_deadline, &mut to.renew_deadline),
            (self.leader_elect_retry_period, &mut to.retry_period),
        ] {
            if let Some(duration) = flag {
                *field = duration.try_into().context("leader election")?;
            }
        }
        for (flag, field) in [
            (&self.leader_elect_resource_lock, &mut to.resource_lock),
            (&self.leader_elect_resource_name, &mut to.resource_name),
            (
                &self.leader_elect_resource_namespace,
                &mut to.resource_namespace,
            ),
        ] {
            if let Some(text) = flag {
                field.clone_from(text);
            }
        }
        Ok(())
    }
}
