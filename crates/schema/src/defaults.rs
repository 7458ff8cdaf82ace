//! Static defaults: those that a field declares by itself. Defaults that depend on other fields are
//! the business of each kind.

use davit_api::kinds::{FieldType, TypeBody, TypeId, TypeTable};
use serde_json::Value;

/// Writes declared defaults into the structs that are there; absent structs stay absent. Doing it
/// twice changes nothing.
pub fn apply(types: &TypeTable, root: TypeId, object: &mut Value) {
    walk(types, &FieldType::Named(root), object);
}

fn walk(types: &TypeTable, ty: &FieldType, value: &mut Value) {
    match (types.resolve_type(ty), value) {
        (FieldType::List(item), Value::Array(items)) if holds_structs(types, item) => {
            for value in items {
                walk(types, item, value);
            }
        }
        (FieldType::Map(item), Value::Object(entries)) if holds_structs(types, item) => {
            for value in entries.values_mut() {
                walk(types, item, value);
            }
        }
        (FieldType::Named(id), Value::Object(fields))
            if matches!(types.get(*id).body, TypeBody::Struct { .. }) =>
        {
            for field in types.fields_of_absence(*id) {
                if let Some(default) = &field.default
                    && is_unset(fields.get(&*field.name), field.nullable)
                    && (field.nullable || field.required || field.written || !is_zero(default))
                {
                    fields.insert(field.name.to_string(), default.clone());
                }
            }
            for (name, value) in fields {
                if matches!(value, Value::Array(_) | Value::Object(_))
                    && let Some(field) = types.field(*id, name)
                {
                    walk(types, &field.ty, value);
                }
            }
        }
        _ => {}
    }
}

/// An empty value that is no pointer is one that was never given.
fn is_unset(value: Option<&Value>, nullable: bool) -> bool {
    value.is_none_or(|v| v.is_null() || !nullable && is_zero(v))
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

fn holds_structs(types: &TypeTable, ty: &FieldType) -> bool {
    matches!(
        types.resolve_type(ty),
        FieldType::Named(_) | FieldType::List(_) | FieldType::Map(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_api::kinds::builtin;
    use serde_json::json;

    fn defaulted(kind: &str, mut value: Value) -> Value {
        let types = &builtin().types;
        let id = types.id(kind).unwrap();
        apply(types, id, &mut value);
        let once = value.clone();
        apply(types, id, &mut value);
        assert_eq!(once, value);
        value
    }

    #[test]
    fn declared_defaults_are_written_where_structs_are() {
        assert_eq!(
            defaulted(
                "core/v1.Pod",
                json!({"spec": {"containers": [{"ports": [{"containerPort": 80},
                    {"containerPort": 81, "protocol": "UDP"}, {"protocol": ""}]}],
                    "volumes": [{"name": "a", "azureDisk": {"readOnly": true}}, {"name": "b"}]}}),
            ),
            json!({"spec": {"containers": [{"ports": [{"containerPort": 80, "protocol": "TCP"},
                {"containerPort": 81, "protocol": "UDP"}, {"protocol": "TCP"}]}],
                "volumes": [{"name": "a", "azureDisk": {"readOnly": true, "cachingMode": "ReadWrite",
                    "fsType": "ext4", "kind": "Shared"}}, {"name": "b"}]}})
        );
        assert_eq!(
            defaulted("core/v1.ReplicationController", json!({"spec": {}})),
            json!({"spec": {"replicas": 1}})
        );
        assert_eq!(
            defaulted(
                "core/v1.ReplicationController",
                json!({"spec": {"replicas": 0}})
            ),
            json!({"spec": {"replicas": 0}})
        );
    }

    #[test]
    fn empty_defaults_of_optional_fields_stay_unwritten() {
        assert_eq!(
            defaulted("core/v1.LocalObjectReference", json!({})),
            json!({})
        );
    }
}
