//! The record of one request and the events made from it.

use davit_access::authn::ConnectionIdentity;
use davit_access::{RequestInfo, UserInfo};
use davit_api::meta;
use http::HeaderMap;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::policy::{AuditDecision, Level, Stage};

const USER_AGENT: usize = 1024;

/// What is known of a request before it is handled.
pub struct Request<'a> {
    /// The id that the answer carries, too.
    pub audit_id: &'a str,
    /// Path and query.
    pub uri: &'a str,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// What it asks for.
    pub info: &'a RequestInfo,
    /// Who asks.
    pub user: &'a UserInfo,
    /// None for callers in the same process.
    pub connection: Option<&'a ConnectionIdentity>,
    /// When it came.
    pub received: jiff::Timestamp,
}

/// What is recorded of a request.
#[derive(Debug)]
pub struct Record {
    verdict: AuditDecision,
    /// What does not change.
    base: Map<String, Value>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    object_ref: Option<Map<String, Value>>,
    impersonated: Option<Value>,
    request: Option<Value>,
    response: Option<Value>,
    status: Option<Value>,
    annotations: Map<String, Value>,
}

impl Record {
    pub(super) fn new(verdict: AuditDecision, request: &Request<'_>) -> Self {
        let info = request.info;
        let mut base = Map::new();
        let mut put = |key: &str, value: Value| base.insert(key.to_owned(), value);
        put("kind", json!("Event"));
        put("apiVersion", json!("audit.k8s.io/v1"));
        put("level", json!(verdict.level.name()));
        put("auditID", json!(request.audit_id));
        put("requestURI", json!(request.uri));
        put("verb", json!(info.verb));
        put("user", request.user.to_value());
        put("sourceIPs", json!(source_ips(request)));
        if let Some(agent) = request.headers.get(http::header::USER_AGENT) {
            let agent = String::from_utf8_lossy(agent.as_bytes());
            let agent: String = agent.chars().take(USER_AGENT).collect();
            put("userAgent", json!(agent));
        }
        put("requestReceivedTimestamp", json!(micros(request.received)));
        let state = State {
            object_ref: info.is_resource.then(|| object_ref(info)),
            ..State::default()
        };
        Self {
            verdict,
            base,
            state: Mutex::new(state),
        }
    }

    /// Puts an annotation on it; the first value of a key stays.
    pub fn annotate(&self, key: &str, value: &str) {
        let mut state = self.state.lock();
        match state.annotations.get(key) {
            None => {
                state.annotations.insert(key.to_owned(), json!(value));
            }
            Some(held) if held == value => {}
            Some(held) => {
                tracing::warn!(key, %held, value, "audit annotation is set already");
            }
        }
    }

    pub(super) fn impersonated(&self, user: &UserInfo) {
        self.state.lock().impersonated = Some(user.to_value());
    }

    pub(super) fn request_object(&self, sent: &Value) {
        let mut state = self.state.lock();
        if let Some(reference) = &mut state.object_ref {
            for (key, of) in [
                ("namespace", meta::namespace(sent)),
                ("name", meta::name(sent)),
                ("uid", meta::uid(sent)),
                ("resourceVersion", meta::resource_version(sent)),
            ] {
                if !of.is_empty() && !reference.contains_key(key) {
                    reference.insert(key.to_owned(), json!(of));
                }
            }
        }
        if self.verdict.level >= Level::Request && state.request.is_none() {
            state.request = Some(self.shown(sent.clone()));
        }
    }

    pub(super) fn response_object(&self, answered: impl FnOnce() -> Value) {
        if self.verdict.level >= Level::RequestResponse {
            let shown = self.shown(answered());
            self.state.lock().response = Some(shown);
        }
    }

    /// Records the outcome; `status` is the error, if it is one.
    pub fn outcome(&self, code: u16, status: Option<&davit_api::status::Status>) {
        let mut outcome = json!({ "metadata": {}, "code": code });
        if let Some(status) = status {
            let whole = serde_json::to_value(status).unwrap_or_default();
            for key in ["status", "message", "reason", "details"] {
                if let Some(value) = whole.get(key).filter(|value| !value.is_null()) {
                    outcome[key] = value.clone();
                }
            }
            self.response_object(|| whole);
        }
        self.state.lock().status = Some(outcome);
    }

    fn shown(&self, mut value: Value) -> Value {
        if self.verdict.omit_managed_fields {
            davit_schema::apply::strip(&mut value);
            for item in value
                .get_mut("items")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                davit_schema::apply::strip(item);
            }
        }
        value
    }

    /// The event of a stage; none when the policy leaves it out.
    pub(super) fn event(&self, stage: Stage) -> Option<Value> {
        if self.verdict.omit_stages.contains(&stage) {
            return None;
        }
        let mut event = self.base.clone();
        let state = self.state.lock();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                event.insert(key.to_owned(), value);
            }
        };
        put("stage", Some(json!(stage.name())));
        put(
            "stageTimestamp",
            Some(json!(micros(jiff::Timestamp::now()))),
        );
        put("objectRef", state.object_ref.clone().map(Value::Object));
        put("impersonatedUser", state.impersonated.clone());
        if stage != Stage::RequestReceived {
            put("responseStatus", state.status.clone());
            put("requestObject", state.request.clone());
            put("responseObject", state.response.clone());
            if !state.annotations.is_empty() {
                put(
                    "annotations",
                    Some(Value::Object(state.annotations.clone())),
                );
            }
        }
        Some(Value::Object(event))
    }
}

fn object_ref(info: &RequestInfo) -> Map<String, Value> {
    let mut reference = Map::new();
    for (key, value) in [
        ("resource", info.resource.as_str()),
        ("namespace", info.namespace.as_deref().unwrap_or_default()),
        ("name", &info.name),
        ("apiGroup", &info.group),
        ("apiVersion", &info.version),
        ("subresource", &info.subresource),
    ] {
        if !value.is_empty() {
            reference.insert(key.to_owned(), json!(value));
        }
    }
    reference
}

/// Where the request came from: what proxies say, then the peer.
fn source_ips(request: &Request<'_>) -> Vec<String> {
    let header = |name: &str| {
        request
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let mut ips: Vec<String> = header("x-forwarded-for")
        .split(',')
        .chain(std::iter::once(header("x-real-ip")))
        .filter_map(|text| text.trim().parse::<std::net::IpAddr>().ok())
        .map(|ip| ip.to_string())
        .collect();
    let peer = match request.connection {
        Some(connection) => connection.peer.map(|peer| peer.ip().to_string()),
        None => Some("::1".to_owned()),
    };
    if let Some(peer) = peer.filter(|peer| ips.last() != Some(peer)) {
        ips.push(peer);
    }
    ips.dedup();
    ips
}

fn micros(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}
