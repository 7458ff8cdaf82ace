//! The validating webhook: what the definition's schema and rules cannot know.

use crate::certificate::ServingCertificate;
use crate::review;
use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use kube::Client;
use serde_json::Value;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Reviews are as large as the object, twice.
const BODY_LIMIT: usize = 4 << 20;
const CONNECTIONS: usize = 64;
/// How long a peer may take for the handshake and for a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves the webhook until the process ends.
///
/// # Errors
/// When the address cannot be had.
pub(crate) async fn serve(
    client: Client,
    versions: Arc<[u32]>,
    certificate: Arc<ServingCertificate>,
    address: SocketAddr,
) -> Result<()> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("listen on {address}"))?;
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = Arc::clone(&places).acquire_owned().await?;
        let (stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (acceptor, client, versions) =
            (acceptor.clone(), client.clone(), Arc::clone(&versions));
        tokio::spawn(async move {
            let _place = place;
            connection(stream, acceptor, client, versions).await;
        });
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: tokio_rustls::TlsAcceptor,
    client: Client,
    versions: Arc<[u32]>,
) {
    let Ok(Ok(stream)) = tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await else {
        return;
    };
    let service = hyper::service::service_fn(move |request| {
        let (client, versions) = (client.clone(), Arc::clone(&versions));
        async move { Ok::<_, Infallible>(answer(request, &client, &versions).await) }
    });
    let mut builder =
        hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PATIENCE)
        .max_concurrent_streams(16);
    if let Err(error) = builder
        .serve_connection(TokioIo::new(stream), service)
        .await
    {
        tracing::debug!(%error, "connection ended");
    }
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response
}

async fn answer(
    request: Request<Incoming>,
    client: &Client,
    versions: &[u32],
) -> Response<Full<Bytes>> {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/readyz") => return plain(StatusCode::OK, "ok\n"),
        (&Method::POST, "/validate") => {}
        _ => return plain(StatusCode::NOT_FOUND, "not found\n"),
    }
    let body = Limited::new(request.into_body(), BODY_LIMIT).collect();
    let body = match tokio::time::timeout(PATIENCE, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        _ => return plain(StatusCode::BAD_REQUEST, "the body did not come\n"),
    };
    let Ok(review) = serde_json::from_slice::<Value>(&body) else {
        return plain(StatusCode::BAD_REQUEST, "not an AdmissionReview\n");
    };
    let answered = review::answer(&review, client, versions).await;
    let mut response = plain(StatusCode::OK, answered.to_string());
    let json = hyper::header::HeaderValue::from_static("application/json");
    response
        .headers_mut()
        .insert(hyper::header::CONTENT_TYPE, json);
    response
}
