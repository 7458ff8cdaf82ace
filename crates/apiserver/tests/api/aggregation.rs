//! Aggregated API servers: a real HTTPS server behind an APIService (items 163–169).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use davit_access::UserInfo;
use davit_pki::Pki;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::cluster::*;
use crate::serve::Served;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const NAME: &str = "v1.gauges.test";
const WELL: u8 = 0;
const FAILS: u8 = 1;
const HANGS: u8 = 2;

/// An API server for `gauges.test/v1` that demands the front-proxy certificate.
struct Backend {
    address: SocketAddr,
    ca: String,
    mode: Arc<AtomicU8>,
    task: tokio::task::JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Backend {
    /// Believes clients of the authority `front_proxy_ca`.
    async fn new(front_proxy_ca: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(dir.path()).unwrap();
        let names = ["gauges.default.svc".to_owned()];
        let identity = pki.serving("backend", "backend", &names).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(front_proxy_ca.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
            Arc::new(roots),
            Arc::clone(&provider),
        )
        .build()
        .unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap(),
            )
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mode = Arc::new(AtomicU8::new(WELL));
        let shared = Arc::clone(&mode);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, mode) = (acceptor.clone(), Arc::clone(&shared));
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let answer = service_fn(move |request| answer(request, Arc::clone(&mode)));
                    let _ended = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), answer)
                        .with_upgrades()
                        .await;
                });
            }
        });
        Self {
            address,
            ca: pki.ca_certificate().to_owned(),
            mode,
            task,
            _dir: dir,
        }
    }

    fn set(&self, mode: u8) {
        self.mode.store(mode, Ordering::SeqCst);
    }

    /// Service, slice and APIService.
    async fn register(&self, c: &Cluster) {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "gauges" },
            "spec": { "ports": [{ "name": "https", "port": 443, "protocol": "TCP" }] },
        });
        c.post(SERVICES, &service).await.ok(201);
        c.post(SLICES, &self.slice()).await.ok(201);
        c.post(API_SERVICES, &self.api_service()).await.ok(201);
    }

    fn slice(&self) -> Value {
        // Loopback addresses are refused by validation, the server listens on all of them.
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": { "name": "gauges-1", "labels": { "kubernetes.io/service-name": "gauges" } },
            "addressType": "FQDN",
            "endpoints": [{ "addresses": ["localhost"], "conditions": { "ready": true } }],
            "ports": [{ "name": "https", "port": self.address.port(), "protocol": "TCP" }],
        })
    }

    fn api_service(&self) -> Value {
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": NAME },
            "spec": {
                "group": "gauges.test", "version": "v1",
                "service": { "namespace": "default", "name": "gauges" },
                "caBundle": base64::engine::general_purpose::STANDARD.encode(&self.ca),
                "groupPriorityMinimum": 2000, "versionPriority": 10,
            },
        })
    }
}

type Body = BoxBody<Bytes, Infallible>;

