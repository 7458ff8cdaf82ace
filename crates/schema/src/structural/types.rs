//! The types of a custom kind for server-side apply: how its lists and maps merge.

use std::sync::Arc;

use davit_api::kinds::{
    Field, FieldType, ListType, MapType, Text, TypeBody, TypeDef, TypeId, TypeTable, builtin,
};

use super::{Additional, Kind, Node};

/// The table of a schema and its root type.
pub(super) fn of(root: &Node) -> (Arc<TypeTable>, TypeId) {
    let mut builder = Builder {
        types: Vec::new(),
        metadata: None,
    };
    let id = builder.resource(root);
    (Arc::new(TypeTable::new(builder.types)), id)
}

struct Builder {
    types: Vec<TypeDef>,
    metadata: Option<TypeId>,
}

impl Builder {
    fn add(&mut self, fields: Vec<Field>) -> TypeId {
        let id = TypeId(u32::try_from(self.types.len()).unwrap_or(u32::MAX));
        // the number keeps the names apart, which nobody reads
        let name = format!("custom/v1.T{}", id.0);
        let body = TypeBody::Struct {
            fields,
            union: false,
        };
        self.types.push(TypeDef::new(name, body));
        id
    }

    /// An object with apiVersion, kind and metadata, declared or not.
    fn resource(&mut self, node: &Node) -> TypeId {
        let mut fields = vec![
            scalar("apiVersion", FieldType::String),
            scalar("kind", FieldType::String),
            Field {
                name: Text::from("metadata"),
                ty: FieldType::Named(self.metadata()),
                nullable: true,
                ..Field::default()
            },
        ];
        let own = node
            .properties
            .iter()
            .filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind" | "metadata"));
        for (name, inner) in own {
            fields.push(self.field(name.clone(), inner));
        }
        fields.extend(self.others(node));
        self.add(fields)
    }

    /// What may stand beside declared properties, as an inline map.
    fn others(&mut self, node: &Node) -> Option<Field> {
        let inner = match &node.additional {
            Additional::Schema(inner) => self.value(inner),
            Additional::Any => FieldType::Any,
            Additional::Unset if node.preserve => FieldType::Any,
            Additional::Unset => return None,
        };
        Some(Field {
            ty: FieldType::Map(Box::new(inner)),
            inline: true,
            nullable: true,
            ..Field::default()
        })
    }

    fn field(&mut self, name: Text, node: &Node) -> Field {
        let is_map = matches!(node.map_type, Some(MapType::Atomic));
        let ty = self.value(node);
        let is_struct = matches!(ty, FieldType::Named(_));
        Field {
            name,
            nullable: true,
            list_type: (node.kind == Some(Kind::Array))
                .then(|| node.list_type.unwrap_or(ListType::Atomic)),
            list_map_keys: node.list_map_keys.to_vec(),
            map_type: (is_map && !is_struct).then_some(MapType::Atomic),
            struct_type: is_struct.then_some(if is_map {
                MapType::Atomic
            } else {
                MapType::Granular
            }),
            default: node.default.as_deref().cloned(),
            ty,
            ..Field::default()
        }
    }

    fn value(&mut self, node: &Node) -> FieldType {
        if node.int_or_string {
            return FieldType::IntOrString;
        }
        match node.kind {
            None => FieldType::Any,
            Some(Kind::String) => FieldType::String,
            Some(Kind::Integer) => FieldType::Int64,
            Some(Kind::Number) => FieldType::Float64,
            Some(Kind::Boolean) => FieldType::Bool,
            Some(Kind::Array) => FieldType::List(Box::new(match &node.items {
                Some(items) => self.element(items),
                None => FieldType::Any,
            })),
            Some(Kind::Object) if node.embedded => FieldType::Named(self.resource(node)),
            Some(Kind::Object) => self.object(node),
        }
    }

    /// An element of a list. Types of elements have no place for how a list among them merges:
    /// lists in lists are one value, unless they are wrapped in an object.
    fn element(&mut self, node: &Node) -> FieldType {
        self.value(node)
    }

    fn object(&mut self, node: &Node) -> FieldType {
        if node.properties.is_empty() {
            return match &node.additional {
                Additional::Schema(inner) => FieldType::Map(Box::new(self.value(inner))),
                _ if node.preserve => FieldType::Any,
                Additional::Any => FieldType::Map(Box::new(FieldType::Any)),
                Additional::Unset => FieldType::Named(self.add(Vec::new())),
            };
        }
        let mut fields: Vec<Field> = node
            .properties
            .iter()
            .map(|(name, inner)| self.field(name.clone(), inner))
            .collect();
        fields.extend(self.others(node));
        FieldType::Named(self.add(fields))
    }

    /// ObjectMeta, copied from the built-in types because a table refers to its own types only.
    fn metadata(&mut self) -> TypeId {
        if let Some(id) = self.metadata {
            return id;
        }
        let table = &builtin().types;
        let id = match table.id("meta/v1.ObjectMeta") {
            Some(id) => self.copy(table, id),
            None => self.add(Vec::new()),
        };
        self.metadata = Some(id);
        id
    }

    fn copy(&mut self, table: &TypeTable, id: TypeId) -> TypeId {
        let def = table.get(id);
        let mut fields = Vec::new();
        for field in table.fields(id) {
            fields.push(Field {
                name: field.name.clone(),
                ty: self.copy_type(table, &field.ty),
                required: field.required,
                written: field.written,
                nullable: field.nullable,
                list_type: field.list_type,
                list_map_keys: field.list_map_keys.clone(),
                map_type: field.map_type,
                struct_type: field.struct_type,
                ..Field::default()
            });
        }
        let id = self.add(fields);
        // merging asks for some types by name
        if let Some(slot) = self.types.last_mut() {
            let body = std::mem::replace(
                &mut slot.body,
                TypeBody::Opaque(davit_api::kinds::Opaque::Any),
            );
            *slot = TypeDef::new(def.name.clone(), body);
        }
        id
    }

    fn copy_type(&mut self, table: &TypeTable, ty: &FieldType) -> FieldType {
        match table.resolve_type(ty) {
            FieldType::List(inner) => FieldType::List(Box::new(self.copy_type(table, inner))),
            FieldType::Map(inner) => FieldType::Map(Box::new(self.copy_type(table, inner))),
            FieldType::Named(id) if matches!(table.get(*id).body, TypeBody::Struct { .. }) => {
                FieldType::Named(self.copy(table, *id))
            }
            FieldType::Named(_) => FieldType::Any,
            other => other.clone(),
        }
    }
}

fn scalar(name: &'static str, ty: FieldType) -> Field {
    Field {
        name: Text::from(name),
        ty,
        ..Field::default()
    }
}
