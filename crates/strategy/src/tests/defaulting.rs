//! What is filled in once stays.

use proptest::prelude::{Just, any, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::Strategy as PropStrategy;
use serde_json::{Value, json};

use crate::strategy;

fn resource_list() -> impl Strategy_ {
    proptest::collection::btree_map(
        prop_oneof![Just("cpu"), Just("memory"), Just("example.com/foo")],
        prop_oneof![
            Just("1"),
            Just("100m"),
            Just("1Gi"),
            Just("1n"),
            Just("0.0001")
        ],
        0..3,
    )
    .prop_map(|list| json!(list))
}

/// Shorthand for generators of JSON.
trait Strategy_: PropStrategy<Value = Value> {}
impl<T: PropStrategy<Value = Value>> Strategy_ for T {}

fn container() -> impl Strategy_ {
    let image = prop_oneof![
        Just("a"),
        Just("a:latest"),
        Just("h:5000/a"),
        Just("a@sha256:1")
    ];
    let probe = prop_oneof![
        Just(Value::Null),
        Just(json!({"httpGet": {"port": 1}})),
        Just(json!({"grpc": {"port": 1}, "periodSeconds": 0})),
    ];
    (image, resource_list(), resource_list(), probe).prop_map(|(image, limits, requests, probe)| {
        json!({"name": "c", "image": image, "livenessProbe": probe,
            "ports": [{"containerPort": 80}],
            "resources": {"limits": limits, "requests": requests}})
    })
}

proptest! {
    #[test]
    fn defaulting_pods_twice_changes_nothing_more(
        containers in proptest::collection::vec(container(), 0..3),
        init in proptest::collection::vec(container(), 0..2),
        host in any::<bool>(),
        limits in resource_list(),
    ) {
        let mut obj = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {
            "containers": containers, "initContainers": init, "hostNetwork": host,
            "resources": {"limits": limits}, "serviceAccount": "s", "volumes": [{"name": "v"}]}});
        let rules = strategy("", "v1", "Pod");
        rules.default(&mut obj);
        let once = obj.clone();
        rules.default(&mut obj);
        prop_assert_eq!(&obj, &once);
        let _ = rules.validate(&obj);
        let mut new = once.clone();
        rules.prepare_for_update(&mut new, &once);
        prop_assert_eq!(&new, &once);
    }
}
