//! Costs: estimates and counts that clients know from the reference implementation.
#![allow(clippy::unwrap_used)]

use davit_cel::{DeclType, Env, Program, Type, Value, decl_type, value_with_schema};
use serde_json::{Value as Json, json};

fn rule(schema: &Json, expr: &str) -> Program {
    let decl = decl_type(schema, "self", false).unwrap();
    let env = Env::kubernetes().declare("self", decl).build();
    env.compile(expr).unwrap()
}

#[test]
fn estimates_for_schemas_with_and_without_bounds() {
    let array = |ty: &str| json!({"type": "array", "items": {"type": ty}});
    let map = |ty: &str| json!({"type": "object", "additionalProperties": {"type": ty}});
    let text = json!({"type": "string"});
    for (mut schema, expr, unbounded, bound, bounded) in [
        (
            array("number"),
            "self.all(x, true)",
            4_718_591,
            "maxItems",
            32,
        ),
        (
            array("string"),
            "self.all(x, true)",
            3_145_727,
            "maxItems",
            32,
        ),
        (
            map("number"),
            "self.all(x, true)",
            1_348_169,
            "maxProperties",
            32,
        ),
        (
            text.clone(),
            "self.contains('test')",
            314_574,
            "maxLength",
            5,
        ),
        (text.clone(), "self.startsWith('test')", 2, "maxLength", 2),
        (text.clone(), "self.matches('x')", 314_574, "maxLength", 6),
    ] {
        assert_eq!(
            rule(&schema, expr).cost_estimate().max,
            unbounded,
            "{expr} {schema}"
        );
        schema[bound] = json!(10);
        assert_eq!(
            rule(&schema, expr).cost_estimate().max,
            bounded,
            "{expr} {schema}"
        );
    }
    let nested = json!({"type": "array", "items": {"type": "array", "items": {"type": "string"}}});
    assert!(
        rule(&nested, "self.all(x, x.all(y, y == 'a'))")
            .cost_estimate()
            .max
            > 100_000_000
    );
}

/// The device environment of dynamic resource allocation.
#[test]
fn reference_costs_of_device_selectors() {
    let domain = || DeclType::string(63);
    let inner = DeclType::map(DeclType::string(32), DeclType::simple(Type::Dyn), 32);
    let device = DeclType::object(
        "kubernetes.DRADevice",
        [
            ("driver".into(), domain()),
            ("attributes".into(), DeclType::map(domain(), inner, 32)),
        ],
    );
    let env = Env::kubernetes().declare("device", device).build();
    for (expr, cost) in [
        ("device.driver == 'dra.example.com'", 4),
        ("device.attributes['dra.example.com'].name", 4),
    ] {
        assert_eq!(
            env.compile(expr).unwrap().cost_estimate().max,
            cost,
            "{expr}"
        );
    }
}

#[test]
fn counted_costs() {
    let env = Env::kubernetes()
        .variable("l", Type::list(Type::Int))
        .variable("s", Type::String)
        .variable("m", Type::map(Type::String, Type::Int))
        .build();
    let variables = [
        (
            "l",
            Value::list(vec![Value::Int(1), Value::Int(2), Value::Int(3)]),
        ),
        ("s", Value::string("0123456789abcdefghij")),
        ("m", Value::map([("a", Value::Int(1))])),
    ];
    for (expr, cost) in [
        ("true", 0),
        ("1 + 1 == 2", 2),
        ("m.a == 1", 3),
        ("m['a'] == 1", 3),
        ("has(m.a)", 1),
        ("l[0]", 2),
        ("size(l) == 3", 3),
        ("s.startsWith('0')", 3),
        ("s.contains('789')", 3),
        ("s.matches('[a-z]')", 7),
        ("s + s == s", 9),
        ("2 in l", 4),
        ("2 in [1, 2, 3]", 0),
        ("[l, l]", 12),
        ("l.all(i, i > 0)", 17),
        ("l.map(i, i)", 41),
        ("false && l.all(i, i > 0)", 0),
        ("true ? 1 : l[0]", 0),
        ("'a'.charAt(0)", 1),
        ("s.upperAscii()", 3),
        ("l.sum()", 4),
    ] {
        let program = env.compile(expr).unwrap();
        let (_, counted) = program.eval(&variables, u64::MAX).unwrap();
        assert_eq!(counted, cost, "{expr}");
    }
}

#[test]
fn values_by_schema() {
    let schema = json!({"type": "object", "properties": {
        "namespace": {"type": "string"},
        "a-b": {"type": "integer"},
        "when": {"type": "string", "format": "date-time"},
        "for": {"type": "string", "format": "duration"},
        "raw": {"type": "string", "format": "byte"},
        "port": {"x-kubernetes-int-or-string": true},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "ratio": {"type": "number"},
    }});
    let object = json!({
        "namespace": "n", "a-b": 1, "when": "2024-01-01T00:00:00Z", "for": "90s", "raw": "aGk=",
        "port": "http", "set": ["a", "b"], "ratio": 2, "undeclared": true,
    });
    let decl = decl_type(&schema, "self", true).unwrap();
    let env = Env::kubernetes().declare("self", decl).build();
    let value = value_with_schema(&object, &schema, true);
    for expr in [
        "self.__namespace__ == 'n' && self.namespace == 'n'",
        "self.a__dash__b == 1",
        "self.when < timestamp('2024-01-02T00:00:00Z') && self.__for__ == duration('1m30s')",
        "self.raw == b'hi' && self.port == 'http' && self.ratio == 2.0",
        "self.set == ['b', 'a'] && self.set + ['a'] == ['a', 'b']",
        "!has(self.kind)",
    ] {
        let program = env
            .compile(expr)
            .unwrap_or_else(|e| panic!("{}", davit_cel::join_errors(&e)));
        let (result, _) = program.eval(&[("self", value.clone())], u64::MAX).unwrap();
        assert_eq!(result, Value::Bool(true), "{expr}");
    }
    assert!(env.compile("self.undeclared").is_err());
    for (name, escaped) in [
        ("a.b", "a__dot__b"),
        ("a__b", "a__underscores__b"),
        ("x/y-z", "x__slash__y__dash__z"),
        ("in", "__in__"),
    ] {
        assert_eq!(davit_cel::escape(name).as_deref(), Some(escaped));
        assert_eq!(davit_cel::unescape(escaped), name);
    }
    assert_eq!(davit_cel::escape("1a"), None);
}
