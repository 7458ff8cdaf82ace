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
    /// Paths of its selectable fields (`spec.color`).
    pub selectable: &'a [&'a str],
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
        let open = self.schema.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true));
        // A kind that keeps everything is an object of which nothing is known: of any property that version 2 named,
        // kubectl would conclude that there are no others.
        let unknown = !self.schema.is_object() || (open && dialect == Dialect::V2);
        let mut schema = match dialect {
            _ if unknown => json!({}),
            Dialect::V2 => simplified(self.schema),
            Dialect::V3 => self.schema.clone(),
        };
        embedded_resources(&mut schema, dialect);
        if let Some(schema) = schema.as_object_mut() {
            schema.insert("type".to_owned(), json!("object"));
            if !unknown {
                let properties = schema.entry("properties").or_insert_with(|| json!({}));
                if let Some(properties) = properties.as_object_mut() {
                    type_meta(properties, "ObjectMeta", dialect);
                }
            }
            schema.insert(
                "x-kubernetes-group-version-kind".to_owned(),
                gvk(self.row.kind),
            );
            schema.extend(self.selectable_fields());
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
        let mut list = json!({
            "type": "object",
            "description": format!("{} is a list of {}", self.list_kind, self.row.kind),
            "required": ["items"],
            "properties": properties,
            "x-kubernetes-group-version-kind": gvk(self.list_kind),
        });
        if let Some(list) = list.as_object_mut() {
            list.extend(self.selectable_fields());
        }
        [(name, schema), (self.name(self.list_kind), list)]
    }

    /// `x-kubernetes-selectable-fields`, where there are any (KEP-4358).
    fn selectable_fields(&self) -> Option<(String, Value)> {
        let field = |path: &&str| json!({ "fieldPath": path });
        let fields: Vec<Value> = self.selectable.iter().map(field).collect();
        let name = "x-kubernetes-selectable-fields";
        (!fields.is_empty()).then(|| (name.to_owned(), Value::Array(fields)))
    }
}

/// Adds what the objects within an object have besides what their schemas say (`x-kubernetes-embedded-resource`).
fn embedded_resources(schema: &mut Value, dialect: Dialect) {
    let is_true = |schema: &Value, key: &str| schema.get(key) == Some(&json!(true));
    let is_open = is_true(schema, "x-kubernetes-preserve-unknown-fields");
    let is_object = is_true(schema, "x-kubernetes-embedded-resource");
    let Some(schema) = schema.as_object_mut() else {
        return;
    };
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for property in properties.values_mut() {
            embedded_resources(property, dialect);
        }
    }
    for below in ["items", "additionalProperties"] {
        if let Some(element) = schema.get_mut(below) {
            embedded_resources(element, dialect);
        }
    }
    // of any property that version 2 named, kubectl would conclude that there are no others
    if !is_object || is_open && dialect == Dialect::V2 {
        return;
    }
    let properties = schema.entry("properties").or_insert_with(|| json!({}));
    if let Some(properties) = properties.as_object_mut() {
        type_meta(properties, "ObjectMeta", dialect);
    }
    let required = schema.entry("required").or_insert_with(|| json!([]));
    if let Some(required) = required.as_array_mut() {
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|given| given == name) {
                required.push(json!(name));
            }
        }
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
            "description": "Standard object's metadata.",
            "allOf": [reference],
        }),
    };
    let text = |description: &str| json!({ "type": "string", "description": description });
    properties.insert(
        "apiVersion".to_owned(),
        text("APIVersion defines in which versioned schema the object is written."),
    );
    properties.insert(
        "kind".to_owned(),
        text("Kind names what the object is, in CamelCase."),
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
    let has_items = schema.get("items").is_some_and(Value::is_object) && !open;
    let typeless = match schema.get("type").and_then(Value::as_str) {
        Some("object") => open,
        Some("array") => !has_items,
        _ => false,
    };
    let mut out = Map::new();
    for key in KEPT {
        if let Some(value) = schema.get(key)
            && !(shapeless && SHAPE.contains(&key))
            && !(open && key == "required")
            && !(typeless && key == "type")
        {
            out.insert(key.to_owned(), value.clone());
        }
    }
    if shapeless || open {
        return Value::Object(out);
    }
    drop_nullable(schema, &mut out);
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

/// Version 2 does not say that a field may be null, so it does not say either that such a field is required.
fn drop_nullable(schema: &Value, out: &mut Map<String, Value>) {
    let Some(required) = out.get_mut("required").and_then(Value::as_array_mut) else {
        return;
    };
    let nullable = |inner: Option<&Value>| {
        let inner = inner.and_then(|inner| inner.get("nullable"));
        inner == Some(&Value::Bool(true))
    };
    if nullable(schema.get("additionalProperties")) {
        required.clear();
    }
    let properties = schema.get("properties");
    required.retain(|name| {
        let name = name.as_str().unwrap_or_default();
        !nullable(properties.and_then(|properties| properties.get(name)))
    });
    if required.is_empty() {
        out.remove("required");
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_2_says_nothing_that_kubectl_misunderstands() {
        let schema = json!({ "type": "object", "required": ["open", "null", "kept"], "properties": {
            "open": { "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": { "a": { "type": "string" } } },
            "null": { "type": "string", "nullable": true },
            "kept": { "type": "array", "items": { "type": "integer", "anyOf": [{ "minimum": 3 }] } },
        } });
        assert_eq!(
            simplified(&schema),
            json!({ "type": "object", "required": ["open", "kept"], "properties": {
                "open": { "x-kubernetes-preserve-unknown-fields": true },
                "null": {},
                "kept": { "type": "array", "items": { "type": "integer" } },
            } })
        );
    }

    #[test]
    fn objects_within_objects_have_a_kind_and_metadata() {
        let given = json!({"type": "object", "properties": {
            "templates": {"type": "array", "items": {"type": "object", "x-kubernetes-embedded-resource": true,
                "required": ["kind", "spec"], "properties": {"spec": {"type": "object"}}}},
            "open": {"type": "object", "x-kubernetes-embedded-resource": true,
                "x-kubernetes-preserve-unknown-fields": true},
            "plain": {"type": "object"}}});
        let mut schema = given.clone();
        embedded_resources(&mut schema, Dialect::V3);
        let template = &schema["properties"]["templates"]["items"];
        assert_eq!(template["required"], json!(["kind", "spec", "apiVersion"]));
        let names: Vec<&String> = template["properties"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["apiVersion", "kind", "metadata", "spec"]);
        assert_eq!(
            schema["properties"]["open"]["required"],
            json!(["kind", "apiVersion"])
        );
        assert_eq!(schema["properties"]["plain"], given["properties"]["plain"]);
        let mut schema = given.clone();
        embedded_resources(&mut schema, Dialect::V2);
        assert_eq!(schema["properties"]["open"], given["properties"]["open"]);
    }
}
