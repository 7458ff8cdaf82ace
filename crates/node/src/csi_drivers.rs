//! What is to be done for CSI drivers as long as the agent runs.

use crate::context::Context;
use davit_client::Informer;
use davit_csi::DriverSettings;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;
use kube::runtime::watcher;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How soon the CSINode is tried again.
const SOON: Duration = Duration::from_secs(1);
/// The API allows no shorter time between two questions for the number of volumes.
const SHORTEST: Duration = Duration::from_secs(10);

/// Makes the node's CSINode, which every node has, on one that mounts nothing.
pub(crate) async fn announce(ctx: Arc<Context>, cancel: CancellationToken) {
    tokio::select! { () = cancel.cancelled() => {} () = initialize(&ctx) => cancel.cancelled().await }
}

async fn initialize(ctx: &Context) {
    // Its owner is the node, so that this fails until the node is registered.
    while let Err(error) = ctx.registrar.initialize().await {
        tracing::debug!(%error, "the node has no CSINode yet");
        tokio::time::sleep(SOON).await;
    }
}

/// Makes the node's CSINode, then has drivers unstage what no pod uses and say how many volumes they take, until `cancel`.
pub(crate) async fn run(ctx: Arc<Context>, cancel: CancellationToken) {
    let mut tasks = JoinSet::new();
    let objects = Informer::<CSIDriver>::spawn(
        Api::all(ctx.client.clone()),
        watcher::Config::default(),
        &mut tasks,
        cancel.clone(),
    );
    let work = async {
        initialize(&ctx).await;
        tokio::join!(ctx.volumes.keep_staged(), keep_limits(&ctx, &objects));
    };
    tokio::select! { () = cancel.cancelled() => {} () = work => {} }
    tasks.shutdown().await;
}

/// Asks drivers how many volumes the node takes, as often as their CSIDriver says.
async fn keep_limits(ctx: &Arc<Context>, objects: &Informer<CSIDriver>) {
    let mut asked: BTreeMap<String, Instant> = BTreeMap::new();
    // A driver that hangs holds up its own question only.
    let mut questions = JoinSet::new();
    loop {
        tokio::time::sleep(SHORTEST / 2).await;
        while questions.try_join_next().is_some() {}
        let registered = ctx.registrar.names();
        asked.retain(|name, _| registered.contains(name));
        for name in registered {
            let object = objects.get(None, &name);
            let settings = DriverSettings::of(object.as_deref());
            let Some(period) = settings.allocatable_update_period() else {
                continue;
            };
            let last = *asked.entry(name.clone()).or_insert_with(Instant::now);
            if last.elapsed() < period.max(SHORTEST) {
                continue;
            }
            asked.insert(name.clone(), Instant::now());
            let ctx = ctx.clone();
            questions.spawn(async move { refresh(&ctx, &name).await });
        }
    }
}

/// Has a driver say how many volumes the node takes.
pub(crate) async fn refresh(ctx: &Context, driver: &str) {
    if let Err(error) = ctx.registrar.refresh(driver).await {
        tracing::warn!(driver, %error, "the CSI driver did not say how many volumes the node takes");
    }
}
