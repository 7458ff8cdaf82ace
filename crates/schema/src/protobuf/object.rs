//! Whole objects: envelopes that name their kind, lists put together from ready items, watch
//! frames.

use davit_api::kinds::{KindTable, TypeId, TypeTable, split_api_version};
use davit_api::meta;
use serde_json::{Map, Value};

use super::write::bytes_field;
use super::{MAGIC, ProtobufError, decode_values, encode, envelope};

/// Longest body that is read, in bytes.
pub const MAX_LENGTH: usize = 1 << 30;

/// An object read from an envelope.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    /// `apiVersion`, as in the envelope or the default.
    pub api_version: String,
    /// `kind`, as in the envelope or the default.
    pub kind: String,
    /// The root type of the kind.
    pub type_id: TypeId,
    /// The object with `apiVersion` and `kind`; to be made canonical by
    /// [`decode_value`](crate::decode::decode_value).
    pub value: Value,
}

/// Reads an envelope of any built-in kind, such as what is stored: it has as many values as have room. `default` is the `apiVersion` and `kind` that the
/// request implies; it stands in for what the envelope leaves out.
///
/// # Errors
/// When the body is no envelope, is too long, names a kind that is not built in, or holds no
/// message of the kind.
pub fn decode_object(
    kinds: &KindTable,
    body: &[u8],
    default: Option<(&str, &str)>,
) -> Result<Object, ProtobufError> {
    if body.len() > MAX_LENGTH {
        return Err(ProtobufError::TooLong(body.len()));
    }
    let mut read = envelope(body)?;
    if let Some((api_version, kind)) = default {
        if read.api_version.is_empty() {
            read.api_version = api_version.to_owned();
        }
        if read.kind.is_empty() {
            read.kind = kind.to_owned();
        }
    }
    let root = root_of(kinds, &read.api_version, &read.kind)?;
    let mut value = decode_values(&kinds.types, root, read.raw, usize::MAX)?;
    if let (Some(object), Some(_)) = (value.as_object_mut(), kinds.types.field(root, "kind")) {
        object.insert("apiVersion".to_owned(), Value::from(&*read.api_version));
        object.insert("kind".to_owned(), Value::from(&*read.kind));
    }
    Ok(Object {
        api_version: read.api_version,
        kind: read.kind,
        type_id: root,
        value,
    })
}

/// Writes an object that names its own kind as an envelope: an object, a list of objects,
/// `Status`, `PartialObjectMetadata` or options.
///
/// # Errors
/// When the kind is unknown or has no protobuf form, or a value does not fit its field.
pub fn encode_object(kinds: &KindTable, object: &Value) -> Result<Vec<u8>, ProtobufError> {
    let (api_version, kind) = (meta::api_version(object), meta::kind(object));
    let root = root_of(kinds, api_version, kind)?;
    let raw = encode(&kinds.types, root, object)?;
    Ok(seal(api_version, kind, &raw))
}

/// The bare message of a list, from its metadata and the bare messages of its items as [`encode`]
/// makes them.
///
/// # Errors
/// When the metadata is no `ListMeta`.
pub fn encode_list<I>(
    types: &TypeTable,
    metadata: &Value,
    items: I,
) -> Result<Vec<u8>, ProtobufError>
where
    I: IntoIterator,
    I::Item: AsRef<[u8]>,
{
    let list_meta = types
        .id("meta/v1.ListMeta")
        .ok_or_else(|| ProtobufError::NoForm("meta/v1.ListMeta".to_owned()))?;
    let empty = Value::Object(Map::new());
    let metadata = if metadata.is_null() { &empty } else { metadata };
    let mut out = Vec::new();
    bytes_field(&mut out, 1, &encode(types, list_meta, metadata)?);
    for item in items {
        bytes_field(&mut out, 2, item.as_ref());
    }
    Ok(out)
}

/// Puts a bare message into an envelope; the reverse of [`envelope`].
pub fn seal(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut type_meta = Vec::with_capacity(api_version.len() + kind.len() + 4);
    bytes_field(&mut type_meta, 1, api_version.as_bytes());
    bytes_field(&mut type_meta, 2, kind.as_bytes());
    let mut out = Vec::with_capacity(MAGIC.len() + type_meta.len() + raw.len() + 16);
    out.extend_from_slice(&MAGIC);
    bytes_field(&mut out, 1, &type_meta);
    bytes_field(&mut out, 2, raw);
    bytes_field(&mut out, 3, b"");
    bytes_field(&mut out, 4, b"");
    out
}

/// A frame of a watch: the length of what follows, big-endian, and a bare `WatchEvent` around the
/// envelope of the object. (Streams are written by the raw serializer, so the event itself is in no envelope.) `event` is `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or
/// `ERROR`.
///
/// # Errors
/// When the frame would be longer than its length can say.
pub fn watch_frame(event: &str, object: &[u8]) -> Result<Vec<u8>, ProtobufError> {
    let mut raw = Vec::with_capacity(object.len() + 8);
    bytes_field(&mut raw, 1, object);
    let mut message = Vec::with_capacity(raw.len() + event.len() + 16);
    bytes_field(&mut message, 1, event.as_bytes());
    bytes_field(&mut message, 2, &raw);
    let length = u32::try_from(message.len()).map_err(|_| ProtobufError::TooLong(message.len()))?;
    let mut out = Vec::with_capacity(message.len() + 4);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&message);
    Ok(out)
}

/// The type and object envelope of the body of a watch frame, the length in front taken off.
///
/// # Errors
/// When the bytes are no watch event.
pub fn read_watch_event(event: &[u8]) -> Result<(String, &[u8]), ProtobufError> {
    let kind = super::wire::bytes_field(event, 1)?.unwrap_or_default();
    let object = super::wire::bytes_field(event, 2)?.unwrap_or_default();
    let object = super::wire::bytes_field(object, 1)?.unwrap_or_default();
    Ok((super::wire::text(kind)?, object))
}

fn root_of(kinds: &KindTable, api_version: &str, kind: &str) -> Result<TypeId, ProtobufError> {
    if kind.is_empty() {
        return Err(ProtobufError::NoKind);
    }
    let (group, version) = split_api_version(api_version);
    kinds
        .kind_type(group, version, kind)
        .map(|id| kinds.types.resolve(id))
        .ok_or_else(|| ProtobufError::UnknownKind {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        })
}
