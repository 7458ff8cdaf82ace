//! JSON of built-in kinds with the fields in the order in which their types declare them, as the original's encoder writes
//! them: `kind`, `apiVersion`, `metadata` and so on. Clients show and compare bodies.
//!
//! Keys of maps, and all of custom kinds, stay sorted: the original holds those in maps.

use davit_api::kinds::{FieldType, KindTable, TypeBody, TypeId, TypeTable, split_api_version};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

/// A value that serializes in the order of its type, or as it is when it has no built-in one.
#[derive(Debug, Clone, Copy)]
pub struct Ordered<'a> {
    kinds: &'a KindTable,
    root: Option<TypeId>,
    value: &'a Value,
}

impl<'a> Ordered<'a> {
    /// An object that says of which kind it is.
    #[must_use]
    pub fn new(kinds: &'a KindTable, value: &'a Value) -> Self {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        let (group, version) = split_api_version(text("apiVersion"));
        let root = kinds.kind_type(group, version, text("kind"));
        Self { kinds, root, value }
    }

    /// A value of the type of a name, such as `meta/v1.TableRowCondition`.
    #[must_use]
    pub fn of_type(kinds: &'a KindTable, name: &str, value: &'a Value) -> Self {
        let root = kinds.types.id(name);
        Self { kinds, root, value }
    }

    /// The JSON text.
    #[must_use]
    pub fn to_json(self) -> String {
        // a Value has string keys only, which always serialize
        serde_json::to_string(&self).unwrap_or_else(|_| self.value.to_string())
    }
}

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.root {
            Some(root) => of_type(self.kinds, root, self.value, serializer),
            None => self.value.serialize(serializer),
        }
    }
}

/// A value of the type of a field or an element.
#[derive(Debug, Clone, Copy)]
struct Typed<'a>(&'a KindTable, &'a FieldType, &'a Value);

impl Serialize for Typed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        of_field(self.0, self.1, self.2, serializer)
    }
}

fn of_type<S: Serializer>(
    kinds: &KindTable,
    id: TypeId,
    value: &Value,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let types: &TypeTable = &kinds.types;
    let id = types.resolve(id);
    match (&types.get(id).body, value) {
        (TypeBody::Struct { .. }, Value::Object(object)) => {
            let mut map = serializer.serialize_map(Some(object.len()))?;
            let mut known = 0;
            for (field, value) in types.members(id, object) {
                map.serialize_entry(field.name.as_str(), &Typed(kinds, &field.ty, value))?;
                known += 1;
            }
            // What the type does not know is kept, after what it does.
            if known < object.len() {
                for (name, value) in object {
                    if types.field(id, name).is_none() {
                        map.serialize_entry(name, value)?;
                    }
                }
            }
            map.end()
        }
        (TypeBody::Alias { of, .. }, _) => of_field(kinds, of, value, serializer),
        _ => value.serialize(serializer),
    }
}

fn of_field<S: Serializer>(
    kinds: &KindTable,
    ty: &FieldType,
    value: &Value,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match (kinds.types.resolve_type(ty), value) {
        (FieldType::Named(id), _) => of_type(kinds, *id, value, serializer),
        (FieldType::List(item), Value::Array(items)) => {
            serializer.collect_seq(items.iter().map(|v| Typed(kinds, item, v)))
        }
        (FieldType::Map(item), Value::Object(entries)) => serializer.collect_map(
            entries
                .iter()
                .map(|(name, v)| (name, Typed(kinds, item, v))),
        ),
        // Objects inside of others, as in the rows of tables, say of which kind they are.
        (FieldType::RawExtension, Value::Object(_)) => {
            Ordered::new(kinds, value).serialize(serializer)
        }
        _ => value.serialize(serializer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_api::kinds::builtin;
    use serde_json::json;

    fn text(value: &Value) -> String {
        Ordered::new(builtin(), value).to_json()
    }

    #[test]
    fn fields_stand_as_they_are_declared() {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"uid": "u", "labels": {"b": "1", "a": "2"}, "name": "p", "generation": 1,
                "managedFields": [{"manager": "m", "fieldsV1": {"f:b": {}, "f:a": {}}, "operation": "Update"}]},
            "spec": {"containers": [{"image": "i", "name": "c", "zzz": 1, "resources": {"limits": {"b": 1, "a": 2}}}],
                "volumes": [{"emptyDir": {}, "name": "v"}]},
        });
        assert_eq!(
            text(&pod),
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","uid":"u","generation":1,"labels":{"a":"2","b":"1"},"managedFields":[{"manager":"m","operation":"Update","fieldsV1":{"f:a":{},"f:b":{}}}]},"spec":{"volumes":[{"name":"v","emptyDir":{}}],"containers":[{"name":"c","image":"i","resources":{"limits":{"a":2,"b":1}},"zzz":1}]}}"#
        );
        let status = json!({"apiVersion": "v1", "kind": "Status", "code": 404, "reason": "NotFound",
            "status": "Failure", "message": "m", "metadata": {}, "details": {"kind": "pods", "name": "n"}});
        assert_eq!(
            text(&status),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"m","reason":"NotFound","details":{"name":"n","kind":"pods"},"code":404}"#
        );
    }

    #[test]
    fn rows_of_tables_hold_objects_in_their_own_order() {
        let table = json!({"apiVersion": "meta.k8s.io/v1", "kind": "Table", "rows": [
            {"cells": ["p"], "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {"uid": "u", "name": "p"}}}]});
        assert_eq!(
            text(&table),
            r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","rows":[{"cells":["p"],"object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","uid":"u"}}}]}"#
        );
    }

    #[test]
    fn custom_kinds_stay_sorted() {
        let custom = json!({"kind": "Thing", "apiVersion": "ex.io/v1", "metadata": {"uid": "u", "name": "n"}});
        assert_eq!(text(&custom), custom.to_string());
        assert_eq!(text(&json!([1, null])), "[1,null]");
    }

    #[test]
    fn nothing_but_the_order_changes() {
        let of = |value: &Value| serde_json::from_str::<Value>(&text(value)).unwrap();
        for odd in [
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": null, "spec": [1], "status": "x"}),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"b": "", "a": null}, "more": {"z": 1, "y": []}}),
            json!({"apiVersion": "apps/v1", "kind": "DeploymentList", "items": [{"spec": {"replicas": 1.5}}, null]}),
        ] {
            assert_eq!(of(&odd), odd);
        }
    }
}
