//! What size costs: memory of 500 custom kinds, lists and watches of 100 000 objects, through the whole pipeline in
//! process. Prints one line a figure; `DAVIT_BENCH_DEFINITIONS` and `DAVIT_BENCH_OBJECTS` for other sizes.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a benchmark fails by panicking"
)]

use bytes::Bytes;
use davit_access::{MASTERS, UserInfo};
use davit_apiserver::{ApiServer, Options, ResponseBody};
use davit_store::embedded::{EmbeddedOptions, EmbeddedStore};
use futures::StreamExt;
use futures::stream;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Requests at once while objects are made.
const WRITERS: usize = 256;
const WATCHERS: usize = 100;
/// The most anonymous memory seen while informers synced, in KiB.
static PEAK: AtomicU64 = AtomicU64::new(0);

fn number(name: &str, otherwise: usize) -> usize {
    let given = std::env::var(name).ok();
    given
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

/// `VmRSS` and `RssAnon` of this process, in MiB.
fn memory() -> (f64, f64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        let words = line.and_then(|line| line.split_whitespace().nth(1));
        words.and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
    };
    (of("VmRSS:"), of("RssAnon:"))
}

fn tell(what: &str, value: impl std::fmt::Display) {
    println!("{what:<58} {value}");
}

fn tell_memory(what: &str) {
    let (all, own) = memory();
    tell(what, format!("{all:.0} MiB ({own:.0} anonymous)"));
}

struct Bench {
    server: Arc<ApiServer>,
    _dir: tempfile::TempDir,
}

impl Bench {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(dir.path(), EmbeddedOptions::default())
            .await
            .unwrap();
        let server = ApiServer::new(Options::new(Arc::new(store))).await.unwrap();
        Self { server, _dir: dir }
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> http::Response<ResponseBody> {
        let user = UserInfo::new("bench", &[MASTERS]);
        let response = self.server.call(request, user).await;
        assert!(response.status().is_success(), "{}", response.status());
        response
    }

    async fn get(&self, uri: &str) -> Bytes {
        let request = Request::get(uri).body(Full::default()).unwrap();
        let response = self.send(request).await;
        response.into_body().collect().await.unwrap().to_bytes()
    }

    async fn post(&self, uri: &str, body: &Value) {
        let request = Request::post(uri)
            .header("content-type", "application/json")
            .body(Full::new(body.to_string().into()))
            .unwrap();
        let response = self.send(request).await;
        let _body = response.into_body().collect().await.unwrap();
    }

    /// Many objects, many at once.
    async fn post_all(&self, uri: &str, count: usize, body: impl Fn(usize) -> Value) {
        stream::iter(0..count)
            .map(|n| {
                let body = body(n);
                async move { self.post(uri, &body).await }
            })
            .buffer_unordered(WRITERS)
            .collect::<Vec<()>>()
            .await;
    }
}

/// A kind as operators bring them: a spec of some depth, a status, rules and columns.
fn definition(n: usize) -> Value {
    let text = json!({"type": "string", "maxLength": 253, "description": "What it is called, where it is and why."});
    let part = json!({"type": "object", "description": "One of the parts.", "properties": {
        "name": text, "image": text, "args": {"type": "array", "items": text},
        "limits": {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": true}},
        "port": {"type": "integer", "minimum": 1, "maximum": 65535},
    }});
    let properties: serde_json::Map<String, Value> = (0..20)
        .map(|i| (format!("part{i}"), part.clone()))
        .chain([(
            "replicas".to_owned(),
            json!({"type": "integer", "default": 1}),
        )])
        .collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("things{n}.g{}.example.com", n % 50)},
        "spec": {"group": format!("g{}.example.com", n % 50), "scope": "Namespaced",
            "names": {"plural": format!("things{n}"), "kind": format!("Thing{n}")},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": properties, "x-kubernetes-validations": [
                        {"rule": "self.replicas <= 100", "message": "too many"}]},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
                "additionalPrinterColumns": [{"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"}]}]},
    })
}

