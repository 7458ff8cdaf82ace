//! Sessions over real HTTP/1.1 connections, with a hand-made WebSocket client.

use super::*;
use crate::body;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http_body_util::Empty;
use hyper::service::service_fn;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

/// Serves one connection: an "echo" process that copies stdin to stdout, writes to stderr, and exits with `code`.
async fn echo_server(io: tokio::io::DuplexStream, code: i32) {
    let service = service_fn(
        move |mut request: Request<hyper::body::Incoming>| async move {
            let streams = Streams {
                stdin: true,
                stdout: true,
                stderr: true,
                tty: false,
            };
            let (response, pending) = match negotiate_session(&mut request, streams) {
                Ok(agreed) => agreed,
                Err(refusal) => return Ok::<_, std::io::Error>(refusal.response()),
            };
            tokio::spawn(async move {
                let session = pending.accept().await.unwrap();
                let (input, process_in) = tokio::io::duplex(1024);
                let (process_out, output) = tokio::io::duplex(1024);
                let (mut process_err, err_output) = tokio::io::duplex(1024);
                let exit = tokio::spawn(async move {
                    let (mut from, mut to) = (process_in, process_out);
                    process_err.write_all(b"warning").await.unwrap();
                    drop(process_err);
                    tokio::io::copy(&mut from, &mut to).await.unwrap();
                    ExitStatus::Code(code)
                });
                session
                    .join(Process {
                        stdin: Some(Box::new(input)),
                        stdout: Some(Box::new(output)),
                        stderr: Some(Box::new(err_output)),
                        resize: None,
                        outlives_client: true,
                        exit: async { exit.await.unwrap() },
                    })
                    .await;
            });
            Ok(response)
        },
    );
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(io), service);
    connection.with_upgrades().await.unwrap();
}

async fn run_over_websocket(protocol: &str, code: i32) -> (Vec<u8>, Vec<u8>, String) {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let server = tokio::spawn(echo_server(theirs, code));
    let mut request = "ws://node/exec".into_client_request().unwrap();
    request
        .headers_mut()
        .insert("sec-websocket-protocol", protocol.parse().unwrap());
    let (mut socket, _) = tokio_tungstenite::client_async(request, ours)
        .await
        .unwrap();
    socket
        .send(Message::Binary(Bytes::from_static(b"\x00hello")))
        .await
        .unwrap();
    socket
        .send(Message::Binary(Bytes::from_static(&[CLOSE, STDIN])))
        .await
        .unwrap();
    let (mut out, mut err, mut status) = (Vec::new(), Vec::new(), String::new());
    while let Some(Ok(message)) = socket.next().await {
        let bytes = match message {
            Message::Binary(bytes) => bytes,
            Message::Close(close) => {
                assert_eq!(
                    u16::from(close.unwrap().code),
                    1000,
                    "clients take any other close for a failure"
                );
                continue;
            }
            _ => continue,
        };
        match bytes[0] {
            STDOUT => out.extend_from_slice(&bytes[1..]),
            STDERR => err.extend_from_slice(&bytes[1..]),
            ERROR => status.push_str(std::str::from_utf8(&bytes[1..]).unwrap()),
            other => panic!("message on channel {other}"),
        }
    }
    server.await.unwrap();
    (out, err, status)
}

const CLOSE: u8 = 255;

#[tokio::test]
async fn item_123_websocket_v5_carries_streams_half_close_and_exit_code() {
    let (out, err, status) = run_over_websocket("v5.channel.k8s.io", 3).await;
    assert_eq!(out, b"hello");
    assert_eq!(err, b"warning");
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["reason"], "NonZeroExitCode");
    assert_eq!(status["details"]["causes"][0]["reason"], "ExitCode");
    assert_eq!(status["details"]["causes"][0]["message"], "3");
}

#[tokio::test]
async fn websocket_success_is_a_status_too() {
    let (_, _, status) = run_over_websocket("v4.channel.k8s.io", 0).await;
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["status"], "Success");
}

