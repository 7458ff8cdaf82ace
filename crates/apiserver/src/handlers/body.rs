//! Request bodies: read within the limit, decoded by the kind's schema, checked against the URL.

use bytes::Bytes;
use davit_api::field::{FieldError, Path};
use davit_api::kinds::{TypeId, TypeTable};
use davit_api::status::{Qualified, Status};
use davit_registry::codec::Shape;
use davit_registry::{ResourceInfo, convert};
use davit_schema::decode::{self, Encoding};
use davit_schema::protobuf::{self, ProtobufError};
use davit_schema::structural::Structural;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::Value;

use super::options::Validation;
use crate::body::{ReadError, RequestBody, read_limited};
use crate::context::Context;
use crate::negotiate::PROTOBUF;

/// The largest request body.
pub(crate) const MAX_BODY: usize = 3 * 1024 * 1024;
const ACCEPTED: [&str; 3] = ["application/json", "application/yaml", PROTOBUF];
const CUSTOM_ACCEPTED: [&str; 2] = ["application/json", "application/yaml"];

/// How much of a body without a kind is shown.
const SHOWN: usize = 1024;

/// How a body is serialized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Text(Encoding),
    Protobuf,
}

/// Reads a body of at most 3 MiB.
pub(crate) async fn read_body(body: RequestBody) -> Result<Bytes, Status> {
    read_limited(body, MAX_BODY)
        .await
        .map_err(|error| match error {
            ReadError::TooLarge => Status::request_entity_too_large(MAX_BODY),
            ReadError::Transport(error) => {
                Status::bad_request(format!("error reading the request body: {error}"))
            }
        })
}

/// The serialization of the body.
pub(crate) fn format(headers: &HeaderMap) -> Result<Format, Status> {
    let Some(value) = headers.get(CONTENT_TYPE) else {
        return Ok(Format::Text(Encoding::Json));
    };
    let value = value.to_str().unwrap_or_default();
    let media = value
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    match media.as_str() {
        "" | "application/json" => Ok(Format::Text(Encoding::Json)),
        "application/yaml" => Ok(Format::Text(Encoding::Yaml)),
        PROTOBUF => Ok(Format::Protobuf),
        _ => Err(Status::unsupported_media_type(&ACCEPTED)),
    }
}

/// What a body is expected to be.
pub(crate) struct Expected<'a> {
    pub(crate) types: &'a TypeTable,
    pub(crate) type_id: TypeId,
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) kind: &'a str,
    /// The schema of a custom kind, which has no types.
    pub(crate) custom: Option<&'a Structural>,
}

impl<'a> Expected<'a> {
    /// The resource's own kind.
    pub(crate) fn of(resource: &'a ResourceInfo) -> Self {
        Self {
            types: &resource.types,
            type_id: resource.type_id(),
            group: resource.row.group,
            version: resource.row.version,
            kind: resource.row.kind,
            custom: resource.custom.as_ref().map(|custom| custom.schema()),
        }
    }

    /// What objects of the kind look like.
    pub(crate) fn shape(&self) -> Shape<'a> {
        match self.custom {
            Some(schema) => Shape::Custom(schema),
            None => Shape::Typed(self.types, self.type_id),
        }
    }

    /// A kind of the built-in table.
    pub(crate) fn built_in(
        group: &'a str,
        version: &'a str,
        kind: &'a str,
    ) -> Result<Self, Status> {
        let table = davit_api::kinds::builtin();
        let type_id = table
            .kind_type(group, version, kind)
            .ok_or_else(|| Status::internal(format!("{group}/{version} {kind} has no type")))?;
        Ok(Self {
            types: &table.types,
            type_id,
            group,
            version,
            kind,
            custom: None,
        })
    }

    /// The refusal of an object of a custom kind that says it is another.
    pub(crate) fn wrong_type(&self, kind: &str, api_version: &str, name: &str) -> Status {
        let mut faults = Vec::new();
        for (key, given, wanted) in [
            ("kind", kind, self.kind),
            ("apiVersion", api_version, &self.api_version()),
        ] {
            if given != wanted {
                let why = format!("must be {wanted}");
                faults.push(FieldError::invalid(&Path::new(key), given, why));
            }
        }
        Status::invalid(Qualified::new(self.group, kind), name, &faults)
    }

    /// Whether a body says that it is of another version of the group.
    pub(crate) fn has_version(&self, bytes: &[u8], format: Format, version: &str) -> bool {
        let given = TypeMeta::read(bytes, format).and_then(|meta| meta.api_version);
        let given = given.as_deref().and_then(|given| given.split_once('/'));
        given == Some((self.group, version))
    }

    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

