//! `/metrics` over HTTP.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Exporter;

/// Connections at once; more wait to be accepted.
const CONNECTIONS: usize = 64;
/// How long a client may take for the head of a request.
const HEAD: Duration = Duration::from_secs(10);
/// How long a connection may last; scrapers open another one.
const CONNECTION: Duration = Duration::from_secs(10 * 60);

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
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(exporter.clone(), stream));
                }
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
}

async fn connection(exporter: Arc<Exporter>, stream: TcpStream) {
    let service = service_fn(move |request| {
        let exporter = exporter.clone();
        async move { Ok::<_, Infallible>(answer(&exporter, &request).await) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD);
    let serving = server.serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION, serving).await {
        Ok(Ok(())) | Err(_) => {}
        Ok(Err(error)) => tracing::debug!(%error, "connection ended"),
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
