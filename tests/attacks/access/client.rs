//! Authorities, their certificates, and clients that show them: one connection each, so that attacks can outlive what it was
//! made with.

use crate::harness::Cluster;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

pub(super) const SOON: Duration = Duration::from_secs(40);
pub(super) const JSON: &str = "application/json";

/// An authority of certificates, as files of a cluster or made here.
pub(super) struct Ca {
    pub(super) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    pub(super) fn of(c: &Cluster) -> Self {
        let read = |name: &str| std::fs::read_to_string(pki(c).join(name)).unwrap();
        let (pem, key) = (read("ca.crt"), KeyPair::from_pem(&read("ca.key")).unwrap());
        let issuer = Issuer::from_ca_cert_pem(&pem, key).unwrap();
        Self { pem, issuer }
    }

    pub(super) fn made(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = subject(&[(DnType::CommonName, name)]);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::from_ca_cert_pem(&pem, key).unwrap();
        Self { pem, issuer }
    }

    /// A client certificate and its key that is good for `life`.
    pub(super) fn client(&self, names: &[(DnType, &str)], life: Duration) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = subject(names);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = (SystemTime::now() - Duration::from_secs(60)).into();
        params.not_after = (SystemTime::now() + life).into();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity::Certificate(certificate.pem(), key.serialize_pem())
    }

    pub(super) fn node(&self, name: &str) -> Identity {
        let user = format!("system:node:{name}");
        let names = [
            (DnType::OrganizationName, "system:nodes"),
            (DnType::CommonName, &user),
        ];
        self.client(&names, Duration::from_secs(3600))
    }
}

pub(super) fn subject(names: &[(DnType, &str)]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    for (kind, text) in names {
        params.distinguished_name.push(kind.clone(), *text);
    }
    params
}

pub(super) fn pki(c: &Cluster) -> PathBuf {
    c.dir.path().join("data/pki")
}

/// By what a client is known.
#[derive(Clone)]
pub(super) enum Identity {
    Certificate(String, String),
    Token(String),
}

/// One connection, and requests on it one after the other.
pub(super) struct Connection {
    runtime: tokio::runtime::Runtime,
    sender: SendRequest<Full<Bytes>>,
    token: Option<String>,
}

impl Connection {
    pub(super) fn to(c: &Cluster, identity: &Identity) -> Self {
        Self::at(
            c.server.trim_start_matches("https://"),
            &ca_pem(c),
            identity,
        )
    }

    pub(super) fn at(address: &str, ca: &str, identity: &Identity) -> Self {
        let address: SocketAddr = address.parse().unwrap();
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let (config, token) = match identity {
            Identity::Token(token) => (config.with_no_client_auth(), Some(token.clone())),
            Identity::Certificate(certificate, key) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                (config.with_client_auth_cert(chain, key).unwrap(), None)
            }
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let sender = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let tls = tokio_rustls::TlsConnector::from(Arc::new(config));
            let name = ServerName::try_from(address.ip().to_string()).unwrap();
            let stream = tls.connect(name, stream).await.unwrap();
            let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
                .await
                .unwrap();
            tokio::spawn(connection);
            sender
        });
        Self {
            runtime,
            sender,
            token,
        }
    }

    /// Code and body of an answer.
    pub(super) fn send(
        &mut self,
        method: &str,
        path: &str,
        kind: &str,
        body: Option<&Value>,
    ) -> (u16, Value) {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "127.0.0.1")
            .header("accept", JSON)
            .header("content-type", kind);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let body = body.filter(|body| !body.is_null());
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        self.runtime.block_on(async {
            let sent = async {
                self.sender.ready().await?;
                self.sender.send_request(request).await
            };
            let answer = tokio::time::timeout(SOON, sent).await.unwrap().unwrap();
            let code = answer.status().as_u16();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            let text = || json!(String::from_utf8_lossy(&body));
            (
                code,
                serde_json::from_slice(&body).unwrap_or_else(|_| text()),
            )
        })
    }

    pub(super) fn get(&mut self, path: &str) -> (u16, Value) {
        self.send("GET", path, JSON, None)
    }

    pub(super) fn post(&mut self, path: &str, body: &Value) -> (u16, Value) {
        self.send("POST", path, JSON, Some(body))
    }

    /// Creates something that may be created.
    #[track_caller]
    pub(super) fn make(&mut self, path: &str, body: &Value) -> Value {
        let (code, made) = self.post(path, body);
        assert_eq!(code, 201, "{path}: {made}");
        made
    }

    /// Who the server takes this client for; none when it is refused.
    pub(super) fn whoami(&mut self) -> Option<String> {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let (code, answer) =
            self.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review);
        let name = answer["status"]["userInfo"]["username"].as_str();
        (code == 201).then(|| name.unwrap().to_owned())
    }

    #[track_caller]
    pub(super) fn refused(
        &mut self,
        what: &str,
        method: &str,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> String {
        let (code, answer) = self.send(method, path, kind, Some(body));
        assert_eq!(code, 403, "{what}: {method} {path} answered {answer}");
        answer["message"].as_str().unwrap_or_default().to_owned()
    }
}

pub(super) fn ca_pem(c: &Cluster) -> String {
    std::fs::read_to_string(pki(c).join("ca.crt")).unwrap()
}

pub(super) fn admin(c: &Cluster) -> Identity {
    let read = |name: &str| std::fs::read_to_string(pki(c).join(name)).unwrap();
    Identity::Certificate(read("admin.crt"), read("admin.key"))
}

/// A TLS server with a certificate of its own for the address it has, and how many requests it was sent.
pub(super) fn impostor() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let made = rcgen::generate_simple_self_signed(vec![address.ip().to_string()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![made.cert.der().clone()],
            PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes()).unwrap(),
        )
        .unwrap();
    let config = Arc::new(config);
    let heard = Arc::new(AtomicUsize::new(0));
    let count = heard.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let session = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut tls = rustls::StreamOwned::new(session, stream);
            let mut request = [0; 4];
            if std::io::Read::read_exact(&mut tls, &mut request).is_ok() {
                count.fetch_add(1, Ordering::SeqCst);
                let _gone = tls.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
            }
        }
    });
    (address, heard)
}
