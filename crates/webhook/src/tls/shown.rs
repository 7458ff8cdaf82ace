//! Certificates that are renewed while they are in use.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;

use super::{Identity, TlsError, certificates, private_key, provider};

/// What is shown at handshakes, of servers and of clients. Handshakes from the moment of a renewal on show the new
/// certificate; connections that are open go on.
pub struct ShownIdentity {
    current: ArcSwap<CertifiedKey>,
}

impl std::fmt::Debug for ShownIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ShownIdentity(..)")
    }
}

impl ShownIdentity {
    /// Shows `identity`.
    pub fn new(identity: &Identity) -> Result<Arc<Self>, TlsError> {
        let current = ArcSwap::from_pointee(certified(identity)?);
        Ok(Arc::new(Self { current }))
    }

    /// Shows `identity` from now on; whether that is another certificate than before.
    pub fn renew(&self, identity: &Identity) -> Result<bool, TlsError> {
        let next = certified(identity)?;
        let changed = self.current.load().cert != next.cert;
        if changed {
            self.current.store(Arc::new(next));
        }
        Ok(changed)
    }

    /// What is shown now.
    pub fn certified(&self) -> Arc<CertifiedKey> {
        self.current.load_full()
    }
}

fn certified(identity: &Identity) -> Result<CertifiedKey, TlsError> {
    let chain = certificates("the certificate", &identity.certificate)?;
    let key = private_key("the key", &identity.key)?;
    CertifiedKey::from_der(chain, key, &provider())
        .map_err(|error| TlsError::Config(error.to_string()))
}

impl ResolvesClientCert for ShownIdentity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.certified())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
