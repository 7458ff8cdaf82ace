//! Lists of 10 000 pods through the whole pipeline, in process: everything but TLS and the socket.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a benchmark fails by panicking"
)]

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use davit_access::{MASTERS, UserInfo};
use davit_apiserver::{ApiServer, Options};
use davit_store::embedded::{EmbeddedOptions, EmbeddedStore};
use http::Request;
use http_body_util::{BodyExt, Full};
use std::sync::Arc;

const PODS: usize = 10_000;

async fn call(server: &Arc<ApiServer>, request: Request<Full<Bytes>>) -> Bytes {
    let response = server
        .call(request, UserInfo::new("bench", &[MASTERS]))
        .await;
    assert!(response.status().is_success(), "{}", response.status());
    response.into_body().collect().await.unwrap().to_bytes()
}

fn get(uri: &str, accept: &str) -> Request<Full<Bytes>> {
    Request::get(uri)
        .header("accept", accept)
        .body(Full::default())
        .unwrap()
}

fn pod(n: usize) -> Bytes {
    let pod = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": format!("pod-{n}"), "labels": { "app": format!("app-{}", n % 100) } },
        "spec": {
            "containers": [{
                "name": "main",
                "image": "example.test/image:1",
                "resources": { "limits": { "hardware-vendor.example/foo": "1" } },
            }],
        },
    });
    pod.to_string().into()
}

async fn populated(dir: &std::path::Path) -> Arc<ApiServer> {
    let store = EmbeddedStore::open(dir, EmbeddedOptions::default())
        .await
        .unwrap();
    let server = ApiServer::new(Options::new(Arc::new(store))).await.unwrap();
    let account = serde_json::json!({ "metadata": { "name": "default" } }).to_string();
    let post = |path: &str, body: Bytes| {
        Request::post(path)
            .header("content-type", "application/json")
            .body(Full::new(body))
            .unwrap()
    };
    call(
        &server,
        post("/api/v1/namespaces/default/serviceaccounts", account.into()),
    )
    .await;
    for batch in 0..PODS / 100 {
        let creating = (0..100).map(|n| {
            call(
                &server,
                post("/api/v1/namespaces/default/pods", pod(batch * 100 + n)),
            )
        });
        futures::future::join_all(creating).await;
    }
    server
}

fn benches(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let server = runtime.block_on(populated(dir.path()));
    let json = "application/json";
    let protobuf = "application/vnd.kubernetes.protobuf";
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let mut group = criterion.benchmark_group("list_10000_pods");
    group.sample_size(20);
    for (name, uri, accept) in [
        ("json", "/api/v1/pods", json),
        ("first_page_of_500", "/api/v1/pods?limit=500", json),
        (
            "label_selector_1_percent",
            "/api/v1/pods?labelSelector=app%3Dapp-7",
            json,
        ),
        ("protobuf", "/api/v1/pods", protobuf),
        ("table", "/api/v1/pods", table),
    ] {
        group.bench_function(name, |b| {
            b.iter(|| runtime.block_on(call(&server, get(uri, accept))));
        });
    }
    group.finish();
}

criterion_group!(list_pods, benches);
criterion_main!(list_pods);
