//! Parsed but untyped input: objects keep the order and the repetitions of their keys, numbers
//! their spelling.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::{Map, Number, Value};

pub(crate) mod json;
pub(crate) mod yaml;

/// Deepest nesting that is read. Kubernetes goes to 10000; what is stored must also be readable by
/// parsers that recurse, which stop at 128.
pub const MAX_DEPTH: usize = 120;

/// Most values of one body. Three mebibytes are some ten thousand values of the objects that people write, and 350 000 of the
/// smallest that mean anything; of `{}` a million, each of which takes a hundred times its length until it is refused.
pub const MAX_VALUES: usize = 500_000;

/// Why text cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// It is no JSON or YAML; the sentence says why.
    Syntax(String),
    /// It has more than [`MAX_VALUES`].
    TooMany,
}

/// So many repeated keys are told.
const REPEATED: usize = 100;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Raw<'a> {
    Null,
    Bool(bool),
    Number(Cow<'a, str>),
    String(Cow<'a, str>),
    Array(Vec<Raw<'a>>),
    Object(Vec<(Cow<'a, str>, Raw<'a>)>),
}

impl Raw<'_> {
    /// The word that Go uses for the kind of JSON value.
    pub(crate) fn go_word(&self) -> &'static str {
        match self {
            Raw::Null => "null",
            Raw::Bool(_) => "bool",
            Raw::Number(_) => "number",
            Raw::String(_) => "string",
            Raw::Array(_) => "array",
            Raw::Object(_) => "object",
        }
    }

    /// The value without regard to a type; later repetitions of a key win. The error is the number
    /// that fits no type.
    pub(crate) fn into_value(self) -> Result<Value, String> {
        Ok(match self {
            Raw::Null => Value::Null,
            Raw::Bool(b) => Value::Bool(b),
            Raw::Number(n) => Value::Number(number(&n).ok_or_else(|| n.into_owned())?),
            Raw::String(s) => Value::String(s.into_owned()),
            Raw::Array(items) => Value::Array(
                items
                    .into_iter()
                    .map(Raw::into_value)
                    .collect::<Result<_, _>>()?,
            ),
            Raw::Object(entries) => {
                let mut map = Map::new();
                for (key, value) in entries {
                    map.insert(key.into_owned(), value.into_value()?);
                }
                Value::Object(map)
            }
        })
    }

    /// Whether a reader of YAML finds the same in it: no key comes twice, and all numbers are whole ones of 64 bits.
    pub(crate) fn means_the_same_in_yaml(&self) -> bool {
        match self {
            Raw::Number(text) => text.parse::<i64>().is_ok(),
            Raw::Array(items) => items.iter().all(Raw::means_the_same_in_yaml),
            Raw::Object(entries) => {
                let mut keys = BTreeSet::new();
                entries
                    .iter()
                    .all(|(key, value)| keys.insert(key) && value.means_the_same_in_yaml())
            }
            _ => true,
        }
    }

    /// Adds the paths of keys that come more than once in their object, [`REPEATED`] at most.
    pub(crate) fn repeated(&self, path: &str, found: &mut Vec<String>) {
        match self {
            Raw::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    item.repeated(&format!("{path}[{at}]"), found);
                }
            }
            Raw::Object(entries) => {
                let mut keys = BTreeSet::new();
                for (key, value) in entries {
                    let dot = if path.is_empty() { "" } else { "." };
                    let path = format!("{path}{dot}{key}");
                    value.repeated(&path, found);
                    if !keys.insert(key) && found.len() < REPEATED {
                        found.push(path);
                    }
                }
            }
            _ => {}
        }
    }

    pub(crate) fn from_value(value: Value) -> Raw<'static> {
        match value {
            Value::Null => Raw::Null,
            Value::Bool(b) => Raw::Bool(b),
            Value::Number(n) => Raw::Number(Cow::Owned(n.to_string())),
            Value::String(s) => Raw::String(Cow::Owned(s)),
            Value::Array(items) => Raw::Array(items.into_iter().map(Raw::from_value).collect()),
            Value::Object(map) => Raw::Object(
                map.into_iter()
                    .map(|(k, v)| (Cow::Owned(k), Raw::from_value(v)))
                    .collect(),
            ),
        }
    }
}

/// A number without a type: whole if it is spelled so and fits 64 bits, else floating.
fn number(text: &str) -> Option<Number> {
    if let Ok(n) = text.parse::<i64>() {
        return Some(n.into());
    }
    Number::from_f64(text.parse().ok()?)
}

/// Whether a value nests deeper than [`MAX_DEPTH`].
pub(crate) fn too_deep(value: &Value) -> bool {
    is_deeper(value, MAX_DEPTH, &mut 0)
}

/// Whether a value has more levels than `left`; `looked` is moved on by the values that were looked at.
pub(crate) fn is_deeper(value: &Value, left: usize, looked: &mut usize) -> bool {
    *looked = looked.saturating_add(1);
    match value {
        Value::Array(_) | Value::Object(_) if left == 0 => true,
        Value::Array(items) => items.iter().any(|v| is_deeper(v, left - 1, looked)),
        Value::Object(map) => map.values().any(|v| is_deeper(v, left - 1, looked)),
        _ => false,
    }
}

/// The bytes of a value as text, its name among others not counted.
pub(crate) fn text_len(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 4,
        Value::Number(_) => 1,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(text_len).sum::<usize>(),
        Value::Object(map) => {
            2 + map
                .iter()
                .map(|(k, v)| k.len() + 3 + text_len(v))
                .sum::<usize>()
        }
    }
}
