//! Gives each node a range of addresses for its pods (node-ipam; spec network.md 4.2).
//!
//! A node's range is its object's: taken when it is created, free when it is deleted. Nothing else is kept.

use async_trait::async_trait;
use davit_client::{EventRecorder, ObjectKey, object_ref};
use davit_netplan::{Network, ranges_of};
use davit_reconcile::{Context, Error, Informers, Next, Reconcile, Spawner, gone_is_none};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;
use std::collections::BTreeMap;

/// The addresses of one family that pods have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterRange {
    /// All of them (`--cluster-cidr`).
    pub network: Network,
    /// Bits of a node's range (`--node-cidr-mask-size`).
    pub bits: u8,
}

/// How ranges are given to nodes: one of each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeRanges {
    /// One, or one of each family; the first is that of pods that have one address only.
    pub cluster: Vec<ClusterRange>,
    /// Addresses of Services, which no pod gets (`--service-cluster-ip-range`).
    pub services: Vec<Network>,
}

impl NodeRanges {
    /// Those of pods, then those of Services.
    pub fn all(&self) -> impl Iterator<Item = Network> {
        let cluster = self.cluster.iter().map(|range| range.network);
        cluster.chain(self.services.iter().copied())
    }
}

/// Nodes with this label run nothing, and are many: their pods need no addresses.
const SIMULATED: &str = "davit.dev/simulated";

struct Ipam {
    client: kube::Client,
    informers: Informers,
    events: EventRecorder,
    ranges: NodeRanges,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Who was given what and may not be seen with it yet.
    given: BTreeMap<String, Vec<Network>>,
    /// The part of each range that was given last.
    last: BTreeMap<Network, u32>,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>, ranges: NodeRanges) {
    let Some(spawner) = &mut spawner.start("node-ipam-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let ipam = Ipam {
        client: spawner.client.clone(),
        informers: informers.clone(),
        events: spawner.events("cidrAllocator"),
        ranges,
        state: Mutex::default(),
    };
    let queue = spawner.controller(ipam);
    let all = informers.nodes.clone();
    let matters = |old: &Node, new: &Node| ranges_of(old) != ranges_of(new);
    spawner.feed_changes(&informers.nodes, &queue, matters, move |node: &Node| {
        let key = ObjectKey::of(node);
        if all.get(None, &key.name).is_some() {
            return vec![key];
        }
        // What a node that has gone had is free for those that wait.
        let waiting = all.list();
        let waiting = waiting.iter().filter(|node| ranges_of(node).is_empty());
        let waiting = waiting.map(|node| ObjectKey::of(node.as_ref()));
        waiting.chain([key]).collect()
    });
}

/// The next free part after the last one given, wrapping; none when all are taken.
fn next_free(range: &ClusterRange, taken: &[Network], last: Option<u32>) -> Option<(u32, Network)> {
    let more = u32::from(range.bits.checked_sub(range.network.bits())?);
    let parts = 1_u32.checked_shl(more).unwrap_or(u32::MAX);
    let first = last.map_or(0, |last| last.wrapping_add(1) % parts);
    let free = |part: &Network| !taken.iter().any(|range| range.overlaps(*part));
    let order = (first..parts).chain(0..first);
    let mut parts = order.filter_map(|index| Some((index, range.network.part(range.bits, index)?)));
    parts.find(|(_, part)| free(part))
}

impl Ipam {
    /// Takes a range of each family for the node, or finds those that it was given before; none when one is used up.
    fn take(&self, name: &str) -> Option<Vec<Network>> {
        let nodes = self.informers.nodes.list();
        let mut state = self.state.lock();
        // What is seen need not be remembered.
        state.given.retain(|name, ranges| {
            let node = self.informers.nodes.get(None, name);
            node.is_some_and(|node| ranges_of(&node) != *ranges)
        });
        if let Some(given) = state.given.get(name) {
            return Some(given.clone());
        }
        let seen = nodes.iter().flat_map(|node| ranges_of(node));
        let given = state.given.values().flatten().copied();
        let services = self.ranges.services.iter().copied();
        let taken: Vec<Network> = seen.chain(given).chain(services).collect();
        let parts = self.ranges.cluster.iter().map(|range| {
            let last = state.last.get(&range.network).copied();
            Some((range.network, next_free(range, &taken, last)?))
        });
        let parts = parts.collect::<Option<Vec<_>>>()?;
        let ranges: Vec<Network> = parts.iter().map(|(_, (_, part))| *part).collect();
        let last = parts.iter().map(|(network, (index, _))| (*network, *index));
        state.last.extend(last);
        state.given.insert(name.to_owned(), ranges.clone());
        Some(ranges)
    }
}

