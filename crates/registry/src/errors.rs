//! The one place where failures of the layers below become what the API answers with.

use davit_api::status::Status;
use davit_store::{Error as StoreError, MOST_UNREADABLE, UnreadableValue};
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

/// Whether what was found are objects.
///
/// # Errors
/// Some cannot be read, and the first of them are named. Lists and watches in which they are fail as a whole, as those of
/// kube-apiserver: without them they would tell that they are gone.
pub fn readable<'a>(
    objects: impl IntoIterator<Item = &'a CachedObject>,
    resource: &ResourceInfo,
) -> Result<(), Status> {
    let unreadable = |object: &&CachedObject| object.header().unreadable;
    let mut rest = objects.into_iter().filter(unreadable);
    let named = |object: &CachedObject| UnreadableValue {
        key: object.key().to_string(),
        revision: object.revision(),
        detail: "it is no object".to_owned(),
    };
    let found: Vec<_> = rest.by_ref().take(MOST_UNREADABLE).map(named).collect();
    match found.is_empty() {
        true => Ok(()),
        false => Err(unreadable_values(&found, rest.next().is_some(), resource)),
    }
}

fn unreadable_values(found: &[UnreadableValue], more: bool, resource: &ResourceInfo) -> Status {
    let mut status = Status::storage_read_error(resource.qualified());
    for value in found {
        let message = format!(
            "stored object {} of revision {} cannot be read: {}",
            value.key, value.revision, value.detail
        );
        status = status.with_cause("UnexpectedServerResponse", &message, &value.key);
    }
    match more {
        true => status.with_cause("FieldValueTooMany", "there are more than are told here", ""),
        false => status,
    }
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
        CacheError::Store(StoreError::Unreadable { found, more }) => {
            unreadable_values(&found, more, resource)
        }
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
