//! Items 12 and 14: objects of all kinds, grown at random, are the same by whatever route they are written.

use std::collections::BTreeMap;

use base64::Engine as _;
use davit_api::kinds::{FieldType, ResourceRow, TypeBody, builtin};
use davit_schema::{decode, protobuf};
use davit_store::Write;
use serde_json::{Map, Value, json};

use crate::cluster::*;
use crate::routes::{PROTOBUF, Source, difference, read_protobuf, url};

const APPLY: &str = "application/apply-patch+yaml";
const JSON: &str = "application/json";
const UID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
/// How often it is tried to give an object one more field.
const TRIES: usize = 30;

/// A kind and a small valid object of it.
struct Sample {
    row: &'static ResourceRow,
    object: Value,
}

impl Sample {
    fn all() -> impl Iterator<Item = Self> {
        let text = include_str!("samples/kinds.yaml");
        text.split("\n---\n")
            .map(|text| Self::of(decode::parse(text.as_bytes(), decode::Encoding::Yaml).unwrap()))
    }

    /// The kinds whose samples hold keys and signatures.
    fn of_certificates() -> [Self; 3] {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::default();
        let request = params.serialize_request(&key).unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap();
        let group = "certificates.k8s.io";
        let encode = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
        let signing = json!({"apiVersion": format!("{group}/v1"), "kind": "CertificateSigningRequest",
            "spec": {"signerName": "example.com/s", "usages": ["client auth"],
                "request": encode(request.pem().unwrap().as_bytes())}});
        let bundle = json!({"apiVersion": format!("{group}/v1beta1"), "kind": "ClusterTrustBundle",
            "spec": {"trustBundle": authority.pem()}});
        let pod = json!({"apiVersion": format!("{group}/v1beta1"), "kind": "PodCertificateRequest",
            "spec": {"signerName": "example.com/s", "podName": "p", "podUID": UID,
                "serviceAccountName": "default", "serviceAccountUID": UID, "nodeName": "n",
                "nodeUID": UID, "stubPKCS10Request": encode(request.der())}});
        [signing, bundle, pod].map(Self::of)
    }

    fn of(mut object: Value) -> Self {
        let api_version = object["apiVersion"].as_str().unwrap();
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let kind = object["kind"].as_str().unwrap();
        let row = builtin()
            .resource_of_kind(group, version, kind)
            .unwrap_or_else(|| panic!("{api_version} {kind}"));
        let metadata = &mut object["metadata"];
        if metadata["name"].is_null() {
            metadata["name"] = json!("one");
        }
        metadata["labels"] = json!({"route": "any"});
        metadata["annotations"] = json!({"n": "1"});
        Self { row, object }
    }

    fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap()
    }
}

impl Source {
    fn one_of(&mut self, choices: &[&str]) -> Value {
        json!(choices[self.next(choices.len())])
    }

    /// A value of a type that a server may well take.
    fn valid(&mut self, ty: &FieldType, depth: usize) -> Value {
        let types = &builtin().types;
        if let FieldType::Named(id) = ty
            && let TypeBody::Alias { values, .. } = &types.get(*id).body
            && !values.is_empty()
        {
            return json!(*values[self.next(values.len())]);
        }
        match types.resolve_type(ty) {
            FieldType::Bool => json!(self.next(2) == 0),
            FieldType::Int32 | FieldType::Int64 => json!(self.next(12)),
            FieldType::String => self.one_of(&[
                "text",
                "text-2",
                "example.com/text",
                "d.example.com",
                "10.0.0.7",
                "/a/b",
                "TCP",
                "1.2.3",
                "true",
                "v1",
                "k = 'v'",
                "Text",
            ]),
            FieldType::Quantity => self.one_of(&["1", "1500m", "2Gi", "0.5"]),
            FieldType::List(item) => {
                let count = 1 + self.next(2);
                (0..count).map(|_| self.valid(item, depth + 1)).collect()
            }
            FieldType::Map(item) => {
                let count = 1 + self.next(2);
                let keys = ["a", "example.com/b", "cpu", "memory"];
                (0..count)
                    .map(|_| (keys[self.next(4)].to_owned(), self.valid(item, depth + 1)))
                    .collect::<Map<_, _>>()
                    .into()
            }
            FieldType::Named(id) if matches!(types.get(*id).body, TypeBody::Struct { .. }) => {
                let mut out = Map::new();
                for field in types.fields(*id) {
                    if field.required || (depth < 3 && self.next(4) == 0) {
                        let value = self.valid(&field.ty, depth + 1);
                        out.insert(field.name.to_string(), value);
                    }
                }
                Value::Object(out)
            }
            other => self.value(other, depth),
        }
    }
}

