//! A raw HTTP/2 client calls a server with every form of `:authority` that clients of the
//! field send (acceptance checklist 1 to 4 and 153), and looks at time-outs and message sizes.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use davit_proto::podresources::v1::pod_resources_lister_client::PodResourcesListerClient;
use davit_proto::podresources::v1::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use davit_proto::podresources::v1::*;
use davit_proto::unix::{self, Listener, MAX_MESSAGE};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};

/// Answers Get with a pod of the name asked for, List with as many bytes as it holds.
struct Lister(usize);

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let name = "x".repeat(self.0);
        Ok(Response::new(ListPodResourcesResponse {
            pod_resources: vec![PodResources {
                name,
                ..Default::default()
            }],
        }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        std::future::pending().await
    }

    async fn get(
        &self,
        r: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        let name = r.into_inner().pod_name;
        Ok(Response::new(GetPodResourcesResponse {
            pod_resources: Some(PodResources {
                name,
                ..Default::default()
            }),
        }))
    }
}

fn serve(path: &Path, size: usize) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let stop = CancellationToken::new();
    let lister = PodResourcesListerServer::new(Lister(size)).max_encoding_message_size(MAX_MESSAGE);
    let router = unix::server().add_service(lister);
    let listener = Listener::bind(path).unwrap();
    let token = stop.clone();
    let task = tokio::spawn(async move {
        unix::serve(listener, router, token.cancelled())
            .await
            .unwrap();
    });
    (stop, task)
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut f = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    f.extend([kind, flags]);
    f.extend(stream.to_be_bytes());
    f.extend(payload);
    f
}

/// One call of Get on stream `id`; the encoder is the connection's.
fn call(encoder: &mut fluke_hpack::Encoder<'_>, id: u32, authority: Option<&str>) -> Vec<u8> {
    let mut headers: Vec<(&[u8], &[u8])> = vec![
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/v1.PodResourcesLister/Get"),
    ];
    if let Some(authority) = authority {
        headers.push((b":authority", authority.as_bytes()));
    }
    headers.extend([
        (&b"content-type"[..], &b"application/grpc"[..]),
        (b"user-agent", b"grpc-go/1.57.0"),
        (b"te", b"trailers"),
        (b"grpc-timeout", b"9999863u"),
    ]);
    let mut out = frame(1, 4, id, &encoder.encode(headers));
    // GetPodResourcesRequest{pod_name: "hello"} with its gRPC prefix.
    out.extend(frame(0, 1, id, b"\0\0\0\0\x07\x0a\x05hello"));
    out
}

/// Reads frames until stream `id` ends; whether its data carried the answer.
async fn answered(stream: &mut UnixStream, id: u32) -> bool {
    let mut good = false;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; len];
        stream.read_exact(&mut payload).await.unwrap();
        let on = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        match (head[3], on == id) {
            (0, true) => good |= payload.windows(5).any(|w| w == b"hello"),
            (1, true) if head[4] & 1 != 0 => return good,
            (3, true) => return false,
            (7, _) => panic!("connection closed by the server"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn items_001_to_004_and_153_every_form_of_authority() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let (stop, task) = serve(&path, 0);
    let raw = path.to_str().unwrap().to_owned();
    let encoded = raw.replace('/', "%2F");
    let forms = [
        Some("localhost"),
        Some(""),
        None,
        Some(&*raw),
        Some(&*encoded),
        Some("[::]"),
        Some("unix:///var/lib/kubelet/x.sock"),
        Some("var/lib/x.sock"),
        Some("passthrough"),
        Some("a b"),
    ];
    // Alone on a connection, and one after the other on one, where tables carry over.
    let mut shared = connect(&path).await;
    let mut encoder = fluke_hpack::Encoder::new();
    for (n, form) in (0u32..).zip(forms) {
        let mut stream = connect(&path).await;
        stream
            .write_all(&call(&mut fluke_hpack::Encoder::new(), 1, form))
            .await
            .unwrap();
        let limit = Duration::from_secs(5);
        assert!(
            tokio::time::timeout(limit, answered(&mut stream, 1))
                .await
                .unwrap(),
            "{form:?}"
        );
        let id = 2 * n + 1;
        shared
            .write_all(&call(&mut encoder, id, form))
            .await
            .unwrap();
        assert!(
            tokio::time::timeout(limit, answered(&mut shared, id))
                .await
                .unwrap(),
            "{form:?}"
        );
    }
    stop.cancel();
    task.await.unwrap();
    assert!(!path.exists());
}

async fn connect(path: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(path).await.unwrap();
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .await
        .unwrap();
    stream.write_all(&frame(4, 0, 0, &[])).await.unwrap();
    stream
}

/// A call that is never answered, with a limit of one millisecond.
fn hanging_call() -> Vec<u8> {
    let headers: [(&[u8], &[u8]); 6] = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/v1.PodResourcesLister/GetAllocatableResources"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        (b"grpc-timeout", b"1m"),
    ];
    let mut out = frame(1, 4, 1, &fluke_hpack::Encoder::new().encode(headers));
    out.extend(frame(0, 1, 1, &[0; 5]));
    out
}

/// The gRPC status of the first answer.
async fn status(stream: &mut UnixStream) -> String {
    let mut decoder = fluke_hpack::Decoder::new();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).await.unwrap();
        if head[3] == 1 {
            let headers = decoder.decode(&payload).unwrap();
            if let Some((_, value)) = headers.into_iter().find(|(name, _)| name == b"grpc-status") {
                return String::from_utf8(value).unwrap();
            }
        }
    }
}

