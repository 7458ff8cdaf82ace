//! Extenders in decisions: real HTTP servers in the test, one of them slow, one that lies.

mod groups;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;

use super::*;

/// What a server does with a call: its verb and body in, status and body out, after a while.
type Behaviour = dyn Fn(&str, &Value) -> (u16, Value, Duration) + Send + Sync;

/// An HTTP server that ends with the test.
struct Server {
    address: SocketAddr,
    calls: Arc<Mutex<Vec<(String, Value)>>>,
    _tasks: JoinSet<()>,
}

impl Server {
    async fn start(
        behaviour: impl Fn(&str, &Value) -> (u16, Value, Duration) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let calls: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let (heard, behaviour): (_, Arc<Behaviour>) = (calls.clone(), Arc::new(behaviour));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (heard, behaviour) = (heard.clone(), behaviour.clone());
                let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    let (heard, behaviour) = (heard.clone(), behaviour.clone());
                    async move {
                        let verb = request
                            .uri()
                            .path()
                            .trim_start_matches("/prefix/")
                            .to_owned();
                        assert_eq!(request.headers()["content-type"], "application/json");
                        let body = request.into_body().collect().await?.to_bytes();
                        let body: Value = serde_json::from_slice(&body).unwrap();
                        let (status, answer, after) = behaviour(&verb, &body);
                        heard.lock().push((verb, body));
                        tokio::time::sleep(after).await;
                        let answer = Full::new(Bytes::from(answer.to_string()));
                        let response = http::Response::builder().status(status).body(answer);
                        Ok::<_, hyper::Error>(response.unwrap())
                    }
                });
                let builder = hyper::server::conn::http1::Builder::new();
                let connection = builder.serve_connection(TokioIo::new(stream), service);
                connections.spawn(async move { drop(connection.await) });
            }
        });
        Self {
            address,
            calls,
            _tasks: tasks,
        }
    }

    /// The configuration of the extender that this server is.
    fn extender(&self, fields: &str) -> String {
        format!("{{urlPrefix: 'http://{}/prefix/', {fields}}}", self.address)
    }

    fn calls(&self, verb: &str) -> Vec<Value> {
        let calls = self.calls.lock();
        let calls = calls.iter().filter(|(v, _)| v == verb);
        calls.map(|(_, body)| body.clone()).collect()
    }
}

const NOW: Duration = Duration::ZERO;

/// Lets all nodes pass but these.
fn without(body: &Value, failed: &[(&str, &str)]) -> Value {
    let failed: BTreeMap<&str, &str> = failed.iter().copied().collect();
    let names = body["NodeNames"].as_array().unwrap();
    let left: Vec<&Value> = names
        .iter()
        .filter(|n| !failed.contains_key(n.as_str().unwrap()))
        .collect();
    json!({"nodenames": left, "failedNodes": failed, "error": ""})
}

