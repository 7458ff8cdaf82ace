use davit_api::field::{Path, aggregate};
use davit_api::status::{Qualified, Status};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

#[expect(clippy::needless_pass_by_value, reason = "callers write JSON in place")]
fn schema(properties: Value) -> Structural {
    Structural::parse(&json!({"type": "object", "properties": properties})).unwrap()
}

fn lines(errors: &ErrorList) -> Vec<String> {
    errors
        .iter()
        .map(|e| format!("{}: {}", e.field, e.body()))
        .collect()
}

#[expect(clippy::needless_pass_by_value, reason = "callers write JSON in place")]
fn faults(properties: Value, object: Value) -> Vec<String> {
    lines(&schema(properties).validate(&object, None))
}

// 144
#[test]
fn unknown_fields_are_pruned_and_told() {
    let schema = schema(json!({
        "spec": {"type": "object", "properties": {
            "color": {"type": "string"},
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": {"known": {"type": "object", "properties": {"a": {"type": "string"}}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object",
                "properties": {"x": {"type": "integer"}}}},
            "list": {"type": "array", "items": {"type": "object",
                "properties": {"x": {"type": "integer"}}}},
        }}
    }));
    let body = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "foo": 1},
        "spec": {"color": "c", "size": 1, "list": [{"x": 1, "y": 2}], "map": {"k": {"x": 1, "z": 1}},
            "open": {"what": {"ever": [{}]}, "known": {"a": "", "b": ""}}}, "more": 1});
    let decoded = schema
        .decode(body.to_string().as_bytes(), Encoding::Json)
        .unwrap();
    assert_eq!(
        decoded.object,
        json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n"},
            "spec": {"color": "c", "list": [{"x": 1}], "map": {"k": {"x": 1}},
                "open": {"what": {"ever": [{}]}, "known": {"a": ""}}}})
    );
    let mut strict = decoded.strict;
    strict.sort();
    assert_eq!(
        strict,
        [
            "unknown field \"metadata.foo\"",
            "unknown field \"more\"",
            "unknown field \"spec.list[0].y\"",
            "unknown field \"spec.map.k.z\"",
            "unknown field \"spec.open.known.b\"",
            "unknown field \"spec.size\"",
        ]
    );
    let twice = br#"{"spec": {"color": "a", "color": "b"}}"#;
    let decoded = schema.decode(twice, Encoding::Json).unwrap();
    assert_eq!(decoded.strict, ["duplicate field \"spec.color\""]);
    assert_eq!(decoded.object["spec"]["color"], "b");
}

// 145, 146
#[test]
fn item_145_146_defaults_fill_what_is_missing_and_nulls_go() {
    let schema = schema(json!({
        "spec": {"type": "object", "default": {}, "properties": {
            "a": {"type": "string", "default": "x"},
            "n": {"type": "string", "nullable": true, "default": "y"},
            "gone": {"type": "string"},
            "zero": {"type": "integer", "default": 5},
            "items": {"type": "array", "items": {"type": "object",
                "properties": {"p": {"type": "integer", "default": 1}}}},
        }}
    }));
    let mut object = json!({});
    assert!(schema.default(&mut object));
    assert_eq!(object, json!({"spec": {"a": "x", "n": "y", "zero": 5}}));
    let mut object =
        json!({"spec": {"a": null, "n": null, "gone": null, "zero": 0, "items": [{}, {"p": 0}]}});
    schema.default(&mut object);
    assert_eq!(
        object,
        json!({"spec": {"a": "x", "n": null, "zero": 0, "items": [{"p": 1}, {"p": 0}]}})
    );
    assert!(!schema.default(&mut object));
}

