//! How a machine that has only a bootstrap token finds out whom it talks to: it reads the ConfigMap
//! `kube-public/cluster-info` of whoever answers, believes it when the token has signed it and the authority in it has the
//! key that it was told, and reads it again from a server that this authority vouches for.
//! <https://kubernetes.io/docs/reference/setup-tools/kubeadm/kubeadm-join/#discovering-what-cluster-ca-to-trust>

use crate::bootstrap_token::{BootstrapToken, SIGNATURE_PREFIX};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use kube::config::{Cluster, KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::str::FromStr;
use std::time::Duration;
use tokio::time::Instant;
use x509_parser::pem::Pem;

const CLUSTER_INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
/// How much a stranger may answer.
const LIMIT: usize = 1 << 20;
/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(10);
/// How long the server is tried that does not answer.
const WAIT: Duration = Duration::from_secs(5 * 60);
/// How long the signature may take: a token that was just made is signed a moment later.
const SIGNED: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_secs(1);
/// Names in the kubeconfig, as kubeadm's.
const CLUSTER: &str = "kubernetes";
const USER: &str = "tls-bootstrap-token-user";

/// The SHA-256 hash of a public key, as certificates hold it (SubjectPublicKeyInfo): `sha256:` and 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyHash([u8; 32]);

impl FromStr for KeyHash {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("{text:?} is not `sha256:` and 64 hexadecimal digits");
        let digits = match text.split_once(':') {
            Some((format, digits)) if format.eq_ignore_ascii_case("sha256") => digits,
            _ => return Err(wrong()),
        };
        let mut hash = [0; 32];
        if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        for (byte, at) in hash.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(hash))
    }
}

impl std::fmt::Display for KeyHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut digits = String::with_capacity(64);
        for byte in self.0 {
            // writing to a String cannot fail
            let _ = write!(digits, "{byte:02x}");
        }
        write!(f, "sha256:{digits}")
    }
}

impl KeyHash {
    /// The hashes of the keys of all certificates in a PEM text; none where one cannot be read.
    pub fn of_certificates(pem: &[u8]) -> Option<Vec<Self>> {
        let mut hashes = Vec::new();
        for block in Pem::iter_from_buffer(pem) {
            hashes.push(Self::of(&block.ok()?)?);
        }
        Some(hashes)
    }

    /// That of the key of a certificate.
    fn of(block: &Pem) -> Option<Self> {
        let certificate = block.parse_x509().ok()?;
        Some(Self(Sha256::digest(certificate.public_key().raw).into()))
    }
}

/// Why a cluster is not believed, or not found.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// Nothing at that address, or nothing that answers with the ConfigMap.
    #[error("no cluster-info from {endpoint}: {why}")]
    NoAnswer {
        /// `host:port`
        endpoint: String,
        /// The last thing that went wrong.
        why: String,
    },
    /// The token is unknown there, or over.
    #[error(
        "token id {0:?} is invalid for this cluster or it has expired. Use \"davit token create\" on the cluster to create a new valid token"
    )]
    Unsigned(String),
    /// Somebody else has signed.
    #[error(
        "failed to verify JWS signature of received cluster info object, can't trust this API Server"
    )]
    Signature,
    /// The authority is another one.
    #[error(
        "cluster CA found in cluster-info ConfigMap is invalid: none of the public keys {0:?} are pinned"
    )]
    Unpinned(String),
    /// Two answers.
    #[error(
        "the second kubeconfig from the cluster-info ConfigMap (using validated TLS) was different from the first"
    )]
    Changed,
    /// It cannot be used.
    #[error("malformed kubeconfig in the cluster-info ConfigMap: {0}")]
    Malformed(&'static str),
}

/// Where a cluster is said to be, and how it proves to be the right one.
#[derive(Debug, Clone)]
pub struct Discovery {
    /// `host:port`
    pub endpoint: String,
    /// The token that has signed what the cluster says of itself.
    pub token: BootstrapToken,
    /// The keys of which the cluster's authority has one; any key will do where there are none.
    pub hashes: Vec<KeyHash>,
}

impl Discovery {
    /// Finds the cluster, within five minutes where it does not answer. A kubeconfig with its address, its authority and
    /// the token as credentials.
    ///
    /// # Errors
    /// It does not answer, or is not believed.
    pub async fn run(&self) -> Result<Kubeconfig, DiscoveryError> {
        // Whoever answers: nothing is sent there but this question.
        let mut config = kube::Config::new(self.url()?);
        config.accept_invalid_certs = true;
        let found = self.judged(&self.ask(config).await?)?;
        let cluster = cluster(&found)?;
        let authority = cluster.certificate_authority_data.as_deref();
        let authority = authority.ok_or(DiscoveryError::Malformed("it names no authority"))?;
        let pem = STANDARD.decode(authority);
        let pem = pem.map_err(|_| DiscoveryError::Malformed("its authority is not base64"))?;
        let pinned = self.pinned(&pem)?;
        // Once more, from a server of the authority whose key was told: whoever knows the token can put one of its own beside it.
        let here = Cluster {
            server: Some(format!("https://{}", self.endpoint)),
            certificate_authority_data: Some(STANDARD.encode(pinned)),
            ..Cluster::default()
        };
        let config = kubeconfig(&here, &json!({}))?;
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(config, &options).await;
        let config = config.map_err(|error| self.no_answer(error))?;
        if self.judged(&self.ask(config).await?)? != found {
            return Err(DiscoveryError::Changed);
        }
        kubeconfig(&cluster, &json!({ "token": self.token.reveal() }))
    }

