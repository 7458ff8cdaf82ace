//! Everything that is not a resource: discovery, OpenAPI, version, health, metrics.

mod openapi;

use davit_api::status::Status;
use davit_listen::PROMETHEUS;
use http::header::{
    CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{Method, Response, StatusCode};
use serde_json::json;

use crate::body::ResponseBody;
use crate::context::{Context, HandlerResult};
use crate::discovery::{self, AggregatedVersion, Tagged};
use crate::metrics::ObjectCount;
use crate::negotiate::clauses;
use crate::server::ApiServer;
use crate::{backup, health, respond, version};

/// Answers a request whose path names no resource.
pub(crate) async fn handle(server: &ApiServer, context: &Context) -> HandlerResult {
    let path = context.info.path.clone();
    let Some(parts) = parts(&path) else {
        return Ok(respond::page_not_found());
    };
    if context.method == Method::POST && parts.join("/") == backup::PATH {
        return backup::answer(server).await;
    }
    let takes_head = !matches!(
        parts.as_slice(),
        ["version" | "api"] | ["api", _] | ["apis", _, _] | [".well-known" | "openid", ..]
    );
    let reads = context.method == Method::GET || takes_head && context.method == Method::HEAD;
    if !reads {
        return match known(server, &context.info.path) {
            true => Err(Status::method_not_allowed()),
            false => Ok(respond::page_not_found()),
        };
    }
    if matches!(parts.first(), Some(&("api" | "apis"))) {
        server.registry().established().await;
    }
    match parts.as_slice() {
        [] => respond::document(context, StatusCode::OK, &json!({ "paths": paths(server) })),
        ["version"] => {
            respond::document(context, StatusCode::OK, &version::document(server.build()))
        }
        ["api"] => api_root(server, context, true),
        ["apis"] => api_root(server, context, false),
        ["api", version] => group_version(server, context, "", version),
        ["apis", group] => {
            let snapshot = server.registry().snapshot();
            match discovery::api_group(&snapshot, &server.aggregation().view(), group) {
                Some(document) => respond::document(context, StatusCode::OK, &document),
                None => Ok(respond::page_not_found()),
            }
        }
        ["apis", group, version] => group_version(server, context, group, version),
        ["openapi", "v2"] => openapi::v2(server, context).await,
        ["openapi", "v3"] => openapi::v3_index(server, context).await,
        ["openapi", "v3", rest @ ..] => {
            openapi::v3_document(server, context, &rest.join("/")).await
        }
        ["debug", "api_priority_and_fairness", what] => Ok(flow_dump(server, context, what)),
        ["metrics"] => Ok(metrics(server, context).await),
        ["metrics", "slis"] => {
            let text = server.metrics().health.page();
            Ok(respond::respond(StatusCode::OK, PROMETHEUS, text.into()))
        }
        [".well-known", "openid-configuration"] => openid_configuration(server),
        ["openid", "v1", "jwks"] => Ok(jwks(server)),
        ["healthz", rest @ ..] => health::answer(server, context, "healthz", &rest.join("/")).await,
        ["livez", rest @ ..] => health::answer(server, context, "livez", &rest.join("/")).await,
        ["readyz", rest @ ..] => health::answer(server, context, "readyz", &rest.join("/")).await,
        _ => Ok(respond::page_not_found()),
    }
}

/// The segments of a path, if it is written as roles name it: who may get what is below `/metrics/` gets `/metrics` by no
/// other way to write it. Discovery is what clients ask for with a slash at the end, too, which roles name as well.
fn parts(path: &str) -> Option<Vec<&str>> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let plain = format!("/{}", parts.join("/"));
    let is_discovery = matches!(parts.first(), Some(&("api" | "apis" | "version")));
    let written = path == plain || is_discovery && path.strip_suffix('/') == Some(&*plain);
    written.then_some(parts)
}

fn flow_dump(server: &ApiServer, context: &Context, what: &str) -> Response<ResponseBody> {
    let flow = server.flow_control();
    let text = match what {
        "dump_priority_levels" => flow.dump_levels(),
        "dump_queues" => flow.dump_queues(),
        "dump_requests" => {
            let details = context.query.text("includeRequestDetails");
            flow.dump_requests(details.is_some_and(|flag| flag == "1" || flag == "true"))
        }
        _ => return respond::page_not_found(),
    };
    respond::text(StatusCode::OK, text)
}

fn known(server: &ApiServer, path: &str) -> bool {
    let path = path.trim_end_matches('/');
    path.is_empty() || paths(server).iter().any(|known| known == path)
}

