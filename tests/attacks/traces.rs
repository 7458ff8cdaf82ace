//! What is in the audit log: everything that was done, whoever does not want it.

use crate::attacks::load::{connector, tls};
use crate::harness::{Cluster, temp_dir};
use http::Request;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
metadata: {name: of-a-user}
omitStages: [RequestReceived]
rules:
- level: Metadata
  resources: [{group: '', resources: [configmaps]}]
";
/// Some go before their request is read, some while it is handled, some when it is done.
const WRITES: u64 = 400;

#[tokio::test(flavor = "multi_thread")]
async fn who_hangs_up_is_in_the_audit_log() {
    let _installed_before = rustls::crypto::ring::default_provider().install_default();
    let dir = temp_dir();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (tokens, policy, log) = (file("tokens.csv"), file("policy.yaml"), file("audit.log"));
    std::fs::write(&tokens, "admin-token,admin,1,system:masters\n").unwrap();
    std::fs::write(&policy, POLICY).unwrap();
    let args = [
        "--no-node".to_owned(),
        format!("--token-auth-file={tokens}"),
        format!("--audit-policy-file={policy}"),
        format!("--audit-log-path={log}"),
    ];
    let cluster = tokio::task::spawn_blocking(move || {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Cluster::up(&args)
    });
    let cluster = cluster.await.unwrap();
    let address = cluster.server["https://".len()..].trim_end_matches('/');
    let api: SocketAddr = address.parse().unwrap();
    let mut sender = connect(api).await;
    for number in 0..WRITES {
        let object = format!(r#"{{"metadata":{{"name":"m{number}"}}}}"#);
        let request = Request::post(format!(
            "https://{address}/api/v1/namespaces/default/configmaps"
        ));
        let request = request
            .header("authorization", "Bearer admin-token")
            .header("content-type", "application/json");
        let request = request.body(Full::new(Bytes::from(object))).unwrap();
        // who resets many streams that nobody has read yet is thrown out
        while sender.ready().await.is_err() {
            sender = connect(api).await;
        }
        // the stream is reset when nobody waits for the answer
        let hasty = Duration::from_micros(number % 100 * 100);
        let _answered = tokio::time::timeout(hasty, sender.send_request(request)).await;
    }
    let admin = davit_client::from_kubeconfig(&cluster.kubeconfig)
        .await
        .unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(admin, "default");
    let held = maps.list(&ListParams::default()).await.unwrap();
    let names = held.items.into_iter().filter_map(|map| map.metadata.name);
    let made: Vec<String> = names.filter(|name| name.starts_with('m')).collect();
    assert!(!made.is_empty(), "nothing was written at all");
    let written = Instant::now() + Duration::from_secs(10);
    loop {
        let log = std::fs::read_to_string(&log).unwrap();
        let told = |name: &str| log.contains(&format!(r#""name":"{name}""#));
        let untold = made.iter().filter(|name| !told(name)).count();
        if untold == 0 {
            return;
        }
        let all = made.len();
        assert!(
            Instant::now() < written,
            "{untold} of {all} objects were made by nobody"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn connect(api: SocketAddr) -> SendRequest<Full<Bytes>> {
    let stream = tls([127, 0, 0, 1], api, &connector("h2")).await.unwrap();
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}
