//! What is kept of nodes' answers: after any changes, what is known is what would be found.

use std::collections::BTreeMap;
use std::sync::Arc;

use davit_allocator::{
    Allocator, Answer, Answers, Call, Classes, Features, Inventory, NodeView, Picture, Plan,
    Question, Selectors, Slice, Usage,
};
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::bed::Words;

const NODES: [&str; 3] = ["node-0", "node-1", "node-2"];
const POOLS: usize = 4;
const DEVICES: usize = 3;

/// Something that happens.
#[derive(Debug, Clone)]
enum Step {
    /// A slice comes, or is replaced: pool, part of the pool, where its devices are, model of each.
    Slice(usize, usize, usize, [u8; DEVICES]),
    /// A slice goes.
    NoSlice(usize, usize),
    /// A claim of this number holds a device; an earlier allocation of it ends.
    Hold(usize, usize, usize),
    /// A claim holds nothing any more.
    Free(usize),
    /// A node gets another zone.
    Zone(usize, usize),
    /// Everybody is asked, by what is known now or by what was known before the last change.
    Ask(usize, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (pool, part, node) = (0..POOLS, 0..2usize, 0..NODES.len());
    let models = [0..2u8, 0..2u8, 0..2u8];
    let step = prop_oneof![
        3 => (pool.clone(), part.clone(), 0..NODES.len() + 3, models)
            .prop_map(|(pool, part, place, models)| Step::Slice(pool, part, place, models)),
        1 => (pool.clone(), part).prop_map(|(pool, part)| Step::NoSlice(pool, part)),
        3 => (0..6usize, pool, 0..2 * DEVICES).prop_map(|(c, p, d)| Step::Hold(c, p, d)),
        2 => (0..6usize).prop_map(Step::Free),
        1 => (node, 0..2usize).prop_map(|(node, zone)| Step::Zone(node, zone)),
        5 => (0..4usize, any::<bool>()).prop_map(|(claim, before)| Step::Ask(claim, before)),
    ];
    proptest::collection::vec(step, 1..60)
}

fn slice(pool: usize, part: usize, place: usize, models: [u8; DEVICES]) -> Arc<Slice> {
    let devices: Vec<Value> = models
        .iter()
        .enumerate()
        .map(|(d, model)| {
            json!({"name": format!("dev-{}", part * DEVICES + d), "attributes": {
                "model": {"string": format!("m{model}")}, "root": {"int": d % 2}}})
        })
        .collect();
    let mut spec = json!({"driver": "driver-a", "devices": devices,
        "pool": {"name": format!("pool-{pool}"), "generation": 1, "resourceSliceCount": 1 + part}});
    match (NODES.get(place), place - place.min(NODES.len())) {
        (Some(node), _) => spec["nodeName"] = json!(node),
        (None, 0) => spec["allNodes"] = json!(true),
        (None, zone) => {
            spec["nodeSelector"] = json!({"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "zone", "operator": "In", "values": [format!("z{}", zone - 1)]}]}]});
        }
    }
    let slice = json!({"metadata": {"name": format!("slice-{pool}-{part}")}, "spec": spec});
    let slice = serde_json::from_value(slice).unwrap();
    Arc::new(Slice::new(&slice, &[]).unwrap())
}

fn claim(kind: usize) -> Arc<ResourceClaim> {
    let model = |m| json!([{"cel": {"expression": format!("device.attributes[\"driver-a\"].model == \"m{m}\"")}}]);
    let exactly = |count: u8, selectors: Value| {
        json!({"name": "r", "exactly": {
        "deviceClassName": "class-a", "allocationMode": "ExactCount", "count": count, "selectors": selectors}})
    };
    let devices = match kind {
        0 => json!({"requests": [exactly(1, json!([]))]}),
        1 => json!({"requests": [exactly(2, model(1))]}),
        2 => {
            json!({"requests": [exactly(2, json!([]))], "constraints": [{"matchAttribute": "driver-a/root"}]})
        }
        _ => json!({"requests": [{"name": "r", "firstAvailable": [
            {"name": "two", "deviceClassName": "class-a", "allocationMode": "ExactCount", "count": 2, "selectors": model(0)},
            {"name": "all", "deviceClassName": "class-a", "allocationMode": "All"}]}]}),
    };
    let claim = json!({"metadata": {"name": "c", "namespace": "d"}, "spec": {"devices": devices}});
    Arc::new(serde_json::from_value(claim).unwrap())
}

/// What an attempt reads.
#[derive(Clone)]
struct View {
    inventory: Arc<Inventory>,
    usage: Usage,
    picture: Picture,
}

struct World {
    answers: Answers,
    inventory: Arc<Inventory>,
    usage: Usage,
    held: BTreeMap<usize, AllocationResult>,
    zones: [usize; NODES.len()],
    selectors: Arc<Selectors>,
    classes: Classes,
    /// How often a node's own answer was known, and that of one like it.
    hits: usize,
    by_signature: usize,
}

impl World {
    fn new() -> Self {
        let class = json!({"metadata": {"name": "class-a"}, "spec": {"selectors": [
            {"cel": {"expression": "device.driver == \"driver-a\""}}]}});
        Self {
            answers: Answers::default(),
            inventory: Arc::default(),
            usage: Usage::default(),
            held: BTreeMap::new(),
            zones: [0; NODES.len()],
            selectors: Arc::new(Selectors::new(Words)),
            classes: Classes::new([Arc::new(serde_json::from_value(class).unwrap())]),
            hits: 0,
            by_signature: 0,
        }
    }

    fn view(&self) -> View {
        View {
            inventory: self.inventory.clone(),
            usage: self.usage.clone(),
            picture: Picture {
                at: self.answers.now(),
                selects_nodes: self.inventory.selects_nodes(),
            },
        }
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut Inventory)) {
        if let Some(pool) = self.inventory.pool_of(name) {
            self.answers.pool_changed(&self.inventory, pool);
        }
        change(Arc::make_mut(&mut self.inventory));
        if let Some(pool) = self.inventory.pool_of(name) {
            self.answers.pool_changed(&self.inventory, pool);
        }
    }

    fn free(&mut self, claim: usize) {
        if let Some(held) = self.held.remove(&claim) {
            self.usage.remove(&held);
            self.answers.allocation_changed(&self.inventory, &held);
        }
    }

    fn step(&mut self, step: &Step, before: &View) {
        match *step {
            Step::Slice(pool, part, place, models) => {
                let slice = slice(pool, part, place, models);
                let name = slice.name.clone();
                self.change(&name, |inventory| inventory.set(slice));
            }
            Step::NoSlice(pool, part) => {
                let name = format!("slice-{pool}-{part}");
                self.change(&name, |inventory| inventory.remove(&name));
            }
            Step::Hold(claim, pool, device) => {
                self.free(claim);
                let held = json!({"devices": {"results": [{"request": "r", "driver": "driver-a",
                    "pool": format!("pool-{pool}"), "device": format!("dev-{device}")}]}});
                let held: AllocationResult = serde_json::from_value(held).unwrap();
                self.usage.add(&held);
                self.answers.allocation_changed(&self.inventory, &held);
                self.held.insert(claim, held);
            }
            Step::Free(claim) => self.free(claim),
            Step::Zone(node, zone) => self.zones[node] = zone,
            Step::Ask(kind, false) => self.ask(kind, &self.view()),
            Step::Ask(kind, true) => self.ask(kind, before),
        }
    }

    fn ask(&mut self, kind: usize, view: &View) {
        let claims = [claim(kind)];
        let features = Features::default();
        let plan = Plan::new(&claims, features, &self.classes, &self.selectors).unwrap();
        let question = Question::new(&claims, features).unwrap();
        let (inventory, usage) = (view.inventory.clone(), view.usage.clone());
        let allocator = Allocator::new(features, inventory, usage, self.selectors.clone());
        let missing = self.answers.missing(&question, &view.picture);
        assert!(missing.is_empty() || !view.picture.selects_nodes);
        for (name, zone) in NODES.iter().zip(self.zones) {
            let labels = BTreeMap::from([("zone".to_owned(), format!("z{zone}"))]);
            let node = NodeView {
                name,
                labels: &labels,
            };
            let call = Call {
                node,
                released: None,
                stop: &|| false,
                share_id: &String::new,
            };
            let found = allocator.allocate(&plan, call);
            let signature = allocator.signature(&plan, node);
            let (get, same) = (
                self.answers.get(&question, node, &view.picture),
                self.answers
                    .by_signature(&question, node, &view.picture, signature),
            );
            if !view.picture.selects_nodes {
                let place = self.answers.place(&Arc::from(*name));
                let said = missing.get(place).copied().unwrap_or_default();
                assert_eq!(said, get == Some(Answer::Missing), "{name}");
            }
            if same.is_some() && get.is_none() {
                self.by_signature += 1;
            }
            let known = get.clone().or(same);
            let Ok(found) = found else {
                assert_eq!(known, None, "{name}");
                continue;
            };
            let answer = match found {
                Some(allocation) => Answer::Found(allocation.chosen.into()),
                None => Answer::Missing,
            };
            if let Some(known) = known {
                assert_eq!(known, answer, "{name}");
                self.hits += usize::from(get.is_some());
            }
            let keep = answer.clone();
            self.answers
                .keep(&question, node, &view.picture, signature, keep);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn what_is_known_is_what_would_be_found(steps in steps()) {
        let mut world = World::new();
        let mut before = world.view();
        for step in &steps {
            let view = world.view();
            world.step(step, &before);
            if !matches!(step, Step::Ask(..)) {
                before = view;
            }
        }
    }
}

#[test]
fn an_answer_is_kept_until_something_it_depends_on_changes() {
    let mut world = World::new();
    let ask = |world: &mut World| {
        let (hits, view) = (world.hits, world.view());
        world.ask(0, &view);
        world.hits - hits
    };
    for pool in 0..2 {
        let slice = Step::Slice(pool, 0, pool, [0; DEVICES]);
        world.step(&slice, &world.view());
    }
    assert_eq!(ask(&mut world), 0);
    assert_eq!(ask(&mut world), 3);
    // Another claim asks for something else.
    let view = world.view();
    world.ask(1, &view);
    assert_eq!((world.hits, ask(&mut world)), (3, 3));
    // One node's devices are held, or come anew.
    for step in [
        Step::Hold(0, 1, 0),
        Step::Slice(1, 0, 1, [1; DEVICES]),
        Step::Free(0),
    ] {
        world.step(&step, &world.view());
        assert_eq!((ask(&mut world), ask(&mut world)), (2, 3), "{step:?}");
    }
    // A pool moves from one node to another.
    world.step(&Step::Slice(1, 0, 2, [1; DEVICES]), &world.view());
    assert_eq!((ask(&mut world), ask(&mut world)), (1, 3));
    // Labels matter once slices select by them, and what all may see concerns all.
    world.step(&Step::Zone(0, 1), &world.view());
    assert_eq!(ask(&mut world), 3);
    world.step(
        &Step::Slice(2, 0, NODES.len() + 2, [0; DEVICES]),
        &world.view(),
    );
    assert_eq!((ask(&mut world), ask(&mut world)), (0, 3));
    world.step(&Step::Zone(1, 1), &world.view());
    assert_eq!((ask(&mut world), ask(&mut world)), (2, 3));
    world.answers.all_changed();
    assert_eq!((ask(&mut world), ask(&mut world)), (0, 3));
}
