//! The queue's rules one by one, and its law: no pod is lost and none is in two places.

use super::*;
use proptest::prelude::*;
use serde_json::json;

/// Rank is the priority, gates are scheduling gates, `plugin-N` is helped by events of nodes named
/// by the plugin.
struct Plain;

impl Rules for Plain {
    fn rank(&self, pod: &PodInfo) -> i64 {
        i64::from(pod.priority)
    }
    fn gate(&self, pod: &PodInfo) -> Option<Status> {
        let gated = pod
            .spec()
            .scheduling_gates
            .as_ref()
            .is_some_and(|g| !g.is_empty());
        gated.then(|| Status::unresolvable("gated").by("Gates"))
    }
    fn hint(&self, plugin: &str, event: &ClusterEvent, _: &PodInfo, _: &EventObject) -> Hint {
        let wanted = match plugin {
            "Taints" => Action::UPDATE_TAINT,
            "Labels" => Action::UPDATE_LABEL,
            _ => Action::NONE,
        };
        if event.action.intersects(wanted) {
            Hint::Queue
        } else {
            Hint::Skip
        }
    }
}

fn pod(uid: &str, priority: i32) -> Arc<PodInfo> {
    build(uid, json!({"priority": priority, "containers": []}))
}

fn build(uid: &str, spec: serde_json::Value) -> Arc<PodInfo> {
    build_in("ns", uid, spec)
}

fn build_in(namespace: &str, uid: &str, spec: serde_json::Value) -> Arc<PodInfo> {
    let pod = json!({"metadata": {"name": uid, "namespace": namespace, "uid": uid}, "spec": spec});
    Arc::new(PodInfo::new(Arc::new(serde_json::from_value(pod).unwrap())))
}

fn refused(plugin: &'static str) -> Failure {
    Failure {
        plugins: [plugin].into(),
        ..Failure::default()
    }
}

fn event(action: Action) -> ClusterEvent {
    ClusterEvent::new(EventResource::Node, action)
}

struct Bed {
    queue: Queue,
    now: Instant,
}

impl Bed {
    fn new() -> Self {
        Self {
            queue: Queue::new(QueueOptions::default()),
            now: Instant::now(),
        }
    }
    fn set(&mut self, pod: Arc<PodInfo>) {
        self.queue.set(pod, &Plain, self.now);
    }
    fn pop(&mut self) -> Option<String> {
        self.queue
            .pop(&Plain, self.now)
            .map(|t| t.pod.uid.to_string())
    }
    fn fail(&mut self, uid: &str, failure: Failure) {
        self.queue.fail(uid, failure, &Plain, self.now);
    }
    fn event(&mut self, action: Action) -> usize {
        self.queue
            .on_event(&event(action), &EventObject::Other, &Plain, self.now)
    }
    fn after(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
    }
}

#[test]
fn higher_rank_first_then_arrival() {
    let mut bed = Bed::new();
    for (uid, priority) in [("a", 0), ("b", 10), ("c", 0), ("d", 10)] {
        bed.set(pod(uid, priority));
    }
    let order: Vec<_> = std::iter::from_fn(|| bed.pop()).collect();
    assert_eq!(order, ["b", "d", "a", "c"]);
    assert_eq!(bed.queue.counts().in_flight, 4);
}

#[test]
fn nobody_holds_the_scheduler_with_pods_that_take_long() {
    let mut bed = Bed::new();
    let spec = |priority: i32| json!({"priority": priority, "containers": []});
    for n in 0..20 {
        bed.set(build_in("hostile", &format!("h{n}"), spec(1000)));
    }
    let hostile = Arc::from("hostile");
    let attempt = |bed: &mut Bed| {
        let uid = bed.pop().unwrap();
        if uid.starts_with('h') {
            bed.after(10_000);
            bed.queue.charge(&hostile, Duration::from_secs(10), bed.now);
        } else {
            bed.after(1);
        }
        uid
    };
    assert_eq!(attempt(&mut bed), "h0");
    // What has come meanwhile, and after it, goes first; its own pods do not wait where nobody else does.
    bed.set(build_in("other", "a", spec(0)));
    bed.set(build_in("other", "b", spec(-5)));
    let order: Vec<String> = (0..3).map(|_| attempt(&mut bed)).collect();
    assert_eq!(order, ["a", "b", "h1"]);
    assert_eq!(bed.queue.counts().active, 18);
    check(&bed.queue);
    // Others do not keep it out either: a quarter of the time is its own.
    let (mut own, begin) = (Duration::ZERO, bed.now);
    let mut n = 0;
    while bed.now - begin < Duration::from_secs(120) {
        n += 1;
        bed.set(build_in("other", &format!("o{n}"), spec(0)));
        let before = bed.now;
        if attempt(&mut bed).starts_with('h') {
            own += bed.now - before;
        } else {
            bed.after(99);
        }
    }
    let own = own.as_secs();
    assert!((20..=40).contains(&own), "{own} s");
    // One that goes meanwhile is gone.
    for n in 0..20 {
        bed.queue.remove(&format!("h{n}"));
    }
    check(&bed.queue);
    while bed.pop().is_some() {}
    assert_eq!(bed.queue.counts().active, 0);
}

