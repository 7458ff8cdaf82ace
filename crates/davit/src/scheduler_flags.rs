//! The scheduler on the command line, under kube-scheduler's flag names.

use crate::component_serving::ComponentServingFlags;
use crate::features::GateFlags;
use crate::leader_election::LeaderElectionFlags;
use crate::protection::duration;
use anyhow::{Context, Result, bail};
use davit_api::features::Features;
use davit_scheduler::config::KubeSchedulerConfiguration;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SchedulerFlags {
    /// KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Write the configuration in force to this file and end
    #[arg(long, value_name = "FILE")]
    pub(crate) write_config_to: Option<PathBuf>,
    /// How to reach the API server; the configuration's clientConnection.kubeconfig wins
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// How long a pod stays unschedulable at most before it is tried again without a reason
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub(crate) pod_max_in_unschedulable_pods_duration: Duration,
    #[command(flatten)]
    pub(crate) gates: GateFlags,
    #[command(flatten)]
    election: LeaderElectionFlags,
    /// Port of /healthz, /livez, /readyz, /metrics and /configz; 0 for none, 10259 is kube-scheduler's
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10259,
        help_heading = "Serving"
    )]
    pub(crate) secure_port: u16,
    #[command(flatten)]
    pub(crate) serving: ComponentServingFlags,
}

/// Reads a configuration; without a file, the one of a scheduler that is given none. It may still be invalid.
pub(crate) fn read(file: Option<&Path>, features: &Features) -> Result<KubeSchedulerConfiguration> {
    let Some(file) = file else {
        return Ok(KubeSchedulerConfiguration::with_defaults_of(features));
    };
    let what = || format!("scheduler configuration {}", file.display());
    let text = std::fs::read_to_string(file).with_context(what)?;
    KubeSchedulerConfiguration::parse_with(&text, features).with_context(what)
}

impl SchedulerFlags {
    /// File and flags together, judged.
    pub(crate) fn configuration(&self) -> Result<KubeSchedulerConfiguration> {
        let mut configuration = read(self.config.as_deref(), &self.gates.feature_gates)?;
        self.election.apply(&mut configuration.leader_election)?;
        configuration
            .validate()
            .context("scheduler configuration")?;
        if self.config.is_none()
            && let Some(file) = &self.kubeconfig
        {
            configuration.client_connection.kubeconfig = file.display().to_string();
        }
        Ok(configuration)
    }

    /// The file by which the API server is reached.
    pub(crate) fn kubeconfig(&self, configuration: &KubeSchedulerConfiguration) -> Result<PathBuf> {
        let named = &configuration.client_connection.kubeconfig;
        if named.is_empty() {
            let Some(file) = &self.kubeconfig else {
                bail!(
                    "--kubeconfig or clientConnection.kubeconfig of --config must name the API server"
                );
            };
            return Ok(file.clone());
        }
        let named = PathBuf::from(named);
        if self.kubeconfig.as_ref().is_some_and(|flag| *flag != named) {
            tracing::warn!(
                kubeconfig = %named.display(),
                "--kubeconfig is ignored: the configuration names one"
            );
        }
        Ok(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        flags: SchedulerFlags,
    }

    fn flags(line: &str) -> SchedulerFlags {
        let words = std::iter::once("scheduler").chain(line.split_whitespace());
        Line::parse_from(words).flags
    }

    #[test]
    fn election_flags_win_over_the_file_and_the_file_over_the_kubeconfig() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        let text = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
            clientConnection: {kubeconfig: /from/file}\nleaderElection: {resourceName: mine, retryPeriod: 3s}\n";
        std::fs::write(&file, text).unwrap();
        let flags = flags(&format!(
            "--config {} --kubeconfig /from/flag --leader-elect=false --leader-elect-retry-period 4s",
            file.display()
        ));
        let configuration = flags.configuration().unwrap();
        let election = &configuration.leader_election;
        assert!(!election.leader_elect);
        assert_eq!(election.resource_name, "mine");
        assert_eq!(election.retry_period.as_secs(), 4);
        assert_eq!(
            flags.kubeconfig(&configuration).unwrap(),
            Path::new("/from/file")
        );
    }

    #[test]
    fn without_a_file_flags_are_all_there_is() {
        let plain = flags("--kubeconfig /k --leader-elect");
        let configuration = plain.configuration().unwrap();
        assert!(configuration.leader_election.leader_elect);
        assert_eq!(configuration.client_connection.kubeconfig, "/k");
        let wrong = flags("--kubeconfig /k --leader-elect-renew-deadline 20s");
        let error = format!("{:#}", wrong.configuration().unwrap_err());
        assert!(error.contains("leaderElection.leaseDuration"), "{error}");
        assert!(Line::try_parse_from(["scheduler", "--master", "x"]).is_err());
    }
}
