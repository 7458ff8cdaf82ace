//! Whether a value is what decoding it would give: then there is nothing to decode.

use davit_api::kinds::{FieldType, Opaque, TypeBody, TypeId, TypeTable};
use davit_api::quantity::Quantity;
use davit_api::time;
use serde_json::{Map, Number, Value};

use super::{canonical_base64, clean};
use crate::raw::MAX_DEPTH;

/// Whether decoding a value as the type `root` gives the same value and finds no fault. May say no of some for which it would.
pub(super) fn is_canonical(types: &TypeTable, root: TypeId, value: &Value) -> bool {
    CanonicalForm { types }.value(&FieldType::Named(root), value, MAX_DEPTH)
}

struct CanonicalForm<'t> {
    types: &'t TypeTable,
}

impl CanonicalForm<'_> {
    /// `left`: how deep the value may nest.
    fn value(&self, ty: &FieldType, value: &Value, left: usize) -> bool {
        let is_scalar = !matches!(value, Value::Array(_) | Value::Object(_));
        let Some(below) = left.checked_sub(usize::from(!is_scalar)) else {
            return false;
        };
        match (self.types.resolve_type(ty), value) {
            (FieldType::Named(id), _) => self.named(*id, value, below),
            (FieldType::Bool, Value::Bool(_))
            | (FieldType::String | FieldType::IntOrString, Value::String(_)) => true,
            (FieldType::Int32 | FieldType::IntOrString, Value::Number(n)) => {
                n.as_i64().is_some_and(|n| i32::try_from(n).is_ok())
            }
            (FieldType::Int64, Value::Number(n)) => n.is_i64(),
            (FieldType::Float64, Value::Number(n)) => is_plain_number(n),
            (FieldType::Bytes, Value::String(s)) => is(s, canonical_base64(s)),
            (FieldType::Quantity, Value::String(s)) => is(s, Quantity::canonicalize(s)),
            (FieldType::Time, Value::String(s)) => is(s, time::parse(s).map(time::format)),
            (FieldType::MicroTime, Value::String(s)) => {
                is(s, time::parse(s).map(time::format_micro))
            }
            (FieldType::Duration, Value::String(s)) => {
                is(s, time::parse_duration(s).map(time::format_duration))
            }
            (FieldType::Any | FieldType::RawExtension, value) => {
                !value.is_null() && is_plain(value, left)
            }
            (FieldType::List(item), Value::Array(items)) => {
                items.iter().all(|value| self.value(item, value, below))
            }
            (FieldType::Map(item), Value::Object(entries)) => {
                entries.values().all(|value| self.value(item, value, below))
            }
            _ => false,
        }
    }

    fn named(&self, id: TypeId, value: &Value, below: usize) -> bool {
        match (&self.types.get(id).body, value) {
            (TypeBody::Struct { .. }, Value::Object(object)) => self.object(id, object, below),
            (TypeBody::Opaque(Opaque::Object), Value::Object(_)) => is_plain(value, below + 1),
            (TypeBody::Opaque(Opaque::Any), value) => {
                !value.is_null() && is_plain(value, below + 1)
            }
            _ => false,
        }
    }

    fn object(&self, id: TypeId, object: &Map<String, Value>, below: usize) -> bool {
        let is_member = |(name, value): (&String, &Value)| {
            self.types.field(id, name).is_some_and(|field| {
                if value.is_null() {
                    return clean::is_null_when_unset(self.types, field);
                }
                clean::is_kept(self.types, field, value) && self.value(&field.ty, value, below)
            })
        };
        object.iter().all(is_member) && clean::is_complete(self.types, id, object)
    }
}

/// Whether a text is its own canonical form.
fn is<T: AsRef<str>, E>(text: &str, canonical: Result<T, E>) -> bool {
    canonical.is_ok_and(|canonical| canonical.as_ref() == text)
}

/// Whether a number is one that 64 bits with a sign hold, or a fraction: others are read as fractions.
fn is_plain_number(number: &Number) -> bool {
    number.is_i64() || number.is_f64()
}

