//! Types from structural schemas, and values from JSON by those types.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use serde_json::Value as Json;

use crate::effort::EvaluationEffort;
use crate::error::EvalError;
use crate::library::time;
use crate::types::{DeclType, Type};
use crate::value::{Key, List, ListKind, Map, Value};

/// The largest request an API server takes, in bytes: what sizes are derived from when a schema
/// sets no bounds.
const MAX_REQUEST: u64 = 3 * 1024 * 1024;

const KEYWORDS: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The name by which expressions refer to a property; none when it cannot be referred to.
///
/// Keywords and the characters `_ . - /` are replaced: `__namespace__`, `a__dot__b`,
/// `a__dash__b`, `a__slash__b`, `__underscores__`.
pub fn escape(name: &str) -> Option<String> {
    if KEYWORDS.contains(&name) {
        return Some(format!("__{name}__"));
    }
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let mut escaped = String::with_capacity(name.len());
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '_' if chars.peek() == Some(&'_') => {
                chars.next();
                escaped.push_str("__underscores__");
            }
            '.' => escaped.push_str("__dot__"),
            '-' => escaped.push_str("__dash__"),
            '/' => escaped.push_str("__slash__"),
            c if c.is_ascii_alphanumeric() || c == '_' => escaped.push(c),
            _ => return None,
        }
    }
    Some(escaped)
}

/// The type a structural schema declares; none for data that rules cannot see.
///
/// `name` is shown in messages. At the root of a resource (`root`) `apiVersion`, `kind` and
/// `metadata` with name and generateName are declared in any case.
pub fn decl_type(schema: &Json, name: &str, root: bool) -> Option<DeclType> {
    let flag = |key: &str| schema[key].as_bool() == Some(true);
    let bound = |key: &str| {
        let n = &schema[key];
        n.as_u64().or_else(|| n.as_i64().map(|_| 0))
    };
    if flag("x-kubernetes-int-or-string") {
        return Some(DeclType {
            max_elements: MAX_REQUEST - 2,
            ..DeclType::simple(Type::Dyn)
        });
    }
    let embedded = |schema: &Json| schema["x-kubernetes-embedded-resource"].as_bool() == Some(true);
    let kind = if root {
        "object"
    } else {
        schema["type"].as_str().unwrap_or_default()
    };
    match kind {
        "array" => {
            let items = &schema["items"];
            let elem = decl_type(items, &format!("{name}.@idx"), embedded(items))?;
            let most = bound("maxItems").unwrap_or((MAX_REQUEST - 2) / (elem.min_size + 1));
            Some(DeclType::list(elem, most))
        }
        "object" => {
            let values = &schema["additionalProperties"];
            if values.is_object() && !root {
                let elem = decl_type(values, &format!("{name}.@elem"), embedded(values))?;
                let most =
                    bound("maxProperties").unwrap_or((MAX_REQUEST - 2) / (elem.min_size + 6));
                let key = DeclType::scalar(Type::String, 2);
                return Some(DeclType::map(key, elem, most));
            }
            Some(object_type(schema, name, root))
        }
        "string" => Some(string_type(schema, bound("maxLength"))),
        "boolean" => Some(DeclType::scalar(Type::Bool, 4)),
        "number" => Some(DeclType::scalar(Type::Double, 1)),
        "integer" => Some(DeclType::scalar(Type::Int, 1)),
        _ => None,
    }
}

fn object_type(schema: &Json, name: &str, root: bool) -> DeclType {
    let empty = serde_json::Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&empty);
    let required: Vec<&str> = schema["required"]
        .as_array()
        .map(|names| names.iter().filter_map(Json::as_str).collect())
        .unwrap_or_default();
    let mut fields: BTreeMap<Arc<str>, DeclType> = BTreeMap::new();
    let mut min_size = 2;
    for (property, schema) in properties {
        let embedded = schema["x-kubernetes-embedded-resource"].as_bool() == Some(true);
        let Some(decl) = decl_type(schema, &format!("{name}.{property}"), embedded) else {
            continue;
        };
        let Some(escaped) = escape(property) else {
            continue;
        };
        if required.contains(&property.as_str()) && schema["default"].is_null() {
            min_size += property.len() as u64 + decl.min_size + 4;
        }
        fields.insert(escaped.into(), decl);
    }
    if root {
        let text = || DeclType::string(MAX_REQUEST - 2);
        fields.entry("apiVersion".into()).or_insert_with(text);
        fields.entry("kind".into()).or_insert_with(text);
        let declared = &schema["properties"]["metadata"]["properties"];
        let field = |name: &str| decl_type(&declared[name], name, false).unwrap_or_else(text);
        let metadata = DeclType::object(
            format!("{name}.metadata"),
            [
                (Arc::from("name"), field("name")),
                (Arc::from("generateName"), field("generateName")),
            ],
        );
        fields.insert("metadata".into(), metadata);
    }
    DeclType {
        min_size,
        ..DeclType::object(name, fields)
    }
}

