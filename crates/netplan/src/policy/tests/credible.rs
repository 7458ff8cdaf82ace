//! What nodes say of their pods, and what is believed of it.

use crate::{NamespaceScope, PodGroup, PodScope, PolicyPod, PolicyWorld, RangesByNode};
use davit_api::selector::Selector;
use std::collections::BTreeMap;
use std::net::IpAddr;

fn pod(node: &str, addresses: &[&str], created: i64) -> PolicyPod {
    PolicyPod {
        node: Some(node.to_owned()),
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        created,
        ..PolicyPod::default()
    }
}

fn ranges(all: &[(&str, &[&str])]) -> RangesByNode {
    let each = all.iter().map(|(node, ranges)| {
        let ranges = ranges.iter().map(|text| text.parse().unwrap());
        ((*node).to_owned(), ranges.collect())
    });
    each.collect()
}

/// The addresses of the pods of a namespace.
fn members(world: &PolicyWorld, namespace: &str) -> Vec<String> {
    let everybody = PodGroup::Scope(PodScope {
        namespaces: NamespaceScope::Named(namespace.to_owned()),
        pods: Selector::everything(),
    });
    let members = world.members(&everybody).into_iter();
    members.map(|address: IpAddr| address.to_string()).collect()
}

#[test]
fn a_node_does_not_speak_for_the_pods_of_others() {
    let mut world = PolicyWorld::default();
    for namespace in ["honest", "liar"] {
        world.set_namespace(namespace, Some(BTreeMap::new()));
    }
    world.set_pod(
        "honest",
        "a",
        Some(pod("one", &["10.244.0.5", "fd00::5"], 1)),
    );
    // A newer pod has an address that two say to have.
    world.set_pod("liar", "b", Some(pod("two", &["10.244.0.5"], 2)));
    assert_eq!(
        members(&world, "liar"),
        ["10.244.0.5"],
        "whom else to believe"
    );
    let known = ranges(&[
        ("one", &["10.244.0.0/24", "fd00::/64"]),
        ("two", &["10.244.1.0/24"]),
    ]);
    assert!(world.set_ranges(known.clone()));
    assert!(!world.set_ranges(known));
    assert_eq!(members(&world, "honest"), ["10.244.0.5", "fd00::5"]);
    assert_eq!(members(&world, "liar"), [""; 0]);
    world.set_pod("liar", "b", Some(pod("two", &["10.244.0.5"], 3)));
    assert_eq!(members(&world, "liar"), [""; 0], "nor later");
    world.set_pod("liar", "b", Some(pod("two", &["10.244.1.7"], 3)));
    assert_eq!(members(&world, "liar"), ["10.244.1.7"]);
    assert_eq!(members(&world, "honest"), ["10.244.0.5", "fd00::5"]);
    // The range of a node that is not known yet, and is then.
    world.set_pod("liar", "c", Some(pod("three", &["10.244.2.2"], 4)));
    assert_eq!(members(&world, "liar"), ["10.244.1.7"]);
    let known = ranges(&[("two", &["10.244.1.0/24"]), ("three", &["10.244.2.0/24"])]);
    assert!(world.set_ranges(known));
    assert_eq!(members(&world, "liar"), ["10.244.1.7", "10.244.2.2"]);
    assert_eq!(members(&world, "honest"), [""; 0]);
    world.set_pod("liar", "c", None);
    assert_eq!(members(&world, "liar"), ["10.244.1.7"]);
}
