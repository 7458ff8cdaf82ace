//! Kubernetes' protobuf form of built-in kinds, read by the field numbers of the kinds table.
//!
//! Bodies are an envelope of four bytes and `runtime.Unknown`, whose `raw` is the bare message
//! (<https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding>). Messages
//! become the JSON value that the same object has; [`crate::decode::decode_value`] then brings it
//! into canonical form as it does with JSON bodies. Custom kinds have no protobuf form.

use std::cell::Cell;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use davit_api::field::quote;
use davit_api::kinds::{Field, FieldType, Opaque, TypeBody, TypeId, TypeTable};
use davit_api::time;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::raw::MAX_VALUES;

mod encode;
mod object;
mod wire;
mod write;

pub use encode::encode;
pub use object::{
    MAX_LENGTH, Object, decode_object, encode_list, encode_object, read_watch_event, seal,
    watch_frame,
};

use wire::{Reader, Wire};

/// The media type.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// The first bytes of every body.
pub const MAGIC: [u8; 4] = [0x6b, 0x38, 0x73, 0x00];
/// Messages may nest this deep.
const MAX_DEPTH: usize = 100;

/// Why bytes are no protobuf form of a kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// The four bytes in front are missing.
    #[error(
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
    )]
    Magic,
    /// The bytes end too early or hold an impossible value.
    #[error("proto: {0}")]
    Malformed(&'static str),
    /// A message has another type of value under a field's number.
    #[error("proto: wrong wireType = {wire} for field {field}")]
    WireType {
        /// The field's JSON name.
        field: String,
        /// The type found.
        wire: u8,
    },
    /// Embedded JSON cannot be parsed.
    #[error("{0}")]
    Json(String),
    /// A value of an object does not fit its field, so that it cannot be written.
    #[error("proto: {path}: {why}")]
    Value {
        /// The fields on the way from the root, as in `spec.priority`; empty for the object itself.
        path: String,
        /// What is wrong with the value.
        why: String,
    },
    /// The body is longer than can be read or framed.
    #[error("proto: message of {0} bytes is too long")]
    TooLong(usize),
    /// The message has more values than a body may have, of whatever encoding.
    #[error("limit is {MAX_VALUES} values")]
    TooMany,
    /// Neither the envelope nor the request names a kind.
    #[error("Object 'Kind' is missing in protobuf envelope")]
    NoKind,
    /// The kind is none of the built-in ones.
    #[error("no kind {} is registered for version {}", quote(.kind), quote(.api_version))]
    UnknownKind {
        /// `apiVersion` of the envelope.
        api_version: String,
        /// `kind` of the envelope.
        kind: String,
    },
    /// The type has no protobuf form, such as `Table`.
    #[error("object {0} does not have a protobuf form")]
    NoForm(String),
}

/// The outer message of a body.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Envelope<'a> {
    /// `apiVersion` of the object.
    pub api_version: String,
    /// `kind` of the object.
    pub kind: String,
    /// The bare message of the object.
    pub raw: &'a [u8],
}

/// Opens the envelope of a body.
///
/// # Errors
/// When the bytes are no envelope.
pub fn envelope(body: &[u8]) -> Result<Envelope<'_>, ProtobufError> {
    let body = body.strip_prefix(&MAGIC).ok_or(ProtobufError::Magic)?;
    let mut envelope = Envelope::default();
    let mut reader = Reader::new(body);
    while let Some((number, value)) = reader.next()? {
        match (number, value) {
            (1, Wire::Bytes(meta)) => {
                let mut meta = Reader::new(meta);
                while let Some((number, value)) = meta.next()? {
                    match (number, value) {
                        (1, Wire::Bytes(text)) => envelope.api_version = wire::text(text)?,
                        (2, Wire::Bytes(text)) => envelope.kind = wire::text(text)?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(raw)) => envelope.raw = raw,
            _ => {}
        }
    }
    Ok(envelope)
}

/// The JSON value of a bare message of the type `root`. Unknown field numbers are skipped, as
/// protobuf readers do.
///
/// # Errors
/// When the bytes are no such message, or one with more than [`MAX_VALUES`].
pub fn decode(types: &TypeTable, root: TypeId, message: &[u8]) -> Result<Value, ProtobufError> {
    decode_values(types, root, message, MAX_VALUES)
}

/// As [`decode`] for a message with at most so many values.
fn decode_values(
    types: &TypeTable,
    root: TypeId,
    message: &[u8],
    most: usize,
) -> Result<Value, ProtobufError> {
    let decoder = Decoder {
        types,
        left: Cell::new(most),
    };
    let mut out = Map::new();
    decoder.message(types.resolve(root), message, &mut out, 0)?;
    Ok(Value::Object(out))
}

struct Decoder<'t> {
    types: &'t TypeTable,
    /// So many values may still come.
    left: Cell<usize>,
}

