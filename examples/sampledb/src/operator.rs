//! The operator: who leads reconciles, all serve the webhook.

use crate::lease::Candidate;
use crate::reconcile::{self, Operator};
use crate::resource::SampleDb;
use crate::{certificate, webhook};
use anyhow::{Context, Result, bail};
use clap::Args;
use futures::StreamExt;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::runtime::controller::Controller;
use kube::runtime::watcher;
use kube::{Api, Client};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How the operator runs.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Where the lease, the webhook's Secret and its Service are.
    #[arg(long, env = "POD_NAMESPACE", default_value = "sampledb-system")]
    namespace: String,
    /// Who this replica is among those that may lead.
    #[arg(long, env = "POD_NAME")]
    identity: String,
    /// What the images are called: IMAGES-ENGINE:VERSION.
    #[arg(long, env = "SAMPLEDB_IMAGES", default_value = "davit.local/sampledb")]
    images: String,
    /// The versions for which there are images.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    versions: Vec<u32>,
    /// Where the webhook listens.
    #[arg(long, default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// Seconds for which a replica that leads and is silent is still taken to lead.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(2..=300))]
    lease_duration: u64,
    /// Seconds until a last backup that has failed is tried again.
    #[arg(long, default_value_t = 30)]
    retry: u64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        bail!("a TLS provider was installed before");
    }
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(until_told(options))
}

/// Ends when the pod is told to, when leadership is lost, or when a part of it has ended: the pod starts again then.
async fn until_told(options: &Options) -> Result<()> {
    let mut end = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    let client = Client::try_default().await.context("find the API server")?;
    let serving = certificate::take(&client, &options.namespace).await?;
    let versions: Arc<[u32]> = options.versions.clone().into();
    let webhook = webhook::serve(
        client.clone(),
        versions,
        Arc::clone(&serving),
        options.listen,
    );
    let follow = certificate::follow(client.clone(), options.namespace.clone(), serving);
    let leases = Api::namespaced(client.clone(), &options.namespace);
    let term = Duration::from_secs(options.lease_duration);
    let mut candidate = Candidate::new(leases, "sampledb-operator", options.identity.clone(), term);
    let ended = tokio::select! {
        biased;
        _ = end.recv() => Ok(()),
        ended = webhook => ended.context("the webhook"),
        () = follow => Ok(()),
        ended = lead(client, options, &mut candidate) => ended,
    };
    candidate.release().await;
    ended
}

async fn lead(client: Client, options: &Options, candidate: &mut Candidate) -> Result<()> {
    candidate.elected().await;
    tokio::select! {
        () = reconcile_all(client, options) => bail!("nothing is watched any more"),
        () = candidate.lost() => bail!("leadership was lost"),
    }
}

async fn reconcile_all(client: Client, options: &Options) {
    let every = watcher::Config::default;
    let operator = Operator::new(
        client.clone(),
        options.images.clone(),
        Duration::from_secs(options.retry),
    );
    // What others do to what belongs to a database is looked at, too.
    Controller::new(Api::<SampleDb>::all(client.clone()), every())
        .owns(Api::<StatefulSet>::all(client.clone()), every())
        .owns(Api::<Job>::all(client.clone()), every())
        .owns(Api::<CronJob>::all(client.clone()), every())
        .owns(Api::<Service>::all(client.clone()), every())
        .owns(Api::<ConfigMap>::all(client), every())
        .run(reconcile::reconcile, reconcile::again, Arc::new(operator))
        .for_each(async |result| {
            if let Err(error) = result {
                tracing::debug!(%error, "not reconciled");
            }
        })
        .await;
}
