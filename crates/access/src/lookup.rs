//! What those who decide about a request look up besides it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use davit_api::status::Status;
use davit_watchcache::Followed;
use serde_json::Value;

/// The stored objects, as plugins and authenticators see them.
#[async_trait]
pub trait Lookup: Send + Sync {
    /// A stored object in the storage version as it is now, if it exists.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn object(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Value>>, Status>;

    /// All stored objects of a resource, or of one namespace, in the storage version.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn objects(
        &self,
        group: &str,
        plural: &str,
        namespace: Option<&str>,
    ) -> Result<Vec<Value>, Status>;
}

/// The stored objects of one resource, as authorizers see them.
#[async_trait]
pub trait StoredObjects: Followed {
    /// One of them, if it exists.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn get(&self, namespace: &str, name: &str) -> Result<Option<Value>, ObjectsUnreadable>;

    /// All of them: the JSON of each.
    ///
    /// # Errors
    /// When they cannot be read.
    async fn all(&self) -> Result<Vec<Bytes>, ObjectsUnreadable>;
}

/// Finds the objects of a resource by group and plural; none where it is not served.
pub type FindObjects<'a> = dyn Fn(&str, &str) -> Option<Arc<dyn StoredObjects>> + 'a;

/// Stored objects could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ObjectsUnreadable(pub String);
