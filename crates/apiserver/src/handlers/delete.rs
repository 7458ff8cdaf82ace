//! Deleting objects, one or many.

use bytes::Bytes;
use davit_api::features::{Features, UNSAFE_DELETION};
use davit_api::status::{Reason, Status};
use davit_registry::{ResourceInfo, convert};
use http::{Request, StatusCode};
use serde_json::{Value, json};

use super::body::{Expected, api_version_of, decode, format};
use super::list::find;
use super::options::{ListQuery, Validation};
use super::{namespace_of, read_body, unreadable};
use crate::body::RequestBody;
use crate::context::{Context, HandlerResult};
use crate::negotiate::{Accepted, Form, Offer};
use crate::ownership::Tracking;
use crate::respond::{self, Item, ListMeta};
use crate::server::ApiServer;
use crate::writes::{DeleteOptions, IGNORE_READ_ERRORS, Writer, read_errors_fault};

const COLLECTION_PAGE: usize = 10_000;

/// `DELETE …/{name}`.
pub(super) async fn delete(
    server: &ApiServer,
    context: &Context,
    resource: &ResourceInfo,
    request: Request<RequestBody>,
) -> HandlerResult {
    let accepted = respond::accepted_for(context, resource, Offer::Objects)?;
    let options = read_options(server.features(), context, request.into_body()).await?;
    if options.ignore_read_errors {
        unreadable::delete(server, context, resource).await?;
        return gone(context, accepted, resource, "");
    }
    let writer = writer(server, context, resource, &options);
    let deletion = writer.delete(&context.info.name, &options).await?;
    let code = if !deletion.gone && options.orphan_dependents == Some(false) {
        StatusCode::ACCEPTED
    } else {
        StatusCode::OK
    };
    if !deletion.gone || resource.strategy.returns_deleted_object() {
        return respond::object(context, accepted, resource, code, deletion.stored.value);
    }
    let uid = davit_registry::object::uid(&deletion.stored.value);
    gone(context, accepted, resource, uid)
}

/// The answer about an object that is gone and not shown.
fn gone(
    context: &Context,
    accepted: Accepted,
    resource: &ResourceInfo,
    uid: &str,
) -> HandlerResult {
    let status = Status::success(resource.qualified(), &context.info.name, uid);
    let value = serde_json::to_value(status).map_err(Status::internal)?;
    let plain = Accepted {
        form: Form::Object,
        ..accepted
    };
    Ok(respond::encoded(plain, StatusCode::OK, &value))
}

fn writer<'a>(
    server: &'a ApiServer,
    context: &'a Context,
    resource: &'a ResourceInfo,
    options: &DeleteOptions,
) -> Writer<'a> {
    Writer::of(
        context,
        server,
        resource,
        namespace_of(context, resource),
        Tracking::Keep,
    )
    .dry_run(options.dry_run)
}

/// `DELETE` on a collection: every selected object with the same options.
pub(super) async fn collection(
    server: &ApiServer,
    context: &Context,
    resource: &ResourceInfo,
    request: Request<RequestBody>,
) -> HandlerResult {
    let accepted = respond::accepted_for(context, resource, Offer::Objects)?;
    let mut query = ListQuery::parse(context, false)?;
    let options = read_options(server.features(), context, request.into_body()).await?;
    if options.ignore_read_errors {
        let why = "is not allowed with DELETECOLLECTION, try again after removing the option";
        return Err(DeleteOptions::refused(&[read_errors_fault(why)]));
    }
    query.limit = query.limit.or(Some(COLLECTION_PAGE));
    let writer = writer(server, context, resource, &options);
    let mut items = Vec::new();
    let mut meta;
    loop {
        let found = find(context, resource, &query).await?;
        meta = found.meta;
        for object in found.items {
            // without a namespace in the path the resource is cluster-scoped
            match writer.delete(&object.header().name, &options).await {
                Ok(_) => {}
                Err(status) if status.reason == Reason::NotFound => {}
                Err(status) => return Err(status),
            }
            // the answer is what was found, not what deletion has made of it
            let listed = serde_json::from_slice(&object.json()).map_err(Status::internal)?;
            items.push(Item::Value(convert::from_storage(resource, listed)?));
        }
        match meta.continue_token.take() {
            Some(token) if context.query.text("limit").is_none() => {
                query.continue_token = Some(token);
                query.resource_version = None;
            }
            _ => break,
        }
    }
    let meta = ListMeta {
        revision: meta.revision,
        ..ListMeta::default()
    };
    respond::list(context, accepted, resource, items, &meta)
}

async fn read_options(
    features: &Features,
    context: &Context,
    body: RequestBody,
) -> Result<DeleteOptions, Status> {
    let format = format(&context.headers);
    let bytes: Bytes = read_body(body).await?;
    if bytes.is_empty() {
        return options(features, context, options_of_query(context)?);
    }
    let table = davit_api::kinds::builtin();
    let Some(type_id) = table.kind_type("meta.k8s.io", "v1", "DeleteOptions") else {
        return Err(Status::internal("DeleteOptions has no type"));
    };
    // any group and version may carry the kind
    let format = format?;
    let api_version = api_version_of(&bytes, format);
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let expected = Expected {
        types: &table.types,
        type_id,
        group,
        version,
        kind: "DeleteOptions",
        custom: None,
    };
    let value = decode(context, &bytes, format, &expected, Validation::Ignore)?;
    options(features, context, value)
}

fn options(
    features: &Features,
    context: &Context,
    mut value: Value,
) -> Result<DeleteOptions, Status> {
    if !features.is_on(UNSAFE_DELETION)
        && let Some(given) = value.as_object_mut()
        && given.remove(IGNORE_READ_ERRORS) == Some(Value::Bool(true))
    {
        let why = format!("{IGNORE_READ_ERRORS} is ignored: feature gate {UNSAFE_DELETION} is off");
        context.warnings.add(why);
    }
    let options = DeleteOptions::from_value(&value)?;
    davit_registry::object::set_type(&mut value, "meta.k8s.io/v1", "DeleteOptions");
    context.warnings.set_options(value);
    Ok(options)
}

fn options_of_query(context: &Context) -> Result<Value, Status> {
    let query = &context.query;
    let mut options = json!({});
    let seconds = query
        .number("gracePeriodSeconds")
        .map_err(Status::bad_request)?;
    if let Some(seconds) = seconds {
        options["gracePeriodSeconds"] = json!(seconds);
    }
    if let Some(policy) = query.text("propagationPolicy") {
        options["propagationPolicy"] = json!(policy);
    }
    if let Some(orphan) = query.optional_flag("orphanDependents") {
        options["orphanDependents"] = json!(orphan);
    }
    if let Some(ignore) = query.optional_flag(IGNORE_READ_ERRORS) {
        options[IGNORE_READ_ERRORS] = json!(ignore);
    }
    let dry_run: Vec<&str> = query.all("dryRun").collect();
    if !dry_run.is_empty() {
        options["dryRun"] = json!(dry_run);
    }
    Ok(options)
}
