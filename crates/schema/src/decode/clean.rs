//! Which values stand in an object and which go without saying.
//!
//! Go writes an optional field only when it is not empty, pointers whenever they are set, and what has
//! no `omitempty` always, as do structs that are no pointers, be they empty. Lists, maps, bytes,
//! pointers and times that nobody gave are null there.

use davit_api::kinds::{Field, FieldType, TypeBody, TypeId, TypeTable};
use serde_json::{Map, Value};

use crate::raw::text_len;

/// Whether a field's value is written.
pub(super) fn is_kept(types: &TypeTable, field: &Field, value: &Value) -> bool {
    if is_hollow(types, field, value) {
        return false;
    }
    if field.required || field.written || field.nullable {
        return true;
    }
    match types.resolve_type(&field.ty) {
        FieldType::Bool => value != &Value::Bool(false),
        FieldType::Int32 | FieldType::Int64 | FieldType::Float64 => {
            value.as_f64().is_none_or(|n| n != 0.0)
        }
        FieldType::String | FieldType::Bytes => value.as_str() != Some(""),
        FieldType::List(_) => value.as_array().is_none_or(|l| !l.is_empty()),
        FieldType::Map(_) => value.as_object().is_none_or(|m| !m.is_empty()),
        _ => true,
    }
}

/// Whether a value is an empty list or map of a field that is null when it is not given: what is stored makes no difference
/// between the two.
fn is_hollow(types: &TypeTable, field: &Field, value: &Value) -> bool {
    let is_empty = match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        _ => false,
    };
    is_empty && !field.nullable && is_null_when_unset(types, field)
}

/// Whether Go writes null for a field that was not given.
pub(super) fn is_null_when_unset(types: &TypeTable, field: &Field) -> bool {
    let has_no_zero = || {
        matches!(
            types.resolve_type(&field.ty),
            FieldType::List(_)
                | FieldType::Map(_)
                | FieldType::Bytes
                | FieldType::Time
                | FieldType::MicroTime
        )
    };
    field.written && (field.nullable || has_no_zero())
}

/// Adds what Go writes for fields that were not given.
pub(super) fn complete(types: &TypeTable, id: TypeId, object: &mut Map<String, Value>) {
    for field in types.fields_of_absence(id) {
        if object.contains_key(&*field.name) {
            continue;
        }
        if let Some(value) = unsaid(types, field) {
            object.insert(field.name.to_string(), value);
        }
    }
}

/// What Go writes for a field that was not given.
fn unsaid(types: &TypeTable, field: &Field) -> Option<Value> {
    if is_null_when_unset(types, field) {
        return Some(Value::Null);
    }
    if field.nullable {
        return None;
    }
    let ty = types.resolve_type(&field.ty);
    match ty {
        FieldType::Named(_) => struct_zero(types, ty),
        _ if field.required || field.written => scalar_zero(ty),
        _ => None,
    }
}

/// How many bytes of text go without saying in an object at most: those of forty thousand containers. A list of `{}` is much
/// longer when all that it does not say is written out, and takes more time to validate than there is.
const MOST_UNSAID: usize = 1 << 20;

/// How much the structs of an object leave out.
#[derive(Debug, Default)]
pub(super) struct Unsaid {
    bytes: usize,
}

impl Unsaid {
    /// Counts what [`complete`] and declared defaults add to a struct.
    pub(super) fn count(&mut self, types: &TypeTable, id: TypeId, object: &Map<String, Value>) {
        for field in types.fields_of_absence(id) {
            if object.contains_key(&*field.name) {
                continue;
            }
            let value = match &field.default {
                Some(default) => text_len(default),
                None => self.unsaid_len(types, field),
            };
            if value > 0 {
                self.bytes = self.bytes.saturating_add(field.name.len() + 4 + value);
            }
        }
    }

    /// The length of what stands for a field without a default; structs in it are counted as others are.
    fn unsaid_len(&mut self, types: &TypeTable, field: &Field) -> usize {
        let is_struct = |id| matches!(types.get(id).body, TypeBody::Struct { .. });
        match types.resolve_type(&field.ty) {
            FieldType::Named(id) if is_struct(*id) && !field.nullable => {
                self.count(types, *id, &Map::new());
                2
            }
            _ => unsaid(types, field).as_ref().map_or(0, text_len),
        }
    }

    /// Whether no object holds as much.
    pub(super) fn is_too_much(&self) -> bool {
        self.bytes > MOST_UNSAID
    }

    /// What is wrong with an object that leaves out too much.
    pub(super) fn refusal() -> String {
        format!("limit is {MOST_UNSAID} bytes of what it does not say")
    }
}

/// Whether nothing is missing that [`complete`] would add.
pub(super) fn is_complete(types: &TypeTable, id: TypeId, object: &Map<String, Value>) -> bool {
    types
        .fields_of_absence(id)
        .all(|field| object.contains_key(&*field.name) || unsaid(types, field).is_none())
}

fn scalar_zero(ty: &FieldType) -> Option<Value> {
    Some(match ty {
        FieldType::Bool => Value::Bool(false),
        FieldType::Int32 | FieldType::Int64 | FieldType::Float64 | FieldType::IntOrString => {
            Value::from(0)
        }
        FieldType::String | FieldType::Bytes => Value::from(""),
        FieldType::Quantity => Value::from("0"),
        _ => return None,
    })
}

fn struct_zero(types: &TypeTable, ty: &FieldType) -> Option<Value> {
    let FieldType::Named(id) = ty else {
        return None;
    };
    if !matches!(types.get(*id).body, TypeBody::Struct { .. }) {
        return None;
    }
    let mut out = Map::new();
    complete(types, *id, &mut out);
    Some(Value::Object(out))
}

/// The empty value of a type: what Go writes for one that was never set. None for types that have
/// none but null (lists, maps, times).
pub fn zero_value(types: &TypeTable, ty: &FieldType) -> Option<Value> {
    let ty = types.resolve_type(ty);
    scalar_zero(ty).or_else(|| struct_zero(types, ty))
}

/// The empty value for a null among the elements of a list or map.
pub(super) fn zero_or_null(types: &TypeTable, ty: &FieldType) -> Value {
    zero_value(types, ty).unwrap_or(Value::Null)
}
