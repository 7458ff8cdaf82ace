//! Negotiating an upgraded connection: which framing, which subprotocol.

use crate::{Body, body};
use http::header::{CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, Response, StatusCode};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const ACCEPTED_PROTOCOLS: HeaderName =
    HeaderName::from_static("x-accepted-stream-protocol-versions");

/// Why a request cannot be upgraded; [`UpgradeError::response`] is the answer to give.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpgradeError {
    /// The request asks for no upgrade, or not for SPDY/3.1 or WebSocket.
    #[error("unable to upgrade: missing upgrade headers in request")]
    NotAnUpgrade,
    /// No subprotocol in common.
    #[error("unable to negotiate protocol: client supports {client:?}, server accepts {server:?}")]
    NoProtocol {
        /// What the client offered.
        client: Vec<String>,
        /// What is served.
        server: Vec<String>,
    },
}

impl UpgradeError {
    /// The HTTP answer for this refusal, with the status codes that client-go tells apart.
    pub fn response(&self) -> Response<Body> {
        let mut response = Response::new(body(self.to_string()));
        match self {
            Self::NotAnUpgrade => *response.status_mut() = StatusCode::BAD_REQUEST,
            Self::NoProtocol { server, .. } => {
                *response.status_mut() = StatusCode::FORBIDDEN;
                for protocol in server {
                    if let Ok(value) = HeaderValue::from_str(protocol) {
                        response.headers_mut().append(ACCEPTED_PROTOCOLS, value);
                    }
                }
            }
        }
        response
    }
}

/// The framing a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Spdy,
    WebSocket,
}

/// What was agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub(crate) framing: Framing,
    /// The subprotocol; empty when the client offered none.
    pub(crate) protocol: String,
}

pub(crate) fn framing(headers: &HeaderMap) -> Option<Framing> {
    let has = |name: &HeaderName, token: &str| {
        tokens(headers, name).any(|t| t.eq_ignore_ascii_case(token))
    };
    if !has(&CONNECTION, "upgrade") {
        return None;
    }
    if has(&UPGRADE, "websocket") {
        return Some(Framing::WebSocket);
    }
    has(&UPGRADE, "SPDY/3.1").then_some(Framing::Spdy)
}

/// Chooses framing and subprotocol: the first of the client's that is served, as upstream does.
pub(crate) fn negotiate(
    headers: &HeaderMap,
    spdy: &[&str],
    websocket: &[&str],
) -> Result<Agreed, UpgradeError> {
    let framing = framing(headers).ok_or(UpgradeError::NotAnUpgrade)?;
    let (header, served) = match framing {
        Framing::Spdy => (&STREAM_PROTOCOL, spdy),
        Framing::WebSocket => (&SEC_WEBSOCKET_PROTOCOL, websocket),
    };
    let offered: Vec<&str> = tokens(headers, header).collect();
    // A bearer token in the subprotocol list is a credential, not a protocol.
    let offered: Vec<&str> = offered
        .into_iter()
        .filter(|p| !p.starts_with("base64url.bearer.authorization.k8s.io."))
        .collect();
    if offered.is_empty() {
        return Ok(Agreed {
            framing,
            protocol: String::new(),
        });
    }
    match offered.iter().find(|p| served.contains(p)) {
        Some(protocol) => Ok(Agreed {
            framing,
            protocol: (*protocol).to_owned(),
        }),
        None => Err(UpgradeError::NoProtocol {
            client: offered.iter().map(|p| (*p).to_owned()).collect(),
            server: served.iter().map(|p| (*p).to_owned()).collect(),
        }),
    }
}

/// The 101 answer for what was agreed.
pub(crate) fn switching_protocols(
    headers: &HeaderMap,
    agreed: &Agreed,
) -> Result<Response<Body>, UpgradeError> {
    let mut response = Response::new(body(""));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let answer = response.headers_mut();
    answer.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    let protocol_header = match agreed.framing {
        Framing::Spdy => {
            answer.insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
            STREAM_PROTOCOL
        }
        Framing::WebSocket => {
            answer.insert(UPGRADE, HeaderValue::from_static("websocket"));
            let key = headers
                .get(http::header::SEC_WEBSOCKET_KEY)
                .ok_or(UpgradeError::NotAnUpgrade)?;
            let accept = derive_accept_key(key.as_bytes());
            let accept = HeaderValue::from_str(&accept).map_err(|_| UpgradeError::NotAnUpgrade)?;
            answer.insert(http::header::SEC_WEBSOCKET_ACCEPT, accept);
            SEC_WEBSOCKET_PROTOCOL
        }
    };
    if let Some(value) = HeaderValue::from_str(&agreed.protocol)
        .ok()
        .filter(|v| !v.is_empty())
    {
        answer.insert(protocol_header, value);
    }
    Ok(response)
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .into_iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .map(str::trim)
        .filter(|t| !t.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(k, v)| (HeaderName::from_static(k), HeaderValue::from_static(v)))
            .collect()
    }

    #[test]
    fn first_client_protocol_that_is_served_wins() {
        let spdy = headers(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "SPDY/3.1"),
        ]);
        assert_eq!(
            negotiate(&spdy, &["v4"], &[]).map(|a| a.protocol),
            Ok(String::new())
        );
        let mut offering = spdy.clone();
        offering.append("x-stream-protocol-version", HeaderValue::from_static("v9"));
        assert!(matches!(
            negotiate(&offering, &["v4"], &[]),
            Err(UpgradeError::NoProtocol { .. })
        ));
        offering.append("x-stream-protocol-version", HeaderValue::from_static("v4"));
        assert_eq!(
            negotiate(&offering, &["v5", "v4"], &[]).map(|a| a.protocol),
            Ok("v4".to_owned())
        );
    }

    #[test]
    fn bearer_subprotocol_is_not_a_protocol() {
        let ws = headers(&[
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            (
                "sec-websocket-protocol",
                "base64url.bearer.authorization.k8s.io.dG9r, v5.channel.k8s.io",
            ),
        ]);
        let agreed = negotiate(&ws, &[], &["v5.channel.k8s.io"]).unwrap();
        assert_eq!(
            agreed,
            Agreed {
                framing: Framing::WebSocket,
                protocol: "v5.channel.k8s.io".to_owned()
            }
        );
    }

    #[test]
    fn plain_request_is_refused_with_400() {
        let refusal = negotiate(&HeaderMap::new(), &[], &[]).unwrap_err();
        assert_eq!(refusal.response().status(), StatusCode::BAD_REQUEST);
    }
}
