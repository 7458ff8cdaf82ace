//! Items 12, 14, 17: one object is the same by whatever route it is read.

use davit_api::kinds::{FieldType, Opaque, ResourceRow, TypeBody, TypeId, builtin};
use davit_schema::{decode, protobuf};
use davit_store::Write;
use serde_json::{Map, Value, json};

use crate::cluster::*;

pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const SEEDS: u64 = 3;

/// Values of a type, from numbers.
pub(crate) struct Source(pub(crate) u64);

impl Source {
    pub(crate) fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % below as u64) as usize
    }

    pub(crate) fn value(&mut self, ty: &FieldType, depth: usize) -> Value {
        let types = &builtin().types;
        match types.resolve_type(ty) {
            FieldType::Bool => json!(true),
            FieldType::Int32 | FieldType::Int64 => json!(1 + self.next(1000)),
            FieldType::Float64 => json!(0.5),
            FieldType::String => json!(format!("text-{}", self.next(1000))),
            FieldType::Bytes => json!("YQ=="),
            FieldType::Time => json!("2024-02-29T23:59:59Z"),
            FieldType::MicroTime => json!("2024-02-29T23:59:59.000001Z"),
            FieldType::Duration => json!("1h0m0s"),
            FieldType::Quantity => json!(["1", "1500m", "2Gi"][self.next(3)]),
            FieldType::IntOrString => [json!(7), json!("25%")][self.next(2)].clone(),
            FieldType::RawExtension | FieldType::Any => json!({"apiVersion": "x/v1", "kind": "X"}),
            FieldType::List(item) => (0..=self.next(2))
                .map(|_| self.value(item, depth))
                .collect(),
            FieldType::Map(item) => (0..=self.next(2))
                .map(|i| (format!("k{i}"), self.value(item, depth)))
                .collect::<Map<_, _>>()
                .into(),
            FieldType::Named(id) => match &types.get(*id).body {
                TypeBody::Opaque(Opaque::Any | Opaque::Object) => json!({"a": "b"}),
                TypeBody::Opaque(Opaque::SchemaOrBool) => json!(true),
                TypeBody::Opaque(_) => json!({"type": "object"}),
                _ => self.object(*id, depth),
            },
        }
    }

    fn object(&mut self, id: TypeId, depth: usize) -> Value {
        let mut out = Map::new();
        for field in builtin().types.fields(id) {
            let left_out = (depth > 6 || self.next(3) == 0) && !field.required;
            if matches!(&*field.name, "apiVersion" | "kind" | "metadata") || left_out {
                continue;
            }
            out.insert(field.name.to_string(), self.value(&field.ty, depth + 1));
        }
        Value::Object(out)
    }
}

pub(crate) fn url(row: &ResourceRow) -> String {
    let root = if row.group.is_empty() {
        format!("/api/{}", row.version)
    } else {
        format!("/apis/{}/{}", row.group, row.version)
    };
    if row.namespaced {
        format!("{root}/namespaces/routes/{}", row.plural)
    } else {
        format!("{root}/{}", row.plural)
    }
}

pub(crate) fn read_protobuf(body: &[u8]) -> Value {
    protobuf::decode_object(builtin(), body, None)
        .unwrap()
        .value
}

/// What differs first.
pub(crate) fn difference(at: &str, a: &Value, b: &Value) -> Option<String> {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => x
            .keys()
            .chain(y.keys())
            .find_map(|key| difference(&format!("{at}.{key}"), &a[key], &b[key])),
        (Value::Array(x), Value::Array(y)) if x.len() == y.len() => x
            .iter()
            .zip(y)
            .enumerate()
            .find_map(|(i, (a, b))| difference(&format!("{at}[{i}]"), a, b)),
        (a, b) if a == b => None,
        // Protobuf always carries a divisor: one that was not given is 0.
        (Value::String(zero), Value::Null) if zero == "0" && at.ends_with(".divisor") => None,
        // It carries no kinds of the objects within one.
        (Value::Null, Value::String(_))
            if at.contains(".volumeClaimTemplates[")
                && (at.ends_with("].kind") || at.ends_with("].apiVersion")) =>
        {
            None
        }
        (a, b) => Some(format!("{at}: {a} is not {b}")),
    }
}

/// Kinds of which the server itself has rules that made-up objects break for it.
fn is_left_out(row: &ResourceRow) -> bool {
    matches!(
        row.kind,
        "Namespace" | "Event" | "CustomResourceDefinition" | "APIService"
    ) || row.group == "flowcontrol.apiserver.k8s.io"
        || row.group == "admissionregistration.k8s.io"
}

