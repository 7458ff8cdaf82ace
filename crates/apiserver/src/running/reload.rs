//! Configuration files that are read again when their content changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::bootstrap;
use crate::server::ApiServer;

/// How often files are looked at. Their content is compared: mounted files change by symbolic
/// links, which times do not tell reliably.
const INTERVAL: Duration = Duration::from_secs(1);

/// How often the ConfigMap for aggregated API servers is put right.
const PUBLISH: Duration = Duration::from_secs(60);

/// Follows the files until `cancel`.
pub(super) async fn follow(server: &Arc<ApiServer>, cancel: &CancellationToken) {
    tokio::join!(
        authorities(server, cancel),
        any(
            [server.authenticator().config_file().map(Path::to_owned)],
            cancel,
            || {
                server.authenticator().reload();
            }
        ),
        any(server.identities().given_files(), cancel, || {
            match server.identities().read_given() {
                Ok(_) => tracing::info!("the serving certificate was read again"),
                Err(error) => tracing::error!(%error, "the serving certificate stays as it was"),
            }
        }),
        any(
            [server.authorization_file().map(Path::to_owned)],
            cancel,
            || {
                server.reload_authorization();
            }
        ),
    );
}

/// Follows the authorities of clients and proxies, and tells aggregated API servers of them.
async fn authorities(server: &Arc<ApiServer>, cancel: &CancellationToken) {
    let files = server.authenticator().authority_files();
    let mut known = contents(&files).await;
    let mut published = Instant::now();
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        let now = contents(&files).await;
        let changed = now != known;
        if changed {
            known = now;
            server.authenticator().reload_authorities();
        }
        if changed || published.elapsed() >= PUBLISH {
            published = Instant::now();
            if let Err(error) = bootstrap::extension_authentication(server).await {
                tracing::warn!(%error, "telling aggregated API servers whom to believe");
            }
        }
    }
}

async fn contents(files: &[Option<PathBuf>]) -> Vec<Option<Vec<u8>>> {
    let mut all = Vec::new();
    for file in files.iter().flatten() {
        all.push(content(file).await);
    }
    all
}

/// Follows files that belong together. A file that is away for a moment is no change.
async fn any<const N: usize>(
    files: [Option<PathBuf>; N],
    cancel: &CancellationToken,
    changed: impl Fn(),
) {
    if files.iter().all(Option::is_none) {
        return;
    }
    let mut known = contents(&files).await;
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        let now = contents(&files).await;
        if now.iter().all(Option::is_some) && now != known {
            known = now;
            changed();
        }
    }
}

async fn content(path: &Path) -> Option<Vec<u8>> {
    tokio::fs::read(path).await.ok()
}
