//! From bytes to a clean object of a kind, as Kubernetes decodes typed objects: names are
//! case-sensitive, unknown and repeated fields are collected for strict validation, what is unknown
//! is dropped, numbers must fit, quantities, times and bytes take their canonical form, and empty
//! optional values vanish as Go's `omitempty` makes them vanish, so that writing what was read
//! changes nothing.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use davit_api::kinds::{FieldType, Opaque, TypeBody, TypeId, TypeTable};
use davit_api::quantity::Quantity;
use davit_api::status::Status;
use davit_api::time;
use serde_json::{Map, Value};

pub use crate::raw::{MAX_DEPTH, MAX_VALUES};
use crate::raw::{Raw, ReadError, json, too_deep, yaml};

mod canonical;
mod clean;

pub use clean::zero_value;

/// How a body is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// `application/json`.
    Json,
    /// `application/yaml`.
    Yaml,
}

/// A decoded object.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The object without anything unknown.
    pub object: Value,
    /// What strict field validation refuses, in the order of the document, at most 100:
    /// `unknown field "spec.x"`, `duplicate field "spec.y"`.
    pub strict: Vec<String>,
}

impl Decoded {
    /// The sentence with which strict field validation refuses the object.
    pub fn strict_error(&self) -> Option<String> {
        (!self.strict.is_empty())
            .then(|| format!("strict decoding error: {}", self.strict.join(", ")))
    }
}

/// Why a body is no object of a kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The body is no JSON or YAML, or nests too deeply.
    #[error("couldn't get version/kind; json parse error: {0}")]
    Syntax(String),
    /// A value does not fit its field; the text is that of Go.
    #[error("{0}")]
    Value(String),
    /// The body has more than [`MAX_VALUES`], or what goes without saying in it is more than any object holds: 413.
    #[error("{0}")]
    TooLarge(String),
}

impl From<ReadError> for DecodeError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Syntax(why) => Self::Syntax(why),
            ReadError::TooMany => Self::TooLarge(format!("limit is {MAX_VALUES} values")),
        }
    }
}

impl DecodeError {
    /// The 400 of the API server for a body that should have been a `want` of `version`.
    ///
    /// A body that could not be parsed at all is quoted with its first 30 bytes.
    pub fn status(&self, want: &str, version: &str, body: &[u8]) -> Status {
        match self {
            DecodeError::Value(_) => Status::bad_request(cannot_be_handled(want, version, self)),
            DecodeError::Syntax(_) => unrecognized(want, self, body),
            DecodeError::TooLarge(why) => Status::too_large(why),
        }
    }
}

/// `Pod in version "v1" cannot be handled as a Pod: why`.
pub fn cannot_be_handled(kind: &str, version: &str, why: impl fmt::Display) -> String {
    format!(
        "{kind} in version {} cannot be handled as a {kind}: {why}",
        davit_api::field::quote(version)
    )
}

/// 400 for a body of which nobody can tell what it is.
pub fn unrecognized(want: &str, why: &dyn fmt::Display, body: &[u8]) -> Status {
    Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {want}): {why} ({})",
        summary(body)
    ))
}

/// The start of a body: text where it begins as JSON does, hexadecimal otherwise.
fn summary(body: &[u8]) -> String {
    const MAX: usize = 30;
    if body.is_empty() {
        return "<empty>".to_owned();
    }
    let head = &body[..body.len().min(MAX)];
    let dots = if body.len() > MAX { " ..." } else { "" };
    if body[0] == b'{' {
        return format!("{}{dots}", String::from_utf8_lossy(head));
    }
    let mut out = String::new();
    for b in head {
        let _ = write!(out, "{b:02x}");
    }
    out + dots
}

/// Decodes a body as the type `root`.
///
/// # Errors
/// When the body cannot be parsed or a value does not fit its field.
pub fn decode(
    types: &TypeTable,
    root: TypeId,
    body: &[u8],
    encoding: Encoding,
) -> Result<Decoded, DecodeError> {
    let mut strict = Vec::new();
    let raw = match encoding {
        Encoding::Json => json::read(body)?,
        Encoding::Yaml => {
            let read = yaml::read(body).map_err(DecodeError::Syntax)?;
            strict.extend(read.duplicates);
            read.value
        }
    };
    let is_told = !strict.is_empty();
    let mut decoded = typed(types, root, raw, strict)?;
    if is_told {
        // the reader of YAML has said so, in its words
        let twice = |fault: &String| fault.starts_with("duplicate field ");
        decoded.strict.retain(|fault| !twice(fault));
    }
    Ok(decoded)
}

