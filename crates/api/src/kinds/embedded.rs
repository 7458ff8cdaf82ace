//! Reads the generated table. Its strings hold no escapes, so all of them are borrowed from the
//! binary.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::{
    Field, FieldType, KindRow, KindTable, ListType, MapType, Opaque, PatchStrategy, ResourceRow,
    SubresourceRow, Text, TypeBody, TypeDef, TypeId, TypeTable, Validation,
};

static SOURCE: &str = include_str!("../kinds.json");

#[derive(Deserialize)]
struct RawTable<'a> {
    #[serde(borrow)]
    resources: Vec<RawResource<'a>>,
    #[serde(borrow)]
    kinds: Vec<RawKind<'a>>,
    #[serde(borrow)]
    types: BTreeMap<&'a str, RawType<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawResource<'a> {
    group: &'a str,
    version: &'a str,
    plural: &'a str,
    kind: &'a str,
    namespaced: bool,
    #[serde(borrow)]
    verbs: Vec<&'a str>,
    #[serde(default, borrow)]
    short_names: Vec<&'a str>,
    #[serde(default, borrow)]
    categories: Vec<&'a str>,
    #[serde(default, borrow)]
    subresources: Vec<RawSubresource<'a>>,
    #[serde(rename = "type")]
    type_name: &'a str,
    #[serde(borrow)]
    introduced: Option<&'a str>,
    #[serde(borrow)]
    deprecated: Option<&'a str>,
    #[serde(borrow)]
    removed: Option<&'a str>,
    #[serde(borrow)]
    replacement: Option<&'a str>,
}

#[derive(Deserialize)]
struct RawSubresource<'a> {
    name: &'a str,
    group: &'a str,
    version: &'a str,
    kind: &'a str,
    #[serde(borrow)]
    verbs: Vec<&'a str>,
}

#[derive(Deserialize)]
struct RawKind<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
    #[serde(default)]
    namespaced: bool,
    #[serde(rename = "type")]
    type_name: &'a str,
}

#[derive(Deserialize)]
struct RawType<'a> {
    #[serde(borrow)]
    fields: Option<Vec<RawField<'a>>>,
    #[serde(default)]
    union: bool,
    #[serde(borrow)]
    alias: Option<&'a str>,
    #[serde(default, borrow)]
    values: Vec<&'a str>,
    #[serde(default)]
    closed: bool,
    #[serde(borrow)]
    opaque: Option<&'a str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawField<'a> {
    #[serde(default)]
    name: &'a str,
    #[serde(rename = "type")]
    ty: &'a str,
    #[serde(default)]
    required: bool,
    #[serde(default)]
    written: bool,
    #[serde(default)]
    nullable: bool,
    #[serde(default)]
    inline: bool,
    proto: Option<u16>,
    #[serde(borrow)]
    list_type: Option<&'a str>,
    #[serde(default, borrow)]
    list_map_keys: Vec<&'a str>,
    #[serde(borrow)]
    map_type: Option<&'a str>,
    #[serde(borrow)]
    struct_type: Option<&'a str>,
    #[serde(default, borrow)]
    patch_strategy: Vec<&'a str>,
    #[serde(borrow)]
    patch_merge_key: Option<&'a str>,
    default: Option<Value>,
    #[serde(borrow)]
    validation: Option<Box<RawValidation<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawValidation<'a> {
    minimum: Option<i64>,
    maximum: Option<i64>,
    max_items: Option<u64>,
    max_length: Option<u64>,
    max_bytes: Option<u64>,
    #[serde(borrow)]
    format: Option<&'a str>,
    #[serde(borrow)]
    each_key_format: Option<&'a str>,
    #[serde(default)]
    immutable: bool,
    #[serde(default)]
    no_modify: bool,
    #[serde(default)]
    union_member: bool,
    #[serde(default)]
    union_discriminator: bool,
    #[serde(borrow)]
    one_of: Option<&'a str>,
    #[serde(borrow)]
    unique: Option<&'a str>,
    #[serde(default, borrow)]
    unique_keys: Vec<&'a str>,
    #[serde(default, borrow)]
    feature_gates: Vec<&'a str>,
}

pub(super) fn load() -> KindTable {
    let raw: RawTable<'static> =
        serde_json::from_str(SOURCE).expect("the committed table is what the generator wrote");
    let ids: HashMap<&'static str, TypeId> = raw
        .types
        .keys()
        .enumerate()
        .map(|(i, name)| (*name, TypeId(i as u32)))
        .collect();
    let types = raw
        .types
        .into_iter()
        .map(|(name, t)| TypeDef::new(name, body(t, &ids)))
        .collect();
    let type_id = |name| *ids.get(name).expect("the generator names only known types");
    let resources: Vec<ResourceRow> = raw
        .resources
        .into_iter()
        .map(|r| ResourceRow {
            group: r.group,
            version: r.version,
            plural: r.plural,
            singular: r.kind.to_ascii_lowercase(),
            kind: r.kind,
            namespaced: r.namespaced,
            verbs: r.verbs,
            short_names: r.short_names,
            categories: r.categories,
            subresources: r.subresources.into_iter().map(subresource).collect(),
            type_id: type_id(r.type_name),
            introduced: r.introduced,
            deprecated: r.deprecated,
            removed: r.removed,
            replacement: r.replacement,
        })
        .collect();
    let kinds: Vec<KindRow> = raw
        .kinds
        .into_iter()
        .map(|k| KindRow {
            group: k.group,
            version: k.version,
            kind: k.kind,
            namespaced: k.namespaced,
            type_id: type_id(k.type_name),
        })
        .collect();
    let by_plural = resources
        .iter()
        .enumerate()
        .map(|(i, r)| ((r.group, r.version, r.plural), i))
        .collect();
    let mut by_kind = HashMap::new();
    for row in &kinds {
        let name = (row.group, row.version, row.kind);
        by_kind.entry(name).or_insert(row.type_id);
    }
    KindTable {
        resources,
        kinds,
        types: Arc::new(TypeTable::new(types)),
        by_plural,
        by_kind,
    }
}