/// Decodes a body as the expected kind, with static defaults, apiVersion and kind set. Unknown and
/// duplicate fields become warnings or an error.
pub(crate) fn decode(
    context: &Context,
    bytes: &[u8],
    format: Format,
    expected: &Expected<'_>,
    validation: Validation,
) -> Result<Value, Status> {
    if let Some(meta) = TypeMeta::read(bytes, format) {
        meta.check(expected, bytes)?;
    }
    let decoded = match format {
        Format::Text(encoding) => expected.shape().decode(bytes, encoding),
        Format::Protobuf if expected.custom.is_some() => {
            return Err(Status::unsupported_media_type(&CUSTOM_ACCEPTED));
        }
        Format::Protobuf => {
            let message = protobuf::envelope(bytes)
                .and_then(|e| protobuf::decode(expected.types, expected.type_id, e.raw));
            let message = message.map_err(|error| match error {
                ProtobufError::TooMany => Status::too_large(&error.to_string()),
                error => cannot_be_handled(expected, &error),
            })?;
            decode::decode_value(expected.types, expected.type_id, message)
        }
    };
    let decoded = decoded.map_err(|error| error.status(expected.kind, expected.version, bytes))?;
    // a protobuf message has no names that could be unknown
    judge_strictness(context, expected, validation, &decoded.strict)?;
    let mut value = decoded.object;
    davit_registry::object::set_type(&mut value, &expected.api_version(), expected.kind);
    davit_audit::request_object(&value);
    expected.shape().default(&mut value);
    Ok(value)
}

/// Applies fieldValidation to what strict decoding found.
pub(crate) fn judge_strictness(
    context: &Context,
    expected: &Expected<'_>,
    validation: Validation,
    strict: &[String],
) -> Result<(), Status> {
    match validation {
        Validation::Ignore => Ok(()),
        Validation::Warn => {
            for fault in strict {
                context.warnings.add(decode::bare_fault(fault).to_owned());
            }
            Ok(())
        }
        Validation::Strict if strict.is_empty() => Ok(()),
        Validation::Strict => {
            let faults = strict.join(", ");
            Err(cannot_be_handled(
                expected,
                &format_args!("strict decoding error: {faults}"),
            ))
        }
    }
}

fn cannot_be_handled(expected: &Expected<'_>, why: &dyn std::fmt::Display) -> Status {
    Status::bad_request(decode::cannot_be_handled(
        expected.kind,
        expected.version,
        why,
    ))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TypeMeta {
    api_version: Option<String>,
    kind: Option<String>,
    metadata: Option<Name>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Name {
    name: Option<String>,
}

impl TypeMeta {
    /// apiVersion and kind of a body; none when it is malformed, which decoding reports.
    fn read(bytes: &[u8], format: Format) -> Option<Self> {
        match format {
            Format::Text(Encoding::Json) => serde_json::from_slice(bytes).ok(),
            Format::Text(encoding) => {
                let value = decode::parse(bytes, encoding).ok()?;
                serde_json::from_value(value).ok()
            }
            Format::Protobuf => {
                let envelope = protobuf::envelope(bytes).ok()?;
                let (api_version, kind) = (Some(envelope.api_version), Some(envelope.kind));
                Some(Self {
                    api_version,
                    kind,
                    metadata: None,
                })
            }
        }
    }

    fn check(&self, expected: &Expected<'_>, bytes: &[u8]) -> Result<(), Status> {
        let wanted = expected.api_version();
        let version = self.api_version.as_deref().unwrap_or_default();
        let kind = self.kind.as_deref().unwrap_or_default();
        // Built-in kinds are what the path says when they do not say it.
        let is_custom = expected.custom.is_some();
        if kind.is_empty() && is_custom {
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]);
            let why = format!("Object 'Kind' is missing in '{shown}'");
            return Err(decode::unrecognized(expected.kind, &why, bytes));
        }
        if version != wanted && (is_custom || !version.is_empty()) {
            return Err(Status::bad_request(format!(
                "the API version in the data ({version}) does not match the expected API version ({wanted})"
            )));
        }
        if kind == expected.kind || kind.is_empty() {
            return Ok(());
        }
        if is_custom {
            let name = self.metadata.as_ref().and_then(|meta| meta.name.as_deref());
            return Err(expected.wrong_type(kind, version, name.unwrap_or_default()));
        }
        let why = format!(
            "no kind {} is registered for version {}",
            davit_api::field::quote(kind),
            davit_api::field::quote(&wanted)
        );
        let version = expected.version;
        let text = decode::cannot_be_handled(expected.kind, version, &why);
        // the sentence begins with the kind that was sent
        Err(Status::bad_request(text.replacen(expected.kind, kind, 1)))
    }
}

/// The apiVersion a body names; `v1` when it names none.
pub(crate) fn api_version_of(bytes: &[u8], format: Format) -> String {
    TypeMeta::read(bytes, format)
        .and_then(|meta| meta.api_version)
        .filter(|version| !version.is_empty())
        .unwrap_or_else(|| "v1".to_owned())
}

/// Reads and decodes an object of the resource and brings it into the storage version.
pub(crate) async fn read_object(
    context: &Context,
    resource: &ResourceInfo,
    body: RequestBody,
    validation: Validation,
) -> Result<Value, Status> {
    let format = format(&context.headers)?;
    let bytes = read_body(body).await?;
    let value = decode(context, &bytes, format, &Expected::of(resource), validation)?;
    convert::stored_form(resource, value)
}
