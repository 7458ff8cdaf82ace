//! The TLS side of the server: serving certificate, client certificates.
//!
//! A client certificate of a foreign authority does not break the handshake; the request is
//! answered with 401 as Kubernetes does. So the handshake only proves that the client holds the
//! key, and whether the certificate counts is decided for each request (`davit_access::authn`).

use std::sync::Arc;

use davit_webhook::tls::{ShownIdentity, TlsError, certificates, provider};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    ConfigBuilder, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme, WantsVerifier,
};
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::LOOPBACK_NAME;

/// What the API server shows: a given certificate, and its own to those who ask for [`LOOPBACK_NAME`].
#[derive(Debug)]
pub struct ServingIdentity {
    /// Its own.
    pub own: Arc<ShownIdentity>,
    /// That of the configuration, for everybody else.
    pub given: Option<Arc<ShownIdentity>>,
}

impl ResolvesServerCert for ServingIdentity {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let given = self.given.as_ref();
        let given = given.filter(|_| hello.server_name() != Some(LOOPBACK_NAME));
        Some(given.unwrap_or(&self.own).certified())
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

/// The server's TLS configuration, of whose versions and suites `builder` decides: HTTP/2 and HTTP/1.1 by ALPN, client
/// certificates asked for.
///
/// # Errors
/// The authority is none.
pub fn server_config(
    builder: ConfigBuilder<ServerConfig, WantsVerifier>,
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
    let mut config = builder
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(identity));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
