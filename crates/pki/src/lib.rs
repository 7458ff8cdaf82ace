//! The cluster's own certificate authority: created once in the data directory, reused after that.
//!
//! Certificates are ECDSA P-256, which takes well under a millisecond to make, so that start-up
//! is not slowed down. Devices often boot with a clock far in the past; no certificate is valid
//! only "from now", and ends are counted from a date that is never before the release.

mod examine;
mod kubeconfig;
mod serving;
mod store;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use davit_access::{KUBELET_CLIENT, NODE_PREFIX, NODES};
use davit_client::subject::Subject;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _, SanType,
};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

pub use davit_webhook::tls::Identity;
pub use examine::{PkiSummary, examine};
pub use kubeconfig::{Kubeconfig, write_kubeconfig};
pub use serving::{ServingIdentity, server_config};
use store::{read_optional, write_private, write_public};

/// No certificate's validity is counted from before this year, whatever the clock says.
const RELEASE_YEAR: i32 = 2026;
const CA_YEARS: i32 = 20;
const LEAF_YEARS: i32 = 3;
/// Leaves are renewed when less than this remains.
const RENEW_BEFORE_SECONDS: i64 = 365 * 24 * 3600;

/// What can go wrong with keys and certificates.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file of the PKI directory could not be read or written.
    #[error("{action} {path}: {source}")]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A certificate or key could not be made.
    #[error("making the certificate {name}: {source}")]
    Generate {
        /// The certificate's file name without extension.
        name: String,
        /// Why it failed.
        source: rcgen::Error,
    },
    /// A certificate or key on disk could not be understood.
    #[error("reading the certificate or key {name}: {detail}")]
    Parse {
        /// The file name without extension.
        name: String,
        /// Why it failed.
        detail: String,
    },
}

/// The certificate authority and the identities the cluster's parts use.
pub struct Pki {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    ca_pem: String,
    clock: Clock,
}

/// Tells the time.
type Clock = fn() -> jiff::Timestamp;

impl std::fmt::Debug for Pki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pki")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

/// The authority whose clients may say who the caller is, and the client certificate the API
/// server shows to aggregated API servers.
#[derive(Debug)]
pub struct FrontProxy {
    /// The authority's certificate, PEM: `requestheader-client-ca-file`.
    pub ca: String,
    /// The certificate shown, for [`FRONT_PROXY_CLIENT`].
    pub client: Identity,
}

/// The name in the front proxy's certificate: the one of `requestheader-allowed-names`.
pub const FRONT_PROXY_CLIENT: &str = "front-proxy-client";

impl Pki {
    /// Opens the PKI in `dir`, creating the directory and the authority when they are missing.
    ///
    /// # Errors
    /// When files cannot be read or written, or hold something else than PEM keys and certificates.
    pub fn open(dir: &Path) -> Result<Self, PkiError> {
        Self::open_as(dir, "davit-ca", jiff::Timestamp::now)
    }

    /// The front proxy's own authority and certificate, kept in `front-proxy/` and made on first
    /// use. It is an authority apart: who holds its certificates may claim to be anybody.
    ///
    /// # Errors
    /// As [`Pki::client`].
    pub fn front_proxy(&self) -> Result<FrontProxy, PkiError> {
        let own = Self::open_as(
            &self.dir.join("front-proxy"),
            "davit-front-proxy-ca",
            self.clock,
        )?;
        let client = own.client(FRONT_PROXY_CLIENT, FRONT_PROXY_CLIENT, &[])?;
        Ok(FrontProxy {
            ca: own.ca_pem,
            client,
        })
    }

    fn open_as(dir: &Path, authority: &str, clock: Clock) -> Result<Self, PkiError> {
        store::create_dir(dir)?;
        let certificate_path = dir.join("ca.crt");
        let key_path = dir.join("ca.key");
        let (ca_pem, key) = match (read_optional(&certificate_path)?, read_optional(&key_path)?) {
            (Some(certificate), Some(key)) => {
                let key = KeyPair::from_pem(&key).map_err(parse("ca"))?;
                if !belongs(&key, &certificate) {
                    return Err(PkiError::Parse {
                        name: "ca".to_owned(),
                        detail: "ca.key is not the key of ca.crt".to_owned(),
                    });
                }
                (certificate, key)
            }
            _ => {
                let key = KeyPair::generate().map_err(generate("ca"))?;
                let certificate = ca_params(authority, clock())
                    .self_signed(&key)
                    .map_err(generate("ca"))?
                    .pem();
                write_private(&key_path, &key.serialize_pem())?;
                write_public(&certificate_path, &certificate)?;
                (certificate, key)
            }
        };
        let issuer = Issuer::from_ca_cert_pem(&ca_pem, key).map_err(parse("ca"))?;
        Ok(Self {
            dir: dir.to_path_buf(),
            issuer,
            ca_pem,
            clock,
        })
    }

