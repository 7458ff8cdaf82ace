//! Load from strangers: those who connect and say nothing, who speak HTTP/2 to wear the server out, who ask and do not
//! take the answer. Whatever they do, others are served and the server's memory stays within bounds.
//!
//! The attackers connect from addresses of 127.0.0.0/8 of their own, the innocent from 127.0.0.1.

use crate::harness::{Cluster, temp_dir};
use http::Request;
use http_body_util::{BodyExt, Empty};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node};
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// An innocent's request must be answered within this.
const SERVED: Duration = Duration::from_secs(30);
/// What the server forbids must have ended by then.
const ENDED: Duration = Duration::from_secs(60);
/// More than either server took before it took no more from anybody.
const SILENT: usize = 4200;
const AT_ONCE: usize = 64;

pub(crate) type Tls = TlsStream<TcpStream>;

/// A cluster, and where its servers listen.
struct Target {
    cluster: Cluster,
    api: SocketAddr,
    node: SocketAddr,
    admin: kube::Client,
}

impl Target {
    async fn up() -> Self {
        let _installed_before = rustls::crypto::ring::default_provider().install_default();
        let tokens = temp_dir();
        let file = tokens.path().join("tokens.csv");
        std::fs::write(&file, "reader-token,reader,1,readers\n").unwrap();
        let file = file.display().to_string();
        let cluster = tokio::task::spawn_blocking(move || {
            Cluster::up(&["--runtime", "none", "--token-auth-file", &file])
        });
        let cluster = cluster.await.unwrap();
        let admin = davit_client::from_kubeconfig(&cluster.kubeconfig).await;
        let admin = admin.unwrap();
        let api: SocketAddr = cluster.server["https://".len()..]
            .trim_end_matches('/')
            .parse()
            .unwrap();
        let node = loop {
            let nodes: Api<Node> = Api::all(admin.clone());
            let nodes = nodes.list(&ListParams::default()).await.unwrap();
            let port = nodes.items.into_iter().find_map(|node| {
                let endpoints = node.status?.daemon_endpoints?;
                Some(endpoints.kubelet_endpoint?.port)
            });
            match port.and_then(|port| u16::try_from(port).ok()) {
                Some(port) if port > 0 => break SocketAddr::new(api.ip(), port),
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        };
        Self {
            cluster,
            api,
            node,
            admin,
        }
    }

    /// Everybody else is served: who has a certificate, who has shown nothing, at both servers.
    async fn serves_others(&self, during: &str) {
        let served = async {
            let list: Api<Namespace> = Api::all(self.admin.clone());
            list.list(&ListParams::default()).await.unwrap();
            let version = get(self.api, "/version").await;
            assert!(version.contains("gitVersion"), "{during}: {version}");
            let refused = get(self.node, "/pods").await;
            assert!(refused.contains("401"), "{during}: {refused}");
        };
        let served = tokio::time::timeout(SERVED, served).await;
        assert!(served.is_ok(), "{during}: others are not served");
    }

    /// Resident memory of davit, bytes.
    fn memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.cluster.pid()));
        let status = status.unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
        kilobytes.unwrap().parse::<usize>().unwrap() * 1024
    }
}

/// Believes any certificate: the attackers do not care.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        let provider = rustls::crypto::ring::default_provider();
        provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

pub(crate) fn connector(protocol: &str) -> TlsConnector {
    let config = rustls::ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody));
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    TlsConnector::from(Arc::new(config))
}

async fn connect(from: [u8; 4], to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::from(from), 0).into())?;
    socket.connect(to).await
}

pub(crate) async fn tls(
    from: [u8; 4],
    to: SocketAddr,
    connector: &TlsConnector,
) -> std::io::Result<Tls> {
    let stream = connect(from, to).await?;
    let name = rustls::pki_types::ServerName::IpAddress(to.ip().into());
    connector.connect(name, stream).await
}

