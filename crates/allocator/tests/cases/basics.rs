//! Basics, pools, "all", admin access, constraints, limits, alternatives.

use serde_json::{Value, json};

use crate::bed::*;

fn one() -> Value {
    slice("slice-1", "pool-1", "driver-a", named(&["device-1"]))
}

fn two() -> Value {
    slice(
        "slice-1",
        "pool-1",
        "driver-a",
        named(&["device-1", "device-2"]),
    )
}

/// simple, other-node, no-slices, no-classes, unknown-class, no-claims-to-allocate,
/// not-enough-suitable-devices, already-allocated-devices, empty-class
#[test]
fn one_device_for_one_request() {
    let simple = Case::new()
        .slice(one())
        .claim(json!([request("req-0", "class-a", 1)]));
    simple.gets(&[&["req-0 driver-a/pool-1/device-1"]]);
    simple.clone().node("node-2", "region-1").gets_nothing();
    simple
        .clone()
        .allocated("driver-a", "pool-1", "device-1")
        .gets_nothing();
    Case {
        slices: vec![],
        ..simple.clone()
    }
    .gets_nothing();
    Case {
        classes: vec![],
        ..simple.clone()
    }
    .fails("could not retrieve device class class-a");
    assert!(
        Case {
            claims: vec![],
            ..simple.clone()
        }
        .run()
        .unwrap()
        .unwrap()
        .results
        .is_empty()
    );
    Case::new()
        .slice(one())
        .claim(json!([request("req-0", "class-a", 2)]))
        .gets_nothing();
    let open = json!({"metadata": {"name": "open"}, "spec": {}});
    Case::new()
        .class(open)
        .slice(one())
        .claim(json!([request("req-0", "open", 1)]))
        .gets(&[&["req-0 driver-a/pool-1/device-1"]]);
    // Checklist 68: the allocation is for the node of the slice.
    let found = simple.run().unwrap().unwrap();
    let nodes = serde_json::to_value(&found.results[0].node_selector).unwrap();
    assert_eq!(
        nodes,
        json!({"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]})
    );
}

fn sized() -> Case {
    let devices = json!([
        {"name": "device-1", "attributes": {"size": {"string": "small"}}},
        {"name": "device-2", "attributes": {"size": {"string": "large"}}},
    ]);
    Case::new().slice(slice("slice-1", "pool-1", "driver-a", devices))
}

fn large(name: &str) -> Value {
    let selectors = cel(&["device.attributes[\"driver-a\"].size == \"large\""]);
    also(request(name, "class-a", 1), json!({"selectors": selectors}))
}

/// small-and-large, small-and-large-backtrack-requests, small-and-large-backtrack-claims
/// (checklist 57)
#[test]
fn a_greedy_choice_is_taken_back() {
    sized()
        .claim(json!([request("small", "class-a", 1), large("large")]))
        .gets(&[&[
            "small driver-a/pool-1/device-1",
            "large driver-a/pool-1/device-2",
        ]]);
    let mut turned = sized();
    turned.slices[0]["spec"]["devices"]
        .as_array_mut()
        .unwrap()
        .reverse();
    turned
        .clone()
        .claim(json!([request("small", "class-a", 1), large("large")]))
        .gets(&[&[
            "small driver-a/pool-1/device-1",
            "large driver-a/pool-1/device-2",
        ]]);
    turned
        .claim(json!([request("small", "class-a", 1)]))
        .claim(json!([large("large")]))
        .gets(&[
            &["small driver-a/pool-1/device-1"],
            &["large driver-a/pool-1/device-2"],
        ]);
}

/// devices-split-across-different-slices, obsolete-slice, duplicate-slice, several-different-drivers,
/// no-allocation-from-incomplete-pools, invalid-pool-is-ok-if-devices-can-be-allocated-from-other,
/// invalid-pool-is-error-if-no-other-device-can-be-allocated (checklist 52, 53, 54)
#[test]
fn pools_and_generations() {
    let ask = json!([request("req-0", "class-a", 2)]);
    let a = generation(one(), 1, 2);
    let b = generation(
        slice("slice-2", "pool-1", "driver-a", named(&["device-2"])),
        1,
        2,
    );
    Case::new()
        .slice(a.clone())
        .slice(b.clone())
        .claim(ask.clone())
        .gets(&[&[
            "req-0 driver-a/pool-1/device-1",
            "req-0 driver-a/pool-1/device-2",
        ]]);
    Case::new()
        .slice(a.clone())
        .claim(json!([request("req-0", "class-a", 1)]))
        .gets_nothing();
    Case::new()
        .slice(a)
        .claim(json!([all("req-0", "class-a")]))
        .fails("resource pool driver-a/pool-1 is currently being updated");
    let newer = generation(
        slice("slice-2", "pool-1", "driver-a", named(&["device-2"])),
        2,
        1,
    );
    Case::new()
        .slice(one())
        .slice(newer)
        .claim(json!([request("req-0", "class-a", 1)]))
        .gets(&[&["req-0 driver-a/pool-1/device-2"]]);
    let twice = slice(
        "slice-1",
        "pool-1",
        "driver-a",
        named(&["device-1", "device-1"]),
    );
    let invalid = Case::new().slice(twice);
    invalid
        .clone()
        .claim(json!([request("req-0", "class-a", 1)]))
        .fails("invalid resource pools were encountered");
    invalid
        .clone()
        .claim(json!([all("req-0", "class-a")]))
        .fails("is currently invalid");
    invalid
        .slice(slice("slice-2", "pool-2", "driver-a", named(&["device-9"])))
        .claim(json!([request("req-0", "class-a", 1)]))
        .gets(&[&["req-0 driver-a/pool-2/device-9"]]);
    Case::new()
        .slice(one())
        .slice(slice("s2", "pool-1", "driver-b", named(&["device-1"])))
        .claim(json!([
            request("req-0", "class-a", 1),
            request("req-1", "class-b", 1)
        ]))
        .gets(&[&[
            "req-0 driver-a/pool-1/device-1",
            "req-1 driver-b/pool-1/device-1",
        ]]);
}

/// multi-host-resource-pool-*, different-resourceslices-in-pool-can-target-different-nodes
#[test]
fn pools_of_several_nodes() {
    let ask = || json!([request("req-0", "class-a", 1)]);
    let on = |name: &str, node: &str, g| {
        let s = slice(
            name,
            "pool-1",
            "driver-a",
            named(&[&format!("device-{name}")]),
        );
        generation(at(s, json!({"nodeName": node})), g, 2)
    };
    let both = Case::new()
        .slice(on("1", "node-1", 1))
        .slice(on("2", "node-2", 1));
    both.clone()
        .claim(ask())
        .gets(&[&["req-0 driver-a/pool-1/device-1"]]);
    both.clone()
        .node("node-2", "region-1")
        .claim(ask())
        .gets(&[&["req-0 driver-a/pool-1/device-2"]]);
    both.claim(json!([all("req-0", "class-a")]))
        .gets(&[&["req-0 driver-a/pool-1/device-1"]]);
    // The node still has an old slice of a pool that is elsewhere in a newer generation.
    let stale = Case::new()
        .slice(on("1", "node-1", 1))
        .slice(on("2", "node-2", 2))
        .slice(on("3", "node-2", 2));
    stale.clone().claim(ask()).gets_nothing();
    stale.claim(json!([all("req-0", "class-a")])).gets_nothing();
    let partly = Case::new().slice(on("2", "node-1", 2));
    partly.claim(ask()).gets_nothing();
}

/// network-attached-device, unsuccessful-allocation-network-attached-device,
/// local-and-network-attached-devices, many-network-attached-devices (checklist 68)
#[test]
fn devices_of_the_network() {
    let selector = |region: &str| {
        json!({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "region", "operator": "In", "values": [region]}]}]}})
    };
    let network = Case::new()
        .slice(at(one(), selector("region-1")))
        .claim(json!([request("req-0", "class-a", 1)]));
    let found = network.run().unwrap().unwrap();
    assert_eq!(
        serde_json::to_value(&found.results[0].node_selector).unwrap(),
        selector("region-1")["nodeSelector"]
    );
    network.node("node-1", "region-2").gets_nothing();
    let everywhere = Case::new()
        .slice(at(one(), json!({"allNodes": true})))
        .claim(json!([request("req-0", "class-a", 1)]));
    assert_eq!(
        everywhere.run().unwrap().unwrap().results[0].node_selector,
        None
    );
    let mixed = Case::new()
        .slice(at(one(), selector("region-1")))
        .slice(slice("slice-2", "pool-2", "driver-b", named(&["device-2"])))
        .claim(json!([
            request("req-0", "class-a", 1),
            request("req-1", "class-b", 1)
        ]));
    let nodes = mixed
        .run()
        .unwrap()
        .unwrap()
        .results
        .remove(0)
        .node_selector
        .unwrap();
    assert_eq!(
        nodes.node_selector_terms[0].match_fields.as_ref().unwrap()[0].values,
        Some(vec!["node-1".to_owned()])
    );
}

