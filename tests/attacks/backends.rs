//! Pods that the API server and the node ask something, and that take nothing, or never answer: connections end with whoever
//! wanted them.

use crate::attacks::load::{Tls, connector, tls};
use crate::harness::{program, root, temp_dir};
use crate::node_harness::{NodeCluster, within};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Where the pod listens: nobody else on the machine is asked at this port.
const PORT: u16 = 28_431;
const LIMIT: Duration = Duration::from_secs(20);
/// More than fits between the API server and a pod that reads nothing.
const BODY: usize = 4 << 20;
/// What a pod does with a connection follows from the path that it is asked for; pings are for probes.
const SERVER: &str = r"
import socket, threading, time
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
listener.bind(('0.0.0.0', PORT))
listener.listen(64)
kept = []
def answer(connection):
    kept.append(connection)
    asked = connection.recv(64)
    if b'early' in asked:
        connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok')
    elif b'endless' in asked:
        connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 2000000000\r\n\r\nok')
    elif b'switch' in asked:
        connection.sendall(b'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n')
    elif b'interim' in asked:
        while True:
            connection.sendall(b'HTTP/1.1 100 Continue\r\n\r\n' * 1000)
    elif b'PRI' in asked:
        connection.sendall(b'\0\0\0\4\0\0\0\0\0')
        while True:
            connection.sendall(b'\0\0\x08\6\0\0\0\0\0abcdefgh' * 1000)
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],)).start()
";

/// Connections of this machine's processes to the port.
fn connections() -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let to = format!(":{PORT:04X}");
    let is_open = |line: &&str| {
        let mut fields = line.split_whitespace().skip(2);
        // ESTABLISHED and CLOSE_WAIT are held by a process
        fields.next().is_some_and(|remote| remote.ends_with(&to))
            && matches!(fields.next(), Some("01" | "08"))
    };
    table.lines().filter(is_open).count()
}

async fn until_gone(what: &str, most: usize) {
    within(LIMIT, what, async || (connections() <= most).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_take_nothing_hold_no_connections() {
    let (Some(()), Some(_)) = (root(), program("python3")) else {
        return;
    };
    let _installed_before = rustls::crypto::ring::default_provider().install_default();
    let dir = temp_dir();
    let tokens = dir.path().join("tokens.csv");
    std::fs::write(&tokens, "admin-token,admin,1,system:masters\n").unwrap();
    let node = NodeCluster::up(&["--token-auth-file", tokens.to_str().unwrap()]).await;
    node.wait_for_service_account().await;
    let server = SERVER.replace("PORT", &PORT.to_string());
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "hostile" },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": "davit.local/host",
                "command": ["/usr/bin/env", "python3", "-c", server],
                "readinessProbe": {
                    "grpc": { "port": PORT }, "periodSeconds": 1, "timeoutSeconds": 1,
                },
            }],
        },
    }))
    .unwrap();
    node.create(&pod).await;
    node.wait_for_phase("hostile", "Running").await;
    // a dozen checks, of which one is under way
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert!(connections() <= 2, "{} after a dozen checks", connections());

    let address = node.cluster.server["https://".len()..].trim_end_matches('/');
    let api: SocketAddr = address.parse().unwrap();
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    for _ in 0..4 {
        // What has come to its end, and what nobody waits for. Of a client that has more to send nothing says that he has gone.
        drop(ask(api, "early", "", BODY).await);
        drop(ask(api, "silent", "", 0).await);
        drop(ask(api, "switch", upgrade, 0).await);
    }
    until_gone("connections of requests that nobody waits for", 2).await;
    let mut interim = ask(api, "interim", "", 0).await;
    let mut head = [0; 12];
    // Pod and API server both work for it, on a machine that others use.
    let answered = tokio::time::timeout(3 * LIMIT, interim.read_exact(&mut head)).await;
    answered.expect("interim answers without end").unwrap();
    assert_eq!(head, *b"HTTP/1.1 500");
    node.delete_now("hostile").await;
    node.clean_up().await;
}

/// Asks the pod for a path, with a body of which the pod takes what fits between it and here.
async fn ask(api: SocketAddr, path: &str, headers: &str, body: usize) -> Tls {
    let mut stream = tls([127, 0, 0, 1], api, &connector("http/1.1"))
        .await
        .unwrap();
    let head = format!(
        "POST /api/v1/namespaces/default/pods/hostile:{PORT}/proxy/{path} HTTP/1.1\r\nHost: davit\r\n\
         Authorization: Bearer admin-token\r\nContent-Length: {body}\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let body = vec![b'x'; body];
    // it is not all taken
    let sent = stream.write_all(&body);
    let _stuck = tokio::time::timeout(Duration::from_secs(1), sent).await;
    stream
}
