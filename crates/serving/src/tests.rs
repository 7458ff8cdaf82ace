//! Who may ask what, over the wire.

use std::convert::Infallible;
use std::net::SocketAddr;

use http_body_util::BodyExt;
use kube::client::Body;
use prometheus_client::metrics::counter::Counter;
use serde_json::{Value, json};

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, SupportedProtocolVersion};

/// A component that may have yet to learn its cluster.
struct Part(Arc<AtomicBool>);

impl ServedComponent for Part {
    const CHECK: &'static str = "sync";

    fn is_ready(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn configuration(&self) -> Value {
        json!({"part": {"kind": "PartConfiguration"}})
    }

    fn register_metrics(&self, registry: &mut Registry) {
        registry.register("part_turns", "Turns", Counter::<u64>::default());
    }
}

/// An API server that knows the tokens `monitor`, who may see metrics, and `nobody`, who may not.
fn api() -> kube::Client {
    let service = tower::service_fn(|request: Request<Body>| async move {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let mut review: Value = serde_json::from_slice(&body).unwrap_or_default();
        let spec = review["spec"].clone();
        review["status"] = if path.ends_with("/tokenreviews") {
            let known = ["monitor", "nobody"].iter().any(|t| spec["token"] == *t);
            json!({"authenticated": known, "user": {"username": spec["token"], "groups": ["g"]}})
        } else {
            assert_eq!(spec["nonResourceAttributes"]["verb"], "get");
            json!({"allowed": spec["user"] == "monitor"})
        };
        let body = Full::new(Bytes::from(review.to_string()));
        let response = Response::builder().header("content-type", "application/json");
        Ok::<_, Infallible>(response.body(body).unwrap())
    });
    davit_client::in_process(service, "default")
}

async fn serve() -> (SocketAddr, Arc<AtomicBool>, JoinSet<()>) {
    serve_by(TlsPolicy::default(), None).await
}

async fn serve_by(
    tls: TlsPolicy,
    certificate: Option<(Vec<u8>, Vec<u8>)>,
) -> (SocketAddr, Arc<AtomicBool>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let ready = Arc::new(AtomicBool::new(true));
    let options = ServingOptions {
        tls,
        certificate,
        client_ca: None,
        reviews: Reviews::new(api(), api(), [Duration::from_secs(10); 3]),
        always_allow_paths: vec!["/healthz".to_owned(), "/readyz*".to_owned()],
    };
    let server = ComponentServer::new(listener, Part(ready.clone()), options).unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(server.run(CancellationToken::new()));
    (address, ready, tasks)
}

/// Whether a client of this version only, and its suite, is answered.
async fn is_offered(tls: &TlsPolicy, version: &'static SupportedProtocolVersion) -> Option<String> {
    let (certificate, key) = self_signed().unwrap();
    let (address, _, _tasks) = serve_by(tls.clone(), Some((certificate.clone(), key))).await;
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(&certificate).unwrap();
    roots.add(certificate).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect("localhost".try_into().unwrap(), socket);
    let stream = stream.await.ok()?;
    let suite = stream.get_ref().1.negotiated_cipher_suite().unwrap();
    Some(format!("{:?}", suite.suite()))
}

#[tokio::test]
async fn old_versions_and_suites_are_left_out() {
    let by = |suites: &[&str], version| {
        let suites: Vec<String> = suites.iter().map(|s| (*s).to_owned()).collect();
        TlsPolicy::new(&suites, version).unwrap()
    };
    let all = by(&[], None);
    assert!(is_offered(&all, &TLS12).await.is_some());
    assert!(is_offered(&all, &TLS13).await.is_some());
    let newest = by(&[], Some("VersionTLS13"));
    assert_eq!(is_offered(&newest, &TLS12).await, None);
    assert!(is_offered(&newest, &TLS13).await.is_some());
    let chosen = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256";
    let one = by(&[chosen], None);
    assert_eq!(is_offered(&one, &TLS12).await.as_deref(), Some(chosen));
    // A suite for keys of another kind than the server's.
    let other = by(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"], None);
    assert_eq!(is_offered(&other, &TLS12).await, None);
}

#[tokio::test]
async fn only_health_is_open() {
    let _already = ring::default_provider().install_default();
    let (address, ready, _tasks) = serve().await;
    let mut config = kube::Config::new(format!("https://{address}").parse().unwrap());
    config.accept_invalid_certs = true;
    let client = kube::Client::try_from(config).unwrap();
    let get = async |path: &str, token: Option<&str>| {
        let mut request = Request::get(path);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = client
            .send(request.body(Body::empty()).unwrap())
            .await
            .unwrap();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    assert_eq!(get("/healthz", None).await, (200, "ok".to_owned()));
    for (token, status) in [(None, 401), (Some("stranger"), 401), (Some("nobody"), 403)] {
        assert_eq!(get("/metrics", token).await.0, status, "{token:?}");
    }
    let (status, metrics) = get("/metrics", Some("monitor")).await;
    assert_eq!(status, 200);
    assert!(metrics.contains("part_turns_total 0"), "{metrics}");
    let (_, configz) = get("/configz", Some("monitor")).await;
    let configz: Value = serde_json::from_str(&configz).unwrap();
    assert_eq!(configz["part"]["kind"], "PartConfiguration");
    // A path is authorized as it is written, so it is served in one form only.
    for other in [
        "/nowhere",
        "/metrics/",
        "//metrics",
        "/configz/",
        "/metrics/resources",
    ] {
        assert_eq!(get(other, Some("monitor")).await.0, 404, "{other}");
    }
    let verbose = "[+]ping ok\n[+]sync ok\nreadyz check passed\n";
    assert_eq!(
        get("/readyz?verbose", None).await,
        (200, verbose.to_owned())
    );
    ready.store(false, Ordering::Relaxed);
    let (status, why) = get("/readyz", None).await;
    assert_eq!(status, 500);
    assert!(why.contains("[-]sync failed"), "{why}");
    assert_eq!(get("/readyz/sync", None).await.0, 500);
    assert_eq!(get("/livez", Some("monitor")).await.0, 200);
}
