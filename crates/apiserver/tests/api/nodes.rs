//! What is forwarded to nodes, with a node that writes down what it is asked.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use davit_pki::Pki;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::cluster::*;

type Asked = Arc<Mutex<Vec<String>>>;

/// A node agent that answers logs with text and upgrades everything else to an echo.
async fn node(dir: &std::path::Path) -> (SocketAddr, Asked) {
    let identity = Pki::open(dir)
        .unwrap()
        .serving("node", "node", &["127.0.0.1".into()])
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap(),
        )
        .unwrap();
    let tls = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Asked::default();
    let seen = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let stream = tls.accept(stream).await.unwrap();
            let seen = Arc::clone(&seen);
            let service = service_fn(move |request| answer(request, Arc::clone(&seen)));
            let io = TokioIo::new(stream);
            tokio::spawn(async move {
                hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                    .serve_connection_with_upgrades(io, service)
                    .await
            });
        }
    });
    (address, asked)
}

async fn answer(
    mut request: Request<Incoming>,
    asked: Asked,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    // The server asks by itself what is used.
    if request.uri().path() != "/metrics/resource" {
        asked.lock().unwrap().push(request.uri().to_string());
    }
    assert!(request.headers().get("authorization").is_none());
    if !request.headers().contains_key("upgrade") {
        return Ok(Response::new(Full::from("line one\n")));
    }
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut io = TokioIo::new(upgraded.await.unwrap());
        let mut buffer = [0; 64];
        while let Ok(count) = io.read(&mut buffer).await {
            if count == 0 || io.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
    });
    Ok(Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
        .body(Full::default())
        .unwrap())
}

async fn with_bound_pod(c: &Cluster, address: SocketAddr) {
    c.service_account().await;
    c.pod("p").await;
    c.post("/api/v1/nodes", &json!({"metadata": {"name": "n"}}))
        .await
        .ok(201);
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": address.ip().to_string()}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": address.port()}},
    }});
    c.patch("/api/v1/nodes/n/status", "merge", &status)
        .await
        .ok(200);
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    c.post(&format!("{PODS}/p/binding"), &binding).await.ok(201);
}

#[tokio::test]
async fn logs_are_forwarded_with_their_parameters() {
    let c = Cluster::new().await;
    let (address, asked) = node(&c.dir.path().join("node")).await;
    with_bound_pod(&c, address).await;
    let query = "follow=true&tailLines=5&timestamps=true&sinceTime=2024-01-01T00:00:00Z";
    let answer = c.get(&format!("{PODS}/p/log?{query}")).await;
    assert_eq!((answer.code, answer.text().as_str()), (200, "line one\n"));
    assert_eq!(
        asked.lock().unwrap()[0],
        "/containerLogs/default/p/c?follow=true&timestamps=true&tailLines=5&sinceTime=2024-01-01T00%3A00%3A00Z"
    );
    let answer = c.get("/api/v1/nodes/n/proxy/healthz?x=y").await;
    assert_eq!(answer.code, 200);
    assert_eq!(asked.lock().unwrap()[1], "/healthz?x=y");
}

