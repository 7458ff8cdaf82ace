//! Schemas of types.

use std::collections::{BTreeMap, BTreeSet};

use davit_api::kinds::{
    Field, FieldType, KindTable, MapType, Opaque, Text, TypeBody, TypeDef, TypeId,
};
use serde_json::{Map, Value, json};

use super::{Dialect, Gvk, definition_name, descriptions, names};
use crate::apply::is_atomic;

/// Writes the types of a table as schemas.
pub(super) struct Definitions<'a> {
    table: &'a KindTable,
    dialect: Dialect,
}

impl<'a> Definitions<'a> {
    pub(super) fn new(table: &'a KindTable, dialect: Dialect) -> Self {
        Self { table, dialect }
    }

    /// All types that `roots` refer to, with the kinds they are.
    pub(super) fn reachable(
        &self,
        roots: BTreeMap<TypeId, Vec<Gvk>>,
    ) -> BTreeMap<TypeId, Vec<Gvk>> {
        let mut open: Vec<TypeId> = roots.keys().copied().collect();
        let mut seen: BTreeSet<TypeId> = open.iter().copied().collect();
        while let Some(id) = open.pop() {
            for field in self.table.types.fields(id) {
                if let Some(next) = self.refers_to(&field.ty)
                    && seen.insert(next)
                {
                    open.push(next);
                }
            }
        }
        let mut all = roots;
        for id in seen {
            all.entry(id).or_default();
        }
        all
    }

    /// The struct or opaque type a field type leads to.
    fn refers_to(&self, ty: &FieldType) -> Option<TypeId> {
        match self.table.types.resolve_type(ty) {
            FieldType::Named(id) => Some(*id),
            FieldType::List(inner) | FieldType::Map(inner) => self.refers_to(inner),
            _ => None,
        }
    }

    /// The definitions of `types` by name, the scalar ones of the platform included.
    pub(super) fn all(
        &self,
        types: &'a BTreeMap<TypeId, Vec<Gvk>>,
    ) -> impl Iterator<Item = (String, Value)> + use<'a, '_> {
        let mut order: Vec<(String, TypeId)> = types
            .keys()
            .map(|id| (definition_name(&self.table.types.get(*id).name), *id))
            .collect();
        order.sort();
        let of_types = order.into_iter().map(|(name, id)| {
            let kinds = types.get(&id).map_or(&[][..], Vec::as_slice);
            (name, self.definition(id, kinds))
        });
        of_types.chain(self.scalars())
    }

    fn scalars(&self) -> Vec<(String, Value)> {
        let v3 = self.dialect == Dialect::V3;
        let quantity = if v3 {
            json!({"oneOf": [{"type": "string"}, {"type": "number"}]})
        } else {
            json!({"type": "string"})
        };
        let int_or_string = if v3 {
            json!({"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string",
                "x-kubernetes-int-or-string": true})
        } else {
            json!({"type": "string", "format": "int-or-string"})
        };
        let all = [
            (
                names::TIME,
                json!({"type": "string", "format": "date-time"}),
            ),
            (
                names::MICRO_TIME,
                json!({"type": "string", "format": "date-time"}),
            ),
            (names::DURATION, json!({"type": "string"})),
            (names::PATCH, json!({"type": "object"})),
            (names::QUANTITY, quantity),
            (names::INT_OR_STRING, int_or_string),
            (names::RAW_EXTENSION, json!({"type": "object"})),
        ];
        all.map(|(name, mut schema)| {
            describe(
                &mut schema,
                descriptions::of_type(name.rsplit('.').next().unwrap_or(name)),
            );
            (name.to_owned(), schema)
        })
        .to_vec()
    }

    fn definition(&self, id: TypeId, kinds: &[Gvk]) -> Value {
        let def = self.table.types.get(id);
        let mut schema = match &def.body {
            TypeBody::Struct { .. } => self.structure(id),
            TypeBody::Opaque(Opaque::Object) => json!({"type": "object"}),
            TypeBody::Opaque(_) => json!({}),
            TypeBody::Alias { of, .. } => self.schema(of),
        };
        describe(&mut schema, descriptions::of_type(def.short_name()));
        if !kinds.is_empty() {
            let kinds: Vec<Value> = kinds.iter().map(Gvk::to_json).collect();
            schema["x-kubernetes-group-version-kind"] = Value::from(kinds);
        }
        schema
    }

    fn structure(&self, id: TypeId) -> Value {
        let def = self.table.types.get(id);
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in self.table.types.fields(id) {
            if field.required {
                required.push(Value::from(field.name.as_str()));
            }
            properties.insert(field.name.to_string(), self.property(def, field));
        }
        let mut schema = json!({"type": "object"});
        if !properties.is_empty() {
            schema["properties"] = Value::Object(properties);
        }
        if is_atomic(&def.name) {
            schema["x-kubernetes-map-type"] = Value::from(MapType::Atomic.to_string());
        }
        if !required.is_empty() {
            schema["required"] = Value::from(required);
        }
        schema
    }

