//! One APIService with a service: the server behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use davit_access::UserInfo;
use davit_webhook::tls::{ShownIdentity, Trust, client_config};
use davit_webhook::{
    ClientConfig, Connector, Dial, ServiceReference, Target, Webhooks, WithinLimits, answered,
    go_cause,
};
use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::rt::TokioTimer;
use serde_json::Value;
use tokio::sync::Notify;

use super::USER;
use super::documents::Documents;
use super::identity::identity_headers;
use super::view::RemoteVersion;
use crate::body::{RequestBody, request_body};

const IDLE: Duration = Duration::from_secs(90);
const MAX_IDLE: usize = 32;

type Client = legacy::Client<WithinLimits, RequestBody>;

/// A server that answers a version of a group.
pub(crate) struct Backend {
    /// Name of the APIService.
    pub(crate) name: String,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) service: ServiceReference,
    /// What the APIService says, to see whether it has changed.
    pub(crate) spec: Value,
    client: Result<Client, String>,
    available: AtomicBool,
    /// Asks for a check before its time.
    pub(crate) recheck: Notify,
    pub(crate) documents: ArcSwap<Documents>,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Backend({})", self.name)
    }
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

impl Backend {
    /// The backend of an APIService; `None` when it names no service.
    pub(crate) fn new(
        object: &Value,
        webhooks: &Webhooks,
        identity: Option<Arc<ShownIdentity>>,
    ) -> Option<Self> {
        let spec = &object["spec"];
        let config = ClientConfig::from_value(spec).ok();
        spec.get("service").filter(|s| s.is_object())?;
        let service = match config.as_ref().map(|c| &c.target) {
            Some(Target::Service(service)) => service.clone(),
            _ => ServiceReference {
                namespace: text(&spec["service"], "namespace"),
                name: text(&spec["service"], "name"),
                port: 443,
                path: String::new(),
            },
        };
        let trust = match config {
            _ if spec["insecureSkipTLSVerify"] == true => Ok(Trust::Any),
            Some(config) => Ok(config.trust),
            None => Err("caBundle cannot be used".to_owned()),
        };
        let client = trust
            .and_then(|trust| client_config(&trust, identity).map_err(|error| error.to_string()))
            .map(|tls| {
                let dial = Dial::Service {
                    services: webhooks.services().clone(),
                    namespace: service.namespace.clone(),
                    name: service.name.clone(),
                    port: service.port,
                };
                let connector = Connector::new(dial, Some(Arc::new(tls)), Some(service.host()));
                legacy::Client::builder(webhooks.tasks().clone())
                    .pool_timer(TokioTimer::new())
                    .pool_idle_timeout(IDLE)
                    .pool_max_idle_per_host(MAX_IDLE)
                    .build(connector.within_limits())
            });
        let conditions = object
            .pointer("/status/conditions")
            .and_then(Value::as_array);
        let was_available = conditions
            .into_iter()
            .flatten()
            .any(|c| c["type"] == "Available" && c["status"] == "True");
        Some(Self {
            name: davit_registry::object::name(object).to_owned(),
            group: text(spec, "group"),
            version: text(spec, "version"),
            service,
            spec: spec.clone(),
            client,
            available: AtomicBool::new(was_available),
            recheck: Notify::new(),
            documents: ArcSwap::default(),
        })
    }

    /// Whether requests are forwarded; decided by the checks.
    pub(crate) fn is_available(&self) -> bool {
        self.available.load(Ordering::Acquire)
    }

    pub(crate) fn set_available(&self, available: bool) {
        self.available.store(available, Ordering::Release);
    }

    /// `{service}.{namespace}.svc:{port}`
    pub(crate) fn authority(&self) -> String {
        format!("{}:{}", self.service.host(), self.service.port)
    }

    /// `https://…` of a path on the backend.
    pub(crate) fn url(&self, path_and_query: &str) -> Result<Uri, String> {
        Uri::builder()
            .scheme("https")
            .authority(self.authority())
            .path_and_query(path_and_query)
            .build()
            .map_err(|error| error.to_string())
    }

    /// Sends a request whose URI is one of [`Backend::url`].
    ///
    /// # Errors
    /// Why no answer came, in the words of Go.
    pub(crate) async fn send(
        &self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, String> {
        let client = self.client.as_ref().map_err(Clone::clone)?;
        answered(request, |request| client.request(request))
            .await
            .map_err(|error| error.to_string())?
            .map_err(|error| go_cause(&error))
    }

    /// Reads a document as the aggregator itself.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(crate) async fn get(
        &self,
        path: &str,
        accept: &'static str,
        limit: usize,
    ) -> Result<(StatusCode, HeaderMap, Bytes), String> {
        let mut request = Request::new(request_body(Empty::<Bytes>::new()));
        *request.method_mut() = Method::GET;
        *request.uri_mut() = self.url(path)?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        identity_headers(headers, &UserInfo::system(USER))?;
        let (parts, body) = self.send(request).await?.into_parts();
        let body = Limited::new(body, limit).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        Ok((parts.status, parts.headers, body))
    }

    /// What discovery shows of it.
    pub(crate) fn describe(&self) -> RemoteVersion {
        let documents = self.documents.load();
        RemoteVersion {
            group: self.group.clone(),
            version: self.version.clone(),
            group_priority: self.spec["groupPriorityMinimum"].as_i64().unwrap_or(0),
            version_priority: self.spec["versionPriority"].as_i64().unwrap_or(0),
            resources: Arc::clone(&documents.resources),
            fresh: documents.fresh,
            openapi: documents
                .openapi
                .as_ref()
                .map(|held| Arc::clone(&held.document)),
            openapi_v2: documents.openapi_v2.clone(),
        }
    }
}