#[tokio::test]
async fn nodes_are_filtered_and_scored_and_pods_bound_by_extenders() {
    let api = Fake::new();
    let client = api.client();
    let server = Server::start(|verb, body| match verb {
        "filter" => (200, without(body, &[("a", "a is taken")]), NOW),
        "prioritize" => (
            200,
            json!([{"Host": "c", "Score": 10}, {"Host": "gone", "Score": 10}]),
            NOW,
        ),
        _ => (200, json!({"Error": ""}), NOW),
    })
    .await;
    let fields = "filterVerb: filter, prioritizeVerb: prioritize, bindVerb: bind, weight: 3, nodeCacheCapable: true";
    let bed = Bed::start_on(
        api,
        options(&format!("extenders: [{}]", server.extender(fields))),
    );
    for name in ["a", "b", "c"] {
        bed.node(name, "2");
    }
    drop(client);
    bed.pod("p", "1", json!({}));
    bed.until("bound by the extender", |_| {
        !server.calls("bind").is_empty()
    })
    .await;
    let binding = server.calls("bind").remove(0);
    assert_eq!(
        binding,
        json!({"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "c"})
    );
    // It has to write the binding itself; nobody else does.
    assert!(!bed.api.log().iter().any(|l| l.path.ends_with("/binding")));
    let filter = server.calls("filter").remove(0);
    assert_eq!(filter["Pod"]["metadata"]["name"], "p");
    assert_eq!(
        (&filter["Pod"]["kind"], &filter["Nodes"]),
        (&Value::Null, &Value::Null)
    );
    let mut scored = server.calls("prioritize").remove(0)["NodeNames"].clone();
    scored
        .as_array_mut()
        .unwrap()
        .sort_by_key(ToString::to_string);
    assert_eq!(scored, json!(["b", "c"]));
    bed.stop().await;
}

#[tokio::test]
async fn refusals_stand_in_the_message_and_in_the_record() {
    let server = Server::start(|_, body| {
        let items = body["Nodes"]["items"].as_array().unwrap();
        assert!(
            items
                .iter()
                .all(|n| n["kind"].is_null() && !n["status"].is_null())
        );
        let failed = json!({"a": "rack is full", "b": "rack is full"});
        let never = json!({"b": "wrong rack"});
        (
            200,
            json!({"FailedNodes": failed, "FailedAndUnresolvableNodes": never}),
            NOW,
        )
    })
    .await;
    let url = format!("http://{}/prefix/", server.address);
    let bed = Bed::configured(&format!(
        "extenders: [{}]",
        server.extender("filterVerb: filter")
    ));
    for name in ["a", "b", "c"] {
        bed.node(name, "2");
    }
    bed.node("small", "0");
    bed.pod("p", "1", json!({}));
    // Of c nothing is said.
    let expected =
        "0/4 nodes are available: 1 Insufficient example.com/foo, 1 rack is full, 1 wrong rack.";
    bed.until("message", |b| {
        b.message("p").is_some_and(|m| m.starts_with(expected))
    })
    .await;
    bed.until("event", |b| !b.events("FailedScheduling").is_empty())
        .await;
    let event = bed.events("FailedScheduling").remove(0);
    let record = event["metadata"]["annotations"][VERDICT_ANNOTATION]
        .as_str()
        .unwrap();
    let record: Record = serde_json::from_str(record).unwrap();
    let by_node: BTreeMap<&str, (&str, Code)> = record
        .nodes
        .iter()
        .map(|n| (&*n.node, (&*n.plugin, n.code)))
        .collect();
    assert_eq!(by_node["a"], (&*url, Code::Unschedulable));
    assert_eq!(by_node["b"], (&*url, Code::UnschedulableAndUnresolvable));
    assert_eq!(by_node["c"].0, url);
    assert_eq!(by_node["small"].0, "NodeResourcesFit");
    bed.stop().await;
}

#[tokio::test]
async fn what_fails_fails_the_attempt_unless_it_is_ignorable() {
    for (answer, text) in [
        ((200, json!({"Error": "broken"})), "broken"),
        (
            (500, json!({})),
            "failed filter with extender at URL @/filter, code 500",
        ),
        (
            (200, json!({"NodeNames": ["elsewhere"]})),
            "extender \"@/\" claims a filtered node \"elsewhere\" which is not found in the input node list",
        ),
        ((200, json!([])), "extender @/: the answer is no object"),
    ] {
        let server = Server::start(move |_, _| (answer.0, answer.1.clone(), NOW)).await;
        let text = text.replace('@', &format!("http://{}/prefix", server.address));
        let fields = "filterVerb: filter, nodeCacheCapable: true";
        let bed = Bed::configured(&format!("extenders: [{}]", server.extender(fields)));
        bed.node("n", "2");
        bed.pod("p", "1", json!({}));
        bed.until(&text, |b| b.message("p").as_deref() == Some(&*text))
            .await;
        bed.stop().await;
        let ignorable = server.extender(&format!("{fields}, ignorable: true"));
        let bed = Bed::configured(&format!("extenders: [{ignorable}]"));
        bed.node("n", "2");
        bed.pod("p", "1", json!({}));
        bed.until("bound all the same", |b| b.node_of("p").is_some())
            .await;
        bed.stop().await;
    }
}

#[tokio::test]
async fn a_slow_extender_holds_up_only_the_pods_it_is_asked_about() {
    let slow = Server::start(|_, body| (200, without(body, &[]), Duration::from_secs(60))).await;
    let quick = Server::start(|_, body| (200, without(body, &[]), NOW)).await;
    let fields = |resource: &str| {
        format!(
            "filterVerb: filter, nodeCacheCapable: true, httpTimeout: 2s, managedResources: \
             [{{name: {resource}, ignoredByScheduler: true}}]"
        )
    };
    let bed = Bed::configured(&format!(
        "extenders: [{}, {}]",
        slow.extender(&fields("slow.example/x")),
        quick.extender(&fields("quick.example/x"))
    ));
    bed.node("n", "9");
    let asking = |resource: &str, init: bool| {
        let container =
            json!([{"name": "c", "image": "x", "resources": {"requests": {resource: "1"}}}]);
        let none = json!([{"name": "c", "image": "x"}]);
        if init {
            json!({"initContainers": container, "containers": none})
        } else {
            json!({"containers": container})
        }
    };
    // Two of them: the second waits for the first.
    bed.pod("slow-1", "0", asking("slow.example/x", false));
    bed.pod("slow-2", "0", asking("slow.example/x", true));
    bed.until("asked", |_| !slow.calls("filter").is_empty())
        .await;
    bed.pod("plain", "1", json!({}));
    bed.pod("quick", "0", asking("quick.example/x", false));
    bed.until("the others", |b| {
        b.node_of("plain").is_some() && b.node_of("quick").is_some()
    })
    .await;
    assert_eq!(
        (bed.node_of("slow-1"), slow.calls("filter").len()),
        (None, 1)
    );
    assert_eq!(quick.calls("filter").len(), 1);
    let text = format!(
        "Post \"http://{}/prefix/filter\": context deadline exceeded",
        slow.address
    );
    bed.until("time out", |b| {
        b.message("slow-1").as_deref() == Some(&*text)
    })
    .await;
    bed.until("the next in turn", |_| {
        slow.calls("filter")
            .iter()
            .any(|c| c["Pod"]["metadata"]["name"] == "slow-2")
    })
    .await;
    bed.stop().await;
}

#[tokio::test]
async fn preemptions_are_judged() {
    let server = Server::start(|verb, body| {
        assert_eq!(verb, "preempt");
        let sent = body["NodeNameToMetaVictims"].as_object().unwrap();
        assert!(
            body["NodeNameToVictims"].is_null() && sent.contains_key("a") && sent.contains_key("b")
        );
        // Another pod than was proposed, and only on b.
        (
            200,
            json!({"NodeNameToMetaVictims": {"b": {"Pods": [{"UID": "uid-b2"}]}}}),
            NOW,
        )
    })
    .await;
    let fields = "preemptVerb: preempt, nodeCacheCapable: true";
    let bed = Bed::configured(&format!("extenders: [{}]", server.extender(fields)));
    for node in ["a", "b"] {
        bed.node(node, "2");
        for i in ["1", "2"] {
            let name = format!("{node}{i}");
            bed.pod(&name, "1", json!({"nodeName": node, "priority": 0}));
        }
    }
    bed.pod("high", "1", json!({"priority": 10}));
    bed.until("bound", |b| b.node_of("high").as_deref() == Some("b"))
        .await;
    assert!(bed.api.get("pods", "default", "b2").is_none());
    for name in ["a1", "a2", "b1"] {
        assert!(bed.api.get("pods", "default", name).is_some(), "{name}");
    }
    bed.stop().await;
}

#[tokio::test]
async fn lies_about_victims_fail_the_attempt() {
    let long = format!(
        "claims to preempt pod (UID: {}) on node: n, but the pod is not found on that node",
        "u".repeat(253)
    );
    for (victims, text) in [
        (
            json!([{"UID": "nobody"}]),
            "claims to preempt pod (UID: nobody) on node: n, but the pod is not found on that node",
        ),
        (json!([]), "expected at least one victim pod on node \"n\""),
        (
            json!([{"UID": "uid-low"}, {"UID": "uid-important"}]),
            "claims to preempt pod (UID: uid-important) on node: n, whose priority is not lower",
        ),
        // what it names is shown as far as it can be a name
        (json!([{"UID": "u".repeat(300_000)}]), &*long),
        // and it answers what it was asked, with no more than that needs
        (json!("x".repeat(4 << 20)), "length limit exceeded"),
    ] {
        let answer = json!({"NodeNameToMetaVictims": {"n": {"Pods": victims}}});
        let server = Server::start(move |_, _| (200, answer.clone(), NOW)).await;
        let bed = Bed::configured(&format!(
            "extenders: [{}]",
            server.extender("preemptVerb: preempt")
        ));
        bed.node("n", "1");
        bed.pod("low", "1", json!({"nodeName": "n", "priority": 0}));
        let important = json!({"nodeName": "n", "priority": 10});
        bed.pod("important", "0", important);
        bed.pod("high", "1", json!({"priority": 10}));
        bed.until(text, |b| {
            b.message("high").is_some_and(|m| m.ends_with(text))
        })
        .await;
        for kept in ["low", "important"] {
            assert!(bed.api.get("pods", "default", kept).is_some(), "{kept}");
        }
        let whole = &server.calls("preempt")[0]["NodeNameToVictims"]["n"];
        assert_eq!(whole["Pods"][0]["metadata"]["name"], "low");
        bed.stop().await;
    }
}

#[tokio::test]
async fn after_an_ignorable_extender_failed_to_bind_the_plugins_do() {
    let server = Server::start(|_, _| (200, json!({"Error": "not today"}), NOW)).await;
    let bed = Bed::configured(&format!(
        "extenders: [{}]",
        server.extender("bindVerb: bind, ignorable: true")
    ));
    bed.node("n", "1");
    bed.pod("p", "1", json!({}));
    bed.until("bound", |b| b.node_of("p").is_some()).await;
    assert_eq!(server.calls("bind").len(), 1);
    bed.stop().await;
}
