//! Cases of the merge rules, and the merge against a plain walk over all permutations.

use super::*;
use crate::spent;
use proptest::prelude::*;

fn machine(nodes: u32) -> Machine {
    Machine::uniform(NumaMask::from_nodes(0..nodes).unwrap())
}

fn hint(nodes: &[u32], preferred: bool) -> TopologyHint {
    TopologyHint::new(
        NumaMask::from_nodes(nodes.iter().copied()).unwrap(),
        preferred,
    )
}

fn provider(lists: &[Option<Vec<TopologyHint>>]) -> ProviderHints {
    lists
        .iter()
        .enumerate()
        .map(|(i, l)| (format!("resource-{i}"), l.clone()))
        .collect()
}

fn merge(kind: PolicyKind, nodes: u32, providers: &[ProviderHints]) -> Merged {
    Policy::new(kind).merge(&machine(nodes), providers)
}

/// The rules as they are written in the specification, permutation by permutation.
mod plain {
    use super::*;

    fn fitter(machine: &Machine, closest: bool, a: NumaMask, b: NumaMask) -> NumaMask {
        let key = |m: NumaMask| {
            (
                m.count(),
                if closest { machine.distance_sum(m) } else { 0 },
                m.bits(),
            )
        };
        if key(b) < key(a) { b } else { a }
    }

    fn compare(
        machine: &Machine,
        closest: bool,
        b: u32,
        current: Option<TopologyHint>,
        candidate: TopologyHint,
    ) -> Option<TopologyHint> {
        let new = candidate.mask.unwrap();
        if new.is_empty() {
            return current;
        }
        let Some(cur) = current else {
            return Some(candidate);
        };
        let old = cur.mask.unwrap();
        let pick = |m: NumaMask| Some(if m == old { cur } else { candidate });
        if candidate.preferred != cur.preferred {
            return Some(if candidate.preferred { candidate } else { cur });
        }
        if cur.preferred || old.count() > b {
            return pick(fitter(machine, closest, old, new));
        }
        if old.count() == b {
            return if new.count() == b {
                pick(fitter(machine, closest, old, new))
            } else {
                Some(cur)
            };
        }
        match new.count() {
            n if n > b => Some(cur),
            n if n == b || n > old.count() => Some(candidate),
            n if n < old.count() => Some(cur),
            _ => pick(fitter(machine, closest, old, new)),
        }
    }

    pub(super) fn best(
        machine: &Machine,
        lists: &[Vec<TopologyHint>],
        closest: bool,
    ) -> TopologyHint {
        let b = max_of_narrowest(lists);
        let mut best = None;
        let mut at = vec![0usize; lists.len()];
        if lists.iter().any(Vec::is_empty) {
            return TopologyHint::new(machine.nodes(), false);
        }
        loop {
            let permutation: Vec<_> = lists.iter().zip(&at).map(|(l, &i)| l[i]).collect();
            let masks: Vec<_> = permutation.iter().filter_map(|h| h.mask).collect();
            let merged = masks.iter().fold(machine.nodes(), |a, &m| a & m);
            let equal = masks.windows(2).all(|w| w[0] == w[1]);
            let preferred = equal && permutation.iter().all(|h| h.preferred);
            best = compare(
                machine,
                closest,
                b,
                best,
                TopologyHint::new(merged, preferred),
            );
            let mut i = 0;
            loop {
                if i == at.len() {
                    return best.unwrap_or(TopologyHint::new(machine.nodes(), false));
                }
                at[i] += 1;
                if at[i] < lists[i].len() {
                    break;
                }
                at[i] = 0;
                i += 1;
            }
        }
    }
}

#[test]
fn no_providers_and_no_preferences_give_all_nodes() {
    for providers in [
        vec![],
        vec![provider(&[])],
        vec![provider(&[None]), provider(&[None, None])],
    ] {
        let merged = merge(PolicyKind::Restricted, 2, &providers);
        assert_eq!(
            merged,
            Merged {
                hint: hint(&[0, 1], true),
                admit: true
            }
        );
        let merged = merge(PolicyKind::SingleNumaNode, 2, &providers);
        assert_eq!(
            merged,
            Merged {
                hint: TopologyHint::any(true),
                admit: true
            }
        );
    }
}

