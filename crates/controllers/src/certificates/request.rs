//! What a request for a certificate says, and whether a signer takes it.

use davit_client::subject::{self, Subject};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::jiff::Timestamp;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

pub(super) const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub(super) const NODE_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub(super) const NODE_SERVING: &str = "kubernetes.io/kubelet-serving";
pub(super) const LEGACY: &str = "kubernetes.io/legacy-unknown";

const NODES: &str = "system:nodes";
const NODE_PREFIX: &str = "system:node:";

/// Whether davit signs for this signer.
pub(super) fn is_built_in(signer: &str) -> bool {
    [CLIENT, NODE_CLIENT, NODE_SERVING, LEGACY].contains(&signer)
}

/// Whether a certificate (PEM) is over.
pub(super) fn is_expired(pem: &[u8], now: Timestamp) -> bool {
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

/// A parsed request.
#[derive(Debug)]
pub(super) struct Request {
    /// Who is to be known by the certificate: what is judged here is what is signed.
    pub(super) subject: Subject,
    /// The public key with its algorithm, DER.
    pub(super) public_key: Vec<u8>,
    /// The value of the extension of alternative names, DER.
    pub(super) alternative_names: Option<Vec<u8>>,
    /// As in the object.
    pub(super) usages: Vec<String>,
    names: Names,
}

impl Request {
    /// Reads the request and checks that its sender holds the key.
    pub(super) fn parse(object: &CertificateSigningRequest) -> Result<Self, String> {
        let der = subject::request(&object.spec.request.0).map_err(|error| error.to_string())?;
        let ([], parsed) = X509CertificationRequest::from_der(&der)
            .map_err(|error| format!("certificate request: {error}"))?
        else {
            return Err("certificate request: something follows it".to_owned());
        };
        parsed
            .verify_signature()
            .map_err(|error| format!("signature of the certificate request: {error}"))?;
        let info = &parsed.certification_request_info;
        let subject = Subject::of(&info.subject).map_err(|error| error.to_string())?;
        let (mut names, mut alternative_names) = (Names::default(), None);
        for extension in parsed.requested_extensions().into_iter().flatten() {
            if let ParsedExtension::SubjectAlternativeName(found) = extension {
                if alternative_names.is_some() {
                    return Err("more than one list of alternative names".to_owned());
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
                alternative_names = Some(super::der::alternative_names(&found.general_names));
            }
        }
        if !subject.is_plain() {
            return Err("only common name and organizations are signed".to_owned());
        }
        if names.other > 0 {
            return Err("only DNS, IP, email and URI alternative names are signed".to_owned());
        }
        Ok(Self {
            subject,
            public_key: info.subject_pki.raw.to_vec(),
            alternative_names,
            usages: object.spec.usages.clone().unwrap_or_default(),
            names,
        })
    }

    pub(super) fn common_name(&self) -> &str {
        &self.subject.common_name
    }

    /// What the signer of this name requires.
    pub(super) fn check_for(&self, signer: &str) -> Result<(), String> {
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
    pub(super) fn check_node_client(&self) -> Result<(), String> {
        self.check_node()?;
        if self.names != Names::default() {
            return Err("DNS, IP, email and URI alternative names are not allowed".to_owned());
        }
        let allowed = ["digital signature", "key encipherment", "client auth"];
        self.only_usages(&allowed, "client auth")?;
        self.needs("digital signature")
    }

    /// A certificate that a node serves with.
    fn check_node_serving(&self) -> Result<(), String> {
        self.check_node()?;
        if self.names.dns + self.names.ip == 0 {
            return Err("DNS or IP subjectAltName is required".to_owned());
        }
        if self.names.email > 0 {
            return Err("Email subjectAltNames are not allowed".to_owned());
        }
        if self.names.uri > 0 {
            return Err("URI subjectAltNames are not allowed".to_owned());
        }
        let allowed = ["digital signature", "key encipherment", "server auth"];
        self.only_usages(&allowed, "server auth")?;
        self.needs("digital signature")
    }

    fn check_node(&self) -> Result<(), String> {
        if self.subject.organizations != [NODES] {
            return Err("subject organization is not system:nodes".to_owned());
        }
        let named = self
            .common_name()
            .strip_prefix(NODE_PREFIX)
            .is_some_and(|name| !name.is_empty());
        named
            .then_some(())
            .ok_or_else(|| "subject common name does not begin with system:node:".to_owned())
    }

    fn only_usages(&self, allowed: &[&str], needed: &str) -> Result<(), String> {
        if let Some(usage) = self
            .usages
            .iter()
            .find(|usage| !allowed.contains(&usage.as_str()))
        {
            return Err(format!("usage {usage:?} is not allowed by this signer"));
        }
        self.needs(needed)
    }

    fn needs(&self, usage: &str) -> Result<(), String> {
        let has = self.usages.iter().any(|held| held == usage);
        has.then_some(())
            .ok_or_else(|| format!("usage {usage:?} is required by this signer"))
    }
}
