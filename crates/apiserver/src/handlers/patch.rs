//! Patching objects.

use davit_access::{RequestInfo, authz};
use davit_api::field::{FieldError, Path};
use davit_api::status::{Qualified, Reason, Status};
use davit_registry::codec::Patch;
use davit_registry::storage::Stored;
use davit_registry::{ResourceInfo, convert, object};
use davit_schema::decode::{self, DecodeError, Encoding};
use davit_schema::patch::{PatchType, json_patch_faults};
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use serde_json::Value;

use super::body::{Expected, judge_strictness};
use super::create::check_namespace;
use super::options::{Validation, WriteOptions};
use super::update::{check_name, undeterminable};
use super::{namespace_of, read_body};
use crate::body::RequestBody;
use crate::context::{Context, HandlerResult};
use crate::negotiate::Offer;
use crate::ownership::{Owners, Tracking};
use crate::server::ApiServer;
use crate::writes::Writer;
use crate::{ownership, respond};

const APPLY: &str = "application/apply-patch+yaml";
/// Custom kinds have no merge strategies.
const CUSTOM_ACCEPTED: [&str; 3] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    APPLY,
];
/// How often an apply that finds nothing, and something when it creates, starts again.
const APPLY_ATTEMPTS: u32 = 5;

/// What a PATCH asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatchKind {
    /// A change to the current object.
    Patch(PatchType),
    /// Server-side apply of a configuration.
    Apply,
}

/// `PATCH` of an object, or of a subresource that has the object's form.
pub(crate) async fn patch(
    server: &ApiServer,
    context: &Context,
    resource: &ResourceInfo,
    request: Request<RequestBody>,
) -> HandlerResult {
    let accepted = respond::accepted_for(context, resource, Offer::Objects)?;
    let kind = kind(context)?;
    let options = WriteOptions::parse(context, "PatchOptions", kind == PatchKind::Apply)?;
    let bytes = read_body(request.into_body()).await?;
    let name = context.info.name.as_str();
    let mut writer = Writer::of(
        context,
        server,
        resource,
        namespace_of(context, resource),
        Tracking::Update(ownership::manager(context)),
    )
    .dry_run(options.dry_run);
    let (code, stored) = match kind {
        PatchKind::Patch(kind) => {
            let subresource = &context.info.subresource;
            let patch = match parse(context, options.validation, kind, &bytes) {
                Ok(patch) => patch,
                Err(status) => {
                    // of an object that is not there nothing else is said
                    let mut refuse = |_: &Value| Err(status.clone());
                    writer.update(name, subresource, &mut refuse).await?;
                    return Err(status);
                }
            };
            if let Ok(sent) = decode::parse(&bytes, Encoding::Json) {
                davit_audit::request_object(&sent);
            }
            let mut transform =
                |current: &Value| patched(context, resource, options.validation, &patch, current);
            let updated = writer.update(name, subresource, &mut transform).await?;
            (StatusCode::OK, updated)
        }
        PatchKind::Apply => {
            writer.tracking = Tracking::Applied;
            let configuration = configuration(context, &bytes, options.validation)?;
            davit_audit::request_object(&configuration);
            apply(context, &writer, &options, &configuration).await?
        }
    };
    respond::stored(context, accepted, resource, code, stored)
}

/// Reads a patch that is no apply, and judges what strict decoding finds in it: keys that it says twice, and members that
/// no operation has.
fn parse(
    context: &Context,
    validation: Validation,
    kind: PatchType,
    bytes: &[u8],
) -> Result<Patch, Status> {
    let patch = Patch::parse(kind, bytes).map_err(|error| error.status())?;
    let faults = match kind {
        _ if validation == Validation::Ignore => Vec::new(),
        PatchType::Json => json_patch_faults(bytes),
        PatchType::Merge | PatchType::StrategicMerge => decode::repeated_fields(bytes),
    };
    if validation == Validation::Strict && !faults.is_empty() {
        let why = format!("strict decoding error: {}", faults.join(", "));
        return Err(InvalidPatch::of(&patch).status(&why));
    }
    faults
        .into_iter()
        .for_each(|what| context.warnings.add(what));
    Ok(patch)
}

