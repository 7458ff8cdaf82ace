//! Lists that are sets or maps: no element twice.

use std::collections::HashSet;

use davit_api::field::{ErrorList, FieldError, Path};
use davit_api::kinds::{ListType, Text};
use serde_json::{Map, Value};

use super::Node;

/// Elements that stand twice in lists of the types set and map.
pub fn duplicates(value: &Value, node: &Node) -> ErrorList {
    let mut errors = ErrorList::new();
    walk(value, node, &Path::root(), &mut errors);
    errors
}

fn walk(value: &Value, node: &Node, path: &Path, errors: &mut ErrorList) {
    match value {
        Value::Array(items) => {
            match node.list_type {
                Some(ListType::Set) => repeated(items, path, errors, |item| Some(item.clone())),
                Some(ListType::Map) => {
                    repeated(items, path, errors, |item| keys(item, &node.list_map_keys));
                }
                _ => {}
            }
            if let Some(inner) = &node.items {
                for (i, item) in items.iter().enumerate() {
                    walk(item, inner, &path.index(i), errors);
                }
            }
        }
        Value::Object(map) => {
            for (key, held) in map {
                if let Some(inner) = node.property(key) {
                    walk(held, inner, &path.child(key), errors);
                } else if let Some(inner) = node.additional() {
                    walk(held, inner, &path.key(key), errors);
                }
            }
        }
        _ => {}
    }
}

fn repeated(
    items: &[Value],
    path: &Path,
    errors: &mut ErrorList,
    identity: impl Fn(&Value) -> Option<Value>,
) {
    let mut seen = HashSet::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        if let Some(identity) = identity(item)
            && !seen.insert(identity.to_string())
        {
            errors.push(FieldError::duplicate(&path.index(i), identity));
        }
    }
}

/// The key fields of an element.
pub(super) fn keys(item: &Value, names: &[Text]) -> Option<Value> {
    let item = item.as_object()?;
    let mut keys = Map::new();
    for name in names {
        if let Some(value) = item.get(name.as_str()) {
            keys.insert(name.to_string(), value.clone());
        }
    }
    Some(Value::Object(keys))
}
