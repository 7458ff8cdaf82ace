//! The node's HTTPS server, which the API server calls for logs, exec, attach and port-forward.
//!
//! The paths are those of the original's node server. Callers show a client certificate of the cluster's CA or a bearer
//! token; members of `system:masters` may do everything, others what a SubjectAccessReview on `nodes/...` allows.

mod auth;
mod cadvisor;
mod configz;
mod devices;
mod exposition;
mod healthz;
mod log_files;
mod logs;
pub(crate) mod plain;
mod resource_metrics;

mod serving;
mod stats;
mod streams;
mod tls;
mod usage;

use crate::context::Context;
use crate::options::DEFAULT_SESSION_IDLE;
use auth::Access;
use bytes::Bytes;
use davit_listen::{
    AnswerKind, ConnectionLimits, Connections, Exchange, HttpLimits, Lease, ON_BEHALF_OF, Shares,
    Socket, TrackedBody, counted_as, cross_site,
};
use davit_pods::pod::PodExt;
use davit_streaming::Body;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Connections of a server whose process may open enough files.
const CONNECTIONS: ConnectionLimits = ConnectionLimits {
    strangers: 512,
    loopback: 512,
    known: 2048,
    first_request: Duration::from_secs(15),
    idle: davit_listen::IDLE,
    long_running: 2048,
    sessions: 1024,
    session_idle: DEFAULT_SESSION_IDLE,
    unsent: 64 << 20,
};
/// Commands that are waited for: of a pod that runs very many some end with their clients.
const COMMANDS: usize = 2048;
/// The part of the files for connections that the node's server gets; the API server has the rest.
const FILES: (usize, usize) = (3, 20);
const HANDSHAKE: Duration = Duration::from_secs(10);
/// No HTTP/2 is spoken.
const HTTP: HttpLimits = HttpLimits { streams: 1 };

/// Why the node server does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The port is taken, or the address is not ours.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Certificates.
    #[error(transparent)]
    Tls(#[from] tls::Error),
}

/// Takes the port of the node server.
///
/// # Errors
/// [`Error::Bind`].
pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address)
        .await
        .map_err(|source| Error::Bind { address, source })
}

/// The node server.
pub(crate) struct Server {
    state: Arc<Shared>,
    listener: TcpListener,
    port: u16,
    tls: TlsAcceptor,
    /// The certificate that is asked for, if it is.
    requested: Option<Arc<serving::Serving>>,
}

/// What requests share.
pub(crate) struct Shared {
    pub(crate) ctx: Arc<Context>,
    /// Whose client certificates count.
    clients: Option<tls::Clients>,
    access: Access,
    /// Upgraded connections, which outlive their request.
    sessions: Mutex<JoinSet<()>>,
    /// Commands in containers, which outlive their clients, by pod.
    left: Arc<Shares>,
}

impl Shared {
    /// Keeps a session of an upgraded connection running until it ends or the server does.
    fn keep(&self, session: impl Future<Output = ()> + Send + 'static) {
        let mut sessions = self.sessions.lock();
        while sessions.try_join_next().is_some() {}
        sessions.spawn(session);
    }
}

impl Server {
    /// A server on a port that was taken before.
    ///
    /// # Errors
    /// [`Error::Tls`] when the certificates cannot be used.
    pub(crate) fn new(ctx: Arc<Context>, listener: TcpListener) -> Result<Self, Error> {
        let requested = ctx
            .options
            .server_tls_bootstrap
            .then(|| Arc::new(serving::Serving::load(&ctx)));
        let clients = tls::clients(&ctx)?;
        let config = tls::server_config(&ctx, clients.clone(), requested.clone())?;
        let tls = TlsAcceptor::from(config);
        let port = listener.local_addr().map_or(ctx.options.port, |a| a.port());
        let options = &ctx.options;
        let access = Access::new(
            ctx.client.clone(),
            options.node_name.clone(),
            options.access,
        );
        Ok(Self {
            state: Arc::new(Shared {
                ctx,
                clients,
                access,
                sessions: Mutex::default(),
                left: Shares::new(COMMANDS),
            }),
            listener,
            port,
            tls,
            requested,
        })
    }