fn api_root(server: &ApiServer, context: &Context, core: bool) -> HandlerResult {
    let snapshot = server.registry().snapshot();
    let view = server.aggregation().view();
    for clause in clauses(&context.headers) {
        if clause.media == "application/json"
            && clause.param("g") == Some("apidiscovery.k8s.io")
            && clause.param("as") == Some("APIGroupDiscoveryList")
        {
            let (version, content_type) = match clause.param("v") {
                Some("v2") => (
                    AggregatedVersion::V2,
                    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                ),
                Some("v2beta1") => (
                    AggregatedVersion::V2Beta1,
                    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
                ),
                _ => continue,
            };
            let document = server.aggregated().get(&snapshot, &view, core, version);
            return Ok(tagged(context, &document, content_type));
        }
        if matches!(
            clause.media.as_str(),
            "application/json" | "application/yaml" | "*/*"
        ) && clause.param("as").is_none()
        {
            break;
        }
    }
    let document = if core {
        discovery::api_versions(&server.advertised())
    } else {
        discovery::api_groups(&snapshot, &view)
    };
    let mut response = respond::document(context, StatusCode::OK, &document)?;
    response
        .headers_mut()
        .append(VARY, HeaderValue::from_static("Accept"));
    Ok(response)
}

fn tagged(
    context: &Context,
    document: &Tagged,
    content_type: &'static str,
) -> Response<ResponseBody> {
    let etag = format!("\"{}\"", document.hash);
    let same = context
        .headers
        .get(IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|held| held == etag);
    let mut response = if same {
        let mut response = Response::new(ResponseBody::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        Response::new(document.body.clone().into())
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    headers.append(VARY, HeaderValue::from_static("Accept"));
    if let Ok(value) = HeaderValue::from_str(&etag) {
        headers.insert(ETAG, value);
    }
    response
}

fn group_version(
    server: &ApiServer,
    context: &Context,
    group: &str,
    version: &str,
) -> HandlerResult {
    let snapshot = server.registry().snapshot();
    match discovery::api_resources(&snapshot, group, version) {
        Some(document) => respond::document(context, StatusCode::OK, &document),
        None => respond::nothing_in(group),
    }
}

/// Prometheus' text form, or OpenMetrics where that is asked for.
async fn metrics(server: &ApiServer, context: &Context) -> Response<ResponseBody> {
    let mut sizes = Vec::new();
    for store in server.registry().stores().all() {
        sizes.push(store.size().await);
    }
    let snapshot = server.registry().snapshot();
    let stored = snapshot
        .all()
        .filter(|info| !info.is_virtual() && !info.is_computed());
    let counts = stored.filter_map(|info| {
        let storage = &info.storage;
        Some(ObjectCount {
            group: storage.group(),
            plural: storage.plural(),
            qualified: info.qualified().to_string(),
            // nobody has looked at the others yet, controllers do at once
            count: storage.cache().object_count()?,
        })
    });
    let metrics = server.metrics();
    metrics.stored.set(counts, &sizes);
    server.in_flight().show(metrics);
    let text = metrics.text();
    let (kind, text) = davit_listen::metrics_page(text, &context.headers);
    respond::respond(StatusCode::OK, kind, text.into())
}

fn openid_configuration(server: &ApiServer) -> HandlerResult {
    let keys = server.authenticator().token_keys();
    let issuer = keys.issuer();
    let document = json!({
        "issuer": issuer,
        "jwks_uri": format!("{}/openid/v1/jwks", issuer.trim_end_matches('/')),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": keys.algorithms(),
    });
    Ok(with_public_cache(respond::json_response(
        StatusCode::OK,
        document.to_string().into_bytes(),
    )))
}

fn jwks(server: &ApiServer) -> Response<ResponseBody> {
    let keys = server.authenticator().token_keys().key_set();
    with_public_cache(respond::respond(
        StatusCode::OK,
        "application/jwk-set+json",
        keys.to_string().into(),
    ))
}

fn with_public_cache(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    let headers = response.headers_mut();
    headers.insert(
        CACHE_CONTROL,
        HeaderValue::from_static("public, max-age=3600"),
    );
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The paths that `/` lists, sorted.
fn paths(server: &ApiServer) -> Vec<String> {
    let mut paths: Vec<String> = [
        "/.well-known/openid-configuration",
        "/api",
        "/apis",
        "/healthz",
        "/livez",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/openid/v1/jwks",
        "/readyz",
        "/version",
    ]
    .into_iter()
    .map(str::to_owned)
    .collect();
    for endpoint in ["healthz", "livez", "readyz"] {
        paths.extend(health::checks(endpoint).map(|check| format!("/{endpoint}/{check}")));
    }
    if server.has_console() {
        paths.push(davit_console::PATH.to_owned());
    }
    let view = server.aggregation().view();
    for (group, versions) in view.groups(&server.registry().snapshot()) {
        if group.is_empty() {
            paths.extend(versions.iter().map(|version| format!("/api/{version}")));
        } else {
            paths.push(format!("/apis/{group}"));
            paths.extend(
                versions
                    .iter()
                    .map(|version| format!("/apis/{group}/{version}")),
            );
        }
    }
    paths.sort();
    paths
}
