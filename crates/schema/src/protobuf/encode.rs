//! From JSON values to messages.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use davit_api::kinds::{Field, FieldType, Opaque, TypeBody, TypeId, TypeTable};
use davit_api::quantity::Quantity;
use davit_api::time;
use serde_json::{Map, Value};

use super::write::{Backwards, FIXED64, VARINT};
use super::{ProtobufError, is_wrapped};

type Object = Map<String, Value>;

/// The bare message of an object of the type `root`.
///
/// The object is expected in its canonical form
/// ([`decode_value`](crate::decode::decode_value)); fields that are not in the table are left out.
/// Pointers ([`Field::nullable`]) are written when they are set, every other field always, so that
/// the bytes are those of the original.
///
/// # Errors
/// When the type has no protobuf form, or a value does not fit its field.
pub fn encode(types: &TypeTable, root: TypeId, object: &Value) -> Result<Vec<u8>, ProtobufError> {
    let mut encoder = Encoder {
        types,
        out: Backwards::default(),
        path: Vec::new(),
    };
    let root = types.resolve(root);
    if !types.own_fields(root).iter().any(|f| f.proto.is_some())
        && types.own_fields(root).iter().any(|f| !f.inline)
    {
        return Err(ProtobufError::NoForm(types.get(root).name.to_string()));
    }
    let Value::Object(object) = object else {
        return Err(mismatch("", "expected an object".to_owned()));
    };
    encoder.object(root, object)?;
    Ok(encoder.out.finish())
}

struct Encoder<'t> {
    types: &'t TypeTable,
    out: Backwards,
    /// The names of the fields on the way, for errors.
    path: Vec<&'t str>,
}

type Outcome = Result<(), ProtobufError>;