    /// The port that is listened on.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Serves until `cancel`.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        let mut connections = JoinSet::new();
        if let Some(requested) = self.requested.clone() {
            let renewal = serving::run(self.state.ctx.clone(), requested, cancel.clone());
            connections.spawn(renewal);
        }
        let limits = ConnectionLimits {
            session_idle: self.state.ctx.options.session_idle,
            ..CONNECTIONS
        };
        let open = Connections::new(limits.within_files(FILES.0, FILES.1));
        let serve =
            |socket, lease| serve_connection(self.state.clone(), self.tls.clone(), socket, lease);
        davit_listen::accept(&self.listener, &open, &mut connections, &cancel, serve).await;
        connections.shutdown().await;
        let mut sessions = std::mem::take(&mut *self.state.sessions.lock());
        sessions.shutdown().await;
    }
}

async fn serve_connection(state: Arc<Shared>, tls: TlsAcceptor, socket: Socket, lease: Lease) {
    let accepting = davit_listen::handshake(tls.config().clone(), socket, &lease);
    let stream = match tokio::time::timeout(HANDSHAKE, accepting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake with the node server failed");
            return;
        }
        Err(_) => return,
    };
    let chain = stream.get_ref().1.peer_certificates();
    let chain: Arc<[CertificateDer<'static>]> = chain.unwrap_or_default().into();
    let of_requests = lease.clone();
    let service = service_fn(move |request| {
        let (state, chain) = (state.clone(), chain.clone());
        let exchange = of_requests.begin();
        async move {
            let response = answer(&state, &chain, request, &exchange).await;
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                exchange.upgraded();
            }
            Ok::<_, Infallible>(response.map(|body| TrackedBody::new(body, exchange)))
        }
    });
    let http = davit_listen::http(HTTP).http1_only();
    let connection = http.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = lease.draining() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection to the node server ended");
    }
}

async fn answer(
    state: &Arc<Shared>,
    chain: &[CertificateDer<'static>],
    request: Request<Incoming>,
    exchange: &Exchange,
) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let headers = request.headers();
    if !chain.is_empty()
        && !cross_site::is_passed_on(headers)
        && let Err(foreign) = cross_site::check(request.method(), request.uri(), headers)
    {
        return text(StatusCode::FORBIDDEN, format!("{foreign}\n"));
    }
    let certified = state.clients.as_ref();
    let caller = match certified.and_then(|clients| auth::by_certificate(&**clients, chain)) {
        Some(caller) => Some(caller),
        // a certificate that has ended makes nobody anonymous
        None if !chain.is_empty() && auth::bearer(headers).is_none() => None,
        None => state.access.without_certificate(headers).await,
    };
    let Some(caller) = caller else {
        return text(StatusCode::UNAUTHORIZED, "Unauthorized");
    };
    let allowed = state.access.allows(&caller, request.method(), &path).await;
    // Others could call themselves by ever new names.
    let may_all = allowed && auth::subresources(&path) == ["proxy"];
    let on_behalf_of = headers.get(ON_BEHALF_OF).filter(|_| may_all);
    if !caller.is_anonymous() {
        exchange.identified(&counted_as(caller.name(), on_behalf_of));
    }
    if !allowed {
        let (subresources, verb) = (
            auth::subresources(&path).join(" "),
            auth::verb(request.method(), &path),
        );
        let message = format!(
            "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{subresources}])\n",
            caller.name()
        );
        return text(StatusCode::FORBIDDEN, message);
    }
    if let Err(busy) = exchange.may_begin(kind_of_answer(&path)) {
        return text(StatusCode::TOO_MANY_REQUESTS, busy.to_string());
    }
    route(state, request, &path).await
}

fn kind_of_answer(path: &str) -> AnswerKind {
    let first = path.trim_start_matches('/').split('/').next();
    match first {
        Some("containerLogs" | "logs") => AnswerKind::Stream,
        Some("exec" | "attach" | "portForward") => AnswerKind::Session,
        _ => AnswerKind::Whole,
    }
}

async fn route(state: &Arc<Shared>, request: Request<Incoming>, path: &str) -> Response<Body> {
    let ctx = &state.ctx;
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let served = ctx.options.served;
    if let Some(why) = served.refusal(&parts) {
        return text(StatusCode::METHOD_NOT_ALLOWED, why);
    }
    if let Some(answer) = open(ctx, &request, &parts).await {
        return answer;
    }
    let get = request.method() == Method::GET;
    match parts.as_slice() {
        ["runningpods"] if get => pods(ctx),
        ["configz"] if get && served.debugging => configz::serve(ctx),
        ["devices"] if get => devices::serve(ctx, &request),
        ["logs", ..] if get => log_files::serve(ctx, request.uri(), path).await,
        ["containerLogs", ns, pod, container] if get => {
            logs::serve(ctx, &request, ns, pod, container).await
        }
        ["run", ..] if request.method() != Method::POST => not_allowed(),
        ["exec" | "attach" | "portForward", ..] if !get && request.method() != Method::POST => {
            not_allowed()
        }
        ["exec" | "attach" | "run" | "portForward", ..] => {
            streams::route(state, request, &parts).await
        }
        _ => not_found(),
    }
}

