//! A server over a temporary store, and a client for it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use davit_access::UserInfo;
use davit_access::authz::Authorization;
use davit_apiserver::{ApiServer, BoxError, Options, ResponseBody};
use davit_store::Store;
use davit_store::embedded::{EmbeddedOptions, EmbeddedStore};
use davit_webhook::Loopback;
use futures::StreamExt;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

/// Webhooks, backends and nodes of tests listen on this machine.
pub(crate) const THIS_MACHINE: Loopback = Loopback {
    endpoints: true,
    nodes: true,
};

pub(crate) struct Cluster {
    pub(crate) server: Arc<ApiServer>,
    store: Arc<dyn Store>,
    pub(crate) user: UserInfo,
    pub(crate) dir: tempfile::TempDir,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }

    /// The object, after checking the code.
    #[track_caller]
    pub(crate) fn ok(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// The error, after checking code and reason and that it is a Status.
    #[track_caller]
    pub(crate) fn error(self, code: u16, reason: &str) -> Value {
        let text = String::from_utf8_lossy(&self.body).into_owned();
        assert_eq!(self.code, code, "{text}");
        let status = self.json();
        assert_eq!(status["kind"], "Status", "{text}");
        assert_eq!(status["apiVersion"], "v1", "{text}");
        assert_eq!(status["status"], "Failure", "{text}");
        assert_eq!(status["code"], code, "{text}");
        assert_eq!(
            status["reason"].as_str().unwrap_or_default(),
            reason,
            "{text}"
        );
        status
    }

    pub(crate) fn header(&self, name: &str) -> String {
        self.headers
            .get(name)
            .map(|v| v.to_str().unwrap().to_owned())
            .unwrap_or_default()
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        let values = self.headers.get_all("warning").iter();
        values
            .map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned())
            .collect()
    }
}

/// A stream of watch events.
pub(crate) struct Events {
    body: std::pin::Pin<Box<dyn futures::Stream<Item = Result<Bytes, BoxError>> + Send>>,
    rest: Vec<u8>,
}

impl Events {
    /// The next event, or none at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(at) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=at).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let piece = tokio::time::timeout(Duration::from_secs(10), self.body.next());
            let piece = piece.await.expect("an event within ten seconds")?;
            self.rest.extend_from_slice(&piece.unwrap());
        }
    }

    /// Type and name of the next event.
    pub(crate) async fn summary(&mut self) -> (String, String) {
        let event = self.next().await.expect("an event");
        let text = |pointer: &str| {
            event
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        (text("/type"), text("/object/metadata/name"))
    }
}

impl Cluster {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Options)) -> Self {
        Self::below(tempfile::tempdir().unwrap(), change).await
    }

    /// With keys, and with those of other servers that tests put beside it.
    pub(crate) async fn with_keys() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        Self::below(dir, |options| options.data_dir = Some(data)).await
    }

    pub(crate) async fn below(dir: tempfile::TempDir, change: impl FnOnce(&mut Options)) -> Self {
        let store = EmbeddedStore::open(dir.path().join("store"), EmbeddedOptions::default())
            .await
            .unwrap();
        Self::over(Arc::new(store), dir, change).await
    }

    /// Another server over the same store.
    pub(crate) async fn another(&self) -> Self {
        self.another_with(|_| {}).await
    }

    pub(crate) async fn another_with(&self, change: impl FnOnce(&mut Options)) -> Self {
        Self::over(self.store(), tempfile::tempdir().unwrap(), change).await
    }

    async fn over(
        store: Arc<dyn Store>,
        dir: tempfile::TempDir,
        change: impl FnOnce(&mut Options),
    ) -> Self {
        let mut options = Options::new(Arc::clone(&store));
        // most of these tests are about what happens to those who may
        options.authorization = Authorization::Authenticated;
        options.loopback = THIS_MACHINE;
        // all kinds, and all that pods can say
        options.features.set("GenericWorkload", true).unwrap();
        options.runtime_config = "api/all=true".parse().unwrap();
        change(&mut options);
        let server = ApiServer::new(options).await.unwrap();
        Self {
            server,
            store,
            user: UserInfo::new("tester", &["system:masters"]),
            dir,
        }
    }

    /// Waits until `/readyz` says so: what is kept in the background is there.
    pub(crate) async fn ready(&self) {
        let end = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            let answer = self.get("/readyz").await;
            if answer.code == 200 {
                return;
            }
            assert!(std::time::Instant::now() < end, "{}", answer.text());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        url: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> http::Response<ResponseBody> {
        self.send_as(&self.user, method, url, headers, body).await
    }

    pub(crate) async fn send_as(
        &self,
        user: &UserInfo,
        method: &str,
        url: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> http::Response<ResponseBody> {
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        self.server.call(request, user.clone()).await
    }

    pub(crate) async fn request(
        &self,
        method: &str,
        url: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        whole(self.send(method, url, headers, body).await).await
    }

    pub(crate) async fn get(&self, url: &str) -> Answer {
        self.request("GET", url, &[], "").await
    }

    pub(crate) async fn post(&self, url: &str, body: &Value) -> Answer {
        self.request(
            "POST",
            url,
            &[("content-type", "application/json")],
            body.to_string(),
        )
        .await
    }

    pub(crate) async fn put(&self, url: &str, body: &Value) -> Answer {
        self.request(
            "PUT",
            url,
            &[("content-type", "application/json")],
            body.to_string(),
        )
        .await
    }

    /// `kind` is `json`, `merge` or `strategic-merge`.
    pub(crate) async fn patch(&self, url: &str, kind: &str, body: &Value) -> Answer {
        let media = format!("application/{kind}-patch+json");
        self.request("PATCH", url, &[("content-type", &media)], body.to_string())
            .await
    }

    pub(crate) async fn delete(&self, url: &str, options: &Value) -> Answer {
        let body = if options.is_null() {
            String::new()
        } else {
            options.to_string()
        };
        self.request("DELETE", url, &[("content-type", "application/json")], body)
            .await
    }

    pub(crate) async fn watch(&self, url: &str) -> Events {
        self.watch_as(url, "application/json").await
    }

    pub(crate) async fn watch_as(&self, url: &str, accept: &str) -> Events {
        let response = self.send("GET", url, &[("accept", accept)], "").await;
        assert_eq!(response.status(), StatusCode::OK);
        let body = response.into_body().into_data_stream();
        Events {
            body: Box::pin(body),
            rest: Vec::new(),
        }
    }

    /// Makes a config map in `default` and answers with it.
    pub(crate) async fn config_map(&self, name: &str, data: &Value) -> Value {
        self.post(CONFIG_MAPS, &config_map(name, data))
            .await
            .ok(201)
    }

    /// Sees to it that pods can be made in `default`.
    pub(crate) async fn service_account(&self) {
        let account = json!({"metadata": {"name": "default"}});
        self.post("/api/v1/namespaces/default/serviceaccounts", &account)
            .await
            .ok(201);
    }

    /// Makes a pod in `default` and answers with it.
    pub(crate) async fn pod(&self, name: &str) -> Value {
        self.post(PODS, &pod(name)).await.ok(201)
    }
}

pub(crate) const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

pub(crate) fn config_map(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

pub(crate) fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "busybox"}]},
    })
}

pub(crate) fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": "nginx"}]},
            },
        },
    })
}

pub(crate) async fn whole(response: http::Response<ResponseBody>) -> Answer {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer {
        code: parts.status.as_u16(),
        headers: parts.headers,
        body,
    }
}

pub(crate) fn rv(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}