/// The kind of patch of a request.
pub(crate) fn kind(context: &Context) -> Result<PatchKind, Status> {
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
        "application/json-patch+json" => Ok(PatchKind::Patch(PatchType::Json)),
        "application/merge-patch+json" => Ok(PatchKind::Patch(PatchType::Merge)),
        "application/strategic-merge-patch+json" => Ok(PatchKind::Patch(PatchType::StrategicMerge)),
        APPLY => Ok(PatchKind::Apply),
        _ => Err(Status::no_such_media_type()),
    }
}

/// The body of an apply as it was written: what it does not say stays unsaid.
pub(crate) fn configuration(
    context: &Context,
    bytes: &[u8],
    validation: Validation,
) -> Result<Value, Status> {
    let malformed = |error: &dyn std::fmt::Display| {
        Status::bad_request(format!("error decoding YAML: {error}"))
    };
    let (parsed, repeated) = decode::parse_yaml(bytes).map_err(|error| match &error {
        DecodeError::TooLarge(why) => Status::too_large(why),
        _ => malformed(&error),
    })?;
    if !parsed.is_object() {
        return Err(malformed(&"the configuration is not an object"));
    }
    // Fields nobody knows are refused by the apply itself.
    if let Some(fault) = repeated {
        let strict =
            || format!("error strict decoding YAML: error converting YAML to JSON: {fault}");
        match validation {
            Validation::Ignore => {}
            Validation::Strict => return Err(Status::bad_request(strict())),
            Validation::Warn => context.warnings.add(decode::bare_fault(&fault).to_owned()),
        }
    }
    Ok(parsed)
}

/// Applies a configuration to the object, which is made when there is none.
async fn apply(
    context: &Context,
    writer: &Writer<'_>,
    options: &WriteOptions,
    configuration: &Value,
) -> Result<(StatusCode, Stored), Status> {
    let (resource, info) = (writer.resource, &context.info);
    let snapshot = writer.server.registry().snapshot();
    let owners = Owners::new(resource, &snapshot, &info.subresource);
    let manager = ownership::manager(context);
    let merged = |live: Option<&Value>| {
        let result = owners.apply(live, configuration, &manager, options.force)?;
        received(context, resource, options.validation, result, None)
    };
    let mut transform = |current: &Value| {
        let live = convert::from_storage(resource, current.clone())?;
        merged(Some(&live))
    };
    let mut attempt = 0;
    loop {
        attempt += 1;
        let status = match writer
            .update(&info.name, &info.subresource, &mut transform)
            .await
        {
            Ok(updated) => return Ok((StatusCode::OK, updated)),
            Err(status) => status,
        };
        let missing = status.reason == Reason::NotFound
            && info.subresource.is_empty()
            && status
                .details
                .as_ref()
                .is_some_and(|details| details.kind == resource.row.plural);
        if !missing {
            return Err(status);
        }
        let request = RequestInfo {
            verb: "create".to_owned(),
            ..info.clone()
        };
        authz::check(&writer.server.authorizer(), &context.user, &request).await?;
        if object::name(configuration).is_empty() {
            return Err(undeterminable(&info.name));
        }
        let mut new = merged(None)?;
        // what is not there has no version to differ from
        object::remove_meta(&mut new, &["resourceVersion"]);
        let uid = object::uid(configuration);
        if !uid.is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(Status::conflict(resource.qualified(), &info.name, why));
        }
        check_namespace(
            resource.row.namespaced,
            writer.namespace,
            object::namespace(&new),
        )?;
        match writer.create(new).await {
            Ok(mut stored) => {
                if options.dry_run {
                    object::remove_meta(&mut stored.value, &["resourceVersion"]);
                }
                return Ok((StatusCode::CREATED, stored));
            }
            Err(status) if status.reason == Reason::AlreadyExists && attempt < APPLY_ATTEMPTS => {}
            Err(status) => return Err(status),
        }
    }
}