impl<'t> Decoder<'t> {
    fn message(
        &self,
        id: TypeId,
        bytes: &[u8],
        out: &mut Map<String, Value>,
        depth: usize,
    ) -> Result<(), ProtobufError> {
        if depth > MAX_DEPTH {
            return Err(ProtobufError::Malformed("exceeded max depth"));
        }
        let fields = self.types.own_fields(id);
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next()? {
            let field = fields
                .iter()
                .find(|field| field.proto.map(u32::from) == Some(number));
            if let Some(field) = field {
                self.field(field, value, out, depth)?;
            }
        }
        Ok(())
    }

    fn field(
        &self,
        field: &'t Field,
        wire: Wire<'_>,
        out: &mut Map<String, Value>,
        depth: usize,
    ) -> Result<(), ProtobufError> {
        if field.inline {
            let (FieldType::Named(id), Wire::Bytes(bytes)) = (&field.ty, wire) else {
                return Err(mismatch(field, wire));
            };
            return self.message(self.types.resolve(*id), bytes, out, depth + 1);
        }
        match self.shape(&field.ty) {
            Shape::One(ty) => {
                let value = self.value(field, ty, wire, depth)?;
                out.insert(field.name.to_string(), value);
            }
            Shape::List(item) => {
                let slot = out
                    .entry(field.name.to_string())
                    .or_insert_with(|| json!([]));
                let Some(list) = slot.as_array_mut() else {
                    return Err(mismatch(field, wire));
                };
                self.elements(field, item, wire, list, depth)?;
            }
            Shape::Map(item) => {
                let Wire::Bytes(bytes) = wire else {
                    return Err(mismatch(field, wire));
                };
                let (key, value) = self.entry(field, item, bytes, depth)?;
                let slot = out
                    .entry(field.name.to_string())
                    .or_insert_with(|| json!({}));
                let Some(map) = slot.as_object_mut() else {
                    return Err(mismatch(field, wire));
                };
                map.insert(key, value);
            }
        }
        Ok(())
    }

