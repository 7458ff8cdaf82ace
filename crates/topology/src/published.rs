//! What a node publishes of its NUMA nodes, and whether it would take a pod: the node's own rules
//! over counts, for the scheduler.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::devices::{ContainerKind, Group, subset_hints};
use crate::hints::{Policy, PolicyKind, ProviderHints, TopologyHint};
use crate::memory::{MemoryReuse, MemoryState};
use crate::numa::{Machine, NumaMask};
use crate::pod::ContainerAsk;

/// Name of the attribute of a NodeResourceTopology that carries a [`NodeState`] as JSON.
pub const ATTRIBUTE: &str = "davit.dev/state";

/// How many of a resource sit on the same NUMA nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// The nodes; empty for what has no place.
    pub nodes: NumaMask,
    /// Of any state.
    pub all: usize,
    /// Free.
    pub available: usize,
    /// Of all, those that are the system's and never given out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reserved: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// Everything the node's decision depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeState {
    /// Topology manager policy.
    pub policy: PolicyKind,
    /// `prefer-closest-numa-nodes`.
    #[serde(default)]
    pub prefer_closest: bool,
    /// Scope `pod` instead of `container`.
    #[serde(default)]
    pub pod_scope: bool,
    /// NUMA nodes in ascending order.
    pub nodes: Vec<u32>,
    /// Their distances, a row a node.
    #[serde(default)]
    pub distances: Vec<Vec<u32>>,
    /// Devices by resource name, and CPUs (`cpu`) where they are given out exclusively.
    #[serde(default)]
    pub counts: BTreeMap<String, Vec<Count>>,
    /// Threads a core where only whole cores are given out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus_per_core: Option<usize>,
    /// The sockets' nodes, with `align-by-socket`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<NumaMask>,
    /// Memory, where it is given out exclusively.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryState>,
    /// NUMA nodes of the PCIe root complexes, `pci<domain>:<bus>`: where claimed devices are that say no more.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pcie_roots: BTreeMap<String, u32>,
    /// UIDs of the pods that are counted as holding something.
    #[serde(default)]
    pub pods: BTreeSet<String>,
}

/// Why a node would refuse a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No placement on NUMA nodes satisfies the policy.
    #[error("node(s) cannot align the resources of the pod on NUMA nodes")]
    Topology,
    /// The number of CPUs does not fit whole cores.
    #[error(
        "node(s) only give out whole CPU cores, of which the pod does not ask for a whole number"
    )]
    Cores,
}

impl NodeState {
    /// The NUMA nodes as hint merging needs them.
    fn machine(&self) -> Machine {
        let nodes = NumaMask::from_nodes(self.nodes.iter().copied()).unwrap_or(NumaMask::EMPTY);
        if self.distances.len() == self.nodes.len() {
            Machine::with_distances(nodes, &self.distances)
        } else {
            Machine::uniform(nodes)
        }
    }

    /// Takes a pod into account that the node does not know yet.
    ///
    /// # Errors
    /// The node would refuse it.
    pub fn place(&mut self, asks: &[ContainerAsk]) -> Result<(), Refusal> {
        let policy = Policy {
            kind: self.policy,
            prefer_closest: self.prefer_closest,
        };
        if let Some(per_core) = self.cpus_per_core
            && asks.iter().any(|a| !a.cpus.is_multiple_of(per_core))
        {
            return Err(Refusal::Cores);
        }
        let machine = self.machine();
        let mut pod_hint = None;
        for ask in asks {
            if !self.concerns(ask) {
                continue;
            }
            let hint = match pod_hint {
                Some(hint) => hint,
                None => {
                    let providers = if self.pod_scope {
                        self.hints(&total(asks))
                    } else {
                        self.hints(ask)
                    };
                    let merged = policy.merge(&machine, &providers);
                    if !merged.admit {
                        return Err(Refusal::Topology);
                    }
                    merged.hint
                }
            };
            if self.pod_scope {
                pod_hint = Some(hint);
            }
            // What an ordinary init container holds is handed on to those after it.
            if ask.kind != ContainerKind::Init {
                self.take(ask, hint);
            }
        }
        Ok(())
    }

    fn concerns(&self, ask: &ContainerAsk) -> bool {
        (ask.cpus > 0 && self.counts.contains_key("cpu"))
            || (self.memory.is_some() && !ask.memory.is_empty())
            || ask.extended.keys().any(|r| self.counts.contains_key(r))
            || !ask.claims.is_empty()
    }

