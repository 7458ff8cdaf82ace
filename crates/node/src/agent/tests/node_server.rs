//! The node server, called as the API server calls it.

use super::*;
use crate::probes::{HttpRequest, HttpResponse, http_get};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "test-ca");
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    fn client(
        &self,
        name: &str,
        group: &str,
    ) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params
            .distinguished_name
            .push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        (vec![certificate.der().clone()], key)
    }
}

impl Node {
    fn port(&self) -> u16 {
        let node = self.api.get("/api/v1/nodes/n1").unwrap();
        let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
            .as_u64()
            .unwrap();
        u16::try_from(port).unwrap()
    }

    async fn ask(
        &self,
        who: (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>),
        path: &str,
    ) -> HttpResponse {
        self.ask_with(who, path, &[]).await
    }

    async fn ask_with(
        &self,
        who: (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>),
        path: &str,
        headers: &[(String, String)],
    ) -> HttpResponse {
        let served = std::fs::read(self.dir.path().join("kubelet/pki/kubelet.crt")).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(&served).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(who.0, who.1)
            .unwrap();
        let stream = TcpStream::connect(("127.0.0.1", self.port()))
            .await
            .unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let stream = tokio_rustls::TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .unwrap();
        let mut request = self.request(path, false);
        request.headers = headers.to_vec();
        http_get(Box::new(stream), request).await.unwrap()
    }

    fn request(&self, path: &str, https: bool) -> HttpRequest {
        let authority = format!("127.0.0.1:{}", self.port());
        HttpRequest {
            authority,
            path: path.to_owned(),
            https,
            headers: Vec::new(),
            body_limit: 1 << 20,
        }
    }
}

#[tokio::test]
async fn only_those_who_may_are_answered() {
    let authority = Authority::new();
    let mut node = Node::start_with(Some(authority.pem.clone().into_bytes())).await;
    let stream = TcpStream::connect(("127.0.0.1", node.port()))
        .await
        .unwrap();
    let anonymous = http_get(Box::new(stream), node.request("/pods", true))
        .await
        .unwrap();
    assert_eq!(
        (anonymous.status, &anonymous.body[..]),
        (401, b"Unauthorized".as_slice())
    );
    // A certificate of the cluster's CA alone opens nothing: the fake API server answers no review with yes.
    let jane = node.ask(authority.client("jane", "dev"), "/pods").await;
    assert_eq!(jane.status, 403);
    let text = String::from_utf8(jane.body.to_vec()).unwrap();
    assert_eq!(
        text,
        "Forbidden (user=jane, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
    );
    let admin = node
        .ask(
            authority.client("kube-apiserver", "system:masters"),
            "/healthz",
        )
        .await;
    assert_eq!((admin.status, &admin.body[..]), (200, b"ok".as_slice()));
    // A browser shows the certificate whichever page asks, and answers a form with what is executed.
    let elsewhere = [("sec-fetch-site".to_owned(), "cross-site".to_owned())];
    let admin = authority.client("kubernetes-admin", "system:masters");
    let foreign = node.ask_with(admin, "/healthz", &elsewhere).await;
    assert_eq!(foreign.status, 403);
    node.stop().await;
}

/// `authentication.anonymous`, `authorization.mode`: who shows nothing is somebody then, a wrong token stays nobody.
#[tokio::test]
async fn nobody_and_everybody_may_be_let_in() {
    let mut node = Node::start_as(|options| {
        options.access.anonymous = true;
        options.access.authorize = crate::access::Authorize::AlwaysAllow;
    })
    .await;
    let ask = async |headers: &[(&str, &str)]| {
        let stream = TcpStream::connect(("127.0.0.1", node.port()))
            .await
            .unwrap();
        let mut request = node.request("/pods", true);
        let own = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        request.headers.extend(headers.iter().map(own));
        http_get(Box::new(stream), request).await.unwrap().status
    };
    assert_eq!(ask(&[]).await, 200);
    assert_eq!(ask(&[("Authorization", "Bearer wrong")]).await, 401);
    node.stop().await;

    let mut node = Node::start_as(|options| options.access.anonymous = true).await;
    let stream = TcpStream::connect(("127.0.0.1", node.port()))
        .await
        .unwrap();
    let refused = http_get(Box::new(stream), node.request("/pods", true))
        .await
        .unwrap();
    let text = String::from_utf8(refused.body.to_vec()).unwrap();
    assert_eq!(refused.status, 403);
    assert!(text.contains("user=system:anonymous"), "{text}");
    node.stop().await;
}

