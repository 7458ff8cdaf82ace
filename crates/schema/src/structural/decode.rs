//! From bytes to an object of a custom kind.

use std::borrow::Cow;
use std::fmt::Write as _;

use davit_api::field::quote;
use serde_json::{Map, Value};

use super::{Structural, canonical, meta, prune};
use crate::decode::{DecodeError, Decoded, Encoding};
use crate::raw::{Raw, json, too_deep, yaml};

const MAX_STRICT: usize = 100;

/// Parses a body without a schema; tells repeated fields as strict errors.
///
/// # Errors
/// When the body cannot be parsed.
pub fn parse_bytes(body: &[u8], encoding: Encoding) -> Result<Decoded, DecodeError> {
    let mut strict = Vec::new();
    let raw = match encoding {
        Encoding::Json => json::read(body)?,
        Encoding::Yaml => {
            let read = yaml::read(body).map_err(DecodeError::Syntax)?;
            strict.extend(read.duplicates);
            read.value
        }
    };
    let mut reader = Reader {
        path: String::new(),
        strict,
    };
    let object = reader.value(raw).map_err(|number| {
        DecodeError::Value(format!(
            "json: cannot unmarshal number {number} into Go value of type float64"
        ))
    })?;
    Ok(Decoded {
        object: canonical(object),
        strict: reader.strict,
    })
}

pub(super) fn decode(
    schema: &Structural,
    body: &[u8],
    encoding: Encoding,
) -> Result<Decoded, DecodeError> {
    let parsed = parse_bytes(body, encoding)?;
    finish(schema, parsed.object, parsed.strict)
}

pub(super) fn decode_value(schema: &Structural, value: Value) -> Result<Decoded, DecodeError> {
    if too_deep(&value) {
        return Err(DecodeError::Value("exceeded max depth".to_owned()));
    }
    finish(schema, canonical(value), Vec::new())
}

fn finish(
    schema: &Structural,
    mut object: Value,
    mut strict: Vec<String>,
) -> Result<Decoded, DecodeError> {
    if !object.is_object() {
        let word = Raw::from_value(object).go_word();
        return Err(DecodeError::Value(format!(
            "json: cannot unmarshal {word} into Go value of type map[string]interface {{}}"
        )));
    }
    let unknown = prune::prune(&mut object, schema.root(), true);
    let unknown = unknown.iter().map(String::as_str);
    let told = |path: &str| format!("unknown field {}", quote(path));
    strict.extend(unknown.map(told));
    let unknown = meta::coerce(&mut object, schema.root()).map_err(DecodeError::Value)?;
    strict.extend(unknown.iter().map(|path| told(path)));
    strict.truncate(MAX_STRICT);
    Ok(Decoded { object, strict })
}

struct Reader {
    path: String,
    strict: Vec<String>,
}

impl Reader {
    /// The value, of repeated keys the last; the error is a number that fits no type.
    fn value(&mut self, raw: Raw<'_>) -> Result<Value, String> {
        Ok(match raw {
            Raw::Array(items) => {
                let mut out = Vec::with_capacity(items.len());
                for (i, item) in items.into_iter().enumerate() {
                    let len = self.path.len();
                    let _ = write!(self.path, "[{i}]");
                    out.push(self.value(item)?);
                    self.path.truncate(len);
                }
                Value::Array(out)
            }
            Raw::Object(entries) => Value::Object(self.object(entries)?),
            other => other.into_value()?,
        })
    }

    fn object(
        &mut self,
        entries: Vec<(Cow<'_, str>, Raw<'_>)>,
    ) -> Result<Map<String, Value>, String> {
        let mut out = Map::new();
        for (key, raw) in entries {
            let len = self.path.len();
            if len > 0 {
                self.path.push('.');
            }
            self.path.push_str(&key);
            if out.contains_key(&*key) && self.strict.len() < MAX_STRICT {
                let text = format!("duplicate field {}", quote(&self.path));
                if !self.strict.contains(&text) {
                    self.strict.push(text);
                }
            }
            let value = self.value(raw)?;
            self.path.truncate(len);
            out.insert(key.into_owned(), value);
        }
        Ok(out)
    }
}
