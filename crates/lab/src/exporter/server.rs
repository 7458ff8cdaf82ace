//! `/metrics` over HTTP.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use davit_listen::{ConnectionLimits, Connections, HttpLimits, Lease, Socket, TrackedBody};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Exporter;

/// Whoever asks is a scraper; few of them at once. Who takes all he can get keeps nobody else out.
const CONNECTIONS: ConnectionLimits = ConnectionLimits {
    strangers: 64,
    loopback: 64,
    known: 1,
    first_request: Duration::from_secs(10),
    idle: davit_listen::IDLE,
    long_running: 1,
    sessions: 1,
    session_idle: Duration::from_secs(90),
    // the metrics of the devices of a large node, some times over
    unsent: 64 << 20,
};

/// Why metrics are not served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
}

/// Serves an exporter's metrics under `/metrics` until `cancel`; `bound` learns the address.
///
/// # Errors
/// The address cannot be listened on.
pub async fn serve(
    exporter: Arc<Exporter>,
    address: SocketAddr,
    bound: impl FnOnce(SocketAddr),
    cancel: CancellationToken,
) -> Result<(), Error> {
    let listen = |source| Error::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(listen)?;
    bound(listener.local_addr().map_err(listen)?);
    let mut tasks = JoinSet::new();
    let open = Connections::new(CONNECTIONS);
    let serve = |socket, lease| connection(exporter.clone(), socket, lease);
    davit_listen::accept(&listener, &open, &mut tasks, &cancel, serve).await;
    tasks.shutdown().await;
    Ok(())
}

async fn connection(exporter: Arc<Exporter>, socket: Socket, lease: Lease) {
    let service = service_fn(move |request| {
        let (exporter, exchange) = (exporter.clone(), lease.begin());
        async move {
            let response = answer(&exporter, &request).await;
            Ok::<_, Infallible>(response.map(|body| TrackedBody::new(body, exchange)))
        }
    });
    let http = davit_listen::http(HttpLimits { streams: 1 }).http1_only();
    if let Err(error) = http.serve_connection(TokioIo::new(socket), service).await {
        tracing::debug!(%error, "connection ended");
    }
}

async fn answer(exporter: &Exporter, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let reply = |status: StatusCode, kind: &'static str, text: String| {
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        let kind = header::HeaderValue::from_static(kind);
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    };
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let text = "only GET\n".to_owned();
        return reply(StatusCode::METHOD_NOT_ALLOWED, "text/plain", text);
    }
    match request.uri().path() {
        "/metrics" => {
            let text = exporter.metrics().await.to_string();
            reply(
                StatusCode::OK,
                "text/plain; version=0.0.4; charset=utf-8",
                text,
            )
        }
        "/healthz" => reply(StatusCode::OK, "text/plain", "ok\n".to_owned()),
        _ => reply(
            StatusCode::NOT_FOUND,
            "text/plain",
            "see /metrics\n".to_owned(),
        ),
    }
}
