use std::fs;
use std::path::{Path, PathBuf};

use davit_api::kinds::{FieldType, Opaque, TypeBody, TypeId, builtin};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::apply::{FieldManager, Filter, Schema};
use crate::decode::{Encoding, decode, decode_value};
use crate::patch::{JsonPatch, merge_patch};
use crate::protobuf::write::bytes_field;

fn canonical(root: TypeId, value: Value) -> Value {
    decode_value(&builtin().types, root, value).unwrap().object
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/protobuf")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Compares an object as the original writes it in JSON and in protobuf, both ways. Says what
/// differs.
fn compare(json: Value, bytes: &[u8]) -> Result<(), String> {
    let read = decode_object(builtin(), bytes, None).map_err(|e| e.to_string())?;
    let want = canonical(read.type_id, json);
    let have = canonical(read.type_id, read.value);
    if have != want {
        return Err(format!(
            "decoded otherwise: {}",
            first_difference(&have, &want)
        ));
    }
    let written = encode(&builtin().types, read.type_id, &want).map_err(|e| e.to_string())?;
    let written = seal(&read.api_version, &read.kind, &written);
    if written != bytes {
        let at = written
            .iter()
            .zip(bytes)
            .take_while(|(a, b)| a == b)
            .count();
        let around = |b: &[u8]| hex(&b[at.saturating_sub(40)..(at + 40).min(b.len())]);
        return Err(format!(
            "encoded otherwise at {at}:\n{}\n{}",
            around(&written),
            around(bytes)
        ));
    }
    Ok(())
}

/// Where two values differ first.
fn first_difference(a: &Value, b: &Value) -> String {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            for key in x.keys().chain(y.keys()) {
                let (x, y) = (x.get(key), y.get(key));
                if x != y {
                    return match (x, y) {
                        (Some(x), Some(y)) => format!(".{key}{}", first_difference(x, y)),
                        _ => format!(".{key}: {x:?} != {y:?}"),
                    };
                }
            }
        }
        (Value::Array(x), Value::Array(y)) if x.len() == y.len() => {
            if let Some(i) = (0..x.len()).find(|i| x[*i] != y[*i]) {
                return format!("[{i}]{}", first_difference(&x[i], &y[i]));
            }
        }
        _ => {}
    }
    format!(": {a} != {b}")
}

#[test]
fn bytes_are_those_of_the_original() {
    let mut seen = 0;
    for entry in fs::read_dir(fixtures()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "pb") {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let json: Value =
            serde_json::from_slice(&fs::read(path.with_extension("json")).unwrap()).unwrap();
        if let Err(e) = compare(json, &bytes) {
            panic!("{}: {e}", path.display());
        }
        seen += 1;
    }
    assert!(seen > 20, "{seen} fixtures");
}

#[test]
fn watch_frames_are_those_of_the_original() {
    for (frame, object, event) in [
        ("watch-pod", "pod", "ADDED"),
        ("watch-status", "status", "ERROR"),
    ] {
        let object = fs::read(fixtures().join(format!("{object}.pb"))).unwrap();
        let want = fs::read(fixtures().join(format!("{frame}.frame"))).unwrap();
        assert_eq!(
            hex(&watch_frame(event, &object).unwrap()),
            hex(&want),
            "{frame}"
        );
        let (read_event, read_object) = read_watch_event(&want[4..]).unwrap();
        assert_eq!((read_event.as_str(), read_object), (event, &*object));
    }
}

