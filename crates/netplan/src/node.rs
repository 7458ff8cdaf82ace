//! What a Node says of its network, read the same by those who give ranges, publish routes and make links.

use crate::{Family, Network};
use k8s_openapi::api::core::v1::Node;
use std::net::IpAddr;

/// The ranges of a node's pods, the first one first (`spec.podCIDRs`): at most one of each family.
#[must_use]
pub fn ranges_of(node: &Node) -> Vec<Network> {
    let spec = node.spec.as_ref();
    let all = spec
        .into_iter()
        .flat_map(|spec| spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr));
    let mut found: Vec<Network> = Vec::new();
    for range in all.filter_map(|range| range.parse::<Network>().ok()) {
        if found.iter().all(|known| known.family() != range.family()) {
            found.push(range);
        }
    }
    found
}

/// The range of this family.
#[must_use]
pub fn range_of(node: &Node, family: Family) -> Option<Network> {
    ranges_of(node)
        .into_iter()
        .find(|range| range.family() == family)
}

/// The annotation of a node whose agent proxies Services (`true`), or on which nobody can (`false`).
pub const PROXIES_SERVICES: &str = "davit.dev/service-proxy";
/// The annotation of a node on which nobody enforces network policies (`false`).
pub const ENFORCES_POLICIES: &str = "davit.dev/network-policy";

/// The addresses that a node has inside the cluster (`InternalIP`).
pub fn addresses_of(node: &Node) -> impl Iterator<Item = IpAddr> {
    of_type(node, "InternalIP")
}

/// The addresses by which a node is reached from outside (`ExternalIP`).
pub fn external_addresses_of(node: &Node) -> impl Iterator<Item = IpAddr> {
    of_type(node, "ExternalIP")
}

/// Whether other machines can reach somebody at this address: it is no loopback, link-local or unspecified one, none of
/// which an endpoint may have.
#[must_use]
pub fn leads_elsewhere(address: &IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !address.is_loopback() && !is_link_local && !address.is_unspecified()
}

fn of_type<'a>(node: &'a Node, kind: &'a str) -> impl Iterator<Item = IpAddr> + 'a {
    let status = node.status.as_ref();
    let all = status
        .and_then(|status| status.addresses.as_ref())
        .into_iter()
        .flatten();
    all.filter(move |address| address.type_ == kind)
        .filter_map(|address| address.address.parse().ok())
}