impl<'t> Encoder<'t> {
    /// Writes the fields of a struct, the one with the highest number first.
    fn object(&mut self, id: TypeId, object: &Object) -> Outcome {
        let mut fields: Vec<(u16, &'t Field)> = self
            .types
            .own_fields(id)
            .iter()
            .filter_map(|f| Some((f.proto?, f)))
            .collect();
        fields.sort_unstable_by_key(|(number, _)| *number);
        for (number, field) in fields.into_iter().rev() {
            if field.inline {
                let mark = self.out.mark();
                if let FieldType::Named(inner) = &field.ty {
                    self.object(self.types.resolve(*inner), object)?;
                }
                self.out.close(number, mark);
                continue;
            }
            self.path.push(&field.name);
            let value = object.get(&*field.name).filter(|v| !v.is_null());
            self.field(number, field, value)?;
            self.path.pop();
        }
        Ok(())
    }

    fn field(&mut self, number: u16, field: &'t Field, value: Option<&Value>) -> Outcome {
        match value {
            Some(value) => {
                let told_apart = field.nullable || field.written;
                self.value(number, &field.ty, value, told_apart)
            }
            None if field.nullable => Ok(()),
            None => self.absent(number, &field.ty),
        }
    }

    /// Writes what Go writes for a field that was never set and is no pointer.
    fn absent(&mut self, number: u16, ty: &'t FieldType) -> Outcome {
        match self.types.resolve_type(ty) {
            FieldType::Bool | FieldType::Int32 | FieldType::Int64 => self.out.integer(number, 0),
            FieldType::Float64 => self.float(number, 0.0),
            FieldType::String | FieldType::Time | FieldType::MicroTime => {
                self.out.bytes(number, b"");
            }
            FieldType::RawExtension | FieldType::Any => self.out.bytes(number, b""),
            FieldType::Quantity => {
                let mark = self.out.mark();
                self.out.bytes(1, b"0");
                self.out.close(number, mark);
            }
            FieldType::Duration => {
                let mark = self.out.mark();
                self.out.integer(1, 0);
                self.out.close(number, mark);
            }
            FieldType::IntOrString => self.int_or_string(number, 0, 0, ""),
            FieldType::Bytes | FieldType::List(_) | FieldType::Map(_) => {}
            FieldType::Named(id) => {
                let mark = self.out.mark();
                if matches!(self.types.get(*id).body, TypeBody::Struct { .. }) {
                    self.object(*id, &Object::new())?;
                }
                self.out.close(number, mark);
            }
        }
        Ok(())
    }

    /// Writes a value; `set` tells that an empty one was given on purpose.
    fn value(&mut self, number: u16, ty: &'t FieldType, value: &Value, set: bool) -> Outcome {
        if is_message_of_strings(self.types, ty) {
            let mark = self.out.mark();
            self.list(1, &FieldType::String, value)?;
            self.out.close(number, mark);
            return Ok(());
        }
        match (self.types.resolve_type(ty), value) {
            (FieldType::Bool, Value::Bool(b)) => {
                self.out.varint(u64::from(*b));
                self.out.tag(number, VARINT);
            }
            (FieldType::Int32 | FieldType::Int64, Value::Number(n)) => {
                let n = n.as_i64().ok_or_else(|| self.mismatch("an integer"))?;
                self.out.integer(number, n);
            }
            (FieldType::Float64, Value::Number(n)) => {
                let n = n.as_f64().ok_or_else(|| self.mismatch("a number"))?;
                self.float(number, n);
            }
            (FieldType::String, Value::String(s)) => self.out.bytes(number, s.as_bytes()),
            (FieldType::Bytes, Value::String(s)) => {
                let bytes = STANDARD.decode(s).map_err(|_| self.mismatch("base64"))?;
                // Where JSON has one word for empty and never set, Go writes only the former.
                if set || !bytes.is_empty() {
                    self.out.bytes(number, &bytes);
                }
            }
            (FieldType::Time | FieldType::MicroTime, Value::String(s)) => {
                self.time(number, ty, s)?;
            }
            (FieldType::Duration, Value::String(s)) => {
                let nanos =
                    time::parse_duration(s).map_err(|e| self.mismatch_because(e.to_string()))?;
                let mark = self.out.mark();
                self.out.integer(1, nanos);
                self.out.close(number, mark);
            }
            (FieldType::Quantity, value) => self.quantity(number, value)?,
            (FieldType::IntOrString, Value::String(s)) => self.int_or_string(number, 1, 0, s),
            (FieldType::IntOrString, Value::Number(n)) => {
                let n = n.as_i64().ok_or_else(|| self.mismatch("an integer"))?;
                self.int_or_string(number, 0, n, "");
            }
            (FieldType::RawExtension | FieldType::Any, value) => self.json(number, value),
            (FieldType::List(item), value) => self.list(number, item, value)?,
            (FieldType::Map(item), value) => self.map(number, item, value)?,
            (FieldType::Named(id), value) => self.named(number, *id, value)?,
            (ty, _) => return Err(self.mismatch(word(ty))),
        }
        Ok(())
    }

    fn named(&mut self, number: u16, id: TypeId, value: &Value) -> Outcome {
        let mark = self.out.mark();
        match (&self.types.get(id).body, value) {
            (TypeBody::Struct { .. }, Value::Object(object)) => self.object(id, object)?,
            (TypeBody::Struct { .. }, Value::Null) => self.object(id, &Object::new())?,
            (TypeBody::Opaque(shape), value) => return self.opaque(number, *shape, value),
            _ => return Err(self.mismatch("an object")),
        }
        self.out.close(number, mark);
        Ok(())
    }

    fn opaque(&mut self, number: u16, shape: Opaque, value: &Value) -> Outcome {
        let mark = self.out.mark();
        match (shape, value) {
            (Opaque::Any | Opaque::Object, value) => {
                self.json(number, value);
                return Ok(());
            }
            (Opaque::SchemaOrBool, Value::Bool(b)) => self.out.integer(1, i64::from(*b)),
            (Opaque::SchemaOrBool, Value::Object(_)) => {
                self.schema(2, value)?;
                self.out.integer(1, 1);
            }
            (Opaque::SchemaOrArray | Opaque::SchemaOrStrings, Value::Object(_)) => {
                self.schema(1, value)?;
            }
            (Opaque::SchemaOrArray, Value::Array(items)) => {
                for item in items.iter().rev() {
                    self.schema(2, item)?;
                }
            }
            (Opaque::SchemaOrStrings, list) => self.list(2, &FieldType::String, list)?,
            _ => return Err(self.mismatch("a schema")),
        }
        self.out.close(number, mark);
        Ok(())
    }

    fn schema(&mut self, number: u16, value: &Value) -> Outcome {
        match self.types.id("apiextensions/v1.JSONSchemaProps") {
            Some(id) => self.named(number, id, value),
            None => Err(self.mismatch("a schema")),
        }
    }

    fn list(&mut self, number: u16, item: &'t FieldType, value: &Value) -> Outcome {
        let Value::Array(items) = value else {
            return Err(self.mismatch("a list"));
        };
        for value in items.iter().rev() {
            self.item(number, item, value)?;
        }
        Ok(())
    }

    /// Writes an element of a list or the value of a map entry: null is the empty value.
    fn item(&mut self, number: u16, ty: &'t FieldType, value: &Value) -> Outcome {
        if value.is_null() {
            self.absent(number, ty)
        } else {
            self.value(number, ty, value, true)
        }
    }

    fn map(&mut self, number: u16, item: &'t FieldType, value: &Value) -> Outcome {
        let Value::Object(entries) = value else {
            return Err(self.mismatch("an object"));
        };
        let mut entries: Vec<(&String, &Value)> = entries.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        for (key, value) in entries.into_iter().rev() {
            let mark = self.out.mark();
            self.item(2, item, value)?;
            self.out.bytes(1, key.as_bytes());
            self.out.close(number, mark);
        }
        Ok(())
    }

    fn float(&mut self, number: u16, value: f64) {
        self.out.put(&value.to_le_bytes());
        self.out.tag(number, FIXED64);
    }

    fn time(&mut self, number: u16, ty: &FieldType, text: &str) -> Outcome {
        let t = time::parse(text).map_err(|e| self.mismatch_because(e.to_string()))?;
        let nanos = t.as_nanosecond();
        let seconds = nanos.div_euclid(1_000_000_000) as i64;
        let fraction = match self.types.resolve_type(ty) {
            FieldType::MicroTime => nanos.rem_euclid(1_000_000_000) as i64 / 1000 * 1000,
            _ => 0,
        };
        let mark = self.out.mark();
        self.out.integer(2, fraction);
        self.out.integer(1, seconds);
        self.out.close(number, mark);
        Ok(())
    }

    fn quantity(&mut self, number: u16, value: &Value) -> Outcome {
        let text = match value {
            Value::String(s) => s.clone(),
            Value::Number(n) => n.to_string(),
            _ => return Err(self.mismatch("a quantity")),
        };
        let canonical = Quantity::canonicalize(&text)
            .map_err(|e| self.mismatch_because(e.to_string()))?
            .into_owned();
        let mark = self.out.mark();
        self.out.bytes(1, canonical.as_bytes());
        self.out.close(number, mark);
        Ok(())
    }

    fn int_or_string(&mut self, number: u16, kind: i64, int: i64, text: &str) {
        let mark = self.out.mark();
        self.out.bytes(3, text.as_bytes());
        self.out.integer(2, int);
        self.out.integer(1, kind);
        self.out.close(number, mark);
    }

    /// Writes a message whose only field is JSON text.
    fn json(&mut self, number: u16, value: &Value) {
        let mark = self.out.mark();
        if !value.is_null() {
            self.out.bytes(1, value.to_string().as_bytes());
        }
        self.out.close(number, mark);
    }

    fn mismatch(&self, want: &str) -> ProtobufError {
        self.mismatch_because(format!("expected {want}"))
    }

    fn mismatch_because(&self, why: String) -> ProtobufError {
        mismatch(&self.path.join("."), why)
    }
}

/// Named lists of texts (`ExtraValue`, `Verbs`) are messages of their own with the texts as field
/// 1; other named lists and maps stand in the field directly.
fn is_message_of_strings(types: &TypeTable, ty: &FieldType) -> bool {
    let FieldType::Named(id) = ty else {
        return false;
    };
    match &types.get(types.resolve(*id)).body {
        TypeBody::Alias { of, .. } => is_wrapped(of),
        _ => false,
    }
}

fn mismatch(path: &str, why: String) -> ProtobufError {
    ProtobufError::Value {
        path: path.to_owned(),
        why,
    }
}

fn word(ty: &FieldType) -> &'static str {
    match ty {
        FieldType::Bool => "a boolean",
        FieldType::Int32 | FieldType::Int64 => "an integer",
        FieldType::Float64 => "a number",
        FieldType::List(_) => "a list",
        FieldType::Map(_) | FieldType::Named(_) => "an object",
        _ => "a string",
    }
}
