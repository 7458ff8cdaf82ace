//! What is to be done for CSI drivers as long as the agent runs.

use crate::context::Context;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How soon the CSINode is tried again.
const SOON: Duration = Duration::from_secs(1);

/// Makes the node's CSINode, then has drivers unstage what no pod uses, until `cancel`.
pub(super) async fn run(ctx: Arc<Context>, cancel: CancellationToken) {
    let work = async {
        while ctx.node_object().is_none() {
            tokio::time::sleep(SOON).await;
        }
        while let Err(error) = ctx.registrar.initialize().await {
            tracing::debug!(%error, "the node has no CSINode yet");
            tokio::time::sleep(SOON).await;
        }
        ctx.volumes.keep_staged().await;
    };
    tokio::select! { () = cancel.cancelled() => {} () = work => {} }
}
