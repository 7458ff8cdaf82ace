//! Upgraded connections and files: what somebody who may exec holds on to.

use crate::attacks::load::{Tls, connector, tls, until_closed};
use crate::harness::{root, temp_dir};
use crate::node_harness::{NodeCluster, pod, within};
use k8s_openapi::api::rbac::v1::RoleBinding;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What the node is configured with.
const IDLE: Duration = Duration::from_secs(3);
/// A WebSocket ping, masked with zeros.
const PING: &[u8] = &[0x89, 0x80, 0, 0, 0, 0];

const TOKENS: &str = "admin-token,admin,1,system:masters\ntenant-token,tenant,2\n";

/// A node with a pod that does nothing, and tokens for those who ask.
async fn with_a_pod(dir: &Path, more: &[&str]) -> Option<(NodeCluster, SocketAddr)> {
    root()?;
    let _installed_before = rustls::crypto::ring::default_provider().install_default();
    let tokens = dir.join("tokens.csv");
    std::fs::write(&tokens, TOKENS).unwrap();
    let tokens = ["--token-auth-file", tokens.to_str().unwrap()];
    let node = NodeCluster::up(&[&tokens, more].concat()).await;
    node.wait_for_service_account().await;
    node.create(&pod("typed", "ulimit -Sn; exec sleep 1000", 0))
        .await;
    node.wait_for_phase("typed", "Running").await;
    let address = node.cluster.server["https://".len()..].trim_end_matches('/');
    let api = address.parse().unwrap();
    Some((node, api))
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_do_nothing_end() {
    let dir = temp_dir();
    let config = dir.path().join("kubelet.yaml");
    let idle = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         streamingConnectionIdleTimeout: {}s\n",
        IDLE.as_secs()
    );
    std::fs::write(&config, idle).unwrap();
    let config = ["--config", config.to_str().unwrap()];
    let Some((node, api)) = with_a_pod(dir.path(), &config).await else {
        return;
    };
    files(&node).await;
    let exec = "exec?command=cat&stdin=true";
    let (silent, busy) = (
        open(api, exec, "admin").await.unwrap(),
        open(api, exec, "admin").await.unwrap(),
    );
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

/// Whoever takes all sessions of a node that he gets leaves others some, and nothing stays of those that end. Here none ends by
/// itself: however slowly they are opened, he comes to the end of his.
#[tokio::test(flavor = "multi_thread")]
async fn who_takes_all_sessions_leaves_others_some() {
    let dir = temp_dir();
    let Some((node, api)) = with_a_pod(dir.path(), &[]).await else {
        return;
    };
    let binding = serde_json::from_value(serde_json::json!({
        "metadata": { "name": "tenant" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant" }],
    }));
    let bindings: kube::Api<RoleBinding> = kube::Api::namespaced(node.client.clone(), "default");
    bindings
        .create(&kube::api::PostParams::default(), &binding.unwrap())
        .await
        .unwrap();
    let files = || {
        let dir = format!("/proc/{}/fd", node.cluster.pid());
        std::fs::read_dir(dir).unwrap().count()
    };
    let before = files();
    let mut all = Vec::new();
    let refusal = loop {
        match open(api, "attach?stdout=true", "tenant").await {
            Ok(session) => all.push(session),
            Err(refusal) => break refusal,
        }
    };
    assert!(refusal.starts_with("HTTP/1.1 429 "), "{refusal}");
    assert!(all.len() > 10, "{}", all.len());
    let others = open(api, "exec?command=cat&stdin=true", "admin").await;
    drop(others.expect("nothing is left to others"));
    drop(all);
    within(Duration::from_secs(20), "files of sessions", async || {
        (files() < before + 10).then_some(())
    })
    .await;
    node.delete_now("typed").await;
    node.clean_up().await;
}

/// A session with the pod, over WebSocket; else what is answered.
async fn open(api: SocketAddr, what: &str, user: &str) -> Result<Tls, String> {
    let mut stream = tls([127, 0, 0, 1], api, &connector("http/1.1"))
        .await
        .unwrap();
    let ask = format!(
        "GET /api/v1/namespaces/default/pods/typed/{what} HTTP/1.1\r\n\
         Host: davit\r\nAuthorization: Bearer {user}-token\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n"
    );
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    match head.starts_with("HTTP/1.1 101 ") {
        true => Ok(stream),
        false => Err(head),
    }
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
