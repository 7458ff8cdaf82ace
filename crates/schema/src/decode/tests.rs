use davit_api::kinds::builtin;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn pod(body: &str) -> Result<Decoded, DecodeError> {
    kind("core/v1.Pod", body)
}

fn kind(name: &str, body: &str) -> Result<Decoded, DecodeError> {
    let types = &builtin().types;
    decode(
        types,
        types.id(name).unwrap(),
        body.as_bytes(),
        Encoding::Json,
    )
}

#[test]
fn unknown_and_repeated_fields_are_collected() {
    let d = pod(
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","name":"b","labels":{"x":"1","x":"2"}},
        "spec":{"foo":1,"Containers":[],"containers":[{"name":"c","bar":{}}]},"y":1,"y":2}"#,
    )
    .unwrap();
    assert_eq!(
        d.strict,
        [
            "duplicate field \"metadata.name\"",
            "duplicate field \"metadata.labels.x\"",
            "unknown field \"spec.foo\"",
            "unknown field \"spec.Containers\"",
            "unknown field \"spec.containers[0].bar\"",
            "unknown field \"y\"",
        ]
    );
    assert_eq!(d.object["metadata"]["name"], "b");
    assert_eq!(d.object["metadata"]["labels"]["x"], "2");
    assert!(d.object["spec"].get("foo").is_none());
    assert!(
        d.strict_error()
            .unwrap()
            .starts_with("strict decoding error: duplicate field")
    );
}

#[test]
fn mismatches_in_the_words_of_go() {
    for (name, body, error) in [
        (
            "core/v1.Pod",
            r#"{"spec":{"containers":[{"image":1}]}}"#,
            "json: cannot unmarshal number into Go struct field Container.spec.containers.image of type string",
        ),
        (
            "core/v1.Pod",
            r#"{"spec":{"containers":{}}}"#,
            "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            "core/v1.Pod",
            r#"{"spec":"x"}"#,
            "json: cannot unmarshal string into Go struct field Pod.spec of type v1.PodSpec",
        ),
        (
            "core/v1.Pod",
            "[]",
            "json: cannot unmarshal array into Go value of type v1.Pod",
        ),
        (
            "core/v1.Pod",
            r#"{"metadata":{"labels":{"a":1}}}"#,
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            "apps/v1.Deployment",
            r#"{"spec":{"replicas":3000000000}}"#,
            "json: cannot unmarshal number 3000000000 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "apps/v1.Deployment",
            r#"{"spec":{"replicas":1.5}}"#,
            "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "apps/v1.Deployment",
            r#"{"spec":{"replicas":"3"}}"#,
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "core/v1.Pod",
            r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"x"}}}]}}"#,
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            "core/v1.Service",
            r#"{"spec":{"ports":[{"targetPort":true}]}}"#,
            "json: cannot unmarshal bool into Go value of type int32",
        ),
        (
            "core/v1.Secret",
            r#"{"data":{"a":"!"}}"#,
            "illegal base64 data at input byte 0",
        ),
        (
            "core/v1.Pod",
            r#"{"metadata":{"creationTimestamp":"soon"}}"#,
            "parsing time \"soon\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"soon\" as \"2006\"",
        ),
    ] {
        assert_eq!(kind(name, body).unwrap_err().to_string(), error, "{body}");
    }
}

#[test]
fn statuses_of_bad_bodies() {
    let error = pod(r#"{"spec":1}"#).unwrap_err();
    assert_eq!(
        error.status("Pod", "v1", b"").message,
        "Pod in version \"v1\" cannot be handled as a Pod: json: cannot unmarshal number into Go struct field Pod.spec of type v1.PodSpec"
    );
    let body = "{\"metadata\":";
    let status = pod(body).unwrap_err().status("Pod", "v1", body.as_bytes());
    assert_eq!(status.code, 400);
    assert_eq!(
        status.message,
        "the object provided is unrecognized (must be of type Pod): couldn't get version/kind; json parse error: unexpected end of JSON input ({\"metadata\":)"
    );
}

#[test]
fn canonical_values() {
    let d = kind(
        "core/v1.Pod",
        r#"{"metadata":{"creationTimestamp":"2024-01-01T02:00:00.5+02:00","annotations":null,"labels":{}},
        "spec":{"hostNetwork":false,"containers":[{"name":"c","image":"","env":[{"name":"e","value":""}],
        "resources":{"limits":{"cpu":0.5,"memory":"1024Mi","x/y":2}},"securityContext":{}}],
        "terminationGracePeriodSeconds":0,"volumes":[]}}"#,
    )
    .unwrap();
    assert_eq!(
        d.object,
        json!({
            "metadata": {"creationTimestamp": "2024-01-01T00:00:00Z"},
            "spec": {
                "containers": [{"name": "c", "env": [{"name": "e"}],
                    "resources": {"limits": {"cpu": "500m", "memory": "1Gi", "x/y": "2"}},
                    "securityContext": {}}],
                "terminationGracePeriodSeconds": 0
            },
            "status": {}
        })
    );
    let d = kind(
        "core/v1.Secret",
        r#"{"data":{"a":"aGVs\nbG8=","b":null},"metadata":{}}"#,
    )
    .unwrap();
    assert_eq!(d.object["data"], json!({"a": "aGVsbG8=", "b": ""}));
}

