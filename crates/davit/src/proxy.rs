//! `davit proxy`: the Service proxy alone, where others connect pods; with kube-proxy's flags and configuration.

use crate::kube_proxy_flags::Proxy;
use crate::shutdown::{STOPPING, Signals};
use crate::{paths, single};
use anyhow::{Context, Result};
use davit_network::ProxyAlone;
use tokio_util::sync::CancellationToken;

pub(crate) async fn run(args: Proxy) -> Result<()> {
    if args.cleanup {
        return ProxyAlone::clean_up().context("--cleanup");
    }
    let configuration = args.configuration()?;
    let alone = args.alone(&configuration, paths::host_name)?;
    let kubeconfig = args.kubeconfig(&configuration)?;
    let ignored = configuration.ignored.join(", ");
    if !ignored.is_empty() {
        tracing::warn!("configuration of the proxy: without effect here: {ignored}");
    }
    let mut signals = Signals::new()?;
    let Some(client) = single::connect(&mut signals, &kubeconfig).await? else {
        return Ok(());
    };
    let cancel = CancellationToken::new();
    let mut proxying = Box::pin(alone.run(client, cancel.clone()));
    tokio::select! {
        () = signals.recv() => {}
        ended = &mut proxying => return ended.context("the Service proxy"),
    }
    cancel.cancel();
    let stopping = async { proxying.await.context("the Service proxy") };
    signals.stop_within(STOPPING, stopping).await
}