/// all-devices-single, all-devices-many, all-devices-plus-another(-reversed), all-devices-no-solution,
/// all-devices-slice-without-devices, all-devices-no-slices, all-devices-some-allocated(-admin-access),
/// all-devices-some-allocating-admin-access
#[test]
fn all_devices() {
    let ask = json!([all("req-0", "class-a")]);
    Case::new().slice(two()).claim(ask.clone()).gets(&[&[
        "req-0 driver-a/pool-1/device-1",
        "req-0 driver-a/pool-1/device-2",
    ]]);
    Case::new().claim(ask.clone()).gets_nothing();
    Case::new()
        .slice(slice("s", "pool-1", "driver-a", json!([])))
        .claim(ask.clone())
        .gets_nothing();
    let held = Case::new()
        .slice(two())
        .allocated("driver-a", "pool-1", "device-1");
    held.clone().claim(ask).gets_nothing();
    let admin = also(all("req-0", "class-a"), json!({"adminAccess": true}));
    held.claim(json!([admin.clone()])).gets(&[&[
        "req-0 driver-a/pool-1/device-1 admin",
        "req-0 driver-a/pool-1/device-2 admin",
    ]]);
    Case::new()
        .slice(two())
        .claim(json!([request("req-0", "class-a", 1)]))
        .claim(json!([admin]))
        .gets(&[
            &["req-0 driver-a/pool-1/device-1"],
            &[
                "req-0 driver-a/pool-1/device-1 admin",
                "req-0 driver-a/pool-1/device-2 admin",
            ],
        ]);
    Case::new()
        .slice(two())
        .claim(json!([
            all("req-0", "class-a"),
            request("req-1", "class-a", 1)
        ]))
        .gets_nothing();
    Case::new()
        .slice(two())
        .slice(slice("s2", "pool-1", "driver-b", named(&["x"])))
        .claim(json!([
            request("req-1", "class-b", 1),
            all("req-0", "class-a")
        ]))
        .gets(&[&[
            "req-1 driver-b/pool-1/x",
            "req-0 driver-a/pool-1/device-1",
            "req-0 driver-a/pool-1/device-2",
        ]]);
}

