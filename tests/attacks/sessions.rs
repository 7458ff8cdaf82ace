//! Upgraded connections and files: what somebody who may exec holds on to.

use crate::attacks::load::{Tls, connector, tls, until_closed};
use crate::harness::{root, temp_dir};
use crate::node_harness::{NodeCluster, pod};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What the node is configured with.
const IDLE: Duration = Duration::from_secs(3);
/// A WebSocket ping, masked with zeros.
const PING: &[u8] = &[0x89, 0x80, 0, 0, 0, 0];

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_do_nothing_end() {
    if root().is_none() {
        return;
    }
    let _installed_before = rustls::crypto::ring::default_provider().install_default();
    let dir = temp_dir();
    let (tokens, config) = (
        dir.path().join("tokens.csv"),
        dir.path().join("kubelet.yaml"),
    );
    std::fs::write(&tokens, "admin-token,admin,1,system:masters\n").unwrap();
    let idle = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         streamingConnectionIdleTimeout: {}s\n",
        IDLE.as_secs()
    );
    std::fs::write(&config, idle).unwrap();
    let node = NodeCluster::up(&[
        "--token-auth-file",
        tokens.to_str().unwrap(),
        "--config",
        config.to_str().unwrap(),
    ])
    .await;
    node.wait_for_service_account().await;
    node.create(&pod("typed", "ulimit -Sn; exec sleep 1000", 0))
        .await;
    node.wait_for_phase("typed", "Running").await;
    files(&node).await;
    let address = node.cluster.server["https://".len()..].trim_end_matches('/');
    let api: SocketAddr = address.parse().unwrap();
    let (silent, busy) = (open(api).await, open(api).await);
    let silent = async {
        let mut silent = silent;
        until_closed(&mut silent, "a session on which nothing comes").await;
    };
    let busy = async {
        let (mut busy, until) = (busy, Instant::now() + 3 * IDLE);
        while Instant::now() < until {
            busy.write_all(PING).await.unwrap();
            let mut pong = [0; 2];
            let answered = tokio::time::timeout(IDLE, busy.read_exact(&mut pong)).await;
            answered.expect("no answer to a ping").unwrap();
            tokio::time::sleep(IDLE / 6).await;
        }
    };
    tokio::join!(silent, busy);
    node.delete_now("typed").await;
    node.clean_up().await;
}

/// A session in which `cat` waits for what is typed, over WebSocket.
async fn open(api: SocketAddr) -> Tls {
    let mut stream = tls([127, 0, 0, 1], api, &connector("http/1.1"))
        .await
        .unwrap();
    let ask = "GET /api/v1/namespaces/default/pods/typed/exec?command=cat&stdin=true HTTP/1.1\r\n\
               Host: davit\r\nAuthorization: Bearer admin-token\r\nConnection: Upgrade\r\n\
               Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
               Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
               Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n";
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    stream
}

/// Davit may open as many files as there are to be had, containers no more than before.
async fn files(node: &NodeCluster) {
    let limits = |pid: &str| {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = limits.lines().find(|l| l.starts_with("Max open files"));
        let mut numbers = line.unwrap().split_whitespace().skip(3);
        let mut next = || numbers.next().unwrap().to_owned();
        (next(), next())
    };
    let given = limits("self");
    let (soft, hard) = limits(&node.cluster.pid().to_string());
    assert_eq!(soft, hard);
    let log = node
        .pods()
        .logs("typed", &kube::api::LogParams::default())
        .await;
    assert_eq!(log.unwrap().trim(), given.0);
}