#[test]
fn lists_are_put_together_from_items() {
    let bytes = fs::read(fixtures().join("pod-list.pb")).unwrap();
    let list = decode_object(builtin(), &bytes, None).unwrap();
    let types = &builtin().types;
    let pod = types.id("core/v1.Pod").unwrap();
    let items: Vec<Vec<u8>> = list.value["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| encode(types, pod, &canonical(pod, item.clone())).unwrap())
        .collect();
    let raw = encode_list(types, &list.value["metadata"], items).unwrap();
    assert_eq!(hex(&seal("v1", "PodList", &raw)), hex(&bytes));
}

#[test]
fn the_test_data_of_the_original_is_understood() {
    // The directory testdata/HEAD of the module k8s.io/api, where it is at hand.
    let Ok(dir) = std::env::var("K8S_API_TESTDATA") else {
        eprintln!("skipped: K8S_API_TESTDATA names no directory");
        return;
    };
    let mut failures = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "pb") {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let json: Value =
            serde_json::from_slice(&fs::read(path.with_extension("json")).unwrap()).unwrap();
        match compare(json, &bytes) {
            // Kinds of versions that are not served any more.
            Err(e) if e.starts_with("no kind ") => {}
            // Watch events are never named.
            Err(e) if e.starts_with("Object 'Kind' is missing") => {}
            Err(e) => failures.push(format!("{}: {e}", path.display())),
            Ok(()) => {}
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn defaults_stand_in_for_what_the_envelope_leaves_out() {
    let pod = json!({"metadata": {"name": "a"}});
    let types = &builtin().types;
    let raw = encode(types, types.id("core/v1.Pod").unwrap(), &pod).unwrap();
    let read = decode_object(builtin(), &seal("", "", &raw), Some(("v1", "Pod"))).unwrap();
    assert_eq!(read.value["kind"], "Pod");
    assert_eq!(read.value["metadata"]["name"], "a");
    let none = decode_object(builtin(), &seal("", "", &raw), None);
    assert_eq!(none, Err(ProtobufError::NoKind));
    let custom = decode_object(
        builtin(),
        &seal("stable.example.com/v1", "Shirt", &raw),
        None,
    );
    assert_eq!(
        custom.unwrap_err().to_string(),
        "no kind \"Shirt\" is registered for version \"stable.example.com/v1\""
    );
}

#[test]
fn what_is_wrong_is_named() {
    let message = |bytes: &[u8]| {
        decode_object(builtin(), &seal("v1", "Pod", bytes), None)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        decode_object(builtin(), b"{\"kind\"", None).unwrap_err(),
        ProtobufError::Magic
    );
    // metadata is a number, then cut short, then a container's name is one.
    assert_eq!(
        message(&[0x08, 1]),
        "proto: wrong wireType = 0 for field metadata"
    );
    assert_eq!(message(&[0x0a, 9, 1]), "proto: unexpected EOF");
    assert_eq!(
        message(&[0x12, 4, 0x12, 2, 0x08, 1]),
        "proto: wrong wireType = 0 for field name"
    );
    assert_eq!(message(&[0x07]), "proto: illegal tag 0");
    assert_eq!(message(&[0xff; 11]), "proto: integer overflow");
}

#[test]
fn unknown_fields_are_skipped() {
    let mut raw = Vec::new();
    // Field 1000 in several wire types, then metadata.name.
    raw.extend([0xc0, 0x3e, 5]);
    raw.extend([0xc1, 0x3e, 1, 2, 3, 4, 5, 6, 7, 8]);
    raw.extend([0xc2, 0x3e, 2, 9, 9]);
    raw.extend([0xc5, 0x3e, 1, 2, 3, 4]);
    raw.extend([0x0a, 3, 0x0a, 1, b'x']);
    let read = decode_object(builtin(), &seal("v1", "Pod", &raw), None).unwrap();
    assert_eq!(
        read.value,
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}})
    );
}

#[test]
fn packed_and_repeated_numbers_are_the_same() {
    let types = &builtin().types;
    let id = types.id("core/v1.PodSecurityContext").unwrap();
    let plain = encode(types, id, &json!({"supplementalGroups": [1, 300]})).unwrap();
    // PodSpec.securityContext is 14, supplementalGroups is 4.
    let wrap = |inner: &[u8]| {
        let (mut spec, mut pod) = (Vec::new(), Vec::new());
        bytes_field(&mut spec, 14, inner);
        bytes_field(&mut pod, 2, &spec);
        decode_object(builtin(), &seal("v1", "Pod", &pod), None)
            .unwrap()
            .value
    };
    let packed = [0x22, 3, 1, 0xac, 2];
    assert_eq!(wrap(&plain), wrap(&packed));
    assert_eq!(plain, [0x20, 1, 0x20, 0xac, 2]);
}

#[test]
fn nesting_is_bounded() {
    // A schema inside a schema: "not" is field 28.
    let mut schema = Vec::new();
    for _ in 0..500 {
        let mut outer = Vec::new();
        bytes_field(&mut outer, 28, &schema);
        schema = outer;
    }
    let mut body = schema;
    // validation.openAPIV3Schema of the only version of a CustomResourceDefinition.
    for number in [1, 4, 7, 2] {
        let mut outer = Vec::new();
        bytes_field(&mut outer, number, &body);
        body = outer;
    }
    let body = seal("apiextensions.k8s.io/v1", "CustomResourceDefinition", &body);
    let error = decode_object(builtin(), &body, None)
        .unwrap_err()
        .to_string();
    assert!(error.ends_with("exceeded max depth"), "{error}");
}

#[test]
fn tables_have_no_protobuf_form() {
    let types = &builtin().types;
    let table = types.id("meta/v1.Table").unwrap();
    let error = encode(types, table, &json!({})).unwrap_err();
    assert_eq!(error, ProtobufError::NoForm("meta/v1.Table".to_owned()));
}