#[tokio::test]
async fn logs_are_told_over_websockets() {
    let c = Cluster::new().await;
    let (node_address, asked) = node(&c.dir.path().join("node")).await;
    with_bound_pod(&c, node_address).await;
    let served = crate::serve::Served::new(&c).await;
    // message by message, then the end; in base64 for those who ask for it
    for (protocol, expected) in [
        ("", &b"\x82\x09line one\n"[..]),
        ("binary.k8s.io", b"\x82\x09line one\n"),
        ("base64.binary.k8s.io", b"\x81\x0cbGluZSBvbmUK"),
    ] {
        let offered = match protocol {
            "" => String::new(),
            name => format!("sec-websocket-protocol: {name}\r\n"),
        };
        let mut io = served.connect().await;
        let request = format!(
            "GET {PODS}/p/log?container=c HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret\r\n\
             connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n{offered}\r\n"
        );
        io.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = io.read_to_end(&mut answer).await;
        let end = answer
            .windows(4)
            .position(|part| part == b"\r\n\r\n")
            .unwrap()
            + 4;
        let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
        assert!(head.starts_with("http/1.1 101 "), "{head}");
        assert!(head.contains("s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
        assert_eq!(
            head.contains("sec-websocket-protocol"),
            !protocol.is_empty(),
            "{head}"
        );
        let close = b"\x88\x02\x03\xe8";
        assert_eq!(answer[end..], [expected, close].concat(), "{protocol}");
        let asked = asked.lock().unwrap().pop().unwrap();
        assert!(asked.starts_with("/containerLogs/default/p/c"), "{asked}");
    }
    served.stop().await;
}

#[tokio::test]
async fn exec_is_upgraded_and_piped_over_the_wire() {
    let c = Cluster::new().await;
    let (node_address, asked) = node(&c.dir.path().join("node")).await;
    with_bound_pod(&c, node_address).await;
    let served = crate::serve::Served::new(&c).await;
    let mut io = served.connect().await;
    let request = format!(
        "POST {PODS}/p/exec?command=ls&command=-l%20x&stdin=true&stdout=true&tty=false HTTP/1.1\r\n\
         host: x\r\nauthorization: Bearer secret\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\r\n"
    );
    io.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(io.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    io.write_all(b"hello").await.unwrap();
    let mut echo = [0; 5];
    io.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"hello");
    let line = asked.lock().unwrap()[0].clone();
    assert_eq!(
        line,
        "/exec/default/p/c?input=1&output=1&command=ls&command=-l%20x"
    );
    served.stop().await;
}

/// An application in a pod: plain HTTP, with a redirect to itself and an echo behind an upgrade.
async fn application() -> (SocketAddr, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Asked::default();
    let seen = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let seen = Arc::clone(&seen);
            let service = service_fn(move |request: Request<Incoming>| {
                let seen = Arc::clone(&seen);
                async move {
                    let mut response = answer(request, seen).await?;
                    if response.status() == StatusCode::OK {
                        let location = http::HeaderValue::from_static("/login?from=here");
                        response.headers_mut().insert("location", location);
                    }
                    Ok::<_, hyper::Error>(response)
                }
            });
            let io = TokioIo::new(stream);
            tokio::spawn(async move {
                hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                    .serve_connection_with_upgrades(io, service)
                    .await
            });
        }
    });
    (address, asked)
}

#[tokio::test]
async fn item_128_pods_are_reached_through_the_server() {
    let c = Cluster::new().await;
    let (address, asked) = application().await;
    c.service_account().await;
    let mut pod = pod("p");
    pod["spec"]["containers"][0]["ports"] =
        json!([{ "name": "web", "containerPort": address.port() }]);
    c.post(PODS, &pod).await.ok(201);
    let ip = address.ip().to_string();
    let status = json!({ "status": { "podIP": ip, "podIPs": [{ "ip": ip }] } });
    c.patch(&format!("{PODS}/p/status"), "merge", &status)
        .await
        .ok(200);
    let namespace = "/api/v1/namespaces/default";
    // services, whose endpoints may not be on loopback, are reached in tests/cni.rs
    for name in ["pods/p", "pods/p:web", "pods/http:p:web"] {
        let base = format!("{namespace}/{name}/proxy");
        let answer = c.get(&format!("{base}/a%20b/c?d=e%26f")).await;
        assert_eq!((answer.code, answer.text().as_str()), (200, "line one\n"));
        // the way back leads through the server, too
        assert_eq!(answer.header("location"), format!("{base}/login?from=here"));
        let line = asked.lock().unwrap().pop().unwrap();
        assert_eq!(line, "/a%20b/c?d=e%26f", "{name}");
        // without a path the client is led to the root, so that relative links work
        let answer = c.get(&format!("{base}?x=y")).await;
        assert_eq!(answer.code, 301);
        assert_eq!(answer.header("location"), format!("{base}/?x=y"));
        assert!(asked.lock().unwrap().is_empty());
        // what is no page has no links: it goes to the root as it is
        for method in ["DELETE", "POST"] {
            let answer = c.request(method, &format!("{base}?x=y"), &[], "").await;
            assert_eq!(answer.code, 200, "{method}");
            assert_eq!(asked.lock().unwrap().pop().unwrap(), "/?x=y");
        }
    }
    let served = crate::serve::Served::new(&c).await;
    for name in ["pods/p", "pods/p:web"] {
        let mut io = served.connect().await;
        let request = format!(
            "GET {namespace}/{name}/proxy/socket HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret\r\n\
             connection: Upgrade\r\nupgrade: echo\r\n\r\n"
        );
        io.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(io.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        io.write_all(b"hello").await.unwrap();
        let mut echo = [0; 5];
        io.read_exact(&mut echo).await.unwrap();
        assert_eq!(&echo, b"hello");
        assert_eq!(asked.lock().unwrap().pop().unwrap(), "/socket");
    }
    served.stop().await;
}
