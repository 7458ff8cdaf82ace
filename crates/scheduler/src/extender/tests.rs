//! Order, interest, TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto::ring};

use super::*;
use crate::plugins::testing::pod;

fn extenders(list: serde_json::Value) -> Result<Extenders, ExtenderError> {
    let list: Vec<ExtenderConfiguration> = serde_json::from_value(list).unwrap();
    Extenders::new(&list, Metrics::default())
}

#[tokio::test]
async fn ignorable_ones_are_asked_last() {
    let list = extenders(json!([
        {"urlPrefix": "http://a", "ignorable": true}, {"urlPrefix": "http://b"}, {"urlPrefix": "http://c"},
    ]))
    .unwrap();
    let names: Vec<&str> = list.list.iter().map(|e| e.name).collect();
    assert_eq!(names, ["http://b", "http://c", "http://a"]);
    assert!(
        list.list
            .iter()
            .all(|e| e.timeout == Duration::from_secs(5))
    );
}

#[tokio::test]
async fn only_pods_with_managed_resources_are_of_interest() {
    let list = extenders(json!([
        {"urlPrefix": "http://all"},
        {"urlPrefix": "http://some", "managedResources": [{"name": "a.b/c"}]},
    ]))
    .unwrap();
    let with = |containers: &str, kind: &str| {
        let container = json!([{"name": "c", "resources": {kind: {"a.b/c": "1"}}}]);
        pod("p", json!({containers: container}))
    };
    for (pod, places) in [
        (pod("p", json!({})), vec![0]),
        (with("containers", "requests"), vec![0, 1]),
        (with("containers", "limits"), vec![0, 1]),
        (with("initContainers", "limits"), vec![0, 1]),
    ] {
        assert_eq!(list.places(&pod), places.into_iter().collect());
    }
}

/// A server that wants a client certificate of the same authority, under the name `extender.test`.
async fn tls_server(
    authority: &rcgen::CertifiedIssuer<'_, rcgen::KeyPair>,
) -> (SocketAddr, JoinSet<()>) {
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["extender.test".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).unwrap();
    let certificate = certificate.signed_by(&key, authority).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let provider = Arc::new(ring::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients.build().unwrap())
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(certificate.pem().as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else {
                continue;
            };
            let service = service_fn(|_| async {
                let body = json!({"NodeNames": []}).to_string();
                Ok::<_, std::convert::Infallible>(http::Response::new(Full::new(Bytes::from(body))))
            });
            let builder = hyper::server::conn::http1::Builder::new();
            drop(
                builder
                    .serve_connection(TokioIo::new(stream), service)
                    .await,
            );
        }
    });
    (address, tasks)
}

#[tokio::test]
async fn certificates_are_shown_and_judged() {
    let _already = ring::default_provider().install_default();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority =
        rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
    let (address, _tasks) = tls_server(&authority).await;
    let key = rcgen::KeyPair::generate().unwrap();
    let shown = rcgen::CertificateParams::new(vec!["scheduler".to_owned()]).unwrap();
    let shown = shown.signed_by(&key, &authority).unwrap();
    let data = |pem: String| STANDARD.encode(pem);
    let call = async |tls: serde_json::Value| {
        let url = format!("https://{address}");
        let list = extenders(json!([{"urlPrefix": url, "filterVerb": "filter", "tlsConfig": tls}]))
            .unwrap();
        list.call(&list.list[0], "filter", &json!({})).await
    };
    let mut tls = json!({
        "caData": data(authority.pem()),
        "certData": data(shown.pem()),
        "keyData": data(key.serialize_pem()),
        "serverName": "extender.test",
    });
    assert_eq!(call(tls.clone()).await.unwrap(), json!({"NodeNames": []}));
    tls["serverName"] = json!("another.test");
    assert!(matches!(
        call(tls.clone()).await,
        Err(ExtenderError::Transport { .. })
    ));
    let without_authority = json!({"certData": tls["certData"], "keyData": tls["keyData"],
        "serverName": "extender.test"});
    assert!(matches!(
        call(without_authority).await,
        Err(ExtenderError::Transport { .. })
    ));
    let without_certificate = json!({"caData": tls["caData"], "serverName": "extender.test"});
    assert!(matches!(
        call(without_certificate).await,
        Err(ExtenderError::Transport { .. })
    ));
    let insecure =
        json!({"insecure": true, "certData": tls["certData"], "keyData": tls["keyData"]});
    assert!(call(insecure).await.is_ok());
    let unreadable =
        extenders(json!([{"urlPrefix": "https://x", "tlsConfig": {"caFile": "/nowhere"}}]));
    assert!(
        unreadable
            .unwrap_err()
            .to_string()
            .starts_with("extender https://x: caFile: /nowhere: ")
    );
}

#[tokio::test]
async fn a_server_that_is_gone_is_left_alone_after_a_while() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let list = extenders(json!([{"urlPrefix": format!("http://{address}")}])).unwrap();
    for _ in 0..5 {
        let error = list
            .call(&list.list[0], "filter", &json!({}))
            .await
            .unwrap_err();
        assert!(matches!(error, ExtenderError::Transport { .. }), "{error}");
    }
    let error = list
        .call(&list.list[0], "filter", &json!({}))
        .await
        .unwrap_err();
    assert!(matches!(error, ExtenderError::LeftAlone { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("is not asked for a while: Post \"http://"),
        "{error}"
    );
}
