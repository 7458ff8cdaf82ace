//! Metadata of objects and of the resources embedded in them.

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::kinds::builtin;
use davit_api::names::{
    check_dns1035_label, check_dns1123_label, check_label_value, check_path_segment,
    check_path_segment_prefix, check_qualified_name,
};
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
            Some(value) => {
                return Err(format!(
                    "{}: Invalid value: {value}: must be a string",
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
    let given = metadata.take();
    // The original says of an embedded resource which one it is, and shows its metadata.
    let shown = (!path.is_empty()).then(|| given.to_string());
    let (clean, strict) = typed(given).map_err(|error| match shown {
        Some(shown) => format!(
            "{}: Invalid value: {shown}: {error}",
            join(path, "metadata")
        ),
        None => error.to_string(),
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
    for key in ["apiVersion", "kind"] {
        let at = path.child(key);
        match map.get(key).map(|value| value.as_str().unwrap_or_default()) {
            None => errors.push(FieldError::required(&at, "")),
            Some("") => errors.push(FieldError::invalid(&at, "", "must not be empty")),
            Some(version) if key == "apiVersion" => {
                if version.matches('/').count() > 1 {
                    let why = format!("unexpected GroupVersion string: {version}");
                    errors.push(FieldError::invalid(&at, version, why));
                }
            }
            Some(kind) => {
                let faults = check_dns1035_label(&kind.to_lowercase());
                if !faults.is_empty() {
                    let why = format!(
                        "may have mixed case, but should otherwise match: {}",
                        faults.join(",")
                    );
                    errors.push(FieldError::invalid(&at, kind, why));
                }
            }
        }
    }
    if let Some(meta) = map.get("metadata") {
        metadata(meta, &path.child("metadata"), errors);
    }
}

/// What is wrong with the metadata of an embedded resource, whose name is that of any kind.
fn metadata(meta: &Value, path: &Path, errors: &mut ErrorList) {
    let mut text = |key: &str, check: fn(&str) -> Vec<String>| {
        let value = meta[key].as_str().unwrap_or_default();
        if !value.is_empty() {
            errors.extend(invalid_each(&path.child(key), value, check(value)));
        }
    };
    text("generateName", check_path_segment_prefix);
    text("name", check_path_segment);
    text("namespace", check_dns1123_label);
    let labels = path.child("labels");
    for (key, value) in meta["labels"].as_object().into_iter().flatten() {
        errors.extend(invalid_each(&labels, key, check_qualified_name(key)));
        let value = value.as_str().unwrap_or_default();
        errors.extend(invalid_each(&labels, value, check_label_value(value)));
    }
    let annotations = meta["annotations"].as_object();
    for key in annotations.into_iter().flat_map(Map::keys) {
        let faults = check_qualified_name(&key.to_lowercase());
        errors.extend(invalid_each(&path.child("annotations"), key, faults));
    }
    for owner in meta["ownerReferences"].as_array().into_iter().flatten() {
        for key in ["apiVersion", "kind", "name", "uid"] {
            if owner[key].as_str().is_none_or(str::is_empty) {
                let at = path.child("ownerReferences").child(key);
                let why = if key == "apiVersion" {
                    "version must not be empty"
                } else {
                    "must not be empty"
                };
                errors.push(FieldError::invalid(&at, "", why));
            }
        }
    }
    let finalizers = meta["finalizers"].as_array().into_iter().flatten();
    for name in finalizers.filter_map(Value::as_str) {
        let faults = check_qualified_name(name);
        errors.extend(invalid_each(&path.child("finalizers"), name, faults));
    }
}