    fn hints(&self, ask: &ContainerAsk) -> Vec<ProviderHints> {
        let devices = ask
            .extended
            .iter()
            .filter_map(|(resource, n)| Some((resource, *n, self.counts.get(resource)?)))
            .map(|(resource, n, counts)| (resource.clone(), self.count_hints(counts, n, false)));
        let mut providers = vec![devices.collect::<ProviderHints>()];
        if let Some(counts) = self.counts.get("cpu").filter(|_| ask.cpus > 0) {
            let hints = self.count_hints(counts, ask.cpus, true);
            providers.push(ProviderHints::from([("cpu".to_owned(), hints)]));
        }
        if let Some(memory) = self.memory.as_ref().filter(|_| !ask.memory.is_empty()) {
            let hints = memory.hints(&ask.memory, &MemoryReuse::new());
            let kinds = ask.memory.keys();
            providers.push(kinds.map(|k| (k.clone(), Some(hints.clone()))).collect());
        }
        if !ask.claims.is_empty() {
            let fixed = ask.claims.iter();
            let fixed = fixed.map(|(c, nodes)| (c.clone(), vec![TopologyHint::new(*nodes, true)]));
            providers.push(fixed.map(|(claim, hints)| (claim, Some(hints))).collect());
        }
        providers
    }

    fn count_hints(
        &self,
        counts: &[Count],
        request: usize,
        cpus: bool,
    ) -> Option<Vec<TopologyHint>> {
        let placed: Vec<Group> = counts
            .iter()
            .filter(|c| !c.nodes.is_empty())
            .map(|c| Group {
                nodes: c.nodes,
                all: c.all,
                available: c.available,
                reusable: 0,
            })
            .collect();
        if placed.is_empty() {
            return None;
        }
        if counts.iter().map(|c| c.available).sum::<usize>() < request {
            return Some(Vec::new());
        }
        let nodes = placed.iter().fold(NumaMask::EMPTY, |m, g| m | g.nodes);
        let nodes = nodes & self.machine().nodes();
        let (mut hints, least) = subset_hints(nodes, &placed, request);
        if cpus && !self.sockets.is_empty() {
            let per_socket = (nodes.count() as usize / self.sockets.len()).max(1);
            let fewest = (least as usize).div_ceil(per_socket);
            for hint in &mut hints {
                let touched = |m: NumaMask| self.sockets.iter().filter(|s| s.intersects(m)).count();
                hint.preferred |= hint.mask.is_some_and(|m| touched(m) == fewest);
            }
        }
        Some(hints)
    }

    fn take(&mut self, ask: &ContainerAsk, hint: TopologyHint) {
        let cpus = (ask.cpus > 0).then(|| ("cpu".to_owned(), ask.cpus));
        let devices = ask.extended.iter().map(|(r, n)| (r.clone(), *n));
        for (resource, mut need) in devices.chain(cpus) {
            let Some(counts) = self.counts.get_mut(&resource) else {
                continue;
            };
            let aligned = |c: &Count| hint.mask.is_none_or(|m| c.nodes.intersects(m));
            // First what fits the hint, then what is elsewhere, as the node does.
            for fits in [true, false] {
                for count in counts.iter_mut().filter(|c| aligned(c) == fits) {
                    let taken = need.min(count.available);
                    count.available -= taken;
                    need -= taken;
                }
            }
        }
        if let Some(memory) = self.memory.as_mut().filter(|_| !ask.memory.is_empty())
            && let Ok(blocks) = memory.choose(&ask.memory, &MemoryReuse::new(), hint)
        {
            blocks.iter().for_each(|b| memory.book(b));
        }
    }
}

/// A pod as one container (scope `pod`).
fn total(asks: &[ContainerAsk]) -> ContainerAsk {
    let kinds: BTreeSet<&String> = asks.iter().flat_map(|a| a.memory.keys()).collect();
    let names: BTreeSet<&String> = asks.iter().flat_map(|a| a.extended.keys()).collect();
    let memory = |kind: &String| {
        let each = asks
            .iter()
            .map(|a| (a.kind, a.memory.get(kind).copied().unwrap_or(0)));
        (kind.clone(), pod_total(each))
    };
    let extended = |name: &String| {
        let each = asks
            .iter()
            .map(|a| (a.kind, a.extended.get(name).copied().unwrap_or(0)));
        (name.clone(), pod_total(each))
    };
    ContainerAsk {
        container: String::new(),
        kind: ContainerKind::App,
        cpus: pod_total(asks.iter().map(|a| (a.kind, a.cpus))),
        memory: kinds.into_iter().map(memory).collect(),
        extended: names.into_iter().map(extended).collect(),
        claims: all_claims(asks),
    }
}

/// Each claim once, with what all containers have of it.
fn all_claims(asks: &[ContainerAsk]) -> BTreeMap<String, NumaMask> {
    let mut all: BTreeMap<String, NumaMask> = BTreeMap::new();
    for (claim, nodes) in asks.iter().flat_map(|a| &a.claims) {
        let known = all.entry(claim.clone()).or_insert(NumaMask::EMPTY);
        *known = *known | *nodes;
    }
    all
}

