//! Channels to unix sockets.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::{Channel, Endpoint, Uri};

use super::{Address, Error};

const RETRY: Duration = Duration::from_millis(50);
/// A peer that takes nothing for this long is given up: by itself a connection that nobody needs any more stays for as long as
/// there is something to be written that the peer does not take.
const UNTAKEN: Duration = Duration::from_secs(60);

fn endpoint() -> Endpoint {
    // Peers route nothing by the authority; they only want a valid one.
    Endpoint::from_static("http://localhost")
}

/// With the limit that connections have.
fn within_limits<C>(connector: C) -> TimeoutConnector<C>
where
    C: tower::Service<Uri, Error = io::Error, Future: Send + 'static> + Send,
    C::Response: hyper::rt::Read + hyper::rt::Write + Send + Unpin,
{
    let mut limited = TimeoutConnector::new(connector);
    limited.set_write_timeout(Some(UNTAKEN));
    limited
}

/// Dials a socket, trying again until `limit` has passed, so that a server which is just
/// starting is found. The channel dials anew, by path, when its connection is lost.
pub async fn connect(path: impl AsRef<Path>, limit: Duration) -> Result<Channel, Error> {
    let path: Arc<Path> = Arc::from(path.as_ref());
    dial(&Address::from(&*path), limit).await?;
    Ok(connect_lazy(path))
}

/// A channel that dials at its first call, and anew when its connection is lost.
pub fn connect_lazy(path: impl AsRef<Path>) -> Channel {
    let path: Arc<Path> = Arc::from(path.as_ref());
    endpoint().connect_with_connector_lazy(within_limits(tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(&*path).await.map(TokioIo::new) }
    })))
}

/// Like [`connect`], but the channel stands for this one connection: when it is lost every
/// further call fails, so that answers never come from another process that took the path.
pub async fn connect_once(socket: impl Into<Address>, limit: Duration) -> Result<Channel, Error> {
    let address = socket.into();
    let stream = dial(&address, limit).await?;
    once(stream, address.path().to_owned(), limit).await
}

/// Like [`connect_once`]; the token is cancelled when the connection is gone, also when no call
/// is under way.
pub async fn connect_observed(
    socket: impl Into<Address>,
    limit: Duration,
) -> Result<(Channel, CancellationToken), Error> {
    let address = socket.into();
    let lost = CancellationToken::new();
    let stream = Observed {
        stream: dial(&address, limit).await?,
        _lost: lost.clone().drop_guard(),
    };
    let channel = once(stream, address.path().to_owned(), limit).await?;
    Ok((channel, lost))
}

async fn once<S>(stream: S, path: PathBuf, limit: Duration) -> Result<Channel, Error>
where
    S: AsyncRead + AsyncWrite + Connection + Send + Unpin + 'static,
{
    let stream = Arc::new(tokio::sync::Mutex::new(Some(stream)));
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
        .connect_with_connector(within_limits(connector))
        .await
        .map_err(|e| Error::Dial {
            path,
            cause: e.to_string(),
            after: limit,
        })
}

/// A connection that tells of its end: the HTTP/2 stack drops it as soon as the peer closes it.
struct Observed {
    stream: UnixStream,
    _lost: DropGuard,
}

impl Connection for Observed {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Observed {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Observed {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

async fn dial(address: &Address, limit: Duration) -> Result<UnixStream, Error> {
    let deadline = Instant::now() + limit;
    loop {
        let cause = match timeout(limit, address.connect()).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(e)) => e.to_string(),
            Err(_) => "connection not accepted".to_owned(),
        };
        if Instant::now() + RETRY >= deadline {
            return Err(Error::Dial {
                path: address.path().to_owned(),
                cause,
                after: limit,
            });
        }
        sleep(RETRY).await;
    }
}
