//! The order of choice, step by step, and its laws.

use super::*;
use crate::devices::DeviceId;
use proptest::prelude::*;

fn set(ids: &[&str]) -> DeviceSet {
    ids.iter().map(DeviceId::from).collect()
}

/// Devices by text: `a@0,1 b` is `a` on nodes 0 and 1 and `b` without topology.
fn devices(text: &str) -> DeviceMap {
    text.split_whitespace()
        .map(|part| match part.split_once('@') {
            Some((id, nodes)) => {
                let nodes = nodes.split(',').map(|n| n.parse().unwrap());
                (id.into(), NumaMask::from_nodes(nodes).unwrap())
            }
            None => (part.into(), NumaMask::EMPTY),
        })
        .collect()
}

fn input(request: usize, available: &str, affinity: Option<&[u32]>) -> ChoiceInput {
    let available = devices(available);
    let has_topology = available.values().any(|m| !m.is_empty());
    ChoiceInput {
        resource: "example.com/foo".to_owned(),
        request,
        available,
        reusable: DeviceSet::new(),
        affinity: affinity.map(|n| NumaMask::from_nodes(n.iter().copied()).unwrap()),
        has_topology,
    }
}

fn asked(step: Step) -> (Ask, Choice) {
    match step {
        Step::AskPreferred(ask, choice) => (ask, choice),
        other => panic!("not asked: {other:?}"),
    }
}

fn done(step: Step) -> DeviceSet {
    match step {
        Step::Done(ids) => ids,
        other => panic!("not done: {other:?}"),
    }
}

#[test]
fn item_064_without_a_mask_the_plugin_is_always_asked() {
    let (ask, choice) = asked(Choice::start(input(2, "d1 d2", None)));
    assert_eq!(ask.available, set(&["d1", "d2"]));
    assert!(ask.must_include.is_empty());
    assert_eq!(ask.size, 2);
    assert_eq!(done(choice.resume(&set(&[]))), set(&["d1", "d2"]));
}

#[test]
fn item_064_with_exactly_the_aligned_devices_it_is_not_asked() {
    let step = Choice::start(input(2, "d1@0 d2@0 d3@1", Some(&[0])));
    assert_eq!(done(step), set(&["d1", "d2"]));
}

#[test]
fn item_063_the_preference_is_honoured_among_the_aligned() {
    let (ask, choice) = asked(Choice::start(input(1, "d1@0 d2@0 d3@1", Some(&[0]))));
    assert_eq!(ask.available, set(&["d1", "d2"]));
    assert_eq!(done(choice.resume(&set(&["d2"]))), set(&["d2"]));
}

#[test]
fn item_065_foreign_long_and_short_answers() {
    let start = || asked(Choice::start(input(2, "d1 d2 d3", None))).1;
    assert_eq!(done(start().resume(&set(&["x", "d3"]))), set(&["d1", "d3"]));
    assert_eq!(
        done(start().resume(&set(&["d1", "d2", "d3"]))),
        set(&["d1", "d2"])
    );
    assert_eq!(done(start().resume(&set(&[]))), set(&["d1", "d2"]));
}

#[test]
fn item_075_aligned_then_other_nodes_then_without_topology() {
    let all = "n1 u1@1 u2@1 a1@0";
    let (ask, choice) = asked(Choice::start(input(2, all, Some(&[0]))));
    assert_eq!(ask.must_include, set(&["a1"]));
    assert_eq!(ask.available, set(&["a1", "n1", "u1", "u2"]));
    assert_eq!(done(choice.resume(&set(&[]))), set(&["a1", "u1"]));
    let (_, choice) = asked(Choice::start(input(4, all, Some(&[0]))));
    assert_eq!(
        done(choice.resume(&set(&[]))),
        set(&["a1", "n1", "u1", "u2"])
    );
}

#[test]
fn item_074_a_device_on_two_nodes_is_aligned_if_one_of_them_is() {
    let split = split_by_affinity(
        &devices("d1@0,1 d2@1 d3"),
        Some(NumaMask::single(0).unwrap()),
        true,
    );
    assert_eq!(split.aligned, set(&["d1"]));
    assert_eq!(split.unaligned, set(&["d2"]));
    assert_eq!(split.no_affinity, set(&["d3"]));
}