// 6
#[test]
fn limits_are_told_in_the_words_of_the_original() {
    let properties = json!({"spec": {"type": "object", "required": ["must"], "minProperties": 1, "properties": {
        "must": {"type": "string"},
        "replicas": {"type": "integer", "minimum": 1, "maximum": 10, "multipleOf": 2},
        "name": {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^[a-z]*$"},
        "color": {"type": "string", "enum": ["red", "blue"]},
        "when": {"type": "string", "format": "date-time"},
        "list": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string"}},
        "port": {"x-kubernetes-int-or-string": true},
        "half": {"type": "number", "exclusiveMinimum": true, "minimum": 0},
    }}});
    let object = json!({"spec": {"replicas": "3", "name": "A", "color": "pink", "when": "noon",
        "list": ["a", 1, "c"], "port": 1.5, "half": 0}});
    assert_eq!(
        faults(properties.clone(), object),
        [
            "spec.color: Unsupported value: \"pink\": supported values: \"red\", \"blue\"",
            "spec.half: Invalid value: 0: spec.half in body should be greater than 0",
            "spec.list: Too many: 3: must have at most 2 items",
            "spec.list[1]: Invalid value: \"integer\": spec.list[1] in body must be of type string: \"integer\"",
            "spec.name: Invalid value: \"A\": spec.name in body should be at least 2 chars long",
            "spec.name: Invalid value: \"A\": spec.name in body should match '^[a-z]*$'",
            "spec.port: Invalid value: \"number\": spec.port in body must be of type integer,string: \"number\"",
            "spec.replicas: Invalid value: \"string\": spec.replicas in body must be of type integer: \"string\"",
            "spec.when: Invalid value: \"noon\": spec.when in body must be of type date-time: \"noon\"",
            "spec.must: Required value",
        ]
    );
    assert_eq!(
        faults(
            properties,
            json!({"spec": {"must": "", "replicas": 11, "name": "abcde", "list": []}})
        ),
        [
            "spec.list: Invalid value: 0: spec.list in body should have at least 1 items",
            "spec.name: Too long: may not be more than 4 bytes",
            "spec.replicas: Invalid value: 11: spec.replicas in body should be less than or equal to 10",
            "spec.replicas: Invalid value: 11: spec.replicas in body should be a multiple of 2",
        ]
    );
}

#[test]
fn alternatives_are_told_without_a_field() {
    let properties = json!({"spec": {"type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}});
    assert_eq!(
        faults(properties.clone(), json!({"spec": {"a": "", "b": ""}})),
        [
            "<nil>: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). Found 2 valid alternatives"
        ]
    );
    assert_eq!(
        faults(properties.clone(), json!({"spec": {}}))[0],
        "<nil>: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). Found none valid"
    );
    assert!(faults(properties, json!({"spec": {"a": ""}})).is_empty());
}

// 152
#[test]
fn what_did_not_change_is_not_held_against_the_writer() {
    let schema = schema(json!({"spec": {"type": "object", "properties": {
        "a": {"type": "string", "maxLength": 1}, "b": {"type": "string", "maxLength": 1},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "string"},
                "v": {"type": "integer", "maximum": 1}}}}}}}));
    let old = json!({"spec": {"a": "long", "b": "x", "list": [{"k": "1", "v": 5}]}});
    let mut new =
        json!({"spec": {"a": "long", "b": "y", "list": [{"k": "0"}, {"k": "1", "v": 5}]}});
    assert_eq!(
        lines(&schema.validate(&new, Some(&old))),
        Vec::<String>::new()
    );
    new["spec"]["a"] = json!("longer");
    new["spec"]["list"][1]["v"] = json!(6);
    assert_eq!(schema.validate(&new, Some(&old)).len(), 2);
}

// 148
#[test]
fn item_148_elements_of_sets_and_maps_are_unique() {
    let schema = schema(json!({
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"],
            "items": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}},
    }));
    let object = json!({"set": ["a", "b", "a"], "map": [{"a": "1", "b": 1}, {"a": "1"}, {"a": "1", "b": 1}]});
    assert_eq!(
        lines(&duplicates(&object, schema.root())),
        [
            "map[2]: Duplicate value: {\"a\":\"1\",\"b\":1}",
            "set[2]: Duplicate value: \"a\"",
        ]
    );
}

