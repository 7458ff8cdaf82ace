//! `davit scheduler`: the scheduler alone, against any Kubernetes API server; and what `davit up` takes of its
//! configuration.

use crate::features;
use crate::scheduler_flags::{self, SchedulerFlags};
use crate::served_scheduler::ServedScheduler;
use crate::shutdown::Signals;
use crate::single::{Candidate, connect, finish, lead};
use anyhow::{Context, Result};
use davit_api::features::Features;
use davit_client::{RequestRate, throttled};
use davit_scheduler::config::KubeSchedulerConfiguration;
use davit_scheduler::{Scheduler, SchedulerOptions};
use std::path::Path;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The configuration of a scheduler inside `davit up`, which has its API server and works alone.
pub(crate) fn embedded_configuration(
    file: Option<&Path>,
    features: &Features,
) -> Result<KubeSchedulerConfiguration> {
    let configuration = scheduler_flags::read(file, features)?;
    configuration
        .validate()
        .context("scheduler configuration")?;
    if !configuration.client_connection.kubeconfig.is_empty() {
        tracing::warn!(
            "scheduler configuration: clientConnection.kubeconfig has no effect inside `davit up`"
        );
    }
    let election = &configuration.leader_election;
    if *election != KubeSchedulerConfiguration::with_defaults().leader_election {
        tracing::warn!("scheduler configuration: leaderElection has no effect inside `davit up`");
    }
    Ok(configuration)
}

/// The client by which a scheduler of this configuration asks: as often as it likes, or as often as the configuration says.
pub(crate) fn client_of(
    client: kube::Client,
    configuration: &KubeSchedulerConfiguration,
) -> kube::Client {
    let (own, usual) = (
        &configuration.client_connection,
        KubeSchedulerConfiguration::with_defaults().client_connection,
    );
    let is_said = own.qps != usual.qps || own.burst != usual.burst;
    match RequestRate::of_client(own.qps, own.burst) {
        Some(rate) if is_said => throttled(client, rate),
        _ => client,
    }
}

pub(crate) async fn run(flags: SchedulerFlags) -> Result<()> {
    let configuration = flags.configuration()?;
    if let Some(file) = &flags.write_config_to {
        return std::fs::write(file, configuration.to_yaml()?)
            .with_context(|| format!("--write-config-to {}", file.display()));
    }
    features::remark(&flags.gates.feature_gates);
    let kubeconfig = flags.kubeconfig(&configuration)?;
    let mut signals = Signals::new()?;
    let Some(client) = connect(&mut signals, &kubeconfig).await? else {
        return Ok(());
    };
    let gates = &flags.gates.feature_gates;
    let candidate = Candidate::of(&configuration.leader_election, gates)?;
    let asking = client_of(client.clone(), &configuration);
    let options = SchedulerOptions {
        configuration,
        flush_after: flags.pod_max_in_unschedulable_pods_duration,
        features: flags.gates.feature_gates.clone(),
        ..SchedulerOptions::default()
    };
    let scheduler = Scheduler::new(asking, options)?;
    let cancel = CancellationToken::new();
    // They end with this function.
    let _guard = cancel.clone().drop_guard();
    let mut serving: JoinSet<Result<()>> = JoinSet::new();
    let (port, served) = (flags.secure_port, ServedScheduler(scheduler.clone()));
    let server = &flags.serving;
    server
        .serve(port, served, &kubeconfig, &mut serving, cancel.clone())
        .await?;
    let work = async |cancel| scheduler.run(cancel).await.context("scheduler");
    tokio::select! {
        ended = lead(&mut signals, client, "kube-scheduler", candidate, work) => ended,
        Some(ended) = serving.join_next() => finish(Some(ended)),
    }
}
