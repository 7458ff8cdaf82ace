//! Claims on 5 000 nodes with 8 devices each, whose serial numbers all differ: asking every node as the scheduler does, by
//! what nodes answered before; the search itself on every node; a claim that is booked; an inventory that is built.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use davit_allocator::{
    Allocator, Answer, Answers, Call, Classes, Features, Inventory, NodeView, Picture, Plan,
    Question, Selectors, Slice, Usage,
};
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim, ResourceSlice};
use serde_json::{Value, json};

const NODES: usize = 5_000;
const DEVICES: usize = 8;
const DRIVER: &str = "gpu.example.com";

fn slices() -> Vec<ResourceSlice> {
    let slice = |node: usize| {
        let devices: Vec<_> = (0..DEVICES)
            .map(|d| {
                json!({"name": format!("gpu-{d}"), "attributes": {
                    "root": {"string": format!("pci-{node}-{}", d / 2)},
                    "uuid": {"string": format!("gpu-{node}-{d}")},
                    "model": {"string": "A1"},
                }, "capacity": {"memory": {"value": "80Gi"}}})
            })
            .collect();
        json!({
            "metadata": {"name": format!("node-{node}-gpu")},
            "spec": {"driver": DRIVER, "nodeName": format!("node-{node}"), "devices": devices,
                     "pool": {"name": format!("node-{node}"), "generation": 1, "resourceSliceCount": 1}},
        })
    };
    let slices = (0..NODES).map(slice);
    slices
        .map(|s| serde_json::from_value(s).expect("a slice"))
        .collect()
}

fn inventory(slices: &[ResourceSlice]) -> Inventory {
    let mut inventory = Inventory::default();
    for slice in slices {
        inventory.set(Arc::new(Slice::new(slice, &[]).expect("quantities")));
    }
    inventory
}

/// The devices of a node, from the first to the last but some.
fn allocation(node: usize, devices: usize) -> AllocationResult {
    let results: Vec<_> = (0..devices)
        .map(|d| json!({"request": "r", "driver": DRIVER, "pool": format!("node-{node}"), "device": format!("gpu-{d}")}))
        .collect();
    serde_json::from_value(json!({"devices": {"results": results}})).expect("an allocation")
}

/// What is asked for: so many devices of a model, on the same root if there are several.
fn claim(count: usize, model: &str) -> Arc<ResourceClaim> {
    let selector = format!("device.attributes['{DRIVER}'].model == '{model}'");
    let mut claim = json!({"metadata": {"name": "c", "namespace": "d"}, "spec": {"devices": {"requests": [
        {"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count,
            "selectors": [{"cel": {"expression": selector}}]}}]}}});
    if count > 1 {
        claim["spec"]["devices"]["constraints"] =
            json!([{"matchAttribute": "gpu.example.com/root"}]);
    }
    Arc::new(serde_json::from_value(claim).expect("a claim"))
}

/// A cluster, and what its nodes answered.
struct Bed {
    inventory: Arc<Inventory>,
    usage: Usage,
    classes: Classes,
    selectors: Arc<Selectors>,
    answers: Answers,
    nodes: Vec<String>,
}

impl Bed {
    fn new(inventory: &Arc<Inventory>, held: usize) -> Self {
        let class: Value = json!({"metadata": {"name": "gpu"}, "spec": {"selectors": [
            {"cel": {"expression": format!("device.driver == '{DRIVER}'")}}]}});
        let mut usage = Usage::default();
        for node in 0..NODES {
            usage.add(&allocation(node, held));
        }
        Self {
            inventory: inventory.clone(),
            usage,
            classes: Classes::new([Arc::new(serde_json::from_value(class).expect("a class"))]),
            selectors: Arc::new(Selectors::kubernetes()),
            answers: Answers::default(),
            nodes: (0..NODES).map(|n| format!("node-{n}")).collect(),
        }
    }