/// admin-access-disabled, admin-access-enabled, separate-claims-share-device-admin-access,
/// count-devices-some-allocated-admin-access,
/// admin-access-claims-device-allocating-for-non-admin-access (checklist 62)
#[test]
fn admin_access() {
    let admin = |name: &str, n| also(request(name, "class-a", n), json!({"adminAccess": true}));
    let held = Case::new()
        .slice(one())
        .allocated("driver-a", "pool-1", "device-1");
    held.clone()
        .claim(json!([admin("a", 1)]))
        .gets(&[&["a driver-a/pool-1/device-1 admin"]]);
    held.clone()
        .claim(json!([admin("a", 1)]))
        .claim(json!([admin("a", 1)]))
        .gets(&[
            &["a driver-a/pool-1/device-1 admin"],
            &["a driver-a/pool-1/device-1 admin"],
        ]);
    held.clone().claim(json!([admin("a", 2)])).gets_nothing();
    held.clone()
        .claim(json!([admin("a", 1), admin("b", 1)]))
        .gets_nothing();
    held.claim(json!([admin("a", 1)]))
        .features(|f| f.admin_access = false)
        .fails("admin access is requested, but the feature is disabled");
    Case::new()
        .slice(one())
        .claim(json!([admin("a", 1)]))
        .claim(json!([request("b", "class-a", 1)]))
        .gets_nothing();
}

fn rooted(values: &[&str]) -> Value {
    let device = |(i, v): (usize, &&str)| {
        let attributes = if v.is_empty() {
            json!({})
        } else {
            json!({"root": {"string": v}, "n": {"int": v.len()}})
        };
        json!({"name": format!("device-{i}"), "attributes": attributes})
    };
    slice(
        "slice-1",
        "pool-1",
        "driver-a",
        values.iter().enumerate().map(device).collect(),
    )
}

