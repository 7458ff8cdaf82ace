//! Items 12, 14, 17: one object is the same by whatever route it is written and read.

use davit_api::kinds::{FieldType, Opaque, ResourceRow, TypeBody, TypeId, builtin};
use davit_schema::{decode, protobuf};
use davit_store::Write;
use serde_json::{Map, Value, json};

use crate::cluster::*;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const SEEDS: u64 = 3;

/// Values of a type, from numbers.
struct Source(u64);

impl Source {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % below as u64) as usize
    }

    fn value(&mut self, ty: &FieldType, depth: usize) -> Value {
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

fn url(row: &ResourceRow) -> String {
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

fn read_protobuf(body: &[u8]) -> Value {
    protobuf::decode_object(builtin(), body, None)
        .unwrap()
        .value
}

/// What differs first.
fn difference(at: &str, a: &Value, b: &Value) -> Option<String> {
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

fn samples() -> Vec<(&'static str, Value)> {
    let template = json!({"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}],
            "env": [{"name": "E", "value": "v"}], "resources": {"limits": {"cpu": "1500m"}}}]}});
    let selector = json!({"matchLabels": {"a": "b"}});
    let workload = |extra: Value| {
        let mut spec = json!({"selector": selector, "template": template});
        for (key, value) in extra.as_object().unwrap() {
            spec[key] = value.clone();
        }
        json!({"spec": spec})
    };
    let mut job = json!({"spec": {"template": template}});
    job["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
    vec![
        (
            "/api/v1/namespaces/default/configmaps",
            json!({"data": {"a": "1"}, "binaryData": {"b": "YQ=="}}),
        ),
        (
            "/api/v1/namespaces/default/secrets",
            json!({"type": "Opaque", "data": {"a": "YQ=="}}),
        ),
        (
            "/api/v1/namespaces/default/services",
            json!({"spec": {"clusterIP": "None", "selector": {"a": "b"},
            "ports": [{"name": "x", "port": 80, "targetPort": "web"}, {"name": "y", "port": 81}]}}),
        ),
        (
            "/api/v1/namespaces/default/serviceaccounts",
            json!({"automountServiceAccountToken": false}),
        ),
        (
            "/api/v1/namespaces/default/limitranges",
            json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}}]}}),
        ),
        (
            "/api/v1/namespaces/default/resourcequotas",
            json!({"spec": {"hard": {"pods": "5", "cpu": "1500m"}}}),
        ),
        (
            "/api/v1/namespaces/default/endpoints",
            json!({"subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}]}),
        ),
        (
            "/api/v1/namespaces/default/persistentvolumeclaims",
            json!({"spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "s"}}),
        ),
        (
            "/api/v1/nodes",
            json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}),
        ),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            workload(json!({"replicas": 3})),
        ),
        (
            "/apis/apps/v1/namespaces/default/daemonsets",
            workload(json!({})),
        ),
        (
            "/apis/apps/v1/namespaces/default/statefulsets",
            workload(json!({"serviceName": "s"})),
        ),
        (
            "/apis/apps/v1/namespaces/default/replicasets",
            workload(json!({"replicas": 1})),
        ),
        ("/apis/batch/v1/namespaces/default/jobs", job),
        (
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            json!({"spec": {"holderIdentity": "h",
            "renewTime": "2024-01-01T00:00:00.000001Z", "leaseDurationSeconds": 15}}),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            json!({"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]}),
        ),
        (
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            json!({"value": 7, "description": "d"}),
        ),
        (
            "/apis/storage.k8s.io/v1/storageclasses",
            json!({"provisioner": "example.com/p", "parameters": {"a": "b"}}),
        ),
        (
            "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
            json!({"spec": {"podSelector": {},
            "ingress": [{"ports": [{"port": 80, "protocol": "TCP"}]}]}}),
        ),
        (
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
            json!({"spec": {"minAvailable": "50%", "selector": selector}}),
        ),
        (
            "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
            json!({"spec": {"maxReplicas": 5,
            "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}}}),
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            json!({"addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]}),
        ),
        (
            "/apis/resource.k8s.io/v1/deviceclasses",
            json!({"spec": {"selectors": [{"cel": {"expression": "true"}}]}}),
        ),
        (
            "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
            json!({"spec": {"type": "Limited",
            "limited": {"limitResponse": {"type": "Reject"}}}}),
        ),
    ]
}

/// What is the client's of an object: the rest differs from object to object.
fn content(mut object: Value) -> Value {
    let labels = object["metadata"]["labels"].clone();
    let annotations = object["metadata"]["annotations"].clone();
    object["metadata"] = json!({"labels": labels, "annotations": annotations});
    let mut object: Map<String, Value> = object.as_object().unwrap().clone();
    // jobs carry their uid as labels of their pods
    if object["kind"] == "Job" {
        object.remove("spec");
    }
    Value::Object(object)
}

/// The same object written as JSON, YAML, protobuf, by apply and by each kind of patch.
#[tokio::test]
async fn items_012_and_014_every_route_of_writing_makes_the_same_object() {
    let c = Cluster::new().await;
    let table = builtin();
    for (base, body) in samples() {
        let parts: Vec<&str> = base
            .trim_start_matches("/apis")
            .trim_start_matches("/api")
            .split('/')
            .collect();
        let (group, version) = if base.starts_with("/api/") {
            ("", parts[1])
        } else {
            (parts[1], parts[2])
        };
        let row = table
            .resource(group, version, parts[parts.len() - 1])
            .unwrap();
        let named = |name: &str| {
            let mut object = body.clone();
            object["apiVersion"] = json!(row.api_version());
            object["kind"] = json!(row.kind);
            object["metadata"] =
                json!({"name": name, "labels": {"route": "any"}, "annotations": {"n": "1"}});
            object
        };
        let send = async |method: &str, url: &str, media: &str, body: Vec<u8>| {
            let answer = c
                .request(method, url, &[("content-type", media)], body)
                .await;
            assert!(
                matches!(answer.code, 200 | 201),
                "{base} {media}: {}",
                answer.text()
            );
            answer.json()
        };
        send(
            "POST",
            base,
            "application/json",
            named("json").to_string().into_bytes(),
        )
        .await;
        let yaml = serde_saphyr::to_string(&named("yaml")).unwrap();
        send("POST", base, "application/yaml", yaml.into_bytes()).await;
        let canonical = decode::decode_value(&table.types, row.type_id, named("protobuf")).unwrap();
        let raw = protobuf::encode_object(table, &{
            let mut object = canonical.object;
            object["apiVersion"] = json!(row.api_version());
            object["kind"] = json!(row.kind);
            object
        })
        .unwrap();
        send("POST", base, PROTOBUF, raw).await;
        let apply = "application/apply-patch+yaml";
        let url = format!("{base}/apply?fieldManager=m");
        send(
            "PATCH",
            &url,
            apply,
            named("apply").to_string().into_bytes(),
        )
        .await;
        // patched into shape from an object that differs in metadata
        for kind in ["merge", "strategic-merge", "json"] {
            let name = format!("{kind}-patched");
            let mut first = named(&name);
            first["metadata"]["labels"] = json!({"route": "other", "more": "x"});
            first["metadata"]["annotations"] = Value::Null;
            c.post(base, &first).await.ok(201);
            let patch = if kind == "json" {
                json!([{"op": "replace", "path": "/metadata/labels", "value": {"route": "any"}},
                    {"op": "add", "path": "/metadata/annotations", "value": {"n": "1"}}])
            } else {
                json!({"metadata": {"labels": {"route": "any", "more": null}, "annotations": {"n": "1"}}})
            };
            c.patch(&format!("{base}/{name}"), kind, &patch)
                .await
                .ok(200);
        }
        let mut put = c.get(&format!("{base}/json-patched")).await.ok(200);
        put["metadata"]["annotations"]["n"] = json!("2");
        let url = format!("{base}/json-patched");
        let changed = c.put(&url, &put).await.ok(200);
        put = changed;
        put["metadata"]["annotations"]["n"] = json!("1");
        c.put(&url, &put).await.ok(200);
        let wanted = content(c.get(&format!("{base}/json")).await.ok(200));
        for name in [
            "yaml",
            "protobuf",
            "apply",
            "merge-patched",
            "strategic-merge-patched",
            "json-patched",
        ] {
            let url = format!("{base}/{name}");
            let read = content(c.get(&url).await.ok(200));
            assert_eq!(difference("", &read, &wanted), None, "{base} {name}");
            let bytes = c.request("GET", &url, &[("accept", PROTOBUF)], "").await;
            let mut read = read_protobuf(&bytes.body);
            read["apiVersion"] = json!(row.api_version());
            read["kind"] = json!(row.kind);
            let read = decode::decode_value(&table.types, row.type_id, content(read))
                .unwrap()
                .object;
            let want = decode::decode_value(&table.types, row.type_id, wanted.clone())
                .unwrap()
                .object;
            assert_eq!(
                difference("", &read, &want),
                None,
                "{base} {name} in protobuf"
            );
        }
    }
}
