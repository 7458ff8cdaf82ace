//! Certificates of this server's own that end soon.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::server::ApiServer;

/// How often certificates are looked at. They are renewed a year before their end, and clocks of devices jump.
const INTERVAL: Duration = Duration::from_secs(3600);

/// Renews certificates in time until `cancel`.
pub(super) async fn follow(server: &ApiServer, cancel: &CancellationToken) {
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        match server.renew_certificates() {
            Ok(0) => {}
            Ok(renewed) => tracing::info!(renewed, "certificates of the API server were renewed"),
            Err(error) => {
                tracing::error!(%error, "certificates of the API server were not renewed");
            }
        }
    }
}
