//! Durable commits of 1 KiB values by 1, 64 and 256 concurrent writers, and the cost
//! of opening a store. `cargo bench -p davit-store`; the directory is below
//! `TMPDIR`, which should be on the disk that is to be measured.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use davit_store::embedded::{EmbeddedOptions, EmbeddedStore};
use davit_store::{ListOptions, Store, Write};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const OBJECTS: usize = 10_000;
const VALUE: usize = 1024;

/// Bytes that do not compress and differ for every write.
fn value(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut bytes = Vec::with_capacity(VALUE);
    while bytes.len() < VALUE {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

async fn write_all(store: &Arc<EmbeddedStore>, writers: u64, writes: u64) -> Duration {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for writer in 0..writers {
        let store = Arc::clone(store);
        let share = writes / writers + u64::from(writer < writes % writers);
        tasks.spawn(async move {
            for round in 0..share {
                let seed = writer << 32 | round;
                let key = format!("/registry/pods/default/{:05}", seed % OBJECTS as u64);
                store
                    .commit(Write::put(key, value(seed)))
                    .await
                    .expect("commit");
            }
        });
    }
    tasks.join_all().await;
    start.elapsed()
}

fn commit(c: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let mut group = c.benchmark_group("store_commit");
    group.throughput(Throughput::Elements(1)).sample_size(20);
    for writers in [1, 64, 256] {
        let dir = tempfile::tempdir().expect("a directory");
        let store = EmbeddedStore::open_blocking(dir.path(), EmbeddedOptions::default());
        let store = Arc::new(store.expect("a store"));
        group.bench_function(BenchmarkId::from_parameter(writers), |bencher| {
            bencher.iter_custom(|writes| runtime.block_on(write_all(&store, writers, writes)));
        });
    }
    group.finish();
}

/// Resident memory of this process in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .unwrap_or_default()
}

/// Prints what a store weighs in memory: first of all, in a process that has done
/// nothing else.
fn memory(_: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let dir = tempfile::tempdir().expect("a directory");
    let open = || {
        let store = EmbeddedStore::open_blocking(dir.path(), EmbeddedOptions::default());
        Arc::new(store.expect("a store"))
    };
    let before = resident_kib();
    let store = open();
    let empty = resident_kib();
    runtime.block_on(write_all(&store, 64, OBJECTS as u64));
    let written = resident_kib();
    drop(store);
    let closed = resident_kib();
    let store = open();
    println!(
        "resident: {before} KiB before, {empty} KiB with an empty store, {written} KiB with \
         {OBJECTS} objects of {VALUE} bytes written, {closed} KiB closed, {} KiB reopened",
        resident_kib()
    );
    drop(store);
}

fn open(c: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let mut group = c.benchmark_group("store_open");
    group.sample_size(10);
    group.bench_function("new", |bencher| {
        bencher.iter_batched(
            || tempfile::tempdir().expect("a directory"),
            |dir| {
                let store = EmbeddedStore::open_blocking(dir.path(), EmbeddedOptions::default());
                (store.expect("a store"), dir)
            },
            criterion::BatchSize::PerIteration,
        );
    });

    let dir = tempfile::tempdir().expect("a directory");
    let open = || {
        let store = EmbeddedStore::open_blocking(dir.path(), EmbeddedOptions::default());
        Arc::new(store.expect("a store"))
    };
    let before = resident_kib();
    let store = open();
    runtime.block_on(write_all(&store, 64, OBJECTS as u64));
    println!(
        "resident: {before} KiB before, {} KiB with {OBJECTS} written",
        resident_kib()
    );
    drop(store);
    group.bench_function(format!("{OBJECTS} objects"), |bencher| {
        bencher.iter(|| black_box(open()));
    });
    let before = resident_kib();
    let store = open();
    println!(
        "resident: {before} KiB closed, {} KiB reopened",
        resident_kib()
    );
    group.bench_function(format!("list {OBJECTS} objects"), |bencher| {
        bencher.iter(|| {
            let list = store.list("/registry/pods/", ListOptions::default());
            black_box(runtime.block_on(list).expect("a list").items.len())
        });
    });
    group.finish();
}

criterion_group!(benches, memory, commit, open);
criterion_main!(benches);
