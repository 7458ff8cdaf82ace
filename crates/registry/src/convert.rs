//! Between the version a resource is served in and the one its objects are stored in.

use davit_api::status::Status;
use davit_schema::convert::convert;
pub use davit_schema::convert::field;
use serde_json::Value;

use crate::ResourceInfo;

/// An object in the version of `resource`, in the version it is stored in. Objects of
/// custom kinds are converted by their storage.
pub fn to_storage(resource: &ResourceInfo, mut value: Value) -> Result<Value, Status> {
    if resource.is_converted() {
        convert(
            resource.row.kind,
            &mut value,
            &resource.api_version(),
            &resource.storage.api_version(),
        );
    }
    Ok(value)
}

/// An object as it is stored, in the version of `resource`.
pub fn from_storage(resource: &ResourceInfo, mut value: Value) -> Result<Value, Status> {
    if resource.is_converted() {
        convert(
            resource.row.kind,
            &mut value,
            &resource.storage.api_version(),
            &resource.api_version(),
        );
    }
    Ok(value)
}

/// A decoded object of the request's version in the storage version, with all defaults.
pub fn stored_form(resource: &ResourceInfo, value: Value) -> Result<Value, Status> {
    let mut value = to_storage(resource, value)?;
    let storage = &resource.storage;
    if resource.is_converted() {
        storage.shape().default(&mut value);
    }
    storage.strategy().default(&mut value);
    Ok(value)
}
