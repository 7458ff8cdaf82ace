//! From the JSON of a `JSONSchemaProps` to a [`Node`].

use davit_api::kinds::{ListType, MapType, Text};
use serde_json::Value;

use super::{Additional, Kind, Limits, Node, Pattern, Rule, SchemaError};

/// Members for which structural schemas have no place.
const UNSUPPORTED: [&str; 7] = [
    "$ref",
    "additionalItems",
    "definitions",
    "dependencies",
    "id",
    "patternProperties",
    "$schema",
];

pub(super) fn node(schema: &Value) -> Result<Node, SchemaError> {
    for key in UNSUPPORTED {
        if schema.get(key).is_some_and(|value| !is_empty(value)) {
            return Err(SchemaError(format!(
                "schema is not structural: it has {key}"
            )));
        }
    }
    let items = match schema.get("items") {
        None | Some(Value::Null) => None,
        Some(Value::Array(_)) => {
            let text = "schema is not structural: items must be a schema object and not an array";
            return Err(SchemaError(text.to_owned()));
        }
        Some(items) => Some(Box::new(node(items)?)),
    };
    let additional = match schema.get("additionalProperties") {
        Some(Value::Bool(true)) => Additional::Any,
        Some(inner @ Value::Object(_)) => Additional::Schema(Box::new(node(inner)?)),
        _ => Additional::Unset,
    };
    let mut properties = Vec::new();
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        properties.push((Text::from(name.clone()), node(inner)?));
    }
    properties.sort_by(|a, b| a.0.as_str().cmp(b.0.as_str()));
    let flag = |key: &str| schema.get(key).and_then(Value::as_bool).unwrap_or(false);
    Ok(Node {
        kind: kind(schema["type"].as_str().unwrap_or_default()),
        nullable: flag("nullable"),
        int_or_string: flag("x-kubernetes-int-or-string"),
        preserve: flag("x-kubernetes-preserve-unknown-fields"),
        embedded: flag("x-kubernetes-embedded-resource"),
        properties: properties.into(),
        additional,
        items,
        default: schema
            .get("default")
            .filter(|value| !value.is_null())
            .map(|value| Box::new(super::canonical(value.clone()))),
        list_type: match schema["x-kubernetes-list-type"].as_str() {
            Some("atomic") => Some(ListType::Atomic),
            Some("set") => Some(ListType::Set),
            Some("map") => Some(ListType::Map),
            _ => None,
        },
        list_map_keys: texts(&schema["x-kubernetes-list-map-keys"]),
        map_type: match schema["x-kubernetes-map-type"].as_str() {
            Some("atomic") => Some(MapType::Atomic),
            Some("granular") => Some(MapType::Granular),
            _ => None,
        },
        limits: limits(schema)?.map(Box::new),
        rules: rules(&schema["x-kubernetes-validations"]),
    })
}

pub(super) fn kind(word: &str) -> Option<Kind> {
    Some(match word {
        "object" => Kind::Object,
        "array" => Kind::Array,
        "string" => Kind::String,
        "integer" => Kind::Integer,
        "number" => Kind::Number,
        "boolean" => Kind::Boolean,
        _ => return None,
    })
}

pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(s) => s.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn texts(list: &Value) -> Box<[Text]> {
    let words = list.as_array().into_iter().flatten();
    words
        .filter_map(|word| word.as_str().map(|word| Text::from(word.to_owned())))
        .collect()
}

fn limits(schema: &Value) -> Result<Option<Limits>, SchemaError> {
    const MEMBERS: [&str; 17] = [
        "format",
        "minimum",
        "maximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "pattern",
        "enum",
        "required",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
    ];
    if !MEMBERS.iter().any(|key| schema.get(*key).is_some()) {
        return Ok(None);
    }
    let number = |key: &str| schema.get(key).and_then(Value::as_f64);
    let count = |key: &str| {
        schema
            .get(key)
            .and_then(Value::as_i64)
            .map(|n| n.max(0) as u64)
    };
    let flag = |key: &str| schema.get(key).and_then(Value::as_bool).unwrap_or(false);
    let nodes = |key: &str| -> Result<Box<[Node]>, SchemaError> {
        let list = schema.get(key).and_then(Value::as_array);
        list.into_iter().flatten().map(node).collect()
    };
    let not = schema.get("not").filter(|not| not.is_object());
    Ok(Some(Limits {
        format: schema["format"]
            .as_str()
            .filter(|format| !format.is_empty())
            .map(|format| Text::from(format.to_owned())),
        minimum: number("minimum"),
        exclusive_minimum: flag("exclusiveMinimum"),
        maximum: number("maximum"),
        exclusive_maximum: flag("exclusiveMaximum"),
        multiple_of: number("multipleOf"),
        min_length: count("minLength"),
        max_length: count("maxLength"),
        min_items: count("minItems"),
        max_items: count("maxItems"),
        min_properties: count("minProperties"),
        max_properties: count("maxProperties"),
        pattern: schema["pattern"]
            .as_str()
            .filter(|pattern| !pattern.is_empty())
            .map(Pattern::new),
        values: schema["enum"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|value| super::canonical(value.clone()))
            .collect(),
        required: texts(&schema["required"]),
        all_of: nodes("allOf")?,
        any_of: nodes("anyOf")?,
        one_of: nodes("oneOf")?,
        not: not.map(node).transpose()?.map(Box::new),
    }))
}

fn rules(list: &Value) -> Box<[Rule]> {
    let rule = |value: &Value| {
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        Rule {
            rule: text("rule"),
            message: text("message"),
            message_expression: text("messageExpression"),
            reason: text("reason"),
            field_path: text("fieldPath"),
            optional_old_self: value["optionalOldSelf"].as_bool(),
        }
    };
    list.as_array().into_iter().flatten().map(rule).collect()
}
