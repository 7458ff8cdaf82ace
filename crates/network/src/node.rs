//! What the nodes of the cluster mean for this one: its own range of pods, and the ways to those of the others.

use crate::maps::Map;
use crate::pods::PodLinks;
use crate::ruleset::{Ruleset, Update, Wanted};
use crate::tables::Tables;
use davit_net::route::{Link, Netlink};
use davit_netplan::{
    Family, Network, RangesByNode, addresses_of, external_addresses_of, number, octets, ranges_of,
};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

/// Groups: what is sent to them has many receivers.
const MULTICAST: [&str; 2] = ["224.0.0.0/4", "ff00::/8"];

/// The slices in which the controllers publish where nodes' pods are, in the index.
pub(crate) const NODES: &str = "kube-system/davit-nodes";
/// The slices in which the controllers say which node answers for which address, in the index.
pub(crate) const ADDRESSES: &str = "kube-system/davit-addresses";
/// The range of the pods of a slice's node.
const RANGE: &str = "davit.dev/pod-cidr";

/// Whether the machine passes packets on.
fn forwarding(family: Family) -> &'static str {
    match family {
        Family::V4 => "/proc/sys/net/ipv4/ip_forward",
        Family::V6 => "/proc/sys/net/ipv6/conf/all/forwarding",
    }
}

/// What counts of the cluster's nodes and ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// This node's ranges, the first one first.
    pub(crate) own: Vec<Network>,
    /// This node's addresses at which ports of Services are.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Those by which the other nodes know it, in its own order.
    pub(crate) internal: Vec<IpAddr>,
    /// Ranges of the other nodes, and where these are.
    pub(crate) others: BTreeMap<Network, IpAddr>,
    /// Ranges of the pods of all nodes, by their names.
    pub(crate) ranges: RangesByNode,
    /// Addresses of load balancers that this node answers for.
    pub(crate) announced: BTreeSet<IpAddr>,
    /// Ranges of Services.
    pub(crate) services: BTreeSet<Network>,
    /// Ranges of pods that somebody else connects.
    pub(crate) foreign: BTreeSet<Network>,
    /// More ranges whose connections to cluster addresses are not masqueraded.
    pub(crate) unmasked: BTreeSet<Network>,
}

/// Where the pods of a slice's node are.
fn route_of(slice: &EndpointSlice) -> Option<(Network, IpAddr)> {
    let range = slice.metadata.annotations.as_ref()?.get(RANGE)?;
    let endpoint = slice.endpoints.as_ref()?.first()?;
    let address = endpoint.addresses.first()?;
    let (range, address): (Network, IpAddr) = (range.parse().ok()?, address.parse().ok()?);
    // no packet of one family goes by a router of the other
    (range.family() == Family::of(address)).then_some((range, address))
}

/// The node of a slice.
fn node_of(slice: &EndpointSlice) -> Option<String> {
    slice.endpoints.as_ref()?.first()?.node_name.clone()
}

/// The addresses that this node is to answer for.
pub(crate) fn announced_by<'a>(
    node: &str,
    slices: impl IntoIterator<Item = &'a EndpointSlice>,
) -> BTreeSet<IpAddr> {
    let own = slices
        .into_iter()
        .filter(|slice| node_of(slice).as_deref() == Some(node));
    let endpoints = own.flat_map(|slice| slice.endpoints.iter().flatten());
    let addresses = endpoints.flat_map(|endpoint| &endpoint.addresses);
    addresses.filter_map(|text| text.parse().ok()).collect()
}

/// Whether a change of a node means anything here: heartbeats do not.
pub(crate) fn matters(old: &Node, new: &Node) -> bool {
    let labels = |node: &Node| node.metadata.labels.clone();
    let taints = |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.clone());
    ranges_of(old) != ranges_of(new)
        || addresses_of(old).ne(addresses_of(new))
        || external_addresses_of(old).ne(external_addresses_of(new))
        || taints(old) != taints(new)
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        || labels(old) != labels(new)
}

