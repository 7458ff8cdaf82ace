//! Device hints, rule by rule and against a plain enumeration.

use super::*;
use crate::devices::DeviceId;
use crate::spent;
use proptest::prelude::*;

fn mask(nodes: &[u32]) -> NumaMask {
    NumaMask::from_nodes(nodes.iter().copied()).unwrap()
}

fn devices(list: &[(&str, &[u32])]) -> DeviceMap {
    list.iter()
        .map(|(id, nodes)| (DeviceId::from(id), mask(nodes)))
        .collect()
}

fn machine(nodes: u32) -> Machine {
    Machine::uniform(NumaMask::from_nodes(0..nodes).unwrap())
}

fn free(devices: &DeviceMap, request: usize) -> Option<Vec<TopologyHint>> {
    let available: DeviceSet = devices.keys().cloned().collect();
    device_hints(HintInput {
        machine: &machine(4),
        devices,
        available: &available,
        reusable: &DeviceSet::new(),
        held: None,
        request,
    })
}

#[test]
fn no_topology_means_no_preference() {
    assert_eq!(free(&devices(&[("a", &[]), ("b", &[])]), 1), None);
}

#[test]
fn the_narrowest_possible_sets_are_preferred() {
    let all = devices(&[("a", &[0]), ("b", &[0]), ("c", &[1])]);
    let hint = |nodes: &[u32], preferred| TopologyHint::new(mask(nodes), preferred);
    let one = vec![hint(&[0], true), hint(&[1], true), hint(&[0, 1], false)];
    assert_eq!(free(&all, 1), Some(one));
    assert_eq!(
        free(&all, 2),
        Some(vec![hint(&[0], true), hint(&[0, 1], false)])
    );
    assert_eq!(free(&all, 3), Some(vec![hint(&[0, 1], true)]));
    assert_eq!(free(&all, 4), Some(vec![]));
    let zero = vec![hint(&[0], true), hint(&[1], true), hint(&[0, 1], false)];
    assert_eq!(free(&all, 0), Some(zero));
}

#[test]
fn taken_devices_count_for_the_width_but_not_for_the_request() {
    let all = devices(&[("a", &[0]), ("b", &[0]), ("c", &[1])]);
    let available: DeviceSet = ["a", "c"].map(DeviceId::from).into();
    let input = HintInput {
        machine: &machine(2),
        devices: &all,
        available: &available,
        reusable: &DeviceSet::new(),
        held: None,
        request: 2,
    };
    // Node 0 could give two in principle, so the only set that can now is not preferred.
    assert_eq!(
        device_hints(input),
        Some(vec![TopologyHint::new(mask(&[0, 1]), false)])
    );
}

#[test]
fn held_devices_alone_decide_and_their_number_must_agree() {
    let all = devices(&[("a", &[0]), ("b", &[0]), ("c", &[1])]);
    let held: DeviceSet = [DeviceId::from("c")].into();
    let input = HintInput {
        machine: &machine(2),
        devices: &all,
        available: &DeviceSet::new(),
        reusable: &DeviceSet::new(),
        held: Some(&held),
        request: 1,
    };
    let hints = device_hints(input).unwrap();
    assert_eq!(
        hints,
        [
            TopologyHint::new(mask(&[1]), true),
            TopologyHint::new(mask(&[0, 1]), false)
        ]
    );
    assert_eq!(
        device_hints(HintInput {
            request: 2,
            ..input
        }),
        Some(vec![])
    );
}

#[test]
fn reusable_devices_must_lie_inside() {
    let all = devices(&[("a", &[0]), ("b", &[1]), ("c", &[1])]);
    let available: DeviceSet = ["a", "c"].map(DeviceId::from).into();
    let reusable: DeviceSet = [DeviceId::from("b")].into();
    let input = HintInput {
        machine: &machine(2),
        devices: &all,
        available: &available,
        reusable: &reusable,
        held: None,
        request: 1,
    };
    let hints = device_hints(input).unwrap();
    assert_eq!(
        hints,
        [
            TopologyHint::new(mask(&[1]), true),
            TopologyHint::new(mask(&[0, 1]), false)
        ]
    );
}

