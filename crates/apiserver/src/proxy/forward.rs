//! The forwarding itself: one connection a request, upgraded connections piped byte for byte.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use davit_api::status::Status;
use davit_webhook::tls::{ShownIdentity, TlsError, Trust, client_config};
use davit_webhook::{Loopback, is_refusal, refusal};
use http::header::{
    ACCEPT_ENCODING, CONNECTION, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::links::Links;
use super::no_node;
use super::target::Backend;
use crate::body::{RequestBody, ResponseBody, request_body};
use crate::context::HandlerResult;
use crate::server::ApiServer;
use davit_pki::first_certificate;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const BUFFER: usize = 32 * 1024;

/// What to forward, and where.
pub(crate) struct Forward {
    pub(crate) backend: Backend,
    /// Path and query for the backend.
    pub(crate) uri: Uri,
    /// For proxied web servers: the path under which the client sees `/` of the backend.
    pub(crate) rewrite_prefix: Option<String>,
}

/// Connects to nodes and pods and keeps track of what is connected.
pub(crate) struct NodeClient {
    node: TlsConnector,
    /// The cluster's own authority, DER: what it has signed says whose it is.
    authority: Option<Vec<u8>>,
    plain: TlsConnector,
    loopback: Loopback,
    tasks: TaskTracker,
    cancel: CancellationToken,
}

impl std::fmt::Debug for NodeClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NodeClient({} connections)", self.tasks.len())
    }
}

trait Transport: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Transport for T {}

impl NodeClient {
    /// `identity` is what nodes are shown, `ca` verifies them when given. What `authority`, the cluster's own, has signed
    /// must be the node's that is meant. Everything ends with `cancel`.
    pub(crate) fn new(
        identity: Option<Arc<ShownIdentity>>,
        ca: Option<&str>,
        authority: Option<&str>,
        loopback: Loopback,
        cancel: CancellationToken,
    ) -> Result<Self, TlsError> {
        let trust = ca.map_or(Trust::Any, |pem| Trust::Authorities(pem.to_owned()));
        Ok(Self {
            node: TlsConnector::from(Arc::new(client_config(&trust, identity)?)),
            authority: authority.and_then(first_certificate),
            plain: TlsConnector::from(Arc::new(client_config(&Trust::Any, None)?)),
            loopback,
            tasks: TaskTracker::new(),
            cancel,
        })
    }

    /// Runs something that goes on after its request was answered, until it or the server ends.
    pub(crate) fn track(&self, work: impl Future<Output = ()> + Send + 'static) {
        let cancel = self.cancel.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = cancel.cancelled() => {}
                () = work => {}
            }
        });
    }

    /// Waits until everything forwarded has ended.
    pub(crate) async fn drained(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Sends the request to the backend and answers with what comes back.
    pub(crate) async fn forward(
        &self,
        server: &ApiServer,
        forward: Forward,
        mut request: Request<RequestBody>,
    ) -> HandlerResult {
        let upgrade = request.headers().contains_key(UPGRADE);
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
        let response = self.send(server, &forward, request, upgrade).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(client_side) = client_side
        {
            return Ok(self.pipe(response, client_side));
        }
        let (mut parts, body) = response.into_parts();
        remove_hop_headers(&mut parts.headers);
        let ended = server.shutdown().clone().cancelled_owned();
        let stream = futures::StreamExt::take_until(body.into_data_stream(), ended);
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
        &self,
        server: &ApiServer,
        backend: Backend,
        uri: Uri,
        limit: usize,
    ) -> Result<Bytes, Status> {
        let forward = Forward {
            backend,
            uri,
            rewrite_prefix: None,
        };
        let request = Request::new(request_body(Empty::<Bytes>::new()));
        let response = self.send(server, &forward, request, false).await?;
        if response.status() != StatusCode::OK {
            let code = response.status();
            return Err(Status::unknown(format!("the backend answered {code}")));
        }
        let body = Limited::new(response.into_body(), limit).collect().await;
        let body = body.map_err(|error| Status::unknown(error.to_string()))?;
        Ok(body.to_bytes())
    }

    async fn send(
        &self,
        server: &ApiServer,
        forward: &Forward,
        request: Request<RequestBody>,
        upgrade: bool,
    ) -> Result<Response<hyper::body::Incoming>, Status> {
        let backend = &forward.backend;
        let io = tokio::time::timeout(CONNECT_TIMEOUT, self.connect(backend, server))
            .await
            .map_err(|_| dial_error(backend, &"i/o timeout"))?
            .map_err(|error| match is_refusal(&error) {
                true => Status::bad_request(error.to_string()),
                false => dial_error(backend, &error),
            })?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(io))
            .await
            .map_err(|error| dial_error(backend, &error))?;
        let cancel = self.cancel.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = cancel.cancelled() => {}
                ended = connection.with_upgrades() => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "connection to a backend ended");
                    }
                }
            }
        });
        let (mut parts, body) = request.into_parts();
        parts.uri = forward.uri.clone();
        parts.version = http::Version::HTTP_11;
        parts.extensions.clear();
        start_hop(&mut parts.headers, upgrade);
        if let Some(prefix) = &forward.rewrite_prefix {
            tell_origin(&mut parts.headers, prefix, &parts.uri);
        }
        let host = format!("{}:{}", bracketed(&backend.host), backend.port);
        if let Ok(value) = HeaderValue::from_str(&host) {
            parts.headers.insert(HOST, value);
        }
        let sent = sender.send_request(Request::from_parts(parts, body));
        tokio::time::timeout(ANSWER_TIMEOUT, sent)
            .await
            .map_err(|_| Status::timeout("the backend did not answer", 0))?
            .map_err(|error| Status::unknown(format!("error sending request to backend: {error}")))
    }

    async fn connect(
        &self,
        backend: &Backend,
        server: &ApiServer,
    ) -> std::io::Result<Box<dyn Transport>> {
        let reach = if backend.node.is_some() {
            self.loopback.of_nodes()
        } else {
            self.loopback.of_endpoints()
        };
        let addresses = match backend.via {
            Some(address) => vec![SocketAddr::new(address, backend.port)],
            None => reach.resolve(&backend.host, backend.port).await?,
        };
        if backend.node.is_some() && no_node::is_any(server, &addresses).await? {
            return Err(refusal());
        }
        let stream = TcpStream::connect(addresses.as_slice()).await?;
        stream.set_nodelay(true)?;
        if !backend.tls {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(backend.host.clone())
            .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidInput, error))?;
        let Some(node) = &backend.node else {
            return Ok(Box::new(self.plain.connect(name, stream).await?));
        };
        let stream = self.node.connect(name, stream).await?;
        let (_, session) = stream.get_ref();
        let shown = session.peer_certificates().and_then(<[_]>::first);
        match &self.authority {
            Some(authority) if !shown.is_some_and(|own| no_node::may_be(own, authority, node)) => {
                Err(std::io::Error::new(
                    std::io::ErrorKind::InvalidData,
                    format!("tls: failed to verify certificate: it is not that of node {node}"),
                ))
            }
            _ => Ok(Box::new(stream)),
        }
    }

    /// Answers 101 and joins both sides once they are upgraded.
    pub(crate) fn pipe(
        &self,
        mut response: Response<hyper::body::Incoming>,
        client_side: hyper::upgrade::OnUpgrade,
    ) -> Response<ResponseBody> {
        let backend_side = hyper::upgrade::on(&mut response);
        let cancel = self.cancel.clone();
        self.tasks.spawn(async move {
            let piped = async {
                let (client, backend) = futures::try_join!(client_side, backend_side)?;
                let (mut client, mut backend) = (TokioIo::new(client), TokioIo::new(backend));
                let copied = tokio::io::copy_bidirectional_with_sizes(
                    &mut client,
                    &mut backend,
                    BUFFER,
                    BUFFER,
                );
                if let Err(error) = copied.await {
                    tracing::debug!(%error, "upgraded connection ended");
                }
                Ok::<_, hyper::Error>(())
            };
            tokio::select! {
                () = cancel.cancelled() => {}
                result = piped => if let Err(error) = result {
                    tracing::debug!(%error, "upgrading a connection");
                },
            }
        });
        let (parts, _) = response.into_parts();
        Response::from_parts(parts, ResponseBody::empty())
    }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

