//! Items 48, 55, 58, 66, 68, 74: what watchers and pagers see while others write.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::*;

/// Writes of the history test; `DAVIT_HISTORY_WRITES=100000` for the long one.
fn writes() -> usize {
    let asked = std::env::var("DAVIT_HISTORY_WRITES").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(600)
}

struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// Type, name, resourceVersion.
type Event = (String, String, u64);

/// The objects a history is made of.
struct Kind {
    url: &'static str,
    /// An object called as the first argument with the second as its content.
    make: fn(&str, &str) -> Value,
    /// Where the content is.
    patch: fn(&str) -> Value,
}

const BUILT_IN: Kind = Kind {
    url: CONFIG_MAPS,
    make: |name, i| config_map(name, &json!({"i": i})),
    patch: |i| json!({"data": {"i": i}}),
};

const CUSTOM: Kind = Kind {
    url: "/apis/history.example.com/v1/namespaces/default/notes",
    make: |name, i| {
        json!({"apiVersion": "history.example.com/v1", "kind": "Note",
            "metadata": {"name": name}, "spec": {"text": i}})
    },
    patch: |i| json!({"spec": {"text": i}}),
};

/// Makes, changes and deletes objects; answers what was done in order.
async fn write_all(c: &Cluster, kind: &Kind, count: usize) -> Vec<Event> {
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    let mut alive: BTreeMap<String, u32> = BTreeMap::new();
    let mut history = Vec::with_capacity(count);
    for i in 0..count {
        let name = format!("o{}", numbers.below(40));
        let url = format!("{}/{name}", kind.url);
        match alive.get(&name) {
            None => {
                let made = (kind.make)(&name, &i.to_string());
                let made = c.post(kind.url, &made).await.ok(201);
                history.push(("ADDED".to_owned(), name.clone(), rv(&made)));
                alive.insert(name, 0);
            }
            Some(_) if numbers.below(4) == 0 => {
                c.delete(&url, &Value::Null).await.ok(200);
                // its revision is only told by the event
                history.push(("DELETED".to_owned(), name.clone(), 0));
                alive.remove(&name);
            }
            Some(_) => {
                let patch = (kind.patch)(&i.to_string());
                let changed = c.patch(&url, "merge", &patch).await.ok(200);
                history.push(("MODIFIED".to_owned(), name, rv(&changed)));
            }
        }
    }
    history
}

/// A watcher of `url` that is cut after a random number of events, each time at another place of
/// the stream, and goes on from what it saw last.
async fn watch_all(c: &Cluster, url: &str, from: u64, count: usize, seed: u64) -> Vec<Event> {
    let mut numbers = Numbers(seed);
    let mut seen = Vec::with_capacity(count);
    let mut last = from;
    while seen.len() < count {
        let url = format!("{url}?watch=1&resourceVersion={last}&allowWatchBookmarks=true");
        let mut events = c.watch(&url).await;
        for _ in 0..=numbers.below(30) {
            if seen.len() == count {
                break;
            }
            let event = events.next().await.expect("the stream goes on");
            let (kind, object) = (event["type"].as_str().unwrap(), &event["object"]);
            assert!(rv(object) > last, "{event} after {last}");
            last = rv(object);
            if kind != "BOOKMARK" {
                let name = object["metadata"]["name"].as_str().unwrap();
                seen.push((kind.to_owned(), name.to_owned(), last));
            }
        }
    }
    seen
}

/// Two watchers, of the kind under `also` as well, see what was written and nothing else.
async fn exact(c: &Cluster, kind: &Kind, also: &str) {
    let start = rv(&c.get(kind.url).await.ok(200));
    let count = writes();
    let (history, one, two) = tokio::join!(
        write_all(c, kind, count),
        watch_all(c, kind.url, start, count, 7),
        watch_all(c, also, start, count, 99),
    );
    assert_eq!(one, two, "two watchers see the same");
    assert_eq!(one.len(), history.len());
    for (seen, done) in one.iter().zip(&history) {
        assert_eq!((&seen.0, &seen.1), (&done.0, &done.1));
        if done.2 > 0 {
            assert_eq!(seen.2, done.2);
        }
    }
}

#[tokio::test]
async fn items_048_058_and_066_a_cut_watcher_sees_exactly_the_history() {
    let c = Cluster::new().await;
    exact(&c, &BUILT_IN, CONFIG_MAPS).await;
}