/// Reads what a client sends until its first header block, and finds the authority in it; nothing when it closes first.
async fn authority_of(mut stream: UnixStream) -> Option<String> {
    stream.write_all(&frame(4, 0, 0, &[])).await.ok()?;
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await.ok()?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.ok()?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).await.ok()?;
        if head[3] == 1 {
            let headers = fluke_hpack::Decoder::new().decode(&payload).unwrap();
            let found = headers.into_iter().find(|(name, _)| name == b":authority");
            return Some(found.map_or_else(String::new, |(_, v)| String::from_utf8(v).unwrap()));
        }
    }
}

/// What servers of others see of us; `tests/peers.rs` asks a Go server.
#[tokio::test]
async fn item_031_our_clients_send_localhost() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let (tell, mut told) = tokio::sync::mpsc::channel(8);
    let server = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let tell = tell.clone();
            connections.spawn(async move {
                if let Some(authority) = authority_of(stream).await {
                    tell.send(authority).await.unwrap();
                }
            });
        }
    });
    let limit = Duration::from_secs(5);
    let (observed, _lost) = unix::connect_observed(&path, limit).await.unwrap();
    let channels = [
        unix::connect(&path, limit).await.unwrap(),
        unix::connect_lazy(&path),
        unix::connect_once(&path, limit).await.unwrap(),
        observed,
    ];
    for channel in channels {
        let call = tokio::spawn(async move {
            let mut client = PodResourcesListerClient::new(channel);
            client.list(ListPodResourcesRequest {}).await
        });
        let authority = tokio::time::timeout(limit, told.recv()).await.unwrap();
        assert_eq!(authority.as_deref(), Some("localhost"));
        call.abort();
    }
    server.abort();
}

#[tokio::test]
async fn items_154_and_158_time_outs_and_sizes() {
    let dir = tempfile::tempdir().unwrap();
    for (size, fits) in [
        (MAX_MESSAGE - 100, true),
        (MAX_MESSAGE + 1024 * 1024, false),
    ] {
        let path = dir.path().join(format!("{size}.sock"));
        let (stop, task) = serve(&path, size);
        let channel = unix::connect(&path, Duration::from_secs(5)).await.unwrap();
        let mut client =
            PodResourcesListerClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        assert_eq!(client.list(ListPodResourcesRequest {}).await.is_ok(), fits);
        let mut stream = connect(&path).await;
        stream.write_all(&hanging_call()).await.unwrap();
        let status = tokio::time::timeout(Duration::from_secs(5), status(&mut stream))
            .await
            .unwrap();
        assert_eq!(status, (Code::DeadlineExceeded as i32).to_string());
        stop.cancel();
        task.await.unwrap();
    }
}

#[tokio::test]
async fn sockets_are_replaced_but_files_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let first = Listener::bind(&path).unwrap();
    let second = Listener::bind_by_rename(&path).unwrap();
    drop(first);
    assert!(
        path.exists(),
        "an old listener leaves its successor's socket alone"
    );
    drop(second);
    assert!(!path.exists());
    std::fs::write(&path, "x").unwrap();
    assert!(matches!(
        Listener::bind(&path),
        Err(unix::Error::NotASocket(_))
    ));
    let error = unix::connect(&path, Duration::from_millis(150))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("gave up after 150ms"), "{error}");
}

#[tokio::test]
async fn a_channel_for_one_connection_does_not_dial_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let (stop, task) = serve(&path, 0);
    let once = unix::connect_once(&path, Duration::from_secs(5))
        .await
        .unwrap();
    let again = unix::connect(&path, Duration::from_secs(5)).await.unwrap();
    let get = || GetPodResourcesRequest {
        pod_name: "hello".into(),
        ..Default::default()
    };
    let mut once = PodResourcesListerClient::new(once);
    let mut again = PodResourcesListerClient::new(again);
    once.get(get()).await.unwrap();
    again.get(get()).await.unwrap();
    stop.cancel();
    task.await.unwrap();
    let (stop, task) = serve(&path, 0);
    once.get(get()).await.unwrap_err();
    once.get(get()).await.unwrap_err();
    let mut answer = again.get(get()).await;
    for _ in 0..50 {
        if answer.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        answer = again.get(get()).await;
    }
    answer.unwrap();
    stop.cancel();
    task.await.unwrap();
}

/// More silent connections than a socket serves.
#[tokio::test]
async fn who_takes_all_connections_keeps_nobody_out() {
    const MANY: usize = 1100;
    let mut files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    files.current = files.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, files).unwrap();
    if files.maximum.is_some_and(|most| most < 4 * MANY as u64) {
        println!("skipped: this process may not open as many files");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let (stop, task) = serve(&path, 0);
    let mut held = Vec::new();
    let first = call(&mut fluke_hpack::Encoder::new(), 1, None);
    let asked = async {
        while held.len() < MANY {
            match UnixStream::connect(&path).await {
                Ok(stream) => held.push(stream),
                // As many wait to be accepted as may.
                Err(_) => tokio::task::yield_now().await,
            }
        }
        let mut stream = connect(&path).await;
        stream.write_all(&first).await.unwrap();
        answered(&mut stream, 1).await
    };
    let limit = Duration::from_secs(60);
    assert!(tokio::time::timeout(limit, asked).await.unwrap());
    drop(held);
    stop.cancel();
    task.await.unwrap();
}
