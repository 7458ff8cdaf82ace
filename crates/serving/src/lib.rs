//! The HTTPS server of a component that runs alone: health, metrics, the configuration in force. Who calls is found out by
//! certificate or by asking the API server about a bearer token, and what they may do by asking it as well.
#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use davit_client::subject::Subject;
use davit_client::{AccessAttributes, Reviewed, Reviews};
use davit_listen::{
    AnswerKind, ConnectionLimits, Connections, Exchange, HealthTallies, HttpLimits, Lease,
    PROMETHEUS, Socket, TlsPolicy, TrackedBody, metrics_page,
};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use prometheus_client::collector::Collector;
use prometheus_client::registry::Registry;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_util::sync::CancellationToken;

/// Connections of a server that monitors and probes ask.
const CONNECTIONS: ConnectionLimits = ConnectionLimits {
    strangers: 64,
    loopback: 128,
    known: 128,
    first_request: Duration::from_secs(15),
    idle: davit_listen::IDLE,
    long_running: 1,
    sessions: 1,
    session_idle: Duration::from_secs(90),
    unsent: 16 << 20,
};
/// The part of the files for connections.
const FILES: (usize, usize) = (1, 20);
const HANDSHAKE: Duration = Duration::from_secs(10);
const HTTP: HttpLimits = HttpLimits { streams: 16 };

/// What a component tells of itself.
pub trait ServedComponent: Send + Sync + 'static {
    /// Name of the check of `/readyz` beside `ping`.
    const CHECK: &'static str;

    /// Whether that check passes.
    fn is_ready(&self) -> bool;

    /// What `/configz` shows: the configuration in force, under its name.
    fn configuration(&self) -> serde_json::Value;

    /// Registers the metrics that are the component's own, beside those of tasks and work queues.
    fn register_metrics(&self, _registry: &mut Registry) {}

    /// What `/metrics/resources` shows; there is no such page without.
    fn resource_metrics(&self) -> Option<Box<dyn Collector>> {
        None
    }
}

/// How the server is set up.
#[derive(Debug)]
pub struct ServingOptions {
    /// Certificate and key of the server, PEM; without them a self-signed pair is made.
    pub certificate: Option<(Vec<u8>, Vec<u8>)>,
    /// Which versions and suites of TLS are offered.
    pub tls: TlsPolicy,
    /// Authorities of callers' certificates, PEM; without them no certificate counts.
    pub client_ca: Option<Vec<u8>>,
    /// Whom to ask about callers.
    pub reviews: Reviews,
    /// Paths that everybody may ask; one that ends in `*` stands for all that begin with it.
    pub always_allow_paths: Vec<String>,
}

/// Why the server cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// No certificate or key in the PEM.
    #[error("certificates of the component's server: {0}")]
    Pem(#[from] rustls_pki_types::pem::Error),
    /// TLS refuses them.
    #[error("TLS of the component's server: {0}")]
    Tls(#[from] tokio_rustls::rustls::Error),
    /// The authorities of callers cannot be used.
    #[error("client authority of the component's server: {0}")]
    ClientCa(String),
    /// Making the self-signed pair.
    #[error("cannot make a certificate for the component's server: {0}")]
    Generate(#[from] rcgen::Error),
}

/// A server that is set up.
pub struct ComponentServer<C> {
    listener: TcpListener,
    tls: TlsAcceptor,
    state: Arc<State<C>>,
}

struct State<C> {
    component: C,
    metrics: Registry,
    resources: Option<Registry>,
    tallies: HealthTallies,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    reviews: Reviews,
    always_allow_paths: Vec<String>,
}

impl<C> std::fmt::Debug for ComponentServer<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ComponentServer")
            .field("address", &self.listener.local_addr())
            .finish_non_exhaustive()
    }
}