/// Decodes a value that already is JSON, such as the result of a patch.
///
/// # Errors
/// When a value does not fit its field, or the value nests too deeply.
pub fn decode_value(types: &TypeTable, root: TypeId, value: Value) -> Result<Decoded, DecodeError> {
    // what has been decoded before, as most of it has, is as it is to be
    if canonical::is_canonical(types, root, &value) {
        return Ok(Decoded {
            object: value,
            strict: Vec::new(),
        });
    }
    if too_deep(&value) {
        return Err(DecodeError::Value("exceeded max depth".to_owned()));
    }
    typed(types, root, Raw::from_value(value), Vec::new())
}

/// Parses a body without a type, as for kinds whose schema is not known yet and for patches.
///
/// # Errors
/// When the body cannot be parsed.
pub fn parse(body: &[u8], encoding: Encoding) -> Result<Value, DecodeError> {
    match encoding {
        Encoding::Json => untyped(json::read(body)?),
        Encoding::Yaml => parse_yaml(body).map(|(value, _)| value),
    }
}

/// Parses a YAML document without a type; beside it the sentence about the first key that it says twice, as the
/// Kubernetes libraries put it.
///
/// # Errors
/// When the document cannot be parsed.
pub fn parse_yaml(body: &[u8]) -> Result<(Value, Option<String>), DecodeError> {
    // what clients apply mostly is JSON, which is read much faster as what it is
    if body.trim_ascii_start().starts_with(b"{") {
        match json::read(body) {
            Ok(raw) if raw.means_the_same_in_yaml() => return Ok((untyped(raw)?, None)),
            Err(error @ ReadError::TooMany) => return Err(error.into()),
            _ => {}
        }
    }
    let read = yaml::read(body).map_err(DecodeError::Syntax)?;
    Ok((untyped(read.value)?, read.duplicates))
}

/// What strict field validation says of the keys that JSON without a type, as a patch is, says twice.
pub fn repeated_fields(body: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    if let Ok(raw) = json::read(body) {
        raw.repeated("", &mut found);
    }
    let sentence = |path| format!("duplicate field \"{path}\"");
    found.into_iter().map(sentence).collect()
}

/// A fault of strict field validation as a warning tells it: without what the Kubernetes libraries put before those of
/// YAML.
pub fn bare_fault(fault: &str) -> &str {
    let rest = fault.strip_prefix("yaml: unmarshal errors:\n");
    rest.map_or(fault, str::trim_start)
}

fn untyped(raw: Raw<'_>) -> Result<Value, DecodeError> {
    raw.into_value().map_err(|n| {
        DecodeError::Value(format!(
            "json: cannot unmarshal number {n} into Go value of type float64"
        ))
    })
}

fn typed(
    types: &TypeTable,
    root: TypeId,
    raw: Raw<'_>,
    strict: Vec<String>,
) -> Result<Decoded, DecodeError> {
    let root = FieldType::Named(root);
    let mut decoder = Decoder {
        types,
        strict,
        path: String::new(),
        fields: Vec::new(),
        owner: None,
        unsaid: clean::Unsaid::default(),
    };
    let object = decoder
        .value(&root, raw)
        .map_err(|why| match decoder.unsaid.is_too_much() {
            true => DecodeError::TooLarge(why),
            false => DecodeError::Value(why),
        })?
        .or_else(|| zero_value(types, &root))
        .unwrap_or_else(|| Value::Object(Map::new()));
    Ok(Decoded {
        object,
        strict: decoder.strict,
    })
}

const MAX_STRICT: usize = 100;

