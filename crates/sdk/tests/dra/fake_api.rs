//! As much of an API server as a driver talks to: objects as JSON by path, list, watch, create, replace, delete.

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use tokio::sync::broadcast;

pub(crate) const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;
/// Changes an object before it is stored, or refuses it.
type Admit = Box<dyn Fn(&mut Value) -> Result<(), String> + Send>;

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    version: u64,
    writes: Vec<String>,
    admit: Option<Admit>,
}

/// The server. Clones share one state.
#[derive(Clone)]
pub(crate) struct FakeApi {
    state: Arc<Mutex<State>>,
    events: broadcast::Sender<Value>,
}

fn answer(code: u16, value: &Value) -> Answer {
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())).boxed_unsync());
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert("content-type", json);
    response
}

fn failure(code: u16, message: &str) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": "", "code": code});
    answer(code, &status)
}

impl FakeApi {
    pub(crate) fn new() -> Self {
        let api = Self {
            state: Arc::default(),
            events: broadcast::channel(4096).0,
        };
        let node = json!({"metadata": {"name": "node-1", "uid": "node-uid"}});
        api.put("/api/v1/nodes/node-1", node);
        api.state.lock().unwrap().writes.clear();
        api
    }

    pub(crate) fn client(&self) -> kube::Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move { Ok::<_, Infallible>(this.handle(request).await) }
        });
        kube::Client::new(service, "default")
    }

    pub(crate) fn put(&self, path: &str, value: Value) -> Value {
        let mut state = self.state.lock().unwrap();
        self.store(&mut state, path, value)
    }

    pub(crate) fn admit(&self, admit: impl Fn(&mut Value) -> Result<(), String> + Send + 'static) {
        self.state.lock().unwrap().admit = Some(Box::new(admit));
    }

    pub(crate) fn slices(&self) -> Vec<Value> {
        let state = self.state.lock().unwrap();
        let below =
            |(path, value): (&String, &Value)| path.starts_with(SLICES).then(|| value.clone());
        state.objects.iter().filter_map(below).collect()
    }

    /// The writes so far, `VERB name`, which are forgotten.
    pub(crate) fn take_writes(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().writes)
    }

    pub(crate) fn remove(&self, path: &str) -> Option<Value> {
        let mut state = self.state.lock().unwrap();
        let mut old = state.objects.remove(path)?;
        state.version += 1;
        old["metadata"]["resourceVersion"] = json!(state.version.to_string());
        let _ = self.events.send(json!({"type": "DELETED", "object": old}));
        Some(old)
    }

    fn store(&self, state: &mut State, path: &str, mut value: Value) -> Value {
        state.version += 1;
        value["metadata"]["resourceVersion"] = json!(state.version.to_string());
        if value["metadata"]["uid"].is_null() {
            value["metadata"]["uid"] = json!(format!("uid-{}", state.version));
        }
        let there = state
            .objects
            .insert(path.to_owned(), value.clone())
            .is_some();
        let kind = if there { "MODIFIED" } else { "ADDED" };
        let _ = self.events.send(json!({"type": kind, "object": value}));
        value
    }

    async fn handle(&self, request: Request<Body>) -> Answer {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let is_watch = head.uri.query().unwrap_or_default().contains("watch=");
        let body = body.collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        match head.method {
            Method::GET if is_watch => self.watch(),
            Method::GET => self.read(&path),
            Method::DELETE => {
                self.state
                    .lock()
                    .unwrap()
                    .writes
                    .push(format!("DELETE {path}"));
                match self.remove(&path) {
                    Some(old) => answer(200, &old),
                    None => failure(404, "not found"),
                }
            }
            method => self.write(&method, path, body),
        }
    }

    fn read(&self, path: &str) -> Answer {
        let state = self.state.lock().unwrap();
        if path == SLICES {
            drop(state);
            let version = self.state.lock().unwrap().version.to_string();
            let list = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSliceList",
                "metadata": {"resourceVersion": version}, "items": self.slices()});
            return answer(200, &list);
        }
        match state.objects.get(path) {
            Some(object) => answer(200, object),
            None => failure(404, "not found"),
        }
    }

    fn write(&self, method: &Method, path: String, mut body: Value) -> Answer {
        let mut state = self.state.lock().unwrap();
        let name = body["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let path = if *method == Method::POST {
            format!("{path}/{name}")
        } else {
            path
        };
        state.writes.push(format!("{method} {name}"));
        let there = state
            .objects
            .get(&path)
            .map(|o| o["metadata"]["resourceVersion"].clone());
        match (&there, *method == Method::POST) {
            (Some(_), true) => return failure(409, "already exists"),
            (None, false) => return failure(404, "not found"),
            (Some(version), false) if *version != body["metadata"]["resourceVersion"] => {
                return failure(409, "modified");
            }
            _ => {}
        }
        if let Some(admit) = &state.admit
            && let Err(message) = admit(&mut body)
        {
            return failure(422, &message);
        }
        answer(
            if there.is_none() { 201 } else { 200 },
            &self.store(&mut state, &path, body),
        )
    }

    fn watch(&self) -> Answer {
        let events = stream::unfold(self.events.subscribe(), |mut events| async move {
            let event = events.recv().await.ok()?;
            Some((format!("{event}\n"), events))
        });
        let frames = events.map(|line| Ok(Frame::data(Bytes::from(line))));
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        let json = http::HeaderValue::from_static("application/json");
        response.headers_mut().insert("content-type", json);
        response
    }
}
