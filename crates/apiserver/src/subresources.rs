//! Subresources: parts and actions of an object with rules of their own.

mod binding;
mod eviction;
mod scale;
mod streams;
mod token;

use std::sync::Arc;

use davit_api::status::Status;
use davit_registry::ResourceInfo;
use http::{Method, Request};

use crate::body::RequestBody;
use crate::context::{Context, HandlerResult};
use crate::handlers::{self, not_allowed};
use crate::server::ApiServer;
use crate::{proxy, respond};

pub(crate) use binding::handle as bind;

/// Answers a request for a subresource.
pub(crate) async fn handle(
    server: &Arc<ApiServer>,
    context: &Context,
    resource: &ResourceInfo,
    request: Request<RequestBody>,
) -> HandlerResult {
    let info = &context.info;
    let name = info.subresource.as_str();
    let Some(sub) = resource.subresource(name) else {
        return respond::nothing_in(&info.group);
    };
    let is_proxy = name == "proxy";
    if !is_proxy && !info.rest.is_empty() && info.rest != "/" {
        return respond::nothing_in(&info.group);
    }
    if resource.row.namespaced && info.namespace.is_none() {
        return respond::nothing_in(&info.group);
    }
    let verb = info.verb.as_str();
    let connects = matches!(name, "exec" | "attach" | "portforward" | "proxy" | "log");
    let serves = sub.verbs.contains(&verb) && context.method != Method::HEAD;
    if !connects && !serves {
        return Err(not_allowed(resource, verb));
    }
    if connects && context.query.text("dryRun").is_some() {
        return Err(Status::bad_request("dryRun is not supported"));
    }
    if let Some(custom) = &resource.custom {
        // a scale is a built-in kind, but merging it is not what custom kinds offer
        handlers::check_custom(context, custom, verb)?;
    }
    if matches!(verb, "get" | "update" | "patch") && !connects && name != "scale" {
        handlers::warn_deprecated(server, context, resource);
    }
    match (name, verb) {
        ("scale", _) => scale::handle(server, context, resource, request).await,
        ("binding", "create") => binding::handle(server, context, &info.name, request).await,
        ("eviction", "create") => eviction::handle(server, context, resource, request).await,
        ("token", "create") => token::handle(server, context, resource, request).await,
        ("exec" | "attach" | "portforward" | "log", _) => {
            streams::handle(server, context, name, request).await
        }
        ("proxy", _) => proxy::handle(server, context, resource, request).await,
        (_, "get") => handlers::get(context, resource).await,
        (_, "update") => handlers::update(server, context, resource, request).await,
        (_, "patch") => handlers::patch(server, context, resource, request).await,
        _ => Err(not_allowed(resource, verb)),
    }
}
