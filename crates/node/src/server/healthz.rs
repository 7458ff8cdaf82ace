//! Whether the agent is well: on the node server, and without TLS where the node's own machine asks (kubeadm waits for
//! `http://127.0.0.1:10248/healthz`).

use super::{HEADERS, accept, text};
use crate::context::Context;
use davit_streaming::Body;
use http::{Response, StatusCode};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The answer to a path below `/healthz`.
pub(super) fn answer(ctx: &Context, path: &[&str]) -> Response<Body> {
    match path {
        ["healthz"] if ctx.devices.healthy() => text(StatusCode::OK, "ok"),
        ["healthz"] => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "device-plugin registration server is not serving",
        ),
        ["healthz", "ping" | "log" | "syncloop"] => text(StatusCode::OK, "ok"),
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

/// Answers on a port of its own until `cancel`.
pub(crate) async fn run(ctx: Arc<Context>, listener: TcpListener, cancel: CancellationToken) {
    let mut connections = JoinSet::new();
    let serve = |stream| serve(ctx.clone(), stream);
    accept(&listener, &mut connections, &cancel, serve).await;
    connections.shutdown().await;
}

async fn serve(ctx: Arc<Context>, stream: TcpStream) {
    let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let ctx = ctx.clone();
        async move {
            let path: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
            Ok::<_, Infallible>(answer(&ctx, &path))
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "connection to healthz ended");
    }
}
