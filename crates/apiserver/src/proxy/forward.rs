//! The forwarding itself: one connection a request, upgraded connections piped byte for byte.

use std::time::Duration;

use bytes::Bytes;
use davit_api::host_port::{bracketed, host_port};
use davit_api::status::Status;
use davit_listen::ON_BEHALF_OF;
use davit_webhook::{answered, is_refusal, refusal};
use http::header::{ACCEPT_ENCODING, HOST, HeaderName, HeaderValue};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use sha2::{Digest, Sha256};

use super::links::Links;
use super::no_node;
use crate::body::{RequestBody, ResponseBody, request_body};
use crate::context::HandlerResult;
use crate::hop_headers::{asks_upgrade, remove_hop_headers, start_hop, switched_unasked};
use crate::node_client::{Destination, Driven, Transport};
use crate::server::ApiServer;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// What to forward, and where.
pub(crate) struct Forward {
    pub(crate) backend: Destination,
    /// Path and query for the backend.
    pub(crate) uri: Uri,
    /// Who asks; a node counts by it.
    pub(crate) user: String,
    /// For proxied web servers: the path under which the client sees `/` of the backend.
    pub(crate) rewrite_prefix: Option<String>,
}

/// Sends the request to the backend and answers with what comes back.
pub(crate) async fn forward(
    server: &ApiServer,
    forward: Forward,
    mut request: Request<RequestBody>,
) -> HandlerResult {
    let upgrade = asks_upgrade(request.headers());
    let links = forward
        .rewrite_prefix
        .as_deref()
        .map(|prefix| links(prefix, &forward.backend, request.headers()));
    if links.is_some() {
        // Pages are read on their way back.
        request.headers_mut().remove(ACCEPT_ENCODING);
    }
    let client_side = upgrade.then(|| hyper::upgrade::on(&mut request));
    let is_head = request.method() == http::Method::HEAD;
    let (response, connection) = send(server, &forward, request, upgrade).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(match client_side {
            Some(client_side) => server.nodes().pipe(response, client_side, Some(connection)),
            None => switched_unasked(),
        });
    }
    let (mut parts, body) = response.into_parts();
    remove_hop_headers(&mut parts.headers);
    let ended = server.shutdown().clone().cancelled_owned();
    let stream = futures::StreamExt::take_until(body.into_data_stream(), ended);
    let stream = futures::StreamExt::inspect(stream, move |_| {
        let _driven = &connection;
    });
    let body = match links {
        Some(links) => {
            links.rewrite_location(&mut parts.headers);
            if Links::are_in(&parts.headers) && !is_head {
                let page = links.rewrite_page(&mut parts.headers, stream);
                ResponseBody::stream(page)
            } else {
                ResponseBody::stream(futures::TryStreamExt::map_err(stream, Into::into))
            }
        }
        None => ResponseBody::stream(futures::TryStreamExt::map_err(stream, Into::into)),
    };
    Ok(Response::from_parts(parts, body))
}

/// Reads a document of at most `limit` bytes.
pub(crate) async fn read(
    server: &ApiServer,
    backend: Destination,
    uri: Uri,
    limit: usize,
) -> Result<Bytes, Status> {
    let forward = Forward {
        backend,
        uri,
        user: String::new(),
        rewrite_prefix: None,
    };
    let request = Request::new(request_body(Empty::<Bytes>::new()));
    let (response, _connection) = send(server, &forward, request, false).await?;
    if response.status() != StatusCode::OK {
        let code = response.status();
        return Err(Status::unknown(format!("the backend answered {code}")));
    }
    let body = Limited::new(response.into_body(), limit).collect().await;
    let body = body.map_err(|error| Status::unknown(error.to_string()))?;
    Ok(body.to_bytes())
}

