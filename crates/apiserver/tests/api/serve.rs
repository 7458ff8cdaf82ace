//! The server on a socket: TLS, credentials, both HTTP versions, WebSocket watches.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use davit_access::authn::parse_token_file;
use davit_apiserver::{ApiServer, Options};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::cluster::*;

/// A second server over the same store, on a port, knowing the token `secret`.
pub(crate) struct Served {
    pub(crate) server: Arc<ApiServer>,
    pub(crate) address: SocketAddr,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Served {
    pub(crate) async fn new(cluster: &Cluster) -> Self {
        Self::with(cluster, |_| {}).await
    }

    pub(crate) async fn with(cluster: &Cluster, change: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options::new(cluster.store());
        options.data_dir = Some(cluster.dir.path().join("data"));
        options.loopback = THIS_MACHINE;
        options.static_tokens = parse_token_file("secret,alice,u1,\"system:masters\"").unwrap();
        change(&mut options);
        let server = ApiServer::new(options).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cancel = CancellationToken::new();
        let (running, stop) = (Arc::clone(&server), cancel.clone());
        let task = tokio::spawn(async move { running.serve(listener, stop).await.unwrap() });
        Self {
            server,
            address,
            cancel,
            task,
        }
    }

    pub(crate) async fn connect(&self) -> TlsStream<TcpStream> {
        self.connect_with(&[b"http/1.1"], None).await
    }

    async fn connect_with(
        &self,
        protocols: &[&[u8]],
        identity: Option<&davit_pki::Identity>,
    ) -> TlsStream<TcpStream> {
        let mut roots = rustls::RootCertStore::empty();
        let ca = self.server.pki().unwrap().ca_certificate();
        roots
            .add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap()],
                    PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap(),
                )
                .unwrap(),
        };
        config.alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("kubernetes.default.svc").unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .unwrap()
    }

    /// One request on a connection of its own: code and body.
    pub(crate) async fn get(&self, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
        let mut io = self.connect().await;
        let mut request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        io.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // a missing close_notify does not matter here
        let _ = io.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (code, answer)
    }

    /// Begins the shutdown without waiting for its end.
    pub(crate) fn begin_stop(&self) {
        self.cancel.cancel();
    }

    pub(crate) async fn stop(self) {
        self.cancel.cancel();
        tokio::time::timeout(Duration::from_secs(10), self.task)
            .await
            .unwrap()
            .unwrap();
    }
}