/// with-constraint, with-constraint-non-existent-attribute, with-constraint-not-matching-*,
/// with-constraint-for-request(-retry), unknown-constraint (checklist 59)
#[test]
fn matching_attributes() {
    let same = json!([{"matchAttribute": "driver-a/root"}]);
    let ask = |n| json!([request("req-0", "class-a", n)]);
    let on = |roots: &[&str]| Case::new().slice(rooted(roots));
    on(&["a", "b", "a"])
        .claim(ask(2))
        .with("constraints", same.clone())
        .gets(&[&[
            "req-0 driver-a/pool-1/device-0",
            "req-0 driver-a/pool-1/device-2",
        ]]);
    on(&["a", "b", "", "b"])
        .claim(ask(2))
        .with("constraints", same.clone())
        .gets(&[&[
            "req-0 driver-a/pool-1/device-1",
            "req-0 driver-a/pool-1/device-3",
        ]]);
    on(&["a", "b"])
        .claim(ask(2))
        .with("constraints", same.clone())
        .gets_nothing();
    on(&["a", "a"])
        .claim(ask(2))
        .with("constraints", json!([{"matchAttribute": "other/root"}]))
        .gets_nothing();
    on(&["a", "bb"])
        .claim(ask(2))
        .with("constraints", json!([{"matchAttribute": "driver-a/n"}]))
        .gets_nothing();
    on(&["a", "b"])
        .claim(json!([all("req-0", "class-a")]))
        .with("constraints", same)
        .fails("because a claim constraint would not be satisfied");
    on(&["a", "b", "b"])
        .claim(json!([
            request("x", "class-a", 1),
            request("y", "class-a", 2)
        ]))
        .with(
            "constraints",
            json!([{"matchAttribute": "driver-a/root", "requests": ["y"]}]),
        )
        .gets(&[&[
            "x driver-a/pool-1/device-0",
            "y driver-a/pool-1/device-1",
            "y driver-a/pool-1/device-2",
        ]]);
    on(&["a"])
        .claim(ask(1))
        .with("constraints", json!([{}]))
        .fails("empty constraint");
}

/// with-distinct-constraints*, distinct-constraint-* (checklist 60)
#[test]
fn distinct_attributes() {
    let differ = json!([{"distinctAttribute": "driver-a/root"}]);
    let ask = |n| json!([request("req-0", "class-a", n)]);
    Case::new()
        .slice(rooted(&["a", "a", "b"]))
        .claim(ask(2))
        .with("constraints", differ.clone())
        .gets(&[&[
            "req-0 driver-a/pool-1/device-0",
            "req-0 driver-a/pool-1/device-2",
        ]]);
    // Three devices of one request: all of them have to differ, see docs/differences.md.
    Case::new()
        .slice(rooted(&["a", "b", "a", "c"]))
        .claim(ask(3))
        .with("constraints", differ.clone())
        .gets(&[&[
            "req-0 driver-a/pool-1/device-0",
            "req-0 driver-a/pool-1/device-1",
            "req-0 driver-a/pool-1/device-3",
        ]]);
    Case::new()
        .slice(rooted(&["a", ""]))
        .claim(ask(2))
        .with("constraints", differ)
        .gets_nothing();
}

/// list-attributes-*
#[test]
fn attributes_that_are_lists() {
    let listed = |values: &[Value]| {
        let device =
            |(i, v): (usize, &Value)| json!({"name": format!("d{i}"), "attributes": {"l": v}});
        slice(
            "s",
            "p",
            "driver-a",
            values.iter().enumerate().map(device).collect(),
        )
    };
    let run = |on: bool, values: &[Value], n, constraint: Value| {
        Case::new()
            .features(|f| f.list_attributes = on)
            .slice(listed(values))
            .claim(json!([request("r", "class-a", n)]))
            .with("constraints", json!([constraint]))
    };
    let same = || json!({"matchAttribute": "driver-a/l"});
    let differ = || json!({"distinctAttribute": "driver-a/l"});
    let s = |v: &[&str]| json!({"strings": v});
    run(true, &[s(&["a", "b"]), s(&["b", "c"])], 2, same())
        .gets(&[&["r driver-a/p/d0", "r driver-a/p/d1"]]);
    run(
        true,
        &[s(&["a", "b"]), s(&["b", "c"]), s(&["c"])],
        3,
        same(),
    )
    .gets_nothing();
    run(true, &[s(&["a", "b"]), json!({"string": "b"})], 2, same())
        .gets(&[&["r driver-a/p/d0", "r driver-a/p/d1"]]);
    run(true, &[s(&["a"]), json!({"string": "b"})], 2, same()).gets_nothing();
    run(
        true,
        &[json!({"ints": [1, 2]}), json!({"ints": [2]})],
        2,
        same(),
    )
    .gets(&[&["r driver-a/p/d0", "r driver-a/p/d1"]]);
    run(
        true,
        &[json!({"versions": ["1.0.0"]}), json!({"version": "1.0.0"})],
        2,
        same(),
    )
    .gets(&[&["r driver-a/p/d0", "r driver-a/p/d1"]]);
    run(true, &[json!({})], 1, same()).gets_nothing();
    run(true, &[s(&["a"]), s(&["b"])], 2, differ())
        .gets(&[&["r driver-a/p/d0", "r driver-a/p/d1"]]);
    run(true, &[s(&["a", "b"]), s(&["b"])], 2, differ()).gets_nothing();
    run(
        true,
        &[json!({"bools": [true]}), json!({"bools": [false]})],
        2,
        differ(),
    )
    .gets(&[&["r driver-a/p/d0", "r driver-a/p/d1"]]);
    run(false, &[s(&["a"]), s(&["a"])], 2, same()).gets_nothing();
}