    /// How a field stands in its message. Aliases of lists of text are messages of their own.
    fn shape(&self, ty: &'t FieldType) -> Shape<'t> {
        match ty {
            FieldType::List(item) => Shape::List(item),
            FieldType::Map(item) => Shape::Map(item),
            FieldType::Named(id) => match &self.types.get(*id).body {
                TypeBody::Alias { of, .. } if !is_wrapped(of) => self.shape(of),
                _ => Shape::One(ty),
            },
            _ => Shape::One(ty),
        }
    }

    /// One element, or a packed run of numbers.
    fn elements(
        &self,
        field: &'t Field,
        item: &'t FieldType,
        wire: Wire<'_>,
        list: &mut Vec<Value>,
        depth: usize,
    ) -> Result<(), ProtobufError> {
        let numeric = matches!(
            self.types.resolve_type(item),
            FieldType::Bool | FieldType::Int32 | FieldType::Int64
        );
        if let (true, Wire::Bytes(packed)) = (numeric, wire) {
            let mut reader = Reader::new(packed);
            while let Some(number) = reader.varint_or_end()? {
                list.push(self.value(field, item, Wire::Varint(number), depth)?);
            }
            return Ok(());
        }
        list.push(self.value(field, item, wire, depth)?);
        Ok(())
    }

    fn entry(
        &self,
        field: &'t Field,
        item: &'t FieldType,
        bytes: &[u8],
        depth: usize,
    ) -> Result<(String, Value), ProtobufError> {
        let mut key = String::new();
        let mut value = None;
        let mut reader = Reader::new(bytes);
        while let Some((number, wire)) = reader.next()? {
            match (number, wire) {
                (1, Wire::Bytes(bytes)) => key = wire::text(bytes)?,
                (2, wire) => value = Some(self.value(field, item, wire, depth + 1)?),
                _ => {}
            }
        }
        let value = match value {
            Some(value) => value,
            // an absent value is the empty one
            None => self
                .value(field, item, Wire::Bytes(&[]), depth + 1)
                .unwrap_or(Value::Null),
        };
        Ok((key, value))
    }

    fn value(
        &self,
        field: &'t Field,
        ty: &'t FieldType,
        wire: Wire<'_>,
        depth: usize,
    ) -> Result<Value, ProtobufError> {
        let left = self.left.get().checked_sub(1);
        self.left.set(left.ok_or(ProtobufError::TooMany)?);
        Ok(match (ty, wire) {
            (FieldType::Bool, Wire::Varint(number)) => json!(number != 0),
            // integers of 32 bits are sign-extended
            (FieldType::Int32, Wire::Varint(number)) => json!(number as i32),
            (FieldType::Int64, Wire::Varint(number)) => json!(number as i64),
            (FieldType::Float64, Wire::Fixed64(bits)) => float(f64::from_bits(bits)),
            (FieldType::String, Wire::Bytes(bytes)) => json!(wire::text(bytes)?),
            (FieldType::Bytes, Wire::Bytes(bytes)) => json!(STANDARD.encode(bytes)),
            (FieldType::Time, Wire::Bytes(bytes)) => instant(bytes, time::format)?,
            (FieldType::MicroTime, Wire::Bytes(bytes)) => instant(bytes, time::format_micro)?,
            (FieldType::Duration, Wire::Bytes(bytes)) => {
                let nanos = wire::varint_field(bytes, 1)?.unwrap_or(0);
                json!(time::format_duration(nanos as i64))
            }
            (FieldType::Quantity, Wire::Bytes(bytes)) => {
                let text = wire::bytes_field(bytes, 1)?.map(wire::text).transpose()?;
                json!(
                    text.filter(|text| !text.is_empty())
                        .unwrap_or_else(|| "0".to_owned())
                )
            }
            (FieldType::IntOrString, Wire::Bytes(bytes)) => int_or_string(bytes)?,
            (FieldType::RawExtension | FieldType::Any, Wire::Bytes(bytes)) => raw_json(bytes)?,
            (FieldType::Named(id), wire) => return self.named(field, *id, wire, depth),
            (_, wire) => return Err(mismatch(field, wire)),
        })
    }

    fn named(
        &self,
        field: &'t Field,
        id: TypeId,
        wire: Wire<'_>,
        depth: usize,
    ) -> Result<Value, ProtobufError> {
        match (&self.types.get(id).body, wire) {
            (TypeBody::Struct { .. }, Wire::Bytes(bytes)) => {
                let mut out = Map::new();
                self.message(id, bytes, &mut out, depth + 1)?;
                Ok(Value::Object(out))
            }
            (
                TypeBody::Alias {
                    of: FieldType::List(item),
                    ..
                },
                Wire::Bytes(bytes),
            ) => {
                let mut list = Vec::new();
                let mut reader = Reader::new(bytes);
                while let Some((number, wire)) = reader.next()? {
                    if number == 1 {
                        list.push(self.value(field, item, wire, depth + 1)?);
                    }
                }
                Ok(Value::Array(list))
            }
            (TypeBody::Alias { of, .. }, wire) => self.value(field, of, wire, depth),
            (TypeBody::Opaque(shape), Wire::Bytes(bytes)) => self.opaque(*shape, bytes, depth),
            (_, wire) => Err(mismatch(field, wire)),
        }
    }

    fn opaque(&self, shape: Opaque, bytes: &[u8], depth: usize) -> Result<Value, ProtobufError> {
        let schema = |bytes: &[u8]| -> Result<Value, ProtobufError> {
            let Some(id) = self.types.id("apiextensions/v1.JSONSchemaProps") else {
                return Ok(Value::Null);
            };
            let mut out = Map::new();
            self.message(id, bytes, &mut out, depth + 1)?;
            Ok(Value::Object(out))
        };
        match shape {
            Opaque::Any | Opaque::Object => raw_json(bytes),
            Opaque::SchemaOrBool => match wire::bytes_field(bytes, 2)? {
                Some(inner) => schema(inner),
                None => Ok(json!(wire::varint_field(bytes, 1)?.unwrap_or(0) != 0)),
            },
            Opaque::SchemaOrArray => match wire::bytes_field(bytes, 1)? {
                Some(inner) => schema(inner),
                None => wire::all_bytes(bytes, 2)?.into_iter().map(schema).collect(),
            },
            Opaque::SchemaOrStrings => match wire::bytes_field(bytes, 1)? {
                Some(inner) => schema(inner),
                None => {
                    let texts = wire::all_bytes(bytes, 2)?.into_iter().map(wire::text);
                    Ok(json!(texts.collect::<Result<Vec<_>, _>>()?))
                }
            },
        }
    }
}

enum Shape<'t> {
    One(&'t FieldType),
    List(&'t FieldType),
    Map(&'t FieldType),
}

fn is_wrapped(of: &FieldType) -> bool {
    matches!(of, FieldType::List(item) if **item == FieldType::String)
}

fn mismatch(field: &Field, wire: Wire<'_>) -> ProtobufError {
    ProtobufError::WireType {
        field: field.name.to_string(),
        wire: wire.number(),
    }
}

/// Whole numbers have no fraction in JSON, as Go writes them.
fn float(value: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() < EXACT {
        return json!(value as i64);
    }
    json!(value)
}

/// `Timestamp{seconds=1, nanos=2}`; an empty one is the zero time, which JSON writes as null.
fn instant(bytes: &[u8], write: fn(Timestamp) -> String) -> Result<Value, ProtobufError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let seconds = wire::varint_field(bytes, 1)?.unwrap_or(0) as i64;
    let nanos = wire::varint_field(bytes, 2)?.unwrap_or(0) as i32;
    // The rest of the year 9999, as in `time::instant`.
    let at = match seconds {
        253_402_207_201..253_402_300_800 => Ok(Timestamp::MAX),
        _ => Timestamp::new(seconds, nanos),
    };
    let at = at.map_err(|_| ProtobufError::Malformed("timestamp out of range"))?;
    Ok(json!(write(at)))
}

/// `IntOrString{type=1, intVal=2, strVal=3}`; type 1 is text.
fn int_or_string(bytes: &[u8]) -> Result<Value, ProtobufError> {
    if wire::varint_field(bytes, 1)?.unwrap_or(0) == 1 {
        let text = wire::bytes_field(bytes, 3)?.map(wire::text).transpose()?;
        return Ok(json!(text.unwrap_or_default()));
    }
    Ok(json!(wire::varint_field(bytes, 2)?.unwrap_or(0) as i32))
}

/// Messages whose field 1 is JSON text.
fn raw_json(bytes: &[u8]) -> Result<Value, ProtobufError> {
    match wire::bytes_field(bytes, 1)? {
        None | Some([]) => Ok(Value::Null),
        Some(raw) => serde_json::from_slice(raw).map_err(|e| ProtobufError::Json(e.to_string())),
    }
}

#[cfg(test)]
mod fidelity;
#[cfg(test)]
mod tests;