#[test]
fn schema_props_take_both_shapes() {
    let d = kind(
        "apiextensions/v1.CustomResourceDefinition",
        r#"{"spec":{"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object",
        "additionalProperties":true,"properties":{"a":{"items":{"type":"string"},"default":[1,{"b":null}],"bogus":1}}}}}]}}"#,
    )
    .unwrap();
    let schema = &d.object["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert_eq!(schema["additionalProperties"], json!(true));
    assert_eq!(
        schema["properties"]["a"]["items"],
        json!({"type": "string"})
    );
    assert_eq!(
        schema["properties"]["a"]["default"],
        json!([1, {"b": null}])
    );
    assert_eq!(d.strict.len(), 1);
}

#[test]
fn yaml_bodies() {
    let types = &builtin().types;
    let root = types.id("core/v1.ConfigMap").unwrap();
    let d = decode(
        types,
        root,
        b"metadata:\n  name: a\ndata:\n  x: 'y'\n  z: \"1\"\nbogus: 1\n",
        Encoding::Yaml,
    )
    .unwrap();
    assert_eq!(d.object["data"], json!({"x": "y", "z": "1"}));
    assert_eq!(d.strict, ["unknown field \"bogus\""]);
}

#[test]
fn decoding_every_kind_from_nothing_is_stable() {
    let table = builtin();
    for row in &table.resources {
        let first = decode_value(&table.types, row.type_id, json!({})).unwrap();
        let second = decode_value(&table.types, row.type_id, first.object.clone()).unwrap();
        assert_eq!(first, second, "{}", row.kind);
    }
}

#[test]
fn a_body_of_null_is_an_empty_object_of_the_kind() {
    let table = builtin();
    for row in &table.resources {
        let nothing = decode(&table.types, row.type_id, b"null", Encoding::Json).unwrap();
        let empty = decode(&table.types, row.type_id, b"{}", Encoding::Json).unwrap();
        assert_eq!(nothing.object, empty.object, "{}", row.kind);
    }
}

/// A value of a type, built from a stream of choices.
fn generate(
    types: &TypeTable,
    ty: &FieldType,
    choices: &mut impl Iterator<Item = u8>,
    depth: usize,
) -> Value {
    let mut pick = || choices.next().unwrap_or(0);
    match types.resolve_type(ty) {
        FieldType::Bool => json!(pick() % 2 == 0),
        FieldType::Int32 | FieldType::Int64 => json!(i64::from(pick()) - 100),
        FieldType::Float64 => json!(f64::from(pick()) / 4.0),
        FieldType::String => json!(["", "a", "b", "c"][usize::from(pick() % 4)]),
        FieldType::Bytes => json!(["", "YQ==", "YWI="][usize::from(pick() % 3)]),
        FieldType::Time => json!("2024-01-01T00:00:00Z"),
        FieldType::MicroTime => json!("2024-01-01T00:00:00.000001Z"),
        FieldType::Duration => json!("1m0s"),
        FieldType::Quantity => {
            json!(["0", "1", "1500m", "1.5", "2Gi", "0.5Ki"][usize::from(pick() % 6)])
        }
        FieldType::IntOrString => [json!(80), json!("50%")][usize::from(pick() % 2)].clone(),
        FieldType::RawExtension | FieldType::Any => json!({"any": [pick(), null, {"x": "y"}]}),
        FieldType::List(item) => {
            let n = if depth == 0 { 0 } else { pick() % 3 };
            Value::Array(
                (0..n)
                    .map(|_| generate(types, item, choices, depth - 1))
                    .collect(),
            )
        }
        FieldType::Map(item) => {
            let n = if depth == 0 { 0 } else { pick() % 3 };
            (0..n)
                .map(|i| (format!("k{i}"), generate(types, item, choices, depth - 1)))
                .collect::<Map<_, _>>()
                .into()
        }
        FieldType::Named(id) => {
            let mut out = Map::new();
            if depth > 0 && matches!(types.get(*id).body, TypeBody::Struct { .. }) {
                for field in types.fields(*id) {
                    if choices.next().unwrap_or(0).is_multiple_of(4) {
                        out.insert(
                            field.name.to_string(),
                            generate(types, &field.ty, choices, depth - 1),
                        );
                    }
                }
            }
            Value::Object(out)
        }
    }
}