#[test]
fn reusable_devices_come_first_and_are_offered_as_included() {
    let mut start = input(3, "d1 d2 d3", None);
    start.reusable = set(&["r1"]);
    let (ask, choice) = asked(Choice::start(start.clone()));
    assert_eq!(ask.must_include, set(&["r1"]));
    assert_eq!(ask.available, set(&["d1", "d2", "d3", "r1"]));
    assert_eq!(ask.size, 3);
    assert_eq!(
        done(choice.resume(&set(&["r1", "d3"]))),
        set(&["d1", "d3", "r1"])
    );
    start.request = 1;
    assert_eq!(done(Choice::start(start)), set(&["r1"]));
}

#[test]
fn item_057_too_few_devices_say_how_many() {
    let mut start = input(3, "d1", None);
    start.reusable = set(&["r1"]);
    match Choice::start(start) {
        Step::Failed(error) => assert_eq!(
            error.to_string(),
            "requested number of devices unavailable for example.com/foo. Requested: 2, Available: 1"
        ),
        other => panic!("{other:?}"),
    }
}

#[test]
fn item_061_a_request_of_zero_needs_nothing() {
    assert!(done(Choice::start(input(0, "", None))).is_empty());
}

#[test]
fn item_077_equal_devices_go_in_natural_order() {
    let (_, choice) = asked(Choice::start(input(2, "d10 d9 d2", None)));
    assert_eq!(done(choice.resume(&set(&[]))), set(&["d2", "d9"]));
}

#[test]
fn devices_are_listed_under_each_of_their_nodes() {
    let nodes = by_node(&devices("a@0,1 b@1 c"));
    assert_eq!(nodes[&-1], set(&["c"]));
    assert_eq!(nodes[&0], set(&["a"]));
    assert_eq!(nodes[&1], set(&["a", "b"]));
}

fn any_devices(prefix: &'static str) -> impl Strategy<Value = DeviceMap> {
    proptest::collection::btree_map(
        (0u32..20).prop_map(move |n| DeviceId::from(format!("{prefix}{n}"))),
        (0u64..8).prop_map(NumaMask::from_bits),
        0..12,
    )
}

proptest! {
    #[test]
    fn the_choice_is_complete_and_within_what_was_offered(
        available in any_devices("d"),
        reusable in any_devices("r"),
        request in 0usize..10,
        affinity in proptest::option::of((1u64..8).prop_map(NumaMask::from_bits)),
        preferred in any_devices("d"),
    ) {
        let has_topology = available.values().any(|m| !m.is_empty());
        let reusable: DeviceSet = reusable.into_keys().collect();
        let enough = available.len() + reusable.len() >= request;
        let input = ChoiceInput {
            resource: "r".to_owned(),
            request,
            available: available.clone(),
            reusable: reusable.clone(),
            affinity,
            has_topology,
        };
        let mut step = Choice::start(input);
        if let Step::AskPreferred(ask, choice) = step {
            prop_assert!(ask.must_include.is_subset(&ask.available));
            prop_assert!(ask.available.len() >= ask.size);
            step = choice.resume(&preferred.into_keys().collect());
        }
        match step {
            Step::Done(ids) => {
                prop_assert!(enough);
                prop_assert_eq!(ids.len(), request);
                prop_assert!(ids.iter().all(|d| reusable.contains(d) || available.contains_key(d)));
                // No unaligned device while an aligned one is left.
                let split = split_by_affinity(&available, affinity, has_topology);
                let left = split.aligned.difference(&ids).count();
                let others = split.unaligned.union(&split.no_affinity).filter(|d| ids.contains(d));
                prop_assert!(left == 0 || others.count() == 0);
            }
            Step::Failed(ChoiceError::Unavailable { .. }) => prop_assert!(!enough),
            other => prop_assert!(false, "{:?}", other),
        }
    }
}