/// Refuses what custom kinds do not take.
pub(crate) fn check_custom(context: &Context) -> Result<(), Status> {
    match kind(context) {
        Ok(PatchKind::Apply | PatchKind::Patch(PatchType::Json | PatchType::Merge)) => Ok(()),
        Ok(PatchKind::Patch(PatchType::StrategicMerge)) | Err(_) => {
            Err(Status::unsupported_media_type(&CUSTOM_ACCEPTED))
        }
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
    let expected = Expected::of(resource);
    let versioned = convert::from_storage(resource, current.clone())?;
    let shape = expected.shape();
    let result = shape
        .patch(patch, versioned)
        .map_err(|error| error.status())?;
    received(context, resource, validation, result, Some(patch))
}

/// Decodes the result of a patch, or of an apply, as a body would be, and brings it into the storage version.
fn received(
    context: &Context,
    resource: &ResourceInfo,
    validation: Validation,
    result: Value,
    patch: Option<&Patch>,
) -> Result<Value, Status> {
    let name = context.info.name.as_str();
    let expected = Expected::of(resource);
    let shape = expected.shape();
    let invalid = patch.map(InvalidPatch::of);
    let decoded = shape
        .decode_value(result)
        .map_err(|error| match (&error, &invalid) {
            (DecodeError::Value(_) | DecodeError::Syntax(_), Some(invalid)) => {
                invalid.status(&error)
            }
            _ => error.status(expected.kind, expected.version, b""),
        })?;
    match &invalid {
        Some(invalid) if validation == Validation::Strict && !decoded.strict.is_empty() => {
            let faults = decoded.strict.join(", ");
            let why = format!("strict decoding error: {faults}");
            return Err(invalid.status(&why));
        }
        _ => judge_strictness(context, &expected, validation, &decoded.strict)?,
    }
    let mut value = decoded.object;
    check_namespace(
        resource.row.namespaced,
        context.namespace(),
        object::namespace(&value),
    )?;
    if object::name(&value).is_empty() {
        return Err(undeterminable(name));
    }
    check_name(name, &mut value)?;
    // a strategic merge patch is merged into an object that has no kind
    let keeps_kind = matches!(patch, Some(Patch::Strategic(_)));
    match &invalid {
        _ if keeps_kind => {}
        Some(invalid) => check_type(&expected, &value, |why| invalid.status(&why))?,
        None => check_type(&expected, &value, Status::bad_request)?,
    }
    object::set_type(&mut value, &expected.api_version(), expected.kind);
    if patch.is_some() {
        shape.default(&mut value);
    } else {
        shape.default_applied(&mut value);
    }
    convert::stored_form(resource, value)
}

/// The result of a patch is still of the kind.
fn check_type(
    expected: &Expected<'_>,
    value: &Value,
    refuse: impl Fn(String) -> Status,
) -> Result<(), Status> {
    let api_version = expected.api_version();
    let given = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let (version, kind) = (given("apiVersion"), given("kind"));
    let other_version = !version.is_empty() && version != api_version;
    let other_kind = !kind.is_empty() && kind != expected.kind;
    if expected.custom.is_some() && (other_kind || other_version) {
        let kind = if other_kind { &kind } else { expected.kind };
        let version = if other_version {
            &version
        } else {
            &api_version
        };
        return Err(expected.wrong_type(kind, version, object::name(value)));
    }
    if other_kind || other_version {
        return Err(refuse(format!(
            "the API version in the data ({version}) does not match the expected API version ({api_version})"
        )));
    }
    Ok(())
}

/// What is shown of a patch whose result is no object of the kind: itself, where it shows what it changes. The result, which
/// others show, holds what whoever may only write may not read.
struct InvalidPatch(Option<String>);

impl InvalidPatch {
    fn of(patch: &Patch) -> Self {
        Self(match patch {
            Patch::Strategic(patch) | Patch::Merge(patch) => Some(patch.to_string()),
            Patch::Json(_) => None,
        })
    }

    fn status(&self, why: &dyn std::fmt::Display) -> Status {
        let path = Path::new("patch");
        let fault = match &self.0 {
            Some(patch) => FieldError::invalid(&path, patch.as_str(), why.to_string()),
            None => FieldError::invalid_unshown(&path, why.to_string()),
        };
        Status::invalid(Qualified::new("", ""), "", &[fault])
    }
}