/// The answer to a plain GET, head and all.
async fn get(to: SocketAddr, path: &str) -> String {
    let mut stream = tls([127, 0, 0, 1], to, &connector("http/1.1"))
        .await
        .unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: davit\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // a server need not say goodbye
    let _cut = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// Connects as often as asked, silently; what could be connected stays open as far as the server leaves it.
async fn silent(from: [u8; 4], to: SocketAddr, count: usize) -> Vec<Tls> {
    let connector = connector("http/1.1");
    let (mut trying, mut open) = (JoinSet::new(), Vec::new());
    for _ in 0..count {
        if trying.len() >= AT_ONCE
            && let Some(Ok(Ok(stream))) = trying.join_next().await
        {
            open.push(stream);
        }
        let connector = connector.clone();
        trying.spawn(async move { tls(from, to, &connector).await });
    }
    while let Some(tried) = trying.join_next().await {
        open.extend(tried.unwrap().ok());
    }
    open
}

/// Waits until the other end closes; what it has sent.
pub(crate) async fn until_closed(stream: &mut (impl AsyncReadExt + Unpin), what: &str) -> Vec<u8> {
    let mut sent = Vec::new();
    let end = tokio::time::timeout(ENDED, stream.read_to_end(&mut sent)).await;
    assert!(end.is_ok(), "{what} was not closed");
    sent
}

#[tokio::test(flavor = "multi_thread")]
async fn item_15_load_of_strangers_leaves_others_served() {
    let target = Target::up().await;
    target.serves_others("nothing").await;
    silent_connections(&target).await;
    let (slow, ()) = tokio::join!(slow_heads(&target), worn_out_by_frames(&target));
    long_lists(&target).await;
    make_large(&target).await;
    tokio::join!(
        answers_that_nobody_takes(&target),
        watches_that_nobody_reads(&target)
    );
    for (mut stream, what) in slow {
        until_closed(&mut stream, what).await;
    }
}

async fn silent_connections(target: &Target) {
    let held = tokio::join!(
        silent([127, 0, 15, 1], target.api, SILENT),
        silent([127, 0, 15, 1], target.node, SILENT / 3),
    );
    target
        .serves_others("silent connections of one address")
        .await;
    drop(held);
    // and before TLS
    let mut held = Vec::new();
    for n in 0..SILENT {
        let from = [127, 0, 16, u8::try_from(n % 200).unwrap()];
        let to = if n % 4 == 0 { target.node } else { target.api };
        held.extend(connect(from, to).await.ok());
    }
    target
        .serves_others("silent connections of many addresses")
        .await;
}

/// Connections that ask slowly; they end by themselves.
async fn slow_heads(target: &Target) -> Vec<(Tls, &'static str)> {
    let from = [127, 0, 15, 2];
    let mut slow = Vec::new();
    for (to, what) in [(target.api, "the API server"), (target.node, "the node")] {
        let mut stream = tls(from, to, &connector("http/1.1")).await.unwrap();
        let part = b"GET /version HTTP/1.1\r\nHost: davit\r\nX-Slow: ";
        stream.write_all(part).await.unwrap();
        slow.push((stream, what));
    }
    let silent = tls(from, target.api, &connector("h2")).await.unwrap();
    slow.push((silent, "HTTP/2 without a request"));
    slow
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `GET /version`, HTTPS, authority `a`, in HPACK.
const GET: &[u8] = b"\x82\x87\x04\x08/version\x41\x01a";

/// Lists with very many elements, by somebody who may make jobs and pods: each compared with each would take minutes and more.
async fn long_lists(target: &Target) {
    let codes: Vec<usize> = (1..=100_000).collect();
    let failures = json!({"action": "Ignore", "onExitCodes": {"operator": "In", "values": codes}});
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "long"},
        "spec": {
            "podFailurePolicy": {"rules": [failures]},
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}},
        },
    });
    let ports = vec![json!({"containerPort": 80}); 40_000];
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "long"},
        "spec": {"containers": [{"name": "c", "image": "x", "ports": ports}]},
    });
    for (path, object) in [
        ("/apis/batch/v1/namespaces/default/jobs", job),
        ("/api/v1/namespaces/default/pods", pod),
    ] {
        let request = Request::post(format!("{path}?dryRun=All"))
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&object).unwrap())
            .unwrap();
        let asked = target.admin.request_text(request);
        let answered = tokio::time::timeout(ENDED, asked).await;
        assert!(answered.is_ok(), "{path}: no answer");
    }
    target.serves_others("long lists").await;
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Sends what `next` makes until the server closes the connection; it must not take more than `most` bytes before.
async fn flood(target: &Target, what: &str, most: usize, mut next: impl FnMut(u32) -> Vec<u8>) {
    let stream = tls([127, 0, 15, 3], target.api, &connector("h2"))
        .await
        .unwrap();
    let (mut read, mut write) = tokio::io::split(stream);
    let begin = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    write.write_all(&begin).await.unwrap();
    let reading = tokio::spawn(async move {
        let mut sink = vec![0; 64 * 1024];
        while read.read(&mut sink).await.is_ok_and(|n| n > 0) {}
    });
    let (mut sent, mut n) = (0, 0);
    let flooding = async {
        while !reading.is_finished() {
            let bytes = next(n);
            n += 1;
            if write.write_all(&bytes).await.is_err() {
                return;
            }
            sent += bytes.len();
            assert!(sent <= most, "{what}: the server has taken {sent} bytes");
        }
    };
    let ended = tokio::time::timeout(ENDED, flooding).await;
    assert!(ended.is_ok(), "{what}: not closed after {sent} bytes");
}