#[test]
fn an_empty_list_is_not_admitted_by_the_strict_policies() {
    let providers = [
        provider(&[Some(vec![])]),
        provider(&[Some(vec![hint(&[0], true)])]),
    ];
    let best = merge(PolicyKind::BestEffort, 2, &providers);
    assert_eq!(
        best,
        Merged {
            hint: hint(&[0], false),
            admit: true
        }
    );
    assert!(!merge(PolicyKind::Restricted, 2, &providers).admit);
    let single = merge(PolicyKind::SingleNumaNode, 2, &providers);
    assert_eq!(
        single,
        Merged {
            hint: TopologyHint::any(false),
            admit: false
        }
    );
}

#[test]
fn equal_preferred_masks_win_and_the_narrower_of_them() {
    let list = || {
        Some(vec![
            hint(&[0], true),
            hint(&[1], true),
            hint(&[0, 1], false),
        ])
    };
    let providers = [provider(&[list()]), provider(&[list(), None])];
    for kind in [
        PolicyKind::BestEffort,
        PolicyKind::Restricted,
        PolicyKind::SingleNumaNode,
    ] {
        assert_eq!(
            merge(kind, 2, &providers),
            Merged {
                hint: hint(&[0], true),
                admit: true
            }
        );
    }
}

#[test]
fn item_110_restricted_admits_two_nodes_where_two_is_the_least() {
    let providers = [
        provider(&[Some(vec![hint(&[0, 1], true)])]),
        provider(&[None]),
    ];
    let merged = merge(PolicyKind::Restricted, 2, &providers);
    assert_eq!(
        merged,
        Merged {
            hint: hint(&[0, 1], true),
            admit: true
        }
    );
    assert!(!merge(PolicyKind::SingleNumaNode, 2, &providers).admit);
}

#[test]
fn different_preferred_masks_are_refused_by_restricted() {
    let providers = [
        provider(&[Some(vec![hint(&[0], true), hint(&[0, 1], false)])]),
        provider(&[Some(vec![hint(&[1], true), hint(&[0, 1], false)])]),
    ];
    let merged = merge(PolicyKind::BestEffort, 2, &providers);
    // {0}&{0,1} and {0,1}&{1} both have the wanted size 1; the smaller value wins.
    assert_eq!(
        merged,
        Merged {
            hint: hint(&[0], false),
            admit: true
        }
    );
    assert!(!merge(PolicyKind::Restricted, 2, &providers).admit);
}

#[test]
fn unpreferred_results_come_as_close_as_they_can_to_the_least_needed_width() {
    // One list needs two nodes at least: two bits are best, more than two the last resort.
    let providers = [
        provider(&[Some(vec![hint(&[0, 1], true), hint(&[2, 3], true)])]),
        provider(&[Some(vec![hint(&[0], false), hint(&[0, 1, 2, 3], false)])]),
    ];
    assert_eq!(
        merge(PolicyKind::BestEffort, 4, &providers).hint,
        hint(&[0, 1], false)
    );
    // Only narrower intersections exist: the wider of them.
    let providers = [
        provider(&[Some(vec![hint(&[0, 1, 2], true)])]),
        provider(&[Some(vec![hint(&[0], false), hint(&[1, 2, 3], false)])]),
    ];
    assert_eq!(
        merge(PolicyKind::BestEffort, 4, &providers).hint,
        hint(&[1, 2], false)
    );
}

#[test]
fn disjoint_masks_give_all_nodes_unpreferred() {
    let providers = [
        provider(&[Some(vec![hint(&[0], true)])]),
        provider(&[Some(vec![hint(&[1], true)])]),
    ];
    let merged = merge(PolicyKind::BestEffort, 3, &providers);
    assert_eq!(merged.hint, hint(&[0, 1, 2], false));
}