fn string_type(schema: &Json, bound: Option<u64>) -> DeclType {
    let sized = |ty: Type, min_size: u64, max_elements: u64| DeclType {
        max_elements,
        min_size,
        ..DeclType::simple(ty)
    };
    match schema["format"].as_str().unwrap_or_default() {
        "byte" => sized(Type::Bytes, 2, bound.unwrap_or(MAX_REQUEST - 2)),
        "duration" => sized(Type::Duration, 3, 32),
        "date" => sized(Type::Timestamp, 12, 12),
        "date-time" => sized(Type::Timestamp, 21, 32),
        _ => {
            let longest = schema["enum"].as_array().map(|values| {
                let lengths = values.iter().filter_map(Json::as_str).map(str::len);
                lengths.max().unwrap_or(0) as u64
            });
            // bounds are in code points of up to four bytes
            DeclType::string(match (bound, longest) {
                (Some(bound), _) => bound.saturating_mul(4),
                (None, Some(longest)) => longest,
                (None, None) => MAX_REQUEST - 2,
            })
        }
    }
}

/// A value from JSON, guided by the structural schema it was validated against.
///
/// Undeclared properties of objects are left out; text of the formats date-time, date, duration
/// and byte becomes a timestamp, a duration or bytes; lists compare by their list type.
pub fn value_with_schema(json: &Json, schema: &Json, root: bool) -> Value {
    if schema["x-kubernetes-int-or-string"].as_bool() == Some(true) || json.is_null() {
        return value(json);
    }
    match json {
        Json::Array(items) => {
            let items = items
                .iter()
                .map(|item| {
                    value_with_schema(item, &schema["items"], is_embedded(&schema["items"]))
                })
                .collect();
            let kind = match schema["x-kubernetes-list-type"].as_str() {
                Some("set") => ListKind::Set,
                Some("map") => ListKind::Map(
                    schema["x-kubernetes-list-map-keys"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .filter_map(Json::as_str)
                        .filter_map(escape)
                        .map(Arc::from)
                        .collect(),
                ),
                _ => ListKind::Atomic,
            };
            Value::List(Arc::new(List { items, kind }))
        }
        Json::Object(entries) => object_value(entries, schema, root),
        Json::String(text) => string_value(text, schema),
        Json::Number(number) if schema["type"] == "number" => {
            Value::Double(number.as_f64().unwrap_or_default())
        }
        _ => value(json),
    }
}

fn is_embedded(schema: &Json) -> bool {
    schema["x-kubernetes-embedded-resource"].as_bool() == Some(true)
}

fn object_value(entries: &serde_json::Map<String, Json>, schema: &Json, root: bool) -> Value {
    let declared = schema["properties"].as_object();
    let mut map = Map::default();
    if let (None, values @ Json::Object(_)) = (declared, &schema["additionalProperties"]) {
        for (name, json) in entries {
            let value = value_with_schema(json, values, is_embedded(values));
            map.entries.insert(Key::from(name.as_str()), value);
        }
        return Value::Map(Arc::new(map));
    }
    map.object = Some("object".into());
    for (name, json) in entries {
        let schema = declared.and_then(|declared| declared.get(name));
        let value = match (schema, name.as_str()) {
            (_, "metadata") if root => {
                let mut visible = Map {
                    object: Some("object".into()),
                    ..Map::default()
                };
                for field in ["name", "generateName"] {
                    if let Some(json) = json.get(field) {
                        visible.entries.insert(Key::from(field), value(json));
                    }
                }
                Value::Map(Arc::new(visible))
            }
            (Some(schema), _) => value_with_schema(json, schema, is_embedded(schema)),
            (None, "apiVersion" | "kind") if root => value(json),
            (None, _) => continue,
        };
        if let Some(escaped) = escape(name) {
            map.entries.insert(Key::String(escaped.into()), value);
        }
    }
    Value::Map(Arc::new(map))
}

fn string_value(text: &str, schema: &Json) -> Value {
    let converted = match schema["format"].as_str().unwrap_or_default() {
        "date-time" => time::parse_timestamp(text).map(Value::Timestamp),
        "date" => time::parse_timestamp(&format!("{text}T00:00:00Z")).map(Value::Timestamp),
        "duration" => time::parse_duration(text).map(Value::Duration),
        "byte" => base64::engine::general_purpose::STANDARD
            .decode(text)
            .ok()
            .map(|bytes| Value::Bytes(bytes.into())),
        _ => None,
    };
    converted.unwrap_or_else(|| Value::from(text))
}

/// A value from JSON as it is: objects become maps.
pub fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(i), _) => Value::Int(i),
            (None, Some(u)) => Value::Uint(u),
            _ => Value::Double(number.as_f64().unwrap_or_default()),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::list(items.iter().map(value).collect()),
        Json::Object(entries) => Value::map(
            entries
                .iter()
                .map(|(key, json)| (key.as_str(), value(json))),
        ),
    }
}

