//! The loop that takes connections. It does not stop for anything a client can do.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::connections::{Connections, Lease};
use crate::socket::Socket;

const SWEEP: Duration = Duration::from_secs(1);
/// After an error that is not the peer's: out of files, typically.
const PAUSE: Duration = Duration::from_millis(20);

/// Takes connections until `cancel` and serves each as a task of `tasks`; a task ends when its connection must.
pub async fn accept<F: Future<Output = ()> + Send + 'static>(
    listener: &TcpListener,
    connections: &Arc<Connections>,
    tasks: &mut JoinSet<()>,
    cancel: &CancellationToken,
    serve: impl Fn(Socket, Lease) -> F,
) {
    let mut sweep = tokio::time::interval(SWEEP);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let accepted = tokio::select! {
            () = cancel.cancelled() => return,
            _ = sweep.tick() => {
                connections.sweep(Instant::now());
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        while tasks.try_join_next().is_some() {}
        match accepted {
            Ok((stream, peer)) => {
                let _slower = stream.set_nodelay(true);
                let (socket, lease) = connections.admit(stream, peer);
                let serving = serve(socket, lease.clone());
                tasks.spawn(async move {
                    tokio::select! {
                        () = serving => {}
                        () = lease.closed() => tracing::debug!(%peer, "connection closed"),
                    }
                });
            }
            Err(error) if is_of_the_peer(&error) => {
                tracing::debug!(%error, "connection ended before it was accepted");
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a connection");
                connections.shed();
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Errors of accept(2) that say something of one connection only.
fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionAborted
            | Kind::ConnectionReset
            | Kind::ConnectionRefused
            | Kind::Interrupted
            | Kind::TimedOut
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
            | Kind::PermissionDenied
    )
}
