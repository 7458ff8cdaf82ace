//! What a Node may not be: another server than a node's agent.
//!
//! A node says itself where it is reached. Led to an API server, what is forwarded to the node would be asked there with
//! the rights of this one.

use std::io;
use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use crate::server::ApiServer;

/// The Service of the API servers, in namespace `default`, and its endpoints.
const KUBERNETES: &str = "kubernetes";

/// Whether any of the addresses is an API server's, as far as is known, or a Service's, which leads anywhere.
///
/// # Errors
/// When it cannot be found out.
pub(super) async fn is_any(server: &ApiServer, addresses: &[SocketAddr]) -> io::Result<bool> {
    let own = [server.listens(), *server.for_pods().borrow()];
    let services = server.service_addresses();
    for address in addresses {
        if own.iter().flatten().any(|own| leads_to(*own, *address)) {
            return Ok(true);
        }
        if services.may_hold(address.ip().to_canonical()).await {
            return Ok(true);
        }
    }
    let endpoints = server
        .object("", "endpoints", "default", KUBERNETES)
        .await
        .map_err(|status| io::Error::other(status.message))?;
    let known = endpoints.as_deref().map(sockets).unwrap_or_default();
    Ok(addresses.iter().any(|address| {
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        known.contains(&address)
    }))
}

/// Whether something that listens there is reached at the address.
fn leads_to(listens: SocketAddr, address: SocketAddr) -> bool {
    let (own, asked) = (listens.ip().to_canonical(), address.ip().to_canonical());
    listens.port() == address.port()
        && (own == asked || own.is_unspecified() || asked.is_loopback())
}

/// Where the endpoints of an object are.
fn sockets(endpoints: &Value) -> Vec<SocketAddr> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for subset in list(&endpoints["subsets"]) {
        let ports: Vec<u16> = list(&subset["ports"])
            .iter()
            .filter_map(|port| u16::try_from(port["port"].as_u64()?).ok())
            .collect();
        for address in list(&subset["addresses"]) {
            let ip = address["ip"]
                .as_str()
                .and_then(|ip| ip.parse::<IpAddr>().ok());
            let all = ip.into_iter().flat_map(|ip| {
                let ports = ports.iter();
                ports.map(move |port| SocketAddr::new(ip.to_canonical(), *port))
            });
            found.extend(all);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_leads_to_an_api_server_is_known() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (listens, address, leads) in [
            ("10.0.0.1:6443", "10.0.0.1:6443", true),
            ("10.0.0.1:6443", "[::ffff:10.0.0.1]:6443", true),
            ("0.0.0.0:6443", "10.0.0.9:6443", true),
            ("[::]:6443", "10.0.0.9:6443", true),
            ("10.0.0.1:6443", "127.0.0.1:6443", true),
            ("10.0.0.1:6443", "10.0.0.1:10250", false),
            ("10.0.0.1:6443", "10.0.0.2:6443", false),
        ] {
            assert_eq!(
                leads_to(at(listens), at(address)),
                leads,
                "{listens} {address}"
            );
        }
        let endpoints = json!({"subsets": [{
            "addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}], "ports": [{"port": 6443}],
        }]});
        let all = [at("10.0.0.1:6443"), at("10.0.0.2:6443")];
        assert_eq!(sockets(&endpoints), all);
    }
}
