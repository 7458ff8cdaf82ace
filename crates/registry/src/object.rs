//! Reading and writing the metadata of an object that is plain JSON.

use davit_api::kinds;
use davit_schema::ordered::Ordered;
use serde_json::{Map, Value, json};

pub use davit_api::meta::{name, namespace, resource_version, uid};

/// An object that is written as the original writes it.
pub fn ordered(value: &Value) -> Ordered<'_> {
    Ordered::new(kinds::builtin(), value)
}

/// A text of the metadata; empty when missing.
pub fn meta_str<'a>(object: &'a Value, key: &str) -> &'a str {
    object
        .get("metadata")
        .and_then(|m| m.get(key))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// An integer of the metadata.
pub fn meta_int(object: &Value, key: &str) -> Option<i64> {
    object.get("metadata")?.get(key)?.as_i64()
}

/// Whether deletion has been asked for.
pub fn is_deleting(object: &Value) -> bool {
    !meta_str(object, "deletionTimestamp").is_empty()
}

/// The finalizers.
pub fn finalizers(object: &Value) -> Vec<String> {
    davit_api::meta::finalizers(object)
        .map(str::to_owned)
        .collect()
}

/// The metadata, made when missing.
pub fn metadata_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    let object = object.as_object_mut()?;
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    if metadata.is_null() {
        *metadata = json!({});
    }
    metadata.as_object_mut()
}

/// Sets a key of the metadata.
pub fn set_meta(object: &mut Value, key: &str, value: impl Into<Value>) {
    if let Some(metadata) = metadata_mut(object) {
        metadata.insert(key.to_owned(), value.into());
    }
}

/// Removes keys of the metadata.
pub fn remove_meta(object: &mut Value, keys: &[&str]) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for key in keys {
            metadata.remove(*key);
        }
    }
}

/// Makes a key of the metadata what it is in another object, missing included.
pub fn keep_meta(object: &mut Value, from: &Value, key: &str) {
    match from.get("metadata").and_then(|m| m.get(key)) {
        Some(value) => set_meta(object, key, value.clone()),
        None => remove_meta(object, &[key]),
    }
}

/// Sets or (for an empty list) removes the finalizers.
pub fn set_finalizers(object: &mut Value, finalizers: &[String]) {
    if finalizers.is_empty() {
        remove_meta(object, &["finalizers"]);
    } else {
        set_meta(object, "finalizers", json!(finalizers));
    }
}

/// Sets apiVersion and kind.
pub fn set_type(object: &mut Value, api_version: &str, kind: &str) {
    if let Some(object) = object.as_object_mut() {
        object.insert("apiVersion".to_owned(), json!(api_version));
        object.insert("kind".to_owned(), json!(kind));
    }
}

/// Now, as Kubernetes writes instants (seconds, UTC).
pub fn now() -> String {
    seconds(jiff::Timestamp::now())
}

/// An instant as Kubernetes writes it.
pub fn seconds(at: jiff::Timestamp) -> String {
    davit_api::time::format(at)
}
