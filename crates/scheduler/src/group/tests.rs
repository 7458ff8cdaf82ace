//! Groups on a small cluster of plain values; the numbers are those of the scheduler's checklist.

mod making_room;

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::*;
use crate::framework::{Action, ClusterEvent, EventObject, EventResource, Hint};
use crate::plugins::testing::{known_devices, pod};
use crate::plugins::{
    Budgets, GangScheduling, PodGroupPodsCount, TopologyPlacement, default_profile,
};
use crate::pod::PodInfo;
use crate::queue::QueueOptions;

/// The rules of one profile.
struct OfProfile(Profile);

impl Rules for OfProfile {
    fn rank(&self, pod: &PodInfo) -> i64 {
        self.0.rank(pod)
    }
    fn gate(&self, pod: &PodInfo) -> Option<Status> {
        self.0.gate(pod)
    }
    fn hint(
        &self,
        plugin: &str,
        event: &ClusterEvent,
        pod: &PodInfo,
        object: &EventObject,
    ) -> Hint {
        self.0.hint(plugin, event, pod, object)
    }
}

/// Queue, cache and groups, with a scheduler that decides when it is told to.
struct World {
    cache: Cache,
    snapshot: Snapshot,
    queue: Queue,
    groups: PodGroups,
    rules: OfProfile,
    search: NodeSearch,
    now: Instant,
    /// The nodes of the pods that have some.
    bound: BTreeMap<String, String>,
    /// What pods were last told.
    told: BTreeMap<String, String>,
    verdict: Option<GroupVerdict>,
    nominated: Nominated,
    /// The pods that the last decision removes, who go when they are told to.
    removed: Vec<Arc<PodInfo>>,
    /// What plugins want to be done about it.
    effects: Vec<futures::future::BoxFuture<'static, ()>>,
}

impl World {
    fn new() -> Self {
        Self::with(PodGroups::default(), |profile| profile)
    }

    /// With these groups, and more plugins.
    fn with(groups: PodGroups, more: impl FnOnce(Profile) -> Profile) -> Self {
        let profile = default_profile("s", None, Budgets::default(), &known_devices());
        let gangs = GangScheduling::new(groups.clone());
        let profile = profile
            .with(Arc::new(gangs), 0)
            .with(Arc::new(TopologyPlacement), 0)
            .with(Arc::new(PodGroupPodsCount), 1);
        Self {
            cache: Cache::new(),
            snapshot: Snapshot::default(),
            queue: Queue::new(QueueOptions::default()),
            groups,
            rules: OfProfile(more(profile)),
            search: NodeSearch::default(),
            now: Instant::now(),
            bound: BTreeMap::new(),
            told: BTreeMap::new(),
            verdict: None,
            nominated: Nominated::default(),
            removed: Vec::new(),
            effects: Vec::new(),
        }
    }

    /// A node with so many devices; or it has so many now.
    fn node(&mut self, name: &str, devices: usize) {
        self.node_with(name, devices, &json!({}));
    }

    /// The same in a rack.
    fn racked(&mut self, name: &str, rack: &str, devices: usize) {
        self.node_with(name, devices, &json!({ "rack": rack }));
    }

    fn node_with(&mut self, name: &str, devices: usize, labels: &Value) {
        let node = json!({"metadata": {"name": name, "labels": labels},
            "status": {"allocatable": {"pods": "99", "example.com/foo": devices.to_string()}}});
        self.cache
            .set_node(Arc::new(serde_json::from_value(node).unwrap()));
        let action = Action::ADD | Action::UPDATE_ALLOCATABLE | Action::UPDATE_LABEL;
        let object = EventObject::Other;
        self.event(EventResource::Node, action, &object);
    }

    fn group(&mut self, name: &str, policy: Value) {
        self.group_of(name, json!({ "schedulingPolicy": policy }));
    }

    /// A group whose pods belong into one rack.
    fn group_in_rack(&mut self, name: &str, policy: Value) {
        let constraints = json!({"topology": [{"key": "rack"}]});
        let spec = json!({"schedulingPolicy": policy, "schedulingConstraints": constraints});
        self.group_of(name, spec);
    }

    fn group_of(&mut self, name: &str, spec: Value) {
        let group = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
        let group: Arc<_> = Arc::new(serde_json::from_value(group).unwrap());
        self.groups.set(Arc::clone(&group));
        let new = Some(group);
        let object = EventObject::PodGroup { old: None, new };
        self.event(EventResource::PodGroup, Action::ADD, &object);
    }

