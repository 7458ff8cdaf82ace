//! TLS towards etcd. The files are read for each connection, so that renewed ones count without a restart.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// The files that a connection is made with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Authorities that the servers' certificates are believed by; those of the system without (`--etcd-cafile`).
    pub ca: Option<PathBuf>,
    /// The certificate and key that are shown to the servers (`--etcd-certfile`, `--etcd-keyfile`).
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not there or not PEM.
    #[error("{path}: {cause}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// Certificate and key do not make a connection.
    #[error("TLS to etcd")]
    Config(#[from] rustls::Error),
}

fn certificates(path: &PathBuf) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    let wrong = |cause: String| TlsError::File {
        path: path.clone(),
        cause,
    };
    match read() {
        Ok(found) if found.is_empty() => Err(wrong("no certificate".to_owned())),
        Ok(found) => Ok(found),
        Err(error) => Err(wrong(error.to_string())),
    }
}

impl TlsFiles {
    /// What the files make now.
    ///
    /// # Errors
    /// The file that cannot be used.
    pub fn read(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(path) => {
                for certificate in certificates(path)? {
                    roots.add(certificate)?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let loaded = PrivateKeyDer::from_pem_file(key).map_err(|error| TlsError::File {
                    path: key.clone(),
                    cause: error.to_string(),
                })?;
                builder.with_client_auth_cert(certificates(certificate)?, loaded)?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}
