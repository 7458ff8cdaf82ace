//! One claim on 5 000 nodes with 8 devices each: cold (nothing evaluated yet) and warm, with and
//! without a constraint; looking at every node of a cluster whose devices are all in use; and asking all nodes
//! again after the devices of one have changed, as the scheduler does.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use davit_allocator::{
    Allocator, Answer, Answers, Call, Classes, CompileSelector, DeviceView, EvaluateSelector,
    Features, Inventory, NodeView, Picture, Plan, PoolId, Question, Selectors, Slice, Usage,
};
use serde_json::json;

const NODES: usize = 5_000;
const DEVICES: usize = 8;

/// Compares the driver's name: the cost of the language itself is measured elsewhere.
struct Driver;

impl CompileSelector for Driver {
    fn compile(&self, _: &str) -> Result<Box<dyn EvaluateSelector>, String> {
        Ok(Box::new(Self))
    }
}

impl EvaluateSelector for Driver {
    fn matches(&self, device: DeviceView<'_>) -> Result<bool, String> {
        Ok(device.driver == "gpu.example.com" && device.attributes.contains_key("root"))
    }
}

fn inventory() -> Inventory {
    let mut inventory = Inventory::default();
    for node in 0..NODES {
        let devices: Vec<_> = (0..DEVICES)
            .map(|d| {
                json!({"name": format!("gpu-{d}"), "attributes": {
                    "root": {"string": format!("pci-{}", d / 2)},
                    "uuid": {"string": format!("gpu-{node}-{d}")},
                    "model": {"string": "A1"},
                }, "capacity": {"memory": {"value": "80Gi"}}})
            })
            .collect();
        let slice = serde_json::from_value(json!({
            "metadata": {"name": format!("node-{node}-gpu")},
            "spec": {"driver": "gpu.example.com", "nodeName": format!("node-{node}"), "devices": devices,
                     "pool": {"name": format!("node-{node}"), "generation": 1, "resourceSliceCount": 1}},
        }))
        .expect("a slice");
        inventory.set(Arc::new(Slice::new(&slice, &[]).expect("quantities")));
    }
    inventory
}

fn every_node(
    inventory: &Arc<Inventory>,
    usage: &Usage,
    selectors: &Arc<Selectors>,
    count: i64,
    constrained: bool,
) -> usize {
    let class =
        json!({"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "x"}}]}});
    let classes = Classes::new([Arc::new(serde_json::from_value(class).expect("a class"))]);
    let mut claim = json!({"metadata": {"name": "c", "namespace": "d"}, "spec": {"devices": {"requests": [
        {"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}}]}}});
    if constrained {
        claim["spec"]["devices"]["constraints"] =
            json!([{"matchAttribute": "gpu.example.com/root"}]);
    }
    let claim = Arc::new(serde_json::from_value(claim).expect("a claim"));
    let features = Features::default();
    let plan = Plan::new(&[claim], features, &classes, selectors).expect("a plan");
    let allocator = Allocator::new(
        features,
        inventory.clone(),
        usage.clone(),
        selectors.clone(),
    );
    let labels = BTreeMap::new();
    let mut found = 0;
    for node in 0..NODES {
        let name = format!("node-{node}");
        let call = Call {
            node: NodeView {
                name: &name,
                labels: &labels,
            },
            released: None,
            stop: &|| false,
            share_id: &String::new,
        };
        found += usize::from(
            allocator
                .allocate(&plan, call)
                .expect("an answer")
                .is_some(),
        );
    }
    found
}

/// All nodes once more, of which one has to be asked and the others have answered.
fn asked_again(c: &mut Criterion) {
    let inventory = inventory();
    let claim = json!({"metadata": {"name": "c", "namespace": "d"}, "spec": {"devices": {"requests": [
        {"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}]}}});
    let claim = Arc::new(serde_json::from_value(claim).expect("a claim"));
    let names: Vec<String> = (0..NODES).map(|n| format!("node-{n}")).collect();
    let (answers, labels) = (Answers::default(), BTreeMap::new());
    let question = Question::new(&[claim], Features::default()).expect("a question");
    let changed = PoolId {
        driver: "gpu.example.com".into(),
        pool: "node-7".into(),
    };
    c.bench_function("5000_nodes_asked_again", |b| {
        b.iter(|| {
            answers.pool_changed(&inventory, &changed);
            let picture = Picture {
                at: answers.now(),
                selects_nodes: inventory.selects_nodes(),
            };
            let mut missing = 0;
            for name in &names {
                let node = NodeView {
                    name,
                    labels: &labels,
                };
                if answers.get(&question, node, &picture).is_none() {
                    answers.keep(&question, node, &picture, Answer::Missing);
                    missing += 1;
                }
            }
            black_box(missing)
        });
    });
}

fn benchmarks(c: &mut Criterion) {
    let mut group = c.benchmark_group("claim_on_5000_nodes_x_8");
    group.sample_size(10);
    let none = Usage::default();
    for (name, count, constrained) in [("one", 1, false), ("two_matching", 2, true)] {
        group.bench_function(format!("{name}/cold"), |b| {
            b.iter_batched(
                || (Arc::new(inventory()), Arc::new(Selectors::new(Driver))),
                |(inventory, selectors)| {
                    black_box(every_node(
                        &inventory,
                        &none,
                        &selectors,
                        count,
                        constrained,
                    ))
                },
                criterion::BatchSize::PerIteration,
            );
        });
        let (inventory, selectors) = (Arc::new(inventory()), Arc::new(Selectors::new(Driver)));
        group.bench_function(format!("{name}/warm"), |b| {
            b.iter(|| {
                black_box(every_node(
                    &inventory,
                    &none,
                    &selectors,
                    count,
                    constrained,
                ))
            });
        });
    }
    let (inventory, selectors) = (Arc::new(inventory()), Arc::new(Selectors::new(Driver)));
    let mut full = Usage::default();
    for node in 0..NODES {
        let results: Vec<_> = (0..DEVICES)
            .map(|d| json!({"request": "r", "driver": "gpu.example.com", "pool": format!("node-{node}"), "device": format!("gpu-{d}")}))
            .collect();
        full.add(
            &serde_json::from_value(json!({"devices": {"results": results}}))
                .expect("an allocation"),
        );
    }
    group.bench_function("one/full", |b| {
        b.iter(|| black_box(every_node(&inventory, &full, &selectors, 1, false)));
    });
    group.finish();
}

criterion_group!(benches, benchmarks, asked_again);
criterion_main!(benches);
