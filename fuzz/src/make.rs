//! Inputs that are, or nearly are, what a target takes: a grammar for each, then damage to the tree.

pub(crate) mod access;
pub(crate) mod objects;
pub(crate) mod registry;
pub(crate) mod requests;
pub(crate) mod wire;

use base64::Engine as _;
use davit_api::kinds::{FieldType, Opaque, TypeBody, TypeId, builtin};
use serde_json::{Map, Value, json};

use crate::Numbers;

const TEXTS: [&str; 24] = [
    "",
    "a",
    "A",
    "0",
    "-1",
    "true",
    "null",
    "1.5",
    "100m",
    "2Gi",
    "1e3",
    "a/b",
    "a.b/c",
    "$patch",
    "delete",
    "é",
    "\u{0}",
    "\u{1f600}",
    "2024-02-29T23:59:59Z",
    "1h0m0s",
    "YQ==",
    "=",
    "../x",
    "{}",
];

/// A scalar that is often out of place.
fn scalar(n: &mut Numbers) -> Value {
    match n.below(12) {
        0 => Value::Null,
        1 => json!(n.once_in(2)),
        2 => json!(0),
        3 => json!(-1),
        4 => json!(i64::MAX),
        5 => json!(i64::MIN),
        6 => json!(u64::MAX),
        7 => json!(1e308),
        8 => json!(0.1),
        9 => json!("x".repeat(n.below(300))),
        _ => json!(n.one(&TEXTS)),
    }
}

/// Any JSON.
fn tree(n: &mut Numbers, depth: usize) -> Value {
    match n.below(if depth == 0 { 1 } else { 3 }) {
        1 => (0..n.below(4)).map(|_| tree(n, depth - 1)).collect(),
        2 => (0..n.below(4))
            .map(|_| ((*n.one(&TEXTS)).to_owned(), tree(n, depth - 1)))
            .collect::<Map<_, _>>()
            .into(),
        _ => scalar(n),
    }
}

fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(nodes).sum(),
        Value::Object(members) => members.values().map(nodes).sum(),
        _ => 0,
    }
}

fn node(value: &mut Value, at: usize) -> Option<&mut Value> {
    if at == 0 {
        return Some(value);
    }
    let mut left = at - 1;
    let children: Vec<&mut Value> = match value {
        Value::Array(items) => items.iter_mut().collect(),
        Value::Object(members) => members.values_mut().collect(),
        _ => Vec::new(),
    };
    for child in children {
        let size = nodes(child);
        if left < size {
            return node(child, left);
        }
        left -= size;
    }
    None
}

/// Puts something else in the place of some nodes.
fn damaged(n: &mut Numbers, mut value: Value) -> Value {
    for _ in 0..n.below(4) {
        let at = n.below(nodes(&value));
        let new = match n.below(4) {
            0 => {
                let from = n.below(nodes(&value));
                node(&mut value, from).map_or(Value::Null, |found| found.clone())
            }
            1 => tree(n, 2),
            _ => scalar(n),
        };
        let key = (*n.one(&TEXTS)).to_owned();
        let insert = n.once_in(2);
        match node(&mut value, at) {
            Some(Value::Object(members)) if insert => drop(members.insert(key, new)),
            Some(Value::Array(items)) if insert => items.push(new),
            Some(place) => *place = new,
            None => {}
        }
    }
    value
}

