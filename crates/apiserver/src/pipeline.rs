//! The stages every request passes, outer to inner, in the order of Kubernetes.
//!
//! audit id → panic recovery → request info → deadline → cache-control → warnings →
//! authentication → impersonation → max-in-flight → authorization → handler. Each stage with
//! more than a line of its own is a module; webhooks, RBAC and audit take the places kept here.

mod authorize;
mod deadline;
mod impersonate;
mod scope;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use davit_access::authn::ConnectionIdentity;
use davit_access::query::Query;
use davit_access::{MASTERS, RequestInfo, UserInfo, Warnings};
use davit_api::status::{Reason, Status};
use davit_audit::Stage;
use davit_flowcontrol::Seat;
use davit_listen::{AnswerKind, Busy, Exchange, cross_site};
use futures::{FutureExt, StreamExt};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, UPGRADE, WARNING,
};
use http::request::Parts;
use http::{Request, Response};
use http_body_util::BodyExt;

use crate::aggregator::{self, Peer};
use crate::body::{RequestBody, ResponseBody};
use crate::context::{Context, HandlerResult};
use crate::hop_headers::strip_claims;
use crate::in_flight::InFlightPermit;
use crate::respond;
use crate::server::ApiServer;
use crate::{handlers, root};

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
const FLOW_SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// Answers one request. Never fails and never panics.
pub(crate) async fn run(
    server: &Arc<ApiServer>,
    request: Request<RequestBody>,
    caller: Caller,
) -> Response<ResponseBody> {
    let started = Instant::now();
    let audit_id = audit_id(&request);
    let arrival = Arrival {
        audit_id: audit_id.to_str().unwrap_or_default().to_owned(),
        uri: request
            .uri()
            .path_and_query()
            .map(ToString::to_string)
            .unwrap_or_default(),
        received: jiff::Timestamp::now(),
        slot: Arc::default(),
    };
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let mut info = RequestInfo::parse(request.method(), request.uri().path(), &query);
    scope::correct(server, &mut info);
    let verb = metric_verb(&info, request.method());
    let dry_run = query.text("dryRun").is_some();
    let exchange = request.extensions().get::<Arc<Exchange>>().cloned();
    let confined = must_confine(server, &request, &caller);
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
        answer_headers: Vec::new(),
    };
    let mut unanswered = Unanswered {
        server,
        slot: Arc::clone(&arrival.slot),
        is_answered: false,
    };
    let staged = staged(server, &mut context, &arrival, parts, body, caller);
    let staged = davit_audit::scope(Arc::clone(&arrival.slot), staged);
    let mut panicked = false;
    let result = AssertUnwindSafe(staged).catch_unwind().await;
    let result = result.unwrap_or_else(|panic| {
        panicked = true;
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
    let result = result.and_then(|response| may_answer(exchange, &context, response));
    let (mut response, failure) = match result {
        Ok(response) => (response, None),
        Err(status) => (
            respond::status(&context.headers, &context.query, &status),
            Some(status),
        ),
    };
    recorded(
        server,
        &context,
        &arrival,
        &mut response,
        failure.as_ref(),
        panicked,
    );
    unanswered.is_answered = true;
    if context.method == http::Method::GET && !context.info.is_long_running() {
        respond::compress(&context.headers, &mut response);
    }
    finish_headers(&mut response, &context, audit_id);
    if confined {
        // beside what the page's own server demands
        let policy = HeaderValue::from_static(cross_site::CONFINED);
        response
            .headers_mut()
            .append(CONTENT_SECURITY_POLICY, policy);
    }
    let known = server.is_known(&context.info);
    let counted = if known {
        context.info.clone()
    } else {
        RequestInfo::default()
    };
    let size = http_body::Body::size_hint(response.body()).exact();
    server.metrics().observe(
        &counted,
        &verb,
        dry_run,
        (response.status().as_u16(), size),
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

/// Whether the answer is shown in the browser of somebody with a certificate, and is not the console's.
fn must_confine(server: &ApiServer, request: &Request<RequestBody>, caller: &Caller) -> bool {
    let is_page = server.has_console() && davit_console::owns(request.uri().path());
    matches!(caller, Caller::Connection(connection) if connection.shows_certificate())
        && !is_page
        && cross_site::must_confine(request.headers())
}

/// Whether what was read may be kept for its reader: who does not take the answers to other requests does not get more.
fn may_answer(
    exchange: Option<Arc<Exchange>>,
    context: &Context,
    response: Response<ResponseBody>,
) -> HandlerResult {
    if let Some(exchange) = exchange
        && context.info.is_read_only()
        && let Some(bytes) = response.body().as_bytes()
    {
        exchange.may_answer(bytes.len()).map_err(too_busy)?;
    }
    Ok(response)
}

fn too_busy(busy: Busy) -> Status {
    Status::too_many_requests(busy.to_string(), 1)
}

/// What the audit log wants to know of a request's coming.
struct Arrival {
    audit_id: String,
    uri: String,
    received: jiff::Timestamp,
    slot: Arc<davit_audit::Slot>,
}

/// Makes the audit events of an answer; that of the end of a stream comes when the stream ends.
fn recorded(
    server: &Arc<ApiServer>,
    context: &Context,
    arrival: &Arrival,
    response: &mut Response<ResponseBody>,
    failure: Option<&Status>,
    panicked: bool,
) {
    let (Some(auditor), Some(record)) = (server.auditor(), arrival.slot.record()) else {
        return;
    };
    for (key, value) in context.warnings.annotations() {
        record.annotate(&key, &value);
    }
    record.outcome(response.status().as_u16(), failure);
    let streams = http_body::Body::size_hint(response.body())
        .exact()
        .is_none();
    if panicked {
        auditor.stage(record, Stage::Panic);
    } else if streams {
        auditor.stage(record, Stage::ResponseStarted);
        let completion = Completion {
            server: Arc::clone(server),
            slot: Arc::clone(&arrival.slot),
        };
        let body = std::mem::replace(response.body_mut(), ResponseBody::empty());
        let body = body.into_data_stream().inspect(move |_| {
            let _alive = &completion;
        });
        *response.body_mut() = ResponseBody::stream(body);
    } else {
        auditor.stage(record, Stage::ResponseComplete);
    }
}

/// What servers call it that a client went away before it was answered.
const CLIENT_GONE: u16 = 499;

/// Makes the event of the end of a request whose client has gone away, and with it whoever handled it: a write may have been
/// handed on to the store before.
struct Unanswered<'a> {
    server: &'a ApiServer,
    slot: Arc<davit_audit::Slot>,
    is_answered: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        if let (Some(auditor), Some(record)) = (self.server.auditor(), self.slot.record()) {
            let why =
                "the client went away before it was answered: what it asked for may have been done";
            record.outcome(CLIENT_GONE, Some(&Status::unknown(why)));
            auditor.stage(record, Stage::ResponseComplete);
        }
    }
}

/// Makes the last event of a stream when the stream is dropped.
struct Completion {
    server: Arc<ApiServer>,
    slot: Arc<davit_audit::Slot>,
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let (Some(auditor), Some(record)) = (self.server.auditor(), self.slot.record()) {
            auditor.stage(record, Stage::ResponseComplete);
        }
    }
}

