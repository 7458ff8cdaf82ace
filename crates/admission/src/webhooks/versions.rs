//! Objects in the version a webhook asked for, and back.

use davit_api::status::Status;
use davit_registry::{ResourceInfo, convert};
use davit_schema::decode;
use serde_json::Value;

use crate::Attributes;

/// An object of the request in the version of `resource`.
pub(crate) async fn shown(
    attributes: &Attributes<'_>,
    resource: &ResourceInfo,
    object: Option<&Value>,
) -> Result<Value, Status> {
    match object {
        None => Ok(Value::Null),
        Some(object) if attributes.has_own_kind() => {
            let object = seen_in(resource, object.clone()).await?;
            convert::from_storage(resource, object)
        }
        Some(object) => Ok(object.clone()),
    }
}

/// An object as a webhook left it, in the storage version: decoded and with defaults as if a
/// client had sent it.
pub(crate) async fn taken(
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
    let value = convert::stored_form(resource, value)?;
    seen_in(attributes.resource, value).await
}

/// An object of a custom kind in the version of `resource`: such a kind's objects are in the version of the request until they
/// are stored.
async fn seen_in(resource: &ResourceInfo, object: Value) -> Result<Value, Status> {
    match resource.storage.view() {
        Some(view) if object["apiVersion"] != resource.api_version().as_str() => {
            view.read_one(object).await
        }
        _ => Ok(object),
    }
}