struct Decoder<'t> {
    types: &'t TypeTable,
    strict: Vec<String>,
    /// Where the decoder stands, in the form of strict errors: `spec.containers[0].name`.
    path: String,
    /// The JSON names on the way from the root, in the form of Go's type errors.
    fields: Vec<&'t str>,
    /// The struct that is being decoded.
    owner: Option<TypeId>,
    /// What the structs so far leave out.
    unsaid: clean::Unsaid,
}

type Outcome = Result<Option<Value>, String>;

impl<'t> Decoder<'t> {
    /// A value of a type; none for null.
    fn value(&mut self, ty: &'t FieldType, raw: Raw<'_>) -> Outcome {
        if matches!(raw, Raw::Null) {
            return Ok(None);
        }
        match ty {
            FieldType::Named(id) => self.named(*id, ty, raw),
            _ => self.unnamed(ty, ty, raw),
        }
    }

    fn named(&mut self, id: TypeId, ty: &'t FieldType, raw: Raw<'_>) -> Outcome {
        match &self.types.get(id).body {
            TypeBody::Struct { .. } => match raw {
                Raw::Object(entries) => self.object(id, entries).map(Some),
                other => Err(self.mismatch(other.go_word(), ty)),
            },
            TypeBody::Alias {
                of: FieldType::Named(inner),
                ..
            } => self.named(*inner, ty, raw),
            TypeBody::Alias { of, .. } => self.unnamed(of, ty, raw),
            TypeBody::Opaque(shape) => self.opaque(*shape, ty, raw),
        }
    }

    /// A scalar, list or map; `named` is the type by which errors call it.
    fn unnamed(&mut self, ty: &'t FieldType, named: &'t FieldType, raw: Raw<'_>) -> Outcome {
        let value = match (ty, raw) {
            (FieldType::Bool, Raw::Bool(b)) => Value::Bool(b),
            (FieldType::String, Raw::String(s)) => Value::String(s.into_owned()),
            (FieldType::Int32, Raw::Number(n)) => match n.parse::<i32>() {
                Ok(n) => Value::from(n),
                Err(_) => return Err(self.mismatch(&format!("number {n}"), named)),
            },
            (FieldType::Int64, Raw::Number(n)) => match n.parse::<i64>() {
                Ok(n) => Value::from(n),
                Err(_) => return Err(self.mismatch(&format!("number {n}"), named)),
            },
            (FieldType::Float64, Raw::Number(n)) => match float(&n) {
                Some(v) => v,
                None => return Err(self.mismatch(&format!("number {n}"), named)),
            },
            (FieldType::Bytes, Raw::String(s)) => Value::String(canonical_base64(&s)?),
            (FieldType::Quantity, raw) => quantity(&raw)?,
            (FieldType::IntOrString, raw) => int_or_string(raw)?,
            (FieldType::Time, raw) => Value::String(time::format(instant(&raw)?)),
            (FieldType::MicroTime, raw) => Value::String(time::format_micro(instant(&raw)?)),
            (FieldType::Duration, Raw::String(s)) => {
                let nanos = time::parse_duration(&s).map_err(|e| e.to_string())?;
                Value::String(time::format_duration(nanos))
            }
            (FieldType::Any | FieldType::RawExtension, raw) => {
                raw.into_value().map_err(|n| bare_mismatch(&n, "float64"))?
            }
            (FieldType::List(item), Raw::Array(items)) => self.list(item, items)?,
            (FieldType::Map(item), Raw::Object(entries)) => self.map(item, entries)?,
            (FieldType::Named(_), raw) => return self.value(ty, raw),
            (_, raw) => return Err(self.mismatch(raw.go_word(), named)),
        };
        Ok(Some(value))
    }

    fn list(&mut self, item: &'t FieldType, items: Vec<Raw<'_>>) -> Result<Value, String> {
        let mut out = Vec::with_capacity(items.len());
        for (i, raw) in items.into_iter().enumerate() {
            let len = self.path.len();
            let _ = write!(self.path, "[{i}]");
            let value = self.value(item, raw)?;
            self.path.truncate(len);
            out.push(value.unwrap_or_else(|| clean::zero_or_null(self.types, item)));
        }
        Ok(Value::Array(out))
    }

