//! As much of an API server as a scheduler needs: list, watch, binding, status, events, deletion.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// A request that changed something.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) path: String,
    pub(super) body: Value,
}

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<(String, String, String), Value>,
    history: Vec<(u64, String, Value)>,
    watchers: Vec<(String, mpsc::UnboundedSender<Value>)>,
    log: Vec<Entry>,
    refuse_bindings: usize,
    lose_claims: usize,
    slow_returns: Duration,
    classic: bool,
}

pub(super) struct Fake {
    state: Mutex<State>,
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

/// An event as API servers write it: what it is comes first.
fn event_line(event: &Value) -> String {
    format!(
        "{{\"type\":{},\"object\":{}}}\n",
        event["type"], event["object"]
    )
}

fn key(plural: &str, namespace: &str, name: &str) -> (String, String, String) {
    (plural.to_owned(), namespace.to_owned(), name.to_owned())
}

fn answer(code: u16, body: &Value) -> Answer {
    let body = http_body_util::Full::new(Bytes::from(body.to_string())).boxed();
    let response = Response::builder()
        .status(code)
        .header("content-type", "application/json");
    response.body(body).unwrap()
}

fn failure(code: u16, reason: &str) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                        "message": reason, "reason": reason, "code": code});
    answer(code, &status)
}

impl State {
    fn notify(&mut self, plural: &str, kind: &str, object: &Value) {
        let event = json!({"type": kind, "object": object});
        self.history
            .push((self.version, plural.to_owned(), event.clone()));
        self.watchers
            .retain(|(p, w)| p != plural || w.send(event.clone()).is_ok());
    }