/// What a pod asks for at once when its containers ask for these amounts in the order in which
/// they start: sidecars run beside all that follow, ordinary init containers one by one.
pub fn pod_total<T>(amounts: impl IntoIterator<Item = (ContainerKind, T)>) -> T
where
    T: Copy + Default + Ord + std::ops::Add<Output = T>,
{
    let (mut sidecars, mut peak, mut apps) = (T::default(), T::default(), T::default());
    for (kind, amount) in amounts {
        match kind {
            ContainerKind::Sidecar => sidecars = sidecars + amount,
            ContainerKind::Init => peak = peak.max(sidecars + amount),
            ContainerKind::App => apps = apps + amount,
        }
    }
    peak.max(sidecars + apps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(nodes: u64, n: usize) -> Count {
        Count {
            nodes: NumaMask::from_bits(nodes),
            all: n,
            available: n,
            reserved: 0,
        }
    }

    fn state(policy: PolicyKind) -> NodeState {
        NodeState {
            policy,
            prefer_closest: false,
            pod_scope: false,
            nodes: vec![0, 1],
            distances: Vec::new(),
            counts: BTreeMap::from([
                ("cpu".to_owned(), vec![count(1, 4), count(2, 4)]),
                ("a.com/x".to_owned(), vec![count(1, 1), count(2, 1)]),
            ]),
            cpus_per_core: None,
            sockets: Vec::new(),
            memory: None,
            pcie_roots: BTreeMap::new(),
            pods: BTreeSet::new(),
        }
    }

    fn ask(cpus: usize, devices: usize) -> ContainerAsk {
        ContainerAsk {
            container: "c".to_owned(),
            kind: ContainerKind::App,
            cpus,
            memory: BTreeMap::new(),
            extended: [("a.com/x".to_owned(), devices)]
                .into_iter()
                .filter(|(_, n)| *n > 0)
                .collect(),
            claims: BTreeMap::new(),
        }
    }

    #[test]
    fn claimed_devices_stay_where_they_are() {
        let beside = |cpus, claims: &[(&str, u64)]| ContainerAsk {
            claims: claims
                .iter()
                .map(|(c, bits)| ((*c).to_owned(), NumaMask::from_bits(*bits)))
                .collect(),
            ..ask(cpus, 0)
        };
        let mut s = state(PolicyKind::SingleNumaNode);
        assert_eq!(s.place(&[beside(3, &[("far", 2)])]), Ok(()));
        // One CPU is left beside it; node 0 has all.
        assert_eq!(
            s.clone().place(&[beside(2, &[("far", 2)])]),
            Err(Refusal::Topology)
        );
        assert_eq!(s.clone().place(&[beside(2, &[("near", 1)])]), Ok(()));
        assert_eq!(
            s.clone().place(&[beside(0, &[("both", 3)])]),
            Err(Refusal::Topology)
        );
        let apart = [beside(1, &[("far", 2)]), beside(1, &[("near", 1)])];
        assert_eq!(s.clone().place(&apart), Ok(()));
        s.pod_scope = true;
        assert_eq!(s.place(&apart), Err(Refusal::Topology));
    }

    #[test]
    fn pods_are_placed_until_the_node_would_refuse() {
        let mut s = state(PolicyKind::SingleNumaNode);
        assert_eq!(s.place(&[ask(5, 0)]), Err(Refusal::Topology));
        assert_eq!(s.place(&[ask(3, 0)]), Ok(()));
        // Node 0 has one CPU left and its device, node 1 everything.
        assert_eq!(s.place(&[ask(2, 2)]), Err(Refusal::Topology));
        assert_eq!(s.place(&[ask(2, 1)]), Ok(()));
        assert_eq!(s.place(&[ask(2, 1)]), Err(Refusal::Topology));
        assert_eq!(s.place(&[ask(1, 1)]), Ok(()));
        let mut any = state(PolicyKind::BestEffort);
        assert_eq!(any.place(&[ask(5, 2)]), Ok(()));
    }

    #[test]
    fn whole_pods_and_whole_cores() {
        let mut s = state(PolicyKind::SingleNumaNode);
        assert_eq!(s.clone().place(&[ask(3, 0), ask(3, 0)]), Ok(()));
        s.pod_scope = true;
        assert_eq!(s.place(&[ask(3, 0), ask(3, 0)]), Err(Refusal::Topology));
        s.cpus_per_core = Some(2);
        assert_eq!(s.place(&[ask(3, 0)]), Err(Refusal::Cores));
    }

    #[test]
    fn it_survives_the_way_through_json() {
        let mut s = state(PolicyKind::Restricted);
        s.memory = Some(MemoryState::new(
            &crate::hardware::Hardware::grid(2, 1, 1, 1, 1 << 30),
            &BTreeMap::new(),
        ));
        let json = serde_json::to_string(&s).unwrap();
        assert_eq!(serde_json::from_str::<NodeState>(&json).unwrap(), s);
    }

    #[test]
    fn pod_totals() {
        use ContainerKind::{App, Init, Sidecar};
        assert_eq!(pod_total([(Sidecar, 1), (Init, 5), (App, 2), (App, 1)]), 6);
        assert_eq!(pod_total([(Init, 5), (Sidecar, 3), (App, 3)]), 6);
        assert_eq!(pod_total::<usize>([]), 0);
    }
}