/// Streams that are opened and reset at once, by the hundred.
fn resets(n: u32) -> Vec<u8> {
    let streams = (n * 100..(n + 1) * 100).map(|n| 2 * n + 1);
    let pair = |stream| {
        let mut frames = frame(HEADERS, END_STREAM | END_HEADERS, stream, GET);
        frames.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        frames
    };
    streams.flat_map(pair).collect()
}

async fn worn_out_by_frames(target: &Target) {
    // CVE-2023-44487
    flood(target, "rapid reset", 8 << 20, resets).await;
    // CVE-2024-24549 and its siblings: a head without end
    let continuations = |n: u32| {
        if n == 0 {
            return frame(HEADERS, END_STREAM, 1, GET);
        }
        let name = format!("x-{n:06}");
        let mut field = vec![0, u8::try_from(name.len()).unwrap()];
        field.extend(name.as_bytes());
        field.push(100);
        field.extend([b'a'; 100]);
        frame(CONTINUATION, 0, 1, &field.repeat(100))
    };
    flood(target, "CONTINUATION flood", 64 << 20, continuations).await;
    target.serves_others("floods of frames").await;
    // Answers to these are not read: the server must not keep them.
    for (what, bytes) in [
        ("PING", frame(PING, 0, 0, &[0; 8])),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[])),
    ] {
        let mut stream = tls([127, 0, 15, 4], target.api, &connector("h2"))
            .await
            .unwrap();
        let begin = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
        stream.write_all(&begin).await.unwrap();
        let bytes = bytes.repeat(1000);
        let before = target.memory();
        let flooding = async {
            // either it is closed or no more is taken
            for _ in 0..20_000 {
                if stream.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        };
        let _blocked = tokio::time::timeout(Duration::from_secs(3), flooding).await;
        let grown = target.memory().saturating_sub(before);
        assert!(grown < 64 << 20, "{what} flood: memory grew by {grown}");
        target.serves_others(what).await;
    }
}

/// Large lists that are asked for by the hundred, none of which is read.
async fn answers_that_nobody_takes(target: &Target) {
    let before = target.memory();
    let mut clients = Vec::new();
    for n in 0..4 {
        let stream = tls([127, 0, 15, 5 + n], target.api, &connector("h2"))
            .await
            .unwrap();
        let (sender, connection) =
            hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
                .initial_stream_window_size(1)
                .handshake::<_, Empty<bytes::Bytes>>(hyper_util::rt::TokioIo::new(stream))
                .await
                .unwrap();
        clients.push((sender, tokio::spawn(connection)));
    }
    let mut asked = JoinSet::new();
    for (sender, _) in &clients {
        for _ in 0..60 {
            let mut sender = sender.clone();
            let request = Request::get("https://davit/api/v1/namespaces/default/configmaps")
                .header("authorization", "Bearer reader-token")
                .body(Empty::new())
                .unwrap();
            asked.spawn(async move {
                let response = sender.send_request(request).await.ok()?;
                Some((response.status().as_u16(), response))
            });
        }
    }
    let mut answers = Vec::new();
    let collect = async {
        while let Some(answer) = asked.join_next().await {
            answers.extend(answer.unwrap());
        }
    };
    let all = tokio::time::timeout(ENDED, collect).await;
    assert!(all.is_ok(), "not all were answered or refused");
    let refused = answers.iter().filter(|(status, _)| *status == 429).count();
    let grown = target.memory().saturating_sub(before);
    println!(
        "{} answers, {refused} refused, {grown} bytes more",
        answers.len()
    );
    assert!(refused > 0 && refused < answers.len());
    assert!(grown < 600 << 20, "memory grew by {grown}");
    target.serves_others("lists that nobody reads").await;
    drop((answers, clients));
}

/// Watches that begin with more than the connection holds. What comes after would have to be kept for them.
async fn watches_that_nobody_reads(target: &Target) {
    const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=true";
    let from = Ipv4Addr::new(127, 0, 15, 10);
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    let stream = socket.connect(target.api).await.unwrap();
    let name = "davit".try_into().unwrap();
    let mut plain = connector("http/1.1").connect(name, stream).await.unwrap();
    let ask =
        format!("GET {WATCH} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer reader-token\r\n\r\n");
    plain.write_all(ask.as_bytes()).await.unwrap();

    let stream = tls(from.octets(), target.api, &connector("h2")).await;
    let (mut sender, connection) =
        hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
            .initial_stream_window_size(1)
            .handshake::<_, Empty<bytes::Bytes>>(hyper_util::rt::TokioIo::new(stream.unwrap()))
            .await
            .unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get(format!("https://davit{WATCH}"))
        .header("authorization", "Bearer reader-token")
        .body(Empty::new())
        .unwrap();
    // The connection may be ended before the head of the answer has left.
    let response = sender.send_request(request).await;
    if let Ok(response) = &response {
        assert!(response.status().is_success(), "{response:?}");
    }
    let ended = tokio::time::timeout(2 * ENDED, connection).await;
    assert!(ended.is_ok(), "a watch over HTTP/2 goes on");
    // the other one began before
    let got = until_closed(&mut plain, "a watch over HTTP/1.1").await;
    assert!(got.starts_with(b"HTTP/1.1 200"));
    assert!(got.len() < 8 << 20, "all {} bytes were kept", got.len());
}