// 147
#[test]
fn item_147_embedded_resources_are_resources() {
    let schema = schema(json!({"template": {"type": "object",
        "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}));
    let object = json!({"template": {"metadata": {"name": "a/b", "namespace": "No!", "finalizers": ["x y"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]}, "spec": 1}});
    let found = lines(&embedded_errors(&object, schema.root()));
    assert_eq!(
        found[..2],
        [
            "template.apiVersion: Required value",
            "template.kind: Required value"
        ]
    );
    // a name of whatever kind
    assert_eq!(
        found[2],
        "template.metadata.name: Invalid value: \"a/b\": may not contain '/'"
    );
    assert!(found[3].starts_with("template.metadata.namespace: Invalid value: \"No!\""));
    assert_eq!(
        found[4],
        "template.metadata.ownerReferences.uid: Invalid value: \"\": must not be empty"
    );
    assert!(found[5].starts_with("template.metadata.finalizers: Invalid value: \"x y\""));
    let bad =
        json!({"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": 1}}}});
    assert_eq!(
        schema.decode_value(bad).unwrap_err().to_string(),
        "template.metadata: Invalid value: {\"labels\":{\"a\":1}}: json: cannot unmarshal number into \
         Go struct field ObjectMeta.labels of type string"
    );
    let bad = json!({"template": {"apiVersion": 5, "kind": "Pod"}});
    assert_eq!(
        schema.decode_value(bad).unwrap_err().to_string(),
        "template.apiVersion: Invalid value: 5: must be a string"
    );
}

#[test]
fn what_only_moved_is_not_held_against_the_writer() {
    let schema = schema(json!({
        "map": {"type": "array", "maxItems": 1, "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "required": ["k"],
                "properties": {"k": {"type": "string"}, "v": {"type": "string", "maxLength": 2}}}},
        "list": {"type": "array", "maxItems": 1, "items": {"type": "string"}},
    }));
    let old = json!({"map": [{"k": "a", "v": "long"}, {"k": "b"}], "list": ["a", "b"]});
    let told = |new: Value| lines(&schema.validate(&new, Some(&old)));
    assert_eq!(told(old.clone()), [""; 0]);
    let moved = json!({"map": [{"k": "b"}, {"k": "a", "v": "long"}], "list": ["a", "b"]});
    assert_eq!(told(moved), [""; 0], "elements of a map may change places");
    let moved = json!({"list": ["b", "a"]});
    assert_eq!(told(moved), ["list: Too many: 2: must have at most 1 item"]);
    let changed = json!({"map": [{"k": "b", "v": "x"}, {"k": "a", "v": "long"}]});
    assert_eq!(
        told(changed),
        ["map: Too many: 2: must have at most 1 item"]
    );
}

#[test]
fn faults_of_a_status_are_told_from_there_on() {
    let schema = schema(
        json!({"spec": {"type": "integer"}, "status": {"type": "object",
        "properties": {"count": {"type": "integer"}}}}),
    );
    let told = |new: Value| lines(&schema.validate_status(&new, None));
    assert_eq!(
        told(json!({"spec": "x", "status": {"count": "x"}})),
        [
            "status.count: Invalid value: \"string\": count in body must be of type integer: \"string\""
        ]
    );
    assert_eq!(
        told(json!({"status": "x"})),
        ["status: Invalid value: \"string\":  in body must be of type object: \"string\""]
    );
    assert_eq!(
        told(json!({"status": {"count": 1.5}})),
        [
            "status.count: Invalid value: \"number\": count in body must be of type integer: \"number\"",
            "status: Invalid value: \"\": Checked value must be of type integer (default format) in count",
        ]
    );
}

#[expect(clippy::needless_pass_by_value, reason = "callers write JSON in place")]
fn check(schema: Value) -> Vec<String> {
    lines(&check_schema(
        &schema,
        &Path::new("s"),
        SchemaCheck::default(),
    ))
}

// 143
#[test]
fn schemas_that_are_not_structural_are_refused_with_paths() {
    assert_eq!(
        check(
            json!({"type": "object", "properties": {"a": {"properties": {"b": {"type": "string"}}},
            "l": {"type": "array"}}, "anyOf": [{"properties": {"c": {"minLength": 1}}, "type": "object"}]})
        ),
        [
            "s.anyOf[0].type: Forbidden: must be empty to be structural",
            "s.properties[a].type: Required value: must not be empty for specified object fields",
            "s.properties[c]: Required value: because it is defined in s.anyOf[0].properties[c]",
            "s.properties[l].items: Required value: must be specified",
        ]
    );
    assert_eq!(
        check(
            json!({"type": "object", "properties": {"metadata": {"type": "object",
            "properties": {"labels": {"type": "object"}}}}})
        ),
        [
            "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified"
        ]
    );
    assert_eq!(
        check(
            json!({"type": "object", "properties": {"a": {"type": "integer", "default": "x"},
            "b": {"type": "object", "default": {"c": 1}}}})
        ),
        [
            "s.properties[a].default: Invalid value: \"string\":  in body must be of type integer: \"string\"",
            "s.properties[b].default: Invalid value: {\"c\":1}: must not have unknown fields",
        ]
    );
    assert_eq!(
        check(
            json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true,
            "items": {"type": "object", "properties": {"k": {"type": "string"}}},
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k", "q"]}}})
        ),
        [
            "s.properties[a].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
            "s.properties[a].x-kubernetes-list-map-keys: Invalid value: [\"k\",\"q\"]: entries must all be names of item properties",
            "s.properties[a].items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
        ]
    );
    assert!(
        check(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})).is_empty()
    );
    assert!(
        check(
            json!({"type": "object", "properties": {"p": {"x-kubernetes-int-or-string": true,
            "anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": "^[\\p{L}]{2}\\/{"}}})
        )
        .is_empty()
    );
}

