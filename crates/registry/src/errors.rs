//! The one place where failures of the layers below become what the API answers with.

use davit_api::status::Status;
use davit_store::Error as StoreError;
use davit_watchcache::{CacheError, CachedObject};

use crate::ResourceInfo;
use crate::storage::StorageError;

/// Body and path name different namespaces.
pub const NAMESPACE_MISMATCH: &str =
    "the namespace of the provided object does not match the namespace sent on the request";

/// A failure to read or write `name` of `resource`.
pub fn storage(error: StorageError, resource: &ResourceInfo, name: &str) -> Status {
    match error {
        StorageError::Exists(_) => Status::already_exists(resource.qualified(), name),
        StorageError::Changed(held) if held.is_none() => {
            Status::not_found(resource.qualified(), name)
        }
        StorageError::Changed(_) => Status::conflict_modified(resource.qualified(), name),
        StorageError::Unreadable { .. } => {
            tracing::error!(%error, "reading a stored object");
            Status::internal(error)
        }
        StorageError::Refused(status) => *status,
        StorageError::Store(error) => store(error, resource),
    }
}

/// Whether what was found is an object.
///
/// # Errors
/// It cannot be read. Lists and watches in which it is fail as a whole, as those of kube-apiserver: without it they would tell
/// that it is gone.
pub fn readable(object: &CachedObject) -> Result<(), Status> {
    if !object.header().unreadable {
        return Ok(());
    }
    let key = object.key();
    Err(Status::internal(format!(
        "stored object {key} cannot be read"
    )))
}

/// A failure of a list or watch of `resource`.
pub fn cache(error: CacheError, resource: &ResourceInfo) -> Status {
    match error {
        CacheError::Expired { requested, oldest } => {
            Status::too_old_resource_version(requested, oldest)
        }
        CacheError::TooLarge { requested, current } => {
            Status::too_large_resource_version(requested, current)
        }
        CacheError::NotReady => Status::too_many_requests(error.to_string(), 1),
        CacheError::TooSlow { .. } => Status::expired(error.to_string()),
        CacheError::Store(error) => store(error, resource),
    }
}

/// A failure of the store while working on `resource`.
pub fn store(error: StoreError, resource: &ResourceInfo) -> Status {
    match error {
        StoreError::Compacted { .. } => {
            Status::expired("The resourceVersion for the provided list is too old.")
        }
        StoreError::FutureRevision { requested, current } => {
            Status::too_large_resource_version(requested, current)
        }
        StoreError::TooLarge { limit, .. } => Status::request_entity_too_large(limit),
        StoreError::InvalidKey { .. } => Status::bad_request(error.to_string()),
        StoreError::Busy { .. } | StoreError::Overflow { .. } => {
            Status::too_many_requests(error.to_string(), 1)
        }
        // The store has said so in the log, once.
        StoreError::Full => Status::internal(error),
        StoreError::OutcomeUnknown { .. } => Status::timeout(error, 0),
        // In etcd's words, which administrators know.
        StoreError::Refused(_) | StoreError::Unavailable(_) => Status::internal(error),
        StoreError::Closed => {
            Status::service_unavailable("apiserver is shutting down").with_retry_after(1)
        }
        error => {
            tracing::error!(%error, resource = resource.row.plural, "store");
            Status::internal(error)
        }
    }
}