#[tokio::test]
async fn a_client_that_closes_first_gets_its_close_back() {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let server = tokio::spawn(echo_server(theirs, 0));
    let mut request = "ws://node/exec".into_client_request().unwrap();
    let protocol = "v4.channel.k8s.io".parse().unwrap();
    let headers = request.headers_mut();
    headers.insert("sec-websocket-protocol", protocol);
    let (mut socket, _) = tokio_tungstenite::client_async(request, ours)
        .await
        .unwrap();
    socket.close(None).await.unwrap();
    let mut answered = false;
    while let Some(message) = socket.next().await {
        answered |= message.unwrap().is_close();
    }
    assert!(answered);
    server.await.unwrap();
}

#[tokio::test]
async fn unknown_protocol_is_refused_and_names_what_is_served() {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let server = tokio::spawn(echo_server(theirs, 0));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(ours))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::post("/exec")
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
        .header("x-stream-protocol-version", "v99.channel.k8s.io")
        .body(Empty::<Bytes>::new())
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), http::StatusCode::FORBIDDEN);
    assert_eq!(
        response
            .headers()
            .get_all("x-accepted-stream-protocol-versions")
            .iter()
            .count(),
        4
    );
    drop(sender);
    connection.await.unwrap().unwrap();
    server.await.unwrap();
    let _ = body("");
}

#[test]
fn sizes_are_read_in_the_clients_spelling() {
    let size: TerminalSize = serde_json::from_str(r#"{"Width":120,"Height":40}"#).unwrap();
    assert_eq!(
        size,
        TerminalSize {
            width: 120,
            height: 40
        }
    );
}

/// Neither pipes to the process nor anybody who waits for it are left of a client that has gone, whether it says anything or not.
#[tokio::test]
async fn a_client_that_has_gone_holds_nothing() {
    for outlives_client in [false, true] {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (mut process, output) = tokio::io::duplex(64);
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let (tell, joined) = tokio::sync::oneshot::channel::<()>();
        let parts = std::sync::Mutex::new(Some((output, ended, tell)));
        let service = service_fn(move |mut request: Request<hyper::body::Incoming>| {
            let (output, ended, tell) = parts.lock().unwrap().take().unwrap();
            async move {
                let streams = Streams {
                    stdin: false,
                    stdout: true,
                    stderr: false,
                    tty: false,
                };
                let (response, pending) = negotiate_session(&mut request, streams).unwrap();
                tokio::spawn(async move {
                    let joins = pending.accept().await.unwrap().join(Process {
                        stdin: None,
                        stdout: Some(Box::new(output)),
                        stderr: None,
                        resize: None,
                        outlives_client,
                        exit: async {
                            let _end = ended.await;
                            ExitStatus::Code(0)
                        },
                    });
                    joins.await;
                    tell.send(()).unwrap();
                });
                Ok::<_, std::io::Error>(response)
            }
        });
        let server = hyper::server::conn::http1::Builder::new();
        let server = server.serve_connection(TokioIo::new(theirs), service);
        let server = tokio::spawn(server.with_upgrades());
        let mut request = "ws://node/attach".into_client_request().unwrap();
        let protocol = "v5.channel.k8s.io".parse().unwrap();
        request
            .headers_mut()
            .insert("sec-websocket-protocol", protocol);
        let client = tokio_tungstenite::client_async(request, ours)
            .await
            .unwrap();
        drop(client);
        server.await.unwrap().unwrap();
        let mut joined = std::pin::pin!(joined);
        let within = Duration::from_secs(5);
        let closed = tokio::time::timeout(within, process.read_u8()).await;
        closed.expect("the pipe stays").unwrap_err();
        let waits = Duration::from_millis(100);
        let early = tokio::time::timeout(waits, &mut joined).await;
        assert_eq!(early.is_err(), outlives_client);
        if outlives_client {
            end.send(()).unwrap();
            let ended = tokio::time::timeout(within, joined).await;
            ended.unwrap().unwrap();
        }
    }
}