#[test]
fn formats_of_texts() {
    for (format, yes, no) in [
        ("ipv4", "10.0.0.1", "10.0.0"),
        ("ipv6", "::1", "1.2.3.4"),
        ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
        ("mac", "00:11:22:33:44:55", "00:11"),
        ("uuid", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "6ba7b810"),
        ("date", "2024-02-29", "2023-02-29"),
        (
            "date-time",
            "2024-02-29T10:00:00.5+01:00",
            "2024-02-29 10:00:00",
        ),
        ("date-time", "9999-12-31T23:59:59Z", "9999-12-32T00:00:00Z"),
        ("duration", "1h30m", "soon"),
        ("byte", "YQ==", "a"),
        ("email", "a@b.c", "a"),
        ("hostname", "a.example.com", "-a"),
        ("uri", "https://a/b", "a b"),
        ("isbn10", "0-306-40615-2", "0-306-40615-3"),
        ("isbn13", "978-0-306-40615-7", "978-0-306-40615-8"),
        ("creditcard", "4111 1111 1111 1111", "4111 1111 1111 1112"),
        ("hexcolor", "#ffF", "#ff"),
        ("rgbcolor", "rgb(0, 1, 255)", "rgb(0,1,256)"),
    ] {
        assert!(formats::matches(format, yes), "{format} {yes}");
        assert!(!formats::matches(format, no), "{format} {no}");
    }
    assert!(formats::matches("nobody-knows", "x"));
}

#[test]
fn types_for_apply_carry_how_lists_merge() {
    let schema = schema(json!({"spec": {"type": "object", "properties": {
        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["p"],
            "items": {"type": "object", "properties": {"p": {"type": "integer"}}}},
        "one": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "string"}}},
    }}}));
    let (types, root) = schema.types();
    let spec = types.field(root, "spec").unwrap();
    let FieldType::Named(spec) = spec.ty else {
        panic!()
    };
    let ports = types.field(spec, "ports").unwrap();
    assert_eq!(ports.list_type, Some(ListType::Map));
    assert_eq!(ports.list_map_keys, [Text::from("p")]);
    assert_eq!(
        types.field(spec, "one").unwrap().struct_type,
        Some(MapType::Atomic)
    );
    let manager = crate::apply::FieldManager {
        schema: crate::apply::Schema::new(types, root),
        api_version: "g/v1",
        kind: "K",
        subresource: "",
        filter: &crate::apply::Filter::of("g", "ks", "", false),
        versions: None,
        now: "2024-01-01T00:00:00Z",
    };
    let one = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n"}, "spec": {"ports": [{"p": 1}]}});
    let live = manager.apply(None, &one, "a", false).unwrap();
    let mut two = one.clone();
    two["spec"]["ports"] = json!([{"p": 2}]);
    let live = manager.apply(Some(&live), &two, "b", false).unwrap();
    assert_eq!(live["spec"]["ports"], json!([{"p": 1}, {"p": 2}]));
}

#[test]
fn errors_become_one_status() {
    let errors = schema(json!({"a": {"type": "string"}})).validate(&json!({"a": 1}), None);
    assert!(aggregate(&errors).contains("must be of type string"));
    let status = Status::invalid(Qualified::new("g", "K"), "n", &errors);
    assert_eq!(status.code, 422);
}

use davit_api::kinds::FieldType;

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-d]", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Pruning and defaulting twice is the same as once, and neither ever panics.
    #[test]
    fn refreshing_is_idempotent(object in any_json()) {
        let schema = schema(json!({
            "a": {"type": "object", "properties": {"b": {"type": "string", "default": "z"}}},
            "b": {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "integer"}}},
            "c": {"x-kubernetes-preserve-unknown-fields": true},
            "d": {"type": "object", "nullable": true, "default": {"q": 1}, "properties": {"q": {"type": "integer"}}},
        }));
        let mut object = object;
        schema.refresh(&mut object);
        let once = object.clone();
        prop_assert!(!schema.refresh(&mut object));
        prop_assert_eq!(once, object.clone());
        let _ = schema.validate(&object, None);
        let _ = duplicates(&object, schema.root());
    }
}