async fn staged(
    server: &Arc<ApiServer>,
    context: &mut Context,
    arrival: &Arrival,
    parts: Parts,
    body: RequestBody,
    caller: Caller,
) -> HandlerResult {
    let limit = deadline::of(&context.info, &context.query)?;
    context.deadline = limit.map(|limit| Instant::now() + limit);
    let inner = inner(server, context, arrival, parts, body, caller);
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
    arrival: &Arrival,
    mut parts: Parts,
    body: RequestBody,
    caller: Caller,
) -> HandlerResult {
    let peer = match &caller {
        Caller::Connection(connection) => connection.peer,
        Caller::InProcess(_) => None,
    };
    let is_page = server.has_console() && davit_console::owns(parts.uri.path());
    let connection = match &caller {
        Caller::InProcess(_) => None,
        Caller::Connection(connection) => Some(Arc::clone(connection)),
    };
    let begin = |context: &Context, user: &UserInfo| {
        if let Some(auditor) = server.auditor() {
            let request = davit_audit::Request {
                audit_id: &arrival.audit_id,
                uri: &arrival.uri,
                headers: &context.headers,
                info: &context.info,
                user,
                connection: connection.as_deref(),
                received: arrival.received,
            };
            auditor.begin(&arrival.slot, &request);
        }
    };
    if is_page {
        // the same files for everybody, before anybody has told who he is
        begin(context, &context.user);
        return page(server, context, &parts).await;
    }
    context.user = match caller {
        Caller::InProcess(user) => user,
        Caller::Connection(connection) => {
            if connection.shows_certificate() {
                let checked = cross_site::check(&parts.method, &parts.uri, &parts.headers);
                checked.map_err(|foreign| {
                    begin(context, &UserInfo::default());
                    Status::failure(Reason::Forbidden, foreign.to_string())
                })?;
            }
            let began = Instant::now();
            let (path, warnings) = (&context.info.path, &context.warnings);
            let user = server
                .authenticator()
                .request(&**server, &context.headers, &connection, path, warnings)
                .await;
            let metrics = &server.metrics().access;
            metrics.authenticated(user.as_ref().ok(), began.elapsed());
            user.map_err(|_| {
                begin(context, &UserInfo::default());
                Status::unauthorized()
            })?
        }
    };
    let exchange = parts.extensions.remove::<Arc<Exchange>>();
    if let Some(exchange) = &exchange
        && !context.user.is_anonymous()
    {
        exchange.identified(&context.user.name);
    }
    begin(context, &context.user);
    if let (Some(auditor), Some(record)) = (server.auditor(), arrival.slot.record()) {
        auditor.stage(record, Stage::RequestReceived);
    }
    server.authenticator().strip(&mut parts.headers);
    server.authenticator().strip(&mut context.headers);
    if let Some(exchange) = &exchange
        && context.user.in_group(MASTERS)
    {
        exchange.exempt();
    }
    impersonate::apply(server, context).await?;
    // nobody further on is to believe what the caller claims to be
    strip_claims(&mut parts.headers);
    let _place = admitted(server, context).await?;
    let backend = server.aggregation().backend(&context.info);
    if let Some(exchange) = exchange {
        let kind = kind_of_answer(context);
        exchange.may_begin(kind).map_err(too_busy)?;
        if kind != AnswerKind::Session && is_passed_on(&context.info, backend.is_some()) {
            exchange.may_pass_on().map_err(too_busy)?;
        }
    }
    authorize::request(server, context).await?;
    if context.info.unserved {
        return match context.info.is_resource {
            true => respond::nothing_in(&context.info.group),
            false => Ok(respond::page_not_found()),
        };
    }
    if let Some(peer) = peer {
        parts.extensions.insert(Peer(peer));
    }
    let request = Request::from_parts(parts, body);
    if let Some(backend) = backend {
        return aggregator::handle(server, context, &backend, request).await;
    }
    if context.info.is_resource {
        handlers::resource(server, context, request).await
    } else {
        root::handle(server, context).await
    }
}

