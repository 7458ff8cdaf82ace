//! Merge patch (RFC 7386).

use serde_json::{Map, Value};

use super::PatchError;

/// Merges a patch into a document: null deletes, objects merge, everything else replaces.
///
/// # Errors
/// When the patch is no object.
pub fn merge_patch(mut document: Value, patch: Value) -> Result<Value, PatchError> {
    let Value::Object(patch) = patch else {
        return Err(PatchError::Malformed("Invalid JSON Patch".to_owned()));
    };
    merge(&mut document, patch);
    Ok(document)
}

fn merge(document: &mut Value, patch: Map<String, Value>) {
    if !document.is_object() {
        *document = Value::Object(Map::new());
    }
    let Value::Object(fields) = document else {
        return;
    };
    for (key, value) in patch {
        match value {
            Value::Null => {
                fields.remove(&key);
            }
            Value::Object(inner) => {
                merge(fields.entry(key).or_insert(Value::Null), inner);
            }
            other => {
                fields.insert(key, other);
            }
        }
    }
}

/// The merge patch that turns one document into another; none if they are equal. Nulls inside the
/// target cannot be expressed and are taken for absent.
pub fn diff(from: &Value, to: &Value) -> Option<Value> {
    let (Value::Object(a), Value::Object(b)) = (from, to) else {
        return (from != to).then(|| to.clone());
    };
    let mut out = Map::new();
    for key in a.keys().filter(|k| b.get(*k).is_none_or(Value::is_null)) {
        out.insert(key.clone(), Value::Null);
    }
    for (key, value) in b.iter().filter(|(_, v)| super::is_set(v)) {
        match a.get(key) {
            None => {
                out.insert(key.clone(), value.clone());
            }
            Some(old) => {
                if let Some(change) = diff(old, value) {
                    out.insert(key.clone(), change);
                }
            }
        }
    }
    (!out.is_empty()).then_some(Value::Object(out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn examples_of_the_rfc() {
        for (document, patch, expected) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": "b"}),
                json!({"b": "c"}),
                json!({"a": "b", "b": "c"}),
            ),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (
                json!({"a": [{"b": "c"}]}),
                json!({"a": [1]}),
                json!({"a": [1]}),
            ),
            (json!(["a"]), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
        ] {
            assert_eq!(merge_patch(document, patch).unwrap(), expected);
        }
        assert!(merge_patch(json!({}), json!([])).is_err());
    }

    fn tree() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            "[a-c]".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|m| m.into_iter().collect::<Map<_, _>>().into()),
            ]
        })
    }

    proptest! {
        #[test]
        fn difference_applied_gives_the_target(
            a in proptest::collection::btree_map("[a-d]", tree(), 0..4),
            b in proptest::collection::btree_map("[a-d]", tree(), 0..4),
        ) {
            let a = Value::Object(a.into_iter().collect());
            let b = Value::Object(b.into_iter().collect());
            match diff(&a, &b) {
                None => prop_assert_eq!(a, b),
                Some(patch) => {
                    let once = merge_patch(a, patch.clone()).unwrap();
                    prop_assert_eq!(&once, &b);
                    prop_assert_eq!(merge_patch(once.clone(), patch).unwrap(), once);
                }
            }
        }
    }
}