impl<C: ServedComponent> ComponentServer<C> {
    /// A server about this component, on a port that is taken already.
    ///
    /// # Errors
    /// When certificates cannot be used.
    pub fn new(
        listener: TcpListener,
        component: C,
        options: ServingOptions,
    ) -> Result<Self, ServingError> {
        let clients = options.client_ca.as_deref().map(verifier).transpose()?;
        let builder = options.tls.builder()?;
        let builder = match &clients {
            Some(clients) => builder.with_client_cert_verifier(clients.clone()),
            None => builder.with_no_client_auth(),
        };
        let (certificate, key) = match options.certificate {
            Some(pair) => pair,
            None => self_signed()?,
        };
        let chain = CertificateDer::pem_slice_iter(&certificate).collect::<Result<Vec<_>, _>>()?;
        let mut config = builder.with_single_cert(chain, PrivateKeyDer::from_pem_slice(&key)?)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut metrics = Registry::default();
        component.register_metrics(&mut metrics);
        davit_task::register_metrics(&mut metrics);
        davit_client::register_queue_metrics(&mut metrics);
        let resources = component.resource_metrics().map(|collector| {
            let mut resources = Registry::default();
            resources.register_collector(collector);
            resources
        });
        let state = State {
            component,
            metrics,
            resources,
            tallies: HealthTallies::default(),
            clients,
            reviews: options.reviews,
            always_allow_paths: options.always_allow_paths,
        };
        Ok(Self {
            listener,
            tls: TlsAcceptor::from(Arc::new(config)),
            state: Arc::new(state),
        })
    }

    /// Serves until cancelled.
    pub async fn run(self, cancel: CancellationToken) {
        let mut tasks = JoinSet::new();
        let open = Connections::new(CONNECTIONS.within_files(FILES.0, FILES.1));
        let serve = |socket, lease| serve(self.state.clone(), self.tls.clone(), socket, lease);
        davit_listen::accept(&self.listener, &open, &mut tasks, &cancel, serve).await;
        tasks.shutdown().await;
    }
}

/// Callers without certificate may still have a token.
fn verifier(pem: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, ServingError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(ring::default_provider());
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let built = builder.allow_unauthenticated().build();
    built.map_err(|e| ServingError::ClientCa(e.to_string()))
}

/// Nobody verifies it, as with kube-scheduler's.
fn self_signed() -> Result<(Vec<u8>, Vec<u8>), rcgen::Error> {
    let names = ["localhost", "127.0.0.1"].map(str::to_owned);
    let made = rcgen::generate_simple_self_signed(names)?;
    let key = made.signing_key.serialize_pem();
    Ok((made.cert.pem().into_bytes(), key.into_bytes()))
}

async fn serve<C: ServedComponent>(
    state: Arc<State<C>>,
    tls: TlsAcceptor,
    socket: Socket,
    lease: Lease,
) {
    let accepting = davit_listen::handshake(tls.config().clone(), socket, &lease);
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, accepting).await else {
        return;
    };
    let chain = stream.get_ref().1.peer_certificates();
    let chain: Arc<[CertificateDer<'static>]> = chain.unwrap_or_default().into();
    let of_requests = lease.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (state, chain, exchange) = (state.clone(), chain.clone(), of_requests.begin());
        async move {
            let response = state.answer(&chain, &request, &exchange).await;
            Ok::<_, Infallible>(response.map(|body| TrackedBody::new(body, exchange)))
        }
    });
    let http = davit_listen::http(HTTP);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = lease.draining() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection to the component's server ended");
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let plain = header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

