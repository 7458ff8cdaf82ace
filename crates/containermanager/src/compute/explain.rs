//! What could not be aligned, and what would have to be freed for it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use davit_topology::{NumaMask, PolicyKind};
use serde::{Deserialize, Serialize};

/// Annotation of the event of a refusal that carries the [`Misfit`] as JSON.
pub const REFUSAL_ANNOTATION: &str = "davit.dev/refusal";

/// Placements shown, the ones that lack least first.
const SHOWN: usize = 4;
/// Placements looked at.
const LOOKED_AT: usize = 1024;

/// Why a pod could not be placed on the node's NUMA nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Misfit {
    /// The topology manager policy.
    pub policy: PolicyKind,
    /// `container` or `pod`.
    pub scope: String,
    /// The container it is about, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The placements that come nearest, and what each lacks.
    pub options: Vec<MisfitOption>,
}

/// One placement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MisfitOption {
    /// The NUMA nodes.
    pub nodes: Vec<u32>,
    /// Whether freeing what is held there would be enough.
    pub possible: bool,
    /// Every resource that is asked for.
    pub resources: Vec<MisfitResource>,
}

/// One resource on the NUMA nodes of a placement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MisfitResource {
    /// Its name.
    pub name: String,
    /// How much is asked for.
    pub requested: u64,
    /// How much is free there.
    pub free: u64,
    /// How much there could be.
    pub total: u64,
    /// How much would have to be freed.
    pub missing: u64,
    /// Who holds it there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub occupants: Vec<Occupant>,
    /// Of a resource claim: a sentence that says where its devices are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<String>,
}

/// A container that holds some of a resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Occupant {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// The container.
    pub container: String,
    /// How much it holds there.
    pub amount: u64,
}

/// One resource of a request with everything the node has of it.
#[derive(Debug, Default)]
pub(crate) struct Need {
    pub(crate) name: String,
    pub(crate) requested: u64,
    pub(crate) parts: Vec<Part>,
    /// Where it is, when it was chosen before and cannot be anywhere else.
    pub(crate) fixed: Option<String>,
}

/// Some of a resource: where it is and who has it (namespace, pod, container).
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) nodes: NumaMask,
    pub(crate) amount: u64,
    pub(crate) holder: Option<(String, String, String)>,
}

impl Need {
    fn total(&self, mask: NumaMask) -> u64 {
        self.on(mask).map(|p| p.amount).sum()
    }

    fn on(&self, mask: NumaMask) -> impl Iterator<Item = &Part> {
        // What has no place is at hand everywhere.
        self.parts
            .iter()
            .filter(move |p| p.nodes.is_empty() || p.nodes.intersects(mask))
    }

    fn look(&self, mask: NumaMask) -> MisfitResource {
        let free: u64 = self
            .on(mask)
            .filter(|p| p.holder.is_none())
            .map(|p| p.amount)
            .sum();
        let mut held: BTreeMap<&(String, String, String), u64> = BTreeMap::new();
        for part in self.on(mask) {
            if let Some(holder) = &part.holder {
                *held.entry(holder).or_default() += part.amount;
            }
        }
        let missing = self.requested.saturating_sub(free);
        let occupants = held
            .into_iter()
            .map(|((namespace, pod, container), amount)| Occupant {
                namespace: namespace.clone(),
                pod: pod.clone(),
                container: container.clone(),
                amount,
            });
        MisfitResource {
            name: self.name.clone(),
            requested: self.requested,
            free,
            total: self.total(mask),
            missing,
            fixed: self.fixed.clone().filter(|_| missing > 0),
            occupants: if missing > 0 {
                occupants.collect()
            } else {
                Vec::new()
            },
        }
    }
}

impl MisfitOption {
    /// Whether nothing is missing by count: then it is not for lack of something.
    pub(crate) fn is_met(&self) -> bool {
        self.resources.iter().all(|r| r.missing == 0)
    }
}

impl Misfit {
    pub(crate) fn new(
        policy: PolicyKind,
        pod_scope: bool,
        container: Option<String>,
        all: NumaMask,
        needs: &[Need],
    ) -> Self {
        let mut options: Vec<MisfitOption> = placements(policy, all, needs)
            .into_iter()
            .map(|mask| {
                let resources: Vec<MisfitResource> = needs.iter().map(|n| n.look(mask)).collect();
                MisfitOption {
                    nodes: mask.iter().collect(),
                    possible: resources.iter().all(|r| r.total >= r.requested),
                    resources,
                }
            })
            .collect();
        options.sort_by_key(|o| {
            let lacking = o.resources.iter().filter(|r| r.missing > 0).count();
            let permille = |r: &MisfitResource| r.missing.saturating_mul(1000) / r.requested.max(1);
            let missing: u64 = o.resources.iter().map(permille).sum();
            (!o.possible, lacking, missing)
        });
        options.truncate(SHOWN);
        Self {
            policy,
            scope: if pod_scope { "pod" } else { "container" }.to_owned(),
            container,
            options,
        }
    }