fn subresource(raw: RawSubresource<'static>) -> SubresourceRow {
    SubresourceRow {
        name: raw.name,
        group: raw.group,
        version: raw.version,
        kind: raw.kind,
        verbs: raw.verbs,
    }
}

fn body(raw: RawType<'static>, ids: &HashMap<&'static str, TypeId>) -> TypeBody {
    if let Some(of) = raw.alias {
        return TypeBody::Alias {
            of: field_type(of, ids),
            values: texts(raw.values),
            closed: raw.closed,
        };
    }
    match raw.opaque {
        Some("any") => TypeBody::Opaque(Opaque::Any),
        Some("object") => TypeBody::Opaque(Opaque::Object),
        Some("schemaOrBool") => TypeBody::Opaque(Opaque::SchemaOrBool),
        Some("schemaOrArray") => TypeBody::Opaque(Opaque::SchemaOrArray),
        Some("schemaOrStrings") => TypeBody::Opaque(Opaque::SchemaOrStrings),
        _ => TypeBody::Struct {
            fields: raw
                .fields
                .unwrap_or_default()
                .into_iter()
                .map(|f| field(f, ids))
                .collect(),
            union: raw.union,
        },
    }
}

fn field(raw: RawField<'static>, ids: &HashMap<&'static str, TypeId>) -> Field {
    Field {
        name: Text::Static(raw.name),
        ty: field_type(raw.ty, ids),
        required: raw.required,
        written: raw.written,
        nullable: raw.nullable,
        inline: raw.inline,
        proto: raw.proto,
        list_type: raw.list_type.and_then(list_type),
        list_map_keys: texts(raw.list_map_keys),
        map_type: raw.map_type.map(map_type),
        struct_type: raw.struct_type.map(map_type),
        patch: PatchStrategy {
            merge: raw.patch_strategy.contains(&"merge"),
            replace: raw.patch_strategy.contains(&"replace"),
            retain_keys: raw.patch_strategy.contains(&"retainKeys"),
        },
        patch_merge_key: raw.patch_merge_key.map(Text::Static),
        default: raw.default,
        validation: raw.validation.map(|v| Box::new(validation(*v))),
    }
}

fn validation(raw: RawValidation<'static>) -> Validation {
    Validation {
        minimum: raw.minimum,
        maximum: raw.maximum,
        max_items: raw.max_items,
        max_length: raw.max_length,
        max_bytes: raw.max_bytes,
        format: raw.format.map(Text::Static),
        each_key_format: raw.each_key_format.map(Text::Static),
        immutable: raw.immutable,
        no_modify: raw.no_modify,
        union_member: raw.union_member,
        union_discriminator: raw.union_discriminator,
        one_of: raw.one_of.map(Text::Static),
        unique: raw.unique.and_then(list_type),
        unique_keys: texts(raw.unique_keys),
        feature_gates: texts(raw.feature_gates),
    }
}

fn texts(list: Vec<&'static str>) -> Vec<Text> {
    list.into_iter().map(Text::Static).collect()
}

fn list_type(text: &str) -> Option<ListType> {
    match text {
        "atomic" => Some(ListType::Atomic),
        "set" => Some(ListType::Set),
        "map" => Some(ListType::Map),
        _ => None,
    }
}

fn map_type(text: &str) -> MapType {
    if text == "atomic" {
        MapType::Atomic
    } else {
        MapType::Granular
    }
}

fn field_type(text: &str, ids: &HashMap<&'static str, TypeId>) -> FieldType {
    if let Some(item) = text.strip_prefix("[]") {
        return FieldType::List(Box::new(field_type(item, ids)));
    }
    if let Some((_, value)) = text.strip_prefix("map[").and_then(|t| t.split_once(']')) {
        return FieldType::Map(Box::new(field_type(value, ids)));
    }
    match text {
        "bool" => FieldType::Bool,
        "int32" => FieldType::Int32,
        "int64" => FieldType::Int64,
        "float64" => FieldType::Float64,
        "string" => FieldType::String,
        "bytes" => FieldType::Bytes,
        "time" => FieldType::Time,
        "microtime" => FieldType::MicroTime,
        "duration" => FieldType::Duration,
        "quantity" => FieldType::Quantity,
        "intOrString" => FieldType::IntOrString,
        "rawExtension" => FieldType::RawExtension,
        "any" => FieldType::Any,
        name => FieldType::Named(*ids.get(name).expect("the generator names only known types")),
    }
}