#[test]
fn what_is_applied_as_json_means_what_it_means_in_yaml() {
    for body in [
        r#"{"a":{"b":[1,-2,true,null,"x",{}]},"c":"\u00fc\/\n"}"#,
        " \n{\"a\": 9223372036854775807}\n",
        // these are left to the reader of YAML
        r#"{"a":1.0,"b":1e3,"c":18446744073709551615}"#,
        "{a: b}",
        "a: 1",
    ] {
        let (read, repeated) = parse_yaml(body.as_bytes()).unwrap();
        let yaml = yaml::read(body.as_bytes()).unwrap();
        assert_eq!(read, yaml.value.into_value().unwrap(), "{body}");
        assert_eq!(repeated, None);
    }
    let (read, repeated) = parse_yaml(br#"{"a":1,"b":{"c":1,"c":2}}"#).unwrap();
    assert_eq!(read["b"]["c"], 2);
    assert!(
        repeated
            .unwrap()
            .ends_with("line 1: key \"c\" already set in map")
    );
}

#[test]
fn what_a_patch_says_twice_is_told_with_its_path() {
    let found = |body: &str| repeated_fields(body.as_bytes());
    assert_eq!(
        found(r#"{"a":{"b":1,"b":2},"l":[{"x":1},{"x":1,"x":2}],"a":{}}"#),
        [
            "duplicate field \"a.b\"",
            "duplicate field \"l[1].x\"",
            "duplicate field \"a\""
        ]
    );
    assert!(found("{\"a\":1}").is_empty() && found("{").is_empty());
    let many = format!("{{{}}}", ["\"a\":1"; 500].join(","));
    assert_eq!(found(&many).len(), 100);
    assert_eq!(
        bare_fault("yaml: unmarshal errors:\n  line 2: x"),
        "line 2: x"
    );
    assert_eq!(bare_fault("unknown field \"a\""), "unknown field \"a\"");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn decoding_is_idempotent(row in 0usize..99, seed in proptest::collection::vec(any::<u8>(), 400)) {
        let table = builtin();
        let root = table.resources[row].type_id;
        let mut choices = seed.into_iter();
        let value = generate(&table.types, &FieldType::Named(root), &mut choices, 6);
        let once = decode_value(&table.types, root, value).unwrap();
        prop_assert!(once.strict.is_empty());
        let bytes = serde_json::to_vec(&once.object).unwrap();
        let twice = decode(&table.types, root, &bytes, Encoding::Json).unwrap();
        prop_assert_eq!(&once, &twice);
    }

    #[test]
    fn garbage_never_panics(body in proptest::collection::vec(any::<u8>(), 0..60)) {
        let types = &builtin().types;
        let root = types.id("core/v1.Pod").unwrap();
        for encoding in [Encoding::Json, Encoding::Yaml] {
            if let Err(e) = decode(types, root, &body, encoding) {
                let _ = e.status("Pod", "v1", &body);
            }
        }
    }
}

#[test]
fn what_goes_without_saying_has_an_end() {
    let pod_of = |count: usize| {
        let containers = vec!["{}"; count].join(",");
        pod(&format!("{{\"spec\":{{\"containers\":[{containers}]}}}}"))
    };
    assert!(pod_of(10_000).is_ok());
    assert!(matches!(pod_of(100_000), Err(DecodeError::TooLarge(_))));
    let patched = json!({ "spec": { "containers": vec![json!({}); 100_000] } });
    let types = &builtin().types;
    let patched = decode_value(types, types.id("core/v1.Pod").unwrap(), patched);
    assert!(matches!(patched, Err(DecodeError::TooLarge(_))));
}

#[test]
fn large_objects_that_say_what_they_are_have_room() {
    let keys: Vec<String> = (0..150_000).map(|n| format!("\"k{n}\":\"\"")).collect();
    let map = format!("{{\"data\":{{{}}}}}", keys.join(","));
    assert!(kind("core/v1.ConfigMap", &map).is_ok());
    let addresses = (0..100_000).map(|n| format!("{{\"ip\":\"10.1.{}.{}\"}}", n / 256, n % 256));
    let addresses: Vec<String> = addresses.collect();
    let subsets = format!(
        "{{\"subsets\":[{{\"addresses\":[{}]}}]}}",
        addresses.join(",")
    );
    assert!(kind("core/v1.Endpoints", &subsets).is_ok());
    let fields: Vec<String> = (0..100_000)
        .map(|n| format!("\"f{n}\":{{\"type\":\"string\"}}"))
        .collect();
    let schema = format!(
        "{{\"spec\":{{\"versions\":[{{\"schema\":{{\"openAPIV3Schema\":{{\"properties\":{{{}}}}}}}}}]}}}}",
        fields.join(",")
    );
    let definition = "apiextensions/v1.CustomResourceDefinition";
    assert!(kind(definition, &schema).is_ok());
}
