//! What a request for a certificate says, and whether a signer takes it.

use davit_client::subject::{self, Subject};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::jiff::Timestamp;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Signer of certificates for clients of the API server.
pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
/// Signer of certificates by which node agents are known to the API server.
pub const NODE_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signer of certificates that node agents serve with.
pub const NODE_SERVING: &str = "kubernetes.io/kubelet-serving";
/// Signer for whatever is asked of it.
pub const LEGACY: &str = "kubernetes.io/legacy-unknown";

const NODES: &str = "system:nodes";
const NODE_PREFIX: &str = "system:node:";

/// Whether davit signs for this signer.
pub fn is_built_in(signer: &str) -> bool {
    [CLIENT, NODE_CLIENT, NODE_SERVING, LEGACY].contains(&signer)
}

/// Whether a certificate (PEM) is over.
pub fn is_expired(pem: &[u8], now: Timestamp) -> bool {
    let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(pem) else {
        return false;
    };
    X509Certificate::from_der(&pem.contents).is_ok_and(|(_, certificate)| {
        certificate.validity().not_after.timestamp() < now.as_second()
    })
}

/// The alternative names of a request, by kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Names {
    dns: usize,
    ip: usize,
    email: usize,
    uri: usize,
    other: usize,
}

/// A request cannot be read, or its signer does not take it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RequestError(String);

impl From<&str> for RequestError {
    fn from(why: &str) -> Self {
        Self(why.to_owned())
    }
}

/// A parsed request.
#[derive(Debug)]
pub struct Request {
    /// Who is to be known by the certificate: what is judged here is what is signed.
    pub subject: Subject,
    /// The public key with its algorithm, DER.
    pub public_key: Vec<u8>,
    /// The value of the extension of alternative names, DER.
    pub alternative_names: Option<Vec<u8>>,
    /// As in the object.
    pub usages: Vec<String>,
    names: Names,
}

impl Request {
    /// Reads the request and checks that its sender holds the key.
    ///
    /// # Errors
    /// It is none, or asks for what nobody signs.
    pub fn parse(object: &CertificateSigningRequest) -> Result<Self, RequestError> {
        let failed = |error: &dyn std::fmt::Display| RequestError(error.to_string());
        let der = subject::request(&object.spec.request.0).map_err(|error| failed(&error))?;
        let ([], parsed) = X509CertificationRequest::from_der(&der)
            .map_err(|error| RequestError(format!("certificate request: {error}")))?
        else {
            return Err("certificate request: something follows it".into());
        };
        parsed.verify_signature().map_err(|error| {
            RequestError(format!("signature of the certificate request: {error}"))
        })?;
        let info = &parsed.certification_request_info;
        let subject = Subject::of(&info.subject).map_err(|error| failed(&error))?;
        let (mut names, mut alternative_names) = (Names::default(), None);
        for extension in parsed.requested_extensions().into_iter().flatten() {
            if let ParsedExtension::SubjectAlternativeName(found) = extension {
                if alternative_names.is_some() {
                    return Err("more than one list of alternative names".into());
                }
                for name in &found.general_names {
                    match name {
                        GeneralName::DNSName(_) => names.dns += 1,
                        GeneralName::IPAddress(_) => names.ip += 1,
                        GeneralName::RFC822Name(_) => names.email += 1,
                        GeneralName::URI(_) => names.uri += 1,
                        _ => names.other += 1,
                    }
                }
                alternative_names = Some(crate::authority::alternative_names(&found.general_names));
            }
        }
        if !subject.is_plain() {
            return Err("only common name and organizations are signed".into());
        }
        if names.other > 0 {
            return Err("only DNS, IP, email and URI alternative names are signed".into());
        }
        Ok(Self {
            subject,
            public_key: info.subject_pki.raw.to_vec(),
            alternative_names,
            usages: object.spec.usages.clone().unwrap_or_default(),
            names,
        })
    }

    /// The name that the certificate is to give.
    pub fn common_name(&self) -> &str {
        &self.subject.common_name
    }

    /// What the signer of this name requires.
    ///
    /// # Errors
    /// What the request lacks, or has too much of.
    pub fn check_for(&self, signer: &str) -> Result<(), RequestError> {
        match signer {
            CLIENT => {
                let allowed = ["digital signature", "key encipherment", "client auth"];
                self.only_usages(&allowed, "client auth")
            }
            NODE_CLIENT => self.check_node_client(),
            NODE_SERVING => self.check_node_serving(),
            _ => Ok(()),
        }
    }

    /// A certificate by which a node is known to the API server.
    ///
    /// # Errors
    /// What the request lacks, or has too much of.
    pub fn check_node_client(&self) -> Result<(), RequestError> {
        self.check_node()?;
        if self.names != Names::default() {
            return Err("DNS, IP, email and URI alternative names are not allowed".into());
        }
        let allowed = ["digital signature", "key encipherment", "client auth"];
        self.only_usages(&allowed, "client auth")?;
        self.needs("digital signature")
    }

    /// A certificate that a node serves with.
    fn check_node_serving(&self) -> Result<(), RequestError> {
        self.check_node()?;
        if self.names.dns + self.names.ip == 0 {
            return Err("DNS or IP subjectAltName is required".into());
        }
        if self.names.email > 0 {
            return Err("Email subjectAltNames are not allowed".into());
        }
        if self.names.uri > 0 {
            return Err("URI subjectAltNames are not allowed".into());
        }
        let allowed = ["digital signature", "key encipherment", "server auth"];
        self.only_usages(&allowed, "server auth")?;
        self.needs("digital signature")
    }

    fn check_node(&self) -> Result<(), RequestError> {
        if self.subject.organizations != [NODES] {
            return Err("subject organization is not system:nodes".into());
        }
        let named = self
            .common_name()
            .strip_prefix(NODE_PREFIX)
            .is_some_and(|name| !name.is_empty());
        named
            .then_some(())
            .ok_or_else(|| "subject common name does not begin with system:node:".into())
    }

    fn only_usages(&self, allowed: &[&str], needed: &str) -> Result<(), RequestError> {
        if let Some(usage) = self
            .usages
            .iter()
            .find(|usage| !allowed.contains(&usage.as_str()))
        {
            let why = format!("usage {usage:?} is not allowed by this signer");
            return Err(RequestError(why));
        }
        self.needs(needed)
    }

    fn needs(&self, usage: &str) -> Result<(), RequestError> {
        let has = self.usages.iter().any(|held| held == usage);
        has.then_some(())
            .ok_or_else(|| RequestError(format!("usage {usage:?} is required by this signer")))
    }
}