/// Whether a value without a type is kept as it is.
fn is_plain(value: &Value, left: usize) -> bool {
    match value {
        Value::Number(n) => is_plain_number(n),
        Value::Array(_) | Value::Object(_) if left == 0 => false,
        Value::Array(items) => items.iter().all(|value| is_plain(value, left - 1)),
        Value::Object(entries) => entries.values().all(|value| is_plain(value, left - 1)),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_api::kinds::builtin;
    use serde_json::json;

    /// Decoded without the short cut.
    fn slowly(root: TypeId, value: Value) -> Option<(Value, Vec<String>)> {
        let raw = crate::raw::Raw::from_value(value);
        let decoded = super::super::typed(&builtin().types, root, raw, Vec::new()).ok()?;
        Some((decoded.object, decoded.strict))
    }

    #[test]
    fn what_is_canonical_decodes_to_itself() {
        let types = &builtin().types;
        let pod = types.id("core/v1.Pod").unwrap();
        let of = |value: &Value| is_canonical(types, pod, value);
        let given = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "creationTimestamp": "2026-01-02T03:04:05Z",
                "managedFields": [{"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
                    "time": "2026-01-02T03:04:05Z", "fieldsV1": {"f:spec": {"f:x": {}}}}]},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1500m"}}}],
                "tolerations": [{"operator": "Exists"}]}});
        let (decoded, strict) = slowly(pod, given).unwrap();
        assert!(strict.is_empty());
        assert!(of(&decoded));
        // Each change of it that decoding would undo or refuse is seen.
        for (pointer, value) in [
            ("/metadata/labels", json!({})),
            ("/metadata/finalizers", json!([])),
            (
                "/metadata/creationTimestamp",
                json!("2026-01-02T03:04:05+00:00"),
            ),
            ("/metadata/generation", json!(1.5)),
            ("/metadata/nameless", json!(1)),
            ("/metadata/annotations", json!({"a": null})),
            ("/spec/containers/0/resources/limits/cpu", json!("1.5")),
            ("/spec/containers/0/resources/limits/cpu", json!(2)),
            ("/spec/containers/0/command", json!([1])),
            ("/spec/containers", json!([null])),
            ("/spec/hostname", json!("")),
            ("/spec/hostNetwork", json!(false)),
            ("/spec/terminationGracePeriodSeconds", json!(null)),
            ("/status", json!(null)),
            ("/metadata/managedFields/0/fieldsV1", json!(null)),
        ] {
            let mut changed = decoded.clone();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            changed.pointer_mut(parent).unwrap()[key] = value.clone();
            assert!(!of(&changed), "{pointer} {value}");
            let again = slowly(pod, changed.clone());
            assert!(again != Some((changed, Vec::new())), "{pointer} {value}");
        }
        for (pointer, value) in [
            ("/spec/hostname", json!("h")),
            ("/spec/activeDeadlineSeconds", json!(0)),
            ("/metadata/annotations", json!({"a": ""})),
            (
                "/metadata/managedFields/0/fieldsV1",
                json!({"f:a": null, "n": 1.5}),
            ),
        ] {
            let mut changed = decoded.clone();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            changed.pointer_mut(parent).unwrap()[key] = value.clone();
            assert!(of(&changed), "{pointer} {value}");
            assert_eq!(slowly(pod, changed.clone()), Some((changed, Vec::new())));
        }
    }

    #[test]
    fn nesting_has_the_same_limit() {
        let types = &builtin().types;
        let custom = types.id("meta/v1.ManagedFieldsEntry").unwrap();
        for depth in MAX_DEPTH - 4..MAX_DEPTH + 4 {
            let mut deep = json!({});
            for _ in 0..depth {
                deep = json!({ "a": deep });
            }
            let (value, strict) = slowly(custom, json!({ "fieldsV1": deep })).unwrap();
            assert!(strict.is_empty());
            let fits = !crate::raw::too_deep(&value);
            assert_eq!(is_canonical(types, custom, &value), fits, "{depth}");
        }
    }
}
