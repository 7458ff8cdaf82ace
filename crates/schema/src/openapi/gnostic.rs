//! The version 2 document as a protobuf message (package `openapi.v2`), made from its JSON pieces.
//!
//! Only what our documents contain is encoded. Extensions and defaults travel as YAML text in the
//! message `Any`; JSON is YAML.

use serde_json::Value;

/// A message being written.
#[derive(Default)]
struct Message {
    out: Vec<u8>,
}

impl Message {
    fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.out.push((n as u8 & 0x7f) | 0x80);
            n >>= 7;
        }
        self.out.push(n as u8);
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field << 3 | 2));
        self.varint(bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u32, message: &Message) {
        self.bytes(field, &message.out);
    }

    /// A string member; nothing when it is missing.
    fn string(&mut self, field: u32, value: &Value) {
        if let Some(text) = value.as_str() {
            self.bytes(field, text.as_bytes());
        }
    }

    fn strings(&mut self, field: u32, value: &Value) {
        for text in value.as_array().into_iter().flatten() {
            self.string(field, text);
        }
    }

    fn bool(&mut self, field: u32, value: &Value) {
        if value.as_bool() == Some(true) {
            self.varint(u64::from(field << 3));
            self.varint(1);
        }
    }

    fn int(&mut self, field: u32, value: &Value) {
        if let Some(n) = value.as_i64() {
            self.varint(u64::from(field << 3));
            self.varint(n as u64);
        }
    }

    fn double(&mut self, field: u32, value: &Value) {
        if let Some(n) = value.as_f64() {
            self.varint(u64::from(field << 3 | 1));
            self.out.extend_from_slice(&n.to_le_bytes());
        }
    }

    /// Members `x-…`, each as a `NamedAny`.
    fn extensions(&mut self, field: u32, value: &Value) {
        for (key, value) in value.as_object().into_iter().flatten() {
            if key.starts_with("x-") {
                self.message(field, &named(key, &any(value)));
            }
        }
    }
}

/// The messages `Named…`: name 1, value 2.
fn named(name: &str, value: &Message) -> Message {
    let mut out = Message::default();
    out.bytes(1, name.as_bytes());
    out.message(2, value);
    out
}

/// `Any`: yaml 2.
fn any(value: &Value) -> Message {
    let mut out = Message::default();
    out.bytes(2, format!("{value}\n").as_bytes());
    out
}

/// One of a oneof: the message in its field.
fn one_of(field: u32, message: &Message) -> Message {
    let mut out = Message::default();
    out.message(field, message);
    out
}

/// The whole document.
pub(super) struct Document(Message);

impl Document {
    pub(super) fn new(info: &Value) -> Self {
        let mut doc = Message::default();
        doc.bytes(1, b"2.0");
        let mut message = Message::default();
        message.string(1, &info["title"]);
        message.string(2, &info["version"]);
        doc.message(2, &message);
        Self(doc)
    }

    pub(super) fn paths(&mut self, paths: &Paths) {
        self.0.message(8, &paths.0);
    }

    pub(super) fn definitions(&mut self, definitions: &Definitions) {
        self.0.message(9, &definitions.0);
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0.out
    }
}

/// `Paths`.
#[derive(Default)]
pub(super) struct Paths(Message);

impl Paths {
    pub(super) fn add(&mut self, path: &str, item: &Value) {
        const METHODS: [(&str, u32); 7] = [
            ("get", 2),
            ("put", 3),
            ("post", 4),
            ("delete", 5),
            ("options", 6),
            ("head", 7),
            ("patch", 8),
        ];
        let mut message = Message::default();
        for (method, field) in METHODS {
            if let Some(value) = item.get(method) {
                message.message(field, &operation(value));
            }
        }
        for value in item["parameters"].as_array().into_iter().flatten() {
            message.message(9, &parameter(value));
        }
        self.0.message(2, &named(path, &message));
    }
}

/// `Definitions`.
#[derive(Default)]
pub(super) struct Definitions(Message);

impl Definitions {
    pub(super) fn add(&mut self, name: &str, value: &Value) {
        self.0.message(1, &named(name, &schema(value)));
    }
}

fn operation(value: &Value) -> Message {
    let mut out = Message::default();
    out.strings(1, &value["tags"]);
    out.string(3, &value["description"]);
    out.string(5, &value["operationId"]);
    out.strings(6, &value["produces"]);
    out.strings(7, &value["consumes"]);
    for p in value["parameters"].as_array().into_iter().flatten() {
        out.message(8, &parameter(p));
    }
    let mut responses = Message::default();
    for (code, answer) in value["responses"].as_object().into_iter().flatten() {
        let mut response = Message::default();
        response.string(1, &answer["description"]);
        if let Some(s) = answer.get("schema") {
            response.message(2, &one_of(1, &schema(s)));
        }
        responses.message(1, &named(code, &one_of(1, &response)));
    }
    out.message(9, &responses);
    out.strings(10, &value["schemes"]);
    out.extensions(13, value);
    out
}

/// `ParametersItem` around a body, query or path parameter.
fn parameter(value: &Value) -> Message {
    if value["in"] == "body" {
        let mut body = Message::default();
        body.string(1, &value["description"]);
        body.string(2, &value["name"]);
        body.string(3, &value["in"]);
        body.bool(4, &value["required"]);
        body.message(5, &schema(&value["schema"]));
        return one_of(1, &one_of(1, &body));
    }
    let query = value["in"] == "query";
    // query parameters have one field more (allow_empty_value) before the type
    let (of_kind, shift) = if query { (3, 1) } else { (4, 0) };
    let mut sub = Message::default();
    sub.bool(1, &value["required"]);
    sub.string(2, &value["in"]);
    sub.string(3, &value["description"]);
    sub.string(4, &value["name"]);
    sub.string(5 + shift, &value["type"]);
    sub.bool(19 + shift, &value["uniqueItems"]);
    one_of(1, &one_of(2, &one_of(of_kind, &sub)))
}

fn schema(value: &Value) -> Message {
    let mut out = Message::default();
    out.string(1, &value["$ref"]);
    out.string(2, &value["format"]);
    out.string(3, &value["title"]);
    out.string(4, &value["description"]);
    if let Some(default) = value.get("default") {
        out.message(5, &any(default));
    }
    out.double(7, &value["maximum"]);
    out.bool(8, &value["exclusiveMaximum"]);
    out.double(9, &value["minimum"]);
    out.bool(10, &value["exclusiveMinimum"]);
    out.int(11, &value["maxLength"]);
    out.int(12, &value["minLength"]);
    out.string(13, &value["pattern"]);
    out.int(14, &value["maxItems"]);
    out.int(15, &value["minItems"]);
    out.bool(16, &value["uniqueItems"]);
    out.strings(19, &value["required"]);
    for one in value["enum"].as_array().into_iter().flatten() {
        out.message(20, &any(one));
    }
    if let Some(inner) = value.get("additionalProperties") {
        out.message(21, &one_of(1, &schema(inner)));
    }
    if value["type"].is_string() {
        let mut kind = Message::default();
        kind.string(1, &value["type"]);
        out.message(22, &kind);
    }
    if let Some(items) = value.get("items") {
        out.message(23, &one_of(1, &schema(items)));
    }
    for one in value["allOf"].as_array().into_iter().flatten() {
        out.message(24, &schema(one));
    }
    if let Some(properties) = value.get("properties").and_then(Value::as_object) {
        let mut all = Message::default();
        for (name, property) in properties {
            all.message(1, &named(name, &schema(property)));
        }
        out.message(25, &all);
    }
    out.extensions(31, value);
    out
}