async fn send(
    server: &ApiServer,
    forward: &Forward,
    request: Request<RequestBody>,
    upgrade: bool,
) -> Result<(Response<hyper::body::Incoming>, Driven), Status> {
    let backend = &forward.backend;
    let io = tokio::time::timeout(CONNECT_TIMEOUT, connect(server, backend))
        .await
        .map_err(|_| dial_error(backend, &"i/o timeout"))?
        .map_err(|error| match is_refusal(&error) {
            true => Status::bad_request(error.to_string()),
            false => dial_error(backend, &error),
        })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(io))
        .await
        .map_err(|error| dial_error(backend, &error))?;
    let connection = server.nodes().drive(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "connection to a backend ended");
        }
    });
    let (mut parts, body) = request.into_parts();
    parts.uri = forward.uri.clone();
    parts.version = http::Version::HTTP_11;
    parts.extensions.clear();
    start_hop(&mut parts.headers, upgrade);
    parts.headers.remove(ON_BEHALF_OF);
    if backend.node.is_some() {
        parts.headers.insert(ON_BEHALF_OF, mark_of(&forward.user));
    }
    if let Some(prefix) = &forward.rewrite_prefix {
        tell_origin(&mut parts.headers, prefix, &parts.uri);
    }
    let host = host_port(&backend.host, backend.port);
    if let Ok(value) = HeaderValue::from_str(&host) {
        parts.headers.insert(HOST, value);
    }
    let request = Request::from_parts(parts, body);
    let sent = answered(request, |request| sender.send_request(request));
    let failed = |error: &dyn std::fmt::Display| {
        Status::unknown(format!("error sending request to backend: {error}"))
    };
    let response = tokio::time::timeout(ANSWER_TIMEOUT, sent)
        .await
        .map_err(|_| Status::timeout("the backend did not answer", 0))?
        .map_err(|error| failed(&error))?
        .map_err(|error| failed(&error))?;
    Ok((response, connection))
}

async fn connect(server: &ApiServer, to: &Destination) -> std::io::Result<Box<dyn Transport>> {
    let addresses = server.nodes().addresses_of(to).await?;
    if to.node.is_some() && no_node::is_any(server, &addresses).await? {
        return Err(refusal());
    }
    server.nodes().connect(to, &addresses).await
}

fn dial_error(backend: &Destination, error: &dyn std::fmt::Display) -> Status {
    let address = host_port(&backend.host, backend.port);
    Status::unknown(format!(
        "error dialing backend: dial tcp {address}: {error}"
    ))
}

/// What tells a user from others, and not who it is.
fn mark_of(user: &str) -> HeaderValue {
    let digest = Sha256::digest(user);
    let (first, _) = digest.split_first_chunk().unwrap_or((&[0; 8], &[]));
    HeaderValue::from(u64::from_be_bytes(*first))
}

/// Tells a proxied web server under which address the client sees it.
fn tell_origin(headers: &mut HeaderMap, prefix: &str, uri: &Uri) {
    let host = headers.get(HOST).cloned();
    for name in ["x-forwarded-uri", "x-forwarded-host", "x-forwarded-proto"] {
        headers.remove(name);
    }
    if let Ok(seen) = HeaderValue::try_from(format!("{prefix}{}", uri.path())) {
        headers.insert(HeaderName::from_static("x-forwarded-uri"), seen);
    }
    if let Some(host) = host {
        headers.insert(HeaderName::from_static("x-forwarded-host"), host);
    }
    let proto = HeaderValue::from_static("https");
    headers.insert(HeaderName::from_static("x-forwarded-proto"), proto);
}

/// What the backend is called, and where the client sees it.
fn links(prefix: &str, backend: &Destination, headers: &HeaderMap) -> Links {
    let host = bracketed(&backend.host).into_owned();
    let asked = headers.get(HOST).and_then(|value| value.to_str().ok());
    let hosts = [host_port(&host, backend.port), host];
    Links::new(prefix, hosts.into_iter().chain(asked.map(str::to_owned)))
}