/// with-class-device-config*, claim-with-device-config, with-claim-config-for-two-requests,
/// claim-config-scoped-to-subrequests-of-one-request, claim-config-covering-all-requests-is-cleared,
/// prioritized-list-device-config, prioritized-list-class-config (checklist 69)
#[test]
fn configurations() {
    let opaque = |who: &str| json!({"opaque": {"driver": "driver-a", "parameters": {"who": who}}});
    let named_config = |who: &str, requests: Value| {
        let mut config = opaque(who);
        config["requests"] = requests;
        config
    };
    let class =
        |name: &str| json!({"metadata": {"name": name}, "spec": {"config": [opaque(name)]}});
    let shown = |case: &Case| {
        let found = case.run().unwrap().unwrap();
        let config = found.results[0]
            .devices
            .as_ref()
            .unwrap()
            .config
            .clone()
            .unwrap_or_default();
        config
            .iter()
            .map(|c| {
                let who = c.opaque.as_ref().unwrap().parameters.0["who"]
                    .as_str()
                    .unwrap()
                    .to_owned();
                format!(
                    "{} {who} {}",
                    c.source,
                    c.requests.clone().unwrap_or_default().join(",")
                )
            })
            .collect::<Vec<_>>()
    };
    let base = Case::new()
        .slice(slice("s", "p", "driver-a", named(&["a", "b", "c"])))
        .class(class("one"))
        .class(class("two"));
    let case = base
        .clone()
        .claim(json!([
            request("x", "one", 1),
            request("y", "two", 1),
            request("z", "one", 1)
        ]))
        .with(
            "config",
            json!([
                named_config("late", json!(["z", "y"])),
                opaque("every"),
                named_config("none", json!(["q"]))
            ]),
        );
    assert_eq!(
        shown(&case),
        [
            "FromClass one x,z",
            "FromClass two y",
            "FromClaim late z,y",
            "FromClaim every "
        ]
    );
    let case = base
        .clone()
        .claim(json!([request("x", "one", 1)]))
        .with("config", json!([named_config("mine", json!(["x"]))]));
    assert_eq!(shown(&case), ["FromClass one x", "FromClaim mine x"]);
    let subs = [sub("big", "one", 4), sub("small", "two", 1)];
    let case = base
        .claim(json!([first("x", &subs), request("y", "class-a", 1)]))
        .with(
            "config",
            json!([
                named_config("both", json!(["x/big", "x/small"])),
                named_config("big", json!(["x/big"])),
                named_config("small", json!(["x/small"])),
                named_config("all", json!(["x", "y"]))
            ]),
        );
    assert_eq!(
        shown(&case),
        [
            "FromClass two x/small",
            "FromClaim both x/big,x/small",
            "FromClaim small x/small",
            "FromClaim all x,y"
        ]
    );
}