#[tokio::test]
async fn health_is_told_without_tls() {
    // An address of this process alone, so that the port is free.
    let [.., a, b] = std::process::id().to_be_bytes();
    let address = SocketAddr::from(([127, a | 1, b, 1], 10248));
    let mut node = Node::start_as(move |options| options.healthz = Some(address)).await;
    let ask = async |path: &str| {
        let stream = TcpStream::connect(address).await.unwrap();
        let answer = http_get(Box::new(stream), node.request(path, false))
            .await
            .unwrap();
        (answer.status, answer.body)
    };
    assert_eq!(ask("/healthz").await, (200, "ok".into()));
    assert_eq!(ask("/healthz/syncloop").await, (200, "ok".into()));
    assert_eq!(
        ask("/pods").await.0,
        404,
        "nothing else is told to just anybody"
    );
    node.stop().await;
}

#[tokio::test]
async fn logs_and_pods_are_served() {
    let authority = Authority::new();
    let mut node = Node::start_with(Some(authority.pem.clone().into_bytes())).await;
    let path = node.pod("a", json!({"containers": [container("main", "sleep")]}));
    node.phase(&path, "Running").await;
    let log = node.dir.path().join("log/pods/default_a_uid-a/main/0.log");
    std::fs::write(
        log,
        "2024-01-01T00:00:00Z stdout F one\n2024-01-01T00:00:01Z stderr F two\n",
    )
    .unwrap();
    let ask =
        |path: &'static str| node.ask(authority.client("kube-apiserver", "system:masters"), path);
    let logs = ask("/containerLogs/default/a/main?tailLines=1").await;
    assert_eq!((logs.status, &logs.body[..]), (200, b"two\n".as_slice()));
    let none = ask("/containerLogs/default/a/main?previous=true").await;
    assert_eq!(none.status, 400);
    assert_eq!(
        &none.body[..],
        b"previous terminated container \"main\" in pod \"a\" not found".as_slice()
    );
    assert_eq!(ask("/containerLogs/default/a/other").await.status, 404);
    let pods: Value = serde_json::from_slice(&ask("/pods").await.body).unwrap();
    assert_eq!(pods["items"][0]["status"]["phase"], "Running");
    let metrics = ask("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(metrics.contains("kubelet_running_pods"), "{metrics}");
    // Without an upgrade nothing is run.
    let exec = ask("/exec/default/a/main?command=ls&output=1").await;
    assert_eq!(exec.status, 400);
    node.stop().await;
}

/// The certificates that a connection to the node server shows, if it comes about.
async fn shown(port: u16, authority: &Authority) -> Result<Vec<CertificateDer<'static>>, String> {
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let name = ServerName::try_from("n1").unwrap();
    let connection = tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(|error| error.to_string())?;
    let certificates = connection.get_ref().1.peer_certificates();
    Ok(certificates.unwrap().to_vec())
}

#[tokio::test]
async fn the_certificate_of_the_node_server_is_asked_for_and_served_once_it_is_approved() {
    const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let mut node = Node::start_as(|options| options.server_tls_bootstrap = true).await;
    let authority = Authority::new();
    let api = node.api.clone();
    let request = wait("a request", || api.list(REQUESTS).pop()).await;
    assert_eq!(
        request["spec"]["signerName"],
        "kubernetes.io/kubelet-serving"
    );
    assert_eq!(
        request["spec"]["usages"],
        json!(["digital signature", "server auth"])
    );
    shown(node.port(), &authority).await.unwrap_err();
    assert!(!node.dir.path().join("kubelet/pki/kubelet.crt").exists());

    let text: k8s_openapi::ByteString =
        serde_json::from_value(request["spec"]["request"].clone()).unwrap();
    let text = String::from_utf8(text.0).unwrap();
    let asked = rcgen::CertificateSigningRequestParams::from_pem(&text).unwrap();
    let names = &asked.params.subject_alt_names;
    assert!(
        names
            .iter()
            .any(|name| matches!(name, rcgen::SanType::IpAddress(_))),
        "{names:?}"
    );
    let certificate = asked.signed_by(&authority.issuer).unwrap();
    let mut signed = request.clone();
    let pem = k8s_openapi::ByteString(certificate.pem().into_bytes());
    signed["status"]["certificate"] = serde_json::to_value(pem).unwrap();
    let name = request["metadata"]["name"].as_str().unwrap();
    api.put(&format!("{REQUESTS}/{name}"), signed);
    let end = Instant::now() + Duration::from_secs(30);
    let served = loop {
        match shown(node.port(), &authority).await {
            Ok(served) => break served,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(served[0], *certificate.der());

    // after a restart it is served at once, and nothing is asked for
    node.stop().await;
    node.run();
    let end = Instant::now() + Duration::from_secs(30);
    while Instant::now() < end {
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", node.port())).await {
            drop(stream);
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(
        shown(node.port(), &authority).await.unwrap()[0],
        *certificate.der()
    );
    assert_eq!(api.list(REQUESTS).len(), 1);
    node.stop().await;
}
