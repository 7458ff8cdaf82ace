//! Whether the agent is well: on the node server, and without TLS where the node's own machine asks (kubeadm waits for
//! `http://127.0.0.1:10248/healthz`).

use super::text;
use crate::context::Context;
use davit_listen::{ConnectionLimits, Connections, Lease, Socket, TrackedBody};
use davit_streaming::Body;
use http::{Response, StatusCode};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The answer to a path below `/healthz`.
pub(super) fn answer(ctx: &Context, path: &[&str]) -> Response<Body> {
    match path {
        ["healthz"] => whole(ctx),
        ["healthz", "ping" | "log" | "syncloop"] => text(StatusCode::OK, "ok"),
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

/// All checks.
fn whole(ctx: &Context) -> Response<Body> {
    let serves_plugins = ctx.devices.healthy();
    for (check, passed) in [
        ("ping", true),
        ("log", true),
        ("syncloop", true),
        ("device-plugin", serves_plugins),
    ] {
        ctx.metrics.health.count("healthz", check, passed);
    }
    match serves_plugins {
        true => text(StatusCode::OK, "ok"),
        false => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "device-plugin registration server is not serving",
        ),
    }
}

/// Connections of a port that only this machine asks.
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
/// The part of the files for connections.
const FILES: (usize, usize) = (1, 20);

/// Answers on a port of its own until `cancel`.
pub(crate) async fn run(ctx: Arc<Context>, listener: TcpListener, cancel: CancellationToken) {
    let mut tasks = JoinSet::new();
    let open = Connections::new(CONNECTIONS.within_files(FILES.0, FILES.1));
    let serve = |socket, lease| serve(ctx.clone(), socket, lease);
    davit_listen::accept(&listener, &open, &mut tasks, &cancel, serve).await;
    tasks.shutdown().await;
}

async fn serve(ctx: Arc<Context>, socket: Socket, lease: Lease) {
    let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let (ctx, exchange) = (ctx.clone(), lease.begin());
        async move {
            let path: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
            let response = answer(&ctx, &path);
            Ok::<_, Infallible>(response.map(|body| TrackedBody::new(body, exchange)))
        }
    });
    let http = davit_listen::http(super::HTTP).http1_only();
    let connection = http.serve_connection(TokioIo::new(socket), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "connection to healthz ended");
    }
}
