//! Lists that are sets or maps: no element twice.

use std::collections::{HashMap, HashSet};

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

/// The elements of a list by their keys, where it is a map; those of other lists cannot be told apart.
pub(super) struct Elements<'a> {
    names: &'a [Text],
    by_keys: HashMap<String, &'a Value>,
}

impl<'a> Elements<'a> {
    pub(super) fn of(node: &'a Node, list: &'a Value) -> Self {
        let is_map = node.list_type == Some(ListType::Map);
        let items = list.as_array().filter(|_| is_map).into_iter().flatten();
        let names = &*node.list_map_keys;
        let keyed = items.filter_map(|item| Some((keys(item, names)?.to_string(), item)));
        Self {
            names,
            by_keys: keyed.collect(),
        }
    }

    /// The element with the keys of `item`.
    pub(super) fn counterpart(&self, item: &Value) -> Option<&'a Value> {
        if self.by_keys.is_empty() {
            return None;
        }
        self.by_keys
            .get(&keys(item, self.names)?.to_string())
            .copied()
    }
}

/// Whether a value is what it was. The elements of a list that is a map may have changed places.
pub(super) fn unchanged(node: &Node, new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Array(items), Value::Array(before)) if node.list_type == Some(ListType::Map) => {
            let Some(inner) = &node.items else {
                return new == old;
            };
            let known = Elements::of(node, old);
            let same = |item| {
                let before = known.counterpart(item);
                before.is_some_and(|before| unchanged(inner, item, before))
            };
            items.len() == before.len() && items.iter().all(same)
        }
        (Value::Object(map), Value::Object(before)) => {
            let same = |(key, value): (&String, &Value)| match (before.get(key), node.entry(key)) {
                (Some(before), Some(inner)) => unchanged(inner, value, before),
                (before, _) => before == Some(value),
            };
            map.len() == before.len() && map.iter().all(same)
        }
        _ => new == old,
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
