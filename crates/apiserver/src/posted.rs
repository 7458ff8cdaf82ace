//! Admission of requests that do not write the resource itself: connections (exec, attach,
//! port-forward, proxy) and posts to a subresource with a kind of its own (binding, eviction,
//! token).

use davit_admission::{Attributes, Operation, Reinvocation};
use davit_api::status::Status;
use davit_registry::ResourceInfo;
use serde_json::{Value, json};

use crate::context::Context;
use crate::server::ApiServer;

/// Runs the plugins over `object`, the body or the options of the request.
///
/// # Errors
/// The first refusal.
pub(crate) async fn posted(
    server: &ApiServer,
    context: &Context,
    resource: &ResourceInfo,
    operation: Operation,
    name: &str,
    dry_run: bool,
    object: &mut Value,
) -> Result<(), Status> {
    let attributes = attributes(server, context, resource, operation, name, dry_run);
    server.admission().mutate(&attributes, Some(object)).await?;
    server.admission().validate(&attributes, Some(object)).await
}

/// The attributes of a request that creates something which is not stored.
pub(crate) fn attributes<'a>(
    server: &'a ApiServer,
    context: &'a Context,
    resource: &'a ResourceInfo,
    operation: Operation,
    name: &'a str,
    dry_run: bool,
) -> Attributes<'a> {
    Attributes {
        server,
        operation,
        resource,
        subresource: context.info.subresource.as_str(),
        namespace: context.namespace(),
        name,
        user: &context.user,
        verb: &context.info.verb,
        dry_run,
        old: None,
        warnings: &context.warnings,
        reinvocation: Reinvocation::default(),
    }
}

/// The options of a connection as an object: `PodExecOptions` and its relatives.
///
/// # Errors
/// The first refusal.
pub(crate) async fn connected(
    server: &ApiServer,
    context: &Context,
    resource: &ResourceInfo,
) -> Result<(), Status> {
    let Some(sub) = resource.subresource(&context.info.subresource) else {
        return Ok(());
    };
    let mut options = json!({ "kind": sub.kind, "apiVersion": "v1" });
    let query = &context.query;
    if matches!(sub.kind, "PodExecOptions" | "PodAttachOptions") {
        for flag in ["stdin", "stdout", "stderr", "tty"] {
            if query.flag(flag) {
                options[flag] = json!(true);
            }
        }
        if let Some(container) = query.text("container") {
            options["container"] = json!(container);
        }
    }
    let command: Vec<&str> = query.all("command").collect();
    if sub.kind == "PodExecOptions" && !command.is_empty() {
        options["command"] = json!(command);
    }
    let ports: Vec<i64> = query
        .all("ports")
        .flat_map(|text| text.split(','))
        .filter_map(|port| port.parse().ok())
        .collect();
    if sub.kind == "PodPortForwardOptions" && !ports.is_empty() {
        options["ports"] = json!(ports);
    }
    if sub.kind.ends_with("ProxyOptions") {
        options["path"] = json!(context.info.rest);
    }
    let name = context.info.name.clone();
    posted(
        server,
        context,
        resource,
        Operation::Connect,
        &name,
        false,
        &mut options,
    )
    .await
}
