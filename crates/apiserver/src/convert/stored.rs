//! Between the version a resource is served in and the one its objects are stored in.

use davit_api::field;
use davit_api::kinds::api_version;
use davit_api::status::{Qualified, Status};
use serde_json::Value;

use super::convert;
use crate::registry::ResourceInfo;

/// An object in the version of `resource`, in the version it is stored in.
///
/// # Errors
/// Invalid, when the object lacks what the stored version cannot do without.
pub(crate) fn to_storage(resource: &ResourceInfo, mut value: Value) -> Result<Value, Status> {
    let stored = api_version(resource.storage.group(), resource.storage.version());
    let kind = resource.row.kind;
    convert(kind, &mut value, &resource.api_version(), &stored).map_err(|errors| {
        let name = value.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        Status::invalid(Qualified::new(resource.row.group, kind), name, &errors)
    })?;
    Ok(value)
}

/// An object as it is stored, in the version of `resource`.
///
/// # Errors
/// As [`to_storage`]; stored objects were complete when they were written.
pub(crate) fn from_storage(resource: &ResourceInfo, mut value: Value) -> Result<Value, Status> {
    let stored = api_version(resource.storage.group(), resource.storage.version());
    convert(resource.row.kind, &mut value, &stored, &resource.api_version())
        .map_err(|errors| Status::internal(field::aggregate(&errors)))?;
    Ok(value)
}
