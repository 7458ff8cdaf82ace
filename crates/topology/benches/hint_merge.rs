//! Merging the hints of several providers: 255 masks a provider, on 8 and on 36 NUMA nodes.
#![allow(missing_docs)]

use criterion::{Criterion, criterion_group, criterion_main};
use davit_topology::{Machine, NumaMask, Policy, PolicyKind, ProviderHints, TopologyHint};
use std::hint::black_box;

fn provider(nodes: &[u32], least: u32) -> ProviderHints {
    let hints = (1u32..1 << nodes.len())
        .map(|bits| {
            let set = nodes
                .iter()
                .enumerate()
                .filter(|(i, _)| bits & (1 << i) != 0);
            NumaMask::from_nodes(set.map(|(_, &n)| n)).expect("node numbers below 64")
        })
        .map(|m| TopologyHint::new(m, m.count() == least))
        .collect();
    ProviderHints::from([("example.com/device".to_owned(), Some(hints))])
}

/// Masks without any structure, the hard case: a fixed xorshift sequence.
fn scattered(seed: u64) -> ProviderHints {
    let mut x = seed;
    let hints = (0..255)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            TopologyHint::new(NumaMask::from_bits(x & ((1 << 36) - 1)), false)
        })
        .collect();
    ProviderHints::from([("example.com/device".to_owned(), Some(hints))])
}

fn hint_merge(c: &mut Criterion) {
    let policy = Policy::new(PolicyKind::BestEffort);
    let machine = |n| Machine::uniform(NumaMask::from_nodes(0..n).expect("below 64"));
    let eight: Vec<u32> = (0..8).collect();
    let spread: Vec<u32> = (0..8).map(|i| i * 4 + 1).collect();
    let mut group = c.benchmark_group("hint_merge");
    for (name, nodes, list) in [("8_nodes", 8, &eight), ("36_nodes", 36, &spread)] {
        let machine = machine(nodes);
        let agree: Vec<_> = (0..4).map(|_| provider(list, 1)).collect();
        group.bench_function(format!("{name}/4x255/agree"), |b| {
            b.iter(|| policy.merge(&machine, black_box(&agree)));
        });
        let differ: Vec<_> = (1..5).map(|least| provider(list, least)).collect();
        group.bench_function(format!("{name}/4x255/differ"), |b| {
            b.iter(|| policy.merge(&machine, black_box(&differ)));
        });
    }
    let scattered: Vec<_> = (1..5)
        .map(|i| scattered(0x9e37_79b9_7f4a_7c15 ^ (i << 20)))
        .collect();
    let machine = machine(36);
    group.bench_function("36_nodes/4x255/scattered", |b| {
        b.iter(|| policy.merge(&machine, black_box(&scattered)));
    });
    group.finish();
}

criterion_group!(benches, hint_merge);
criterion_main!(benches);
