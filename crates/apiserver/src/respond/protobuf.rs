//! Answers in protobuf that are put together from the messages of their objects, so that no list is ever a tree in memory.

use bytes::Bytes;
use davit_registry::ResourceInfo;
use davit_schema::protobuf::{ProtobufError, encode, encode_list, seal};
use davit_watchcache::{CachedObject, metadata_of};
use serde_json::Value;

use super::{Item, ListMeta, partial};

const PARTIAL: &str = "meta/v1.PartialObjectMetadata";

/// The bare message of an object that the cache has in the version of `resource`.
pub(crate) fn message(
    resource: &ResourceInfo,
    object: &CachedObject,
) -> Result<Bytes, ProtobufError> {
    object.protobuf(|json| {
        let value = serde_json::from_slice(json).unwrap_or(Value::Null);
        encode(&resource.types, resource.type_id(), &value)
    })
}

/// A list of whole objects.
pub(super) fn list(
    resource: &ResourceInfo,
    items: &[Item],
    meta: &ListMeta,
) -> Result<Vec<u8>, ProtobufError> {
    let messages = items
        .iter()
        .map(|item| match item {
            Item::Cached(object) => message(resource, object),
            Item::Value(value) => {
                encode(&resource.types, resource.type_id(), value).map(Bytes::from)
            }
        })
        .collect::<Result<Vec<_>, _>>()?;
    let raw = encode_list(&resource.types, &meta.to_value(), messages)?;
    Ok(seal(&resource.api_version(), &resource.list_kind(), &raw))
}

/// A list of the objects' metadata.
pub(super) fn partial_list(
    items: &[Item],
    version: &str,
    meta: &ListMeta,
) -> Result<Vec<u8>, ProtobufError> {
    let types = &davit_api::kinds::builtin().types;
    let root = types
        .id(PARTIAL)
        .ok_or_else(|| ProtobufError::NoForm(PARTIAL.to_owned()))?;
    let message = |item: &Item| {
        let object = match item {
            Item::Cached(object) => {
                let json = object.json();
                let metadata = metadata_of(&json).unwrap_or(b"{}");
                let metadata: Value = serde_json::from_slice(metadata).unwrap_or(Value::Null);
                serde_json::json!({ "metadata": metadata })
            }
            Item::Value(value) => partial(value, version),
        };
        encode(types, root, &object)
    };
    let messages = items.iter().map(message).collect::<Result<Vec<_>, _>>()?;
    let raw = encode_list(types, &meta.to_value(), messages)?;
    let api_version = format!("meta.k8s.io/{version}");
    Ok(seal(&api_version, "PartialObjectMetadataList", &raw))
}
