//! What a Node says of its network, read the same by those who give ranges, publish routes and make links.

use crate::Network;
use k8s_openapi::api::core::v1::Node;
use std::net::Ipv4Addr;

/// The IPv4 range of a node's pods (`spec.podCIDRs`).
#[must_use]
pub fn range_of(node: &Node) -> Option<Network> {
    let spec = node.spec.as_ref()?;
    let all = spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr);
    all.filter_map(|range| range.parse().ok()).next()
}

/// The annotation of a node whose agent proxies Services (`true`), or on which nobody can (`false`).
pub const PROXIES_SERVICES: &str = "davit.dev/service-proxy";
/// The annotation of a node on which nobody enforces network policies (`false`).
pub const ENFORCES_POLICIES: &str = "davit.dev/network-policy";

/// The IPv4 addresses that a node has inside the cluster (`InternalIP`).
pub fn addresses_of(node: &Node) -> impl Iterator<Item = Ipv4Addr> {
    of_type(node, "InternalIP")
}

/// The IPv4 addresses by which a node is reached from outside (`ExternalIP`).
pub fn external_addresses_of(node: &Node) -> impl Iterator<Item = Ipv4Addr> {
    of_type(node, "ExternalIP")
}

fn of_type<'a>(node: &'a Node, kind: &'a str) -> impl Iterator<Item = Ipv4Addr> + 'a {
    let status = node.status.as_ref();
    let all = status
        .and_then(|status| status.addresses.as_ref())
        .into_iter()
        .flatten();
    all.filter(move |address| address.type_ == kind)
        .filter_map(|address| address.address.parse().ok())
}
