//! Forwarding requests to nodes, pods and services: logs, exec, attach, port-forward, proxy.

mod forward;
mod links;
mod no_node;
mod target;

use davit_api::status::Status;
use davit_registry::ResourceInfo;
use http::header::{LOCATION, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};

use crate::body::{RequestBody, ResponseBody};
use crate::context::{Context, HandlerResult};
use crate::server::ApiServer;

pub(crate) use forward::{Forward, forward, read};
pub(crate) use target::node_backend;

/// With which methods pods, services and nodes are asked, as by kube-apiserver: CONNECT would make a tunnel.
const METHODS: [Method; 7] = [
    Method::GET,
    Method::HEAD,
    Method::OPTIONS,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
];

/// Requests to `pods/{name}/proxy`, `services/{name}/proxy` and `nodes/{name}/proxy`.
pub(crate) async fn handle(
    server: &ApiServer,
    context: &Context,
    resource: &ResourceInfo,
    request: Request<RequestBody>,
) -> HandlerResult {
    let info = &context.info;
    if !METHODS.contains(request.method()) {
        return Err(Status::method_not_allowed());
    }
    crate::posted::connected(server, context, resource).await?;
    let backend = target::of_proxy(server, context, resource).await?;
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if info.rest.is_empty() && reads && !request.headers().contains_key(UPGRADE) {
        return to_the_root(request.uri());
    }
    let path = if info.rest.is_empty() {
        "/"
    } else {
        info.rest.as_str()
    };
    let uri = uri(path, request.uri().query())?;
    let prefix = request
        .uri()
        .path()
        .strip_suffix(info.rest.as_str())
        .unwrap_or_default()
        .to_owned();
    let what = Forward {
        backend,
        uri,
        user: context.user.name.clone(),
        rewrite_prefix: Some(prefix),
    };
    forward(server, what, request).await
}

/// Leads a client that reads `…/proxy` to `…/proxy/`, so that relative links on the page lead
/// below it.
fn to_the_root(asked: &Uri) -> HandlerResult {
    let query = asked.query().filter(|query| !query.is_empty());
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let location = HeaderValue::try_from(format!("{}/{query}", asked.path()))
        .map_err(|error| Status::bad_request(format!("invalid path: {error}")))?;
    let mut response = Response::new(ResponseBody::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    response.headers_mut().insert(LOCATION, location);
    Ok(response)
}

/// Paths of a node's agent at which GET tells something and does nothing.
const READING: [&str; 13] = [
    "configz",
    "containerLogs",
    "debug",
    "devices",
    "flagz",
    "healthz",
    "logs",
    "metrics",
    "pods",
    "runningpods",
    "spec",
    "stats",
    "statusz",
];

/// Whether GET of a path below `nodes/{name}/proxy` only reads, however the agent reads the path.
pub(crate) fn only_reads(rest: &str) -> bool {
    let mut segments = rest.split('/').skip(1);
    let first = segments.next().unwrap_or_default();
    READING.contains(&first)
        && !rest.contains(['%', '\\', ';'])
        && segments.all(|segment| !matches!(segment, "." | ".."))
}

/// A path with a query as the request line of a forwarded request.
pub(crate) fn uri(path: &str, query: Option<&str>) -> Result<Uri, Status> {
    let text = match query {
        Some(query) if !query.is_empty() => format!("{path}?{query}"),
        _ => path.to_owned(),
    };
    PathAndQuery::try_from(text)
        .map(Uri::from)
        .map_err(|error| Status::bad_request(format!("invalid path: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_does_is_told_from_what_it_tells() {
        for rest in [
            "/metrics",
            "/metrics/cadvisor",
            "/stats/summary",
            "/logs/",
            "/healthz",
        ] {
            assert!(only_reads(rest), "{rest}");
        }
        for rest in [
            "",
            "/",
            "/exec/a/b/c",
            "/run/a/b/c",
            "/attach/a/b/c",
            "/portForward/a/b",
            "/cri/exec/token",
            "/checkpoint/a/b/c",
            "//exec/a/b/c",
            "/metrics/../exec/a/b/c",
            "/metrics/..%2fexec/a/b/c",
            "/%65xec/a/b/c",
            "/metricsexec",
        ] {
            assert!(!only_reads(rest), "{rest}");
        }
    }
}
