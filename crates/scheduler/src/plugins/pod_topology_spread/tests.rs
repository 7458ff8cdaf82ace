use super::*;
use crate::plugins::testing::{Bed, labelled};
use crate::selector::Selector;
use serde_json::{Value, json};

fn constraint(key: &str, when: &str) -> Value {
    json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when,
           "labelSelector": {"matchLabels": {"app": "web"}}})
}

fn bed() -> Bed {
    let mut bed = Bed::new();
    for (name, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
        bed.node(
            name,
            json!({"metadata": {"labels": {"zone": zone, HOSTNAME: name}}}),
        );
    }
    bed
}

fn web(name: &str, constraints: Value) -> Arc<PodInfo> {
    labelled(
        name,
        json!({"app": "web"}),
        json!({"topologySpreadConstraints": constraints}),
    )
}

fn by_name(bed: &Bed, values: &[Status]) -> Vec<bool> {
    ["a1", "a2", "b1"]
        .map(|n| values[bed.snapshot.position(n).unwrap()].is_success())
        .into()
}

#[test]
fn hard_constraints_keep_the_skew() {
    let mut bed = bed();
    bed.place(&web("w1", json!([])), "a1");
    let pod = web("w2", json!([constraint("zone", "DoNotSchedule")]));
    let verdicts = bed.verdicts(&PodTopologySpread::default(), &pod);
    assert_eq!(by_name(&bed, &verdicts), [false, false, true]);
    let at = bed.snapshot.position("a1").unwrap();
    assert_eq!(
        verdicts[at],
        Status::unschedulable("node(s) didn't match pod topology spread constraints")
    );
    bed.node("c1", json!({}));
    let verdicts = bed.verdicts(&PodTopologySpread::default(), &pod);
    let at = bed.snapshot.position("c1").unwrap();
    assert_eq!(
        verdicts[at],
        Status::unresolvable(
            "node(s) didn't match pod topology spread constraints (missing required label)"
        )
    );
}

#[test]
fn too_few_domains_count_as_an_empty_one() {
    let mut bed = bed();
    bed.place(&web("w1", json!([])), "a1");
    bed.place(&web("w2", json!([])), "b1");
    let mut wants = constraint("zone", "DoNotSchedule");
    let verdicts = bed.verdicts(&PodTopologySpread::default(), &web("p", json!([wants])));
    assert_eq!(by_name(&bed, &verdicts), [true; 3]);
    wants["minDomains"] = json!(3);
    let verdicts = bed.verdicts(&PodTopologySpread::default(), &web("p", json!([wants])));
    assert_eq!(by_name(&bed, &verdicts), [false; 3]);
}

#[test]
fn imagined_changes_are_booked() {
    let mut bed = bed();
    let running = web("w1", json!([]));
    bed.place(&running, "a1");
    let pod = web("p", json!([constraint("zone", "DoNotSchedule")]));
    let mut state = CycleState::new();
    PodTopologySpread::default().pre_filter(&mut state, &pod, &bed.snapshot);
    let node = bed.snapshot.node(bed.snapshot.position("a2").unwrap());
    assert!(
        !PodTopologySpread::default()
            .filter(&state, &pod, node)
            .is_success()
    );
    PodTopologySpread::default().remove_pod(&mut state, &pod, &running, node, &bed.snapshot);
    assert!(
        PodTopologySpread::default()
            .filter(&state, &pod, node)
            .is_success()
    );
}

#[test]
fn soft_constraints_prefer_emptier_domains() {
    let mut bed = bed();
    bed.place(&web("w1", json!([])), "a1");
    bed.node("c1", json!({}));
    let pod = web("p", json!([constraint("zone", "ScheduleAnyway")]));
    let places: Vec<usize> = (0..4).collect();
    let mut state = CycleState::new();
    PodTopologySpread::default().pre_score(&mut state, &pod, &bed.snapshot, &places);
    let scores = bed.scores_with(&PodTopologySpread::default(), &pod, &state);
    let score = |name| scores[bed.snapshot.position(name).unwrap()];
    assert_eq!(
        [score("a1"), score("a2"), score("b1"), score("c1")],
        [0, 0, 100, 0]
    );
}

/// A Service of one namespace that everybody with `app=web` belongs to.
fn workloads() -> Workloads {
    let peers = Selector::new(Some(
        &serde_json::from_value(json!({"matchLabels": {"app": "web"}})).unwrap(),
    ));
    Workloads::fixed(peers)
}

#[test]
fn pods_of_a_service_are_spread_softly_without_being_asked() {
    let mut bed = Bed::new();
    for (name, zone) in [
        ("a1", Some("a")),
        ("a2", Some("a")),
        ("b1", Some("b")),
        ("bare", None),
    ] {
        let mut labels = json!({HOSTNAME: name});
        if let Some(zone) = zone {
            labels[ZONE] = json!(zone);
        }
        bed.node(name, json!({"metadata": {"labels": labels}}));
    }
    bed.place(&web("w1", json!([])), "a1");
    let plugin = PodTopologySpread::new(&PodTopologySpreadArgs::default(), workloads());
    let pod = web("w2", json!([]));
    assert!(bed.pre_filter(&plugin, &pod).0.is_skip());
    let places: Vec<usize> = (0..4).collect();
    let mut state = CycleState::new();
    assert!(
        plugin
            .pre_score(&mut state, &pod, &bed.snapshot, &places)
            .is_success()
    );
    let scores = bed.scores_with(&plugin, &pod, &state);
    let of = |name: &str| scores[bed.snapshot.position(name).unwrap()];
    // Another zone is better than another node of the same, and that better than the same node.
    assert!(of("b1") > of("a2") && of("a2") > of("a1"), "{scores:?}");
    // A node without a zone counts by its name alone.
    assert!(of("bare") > of("a2"), "{scores:?}");
    // Whoever states constraints, or belongs to nothing, is not concerned.
    let nobody = PodTopologySpread::default();
    assert!(
        nobody
            .pre_score(&mut CycleState::new(), &pod, &bed.snapshot, &places)
            .is_skip()
    );
    let own = web("w3", json!([constraint("zone", "DoNotSchedule")]));
    assert!(
        plugin
            .pre_score(&mut CycleState::new(), &own, &bed.snapshot, &places)
            .is_skip()
    );
}

#[test]
fn a_list_of_defaults_can_be_hard() {
    let mut bed = bed();
    bed.place(&web("w1", json!([])), "a1");
    let args = serde_json::from_value(json!({"defaultingType": "List", "defaultConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]}));
    let plugin = PodTopologySpread::new(&args.unwrap(), workloads());
    let verdicts = bed.verdicts(&plugin, &web("w2", json!([])));
    assert_eq!(by_name(&bed, &verdicts), [false, false, true]);
}
