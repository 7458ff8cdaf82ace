//! The rules that make a schema structural
//! (<https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>).

use davit_api::field::{ErrorList, FieldError, Path};
use serde_json::{Map, Value, json};

use crate::structural::parse::is_empty;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// What keeps a schema from being structural, sorted by text.
pub(super) fn errors(schema: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    invariants(schema, Level::Root, path, &mut errors);
    values_complete(schema, Some(schema), path, path, &mut errors);
    super::patterns::check(schema, path, &mut errors);
    errors.sort_by_key(|error| format!("{}: {}", error.field, error.body()));
    errors
}

fn flag(schema: &Value, key: &str) -> bool {
    schema[key] == Value::Bool(true)
}

fn text<'a>(schema: &'a Value, key: &str) -> &'a str {
    schema[key].as_str().unwrap_or_default()
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flatten()
}

fn list<'a>(schema: &'a Value, key: &str) -> &'a [Value] {
    schema[key].as_array().map_or(&[], Vec::as_slice)
}

fn invariants(schema: &Value, level: Level, path: &Path, errors: &mut ErrorList) {
    let kind = text(schema, "type");
    match schema.get("items").filter(|items| items.is_object()) {
        Some(items) => invariants(items, Level::Item, &path.child("items"), errors),
        None if kind == "array" => {
            errors.push(FieldError::required(
                &path.child("items"),
                "must be specified",
            ));
        }
        None => {}
    }
    for (name, inner) in properties(schema) {
        let path = path.child("properties").key(name);
        invariants(inner, Level::Field, &path, errors);
    }
    let additional = schema.get("additionalProperties").filter(|a| !a.is_null());
    if let Some(additional) = additional {
        let at = path.child("additionalProperties");
        if level == Level::Root {
            errors.push(FieldError::forbidden(&at, "must not be used at the root"));
        }
        if additional.is_object() {
            invariants(additional, Level::Field, &at, errors);
        }
    }
    extensions(schema, path, errors);
    values(schema, path, errors);
    types(schema, level, path, errors);
    if flag(schema, "x-kubernetes-embedded-resource") && additional.is_some() {
        let why = "must not be used if x-kubernetes-embedded-resource is set";
        let at = path.child("additionalProperties");
        errors.push(FieldError::forbidden(&at, why));
    }
    metadata(schema, level, path, errors);
}

fn extensions(schema: &Value, path: &Path, errors: &mut ErrorList) {
    if !flag(schema, "x-kubernetes-int-or-string") {
        return;
    }
    for key in [
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
    ] {
        if flag(schema, key) {
            let why = "must be false if x-kubernetes-int-or-string is true";
            errors.push(FieldError::invalid(&path.child(key), true, why));
        }
    }
}

fn types(schema: &Value, level: Level, path: &Path, errors: &mut ErrorList) {
    let kind = text(schema, "type");
    let at = path.child("type");
    if flag(schema, "x-kubernetes-embedded-resource") && kind != "object" {
        let why = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(if kind.is_empty() {
            FieldError::required(&at, why)
        } else {
            FieldError::invalid(&at, kind, why)
        });
    } else if kind.is_empty()
        && !flag(schema, "x-kubernetes-int-or-string")
        && !flag(schema, "x-kubernetes-preserve-unknown-fields")
    {
        let why = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(FieldError::required(&at, why));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid(&at, kind, "must be object at the root"));
    }
}

