//! Reading and writing JSON objects by path, without copies and without panics.

use serde_json::{Map, Value};
use std::collections::HashSet;
use std::hash::Hash;

static NULL: Value = Value::Null;

/// The value at a path of object keys; `null` when something on the way is missing.
pub(super) fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter()
        .fold(value, |v, key| v.get(key).unwrap_or(&NULL))
}

/// The string at a path; empty when missing.
pub(super) fn str_at<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

/// The integer at a path.
pub(super) fn int_at(value: &Value, path: &[&str]) -> Option<i64> {
    at(value, path).as_i64()
}

/// The boolean at a path; false when missing.
pub(super) fn bool_at(value: &Value, path: &[&str]) -> bool {
    at(value, path).as_bool().unwrap_or(false)
}

/// The list at a path; empty when missing.
pub(super) fn list_at<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).as_array().map_or(&[], Vec::as_slice)
}

/// The entries of the object at a path; none when missing.
pub(super) fn entries_at<'a>(
    value: &'a Value,
    path: &[&str],
) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    at(value, path).as_object().into_iter().flatten()
}

/// Which of these are there already, each in its place. In one pass: a list has as many elements as a request has room for.
pub(super) fn repeats<K: Hash + Eq>(keys: impl IntoIterator<Item = K>) -> Vec<bool> {
    let mut seen = HashSet::new();
    keys.into_iter().map(|key| !seen.insert(key)).collect()
}

/// Whether a value counts as absent in Go terms: missing, null, or empty.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        _ => false,
    }
}

/// Whether something is present at a path (not missing and not null).
pub(super) fn has(value: &Value, path: &[&str]) -> bool {
    !at(value, path).is_null()
}

/// The value at a path, for writing, when it exists.
pub(super) fn at_mut<'a>(value: &'a mut Value, path: &[&str]) -> Option<&'a mut Value> {
    path.iter().try_fold(value, |v, key| v.get_mut(key))
}

/// The elements of the list at a path, for writing.
pub(super) fn list_mut<'a>(
    value: &'a mut Value,
    path: &[&str],
) -> impl Iterator<Item = &'a mut Value> + use<'a> {
    at_mut(value, path)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
}

/// The object at a key, created empty when missing or null; `None` when `value` or what stands
/// there is something else.
pub(super) fn object_mut<'a>(
    value: &'a mut Value,
    key: &str,
) -> Option<&'a mut Map<String, Value>> {
    let slot = value.as_object_mut()?.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut()
}

/// Sets a key of an object that is missing, null or an empty string.
pub(super) fn default(value: &mut Value, key: &str, to: impl Into<Value>) {
    let Some(object) = value.as_object_mut() else {
        return;
    };
    let absent = match object.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::String(s)) => s.is_empty(),
        Some(_) => false,
    };
    if absent {
        object.insert(key.to_owned(), to.into());
    }
}

/// As [`default`], and also replaces the number 0 (fields that are no pointers upstream).
pub(super) fn default_nonzero(value: &mut Value, key: &str, to: i64) {
    if value.get(key).and_then(Value::as_i64) == Some(0) {
        set(value, key, to);
    } else {
        default(value, key, to);
    }
}

/// Sets a key only when it is missing or null: an empty string is kept.
pub(super) fn default_unset(value: &mut Value, key: &str, to: impl Into<Value>) {
    let Some(object) = value.as_object_mut() else {
        return;
    };
    if object.get(key).is_none_or(Value::is_null) {
        object.insert(key.to_owned(), to.into());
    }
}

/// Sets a key of an object.
pub(super) fn set(value: &mut Value, key: &str, to: impl Into<Value>) {
    if let Some(object) = value.as_object_mut() {
        object.insert(key.to_owned(), to.into());
    }
}

/// Removes a key of an object.
pub(super) fn remove(value: &mut Value, key: &str) -> Option<Value> {
    value.as_object_mut()?.remove(key)
}

/// Makes `new[key]` equal to `old[key]`, absence included.
pub(super) fn keep(new: &mut Value, old: &Value, key: &str) {
    match old.get(key) {
        Some(value) => set(new, key, value.clone()),
        None => {
            remove(new, key);
        }
    }
}

/// Equality in the sense of upstream's semantic comparison: absent, null and empty lists and
/// objects are the same.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            x.iter().all(|(k, v)| same(v, y.get(k).unwrap_or(&NULL)))
                && y.iter().all(|(k, v)| x.contains_key(k) || same(&NULL, v))
        }
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(v, w)| same(v, w))
        }
        (Value::Null | Value::Object(_) | Value::Array(_), _)
        | (_, Value::Null | Value::Object(_) | Value::Array(_)) => hollow(a) && hollow(b),
        _ => a == b,
    }
}

/// Nothing, or a list or object without content.
fn hollow(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.values().all(hollow),
        _ => false,
    }
}