    /// The authority's certificate, PEM: what clients trust.
    pub fn ca_certificate(&self) -> &str {
        &self.ca_pem
    }

    /// The authority itself, for those who sign in its name.
    pub fn authority(&self) -> Identity {
        Identity {
            certificate: self.ca_pem.clone(),
            key: self.issuer.key().serialize_pem(),
        }
    }

    /// A client certificate for user `common_name` in groups `organizations`, kept in the
    /// directory under `file` and reused while it is valid.
    ///
    /// # Errors
    /// When files cannot be read or written.
    pub fn client(
        &self,
        file: &str,
        common_name: &str,
        organizations: &[&str],
    ) -> Result<Identity, PkiError> {
        let mut params = leaf_params(common_name, organizations, (self.clock)());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.leaf(file, &params, |certificate| {
            is_of(certificate, common_name, organizations)
        })
    }

    /// The administrator's client certificate (`O=system:masters`).
    ///
    /// # Errors
    /// As [`Pki::client`].
    pub fn admin(&self) -> Result<Identity, PkiError> {
        self.client("admin", "kubernetes-admin", &["system:masters"])
    }

    /// The certificate the API server shows to nodes when it forwards logs and exec: of a user who may do at nodes what
    /// role `system:kubelet-api-admin` allows, and nothing else. One in the groups of earlier versions is replaced.
    ///
    /// # Errors
    /// As [`Pki::client`].
    pub fn kubelet_client(&self) -> Result<Identity, PkiError> {
        self.client("apiserver-kubelet-client", KUBELET_CLIENT, &[])
    }

    /// The serving certificate of a node of this process, by which its API servers know it.
    ///
    /// # Errors
    /// As [`Pki::client`].
    pub fn node_serving(&self, node: &str, names: &[String]) -> Result<Identity, PkiError> {
        let user = format!("{NODE_PREFIX}{node}");
        self.serving_as(&format!("node-{node}"), &user, &[NODES], names)
    }

    /// A serving certificate for the names and addresses given, kept under `file` and made
    /// anew when the names change.
    ///
    /// # Errors
    /// As [`Pki::client`].
    pub fn serving(
        &self,
        file: &str,
        common_name: &str,
        names: &[String],
    ) -> Result<Identity, PkiError> {
        self.serving_as(file, common_name, &[], names)
    }

