//! Fields that belong to feature gates: what belongs to a gate that is off is dropped, unless the object as it is stored
//! uses the gate already.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use davit_api::features::Features;
use davit_api::kinds::{Field, FieldType, TypeId, TypeTable};
use serde_json::Value;

/// The fields of a table of types whose gates are off.
#[derive(Debug)]
pub struct Disabled {
    types: Arc<TypeTable>,
    features: Features,
    /// Types below which such a field is. The others are not looked at.
    concerned: HashSet<TypeId>,
}

impl Disabled {
    /// What `features` disable.
    #[must_use]
    pub fn new(types: Arc<TypeTable>, features: Features) -> Self {
        let mut concerned = HashSet::new();
        loop {
            let more: Vec<TypeId> = types
                .ids()
                .filter(|id| !concerned.contains(id))
                .filter(|id| {
                    types.fields(*id).any(|field| {
                        gates(field).any(|gate| !features.is_on(gate))
                            || concerned_by(&types, &concerned, &field.ty)
                    })
                })
                .collect();
            if more.is_empty() {
                break;
            }
            concerned.extend(more);
        }
        Self {
            types,
            features,
            concerned,
        }
    }

    /// Which gates are on.
    #[must_use]
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// Drops the fields of `object`, of the type `root`, whose gates are off. A gate that some field of `old` is there for
    /// counts as on, so that objects which were written when it was on can still be changed.
    pub fn drop(&self, root: TypeId, object: &mut Value, old: Option<&Value>) {
        let root = FieldType::Named(root);
        if !concerned_by(&self.types, &self.concerned, &root) {
            return;
        }
        let mut in_use = BTreeSet::new();
        if let Some(old) = old {
            self.find_used(&root, old, &mut in_use);
        }
        self.drop_below(&root, object, &in_use);
    }

    /// The gates that are off and whose fields the value has.
    fn find_used<'t>(&'t self, ty: &FieldType, value: &Value, used: &mut BTreeSet<&'t str>) {
        if !concerned_by(&self.types, &self.concerned, ty) {
            return;
        }
        match (self.types.resolve_type(ty), value) {
            (FieldType::List(item), Value::Array(items)) => {
                for value in items {
                    self.find_used(item, value, used);
                }
            }
            (FieldType::Map(item), Value::Object(entries)) => {
                for value in entries.values() {
                    self.find_used(item, value, used);
                }
            }
            (FieldType::Named(id), Value::Object(object)) => {
                for (name, value) in object.iter().filter(|(_, v)| !v.is_null()) {
                    if let Some(field) = self.types.field(*id, name) {
                        used.extend(gates(field).filter(|gate| !self.features.is_on(gate)));
                        self.find_used(&field.ty, value, used);
                    }
                }
            }
            _ => {}
        }
    }

    fn drop_below(&self, ty: &FieldType, value: &mut Value, in_use: &BTreeSet<&str>) {
        if !concerned_by(&self.types, &self.concerned, ty) {
            return;
        }
        match (self.types.resolve_type(ty), value) {
            (FieldType::List(item), Value::Array(items)) => {
                for value in items {
                    self.drop_below(item, value, in_use);
                }
            }
            (FieldType::Map(item), Value::Object(entries)) => {
                for value in entries.values_mut() {
                    self.drop_below(item, value, in_use);
                }
            }
            (FieldType::Named(id), Value::Object(object)) => {
                let is_off = |gate: &str| !self.features.is_on(gate) && !in_use.contains(gate);
                object.retain(|name, value| {
                    let Some(field) = self.types.field(*id, name) else {
                        return true;
                    };
                    let is_unset = field.written && value.is_null();
                    let stays = is_unset || !gates(field).any(is_off);
                    if stays {
                        self.drop_below(&field.ty, value, in_use);
                    } else if field.written && field.nullable {
                        *value = Value::Null;
                        return true;
                    }
                    stays
                });
            }
            _ => {}
        }
    }
}

fn gates(field: &Field) -> impl Iterator<Item = &str> {
    let validation = field.validation.iter();
    validation.flat_map(|v| v.feature_gates.iter().map(|gate| &**gate))
}

/// Whether values of the type can hold a field of a gate that is off.
fn concerned_by(types: &TypeTable, concerned: &HashSet<TypeId>, ty: &FieldType) -> bool {
    match types.resolve_type(ty) {
        FieldType::List(item) | FieldType::Map(item) => concerned_by(types, concerned, item),
        FieldType::Named(id) => concerned.contains(id),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_api::kinds;
    use serde_json::json;

    fn slice(devices: &Value) -> Value {
        json!({"spec": {"driver": "d", "devices": devices}})
    }

    fn dropped(features: &Features, mut object: Value, old: Option<&Value>) -> Value {
        let kinds = kinds::builtin();
        let mut rows = kinds.resources.iter();
        let row = rows
            .find(|row| row.kind == "ResourceSlice" && row.version == "v1")
            .unwrap();
        let disabled = Disabled::new(Arc::clone(&kinds.types), features.clone());
        disabled.drop(row.type_id, &mut object, old);
        object
    }

    #[test]
    fn item_38_fields_of_gates_that_are_off_are_dropped_unless_in_use() {
        let shared = json!([{"name": "a", "allowMultipleAllocations": true,
            "attributes": {"k": {"strings": ["x"]}, "n": {"int": 1}},
            "capacity": {"m": {"value": "1", "requestPolicy": {"default": "1"}}}}]);
        let mut features = Features::default();
        let by_default = dropped(&features, slice(&shared), None);
        let expected = json!([{"name": "a", "allowMultipleAllocations": true, "attributes": {"k": {}, "n": {"int": 1}},
            "capacity": {"m": {"value": "1", "requestPolicy": {"default": "1"}}}}]);
        assert_eq!(by_default, slice(&expected));

        features.set("DRAConsumableCapacity", false).unwrap();
        features.set("DRAListTypeAttributes", true).unwrap();
        let new = slice(&shared);
        let plain = json!([{"name": "a", "attributes": {"k": {"strings": ["x"]}, "n": {"int": 1}},
            "capacity": {"m": {"value": "1"}}}]);
        assert_eq!(dropped(&features, new.clone(), None), slice(&plain));
        // an old object without the fields does not help, one with one of them does
        let old = slice(&plain);
        assert_eq!(dropped(&features, new.clone(), Some(&old)), old);
        let old = slice(&json!([{"name": "b", "allowMultipleAllocations": false}]));
        assert_eq!(dropped(&features, new.clone(), Some(&old)), new);
    }
}