/// Objects of all kinds with values made from the kinds table, put under the server as they would be
/// stored, are the same by every route of reading.
#[tokio::test]
async fn items_012_014_and_017_every_kind_reads_the_same_by_every_route() {
    let c = Cluster::new().await;
    let table = builtin();
    let rows = table.resources.iter().filter(|row| {
        row.has_verb("get") && row.has_verb("create") && row.plural != "componentstatuses"
    });
    let mut seen = 0;
    for (index, row) in rows.filter(|row| !is_left_out(row)).enumerate() {
        let stored_as = table.storage_row(row);
        if stored_as.version != row.version || stored_as.group != row.group {
            continue;
        }
        for seed in 0..SEEDS {
            let mut source = Source(seed ^ ((index as u64) << 32));
            let made = source.object(row.type_id, 0);
            let mut object = decode::decode_value(&table.types, row.type_id, made)
                .unwrap()
                .object;
            let name = format!("o{seed}");
            object["apiVersion"] = json!(row.api_version());
            object["kind"] = json!(row.kind);
            object["metadata"] = json!({"name": name, "uid": "u", "labels": {"seed": seed.to_string()},
                "creationTimestamp": "2024-01-01T00:00:00Z"});
            let group = if row.group.is_empty() {
                "core"
            } else {
                row.group
            };
            let apart = if row.is_classic_dra() {
                "-v1alpha1"
            } else {
                ""
            };
            let mut key = format!("/registry/{group}{apart}/{}/", row.plural);
            if row.namespaced {
                object["metadata"]["namespace"] = json!("routes");
                key.push_str("routes/");
            }
            key.push_str(&name);
            let write = Write::put(key, object.to_string());
            let revision = c.store().commit(write).await.unwrap().revision;
            object["metadata"]["resourceVersion"] = json!(revision.to_string());
            let base = url(row);
            let one = format!("{base}/{name}");
            let same = |route: &str, read: &Value| {
                let read = decode::decode_value(&table.types, row.type_id, read.clone());
                let difference = difference("", &read.unwrap().object, &{
                    let wanted = decode::decode_value(&table.types, row.type_id, object.clone());
                    wanted.unwrap().object
                });
                assert_eq!(difference, None, "{} by {route}", row.kind);
            };
            same("JSON", &c.get(&one).await.ok(200));
            let yaml = c
                .request("GET", &one, &[("accept", "application/yaml")], "")
                .await;
            assert_eq!(yaml.code, 200, "{}", yaml.text());
            same(
                "YAML",
                &decode::parse(&yaml.body, decode::Encoding::Yaml).unwrap(),
            );
            let bytes = c.request("GET", &one, &[("accept", PROTOBUF)], "").await;
            assert_eq!(bytes.header("content-type"), PROTOBUF, "{}", row.kind);
            same("protobuf", &read_protobuf(&bytes.body));
            let select = format!("{base}?labelSelector=seed%3D{seed}");
            let list = c.get(&select).await.ok(200);
            let mut item = list["items"][0].clone();
            item["apiVersion"] = object["apiVersion"].clone();
            item["kind"] = object["kind"].clone();
            same("list", &item);
            let list = c.request("GET", &select, &[("accept", PROTOBUF)], "").await;
            let list = read_protobuf(&list.body);
            let mut item = list["items"][0].clone();
            item["apiVersion"] = object["apiVersion"].clone();
            item["kind"] = object["kind"].clone();
            same("list in protobuf", &item);
            let partial = format!("{PROTOBUF};as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
            let partial = c.request("GET", &one, &[("accept", &partial)], "").await;
            let partial = read_protobuf(&partial.body);
            assert_eq!(partial["kind"], "PartialObjectMetadata", "{}", row.kind);
            let metadata = |of: &Value| {
                let only = json!({"metadata": of["metadata"]});
                let read = decode::decode_value(&table.types, row.type_id, only).unwrap();
                read.object["metadata"].clone()
            };
            assert_eq!(metadata(&partial), metadata(&object), "{}", row.kind);
            let watch = format!("{select}&watch=1&timeoutSeconds=5");
            let mut events = c.watch(&watch).await;
            same("watch", &events.next().await.unwrap()["object"]);
            seen += 1;
        }
    }
    assert!(seen > 40 * SEEDS, "{seen}");
}
