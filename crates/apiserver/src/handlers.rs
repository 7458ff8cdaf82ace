//! Requests for resources: one get, list, watch, create, update, patch and delete for all kinds.

mod body;
mod create;
mod delete;
mod list;
mod options;
mod patch;
mod read;
mod unreadable;
mod update;
mod watch;

use std::sync::Arc;

use davit_api::status::Status;
use davit_registry::ResourceInfo;
use davit_registry::custom::CustomVersion;
use http::{Method, Request};

use crate::body::RequestBody;
use crate::context::{Context, HandlerResult};
use crate::server::ApiServer;
use crate::{respond, subresources, virtuals};

pub(crate) use body::{Expected, decode as decode_body, format, read_body, read_object};
pub(crate) use create::{check_namespace, create};
pub(crate) use list::find;
pub(crate) use options::{ListQuery, WriteOptions};
pub(crate) use patch::{PatchKind, configuration, kind as patch_kind, patch};
pub(crate) use read::get;
pub(crate) use update::{undeterminable, update};

/// Answers a request for a resource.
pub(crate) async fn resource(
    server: &Arc<ApiServer>,
    context: &Context,
    request: Request<RequestBody>,
) -> HandlerResult {
    let info = &context.info;
    let snapshot = server.registry().snapshot();
    let core = info.prefix == "api";
    let found = snapshot.get(&info.group, &info.version, &info.resource);
    let Some(resource) = found.filter(|_| core == info.group.is_empty()) else {
        return respond::nothing_in(&info.group);
    };
    // the registry may have changed since the request was authorized
    if info.is_namespaced() && !resource.row.namespaced {
        return respond::nothing_in(&info.group);
    }
    if !info.subresource.is_empty() {
        return subresources::handle(server, context, resource, request).await;
    }
    if !info.name.is_empty() && !info.rest.is_empty() && info.rest != "/" {
        return respond::nothing_in(&info.group);
    }
    if context.method == Method::HEAD {
        return Err(not_allowed(resource, "head"));
    }
    warn_deprecated(server, context, resource);
    let verb = info.verb.as_str();
    let everywhere = resource.row.namespaced && info.namespace.is_none();
    if everywhere && !matches!(verb, "list" | "watch") {
        // There is no such path; what there is of built-in kinds is the list, which has no other verbs.
        return if resource.custom.is_some() || !info.name.is_empty() {
            respond::nothing_in(&info.group)
        } else {
            Err(not_allowed(resource, verb))
        };
    }
    if resource.is_virtual() || resource.is_computed() {
        return virtuals::handle(server, context, resource, request).await;
    }
    if !resource.row.has_verb(verb) {
        return Err(not_allowed(resource, verb));
    }
    if let Some(custom) = &resource.custom {
        check_custom(context, custom, verb)?;
    }
    match verb {
        "get" => get(context, resource).await,
        "list" => list::list(context, resource).await,
        "watch" => watch::watch(server, context, resource, request).await,
        "create" if info.name.is_empty() => create(server, context, resource, request).await,
        "update" if !info.name.is_empty() => update(server, context, resource, request).await,
        "patch" if !info.name.is_empty() => patch(server, context, resource, request).await,
        "delete" => delete::delete(server, context, resource, request).await,
        "deletecollection" => delete::collection(server, context, resource, request).await,
        _ => Err(not_allowed(resource, verb)),
    }
}

/// What is particular to requests for custom kinds.
pub(crate) fn check_custom(
    context: &Context,
    custom: &CustomVersion,
    verb: &str,
) -> Result<(), Status> {
    if let Some(warning) = &custom.deprecation {
        context.warnings.add(warning.clone());
    }
    if verb == "patch" {
        patch::check_custom(context)?;
    }
    Ok(())
}

/// The refusal of a verb a resource does not have. Of custom kinds it says which.
pub(crate) fn not_allowed(resource: &ResourceInfo, verb: &str) -> Status {
    match resource.custom {
        Some(_) => Status::method_not_supported(resource.qualified(), verb),
        None => Status::method_not_allowed(),
    }
}

/// The namespace objects of the resource are in for this request; empty for cluster-scoped ones.
pub(crate) fn namespace_of<'a>(context: &'a Context, resource: &ResourceInfo) -> &'a str {
    if resource.row.namespaced {
        context.namespace()
    } else {
        ""
    }
}

/// Deprecated kinds that have no newer version: since when, and what is used instead.
const REPLACED: [(&str, &str, &str); 2] = [
    ("ComponentStatus", "1.19", ""),
    (
        "Endpoints",
        "1.33",
        "; use discovery.k8s.io/v1 EndpointSlice",
    ),
];

/// Warns who asks for what is deprecated, the object or a subresource of its kind.
pub(crate) fn warn_deprecated(server: &ApiServer, context: &Context, resource: &ResourceInfo) {
    let row = &resource.row;
    let replaced = REPLACED
        .iter()
        .find(|(kind, ..)| row.group.is_empty() && row.kind == *kind);
    if let Some((kind, since, instead)) = replaced {
        let text = format!("v1 {kind} is deprecated in v{since}+{instead}");
        context.warnings.add(text);
        server.metrics().deprecated(row, &context.info.subresource);
        return;
    }
    let Some(since) = row.deprecated.filter(|since| has_come(since)) else {
        return;
    };
    let version = row.api_version();
    let mut text = format!("{version} {} is deprecated in v{since}+", row.kind);
    if let Some(removed) = row.removed {
        text.push_str(&format!(", unavailable in v{removed}+"));
    }
    if let Some(replacement) = row.replacement {
        text.push_str(&format!("; use {replacement}"));
    }
    context.warnings.add(text);
    server.metrics().deprecated(row, &context.info.subresource);
}

/// Whether the API level has reached a release (`1.19`).
fn has_come(release: &str) -> bool {
    let minor = |text: &str| {
        text.rsplit('.')
            .next()
            .and_then(|minor| minor.parse::<u32>().ok())
    };
    minor(release) <= minor(crate::version::MINOR)
}