    fn plan(&self, claim: &Arc<ResourceClaim>) -> (Plan, Question, Allocator) {
        let (claims, features) = ([claim.clone()], Features::default());
        let plan = Plan::new(&claims, features, &self.classes, &self.selectors).expect("a plan");
        let question = Question::new(&claims, features).expect("a question");
        let (inventory, usage) = (self.inventory.clone(), self.usage.clone());
        let allocator = Allocator::new(features, inventory, usage, self.selectors.clone());
        (plan, question, allocator)
    }

    /// How many nodes have devices for a claim; with `search` each is searched, whatever is known.
    fn ask(&self, claim: &Arc<ResourceClaim>, search: bool) -> usize {
        let (plan, question, allocator) = self.plan(claim);
        let picture = Picture {
            at: self.answers.now(),
            selects_nodes: self.inventory.selects_nodes(),
        };
        let labels = BTreeMap::new();
        let mut found = 0;
        for name in &self.nodes {
            let node = NodeView {
                name,
                labels: &labels,
            };
            let known = self.answers.get(&question, node, &picture);
            let answer = known.filter(|_| !search).unwrap_or_else(|| {
                let signature = allocator.signature(&plan, node);
                let same = self
                    .answers
                    .by_signature(&question, node, &picture, signature);
                same.filter(|_| !search).unwrap_or_else(|| {
                    let answer = search_on(&allocator, &plan, node);
                    let keep = answer.clone();
                    self.answers
                        .keep(&question, node, &picture, signature, keep);
                    answer
                })
            });
            found += usize::from(answer != Answer::Missing);
        }
        found
    }

    /// A claim comes or goes.
    fn book(&mut self, allocation: &AllocationResult, comes: bool) {
        if comes {
            self.usage.add(allocation);
        } else {
            self.usage.remove(allocation);
        }
        self.answers.allocation_changed(&self.inventory, allocation);
    }
}

fn search_on(allocator: &Allocator, plan: &Plan, node: NodeView<'_>) -> Answer {
    let call = Call {
        node,
        released: None,
        stop: &|| false,
        share_id: &String::new,
    };
    let found = allocator.allocate(plan, call).expect("an answer");
    found.map_or(Answer::Missing, |found| Answer::Found(found.chosen.into()))
}

fn benchmarks(c: &mut Criterion) {
    let slices = slices();
    let mut group = c.benchmark_group("claim_on_5000_nodes_x_8");
    group.sample_size(20);
    group.bench_function("building", |b| b.iter(|| inventory(&slices)));
    let inventory = Arc::new(inventory(&slices));
    for (name, count, held, expected) in [
        ("one", 1, 0, NODES),
        ("two_matching", 2, 0, NODES),
        ("full", 1, DEVICES, 0),
    ] {
        let mut bed = Bed::new(&inventory, held);
        let (known, change) = (claim(count, "A1"), allocation(7, DEVICES));
        group.bench_function(format!("{name}/first"), |b| {
            b.iter_batched(
                || Bed::new(&inventory, held),
                |bed| (assert_eq!(bed.ask(&known, false), expected), bed),
                BatchSize::PerIteration,
            );
        });
        assert_eq!(bed.ask(&known, false), expected);
        // One node has changed since the last claim, as when a pod with it has come or gone.
        group.bench_function(format!("{name}/known"), |b| {
            b.iter(|| {
                bed.answers.allocation_changed(&bed.inventory, &change);
                black_box(bed.ask(&known, false))
            });
        });
        // A selector nobody has used, of attributes that others have named.
        let mut number = 0;
        group.bench_function(format!("{name}/new_selector"), |b| {
            b.iter(|| {
                number += 1;
                black_box(bed.ask(&claim(count, &format!("B{number}")), false))
            });
        });
        group.bench_function(format!("{name}/searched"), |b| {
            b.iter(|| black_box(bed.ask(&known, true)));
        });
        if held == 0 && count == 1 {
            group.bench_function("booking", |b| {
                b.iter(|| {
                    bed.book(&change, true);
                    bed.book(&change, false);
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, benchmarks);
criterion_main!(benches);