async fn answer(
    mut request: Request<Incoming>,
    mode: Arc<AtomicU8>,
) -> Result<Response<Body>, Infallible> {
    match mode.load(Ordering::SeqCst) {
        FAILS => {
            let mut response = Response::new(Full::new(Bytes::from("boom")).boxed());
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            return Ok(response);
        }
        HANGS => std::future::pending::<()>().await,
        _ => {}
    }
    let json = |value: Value| {
        let body = Full::new(Bytes::from(value.to_string())).boxed();
        let mut response = Response::new(body);
        response
            .headers_mut()
            .insert("content-type", "application/json".parse().unwrap());
        Ok(response)
    };
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    if request.headers().contains_key("upgrade") {
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut io = TokioIo::new(upgraded.await.unwrap());
            let mut word = [0; 4];
            io.read_exact(&mut word).await.unwrap();
            word.reverse();
            io.write_all(&word).await.unwrap();
        });
        let mut response = Response::new(Full::default().boxed());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert("connection", "Upgrade".parse().unwrap());
        headers.insert("upgrade", "reverse".parse().unwrap());
        return Ok(response);
    }
    match path.as_str() {
        "/apis" => json(json!({ "kind": "APIGroupList", "groups": [] })),
        "/apis/gauges.test/v1" => json(json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "gauges.test/v1",
            "resources": [{ "name": "gauges", "singularName": "gauge", "namespaced": true,
                "kind": "Gauge", "verbs": ["create", "get", "list", "watch"] }],
        })),
        "/openapi/v3" => json(json!({ "paths": { "apis/gauges.test/v1": {
            "serverRelativeURL": "/openapi/v3/apis/gauges.test/v1?hash=A" } } })),
        "/openapi/v2" => json(json!({
            "swagger": "2.0",
            "paths": {
                "/apis/gauges.test/v1/gauges": { "get": { "operationId": "listGauge",
                    "responses": { "200": { "description": "OK",
                        "schema": { "$ref": "#/definitions/test.gauges.v1.Gauge" } } } } },
                "/apis/": { "get": { "operationId": "groups" } },
            },
            "definitions": { "test.gauges.v1.Gauge": { "type": "object" }, "other": {} },
        })),
        "/openapi/v3/apis/gauges.test/v1" => {
            json(json!({ "openapi": "3.0.0", "paths": { "x": {} } }))
        }
        _ if query.contains("watch=true") => {
            let frames = futures::stream::unfold(0, |n| async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                let line = json!({ "type": "ADDED", "object": { "n": n } }).to_string() + "\n";
                Some((Ok(Frame::data(Bytes::from(line))), n + 1))
            });
            let mut response = Response::new(BoxBody::new(StreamBody::new(frames)));
            response
                .headers_mut()
                .insert("content-type", "application/json".parse().unwrap());
            Ok(response)
        }
        _ => {
            let headers: Vec<(String, String)> = request
                .headers()
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_str().unwrap_or("?").to_owned()))
                .collect();
            let method = request.method().to_string();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let body = String::from_utf8_lossy(&body).into_owned();
            json(
                json!({ "path": path, "query": query, "method": method, "headers": headers, "body": body }),
            )
        }
    }
}

async fn front_proxy_ca(c: &Cluster) -> String {
    let url = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let map = c.get(url).await.ok(200);
    map["data"]["requestheader-client-ca-file"]
        .as_str()
        .unwrap()
        .to_owned()
}

async fn condition(c: &Cluster, name: &str) -> (String, String, String) {
    let object = c.get(&format!("{API_SERVICES}/{name}")).await.json();
    let condition = &object["status"]["conditions"][0];
    let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"), text("message"))
}