async fn definitions(count: usize) {
    let bench = Bench::new().await;
    tell_memory("definitions: memory before");
    let (_, before) = memory();
    let size = definition(0).to_string().len();
    let began = Instant::now();
    bench.post_all(DEFINITIONS, count, definition).await;
    let last = format!(
        "/apis/g{}.example.com/v1/things{}",
        (count - 1) % 50,
        count - 1
    );
    let served = async {
        loop {
            let request = Request::get(&last).body(Full::default()).unwrap();
            let user = UserInfo::new("bench", &[MASTERS]);
            if bench.server.call(request, user).await.status().is_success() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(300), served)
        .await
        .unwrap();
    let took = began.elapsed();
    tell(
        &format!("definitions: {count} of {size} bytes, made and served"),
        format!("{took:.1?}"),
    );
    tokio::time::sleep(Duration::from_secs(3)).await;
    tell_memory("definitions: memory with all of them, unused");
    let (_, after) = memory();
    #[allow(clippy::cast_precision_loss, reason = "a figure to read")]
    let each = (after - before) * 1024.0 / count as f64;
    tell(
        "definitions: anonymous memory each",
        format!("{each:.0} KiB"),
    );
    for uri in ["/openapi/v2", "/openapi/v3", "/apis"] {
        let began = Instant::now();
        let bytes = bench.get(uri).await.len();
        tell(
            &format!("definitions: GET {uri}, first time"),
            format!("{:.1?}, {} KiB", began.elapsed(), bytes / 1024),
        );
    }
    tell_memory("definitions: memory after the documents");
    let object = |n: usize| {
        json!({"apiVersion": format!("g{}.example.com/v1", n % 50), "kind": format!("Thing{n}"),
            "metadata": {"name": "one"}, "spec": {"replicas": 3, "part0": {"name": "x", "args": ["a", "b"]}}})
    };
    let began = Instant::now();
    for n in 0..count {
        let uri = format!(
            "/apis/g{}.example.com/v1/namespaces/default/things{n}",
            n % 50
        );
        bench.post(&uri, &object(n)).await;
    }
    tell(
        "definitions: one object of each, one after the other",
        format!("{:.1?}", began.elapsed()),
    );
    tell_memory("definitions: memory with all of them used");
}

/// About a kilobyte.
fn map(n: usize) -> Value {
    json!({"metadata": {"name": format!("map-{n:06}"), "labels": {"app": format!("app-{}", n % 100)}},
        "data": {"text": "x".repeat(700), "n": n.to_string()}})
}

async fn objects(count: usize) {
    let bench = Arc::new(Bench::new().await);
    tell_memory("objects: memory before");
    let began = Instant::now();
    bench.post_all(MAPS, count, map).await;
    let took = began.elapsed();
    #[allow(clippy::cast_precision_loss, reason = "a figure to read")]
    let rate = count as f64 / took.as_secs_f64();
    tell(
        &format!("objects: {count} made by {WRITERS} writers"),
        format!("{took:.1?}, {rate:.0}/s"),
    );
    tell_memory("objects: memory with all of them");
    for (what, uri) in [
        ("list of all", MAPS.to_owned()),
        ("list from the cache", format!("{MAPS}?resourceVersion=0")),
        ("one page of 500", format!("{MAPS}?limit=500")),
        (
            "one in a hundred by label",
            format!("{MAPS}?labelSelector=app%3Dapp-7"),
        ),
    ] {
        let _warm = bench.get(&uri).await;
        let began = Instant::now();
        let bytes = bench.get(&uri).await.len();
        tell(
            &format!("objects: {what}"),
            format!("{:.1?}, {} KiB", began.elapsed(), bytes / 1024),
        );
    }
    let began = Instant::now();
    let (mut pages, mut token) = (0, String::new());
    loop {
        let page = bench
            .get(&format!("{MAPS}?limit=500&continue={token}"))
            .await;
        let page: Value = serde_json::from_slice(&page).unwrap();
        pages += 1;
        match page["metadata"]["continue"].as_str() {
            Some(next) if !next.is_empty() => token = next.to_owned(),
            _ => break,
        }
    }
    tell(
        &format!("objects: all in {pages} pages"),
        format!("{:.1?}", began.elapsed()),
    );
    tell_memory("objects: memory after the lists");
    watches(&bench, count).await;
}

/// Reads a watch until `wanted` events came.
async fn follow(bench: Arc<Bench>, uri: String, wanted: usize) {
    let request = Request::get(uri).body(Full::default()).unwrap();
    let body = bench.send(request).await.into_body();
    let mut body = std::pin::pin!(body.into_data_stream());
    let mut seen = 0;
    while seen < wanted {
        let Some(Ok(piece)) = body.next().await else {
            panic!("a watch ended after {seen} of {wanted} events");
        };
        seen += piece.iter().filter(|byte| **byte == b'\n').count();
    }
}

async fn watches(bench: &Arc<Bench>, count: usize) {
    let first = format!(
        "{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let began = Instant::now();
    follow(Arc::clone(bench), first, count + 1).await;
    tell(
        "watches: initial events of one watch",
        format!("{:.1?}", began.elapsed()),
    );
    let list: Value = serde_json::from_slice(&bench.get(&format!("{MAPS}?limit=1")).await).unwrap();
    let revision = list["metadata"]["resourceVersion"].as_str().unwrap();
    let events = (count / 10).max(1);
    let uri = format!("{MAPS}?watch=1&resourceVersion={revision}");
    let watchers: Vec<_> = (0..WATCHERS)
        .map(|_| tokio::spawn(follow(Arc::clone(bench), uri.clone(), events)))
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    tell_memory(&format!("watches: memory with {WATCHERS} idle"));
    let began = Instant::now();
    bench.post_all(MAPS, events, |n| map(count + n)).await;
    for watcher in watchers {
        watcher.await.unwrap();
    }
    let took = began.elapsed();
    #[allow(clippy::cast_precision_loss, reason = "a figure to read")]
    let rate = (events * WATCHERS) as f64 / took.as_secs_f64();
    tell(
        &format!("watches: {events} writes to {WATCHERS} watchers"),
        format!("{took:.1?}, {rate:.0} events/s"),
    );
    tell_memory("watches: memory after");
}

/// Item 206: informers that all begin at once, each with its list as a watch.
async fn informers(count: usize) {
    const OBJECTS: usize = 10_000;
    let bench = Arc::new(Bench::new().await);
    bench.post_all(MAPS, OBJECTS, map).await;
    let (_, before) = memory();
    let uri = format!(
        "{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    // all there is, the bookmark, and one event more
    let following: Vec<_> = (0..count)
        .map(|_| tokio::spawn(follow(Arc::clone(&bench), uri.clone(), OBJECTS + 2)))
        .collect();
    let began = Instant::now();
    let sampler = tokio::spawn(async {
        let mut peak = 0.0_f64;
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            peak = peak.max(memory().1);
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a figure to read"
            )]
            PEAK.store((peak * 1024.0) as u64, Ordering::Relaxed);
        }
    });
    bench.post(MAPS, &map(OBJECTS)).await;
    for task in following {
        task.await.unwrap();
    }
    sampler.abort();
    #[allow(clippy::cast_precision_loss, reason = "a figure to read")]
    let peak = (PEAK.load(Ordering::Relaxed) as f64 / 1024.0).max(memory().1);
    tell(
        &format!("informers: {count} over {OBJECTS} objects, all with one event more"),
        format!("{:.1?}", began.elapsed()),
    );
    #[allow(clippy::cast_precision_loss, reason = "a figure to read")]
    let each = (peak - before) * 1024.0 / count as f64;
    tell(
        "informers: anonymous memory at most, each",
        format!("{peak:.0} MiB, {each:.0} KiB"),
    );
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let kinds = number("DAVIT_BENCH_DEFINITIONS", 500);
    if kinds > 0 {
        runtime.block_on(definitions(kinds));
    }
    let count = number("DAVIT_BENCH_OBJECTS", 100_000);
    if count > 0 {
        runtime.block_on(objects(count));
    }
    let count = number("DAVIT_BENCH_INFORMERS", 500);
    if count > 0 {
        runtime.block_on(informers(count));
    }
}