/// JSON from a value; none for values that JSON has no words for, and for those that hold others so often that there is no
/// room for them one by one.
pub fn to_json(value: &Value) -> Option<Json> {
    to_json_within(value, &EvaluationEffort::default())
}

/// Like [`to_json`], of several values for which there is room together.
pub fn to_json_within(value: &Value, effort: &EvaluationEffort) -> Option<Json> {
    json_within(value, effort).ok().flatten()
}

fn json_within(value: &Value, effort: &EvaluationEffort) -> Result<Option<Json>, EvalError> {
    /// A value of JSON, with its name.
    const TAKES: usize = 4;
    effort.values(TAKES)?;
    Ok(Some(match value {
        Value::Null => Json::Null,
        Value::Bool(b) => Json::from(*b),
        Value::Int(i) => Json::from(*i),
        Value::Uint(u) => Json::from(*u),
        Value::Double(d) => return Ok(serde_json::Number::from_f64(*d).map(Json::Number)),
        Value::String(text) => {
            effort.text(text.len())?;
            Json::from(&**text)
        }
        Value::Bytes(bytes) => {
            effort.text(2 * bytes.len())?;
            Json::from(base64::engine::general_purpose::STANDARD.encode(bytes))
        }
        Value::Timestamp(t) => Json::from(time::show_timestamp(*t)),
        Value::Duration(d) => Json::from(time::show_duration(*d)),
        Value::Quantity(q) => Json::from(q.to_string()),
        Value::Ip(ip) => Json::from(ip.to_string()),
        Value::Cidr(cidr) => Json::from(cidr.to_string()),
        Value::Semver(version) => Json::from(version.to_string()),
        Value::Url(url) => Json::from(url.to_string()),
        Value::Optional(None) => Json::Null,
        Value::Optional(Some(inner)) => return json_within(inner, effort),
        Value::List(list) => {
            let mut items = Vec::new();
            for item in &list.items {
                let Some(item) = json_within(item, effort)? else {
                    return Ok(None);
                };
                items.push(item);
            }
            Json::Array(items)
        }
        Value::Map(map) => {
            let mut json = serde_json::Map::new();
            for (key, value) in &map.entries {
                let mut name = key.to_string();
                if map.object.is_some() {
                    name = unescape(&name);
                }
                let Some(value) = json_within(value, effort)? else {
                    return Ok(None);
                };
                json.insert(name, value);
            }
            Json::Object(json)
        }
        Value::Type(_) | Value::Format(_) | Value::Authorizer(_) => return Ok(None),
    }))
}

/// The property an escaped name stands for.
pub fn unescape(name: &str) -> String {
    if let Some(inner) = name.strip_prefix("__").and_then(|n| n.strip_suffix("__"))
        && KEYWORDS.contains(&inner)
    {
        return inner.to_owned();
    }
    if !name.contains("__") {
        return name.to_owned();
    }
    name.replace("__underscores__", "\u{0}")
        .replace("__dot__", ".")
        .replace("__dash__", "-")
        .replace("__slash__", "/")
        .replace('\u{0}', "__")
}
