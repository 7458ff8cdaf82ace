//! The TLS side of the server: serving certificate, client certificates.
//!
//! A client certificate of a foreign authority does not break the handshake; the request is
//! answered with 401 as Kubernetes does. So the handshake only proves that the client holds the
//! key, and whether the certificate counts is decided for each request
//! ([`ClientCertificates::identify`]).

mod client;
mod shown;

use std::sync::Arc;

use davit_client::subject::Subject;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::user::UserInfo;

pub(crate) use client::{Trust, client_config};
pub(crate) use shown::{ServingIdentity, ShownIdentity};

/// Keys or certificates that TLS cannot use.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// PEM text without the expected content.
    #[error("reading {what}: {detail}")]
    Pem {
        /// Which text.
        what: &'static str,
        /// Why it failed.
        detail: String,
    },
    /// The TLS library refused the material.
    #[error("configuring TLS: {0}")]
    Config(String),
}

/// Decides who a client certificate stands for.
#[derive(Debug)]
pub(crate) struct ClientCertificates {
    verifier: Arc<dyn ClientCertVerifier>,
}

impl ClientCertificates {
    /// Trusts the authorities in `ca_pem`.
    pub(crate) fn new(ca_pem: &str) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates("the client authority", ca_pem)? {
            roots
                .add(certificate)
                .map_err(|e| TlsError::Config(e.to_string()))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .allow_unauthenticated()
            .build()
            .map_err(|e| TlsError::Config(e.to_string()))?;
        Ok(Self { verifier })
    }

    /// The user of a chain (end entity first) at this moment: CN is the name, each O a group.
    ///
    /// # Errors
    /// Why the chain does not count.
    pub(crate) fn identify(&self, chain: &[CertificateDer<'_>]) -> Result<UserInfo, String> {
        let (end_entity, intermediates) = chain
            .split_first()
            .ok_or_else(|| "no certificate".to_owned())?;
        self.verifier
            .verify_client_cert(end_entity, intermediates, UnixTime::now())
            .map_err(|error| error.to_string())?;
        let subject = Subject::of_certificate(end_entity).map_err(|error| error.to_string())?;
        let groups: Vec<&str> = subject.organizations.iter().map(String::as_str).collect();
        let mut user = UserInfo::new(subject.common_name, &groups);
        user.uid = subject.uid;
        Ok(user)
    }
}

/// The moments (seconds since 1970) at which certificates of a chain begin or cease to be valid, after `now`, the first of
/// them: until then nothing but the authorities changes what the chain stands for.
pub(crate) fn next_change(chain: &[CertificateDer<'_>], now: i64) -> i64 {
    let mut next = i64::MAX;
    for certificate in chain {
        let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
            return now;
        };
        let validity = parsed.validity();
        for at in [&validity.not_before, &validity.not_after] {
            // a certificate is good through the second of its end
            next = Some(at.timestamp().saturating_add(1))
                .filter(|at| *at > now)
                .map_or(next, |at| at.min(next));
        }
    }
    next
}

/// Asks for a client certificate and accepts any, see the module's comment.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
    hints: Vec<DistinguishedName>,
}

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// The server's TLS configuration: HTTP/2 and HTTP/1.1 by ALPN, client certificates asked for.
pub(crate) fn server_config(
    identity: ServingIdentity,
    ca_pem: &str,
) -> Result<ServerConfig, TlsError> {
    let provider = provider();
    let mut roots = RootCertStore::empty();
    for certificate in certificates("the client authority", ca_pem)? {
        roots
            .add(certificate)
            .map_err(|e| TlsError::Config(e.to_string()))?;
    }
    let verifier = AnyCertificate {
        provider: Arc::clone(&provider),
        hints: roots.subjects(),
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| TlsError::Config(e.to_string()))?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(identity));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// The one crypto provider of the process.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// All certificates of a PEM text.
pub(crate) fn certificates(
    what: &'static str,
    pem: &str,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| TlsError::Pem {
            what,
            detail: e.to_string(),
        })
}

/// The private key of a PEM text.
pub(crate) fn private_key(
    what: &'static str,
    pem: &str,
) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|e| TlsError::Pem {
        what,
        detail: e.to_string(),
    })
}