/// A place where a field is missing.
struct Gap {
    /// JSON pointer of the object that lacks it.
    at: String,
    name: String,
    ty: FieldType,
}

/// The places where an object can get another field of its type.
fn gaps(ty: &FieldType, value: &Value, at: &str, out: &mut Vec<Gap>) {
    let types = &builtin().types;
    match (types.resolve_type(ty), value) {
        (FieldType::List(item), Value::Array(items)) => {
            for (index, value) in items.iter().enumerate() {
                gaps(item, value, &format!("{at}/{index}"), out);
            }
        }
        (FieldType::Map(item), Value::Object(map)) => {
            for (key, value) in map {
                let key = key.replace('~', "~0").replace('/', "~1");
                gaps(item, value, &format!("{at}/{key}"), out);
            }
        }
        (FieldType::Named(id), Value::Object(map)) => {
            if !matches!(types.get(*id).body, TypeBody::Struct { .. }) {
                return;
            }
            for field in types.fields(*id) {
                let name = &*field.name;
                if at.is_empty() && matches!(name, "apiVersion" | "kind" | "metadata" | "status") {
                    continue;
                }
                match map.get(name) {
                    Some(value) => gaps(&field.ty, value, &format!("{at}/{name}"), out),
                    None => out.push(Gap {
                        at: at.to_owned(),
                        name: name.to_owned(),
                        ty: field.ty.clone(),
                    }),
                }
            }
        }
        _ => {}
    }
}

/// What is the writers' of an object: the rest differs from one to the next, and status is the
/// controllers'.
fn content(object: &Value) -> Value {
    let mut content = object.clone();
    content.as_object_mut().unwrap().remove("status");
    let metadata = &object["metadata"];
    let mut annotations = metadata["annotations"].clone();
    if let Some(annotations) = annotations.as_object_mut() {
        // how often a daemon set has been changed
        annotations.remove("deprecated.daemonset.template.generation");
    }
    let is_empty = annotations.as_object().is_some_and(Map::is_empty);
    content["metadata"] = json!({
        "labels": metadata["labels"],
        "annotations": if is_empty { Value::Null } else { annotations },
    });
    forget_when_tainted(&mut content);
    content
}

/// The server fills in when a taint was added: the second may be another by the next route.
fn forget_when_tainted(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("timeAdded");
            fields.values_mut().for_each(forget_when_tainted);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_when_tainted),
        _ => {}
    }
}

/// The merge patch that makes one value of another (RFC 7386).
fn merge_between(from: &Value, to: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (from, to) else {
        return to.clone();
    };
    let gone = old.keys().filter(|key| !new.contains_key(*key));
    let mut patch: Map<_, _> = gone.map(|key| (key.clone(), Value::Null)).collect();
    for (key, value) in new {
        match old.get(key) {
            Some(had) if had == value => {}
            Some(had) => drop(patch.insert(key.clone(), merge_between(had, value))),
            None => drop(patch.insert(key.clone(), value.clone())),
        }
    }
    Value::Object(patch)
}

