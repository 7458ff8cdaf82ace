//! The TLS side of the server: serving certificate, client certificates.
//!
//! A client certificate of a foreign authority does not break the handshake; the request is
//! answered with 401 as Kubernetes does. So the handshake only proves that the client holds the
//! key, and whether the certificate counts is decided once for each connection by
//! [`ClientCertificates::identify`].

mod client;

use std::sync::Arc;

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

use crate::pki::Identity;
use crate::user::UserInfo;

pub(crate) use client::{Trust, client_config};

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

/// OID of the user id in client certificates.
const UID_OID: &str = "1.3.6.1.4.1.57683.2";

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

    /// The user of a chain (end entity first): CN is the name, each O a group.
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
        let (_, certificate) =
            X509Certificate::from_der(end_entity).map_err(|error| error.to_string())?;
        let subject = certificate.subject();
        let name = subject
            .iter_common_name()
            .next()
            .and_then(|cn| cn.as_str().ok());
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Err("the certificate has no common name".to_owned());
        };
        let groups: Vec<&str> = subject
            .iter_organization()
            .filter_map(|o| o.as_str().ok())
            .collect();
        let mut user = UserInfo::new(name, &groups);
        if let Some(uid) = subject
            .iter_attributes()
            .find(|attribute| attribute.attr_type().to_id_string() == UID_OID)
            .and_then(|attribute| attribute.as_str().ok())
        {
            uid.clone_into(&mut user.uid);
        }
        Ok(user)
    }
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
pub(crate) fn server_config(identity: &Identity, ca_pem: &str) -> Result<ServerConfig, TlsError> {
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
        .with_single_cert(
            certificates("the serving certificate", &identity.certificate)?,
            private_key("the serving key", &identity.key)?,
        )
        .map_err(|e| TlsError::Config(e.to_string()))?;
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
