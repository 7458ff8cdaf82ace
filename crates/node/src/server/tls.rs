//! The node server's certificates.

use super::serving::Serving;
use crate::context::Context;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;

/// Why the certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No certificate or key in the PEM.
    #[error("serving certificate of the node server: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// TLS refuses them.
    #[error("TLS of the node server: {0}")]
    Tls(#[from] rustls::Error),
    /// The CA of the clients.
    #[error("client CA of the node server: {0}")]
    ClientCa(String),
    /// Making the self-signed certificate.
    #[error("cannot make a certificate for the node server: {0}")]
    Generate(#[from] rcgen::Error),
    /// Files.
    #[error("cannot keep the node server's certificates")]
    Io(#[from] std::io::Error),
}

/// Tells which client certificates count.
pub(super) type Clients = Arc<dyn ClientCertVerifier>;

/// The agent's copy of the authority of clients, by which whoever reads the configuration in force finds it.
pub(super) const CLIENT_CA: &str = "client-ca.crt";

/// Whose client certificates count; without an authority nobody's.
pub(super) fn clients(ctx: &Context) -> Result<Option<Clients>, Error> {
    let Some(pem) = &ctx.options.client_ca else {
        return Ok(None);
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate?)?;
    }
    // Callers without certificate may still have a token.
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .allow_unauthenticated();
    let verifier = verifier
        .build()
        .map_err(|e| Error::ClientCa(e.to_string()))?;
    let dir = ctx.paths.pki();
    davit_beneath::private_dir_itself(&dir, 0o700).map_err(std::io::Error::from)?;
    write(&dir.join(CLIENT_CA), pem, 0o644)?;
    Ok(Some(verifier))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Configuration of the server's TLS; `requested` is the certificate that is asked for.
pub(super) fn server_config(
    ctx: &Context,
    clients: Option<Clients>,
    requested: Option<Arc<Serving>>,
) -> Result<Arc<ServerConfig>, Error> {
    let builder = ctx.options.tls.builder()?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => builder.with_client_cert_verifier(clients),
    };
    let mut config = match requested {
        Some(requested) => builder.with_cert_resolver(requested),
        None => {
            let (certificate, key) = match &ctx.options.serving_certificate {
                Some(pair) => pair.clone(),
                None => self_signed(&ctx.paths.pki(), &ctx.options.serving_names())?,
            };
            let chain = CertificateDer::pem_slice_iter(&certificate);
            let chain = chain.collect::<Result<Vec<_>, _>>()?;
            builder.with_single_cert(chain, PrivateKeyDer::from_pem_slice(&key)?)?
        }
    };
    // Upgraded connections need HTTP/1.1.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Longer files are no certificate and no key of the node's.
const MAX_FILE: u64 = 1 << 20;

/// The certificate that was made before, or a new one. Nobody verifies it, as with the original.
fn self_signed(dir: &Path, names: &[String]) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let (certificate, key) = (dir.join("kubelet.crt"), dir.join("kubelet.key"));
    let read = |path| davit_beneath::read_own(path, MAX_FILE);
    if let (Ok(c), Ok(k)) = (read(&certificate), read(&key))
        && PrivateKeyDer::from_pem_slice(&k).is_ok()
        && CertificateDer::from_pem_slice(&c).is_ok()
    {
        return Ok((c, k));
    }
    let made = rcgen::generate_simple_self_signed(names.to_vec())?;
    let (c, k) = (
        made.cert.pem().into_bytes(),
        made.signing_key.serialize_pem().into_bytes(),
    );
    davit_beneath::private_dir_itself(dir, 0o700).map_err(std::io::Error::from)?;
    // The key first: a certificate alone is never taken for a pair.
    write(&key, &k, 0o600)?;
    write(&certificate, &c, 0o644)?;
    Ok((c, k))
}

fn write(path: &Path, data: &[u8], mode: u32) -> std::io::Result<()> {
    Ok(davit_beneath::write_durably(path, data, mode)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificate_is_made_once() {
        let tmp = tempfile::tempdir().unwrap();
        let names = ["n1".to_owned(), "10.0.0.1".to_owned()];
        let first = self_signed(tmp.path(), &names).unwrap();
        assert_eq!(self_signed(tmp.path(), &names).unwrap(), first);
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(tmp.path().join("kubelet.key"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
