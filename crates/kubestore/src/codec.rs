//! davit's values and kube-apiserver's.

use std::str::FromStr;

use bytes::Bytes;
use davit_api::kinds::{KindTable, ResourceRow, TypeId, builtin, split_api_version};
use davit_api::meta;
use davit_schema::convert::convert;
use davit_schema::decode::{self, Encoding};
use davit_schema::ordered::Ordered;
use davit_schema::{defaults, protobuf};
use davit_strategy::strategy;
use serde_json::Value;

use crate::keys::{Form, form};

/// Kinds that kube-apiserver 1.36 stores in an older version than davit does, so that 1.35 can read them
/// (`pkg/kubeapiserver/default_storage_factory_builder.go`).
const OLDER: &[(&str, &str, &str)] = &[
    (
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicy",
        "v1beta1",
    ),
    (
        "admissionregistration.k8s.io",
        "MutatingAdmissionPolicyBinding",
        "v1beta1",
    ),
    ("resource.k8s.io", "DeviceTaintRule", "v1alpha3"),
];

/// The default of `--storage-media-type`.
pub const PROTOBUF: &str = protobuf::MEDIA_TYPE;

/// Fields whose defaults only a feature gate gives that is off: what does not say them does not get them by being read.
const GATED: &[(&str, [&str; 3], &str)] = &[(
    "StatefulSet",
    ["spec", "updateStrategy", "rollingUpdate"],
    "maxUnavailable",
)];

/// In what kube-apiserver stores definitions of custom kinds, of which no version but v1 is served. It reads v1 as well, which is
/// what is written here.
const DEFINITIONS: &str = "apiextensions.k8s.io/v1beta1";

/// In which form built-in kinds are written (`--storage-media-type`). All forms are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MediaType {
    /// `application/vnd.kubernetes.protobuf`
    #[default]
    Protobuf,
    /// `application/json`
    Json,
}

/// A media type in which nothing is stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither application/vnd.kubernetes.protobuf nor application/json")]
pub struct MediaTypeError(String);

impl FromStr for MediaType {
    type Err = MediaTypeError;

    fn from_str(text: &str) -> Result<Self, MediaTypeError> {
        match text {
            protobuf::MEDIA_TYPE => Ok(Self::Protobuf),
            "application/json" => Ok(Self::Json),
            _ => Err(MediaTypeError(text.to_owned())),
        }
    }
}

/// Why a value cannot be translated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// It is neither protobuf nor JSON.
    #[error("it begins neither as protobuf nor as JSON")]
    Form,
    /// It is encrypted.
    #[error("it is encrypted, and no encryption configuration reads it")]
    Encrypted,
    /// It is not well formed, or does not fit its kind.
    #[error("{0}")]
    Malformed(String),
    /// It is of another kind than its key says.
    #[error("it is a {found}, its key is that of a {wanted}")]
    Kind {
        /// The kind of the key.
        wanted: &'static str,
        /// The kind of the value.
        found: String,
    },
    /// No version of the kind that is known here.
    #[error("version {0:?} of its kind is not known")]
    Version(String),
}

/// A detail of a library's error.
fn malformed(error: impl std::fmt::Display) -> CodecError {
    CodecError::Malformed(error.to_string())
}

/// Translates values.
#[derive(Debug, Clone, Copy, Default)]
pub struct Codec {
    media: MediaType,
}

impl Codec {
    /// Writes built-in kinds in this form.
    #[must_use]
    pub fn new(media: MediaType) -> Self {
        Self { media }
    }

    /// What kube-apiserver would have written for davit's value under davit's key.
    ///
    /// # Errors
    /// The value is none of davit's.
    pub fn encode(&self, key: &str, value: &Bytes) -> Result<Bytes, CodecError> {
        match form(key) {
            Form::Own => Ok(value.clone()),
            Form::Custom => Ok(line(value)),
            Form::BuiltIn(row) => self.written(&in_kubernetes_version(row, parsed(value)?)),
            Form::BuiltInJson(row) => Ok(json(&in_kubernetes_version(row, parsed(value)?))),
            Form::Shared => self.written(&parsed(value)?),
        }
    }

    fn written(self, object: &Value) -> Result<Bytes, CodecError> {
        match self.media {
            MediaType::Json => Ok(json(object)),
            MediaType::Protobuf => {
                let written = protobuf::encode_object(builtin(), object);
                Ok(written.map_err(malformed)?.into())
            }
        }
    }

