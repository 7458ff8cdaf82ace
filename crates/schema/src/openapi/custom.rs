//! Custom kinds in the documents: their own schemas, wrapped into what every kind has.

use std::collections::BTreeMap;

use davit_api::kinds::{KindTable, ResourceRow, TypeId};
use serde_json::{Map, Value, json};

use super::{Dialect, Gvk, definition_name, paths};

/// One version of a custom kind.
#[derive(Debug, Clone, Copy)]
pub struct CustomDocument<'a> {
    /// What is served.
    pub row: &'a ResourceRow,
    /// The kind of its lists.
    pub list_kind: &'a str,
    /// Its `openAPIV3Schema`.
    pub schema: &'a Value,
}

impl CustomDocument<'_> {
    /// `com.example.stable.v1.Shirt`.
    fn name(&self, kind: &str) -> String {
        let mut parts: Vec<&str> = self.row.group.rsplit('.').collect();
        parts.extend([self.row.version, kind]);
        parts.join(".")
    }

    pub(super) fn paths(&self, table: &KindTable, dialect: Dialect) -> Vec<(String, Value)> {
        let names = paths::CustomNames {
            object: self.name(self.row.kind),
            list: self.name(self.list_kind),
        };
        paths::of_custom(table, self.row, dialect, &names)
    }

    /// The definitions of the kind and its list.
    pub(super) fn definitions(&self, dialect: Dialect) -> [(String, Value); 2] {
        let gvk = |kind: &str| json!([Gvk::new(self.row.group, self.row.version, kind).to_json()]);
        let mut schema = match dialect {
            Dialect::V2 => simplified(self.schema),
            Dialect::V3 => self.schema.clone(),
        };
        if !schema.is_object() {
            schema = json!({ "type": "object" });
        }
        if let Some(schema) = schema.as_object_mut() {
            schema.insert("type".to_owned(), json!("object"));
            let open = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true));
            // a kind that keeps everything is an object of which nothing is known
            if !(open && dialect == Dialect::V2) {
                let properties = schema.entry("properties").or_insert_with(|| json!({}));
                if let Some(properties) = properties.as_object_mut() {
                    type_meta(properties, "ObjectMeta", dialect);
                }
            }
            schema.insert(
                "x-kubernetes-group-version-kind".to_owned(),
                gvk(self.row.kind),
            );
        }
        let name = self.name(self.row.kind);
        let mut properties = Map::new();
        type_meta(&mut properties, "ListMeta", dialect);
        let items = json!({
            "type": "array",
            "description": format!("List of {}.", self.row.plural),
            "items": { "$ref": dialect.reference(&name) },
        });
        properties.insert("items".to_owned(), items);
        let list = json!({
            "type": "object",
            "description": format!("{} is a list of {}", self.list_kind, self.row.kind),
            "required": ["items"],
            "properties": properties,
            "x-kubernetes-group-version-kind": gvk(self.list_kind),
        });
        [(name, schema), (self.name(self.list_kind), list)]
    }
}

/// Adds apiVersion, kind and metadata.
fn type_meta(properties: &mut Map<String, Value>, metadata: &str, dialect: Dialect) {
    let reference = dialect.reference(&definition_name(&format!("meta/v1.{metadata}")));
    let reference = json!({ "$ref": reference });
    let metadata = match dialect {
        Dialect::V2 => reference,
        // in version 3 a reference may have no siblings
        Dialect::V3 => json!({
            "description": "Standard metadata.",
            "allOf": [reference],
        }),
    };
    let text = |description: &str| json!({ "type": "string", "description": description });
    properties.insert(
        "apiVersion".to_owned(),
        text("The versioned schema of this representation of an object."),
    );
    properties.insert(
        "kind".to_owned(),
        text("The REST resource this object represents."),
    );
    properties.insert("metadata".to_owned(), metadata);
}

/// What version 2 can say of a schema: no alternatives, no nulls, nothing below what is kept
/// unseen.
fn simplified(schema: &Value) -> Value {
    const KEPT: [&str; 24] = [
        "description",
        "type",
        "format",
        "title",
        "maximum",
        "exclusiveMaximum",
        "minimum",
        "exclusiveMinimum",
        "maxLength",
        "minLength",
        "pattern",
        "maxItems",
        "minItems",
        "multipleOf",
        "enum",
        "required",
        "maxProperties",
        "minProperties",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-map-type",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
    ];
    const SHAPE: [&str; 6] = [
        "type",
        "format",
        "enum",
        "required",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
    ];
    let is = |key: &str| schema.get(key) == Some(&Value::Bool(true));
    let open = is("x-kubernetes-preserve-unknown-fields");
    let shapeless = is("nullable") || is("x-kubernetes-int-or-string");
    let mut out = Map::new();
    for key in KEPT {
        if let Some(value) = schema.get(key)
            && !(shapeless && SHAPE.contains(&key))
            && !(open && key == "required")
        {
            out.insert(key.to_owned(), value.clone());
        }
    }
    if shapeless || open {
        return Value::Object(out);
    }
    if let Some(items) = schema.get("items").filter(|items| items.is_object()) {
        out.insert("items".to_owned(), simplified(items));
    }
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        let properties: Map<String, Value> = properties
            .iter()
            .map(|(name, inner)| (name.clone(), simplified(inner)))
            .collect();
        out.insert("properties".to_owned(), Value::Object(properties));
    }
    if let Some(additional) = schema
        .get("additionalProperties")
        .filter(|inner| inner.is_object())
    {
        out.insert("additionalProperties".to_owned(), simplified(additional));
    }
    Value::Object(out)
}

/// The built-in types that documents of custom kinds refer to.
pub(super) fn roots(table: &KindTable) -> BTreeMap<TypeId, Vec<Gvk>> {
    let mut roots: BTreeMap<TypeId, Vec<Gvk>> = BTreeMap::new();
    for (group, version, kind) in [
        ("meta.k8s.io", "v1", "DeleteOptions"),
        ("", "v1", "Status"),
        ("autoscaling", "v1", "Scale"),
    ] {
        if let Some(id) = table.kind_type(group, version, kind) {
            roots.insert(id, vec![Gvk::new(group, version, kind)]);
        }
    }
    for name in ["meta/v1.ObjectMeta", "meta/v1.ListMeta"] {
        if let Some(id) = table.types.id(name) {
            roots.entry(id).or_default();
        }
    }
    roots
}