/// The fields of an object at its top that writers change.
fn parts(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let fields = object.as_object().unwrap().iter();
    fields
        .filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "status"))
}

/// The strategic merge patch that puts all parts of an object in place of what is there.
fn strategic_replacement(types_of: &ResourceRow, from: &Value, to: &Value) -> Value {
    let mut patch = Map::new();
    for (name, _) in parts(from) {
        patch.insert(name.clone(), Value::Null);
    }
    for (name, value) in parts(to) {
        let field = builtin().types.field(types_of.type_id, name).unwrap();
        let mut value = value.clone();
        match &mut value {
            Value::Object(map) if !map.is_empty() => {
                map.insert("$patch".to_owned(), json!("replace"));
            }
            Value::Array(items) if field.patch.merge => items.push(json!({"$patch": "replace"})),
            _ => {}
        }
        patch.insert(name.clone(), value);
    }
    Value::Object(patch)
}

/// The JSON patch that puts all parts of an object in place of what is there.
fn json_replacement(from: &Value, to: &Value) -> Value {
    let gone = parts(from).filter(|(name, _)| to.get(name.as_str()).is_none());
    let gone = gone.map(|(name, _)| json!({"op": "remove", "path": format!("/{name}")}));
    let put = parts(to)
        .map(|(name, value)| json!({"op": "add", "path": format!("/{name}"), "value": value}));
    gone.chain(put).collect()
}

struct Routes {
    cluster: Cluster,
    /// Objects, fields that were given to them, objects that could be changed to them.
    counts: [usize; 3],
    /// What was written without the fields that were given: those of no use to the kind.
    grown: BTreeMap<String, usize>,
}

impl Routes {
    async fn new() -> Self {
        let cluster = Cluster::new().await;
        let namespace = json!({"metadata": {"name": "routes"}});
        cluster.post("/api/v1/namespaces", &namespace).await.ok(201);
        let account = json!({"metadata": {"name": "default"}});
        let accounts = "/api/v1/namespaces/routes/serviceaccounts";
        cluster.post(accounts, &account).await.ok(201);
        Self {
            cluster,
            counts: [0; 3],
            grown: BTreeMap::new(),
        }
    }

    async fn send(
        &self,
        method: &str,
        url: &str,
        media: &str,
        body: impl Into<bytes::Bytes>,
    ) -> Answer {
        self.cluster
            .request(method, url, &[("content-type", media)], body)
            .await
    }

    /// Whether the server takes the object, by POST and by apply.
    async fn is_taken(&self, sample: &Sample, object: &Value) -> bool {
        let (base, text) = (url(sample.row), object.to_string());
        let make = format!("{base}?dryRun=All");
        let made = self.send("POST", &make, JSON, text.clone()).await;
        if made.code != 201 {
            return false;
        }
        let apply = format!("{base}/{}?dryRun=All&fieldManager=m", sample.name());
        self.send("PATCH", &apply, APPLY, text).await.code == 201
    }

    /// A valid object with more fields than the sample has.
    async fn grow(&mut self, sample: &Sample, source: &mut Source) -> Value {
        let ty = FieldType::Named(sample.row.type_id);
        let mut object = sample.object.clone();
        for _ in 0..TRIES {
            let mut open = Vec::new();
            gaps(&ty, &object, "", &mut open);
            if open.is_empty() {
                break;
            }
            let gap = open.swap_remove(source.next(open.len()));
            let mut larger = object.clone();
            larger.pointer_mut(&gap.at).unwrap()[&gap.name] = source.valid(&gap.ty, 0);
            if self.is_taken(sample, &larger).await {
                object = larger;
                self.counts[1] += 1;
                *self.grown.entry(sample.row.kind.to_owned()).or_default() += 1;
            }
        }
        object
    }