    /// A pod of a group that needs one device.
    fn pod(&mut self, name: &str, group: &str) {
        let spec = json!({"schedulingGroup": {"podGroupName": group}, "containers": [
            {"name": "c", "resources": {"requests": {"example.com/foo": "1"}}}]});
        let pod = pod(name, spec);
        self.groups.set_pod(&pod, false);
        self.queue.set(pod.clone(), &self.rules, self.now);
        let new = Some(pod);
        let object = EventObject::Pod { old: None, new };
        self.event(EventResource::UnscheduledPod, Action::ADD, &object);
    }

    fn event(&mut self, resource: EventResource, action: Action, object: &EventObject) {
        let event = ClusterEvent::new(resource, action);
        self.queue.on_event(&event, object, &self.rules, self.now);
    }

    /// One decision, if a pod can be tried.
    fn step(&mut self) -> bool {
        let Some(first) = self.queue.pop(&self.rules, self.now) else {
            return false;
        };
        let members = draw(&mut self.queue, &self.groups, first, &self.rules, self.now);
        self.cache.update(&mut self.snapshot);
        let cycle = GroupCycle {
            began: tokio::time::Instant::now(),
            profile: &self.rules.0,
            cache: &mut self.cache,
            snapshot: &mut self.snapshot,
            nominated: &self.nominated,
            groups: &self.groups,
            extenders: &Extenders::default(),
            answers: &GroupAnswers::new(),
            search: &mut self.search,
        };
        let decision = cycle.decide(members);
        for (taken, mut attempt) in decision.refused {
            self.effects.extend(attempt.state.take_effects());
            let pod = &taken.pod;
            self.told.insert(pod.name.to_string(), attempt.message());
            self.nominated.set(pod, attempt.nominate.as_deref());
            self.queue
                .fail(&pod.uid, attempt.failure(), &self.rules, self.now);
        }
        for place in decision.placed {
            assert!(place.waits.is_empty());
            let pod = &place.taken.pod;
            self.bound
                .insert(pod.name.to_string(), place.node.to_string());
            self.nominated.remove(&pod.uid);
            self.queue.remove(&pod.uid);
        }
        self.verdict = Some(decision.verdict);
        self.removed = decision.removed;
        true
    }

    /// Decides until nothing is left to try.
    fn settle(&mut self) {
        for _ in 0..50 {
            self.now += Duration::from_secs(11);
            if !self.step() {
                return;
            }
        }
        panic!("the queue never comes to rest");
    }

    fn bound_of(&self, group: &str) -> usize {
        let of = |name: &&String| name.starts_with(group);
        self.bound.keys().filter(of).count()
    }

    /// The pods of a group end.
    fn end(&mut self, group: &str) {
        let names: Vec<String> = self.bound.keys().cloned().collect();
        for name in names.iter().filter(|name| name.starts_with(group)) {
            self.bound.remove(name);
            self.groups.remove_pod(Some("default"), group, name);
            let old = self.cache.remove_pod(name);
            let object = EventObject::Pod { old, new: None };
            self.event(EventResource::AssignedPod, Action::DELETE, &object);
        }
    }
}

fn gang(count: usize) -> Value {
    json!({"gang": {"minCount": count}})
}

#[test]
fn items_59_and_60_so_many_together_or_none() {
    let mut world = World::new();
    world.node("n", 3);
    world.group("g", gang(4));
    for i in 0..5 {
        world.pod(&format!("g{i}"), "g");
    }
    world.settle();
    assert_eq!(world.bound.len(), 0);
    assert_eq!(world.cache.pod_count(), 0);
    assert_eq!(world.verdict, Some(GroupVerdict::Unschedulable));
    let waits = "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled";
    let short = "0/1 nodes are available: 1 Insufficient example.com/foo.";
    let told = |text: &str, world: &World| world.told.values().filter(|t| *t == text).count();
    assert_eq!((told(waits, &world), told(short, &world)), (3, 2));

    world.node("n", 4);
    world.settle();
    assert_eq!(world.verdict, Some(GroupVerdict::Fits));
    assert_eq!(world.bound.len(), 4);
    world.told.retain(|name, _| !world.bound.contains_key(name));
    assert_eq!(world.told.values().collect::<Vec<_>>(), [short]);

    // Where so many have a node, the rest comes one by one.
    world.node("m", 1);
    world.settle();
    assert_eq!(world.bound_of("g"), 5);
}