/// unknown-selector, unknown-allocation-mode, invalid-CEL-one-device(-class), invalid-CEL-all-devices,
/// all-devices-invalid-CEL
#[test]
fn what_is_not_known_is_refused() {
    let ask = |members: Value| {
        Case::new()
            .slice(one())
            .claim(json!([also(request("r", "class-a", 1), members)]))
    };
    ask(json!({"selectors": [{}]}))
        .fails("selector #0: CEL expression empty (unsupported selector type?)");
    ask(json!({"allocationMode": "Some"})).fails("unsupported count mode Some");
    ask(json!({"selectors": cel(&["noway"])}))
        .fails("claim claim-0: selector #0: CEL compile error");
    let runtime = json!({"selectors": cel(&["device.attributes[\"driver-a\"].gone == 1"])});
    ask(runtime.clone()).fails("claim claim-0: selector #0 on device driver-a/pool-1/device-1: CEL runtime error: no such key: gone");
    Case::new()
        .slice(one())
        .claim(json!([also(all("r", "class-a"), runtime)]))
        .fails("CEL runtime error");
}

/// too-many-devices-single-request, many-devices-okay, too-many-devices-total, max-number-devices
/// (checklist 58)
#[test]
fn a_claim_gets_at_most_32_devices() {
    let names: Vec<String> = (0..40).map(|i| format!("d{i:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let many = Case::new().slice(slice("s", "p", "driver-a", named(&names)));
    let count = |case: Case| {
        case.run().unwrap().unwrap().results[0]
            .devices
            .clone()
            .unwrap()
            .results
            .unwrap()
            .len()
    };
    assert_eq!(
        count(many.clone().claim(json!([request("r", "class-a", 32)]))),
        32
    );
    many.clone()
        .claim(json!([request("r", "class-a", 33)]))
        .fails("number of requested devices 33 exceeds the claim limit of 32");
    many.clone()
        .claim(json!([
            request("q", "class-a", 16),
            request("r", "class-a", 17)
        ]))
        .fails("exceeds the claim limit of 32");
    // prioritized-list-too-many-in-first-subrequest, prioritized-list-max-allocation-limit-request
    let subs = [sub("all", "class-a", 30), sub("few", "class-a", 2)];
    let case = many
        .clone()
        .claim(json!([request("q", "class-a", 5), first("r", &subs)]));
    assert_eq!(case.run().unwrap().unwrap().chosen, [1]);
    // prioritized-list-max-allocation-allocation-mode-all
    let mut everything = sub("all", "class-a", 0);
    everything["allocationMode"] = json!("All");
    everything.as_object_mut().unwrap().remove("count");
    let case = many.claim(json!([first("r", &[everything, sub("few", "class-a", 1)])]));
    assert_eq!(count(case), 1);
}

/// prioritized-list-*, check-combinations-with-prioritized-list (checklist 61)
#[test]
fn alternatives() {
    let base = Case::new()
        .slice(slice("s1", "p", "driver-a", named(&["a"])))
        .slice(slice("s2", "p", "driver-b", named(&["b"])));
    let ask = first("r", &[sub("x", "class-a", 1), sub("y", "class-b", 1)]);
    base.clone()
        .claim(json!([ask.clone()]))
        .gets(&[&["r/x driver-a/p/a"]]);
    base.clone()
        .allocated("driver-a", "p", "a")
        .claim(json!([ask.clone()]))
        .gets(&[&["r/y driver-b/p/b"]]);
    base.clone()
        .allocated("driver-a", "p", "a")
        .allocated("driver-b", "p", "b")
        .claim(json!([ask.clone()]))
        .gets_nothing();
    base.clone()
        .features(|f| f.prioritized_list = false)
        .claim(json!([ask.clone()]))
        .fails("has subrequests, but the DRAPrioritizedList feature is disabled");
    // The first alternative takes what the next request needs.
    base.clone()
        .claim(json!([ask.clone(), request("q", "class-a", 1)]))
        .gets(&[&["r/y driver-b/p/b", "q driver-a/p/a"]]);
    let case = base.claim(json!([ask.clone()])).claim(json!([ask]));
    case.gets(&[&["r/x driver-a/p/a"], &["r/y driver-b/p/b"]]);
    assert_eq!(case.run().unwrap().unwrap().chosen, [0, 1]);
    // prioritized-list-subrequests-with-constraints-ref-parent-request and -ref-sub-request
    let roots = Case::new().slice(rooted(&["a", "b", "b"]));
    let ask = || {
        json!([
            request("q", "class-a", 1),
            first("r", &[sub("x", "class-a", 1)])
        ])
    };
    for requests in [json!(["q", "r"]), json!(["q", "r/x"])] {
        roots
            .clone()
            .claim(ask())
            .with(
                "constraints",
                json!([{"matchAttribute": "driver-a/root", "requests": requests}]),
            )
            .gets(&[&["q driver-a/pool-1/device-1", "r/x driver-a/pool-1/device-2"]]);
    }
}

/// tainted-* (checklist 67)
#[test]
fn taints() {
    let taint = |effect: &str| json!({"key": "k", "value": "v", "effect": effect});
    let tainted = |taints: Value| {
        Case::new().slice(slice(
            "s",
            "p",
            "driver-a",
            json!([{"name": "a", "taints": taints}]),
        ))
    };
    let ask = || json!([request("r", "class-a", 1)]);
    tainted(json!([taint("NoSchedule")]))
        .claim(ask())
        .gets_nothing();
    tainted(json!([taint("NoExecute")]))
        .claim(ask())
        .gets_nothing();
    tainted(json!([taint("None")]))
        .claim(ask())
        .gets(&[&["r driver-a/p/a"]]);
    tainted(json!([taint("Unheard")]))
        .claim(ask())
        .gets(&[&["r driver-a/p/a"]]);
    tainted(json!([taint("NoSchedule")]))
        .features(|f| f.device_taints = false)
        .claim(ask())
        .gets(&[&["r driver-a/p/a"]]);
    let with = |tolerations: Value| {
        json!([also(
            request("r", "class-a", 1),
            json!({"tolerations": tolerations})
        )])
    };
    for (tolerations, fits) in [
        (json!([{"operator": "Exists"}]), true),
        (
            json!([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]),
            true,
        ),
        (
            json!([{"key": "k", "operator": "Exists", "effect": "NoExecute"}]),
            false,
        ),
        (
            json!([{"key": "k", "operator": "Equal", "value": "v"}]),
            true,
        ),
        (
            json!([{"key": "k", "operator": "Equal", "value": "w"}]),
            false,
        ),
    ] {
        let case = tainted(json!([taint("NoSchedule")])).claim(with(tolerations));
        if fits {
            case.gets(&[&["r driver-a/p/a"]]);
        } else {
            case.gets_nothing();
        }
    }
    let both = json!([taint("NoSchedule"), {"key": "other", "effect": "NoExecute"}]);
    tainted(both.clone())
        .claim(with(json!([{"key": "k", "operator": "Exists"}])))
        .gets_nothing();
    tainted(both)
        .claim(with(
            json!([{"key": "k", "operator": "Exists"}, {"key": "other", "operator": "Exists"}]),
        ))
        .gets(&[&["r driver-a/p/a"]]);
    // tainted-admin-access
    tainted(json!([taint("NoSchedule")]))
        .claim(json!([also(
            request("r", "class-a", 1),
            json!({"adminAccess": true})
        )]))
        .gets_nothing();
}

/// lexicographical-sorting-*, device-binding-conditions, binding-conditions-* (checklist 55, 56)
#[test]
fn the_order_of_pools() {
    let ask = || json!([request("r", "class-a", 3)]);
    Case::new()
        .slice(slice("s9", "pool-b", "driver-a", named(&["b"])))
        .slice(generation(
            slice("s2", "pool-a", "driver-a", named(&["a2"])),
            1,
            2,
        ))
        .slice(generation(
            slice("s1", "pool-a", "driver-a", named(&["a1"])),
            1,
            2,
        ))
        .claim(ask())
        .gets(&[&[
            "r driver-a/pool-a/a1",
            "r driver-a/pool-a/a2",
            "r driver-a/pool-b/b",
        ]]);
    let conditional = json!([{"name": "c", "bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}]);
    let case = Case::new()
        .slice(slice("s1", "pool-a", "driver-a", conditional))
        .slice(slice("s2", "pool-b", "driver-a", named(&["b"])));
    case.clone()
        .claim(json!([request("r", "class-a", 1)]))
        .gets(&[&["r driver-a/pool-b/b"]]);
    let both = case.clone().claim(json!([request("r", "class-a", 2)]));
    both.gets(&[&["r driver-a/pool-b/b", "r driver-a/pool-a/c"]]);
    let results = both
        .run()
        .unwrap()
        .unwrap()
        .results
        .remove(0)
        .devices
        .unwrap()
        .results
        .unwrap();
    assert_eq!(
        results[1].binding_conditions,
        Some(vec!["ready".to_owned()])
    );
    assert_eq!(
        results[1].binding_failure_conditions,
        Some(vec!["broken".to_owned()])
    );
    case.features(|f| f.binding_conditions = false)
        .claim(json!([request("r", "class-a", 2)]))
        .gets_nothing();
    // node-restriction
    let binds = json!([{"name": "c", "bindsToNode": true}]);
    let found = Case::new()
        .slice(at(
            slice("s", "p", "driver-a", binds),
            json!({"allNodes": true}),
        ))
        .claim(json!([request("r", "class-a", 1)]))
        .run()
        .unwrap()
        .unwrap();
    assert!(found.results[0].node_selector.is_some());
}

/// Exhaustive searches that have no result end soon: devices alike are tried once.
#[test]
fn hopeless_searches_end_soon() {
    let names: Vec<String> = (0..60).map(|i| format!("d{i:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let requests: Vec<Value> = (0..8)
        .map(|i| request(&format!("r{i}"), "class-a", 4))
        .collect();
    let mut list = requests.clone();
    list[7] = also(
        list[7].clone(),
        json!({"selectors": cel(&["device.driver == \"nobody\""])}),
    );
    Case::new()
        .slice(slice("s", "p", "driver-a", named(&names)))
        .claim(json!(list))
        .gets_nothing();
    // Here each request could be satisfied alone.
    let two = slice("s", "p", "driver-a", named(&names[..31]));
    Case::new().slice(two).claim(json!(requests)).gets_nothing();
}

/// For `davit explain`: each device with what ruled it out and the value that was seen.
#[test]
fn refusals_name_what_was_seen() {
    let devices = json!([
        {"name": "a", "attributes": {"size": {"string": "small"}}},
        {"name": "b", "attributes": {"size": {"string": "large"}}, "taints": [{"key": "k", "effect": "NoSchedule"}]},
        {"name": "c", "attributes": {"size": {"string": "large"}}},
    ]);
    let refusal = Case::new()
        .slice(slice("s", "p", "driver-a", devices))
        .allocated("driver-a", "p", "c")
        .claim(json!([large("r")]))
        .explain();
    let texts: Vec<String> = refusal.requests[0]
        .devices
        .iter()
        .map(|d| format!("{}: {}", d.device, d.cause))
        .collect();
    assert_eq!(
        texts,
        [
            "driver-a/p/a: request: device.attributes[\"driver-a\"].size == \"large\" is false (saw driver \"driver-a\", size \"small\")",
            "driver-a/p/b: taint k:NoSchedule is not tolerated",
            "driver-a/p/c: in use",
        ]
    );
    let refusal = Case::new()
        .slice(rooted(&["a", "b"]))
        .claim(json!([request("r", "class-a", 2)]))
        .with("constraints", json!([{"matchAttribute": "driver-a/root"}]))
        .explain();
    assert_eq!(
        refusal.requests[0].together,
        [
            "constraint: 2 devices with equal driver-a/root are wanted, there are 1 with \"a\", 1 with \"b\""
        ]
    );
    let json = serde_json::to_string(&refusal).unwrap();
    assert_eq!(
        serde_json::from_str::<davit_allocator::Refusal>(&json).unwrap(),
        refusal
    );
}

/// All devices against a constraint are an error wherever the search meets them, also after so many
/// steps that it asks whether there can be a solution at all.
#[test]
fn doubt_does_not_hide_an_error() {
    // only the last three devices share a root, so that the search has to go through all others
    let root = |n: usize| n.min(1200);
    let devices: Vec<Value> = (0..1203)
        .map(|n| json!({"name": format!("d{n:04}"), "attributes": {"root": {"int": root(n)}}}))
        .collect();
    let others = json!([
        {"name": "x", "attributes": {"root": {"int": 1}}},
        {"name": "y", "attributes": {"root": {"int": 2}}},
    ]);
    Case::new()
        .slice(slice("s", "p", "driver-a", json!(devices)))
        .slice(slice("t", "q", "driver-b", others))
        .claim(json!([
            request("three", "class-a", 3),
            all("every", "class-b"),
            also(
                request("never", "class-a", 1),
                json!({"selectors": cel(&["device.driver == \"nobody\""])})
            ),
        ]))
        .with(
            "constraints",
            json!([
                {"matchAttribute": "driver-a/root", "requests": ["three"]},
                {"matchAttribute": "driver-b/root", "requests": ["every"]},
            ]),
        )
        .fails("a claim constraint would not be satisfied");
}