/// A value of a built-in type.
fn typed(n: &mut Numbers, ty: &FieldType, depth: usize) -> Value {
    let types = &builtin().types;
    match types.resolve_type(ty) {
        FieldType::Bool => json!(n.once_in(2)),
        FieldType::Int32 | FieldType::Int64 => json!(n.below(1000)),
        FieldType::Float64 => json!(0.5),
        FieldType::String => json!(format!("text-{}", n.below(6))),
        FieldType::Bytes => json!("YQ=="),
        FieldType::Time => json!("2024-02-29T23:59:59Z"),
        FieldType::MicroTime => json!("2024-02-29T23:59:59.000001Z"),
        FieldType::Duration => json!("1h0m0s"),
        FieldType::Quantity => json!(n.one(&["1", "1500m", "2Gi", "0", "1e3", "-5"])),
        FieldType::IntOrString => [json!(7), json!("25%")][n.below(2)].clone(),
        FieldType::RawExtension | FieldType::Any => json!({"apiVersion": "x/v1", "kind": "X"}),
        FieldType::List(item) => (0..n.below(4)).map(|_| typed(n, item, depth)).collect(),
        FieldType::Map(item) => (0..n.below(4))
            .map(|i| (format!("k{i}"), typed(n, item, depth)))
            .collect::<Map<_, _>>()
            .into(),
        FieldType::Named(id) => match &types.get(*id).body {
            TypeBody::Opaque(Opaque::Any | Opaque::Object) => json!({"a": "b"}),
            TypeBody::Opaque(Opaque::SchemaOrBool) => json!(true),
            TypeBody::Opaque(_) => json!({"type": "object"}),
            _ => object(n, *id, depth),
        },
    }
}

fn object(n: &mut Numbers, id: TypeId, depth: usize) -> Value {
    let mut out = Map::new();
    for field in builtin().types.fields(id) {
        if depth > 7 || n.below(3) != 0 {
            continue;
        }
        out.insert(field.name.to_string(), typed(n, &field.ty, depth + 1));
    }
    Value::Object(out)
}

/// A byte that stands for a kind, and an object of it.
fn any_kind(n: &mut Numbers) -> (u8, TypeId) {
    let byte = n.byte();
    let rows = &builtin().resources;
    (byte, rows[usize::from(byte) % rows.len()].type_id)
}

fn bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn joined(first: Vec<u8>, second: Vec<u8>) -> Vec<u8> {
    [first, vec![0], second].concat()
}

pub(crate) fn apply(n: &mut Numbers) -> Vec<u8> {
    let (kind, id) = any_kind(n);
    let mut live = object(n, id, 0);
    let mut applied = if n.once_in(2) {
        damaged(n, live.clone())
    } else {
        object(n, id, 0)
    };
    if n.once_in(3) {
        live = damaged(n, live);
    }
    if n.once_in(4) {
        applied = damaged(n, applied);
    }
    [vec![kind], joined(bytes(&live), bytes(&applied))].concat()
}

pub(crate) fn decode(n: &mut Numbers) -> Vec<u8> {
    let (kind, id) = any_kind(n);
    let made = object(n, id, 0);
    let body = damaged(n, made);
    let yaml = n.byte();
    let text = if yaml % 2 == 1 && n.once_in(2) {
        block(&body, 0)
    } else {
        body.to_string()
    };
    [vec![kind, yaml], text.into_bytes()].concat()
}

/// YAML in blocks.
fn block(value: &Value, indent: usize) -> String {
    let pad = " ".repeat(indent);
    match value {
        Value::Object(members) if !members.is_empty() => members
            .iter()
            .map(|(key, member)| match member {
                Value::Object(_) | Value::Array(_) => {
                    format!("\n{pad}{}:{}", json!(key), block(member, indent + 2))
                }
                _ => format!("\n{pad}{}: {member}", json!(key)),
            })
            .collect(),
        Value::Array(items) if !items.is_empty() => items
            .iter()
            .map(|item| format!("\n{pad}- {item}"))
            .collect(),
        other => format!(" {other}"),
    }
}

pub(crate) fn patch(n: &mut Numbers) -> Vec<u8> {
    let types = &builtin().types;
    let Some(pod) = types.id("core/v1.Pod") else {
        return Vec::new();
    };
    let document = object(n, pod, 0);
    let patch = match n.below(3) {
        0 => (0..n.below(5)).map(|_| operation(n, &document)).collect(),
        1 => damaged(n, document.clone()),
        _ => {
            let plain = object(n, pod, 0);
            directives(n, plain)
        }
    };
    joined(bytes(&document), bytes(&patch))
}

fn operation(n: &mut Numbers, document: &Value) -> Value {
    let kinds = ["add", "remove", "replace", "move", "copy", "test", "none"];
    json!({"op": n.one(&kinds), "path": pointer(n, document), "from": pointer(n, document), "value": tree(n, 2)})
}

