//! API servers that share a store sign with the same keys: what one has signed the others must believe.

use std::fmt::Write as _;
use std::sync::Arc;

use davit_store::{Error as StoreError, Write};
use sha2::{Digest, Sha256};

use crate::server::{ApiServer, Error, KEYS};

/// Compares the keys with those of the servers that are there already.
///
/// # Errors
/// They are others, or the store does not answer.
pub(super) async fn check(server: &Arc<ApiServer>) -> Result<(), Error> {
    let Some(pki) = server.pki() else {
        return Ok(());
    };
    let parts = [
        pki.ca_certificate().to_owned(),
        pki.front_proxy()?.ca,
        pki.service_account_key()?,
    ];
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    let mut own = String::new();
    for byte in hash.finalize() {
        // writing to a String cannot fail
        let _ = write!(own, "{byte:02x}");
    }
    match server
        .store()
        .commit(Write::create(KEYS, own.clone()))
        .await
    {
        Ok(_) => Ok(()),
        Err(StoreError::Conflict {
            current: Some(held),
            ..
        }) if held.value == own => Ok(()),
        Err(StoreError::Conflict { .. }) => Err(Error::OtherKeys),
        Err(error) => Err(Error::Bootstrap {
            what: "the keys of API servers".to_owned(),
            status: Box::new(davit_api::status::Status::internal(error)),
        }),
    }
}