#[test]
fn item_114_a_large_machine_with_devices_on_few_nodes_is_quick() {
    let all = devices(&[("a", &[2]), ("b", &[33])]);
    let available: DeviceSet = all.keys().cloned().collect();
    let machine = machine(36);
    let started = spent();
    for _ in 0..100 {
        let hints = device_hints(HintInput {
            machine: &machine,
            devices: &all,
            available: &available,
            reusable: &DeviceSet::new(),
            held: None,
            request: 2,
        });
        assert_eq!(hints, Some(vec![TopologyHint::new(mask(&[2, 33]), true)]));
    }
    let took = spent() - started;
    assert!(took.tv_sec == 0 && took.tv_nsec < 100_000_000, "{took:?}");
}

#[test]
fn devices_on_every_node_of_a_large_machine_stay_bounded() {
    let all: DeviceMap = (0..36)
        .map(|n| {
            (
                DeviceId::from(format!("d{n}")),
                NumaMask::single(n).unwrap(),
            )
        })
        .collect();
    let available: DeviceSet = all.keys().cloned().collect();
    let machine = machine(36);
    let started = spent();
    for request in [1, 2, 18, 36] {
        let hints = device_hints(HintInput {
            machine: &machine,
            devices: &all,
            available: &available,
            reusable: &DeviceSet::new(),
            held: None,
            request,
        })
        .unwrap();
        assert!(!hints.is_empty() && hints.len() <= HINT_LIMIT);
        let least = u32::try_from(request).unwrap();
        assert!(
            hints
                .iter()
                .filter(|h| h.preferred)
                .all(|h| h.mask.unwrap().count() == least)
        );
        assert_eq!(hints.last().unwrap().mask, Some(machine.nodes()));
    }
    assert!((spent() - started).tv_sec < 5);
}

/// The rules of the specification, subset by subset and device by device.
fn plain(input: HintInput<'_>) -> Option<Vec<TopologyHint>> {
    if input.devices.values().all(|m| m.is_empty()) {
        return None;
    }
    let none = DeviceSet::new();
    let (available, reusable) = match input.held {
        Some(held) if held.len() != input.request => return Some(vec![]),
        Some(held) => (held, &none),
        None => (input.available, input.reusable),
    };
    if available.union(reusable).count() < input.request {
        return Some(vec![]);
    }
    let carrying = input.devices.values().fold(NumaMask::EMPTY, |a, &b| a | b);
    let mut masks: Vec<NumaMask> = (1..=carrying.bits())
        .map(NumaMask::from_bits)
        .filter(|m| m.is_subset(carrying))
        .collect();
    masks.sort_by_key(|m| (m.count(), m.iter().collect::<Vec<_>>()));
    let touching = |m: NumaMask, set: &DeviceSet| {
        set.iter()
            .filter(|d| input.devices[*d].intersects(m))
            .count()
    };
    let all: DeviceSet = input.devices.keys().cloned().collect();
    let least = masks
        .iter()
        .filter(|&&m| touching(m, &all) >= input.request);
    let least = least.map(|m| m.count()).min().unwrap_or(carrying.count());
    let fits = |m: &NumaMask| {
        let inside = reusable
            .iter()
            .map(|d| input.devices[d])
            .filter(|n| !n.is_empty())
            .all(|n| n.intersects(*m));
        inside && touching(*m, reusable) + touching(*m, available) >= input.request
    };
    Some(
        masks
            .into_iter()
            .filter(fits)
            .map(|m| TopologyHint::new(m, m.count() == least))
            .collect(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn hints_are_those_of_the_plain_rules(
        states in proptest::collection::vec((0u64..16, 0u8..4), 1..12),
        request in 0usize..8,
        hold in any::<bool>(),
    ) {
        let ids: Vec<DeviceId> = (0..states.len()).map(|i| DeviceId::from(i.to_string())).collect();
        let of = |state: u8| -> DeviceSet {
            ids.iter().zip(&states).filter(|(_, s)| s.1 == state).map(|(d, _)| d.clone()).collect()
        };
        let devices: DeviceMap = ids
            .iter()
            .zip(&states)
            .map(|(d, s)| (d.clone(), NumaMask::from_bits(s.0)))
            .collect();
        let (available, reusable, held) = (of(0), of(1), of(2));
        let machine = machine(4);
        let input = HintInput {
            machine: &machine,
            devices: &devices,
            available: &available,
            reusable: &reusable,
            held: hold.then_some(&held),
            request,
        };
        prop_assert_eq!(device_hints(input), plain(input));
    }
}