#[test]
fn closest_nodes_are_taken_where_asked_for() {
    let nodes = NumaMask::from_nodes(0..4).unwrap();
    let rows = [
        [10, 32, 12, 32],
        [32, 10, 32, 12],
        [12, 32, 10, 32],
        [32, 12, 32, 10],
    ];
    let machine = Machine::with_distances(nodes, &rows.map(|r| r.to_vec()));
    let list = vec![
        hint(&[0, 1], true),
        hint(&[0, 2], true),
        hint(&[1, 3], true),
    ];
    let providers = [provider(&[Some(list)])];
    let plain = Policy::new(PolicyKind::Restricted);
    assert_eq!(plain.merge(&machine, &providers).hint, hint(&[0, 1], true));
    let closest = Policy {
        prefer_closest: true,
        ..plain
    };
    assert_eq!(
        closest.merge(&machine, &providers).hint,
        hint(&[0, 2], true)
    );
}

/// All non-empty subsets of eight nodes, the ones with the fewest nodes preferred.
fn full_list(nodes: &[u32], least: u32) -> Vec<TopologyHint> {
    (1u32..1 << nodes.len())
        .map(|bits| {
            let set = nodes
                .iter()
                .enumerate()
                .filter(|(i, _)| bits & (1 << i) != 0);
            NumaMask::from_nodes(set.map(|(_, &n)| n)).unwrap()
        })
        .filter(|m| m.count() >= least)
        .map(|m| TopologyHint::new(m, m.count() == least))
        .collect()
}

#[test]
fn item_108_long_lists_on_large_machines_merge_at_once() {
    let devices: Vec<u32> = (0..8).map(|i| i * 4).collect();
    let others: Vec<u32> = (0..8).map(|i| i * 4 + i % 2).collect();
    let started = spent();
    for (nodes, list) in [(8, (0..8).collect::<Vec<_>>()), (36, devices), (36, others)] {
        let providers: Vec<_> = (1..=4)
            .map(|least| provider(&[Some(full_list(&list, least))]))
            .collect();
        let merged = merge(PolicyKind::BestEffort, nodes, &providers);
        assert_eq!(merged.hint.mask.unwrap().count(), 4);
    }
    // Generous for a debug build; the benchmark has the real figure.
    assert!((spent() - started).tv_sec < 5);
}

fn any_hint(nodes: u32) -> impl Strategy<Value = TopologyHint> {
    let mask = prop_oneof![
        1 => Just(None),
        6 => (0u64..1 << nodes).prop_map(|bits| Some(NumaMask::from_bits(bits))),
    ];
    (mask, any::<bool>()).prop_map(|(mask, preferred)| TopologyHint { mask, preferred })
}

fn any_lists() -> impl Strategy<Value = (u32, Vec<Vec<TopologyHint>>)> {
    (1u32..7).prop_flat_map(|nodes| {
        let list = proptest::collection::vec(any_hint(nodes), 0..6);
        (Just(nodes), proptest::collection::vec(list, 0..5))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn item_107_the_answer_is_that_of_the_plain_walk((nodes, lists) in any_lists(), closest: bool) {
        let machine = machine(nodes);
        prop_assert_eq!(
            best_hint(&machine, &lists, closest),
            plain::best(&machine, &lists, closest)
        );
    }

    #[test]
    fn distances_change_nothing_but_the_order(
        (nodes, lists) in any_lists(),
        rows in proptest::collection::vec(proptest::collection::vec(10u32..40, 6), 6),
    ) {
        let machine = Machine::with_distances(NumaMask::from_nodes(0..nodes).unwrap(), &rows);
        prop_assert_eq!(best_hint(&machine, &lists, true), plain::best(&machine, &lists, true));
    }

    #[test]
    fn strict_policies_admit_exactly_the_preferred((nodes, lists) in any_lists()) {
        let lists: Vec<_> = lists.into_iter().map(Some).collect();
        let providers = [provider(&lists)];
        let merged = merge(PolicyKind::Restricted, nodes, &providers);
        prop_assert_eq!(merged.admit, merged.hint.preferred);
        let single = merge(PolicyKind::SingleNumaNode, nodes, &providers);
        prop_assert_eq!(single.admit, single.hint.preferred);
        if single.admit {
            prop_assert!(single.hint.mask.is_none_or(|m| m.count() == 1));
        }
    }
}