async fn becomes(c: &Cluster, name: &str, status: &str, reason: &str) -> String {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let now = condition(c, name).await;
        if now.0 == status && now.1 == reason {
            return now.2;
        }
        assert!(
            Instant::now() < end,
            "{name} is {now:?}, not {status} {reason}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn aggregated(c: &Cluster) -> Value {
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let request = Request::get("/apis").header("accept", accept);
    let body = http_body_util::Empty::<Bytes>::new();
    let answer = c
        .server
        .call(request.body(body).unwrap(), UserInfo::system("t"))
        .await;
    whole(answer).await.json()
}

fn version_of(discovery: &Value) -> Value {
    let items = discovery["items"].as_array().unwrap();
    let group = items
        .iter()
        .find(|item| item["metadata"]["name"] == "gauges.test");
    group
        .map(|group| group["versions"][0].clone())
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn item_163_and_164_an_available_backend_answers_with_the_callers_identity() {
    let c = Cluster::with_keys().await;
    let backend = Backend::new(&front_proxy_ca(&c).await).await;
    backend.register(&c).await;
    let message = becomes(&c, NAME, "True", "Passed").await;
    assert_eq!(message, "all checks passed");
    let user = {
        let mut user = UserInfo::new("jane", &["system:masters", "crew"]);
        user.uid = "u-1".to_owned();
        user.extra
            .insert("example.com/x".to_owned(), vec!["1".to_owned()]);
        user
    };
    let request = Request::post("/apis/gauges.test/v1/namespaces/n/gauges?fieldManager=t")
        .header("content-type", "application/json")
        .header("x-remote-user", "root")
        .header("x-remote-extra-spoofed", "1")
        .header("authorization", "Bearer secret")
        .body(Full::new(Bytes::from("{\"a\":1}")))
        .unwrap();
    let seen = whole(c.server.call(request, user).await).await.json();
    let of = |name: &str| -> Vec<String> {
        let headers = seen["headers"].as_array().unwrap();
        let found = headers.iter().filter(|h| h[0] == name);
        found.map(|h| h[1].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(seen["path"], "/apis/gauges.test/v1/namespaces/n/gauges");
    assert_eq!(
        (&seen["method"], &seen["body"]),
        (&json!("POST"), &json!("{\"a\":1}"))
    );
    assert_eq!(seen["query"], "fieldManager=t");
    assert_eq!(of("x-remote-user"), ["jane"]);
    assert_eq!(of("x-remote-uid"), ["u-1"]);
    assert_eq!(
        of("x-remote-group"),
        ["system:masters", "crew", "system:authenticated"]
    );
    assert_eq!(of("x-remote-extra-example.com%2fx"), ["1"]);
    assert!(of("x-remote-extra-spoofed").is_empty() && of("authorization").is_empty());
    assert_eq!(of("x-forwarded-proto"), ["https"]);
    // Somebody who may not do it here is not passed on.
    let request = Request::get("/apis/gauges.test/v1/gauges")
        .body(Full::<Bytes>::default())
        .unwrap();
    let refused = c.server.call(request, UserInfo::anonymous()).await;
    assert_eq!(refused.status(), 403);
}

/// It holds a place among the requests until its answer begins.
#[tokio::test]
async fn a_watch_that_is_not_answered_ends() {
    let c = Cluster::with_keys().await;
    let backend = Backend::new(&front_proxy_ca(&c).await).await;
    backend.register(&c).await;
    becomes(&c, NAME, "True", "Passed").await;
    backend.set(HANGS);
    let watch = Request::get("/apis/gauges.test/v1/gauges?watch=true");
    let watch = watch.body(Full::<Bytes>::default()).unwrap();
    let answer = c.server.call(watch, UserInfo::system("t"));
    let passes = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        tokio::time::pause();
        tokio::time::sleep(Duration::from_secs(70)).await;
        tokio::time::resume();
    };
    let within = tokio::time::timeout(Duration::from_secs(75), answer);
    let (answer, ()) = tokio::join!(within, passes);
    let answer = answer.expect("no answer after a minute");
    assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
}

#[tokio::test(flavor = "multi_thread")]
async fn item_166_a_dead_backend_harms_no_other_group() {
    let c = Cluster::with_keys().await;
    let backend = Backend::new(&front_proxy_ca(&c).await).await;
    backend.register(&c).await;
    becomes(&c, NAME, "True", "Passed").await;
    let current = |discovery: &Value| version_of(discovery)["freshness"] == "Current";
    let end = Instant::now() + Duration::from_secs(10);
    while !current(&aggregated(&c).await) {
        assert!(
            Instant::now() < end,
            "{}",
            version_of(&aggregated(&c).await)
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let known = version_of(&aggregated(&c).await)["resources"].clone();
    assert_eq!(known[0]["responseKind"]["kind"], "Gauge");

    // A slice that changes makes the server look again at once.
    backend.set(FAILS);
    let mut slice = backend.slice();
    slice["metadata"]["labels"]["touched"] = json!("1");
    c.put(&format!("{SLICES}/gauges-1"), &slice).await.ok(200);
    let message = becomes(&c, NAME, "False", "FailedDiscoveryCheck").await;
    let url = "https://gauges.default.svc:443/apis/gauges.test/v1";
    assert_eq!(
        message,
        format!("failing or missing response from {url}: bad status from {url}: 500")
    );
    let refused = c.get("/apis/gauges.test/v1/gauges").await;
    assert_eq!(
        (refused.code, refused.text()),
        (503, "service unavailable\n".to_owned())
    );
    // Discovery still names the group, says that this is old, and keeps what was known.
    let stale = version_of(&aggregated(&c).await);
    assert_eq!(
        (&stale["freshness"], &stale["resources"]),
        (&json!("Stale"), &known)
    );
    let groups = c.get("/apis").await.ok(200);
    let names: Vec<&str> = groups["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|g| g["name"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"gauges.test") && names.contains(&"apps"));

    // One that hangs takes nobody's time but its callers'.
    backend.set(HANGS);
    let began = Instant::now();
    c.get("/apis/apps/v1/deployments").await.ok(200);
    assert!(version_of(&aggregated(&c).await).is_object());
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );

    backend.set(WELL);
    becomes(&c, NAME, "True", "Passed").await;
    assert_eq!(c.get("/apis/gauges.test/v1/gauges").await.code, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_condition_says_what_is_missing() {
    let c = Cluster::with_keys().await;
    let backend = Backend::new(&front_proxy_ca(&c).await).await;
    c.post(API_SERVICES, &backend.api_service()).await.ok(201);
    let message = becomes(&c, NAME, "False", "ServiceNotFound").await;
    assert_eq!(message, "service/gauges in \"default\" is not present");
    let service = |port: u16| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "gauges" },
            "spec": { "ports": [{ "name": "https", "port": port }] },
        })
    };
    c.post(SERVICES, &service(80)).await.ok(201);
    let message = becomes(&c, NAME, "False", "ServicePortError").await;
    assert_eq!(
        message,
        "service/gauges in \"default\" is not listening on port 443"
    );
    let patch = json!({ "spec": { "ports": [{ "name": "https", "port": 443 }] } });
    c.patch(&format!("{SERVICES}/gauges"), "merge", &patch)
        .await
        .ok(200);
    let message = becomes(&c, NAME, "False", "EndpointsNotFound").await;
    assert_eq!(
        message,
        "cannot find endpointslices for service/gauges in \"default\""
    );
    let mut slice = backend.slice();
    slice["endpoints"][0]["conditions"]["ready"] = json!(false);
    c.post(SLICES, &slice).await.ok(201);
    let message = becomes(&c, NAME, "False", "MissingEndpoints").await;
    assert_eq!(
        message,
        "endpointslices for service/gauges in \"default\" have no addresses with port name \"https\""
    );
    c.put(&format!("{SLICES}/gauges-1"), &backend.slice())
        .await
        .ok(200);
    becomes(&c, NAME, "True", "Passed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_upgrades_and_openapi_pass_through() {
    let c = Cluster::with_keys().await;
    let served = Served::new(&c).await;
    let backend = Backend::new(&served.server.pki().unwrap().front_proxy().unwrap().ca).await;
    backend.register(&c).await;
    becomes(&c, NAME, "True", "Passed").await;
    // That is one server's word; the other one looks for itself.
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let request = Request::get("/apis/gauges.test/v1").body(Full::<Bytes>::default());
        let answer = served.server.call(request.unwrap(), UserInfo::system("t"));
        if answer.await.status() == StatusCode::OK {
            break;
        }
        assert!(Instant::now() < end, "the other server does not pass it on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let mut io = served.connect().await;
    let request = "GET /apis/gauges.test/v1/gauges?watch=true HTTP/1.1\r\nhost: x\r\n\
                   authorization: Bearer secret\r\n\r\n";
    io.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while text.matches("ADDED").count() < 3 {
        let read = tokio::time::timeout(Duration::from_secs(10), io.read(&mut buffer));
        let n = match read.await {
            Ok(n) => n.unwrap(),
            Err(_) => panic!("events stream while the watch is open: {text}"),
        };
        assert!(n > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }

    let mut io = served.connect().await;
    let request = "POST /apis/gauges.test/v1/namespaces/n/gauges/g/turn HTTP/1.1\r\nhost: x\r\n\
                   connection: Upgrade\r\nupgrade: reverse\r\nauthorization: Bearer secret\r\n\r\n";
    io.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(io.read_u8().await.unwrap());
    }
    assert!(
        head.starts_with(b"HTTP/1.1 101"),
        "{}",
        String::from_utf8_lossy(&head)
    );
    io.write_all(b"ping").await.unwrap();
    let mut word = [0; 4];
    io.read_exact(&mut word).await.unwrap();
    assert_eq!(&word, b"gnip");

    let seen_by = async |url: String| {
        let request = Request::get(url).body(Full::<Bytes>::default()).unwrap();
        whole(served.server.call(request, UserInfo::system("t")).await)
            .await
            .ok(200)
    };
    let end = Instant::now() + Duration::from_secs(10);
    let url = loop {
        let index = seen_by("/openapi/v3".to_owned()).await;
        let url = index["paths"]["apis/gauges.test/v1"]["serverRelativeURL"].as_str();
        if let Some(url) = url {
            break url.to_owned();
        }
        assert!(
            Instant::now() < end,
            "the backend's document does not appear"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(seen_by(url).await["paths"], json!({ "x": {} }));
    // version 2: the paths of the backend's group and what they need, beside our own
    let end = Instant::now() + Duration::from_secs(20);
    let merged = loop {
        let merged = seen_by("/openapi/v2".to_owned()).await;
        if merged["paths"].get("/apis/gauges.test/v1/gauges").is_some() {
            break merged;
        }
        assert!(Instant::now() < end, "the v2 document is not merged");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let definitions = &merged["definitions"];
    assert_eq!(
        definitions["test.gauges.v1.Gauge"],
        json!({ "type": "object" })
    );
    assert!(definitions.get("other").is_none() && merged["paths"].get("/apis/").is_none());
    assert!(definitions.get("io.k8s.api.core.v1.Pod").is_some());
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn item_165_extension_servers_learn_whom_to_believe() {
    let c = Cluster::with_keys().await;
    let url = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let data = c.get(url).await.ok(200)["data"].clone();
    for key in ["client-ca-file", "requestheader-client-ca-file"] {
        assert!(
            data[key]
                .as_str()
                .unwrap()
                .starts_with("-----BEGIN CERTIFICATE-----"),
            "{key}"
        );
    }
    for (key, value) in [
        ("requestheader-allowed-names", r#"["front-proxy-client"]"#),
        ("requestheader-username-headers", r#"["X-Remote-User"]"#),
        ("requestheader-uid-headers", r#"["X-Remote-Uid"]"#),
        ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
        (
            "requestheader-extra-headers-prefix",
            r#"["X-Remote-Extra-"]"#,
        ),
    ] {
        assert_eq!(data[key], value);
    }
    assert_ne!(data["client-ca-file"], data["requestheader-client-ca-file"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn item_168_local_api_services_come_back() {
    let c = Cluster::new().await;
    let groups = c.get("/apis").await.ok(200);
    let mut expected: Vec<String> = groups["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|g| g["versions"].as_array().unwrap().clone())
        .map(|v| v["groupVersion"].as_str().unwrap().to_owned())
        // The use of resources is a group that a metrics-server may take.
        .filter(|gv| {
            !gv.starts_with("apiregistration.k8s.io/") && !gv.starts_with("metrics.k8s.io/")
        })
        .map(|gv| {
            let (group, version) = gv.split_once('/').unwrap();
            format!("{version}.{group}")
        })
        .collect();
    expected.push("v1.".to_owned());
    for name in &expected {
        let message = becomes(&c, name, "True", "Local").await;
        assert_eq!(message, "Local APIServices are always available");
    }
    let apps = c.get(&format!("{API_SERVICES}/v1.apps")).await.ok(200);
    assert_eq!(apps["spec"]["groupPriorityMinimum"], 17800);
    assert_eq!(apps["spec"]["versionPriority"], 15);
    assert_eq!(
        apps["metadata"]["labels"]["kube-aggregator.kubernetes.io/automanaged"],
        "onstart"
    );
    let uid = apps["metadata"]["uid"].clone();
    c.delete(&format!("{API_SERVICES}/v1.apps"), &json!({}))
        .await
        .ok(200);
    becomes(&c, "v1.apps", "True", "Local").await;
    assert_ne!(
        c.get(&format!("{API_SERVICES}/v1.apps")).await.ok(200)["metadata"]["uid"],
        uid
    );
    // What is managed is put back.
    let patch = json!({ "spec": { "groupPriorityMinimum": 7 } });
    let url = format!("{API_SERVICES}/v1.batch");
    c.patch(&url, "merge", &patch).await.ok(200);
    let end = Instant::now() + Duration::from_secs(10);
    while c.get(&url).await.ok(200)["spec"]["groupPriorityMinimum"] != 17400 {
        assert!(Instant::now() < end, "the priority was not put back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
