//! The whole controller against a small API server in memory, with a clock that runs ahead when nothing happens.

use super::*;
use bytes::Bytes;
use davit_reconcile::{COMPONENT, ControllerSelection};
use davit_task::Tasks;
use http::{Method, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::convert::Infallible;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const VOLUME: &str = "kubernetes.io/csi/csi.example.com^a^b/c";

type Answer = Response<BoxBody<Bytes, Infallible>>;

/// Lists, watches, creates, patches and deletes objects of any kind by path.
#[derive(Clone, Default)]
struct Api {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    version: u64,
    /// By path.
    objects: BTreeMap<String, Value>,
    /// Events by version and plural.
    history: Vec<(u64, String, Value)>,
    watchers: Vec<(String, mpsc::UnboundedSender<Value>)>,
    /// What was asked for that changes something: method and path.
    log: Vec<String>,
}

impl Inner {
    fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let known = self
            .objects
            .insert(path.to_owned(), object.clone())
            .is_some();
        self.tell(path, if known { "MODIFIED" } else { "ADDED" }, &object);
        object
    }

    fn tell(&mut self, path: &str, kind: &str, object: &Value) {
        let event = json!({ "type": kind, "object": object });
        let of = plural_of(path);
        self.watchers
            .retain(|(plural, watcher)| *plural != of || watcher.send(event.clone()).is_ok());
        self.history.push((self.version, of, event));
    }
}

/// An event as API servers write it: what it is comes first.
fn event_line(event: &Value) -> String {
    format!(
        "{{\"type\":{},\"object\":{}}}\n",
        event["type"], event["object"]
    )
}

/// The plural in the path of an object.
fn plural_of(path: &str) -> String {
    path.rsplit('/').nth(1).unwrap_or_default().to_owned()
}

impl Api {
    fn client(&self) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.call(request).await) }
        });
        davit_client::in_process(service, "default")
    }

    fn put(&self, path: &str, object: Value) {
        self.inner.lock().put(path, object);
    }

    fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut inner = self.inner.lock();
        let mut object = inner.objects[path].clone();
        change(&mut object);
        inner.put(path, object);
    }

    fn get(&self, path: &str) -> Option<Value> {
        self.inner.lock().objects.get(path).cloned()
    }

    fn delete(&self, path: &str) -> bool {
        let mut inner = self.inner.lock();
        inner.version += 1;
        let Some(object) = inner.objects.remove(path) else {
            return false;
        };
        inner.tell(path, "DELETED", &object);
        true
    }

    fn log(&self) -> Vec<String> {
        self.inner.lock().log.clone()
    }

    fn messages(&self) -> Vec<String> {
        let inner = self.inner.lock();
        let events = inner.objects.iter().filter(|(p, _)| p.contains("/events/"));
        let text = |e: &Value| {
            format!(
                "{} {}",
                e["reason"].as_str().unwrap_or_default(),
                e["message"].as_str().unwrap_or_default()
            )
        };
        events.map(|(_, e)| text(e)).collect()
    }

    async fn call(&self, request: Request<Body>) -> Answer {
        let (parts, body) = request.into_parts();
        let bytes = body.collect_bytes().await.unwrap_or_default();
        let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let path = parts.uri.path().trim_end_matches("/status").to_owned();
        let query = parts.uri.query().unwrap_or_default();
        if parts.method != Method::GET && !path.ends_with("/events") {
            let mut inner = self.inner.lock();
            inner.log.push(format!("{} {path}", parts.method));
        }
        match parts.method {
            Method::GET if query.contains("watch=") => self.watch(&path, query),
            Method::GET if self.get(&path).is_some() => {
                answer(200, &self.get(&path).unwrap_or_default())
            }
            Method::GET => self.list(&path),
            Method::POST => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                let created = self
                    .inner
                    .lock()
                    .put(&format!("{path}/{name}"), body.clone());
                answer(201, &created)
            }
            Method::PATCH => {
                let mut inner = self.inner.lock();
                let Some(mut object) = inner.objects.get(&path).cloned() else {
                    return missing();
                };
                let attached = &body["status"]["volumesAttached"];
                object["status"]["volumesAttached"] = attached.clone();
                answer(200, &inner.put(&path, object))
            }
            Method::DELETE if self.delete(&path) => answer(
                200,
                &json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }),
            ),
            _ => missing(),
        }
    }

    fn list(&self, path: &str) -> Answer {
        let inner = self.inner.lock();
        let plural = path.rsplit('/').next().unwrap_or_default();
        let items = inner.objects.iter().filter(|(p, _)| plural_of(p) == plural);
        let items: Vec<&Value> = items.map(|(_, object)| object).collect();
        let version = inner.version.to_string();
        let list = json!({ "metadata": { "resourceVersion": version }, "items": items });
        answer(200, &list)
    }

    fn watch(&self, path: &str, query: &str) -> Answer {
        let (sender, receiver) = mpsc::unbounded_channel();
        let plural = path.rsplit('/').next().unwrap_or_default().to_owned();
        let from = query
            .split('&')
            .find_map(|p| p.strip_prefix("resourceVersion="));
        let from: u64 = from
            .and_then(|version| version.parse().ok())
            .unwrap_or_default();
        let mut inner = self.inner.lock();
        for (version, of, event) in &inner.history {
            if *version > from && *of == plural {
                sender.send(event.clone()).unwrap();
            }
        }
        inner.watchers.push((plural, sender));
        let frames = futures::stream::unfold(receiver, |mut receiver| async move {
            let event: Value = receiver.recv().await?;
            let line = Bytes::from(event_line(&event));
            Some((Ok::<_, Infallible>(http_body::Frame::data(line)), receiver))
        });
        Response::new(BodyExt::boxed(StreamBody::new(frames)))
    }
}