    fn property(&self, owner: &TypeDef, field: &Field) -> Value {
        let mut schema = self.schema(&field.ty);
        let mut more = Map::new();
        let text = descriptions::of_field(owner.short_name(), &field.name);
        if !text.is_empty() {
            more.insert("description".to_owned(), Value::from(text));
        }
        if let Some(default) = field.default.clone().or_else(|| self.go_default(field)) {
            more.insert("default".to_owned(), default);
        }
        let mut extend = |key: &str, value: Value| {
            more.insert(format!("x-kubernetes-{key}"), value);
        };
        if let Some(list) = field.list_type {
            extend("list-type", Value::from(list.to_string()));
        }
        if !field.list_map_keys.is_empty() {
            let keys: Vec<&str> = field.list_map_keys.iter().map(Text::as_str).collect();
            extend("list-map-keys", Value::from(keys));
        }
        if let Some(map) = field.map_type.or(field.struct_type) {
            extend("map-type", Value::from(map.to_string()));
        }
        if !field.patch.is_default() {
            extend("patch-strategy", Value::from(field.patch.to_string()));
        }
        if let Some(key) = &field.patch_merge_key {
            extend("patch-merge-key", Value::from(key.as_str()));
        }
        self.add(&mut schema, more);
        schema
    }

    /// What stands in a field that nobody set, where Go has no other word for that.
    fn go_default(&self, field: &Field) -> Option<Value> {
        let zero = self.zero(&field.ty).filter(|_| !field.nullable)?;
        (zero.is_object() || field.required || field.written).then_some(zero)
    }

    /// The empty value of a scalar or struct. Version 2 documents do not say it.
    fn zero(&self, ty: &FieldType) -> Option<Value> {
        if self.dialect == Dialect::V2 {
            return None;
        }
        let types = &self.table.types;
        match types.resolve_type(ty) {
            FieldType::Bool => Some(json!(false)),
            FieldType::Int32 | FieldType::Int64 | FieldType::Float64 => Some(json!(0)),
            FieldType::String => Some(json!("")),
            FieldType::Named(id) => {
                matches!(types.get(*id).body, TypeBody::Struct { .. }).then(|| json!({}))
            }
            _ => None,
        }
    }

    /// The schema of the elements of a list or map.
    fn element(&self, ty: &FieldType) -> Value {
        let mut schema = self.schema(ty);
        let default = self.zero(ty).map(|zero| ("default".to_owned(), zero));
        self.add(&mut schema, default.into_iter().collect());
        schema
    }

    /// Adds members to a schema; in version 3 a reference may have no siblings.
    fn add(&self, schema: &mut Value, more: Map<String, Value>) {
        if more.is_empty() {
            return;
        }
        if self.dialect == Dialect::V3 && schema.get("$ref").is_some() {
            *schema = json!({"allOf": [schema.take()]});
        }
        if let Some(schema) = schema.as_object_mut() {
            schema.extend(more);
        }
    }

    fn schema(&self, ty: &FieldType) -> Value {
        match ty {
            FieldType::Bool => json!({"type": "boolean"}),
            FieldType::Int32 => json!({"type": "integer", "format": "int32"}),
            FieldType::Int64 => json!({"type": "integer", "format": "int64"}),
            FieldType::Float64 => json!({"type": "number", "format": "double"}),
            FieldType::String => json!({"type": "string"}),
            FieldType::Bytes => json!({"type": "string", "format": "byte"}),
            FieldType::Time => self.reference(names::TIME),
            FieldType::MicroTime => self.reference(names::MICRO_TIME),
            FieldType::Duration => self.reference(names::DURATION),
            FieldType::Quantity => self.reference(names::QUANTITY),
            FieldType::IntOrString => self.reference(names::INT_OR_STRING),
            FieldType::RawExtension => self.reference(names::RAW_EXTENSION),
            FieldType::Any => json!({}),
            FieldType::List(inner) => json!({"type": "array", "items": self.element(inner)}),
            FieldType::Map(inner) => {
                json!({"type": "object", "additionalProperties": self.element(inner)})
            }
            FieldType::Named(id) => self.named(*id),
        }
    }

    fn named(&self, id: TypeId) -> Value {
        let def = self.table.types.get(id);
        let TypeBody::Alias { of, values, closed } = &def.body else {
            return self.reference(&definition_name(&def.name));
        };
        let mut schema = self.schema(of);
        if *closed && !values.is_empty() {
            let mut values: Vec<&str> = values.iter().map(Text::as_str).collect();
            values.sort_unstable();
            schema["enum"] = Value::from(values);
        }
        schema
    }

    fn reference(&self, definition: &str) -> Value {
        json!({"$ref": self.dialect.reference(definition)})
    }
}

fn describe(schema: &mut Value, text: &str) {
    if !text.is_empty() {
        schema["description"] = Value::from(text);
    }
}