impl<C: ServedComponent> State<C> {
    async fn answer(
        &self,
        chain: &[CertificateDer<'_>],
        request: &Request<Incoming>,
        exchange: &Exchange,
    ) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        let open = |allowed: &String| match allowed.strip_suffix('*') {
            Some(beginning) => path.starts_with(beginning),
            None => path == allowed,
        };
        if !self.always_allow_paths.iter().any(open) {
            let Some(caller) = self.caller(chain, request.headers()).await else {
                return text(StatusCode::UNAUTHORIZED, "Unauthorized");
            };
            exchange.identified(&caller.name);
            let wanted = AccessAttributes::Path {
                verb: verb(request.method()).to_owned(),
                path: path.to_owned(),
            };
            if !self.reviews.allows(&caller, wanted).await {
                let message = format!(
                    "forbidden: User {:?} cannot {} path {path:?}",
                    caller.name,
                    verb(request.method())
                );
                return text(StatusCode::FORBIDDEN, message);
            }
        }
        if let Err(busy) = exchange.may_begin(AnswerKind::Whole) {
            return text(StatusCode::TOO_MANY_REQUESTS, busy.to_string());
        }
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return text(StatusCode::METHOD_NOT_ALLOWED, "405 method not allowed\n");
        }
        let verbose = request
            .uri()
            .query()
            .is_some_and(|q| q.split('&').any(|p| p.split('=').next() == Some("verbose")));
        self.page(path, verbose, request.headers())
    }

    /// Who calls; nobody if what is shown does not count. There are no anonymous callers.
    async fn caller(&self, chain: &[CertificateDer<'_>], headers: &HeaderMap) -> Option<Reviewed> {
        if let (Some(clients), Some((own, rest))) = (&self.clients, chain.split_first()) {
            // The certificate may have ended since the connection was made.
            clients
                .verify_client_cert(own, rest, UnixTime::now())
                .ok()?;
            let subject = Subject::of_certificate(own).ok()?;
            let mut groups = subject.organizations;
            groups.push("system:authenticated".to_owned());
            return Some(Reviewed {
                name: subject.common_name,
                groups,
                ..Reviewed::default()
            });
        }
        self.reviews.token(bearer(headers)?).await
    }

    fn page(&self, path: &str, verbose: bool, asked: &HeaderMap) -> Response<Full<Bytes>> {
        let ready = [("ping", true), (C::CHECK, self.component.is_ready())];
        // As it was authorized: there is one way to write a path.
        if path.strip_prefix("/readyz/") == Some(C::CHECK) {
            return health(path, &ready[1..], false);
        }
        if let ("/metrics/resources", Some(resources)) = (path, &self.resources) {
            return metrics(resources, asked);
        }
        match path {
            "/healthz" => self.health("healthz", &ready[..1], verbose),
            "/livez" => self.health("livez", &ready[..1], verbose),
            "/readyz" => self.health("readyz", &ready, verbose),
            "/healthz/ping" | "/livez/ping" | "/readyz/ping" => text(StatusCode::OK, "ok"),
            "/metrics" => metrics(&self.metrics, asked),
            "/metrics/slis" => page_of(PROMETHEUS, self.tallies.page()),
            "/configz" => page_of(
                "application/json",
                self.component.configuration().to_string(),
            ),
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    }

    fn health(
        &self,
        endpoint: &'static str,
        checks: &[(&'static str, bool)],
        verbose: bool,
    ) -> Response<Full<Bytes>> {
        for (check, passed) in checks {
            self.tallies.count(endpoint, check, *passed);
        }
        health(endpoint, checks, verbose)
    }
}

fn metrics(registry: &Registry, asked: &HeaderMap) -> Response<Full<Bytes>> {
    let mut open = String::new();
    if prometheus_client::encoding::text::encode(&mut open, registry).is_err() {
        return text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "metrics cannot be written\n",
        );
    }
    let (kind, text) = metrics_page(open, asked);
    page_of(kind, text)
}

fn page_of(kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::OK, body);
    let kind = header::HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// The API verb of a request.
fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::HEAD => "head",
        _ => "get",
    }
}

/// `ok`, or the list of checks where that is asked for or one of them fails.
fn health(path: &str, checks: &[(&str, bool)], verbose: bool) -> Response<Full<Bytes>> {
    let name = path
        .trim_start_matches('/')
        .split('/')
        .next()
        .unwrap_or_default();
    let well = checks.iter().all(|(_, ok)| *ok);
    if well && !verbose {
        return text(StatusCode::OK, "ok");
    }
    let line = |(check, ok): &(&str, bool)| {
        if *ok {
            format!("[+]{check} ok\n")
        } else {
            format!("[-]{check} failed: reason withheld\n")
        }
    };
    let list: String = checks.iter().map(line).collect();
    if well {
        text(StatusCode::OK, format!("{list}{name} check passed\n"))
    } else {
        text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("{list}{name} check failed\n"),
        )
    }
}

#[cfg(test)]
mod tests;