    /// Reads the object as JSON and as protobuf, which must say the same, and removes it without a trace.
    async fn take(&self, sample: &Sample, route: &str) -> Result<Value, String> {
        let row = sample.row;
        let one = format!("{}/{}", url(row), sample.name());
        let read = self.cluster.get(&one).await.ok(200);
        let read = content(&read);
        let bytes = self
            .cluster
            .request("GET", &one, &[("accept", PROTOBUF)], "");
        let mut binary = read_protobuf(&bytes.await.body);
        binary["apiVersion"] = json!(row.api_version());
        binary["kind"] = json!(row.kind);
        let canonical = |value: &Value| {
            decode::decode_value(&builtin().types, row.type_id, value.clone())
                .unwrap()
                .object
        };
        self.remove(sample).await;
        match difference("", &canonical(&content(&binary)), &canonical(&read)) {
            None => Ok(read),
            Some(differs) => Err(format!("{route}, read as protobuf: {differs}")),
        }
    }

    /// As [`Routes::take`]; what is read must be `wanted`.
    async fn same(&self, sample: &Sample, route: &str, wanted: &Value) -> Result<(), String> {
        let read = self.take(sample, route).await?;
        match difference("", &read, wanted) {
            None => Ok(()),
            Some(differs) => Err(format!("{route}: {differs}")),
        }
    }