fn answer(code: u16, body: &Value) -> Answer {
    let body = Full::new(Bytes::from(body.to_string())).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
    response
}

fn missing() -> Answer {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "not found", "reason": "NotFound", "code": 404 });
    answer(404, &status)
}

/// A cluster of two nodes with one volume, bound to the claim `data`.
struct Cluster {
    api: Api,
    cancel: CancellationToken,
    tasks: Tasks,
}

impl Cluster {
    fn new(mode: &str, attach_required: bool) -> Self {
        let api = Api::default();
        for node in ["a", "b"] {
            api.put(
                &node_path(node),
                json!({
                "metadata": { "name": node, "uid": node, "annotations": {
                    "volumes.kubernetes.io/controller-managed-attach-detach": "true" } },
                "status": { "conditions": [{ "type": "Ready", "status": "True" }] } }),
            );
        }
        api.put(
            "/apis/storage.k8s.io/v1/csidrivers/csi.example.com",
            json!({
            "metadata": { "name": "csi.example.com", "uid": "d" },
            "spec": { "attachRequired": attach_required } }),
        );
        api.put(
            "/api/v1/persistentvolumes/pv",
            json!({
            "metadata": { "name": "pv", "uid": "pv" }, "spec": { "accessModes": [mode],
                "claimRef": { "namespace": "n", "name": "data", "uid": "c" },
                "csi": { "driver": "csi.example.com", "volumeHandle": "a^b/c" } } }),
        );
        api.put(
            "/api/v1/namespaces/n/persistentvolumeclaims/data",
            json!({
            "metadata": { "namespace": "n", "name": "data", "uid": "c" },
            "spec": { "volumeName": "pv" }, "status": { "phase": "Bound" } }),
        );
        let cancel = CancellationToken::new();
        Self {
            api,
            tasks: Tasks::new(COMPONENT, cancel.clone()),
            cancel,
        }
    }

    async fn start(&mut self) {
        let client = self.api.client();
        let informers = Informers::spawn(&client, self.tasks.set(), &self.cancel);
        informers
            .wait_synced(Duration::from_secs(10))
            .await
            .unwrap();
        let mut spawner = Spawner {
            shared: client.clone(),
            client,
            accounts: None,
            selection: ControllerSelection::default(),
            concurrency: Arc::default(),
            workers: None,
            informers,
            tasks: &mut self.tasks,
            cancel: self.cancel.clone(),
        };
        spawn(
            &mut spawner,
            Arc::new(FlexDrivers::new("/nonexistent".into())),
        );
    }

    /// Another process takes over.
    async fn restart(&mut self) {
        self.cancel.cancel();
        self.cancel = CancellationToken::new();
        let next = Tasks::new(COMPONENT, self.cancel.clone());
        std::mem::replace(&mut self.tasks, next).end().await;
        self.start().await;
    }

    fn pod(&self, name: &str, node: &str) {
        self.api.put(
            &pod_path(name),
            json!({
            "metadata": { "namespace": "n", "name": name, "uid": name },
            "spec": { "nodeName": node, "containers": [], "volumes": [
                { "name": "v", "persistentVolumeClaim": { "claimName": "data" } } ] },
            "status": { "phase": "Running" } }),
        );
    }

