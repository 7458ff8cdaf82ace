//! Room for whole groups (KEP-5710): who is removed, and who is spared.

use std::collections::BTreeSet;

use super::*;
use crate::plugins::testing::labelled;
use crate::plugins::{DefaultPreemption, PrioritySort};

/// A client of a cluster that never answers: what is to be removed is looked at, and never done.
fn silence() -> kube::Client {
    let never = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
    });
    davit_client::in_process(never, "default")
}

impl World {
    /// Where groups have priorities, with these budgets. A budget lets no pod of its label go.
    fn preempting(kept: &[&str]) -> Self {
        let groups = PodGroups::with_priorities(true);
        groups.synced();
        let budgets = Budgets::default();
        let budget = |label: &&str| {
            let budget = json!({"metadata": {"name": label, "namespace": "default"},
                "spec": {"selector": {"matchLabels": {"app": label}}},
                "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}});
            Arc::new(serde_json::from_value(budget).unwrap())
        };
        budgets.replace(kept.iter().map(budget).collect());
        let preemption = DefaultPreemption::new(silence(), budgets).with_groups(groups.clone());
        let sort = PrioritySort::new(groups.clone());
        Self::with(groups, |profile| {
            profile
                .with(Arc::new(preemption), 0)
                .with(Arc::new(sort), 0)
        })
    }

    /// A gang of this priority.
    fn gang_of(&mut self, name: &str, count: usize, priority: i32) {
        self.group_of(
            name,
            json!({"schedulingPolicy": gang(count), "priority": priority}),
        );
    }

    /// A group that goes whole.
    fn whole(&mut self, name: &str, priority: i32) {
        self.group_of(
            name,
            json!({"schedulingPolicy": {"basic": {}}, "priority": priority, "disruptionMode": "PodGroup"}),
        );
    }

    /// A pod that runs on a node and holds so many devices.
    fn running(&mut self, name: &str, node: &str, foo: usize, more: &Value) {
        self.place(name, node, foo, more, false);
    }

    fn place(&mut self, name: &str, node: &str, foo: usize, more: &Value, terminating: bool) {
        let mut spec = json!({"nodeName": node, "containers": [
            {"name": "c", "resources": {"requests": {"example.com/foo": foo.to_string()}}}]});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let app = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let mut pod = labelled(name, json!({"app": app}), spec);
        if terminating {
            Arc::get_mut(&mut pod).unwrap().terminating = true;
        }
        self.groups.set_pod(&pod, true);
        self.cache.set_pod(pod);
    }

    /// The pods that are removed, by name.
    fn removed(&self) -> BTreeSet<String> {
        self.removed
            .iter()
            .map(|pod| pod.name.to_string())
            .collect()
    }

    /// The pods that were to be removed are gone.
    fn let_go(&mut self) {
        self.effects.clear();
        for pod in std::mem::take(&mut self.removed) {
            self.cache.remove_pod(&pod.uid);
            let old = Some(pod);
            let object = EventObject::Pod { old, new: None };
            self.event(EventResource::AssignedPod, Action::DELETE, &object);
        }
        self.now += Duration::from_secs(11);
    }
}

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

fn of(priority: i32) -> Value {
    json!({ "priority": priority })
}

fn in_group(priority: i32, group: &str) -> Value {
    json!({"priority": priority, "schedulingGroup": {"podGroupName": group}})
}

#[tokio::test]
async fn a_gang_has_as_many_removed_as_it_needs_and_then_goes() {
    let mut world = World::preempting(&[]);
    world.node("n", 3);
    world.node("m", 2);
    for (name, node, priority) in [("a", "n", 1), ("b", "n", 2), ("c", "n", 3), ("d", "m", 4)] {
        world.running(name, node, 1, &of(priority));
    }
    world.gang_of("g", 3, 10);
    for i in 0..4 {
        world.pod(&format!("g{i}"), "g");
    }
    assert!(world.step());
    assert_eq!(world.verdict, Some(GroupVerdict::WaitsForPreemption));
    // One device of m is free; the fourth pod is not needed.
    assert_eq!(world.removed(), names(&["a", "b"]));
    assert_eq!(world.cache.pod_count(), 4);
    let waits = "pod group is unschedulable, pod group is waiting for preemption to complete";
    assert_eq!(world.told["g0"], waits);
    world.let_go();
    world.settle();
    assert_eq!(world.bound_of("g"), 3);
    // Those beyond the least number are scheduled like any other, and have room made for them.
    world.node("o", 0);
    world.settle();
    assert_eq!(world.removed(), names(&["c"]));
}

/// Two of a gang wait for the same node: each has its place once.
#[tokio::test]
async fn nominations_of_a_gang_count_once() {
    let mut world = World::preempting(&[]);
    world.node("n", 2);
    world.running("big", "n", 2, &of(0));
    world.gang_of("g", 2, 10);
    world.pod("g0", "g");
    world.pod("g1", "g");
    assert!(world.step());
    assert_eq!(world.removed(), names(&["big"]));
    let on_n = world.nominated.on_node("n").len();
    assert_eq!(on_n, 2);
    world.let_go();
    world.settle();
    assert_eq!(world.bound_of("g"), 2);
}

#[tokio::test]
async fn nobody_goes_for_a_gang_that_could_not_go_even_so() {
    let mut world = World::preempting(&[]);
    world.node("n", 3);
    world.running("low", "n", 1, &of(0));
    world.running("high", "n", 1, &of(10));
    world.gang_of("g", 3, 10);
    for i in 0..3 {
        world.pod(&format!("g{i}"), "g");
    }
    assert!(world.step());
    let why = "removing pods of lower priority does not help";
    assert_eq!(world.verdict, Some(GroupVerdict::Refused(why.to_owned())));
    assert!(world.removed().is_empty() && world.nominated.is_empty());
    assert_eq!(world.cache.pod_count(), 2);
    let short =
        format!("0/1 nodes are available: 1 Insufficient example.com/foo. preemption: {why}.");
    assert!(
        world.told.values().any(|told| *told == short),
        "{:?}",
        world.told
    );
}

/// Else a pod might go whose group goes whole.
#[tokio::test]
async fn nobody_goes_before_all_groups_are_known() {
    let mut world = World::preempting(&[]);
    world.groups = PodGroups::with_priorities(true);
    let unknown = world.groups.unknown().unwrap().to_owned();
    let preemption = DefaultPreemption::new(silence(), Budgets::default());
    let preemption = preemption.with_groups(world.groups.clone());
    let profile = default_profile("s", None, Budgets::default(), &known_devices());
    world.rules = OfProfile(profile.with(Arc::new(preemption), 0));
    world.node("n", 1);
    world.running("low", "n", 1, &of(1));
    world.gang_of("g", 1, 10);
    world.pod("g0", "g");
    assert!(world.step());
    assert_eq!(world.verdict, Some(GroupVerdict::Refused(unknown)));
    assert!(world.removed().is_empty());
    world.groups.synced();
    world.node("n", 1);
    world.settle();
    assert_eq!(world.removed(), names(&["low"]));
}

#[tokio::test]
async fn a_pod_that_must_not_preempt_keeps_its_group_from_it() {
    let mut world = World::preempting(&[]);
    world.node("n", 1);
    world.running("low", "n", 1, &of(0));
    world.gang_of("g", 1, 10);
    let spec = json!({"schedulingGroup": {"podGroupName": "g"}, "preemptionPolicy": "Never",
        "containers": [{"name": "c", "resources": {"requests": {"example.com/foo": "1"}}}]});
    let never = pod("g0", spec);
    world.groups.set_pod(&never, false);
    world.queue.set(never, &world.rules, world.now);
    assert!(world.step());
    let why = "not eligible due to preemptionPolicy=Never.".to_owned();
    assert_eq!(world.verdict, Some(GroupVerdict::Refused(why)));
    assert!(world.removed().is_empty());
}

/// The group's priority counts, not those of its pods, both of who needs room and of who goes whole.
#[tokio::test]
async fn the_priority_of_a_group_is_its_own() {
    let mut world = World::preempting(&[]);
    world.node("n", 2);
    world.whole("w", 20);
    world.running("w0", "n", 1, &in_group(0, "w"));
    world.running("low", "n", 1, &of(5));
    world.gang_of("g", 2, 10);
    world.pod("g0", "g");
    world.pod("g1", "g");
    assert!(world.step());
    assert!(world.removed().is_empty());
    world.gang_of("h", 1, 10);
    world.pod("h0", "h");
    assert!(world.step());
    assert_eq!(world.removed(), names(&["low"]));
    // Of lower priority than its pods.
    let mut world = World::preempting(&[]);
    world.node("n", 1);
    world.whole("w", 1);
    world.running("w0", "n", 1, &in_group(50, "w"));
    world.gang_of("g", 1, 10);
    world.pod("g0", "g");
    assert!(world.step());
    assert_eq!(world.removed(), names(&["w0"]));
}

/// Important pods of a group that is not do not make it so.
#[tokio::test]
async fn what_a_group_may_remove_does_not_follow_from_its_pods() {
    let mut world = World::preempting(&[]);
    world.node("n", 1);
    world.running("low", "n", 1, &of(5));
    world.gang_of("g", 1, 1);
    let spec = json!({"priority": 100, "schedulingGroup": {"podGroupName": "g"}, "containers": [
        {"name": "c", "resources": {"requests": {"example.com/foo": "1"}}}]});
    let important = pod("g0", spec);
    world.groups.set_pod(&important, false);
    world.queue.set(important, &world.rules, world.now);
    assert!(world.step());
    assert!(world.removed().is_empty());
    let why = "removing pods of lower priority does not help".to_owned();
    assert_eq!(world.verdict, Some(GroupVerdict::Refused(why)));
}

/// Where a group does not say that it goes whole, its pods go one by one and by their own priorities; and a group's own pods
/// never go for it.
#[tokio::test]
async fn pods_of_other_groups_go_one_by_one() {
    let mut world = World::preempting(&[]);
    world.node("n", 2);
    world.gang_of("s", 1, 50);
    world.running("s0", "n", 1, &in_group(1, "s"));
    world.running("s1", "n", 1, &in_group(2, "s"));
    world.gang_of("g", 1, 10);
    world.pod("g0", "g");
    assert!(world.step());
    assert_eq!(world.removed(), names(&["s0"]));
    world.let_go();
    world.settle();
    assert_eq!(world.bound_of("g"), 1);
    world.pod("s2", "s");
    world.settle();
    // Of the group's own there is one of lower priority, and another's of a lower one, too.
    assert_eq!(world.removed(), names(&["g0"]));
}

/// What goes whole is the dearer: pods of the same priority go before it.
#[tokio::test]
async fn groups_that_go_whole_go_whole_and_after_pods() {
    let mut world = World::preempting(&[]);
    for name in ["n", "m", "o"] {
        world.node(name, 1);
    }
    world.whole("w", 1);
    world.running("w0", "n", 1, &in_group(1, "w"));
    world.running("w1", "m", 1, &in_group(1, "w"));
    world.running("single", "o", 1, &of(1));
    world.gang_of("one", 1, 10);
    world.pod("one0", "one");
    assert!(world.step());
    assert_eq!(world.removed(), names(&["single"]));
    world.gang_of("two", 2, 20);
    world.pod("two0", "two");
    world.pod("two1", "two");
    world.removed.clear();
    assert!(world.step());
    // For the first of the two the single one would have gone; with the group gone it need not.
    assert_eq!(world.removed(), names(&["w0", "w1"]));
}

#[tokio::test]
async fn what_is_being_deleted_makes_room_first() {
    let mut world = World::preempting(&[]);
    world.node("n", 2);
    world.place("leaving", "n", 1, &of(5), true);
    world.running("low", "n", 1, &of(1));
    world.gang_of("g", 1, 10);
    world.pod("g0", "g");
    assert!(world.step());
    assert_eq!(world.verdict, Some(GroupVerdict::WaitsForPreemption));
    assert!(world.removed().is_empty());
    assert_eq!(world.nominated.node_of("g0"), Some("n"));
    assert_eq!(world.cache.pod_count(), 2);
}

/// A group that is tried again while those removed for it are still there waits for these, and no others go.
#[tokio::test]
async fn who_is_being_removed_makes_room_first() {
    for _ in 0..20 {
        let mut world = World::preempting(&[]);
        for name in ["n", "m", "o"] {
            world.node(name, 1);
            world.running(&format!("low-{name}"), name, 1, &of(1));
        }
        world.gang_of("g", 1, 10);
        world.pod("g0", "g");
        assert!(world.step());
        assert_eq!(world.removed().len(), 1);
        world.node("p", 0);
        world.now += Duration::from_secs(11);
        assert!(world.step());
        assert_eq!(world.verdict, Some(GroupVerdict::WaitsForPreemption));
        assert!(world.removed().is_empty());
        // It came to nothing: somebody has to go after all.
        world.effects.clear();
        world.node("p", 0);
        world.now += Duration::from_secs(11);
        assert!(world.step());
        assert_eq!(world.removed().len(), 1);
    }
}

/// A pod of lower priority does not take what is being made free for a group, though the group's own pods have none.
#[tokio::test]
async fn what_is_made_free_for_a_group_is_the_groups() {
    let mut world = World::preempting(&[]);
    world.node("n", 1);
    world.running("low", "n", 1, &of(1));
    world.gang_of("g", 1, 10);
    world.pod("g0", "g");
    assert!(world.step());
    assert_eq!(world.removed(), names(&["low"]));
    world.let_go();
    let spec = json!({"priority": 5, "containers": [
        {"name": "c", "resources": {"requests": {"example.com/foo": "1"}}}]});
    let other = pod("other", spec);
    assert!(world.rules.rank(&other) < world.rules.rank(world.queue.pod("g0").unwrap()));
    world.cache.update(&mut world.snapshot);
    let inputs = Inputs {
        profile: &world.rules.0,
        snapshot: &world.snapshot,
        nominated: &world.nominated,
        pod: &other,
        within: None,
    };
    let attempt = crate::cycle::attempt(&inputs, &mut NodeSearch::default());
    assert_eq!(attempt.outcome, Outcome::Unfit);
    world.settle();
    assert_eq!(world.bound_of("g"), 1);
}

#[tokio::test]
async fn a_group_is_made_room_for_in_one_rack() {
    let mut world = World::preempting(&[]);
    for (name, rack) in [("a0", "a"), ("a1", "a"), ("b0", "b"), ("b1", "b")] {
        world.racked(name, rack, 1);
    }
    for (name, node, priority) in [
        ("v", "a0", 1),
        ("w", "a1", 9),
        ("x", "b0", 2),
        ("y", "b1", 3),
    ] {
        world.running(name, node, 1, &of(priority));
    }
    let constraints = json!({"topology": [{"key": "rack"}]});
    world.group_of(
        "g",
        json!({"schedulingPolicy": gang(2), "schedulingConstraints": constraints, "priority": 10}),
    );
    world.pod("g0", "g");
    world.pod("g1", "g");
    assert!(world.step());
    assert_eq!(world.verdict, Some(GroupVerdict::WaitsForPreemption));
    // The other rack has a pod of higher priority.
    assert_eq!(world.removed(), names(&["x", "y"]));
    world.let_go();
    world.settle();
    assert!(world.bound.values().all(|node| node.starts_with('b')));
    assert_eq!(world.bound_of("g"), 2);
}

/// A cluster of which is known who holds what.
struct Random {
    rooms: Vec<usize>,
    /// Pods of one unit: the units' priorities, whether a budget keeps it, and node and devices of each pod by name.
    units: Vec<Unit>,
}

struct Unit {
    priority: i32,
    kept: bool,
    leaving: bool,
    pods: Vec<(String, usize, usize)>,
}

impl Random {
    fn new(random: &mut StdRng, world: &mut World) -> Self {
        let rooms: Vec<usize> = (0..random.random_range(1..6))
            .map(|_| random.random_range(1..7))
            .collect();
        for (i, room) in rooms.iter().enumerate() {
            world.node(&format!("n{i}"), *room);
        }
        let (mut free, mut units) = (rooms.clone(), Vec::new());
        for u in 0..random.random_range(0..9) {
            let is_group = random.random_bool(0.4);
            let priority = random.random_range(0..8);
            let kept = random.random_bool(0.3);
            let leaving = !is_group && random.random_bool(0.1);
            let (group, count) = (
                format!("w{u}-"),
                if is_group {
                    random.random_range(1..4)
                } else {
                    1
                },
            );
            if is_group {
                world.whole(&group, priority);
            }
            let mut pods = Vec::new();
            for i in 0..count {
                let foo = random.random_range(1..3);
                let with_room: Vec<usize> = (0..free.len()).filter(|n| free[*n] >= foo).collect();
                if with_room.is_empty() {
                    continue;
                }
                let at = with_room[random.random_range(0..with_room.len())];
                free[at] -= foo;
                let label = if kept { "kept" } else { "free" };
                let name = format!("{label}{u}{i}");
                let spec = if is_group {
                    in_group(random.random_range(0..12), &group)
                } else {
                    of(priority)
                };
                world.place(&name, &format!("n{at}"), foo, &spec, leaving);
                pods.push((name, at, foo));
            }
            units.push(Unit {
                priority,
                kept,
                leaving,
                pods,
            });
        }
        Self { rooms, units }
    }

    /// How many pods of this size have room while these units are there.
    fn slots(&self, size: usize, there: impl Fn(&Unit) -> bool) -> usize {
        let mut free = self.rooms.clone();
        for (_, at, foo) in self.units.iter().filter(|u| there(u)).flat_map(|u| &u.pods) {
            free[*at] -= foo;
        }
        free.iter().map(|free| free / size).sum()
    }
}

/// Whatever runs where: a gang that could go has just those removed that it needs, and then goes; else nobody is removed.
#[tokio::test]
async fn random_clusters_lose_what_a_gang_needs_and_no_more() {
    let mut waited = 0;
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut world = World::preempting(&["kept"]);
        let cluster = Random::new(&mut random, &mut world);
        let (size, priority) = (random.random_range(1..3), random.random_range(0..9));
        let count = random.random_range(1..6);
        world.gang_of("g", count, priority);
        for i in 0..count + random.random_range(0..2) {
            let spec = json!({"schedulingGroup": {"podGroupName": "g"}, "containers": [
                {"name": "c", "resources": {"requests": {"example.com/foo": size.to_string()}}}]});
            let pod = pod(&format!("g{i}"), spec);
            world.groups.set_pod(&pod, false);
            world.queue.set(pod, &world.rules, world.now);
            world.event(
                EventResource::UnscheduledPod,
                Action::ADD,
                &EventObject::Other,
            );
        }
        let running = world.cache.pod_count();
        assert!(world.step(), "seed {seed}");
        let removed = world.removed();
        let goes = |u: &Unit| u.pods.iter().any(|(name, ..)| removed.contains(name));
        let may_go = |u: &Unit| u.priority < priority;
        let leaves = |u: &Unit| u.leaving && may_go(u);
        let now = cluster.slots(size, |_| true) >= count;
        let later = cluster.slots(size, |u| !leaves(u)) >= count;
        let ever = cluster.slots(size, |u| !may_go(u)) >= count;
        match &world.verdict {
            Some(GroupVerdict::Fits) => assert!(now, "seed {seed}"),
            Some(GroupVerdict::WaitsForPreemption) => {
                assert!(!now && ever, "seed {seed}");
                assert_eq!(removed.is_empty(), later, "seed {seed}: {removed:?}");
            }
            other => {
                assert!(!ever, "seed {seed}: {other:?}");
                assert!(removed.is_empty(), "seed {seed}");
            }
        }
        for unit in cluster.units.iter().filter(|u| goes(u)) {
            assert!(may_go(unit) && !unit.leaving, "seed {seed}: {removed:?}");
            let all = unit.pods.iter().all(|(name, ..)| removed.contains(name));
            assert!(all, "seed {seed}: {removed:?}");
            let others_gone = |u: &Unit| leaves(u) || (goes(u) && !std::ptr::eq(u, unit));
            let without = cluster.slots(size, |u| !others_gone(u));
            assert!(
                without < count,
                "seed {seed}: {removed:?} is more than needed"
            );
        }
        if cluster.slots(size, |u| !may_go(u) || (u.kept && !leaves(u))) >= count {
            let broken = cluster.units.iter().any(|u| goes(u) && u.kept);
            assert!(!broken, "seed {seed}: {removed:?}");
        }
        if world.verdict != Some(GroupVerdict::WaitsForPreemption) {
            continue;
        }
        assert_eq!(world.cache.pod_count(), running, "seed {seed}");
        waited += 1;
        for unit in cluster.units.iter().filter(|u| leaves(u)) {
            for (name, ..) in &unit.pods {
                let gone = world.cache.remove_pod(name).unwrap();
                world.removed.push(gone);
            }
        }
        world.let_go();
        world.settle();
        assert!(
            world.bound_of("g") >= count,
            "seed {seed}: {:?}",
            world.told
        );
    }
    assert!(waited > 50, "{waited}");
}
