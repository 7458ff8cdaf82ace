//! Whether a schema is one that custom kinds may have.

use std::collections::HashSet;

use davit_api::field::{ErrorList, FieldError, Path};
use serde_json::{Map, Value};

use super::parse::is_empty;
use super::{Node, Structural, meta, parse, prune, validate};

mod patterns;
mod structure;

/// What else bears on what a schema may say.
#[derive(Debug, Clone, Copy, Default)]
pub struct SchemaCheck {
    /// The version has a status subresource, which limits what the root may say.
    pub status: bool,
}

/// So often the keys of a list are shown with what is wrong with one of them.
const MOST_KEYS: usize = 100;

/// Members the root may have where there is a status subresource: JSON name and the name by which
/// the original lists it.
const AT_ROOT: [(&str, &str); 22] = [
    ("description", "Description"),
    ("type", "Type"),
    ("format", "Format"),
    ("title", "Title"),
    ("maximum", "Maximum"),
    ("exclusiveMaximum", "ExclusiveMaximum"),
    ("minimum", "Minimum"),
    ("exclusiveMinimum", "ExclusiveMinimum"),
    ("maxLength", "MaxLength"),
    ("minLength", "MinLength"),
    ("pattern", "Pattern"),
    ("maxItems", "MaxItems"),
    ("minItems", "MinItems"),
    ("uniqueItems", "UniqueItems"),
    ("multipleOf", "MultipleOf"),
    ("required", "Required"),
    ("items", "Items"),
    ("properties", "Properties"),
    ("externalDocs", "ExternalDocs"),
    ("example", "Example"),
    (
        "x-kubernetes-preserve-unknown-fields",
        "XPreserveUnknownFields",
    ),
    ("x-kubernetes-validations", "XValidations"),
];

/// What is wrong with an `openAPIV3Schema` that stands at `path`. Expressions are not looked into.
pub fn check_schema(schema: &Value, path: &Path, options: SchemaCheck) -> ErrorList {
    let mut errors = ErrorList::new();
    if options.status {
        at_root(schema, path, &mut errors);
    }
    if schema["nullable"] == Value::Bool(true) {
        errors.push(FieldError::forbidden(
            &path.child("nullable"),
            "nullable cannot be true at the root",
        ));
    }
    let parsed = Structural::parse(schema);
    if parsed.is_ok() {
        let found = structure::errors(schema, path);
        if found.is_empty() {
            if let Ok(parsed) = &parsed {
                defaults(parsed.root(), path, true, &mut errors);
            }
        } else {
            errors.extend(found);
        }
    }
    let place = SchemaPosition {
        forbidden_defaults: None,
        in_metadata: false,
        is_root: true,
    };
    openapi(schema, path, &place, &mut errors);
    if let (true, Err(error)) = (errors.is_empty(), &parsed) {
        errors.push(FieldError::invalid(path, "", error.to_string()));
    }
    errors
}

fn at_root(schema: &Value, path: &Path, errors: &mut ErrorList) {
    for (key, value) in schema.as_object().into_iter().flatten() {
        if is_empty(value) || value == &Value::Bool(false) {
            continue;
        }
        if key == "type" && value != "object" {
            errors.push(FieldError::invalid(
                &path.child("type"),
                value.clone(),
                "only \"object\" is allowed as the type at the root of the schema if the status \
                 subresource is enabled",
            ));
            return;
        }
        if !AT_ROOT.iter().any(|(known, _)| known == key) {
            let names: Vec<&str> = AT_ROOT.iter().map(|(_, name)| *name).collect();
            let why = format!(
                "only [{}] fields are allowed at the root of the schema if the status subresource \
                 is enabled",
                names.join(" ")
            );
            errors.push(FieldError::invalid(path, schema.clone(), why));
            return;
        }
    }
}

/// Defaults are values of their schemas, without unknown fields.
fn defaults(node: &Node, path: &Path, root: bool, errors: &mut ErrorList) {
    if let Some(default) = &node.default {
        let at = path.child("default");
        let mut pruned = (**default).clone();
        prune::prune(&mut pruned, node, node.embedded);
        if pruned != **default {
            let why = "must not have unknown fields";
            errors.push(FieldError::invalid(&at, (**default).clone(), why));
        }
        let mut found = ErrorList::new();
        meta::embedded(default, node, node.embedded, &Path::root(), &mut found);
        if found.is_empty() {
            found = validate::validate(node, default, None);
        }
        errors.extend(found.into_iter().map(|error| below(&at, error)));
    }
    if let Some(items) = &node.items {
        defaults(items, &path.child("items"), false, errors);
    }
    for (name, inner) in &node.properties {
        let in_metadata =
            (root || node.embedded) && matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
        if !in_metadata {
            defaults(inner, &path.child("properties").key(name), false, errors);
        }
    }
}

