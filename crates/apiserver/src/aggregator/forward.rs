//! Passing a request on to a backend, with the caller's identity.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use davit_access::UserInfo;
use davit_api::status::Status;
use http::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, LOCATION};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;

use crate::aggregation::{Backend, identity_headers};
use crate::body::{RequestBody, ResponseBody};
use crate::context::{Context, HandlerResult};
use crate::hop_headers::{asks_upgrade, remove_hop_headers, start_hop, switched_unasked};
use crate::respond;
use crate::server::ApiServer;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
/// How long the head of an answer may take, that of a watch as well: until then it holds its place among the requests.
const HEAD: Duration = Duration::from_secs(60);

/// The other end of the caller's connection, as an extension of the request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Answers with what the backend answers; bodies stream both ways, upgrades are joined.
pub(crate) async fn handle(
    server: &ApiServer,
    context: &Context,
    backend: &Arc<Backend>,
    mut request: Request<RequestBody>,
) -> HandlerResult {
    if request.method() == Method::CONNECT {
        return Err(Status::method_not_allowed());
    }
    if !backend.is_available() {
        return Ok(unavailable("service unavailable"));
    }
    let upgrade = asks_upgrade(request.headers());
    let client_side = upgrade.then(|| hyper::upgrade::on(&mut request));
    let (mut parts, body) = request.into_parts();
    if let Err(error) = readdress(&mut parts, &context.user, backend, upgrade) {
        return Ok(unavailable(&error));
    }
    let sent = backend.send(Request::from_parts(parts, body));
    let response = match tokio::time::timeout(HEAD, sent).await {
        Ok(Ok(response)) => response,
        Err(_) => return Err(Status::timeout("the backend did not answer", 0)),
        Ok(Err(error)) => {
            // What a caller finds out first the next check confirms.
            backend.recheck.notify_one();
            return Ok(unavailable(&format!(
                "error trying to reach service: {error}"
            )));
        }
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(match client_side {
            Some(client_side) => server.nodes().pipe(response, client_side, None),
            None => switched_unasked(),
        });
    }
    if redirects(&response) {
        let text = "the backend attempted to redirect this request, which is not permitted";
        return Ok(respond::text(StatusCode::BAD_GATEWAY, format!("{text}\n")));
    }
    let (mut parts, body) = response.into_parts();
    remove_hop_headers(&mut parts.headers);
    let ended = server.shutdown().clone().cancelled_owned();
    let stream = futures::StreamExt::take_until(body.into_data_stream(), ended);
    let stream = futures::TryStreamExt::map_err(stream, Into::into);
    Ok(Response::from_parts(parts, ResponseBody::stream(stream)))
}

/// Whether the client is sent elsewhere: it would go there with the credentials that it showed to this server
/// (CVE-2022-3172).
fn redirects<B>(response: &Response<B>) -> bool {
    response.status().is_redirection() && response.headers().contains_key(LOCATION)
}

fn unavailable(text: &str) -> Response<ResponseBody> {
    respond::text(StatusCode::SERVICE_UNAVAILABLE, format!("{text}\n"))
}

/// Turns a request to this server into one to the backend.
fn readdress(
    parts: &mut Parts,
    user: &UserInfo,
    backend: &Backend,
    upgrade: bool,
) -> Result<(), String> {
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let uri = backend.url(path)?;
    let host = parts.headers.get(HOST).cloned().or_else(|| {
        let authority = parts.uri.authority()?;
        HeaderValue::from_str(authority.as_str()).ok()
    });
    let peer = parts.extensions.get::<Peer>().copied();
    let headers = &mut parts.headers;
    start_hop(headers, upgrade);
    headers.remove(AUTHORIZATION);
    identity_headers(headers, user)?;
    forwarded_headers(headers, host, path, peer);
    let authority = HeaderValue::from_str(&backend.authority()).map_err(|e| e.to_string())?;
    headers.insert(HOST, authority);
    parts.uri = uri;
    parts.version = http::Version::HTTP_11;
    parts.extensions.clear();
    Ok(())
}

fn forwarded_headers(
    headers: &mut HeaderMap,
    host: Option<HeaderValue>,
    path: &str,
    peer: Option<Peer>,
) {
    if let Some(host) = host {
        headers.insert(FORWARDED_HOST, host);
    }
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static("https"));
    if let Ok(path) = HeaderValue::from_str(path) {
        headers.insert(FORWARDED_URI, path);
    }
    let Some(Peer(peer)) = peer else { return };
    let chain = headers.get_all(FORWARDED_FOR).iter();
    let mut chain: Vec<String> = chain
        .filter_map(|value| value.to_str().ok().map(str::to_owned))
        .collect();
    chain.push(peer.ip().to_string());
    if let Ok(chain) = HeaderValue::from_str(&chain.join(", ")) {
        headers.insert(FORWARDED_FOR, chain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_redirect_nobody() {
        let answer = |code: u16, location: bool| {
            let answer = Response::builder().status(code);
            let answer = match location {
                true => answer.header(LOCATION, "https://elsewhere.example"),
                false => answer,
            };
            redirects(&answer.body(()).unwrap())
        };
        assert!(answer(302, true) && answer(307, true) && answer(308, true));
        assert!(!answer(304, false) && !answer(201, true) && !answer(200, false));
    }

    #[test]
    fn the_callers_address_joins_the_chain() {
        let mut headers = HeaderMap::new();
        headers.insert(FORWARDED_FOR, HeaderValue::from_static("192.0.2.1"));
        let peer = Some(Peer("198.51.100.7:1234".parse().unwrap()));
        forwarded_headers(&mut headers, None, "/apis/g/v1?x=y", peer);
        assert_eq!(headers[FORWARDED_FOR], "192.0.2.1, 198.51.100.7");
        assert_eq!(headers[FORWARDED_URI], "/apis/g/v1?x=y");
    }
}
