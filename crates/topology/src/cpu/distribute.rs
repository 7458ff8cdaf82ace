//! Spreading CPUs evenly over NUMA nodes (`distribute-cpus-across-numa`, KEP-2902).

use std::collections::BTreeMap;

use super::take::{Sorting, TakeError, Taker, take_packed};
use super::topology::{CpuTopology, Level};
use crate::cpuset::CpuSet;

/// Most combinations of NUMA nodes looked at; beyond it CPUs are packed. Machines of up to 16
/// nodes stay below it.
const COMBINATIONS: usize = 1 << 16;

/// Takes `count` CPUs from as few NUMA nodes as can give equal shares in units of `unit` CPUs;
/// among those the nodes after which the free CPUs are most even. What does not divide is dealt
/// out unit by unit. Where no shares are equal, CPUs are packed.
///
/// # Errors
/// Fewer are available.
pub fn take_distributed(
    topology: &CpuTopology,
    available: &CpuSet,
    count: usize,
    unit: usize,
    sorting: Sorting,
) -> Result<CpuSet, TakeError> {
    let unit = unit.max(1);
    let packed = || take_packed(topology, available, count, sorting, false);
    if count == 0 || !count.is_multiple_of(unit) {
        return packed();
    }
    let mut taker = Taker::new(topology, available, count)?;
    let nodes = taker.nodes();
    let free: BTreeMap<u32, usize> = nodes
        .iter()
        .map(|n| (*n, taker.free_in(Level::Node, *n).len()))
        .collect();
    let mut budget = COMBINATIONS;
    for size in sizes(topology, &nodes, count, unit) {
        let Some(plan) = best(&nodes, &free, size, count, unit, &mut budget) else {
            continue;
        };
        for (node, share) in plan {
            let from = taker.free_in(Level::Node, node);
            let cpus = take_packed(topology, &from, share, sorting, false)?;
            taker.take(&cpus);
        }
        return Ok(taker.taken);
    }
    packed()
}

/// Numbers of nodes over which the request could be spread.
fn sizes(
    topology: &CpuTopology,
    nodes: &[u32],
    count: usize,
    unit: usize,
) -> std::ops::RangeInclusive<usize> {
    let units = topology.all().len().div_ceil(unit);
    let per_node = units.div_ceil(topology.node_count().max(1)).max(1);
    let needed = count.div_ceil(unit);
    needed.div_ceil(per_node).max(1)..=needed.min(nodes.len())
}

type Plan = Vec<(u32, usize)>;

/// The best shares over `size` nodes, if any are equal.
fn best(
    nodes: &[u32],
    free: &BTreeMap<u32, usize>,
    size: usize,
    count: usize,
    unit: usize,
    budget: &mut usize,
) -> Option<Plan> {
    let mut best: Option<(f64, Plan)> = None;
    combinations(nodes, size, &mut |combo| {
        if *budget == 0 || best.as_ref().is_some_and(|(balance, _)| *balance == 0.0) {
            return false;
        }
        *budget -= 1;
        if let Some((balance, plan)) = shares(combo, free, count, unit, budget)
            && best.as_ref().is_none_or(|(b, _)| balance < *b)
        {
            best = Some((balance, plan));
        }
        true
    });
    best.map(|(_, plan)| plan)
}

/// Equal shares of one combination, the rest dealt out where it leaves the machine most even.
fn shares(
    combo: &[u32],
    free: &BTreeMap<u32, usize>,
    count: usize,
    unit: usize,
    budget: &mut usize,
) -> Option<(f64, Plan)> {
    let share = count / combo.len() / unit * unit;
    let units: usize = combo.iter().map(|n| free[n] / unit).sum();
    if units * unit < count || combo.iter().any(|n| free[n] < share) {
        return None;
    }
    let mut left = free.clone();
    for node in combo {
        *left.entry(*node).or_default() -= share;
    }
    let even: Plan = combo.iter().map(|n| (*n, share)).collect();
    let rest = count - share * combo.len();
    if rest == 0 {
        return Some((deviation(&left), even));
    }
    let takers: Vec<u32> = combo.iter().copied().filter(|n| left[n] >= unit).collect();
    let mut best: Option<(f64, Plan)> = None;
    for size in (1..=takers.len()).rev() {
        combinations(&takers, size, &mut |subset| {
            if *budget == 0 {
                return false;
            }
            *budget -= 1;
            if let Some((after, extra)) = deal(subset, &left, rest, unit) {
                let balance = deviation(&after);
                if best.as_ref().is_none_or(|(b, _)| balance < *b) {
                    let plan = even
                        .iter()
                        .map(|(n, s)| (*n, s + extra.get(n).copied().unwrap_or(0)));
                    best = Some((balance, plan.collect()));
                }
            }
            true
        });
    }
    best
}

/// Deals `rest` CPUs out over `subset`, one unit after the other.
fn deal(
    subset: &[u32],
    left: &BTreeMap<u32, usize>,
    mut rest: usize,
    unit: usize,
) -> Option<(BTreeMap<u32, usize>, BTreeMap<u32, usize>)> {
    let mut left = left.clone();
    let mut extra: BTreeMap<u32, usize> = BTreeMap::new();
    while rest > 0 {
        let before = rest;
        for node in subset {
            let free = left.get_mut(node)?;
            if rest >= unit && *free >= unit {
                *free -= unit;
                rest -= unit;
                *extra.entry(*node).or_default() += unit;
            }
        }
        if rest == before {
            return None;
        }
    }
    Some((left, extra))
}

/// Standard deviation, rounded to thousandths so that equal splits compare equal.
fn deviation(values: &BTreeMap<u32, usize>) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "numbers of CPUs are small")]
    let (sum, squares, n) = values.values().fold((0.0, 0.0, 0.0), |(s, q, n), v| {
        let v = *v as f64;
        (s + v, q + v * v, n + 1.0)
    });
    let n: f64 = f64::max(n, 1.0);
    let mean: f64 = sum / n;
    let variance: f64 = f64::max(squares / n - mean * mean, 0.0);
    (variance.sqrt() * 1000.0).round() / 1000.0
}

/// Calls `visit` with each choice of `size` members until it returns false.
fn combinations(members: &[u32], size: usize, visit: &mut dyn FnMut(&[u32]) -> bool) {
    fn walk(
        rest: &[u32],
        size: usize,
        chosen: &mut Vec<u32>,
        visit: &mut dyn FnMut(&[u32]) -> bool,
    ) -> bool {
        if size == 0 {
            return visit(chosen);
        }
        for i in 0..=rest.len().saturating_sub(size) {
            let Some(&member) = rest.get(i) else {
                return true;
            };
            chosen.push(member);
            let go_on = walk(&rest[i + 1..], size - 1, chosen, visit);
            chosen.pop();
            if !go_on {
                return false;
            }
        }
        true
    }
    if size <= members.len() {
        walk(members, size, &mut Vec::with_capacity(size), visit);
    }
}
