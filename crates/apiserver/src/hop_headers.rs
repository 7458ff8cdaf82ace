//! Headers that are good for one hop only, or that only this server may set.

use http::HeaderMap;
use http::header::{CONNECTION, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};

/// Makes headers those of a hop of its own: of the last one an upgrade stays where it is wanted, and
/// nothing that its `Connection` names goes on.
pub(crate) fn start_hop(headers: &mut HeaderMap, upgrade: bool) {
    let protocol = headers.get(UPGRADE).cloned().filter(|_| upgrade);
    remove_hop_headers(headers);
    if let Some(protocol) = protocol {
        headers.insert(UPGRADE, protocol);
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    }
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