/// Answers with a file of the console, within the limits that anonymous callers have.
async fn page(server: &Arc<ApiServer>, context: &mut Context, parts: &Parts) -> HandlerResult {
    let _place = admitted(server, context).await?;
    if let Some(exchange) = parts.extensions.get::<Arc<Exchange>>() {
        exchange.may_begin(AnswerKind::Whole).map_err(too_busy)?;
    }
    let answer = davit_console::answer(&parts.method, parts.uri.path(), &parts.headers);
    Ok(answer.map(ResponseBody::from))
}

/// Whether a request goes to a node, a pod or an aggregated server, for as long as that answers.
fn is_passed_on(info: &RequestInfo, has_backend: bool) -> bool {
    info.is_long_running() && (has_backend || info.verb != "watch")
}

/// How the answer will be given, as far as the request tells.
fn kind_of_answer(context: &Context) -> AnswerKind {
    let info = &context.info;
    if info.is_resource && info.verb == "watch" {
        AnswerKind::Watch
    } else if context.headers.contains_key(UPGRADE) {
        AnswerKind::Session
    } else if info.is_long_running() {
        AnswerKind::Stream
    } else {
        AnswerKind::Whole
    }
}

/// Waits until the server has room. Watches take room while they begin, other long-running
/// requests none.
async fn admitted(
    server: &Arc<ApiServer>,
    context: &mut Context,
) -> Result<(Option<Seat>, Option<InFlightPermit>), Status> {
    let long_running = context.info.is_long_running();
    let flow = server.flow_control();
    let mut seat = None;
    if flow.is_enabled() && (!long_running || context.info.verb == "watch") {
        seat = flow
            .enter(&context.user, &context.info, context.deadline, || {
                objects(server, &context.info)
            })
            .await?;
        if let Some(seat) = &seat {
            tracing::trace!(level = seat.level(), path = context.info.path, "seated");
            for (name, uid) in [
                (FLOW_SCHEMA, &seat.schema_uid),
                (PRIORITY_LEVEL, &seat.level_uid),
            ] {
                if let Some(uid) = uid {
                    context.answer_headers.push((name, uid.clone()));
                }
            }
        }
    }
    let place = if long_running {
        None
    } else {
        Some(
            server
                .in_flight()
                .enter(context, server.metrics(), !flow.is_enabled())?,
        )
    };
    Ok((seat, place))
}

/// How many objects there are of what a request is about.
fn objects(server: &ApiServer, info: &RequestInfo) -> usize {
    let snapshot = server.registry().snapshot();
    let resource = snapshot.get(&info.group, &info.version, &info.resource);
    resource
        .and_then(|resource| resource.storage.cache().object_count())
        .unwrap_or(0)
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
    for (name, value) in &context.answer_headers {
        headers.insert(name.clone(), value.clone());
    }
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