#[test]
fn a_refused_pod_waits_for_what_helps_the_plugin_that_refused_it() {
    let mut bed = Bed::new();
    bed.set(pod("a", 0));
    bed.pop();
    bed.fail("a", refused("Taints"));
    bed.after(20_000);
    assert_eq!(bed.event(Action::UPDATE_LABEL), 0);
    assert_eq!(bed.pop(), None);
    assert_eq!(bed.event(Action::UPDATE_TAINT), 1);
    assert_eq!(bed.pop().as_deref(), Some("a"));
}

#[test]
fn without_a_refusing_plugin_every_change_helps() {
    let mut bed = Bed::new();
    bed.set(pod("a", 0));
    bed.pop();
    bed.fail("a", Failure::default());
    assert_eq!(bed.event(Action::UPDATE_CONDITION), 1);
}

#[test]
fn back_off_doubles_from_one_to_ten_seconds() {
    let queue = Bed::new().queue;
    let seconds: Vec<_> = [1, 2, 3, 4, 5, 6, 40, u32::MAX]
        .map(|n| queue.backoff_of(n).as_secs())
        .into();
    assert_eq!(seconds, [1, 2, 4, 8, 10, 10, 10, 10]);
}

#[test]
fn after_an_error_the_back_off_is_kept() {
    let mut bed = Bed::new();
    bed.set(pod("a", 0));
    bed.pop();
    bed.fail(
        "a",
        Failure {
            error: true,
            ..Failure::default()
        },
    );
    assert_eq!(bed.queue.counts().backoff, 1);
    assert_eq!(
        bed.queue.next_wake(),
        Some(bed.now + Duration::from_secs(1))
    );
    assert_eq!(bed.pop(), None);
    bed.after(999);
    assert_eq!(bed.pop(), None);
    bed.after(1);
    assert_eq!(bed.pop().as_deref(), Some("a"));
}

#[test]
fn an_idle_scheduler_takes_backing_off_pods_early() {
    let mut bed = Bed::new();
    bed.set(pod("a", 0));
    bed.set(pod("b", 0));
    bed.pop();
    bed.fail("a", refused("Taints"));
    bed.event(Action::UPDATE_TAINT);
    assert_eq!(bed.queue.counts().backoff, 1);
    assert_eq!(bed.pop().as_deref(), Some("b"), "active pods go first");
    assert_eq!(bed.pop().as_deref(), Some("a"));
}

#[test]
fn a_pending_plugin_goes_without_back_off() {
    let mut bed = Bed::new();
    bed.set(pod("a", 0));
    bed.set(pod("b", 0));
    bed.pop();
    bed.fail(
        "a",
        Failure {
            pending: ["Labels"].into(),
            ..Failure::default()
        },
    );
    bed.event(Action::UPDATE_LABEL);
    assert_eq!(bed.queue.counts().active, 2);
}

#[test]
fn unschedulable_pods_are_tried_again_after_five_minutes() {
    let mut bed = Bed::new();
    bed.set(pod("a", 0));
    bed.pop();
    bed.fail("a", refused("Taints"));
    bed.after(299_999);
    bed.queue.flush(&Plain, bed.now);
    assert_eq!(bed.queue.counts().unschedulable, 1);
    bed.after(1);
    bed.queue.flush(&Plain, bed.now);
    assert_eq!(bed.queue.counts().active, 1);
}

#[test]
fn a_change_during_the_attempt_is_not_missed() {
    let mut bed = Bed::new();
    bed.set(pod("a", 0));
    bed.pop();
    bed.event(Action::UPDATE_TAINT);
    bed.fail("a", refused("Taints"));
    assert_eq!(bed.queue.counts().backoff, 1);
}

#[test]
fn item_092_gated_pods_are_held_until_the_last_gate_is_gone() {
    let mut bed = Bed::new();
    bed.set(build(
        "a",
        json!({"containers": [], "schedulingGates": [{"name": "x"}]}),
    ));
    assert_eq!(bed.queue.counts().gated, 1);
    assert_eq!(bed.pop(), None);
    bed.set(pod("a", 0));
    assert_eq!(bed.pop().as_deref(), Some("a"));
}

#[test]
fn a_changed_pod_is_tried_again_but_not_for_a_new_status() {
    let mut bed = Bed::new();
    bed.set(pod("a", 0));
    bed.pop();
    bed.fail("a", refused("Other"));
    bed.set(pod("a", 0));
    assert_eq!(bed.queue.counts().unschedulable, 1);
    bed.set(build(
        "a",
        json!({"containers": [], "nodeSelector": {"a": "b"}}),
    ));
    assert_eq!(bed.queue.counts().unschedulable, 0);
}

