//! Topology hints and their merge, as the topology manager does it (KEP-693).
//!
//! The answer is the kubelet's for every input. The kubelet walks the product of all lists; here
//! the two questions are asked one after the other: is there a permutation whose hints are all
//! preferred and all name the same nodes, and if not, which reachable intersection ranks best. The
//! second is a depth-first walk that visits each intersection once and leaves out whatever cannot
//! beat the best one found so far.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde::{Deserialize, Serialize};

use crate::numa::{Machine, NumaMask};

/// One way to satisfy a request: the NUMA nodes it would come from and whether that is as narrow
/// as it can be. No mask means "any node".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TopologyHint {
    /// The nodes, or none where the provider has no preference.
    pub mask: Option<NumaMask>,
    /// Whether this is the narrowest placement the machine could give in principle.
    pub preferred: bool,
}

impl TopologyHint {
    /// A hint for these nodes.
    pub const fn new(mask: NumaMask, preferred: bool) -> Self {
        Self {
            mask: Some(mask),
            preferred,
        }
    }

    /// A hint without a preference for nodes.
    pub const fn any(preferred: bool) -> Self {
        Self {
            mask: None,
            preferred,
        }
    }
}

/// The hints of one provider, by resource name.
///
/// An absent list (`None`) means no preference; an empty list means that the request cannot be
/// met on any set of nodes.
pub type ProviderHints = BTreeMap<String, Option<Vec<TopologyHint>>>;

/// The topology manager policies by their configuration names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyKind {
    /// No alignment.
    #[default]
    None,
    /// The best hint is used, nothing is refused.
    BestEffort,
    /// Only preferred hints are admitted.
    Restricted,
    /// Only placements on one node are admitted.
    SingleNumaNode,
}

/// A policy with its options.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Policy {
    /// Which policy.
    pub kind: PolicyKind,
    /// The option `prefer-closest-numa-nodes`; only best-effort and restricted look at it.
    pub prefer_closest: bool,
}

/// What a merge decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merged {
    /// The hint to be stored for the container or pod and honoured by every provider.
    pub hint: TopologyHint,
    /// Whether the policy admits the pod with this hint. When not, the pod is refused with
    /// `TopologyAffinityError`.
    pub admit: bool,
}

impl Policy {
    /// A policy without options.
    pub const fn new(kind: PolicyKind) -> Self {
        Self {
            kind,
            prefer_closest: false,
        }
    }

    /// Merges the hints of all providers into one.
    pub fn merge(self, machine: &Machine, providers: &[ProviderHints]) -> Merged {
        match self.kind {
            PolicyKind::None => Merged {
                hint: TopologyHint::any(false),
                admit: true,
            },
            PolicyKind::BestEffort => {
                let hint = best_hint(machine, &lists(providers), self.prefer_closest);
                Merged { hint, admit: true }
            }
            PolicyKind::Restricted => {
                let hint = best_hint(machine, &lists(providers), self.prefer_closest);
                Merged {
                    hint,
                    admit: hint.preferred,
                }
            }
            PolicyKind::SingleNumaNode => {
                let mut lists = lists(providers);
                for list in &mut lists {
                    list.retain(|h| h.preferred && h.mask.is_none_or(|m| m.count() == 1));
                }
                let mut hint = best_hint(machine, &lists, false);
                // "All nodes" is no alignment: nothing is stored that providers would have to meet.
                if hint.mask == Some(machine.nodes()) {
                    hint.mask = None;
                }
                Merged {
                    hint,
                    admit: hint.preferred,
                }
            }
        }
    }
}

/// One list per provider and resource, with the meaning of absent and empty lists written out.
fn lists(providers: &[ProviderHints]) -> Vec<Vec<TopologyHint>> {
    let mut lists = Vec::new();
    for provider in providers {
        if provider.is_empty() {
            lists.push(vec![TopologyHint::any(true)]);
        }
        for list in provider.values() {
            lists.push(match list {
                None => vec![TopologyHint::any(true)],
                Some(hints) if hints.is_empty() => vec![TopologyHint::any(false)],
                Some(hints) => hints.clone(),
            });
        }
    }
    lists
}

/// The best hint over all permutations of one hint from each list.
fn best_hint(machine: &Machine, lists: &[Vec<TopologyHint>], prefer_closest: bool) -> TopologyHint {
    let order = Order {
        machine,
        narrowest: max_of_narrowest(lists),
        prefer_closest,
    };
    if lists.iter().any(Vec::is_empty) {
        return TopologyHint::new(machine.nodes(), false);
    }
    if let Some(mask) = best_preferred(&order, lists) {
        return TopologyHint::new(mask, true);
    }
    match Search::new(&order, lists).run() {
        Some(mask) => TopologyHint::new(mask, false),
        None => TopologyHint::new(machine.nodes(), false),
    }
}

/// The largest, over the lists, of the bit count of the narrowest mask in the list.
fn max_of_narrowest(lists: &[Vec<TopologyHint>]) -> u32 {
    let narrowest = |list: &Vec<TopologyHint>| {
        list.iter()
            .filter_map(|h| h.mask)
            .map(NumaMask::count)
            .filter(|&c| c > 0)
            .min()
    };
    lists.iter().filter_map(narrowest).max().unwrap_or(0)
}

