//! What the cluster says of itself when it serves: its own Service, endpoints, range of addresses, and where to join.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use davit_store::Error as StoreError;

use super::endpoints::{self, Peers};
use super::joining;
use crate::server::{ApiServer, Error};

/// How often the cluster's own objects are looked at (kube-apiserver's endpoint reconciler).
const INTERVAL: Duration = Duration::from_secs(10);
/// How often a full disk is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a server that ends may take to say so.
const LAST: Duration = Duration::from_secs(5);

/// Writes it. False when the disk is too full for that: the server is to answer all the same, so that something can be
/// deleted.
pub(super) async fn now(
    server: &Arc<ApiServer>,
    address: SocketAddr,
    peers: &mut Peers,
) -> Result<bool, Error> {
    let published = async {
        let all = endpoints::publish(server, address, peers).await?;
        joining::publish(server, &all).await
    };
    match published.await {
        Ok(()) => Ok(true),
        Err(_) if matches!(server.store().health().await, Err(StoreError::Full)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Goes on with what [`now`] left when there is room for it, and restores what somebody has removed or changed, until the
/// server stops. Pods learn at once where they reach it.
pub(super) async fn keep(
    server: &Arc<ApiServer>,
    address: SocketAddr,
    mut published: bool,
    mut peers: Peers,
) {
    if !published {
        tracing::warn!("no space left for the cluster's own endpoints: written later");
    }
    let mut for_pods = server.for_pods();
    loop {
        let pause = if published { INTERVAL } else { PAUSE };
        tokio::select! {
            () = server.shutdown().cancelled() => break,
            () = tokio::time::sleep(pause) => {}
            Ok(()) = for_pods.changed() => {}
        }
        match now(server, address, &mut peers).await {
            Ok(done) => published = done,
            Err(error) => tracing::warn!(%error, "the cluster's own endpoints"),
        }
    }
    let withdrawn = endpoints::withdraw(server, address, &mut peers);
    match tokio::time::timeout(LAST, withdrawn).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the endpoints of this API server stay for now"),
        Err(_) => tracing::warn!("the endpoints of this API server stay for now"),
    }
}