    fn map(
        &mut self,
        item: &'t FieldType,
        entries: Vec<(Cow<'_, str>, Raw<'_>)>,
    ) -> Result<Value, String> {
        let mut out = Map::new();
        for (key, raw) in entries {
            let len = self.enter(&key);
            if out.contains_key(&*key) {
                self.duplicate();
            }
            let value = self.value(item, raw)?;
            self.path.truncate(len);
            let value = value.unwrap_or_else(|| clean::zero_or_null(self.types, item));
            out.insert(key.into_owned(), value);
        }
        Ok(Value::Object(out))
    }

    fn object(
        &mut self,
        id: TypeId,
        entries: Vec<(Cow<'_, str>, Raw<'_>)>,
    ) -> Result<Value, String> {
        let types = self.types;
        let owner = self.owner.replace(id);
        let mut out = Map::new();
        let mut seen: Vec<&str> = Vec::with_capacity(entries.len());
        for (key, raw) in entries {
            let len = self.enter(&key);
            match types.field(id, &key) {
                None => self.unknown(),
                Some(field) => {
                    if seen.contains(&&*field.name) {
                        self.duplicate();
                    }
                    seen.push(&field.name);
                    self.fields.push(&field.name);
                    let value = self.value(&field.ty, raw)?;
                    self.fields.pop();
                    match value {
                        Some(value)
                            if clean::is_kept(types, field, &value) || self.resets_owners() =>
                        {
                            out.insert(field.name.to_string(), value);
                        }
                        _ => {
                            out.remove(&*field.name);
                        }
                    }
                }
            }
            self.path.truncate(len);
        }
        self.unsaid.count(types, id, &out);
        if self.unsaid.is_too_much() {
            return Err(clean::Unsaid::refusal());
        }
        clean::complete(types, id, &mut out);
        self.owner = owner;
        Ok(Value::Object(out))
    }

    fn opaque(&mut self, shape: Opaque, ty: &'t FieldType, raw: Raw<'_>) -> Outcome {
        let types = self.types;
        let schema = || types.id("apiextensions/v1.JSONSchemaProps");
        match (shape, raw) {
            (Opaque::Object, raw @ Raw::Object(_)) | (Opaque::Any, raw) => raw
                .into_value()
                .map(Some)
                .map_err(|n| bare_mismatch(&n, "float64")),
            (Opaque::SchemaOrBool, Raw::Bool(b)) => Ok(Some(Value::Bool(b))),
            (Opaque::SchemaOrArray, Raw::Array(items)) => {
                let mut out = Vec::with_capacity(items.len());
                for item in items {
                    match (schema(), item) {
                        (Some(id), Raw::Object(entries)) => out.push(self.object(id, entries)?),
                        (_, other) => return Err(self.mismatch(other.go_word(), ty)),
                    }
                }
                Ok(Some(Value::Array(out)))
            }
            (Opaque::SchemaOrStrings, raw @ Raw::Array(_)) => raw
                .into_value()
                .map(Some)
                .map_err(|n| bare_mismatch(&n, "string")),
            (
                Opaque::SchemaOrBool | Opaque::SchemaOrArray | Opaque::SchemaOrStrings,
                Raw::Object(entries),
            ) => match schema() {
                Some(id) => self.object(id, entries).map(Some),
                None => Ok(None),
            },
            (_, other) => Err(self.mismatch(other.go_word(), ty)),
        }
    }

    /// Whether this is `metadata.managedFields`, which means something else when it is empty than
    /// when it is not given: nobody owns anything any more. Metadata may be decoded by itself.
    fn resets_owners(&self) -> bool {
        matches!(&*self.path, "metadata.managedFields" | "managedFields")
    }

    /// Appends a key to the path and returns the length to cut back to.
    fn enter(&mut self, key: &str) -> usize {
        let len = self.path.len();
        if len > 0 {
            self.path.push('.');
        }
        self.path.push_str(key);
        len
    }

    fn unknown(&mut self) {
        self.strict("unknown");
    }

    fn duplicate(&mut self) {
        self.strict("duplicate");
    }

    fn strict(&mut self, what: &str) {
        if self.strict.len() >= MAX_STRICT {
            return;
        }
        let text = format!("{what} field {}", davit_api::field::quote(&self.path));
        if !self.strict.contains(&text) {
            self.strict.push(text);
        }
    }