/// The best permutation whose hints are all preferred and whose masks are all the same: a mask that
/// every list either names as preferred or leaves open.
fn best_preferred(order: &Order<'_>, lists: &[Vec<TopologyHint>]) -> Option<NumaMask> {
    struct Preferred {
        open: bool,
        masks: HashSet<NumaMask>,
    }
    let preferred: Vec<Preferred> = lists
        .iter()
        .map(|list| {
            let hints = || list.iter().filter(|h| h.preferred);
            Preferred {
                open: hints().any(|h| h.mask.is_none()),
                masks: hints().filter_map(|h| h.mask).collect(),
            }
        })
        .collect();
    let all = order.machine.nodes();
    let anywhere = preferred.iter().all(|p| p.open).then_some(all);
    let shared = preferred
        .iter()
        .flat_map(|p| &p.masks)
        .filter(|mask| preferred.iter().all(|p| p.open || p.masks.contains(mask)))
        .map(|&mask| mask & all);
    shared
        .chain(anywhere)
        .filter(|m| !m.is_empty())
        .min_by_key(|&m| order.fitness(m))
}

/// How masks are ranked; a smaller rank is better.
struct Order<'a> {
    machine: &'a Machine,
    /// The bit count at which no list has to be stretched: `B` in the rules.
    narrowest: u32,
    prefer_closest: bool,
}

/// First the class (exactly `B` bits, fewer, more), then the bit count (fewer than `B`: more is
/// better; more than `B`: fewer is better), the distance where it counts, the mask's value.
type Rank = (u8, u32, u64, u64);

impl Order<'_> {
    /// Among masks of which none has to be stretched: narrower, then closer, then smaller.
    fn fitness(&self, mask: NumaMask) -> (u32, u64, u64) {
        (mask.count(), self.distance(mask), mask.bits())
    }

    fn distance(&self, mask: NumaMask) -> u64 {
        if self.prefer_closest {
            self.machine.distance_sum(mask)
        } else {
            0
        }
    }

    fn rank(&self, mask: NumaMask) -> Rank {
        let (class, bits) = match mask.count() {
            n if n == self.narrowest => (0, 0),
            n if n < self.narrowest => (1, 64 - n),
            n => (2, n),
        };
        (class, bits, self.distance(mask), mask.bits())
    }

    /// No subset of `mask` ranks better than this.
    fn bound(&self, mask: NumaMask) -> Rank {
        if mask.count() > self.narrowest {
            (0, 0, 0, mask.lowest(self.narrowest).bits())
        } else {
            self.rank(mask)
        }
    }
}

/// Depth-first walk over the intersections of one mask from each list.
struct Search<'a> {
    order: &'a Order<'a>,
    lists: Vec<Vec<NumaMask>>,
    /// For each depth: nodes that can still be in the result, that is, those which every list from
    /// here on names at all. Keeps the number of different intersections small.
    reach: Vec<NumaMask>,
    seen: Vec<HashSet<NumaMask>>,
    best: Option<(Rank, NumaMask)>,
}

impl<'a> Search<'a> {
    fn new(order: &'a Order<'a>, hints: &[Vec<TopologyHint>]) -> Self {
        let all = order.machine.nodes();
        let masks = |list: &Vec<TopologyHint>| -> BTreeSet<NumaMask> {
            list.iter()
                .map(|h| h.mask.map_or(all, |m| m & all))
                .collect()
        };
        // Equal lists are kept: two lists may pick different masks. A list that only says "all
        // nodes" changes nothing.
        let mut lists: Vec<Vec<NumaMask>> = hints
            .iter()
            .map(masks)
            .filter(|list| list.iter().any(|&m| m != all))
            .map(|list| list.into_iter().collect())
            .collect();
        lists.sort_by_key(Vec::len);
        let mut reach = vec![all; lists.len() + 1];
        for (i, list) in lists.iter().enumerate().rev() {
            let union = list.iter().fold(NumaMask::EMPTY, |a, &b| a | b);
            reach[i] = reach[i + 1] & union;
        }
        let seen = vec![HashSet::new(); lists.len()];
        Self {
            order,
            lists,
            reach,
            seen,
            best: None,
        }
    }

    fn run(mut self) -> Option<NumaMask> {
        self.visit(0, self.order.machine.nodes());
        self.best.map(|(_, mask)| mask)
    }

    fn visit(&mut self, depth: usize, mask: NumaMask) {
        let mask = mask & self.reach[depth];
        if mask.is_empty()
            || self
                .best
                .is_some_and(|(best, _)| self.order.bound(mask) >= best)
        {
            return;
        }
        if depth == self.lists.len() {
            // The bound of a mask at the end may be lower than its rank.
            let rank = self.order.rank(mask);
            if self.best.is_none_or(|(best, _)| rank < best) {
                self.best = Some((rank, mask));
            }
            return;
        }
        if !self.seen[depth].insert(mask) {
            return;
        }
        for i in 0..self.lists[depth].len() {
            self.visit(depth + 1, mask & self.lists[depth][i]);
        }
    }
}

#[cfg(test)]
mod tests;