fn metadata(schema: &Value, level: Level, path: &Path, errors: &mut ErrorList) {
    let embedded = flag(schema, "x-kubernetes-embedded-resource");
    let checked = level == Level::Root || embedded;
    for key in ["kind", "apiVersion"] {
        if let Some(inner) = schema["properties"].get(key)
            && checked
            && text(inner, "type") != "string"
        {
            let at = path.child("properties").key(key).child("type");
            errors.push(FieldError::invalid(
                &at,
                text(inner, "type"),
                "must be string",
            ));
        }
    }
    if let Some(inner) = schema["properties"].get("metadata") {
        let at = path.child("properties").key("metadata");
        if checked && text(inner, "type") != "object" {
            let found = text(inner, "type");
            errors.push(FieldError::invalid(
                &at.child("type"),
                found,
                "must be object",
            ));
        }
        if level == Level::Root && !only_names(inner) {
            errors.push(FieldError::forbidden(
                &at,
                "must not specify anything other than name and generateName, but metadata is \
                 implicitly specified",
            ));
        }
    }
    if embedded
        && !flag(schema, "x-kubernetes-preserve-unknown-fields")
        && properties(schema).next().is_none()
    {
        errors.push(FieldError::required(
            &path.child("properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without \
             x-kubernetes-preserve-unknown-fields",
        ));
    }
}

fn only_names(metadata: &Value) -> bool {
    let members = metadata.as_object().into_iter().flatten();
    members
        .filter(|(_, value)| !is_empty(value) && **value != Value::Bool(false))
        .all(|(key, value)| match key.as_str() {
            "type" | "default" => true,
            "properties" => value
                .as_object()
                .is_some_and(|names| names.keys().all(|n| n == "name" || n == "generateName")),
            _ => false,
        })
}

/// The two ways to say integer or string.
fn is_int_or_string(any_of: &[Value]) -> bool {
    any_of == [json!({"type": "integer"}), json!({"type": "string"})]
}

/// The parts of a schema that only restrict values.
fn values(schema: &Value, path: &Path, errors: &mut ErrorList) {
    let skip_any = is_int_or_string(list(schema, "anyOf"));
    let skip_first = list(schema, "allOf")
        .first()
        .is_some_and(|first| is_int_or_string(list(first, "anyOf")));
    values_of(schema, skip_any, skip_first, path, errors);
}

fn values_of(
    schema: &Value,
    skip_any: bool,
    skip_first: bool,
    path: &Path,
    errors: &mut ErrorList,
) {
    for (i, inner) in list(schema, "anyOf").iter().enumerate() {
        if !skip_any {
            restriction(inner, false, &path.child("anyOf").index(i), errors);
        }
    }
    for (i, inner) in list(schema, "allOf").iter().enumerate() {
        let skip = skip_first && i == 0;
        restriction(inner, skip, &path.child("allOf").index(i), errors);
    }
    for (i, inner) in list(schema, "oneOf").iter().enumerate() {
        restriction(inner, false, &path.child("oneOf").index(i), errors);
    }
    if schema["not"].is_object() {
        restriction(&schema["not"], false, &path.child("not"), errors);
    }
}

/// A schema below allOf, anyOf, oneOf or not: it may restrict values and nothing else.
fn restriction(schema: &Value, skip_any: bool, path: &Path, errors: &mut ErrorList) {
    const EMPTY: &str = "must be empty to be structural";
    const FALSE: &str = "must be false to be structural";
    const UNDEFINED: &str = "must be undefined to be structural";
    const FORBIDDEN: [(&str, &str); 13] = [
        ("type", EMPTY),
        ("additionalProperties", UNDEFINED),
        ("default", UNDEFINED),
        ("title", EMPTY),
        ("description", EMPTY),
        ("nullable", FALSE),
        ("externalDocs", UNDEFINED),
        ("x-kubernetes-preserve-unknown-fields", FALSE),
        ("x-kubernetes-embedded-resource", FALSE),
        ("x-kubernetes-int-or-string", FALSE),
        ("x-kubernetes-list-map-keys", EMPTY),
        ("x-kubernetes-list-type", UNDEFINED),
        ("x-kubernetes-map-type", UNDEFINED),
    ];
    values_of(schema, skip_any, false, path, errors);
    if schema["items"].is_object() {
        restriction(&schema["items"], false, &path.child("items"), errors);
    }
    for (name, inner) in properties(schema) {
        let at = path.child("properties").key(name);
        restriction(inner, false, &at, errors);
    }
    let given = |map: &Map<String, Value>, key: &str| match map.get(key) {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(_) => true,
    };
    let Some(map) = schema.as_object() else {
        return;
    };
    for (key, why) in FORBIDDEN {
        if given(map, key) {
            errors.push(FieldError::forbidden(&path.child(key), why));
        }
    }
    if given(map, "x-kubernetes-validations") {
        let at = path.child("x-kubernetes-validations");
        errors.push(FieldError::forbidden(&at, EMPTY));
    }
    if schema["properties"].get("metadata").is_some() {
        errors.push(FieldError::forbidden(
            &path.child("properties").key("metadata"),
            "must not be specified in a nested context",
        ));
    }
}

/// Every field that is restricted below a junctor is also declared outside of it.
fn values_complete(
    restricting: &Value,
    declared: Option<&Value>,
    at_declared: &Path,
    at: &Path,
    errors: &mut ErrorList,
) {
    if restricting["not"].is_object() {
        let at = at.child("not");
        complete(&restricting["not"], declared, at_declared, &at, errors);
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        for (i, inner) in list(restricting, key).iter().enumerate() {
            let at = at.child(key).index(i);
            complete(inner, declared, at_declared, &at, errors);
        }
    }
}

fn complete(
    restricting: &Value,
    declared: Option<&Value>,
    at_declared: &Path,
    at: &Path,
    errors: &mut ErrorList,
) {
    let Some(schema) = declared else {
        let why = format!("because it is defined in {at}");
        errors.push(FieldError::required(at_declared, why));
        return;
    };
    values_complete(restricting, declared, at_declared, at, errors);
    if restricting["items"].is_object() {
        complete(
            &restricting["items"],
            schema.get("items").filter(|items| items.is_object()),
            &at_declared.child("items"),
            &at.child("items"),
            errors,
        );
    }
    for (name, inner) in properties(restricting) {
        let at_declared = at_declared.child("properties").key(name);
        let at = at.child("properties").key(name);
        match schema["properties"].get(name) {
            Some(schema) => complete(inner, Some(schema), &at_declared, &at, errors),
            None => {
                let why = format!("because it is defined in {at}");
                errors.push(FieldError::required(&at_declared, why));
            }
        }
    }
}
