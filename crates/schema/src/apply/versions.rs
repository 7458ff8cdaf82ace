//! The other versions of a kind, whose entries of `managedFields` name fields as those versions do.

use std::fmt::Debug;

use serde_json::Value;

use super::typed::Schema;

/// The versions in which a kind is served.
///
/// Entries of managers say in which version they own fields. Where the shapes of versions differ,
/// a change is compared in the version of each entry.
pub trait Versions: Debug + Sync {
    /// The schema of a version (`apps/v1`); none when the kind is not served in it, whose entries
    /// are dropped.
    fn schema(&self, api_version: &str) -> Option<Schema<'_>>;

    /// An object of version `from` in version `to`; none when it cannot be converted.
    fn convert(&self, object: &Value, from: &str, to: &str) -> Option<Value>;
}
