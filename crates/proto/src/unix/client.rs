//! Channels to unix sockets.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::{Channel, Endpoint, Uri};

use super::Error;

const RETRY: Duration = Duration::from_millis(50);

fn endpoint() -> Endpoint {
    // Peers route nothing by the authority; they only want a valid one.
    Endpoint::from_static("http://localhost")
}

/// Dials a socket, trying again until `limit` has passed, so that a server which is just
/// starting is found. The channel dials anew, by path, when its connection is lost.
pub async fn connect(path: impl AsRef<Path>, limit: Duration) -> Result<Channel, Error> {
    let path: Arc<Path> = Arc::from(path.as_ref());
    dial(&path, limit).await?;
    Ok(connect_lazy(path))
}

/// A channel that dials at its first call, and anew when its connection is lost.
pub fn connect_lazy(path: impl AsRef<Path>) -> Channel {
    let path: Arc<Path> = Arc::from(path.as_ref());
    endpoint().connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(&*path).await.map(TokioIo::new) }
    }))
}

/// Like [`connect`], but the channel stands for this one connection: when it is lost every
/// further call fails, so that answers never come from another process that took the path.
pub async fn connect_once(path: impl AsRef<Path>, limit: Duration) -> Result<Channel, Error> {
    let path: PathBuf = path.as_ref().to_owned();
    let stream = Arc::new(parking(dial(&path, limit).await?));
    let used = Arc::new(AtomicBool::new(false));
    let name: Arc<Path> = Arc::from(path.as_path());
    let connector = tower::service_fn(move |_: Uri| {
        let again = used.swap(true, Ordering::AcqRel);
        let (stream, name) = (stream.clone(), name.clone());
        async move {
            let stream = if again {
                None
            } else {
                stream.lock().await.take()
            };
            stream.map(TokioIo::new).ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::NotConnected,
                    format!("connection to {} was lost", name.display()),
                )
            })
        }
    });
    endpoint()
        .connect_with_connector(connector)
        .await
        .map_err(|e| Error::Dial {
            path,
            cause: e.to_string(),
            after: limit,
        })
}

fn parking(stream: UnixStream) -> tokio::sync::Mutex<Option<UnixStream>> {
    tokio::sync::Mutex::new(Some(stream))
}

async fn dial(path: &Path, limit: Duration) -> Result<UnixStream, Error> {
    let deadline = Instant::now() + limit;
    loop {
        let cause = match timeout(limit, UnixStream::connect(path)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(e)) => e.to_string(),
            Err(_) => "connection not accepted".to_owned(),
        };
        if Instant::now() + RETRY >= deadline {
            return Err(Error::Dial {
                path: path.to_owned(),
                cause,
                after: limit,
            });
        }
        sleep(RETRY).await;
    }
}
