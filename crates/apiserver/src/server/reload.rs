//! Configuration files that are read again when their content changes.

use std::path::Path;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::ApiServer;

/// How often files are looked at. Their content is compared: mounted files change by symbolic
/// links, which times do not tell reliably.
const INTERVAL: Duration = Duration::from_secs(1);

/// Follows the files until `cancel`.
pub(super) async fn follow(server: &ApiServer, cancel: &CancellationToken) {
    tokio::join!(
        one(server.authenticator().config_file(), cancel, || {
            server.authenticator().reload();
        }),
        one(server.authorization_file(), cancel, || {
            server.reload_authorization();
        }),
    );
}

async fn one(path: Option<&Path>, cancel: &CancellationToken, changed: impl Fn()) {
    let Some(path) = path else { return };
    let mut known = content(path).await;
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        let now = content(path).await;
        if now.is_some() && now != known {
            known = now;
            changed();
        }
    }
}

async fn content(path: &Path) -> Option<Vec<u8>> {
    tokio::fs::read(path).await.ok()
}