    /// For people: one line a placement.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for option in &self.options {
            let nodes: Vec<String> = option.nodes.iter().map(u32::to_string).collect();
            let lacking: Vec<String> = option
                .resources
                .iter()
                .filter(|r| r.missing > 0)
                .map(lack)
                .collect();
            let lacking = if lacking.is_empty() {
                "nothing is missing by count, but what is free cannot be combined".to_owned()
            } else {
                lacking.join("; ")
            };
            // Writing to a String cannot fail.
            let _infallible = writeln!(out, "NUMA node {}: {lacking}", nodes.join(","));
        }
        out
    }
}

fn lack(r: &MisfitResource) -> String {
    let MisfitResource {
        name,
        requested,
        free,
        total,
        missing,
        ..
    } = r;
    if let Some(fixed) = &r.fixed {
        return fixed.clone();
    }
    if total < requested {
        return format!("{requested} {name} asked for, there are never more than {total}");
    }
    let mut text =
        format!("{requested} {name} asked for, {free} free, {missing} would have to be freed");
    let holders: Vec<String> = r
        .occupants
        .iter()
        .map(|o| {
            format!(
                "{}/{} ({}) holds {}",
                o.namespace, o.pod, o.container, o.amount
            )
        })
        .collect();
    if !holders.is_empty() {
        let _infallible = write!(text, ": {}", holders.join(", "));
    }
    text
}

/// Single nodes for single-numa-node, all nodes without a policy, otherwise the narrowest sets
/// of nodes that could hold the request if nothing were held.
fn placements(policy: PolicyKind, all: NumaMask, needs: &[Need]) -> Vec<NumaMask> {
    let nodes: Vec<u64> = all.iter().map(|n| 1 << n).collect();
    let singles = || nodes.iter().map(|n| NumaMask::from_bits(*n)).collect();
    match policy {
        PolicyKind::None | PolicyKind::BestEffort => vec![all],
        PolicyKind::SingleNumaNode => singles(),
        PolicyKind::Restricted => {
            let mut layer: Vec<NumaMask> = singles();
            for _ in 1..nodes.len() {
                let fits = |m: &NumaMask| needs.iter().all(|n| n.total(*m) >= n.requested);
                if layer.iter().any(fits) {
                    return layer.into_iter().filter(fits).collect();
                }
                layer = wider(&layer, &nodes);
            }
            vec![all]
        }
    }
}

/// The sets with one node more, each once: a node above the highest is added.
fn wider(layer: &[NumaMask], nodes: &[u64]) -> Vec<NumaMask> {
    layer
        .iter()
        .flat_map(|m| {
            let above = nodes.iter().filter(|n| **n > m.bits());
            above.map(|n| NumaMask::from_bits(m.bits() | n))
        })
        .take(LOOKED_AT)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(node: u64, amount: u64, holder: Option<&str>) -> Part {
        Part {
            nodes: NumaMask::from_bits(1 << node),
            amount,
            holder: holder.map(|pod| ("ns".to_owned(), pod.to_owned(), "main".to_owned())),
        }
    }

    fn needs() -> Vec<Need> {
        vec![
            Need {
                name: "cpu".to_owned(),
                requested: 2,
                parts: vec![part(0, 4, None), part(1, 3, Some("a")), part(1, 1, None)],
                fixed: None,
            },
            Need {
                name: "example.com/gpu".to_owned(),
                requested: 1,
                parts: vec![part(0, 1, Some("b")), part(1, 1, None)],
                fixed: None,
            },
        ]
    }

    #[test]
    fn says_what_would_have_to_be_freed_on_each_node() {
        let all = NumaMask::from_bits(3);
        let misfit = Misfit::new(
            PolicyKind::SingleNumaNode,
            false,
            Some("main".into()),
            all,
            &needs(),
        );
        assert_eq!(
            misfit.text(),
            "NUMA node 1: 2 cpu asked for, 1 free, 1 would have to be freed: ns/a (main) holds 3\n\
             NUMA node 0: 1 example.com/gpu asked for, 0 free, 1 would have to be freed: ns/b (main) holds 1\n"
        );
        let json = serde_json::to_string(&misfit).unwrap();
        assert_eq!(serde_json::from_str::<Misfit>(&json).unwrap(), misfit);
    }

    #[test]
    fn restricted_looks_at_the_narrowest_sets_that_could_do() {
        let mut wide = needs();
        wide[0].requested = 6;
        let all = NumaMask::from_bits(3);
        let misfit = Misfit::new(PolicyKind::Restricted, true, None, all, &wide);
        assert_eq!(misfit.options.len(), 1);
        assert_eq!(misfit.options[0].nodes, [0, 1]);
        wide[0].requested = 9;
        let never = Misfit::new(PolicyKind::Restricted, true, None, all, &wide);
        assert!(!never.options[0].possible);
        assert!(
            never.text().contains("never more than 8"),
            "{}",
            never.text()
        );
    }
}
