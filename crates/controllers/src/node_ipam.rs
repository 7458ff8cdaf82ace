//! Gives each node a range of addresses for its pods (node-ipam; spec network.md 4.2).
//!
//! A node's range is its object's: taken when it is created, free when it is deleted. Nothing else is kept.

use crate::controller::{Context, Error, Next, Reconcile, Spawner, gone_is_none};
use crate::informers::Informers;
use async_trait::async_trait;
use davit_client::{EventRecorder, ObjectKey, object_ref};
use davit_netplan::{Network, range_of};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;
use std::collections::BTreeMap;

/// How ranges are given to nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeRanges {
    /// All pods' addresses (`--cluster-cidr`).
    pub cluster: Network,
    /// Bits of a node's range (`--node-cidr-mask-size`).
    pub bits: u8,
    /// Addresses of Services, which no pod gets (`--service-cluster-ip-range`).
    pub services: Option<Network>,
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
    given: BTreeMap<String, Network>,
    /// The part that was given last.
    last: Option<u32>,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>, ranges: NodeRanges) {
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
    let matters = |old: &Node, new: &Node| range_of(old) != range_of(new);
    spawner.feed_changes(&informers.nodes, &queue, matters, move |node: &Node| {
        let key = ObjectKey::of(node);
        if all.get(None, &key.name).is_some() {
            return vec![key];
        }
        // What a node that has gone had is free for those that wait.
        let waiting = all.list();
        let waiting = waiting.iter().filter(|node| range_of(node).is_none());
        let waiting = waiting.map(|node| ObjectKey::of(node.as_ref()));
        waiting.chain([key]).collect()
    });
}

/// The next free part after the last one given, wrapping; none when all are taken.
fn next_free(ranges: &NodeRanges, taken: &[Network], last: Option<u32>) -> Option<(u32, Network)> {
    let parts = 1_u64 << ranges.bits.checked_sub(ranges.cluster.bits())?;
    let parts = u32::try_from(parts).unwrap_or(u32::MAX);
    let first = last.map_or(0, |last| last.wrapping_add(1) % parts);
    let free = |part: &Network| {
        !taken
            .iter()
            .chain(&ranges.services)
            .any(|range| range.overlaps(*part))
    };
    let order = (first..parts).chain(0..first);
    let parts = order.filter_map(|index| Some((index, ranges.cluster.part(ranges.bits, index)?)));
    parts.into_iter().find(|(_, part)| free(part))
}

impl Ipam {
    /// Takes a range for the node, or finds the one that it was given before.
    fn take(&self, name: &str) -> Option<Network> {
        let nodes = self.informers.nodes.list();
        let mut state = self.state.lock();
        // What is seen need not be remembered.
        state.given.retain(|name, range| {
            let node = self.informers.nodes.get(None, name);
            node.is_some_and(|node| range_of(&node) != Some(*range))
        });
        if let Some(given) = state.given.get(name) {
            return Some(*given);
        }
        let seen = nodes.iter().filter_map(|node| range_of(node));
        let taken: Vec<Network> = seen.chain(state.given.values().copied()).collect();
        let (index, range) = next_free(&self.ranges, &taken, state.last)?;
        state.last = Some(index);
        state.given.insert(name.to_owned(), range);
        Some(range)
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
        let Some(range) = self.take(&key.name) else {
            let text = format!("Node {} status is now: CIDRNotAvailable", key.name);
            let about = object_ref(node.as_ref());
            self.events.normal(&about, "CIDRNotAvailable", text);
            return Ok(Next::Wait);
        };
        let range = range.to_string();
        let patch = json!({ "spec": { "podCIDR": range, "podCIDRs": [range] } });
        let api: kube::Api<Node> = kube::Api::all(self.client.clone());
        let params = PatchParams::default();
        let written = api
            .patch(&key.name, &params, &Patch::Strategic(patch))
            .await;
        gone_is_none(written).context(|| format!("give node {} the range {range}", key.name))?;
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_go_round() {
        let ranges = NodeRanges {
            cluster: "10.244.0.0/22".parse().unwrap(),
            bits: 24,
            services: "10.244.3.0/25".parse().ok(),
        };
        let part = |text: &str| text.parse::<Network>().unwrap();
        let none = next_free(&ranges, &[], None);
        assert_eq!(none, Some((0, part("10.244.0.0/24"))));
        let taken = [part("10.244.1.0/24")];
        let next = next_free(&ranges, &taken, Some(0));
        assert_eq!(next, Some((2, part("10.244.2.0/24"))));
        let next = next_free(&ranges, &taken, Some(2));
        assert_eq!(
            next,
            Some((0, part("10.244.0.0/24"))),
            "Services have the last"
        );
        // One that somebody else has chosen, of another size.
        let taken = [part("10.244.0.0/23"), part("10.244.2.64/26")];
        assert_eq!(next_free(&ranges, &taken, None), None);
        let wider = NodeRanges { bits: 21, ..ranges };
        assert_eq!(next_free(&wider, &[], None), None);
    }
}
