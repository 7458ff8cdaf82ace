//! Whom client certificates stand for.

use std::sync::Arc;

use davit_client::subject::Subject;
use davit_webhook::tls::{TlsError, certificates, provider};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::user::UserInfo;

/// Which of his credentials a user shows (`authentication.kubernetes.io/credential-id`, KEP-4193).
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The words by which a certificate is told from the others of its user: the digest of all of it.
fn credential_id(certificate: &CertificateDer<'_>) -> String {
    format!("X509SHA256={:x}", Sha256::digest(certificate))
}

/// Decides who a client certificate stands for.
#[derive(Debug)]
pub(crate) struct ClientCertificates {
    verifier: Arc<dyn ClientCertVerifier>,
}

impl ClientCertificates {
    /// Trusts the authorities in `ca_pem`.
    pub(super) fn new(ca_pem: &str) -> Result<Self, TlsError> {
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
        user.extra
            .insert(CREDENTIAL_ID.to_owned(), vec![credential_id(end_entity)]);
        Ok(user)
    }
}

/// When the certificate of the caller itself ends, in seconds since 1970.
pub(crate) fn end(chain: &[CertificateDer<'_>]) -> Option<i64> {
    let (_, parsed) = X509Certificate::from_der(chain.first()?).ok()?;
    Some(parsed.validity().not_after.timestamp())
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
