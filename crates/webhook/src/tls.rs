//! TLS as clients see it: whose serving certificates are believed, and what is shown at handshakes.

mod client;
mod shown;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

pub use client::{Trust, client_config};
pub use shown::ShownIdentity;

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

/// A certificate (with its issuer chain) and its private key, both PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate, PEM.
    pub certificate: String,
    /// The private key, PKCS#8 PEM.
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity(..)")
    }
}

/// The one crypto provider of the process.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// All certificates of a PEM text.
pub fn certificates(
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
pub fn private_key(what: &'static str, pem: &str) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|e| TlsError::Pem {
        what,
        detail: e.to_string(),
    })
}