fn pointer(n: &mut Numbers, document: &Value) -> String {
    let (mut at, mut out) = (document, String::new());
    while !n.once_in(4) {
        let next = match at {
            Value::Object(members) if !members.is_empty() => members
                .iter()
                .nth(n.below(members.len()))
                .map(|(key, value)| (key.replace('~', "~0").replace('/', "~1"), value)),
            Value::Array(items) if !items.is_empty() => {
                let index = n.below(items.len());
                Some((index.to_string(), &items[index]))
            }
            _ => None,
        };
        let Some((word, value)) = next else {
            let wild = ["-", "99999999999999999999", "-1", "x", "~2", ""];
            return format!("{out}/{}", n.one(&wild));
        };
        out = format!("{out}/{word}");
        at = value;
    }
    out
}

/// Puts directives of strategic merge patches in.
fn directives(n: &mut Numbers, value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let mut out = Map::new();
            for (key, member) in members {
                match n.below(8) {
                    0 => drop(out.insert(format!("$setElementOrder/{key}"), member.clone())),
                    1 => {
                        drop(out.insert(format!("$deleteFromPrimitiveList/{key}"), member.clone()));
                    }
                    2 => drop(out.insert("$retainKeys".to_owned(), json!([key]))),
                    3 => {
                        let what = n.one(&["delete", "replace", "merge", "none"]);
                        out.insert("$patch".to_owned(), json!(what));
                    }
                    4 => drop(out.insert(key.clone(), Value::Null)),
                    _ => {}
                }
                if !n.once_in(5) {
                    out.insert(key, directives(n, member));
                }
            }
            Value::Object(out)
        }
        Value::Array(items) => items.into_iter().map(|item| directives(n, item)).collect(),
        other => other,
    }
}

pub(crate) fn protobuf(n: &mut Numbers) -> Vec<u8> {
    let (kind, id) = any_kind(n);
    let object = object(n, id, 0);
    let raw = davit_schema::protobuf::encode(&builtin().types, id, &object).unwrap_or_default();
    [vec![kind], raw].concat()
}

pub(crate) fn stored(n: &mut Numbers) -> Vec<u8> {
    let message = protobuf(n);
    let rows = &builtin().resources;
    let row = &rows[usize::from(message[0]) % rows.len()];
    let stored = davit_schema::protobuf::seal(&row.api_version(), row.kind, &message[1..]);
    [vec![message[0]], stored].concat()
}

pub(crate) fn quantity(n: &mut Numbers) -> Vec<u8> {
    let digits = |n: &mut Numbers| -> String {
        (0..n.below(25))
            .map(|_| char::from(b'0' + n.byte() % 10))
            .collect()
    };
    let signs = ["", "-", "+"];
    let suffixes = [
        "", "n", "u", "m", "k", "K", "M", "Ki", "Gi", "Ei", "E", "e3", "E-9", "e99", "e",
    ];
    let (sign, whole) = (*n.one(&signs), digits(n));
    let part = if n.once_in(2) {
        format!(".{}", digits(n))
    } else {
        String::new()
    };
    format!("{sign}{whole}{part}{}", n.one(&suffixes)).into_bytes()
}

pub(crate) fn selectors(n: &mut Numbers) -> Vec<u8> {
    let words = [
        "a",
        "app.kubernetes.io/name",
        "in",
        "notin",
        "!",
        "=",
        "==",
        "!=",
        ">",
        "<",
        "(",
        ")",
        ",",
        " ",
        "x y",
        "spec.nodeName",
        "\\",
        "\\,",
        "\\=",
        "1",
        "-1",
        "é",
        "metadata.name",
    ];
    let mut out = String::new();
    for _ in 0..n.below(14) {
        if n.once_in(3) {
            let (key, value) = (n.one(&words), n.one(&words));
            out.push_str(&match n.below(4) {
                0 => format!("{key} in ({value},b)"),
                1 => format!("{key}!={value}"),
                2 => format!("!{key}"),
                _ => format!("{key}={value}"),
            });
            out.push(',');
        } else {
            out.push_str(words[n.below(words.len())]);
        }
    }
    out.into_bytes()
}