#[test]
fn values_that_do_not_fit_are_named() {
    let types = &builtin().types;
    let pod = types.id("core/v1.Pod").unwrap();
    let error = |value| encode(types, pod, &value).unwrap_err().to_string();
    assert_eq!(
        error(json!({"spec": {"priority": "x"}})),
        "proto: spec.priority: expected an integer"
    );
    assert_eq!(error(json!([])), "proto: : expected an object");
}

/// Drops empty lists and maps, which messages cannot tell from absent ones, and the empty values of
/// the three plain quantities and ports: messages always have them, decoding JSON leaves them out
/// when they were not given.
fn without_empty(value: Value) -> Value {
    let empty = |v: &Value| {
        v.as_array().is_some_and(Vec::is_empty) || v.as_object().is_some_and(Map::is_empty)
    };
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().map(|(k, v)| (k, without_empty(v)));
            let plain = |key: &str, value: &Value| match key {
                "divisor" => value == "0",
                "targetPort" | "servicePort" => value == 0,
                "window" => value == "0s",
                _ => false,
            };
            Value::Object(kept.filter(|(k, v)| !empty(v) && !plain(k, v)).collect())
        }
        Value::Array(items) => items.into_iter().map(without_empty).collect(),
        other => other,
    }
}

/// Values of a type, from numbers.
struct Source {
    state: u64,
}

