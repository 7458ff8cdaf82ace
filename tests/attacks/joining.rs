//! Who looks for a bootstrap token in the list of processes; who knows one, and stands between a machine and the cluster that it joins by the key of the cluster's
//! authority.

use crate::harness::{DAVIT, eventually, temp_dir};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use davit_client::bootstrap_token::BootstrapToken;
use davit_client::discovery::{Discovery, KeyHash};
use http::Response;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// An authority, its certificate as PEM and its key.
fn authority() -> (CertificateParams, String, KeyPair) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    (params, pem, key)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_beside_the_one_that_was_told_is_not_believed() {
    let _installed_before = rustls::crypto::ring::default_provider().install_default();
    let token: BootstrapToken = "abcdef.0123456789abcdef".parse().unwrap();
    let ((_, real, _), (params, own, key)) = (authority(), authority());
    let server_key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let issuer = Issuer::new(params, key);
    let server = server.signed_by(&server_key, &issuer).unwrap();
    let tls = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(
            vec![server.der().clone()],
            server_key.serialize_der().try_into().unwrap(),
        );
    let tls = TlsAcceptor::from(Arc::new(tls.unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();

    // What the cluster would say, with an authority more, and signed by who knows the token.
    let bundle = STANDARD.encode([real.as_str(), &own].concat());
    let info = format!(
        "clusters: [{{name: '', cluster: {{server: 'https://{endpoint}', certificate-authority-data: {bundle}}}}}]"
    );
    let map = serde_json::json!({"data": {
        "kubeconfig": info, "jws-kubeconfig-abcdef": token.sign(&info) }});
    let map = Bytes::from(map.to_string());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (tls, map) = (tls.clone(), map.clone());
            tokio::spawn(async move {
                let Ok(stream) = tls.accept(stream).await else {
                    return;
                };
                let answer = service_fn(move |_| {
                    let answer = Response::new(Full::new(map.clone()));
                    async { Ok::<_, Infallible>(answer) }
                });
                let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
                let _ended = serving.await;
            });
        }
    });
    let joins = async |pinned: &str, patience: u64| {
        let discovery = Discovery {
            endpoint: endpoint.clone(),
            token: token.clone(),
            hashes: KeyHash::of_certificates(pinned.as_bytes()).unwrap(),
        };
        let found = tokio::time::timeout(Duration::from_secs(patience), discovery.run()).await;
        found.is_ok_and(|found| found.is_ok())
    };
    // It answers to who was told its key, and as quickly to who was told another.
    assert!(joins(&own, 30).await);
    assert!(
        !joins(&real, 5).await,
        "joined by the authority of somebody else"
    );
}

/// A local account reads the arguments of every process.
#[test]
fn the_token_of_a_machine_that_joins_is_not_in_the_list_of_processes() {
    let dir = temp_dir();
    // takes the connection and says nothing, so that the node goes on asking
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = silent.local_addr().unwrap().to_string();
    for flag in [
        &["--token", "abcdef.0123456789abcdef"][..],
        &["--token=abcdef.0123456789abcdef"],
    ] {
        let mut node = std::process::Command::new(DAVIT)
            .args(["node", "--join", &server])
            .args(flag)
            .arg("--discovery-token-unsafe-skip-ca-verification")
            .arg("--data-dir")
            .arg(dir.path())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let shown = || std::fs::read(format!("/proc/{}/cmdline", node.id())).unwrap();
        let shows = |text: &str| {
            shown()
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        };
        eventually("the arguments are its own", Duration::from_secs(10), || {
            shows("abcdef.")
        });
        eventually("the secret is gone", Duration::from_secs(10), || {
            !shows("0123456789abcdef")
        });
        assert!(
            shows("abcdef.****************") && shows("127.0.0.1"),
            "what is no secret stays"
        );
        node.kill().unwrap();
        node.wait().unwrap();
    }
}