impl Seen {
    /// What this node and the slices of all say.
    pub(crate) fn new<'a>(
        own: Option<&Node>,
        nodes: impl IntoIterator<Item = &'a EndpointSlice>,
        services: BTreeSet<Network>,
    ) -> Self {
        let ranges = own.map(ranges_of).unwrap_or_default();
        let (mut routes, mut by_node) = (Vec::new(), RangesByNode::new());
        let name = own.and_then(|node| node.metadata.name.clone());
        if let Some(name) = name {
            by_node.insert(name, ranges.iter().copied().collect());
        }
        for slice in nodes {
            let Some((range, address)) = route_of(slice) else {
                continue;
            };
            routes.push((range, address));
            if let Some(node) = node_of(slice) {
                by_node.entry(node).or_default().insert(range);
            }
        }
        Self {
            ranges: by_node,
            addresses: own.into_iter().flat_map(addresses_of).collect(),
            internal: own.into_iter().flat_map(addresses_of).collect(),
            others: routes
                .into_iter()
                .filter(|(other, _)| !ranges.contains(other))
                .collect(),
            own: ranges,
            services,
            ..Self::default()
        }
    }

    /// The families of which there are pods or Services.
    fn families(&self) -> BTreeSet<Family> {
        let ranges = self.own.iter().chain(&self.services).chain(&self.foreign);
        ranges.map(|range| range.family()).collect()
    }

    /// Ranges in which pods and Services are.
    fn inside(&self) -> BTreeSet<Network> {
        let multicast = MULTICAST.iter().filter_map(|range| range.parse().ok());
        let own = self.own.iter().chain(self.others.keys());
        own.chain(&self.services)
            .chain(&self.unmasked)
            .copied()
            .chain(multicast)
            .collect()
    }
}

/// Joins ranges that overlap or touch: the kernel's intervals may do neither.
fn joined(ranges: &BTreeSet<Network>) -> Vec<(u128, u128)> {
    let mut all: Vec<(u128, u128)> = Vec::new();
    for range in ranges {
        let (first, last) = (number(range.first()), number(range.last()));
        match all.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => all.push((first, last)),
        }
    }
    all
}

fn enter_ranges(update: &mut Update, map: Map, ranges: &BTreeSet<Network>, family: Family) {
    let of_family = |range: &&Network| range.family() == family;
    let ranges = ranges.iter().filter(of_family).copied().collect();
    let highest = number(family.everything().last());
    for (first, last) in joined(&ranges) {
        let key = |address: u128| octets(family.address(address));
        update
            .elements
            .insert((map, (key(first), false)), Wanted::Member);
        if last < highest {
            update
                .elements
                .insert((map, (key(last + 1), true)), Wanted::Member);
        }
    }
}

/// Brings the tables to it; that of a family of which nothing is seen is left alone unless it is there. Blocks.
pub(crate) fn write_sets(tables: &Tables, seen: &Seen) -> io::Result<()> {
    for family in seen.families() {
        let has_pods = seen.own.iter().any(|range| range.family() == family);
        match tables.of(family) {
            Err(error) if !has_pods => {
                tracing::warn!(%family, %error, "this node proxies no Services of this family");
            }
            made => drop(made?),
        }
    }
    for ruleset in tables.all() {
        write_sets_of(&ruleset, seen)?;
    }
    Ok(())
}

fn write_sets_of(ruleset: &Ruleset, seen: &Seen) -> io::Result<()> {
    let family = ruleset.family();
    let mut update = Update::default();
    for address in seen
        .addresses
        .iter()
        .filter(|address| Family::of(**address) == family)
    {
        update.set(Map::NodeAddresses, octets(*address), Wanted::Member);
    }
    enter_ranges(&mut update, Map::Inside, &seen.inside(), family);
    enter_ranges(&mut update, Map::ServiceRanges, &seen.services, family);
    enter_ranges(&mut update, Map::ForeignPods, &seen.foreign, family);
    let others = seen.others.keys().copied().collect();
    enter_ranges(&mut update, Map::OtherPods, &others, family);
    for address in seen.others.values() {
        if Family::of(*address) == family {
            update.set(Map::Nodes, octets(*address), Wanted::Member);
        }
    }
    let maps = [
        Map::NodeAddresses,
        Map::Inside,
        Map::ServiceRanges,
        Map::ForeignPods,
        Map::OtherPods,
        Map::Nodes,
    ];
    ruleset.replace(&maps, update)?;
    let own = seen.own.iter().find(|range| range.family() == family);
    ruleset.set_pods(own.copied())
}

