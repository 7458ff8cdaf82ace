//! Partitionable devices (counters) and consumable capacity.

use serde_json::{Value, json};

use crate::bed::*;

fn counters(amount: &str) -> Value {
    let slice = slice("counters", "p", "driver-a", json!([]));
    generation(
        merge(
            slice,
            json!({"sharedCounters": [{"name": "set", "counters": {"memory": {"value": amount}}}]}),
        ),
        1,
        2,
    )
}

fn part(name: &str, amount: &str) -> Value {
    json!({"name": name, "consumesCounters": [{"counterSet": "set", "counters": {"memory": {"value": amount}}}]})
}

fn parts(total: &str, devices: Value) -> Case {
    Case::new().slice(counters(total)).slice(generation(
        slice("devices", "p", "driver-a", devices),
        1,
        2,
    ))
}

/// partitionable-devices-single-device, -multiple-devices, -no-capacity-available,
/// -overallocated-capacity-pool, -disabled-*, all-devices-with-consumed-counters (checklist 63)
#[test]
fn counters_are_shared() {
    let both = parts("6Gi", json!([part("a", "4Gi"), part("b", "4Gi")]));
    let ask = |n| json!([request("r", "class-a", n)]);
    both.clone().claim(ask(1)).gets(&[&["r driver-a/p/a"]]);
    both.clone().claim(ask(2)).gets_nothing();
    both.clone()
        .allocated("driver-a", "p", "a")
        .claim(ask(1))
        .gets_nothing();
    both.clone()
        .claim(json!([all("r", "class-a")]))
        .gets_nothing();
    parts("8Gi", json!([part("a", "4Gi"), part("b", "4Gi")]))
        .claim(json!([all("r", "class-a")]))
        .gets(&[&["r driver-a/p/a", "r driver-a/p/b"]]);
    // More was given away than there is: only devices that use the counter wait.
    parts(
        "6Gi",
        json!([part("a", "8Gi"), part("b", "1Gi"), {"name": "c"}]),
    )
    .allocated("driver-a", "p", "a")
    .claim(ask(1))
    .gets(&[&["r driver-a/p/c"]]);
    both.clone()
        .features(|f| f.partitionable_devices = false)
        .claim(ask(1))
        .gets_nothing();
    let refusal = both.allocated("driver-a", "p", "a").claim(ask(1)).explain();
    assert_eq!(
        refusal.requests[0].devices[1].cause.to_string(),
        "counter set/memory of pool driver-a/p: wants 4Gi, 2Gi left"
    );
}

/// The credential of a node may write slices into any pool.
#[test]
fn a_node_takes_no_pool_of_another() {
    for newer in [1, 9] {
        let counters = json!([{"name": "set", "counters": {"memory": {"value": "1"}}}]);
        let other = merge(
            slice("other", "p", "driver-a", json!([])),
            json!({"sharedCounters": counters}),
        );
        let other = at(other, json!({"nodeName": "node-2"}));
        parts("6Gi", json!([part("a", "4Gi")]))
            .slice(generation(other, newer, 1))
            .claim(json!([request("r", "class-a", 1)]))
            .gets(&[&["r driver-a/p/a"]]);
    }
}

/// A selector that nobody understands is of the pool it is in: the API takes one that compares with what is no number.
#[test]
fn a_pool_of_one_driver_disturbs_no_other() {
    let compares = json!([{"key": "zone", "operator": "Gt", "values": ["no-number"]}]);
    let odd = |name: &str, driver: &str| {
        let selector = json!({"nodeSelectorTerms": [{"matchExpressions": compares}]});
        let slice = slice(name, "p", driver, named(&["x"]));
        at(slice, json!({"nodeName": null, "nodeSelector": selector}))
    };
    let case = || Case::new().slice(slice("own", "p", "driver-a", named(&["a"])));
    case()
        .slice(odd("odd", "driver-b"))
        .claim(json!([request("r", "class-a", 1)]))
        .gets(&[&["r driver-a/p/a"]]);
    // Its own driver has nothing there, and is told so.
    let own = Case::new().slice(odd("odd", "driver-a"));
    own.claim(json!([request("r", "class-a", 1)]))
        .fails("invalid resource pools were encountered");
}

/// What is allocated on one node of a pool and device of whatever name is not the device of another node.
#[test]
fn a_node_holds_no_device_of_another() {
    let held = |node: Value| {
        let mut case = Case::new()
            .slice(slice("own", "p", "driver-a", named(&["a"])))
            .slice(at(
                slice("other", "p", "driver-a", named(&["a"])),
                json!({"nodeName": "node-2"}),
            ))
            .claim(json!([request("r", "class-a", 1)]))
            .allocated("driver-a", "p", "a");
        if !node.is_null() {
            let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
            case.allocated[0]["nodeSelector"] =
                json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
        }
        case
    };
    held(json!("node-2")).gets(&[&["r driver-a/p/a"]]);
    held(json!("node-2"))
        .node("node-2", "region-1")
        .gets_nothing();
    held(json!("node-1")).gets_nothing();
    // Who allocates without saying for which node holds it on each.
    held(json!(null)).gets_nothing();
    // What several nodes reach is held for whichever it was.
    let mut shared = held(json!("node-2"));
    shared.slices = vec![at(
        shared.slices.remove(0),
        json!({"nodeName": null, "allNodes": true}),
    )];
    shared.gets_nothing();
}