pub(crate) fn cel(n: &mut Numbers) -> Vec<u8> {
    expression(n, 4).into_bytes()
}

fn expression(n: &mut Numbers, depth: usize) -> String {
    const LEAVES: [&str; 28] = [
        "self",
        "x",
        "l",
        "self.a",
        "self.a[0]",
        "1",
        "-1",
        "0",
        "1u",
        "1.5",
        "'a'",
        "b'a'",
        "true",
        "null",
        "[]",
        "{}",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551615u",
        "1e308",
        "'2024-01-01T00:00:00Z'",
        "'1h'",
        "'10.0.0.0/8'",
        "'https://a/b?c=d'",
        "'1Gi'",
        "'(a+)+'",
        "'1.2.3'",
        "type(x)",
    ];
    const UNARY: [&str; 24] = [
        "!",
        "-",
        "size",
        "int",
        "uint",
        "double",
        "string",
        "bool",
        "bytes",
        "timestamp",
        "duration",
        "type",
        "dyn",
        "quantity",
        "url",
        "ip",
        "cidr",
        "semver",
        "isQuantity",
        "isIP",
        "optional.of",
        "math.abs",
        "sets.contains",
        "has",
    ];
    const BINARY: [&str; 13] = [
        "+", "-", "*", "/", "%", "==", "!=", "<", ">=", "&&", "||", "in", "?",
    ];
    const METHODS: [&str; 26] = [
        "startsWith",
        "contains",
        "matches",
        "find",
        "findAll",
        "split",
        "join",
        "replace",
        "substring",
        "lowerAscii",
        "trim",
        "charAt",
        "indexOf",
        "format",
        "reverse",
        "sum",
        "min",
        "max",
        "isSorted",
        "getFullYear",
        "getHours",
        "add",
        "sub",
        "compareTo",
        "orValue",
        "containsIP",
    ];
    const MACROS: [&str; 8] = [
        "all",
        "exists",
        "exists_one",
        "map",
        "filter",
        "transformList",
        "transformMap",
        "sortBy",
    ];
    if depth == 0 {
        return (*n.one(&LEAVES)).to_owned();
    }
    let a = expression(n, depth - 1);
    match n.below(9) {
        0 => (*n.one(&LEAVES)).to_owned(),
        1 => format!("{}({a})", n.one(&UNARY)),
        2 => format!("({a} {} {})", n.one(&BINARY), expression(n, depth - 1)),
        3 => format!("{a}.{}({})", n.one(&METHODS), expression(n, depth - 1)),
        4 => format!("{a}.{}(i, {})", n.one(&MACROS), expression(n, depth - 1)),
        5 => format!(
            "({a} ? {} : {})",
            expression(n, depth - 1),
            expression(n, depth - 1)
        ),
        6 => format!("[{a}, {}]", expression(n, depth - 1)),
        7 => format!("{{{a}: {}}}", expression(n, depth - 1)),
        _ => format!("{a}[{}]", expression(n, depth - 1)),
    }
}

pub(crate) fn webhook(n: &mut Numbers) -> Vec<u8> {
    let patch: Value = (0..n.below(4))
        .map(|_| operation(n, &json!({"metadata": {"name": "x", "labels": {"a": "b"}}})))
        .collect();
    let patch = base64::engine::general_purpose::STANDARD.encode(patch.to_string());
    let answer = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {"uid": "u", "allowed": n.once_in(2), "patch": patch, "patchType": "JSONPatch",
            "status": {"code": 403, "reason": "Forbidden", "message": "no", "details": {"causes": []}},
            "warnings": ["w"], "auditAnnotations": {"a": "b"}},
    });
    bytes(&damaged(n, answer))
}

/// What the conversion target asks about.
pub(crate) fn converted_objects() -> Vec<Value> {
    let of = |name: &str| {
        json!({"apiVersion": "example.com/v1", "kind": "Door", "metadata": {"name": name, "namespace": "d",
            "uid": format!("uid-{name}"), "resourceVersion": "7", "labels": {"a": "b"}, "finalizers": ["x/y"]},
            "spec": {"host": "h"}})
    };
    vec![of("one"), of("two")]
}