#[test]
fn the_rest_of_a_gang_is_not_tried_once_too_few_can_go() {
    let mut world = World::new();
    world.node("n", 3);
    world.group("g", gang(90));
    for i in 0..100 {
        world.pod(&format!("g{i:02}"), "g");
    }
    assert!(world.step());
    assert_eq!(world.verdict, Some(GroupVerdict::Unschedulable));
    let told = |text: &str| world.told.values().filter(|t| *t == text).count();
    // Three have nodes, of the other 97 eleven are too many.
    let short = "0/1 nodes are available: 1 Insufficient example.com/foo.";
    let waits = "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled";
    assert_eq!((told(short), told(waits)), (11, 89));
    assert_eq!(world.cache.pod_count(), 0);

    // Those that were not tried are, once there is room.
    world.node("n", 95);
    world.settle();
    assert_eq!(world.bound_of("g"), 95);
}

#[test]
fn gangs_wait_for_their_group_and_for_enough_pods() {
    let mut world = World::new();
    world.node("n", 9);
    world.pod("g0", "g");
    let gate = |world: &World| {
        let pod = world.queue.pod("g0").unwrap();
        world.rules.gate(pod).map(|status| status.message())
    };
    assert_eq!(
        gate(&world).as_deref(),
        Some("waiting for pods's pod group \"g\" to appear in scheduling queue")
    );
    assert!(!world.step());
    world.group("g", gang(2));
    assert_eq!(
        gate(&world).as_deref(),
        Some("waiting for minCount pods from a gang to appear in scheduling queue")
    );
    // another group's pods do not count
    world.pod("h0", "h");
    assert!(!world.step());
    world.pod("g1", "g");
    assert!(world.step());
    assert_eq!(world.bound_of("g"), 2);
}

#[test]
fn basic_groups_never_hold_their_pods_back() {
    let mut world = World::new();
    world.node("n", 2);
    world.group("g", json!({"basic": {}}));
    for i in 0..3 {
        world.pod(&format!("g{i}"), "g");
    }
    world.settle();
    assert_eq!(world.bound_of("g"), 2);
    assert_eq!(world.queue.counts().unschedulable, 1);
}

#[test]
fn a_group_that_goes_leaves_others_what_it_does_not_use() {
    let mut world = World::new();
    world.node("n", 3);
    world.group("a", gang(2));
    world.group("b", gang(2));
    world.group("c", gang(1));
    for name in ["a0", "a1", "b0", "b1", "c0"] {
        world.pod(name, &name[..1]);
    }
    world.settle();
    assert_eq!(world.bound_of("c"), 1);
    assert_eq!(world.bound_of("a") + world.bound_of("b"), 2);
}

/// Two gangs of which either fits, but not both, whose pods come in any order.
#[test]
fn item_61_gangs_that_fit_one_at_a_time_never_block_each_other() {
    for seed in 0..1000 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut world = World::new();
        let nodes: Vec<usize> = (0..random.random_range(1..5))
            .map(|_| random.random_range(1..4))
            .collect();
        let all: usize = nodes.iter().sum();
        let a = random.random_range(1..=all);
        let b = random.random_range(all - a + 1..=all);
        let sizes = [("a", a), ("b", b)];
        for (i, devices) in nodes.iter().enumerate() {
            world.node(&format!("n{i}"), *devices);
        }
        let mut arrivals: Vec<(String, &str)> = Vec::new();
        for (group, size) in sizes {
            arrivals.push((String::new(), group));
            arrivals.extend((0..size).map(|i| (format!("{group}{i}"), group)));
        }
        arrivals.shuffle(&mut random);
        let check = |world: &World| {
            for (group, size) in sizes {
                let bound = world.bound_of(group);
                assert!(
                    bound == 0 || bound == size,
                    "seed {seed}: {bound} of {size}"
                );
            }
        };
        for (pod, group) in arrivals {
            if pod.is_empty() {
                let size = sizes.iter().find(|(name, _)| *name == group).unwrap().1;
                world.group(group, gang(size));
            } else {
                world.pod(&pod, group);
            }
            if random.random_bool(0.5) {
                world.step();
            }
            check(&world);
        }
        world.settle();
        check(&world);
        let first = if world.bound_of("a") > 0 { "a" } else { "b" };
        assert!(world.bound_of(first) > 0, "seed {seed}: neither goes");
        world.end(first);
        world.settle();
        let (second, size) = *sizes.iter().find(|(name, _)| *name != first).unwrap();
        assert_eq!(world.bound_of(second), size, "seed {seed}");
    }
}

