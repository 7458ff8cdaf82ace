//! Certificates by CertificateSigningRequest: asked for, waited for, and how long they are good.
//! <https://kubernetes.io/docs/reference/access-authn-authz/certificate-signing-requests/>

use crate::subject::Subject;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use kube::api::PostParams;
use rcgen::{CertificateParams, DnType, KeyPair, PublicKeyData, SanType};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;

/// How often a request is looked at, and how long it is waited for.
const POLL: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(15 * 60);
/// How long a signer may take for a request that is approved.
const SIGNED: Duration = Duration::from_secs(30);
/// The part of its life after which a certificate is renewed: between these, so that a fleet of nodes does not ask at once.
const RENEW_AFTER: (f64, f64) = (0.7, 0.9);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The key or the request could not be made.
    #[error("cannot make a certificate request")]
    Generate(#[from] rcgen::Error),
    /// A file.
    #[error("file {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: std::io::Error,
    },
    /// The API server did not take the request.
    #[error("asking for a certificate: {source}")]
    Create {
        /// What it said.
        source: Box<kube::Error>,
    },
    /// Whoever asked may not approve.
    #[error("approving certificate request {name}: {source}")]
    Approve {
        /// The request.
        name: String,
        /// What the API server said.
        source: Box<kube::Error>,
    },
    /// The request was denied, or its signer failed.
    #[error("certificate request {name} is {condition}: {message}")]
    Refused {
        /// The request.
        name: String,
        /// `Denied` or `Failed`.
        condition: String,
        /// Why.
        message: String,
    },
    /// Somebody has deleted the request.
    #[error("certificate request {0} was deleted")]
    Gone(String),
    /// Nobody decided.
    #[error("certificate request {0} was not decided within {WAIT:?}")]
    Undecided(String),
    /// Nobody signs.
    #[error("certificate request {0} was approved, but not signed within {SIGNED:?}")]
    Unsigned(String),
    /// What was issued is no PEM text.
    #[error("the certificate of request {0} is no text")]
    Malformed(String),
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRequest {
    /// Who is to sign.
    pub signer: &'static str,
    /// Key usages, in the words of the API.
    pub usages: &'static [&'static str],
    /// The subject.
    pub common_name: String,
    /// The subject's organizations.
    pub organizations: Vec<String>,
    /// DNS names of a server.
    pub dns_names: Vec<String>,
    /// Addresses of a server.
    pub ip_addresses: Vec<IpAddr>,
}

impl CertificateRequest {
    /// Asks for the certificate and waits until it is there; certificate and key in PEM, one after the other. The key
    /// of the request is kept in the file `pending` as long, so that after a restart the same request is waited for.
    ///
    /// # Errors
    /// When it is refused, or not decided within 15 minutes.
    pub async fn obtain(
        &self,
        client: &kube::Client,
        pending: &Path,
    ) -> Result<String, CertificateError> {
        let key = pending_key(pending)?;
        let api: kube::Api<CertificateSigningRequest> = kube::Api::all(client.clone());
        let name = self.ask(&api, &key).await?;
        let decided = tokio::time::timeout(WAIT, decided(&api, &name)).await;
        std::fs::remove_file(pending).map_err(|source| file_error(pending, source))?;
        let certificate = decided.map_err(|_| CertificateError::Undecided(name))??;
        Ok(with_key(&certificate, &key))
    }

    /// As [`obtain`](Self::obtain) with a key of the moment, by somebody who may approve the request, and does.
    ///
    /// # Errors
    /// When it may not be made or approved, or is not signed within 30 seconds.
    pub async fn obtain_approved(&self, client: &kube::Client) -> Result<String, CertificateError> {
        let key = KeyPair::generate()?;
        let api: kube::Api<CertificateSigningRequest> = kube::Api::all(client.clone());
        let name = self.ask(&api, &key).await?;
        let approval = serde_json::json!({ "status": { "conditions": [{
            "type": "Approved", "status": "True", "reason": "OwnRequest",
            "message": "approved by whoever made it",
        }] } });
        let params = kube::api::PatchParams::default();
        let approval = kube::api::Patch::Merge(approval);
        let approved = api.patch_approval(&name, &params, &approval);
        approved.await.map_err(|source| CertificateError::Approve {
            name: name.clone(),
            source: Box::new(source),
        })?;
        let decided = tokio::time::timeout(SIGNED, decided(&api, &name)).await;
        let certificate = decided.map_err(|_| CertificateError::Unsigned(name))??;
        Ok(with_key(&certificate, &key))
    }

