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

/// The IPv4 addresses that a node has inside the cluster (`InternalIP`).
pub fn addresses_of(node: &Node) -> impl Iterator<Item = Ipv4Addr> {
    let status = node.status.as_ref();
    let all = status
        .and_then(|status| status.addresses.as_ref())
        .into_iter()
        .flatten();
    all.filter(|address| address.type_ == "InternalIP")
        .filter_map(|address| address.address.parse().ok())
}
