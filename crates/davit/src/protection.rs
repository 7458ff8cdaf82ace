//! Flags that guard the API server: audit log, encryption at rest, limits, shutdown. They have the
//! names and defaults of kube-apiserver.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use davit_apiserver::{HTTP2_STREAMS, MIN_REQUEST_TIMEOUT, Options};
use davit_audit::{LogOptions, Policy};
use davit_encryption::Encryption;
use davit_flowcontrol::FlowOptions;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ProtectionOptions {
    /// File that says what the audit log records (audit.k8s.io/v1 Policy)
    #[arg(long, value_name = "FILE")]
    audit_policy_file: Option<PathBuf>,
    /// Where the audit log is written; `-` is standard output
    #[arg(long, value_name = "FILE")]
    audit_log_path: Option<PathBuf>,
    /// Days after which rotated audit logs are deleted (0 = never)
    #[arg(long, value_name = "DAYS", default_value_t = 0)]
    audit_log_maxage: u64,
    /// How many rotated audit logs are kept (0 = all)
    #[arg(long, value_name = "N", default_value_t = 0)]
    audit_log_maxbackup: usize,
    /// Megabytes after which the audit log is rotated (0 = 100)
    #[arg(long, value_name = "MB", default_value_t = 0)]
    audit_log_maxsize: u64,
    /// Kubeconfig of a server that audit events are sent to, in batches
    #[arg(long, value_name = "FILE")]
    audit_webhook_config_file: Option<PathBuf>,
    /// File that says which resources are encrypted at rest (EncryptionConfiguration)
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
    /// Take over changes of that file while running
    #[arg(long, requires = "encryption_provider_config")]
    encryption_provider_config_automatic_reload: bool,
    /// Sort requests into priority levels; off, two plain limits stand in its place
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    enable_priority_and_fairness: bool,
    /// Reads answered at once
    #[arg(long, value_name = "N", default_value_t = 400)]
    max_requests_inflight: usize,
    /// Writes answered at once
    #[arg(long, value_name = "N", default_value_t = 200)]
    max_mutating_requests_inflight: usize,
    /// HTTP/2 streams a client may have open on one connection (0 = 250)
    #[arg(long, value_name = "N", default_value_t = 0)]
    http2_max_streams_per_connection: u32,
    /// The share of requests over HTTP/2 after which a client is asked to connect anew, so that clients spread over several
    /// servers behind a load balancer: 0 to 0.02
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = goaway_chance)]
    goaway_chance: f64,
    /// Seconds that a watch lives at least if it names no time; at most it lives twice as long
    #[arg(long, value_name = "SECONDS", default_value_t = MIN_REQUEST_TIMEOUT.as_secs(), value_parser = clap::value_parser!(u64).range(1..=1 << 31))]
    min_request_timeout: u64,
    /// How long requests are still taken at a shutdown after /readyz has begun to fail
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub(crate) shutdown_delay_duration: Duration,
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let nanos = davit_api::time::parse_duration(text).map_err(|error| error.to_string())?;
    let nanos = u64::try_from(nanos).map_err(|_| "is negative".to_owned())?;
    Ok(Duration::from_nanos(nanos))
}

/// As kube-apiserver has it: a larger share would keep clients busy with connecting.
fn goaway_chance(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "is no number".to_owned())?;
    let is_little = (0.0..=0.02).contains(&share);
    let why = "can not be less than 0 or greater than 0.02";
    is_little.then_some(share).ok_or_else(|| why.to_owned())
}

impl ProtectionOptions {
    /// Puts the flags into the server's options; a followed file is watched by one of `tasks`.
    pub(crate) fn apply(
        &self,
        options: &mut Options,
        tasks: &mut JoinSet<Result<()>>,
        cancel: &CancellationToken,
    ) -> Result<()> {
        if let Some(path) = &self.audit_policy_file {
            options.audit.policy = Some(Policy::from_file(path)?);
        }
        options.audit.log = self.audit_log_path.as_ref().map(|path| LogOptions {
            max_age_days: self.audit_log_maxage,
            max_backups: self.audit_log_maxbackup,
            max_size_megabytes: if self.audit_log_maxsize == 0 {
                100
            } else {
                self.audit_log_maxsize
            },
            ..LogOptions::new(path)
        });
        options
            .audit
            .webhook
            .clone_from(&self.audit_webhook_config_file);
        options.flow_control = FlowOptions {
            enabled: self.enable_priority_and_fairness,
            max_reads: self.max_requests_inflight,
            max_writes: self.max_mutating_requests_inflight,
        };
        options.shutdown_delay = self.shutdown_delay_duration;
        options.http2_streams = match self.http2_max_streams_per_connection {
            0 => HTTP2_STREAMS,
            streams => streams,
        };
        options.goaway_chance = self.goaway_chance;
        options.min_request_timeout = Duration::from_secs(self.min_request_timeout);
        if let Some(path) = &self.encryption_provider_config {
            let encryption = Encryption::from_file(path).context("encryption at rest")?;
            let encryption = Arc::new(encryption);
            options.encryption = Some(Arc::clone(&encryption));
            if self.encryption_provider_config_automatic_reload {
                let (path, cancel) = (path.clone(), cancel.clone());
                tasks.spawn(async move {
                    encryption.follow(&path, cancel).await;
                    Ok(())
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_of_the_requests_ends_connections() {
        assert_eq!(goaway_chance("0.001"), Ok(0.001));
        assert_eq!(goaway_chance("0"), Ok(0.0));
        for wrong in ["0.03", "-0.01", "NaN", "x"] {
            assert!(goaway_chance(wrong).is_err(), "{wrong}");
        }
    }
}
