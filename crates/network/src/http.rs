//! Small answers by HTTP, without TLS: health and metrics.

use davit_listen::{ConnectionLimits, Connections, HttpLimits, Lease, Socket, TrackedBody};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Between tries to listen.
const RETRY: Duration = Duration::from_secs(10);
/// Whoever asks is a prober or scraper; few of them at once.
const CONNECTIONS: ConnectionLimits = ConnectionLimits {
    strangers: 64,
    loopback: 64,
    known: 1,
    first_request: Duration::from_secs(15),
    idle: davit_listen::IDLE,
    long_running: 1,
    sessions: 1,
    session_idle: Duration::from_secs(90),
    unsent: 1 << 20,
};

/// What is answered to a path.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    pub(crate) status: StatusCode,
    pub(crate) kind: &'static str,
    /// More of the head.
    pub(crate) headers: Vec<(&'static str, HeaderValue)>,
    pub(crate) body: String,
}

impl Page {
    pub(crate) fn text(body: impl Into<String>) -> Self {
        Self {
            status: StatusCode::OK,
            kind: "text/plain; charset=utf-8",
            headers: Vec::new(),
            body: body.into(),
        }
    }

    pub(crate) fn json(status: StatusCode, body: &serde_json::Value) -> Self {
        Self {
            status,
            kind: "application/json",
            headers: vec![(
                "x-content-type-options",
                HeaderValue::from_static("nosniff"),
            )],
            body: body.to_string(),
        }
    }

    /// Metrics, as `prometheus_client` writes them.
    pub(crate) fn metrics(body: String) -> Self {
        Self {
            kind: "application/openmetrics-text; version=1.0.0; charset=utf-8",
            ..Self::text(body)
        }
    }

    fn missing() -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            ..Self::text("404 page not found\n")
        }
    }

    fn response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from(self.body)));
        *response.status_mut() = self.status;
        let kind = HeaderValue::from_static(self.kind);
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        for (name, value) in self.headers {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

/// Answers to paths; nothing for those that there are not.
pub(crate) type Pages = Arc<dyn Fn(&str) -> Option<Page> + Send + Sync>;

/// Listens at the address, as soon as that can be had, and answers until `cancel`. `what` is said in the log.
pub(crate) async fn keep(
    what: &'static str,
    address: SocketAddr,
    pages: Pages,
    cancel: CancellationToken,
) {
    let mut told = false;
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) if told => tracing::debug!(%address, %error, what, "cannot listen"),
            Err(error) => {
                told = true;
                tracing::warn!(%address, %error, "{what}: cannot listen, trying again");
            }
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    };
    serve(listener, pages, cancel).await;
}

/// Answers until `cancel`.
pub(crate) async fn serve(listener: TcpListener, pages: Pages, cancel: CancellationToken) {
    let mut tasks = JoinSet::new();
    let open = Connections::new(CONNECTIONS);
    let serve = |socket, lease| connection(pages.clone(), socket, lease);
    davit_listen::accept(&listener, &open, &mut tasks, &cancel, serve).await;
    tasks.shutdown().await;
}

async fn connection(pages: Pages, socket: Socket, lease: Lease) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (pages, exchange) = (pages.clone(), lease.begin());
        async move {
            let page = match *request.method() {
                Method::GET | Method::HEAD => pages(request.uri().path()),
                _ => Some(Page {
                    status: StatusCode::METHOD_NOT_ALLOWED,
                    ..Page::text("only GET\n")
                }),
            };
            let response = page.unwrap_or_else(Page::missing).response();
            Ok::<_, Infallible>(response.map(|body| TrackedBody::new(body, exchange)))
        }
    });
    let http = davit_listen::http(HttpLimits { streams: 1 }).http1_only();
    let serving = http.serve_connection(TokioIo::new(socket), service);
    if let Err(error) = serving.await {
        tracing::debug!(%error, "connection ended");
    }
}