/// Lists of about 8 MiB, and somebody who may read them.
async fn make_large(target: &Target) {
    use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleRef, Subject};
    let binding = ClusterRoleBinding {
        metadata: ObjectMeta {
            name: Some("readers".to_owned()),
            ..ObjectMeta::default()
        },
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "ClusterRole".to_owned(),
            name: "view".to_owned(),
        },
        subjects: Some(vec![Subject {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "Group".to_owned(),
            name: "readers".to_owned(),
            namespace: None,
        }]),
    };
    let bindings: Api<ClusterRoleBinding> = Api::all(target.admin.clone());
    let made = bindings.create(&PostParams::default(), &binding).await;
    made.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(target.admin.clone());
    for n in 0..8 {
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(format!("large-{n}")),
                ..ObjectMeta::default()
            },
            data: Some([("large".to_owned(), "x".repeat(1 << 20))].into()),
            ..ConfigMap::default()
        };
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
    // `view` is filled by a controller
    let deadline = Instant::now() + ENDED;
    loop {
        let stream = tls([127, 0, 15, 9], target.api, &connector("h2")).await;
        let (mut sender, connection) =
            hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
                .handshake(hyper_util::rt::TokioIo::new(stream.unwrap()))
                .await
                .unwrap();
        tokio::spawn(connection);
        let request = Request::get("https://davit/api/v1/namespaces/default/configmaps?limit=1")
            .header("authorization", "Bearer reader-token")
            .body(Empty::<bytes::Bytes>::new())
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        if status.is_success() {
            return;
        }
        assert!(Instant::now() < deadline, "{body:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Times of an innocent client, asked one after another.
async fn percentiles(target: &Target, what: &str) {
    let list: Api<Namespace> = Api::all(target.admin.clone());
    let mut times = Vec::new();
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        let began = Instant::now();
        list.list(&ListParams::default()).await.unwrap();
        times.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    times.sort_unstable();
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    println!(
        "{what}: {} requests, p50 {:?}, p99 {:?}, worst {:?}; {} MiB resident",
        times.len(),
        at(50),
        at(99),
        at(100),
        target.memory() >> 20
    );
}

/// Runs an attack again and again while an innocent client is timed.
async fn measured<F: Future<Output = ()>>(target: &Target, what: &str, attack: impl Fn() -> F) {
    let attacking = async {
        loop {
            attack().await;
        }
    };
    tokio::select! {
        () = percentiles(target, what) => {}
        () = attacking => {}
    }
}

/// The figures of docs/performance.md: `cargo test --workspace --test cluster attacks::load::figures -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures, proves nothing"]
async fn figures() {
    let target = Target::up().await;
    make_large(&target).await;
    percentiles(&target, "nothing").await;
    let target = &target;
    measured(target, "silent TLS connections", || async move {
        drop(silent([127, 0, 15, 1], target.api, 1000).await);
    })
    .await;
    measured(target, "silent TCP connections", || async move {
        let mut held = Vec::new();
        for n in 0..2000_u32 {
            let from = [127, 0, 16, u8::try_from(n % 200).unwrap()];
            held.extend(connect(from, target.api).await.ok());
        }
    })
    .await;
    measured(target, "rapid reset", || async move {
        flood(target, "rapid reset", usize::MAX, resets).await;
    })
    .await;
    measured(
        target,
        "lists of 8 MiB by one user, 16 at once",
        || async move {
            let stream = tls([127, 0, 15, 9], target.api, &connector("h2")).await;
            let (sender, connection) =
                hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
                    .handshake(hyper_util::rt::TokioIo::new(stream.unwrap()))
                    .await
                    .unwrap();
            tokio::spawn(connection);
            let mut asked = JoinSet::new();
            for _ in 0..16 {
                let mut sender = sender.clone();
                let request = Request::get("https://davit/api/v1/namespaces/default/configmaps")
                    .header("authorization", "Bearer reader-token")
                    .body(Empty::<bytes::Bytes>::new())
                    .unwrap();
                asked.spawn(async move {
                    let response = sender.send_request(request).await.unwrap();
                    let _all = response.into_body().collect().await;
                });
            }
            while asked.join_next().await.is_some() {}
        },
    )
    .await;
}
