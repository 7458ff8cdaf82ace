//! The node's certificate: asked for with a bootstrap token, and renewed before it ends, as the kubelet does
//! (<https://kubernetes.io/docs/reference/access-authn-authz/kubelet-tls-bootstrapping/>).

use crate::args::Node;
use anyhow::{Context, Result, bail};
use davit_client::Rotation;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::config::Kubeconfig;
use rcgen::{CertificateParams, DnType, KeyPair, PublicKeyData};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use x509_parser::pem::Pem;

const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Certificate and key, as the kubelet's file.
const CURRENT: &str = "kubelet-client-current.pem";
/// The key of a request that is under way: after a restart the same request is waited for.
const PENDING_KEY: &str = "kubelet-client.key.tmp";
/// How often the request is looked at, and how long it is waited for.
const POLL: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(15 * 60);
/// Between tries to renew.
const RETRY: Duration = Duration::from_secs(60);
/// The part of its life after which a certificate is renewed.
const RENEW_AFTER: f64 = 0.8;

/// Reaches the API server as the node `name`: with the kubeconfig, or first with the bootstrap kubeconfig to get a
/// certificate. With rotation the certificate is renewed until `cancel`.
pub(crate) struct Identity {
    pub(crate) client: kube::Client,
    rotation: Option<Renewal>,
}

struct Renewal {
    rotation: Rotation,
    kubeconfig: PathBuf,
    dir: PathBuf,
    name: String,
}

impl Identity {
    /// As whom the node agent works.
    pub(crate) async fn new(args: &Node, data_dir: &Path, name: &str) -> Result<Self> {
        let dir = data_dir.join("node-pki");
        if let Some(bootstrap) = &args.bootstrap_kubeconfig
            && !is_usable(&args.kubeconfig, &dir)
        {
            let client = davit_client::from_kubeconfig(bootstrap).await?;
            let pem = requested(&client, &dir, name).await?;
            write_private(&dir.join(CURRENT), &pem)?;
            write_kubeconfig(bootstrap, &args.kubeconfig, &dir.join(CURRENT))?;
            tracing::info!(node = name, "the node has got its certificate");
        }
        let client = davit_client::from_kubeconfig(&args.kubeconfig).await?;
        if !args.rotate_certificates || !dir.join(CURRENT).exists() {
            return Ok(Self {
                client,
                rotation: None,
            });
        }
        let (client, rotation) = davit_client::rotating(client);
        Ok(Self {
            client,
            rotation: Some(Renewal {
                rotation,
                kubeconfig: args.kubeconfig.clone(),
                dir,
                name: name.to_owned(),
            }),
        })
    }