fn dial_error(backend: &Backend, error: &dyn std::fmt::Display) -> Status {
    let address = format!("{}:{}", bracketed(&backend.host), backend.port);
    Status::unknown(format!(
        "error dialing backend: dial tcp {address}: {error}"
    ))
}

/// Makes headers those of a hop of its own: of the last one an upgrade stays where it is wanted, and
/// nothing that its `Connection` names goes on.
pub(crate) fn start_hop(headers: &mut HeaderMap, upgrade: bool) {
    let protocol = headers.get(UPGRADE).cloned();
    let protocol = protocol.filter(|protocol| upgrade && !carries_requests(protocol));
    remove_hop_headers(headers);
    if let Some(protocol) = protocol {
        headers.insert(UPGRADE, protocol);
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    }
}

/// Whether further requests would come by a protocol (HTTP/2 in plain text, TLS within the connection): nobody would have
/// looked at them here, and to a backend they would come from this server, with whatever identity they claim.
fn carries_requests(protocol: &HeaderValue) -> bool {
    let Ok(protocols) = protocol.to_str() else {
        return true;
    };
    protocols.split(',').any(|protocol| {
        let protocol = protocol.trim().to_ascii_lowercase();
        ["h2", "http/", "tls/"]
            .iter()
            .any(|carrier| protocol.starts_with(carrier))
    })
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

pub(crate) fn remove_hop_headers(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [CONNECTION, UPGRADE, TRANSFER_ENCODING] {
        headers.remove(name);
    }
    for name in ["keep-alive", "proxy-connection", "te", "trailer"] {
        headers.remove(name);
    }
}

/// What the backend is called, and where the client sees it.
fn links(prefix: &str, backend: &Backend, headers: &HeaderMap) -> Links {
    let host = bracketed(&backend.host);
    let asked = headers.get(HOST).and_then(|value| value.to_str().ok());
    let hosts = [format!("{host}:{}", backend.port), host];
    Links::new(prefix, hosts.into_iter().chain(asked.map(str::to_owned)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_upgrade_carries_requests_that_nobody_has_looked_at() {
        let passed = |protocol: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(UPGRADE, HeaderValue::from_static(protocol));
            let connection = HeaderValue::from_static("Upgrade, HTTP2-Settings");
            headers.insert(CONNECTION, connection);
            headers.insert("http2-settings", HeaderValue::from_static("AAMAAABk"));
            start_hop(&mut headers, true);
            assert!(!headers.contains_key("http2-settings"));
            headers.contains_key(UPGRADE) && headers.contains_key(CONNECTION)
        };
        for protocol in ["websocket", "SPDY/3.1"] {
            assert!(passed(protocol), "{protocol}");
        }
        for protocol in ["h2c", "H2C", "websocket, h2c", "h2", "HTTP/2.0", "TLS/1.0"] {
            assert!(!passed(protocol), "{protocol}");
        }
    }
}