/// A node's slice in a pool of devices that several nodes reach would be taken for one of these.
#[test]
fn a_node_adds_nothing_to_a_pool_of_all() {
    for newer in [1, 9] {
        let all = at(
            slice("all", "p", "driver-a", named(&["a"])),
            json!({"allNodes": true}),
        );
        let own = slice("own", "p", "driver-a", named(&["a", "b"]));
        Case::new()
            .slice(all)
            .slice(generation(own, newer, 1))
            .claim(json!([self::all("r", "class-a")]))
            .gets(&[&["r driver-a/p/a"]]);
    }
}

/// partitionable-devices-devices-on-different-nodes-consume-same-counter-set,
/// -device-counter-consumption-references-unknown-*, -validation-error-on-non-targeting-slice
/// (checklist 64)
#[test]
fn counters_of_other_nodes_count() {
    let elsewhere = |devices: Value| {
        generation(
            at(
                slice("there", "p", "driver-a", devices),
                json!({"nodeName": "node-2"}),
            ),
            1,
            3,
        )
    };
    let count = |mut s: Value| {
        s["spec"]["pool"]["resourceSliceCount"] = json!(3);
        s
    };
    let base = |there: Value| {
        Case::new()
            .slice(count(at(counters("6Gi"), json!({"allNodes": true}))))
            .slice(count(slice(
                "here",
                "p",
                "driver-a",
                json!([part("a", "4Gi")]),
            )))
            .slice(elsewhere(there))
    };
    let ask = || json!([request("r", "class-a", 1)]);
    base(json!([part("b", "4Gi")]))
        .claim(ask())
        .gets(&[&["r driver-a/p/a"]]);
    base(json!([part("b", "4Gi")]))
        .allocated("driver-a", "p", "b")
        .claim(ask())
        .gets_nothing();
    let mut stray = part("b", "4Gi");
    stray["consumesCounters"][0]["counterSet"] = json!("nowhere");
    base(json!([stray]))
        .claim(ask())
        .fails("invalid resource pools were encountered");
}