impl Source {
    fn next(&mut self, below: u64) -> u64 {
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.next(of.len() as u64) as usize].clone()
    }

    fn any(&mut self) -> Value {
        self.pick(&[
            json!({"a": [1, null, {"b": "c"}], "n": 1.5}),
            json!({}),
            json!({"apiVersion": "x/v1", "kind": "X"}),
        ])
    }

    fn value(&mut self, ty: &FieldType, depth: usize) -> Value {
        let types = &builtin().types;
        match types.resolve_type(ty) {
            FieldType::Bool => Value::Bool(self.next(2) == 1),
            FieldType::Int32 => Value::from(self.pick(&[0, 1, -1, i32::MIN, i32::MAX])),
            FieldType::Int64 => Value::from(self.pick(&[0, 1, -1, i64::MIN, i64::MAX])),
            FieldType::Float64 => self.pick(&[json!(0.5), json!(-3), json!(0)]),
            FieldType::String => Value::from(self.pick(&["", "a", "ü☃", "\u{0}\n"])),
            FieldType::Bytes => Value::from(self.pick(&["", "AAH/", "YQ=="])),
            FieldType::Time => Value::from(self.pick(&[
                "2024-02-29T23:59:59Z",
                "1969-12-31T23:59:59Z",
                "0001-01-02T00:00:00Z",
                "9999-12-29T23:59:59Z",
            ])),
            FieldType::MicroTime => Value::from(self.pick(&[
                "2024-02-29T23:59:59.000001Z",
                "1969-12-31T23:59:59.999999Z",
                "2000-01-01T00:00:00.000000Z",
            ])),
            FieldType::Duration => Value::from(self.pick(&["1h0m0s", "-1ns", "0s"])),
            FieldType::Quantity => Value::from(self.pick(&["1", "1500m", "2Gi", "0", "1e3", "-5"])),
            FieldType::IntOrString => self.pick(&[json!(0), json!(-7), json!(""), json!("25%")]),
            FieldType::RawExtension | FieldType::Any => self.any(),
            FieldType::List(item) => (0..self.next(3)).map(|_| self.value(item, depth)).collect(),
            FieldType::Map(item) => {
                let entries = (0..self.next(3)).map(|i| (format!("k{i}"), self.value(item, depth)));
                Value::Object(entries.collect())
            }
            FieldType::Named(id) => match &types.get(*id).body {
                TypeBody::Opaque(shape) => self.opaque(*shape),
                _ => self.object(*id, depth),
            },
        }
    }

    fn opaque(&mut self, shape: Opaque) -> Value {
        let schema = json!({"type": "object", "maximum": 1.5});
        match shape {
            Opaque::Any => self.pick(&[json!(1), json!("x"), json!({"a": []}), json!([true])]),
            Opaque::Object => self.any(),
            Opaque::SchemaOrBool => self.pick(&[json!(true), json!(false), schema]),
            Opaque::SchemaOrArray => self.pick(&[json!([schema, {}]), schema]),
            Opaque::SchemaOrStrings => self.pick(&[json!(["a", ""]), schema]),
        }
    }

    fn object(&mut self, id: TypeId, depth: usize) -> Value {
        let mut out = Map::new();
        for field in builtin().types.fields(id) {
            let deep = depth > 6 && !field.required;
            if field.name == "apiVersion" || field.name == "kind" || deep || self.next(3) == 0 {
                continue;
            }
            out.insert(field.name.to_string(), self.value(&field.ty, depth + 1));
        }
        Value::Object(out)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn every_kind_survives(seed: u64) {
        let table = builtin();
        for (i, row) in table.kinds.iter().enumerate() {
            let mut source = Source { state: seed ^ (i as u64) << 32 };
            let object = canonical(row.type_id, source.object(row.type_id, 0));
            let Ok(raw) = encode(&table.types, row.type_id, &object) else {
                prop_assert_eq!(row.kind, "Table");
                continue;
            };
            let api_version = davit_api::kinds::api_version(row.group, row.version);
            let read = decode_object(table, &seal(&api_version, row.kind, &raw), None).unwrap();
            let mut value = read.value;
            if let Some(map) = value.as_object_mut() {
                map.remove("apiVersion");
                map.remove("kind");
            }
            let read = without_empty(canonical(row.type_id, value));
            let object = without_empty(object);
            let kind = row.kind;
            prop_assert!(read == object, "{kind}{}", first_difference(&read, &object));
        }
    }

    /// The same object by JSON, YAML, protobuf, JSON patch, merge patch and apply.
    #[test]
    fn every_route_reads_back_the_same(seed: u64) {
        let table = builtin();
        let mut applied = 0;
        for (i, row) in table.resources.iter().filter(|row| row.has_verb("get")).enumerate() {
            let mut source = Source { state: seed ^ (i as u64) << 32 };
            let mut object = canonical(row.type_id, source.object(row.type_id, 0));
            crate::apply::strip(&mut object);
            let wanted = without_empty(object.clone());
            let kind = row.kind;
            let same = |route: &str, value: Value| {
                let read = without_empty(canonical(row.type_id, value));
                prop_assert!(read == wanted, "{kind} by {route}{}", first_difference(&read, &wanted));
                Ok(())
            };
            let text = object.to_string();
            let yaml = serde_saphyr::to_string(&object).unwrap();
            for (route, body, encoding) in [
                ("JSON", &text, Encoding::Json),
                ("JSON as YAML", &text, Encoding::Yaml),
                ("YAML", &yaml, Encoding::Yaml),
            ] {
                let read = decode(&table.types, row.type_id, body.as_bytes(), encoding);
                let read = read.unwrap_or_else(|e| panic!("{kind} by {route}: {e}\n{body}"));
                prop_assert!(read.strict.is_empty(), "{:?}", read.strict);
                same(route, read.object)?;
            }
            let patch = json!([{"op": "replace", "path": "", "value": object}]);
            let patch = JsonPatch::parse(patch.to_string().as_bytes()).unwrap();
            same("JSON patch", patch.apply(&json!({})).unwrap())?;
            same("merge patch", merge_patch(json!({}), object.clone()).unwrap())?;
            let api_version = row.api_version();
            let mut configuration = object.clone();
            configuration["apiVersion"] = json!(api_version);
            configuration["kind"] = json!(kind);
            let manager = FieldManager {
                schema: Schema::new(&table.types, row.type_id),
                api_version: &api_version,
                kind,
                subresource: "",
                filter: &Filter::All,
                versions: None,
                now: "2024-01-01T00:00:00Z",
            };
            match manager.apply(None, &configuration, "m", false) {
                Ok(mut result) => {
                    applied += 1;
                    crate::apply::strip(&mut result);
                    if let Some(map) = result.as_object_mut() {
                        map.remove("apiVersion");
                        map.remove("kind");
                    }
                    same("apply", result)?;
                }
                // elements that stand twice or have no key, which the generator makes too
                Err(error) => {
                    let text = error.to_string();
                    prop_assert!(text.contains("duplicate entries") || text.contains("element"), "{kind}: {text}");
                }
            }
            // whoever updates changes nothing but the entries
            let mut tracked = manager.update(None, configuration, "m");
            crate::apply::strip(&mut tracked);
            if let Some(map) = tracked.as_object_mut() {
                map.remove("apiVersion");
                map.remove("kind");
            }
            same("update", tracked)?;
        }
        prop_assert!(applied > 20, "{applied} kinds could be applied");
    }

    #[test]
    fn garbage_is_refused_or_read(bytes: Vec<u8>, kind in prop::sample::select(vec!["Pod", "Node", "Event", "List"])) {
        let _ = decode_object(builtin(), &seal("v1", kind, &bytes), None);
        let _ = decode_object(builtin(), &bytes, None);
    }

    #[test]
    fn broken_objects_are_refused_or_read(at: prop::sample::Index, with: u8) {
        let mut bytes = fs::read(fixtures().join("pod.pb")).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = with;
        let _ = decode_object(builtin(), &bytes, None);
        let _ = decode_object(builtin(), &bytes[..at], None);
    }
}
