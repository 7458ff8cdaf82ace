//! The OpenAPI endpoints.

use davit_api::status::Status;
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, EXPIRES, HeaderValue, IF_NONE_MATCH,
    LOCATION, VARY,
};
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::body::ResponseBody;
use crate::context::{Context, HandlerResult};
use crate::negotiate::{clauses, takes_gzip};
use crate::openapi::{Document, group_version};
use crate::respond;
use crate::server::ApiServer;

/// What the answer is called.
const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// What clients ask for: the `@` makes it no media type at all, so it is never answered.
const V2_PROTOBUF_ASKED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
const YEAR_SECONDS: u64 = 365 * 24 * 3600;

/// `GET /openapi/v2`.
pub(crate) async fn v2(server: &ApiServer, context: &Context) -> HandlerResult {
    let wanted = clauses(&context.headers);
    let mut form = None;
    for clause in &wanted {
        form = match clause.media.as_str() {
            V2_PROTOBUF | V2_PROTOBUF_ASKED => Some((true, V2_PROTOBUF)),
            "application/json" | "*/*" | "application/*" => Some((false, "application/json")),
            _ => None,
        };
        if form.is_some() {
            break;
        }
    }
    let Some((protobuf, content_type)) =
        form.or_else(|| wanted.is_empty().then_some((false, "application/json")))
    else {
        return Err(Status::not_acceptable(&["application/json", V2_PROTOBUF]));
    };
    let snapshot = server.registry().snapshot();
    let view = server.aggregation().view();
    let document = server.openapi().v2(&snapshot, &view, protobuf).await?;
    let mut response = send(&context.headers, &document, content_type)?;
    response
        .headers_mut()
        .append(VARY, HeaderValue::from_static("Accept"));
    Ok(response)
}

/// `GET /openapi/v3`.
pub(crate) async fn v3_index(server: &ApiServer, context: &Context) -> HandlerResult {
    let snapshot = server.registry().snapshot();
    let view = server.aggregation().view();
    let documents = server.openapi().v3(&snapshot, &view).await?;
    let mut paths = Map::new();
    for (path, document) in documents.iter() {
        let url = document_url(path, &document.hash);
        paths.insert(path.clone(), json!({ "serverRelativeURL": url }));
    }
    for remote in &view.versions {
        let path = format!("apis/{}/{}", remote.group, remote.version);
        match &remote.openapi {
            Some(document) => {
                let url = document_url(&path, &document.hash);
                paths.insert(path, json!({ "serverRelativeURL": url }));
            }
            None => {
                paths.remove(&path);
            }
        }
    }
    respond::document(
        context,
        StatusCode::OK,
        &json!({ "paths": Value::Object(paths) }),
    )
}

fn document_url(path: &str, hash: &str) -> String {
    format!("/openapi/v3/{path}?hash={hash}")
}

/// `GET /openapi/v3/{path}`.
pub(crate) async fn v3_document(
    server: &ApiServer,
    context: &Context,
    path: &str,
) -> HandlerResult {
    let snapshot = server.registry().snapshot();
    let view = server.aggregation().view();
    let documents = server.openapi().v3(&snapshot, &view).await?;
    let remote = group_version(path).and_then(|(group, version)| view.find(group, version));
    let found = match remote {
        Some(remote) => remote.openapi.as_deref(),
        None => documents.get(path).map(|document| &**document),
    };
    let Some(document) = found else {
        return Ok(respond::page_not_found());
    };
    let asked = context.query.text("hash");
    if asked.is_some_and(|hash| hash != document.hash) {
        let mut response = Response::new(ResponseBody::empty());
        *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
        if let Ok(url) = HeaderValue::from_str(&document_url(path, &document.hash)) {
            response.headers_mut().insert(LOCATION, url);
        }
        return Ok(response);
    }
    let acceptable = clauses(&context.headers);
    let json = acceptable.is_empty()
        || acceptable.iter().any(|c| {
            matches!(
                c.media.as_str(),
                "application/json" | "*/*" | "application/*"
            )
        });
    if !json {
        return Err(Status::not_acceptable(&["application/json"]));
    }
    let mut response = send(&context.headers, document, "application/json")?;
    if asked.is_some() {
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        let until = std::time::SystemTime::now() + std::time::Duration::from_secs(YEAR_SECONDS);
        if let Ok(value) = HeaderValue::from_str(&http_date(until)) {
            headers.insert(EXPIRES, value);
        }
    }
    Ok(response)
}

fn http_date(at: std::time::SystemTime) -> String {
    jiff::Timestamp::try_from(at)
        .unwrap_or_else(|_| jiff::Timestamp::now())
        .strftime("%a, %d %b %Y %H:%M:%S GMT")
        .to_string()
}

fn send(
    request: &HeaderMap,
    document: &Document,
    content_type: &'static str,
) -> Result<Response<ResponseBody>, Status> {
    let etag = format!("\"{}\"", document.hash);
    let known = request
        .get(IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value == etag);
    let gzip = takes_gzip(request);
    let mut response = if known {
        let mut response = Response::new(ResponseBody::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else if gzip {
        let mut response = Response::new(document.gzip.clone().into());
        response
            .headers_mut()
            .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        response
    } else {
        Response::new(document.plain())
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    if let Ok(value) = HeaderValue::from_str(&etag) {
        headers.insert(ETAG, value);
    }
    Ok(response)
}