    fn mismatch(&self, got: &str, ty: &FieldType) -> String {
        let want = self.go_type(ty);
        match self.owner {
            Some(owner) if !self.fields.is_empty() => format!(
                "json: cannot unmarshal {got} into Go struct field {}.{} of type {want}",
                self.types.get(owner).short_name(),
                self.fields.join(".")
            ),
            _ => format!("json: cannot unmarshal {got} into Go value of type {want}"),
        }
    }

    fn go_type(&self, ty: &FieldType) -> String {
        match ty {
            FieldType::Bool => "bool".to_owned(),
            FieldType::Int32 => "int32".to_owned(),
            FieldType::Int64 => "int64".to_owned(),
            FieldType::Float64 => "float64".to_owned(),
            FieldType::String => "string".to_owned(),
            FieldType::Bytes => "[]uint8".to_owned(),
            FieldType::Time => "v1.Time".to_owned(),
            FieldType::MicroTime => "v1.MicroTime".to_owned(),
            FieldType::Duration => "v1.Duration".to_owned(),
            FieldType::Quantity => "resource.Quantity".to_owned(),
            FieldType::IntOrString => "intstr.IntOrString".to_owned(),
            FieldType::RawExtension => "runtime.RawExtension".to_owned(),
            FieldType::Any => "interface {}".to_owned(),
            FieldType::List(item) => format!("[]{}", self.go_type(item)),
            FieldType::Map(item) => format!("map[string]{}", self.go_type(item)),
            FieldType::Named(id) => self.types.get(*id).go_name().to_owned(),
        }
    }
}

/// The mismatch as types with a decoder of their own report it, without a field.
fn bare_mismatch(got: &str, want: &str) -> String {
    let got = if got.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
        format!("number {got}")
    } else {
        got.to_owned()
    };
    format!("json: cannot unmarshal {got} into Go value of type {want}")
}

fn float(text: &str) -> Option<Value> {
    if let Ok(n) = text.parse::<i64>() {
        return Some(Value::from(n));
    }
    serde_json::Number::from_f64(text.parse().ok()?).map(Value::Number)
}

fn quantity(raw: &Raw<'_>) -> Result<Value, String> {
    let text = match raw {
        Raw::String(s) => s.trim(),
        Raw::Number(n) => n,
        // Anything else is text that is no quantity.
        _ => "x",
    };
    Quantity::canonicalize(text)
        .map(|q| Value::String(q.into_owned()))
        .map_err(|e| e.to_string())
}

fn int_or_string(raw: Raw<'_>) -> Result<Value, String> {
    match raw {
        Raw::String(s) => Ok(Value::String(s.into_owned())),
        Raw::Number(n) => n
            .parse::<i32>()
            .map(Value::from)
            .map_err(|_| bare_mismatch(&n, "int32")),
        other => Err(bare_mismatch(other.go_word(), "int32")),
    }
}

fn instant(raw: &Raw<'_>) -> Result<jiff::Timestamp, String> {
    match raw {
        Raw::String(s) => time::parse(s).map_err(|e| e.to_string()),
        other => Err(bare_mismatch(other.go_word(), "string")),
    }
}

/// Standard base64 with padding; line breaks are skipped, as Go skips them.
fn canonical_base64(text: &str) -> Result<String, String> {
    let compact: Cow<'_, str> = if text.contains(['\n', '\r']) {
        Cow::Owned(text.replace(['\n', '\r'], ""))
    } else {
        Cow::Borrowed(text)
    };
    match STANDARD.decode(compact.as_bytes()) {
        Ok(bytes) => Ok(STANDARD.encode(bytes)),
        Err(e) => {
            let at = match e {
                base64::DecodeError::InvalidByte(at, _)
                | base64::DecodeError::InvalidLastSymbol(at, _) => at,
                base64::DecodeError::InvalidLength(_) | base64::DecodeError::InvalidPadding => {
                    compact.len() / 4 * 4
                }
            };
            Err(format!("illegal base64 data at input byte {at}"))
        }
    }
}

#[cfg(test)]
mod tests;
