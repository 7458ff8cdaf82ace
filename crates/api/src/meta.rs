//! Reading and writing `metadata` of objects that are held as JSON.

use serde_json::{Map, Value};

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// `metadata.name`, or an empty text.
pub fn name(object: &Value) -> &str {
    text(object, "name")
}

/// `metadata.generateName`, or an empty text.
pub fn generate_name(object: &Value) -> &str {
    text(object, "generateName")
}

/// `metadata.namespace`, or an empty text.
pub fn namespace(object: &Value) -> &str {
    text(object, "namespace")
}

/// `metadata.uid`, or an empty text.
pub fn uid(object: &Value) -> &str {
    text(object, "uid")
}

/// `metadata.resourceVersion`, or an empty text.
pub fn resource_version(object: &Value) -> &str {
    text(object, "resourceVersion")
}

/// `metadata.creationTimestamp`, or an empty text.
pub fn creation_timestamp(object: &Value) -> &str {
    text(object, "creationTimestamp")
}

/// `metadata.deletionTimestamp`, if the object is being deleted.
pub fn deletion_timestamp(object: &Value) -> Option<&str> {
    object["metadata"]["deletionTimestamp"].as_str()
}

/// `metadata.deletionGracePeriodSeconds`.
pub fn deletion_grace_period_seconds(object: &Value) -> Option<i64> {
    object["metadata"]["deletionGracePeriodSeconds"].as_i64()
}

/// `metadata.generation`, 0 when absent.
pub fn generation(object: &Value) -> i64 {
    object["metadata"]["generation"].as_i64().unwrap_or(0)
}

/// `apiVersion`, or an empty text.
pub fn api_version(object: &Value) -> &str {
    object["apiVersion"].as_str().unwrap_or_default()
}

/// `kind`, or an empty text.
pub fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or_default()
}

/// `metadata.labels`, if any.
pub fn labels(object: &Value) -> Option<&Map<String, Value>> {
    object["metadata"]["labels"].as_object()
}

/// `metadata.annotations`, if any.
pub fn annotations(object: &Value) -> Option<&Map<String, Value>> {
    object["metadata"]["annotations"].as_object()
}

/// The value of a label.
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["labels"][key].as_str()
}

/// The value of an annotation.
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][key].as_str()
}

/// `metadata.finalizers`, in order.
pub fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    object["metadata"]["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

/// One entry of `metadata.ownerReferences`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerReference<'a> {
    /// `apiVersion` of the owner.
    pub api_version: &'a str,
    /// Kind of the owner.
    pub kind: &'a str,
    /// Name of the owner, which lives in the same namespace or in none.
    pub name: &'a str,
    /// UID of the owner.
    pub uid: &'a str,
    /// Whether the owner manages the object.
    pub controller: bool,
    /// Whether foreground deletion of the owner waits for the object.
    pub block_owner_deletion: bool,
}

/// `metadata.ownerReferences`, in order.
pub fn owner_references(object: &Value) -> impl Iterator<Item = OwnerReference<'_>> {
    object["metadata"]["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|r| {
            let text = |k: &str| r[k].as_str().unwrap_or_default();
            OwnerReference {
                api_version: text("apiVersion"),
                kind: text("kind"),
                name: text("name"),
                uid: text("uid"),
                controller: r["controller"].as_bool().unwrap_or(false),
                block_owner_deletion: r["blockOwnerDeletion"].as_bool().unwrap_or(false),
            }
        })
}

/// The owner that manages the object.
pub fn controller_of(object: &Value) -> Option<OwnerReference<'_>> {
    owner_references(object).find(|r| r.controller)
}

/// The metadata of an object for writing; made when missing. None if the value is no object.
pub fn metadata_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    let metadata = object
        .as_object_mut()?
        .entry("metadata")
        .or_insert_with(|| Value::Object(Map::new()));
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    metadata.as_object_mut()
}

/// Sets a text of the metadata; an empty one removes the field.
pub fn set(object: &mut Value, field: &str, value: &str) {
    if let Some(metadata) = metadata_mut(object) {
        if value.is_empty() {
            metadata.remove(field);
        } else {
            metadata.insert(field.to_owned(), Value::from(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn absent_metadata_reads_as_empty() {
        let o = json!({});
        assert_eq!(name(&o), "");
        assert_eq!(finalizers(&o).count(), 0);
        assert!(controller_of(&o).is_none());
        assert!(labels(&o).is_none());
    }

    #[test]
    fn reads_and_writes() {
        let mut o = json!({"metadata": {"name": "a", "finalizers": ["x/y"],
            "ownerReferences": [{"kind": "Job", "uid": "u", "controller": true}]}});
        assert_eq!(controller_of(&o).unwrap().uid, "u");
        set(&mut o, "namespace", "ns");
        assert_eq!(namespace(&o), "ns");
        set(&mut o, "namespace", "");
        assert!(o["metadata"].get("namespace").is_none());
        let mut empty = json!({});
        set(&mut empty, "name", "b");
        assert_eq!(name(&empty), "b");
    }
}