#[tokio::test]
async fn items_048_058_and_066_a_cut_watcher_sees_exactly_the_history_of_a_custom_kind() {
    let c = Cluster::new().await;
    let text = json!({"type": "object", "properties": {"spec": {"type": "object",
        "properties": {"text": {"type": "string"}}}}});
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage,
            "schema": {"openAPIV3Schema": text}})
    };
    let definition = json!({
        "metadata": {"name": "notes.history.example.com"},
        "spec": {"group": "history.example.com", "scope": "Namespaced",
            "names": {"plural": "notes", "kind": "Note"},
            "versions": [version("v1", true), version("v2", false)]},
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    c.post(definitions, &definition).await.ok(201);
    // the same history through a version that is not stored
    let other = CUSTOM.url.replace("/v1/", "/v2/");
    for _ in 0..500 {
        if c.get(&other).await.code == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    exact(&c, &CUSTOM, &other).await;
}

#[tokio::test]
async fn item_055_an_expired_continue_token_says_how_to_go_on() {
    let c = Cluster::new().await;
    for name in ["a", "b", "c"] {
        c.config_map(name, &json!({})).await;
    }
    let first = c.get(&format!("{CONFIG_MAPS}?limit=1")).await.ok(200);
    let token = first["metadata"]["continue"].as_str().unwrap();
    c.config_map("d", &json!({})).await;
    let store = c.store();
    store
        .compact(store.current_revision().await.unwrap())
        .await
        .unwrap();
    let url = |token: &str| format!("{CONFIG_MAPS}?limit=10&continue={token}");
    let expired = c.get(&url(token)).await.error(410, "Expired");
    let token = expired["metadata"]["continue"].as_str().unwrap();
    assert!(!token.is_empty());
    let rest = c.get(&url(token)).await.ok(200);
    let names: Vec<&str> = rest["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["b", "c", "d"]);
}

#[tokio::test]
async fn item_068_a_stalled_watcher_does_not_delay_others() {
    let c = Cluster::new().await;
    let url = format!("{CONFIG_MAPS}?watch=1");
    let stalled = c.watch(&url).await;
    let mut lively = c.watch(&url).await;
    for i in 0..300 {
        c.config_map(&format!("o{i}"), &json!({"a": "x".repeat(2048)}))
            .await;
        let next = tokio::time::timeout(Duration::from_secs(5), lively.summary());
        assert_eq!(next.await.unwrap(), ("ADDED".to_owned(), format!("o{i}")));
    }
    drop(stalled);
}

#[tokio::test]
async fn item_074_pages_of_many_objects_are_one_snapshot() {
    let c = Cluster::new().await;
    let store = c.store();
    let many = 10_000;
    let write = |i: usize| {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": format!("o{i:05}"), "namespace": "many", "uid": i.to_string()}});
        let key = format!("/registry/core/configmaps/many/o{i:05}");
        store.commit(davit_store::Write::create(key, object.to_string()))
    };
    // many at once share a write of the disk
    for first in (0..many).step_by(250) {
        let writes = (first..first + 250).map(write);
        for made in futures::future::join_all(writes).await {
            made.unwrap();
        }
    }
    let base = "/api/v1/namespaces/many/configmaps";
    let (mut pages, mut seen, mut token) = (0, 0, String::new());
    let mut revisions = Vec::new();
    loop {
        let page = c
            .get(&format!("{base}?limit=500&continue={token}"))
            .await
            .ok(200);
        pages += 1;
        seen += page["items"].as_array().unwrap().len();
        revisions.push(rv(&page));
        if pages == 1 {
            assert_eq!(page["metadata"]["remainingItemCount"], 9500);
            // what comes later is not in the snapshot
            let late = json!({"metadata": {"name": "zz"}});
            let namespace = json!({"metadata": {"name": "many"}});
            c.post("/api/v1/namespaces", &namespace).await.ok(201);
            c.post(base, &late).await.ok(201);
        }
        token = page["metadata"]["continue"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        if token.is_empty() {
            break;
        }
    }
    assert_eq!((pages, seen), (20, many));
    revisions.dedup();
    assert_eq!(revisions.len(), 1, "{revisions:?}");
}

#[tokio::test]
async fn item_062_an_informer_on_an_empty_resource_is_synced_at_once() {
    let c = Cluster::new().await;
    // as client-go 1.35 opens it
    let url = format!(
        "{CONFIG_MAPS}?allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan\
         &sendInitialEvents=true&timeoutSeconds=400&watch=true"
    );
    let started = std::time::Instant::now();
    let mut events = c.watch(&url).await;
    let event = events.next().await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(1));
    assert_eq!(event["type"], "BOOKMARK");
    assert_eq!(
        event["object"]["metadata"]["annotations"],
        json!({"k8s.io/initial-events-end": "true"})
    );
    assert!(rv(&event["object"]) > 0);
}

#[tokio::test]
async fn item_070_events_are_selected_by_what_they_are_about() {
    let c = Cluster::new().await;
    let base = "/api/v1/namespaces/default/events";
    for (name, about, reason) in [("e1", "p1", "Started"), ("e2", "p2", "Failed")] {
        let event = json!({"metadata": {"name": name, "namespace": "default"}, "reason": reason,
            "type": "Normal", "message": "m", "firstTimestamp": "2024-01-01T00:00:00Z",
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": about, "uid": "u1"}});
        c.post(base, &event).await.ok(201);
    }
    for (selector, wanted) in [
        ("involvedObject.name=p1,involvedObject.kind=Pod", vec!["e1"]),
        ("reason=Failed", vec!["e2"]),
        ("reason!=Failed,type=Normal", vec!["e1"]),
        (
            "involvedObject.uid=u1,involvedObject.namespace=default",
            vec!["e1", "e2"],
        ),
    ] {
        let selector = selector.replace('=', "%3D").replace('!', "%21");
        let list = c
            .get(&format!("{base}?fieldSelector={selector}"))
            .await
            .ok(200);
        let names: Vec<&str> = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, wanted, "{selector}");
    }
}

#[tokio::test]
async fn item_082_strategic_directives_order_keep_and_delete() {
    let c = Cluster::new().await;
    let mut made = deployment("web");
    made["metadata"]["finalizers"] = json!(["example.com/a", "example.com/b"]);
    made["spec"]["template"]["spec"]["containers"] =
        json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]);
    c.post(DEPLOYMENTS, &made).await.ok(201);
    let url = format!("{DEPLOYMENTS}/web");
    let names = |object: &Value| -> Vec<String> {
        object["spec"]["template"]["spec"]["containers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let order = json!({"spec": {"template": {"spec": {
        "$setElementOrder/containers": [{"name": "b"}, {"name": "c"}, {"name": "a"}],
        "containers": [{"name": "c", "image": "i"}]}}}});
    let patched = c.patch(&url, "strategic-merge", &order).await.ok(200);
    assert_eq!(names(&patched), ["b", "c", "a"]);
    let less = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/a"]}});
    let patched = c.patch(&url, "strategic-merge", &less).await.ok(200);
    assert_eq!(patched["metadata"]["finalizers"], json!(["example.com/b"]));
    let keep = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
    let patched = c.patch(&url, "strategic-merge", &keep).await.ok(200);
    assert_eq!(patched["spec"]["strategy"], json!({"type": "Recreate"}));
    let replace = json!({"spec": {"template": {"spec": {"containers": [
        {"$patch": "replace"}, {"name": "only", "image": "i"}]}}}});
    let patched = c.patch(&url, "strategic-merge", &replace).await.ok(200);
    assert_eq!(names(&patched), ["only"]);
}