    /// davit's value for one that kube-apiserver, or davit, has written: of any version and in any form.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn decode(&self, key: &str, stored: &Bytes) -> Result<Bytes, CodecError> {
        match form(key) {
            Form::Own => Ok(stored.clone()),
            Form::Custom => match stored.first() {
                Some(b'{') => Ok(stored.slice(..stored.trim_ascii_end().len())),
                _ => Err(unknown(stored)),
            },
            Form::BuiltIn(row) | Form::BuiltInJson(row) => {
                let object = in_own_version(row, read(stored)?)?;
                Ok(text(&object))
            }
            Form::Shared => {
                let object = read(stored)?;
                let root = root_of(builtin(), &object)?;
                Ok(text(&canonical(root, object)?))
            }
        }
    }

    /// Whether a value that is stored under davit's key would be written otherwise today: in another form or version.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn is_stale(&self, key: &str, stored: &Bytes) -> Result<bool, CodecError> {
        let row = match form(key) {
            Form::Own | Form::Custom | Form::Shared => return Ok(false),
            Form::BuiltIn(row) if self.media == MediaType::Protobuf => {
                if !stored.starts_with(&protobuf::MAGIC) {
                    return Ok(true);
                }
                row
            }
            // Definitions are stored in either version.
            Form::BuiltInJson(_) => return Ok(stored.starts_with(&protobuf::MAGIC)),
            Form::BuiltIn(row) => {
                if stored.starts_with(&protobuf::MAGIC) {
                    return Ok(true);
                }
                row
            }
        };
        let object = read(stored)?;
        let (_, version) = split_api_version(meta::api_version(&object));
        Ok(version != kubernetes_version(row))
    }
}

/// The version in which kube-apiserver stores a kind.
fn kubernetes_version(row: &ResourceRow) -> &'static str {
    let mut older = OLDER
        .iter()
        .filter(|(group, kind, _)| (*group, *kind) == (row.group, row.kind));
    older.next().map_or(row.version, |(_, _, version)| version)
}

fn in_kubernetes_version(row: &ResourceRow, mut object: Value) -> Value {
    let version = kubernetes_version(row);
    if version != row.version {
        let to = davit_api::kinds::api_version(row.group, version);
        convert(row.kind, &mut object, &row.api_version(), &to);
    }
    object
}

/// A stored object of a built-in kind in davit's storage version, with the defaults of fields that it is too old for.
fn in_own_version(row: &'static ResourceRow, mut object: Value) -> Result<Value, CodecError> {
    if meta::kind(&object) != row.kind {
        return Err(CodecError::Kind {
            wanted: row.kind,
            found: meta::kind(&object).to_owned(),
        });
    }
    let (from, to) = (meta::api_version(&object).to_owned(), row.api_version());
    if from != to {
        if from != DEFINITIONS {
            // In canonical form first: conversion reads what it knows.
            object = canonical(root_of(builtin(), &object)?, object)?;
        }
        convert(row.kind, &mut object, &from, &to);
    }
    let mut object = canonical(row.type_id, object)?;
    let mut gated = GATED.iter().filter(|(kind, ..)| *kind == row.kind);
    let unset = gated.find(|(_, path, field)| {
        place(&mut object, path).is_none_or(|at| !at.contains_key(*field))
    });
    defaults::apply(&builtin().types, row.type_id, &mut object);
    strategy(row.group, row.version, row.kind).default(&mut object);
    if let Some((_, path, field)) = unset
        && let Some(at) = place(&mut object, path)
    {
        at.remove(*field);
    }
    Ok(object)
}

/// The object at a path.
fn place<'a>(
    object: &'a mut Value,
    path: &[&str],
) -> Option<&'a mut serde_json::Map<String, Value>> {
    let found = path.iter().try_fold(object, |at, key| at.get_mut(*key));
    found?.as_object_mut()
}

fn canonical(root: TypeId, object: Value) -> Result<Value, CodecError> {
    let decoded = decode::decode_value(&builtin().types, root, object);
    Ok(decoded.map_err(malformed)?.object)
}

fn root_of(kinds: &KindTable, object: &Value) -> Result<TypeId, CodecError> {
    let api_version = meta::api_version(object);
    let (group, version) = split_api_version(api_version);
    let root = kinds.kind_type(group, version, meta::kind(object));
    root.ok_or_else(|| CodecError::Version(api_version.to_owned()))
}

fn unknown(stored: &[u8]) -> CodecError {
    if stored.starts_with(b"k8s:enc:") {
        CodecError::Encrypted
    } else {
        CodecError::Form
    }
}

/// The object of a stored value of a built-in kind.
fn read(stored: &[u8]) -> Result<Value, CodecError> {
    if stored.starts_with(&protobuf::MAGIC) {
        let object = protobuf::decode_object(builtin(), stored, None);
        return Ok(object.map_err(malformed)?.value);
    }
    if stored.first() != Some(&b'{') {
        return Err(unknown(stored));
    }
    decode::parse(stored, Encoding::Json).map_err(malformed)
}

/// davit's own value, which is JSON.
fn parsed(value: &[u8]) -> Result<Value, CodecError> {
    serde_json::from_slice(value).map_err(malformed)
}

fn text(object: &Value) -> Bytes {
    let text = Ordered::new(builtin(), object).to_json();
    Bytes::from(text.into_boxed_str().into_boxed_bytes())
}

/// JSON as kube-apiserver stores it.
fn json(object: &Value) -> Bytes {
    let mut text = Ordered::new(builtin(), object).to_json();
    text.push('\n');
    text.into()
}

/// The original ends what it writes with a line feed.
fn line(value: &Bytes) -> Bytes {
    let mut line = Vec::with_capacity(value.len() + 1);
    line.extend_from_slice(value);
    line.push(b'\n');
    line.into()
}
