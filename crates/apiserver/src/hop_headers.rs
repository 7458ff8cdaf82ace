//! Headers that are good for one hop only, or that only this server may set.

use http::header::{CONNECTION, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Response, StatusCode};

use crate::body::ResponseBody;
use crate::respond;

/// Whether a request asks for another protocol that is passed on.
pub(crate) fn asks_upgrade(headers: &HeaderMap) -> bool {
    let protocol = headers.get(UPGRADE);
    protocol.is_some_and(|protocol| !carries_requests(protocol))
}

/// In the place of the answer of a backend that goes over to another protocol unasked: whoever passed that on would have its
/// client, or what stands before it, take what comes next for something else, and ends a connection of HTTP/2 with all of its
/// requests.
pub(crate) fn switched_unasked() -> Response<ResponseBody> {
    let text = "the backend switched to another protocol, for which nobody has asked";
    respond::text(StatusCode::BAD_GATEWAY, format!("{text}\n"))
}

/// Makes headers those of a hop of its own: of the last one an upgrade stays where it is wanted, and
/// nothing that its `Connection` names goes on.
pub(crate) fn start_hop(headers: &mut HeaderMap, upgrade: bool) {
    let protocol = headers.get(UPGRADE).cloned();
    let protocol = protocol.filter(|protocol| upgrade && !carries_requests(protocol));
    remove_hop_headers(headers);
    if let Some(protocol) = protocol {
        headers.insert(UPGRADE, protocol);
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    }
}

/// Whether further requests would come by a protocol (HTTP/2 in plain text, TLS within the connection): nobody would have
/// looked at them here, and to a backend they would come from this server, with whatever identity they claim.
fn carries_requests(protocol: &HeaderValue) -> bool {
    let Ok(protocols) = protocol.to_str() else {
        return true;
    };
    protocols.split(',').any(|protocol| {
        let protocol = protocol.trim().to_ascii_lowercase();
        ["h2", "http/", "tls/"]
            .iter()
            .any(|carrier| protocol.starts_with(carrier))
    })
}

/// Removes the headers of the connection, those that it names among them.
pub(crate) fn remove_hop_headers(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [CONNECTION, UPGRADE, TRANSFER_ENCODING] {
        headers.remove(name);
    }
    for name in ["keep-alive", "proxy-connection", "te", "trailer"] {
        headers.remove(name);
    }
}

/// Removes the headers by which a caller claims to be somebody: who it is has been decided.
pub(crate) fn strip_claims(headers: &mut HeaderMap) {
    let claims: Vec<HeaderName> = headers
        .keys()
        .filter(|name| {
            // servers behind gateways of the CGI kind take both for the same
            let name = name.as_str().replace('_', "-");
            name.starts_with("x-remote-") || name.starts_with("impersonate-")
        })
        .cloned()
        .collect();
    for name in claims {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_upgrade_carries_requests_that_nobody_has_looked_at() {
        let passed = |protocol: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(UPGRADE, HeaderValue::from_static(protocol));
            let connection = HeaderValue::from_static("Upgrade, HTTP2-Settings");
            headers.insert(CONNECTION, connection);
            headers.insert("http2-settings", HeaderValue::from_static("AAMAAABk"));
            start_hop(&mut headers, true);
            assert!(!headers.contains_key("http2-settings"));
            headers.contains_key(UPGRADE) && headers.contains_key(CONNECTION)
        };
        for protocol in ["websocket", "SPDY/3.1"] {
            assert!(passed(protocol), "{protocol}");
        }
        for protocol in ["h2c", "H2C", "websocket, h2c", "h2", "HTTP/2.0", "TLS/1.0"] {
            assert!(!passed(protocol), "{protocol}");
        }
    }
}
