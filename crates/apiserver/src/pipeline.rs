//! The stages every request passes, outer to inner, in the order of Kubernetes.
//!
//! audit id → panic recovery → request info → deadline → cache-control → warnings →
//! authentication → impersonation → max-in-flight → authorization → handler. Each stage with
//! more than a line of its own is a module; webhooks, RBAC and audit take the places kept here.

mod authorize;
mod deadline;
mod impersonate;
mod in_flight;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use davit_api::status::Status;
use futures::FutureExt;
use http::header::{CACHE_CONTROL, HeaderName, HeaderValue, WARNING};
use http::request::Parts;
use http::{Request, Response};

use crate::aggregation::{self, Peer};
use crate::authn::ConnectionIdentity;
use crate::body::{RequestBody, ResponseBody};
use crate::context::{Context, HandlerResult, Warnings};
use crate::query::Query;
use crate::request_info::RequestInfo;
use crate::respond;
use crate::server::ApiServer;
use crate::user::UserInfo;
use crate::{handlers, root};

pub(crate) use authorize::check as authorize;
pub(crate) use in_flight::InFlight;

/// How the caller is known.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    /// By the connection's certificate or the request's token.
    Connection(Arc<ConnectionIdentity>),
    /// Already: a component in the same process.
    InProcess(UserInfo),
}

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const MAX_AUDIT_ID: usize = 64;

/// Answers one request. Never fails and never panics.
pub(crate) async fn run(
    server: &Arc<ApiServer>,
    request: Request<RequestBody>,
    caller: Caller,
) -> Response<ResponseBody> {
    let started = Instant::now();
    let audit_id = audit_id(&request);
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let info = RequestInfo::parse(request.method(), request.uri().path(), &query);
    let verb = metric_verb(&info, request.method());
    let dry_run = query.text("dryRun").is_some();
    // a stream's gauge is held by its body, see `respond::tracked`
    let (parts, body) = request.into_parts();
    let mut context = Context {
        method: parts.method.clone(),
        info,
        query,
        headers: parts.headers.clone(),
        user: UserInfo::anonymous(),
        in_process: matches!(caller, Caller::InProcess(_)),
        warnings: Warnings::default(),
        deadline: None,
    };
    let staged = AssertUnwindSafe(staged(server, &mut context, parts, body, caller)).catch_unwind();
    let result = staged.await.unwrap_or_else(|panic| {
        server.metrics().panics.inc();
        tracing::error!(
            path = context.info.path,
            panic = panic_text(panic.as_ref()),
            "handler panicked"
        );
        Err(Status::internal(
            "this request caused the apiserver to panic. Look in the logs for details.",
        ))
    });
    let mut response = match result {
        Ok(response) => response,
        Err(status) => respond::status(&context.headers, &context.query, &status),
    };
    if context.method == http::Method::GET && !context.info.is_long_running() {
        respond::compress(&context.headers, &mut response);
    }
    finish_headers(&mut response, &context, audit_id);
    let known = server.is_known(&context.info);
    let counted = if known {
        context.info.clone()
    } else {
        RequestInfo::default()
    };
    server.metrics().observe(
        &counted,
        &verb,
        dry_run,
        response.status().as_u16(),
        started.elapsed(),
    );
    tracing::debug!(
        verb = context.info.verb,
        path = context.info.path,
        user = context.user.name,
        code = response.status().as_u16(),
        took_us = started.elapsed().as_micros(),
        "request"
    );
    response
}

async fn staged(
    server: &Arc<ApiServer>,
    context: &mut Context,
    parts: Parts,
    body: RequestBody,
    caller: Caller,
) -> HandlerResult {
    let limit = deadline::of(&context.info, &context.query)?;
    context.deadline = limit.map(|limit| Instant::now() + limit);
    let inner = inner(server, context, parts, body, caller);
    match limit {
        None => inner.await,
        Some(limit) => match tokio::time::timeout(limit, inner).await {
            Ok(result) => result,
            Err(_) => Err(Status::timeout(
                "request did not complete within the allotted timeout",
                0,
            )),
        },
    }
}

async fn inner(
    server: &Arc<ApiServer>,
    context: &mut Context,
    mut parts: Parts,
    body: RequestBody,
    caller: Caller,
) -> HandlerResult {
    let peer = match &caller {
        Caller::Connection(connection) => connection.peer,
        Caller::InProcess(_) => None,
    };
    context.user = match caller {
        Caller::InProcess(user) => user,
        Caller::Connection(connection) => server
            .authenticator()
            .request(server, &context.headers, &connection)
            .await
            .map_err(|_| Status::unauthorized())?,
    };
    crate::authn::strip_credentials(&mut parts.headers);
    crate::authn::strip_credentials(&mut context.headers);
    impersonate::apply(server, context).await?;
    let long_running = context.info.is_long_running();
    let _place = if long_running {
        None
    } else {
        server.in_flight().enter(context, server.metrics())?
    };
    authorize::check(server, &context.user, &context.info).await?;
    if let Some(peer) = peer {
        parts.extensions.insert(Peer(peer));
    }
    let request = Request::from_parts(parts, body);
    if let Some(backend) = server.aggregation().backend(&context.info) {
        return aggregation::handle(server, context, &backend, request).await;
    }
    if context.info.is_resource {
        handlers::resource(server, context, request).await
    } else {
        root::handle(server, context).await
    }
}

fn audit_id(request: &Request<RequestBody>) -> HeaderValue {
    if let Some(sent) = request.headers().get(AUDIT_ID)
        && !sent.is_empty()
        && sent.len() <= MAX_AUDIT_ID
    {
        return sent.clone();
    }
    // the text of a UUID is always a header value
    HeaderValue::from_str(&uuid::Uuid::new_v4().to_string())
        .unwrap_or_else(|_| HeaderValue::from_static("none"))
}

fn finish_headers(response: &mut Response<ResponseBody>, context: &Context, audit_id: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(AUDIT_ID, audit_id);
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-cache, private"));
    for warning in context.warnings.header_values() {
        if let Ok(value) = HeaderValue::from_bytes(warning.as_bytes()) {
            headers.append(WARNING, value);
        }
    }
}

fn metric_verb(info: &RequestInfo, method: &http::Method) -> String {
    if info.is_resource && !info.verb.is_empty() {
        return info.verb.clone();
    }
    match method.as_str() {
        "GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS" => {
            method.as_str().to_ascii_lowercase()
        }
        _ => "other".to_owned(),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
