//! The node's heartbeat: a Lease renewed four times in the time for which it is good.

use crate::context::Context;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const NAMESPACE: &str = "kube-node-lease";
const SOON: Duration = Duration::from_secs(1);
const DEADLINE: Duration = Duration::from_secs(10);

/// Keeps the lease until `cancel`.
pub(super) async fn run(ctx: Arc<Context>, cancel: CancellationToken) {
    let mut ticks = tokio::time::interval(ctx.options.reporting.renewal());
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut owned = false;
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = ticks.tick() => {}
        }
        match tokio::time::timeout(DEADLINE, renew(&ctx, &mut owned)).await {
            Ok(Ok(())) if owned => {}
            // The node is not registered yet.
            Ok(Ok(())) => ticks.reset_after(SOON),
            Ok(Err(error)) => {
                tracing::debug!(%error, "cannot renew the node's lease");
                // The namespace or the API server may be only just starting.
                ticks.reset_after(SOON);
            }
            Err(_) => {
                tracing::warn!("the API server did not answer the renewal of the node's lease");
                ticks.reset_after(SOON);
            }
        }
    }
}

/// `owned` says that the lease is known to name its node as owner.
async fn renew(ctx: &Context, owned: &mut bool) -> Result<(), kube::Error> {
    let api: Api<Lease> = Api::namespaced(ctx.heartbeats.clone(), NAMESPACE);
    let name = &ctx.options.node_name;
    let now = Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
        .to_string();
    let spec = json!({"holderIdentity": name, "leaseDurationSeconds": ctx.options.reporting.lease_seconds, "renewTime": now});
    // Without its node a lease would belong to nobody and stay.
    let Some(node) = ctx.registered_node().await? else {
        *owned = false;
        return Ok(());
    };
    let owners =
        json!([{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.metadata.uid}]);
    let mut lease = json!({"spec": spec});
    if !*owned {
        lease["metadata"] = json!({ "ownerReferences": owners });
    }
    match api
        .patch(name, &PatchParams::default(), &Patch::Merge(&lease))
        .await
    {
        Ok(_) => {
            *owned = true;
            return Ok(());
        }
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(error),
    }
    lease["metadata"]["ownerReferences"] = owners;
    lease["metadata"]["name"] = json!(name);
    lease["metadata"]["namespace"] = json!(NAMESPACE);
    let lease = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
    api.create(&PostParams::default(), &lease).await?;
    *owned = true;
    Ok(())
}