#[tokio::test]
async fn item_003_every_error_is_a_status_with_its_code() {
    let c = Cluster::new().await;
    c.config_map("x", &json!({})).await;
    let json_type = [("content-type", "application/json")];
    for (method, url, body, code) in [
        ("GET", format!("{CONFIG_MAPS}/none"), "", 404),
        ("POST", CONFIG_MAPS.to_owned(), "{", 400),
        ("POST", CONFIG_MAPS.to_owned(), "{}", 422),
        (
            "POST",
            CONFIG_MAPS.to_owned(),
            r#"{"metadata":{"name":"x"}}"#,
            409,
        ),
        (
            "POST",
            CONFIG_MAPS.to_owned(),
            r#"{"metadata":{"name":"X_"}}"#,
            422,
        ),
        ("PUT", CONFIG_MAPS.to_owned(), "{}", 405),
        (
            "GET",
            format!("{CONFIG_MAPS}?labelSelector=%3D%3D"),
            "",
            400,
        ),
        (
            "GET",
            format!("{CONFIG_MAPS}?fieldSelector=no.such%3Dx"),
            "",
            400,
        ),
        ("GET", format!("{CONFIG_MAPS}?resourceVersion=x"), "", 400),
        ("PATCH", format!("{CONFIG_MAPS}/x"), "{}", 415),
        ("DELETE", format!("{CONFIG_MAPS}/x?dryRun=some"), "", 422),
    ] {
        let answer = c.request(method, &url, &json_type, body).await;
        assert_eq!(answer.code, code, "{method} {url}: {}", answer.text());
        let status = answer.json();
        assert_eq!(status["kind"], "Status", "{method} {url}");
        assert_eq!(status["apiVersion"], "v1", "{method} {url}");
        assert_eq!(status["code"], code, "{method} {url}");
        assert!(status["metadata"].is_object(), "{method} {url}");
    }
}
