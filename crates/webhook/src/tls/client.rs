//! TLS towards others: nodes, pods, webhooks, aggregated API servers.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::{ShownIdentity, TlsError, certificates, provider};

/// Which serving certificates are believed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Trust {
    /// Those the machine's own authorities have signed.
    #[default]
    System,
    /// Those the authorities in this PEM text have signed; a certificate in the text that is
    /// itself served is believed too.
    Authorities(String),
    /// Any: what Kubernetes does with nodes when no authority for their certificates is
    /// configured, and what `insecure-skip-tls-verify` asks for. Possession of the key is still
    /// proven.
    Any,
}

/// A client configuration: `identity` is shown when asked for.
///
/// # Errors
/// When a PEM text holds nothing usable or the machine's authorities cannot be read.
pub fn client_config(
    trust: &Trust,
    identity: Option<Arc<ShownIdentity>>,
) -> Result<ClientConfig, TlsError> {
    let provider = provider();
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Config(error.to_string()))?;
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Any => Arc::new(AnyServer(provider)),
        Trust::System => Arc::new(Verifier::new(system_roots()?, provider)?),
        Trust::Authorities(pem) => {
            let roots = certificates("the certificate authority", pem)?;
            if roots.is_empty() {
                return Err(TlsError::Pem {
                    what: "the certificate authority",
                    detail: "no certificate found".to_owned(),
                });
            }
            Arc::new(Verifier::new(roots, provider)?)
        }
    };
    let builder = builder
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    Ok(match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => builder.with_client_cert_resolver(identity),
    })
}

fn system_roots() -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let why = found.errors.first().map_or_else(
            || "the system has no certificate authorities".to_owned(),
            ToString::to_string,
        );
        return Err(TlsError::Config(why));
    }
    Ok(found.certs)
}

/// The usual rules, with two differences that Go's TLS has and on which webhooks in the field
/// rely: a certificate that is itself among the authorities is believed although it calls itself
/// an authority (what `openssl req -x509` makes), and failures are told in Go's words, which
/// people look for.
#[derive(Debug)]
struct Verifier {
    inner: Arc<WebPkiServerVerifier>,
    roots: Vec<CertificateDer<'static>>,
}

impl Verifier {
    fn new(
        roots: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, TlsError> {
        let mut store = RootCertStore::empty();
        let (added, _) = store.add_parsable_certificates(roots.iter().cloned());
        if added == 0 {
            return Err(TlsError::Config(
                "no usable certificate authority".to_owned(),
            ));
        }
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider)
            .build()
            .map_err(|error| TlsError::Config(error.to_string()))?;
        Ok(Self { inner, roots })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.roots.iter().any(|root| root == end_entity) {
            return pinned(end_entity, server_name, now);
        }
        self.inner
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            .map_err(|error| told(error, end_entity, server_name))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// The served certificate is one of the authorities: only its name and its time are left to check.
fn pinned(
    end_entity: &CertificateDer<'_>,
    server_name: &ServerName<'_>,
    now: UnixTime,
) -> Result<ServerCertVerified, rustls::Error> {
    let (_, certificate) = X509Certificate::from_der(end_entity)
        .map_err(|_| rustls::Error::InvalidCertificate(CertificateError::BadEncoding))?;
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let validity = certificate.validity();
    if seconds < validity.not_before.timestamp() || seconds > validity.not_after.timestamp() {
        return Err(refusal("x509: certificate has expired or is not yet valid"));
    }
    // the name check of the library refuses authorities; theirs is compared by hand
    match ParsedCertificate::try_from(end_entity) {
        Ok(parsed) => rustls::client::verify_server_name(&parsed, server_name)
            .map_err(|error| told(error, end_entity, server_name))?,
        Err(error) => {
            if !names_of(&certificate)
                .iter()
                .any(|name| matches_name(name, &server_name.to_str()))
            {
                return Err(told(error, end_entity, server_name));
            }
        }
    }
    Ok(ServerCertVerified::assertion())
}

fn matches_name(pattern: &str, name: &str) -> bool {
    if pattern.eq_ignore_ascii_case(name) {
        return true;
    }
    let (Some(suffix), Some((_, rest))) = (pattern.strip_prefix("*."), name.split_once('.')) else {
        return false;
    };
    suffix.eq_ignore_ascii_case(rest)
}

fn names_of(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let names = extension.value.general_names.iter();
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => match bytes.len() {
                4 => <[u8; 4]>::try_from(*bytes)
                    .ok()
                    .map(|b| std::net::IpAddr::from(b).to_string()),
                _ => <[u8; 16]>::try_from(*bytes)
                    .ok()
                    .map(|b| std::net::IpAddr::from(b).to_string()),
            },
            _ => None,
        })
        .collect()
}

fn refusal(text: &str) -> rustls::Error {
    rustls::Error::General(format!("tls: failed to verify certificate: {text}"))
}

fn told(
    error: rustls::Error,
    end_entity: &CertificateDer<'_>,
    server_name: &ServerName<'_>,
) -> rustls::Error {
    let rustls::Error::InvalidCertificate(fault) = &error else {
        return error;
    };
    let wanted = server_name.to_str();
    match fault {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            refusal("x509: certificate signed by unknown authority")
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => {
            refusal("x509: certificate has expired or is not yet valid")
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            let names = X509Certificate::from_der(end_entity)
                .map(|(_, certificate)| names_of(&certificate))
                .unwrap_or_default();
            if names.is_empty() {
                refusal("x509: certificate relies on legacy Common Name field, use SANs instead")
            } else {
                let names = names.join(", ");
                refusal(&format!(
                    "x509: certificate is valid for {names}, not {wanted}"
                ))
            }
        }
        _ => error,
    }
}

#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