/// KEP-5732.
#[test]
fn a_group_goes_into_one_rack_or_stays() {
    let mut world = World::new();
    for (name, rack, devices) in [
        ("a0", "a", 1),
        ("a1", "a", 1),
        ("b0", "b", 1),
        ("b1", "b", 2),
    ] {
        world.racked(name, rack, devices);
    }
    world.node("loose", 9);
    world.group_in_rack("g", gang(4));
    for i in 0..4 {
        world.pod(&format!("g{i}"), "g");
    }
    world.settle();
    assert_eq!(world.bound.len(), 0);
    assert_eq!(world.cache.pod_count(), 0);
    assert_eq!(world.verdict, Some(GroupVerdict::NoPlacement(2)));
    let message = world.verdict.as_ref().unwrap().message();
    assert_eq!(
        message,
        "0/2 placements are available, first placement status: pod group is unschedulable"
    );
    let short = "0/5 nodes are available: 2 Insufficient example.com/foo, 3 node(s) outside of placement a.";
    assert!(
        world.told.values().any(|told| told == short),
        "{:?}",
        world.told
    );

    world.racked("b0", "b", 3);
    world.settle();
    assert_eq!(world.verdict, Some(GroupVerdict::Fits));
    assert_eq!(world.bound_of("g"), 4);
    assert!(world.bound.values().all(|node| node.starts_with('b')));

    // Whoever comes later goes where the others are.
    world.racked("a0", "a", 9);
    for name in ["g4", "g5"] {
        world.pod(name, "g");
    }
    world.settle();
    assert_eq!(world.bound_of("g"), 5);
    assert!(world.bound.values().all(|node| node.starts_with('b')));
}

#[test]
fn a_group_whose_topology_nobody_has_waits_for_it() {
    let mut world = World::new();
    world.node("n", 2);
    world.group_in_rack("g", gang(1));
    world.pod("g0", "g");
    world.settle();
    let why = "no feasible placements found".to_owned();
    assert_eq!(world.verdict, Some(GroupVerdict::Refused(why)));
    assert_eq!(
        world.told["g0"],
        "0/1 nodes are available: no feasible placements found."
    );
    world.racked("n", "a", 2);
    world.settle();
    assert_eq!(world.bound["g0"], "n");
}

#[test]
fn the_rack_that_takes_more_pods_is_better() {
    let mut world = World::new();
    world.racked("a", "a", 1);
    world.racked("b", "b", 2);
    world.racked("c", "c", 1);
    world.group_in_rack("g", json!({"basic": {}}));
    for i in 0..3 {
        world.pod(&format!("g{i}"), "g");
    }
    assert!(world.step());
    assert_eq!(world.verdict, Some(GroupVerdict::Fits));
    assert_eq!(world.bound.values().collect::<Vec<_>>(), ["b", "b"]);
}

/// Whatever racks there are: a gang that fits into one goes into one, and what was only tried leaves nothing behind.
#[test]
fn gangs_find_the_rack_that_has_room() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut world = World::new();
        let mut rooms: BTreeMap<String, usize> = BTreeMap::new();
        for i in 0..random.random_range(1..8) {
            let rack = random.random_range(0..3).to_string();
            let devices = random.random_range(0..3);
            world.racked(&format!("{rack}-{i}"), &rack, devices);
            *rooms.entry(rack).or_default() += devices;
        }
        let size = random.random_range(1..6);
        world.group_in_rack("g", gang(size));
        for i in 0..size {
            world.pod(&format!("g{i}"), "g");
        }
        world.settle();
        let fits = rooms.values().any(|room| *room >= size);
        let wanted = if fits { size } else { 0 };
        assert_eq!(world.bound_of("g"), wanted, "seed {seed}: {rooms:?}");
        assert_eq!(world.cache.pod_count(), wanted, "seed {seed}");
        let racks: Vec<&str> = world.bound.values().map(|node| &node[..1]).collect();
        assert!(
            racks.iter().all(|rack| *rack == racks[0]),
            "seed {seed}: {racks:?}"
        );
    }
}
