//! Forwarding requests to nodes, pods and services: logs, exec, attach, port-forward, proxy.

mod forward;
mod target;

use davit_api::status::Status;
use http::uri::PathAndQuery;
use http::{Request, Uri};

use crate::body::RequestBody;
use crate::context::{Context, HandlerResult};
use crate::registry::ResourceInfo;
use crate::server::ApiServer;

pub(crate) use forward::{Forward, NodeClient, remove_hop_headers};
pub(crate) use target::node_backend;

/// Requests to `pods/{name}/proxy`, `services/{name}/proxy` and `nodes/{name}/proxy`.
pub(crate) async fn handle(
    server: &ApiServer,
    context: &Context,
    resource: &ResourceInfo,
    request: Request<RequestBody>,
) -> HandlerResult {
    let info = &context.info;
    crate::admission::connected(server, context, resource).await?;
    let backend = target::of_proxy(server, context, resource).await?;
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
    let forward = Forward {
        backend,
        uri,
        rewrite_prefix: Some(prefix),
    };
    server.nodes().forward(server, forward, request).await
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