/// What is answered on the port without TLS as well: it tells what node and pods are and use, and does nothing.
async fn open(
    ctx: &Arc<Context>,
    request: &Request<Incoming>,
    parts: &[&str],
) -> Option<Response<Body>> {
    let get = request.method() == Method::GET;
    Some(match parts {
        ["healthz", ..] => healthz::answer(ctx, parts),
        ["metrics"] if get => metrics(ctx.metrics.encode(), request.headers()),
        ["metrics", "slis"] if get => exposition::serve_text(ctx.metrics.health.page()),
        ["metrics", "resource"] if get => resource_metrics::serve(ctx).await,
        ["metrics", "cadvisor"] if get => cadvisor::serve(ctx).await,
        ["metrics", "probes"] if get => metrics(ctx.probes.metrics().encode(), request.headers()),
        ["pods"] if get => pods(ctx),
        ["stats", "summary"] | ["stats"] if get => stats::summary(ctx).await,
        _ => return None,
    })
}

fn not_found() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

fn not_allowed() -> Response<Body> {
    text(StatusCode::METHOD_NOT_ALLOWED, "405 method not allowed\n")
}

fn pods(ctx: &Context) -> Response<Body> {
    use davit_containermanager::ActivePods;
    let items: Vec<Pod> = ctx
        .pods
        .all_pods()
        .into_iter()
        .map(|pod| {
            let mut pod = (*pod).clone();
            if let Some(status) = ctx.status.get(pod.uid()) {
                pod.status = Some(status);
            }
            pod
        })
        .collect();
    json(
        &serde_json::json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}),
    )
}

/// A plain answer.
pub(crate) fn text(status: StatusCode, message: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(message.into())
        .map_err(|never| match never {})
        .boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    set_type(&mut response, "text/plain; charset=utf-8");
    response
}

fn metrics(encoded: String, asked: &HeaderMap) -> Response<Body> {
    let (kind, page) = davit_listen::metrics_page(encoded, asked);
    let mut response = text(StatusCode::OK, page);
    set_type(&mut response, kind);
    response
}

fn json(value: &serde_json::Value) -> Response<Body> {
    let mut response = text(StatusCode::OK, value.to_string());
    set_type(&mut response, "application/json");
    response
}

fn set_type(response: &mut Response<Body>, value: &'static str) {
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(value));
}

/// Pairs of a query, decoded.
pub(crate) fn query(uri: &http::Uri) -> Vec<(String, String)> {
    let decode = |text: &str| {
        percent_encoding::percent_decode_str(&text.replace('+', " "))
            .decode_utf8_lossy()
            .into_owned()
    };
    let pairs = uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter(|p| !p.is_empty());
    pairs
        .map(|p| p.split_once('=').unwrap_or((p, "")))
        .map(|(k, v)| (decode(k), decode(v)))
        .collect()
}

/// The first value of a parameter.
pub(crate) fn parameter<'a>(query: &'a [(String, String)], name: &str) -> Option<&'a str> {
    query
        .iter()
        .find(|(k, _)| k == name)
        .map(|(_, v)| v.as_str())
        .filter(|v| !v.is_empty())
}

/// Whether a parameter says yes, as Go reads booleans.
pub(crate) fn flag(query: &[(String, String)], names: &[&str]) -> bool {
    names.iter().any(|n| {
        matches!(
            parameter(query, n),
            Some("1" | "t" | "T" | "true" | "TRUE" | "True")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let uri: http::Uri = "/exec/a/b/c?command=echo&command=a%20b+c&input=1&tty=false"
            .parse()
            .unwrap();
        let q = query(&uri);
        let commands: Vec<&str> = q
            .iter()
            .filter(|(k, _)| k == "command")
            .map(|(_, v)| v.as_str())
            .collect();
        assert_eq!(commands, ["echo", "a b c"]);
        assert!(flag(&q, &["input", "stdin"]) && !flag(&q, &["tty"]));
    }
}
