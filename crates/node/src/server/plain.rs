//! Servers without TLS: health for the node's own machine (kubeadm waits for `http://127.0.0.1:10248/healthz`), and the
//! kubelet's port that only tells (`readOnlyPort`).

use super::{HTTP, healthz, not_found, open, text};
use crate::context::Context;
use crate::served::ServedPaths;
use davit_listen::{ConnectionLimits, Connections, Lease, Socket, TrackedBody};
use davit_streaming::Body;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Connections of a port that few ask.
const CONNECTIONS: ConnectionLimits = ConnectionLimits {
    strangers: 64,
    loopback: 128,
    known: 1,
    first_request: Duration::from_secs(15),
    idle: davit_listen::IDLE,
    long_running: 1,
    sessions: 1,
    session_idle: Duration::from_secs(90),
    unsent: 1 << 20,
};
/// As much as a node of many pods says of them at once.
const UNSENT: usize = 64 << 20;
/// The part of the files for connections.
const FILES: (usize, usize) = (1, 20);

/// What a port without TLS is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlainPort {
    /// Paths below `/healthz`.
    Health,
    /// What the node and its pods are and use.
    ReadOnly,
}

impl PlainPort {
    /// Answers on this port until `cancel`.
    pub(crate) async fn run(
        self,
        ctx: Arc<Context>,
        listener: TcpListener,
        cancel: CancellationToken,
    ) {
        let mut tasks = JoinSet::new();
        let limits = match self {
            Self::Health => CONNECTIONS,
            Self::ReadOnly => ConnectionLimits {
                unsent: UNSENT,
                ..CONNECTIONS
            },
        };
        let connections = Connections::new(limits.within_files(FILES.0, FILES.1));
        let serve = |socket, lease| self.serve(ctx.clone(), socket, lease);
        davit_listen::accept(&listener, &connections, &mut tasks, &cancel, serve).await;
        tasks.shutdown().await;
    }

    async fn serve(self, ctx: Arc<Context>, socket: Socket, lease: Lease) {
        let service = service_fn(move |request: Request<Incoming>| {
            let (ctx, exchange) = (ctx.clone(), lease.begin());
            async move {
                let response = self.answer(&ctx, &request).await;
                Ok::<_, Infallible>(response.map(|body| TrackedBody::new(body, exchange)))
            }
        });
        let http = davit_listen::http(HTTP).http1_only();
        let connection = http.serve_connection(TokioIo::new(socket), service);
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to a port without TLS ended");
        }
    }

    async fn answer(self, ctx: &Arc<Context>, request: &Request<Incoming>) -> Response<Body> {
        let path: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
        if self == Self::Health {
            return healthz::answer(ctx, &path);
        }
        if let Some(why) = ServedPaths::READ_ONLY.refusal(&path) {
            return text(StatusCode::METHOD_NOT_ALLOWED, why);
        }
        let answered = open(ctx, request, &path).await;
        answered.unwrap_or_else(not_found)
    }
}
