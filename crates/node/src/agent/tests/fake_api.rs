//! A very small API server: objects as JSON, list, watch, create, patch, delete. Just what the node asks of one.

use bytes::Bytes;
use futures::stream;
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::broadcast;

#[derive(Default)]
struct State {
    /// Objects by path.
    objects: BTreeMap<String, Value>,
    version: u64,
}

/// The server. Clones share one state.
#[derive(Clone)]
pub(super) struct FakeApi {
    state: Arc<Mutex<State>>,
    events: broadcast::Sender<(String, Value)>,
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

fn answer(status: StatusCode, value: &Value) -> Answer {
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(
        "content-type",
        http::HeaderValue::from_static("application/json"),
    );
    response
}

fn failure(code: StatusCode, reason: &str) -> Answer {
    answer(
        code,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": reason, "reason": reason, "code": code.as_u16()}),
    )
}

/// An event as API servers write it: what it is comes first.
fn event_line(event: &Value) -> String {
    format!(
        "{{\"type\":{},\"object\":{}}}\n",
        event["type"], event["object"]
    )
}

/// The collection a path is in; pods of all namespaces are one for watchers.
fn collection(path: &str) -> String {
    let plural = [
        "pods",
        "nodes",
        "services",
        "leases",
        "events",
        "configmaps",
        "secrets",
    ];
    plural
        .iter()
        .find(|p| path.split('/').any(|s| s == **p))
        .map_or_else(String::new, |p| (*p).to_owned())
}

impl FakeApi {
    pub(super) fn new() -> Self {
        Self {
            state: Arc::default(),
            events: broadcast::channel(4096).0,
        }
    }

    pub(super) fn client(&self) -> kube::Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move { Ok::<_, Infallible>(this.handle(request).await) }
        });
        davit_client::in_process(service, "default")
    }

    pub(super) fn get(&self, path: &str) -> Option<Value> {
        self.state.lock().objects.get(path).cloned()
    }

    /// All objects below a path.
    pub(super) fn list(&self, below: &str) -> Vec<Value> {
        let state = self.state.lock();
        let all = state.objects.iter();
        all.filter(|(path, _)| path.starts_with(below))
            .map(|(_, value)| value.clone())
            .collect()
    }

    pub(super) fn put(&self, path: &str, value: Value) {
        let mut state = self.state.lock();
        self.store(&mut state, path, value);
    }

    fn store(&self, state: &mut State, path: &str, mut value: Value) -> Value {
        state.version += 1;
        value["metadata"]["resourceVersion"] = json!(state.version.to_string());
        let kind = if state.objects.contains_key(path) {
            "MODIFIED"
        } else {
            "ADDED"
        };
        state.objects.insert(path.to_owned(), value.clone());
        let _ = self.events.send((
            collection(path),
            json!({"type": kind, "object": value.clone()}),
        ));
        value
    }

    pub(super) fn remove(&self, path: &str) {
        let mut state = self.state.lock();
        if let Some(mut old) = state.objects.remove(path) {
            state.version += 1;
            old["metadata"]["resourceVersion"] = json!(state.version.to_string());
            let _ = self
                .events
                .send((collection(path), json!({"type": "DELETED", "object": old})));
        }
    }

    async fn handle(&self, request: Request<Body>) -> Answer {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let query = head.uri.query().unwrap_or_default().to_owned();
        let body = body
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes)
            .unwrap_or_default();
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        match head.method {
            Method::GET if query.contains("watch=") => self.watch(&path),
            Method::GET => self.read(&path),
            Method::POST => self.create(&path, body),
            Method::PATCH => self.patch(&path, &body),
            Method::DELETE => {
                self.remove(&path);
                answer(
                    StatusCode::OK,
                    &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}),
                )
            }
            _ => failure(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
        }
    }

    fn read(&self, path: &str) -> Answer {
        let state = self.state.lock();
        if let Some(object) = state.objects.get(path) {
            return answer(StatusCode::OK, object);
        }
        let plural = path.rsplit('/').next().unwrap_or_default();
        if collection(path) != plural {
            return failure(StatusCode::NOT_FOUND, "NotFound");
        }
        let items: Vec<&Value> = state
            .objects
            .iter()
            .filter(|(p, _)| collection(p) == plural)
            .map(|(_, v)| v)
            .collect();
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": state.version.to_string()}, "items": items});
        answer(StatusCode::OK, &list)
    }

    fn watch(&self, path: &str) -> Answer {
        let wanted = collection(path);
        let receiver = self.events.subscribe();
        let frames = stream::unfold(receiver, move |mut receiver| {
            let wanted = wanted.clone();
            async move {
                loop {
                    let (kind, event) = receiver.recv().await.ok()?;
                    if kind == wanted {
                        return Some((
                            Ok::<_, Infallible>(Frame::data(Bytes::from(event_line(&event)))),
                            receiver,
                        ));
                    }
                }
            }
        });
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        response.headers_mut().insert(
            "content-type",
            http::HeaderValue::from_static("application/json"),
        );
        response
    }

    fn create(&self, path: &str, mut body: Value) -> Answer {
        let mut state = self.state.lock();
        let name = body["metadata"]["name"]
            .as_str()
            .unwrap_or("generated")
            .to_owned();
        let full = format!("{path}/{name}");
        if state.objects.contains_key(&full) {
            return failure(StatusCode::CONFLICT, "AlreadyExists");
        }
        if body["metadata"]["uid"].is_null() {
            body["metadata"]["uid"] = json!(format!("uid-{name}"));
        }
        let stored = self.store(&mut state, &full, body);
        answer(StatusCode::CREATED, &stored)
    }

    fn patch(&self, path: &str, body: &Value) -> Answer {
        let path = path.trim_end_matches("/status");
        let mut state = self.state.lock();
        let Some(mut object) = state.objects.get(path).cloned() else {
            return failure(StatusCode::NOT_FOUND, "NotFound");
        };
        merge(&mut object, body);
        let stored = self.store(&mut state, path, object);
        answer(StatusCode::OK, &stored)
    }
}

/// A merge patch in which lists of conditions merge by type and addresses by themselves; of `$patch` entries only a
/// condition's `delete` and the `replace` of addresses are done.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (key, value) in patch {
        if value.is_null() {
            if let Some(map) = target.as_object_mut() {
                map.remove(key);
            }
        } else if let (Value::Array(new), "conditions") = (value, key.as_str()) {
            let mut list = target[key].as_array().cloned().unwrap_or_default();
            for condition in new {
                if condition["$patch"] == "delete" {
                    list.retain(|c| c["type"] != condition["type"]);
                    continue;
                }
                match list.iter_mut().find(|c| c["type"] == condition["type"]) {
                    Some(old) => merge(old, condition),
                    None => list.push(condition.clone()),
                }
            }
            target[key] = Value::Array(list);
        } else if let Value::Array(new) = value {
            let is_whole = new.iter().any(|v| v["$patch"] == "replace");
            let mut list: Vec<Value> = new
                .iter()
                .filter(|v| v.get("$patch").is_none())
                .cloned()
                .collect();
            if ["podIPs", "hostIPs"].contains(&key.as_str()) && !is_whole {
                let old = target[key].as_array().cloned().unwrap_or_default();
                list.extend(old.into_iter().filter(|ip| !new.contains(ip)));
            }
            target[key] = list.into();
        } else {
            merge(&mut target[key], value);
        }
    }
}
