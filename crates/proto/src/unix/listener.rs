//! Listening sockets and the server loop.

use std::future::Future;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tower::layer::util::{Identity, Stack};

use super::deadline::DeadlineLayer;
use super::seats::Seats;
use super::{Error, Repaired};

/// Connections served at once on one socket.
const MAX_CONNECTIONS: usize = 1024;
/// How long open calls may go on after a server was told to stop.
const DRAIN: Duration = Duration::from_secs(2);
/// How often somebody is moved out of the way who puts a folder in the place of a socket.
const MAKING_WAY: usize = 8;
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Who is at the other end: process, user and group, from the kernel.
pub type Peer = tonic::transport::server::UdsConnectInfo;

/// Creates a folder for sockets with mode 0750, parents included; an existing one is kept.
pub fn create_dir(path: &Path) -> Result<(), Error> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(path)
        .map_err(|e| Error::io("create folder", path, e))
}

/// Removes every socket directly in `dir`; other files and subfolders stay.
pub fn remove_stale_sockets(dir: &Path) -> Result<(), Error> {
    let entries = std::fs::read_dir(dir).map_err(|e| Error::io("read folder", dir, e))?;
    for entry in entries {
        let entry = entry.map_err(|e| Error::io("read folder", dir, e))?;
        if entry.file_type().is_ok_and(|t| t.is_socket()) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", path, e)),
        _ => Ok(()),
    }
}

/// A listening unix socket. Its file is removed when it is dropped, unless another process
/// has put a socket of its own in that place meanwhile.
pub struct Listener {
    inner: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl Listener {
    /// Binds `path`; a socket left there by an earlier process is removed first.
    pub fn bind(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        check_is_socket(&path)?;
        remove(&path)?;
        let inner = UnixListener::bind(&path).map_err(|e| Error::io("bind", &path, e))?;
        Self::new(inner, path)
    }

    /// Binds under a temporary name in the same folder and renames it into place, so that
    /// clients which retry never find the path absent. The folder may be one that others write:
    /// a link or file that has the name goes, a folder is moved aside.
    pub fn bind_by_rename(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        let mut tries = MAKING_WAY;
        loop {
            let temporary = beside(&path);
            let inner =
                UnixListener::bind(&temporary).map_err(|e| Error::io("bind", &temporary, e))?;
            match std::fs::rename(&temporary, &path) {
                Ok(()) => return Self::new(inner, path),
                Err(e) => {
                    remove(&temporary)?;
                    tries -= 1;
                    if tries == 0 || !is_folder(&path) {
                        return Err(Error::io("rename into place", &path, e));
                    }
                }
            }
            let aside = beside(&path);
            tracing::warn!(path = %path.display(), aside = %aside.display(), "a folder is in the place of a socket");
            std::fs::rename(&path, &aside).map_err(|e| Error::io("move aside", &path, e))?;
        }
    }

    fn new(inner: UnixListener, path: PathBuf) -> Result<Self, Error> {
        let inode = std::fs::symlink_metadata(&path)
            .map_err(|e| Error::io("stat", &path, e))?
            .ino();
        Ok(Self { inner, path, inode })
    }

    /// The socket's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the socket's file if it is still this listener's; connections in the backlog
    /// are still accepted, new ones are refused at once instead of hanging.
    pub fn unlink(&self) {
        unlink_own(&self.path, self.inode);
    }
}

fn is_folder(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|m| m.is_dir())
}

/// A name in the same folder that nobody knows before it is taken.
fn beside(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = now.unwrap_or_default().as_nanos();
    path.with_file_name(format!(".{}.{nanos}.{count}", std::process::id()))
}

fn check_is_socket(path: &Path) -> Result<(), Error> {
    match std::fs::symlink_metadata(path) {
        Ok(m) if !m.file_type().is_socket() => Err(Error::NotASocket(path.to_owned())),
        _ => Ok(()),
    }
}

fn unlink_own(path: &Path, inode: u64) {
    if std::fs::symlink_metadata(path).is_ok_and(|m| m.ino() == inode)
        && let Err(e) = std::fs::remove_file(path)
    {
        tracing::debug!(path = %path.display(), error = %e, "socket file not removed");
    }
}

struct Unlink {
    path: PathBuf,
    inode: u64,
}

impl Drop for Unlink {
    fn drop(&mut self) {
        unlink_own(&self.path, self.inode);
    }
}

/// A tonic server builder with the settings that suit long-lived streams of Go peers: no
/// keep-alive pings, no idle or age limits, room for many concurrent calls.
pub fn server() -> Server<Layers> {
    Server::builder()
        .max_concurrent_streams(Some(1024))
        .layer(DeadlineLayer)
}

/// What wraps the services of every server here: `grpc-timeout` ends calls as in Go.
pub type Layers = Stack<DeadlineLayer, Identity>;

/// Serves `router` on `listener` until `shutdown` resolves. Then the socket's file is
/// removed, open calls get two seconds to end, and what is left is cut off: when this
/// returns (or is dropped), no connection of this server is alive.
pub async fn serve(
    listener: Listener,
    router: Router<Layers>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let stop = CancellationToken::new();
    let _cut_off = stop.clone().drop_guard();
    let (path, inode) = (listener.path.clone(), listener.inode);
    let unlink = Unlink {
        path: path.clone(),
        inode,
    };
    let drain = CancellationToken::new();
    let incoming = incoming(listener, stop);
    let mut server =
        pin!(router.serve_with_incoming_shutdown(incoming, drain.clone().cancelled_owned()));
    let mut shutdown = pin!(shutdown);
    let ended = tokio::select! {
        ended = &mut server => ended,
        () = &mut shutdown => {
            drop(unlink);
            drain.cancel();
            tokio::time::timeout(DRAIN, &mut server).await.unwrap_or(Ok(()))
        }
    };
    ended.map_err(|source| Error::Serve { path, source })
}

fn incoming(
    listener: Listener,
    stop: CancellationToken,
) -> impl tokio_stream::Stream<Item = io::Result<Repaired>> {
    let seats = Seats::new(MAX_CONNECTIONS);
    futures::stream::unfold(
        (listener, seats, stop),
        |(listener, seats, stop)| async move {
            loop {
                match listener.inner.accept().await {
                    Ok((stream, _)) => {
                        let process = stream.peer_cred().ok().and_then(|peer| peer.pid());
                        let Some(seat) = seats.take(process, &stop).await else {
                            tracing::warn!(path = %listener.path.display(), "too many connections");
                            continue;
                        };
                        let stream = Repaired::with_seat(stream, seat);
                        return Some((Ok(stream), (listener, seats, stop)));
                    }
                    Err(e) => {
                        // Out of descriptors or a peer that left early: the socket itself is fine.
                        tracing::warn!(path = %listener.path.display(), error = %e, "accept failed");
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                }
            }
        },
    )
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.unlink();
    }
}