/// An error of a value that itself stands at a path.
fn below(path: &Path, mut error: FieldError) -> FieldError {
    error.field = match error.field.as_str() {
        "<nil>" | "" => path.to_string(),
        field => path.child(field).to_string(),
    };
    error
}

/// Where a schema stands.
#[derive(Clone, Copy)]
struct SchemaPosition {
    /// Why no defaults may stand here.
    forbidden_defaults: Option<&'static str>,
    in_metadata: bool,
    is_root: bool,
}

impl SchemaPosition {
    fn inside(self) -> Self {
        Self {
            is_root: false,
            ..self
        }
    }
}

fn openapi(schema: &Value, path: &Path, place: &SchemaPosition, errors: &mut ErrorList) {
    let Some(map) = schema.as_object() else {
        return;
    };
    members(map, path, place, errors);
    if map.get("uniqueItems") == Some(&Value::Bool(true)) {
        errors.push(FieldError::forbidden(
            &path.child("uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ));
    }
    nested(map, path, place, errors);
    if map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        errors.push(FieldError::invalid(
            &path.child("x-kubernetes-preserve-unknown-fields"),
            false,
            "must be true or undefined",
        ));
    }
    map_type(map, path, errors);
    list_type(map, path, errors);
    list_map(map, path, errors);
    list_items(map, path, errors);
    rules(schema, path, errors);
}

fn text<'a>(map: &'a Map<String, Value>, key: &str) -> &'a str {
    map.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn is_set(map: &Map<String, Value>, key: &str) -> bool {
    map.get(key).is_some_and(|value| !value.is_null())
}

fn members(map: &Map<String, Value>, path: &Path, place: &SchemaPosition, errors: &mut ErrorList) {
    const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
    let kind = text(map, "type");
    if !kind.is_empty() && !TYPES.contains(&kind) {
        errors.push(FieldError::not_supported(&path.child("type"), kind, &TYPES));
    }
    if let Some(why) = place.forbidden_defaults.filter(|_| is_set(map, "default")) {
        errors.push(FieldError::forbidden(&path.child("default"), why));
    }
    for key in [
        "id",
        "additionalItems",
        "patternProperties",
        "definitions",
        "dependencies",
        "$ref",
    ] {
        if map.get(key).is_some_and(|value| !is_empty(value)) {
            let why = format!("{key} is not supported");
            errors.push(FieldError::forbidden(&path.child(key), why));
        }
    }
    if kind == "null" {
        let why = "type cannot be set to null, use nullable as an alternative";
        errors.push(FieldError::forbidden(&path.child("type"), why));
    }
    if map.get("items").is_some_and(Value::is_array) {
        let why = "items must be a schema object and not an array";
        errors.push(FieldError::forbidden(&path.child("items"), why));
    }
    if place.in_metadata && map.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true)) {
        let at = path.child("x-kubernetes-embedded-resource");
        let why = "must not be used inside of resource meta";
        errors.push(FieldError::forbidden(&at, why));
    }
}

fn nested(map: &Map<String, Value>, path: &Path, place: &SchemaPosition, errors: &mut ErrorList) {
    let has_properties = map
        .get("properties")
        .and_then(Value::as_object)
        .is_some_and(|properties| !properties.is_empty());
    if let Some(additional) = map.get("additionalProperties") {
        let at = path.child("additionalProperties");
        if has_properties && (additional.is_object() || additional == &Value::Bool(false)) {
            let why = "additionalProperties and properties are mutual exclusive";
            errors.push(FieldError::forbidden(&at, why));
        }
        let mut inside = place.inside();
        if place.in_metadata {
            inside.forbidden_defaults =
                Some("must not be set inside additionalProperties applying to object metadata");
        }
        openapi(additional, &at, &inside, errors);
    }
    let embedded = map.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true));
    for (name, inner) in map
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let mut inside = place.inside();
        if place.is_root || embedded {
            let why = match name.as_str() {
                "metadata" => Some("must not be set in top-level metadata"),
                "kind" => Some("must not be set in top-level kind"),
                "apiVersion" => Some("must not be set in top-level apiVersion"),
                _ => None,
            };
            inside.in_metadata |= why.is_some();
            if place.is_root {
                inside.forbidden_defaults = why.or(inside.forbidden_defaults);
            }
        }
        openapi(inner, &path.child("properties").key(name), &inside, errors);
    }
    let inside = place.inside();
    for key in ["not", "items"] {
        if let Some(inner) = map.get(key) {
            openapi(inner, &path.child(key), &inside, errors);
        }
    }
    for key in ["allOf", "oneOf", "anyOf"] {
        let list = map.get(key).and_then(Value::as_array);
        for (i, inner) in list.into_iter().flatten().enumerate() {
            openapi(inner, &path.child(key).index(i), &inside, errors);
        }
    }
}