    async fn remove(&self, sample: &Sample) {
        let stored = builtin().storage_row(sample.row);
        let group = match stored.group {
            "" => "core",
            group => group,
        };
        let apart = if sample.row.is_classic_dra() {
            "-v1alpha1"
        } else {
            ""
        };
        let namespace = if stored.namespaced { "routes/" } else { "" };
        let plural = stored.plural;
        let key = format!(
            "/registry/{group}{apart}/{plural}/{namespace}{}",
            sample.name()
        );
        let write = Write::delete_any(key);
        match self.cluster.store().commit(write).await {
            // A write that was refused has left nothing.
            Ok(_) | Err(davit_store::Error::NotFound { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Makes the object by every route that makes one; answers with its content.
    async fn make(&self, sample: &Sample, object: &Value) -> Result<Value, String> {
        let (row, base) = (sample.row, url(sample.row));
        let text = object.to_string();
        let yaml = serde_saphyr::to_string(object).unwrap();
        let canonical = decode::decode_value(&builtin().types, row.type_id, object.clone());
        let mut canonical = canonical.unwrap().object;
        canonical["apiVersion"] = json!(row.api_version());
        canonical["kind"] = json!(row.kind);
        let binary = protobuf::encode_object(builtin(), &canonical).unwrap();
        let apply = format!("{base}/{}?fieldManager=m", sample.name());
        let routes = [
            ("POST", base.as_str(), JSON, text.clone().into_bytes()),
            ("POST", &base, "application/yaml", yaml.into_bytes()),
            ("POST", &base, PROTOBUF, binary),
            ("PATCH", &apply, APPLY, text.into_bytes()),
        ];
        let mut wanted = None;
        for (method, to, media, body) in routes {
            let route = format!("{method} {media}");
            let answer = self.send(method, to, media, body).await;
            expect(&answer, 201, &route)?;
            match &wanted {
                Some(wanted) => self.same(sample, &route, wanted).await?,
                None => wanted = Some(self.take(sample, &route).await?),
            }
        }
        Ok(wanted.unwrap())
    }

    /// Makes the sample and changes it to the object by every route that changes one. Not all
    /// objects can be changed, but what one route may do, all may.
    async fn change(
        &mut self,
        sample: &Sample,
        object: &Value,
        wanted: &Value,
    ) -> Result<(), String> {
        let (row, base) = (sample.row, url(sample.row));
        if row.kind == "Namespace" {
            // Its finalizers are written when it is made, and by `finalize`.
            return Ok(());
        }
        let one = format!("{base}/{}", sample.name());
        for route in ["put", "merge", "json", "strategic-merge"] {
            let answer = self.cluster.post(&base, &sample.object).await;
            let before = answer.ok(201);
            let mut put = object.clone();
            put["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
            let answer = match route {
                "put" => self.cluster.put(&one, &put).await,
                "merge" => {
                    let mut patch = Map::new();
                    let Value::Object(whole) = merge_between(&before, object) else {
                        unreachable!("objects differ by an object")
                    };
                    for (name, value) in parts(&Value::Object(whole)) {
                        patch.insert(name.clone(), value.clone());
                    }
                    self.cluster.patch(&one, "merge", &patch.into()).await
                }
                "json" => {
                    let patch = json_replacement(&before, object);
                    self.cluster.patch(&one, "json", &patch).await
                }
                _ => {
                    let patch = strategic_replacement(row, &before, object);
                    self.cluster.patch(&one, route, &patch).await
                }
            };
            if route == "put" && answer.code != 200 {
                self.remove(sample).await;
                return Ok(());
            }
            expect(&answer, 200, route)?;
            self.same(sample, route, wanted).await?;
        }
        self.counts[2] += 1;
        Ok(())
    }

    /// Reads the object in the other versions of its kind and makes it there: it is the same.
    async fn convert(&self, sample: &Sample, object: &Value, wanted: &Value) -> Result<(), String> {
        let row = sample.row;
        let others = builtin().resources.iter().filter(|other| {
            other.group == row.group
                && other.plural == row.plural
                && other.version != row.version
                && other.is_classic_dra() == row.is_classic_dra()
        });
        for other in others {
            self.cluster.post(&url(row), object).await.ok(201);
            let there = format!("{}/{}", url(other), sample.name());
            let mut converted = self.cluster.get(&there).await.ok(200);
            self.remove(sample).await;
            let metadata = converted["metadata"].take();
            converted["metadata"] = json!({"name": sample.name(), "labels": metadata["labels"],
                "annotations": metadata["annotations"]});
            let answer = self.cluster.post(&url(other), &converted).await;
            expect(&answer, 201, other.version)?;
            self.same(sample, other.version, wanted).await?;
        }
        Ok(())
    }

    /// Everything about one object.
    async fn check(&mut self, sample: &Sample, object: &Value) -> Result<(), String> {
        let wanted = self.make(sample, object).await?;
        self.change(sample, object, &wanted).await?;
        self.convert(sample, object, &wanted).await
    }
}

fn expect(answer: &Answer, code: u16, route: &str) -> Result<(), String> {
    if answer.code == code {
        return Ok(());
    }
    Err(format!(
        "{route}: {} {}",
        answer.code,
        answer.json()["message"]
    ))
}

/// One grown object of every kind; `DAVIT_ROUTE_SEEDS=50` for as many.
#[tokio::test]
async fn items_012_and_014_every_route_of_writing_makes_the_same_object() {
    let seeds = std::env::var("DAVIT_ROUTE_SEEDS").ok();
    let seeds: u64 = seeds.and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut routes = Routes::new().await;
    let mut kinds = 0;
    let mut faults = Vec::new();
    let samples = Sample::all().chain(Sample::of_certificates());
    for (index, sample) in samples.enumerate() {
        kinds += 1;
        for seed in 0..seeds {
            let mut source = Source(seed.rotate_left(48) ^ ((index as u64) << 32));
            let object = routes.grow(&sample, &mut source).await;
            if let Err(fault) = routes.check(&sample, &object).await {
                faults.push(format!("{} by {fault}\n  {object}", sample.row.kind));
                routes.remove(&sample).await;
            }
            routes.counts[0] += 1;
        }
    }
    let [objects, fields, changed] = routes.counts;
    println!(
        "{objects} objects of {kinds} kinds, {fields} fields, {changed} changed: {:?}",
        routes.grown
    );
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(fields > 4 * objects, "{fields} fields of {objects} objects");
    assert!(2 * changed > objects, "{changed} of {objects} changed");
}