pub(crate) fn conversion(n: &mut Numbers) -> Vec<u8> {
    let objects: Vec<Value> = converted_objects()
        .into_iter()
        .map(|mut object| {
            object["apiVersion"] = json!("example.com/v2");
            object
        })
        .collect();
    let answer = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": {
        "uid": "u", "result": {"status": "Success"}, "convertedObjects": objects}});
    bytes(&damaged(n, answer))
}

pub(crate) fn structural(n: &mut Numbers) -> Vec<u8> {
    let mut schema = schema(n, 3);
    schema["type"] = json!("object");
    if let Some(members) = schema.as_object_mut() {
        members.remove("items");
        members.remove("default");
        members.remove("nullable");
    }
    let object = damaged_object(n, &schema);
    if n.once_in(6) {
        schema = damaged(n, schema);
    }
    joined(bytes(&schema), bytes(&object))
}

fn schema(n: &mut Numbers, depth: usize) -> Value {
    let kinds = ["string", "integer", "number", "boolean", "array", "object"];
    let kind = *n.one(if depth == 0 { &kinds[..4] } else { &kinds });
    let mut out = json!({"type": kind});
    match kind {
        "object" if n.once_in(4) => out["additionalProperties"] = schema(n, depth - 1),
        "object" => {
            let names = ["a", "b", "c", "d.e"];
            out["properties"] = (0..n.below(4))
                .map(|_| ((*n.one(&names)).to_owned(), schema(n, depth - 1)))
                .collect::<Map<_, _>>()
                .into();
            if n.once_in(5) {
                out["x-kubernetes-preserve-unknown-fields"] = json!(true);
            }
            if n.once_in(5) {
                out["required"] = json!(["a"]);
            }
        }
        "array" => {
            out["items"] = schema(n, depth - 1);
            if n.once_in(4) {
                out["x-kubernetes-list-type"] = json!(n.one(&["set", "atomic", "map"]));
            }
        }
        "string" => {
            let formats = [
                "date",
                "date-time",
                "duration",
                "byte",
                "ipv4",
                "cidr",
                "uuid",
                "email",
                "none",
            ];
            if n.once_in(3) {
                out["format"] = json!(n.one(&formats));
            }
            if n.once_in(4) {
                out["pattern"] = json!(n.one(&["^a+$", "(a|b)*", "[", "\\d{1,3}", "(?i)x"]));
            }
            if n.once_in(4) {
                out["default"] = json!(n.one(&["a", "", "2024-01-01"]));
            }
        }
        "integer" | "number" => {
            if n.once_in(3) {
                out["minimum"] = json!(1);
            }
            if n.once_in(3) {
                out["multipleOf"] = json!(n.one(&[0.1, 1.0, 3.0]));
            }
            if n.once_in(4) {
                out["default"] = json!(3);
            }
        }
        _ => {}
    }
    if n.once_in(5) {
        out["nullable"] = json!(true);
    }
    if n.once_in(12)
        && let Some(members) = out.as_object_mut()
    {
        members.clear();
        members.insert("x-kubernetes-int-or-string".to_owned(), json!(true));
    }
    out
}

/// An object of a schema, with damage.
fn damaged_object(n: &mut Numbers, schema: &Value) -> Value {
    let made = of_schema(n, schema);
    damaged(n, made)
}

fn of_schema(n: &mut Numbers, schema: &Value) -> Value {
    match schema["type"].as_str() {
        Some("object") => {
            let mut out = Map::new();
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                if !n.once_in(3) {
                    out.insert(name.clone(), of_schema(n, property));
                }
            }
            if schema["additionalProperties"].is_object() {
                out.insert(
                    "k".to_owned(),
                    of_schema(n, &schema["additionalProperties"]),
                );
            }
            Value::Object(out)
        }
        Some("array") => (0..n.below(3))
            .map(|_| of_schema(n, &schema["items"]))
            .collect(),
        Some("integer") => json!(n.below(9)),
        Some("number") => json!(0.5),
        Some("boolean") => json!(true),
        _ => json!(n.one(&TEXTS)),
    }
}
