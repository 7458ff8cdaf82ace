//! Metadata of objects and of the resources embedded in them.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::kinds::builtin;
use davit_api::names::{check_dns1035_label, check_dns1123_subdomain, check_qualified_name};
use serde_json::{Map, Value};

use super::Node;
use crate::decode::{DecodeError, decode_value};

/// Brings the metadata of an object, and of those embedded in it, into the form of ObjectMeta;
/// tells the paths of unknown fields. The error names what is no metadata.
pub(super) fn coerce(object: &mut Value, root: &Node) -> Result<Vec<String>, String> {
    let mut unknown = Vec::new();
    let mut fault = None;
    each_resource(object, root, true, &mut String::new(), &mut |map, path| {
        if let Err(error) = coerce_one(map, path, &mut unknown) {
            fault.get_or_insert(error);
        }
    });
    fault.map_or(Ok(unknown), Err)
}

/// As [`coerce`] for an object that was stored, where what does not fit is dropped.
pub(super) fn coerce_stored(object: &mut Value, root: &Node) -> bool {
    let mut changed = false;
    each_resource(object, root, true, &mut String::new(), &mut |map, path| {
        let before = map.get("metadata").cloned();
        if coerce_one(map, path, &mut Vec::new()).is_err()
            && let Some(Value::Object(metadata)) = map.get_mut("metadata")
        {
            metadata.retain(|key, value| fits(key, value));
            let _ = coerce_one(map, path, &mut Vec::new());
        }
        changed |= before.as_ref() != map.get("metadata");
    });
    changed
}

fn fits(key: &str, value: &Value) -> bool {
    let mut one = Map::new();
    one.insert(key.to_owned(), value.clone());
    typed(Value::Object(one)).is_ok()
}

fn typed(metadata: Value) -> Result<(Value, Vec<String>), DecodeError> {
    let table = builtin();
    let Some(id) = table.types.id("meta/v1.ObjectMeta") else {
        return Ok((metadata, Vec::new()));
    };
    let decoded = decode_value(&table.types, id, metadata)?;
    Ok((decoded.object, decoded.strict))
}

fn coerce_one(
    map: &mut Map<String, Value>,
    path: &str,
    unknown: &mut Vec<String>,
) -> Result<(), String> {
    for key in ["apiVersion", "kind"] {
        match map.get(key) {
            None | Some(Value::String(_)) => {}
            Some(Value::Null) => {
                map.remove(key);
            }
            Some(_) => {
                return Err(format!(
                    "{}: Invalid value: must be a string",
                    join(path, key)
                ));
            }
        }
    }
    let Some(metadata) = map.get_mut("metadata") else {
        return Ok(());
    };
    if metadata.is_null() {
        map.remove("metadata");
        return Ok(());
    }
    let (clean, strict) = typed(metadata.take()).map_err(|error| {
        let text = error.to_string();
        // the original decodes the object's metadata as part of the object
        text.replace(
            "struct field ObjectMeta.",
            "struct field ObjectMeta.metadata.",
        )
    })?;
    for fault in strict {
        // `unknown field "x"`: the path lies inside the metadata
        if let Some(field) = fault.strip_prefix("unknown field \"") {
            let field = field.trim_end_matches('"');
            unknown.push(format!("{}.{field}", join(path, "metadata")));
        }
    }
    map.insert("metadata".to_owned(), clean);
    Ok(())
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// Calls `visit` with each object that is a resource, and its path.
fn each_resource(
    value: &mut Value,
    node: &Node,
    root: bool,
    path: &mut String,
    visit: &mut dyn FnMut(&mut Map<String, Value>, &str),
) {
    match value {
        Value::Object(map) => {
            if root || node.embedded {
                visit(map, path);
            }
            for (key, inner) in map.iter_mut() {
                if let Some(node) = node.entry(key) {
                    let len = path.len();
                    if len > 0 {
                        path.push('.');
                    }
                    path.push_str(key);
                    each_resource(inner, node, false, path, visit);
                    path.truncate(len);
                }
            }
        }
        Value::Array(items) => {
            if let Some(node) = &node.items {
                for (i, inner) in items.iter_mut().enumerate() {
                    let len = path.len();
                    path.push_str(&format!("[{i}]"));
                    each_resource(inner, node, false, path, visit);
                    path.truncate(len);
                }
            }
        }
        _ => {}
    }
}

/// What is wrong with apiVersion, kind and metadata of the resources embedded in an object.
pub fn embedded_errors(value: &Value, node: &Node) -> ErrorList {
    let mut errors = ErrorList::new();
    embedded(value, node, false, &Path::root(), &mut errors);
    errors
}

/// As [`embedded_errors`] for a value at a path that may itself be a resource.
pub(super) fn embedded(
    value: &Value,
    node: &Node,
    is_resource: bool,
    path: &Path,
    errors: &mut ErrorList,
) {
    match value {
        Value::Object(map) => {
            if is_resource {
                resource(map, path, errors);
            }
            for (key, inner) in map {
                if let Some(next) = node.property(key) {
                    embedded(inner, next, next.embedded, &path.child(key), errors);
                } else if let Some(next) = node.additional() {
                    embedded(inner, next, next.embedded, &path.key(key), errors);
                }
            }
        }
        Value::Array(items) => {
            if let Some(next) = &node.items {
                for (i, inner) in items.iter().enumerate() {
                    embedded(inner, next, next.embedded, &path.index(i), errors);
                }
            }
        }
        _ => {}
    }
}

fn resource(map: &Map<String, Value>, path: &Path, errors: &mut ErrorList) {
    let text = |key: &str| map.get(key).and_then(Value::as_str).unwrap_or_default();
    let version = text("apiVersion");
    if version.is_empty() {
        errors.push(FieldError::required(
            &path.child("apiVersion"),
            "must not be empty",
        ));
    } else if version.matches('/').count() > 1 {
        let why = format!("unexpected GroupVersion string: {version}");
        errors.push(FieldError::invalid(&path.child("apiVersion"), version, why));
    }
    let kind = text("kind");
    if kind.is_empty() {
        errors.push(FieldError::required(
            &path.child("kind"),
            "must not be empty",
        ));
    } else {
        let faults = check_dns1035_label(&kind.to_lowercase());
        if !faults.is_empty() {
            let why = format!(
                "may have mixed case, but should otherwise match: {}",
                faults.join(",")
            );
            errors.push(FieldError::invalid(&path.child("kind"), kind, why));
        }
    }
    let Some(metadata) = map.get("metadata") else {
        return;
    };
    let path = path.child("metadata");
    for key in ["name", "generateName"] {
        let name = metadata[key].as_str().unwrap_or_default();
        if !name.is_empty() {
            let faults = check_dns1123_subdomain(name.trim_end_matches('-'));
            errors.extend(invalid_each(&path.child(key), name, faults));
        }
    }
    for (key, value) in metadata["labels"].as_object().into_iter().flatten() {
        let labels = path.child("labels");
        errors.extend(invalid_each(&labels, key, check_qualified_name(key)));
        let value = value.as_str().unwrap_or_default();
        let faults = davit_api::names::check_label_value(value);
        errors.extend(invalid_each(&labels, value, faults));
    }
    for key in metadata["annotations"]
        .as_object()
        .into_iter()
        .flat_map(|annotations| annotations.keys())
    {
        let faults = check_qualified_name(&key.to_lowercase());
        errors.extend(invalid_each(&path.child("annotations"), key, faults));
    }
}
