//! Why a server cannot be made or started.

use std::path::PathBuf;

use davit_access::authn::AuthenticationError;
use davit_access::authz::AuthorizationError;
use davit_access::tokens::TokenError;
use davit_api::status::Status;
use davit_netplan::ServiceRanges;
use davit_webhook::tls::TlsError;
use tokio_rustls::rustls::Error as RustlsError;

use davit_audit::AuditError;
use davit_pki::PkiError;

/// Why a server could not be made or started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Keys or certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// TLS could not be configured.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Nothing is left of what TLS offers.
    #[error("TLS of the server: {0}")]
    Offered(#[from] RustlsError),
    /// Service account keys.
    #[error(transparent)]
    Tokens(#[from] TokenError),
    /// Authorization as configured.
    #[error("authorization: {0}")]
    Authorization(#[from] AuthorizationError),
    /// Authentication as configured.
    #[error("authentication: {0}")]
    Authentication(#[from] AuthenticationError),
    /// An object every cluster has could not be made.
    #[error("setting up {what}: {status}")]
    Bootstrap {
        /// Which object.
        what: String,
        /// Why it failed.
        status: Box<Status>,
    },
    /// The store has Services of another range.
    #[error(
        "this cluster's Services have addresses of {held} for life: start it with --service-cluster-ip-range={held}, not {asked}"
    )]
    ServiceRange {
        /// The range of the store.
        held: String,
        /// The range asked for.
        asked: ServiceRanges,
    },
    /// The Service `kubernetes` would have an address of one family and endpoints of the other.
    #[error("service IP family {range:?} must match public address family {address:?}")]
    Family {
        /// The range of its address.
        range: String,
        /// The address that the others are told.
        address: String,
    },
    /// Those that share the store have other keys.
    #[error(
        "pki/ of the data directory holds other keys than those of the API servers that share the store: it must be a copy of theirs"
    )]
    OtherKeys,
    /// A certificate's file cannot be read.
    #[error("reading {}: {error}", .path.display())]
    ServingFile {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Serving needs keys, which need a data directory.
    #[error("serving needs a data directory for keys and certificates")]
    NoDataDir,
    /// The audit log.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// Encryption at rest.
    #[error("encryption at rest: {0}")]
    Encryption(#[from] davit_encryption::EncryptionError),
    /// The listener has no address.
    #[error("reading the listener's address: {0}")]
    Listener(std::io::Error),
}

impl Error {
    /// What every cluster has could not be made.
    pub(crate) fn of_bootstrap(what: impl Into<String>, status: Status) -> Self {
        Self::Bootstrap {
            what: what.into(),
            status: Box::new(status),
        }
    }
}
