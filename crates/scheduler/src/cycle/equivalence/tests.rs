//! What is kept is what the filters would say, whatever has happened to the nodes and whoever asks.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::cycle::{filters, pre_filter};
use crate::nominator::Nominated;
use crate::plugins::testing::{Bed, known_devices, pod};
use crate::plugins::{Budgets, default_profile};

const NODES: usize = 4;

#[derive(Debug, Clone)]
enum Op {
    /// The node is another: cordoned or not, with one of the taints, labels and sizes.
    Node(usize, bool, usize, usize, u32),
    /// A pod of the template comes to the node.
    Place(usize, usize),
    /// A pod goes.
    Remove(usize),
    /// A pod of the template is tried.
    Try(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..NODES, any::<bool>(), 0..3usize, 0..2usize, 0..4u32)
            .prop_map(|(n, c, t, l, s)| Op::Node(n, c, t, l, s)),
        (0..templates().len(), 0..NODES).prop_map(|(t, n)| Op::Place(t, n)),
        (0..20usize).prop_map(Op::Remove),
        (0..templates().len()).prop_map(Op::Try),
    ]
}

/// Specs of which each differs from some other in what one filter looks at.
fn templates() -> Vec<Value> {
    let asks = |list: Value| json!([{"name": "c", "resources": {"requests": list}}]);
    let port = json!([{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]);
    let zone = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["1"]}]}]}});
    vec![
        json!({}),
        json!({"tolerations": [{"operator": "Exists"}]}),
        json!({"tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}]}),
        json!({"nodeSelector": {"zone": "0"}}),
        json!({"affinity": {"nodeAffinity": zone}}),
        json!({"containers": asks(json!({"cpu": "1"}))}),
        json!({"containers": asks(json!({"cpu": "2", "example.com/foo": "1"}))}),
        json!({"containers": port}),
        json!({"tolerations": [{"operator": "Exists"}], "containers": asks(json!({"cpu": "1"}))}),
    ]
}

fn node(cordoned: bool, taint: usize, zone: usize, size: u32) -> Value {
    let taints = [
        json!([]),
        json!([{"key": "a", "value": "b", "effect": "NoSchedule"}]),
        json!([{"key": "c", "effect": "NoExecute"}]),
    ];
    json!({"metadata": {"labels": {"zone": zone.to_string()}},
        "spec": {"unschedulable": cordoned, "taints": taints[taint]},
        "status": {"allocatable": {"cpu": size.to_string(), "pods": "3", "example.com/foo": (size / 2).to_string()}}})
}

/// What the cache says of all nodes, and what the filters say.
fn compare(bed: &Bed, cache: &mut EquivalenceCache, profile: &Profile, pod: &Arc<PodInfo>) {
    let inputs = Inputs {
        profile,
        snapshot: &bed.snapshot,
        nominated: &Nominated::default(),
        pod,
        within: None,
    };
    let mut state = CycleState::new();
    let (status, ..) = pre_filter(&inputs, &mut state);
    assert!(status.is_success(), "{status:?}");
    let class = cache.class(profile, pod, state.skipped_filters);
    for (at, node) in bed.snapshot.nodes().iter().enumerate() {
        let said = filters(profile, &state, pod, node);
        let kept = class.filters(&inputs, &state, at);
        let kept = kept.as_deref().cloned().unwrap_or_default();
        assert_eq!(kept, said, "{} about {}", node.name, pod.name);
    }
}

proptest! {
    #[test]
    fn what_is_kept_is_what_filters_say(ops in proptest::collection::vec(op(), 1..60)) {
        let profile = default_profile("x", None, Budgets::default(), &known_devices());
        let mut cache = EquivalenceCache::default();
        let mut bed = Bed::new();
        for n in 0..NODES {
            bed.node(&format!("n{n}"), node(false, 0, n % 2, 3));
        }
        let templates = templates();
        let mut placed: Vec<Arc<PodInfo>> = Vec::new();
        for (i, op) in ops.into_iter().enumerate() {
            match op {
                Op::Node(n, cordoned, taint, zone, size) => {
                    bed.node(&format!("n{n}"), node(cordoned, taint, zone, size));
                }
                Op::Place(template, n) => {
                    let pod = pod(&format!("placed-{i}"), templates[template].clone());
                    bed.place(&pod, &format!("n{n}"));
                    placed.push(pod);
                }
                Op::Remove(which) => {
                    if !placed.is_empty() {
                        let pod = placed.swap_remove(which % placed.len());
                        bed.cache.remove_pod(&pod.uid);
                        bed.cache.update(&mut bed.snapshot);
                    }
                }
                Op::Try(template) => {
                    let pod = pod(&format!("tried-{i}"), templates[template].clone());
                    compare(&bed, &mut cache, &profile, &pod);
                }
            }
        }
        for (t, spec) in templates.iter().enumerate() {
            compare(&bed, &mut cache, &profile, &pod(&format!("last-{t}"), spec.clone()));
        }
    }
}

#[test]
fn a_node_that_is_as_it_was_is_not_asked_again() {
    let profile = default_profile("x", None, Budgets::default(), &known_devices());
    let mut cache = EquivalenceCache::default();
    let mut bed = Bed::new();
    bed.node("n", node(true, 0, 0, 1));
    compare(&bed, &mut cache, &profile, &pod("a", json!({})));
    // Kept, as one can see by putting another answer in its place.
    let known = &mut cache.classes[0].nodes[0];
    let refusal = known.refusal.as_mut().unwrap();
    Arc::make_mut(&mut refusal.status).reasons = vec!["kept".into()];
    let again = pod("b", json!({}));
    let inputs = Inputs {
        profile: &profile,
        snapshot: &bed.snapshot,
        nominated: &Nominated::default(),
        pod: &again,
        within: None,
    };
    let mut state = CycleState::new();
    pre_filter(&inputs, &mut state);
    let class = cache.class(&profile, &again, state.skipped_filters);
    assert_eq!(class.filters(&inputs, &state, 0).unwrap().reasons, ["kept"]);
    bed.node("n", node(true, 0, 0, 2));
    compare(&bed, &mut cache, &profile, &again);
}

#[test]
fn the_classes_asked_for_least_recently_go_first() {
    let profile = default_profile("x", None, Budgets::default(), &known_devices());
    let mut cache = EquivalenceCache::default();
    let sized = |n: usize| {
        let spec = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": n.to_string()}}}]});
        pod("p", spec)
    };
    let first = cache.class(&profile, &sized(0), 0).signature;
    for n in 1..MOST_CLASSES {
        cache.class(&profile, &sized(n), 0);
        cache.class(&profile, &sized(0), 0);
    }
    cache.class(&profile, &sized(MOST_CLASSES), 0);
    assert_eq!(cache.classes.len(), MOST_CLASSES);
    assert!(cache.classes.iter().any(|c| c.signature == first));
}