    fn serving_as(
        &self,
        file: &str,
        common_name: &str,
        organizations: &[&str],
        names: &[String],
    ) -> Result<Identity, PkiError> {
        let mut params = leaf_params(common_name, organizations, (self.clock)());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        for name in names {
            let san = match name.parse::<IpAddr>() {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) => SanType::DnsName(name.as_str().try_into().map_err(generate(file))?),
            };
            params.subject_alt_names.push(san);
        }
        self.leaf(file, &params, |certificate| {
            serves(certificate, names) && is_of(certificate, common_name, organizations)
        })
    }

    /// The key that signs service account tokens (P-256, PKCS#8 PEM), made on first use.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn service_account_key(&self) -> Result<String, PkiError> {
        let path = self.dir.join("sa.key");
        if let Some(pem) = read_optional(&path)? {
            return Ok(pem);
        }
        let key = KeyPair::generate().map_err(generate("sa"))?;
        write_private(&path, &key.serialize_pem())?;
        write_public(&self.dir.join("sa.pub"), &key.public_key_pem())?;
        Ok(key.serialize_pem())
    }

    /// What is kept under `file`, if it is a pair that fits; else a new one. Key and certificate are two files: whoever was
    /// interrupted between them has left the one of an old pair and the other of a new one, which is no pair.
    fn leaf(
        &self,
        file: &str,
        params: &CertificateParams,
        fits: impl Fn(&X509Certificate<'_>) -> bool,
    ) -> Result<Identity, PkiError> {
        let certificate_path = self.dir.join(format!("{file}.crt"));
        let key_path = self.dir.join(format!("{file}.key"));
        if let (Some(certificate), Some(key)) =
            (read_optional(&certificate_path)?, read_optional(&key_path)?)
            && self.reusable(&certificate, &fits)
            && KeyPair::from_pem(&key).is_ok_and(|key| belongs(&key, &certificate))
        {
            return Ok(Identity { certificate, key });
        }
        let key = KeyPair::generate().map_err(generate(file))?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(generate(file))?
            .pem();
        let key = key.serialize_pem();
        write_private(&key_path, &key)?;
        write_public(&certificate_path, &certificate)?;
        Ok(Identity { certificate, key })
    }

    fn reusable(&self, pem: &str, fits: &impl Fn(&X509Certificate<'_>) -> bool) -> bool {
        let (Some(der), Some(ca)) = (first_certificate(pem), first_certificate(&self.ca_pem))
        else {
            return false;
        };
        let (Ok((_, certificate)), Ok((_, ca))) = (
            X509Certificate::from_der(&der),
            X509Certificate::from_der(&ca),
        ) else {
            return false;
        };
        let now = (self.clock)().as_second();
        certificate.verify_signature(Some(ca.public_key())).is_ok()
            && certificate.validity().not_after.timestamp() - now > RENEW_BEFORE_SECONDS
            && fits(&certificate)
    }
}

/// A signing key that is not kept, PKCS#8 PEM.
///
/// # Errors
/// There is no randomness.
pub fn ephemeral_key() -> Result<String, PkiError> {
    KeyPair::generate()
        .map(|key| key.serialize_pem())
        .map_err(generate("sa"))
}

/// Whether a certificate's subject says exactly this.
fn is_of(certificate: &X509Certificate<'_>, common_name: &str, organizations: &[&str]) -> bool {
    Subject::of(certificate.subject())
        .is_ok_and(|s| s.common_name == common_name && s.organizations == organizations)
}

fn serves(certificate: &X509Certificate<'_>, names: &[String]) -> bool {
    let Ok(Some(san)) = certificate.subject_alternative_name() else {
        return false;
    };
    let mut held: Vec<String> = Vec::new();
    for name in &san.value.general_names {
        match name {
            GeneralName::DNSName(name) => held.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => {
                if let Ok(v4) = <[u8; 4]>::try_from(*bytes) {
                    held.push(IpAddr::from(v4).to_string());
                } else if let Ok(v6) = <[u8; 16]>::try_from(*bytes) {
                    held.push(IpAddr::from(v6).to_string());
                }
            }
            _ => {}
        }
    }
    names.iter().all(|name| held.contains(name))
}

/// The name by which davit's own clients reach an API server that shows others a certificate of its administrator's
/// (as kube-apiserver's own client does).
pub const LOOPBACK_NAME: &str = "apiserver-loopback-client";

/// The names an API server's certificate must carry for clients on the machine, in pods and
/// through the service address.
pub fn api_server_names(service_ips: &[String], extra: &[String]) -> Vec<String> {
    let mut names: Vec<String> = [
        "localhost",
        "127.0.0.1",
        "::1",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        LOOPBACK_NAME,
    ]
    .into_iter()
    .map(str::to_owned)
    .collect();
    let own = service_ips.iter().cloned().chain(host_name());
    for name in own.chain(extra.iter().cloned()) {
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The name of this machine, where it is one that certificates and labels can have.
pub fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name = name.trim().to_ascii_lowercase();
    let fits = !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
    fits.then_some(name)
}

fn ca_params(authority: &str, now: jiff::Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, authority);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    set_validity(&mut params, CA_YEARS, now);
    params
}

fn leaf_params(
    common_name: &str,
    organizations: &[&str],
    now: jiff::Timestamp,
) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for organization in organizations {
        params
            .distinguished_name
            .push(DnType::OrganizationName, *organization);
    }
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
    ];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, LEAF_YEARS, now);
    params
}

fn set_validity(params: &mut CertificateParams, years: i32, now: jiff::Timestamp) {
    let now = now.to_zoned(jiff::tz::TimeZone::UTC);
    let from = i32::from(now.year()).max(RELEASE_YEAR);
    // A box without a battery begins then, whatever the time is.
    params.not_before = rcgen::date_time_ymd(1970, 1, 1);
    // the first of a month exists in every year
    params.not_after = rcgen::date_time_ymd(from + years, now.month().unsigned_abs(), 1);
}

/// Whether the key is the certificate's.
fn belongs(key: &KeyPair, pem: &str) -> bool {
    let der = first_certificate(pem);
    let certificate = der.as_deref().map(X509Certificate::from_der);
    certificate.is_some_and(|read| {
        read.is_ok_and(|(_, read)| read.public_key().raw == key.subject_public_key_info())
    })
}

/// The DER of the first certificate of a PEM text.
pub fn first_certificate(pem: &str) -> Option<Vec<u8>> {
    use rustls_pki_types::pem::PemObject;
    rustls_pki_types::CertificateDer::from_pem_slice(pem.as_bytes())
        .ok()
        .map(|der| der.as_ref().to_vec())
}

fn generate(name: &str) -> impl Fn(rcgen::Error) -> PkiError {
    let name = name.to_owned();
    move |source| PkiError::Generate {
        name: name.clone(),
        source,
    }
}

fn parse(name: &'static str) -> impl Fn(rcgen::Error) -> PkiError {
    move |source| PkiError::Parse {
        name: name.to_owned(),
        detail: source.to_string(),
    }
}

#[cfg(test)]
mod tests;
