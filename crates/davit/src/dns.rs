//! `davit dns`: the cluster's DNS server alone.

use crate::dns_flags::Dns;
use crate::shutdown::{STOPPING, Signals};
use crate::single;
use anyhow::{Context, Result};
use tokio_util::sync::CancellationToken;

pub(crate) async fn run(args: Dns) -> Result<()> {
    let mut signals = Signals::new()?;
    let Some(client) = single::connect(&mut signals, &args.kubeconfig).await? else {
        return Ok(());
    };
    let listen = args.listen;
    let alone = args.alone();
    let cancel = CancellationToken::new();
    let what = || format!("DNS at {listen}");
    let mut answering = Box::pin(alone.run(client, cancel.clone()));
    tokio::select! {
        () = signals.recv() => {}
        ended = &mut answering => return ended.with_context(what),
    }
    cancel.cancel();
    let stopping = async { answering.await.with_context(what) };
    signals.stop_within(STOPPING, stopping).await
}
