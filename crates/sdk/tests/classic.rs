//! The controller of classic drivers against a small API server in memory. The numbers are those of the DRA checklist.

#![cfg(feature = "dra")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use bytes::Bytes;
use davit_sdk::async_trait;
use davit_sdk::classic::{
    AllocationResult, ClaimAllocation, ClassicDriver, ClassicNode, Client, Controller, Failure,
    HandedClaim, NodePlugin, Pod, ResourceClaim, ResourceClass, Running,
};
use futures::{StreamExt as _, stream};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::broadcast;

const DRIVER: &str = "d.example.com";
const FINALIZER: &str = "d.example.com/deletion-protection";

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;
type Objects = BTreeMap<(String, String), Value>;

#[derive(Clone)]
struct Api {
    /// By plural and name; there is one namespace.
    objects: Arc<Mutex<(u64, Objects)>>,
    writes: Arc<Mutex<Vec<String>>>,
    events: broadcast::Sender<(String, Value)>,
}

fn answer(code: u16, value: &Value) -> Answer {
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())).boxed_unsync());
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
    response
}

fn failure(code: u16) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": "", "code": code});
    answer(code, &status)
}

impl Api {
    fn new() -> Self {
        Self {
            objects: Arc::default(),
            writes: Arc::default(),
            events: broadcast::channel(1024).0,
        }
    }