fn map_type(map: &Map<String, Value>, path: &Path, errors: &mut ErrorList) {
    if !is_set(map, "x-kubernetes-map-type") {
        return;
    }
    let (kind, map_type) = (text(map, "type"), text(map, "x-kubernetes-map-type"));
    let why = "must be object if x-kubernetes-map-type is specified";
    of_type(kind, "object", why, path, errors);
    if !matches!(map_type, "atomic" | "granular") {
        let at = path.child("x-kubernetes-map-type");
        let known = ["atomic", "granular"];
        errors.push(FieldError::not_supported(&at, map_type, &known));
    }
}

fn of_type(kind: &str, wanted: &str, why: &str, path: &Path, errors: &mut ErrorList) -> bool {
    let at = path.child("type");
    if kind.is_empty() {
        errors.push(FieldError::required(&at, why));
    } else if kind != wanted {
        errors.push(FieldError::invalid(&at, kind, why));
    }
    kind == wanted
}

fn list_type(map: &Map<String, Value>, path: &Path, errors: &mut ErrorList) {
    if !is_set(map, "x-kubernetes-list-type") {
        return;
    }
    let (kind, list_type) = (text(map, "type"), text(map, "x-kubernetes-list-type"));
    let why = "must be array if x-kubernetes-list-type is specified";
    if of_type(kind, "array", why, path, errors)
        && list_type == "set"
        && let Some(items) = map.get("items").and_then(Value::as_object)
    {
        let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
        let declared = |key: &str| items.get(key).cloned().unwrap_or(Value::Null);
        let (key, fits) = match text(items, "type") {
            "array" => {
                let key = "x-kubernetes-list-type";
                (key, matches!(text(items, key), "" | "atomic"))
            }
            "object" => {
                let key = "x-kubernetes-map-type";
                (key, text(items, key) == "atomic")
            }
            _ => ("", true),
        };
        if !fits {
            let at = path.child("items").child(key);
            let shown = declared("x-kubernetes-list-type");
            errors.push(FieldError::invalid(&at, shown, why));
        }
    }
    if !matches!(list_type, "atomic" | "set" | "map") {
        let at = path.child("x-kubernetes-list-type");
        let known = ["atomic", "set", "map"];
        errors.push(FieldError::not_supported(&at, list_type, &known));
    }
}

fn list_map(map: &Map<String, Value>, path: &Path, errors: &mut ErrorList) {
    let at_type = path.child("x-kubernetes-list-type");
    let at_keys = path.child("x-kubernetes-list-map-keys");
    let list_type = text(map, "x-kubernetes-list-type");
    let shown = map
        .get("x-kubernetes-list-map-keys")
        .cloned()
        .unwrap_or(Value::Null);
    let keys: Vec<&str> = shown
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if !keys.is_empty() && list_type != "map" {
        let why = "must be map if x-kubernetes-list-map-keys is non-empty";
        errors.push(if is_set(map, "x-kubernetes-list-type") {
            FieldError::invalid(&at_type, list_type, why)
        } else {
            FieldError::required(&at_type, why)
        });
    }
    if list_type != "map" {
        return;
    }
    if keys.is_empty() {
        let why = "must not be empty if x-kubernetes-list-type is map";
        errors.push(FieldError::required(&at_keys, why));
    }
    let at_items = path.child("items");
    let Some(items) = map.get("items").filter(|items| !items.is_null()) else {
        let why = "must have a schema if x-kubernetes-list-type is map";
        errors.push(FieldError::required(&at_items, why));
        return;
    };
    let Some(items) = items.as_object() else {
        let why = "must only have a single schema if x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(&at_items, items.clone(), why));
        return;
    };
    let kind = text(items, "type");
    if kind != "object" {
        let why = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(&at_items.child("type"), kind, why));
        return;
    }
    let properties = items.get("properties").and_then(Value::as_object);
    let (mut unknown, mut repeated, mut seen) = (0, 0, HashSet::new());
    for key in &keys {
        match properties.and_then(|properties| properties.get(*key)) {
            Some(inner) if matches!(inner["type"].as_str(), Some("array" | "object")) => {
                let at = at_items.child("properties").key(key).child("type");
                let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.push(FieldError::invalid(&at, kind, why));
            }
            Some(_) => {}
            None => unknown += 1,
        }
        repeated += usize::from(!seen.insert(*key));
    }
    // Each of these faults shows all keys, and is told as often as it is there, but for lists that nobody reads.
    for (count, why) in [
        (unknown, "entries must all be names of item properties"),
        (repeated, "must not contain duplicate entries"),
    ] {
        let fault = || FieldError::invalid(&at_keys, shown.clone(), why);
        errors.extend(std::iter::repeat_with(fault).take(count.min(MOST_KEYS)));
    }
}