    fn put(&mut self, plural: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let text = |field: &str| {
            object["metadata"][field]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let old = self.objects.insert(
            key(plural, &text("namespace"), &text("name")),
            object.clone(),
        );
        self.notify(
            plural,
            if old.is_some() { "MODIFIED" } else { "ADDED" },
            &object,
        );
        object
    }
}

impl Fake {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
        })
    }

    pub(super) fn client(self: &Arc<Self>) -> kube::Client {
        let fake = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let fake = fake.clone();
            async move { Ok::<_, Infallible>(fake.call(request).await) }
        });
        davit_client::in_process(service, "default")
    }

    pub(super) fn put(&self, plural: &str, object: Value) {
        self.state.lock().put(plural, object);
    }

    pub(super) fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        self.state
            .lock()
            .objects
            .get(&key(plural, namespace, name))
            .cloned()
    }

    pub(super) fn all(&self, plural: &str) -> Vec<Value> {
        let state = self.state.lock();
        state
            .objects
            .iter()
            .filter(|(k, _)| k.0 == plural)
            .map(|(_, v)| v.clone())
            .collect()
    }

    pub(super) fn delete(&self, plural: &str, namespace: &str, name: &str) {
        let mut state = self.state.lock();
        state.version += 1;
        if let Some(object) = state.objects.remove(&key(plural, namespace, name)) {
            state.notify(plural, "DELETED", &object);
        }
    }

    /// Serves the classic API too; its claims are `classicclaims` here.
    pub(super) fn serve_classic(&self) {
        self.state.lock().classic = true;
    }

    pub(super) fn refuse_bindings(&self, times: usize) {
        self.state.lock().refuse_bindings = times;
    }

    /// So many writes of the status of claims are made and answered with an error.
    pub(super) fn lose_claims(&self, times: usize) {
        self.state.lock().lose_claims = times;
    }

    /// Writes that give a claim back are made so much later.
    pub(super) fn delay_returns(&self, delay: Duration) {
        self.state.lock().slow_returns = delay;
    }

    pub(super) fn log(&self) -> Vec<Entry> {
        self.state.lock().log.clone()
    }

    async fn call(&self, request: Request<Body>) -> Answer {
        let (parts, body) = request.into_parts();
        let body = body
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes)
            .unwrap_or_default();
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let path = parts.uri.path().to_owned();
        let path = match path.strip_prefix("/apis/resource.k8s.io/v1alpha1") {
            // As if it were a core API whose kinds have other names.
            Some("") if self.state.lock().classic => {
                return answer(
                    200,
                    &json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "resource.k8s.io/v1alpha1", "resources": []}),
                );
            }
            Some(rest) if self.state.lock().classic => {
                let rest = rest.replace("/resourceclaims", "/classicclaims");
                format!("/api/v1{rest}")
            }
            _ => path,
        };
        let query = parts.uri.query().unwrap_or_default();
        let steps: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let rest = if steps[0] == "api" {
            &steps[2..]
        } else {
            &steps[3..]
        };
        if parts.method != Method::GET {
            self.state.lock().log.push(Entry {
                path: path.clone(),
                body: body.clone(),
            });
        }
        match (&parts.method, rest) {
            (&Method::GET, [plural]) if query.contains("watch=true") => self.watch(plural, query),
            (&Method::GET, [plural]) => self.list(plural),
            (&Method::POST, ["namespaces", namespace, "pods", name, "binding"]) => {
                self.bind(namespace, name, &body)
            }
            (&Method::POST, ["namespaces", namespace, plural]) => {
                let mut object = body;
                object["metadata"]["namespace"] = json!(namespace);
                if object["metadata"]["name"].is_null() {
                    let prefix = object["metadata"]["generateName"]
                        .as_str()
                        .unwrap_or_default();
                    let name = format!("{prefix}{}", self.state.lock().version);
                    object["metadata"]["name"] = json!(name);
                }
                let name = object["metadata"]["name"].clone();
                if object["metadata"]["uid"].is_null() {
                    object["metadata"]["uid"] =
                        json!(format!("uid-{}", name.as_str().unwrap_or_default()));
                }
                answer(201, &self.state.lock().put(plural, object))
            }
            (&Method::GET, ["namespaces", namespace, plural, name]) => {
                match self.get(plural, namespace, name) {
                    Some(object) => answer(200, &object),
                    None => failure(404, "NotFound"),
                }
            }
            (&Method::PUT, ["namespaces", namespace, plural, name, sub @ ..]) => {
                if sub == ["status"] && body["status"]["reservedFor"].is_null() {
                    let delay = self.state.lock().slow_returns;
                    tokio::time::sleep(delay).await;
                }
                self.replace(plural, namespace, name, sub == ["status"], &body)
            }
            (&Method::PUT, [plural, name]) => self.replace(plural, "", name, false, &body),
            (&Method::PATCH, ["namespaces", namespace, plural, name, ..]) => {
                self.patch(plural, namespace, name, &body)
            }
            (&Method::DELETE, ["namespaces", namespace, plural, name]) => {
                self.delete(plural, namespace, name);
                answer(
                    200,
                    &json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}),
                )
            }
            _ => failure(404, "NotFound"),
        }
    }

    fn list(&self, plural: &str) -> Answer {
        let version = self.state.lock().version.to_string();
        let items = self.all(plural);
        answer(
            200,
            &json!({"apiVersion": "v1", "kind": "List", "items": items,
                            "metadata": {"resourceVersion": version}}),
        )
    }

    fn watch(&self, plural: &str, query: &str) -> Answer {
        let from = query
            .split('&')
            .find_map(|p| p.strip_prefix("resourceVersion="));
        let from: u64 = from.and_then(|v| v.parse().ok()).unwrap_or(0);
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.state.lock();
        for (version, of, event) in &state.history {
            if *version > from && of == plural {
                sender.send(event.clone()).unwrap();
            }
        }
        state.watchers.push((plural.to_owned(), sender));
        let events = futures::stream::unfold(receiver, |mut receiver| async move {
            let event = receiver.recv().await?;
            Some((event_line(&event), receiver))
        });
        let frames = events.map(|line| Ok(http_body::Frame::data(Bytes::from(line))));
        let body = BodyExt::boxed(StreamBody::new(frames));
        Response::builder().status(200).body(body).unwrap()
    }

    fn bind(&self, namespace: &str, name: &str, body: &Value) -> Answer {
        let mut state = self.state.lock();
        if state.refuse_bindings > 0 {
            state.refuse_bindings -= 1;
            return failure(409, "Conflict");
        }
        let Some(mut pod) = state.objects.get(&key("pods", namespace, name)).cloned() else {
            return failure(404, "NotFound");
        };
        if pod["spec"]["nodeName"].is_string() {
            return failure(409, "Conflict");
        }
        pod["spec"]["nodeName"] = body["target"]["name"].clone();
        pod["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "True"}]);
        state.put("pods", pod);
        answer(
            201,
            &json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}),
        )
    }

    /// A replacement with the check of the version; the status is kept, or nothing else is taken.
    fn replace(
        &self,
        plural: &str,
        namespace: &str,
        name: &str,
        status: bool,
        new: &Value,
    ) -> Answer {
        let mut state = self.state.lock();
        let Some(old) = state.objects.get(&key(plural, namespace, name)).cloned() else {
            return failure(404, "NotFound");
        };
        let version = &new["metadata"]["resourceVersion"];
        if version.is_string() && *version != old["metadata"]["resourceVersion"] {
            return failure(409, "Conflict");
        }
        let (mut object, from) = if status {
            (old, new)
        } else {
            (new.clone(), &old)
        };
        object["status"] = from["status"].clone();
        let written = state.put(plural, object);
        if status && plural == "resourceclaims" && state.lose_claims > 0 {
            state.lose_claims -= 1;
            return failure(504, "Timeout");
        }
        answer(200, &written)
    }

    fn patch(&self, plural: &str, namespace: &str, name: &str, patch: &Value) -> Answer {
        let mut state = self.state.lock();
        let Some(mut object) = state.objects.get(&key(plural, namespace, name)).cloned() else {
            return failure(404, "NotFound");
        };
        let uid = &patch["metadata"]["uid"];
        if uid.is_string() && *uid != object["metadata"]["uid"] {
            return failure(409, "Conflict");
        }
        merge(&mut object, patch);
        answer(200, &state.put(plural, object))
    }
}

/// A merge patch in which conditions are merged by type.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    for (name, change) in patch {
        match (name.as_str(), change) {
            ("conditions", Value::Array(new)) => {
                let mut all = target[name].as_array().cloned().unwrap_or_default();
                all.retain(|c| new.iter().all(|n| n["type"] != c["type"]));
                all.extend(new.clone());
                target[name] = Value::Array(all);
            }
            ("reservedFor", Value::Array(new)) => {
                let gone = |r: &Value| {
                    new.iter()
                        .any(|n| n["$patch"] == "delete" && n["uid"] == r["uid"])
                };
                let mut all = target[name].as_array().cloned().unwrap_or_default();
                all.retain(|r| !gone(r));
                target[name] = Value::Array(all);
            }
            (_, Value::Null) => {
                if let Some(object) = target.as_object_mut() {
                    object.remove(name);
                }
            }
            _ => merge(&mut target[name], change),
        }
    }
}