    fn client(&self) -> Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move { Ok::<_, Infallible>(this.handle(request).await) }
        });
        Client::new(service, "n")
    }

    fn put(&self, plural: &str, mut object: Value) -> Value {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let mut objects = self.objects.lock().unwrap();
        objects.0 += 1;
        let meta = &mut object["metadata"];
        meta["resourceVersion"] = json!(objects.0.to_string());
        meta["namespace"] = json!("n");
        if meta["uid"].is_null() {
            meta["uid"] = json!(format!("uid-{name}"));
        }
        let unprotected = meta["finalizers"].as_array().is_none_or(Vec::is_empty);
        let kind = if !meta["deletionTimestamp"].is_null() && unprotected {
            objects.1.remove(&(plural.to_owned(), name));
            "DELETED"
        } else {
            objects.1.insert((plural.to_owned(), name), object.clone());
            "MODIFIED"
        };
        let event = json!({"type": kind, "object": object});
        let _unwatched = self.events.send((plural.to_owned(), event));
        object
    }

    fn get(&self, plural: &str, name: &str) -> Value {
        let objects = self.objects.lock().unwrap();
        let found = objects.1.get(&(plural.to_owned(), name.to_owned()));
        found.cloned().unwrap_or_default()
    }

    fn change(&self, plural: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.get(plural, name);
        change(&mut object);
        self.put(plural, object);
    }

    async fn handle(&self, request: Request<Body>) -> Answer {
        let (head, body) = request.into_parts();
        let watches = head.uri.query().unwrap_or_default().contains("watch=");
        let body = body.collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let mut steps: Vec<&str> = head.uri.path().trim_matches('/').split('/').collect();
        steps.drain(..if steps[0] == "api" { 2 } else { 3 });
        if steps[0] == "namespaces" {
            steps.drain(..2);
        }
        match (&head.method, steps.as_slice()) {
            (&Method::GET, [plural]) if watches => self.watch(plural),
            (&Method::GET, [plural]) => self.list(plural),
            (&Method::GET, [plural, name]) => match self.get(plural, name) {
                Value::Null => failure(404),
                object => answer(200, &object),
            },
            (&Method::POST, [_]) => answer(201, &body),
            (&Method::PUT, [plural, name, rest @ ..]) => self.replace(plural, name, rest, &body),
            _ => failure(405),
        }
    }

    fn replace(&self, plural: &str, name: &str, rest: &[&str], body: &Value) -> Answer {
        let old = self.get(plural, name);
        if old["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] {
            return failure(409);
        }
        let (mut new, part) = match rest {
            ["status"] => (old, "status"),
            _ => {
                let mut new = body.clone();
                new["status"] = old["status"].clone();
                (new, "finalizers")
            }
        };
        if part == "status" {
            new["status"] = body["status"].clone();
        }
        self.writes.lock().unwrap().push(format!("{name} {part}"));
        answer(200, &self.put(plural, new))
    }

    fn list(&self, plural: &str) -> Answer {
        let objects = self.objects.lock().unwrap();
        let items = objects.1.iter().filter(|((p, _), _)| p == plural);
        let items: Vec<&Value> = items.map(|(_, o)| o).collect();
        answer(
            200,
            &json!({"metadata": {"resourceVersion": objects.0.to_string()}, "items": items}),
        )
    }

    fn watch(&self, plural: &str) -> Answer {
        let (events, plural) = (self.events.subscribe(), plural.to_owned());
        let events = stream::unfold((events, plural), |(mut events, plural)| async move {
            loop {
                let (of, event) = events.recv().await.ok()?;
                if of == plural {
                    return Some((format!("{event}\n"), (events, plural)));
                }
            }
        });
        let frames = events.map(|line| Ok(Frame::data(Bytes::from(line))));
        Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

/// Has one place on each node, and none on `full`.
#[derive(Clone, Default)]
struct Places(Arc<Mutex<BTreeMap<String, String>>>);

#[async_trait]
impl ClassicDriver for Places {
    type ClassParameters = ();
    type ClaimParameters = ();

    async fn class_parameters(&self, _: &ResourceClass) -> Result<(), Failure> {
        Ok(())
    }

    async fn claim_parameters(
        &self,
        _: &ResourceClaim,
        _: &ResourceClass,
        (): &(),
    ) -> Result<(), Failure> {
        Ok(())
    }

    async fn allocate(
        &self,
        claim: &ClaimAllocation<Self>,
        selected_node: Option<&str>,
    ) -> Result<AllocationResult, Failure> {
        let node = selected_node.unwrap_or("anywhere").to_owned();
        let uid = claim.claim.metadata.uid.clone().unwrap();
        self.0.lock().unwrap().insert(uid, node.clone());
        Ok(AllocationResult {
            resource_handle: node,
            ..AllocationResult::default()
        })
    }

    async fn deallocate(&self, claim: &ResourceClaim) -> Result<(), Failure> {
        let uid = claim.metadata.uid.clone().unwrap();
        self.0.lock().unwrap().remove(&uid);
        Ok(())
    }

    async fn unsuitable_nodes(
        &self,
        _: &Pod,
        claims: &mut [ClaimAllocation<Self>],
        potential_nodes: &[String],
    ) -> Result<(), Failure> {
        let taken = self.0.lock().unwrap();
        for claim in claims {
            let own = claim.claim.metadata.uid.clone().unwrap();
            let mut others = taken.iter().filter(|(uid, _)| **uid != own);
            let others: Vec<&String> = others.by_ref().map(|(_, node)| node).collect();
            let full = |n: &&String| *n == "full" || others.contains(n);
            claim.unsuitable_nodes = potential_nodes.iter().filter(full).cloned().collect();
        }
        Ok(())
    }

    async fn recover(&self, allocated: &[ResourceClaim]) {
        for claim in allocated {
            let handle = claim.status.allocation.clone().unwrap().resource_handle;
            let uid = claim.metadata.uid.clone().unwrap();
            self.0.lock().unwrap().insert(uid, handle);
        }
    }
}

fn start() -> (Api, Places, Running) {
    let (api, driver) = (Api::new(), Places::default());
    api.put(
        "resourceclasses",
        json!({"metadata": {"name": "k"}, "driverName": DRIVER}),
    );
    let running = Controller::new(api.client(), DRIVER, driver.clone()).start();
    (api, driver, running)
}

fn claim(api: &Api, name: &str, mode: &str) {
    api.put("resourceclaims", json!({"metadata": {"name": name}, "spec": {"resourceClassName": "k", "allocationMode": mode}}));
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never happened: {what}");
}

/// 128, 132
#[tokio::test]
async fn an_immediate_claim_is_protected_allocated_and_given_back() {
    let (api, driver, running) = start();
    claim(&api, "c", "Immediate");
    let status = || api.get("resourceclaims", "c")["status"].clone();
    until("allocated", || status()["allocation"].is_object()).await;
    assert_eq!(status()["driverName"], DRIVER);
    assert_eq!(*api.writes.lock().unwrap(), ["c finalizers", "c status"]);
    let protected = &api.get("resourceclaims", "c")["metadata"]["finalizers"];
    assert_eq!(*protected, json!([FINALIZER]));
    // Nothing is taken away from users.
    let deleted = json!("2026-01-01T00:00:00Z");
    api.change("resourceclaims", "c", |c| {
        c["status"]["reservedFor"] = json!([{"resource": "pods", "name": "p", "uid": "u"}]);
        c["metadata"]["deletionTimestamp"] = deleted;
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(driver.0.lock().unwrap().len(), 1);
    api.change("resourceclaims", "c", |c| {
        c["status"]["reservedFor"] = json!([]);
    });
    until("gone", || api.get("resourceclaims", "c").is_null()).await;
    assert!(driver.0.lock().unwrap().is_empty());
    running.stop().await;
}

/// 128, 129: first the word about nodes, then the allocation, and again after a wish to deallocate.
#[tokio::test]
async fn a_delayed_claim_is_negotiated_about() {
    let (api, driver, running) = start();
    claim(&api, "p-cat", "WaitForFirstConsumer");
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": true}]);
    api.change("resourceclaims", "p-cat", |c| {
        c["metadata"]["ownerReferences"] = owner.clone();
    });
    api.put("pods", json!({"metadata": {"name": "p"}, "spec": {"containers": [], "resourceClaims":
        [{"name": "cat", "resourceClaimTemplateName": "t"}, {"name": "other", "resourceClaimName": "unknown"}]}}));
    api.put(
        "podschedulings",
        json!({"metadata": {"name": "p", "ownerReferences": owner},
        "spec": {"potentialNodes": ["a", "full"]}}),
    );
    let told = || api.get("podschedulings", "p")["status"]["resourceClaims"].clone();
    until("told", || {
        told() == json!([{"name": "cat", "unsuitableNodes": ["full"]}])
    })
    .await;
    let status = || api.get("resourceclaims", "p-cat")["status"].clone();
    api.change("podschedulings", "p", |s| {
        s["spec"]["selectedNode"] = json!("full");
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(status()["allocation"].is_null(), "not where it cannot be");
    api.change("podschedulings", "p", |s| {
        s["spec"]["selectedNode"] = json!("a");
    });
    until("allocated", || {
        status()["allocation"]["resourceHandle"] == "a"
    })
    .await;
    assert_eq!(status()["reservedFor"][0]["uid"], "uid-p");
    api.change("resourceclaims", "p-cat", |c| {
        c["status"]["reservedFor"] = json!([]);
        c["status"]["deallocationRequested"] = json!(true);
    });
    // The node is still selected, so it comes back without anybody asking once more.
    until("given back and allocated anew", || {
        status()["reservedFor"][0]["uid"] == "uid-p"
    })
    .await;
    assert!(status()["deallocationRequested"].is_null());
    assert_eq!(driver.0.lock().unwrap().len(), 1);
    running.stop().await;
}

/// What was allocated by an earlier process is known before anything is decided.
#[tokio::test]
async fn allocations_are_learned_at_the_start() {
    let (api, driver) = (Api::new(), Places::default());
    api.put("resourceclaims", json!({"metadata": {"name": "c", "finalizers": [FINALIZER]}, "spec": {"resourceClassName": "k"},
        "status": {"driverName": DRIVER, "allocation": {"resourceHandle": "a"}}}));
    api.put(
        "resourceclaims",
        json!({"metadata": {"name": "foreign"}, "spec": {"resourceClassName": "k"},
        "status": {"driverName": "other", "allocation": {"resourceHandle": "b"}}}),
    );
    let running = Controller::new(api.client(), DRIVER, driver.clone()).start();
    until("known", || !driver.0.lock().unwrap().is_empty()).await;
    let known = driver.0.lock().unwrap().clone();
    assert_eq!(
        known,
        BTreeMap::from([("uid-c".to_owned(), "a".to_owned())])
    );
    running.stop().await;
}

struct Nothing;

#[async_trait]
impl ClassicNode for Nothing {
    async fn prepare(&self, _: &HandedClaim, _: &str) -> Result<Vec<String>, Failure> {
        Ok(Vec::new())
    }

    async fn unprepare(&self, _: &HandedClaim, _: &[String]) -> Result<(), Failure> {
        Ok(())
    }
}

#[tokio::test]
async fn a_second_node_plugin_of_the_same_name_takes_over_and_gives_back() {
    let dir = tempfile::tempdir().unwrap();
    let sockets = ["plugin.sock", "test.example-reg.sock"].map(|name| dir.path().join(name));
    let start = || {
        let plugin = NodePlugin::new("test.example", Nothing).registry(dir.path());
        plugin.endpoint(&sockets[0]).start().unwrap()
    };
    let inodes = || {
        let inode = |path| std::fs::metadata(path).ok().map(|m| m.ino());
        sockets.each_ref().map(inode)
    };
    let first = start();
    let of_first = inodes();
    let second = start();
    let of_second = inodes();
    assert!(of_first[0] != of_second[0] && of_first[1] != of_second[1]);
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert_eq!(inodes(), of_second, "the first fights for its sockets");
    second.stop().await;
    until("the first serves again", || {
        sockets
            .iter()
            .all(|path| std::os::unix::net::UnixStream::connect(path).is_ok())
    })
    .await;
    first.stop().await;
    assert_eq!(inodes(), [None, None]);
}