/// New connections are shown the renewed certificate, while those that are open go on.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_renewed_while_the_server_runs() {
    let cluster = Cluster::new().await;
    let served = Served::new(&cluster).await;
    let shown = |io: &TlsStream<TcpStream>| io.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let mut open = served.connect().await;
    let first = shown(&open);
    assert_eq!(served.server.renew_certificates().unwrap(), 0);
    // One that is not there is made anew, as one that ends soon.
    let pki = cluster.dir.path().join("data/pki");
    std::fs::remove_file(pki.join("apiserver.crt")).unwrap();
    std::fs::remove_file(pki.join("front-proxy/front-proxy-client.crt")).unwrap();
    assert_eq!(served.server.renew_certificates().unwrap(), 2);
    assert_ne!(shown(&served.connect().await), first);
    let request = b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    open.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    let _ = open.read_to_end(&mut answer).await;
    assert!(answer.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn item_184_and_185_credentials_decide_who_it_is() {
    let c = Cluster::new().await;
    let served = Served::new(&c).await;
    assert_eq!(served.get("/api/v1/pods", &[]).await.0, 403);
    assert_eq!(served.get("/healthz", &[]).await.0, 200);
    assert_eq!(
        served
            .get("/api/v1/pods", &[("authorization", "Bearer secret")])
            .await
            .0,
        200
    );
    // a bad token is refused even where nobody needs one
    let (code, body) = served
        .get("/healthz", &[("authorization", "Bearer wrong")])
        .await;
    assert_eq!(code, 401);
    assert!(body.contains("\"message\":\"Unauthorized\""), "{body}");
    served.stop().await;
}

#[tokio::test]
async fn item_027_client_certificates_and_http2_work() {
    let c = Cluster::new().await;
    let served = Served::new(&c).await;
    let admin = served.server.pki().unwrap().admin().unwrap();
    let io = served.connect_with(&[b"h2"], Some(&admin)).await;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(io))
            .await
            .unwrap();
    let driver = tokio::spawn(connection);
    let requests = (0..50).map(|_| {
        let request =
            http::Request::get(format!("https://x{CONFIG_MAPS}?watch=1&timeoutSeconds=1"))
                .body(Empty::<Bytes>::new())
                .unwrap();
        sender.send_request(request)
    });
    for answer in futures::future::join_all(requests).await {
        let answer = answer.unwrap();
        assert_eq!(answer.status(), 200);
        answer.into_body().collect().await.unwrap();
    }
    // clients take a body that follows HEAD for a broken connection
    let head = http::Request::head("https://x/livez/ping")
        .body(Empty::<Bytes>::new())
        .unwrap();
    let answer = sender.send_request(head).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-length"], "2");
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(body.is_empty(), "{body:?}");
    driver.abort();
    // a certificate of a foreign authority is no credential
    let other = tempfile::tempdir().unwrap();
    let foreign = davit_pki::Pki::open(other.path()).unwrap().admin().unwrap();
    let mut io = served.connect_with(&[b"http/1.1"], Some(&foreign)).await;
    io.write_all(b"GET /api/v1/pods HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = io.read_to_end(&mut answer).await;
    assert!(
        answer.starts_with(b"HTTP/1.1 401 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    served.stop().await;
}

/// `--goaway-chance`: what is under way on the connection is finished, and the client has to connect anew.
#[tokio::test]
async fn clients_are_sent_to_another_server() {
    let c = Cluster::new().await;
    let served = Served::with(&c, |options| options.goaway_chance = 1.0).await;
    let admin = served.server.pki().unwrap().admin().unwrap();
    let io = served.connect_with(&[b"h2"], Some(&admin)).await;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(io))
            .await
            .unwrap();
    let driver = tokio::spawn(connection);
    let watch = format!("https://x{CONFIG_MAPS}?watch=1&timeoutSeconds=2");
    let watch = http::Request::get(watch).body(Empty::<Bytes>::new());
    let answer = sender.send_request(watch.unwrap()).await.unwrap();
    assert_eq!(answer.status(), 200);
    c.config_map("later", &json!({})).await;
    let events = answer.into_body().collect().await.unwrap().to_bytes();
    let events = String::from_utf8_lossy(&events);
    assert!(events.contains("\"later\""), "{events}");
    // it would stay open as long as somebody could send on it
    let ended = tokio::time::timeout(Duration::from_secs(60), driver).await;
    assert!(ended.is_ok(), "the connection stays");
    drop(sender);
    served.stop().await;
}

#[tokio::test]
async fn item_073_watches_speak_websocket() {
    let c = Cluster::new().await;
    let served = Served::new(&c).await;
    c.config_map("x", &json!({})).await;
    let mut io = served.connect().await;
    let request = format!(
        "GET {CONFIG_MAPS}?watch=1&timeoutSeconds=1 HTTP/1.1\r\nhost: x\r\n\
         authorization: Bearer secret\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    io.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = io.read_to_end(&mut answer).await;
    let text = String::from_utf8_lossy(&answer);
    assert!(text.starts_with("HTTP/1.1 101 "), "{text}");
    assert!(text.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{text}");
    assert!(text.contains("{\"type\":\"ADDED\",\"object\":"), "{text}");
    assert!(answer.ends_with(&[0x88, 2, 0x03, 0xe8]));
    served.stop().await;
}

#[tokio::test]
async fn item_197_and_205_own_service_and_restarts() {
    let c = Cluster::new().await;
    let served = Served::new(&c).await;
    let token = [("authorization", "Bearer secret")];
    let (_, body) = served
        .get("/api/v1/namespaces/default/services/kubernetes", &token)
        .await;
    assert!(body.contains("\"clusterIP\":\"10.96.0.1\""), "{body}");
    let range = "/apis/networking.k8s.io/v1/servicecidrs/kubernetes";
    let (_, body) = served.get(range, &token).await;
    assert!(body.contains("\"cidrs\":[\"10.96.0.0/16\"]"), "{body}");
    assert!(
        body.contains("Kubernetes default Service CIDR is ready"),
        "{body}"
    );
    let address = "/apis/networking.k8s.io/v1/ipaddresses/10.96.0.1";
    let (_, body) = served.get(address, &token).await;
    assert!(body.contains("\"name\":\"kubernetes\""), "{body}");
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    assert_eq!(served.get(slices, &token).await.0, 200);
    let before = c.config_map("x", &json!({})).await;
    served.stop().await;
    let again = Served::new(&c).await;
    let (code, body) = again.get(&format!("{CONFIG_MAPS}/x"), &token).await;
    assert_eq!(code, 200);
    assert!(body.contains(before["metadata"]["uid"].as_str().unwrap()));
    again.stop().await;
}