#[async_trait]
impl Reconcile for Ipam {
    const NAME: &'static str = "node-ipam";
    /// One after the other: each sees what those before it were given.
    const WORKERS: usize = 1;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(node) = self.informers.nodes.get(None, &key.name) else {
            return Ok(Next::Wait);
        };
        let has_range = node.spec.as_ref().is_some_and(|spec| {
            spec.pod_cidr.is_some() || spec.pod_cidrs.as_ref().is_some_and(|all| !all.is_empty())
        });
        let labels = node.metadata.labels.as_ref();
        let is_simulated = labels.is_some_and(|labels| labels.contains_key(SIMULATED));
        if has_range || is_simulated {
            return Ok(Next::Wait);
        }
        let Some(ranges) = self.take(&key.name) else {
            let text = format!("Node {} status is now: CIDRNotAvailable", key.name);
            let about = object_ref(node.as_ref());
            self.events.normal(&about, "CIDRNotAvailable", text);
            return Ok(Next::Wait);
        };
        let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        let patch = json!({ "spec": { "podCIDR": texts.first(), "podCIDRs": texts } });
        let api: kube::Api<Node> = kube::Api::all(self.client.clone());
        let params = PatchParams::default();
        let written = api
            .patch(&key.name, &params, &Patch::Strategic(patch))
            .await;
        gone_is_none(written)
            .context(|| format!("give node {} the ranges {}", key.name, texts.join(", ")))?;
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_go_round() {
        let range = ClusterRange {
            network: "10.244.0.0/22".parse().unwrap(),
            bits: 24,
        };
        let part = |text: &str| text.parse::<Network>().unwrap();
        let services = part("10.244.3.0/25");
        let none = next_free(&range, &[services], None);
        assert_eq!(none, Some((0, part("10.244.0.0/24"))));
        let taken = [services, part("10.244.1.0/24")];
        let next = next_free(&range, &taken, Some(0));
        assert_eq!(next, Some((2, part("10.244.2.0/24"))));
        let next = next_free(&range, &taken, Some(2));
        assert_eq!(
            next,
            Some((0, part("10.244.0.0/24"))),
            "Services have the last"
        );
        // One that somebody else has chosen, of another size.
        let taken = [services, part("10.244.0.0/23"), part("10.244.2.64/26")];
        assert_eq!(next_free(&range, &taken, None), None);
        let wider = ClusterRange { bits: 21, ..range };
        assert_eq!(next_free(&wider, &[], None), None);
    }

    #[test]
    fn ranges_of_ipv6_go_round_as_well() {
        let range = ClusterRange {
            network: "fd00:10:244::/48".parse().unwrap(),
            bits: 64,
        };
        let part = |text: &str| text.parse::<Network>().unwrap();
        assert_eq!(
            next_free(&range, &[], Some(6)),
            Some((7, part("fd00:10:244:7::/64")))
        );
        assert_eq!(
            next_free(&range, &[], Some(65535)),
            Some((0, part("fd00:10:244::/64")))
        );
        let services = part("fd00:10:244::/112");
        assert_eq!(
            next_free(&range, &[services], None),
            Some((1, part("fd00:10:244:1::/64")))
        );
        // more parts than numbers
        let wide = ClusterRange {
            network: "fd00::/8".parse().unwrap(),
            bits: 64,
        };
        assert_eq!(next_free(&wide, &[], None), Some((0, part("fd00::/64"))));
    }
}
