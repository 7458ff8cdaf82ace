//! Patching objects.

use davit_api::status::Status;
use davit_schema::decode;
use davit_schema::patch::PatchType;
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use serde_json::Value;

use super::body::{Expected, judge_strictness, stored_form};
use super::options::{Validation, WriteOptions};
use super::update::check_name;
use super::{namespace_of, read_body};
use crate::body::RequestBody;
use crate::codec::{self, Patch};
use crate::context::{Context, HandlerResult};
use crate::convert;
use crate::negotiate::Offer;
use crate::registry::ResourceInfo;
use crate::server::ApiServer;
use crate::writes::Writer;
use crate::{object, respond};

const APPLY: &str = "application/apply-patch+yaml";
const ACCEPTED: [&str; 3] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

/// `PATCH` of an object, or of a subresource that has the object's form.
pub(crate) async fn patch(
    server: &ApiServer,
    context: &Context,
    resource: &ResourceInfo,
    request: Request<RequestBody>,
) -> HandlerResult {
    let accepted = respond::accepted(context, Offer::Objects)?;
    let kind = kind(context)?;
    let options = WriteOptions::parse(context, "PatchOptions", false)?;
    let bytes = read_body(request.into_body()).await?;
    let name = context.info.name.as_str();
    let writer = Writer {
        server,
        resource,
        namespace: namespace_of(context, resource),
        user: &context.user,
        warnings: &context.warnings,
        dry_run: options.dry_run,
    };
    let patch = Patch::parse(kind, &bytes).map_err(|error| error.status())?;
    let mut transform =
        |current: &Value| patched(context, resource, options.validation, &patch, current);
    let updated = writer
        .update(name, &context.info.subresource, &mut transform)
        .await?;
    respond::object(context, accepted, resource, StatusCode::OK, updated.value)
}

/// The kind of patch of a request.
pub(crate) fn kind(context: &Context) -> Result<PatchType, Status> {
    let value = context
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let media = value
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    match media.to_ascii_lowercase().as_str() {
        "application/json-patch+json" => Ok(PatchType::Json),
        "application/merge-patch+json" => Ok(PatchType::Merge),
        "application/strategic-merge-patch+json" => Ok(PatchType::StrategicMerge),
        APPLY => {
            WriteOptions::parse(context, "PatchOptions", true)?;
            let mut status = Status::unsupported_media_type(&ACCEPTED);
            status.message = format!(
                "server-side apply ({APPLY}) is not built into this version; {}",
                status.message
            );
            Err(status)
        }
        _ => Err(Status::unsupported_media_type(&ACCEPTED)),
    }
}

/// Applies a patch to the current object (storage version) and decodes the result as a body.
pub(crate) fn patched(
    context: &Context,
    resource: &ResourceInfo,
    validation: Validation,
    patch: &Patch,
    current: &Value,
) -> Result<Value, Status> {
    let name = context.info.name.as_str();
    let expected = Expected::of(resource);
    let versioned = convert::from_storage(resource, current.clone())?;
    let result = patch
        .apply(expected.types, expected.type_id, versioned)
        .map_err(|error| error.status())?;
    let decoded = decode::decode_value(expected.types, expected.type_id, result)
        .map_err(|error| error.status(expected.kind, expected.version, b""))?;
    judge_strictness(context, &expected, validation, &decoded.strict)?;
    let mut value = decoded.object;
    check_name(name, &mut value)?;
    let kind = (value["apiVersion"].as_str(), value["kind"].as_str());
    let api_version = expected.api_version();
    if kind.0.is_some_and(|v| v != api_version) || kind.1.is_some_and(|k| k != expected.kind) {
        return Err(Status::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({api_version})",
            kind.0.unwrap_or_default()
        )));
    }
    object::set_type(&mut value, &api_version, expected.kind);
    codec::default(expected.types, expected.type_id, &mut value);
    stored_form(resource, value)
}