/// Elements of sets and maps are not null, and have their keys.
fn list_items(map: &Map<String, Value>, path: &Path, errors: &mut ErrorList) {
    let list_type = text(map, "x-kubernetes-list-type");
    let Some(items) = map.get("items").and_then(Value::as_object) else {
        return;
    };
    if !matches!(list_type, "set" | "map") {
        return;
    }
    let at = path.child("items");
    if items.get("nullable") == Some(&Value::Bool(true)) {
        let why = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.push(FieldError::forbidden(&at.child("nullable"), why));
    }
    if list_type == "set" {
        return;
    }
    let required = items.get("required").and_then(Value::as_array);
    let required: HashSet<&Value> = required.into_iter().flatten().collect();
    let properties = items.get("properties").and_then(Value::as_object);
    let keys = map.get("x-kubernetes-list-map-keys");
    for key in keys.and_then(Value::as_array).into_iter().flatten() {
        let name = key.as_str().unwrap_or_default();
        let Some(property) = properties.and_then(|properties| properties.get(name)) else {
            continue;
        };
        let at = at.child("properties").key(name);
        let is_required = required.contains(key);
        if !is_required && property.get("default").is_none_or(Value::is_null) {
            errors.push(FieldError::required(
                &at.child("default"),
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a \
                 required property",
            ));
        }
        if property["nullable"] == Value::Bool(true) {
            errors.push(FieldError::forbidden(
                &at.child("nullable"),
                "this property is in x-kubernetes-list-map-keys, so it cannot be nullable",
            ));
        }
    }
}

fn rules(schema: &Value, path: &Path, errors: &mut ErrorList) {
    const REASONS: [&str; 4] = [
        "FieldValueDuplicate",
        "FieldValueForbidden",
        "FieldValueInvalid",
        "FieldValueRequired",
    ];
    let breaks = |text: &str| text.contains(['\n', '\r']);
    let list = schema["x-kubernetes-validations"].as_array();
    for (i, rule) in list.into_iter().flatten().enumerate() {
        let at = path.child("x-kubernetes-validations").index(i);
        let text = |key: &str| rule[key].as_str().unwrap_or_default();
        let (expression, message) = (text("rule").trim(), text("message").trim());
        let at_message = at.child("message");
        if expression.is_empty() {
            errors.push(FieldError::required(
                &at.child("rule"),
                "rule is not specified",
            ));
        } else if !text("message").is_empty() && message.is_empty() {
            let why = "message must be non-empty if specified";
            errors.push(FieldError::invalid(&at_message, text("message"), why));
        } else if breaks(message) {
            let why = "message must not contain line breaks";
            errors.push(FieldError::invalid(&at_message, text("message"), why));
        } else if breaks(expression) && message.is_empty() {
            let why = "message must be specified if rule contains line breaks";
            errors.push(FieldError::required(&at_message, why));
        }
        let source = text("messageExpression");
        if !source.is_empty() && source.trim().is_empty() {
            let why = "messageExpression must be non-empty if specified";
            errors.push(FieldError::required(&at.child("messageExpression"), why));
        }
        let reason = text("reason");
        if !reason.is_empty() && !REASONS.contains(&reason) {
            errors.push(FieldError::not_supported(
                &at.child("reason"),
                reason,
                &REASONS,
            ));
        }
        field_path(schema, text("fieldPath"), &at.child("fieldPath"), errors);
    }
}

fn field_path(schema: &Value, field: &str, at: &Path, errors: &mut ErrorList) {
    if field.is_empty() {
        return;
    }
    let mut refuse = |why: &str| errors.push(FieldError::invalid(at, field, why));
    if field.trim().is_empty() {
        refuse("fieldPath must be non-empty if specified");
    }
    if field.contains(['\n', '\r']) {
        refuse("fieldPath must not contain line breaks");
    }
    let declared = match (super::SimplePath::parse(field), parse::node(schema)) {
        (Some(path), Ok(node)) => path.resolve(&node).is_ok(),
        (None, _) => false,
        (_, Err(_)) => true,
    };
    if !declared {
        refuse("fieldPath must be a valid path");
    }
}
