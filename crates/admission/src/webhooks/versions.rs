//! Objects in the version a webhook asked for, and back.

use davit_api::status::Status;
use davit_registry::{ResourceInfo, convert};
use davit_schema::decode;
use serde_json::Value;

use crate::Attributes;

/// An object of the request in the version of `resource`.
pub(crate) fn shown(
    attributes: &Attributes<'_>,
    resource: &ResourceInfo,
    object: Option<&Value>,
) -> Result<Value, Status> {
    match object {
        None => Ok(Value::Null),
        Some(object) if attributes.has_own_kind() => {
            convert::from_storage(resource, object.clone())
        }
        Some(object) => Ok(object.clone()),
    }
}

/// An object as a webhook left it, in the storage version: decoded and with defaults as if a
/// client had sent it.
pub(crate) fn taken(
    attributes: &Attributes<'_>,
    resource: &ResourceInfo,
    object: Value,
) -> Result<Value, Status> {
    if !attributes.has_own_kind() {
        let (group, version, kind) = attributes.kind();
        let table = davit_api::kinds::builtin();
        let Some(type_id) = table.kind_type(group, version, kind) else {
            return Ok(object);
        };
        return decode::decode_value(&table.types, type_id, object)
            .map(|decoded| decoded.object)
            .map_err(Status::internal);
    }
    let shape = resource.shape();
    let decoded = shape.decode_value(object).map_err(Status::internal)?;
    let mut value = decoded.object;
    davit_registry::object::set_type(&mut value, &resource.api_version(), resource.row.kind);
    shape.default(&mut value);
    convert::stored_form(resource, value)
}