    /// Makes the request; answers with its name.
    async fn ask(
        &self,
        api: &kube::Api<CertificateSigningRequest>,
        key: &KeyPair,
    ) -> Result<String, CertificateError> {
        let request = self.object(key)?;
        let name = request.metadata.name.clone().unwrap_or_default();
        match api.create(&PostParams::default(), &request).await {
            Ok(_) => tracing::info!(name, signer = self.signer, "a certificate was asked for"),
            // asked for before a restart
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
            Err(source) => {
                return Err(CertificateError::Create {
                    source: Box::new(source),
                });
            }
        }
        Ok(name)
    }

    /// The request object, named after the key and what is asked for.
    fn object(&self, key: &KeyPair) -> Result<CertificateSigningRequest, CertificateError> {
        let mut params = CertificateParams::new(self.dns_names.clone())?;
        let ips = self.ip_addresses.iter().map(|ip| SanType::IpAddress(*ip));
        params.subject_alt_names.extend(ips);
        params.distinguished_name = rcgen::DistinguishedName::new();
        let subject = &mut params.distinguished_name;
        for organization in &self.organizations {
            subject.push(DnType::OrganizationName, organization);
        }
        subject.push(DnType::CommonName, &self.common_name);
        let pem = params.serialize_request(key)?.pem()?;
        let mut hash = Sha256::new();
        hash.update(key.der_bytes());
        hash.update(format!("{self:?}"));
        let mut digest = String::new();
        for byte in hash.finalize() {
            // writing to a String cannot fail
            let _ = write!(digest, "{byte:02x}");
        }
        let usages = self.usages.iter().map(|usage| (*usage).to_owned());
        let mut request = CertificateSigningRequest {
            spec: CertificateSigningRequestSpec {
                request: ByteString(pem.into_bytes()),
                signer_name: self.signer.to_owned(),
                usages: Some(usages.collect()),
                ..CertificateSigningRequestSpec::default()
            },
            ..CertificateSigningRequest::default()
        };
        request.metadata.name = Some(format!("node-csr-{digest}"));
        Ok(request)
    }

    /// Whether a certificate is for this subject and at least these names.
    pub fn is_met_by(&self, certificate: &Issued) -> bool {
        let has = |list: &[String], wanted: &[String]| wanted.iter().all(|w| list.contains(w));
        certificate.common_name == self.common_name
            && has(&certificate.organizations, &self.organizations)
            && has(&certificate.dns_names, &self.dns_names)
            && self
                .ip_addresses
                .iter()
                .all(|ip| certificate.ip_addresses.contains(ip))
    }
}

/// What a certificate says.
#[derive(Debug, Clone, PartialEq)]
pub struct Issued {
    /// From when it is good, in seconds since 1970.
    pub not_before: i64,
    /// Until when.
    pub not_after: i64,
    /// The subject.
    pub common_name: String,
    /// The subject's organizations.
    pub organizations: Vec<String>,
    /// DNS names of a server.
    pub dns_names: Vec<String>,
    /// Addresses of a server.
    pub ip_addresses: Vec<IpAddr>,
    /// Between 0 and 1, of its own.
    spread: f64,
}