#[test]
fn a_pod_removed_in_flight_stays_removed() {
    let mut bed = Bed::new();
    bed.set(pod("a", 0));
    bed.pop();
    bed.queue.remove("a");
    bed.fail("a", refused("Taints"));
    assert_eq!(bed.queue.counts(), Counts::default());
}

#[derive(Debug, Clone)]
enum Op {
    Set(u8, i32, bool),
    Remove(u8),
    Pop,
    Fail(u8, u8),
    Event(bool),
    Charge(u16),
    After(u16),
    Flush,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0u8..6, 0i32..3, any::<bool>()).prop_map(|(p, r, g)| Op::Set(p, r, g)),
        (0u8..6).prop_map(Op::Remove),
        Just(Op::Pop),
        Just(Op::Pop),
        (0u8..6, 0u8..4).prop_map(|(p, k)| Op::Fail(p, k)),
        any::<bool>().prop_map(Op::Event),
        (0u16..2_000).prop_map(Op::Charge),
        (0u16..20_000).prop_map(Op::After),
        Just(Op::Flush),
    ]
}

fn check(queue: &Queue) {
    let mut counts = Counts::default();
    for (uid, entry) in &queue.entries {
        let held = match entry.place {
            QueueState::Active(key) => {
                counts.active += 1;
                let aside = queue.turns.has(&entry.pod.namespace, &key);
                assert!(aside != (queue.active.get(&key) == Some(uid)));
                false
            }
            QueueState::Backoff(until, seq) => {
                counts.backoff += 1;
                assert_eq!(queue.backoff.get(&(until, seq)), Some(uid));
                false
            }
            QueueState::Unschedulable => {
                counts.unschedulable += 1;
                true
            }
            QueueState::Gated(_) => {
                counts.gated += 1;
                true
            }
            QueueState::InFlight => {
                counts.in_flight += 1;
                false
            }
        };
        assert_eq!(queue.held.contains(uid), held, "{uid}");
    }
    // With the sizes nothing is left over in any of the indices.
    assert_eq!(queue.counts(), counts);
    assert_eq!(queue.active.len() + queue.turns.len(), counts.active);
    assert_eq!(queue.backoff.len(), counts.backoff);
    assert_eq!(queue.held.len(), counts.unschedulable + counts.gated);
}

proptest! {
    #[test]
    fn no_pod_is_lost_and_none_is_in_two_places(ops in proptest::collection::vec(op(), 0..80)) {
        let mut bed = Bed::new();
        let mut known = BTreeSet::new();
        let mut gated = BTreeSet::new();
        let mut flying = BTreeSet::new();
        for op in ops {
            match op {
                Op::Set(p, priority, gate) => {
                    let uid = format!("p{p}");
                    let gates = if gate { json!([{"name": "x"}]) } else { json!([]) };
                    let spec = json!({"priority": priority, "containers": [], "schedulingGates": gates});
                    bed.set(build(&uid, spec));
                    if gate { gated.insert(uid.clone()); } else { gated.remove(&uid); }
                    known.insert(uid);
                }
                Op::Remove(p) => {
                    let uid = format!("p{p}");
                    bed.queue.remove(&uid);
                    known.remove(&uid);
                    gated.remove(&uid);
                    flying.remove(&uid);
                }
                Op::Pop => {
                    if let Some(uid) = bed.pop() {
                        prop_assert!(known.contains(&uid));
                        prop_assert!(flying.insert(uid), "taken twice");
                    }
                }
                Op::Fail(p, kind) => {
                    let uid = format!("p{p}");
                    let failure = match kind {
                        0 => Failure { error: true, ..Failure::default() },
                        1 => refused("Taints"),
                        2 => Failure { pending: ["Labels"].into(), ..Failure::default() },
                        _ => Failure::default(),
                    };
                    bed.fail(&uid, failure);
                    flying.remove(&uid);
                }
                Op::Event(taint) => {
                    bed.event(if taint { Action::UPDATE_TAINT } else { Action::UPDATE_LABEL });
                }
                Op::Charge(millis) => {
                    let took = Duration::from_millis(millis.into());
                    bed.queue.charge(&Arc::from("ns"), took, bed.now);
                }
                Op::After(millis) => bed.after(u64::from(millis)),
                Op::Flush => bed.queue.flush(&Plain, bed.now),
            }
            check(&bed.queue);
            let counts = bed.queue.counts();
            let places = counts.active + counts.backoff + counts.unschedulable + counts.gated;
            prop_assert_eq!(places + counts.in_flight, known.len());
            prop_assert_eq!(counts.in_flight, flying.len());
        }
        // In the end every pod that is not held back can be taken out.
        for uid in flying {
            bed.fail(&uid, Failure::default());
        }
        bed.after(600_000);
        bed.queue.flush(&Plain, bed.now);
        let mut out = BTreeSet::new();
        while let Some(uid) = bed.pop() {
            prop_assert!(out.insert(uid));
        }
        let expected: BTreeSet<String> = known.difference(&gated).cloned().collect();
        prop_assert_eq!(out, expected);
    }
}