    /// Renews the certificate in time until `cancel`.
    pub(crate) async fn attend(self, cancel: CancellationToken) {
        let Some(renewal) = self.rotation else { return };
        loop {
            let pause = renewal.due_in().unwrap_or(RETRY);
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            let renewed = tokio::select! {
                () = cancel.cancelled() => return,
                renewed = renewal.renew(&self.client) => renewed,
            };
            if let Err(error) = renewed {
                tracing::error!(
                    error = format!("{error:#}"),
                    "renewing the node's certificate"
                );
                tokio::select! {
                    () = cancel.cancelled() => return,
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
        }
    }
}

impl Renewal {
    fn due_in(&self) -> Option<Duration> {
        let pem = std::fs::read(self.dir.join(CURRENT)).ok()?;
        let (from, until) = validity(&pem)?;
        Some(until_renewal(from, until, Timestamp::now().as_second()))
    }

    async fn renew(&self, client: &kube::Client) -> Result<()> {
        let pem = requested(client, &self.dir, &self.name).await?;
        write_private(&self.dir.join(CURRENT), &pem)?;
        let next = davit_client::from_kubeconfig(&self.kubeconfig).await?;
        self.rotation.replace(next);
        tracing::info!(node = self.name, "the node's certificate was renewed");
        Ok(())
    }
}

/// How long until a certificate is to be renewed; all in seconds since 1970.
fn until_renewal(from: i64, until: i64, now: i64) -> Duration {
    let life = (until - from).max(0) as f64;
    let at = from + (life * RENEW_AFTER) as i64;
    Duration::from_secs(u64::try_from(at - now).unwrap_or(0))
}

/// From when until when the first certificate of a PEM text is good.
fn validity(pem: &[u8]) -> Option<(i64, i64)> {
    let block = Pem::iter_from_buffer(pem)
        .flatten()
        .find(|b| b.label == "CERTIFICATE")?;
    let certificate = block.parse_x509().ok()?;
    let validity = certificate.validity();
    Some((
        validity.not_before.timestamp(),
        validity.not_after.timestamp(),
    ))
}

/// Whether there is a kubeconfig, and a certificate from before that is still good or none is its own.
fn is_usable(kubeconfig: &Path, dir: &Path) -> bool {
    if !kubeconfig.exists() {
        return false;
    }
    let Ok(pem) = std::fs::read(dir.join(CURRENT)) else {
        // it is somebody's own
        return true;
    };
    validity(&pem).is_some_and(|(_, until)| until > Timestamp::now().as_second())
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    let what = || format!("file {}", path.display());
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).with_context(what)?;
    }
    let new = path.with_extension("new");
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = file.open(&new).with_context(what)?;
    file.write_all(text.as_bytes()).with_context(what)?;
    file.sync_all().with_context(what)?;
    std::fs::rename(&new, path).with_context(what)
}

/// A kubeconfig for the bootstrap kubeconfig's cluster with the certificate's file as identity.
fn write_kubeconfig(bootstrap: &Path, kubeconfig: &Path, identity: &Path) -> Result<()> {
    let unusable = || format!("kubeconfig {}", bootstrap.display());
    let mut config = Kubeconfig::read_from(bootstrap).with_context(unusable)?;
    let identity = std::path::absolute(identity).context("certificate")?;
    let identity = identity.to_string_lossy().into_owned();
    let wanted = config.current_context.clone().unwrap_or_default();
    let context = config.contexts.iter_mut().find(|c| c.name == wanted);
    let context = context.and_then(|c| c.context.as_mut());
    let context = context.with_context(unusable)?;
    context.user = Some(USER.to_owned());
    let user = serde_json::from_value(serde_json::json!({
        "name": USER,
        "user": { "client-certificate": identity, "client-key": identity },
    }));
    config.auth_infos = vec![user.context("kubeconfig")?];
    let text = serde_json::to_string_pretty(&config).context("kubeconfig")?;
    write_private(kubeconfig, &text)
}

const USER: &str = "default-auth";

/// Asks for a certificate and waits for it; certificate and key in PEM.
async fn requested(client: &kube::Client, dir: &Path, name: &str) -> Result<String> {
    let key_file = dir.join(PENDING_KEY);
    let key = match std::fs::read_to_string(&key_file) {
        Ok(pem) => KeyPair::from_pem(&pem).context("pending key")?,
        Err(_) => {
            let key = KeyPair::generate().context("key")?;
            write_private(&key_file, &key.serialize_pem())?;
            key
        }
    };
    let request = request_of(&key, name)?;
    let api: kube::Api<CertificateSigningRequest> = kube::Api::all(client.clone());
    let request_name = request.metadata.name.clone().unwrap_or_default();
    match api.create(&PostParams::default(), &request).await {
        Ok(_) => tracing::info!(request_name, "a certificate was asked for"),
        // asked for before a restart
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
        Err(error) => return Err(error).context("asking for a certificate"),
    }
    let certificate = tokio::time::timeout(WAIT, decided(&api, &request_name)).await;
    let forget = || std::fs::remove_file(&key_file).context("pending key");
    let certificate = match certificate {
        Ok(Ok(certificate)) => certificate,
        Ok(Err(error)) => {
            forget()?;
            return Err(error);
        }
        Err(_) => {
            forget()?;
            bail!("certificate request {request_name} was not decided within {WAIT:?}");
        }
    };
    forget()?;
    Ok(format!(
        "{}\n{}",
        certificate.trim_end(),
        key.serialize_pem()
    ))
}