/// partitionable-devices-per-device-node-selection-*
#[test]
fn devices_with_nodes_of_their_own() {
    let devices = json!([
        {"name": "a", "nodeName": "node-2"},
        {"name": "b", "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "region", "operator": "In", "values": ["region-1"]}]}]}},
        {"name": "c", "allNodes": true},
        {"name": "d", "nodeName": "node-1"},
    ]);
    let case = Case::new().slice(at(
        slice("s", "p", "driver-a", devices),
        json!({"perDeviceNodeSelection": true}),
    ));
    case.clone()
        .claim(json!([request("r", "class-a", 3)]))
        .gets(&[&["r driver-a/p/b", "r driver-a/p/c", "r driver-a/p/d"]]);
    case.clone()
        .claim(json!([request("r", "class-a", 4)]))
        .gets_nothing();
    case.features(|f| f.partitionable_devices = false)
        .claim(json!([request("r", "class-a", 1)]))
        .gets_nothing();
}

fn shareable(value: &str, policy: Value) -> Case {
    let mut capacity = json!({"value": value});
    if !policy.is_null() {
        capacity["requestPolicy"] = policy;
    }
    let devices =
        json!([{"name": "a", "allowMultipleAllocations": true, "capacity": {"memory": capacity}}]);
    Case::new().slice(slice("s", "p", "driver-a", devices))
}

fn amount(name: &str, amount: &str) -> Value {
    also(
        request(name, "class-a", 1),
        json!({"capacity": {"requests": {"memory": amount}}}),
    )
}

/// consumable-capacity-multi-allocatable-device-* (checklist 65, 66)
#[test]
fn capacity_is_given_away_in_parts() {
    let plain = || shareable("8Gi", Value::Null);
    plain()
        .claim(json!([amount("x", "4Gi"), amount("y", "4Gi")]))
        .gets(&[&["x driver-a/p/a memory=4Gi", "y driver-a/p/a memory=4Gi"]]);
    let found = plain()
        .claim(json!([amount("x", "4Gi"), amount("y", "4Gi")]))
        .run()
        .unwrap()
        .unwrap();
    let results = found.results[0].devices.clone().unwrap().results.unwrap();
    assert_ne!(results[0].share_id, results[1].share_id);
    plain()
        .claim(json!([amount("x", "4Gi"), amount("y", "5Gi")]))
        .gets_nothing();
    plain()
        .claim(json!([request("x", "class-a", 1)]))
        .gets(&[&["x driver-a/p/a memory=8Gi"]]);
    plain()
        .claim(json!([request("x", "class-a", 1), amount("y", "1")]))
        .gets_nothing();
    let held = json!({"driver": "driver-a", "pool": "p", "device": "a", "shareID": "s", "consumedCapacity": {"memory": "6Gi"}});
    plain()
        .allocated_as(held.clone())
        .claim(json!([amount("x", "2Gi")]))
        .gets(&[&["x driver-a/p/a memory=2Gi"]]);
    plain()
        .allocated_as(held)
        .claim(json!([amount("x", "3Gi")]))
        .gets_nothing();
    let missing = also(
        request("x", "class-a", 1),
        json!({"capacity": {"requests": {"other": "1"}}}),
    );
    plain().claim(json!([missing])).gets_nothing();
    plain()
        .features(|f| f.consumable_capacity = false)
        .claim(json!([amount("x", "1")]))
        .fails("has capacity requests, but the DRAConsumableCapacity feature is disabled");
    let range = || {
        shareable(
            "8",
            json!({"default": "2", "validRange": {"min": "2", "step": "2", "max": "4"}}),
        )
    };
    range()
        .claim(json!([request("x", "class-a", 1)]))
        .gets(&[&["x driver-a/p/a memory=2"]]);
    range()
        .claim(json!([amount("x", "3")]))
        .gets(&[&["x driver-a/p/a memory=4"]]);
    range().claim(json!([amount("x", "5")])).gets_nothing();
    let values = || shareable("8", json!({"default": "1", "validValues": ["1", "4"]}));
    values()
        .claim(json!([amount("x", "2")]))
        .gets(&[&["x driver-a/p/a memory=4"]]);
    values().claim(json!([amount("x", "5")])).gets_nothing();
}

/// consumable-capacity-dedicated-device-*, allow-multiple-allocations-not-allocate-*,
/// allow-multiple-allocations-exclude-multi-allocatable-device-by-class-selector
#[test]
fn devices_given_as_a_whole() {
    let dedicated = || {
        Case::new().slice(slice(
            "s",
            "p",
            "driver-a",
            json!([{"name": "a", "capacity": {"memory": {"value": "8Gi"}}}]),
        ))
    };
    dedicated()
        .claim(json!([amount("x", "4Gi")]))
        .gets(&[&["x driver-a/p/a"]]);
    dedicated()
        .claim(json!([amount("x", "9Gi")]))
        .gets_nothing();
    dedicated()
        .claim(json!([amount("x", "4Gi"), amount("y", "4Gi")]))
        .gets_nothing();
    let share = json!({"driver": "driver-a", "pool": "p", "device": "a", "shareID": "s", "consumedCapacity": {"memory": "1Gi"}});
    dedicated()
        .allocated_as(share)
        .claim(json!([amount("x", "4Gi")]))
        .gets_nothing();
    shareable("8Gi", Value::Null)
        .allocated("driver-a", "p", "a")
        .claim(json!([amount("x", "1Gi")]))
        .gets_nothing();
    let only = json!({"metadata": {"name": "only"}, "spec": {"selectors": cel(&["device.driver == \"driver-a\" && device.allowMultipleAllocations == false"])}});
    shareable("8Gi", Value::Null)
        .class(only)
        .claim(json!([request("x", "only", 1)]))
        .gets_nothing();
}

/// consumable-capacity-with-multi-allocatable-device-backtrack, -next-device,
/// allow-multiple-allocations-with-partitionable-device,
/// allow-multiple-allocations-with-shared-device-counter-cross-cycle
#[test]
fn shares_counters_and_other_devices() {
    let two = json!([
        {"name": "a", "allowMultipleAllocations": true, "capacity": {"memory": {"value": "4Gi"}}},
        {"name": "b", "allowMultipleAllocations": true, "capacity": {"memory": {"value": "8Gi"}}},
    ]);
    let case = Case::new().slice(slice("s", "p", "driver-a", two));
    case.clone()
        .claim(json!([amount("x", "3Gi"), amount("y", "3Gi")]))
        .gets(&[&["x driver-a/p/a memory=3Gi", "y driver-a/p/b memory=3Gi"]]);
    case.claim(json!([
        amount("x", "4Gi"),
        amount("y", "6Gi"),
        amount("z", "2Gi")
    ]))
    .gets(&[&[
        "x driver-a/p/a memory=4Gi",
        "y driver-a/p/b memory=6Gi",
        "z driver-a/p/b memory=2Gi",
    ]]);
    // A share of a device that is in use takes no counters again.
    let mut device = part("a", "4Gi");
    device["allowMultipleAllocations"] = json!(true);
    device["capacity"] = json!({"memory": {"value": "4Gi"}});
    let case = parts("4Gi", json!([device]));
    case.clone()
        .claim(json!([amount("x", "1Gi"), amount("y", "1Gi")]))
        .gets(&[&["x driver-a/p/a memory=1Gi", "y driver-a/p/a memory=1Gi"]]);
    let share = json!({"driver": "driver-a", "pool": "p", "device": "a", "shareID": "s", "consumedCapacity": {"memory": "1Gi"}});
    case.allocated_as(share)
        .claim(json!([amount("x", "1Gi")]))
        .gets(&[&["x driver-a/p/a memory=1Gi"]]);
}