impl Issued {
    /// Reads the first certificate of a PEM text.
    pub fn read(pem: &[u8]) -> Option<Self> {
        let block = Pem::iter_from_buffer(pem)
            .flatten()
            .find(|block| block.label == "CERTIFICATE")?;
        let certificate = block.parse_x509().ok()?;
        let subject = Subject::of(certificate.subject()).ok()?;
        let (mut dns_names, mut ip_addresses) = (Vec::new(), Vec::new());
        let names = certificate.subject_alternative_name().ok().flatten();
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::DNSName(name) => dns_names.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => ip_addresses.extend(address(bytes)),
                _ => {}
            }
        }
        let digest = Sha256::digest(&block.contents);
        Some(Self {
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
            common_name: subject.common_name,
            organizations: subject.organizations,
            dns_names,
            ip_addresses,
            spread: f64::from(digest[0]) / 255.0,
        })
    }

    /// When it is to be renewed, by the machine's clock.
    pub fn renewal(&self) -> SystemTime {
        let life = (self.not_after - self.not_before).max(0) as f64;
        let (first, last) = RENEW_AFTER;
        let part = first + (last - first) * self.spread;
        let at = self.not_before + (life * part) as i64;
        UNIX_EPOCH + Duration::from_secs(u64::try_from(at).unwrap_or(0))
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

/// Writes a file that only its owner may read, all of it or nothing.
///
/// # Errors
/// [`CertificateError::File`].
pub fn write_private(path: &Path, text: &str) -> Result<(), CertificateError> {
    let write = || {
        if let Some(dir) = path.parent() {
            make_dir(dir)?;
        }
        Ok(davit_beneath::write_private(path, text.as_bytes())?)
    };
    write().map_err(|source| file_error(path, source))
}

/// The directory may be one that others use, too; only one that is made here is closed to them.
fn make_dir(dir: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
}

fn file_error(path: &Path, source: std::io::Error) -> CertificateError {
    CertificateError::File {
        path: path.to_owned(),
        source,
    }
}

/// The key of a request that was under way at the last end, or a new one.
fn pending_key(path: &Path) -> Result<KeyPair, CertificateError> {
    let held = std::fs::read_to_string(path).ok();
    if let Some(key) = held.and_then(|pem| KeyPair::from_pem(&pem).ok()) {
        return Ok(key);
    }
    let key = KeyPair::generate()?;
    write_private(path, &key.serialize_pem())?;
    Ok(key)
}

fn with_key(certificate: &str, key: &KeyPair) -> String {
    format!("{}\n{}", certificate.trim_end(), key.serialize_pem())
}

/// The certificate of a request, when it is there.
async fn decided(
    api: &kube::Api<CertificateSigningRequest>,
    name: &str,
) -> Result<String, CertificateError> {
    loop {
        match api.get(name).await {
            Ok(request) => {
                let status = request.status.unwrap_or_default();
                let conditions = status.conditions.unwrap_or_default();
                let refused = conditions
                    .into_iter()
                    .find(|c| matches!(&*c.type_, "Denied" | "Failed"));
                if let Some(condition) = refused {
                    return Err(CertificateError::Refused {
                        name: name.to_owned(),
                        condition: condition.type_,
                        message: condition.message.unwrap_or_default(),
                    });
                }
                if let Some(certificate) = status.certificate.filter(|c| !c.0.is_empty()) {
                    let text = String::from_utf8(certificate.0);
                    return text.map_err(|_| CertificateError::Malformed(name.to_owned()));
                }
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                return Err(CertificateError::Gone(name.to_owned()));
            }
            Err(error) => tracing::warn!(%error, name, "looking for a certificate"),
        }
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> CertificateRequest {
        CertificateRequest {
            signer: "kubernetes.io/kubelet-serving",
            usages: &["digital signature", "server auth"],
            common_name: "system:node:n".to_owned(),
            organizations: vec!["system:nodes".to_owned()],
            dns_names: vec!["n".to_owned()],
            ip_addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        }
    }

    /// Signs a request as an authority would.
    fn signed(request: &CertificateSigningRequest) -> String {
        let pem = String::from_utf8(request.spec.request.0.clone()).unwrap();
        let params = rcgen::CertificateSigningRequestParams::from_pem(&pem).unwrap();
        let key = KeyPair::generate().unwrap();
        let issuer = rcgen::Issuer::new(CertificateParams::default(), key);
        params.signed_by(&issuer).unwrap().pem()
    }

    #[test]
    fn requests_name_the_subject_and_are_the_same_for_a_key() {
        let key = KeyPair::generate().unwrap();
        let (first, second) = (wanted().object(&key), wanted().object(&key));
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_eq!(first.metadata.name, second.metadata.name);
        let name = first.metadata.name.clone().unwrap();
        assert!(name.starts_with("node-csr-"), "{name}");
        let mut moved = wanted();
        moved.ip_addresses.pop();
        let third = moved.object(&key).unwrap();
        assert_ne!(third.metadata.name, first.metadata.name);
        let certificate = Issued::read(signed(&first).as_bytes()).unwrap();
        assert!(wanted().is_met_by(&certificate), "{certificate:?}");
        assert!(moved.is_met_by(&certificate), "more names than needed");
        let certificate = Issued::read(signed(&third).as_bytes()).unwrap();
        assert!(!wanted().is_met_by(&certificate), "{certificate:?}");
    }

    #[test]
    fn certificates_are_renewed_before_they_end() {
        let key = KeyPair::generate().unwrap();
        let request = wanted().object(&key).unwrap();
        let mut certificate = Issued::read(signed(&request).as_bytes()).unwrap();
        (certificate.not_before, certificate.not_after) = (0, 1000);
        for (spread, at) in [(0.0, 700), (0.5, 800), (1.0, 900)] {
            certificate.spread = spread;
            assert_eq!(certificate.renewal(), UNIX_EPOCH + Duration::from_secs(at));
        }
    }

    #[test]
    fn keys_wait_in_a_file_for_their_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("davit-key-{}", std::process::id()));
        let path = dir.join("pending");
        let first = pending_key(&path).unwrap().serialize_pem();
        assert_eq!(pending_key(&path).unwrap().serialize_pem(), first);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(&path, "broken").unwrap();
        assert_ne!(pending_key(&path).unwrap().serialize_pem(), first);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
