//! A webhook on a socket of its own: HTTPS with a certificate made for it, and a closure for what
//! it says.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// Code and body of an answer, and how long it takes.
pub(crate) struct Said {
    pub(crate) code: u16,
    pub(crate) body: String,
    pub(crate) after: Duration,
}

impl From<Value> for Said {
    fn from(value: Value) -> Self {
        Self {
            code: 200,
            body: value.to_string(),
            after: Duration::ZERO,
        }
    }
}

type Says = Arc<dyn Fn(&Value) -> Said + Send + Sync>;

pub(crate) struct Hook {
    pub(crate) address: SocketAddr,
    /// PEM of the certificate, which is its own authority.
    pub(crate) pem: String,
    heard: Arc<Mutex<Vec<(String, Value)>>>,
    bearers: Arc<Mutex<Vec<String>>>,
    connections: Arc<Mutex<usize>>,
    task: JoinHandle<()>,
}

impl Drop for Hook {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Hook {
    /// Serves `says` for `127.0.0.1` and the names given.
    pub(crate) async fn new<S: Into<Said>>(
        names: &[&str],
        says: impl Fn(&Value) -> S + Send + Sync + 'static,
    ) -> Self {
        let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        names.push("127.0.0.1".to_owned());
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let (pem, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(Mutex::new(0));
        let says: Says = Arc::new(move |body| says(body).into());
        let (log, count) = (Arc::clone(&heard), Arc::clone(&connections));
        let bearers = Arc::new(Mutex::new(Vec::new()));
        let tokens = Arc::clone(&bearers);
        let task = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                *count.lock() += 1;
                let (acceptor, says, log) = (acceptor.clone(), Arc::clone(&says), Arc::clone(&log));
                let tokens = Arc::clone(&tokens);
                open.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                        let bearer = request.headers().get("authorization");
                        let bearer = bearer.and_then(|value| value.to_str().ok());
                        tokens.lock().extend(bearer.map(str::to_owned));
                        answer(request, Arc::clone(&says), Arc::clone(&log))
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self {
            address,
            pem,
            heard,
            bearers,
            connections,
            task,
        }
    }

    /// The requests inside the reviews so far.
    pub(crate) fn heard(&self) -> Vec<Value> {
        let heard = self.heard.lock();
        heard
            .iter()
            .map(|(_, body)| body["request"].clone())
            .collect()
    }

    /// The whole bodies so far, with their paths.
    pub(crate) fn calls(&self) -> Vec<(String, Value)> {
        self.heard.lock().clone()
    }

    /// The `Authorization` headers so far.
    pub(crate) fn bearers(&self) -> Vec<String> {
        self.bearers.lock().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        *self.connections.lock()
    }

    /// `clientConfig` by URL.
    pub(crate) fn by_url(&self) -> Value {
        let url = format!("https://{}/hook", self.address);
        json!({ "url": url, "caBundle": self.bundle() })
    }

    pub(crate) fn bundle(&self) -> String {
        base64::engine::general_purpose::STANDARD.encode(&self.pem)
    }
}

async fn answer(
    request: Request<hyper::body::Incoming>,
    says: Says,
    log: Arc<Mutex<Vec<(String, Value)>>>,
) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
    let path = request.uri().to_string();
    let body = request
        .into_body()
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes);
    let body: Value = serde_json::from_slice(&body.unwrap_or_default()).unwrap_or_default();
    log.lock().push((path, body.clone()));
    let said = says(&body);
    tokio::time::sleep(said.after).await;
    let response = Response::builder()
        .status(said.code)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(said.body)));
    Ok(response.unwrap())
}

/// An AdmissionReview that answers `request` with `response`.
pub(crate) fn review(request: &Value, mut response: Value) -> Value {
    response["uid"] = request["request"]["uid"].clone();
    json!({ "apiVersion": request["apiVersion"], "kind": "AdmissionReview", "response": response })
}

/// Allows.
pub(crate) fn allow(request: &Value) -> Value {
    review(request, json!({ "allowed": true }))
}

/// Allows with a patch.
pub(crate) fn patch(request: &Value, patch: &Value) -> Value {
    let patch = base64::engine::general_purpose::STANDARD.encode(patch.to_string());
    review(
        request,
        json!({ "allowed": true, "patchType": "JSONPatch", "patch": patch }),
    )
}
