//! Heads of requests that do not come whole, by a socket: whoever sends them a piece at a time is closed as one who sends nothing.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{ConnectionLimits, Connections, HttpLimits, Lease, Socket, TrackedBody, accept, http};

const FIRST: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(3);
/// Of one who has asked before: when he is told to end, and the time that he has for it.
const LATER: Duration = Duration::from_secs(3 + 10);
/// Sweeps come every second, and the machine has other work.
const SLACK: Duration = Duration::from_secs(10);
/// Between pieces.
const PIECE: Duration = Duration::from_millis(100);

const LIMITS: ConnectionLimits = ConnectionLimits {
    strangers: 8,
    loopback: 8,
    known: 8,
    first_request: FIRST,
    idle: IDLE,
    long_running: 8,
    sessions: 8,
    session_idle: Duration::from_secs(3600),
    unsent: 1 << 20,
};

/// As the servers have it.
async fn serve(socket: Socket, lease: Lease) {
    let of_requests = lease.clone();
    let service = hyper::service::service_fn(move |_| {
        let exchange = of_requests.begin();
        async move {
            let body = Full::new(Bytes::from_static(b"yes"));
            let response = ::http::Response::new(TrackedBody::new(body, exchange));
            Ok::<_, Infallible>(response)
        }
    });
    let builder = http(HttpLimits { streams: 8 });
    let serving = builder.serve_connection(TokioIo::new(socket), service);
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = lease.draining() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "connection ended");
    }
}

async fn server() -> (Arc<Connections>, std::net::SocketAddr, DropGuard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (connections, cancel) = (Connections::new(LIMITS), CancellationToken::new());
    let (open, ends) = (connections.clone(), cancel.clone());
    tokio::spawn(async move {
        let mut tasks = JoinSet::new();
        accept(&listener, &open, &mut tasks, &ends, serve).await;
    });
    (connections, address, cancel.drop_guard())
}

/// Sends `piece` again and again, until the connection is closed; how long that took.
async fn closed(stream: &mut TcpStream, piece: &[u8]) -> Duration {
    let begun = Instant::now();
    let mut answer = [0; 4096];
    while begun.elapsed() < LATER + 2 * SLACK {
        let sent = stream.write_all(piece).await;
        let read = tokio::time::timeout(PIECE, stream.read(&mut answer)).await;
        if sent.is_err() || matches!(read, Ok(Ok(0) | Err(_))) {
            return begun.elapsed();
        }
    }
    panic!("it is still open");
}

const HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n";
/// The beginning of HTTP/2, and a frame of settings without any.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// `GET /` with `http` as the scheme (RFC 7541, static table).
const FIELDS: &[u8] = &[0x82, 0x86, 0x84, 0x41, 1, b'a'];
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, stream];
    frame.extend(payload);
    frame
}

#[tokio::test]
async fn a_first_head_in_pieces_has_the_time_of_a_first_request() {
    let (connections, address, _server) = server().await;
    let one = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(HEAD).await.unwrap();
        closed(&mut stream, b"X-A: b\r\n").await
    };
    let two = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(PREFACE).await.unwrap();
        let begun = frame(HEADERS, END_STREAM, 1, FIELDS);
        stream.write_all(&begun).await.unwrap();
        closed(&mut stream, &frame(CONTINUATION, 0, 1, &[])).await
    };
    let (one, two) = tokio::join!(one, two);
    assert!(one < FIRST + SLACK, "HTTP/1: {one:?}");
    assert!(two < FIRST + SLACK, "HTTP/2: {two:?}");
    while connections.count() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_later_head_in_pieces_has_the_time_of_an_idle_connection() {
    let (connections, address, _server) = server().await;
    let one = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(HEAD).await.unwrap();
        stream.write_all(b"\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.windows(3).any(|part| part == b"yes") {
            assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0);
        }
        stream.write_all(HEAD).await.unwrap();
        closed(&mut stream, b"X-A: b\r\n").await
    };
    let two = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(PREFACE).await.unwrap();
        let whole = frame(HEADERS, END_STREAM | END_HEADERS, 1, FIELDS);
        stream.write_all(&whole).await.unwrap();
        let mut answer = Vec::new();
        while !answer.windows(3).any(|part| part == b"yes") {
            assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0);
        }
        let begun = frame(HEADERS, END_STREAM, 3, FIELDS);
        stream.write_all(&begun).await.unwrap();
        closed(&mut stream, &frame(CONTINUATION, 0, 3, &[])).await
    };
    let (one, two) = tokio::join!(one, two);
    assert!(one < LATER + SLACK, "HTTP/1: {one:?}");
    assert!(two < LATER + SLACK, "HTTP/2: {two:?}");
    while connections.count() > 0 {
        tokio::task::yield_now().await;
    }
}
