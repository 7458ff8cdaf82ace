//! What the devices of a pod add to its admission: plugin call over a unix socket, log record,
//! sync; for 1, 8 and 64 devices.

#![allow(missing_docs, clippy::unwrap_used, dead_code, reason = "a benchmark")]

#[path = "../tests/devices/plugin.rs"]
mod plugin;

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use plugin::{Node, Plugin, R, devices, pod};

fn admission(c: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (node, _serving) = runtime.block_on(async {
        let node = Node::start().await;
        let plugin = Plugin::new("p.sock").with(devices(64));
        let serving = plugin.serve(node.root()).await.registered(R).await;
        node.counts(R, 64, 64).await;
        (node, serving)
    });
    let mut group = c.benchmark_group("admission");
    for count in [1, 8, 64] {
        group.bench_function(format!("{count}_devices"), |b| {
            b.iter_custom(|rounds| {
                runtime.block_on(async {
                    let mut took = Duration::ZERO;
                    for _ in 0..rounds {
                        let p = pod("p", &[(R, count)]);
                        let started = Instant::now();
                        node.admit(&p).await.unwrap();
                        took += started.elapsed();
                        node.finish(&p, true).await;
                    }
                    took
                })
            });
        });
    }
    group.finish();
}

criterion_group!(benches, admission);
criterion_main!(benches);