/// Makes the machine a router, with the gateway's addresses. Blocks.
pub(crate) fn become_gateway(ranges: &[Network], links: &PodLinks) -> io::Result<()> {
    let mut netlink = Netlink::open()?;
    let lo = loopback(&mut netlink)?;
    netlink.set_up(&lo)?;
    for range in ranges {
        let setting = forwarding(range.family());
        // In containers the setting is often there, and may not be written.
        if std::fs::read_to_string(setting)?.trim() != "1" {
            if range.family() == Family::V6 {
                keep_listening_to_routers()?;
            }
            std::fs::write(setting, "1")?;
        }
        netlink.add_host_address(&lo, range.gateway())?;
    }
    links.set_ranges(ranges)
}

/// A machine that becomes a router stops learning its own way out from routers (`accept_ra` 1); it would lose its
/// addresses and its default route within minutes. 2 is to go on: for the devices that are there. A device that comes later may
/// lead to somebody's containers or machines, which would tell this one its ways.
fn keep_listening_to_routers() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/sys/net/ipv6/conf")? {
        let entry = entry?;
        if entry.file_name() == "default" {
            continue;
        }
        let setting = entry.path().join("accept_ra");
        // a device may go meanwhile
        if std::fs::read_to_string(&setting).is_ok_and(|is| is.trim() == "1") {
            std::fs::write(&setting, "2")?;
        }
    }
    Ok(())
}

fn loopback(netlink: &mut Netlink) -> io::Result<Link> {
    let found = netlink.link("lo")?;
    found.ok_or_else(|| io::Error::other("no loopback device"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn slice(range: &str, address: &str) -> EndpointSlice {
        serde_json::from_value(json!({
            "metadata": { "annotations": { RANGE: range } },
            "addressType": "IPv4", "endpoints": [{ "addresses": [address], "nodeName": address }],
        }))
        .unwrap()
    }

    #[test]
    fn what_nodes_mean() {
        let own: Node = serde_json::from_value(json!({
            "metadata": { "name": "a" },
            "spec": { "podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"] },
            "status": { "addresses": [
                { "type": "Hostname", "address": "a" },
                { "type": "InternalIP", "address": "192.0.2.1" },
            ] },
        }))
        .unwrap();
        let nodes = [
            slice("10.244.0.0/24", "192.0.2.1"),
            slice("10.244.1.0/24", "192.0.2.2"),
            slice("no range", "192.0.2.3"),
        ];
        let services = ["10.96.0.0/16".parse().unwrap()].into();
        let seen = Seen::new(Some(&own), &nodes, services);
        assert_eq!(seen.own, ["10.244.0.0/24".parse().unwrap()]);
        assert_eq!(seen.addresses, ["192.0.2.1".parse().unwrap()].into());
        let b = (
            "10.244.1.0/24".parse().unwrap(),
            "192.0.2.2".parse().unwrap(),
        );
        assert_eq!(seen.others, [b].into());
        assert_eq!(seen.ranges["192.0.2.2"], [b.0].into());
        assert_eq!(seen.ranges["a"], ["10.244.0.0/24".parse().unwrap()].into());
        assert_eq!(
            seen.inside().len(),
            5,
            "two ranges, Services, groups of both families"
        );
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let ranges = [
            "10.244.0.0/24",
            "10.244.1.0/24",
            "10.244.1.128/25",
            "10.250.0.0/16",
        ];
        let ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
        let of = |text: &str| number(text.parse().unwrap());
        let expected = [
            (of("10.244.0.0"), of("10.244.1.255")),
            (of("10.250.0.0"), of("10.250.255.255")),
        ];
        assert_eq!(joined(&ranges), expected);
        let end = ["255.0.0.0/8".parse().unwrap()].into();
        let mut update = Update::default();
        enter_ranges(&mut update, Map::Inside, &end, Family::V4);
        assert_eq!(update.elements.len(), 1, "nothing comes after it");
        let six = ["fd00::/64".parse().unwrap()].into();
        enter_ranges(&mut update, Map::Inside, &six, Family::V4);
        assert_eq!(update.elements.len(), 1, "of the other family");
    }
}