    /// The external attacher's answer.
    fn answer(&self, node: &str, status: &Value) {
        self.api
            .change(&attachment_path(node), |a| a["status"] = status.clone());
    }

    fn in_use(&self, node: &str, volumes: &Value) {
        self.api.change(&node_path(node), |n| {
            n["status"]["volumesInUse"] = volumes.clone();
        });
    }

    fn lists(&self, node: &str) -> bool {
        let node = self.api.get(&node_path(node)).unwrap();
        node["status"]["volumesAttached"][0]["name"] == VOLUME
    }

    fn attachment(&self, node: &str) -> Option<Value> {
        self.api.get(&attachment_path(node))
    }

    async fn until(&self, what: &str, check: impl Fn(&Self) -> bool) {
        for _ in 0..5000 {
            if check(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{what}: {:?} {:?}", self.api.log(), self.api.messages());
    }

    /// Nothing is changed for a minute.
    async fn rest(&self) {
        let before = self.api.log();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(self.api.log(), before);
    }

    async fn attach(&self, pod: &str, node: &str) {
        self.pod(pod, node);
        self.until("an attachment", |c| c.attachment(node).is_some())
            .await;
        self.answer(node, &json!({ "attached": true }));
        self.until("the node's list", |c| c.lists(node)).await;
    }
}

fn node_path(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

fn pod_path(name: &str) -> String {
    format!("/api/v1/namespaces/n/pods/{name}")
}

fn attachment_path(node: &str) -> String {
    let name = attachment_name("a^b/c", "csi.example.com", node);
    format!("/apis/storage.k8s.io/v1/volumeattachments/{name}")
}

#[tokio::test(start_paused = true)]
async fn attached_and_detached() {
    let mut cluster = Cluster::new("ReadWriteOnce", true);
    cluster.start().await;
    cluster.pod("p", "a");
    cluster
        .until("an attachment", |c| c.attachment("a").is_some())
        .await;
    let attachment = cluster.attachment("a").unwrap();
    assert_eq!(
        attachment["spec"],
        json!({ "attacher": "csi.example.com", "nodeName": "a",
        "source": { "persistentVolumeName": "pv" } })
    );
    assert!(!cluster.lists("a"));
    cluster.answer("a", &json!({ "attached": true }));
    cluster.until("the node's list", |c| c.lists("a")).await;
    let told = "SuccessfulAttachVolume AttachVolume.Attach succeeded for volume \"pv\" ";
    cluster.until("event", |c| c.api.messages() == [told]).await;
    cluster.in_use("a", &json!([VOLUME]));
    cluster.api.delete(&pod_path("p"));
    cluster.rest().await;
    cluster.in_use("a", &json!([]));
    cluster
        .until("the end", |c| c.attachment("a").is_none())
        .await;
    let log = cluster.api.log();
    let of = |entry: String| log.iter().rposition(|e| *e == entry);
    assert!(
        of(format!("PATCH {}", node_path("a"))) < of(format!("DELETE {}", attachment_path("a")))
    );
    cluster.rest().await;
}

#[tokio::test(start_paused = true)]
async fn drivers_that_do_not_attach_get_no_attachment() {
    let mut cluster = Cluster::new("ReadWriteOnce", false);
    cluster.start().await;
    cluster.pod("p", "a");
    cluster.rest().await;
    assert!(cluster.attachment("a").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_silent_attacher_is_told_of_and_may_come_later() {
    let mut cluster = Cluster::new("ReadWriteOnce", true);
    cluster.start().await;
    cluster.pod("p", "a");
    let told = "FailedAttachVolume AttachVolume.Attach failed for volume \"pv\" : timed out waiting for external-attacher of csi.example.com CSI driver to attach volume a^b/c";
    cluster.until("event", |c| c.api.messages() == [told]).await;
    cluster.answer(
        "a",
        &json!({ "attached": false, "attachError": { "message": "boom" } }),
    );
    let told = "FailedAttachVolume AttachVolume.Attach failed for volume \"pv\" : boom";
    cluster
        .until("event", |c| c.api.messages().iter().any(|m| m == told))
        .await;
    cluster.answer("a", &json!({ "attached": true }));
    cluster.until("the node's list", |c| c.lists("a")).await;
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_volume_moves_when_its_node_lets_go() {
    let mut cluster = Cluster::new("ReadWriteOnce", true);
    cluster.start().await;
    cluster.attach("p", "a").await;
    cluster.in_use("a", &json!([VOLUME]));
    cluster.pod("q", "b");
    let told = "FailedAttachVolume Multi-Attach error for volume \"pv\" Volume is already used by pod(s) p";
    cluster
        .until("event", |c| c.api.messages().iter().any(|m| m == told))
        .await;
    cluster.api.delete(&pod_path("p"));
    cluster.rest().await;
    assert!(cluster.attachment("b").is_none());
    cluster.in_use("a", &json!([]));
    cluster
        .until("the move", |c| c.attachment("b").is_some())
        .await;
    assert!(cluster.attachment("a").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_uses_the_volume_at_the_last_moment_keeps_it() {
    let mut cluster = Cluster::new("ReadWriteOnce", true);
    cluster.start().await;
    cluster.attach("p", "a").await;
    // Told by no watch: only who asks knows.
    cluster
        .api
        .inner
        .lock()
        .objects
        .get_mut(&node_path("a"))
        .unwrap()["status"]["volumesInUse"] = json!([VOLUME]);
    cluster.api.delete(&pod_path("p"));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(cluster.attachment("a").is_some());
}

#[tokio::test(start_paused = true)]
async fn nodes_that_are_off_lose_their_volumes_at_once() {
    let mut cluster = Cluster::new("ReadWriteOnce", true);
    cluster.start().await;
    cluster.attach("p", "a").await;
    cluster.in_use("a", &json!([VOLUME]));
    cluster.api.delete(&pod_path("p"));
    cluster.rest().await;
    cluster.api.change(&node_path("a"), |node| {
        node["spec"]["taints"] = json!([{ "key": "node.kubernetes.io/out-of-service",
            "value": "nodeshutdown", "effect": "NoExecute" }]);
    });
    cluster
        .until("the end", |c| c.attachment("a").is_none())
        .await;
}

#[tokio::test(start_paused = true)]
async fn nodes_that_are_not_ready_lose_their_volumes_after_six_minutes() {
    let mut cluster = Cluster::new("ReadWriteOnce", true);
    cluster.start().await;
    cluster.attach("p", "a").await;
    cluster.in_use("a", &json!([VOLUME]));
    cluster.api.change(&node_path("a"), |node| {
        node["status"]["conditions"][0]["status"] = json!("Unknown");
    });
    cluster.api.delete(&pod_path("p"));
    tokio::time::sleep(Duration::from_secs(355)).await;
    assert!(cluster.attachment("a").is_some());
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(cluster.attachment("a").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_restart_changes_nothing_and_finishes_what_was_left() {
    let mut cluster = Cluster::new("ReadWriteOnce", true);
    cluster.start().await;
    cluster.attach("p", "a").await;
    cluster.in_use("a", &json!([VOLUME]));
    cluster.restart().await;
    cluster.rest().await;
    assert!(cluster.lists("a"));
    // Pods that go while nobody looks: the volume is detached when somebody does.
    cluster.cancel.cancel();
    cluster.tasks.end().await;
    cluster.api.delete(&pod_path("p"));
    cluster.in_use("a", &json!([]));
    cluster.restart().await;
    cluster
        .until("the end", |c| c.attachment("a").is_none() && !c.lists("a"))
        .await;
}

#[tokio::test(start_paused = true)]
async fn attachments_that_somebody_deletes_are_made_again() {
    let mut cluster = Cluster::new("ReadWriteOnce", true);
    cluster.start().await;
    cluster.attach("p", "a").await;
    cluster.api.delete(&attachment_path("a"));
    cluster
        .until("another", |c| c.attachment("a").is_some())
        .await;
    assert!(!cluster.lists("a"), "not to be mounted meanwhile");
}

#[tokio::test(start_paused = true)]
async fn claims_that_are_bound_late_are_noticed() {
    let mut cluster = Cluster::new("ReadWriteOnce", true);
    let claim = "/api/v1/namespaces/n/persistentvolumeclaims/data";
    cluster
        .api
        .change(claim, |claim| claim["status"]["phase"] = json!("Pending"));
    cluster.start().await;
    cluster.pod("p", "a");
    cluster.rest().await;
    cluster
        .api
        .change(claim, |claim| claim["status"]["phase"] = json!("Bound"));
    cluster
        .until("an attachment", |c| c.attachment("a").is_some())
        .await;
}
