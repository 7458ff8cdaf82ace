//! What those who decide about a request look up besides it.

use async_trait::async_trait;
use davit_api::status::Status;
use serde_json::Value;

/// The stored objects, as plugins and authenticators see them.
#[async_trait]
pub(crate) trait Lookup: Send + Sync {
    /// A stored object in the storage version, if it exists.
    ///
    /// # Errors
    /// When it cannot be read.
    async fn object(
        &self,
        group: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, Status>;

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