fn request_of(key: &KeyPair, name: &str) -> Result<CertificateSigningRequest> {
    let mut params = CertificateParams::default();
    let subject = &mut params.distinguished_name;
    subject.push(DnType::OrganizationName, "system:nodes");
    subject.push(DnType::CommonName, format!("system:node:{name}"));
    let pem = params
        .serialize_request(key)
        .context("certificate request")?;
    let pem = pem.pem().context("certificate request")?;
    let mut digest = String::new();
    for byte in Sha256::digest(key.der_bytes()) {
        // writing to a String cannot fail
        let _ = write!(digest, "{byte:02x}");
    }
    let mut request = CertificateSigningRequest {
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: SIGNER.to_owned(),
            usages: Some(vec![
                "digital signature".to_owned(),
                "client auth".to_owned(),
            ]),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    };
    request.metadata.name = Some(format!("node-csr-{digest}"));
    Ok(request)
}

/// The certificate of a request, when it is there.
async fn decided(api: &kube::Api<CertificateSigningRequest>, name: &str) -> Result<String> {
    loop {
        match api.get(name).await {
            Ok(request) => {
                let status = request.status.unwrap_or_default();
                let conditions = status.conditions.unwrap_or_default();
                let refused = conditions
                    .iter()
                    .find(|c| matches!(&*c.type_, "Denied" | "Failed"));
                if let Some(condition) = refused {
                    let why = condition.message.clone().unwrap_or_default();
                    bail!("certificate request {name} is {}: {why}", condition.type_);
                }
                if let Some(certificate) = status.certificate.filter(|c| !c.0.is_empty()) {
                    return String::from_utf8(certificate.0).context("certificate");
                }
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                bail!("certificate request {name} was deleted");
            }
            Err(error) => tracing::warn!(%error, name, "looking for the node's certificate"),
        }
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_renewed_before_they_end() {
        assert_eq!(until_renewal(0, 1000, 0), Duration::from_secs(800));
        assert_eq!(until_renewal(0, 1000, 790), Duration::from_secs(10));
        assert_eq!(until_renewal(0, 1000, 2000), Duration::ZERO);
    }

    #[test]
    fn a_request_names_the_node_and_is_the_same_for_a_key() {
        let key = KeyPair::generate().unwrap();
        let (first, second) = (
            request_of(&key, "n").unwrap(),
            request_of(&key, "n").unwrap(),
        );
        assert_eq!(first.metadata.name, second.metadata.name);
        assert!(first.metadata.name.unwrap().starts_with("node-csr-"));
        assert!(
            first
                .spec
                .request
                .0
                .starts_with(b"-----BEGIN CERTIFICATE REQUEST")
        );
    }

    #[test]
    fn the_kubeconfig_has_the_clusters_address_and_the_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let (bootstrap, kubeconfig) = (dir.path().join("b"), dir.path().join("k"));
        std::fs::write(
            &bootstrap,
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{name: x, cluster: {server: 'https://1.2.3.4'}}]\n\
             contexts: [{name: c, context: {cluster: x, user: u}}]\n\
             users: [{name: u, user: {token: t}}]\n",
        )
        .unwrap();
        assert!(!is_usable(&kubeconfig, dir.path()));
        write_kubeconfig(&bootstrap, &kubeconfig, Path::new("/pki/c.pem")).unwrap();
        let read = Kubeconfig::read_from(&kubeconfig).unwrap();
        let user = read.auth_infos[0].auth_info.as_ref().unwrap();
        assert_eq!(user.client_certificate.as_deref(), Some("/pki/c.pem"));
        assert!(user.token.is_none());
        assert!(is_usable(&kubeconfig, dir.path()));
    }
}