    fn url(&self) -> Result<http::Uri, DiscoveryError> {
        let url = format!("https://{}", self.endpoint).parse::<http::Uri>();
        url.map_err(|error| self.no_answer(error))
    }

    fn no_answer(&self, why: impl std::fmt::Display) -> DiscoveryError {
        DiscoveryError::NoAnswer {
            endpoint: self.endpoint.clone(),
            why: why.to_string(),
        }
    }

    /// The data of the ConfigMap, once the token has signed it, or as it is where that takes too long.
    async fn ask(&self, mut config: kube::Config) -> Result<Value, DiscoveryError> {
        config.connect_timeout = Some(ANSWER);
        let client = kube::Client::try_from(config).map_err(|error| self.no_answer(error))?;
        let begun = Instant::now();
        let mut unsigned_since = None;
        loop {
            let why = match tokio::time::timeout(ANSWER, read(&client)).await {
                Ok(Ok(data)) if data.get(self.signature_key()).is_some() => return Ok(data),
                Ok(Ok(data)) => {
                    let since = *unsigned_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= SIGNED {
                        return Ok(data);
                    }
                    "it is not signed yet".to_owned()
                }
                Ok(Err(why)) => why,
                Err(_) => format!("no answer within {} s", ANSWER.as_secs()),
            };
            if begun.elapsed() >= WAIT {
                return Err(self.no_answer(why));
            }
            tracing::info!(endpoint = self.endpoint, why, "looking for the cluster");
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn signature_key(&self) -> String {
        format!("{SIGNATURE_PREFIX}{}", self.token.id())
    }

    /// The kubeconfig of the ConfigMap, if the token has signed it.
    fn judged(&self, data: &Value) -> Result<String, DiscoveryError> {
        let text = data["kubeconfig"].as_str().filter(|text| !text.is_empty());
        let text = text.ok_or(DiscoveryError::Malformed(
            "there is none. This API Server isn't set up for token bootstrapping, can't connect",
        ))?;
        let signature = data[self.signature_key()].as_str().unwrap_or_default();
        if signature.is_empty() {
            return Err(DiscoveryError::Unsigned(self.token.id().to_owned()));
        }
        if !self.token.has_signed(text, signature) {
            return Err(DiscoveryError::Signature);
        }
        Ok(text.to_owned())
    }

    /// The certificates of an authority whose keys were told: all, where none was.
    fn pinned(&self, authority: &[u8]) -> Result<String, DiscoveryError> {
        let unreadable = DiscoveryError::Malformed("its authority cannot be read");
        let (mut pinned, mut others) = (String::new(), Vec::new());
        for block in Pem::iter_from_buffer(authority) {
            let Ok(block) = block else {
                return Err(unreadable);
            };
            let hash = KeyHash::of(&block)
                .ok_or(DiscoveryError::Malformed("its authority cannot be read"))?;
            if self.hashes.is_empty() || self.hashes.contains(&hash) {
                let text = STANDARD.encode(&block.contents);
                pinned.push_str(&format!(
                    "-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"
                ));
            } else {
                others.push(hash.to_string());
            }
        }
        match (pinned.is_empty(), others.is_empty()) {
            (false, _) => Ok(pinned),
            (true, true) => Err(unreadable),
            (true, false) => Err(DiscoveryError::Unpinned(others.join(":"))),
        }
    }
}

/// The data of the ConfigMap.
async fn read(client: &kube::Client) -> Result<Value, String> {
    let request = http::Request::get(CLUSTER_INFO).body(Body::empty());
    let request = request.map_err(|error| error.to_string())?;
    let answer = client.send(request).await;
    let answer = answer.map_err(|error| causes(&error))?;
    if !answer.status().is_success() {
        return Err(format!("it answers {}", answer.status()));
    }
    let body = Limited::new(answer.into_body(), LIMIT).collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    let mut map: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
    Ok(map["data"].take())
}

/// An error with what caused it.
fn causes(error: &kube::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        let said = source.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = source.source();
    }
    text
}

/// The one cluster of a kubeconfig: what else stands there counts for nothing.
fn cluster(kubeconfig: &str) -> Result<Cluster, DiscoveryError> {
    let read = Kubeconfig::from_yaml(kubeconfig);
    let read = read.map_err(|_| DiscoveryError::Malformed("it cannot be read"))?;
    let [named] = &read.clusters[..] else {
        return Err(DiscoveryError::Malformed("it does not name one cluster"));
    };
    let cluster = named.cluster.as_ref();
    let cluster = cluster.filter(|cluster| {
        cluster
            .server
            .as_deref()
            .is_some_and(|server| server.starts_with("https://"))
    });
    let cluster = cluster.ok_or(DiscoveryError::Malformed("it names no https server"))?;
    Ok(Cluster {
        server: cluster.server.clone(),
        certificate_authority_data: cluster.certificate_authority_data.clone(),
        tls_server_name: cluster.tls_server_name.clone(),
        ..Cluster::default()
    })
}

/// A kubeconfig for the cluster with these credentials.
fn kubeconfig(cluster: &Cluster, user: &Value) -> Result<Kubeconfig, DiscoveryError> {
    serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": CLUSTER, "cluster": cluster }],
        "users": [{ "name": USER, "user": user }],
        "contexts": [{ "name": CLUSTER, "context": { "cluster": CLUSTER, "user": USER } }],
        "current-context": CLUSTER,
    }))
    .map_err(|_| DiscoveryError::Malformed("it cannot be used"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, PublicKeyData};

    fn discovery(hashes: Vec<KeyHash>) -> Discovery {
        Discovery {
            endpoint: "192.0.2.1:6443".to_owned(),
            token: "abcdef.0123456789abcdef".parse().unwrap(),
            hashes,
        }
    }

    #[test]
    fn hashes_are_of_the_public_key() {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::default().self_signed(&key).unwrap();
        let hashes = KeyHash::of_certificates(certificate.pem().as_bytes()).unwrap();
        let hash = KeyHash(Sha256::digest(key.subject_public_key_info()).into());
        assert_eq!(hashes, [hash]);
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_eq!(hash.to_string().to_uppercase().parse(), Ok(hash));
        for wrong in ["", "sha256:", "sha256:00", "md5:00", "sha256:é"] {
            assert!(wrong.parse::<KeyHash>().is_err(), "{wrong}");
        }
        assert!(
            discovery(Vec::new())
                .pinned(certificate.pem().as_bytes())
                .is_ok()
        );
        assert!(
            discovery(vec![hash])
                .pinned(certificate.pem().as_bytes())
                .is_ok()
        );
        let error = discovery(vec![KeyHash([0; 32])]).pinned(certificate.pem().as_bytes());
        let said = error.unwrap_err().to_string();
        assert!(
            said.ends_with(&format!("none of the public keys \"{hash}\" are pinned")),
            "{said}"
        );
        assert!(discovery(Vec::new()).pinned(b"").is_err());
        // an authority of somebody's own beside the one that was told
        let other = CertificateParams::default().self_signed(&KeyPair::generate().unwrap());
        let both = [other.unwrap().pem(), certificate.pem()].concat();
        let pinned = discovery(vec![hash]).pinned(both.as_bytes()).unwrap();
        assert_eq!(KeyHash::of_certificates(pinned.as_bytes()).unwrap(), [hash]);
        let all = discovery(Vec::new()).pinned(both.as_bytes()).unwrap();
        assert_eq!(KeyHash::of_certificates(all.as_bytes()).unwrap().len(), 2);
    }

    #[test]
    fn only_what_the_token_has_signed_is_believed() {
        let discovery = discovery(Vec::new());
        let with =
            |signature: &str| json!({ "kubeconfig": "k", "jws-kubeconfig-abcdef": signature });
        let good = discovery.token.sign("k");
        assert_eq!(discovery.judged(&with(&good)).unwrap(), "k");
        let refused = |data| discovery.judged(&data).unwrap_err();
        assert!(matches!(refused(with("")), DiscoveryError::Unsigned(_)));
        assert!(matches!(
            refused(json!({ "kubeconfig": "k" })),
            DiscoveryError::Unsigned(_)
        ));
        assert!(matches!(
            refused(with(&discovery.token.sign("l"))),
            DiscoveryError::Signature
        ));
        assert!(matches!(refused(json!({})), DiscoveryError::Malformed(_)));
    }

    #[test]
    fn of_the_kubeconfig_only_address_and_authority_count() {
        let found = cluster(
            "clusters: [{name: '', cluster: {server: 'https://h:1', certificate-authority-data: QQ==, \
             insecure-skip-tls-verify: true, proxy-url: 'http://p'}}]\nusers: null\ncontexts: null\n",
        )
        .unwrap();
        let made = kubeconfig(&found, &json!({ "token": "t" })).unwrap();
        let text = serde_json::to_string(&made).unwrap();
        assert!(
            text.contains("https://h:1") && text.contains("QQ=="),
            "{text}"
        );
        assert!(
            !text.contains("insecure") && !text.contains("proxy"),
            "{text}"
        );
        for wrong in [
            "",
            "clusters: []",
            "clusters: [{name: '', cluster: {server: 'http://h'}}]",
        ] {
            assert!(cluster(wrong).is_err(), "{wrong}");
        }
    }
}
