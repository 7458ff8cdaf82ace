//! The numbers are those of the DRA checklist.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{Strategy, strategy};

const G: &str = "resource.k8s.io";

fn rules(kind: &str) -> Arc<dyn Strategy> {
    strategy(G, "v1", kind)
}

fn claim(devices: Value) -> Value {
    json!({"metadata": {"name": "c", "namespace": "n"}, "spec": {"devices": devices}})
}

fn request(name: &str, members: Value) -> Value {
    let mut exactly = json!({"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1});
    for (key, value) in members.as_object().unwrap() {
        exactly[key] = value.clone();
    }
    json!({"name": name, "exactly": exactly})
}

/// All faults as texts.
fn faults(kind: &str, obj: &Value) -> Vec<String> {
    let errors = rules(kind).validate(obj);
    errors.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn refused(kind: &str, obj: &Value, text: &str) {
    let faults = faults(kind, obj);
    assert!(
        faults.iter().any(|f| f.contains(text)),
        "{text}: {faults:?}"
    );
}

#[track_caller]
fn accepted(kind: &str, obj: &Value) {
    assert_eq!(faults(kind, obj), Vec::<String>::new());
}

/// 11 to 18
#[test]
fn claims() {
    let one = |members: Value| claim(json!({"requests": [request("r", members)]}));
    let at = "spec.devices.requests[0]";
    accepted("ResourceClaim", &one(json!({})));
    accepted("ResourceClaim", &claim(json!({})));
    let mut defaulted =
        claim(json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}));
    rules("ResourceClaim").default(&mut defaulted);
    assert_eq!(
        defaulted["spec"]["devices"]["requests"][0]["exactly"],
        json!({"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1})
    );
    refused(
        "ResourceClaim",
        &one(json!({"allocationMode": "All"})),
        &format!(
            "{at}.exactly.count: Invalid value: 1: must not be specified when allocationMode is 'All'"
        ),
    );
    refused(
        "ResourceClaim",
        &one(json!({"count": -1})),
        "must be greater than zero",
    );
    refused(
        "ResourceClaim",
        &claim(json!({"requests": [{"name": "r"}]})),
        &format!("{at}: Required value: exactly one of `exactly` or `firstAvailable` is required"),
    );
    // Of a request that says two things nothing else is judged.
    let both = claim(json!({"requests": [
        {"name": "r", "exactly": {"deviceClassName": "c"}, "firstAvailable": [{"name": "A B"}]}]}));
    let faults = crate::testing::faults("resource.k8s.io", "v1", "ResourceClaim", &both);
    assert!(
        faults.contains("but multiple fields are set") && !faults.contains('\n'),
        "{faults}"
    );
    refused(
        "ResourceClaim",
        &claim(json!({"requests": [{"exactly": {"deviceClassName": "c"}}]})),
        &format!("{at}.name: Invalid value: \"\": a lowercase RFC 1123 label must consist"),
    );
    refused(
        "ResourceClaim",
        &one(json!({"deviceClassName": ""})),
        &format!("{at}.exactly.deviceClassName: Required value"),
    );
    let many = |n: usize| {
        claim(
            json!({"requests": (0..n).map(|i| request(&format!("r{i}"), json!({}))).collect::<Vec<_>>()}),
        )
    };
    accepted("ResourceClaim", &many(32));
    refused(
        "ResourceClaim",
        &many(33),
        "spec.devices.requests: Too many: 33: must have at most 32 items",
    );
    let subs = |n: usize| {
        claim(
            json!({"requests": [{"name": "r", "firstAvailable": (0..n).map(|i| json!({"name": format!("s{i}"), "deviceClassName": "c", "allocationMode": "ExactCount", "count": 1})).collect::<Vec<_>>()}]}),
        )
    };
    accepted("ResourceClaim", &subs(8));
    refused("ResourceClaim", &subs(9), "Too many: 9");
    refused(
        "ResourceClaim",
        &claim(json!({"requests": [request("r", json!({})), request("r", json!({}))]})),
        "spec.devices.requests[1]: Duplicate value: \"r\"",
    );
    let constrained = |c: Value| {
        let mut obj = subs(1);
        obj["spec"]["devices"]["constraints"] = json!([c]);
        obj
    };
    accepted(
        "ResourceClaim",
        &constrained(json!({"matchAttribute": "a.com/b", "requests": ["r/s0"]})),
    );
    refused(
        "ResourceClaim",
        &constrained(json!({"matchAttribute": "a.com/b", "requests": ["a/b/c"]})),
        "must be the name of a request in the claim",
    );
    refused(
        "ResourceClaim",
        &constrained(json!({})),
        "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required",
    );
    refused(
        "ResourceClaim",
        &constrained(json!({"matchAttribute": "b"})),
        "fully qualified",
    );
    let cel = |text: &str| one(json!({"selectors": [{"cel": {"expression": text}}]}));
    accepted("ResourceClaim", &cel("device.driver == 'x'"));
    refused(
        "ResourceClaim",
        &cel(&format!("'{}' == ''", "x".repeat(10_241))),
        "Too long: may not be more than 10240 bytes",
    );
    refused(
        "ResourceClaim",
        &cel("device.driver =="),
        &format!("{at}.exactly.selectors[0].cel.expression: Invalid value"),
    );
    refused("ResourceClaim", &cel("1 + 1"), "must evaluate to bool");
    refused("ResourceClaim", &cel(""), "expression: Required value");
    let opaque = |parameters: Value| {
        let mut obj = one(json!({}));
        obj["spec"]["devices"]["config"] =
            json!([{"opaque": {"driver": "d", "parameters": parameters}}]);
        obj
    };
    accepted("ResourceClaim", &opaque(json!({"a": 1})));
    refused(
        "ResourceClaim",
        &opaque(json!([1])),
        "must be a valid JSON object",
    );
    refused(
        "ResourceClaim",
        &opaque(json!({"a": "x".repeat(10_240)})),
        "Too long",
    );
}

fn slice(members: Value) -> Value {
    let mut spec = json!({"driver": "d.example.com", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}});
    for (key, value) in members.as_object().unwrap() {
        if value.is_null() {
            spec.as_object_mut().unwrap().remove(key);
        } else {
            spec[key] = value.clone();
        }
    }
    json!({"metadata": {"name": "s"}, "spec": spec})
}

/// 20 to 29
#[test]
fn slices() {
    let devices = |n: usize| {
        (0..n)
            .map(|i| json!({"name": format!("d{i}")}))
            .collect::<Vec<_>>()
    };
    let ok = |members: Value| accepted("ResourceSlice", &slice(members));
    let no = |members: Value, text: &str| refused("ResourceSlice", &slice(members), text);
    ok(json!({"devices": devices(128)}));
    no(
        json!({"devices": devices(129)}),
        "spec.devices: Too many: 129",
    );
    let mut tainted = devices(65);
    tainted[0]["taints"] = json!([{"key": "k", "effect": "None"}]);
    no(
        json!({"devices": tainted}),
        "spec.devices: Too many: 65: must have at most 64 items",
    );
    no(
        json!({"nodeName": null}),
        "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required",
    );
    no(json!({"allNodes": true}), "but multiple fields are set");
    no(
        json!({"nodeName": null, "allNodes": false}),
        "Required value: exactly one of",
    );
    no(
        json!({"allNodes": false}),
        "spec.allNodes: Invalid value: false: must be either unset or set to true",
    );
    no(
        json!({"nodeName": ""}),
        "spec.nodeName: Invalid value: \"\": must be either unset or set to a non-empty string",
    );
    no(
        json!({"devices": [{"name": "d", "allNodes": false}]}),
        "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true",
    );
    let term = json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]});
    no(
        json!({"nodeName": null, "nodeSelector": {"nodeSelectorTerms": [term, term]}}),
        "must have exactly one node selector term",
    );
    no(
        json!({"devices": devices(1), "sharedCounters": [{"name": "s", "counters": {"c": {"value": "1"}}}]}),
        "only one of `sharedCounters` or `devices` is allowed",
    );
    let device = |members: Value| {
        let mut d = members;
        d["name"] = json!("d");
        json!({"devices": [d]})
    };
    let attributes = |n: usize| {
        (0..n)
            .map(|i| (format!("a{i}"), json!({"int": i})))
            .collect::<serde_json::Map<_, _>>()
    };
    ok(device(json!({"attributes": attributes(32)})));
    no(
        device(json!({"attributes": attributes(33)})),
        "must not exceed 32",
    );
    no(
        device(json!({"attributes": {"a": {"string": "x".repeat(65)}}})),
        "Too long",
    );
    no(
        device(json!({"attributes": {"a": {"version": "v1.0.0"}}})),
        "semver.org",
    );
    no(
        device(json!({"attributes": {"a": {}}})),
        "exactly one value must be specified",
    );
    for name in [
        "a".repeat(33),
        "1a".to_owned(),
        format!("{}/a", "x".repeat(64)),
    ] {
        let mut map = serde_json::Map::new();
        map.insert(name, json!({"int": 1}));
        assert!(!faults("ResourceSlice", &slice(device(json!({"attributes": map})))).is_empty());
    }
    no(
        device(json!({"taints": [{"key": "k"}]})),
        "effect: Required value",
    );
    ok(device(json!({"taints": [{"key": "k", "effect": "None"}]})));
    let taints: Vec<Value> = (0..17)
        .map(|i| json!({"key": format!("k{i}"), "effect": "None"}))
        .collect();
    no(device(json!({"taints": taints})), "Too many: 17");
    no(
        device(json!({"bindingConditions": ["a"]})),
        "bindingFailureConditions: Invalid value: null",
    );
    no(
        device(json!({"bindingConditions": ["a"], "bindingFailureConditions": ["a"]})),
        "must not overlap",
    );
    let policy = |share: bool, policy: Value| {
        device(
            json!({"allowMultipleAllocations": share, "capacity": {"m": {"value": "8", "requestPolicy": policy}}}),
        )
    };
    let range = json!({"default": "2", "validRange": {"min": "2", "max": "6", "step": "2"}});
    ok(policy(true, range.clone()));
    no(
        policy(false, range),
        "allowMultipleAllocations must be true",
    );
    no(
        policy(
            true,
            json!({"default": "3", "validRange": {"min": "2", "step": "2"}}),
        ),
        "not a multiple",
    );
    no(
        policy(true, json!({"default": "1", "validRange": {"min": "2"}})),
        "default is less than min",
    );
    no(
        policy(true, json!({"validValues": ["1"]})),
        "required when validRange or validValues are defined",
    );
    no(
        json!({"nodeName": null, "perDeviceNodeSelection": true, "devices": [{"name": "d"}]}),
        "spec.devices[0]: Required value: exactly one of",
    );
    // 22
    let old = slice(json!({}));
    for change in [json!({"driver": "e"}), json!({"nodeName": "m"})] {
        assert!(
            !rules("ResourceSlice")
                .validate_update(&slice(change), &old)
                .is_empty()
        );
    }
}

/// 30 to 32
#[test]
fn devices_that_take_of_their_nodes_resources() {
    let device = |mappings: Value| {
        json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "nodeName": "n",
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "a", "capacity": {"cores": {"value": "8"}},
                "nodeAllocatableResourceMappings": mappings}]}})
    };
    let no = |mappings: Value, text: &str| refused("ResourceSlice", &device(mappings), text);
    let mut slice =
        device(json!({"cpu": {"capacityKey": "cores"}, "memory": {"allocationMultiplier": "2Gi"}}));
    rules("ResourceSlice").default(&mut slice);
    let mappings = &slice["spec"]["devices"][0]["nodeAllocatableResourceMappings"];
    assert_eq!(
        mappings["cpu"],
        json!({"capacityKey": "cores", "allocationMultiplier": "1"})
    );
    assert_eq!(mappings["memory"], json!({"allocationMultiplier": "2Gi"}));
    accepted("ResourceSlice", &slice);
    let at = "spec.devices[0].nodeAllocatableResourceMappings";
    no(
        json!({"example.com/gpu": {"allocationMultiplier": "1"}}),
        &format!(
            "{at}[example.com/gpu]: Invalid value: \"example.com/gpu\": must be a node allocatable resource name"
        ),
    );
    no(
        json!({"cpu": {"allocationMultiplier": "0"}}),
        "allocationMultiplier: Invalid value: \"0\": must be positive",
    );
    no(
        json!({"cpu": {"allocationMultiplier": "1", "capacityKey": "other"}}),
        "capacityKey: Not found: \"other\"",
    );
    no(
        json!({"cpu": {"allocationMultiplier": "1", "capacityKey": ""}}),
        "capacityKey must not be an empty string",
    );
}

#[test]
fn claim_status() {
    let rules = rules("ResourceClaim");
    let with = |status: Value| {
        let mut c = claim(json!({"requests": [request("r", json!({}))]}));
        c["status"] = status;
        c["metadata"]["resourceVersion"] = json!("1");
        c["metadata"]["uid"] = json!("u");
        c
    };
    let allocation = |device: &str| json!({"devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": device}]}});
    let user = |uid: &str| json!({"resource": "pods", "name": "p", "uid": uid});
    let check = |new: &Value, old: &Value| {
        rules
            .validate_status_update(new, old)
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let empty = with(json!({}));
    assert!(
        check(&with(json!({"allocation": {}})), &empty).is_empty(),
        "3: an empty allocation"
    );
    assert!(
        check(
            &with(json!({"allocation": allocation("a"), "reservedFor": [user("1")]})),
            &empty
        )
        .is_empty()
    );
    assert!(
        check(&with(json!({"reservedFor": [user("1")]})), &empty)[0]
            .contains("may not be specified when `allocated` is not set")
    );
    let users: Vec<Value> = (0..257).map(|i| user(&i.to_string())).collect();
    let crowded = check(
        &with(json!({"allocation": allocation("a"), "reservedFor": users})),
        &empty,
    );
    assert!(crowded[0].contains("Too many: 257"), "{crowded:?}");
    let a = with(json!({"allocation": allocation("a")}));
    assert!(
        check(&with(json!({"allocation": allocation("b")})), &a)[0].contains("field is immutable")
    );
    assert!(check(&empty, &a).is_empty(), "31: clearing");
    let device = |name: &str| json!([{"driver": "d", "pool": "p", "device": name}]);
    assert!(
        check(
            &with(json!({"allocation": allocation("a"), "devices": device("b")})),
            &a
        )[0]
        .contains("must be an allocated device in the claim")
    );
    let old = with(json!({"allocation": allocation("a"), "devices": device("a")}));
    let mut freed = with(json!({"devices": device("a")}));
    rules.prepare_status_update(&mut freed, &old);
    assert!(freed["status"].get("devices").is_none());
    let mut leaving = with(json!({"allocation": allocation("a"), "reservedFor": [user("1")]}));
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut before = a.clone();
    before["metadata"]["deletionTimestamp"] = leaving["metadata"]["deletionTimestamp"].clone();
    assert!(check(&leaving, &before)[0].contains("new entries may not be added"));
}

/// 39, 40
#[test]
fn rules_and_requests() {
    let taints = strategy(G, "v1beta2", "DeviceTaintRule");
    let mut rule =
        json!({"metadata": {"name": "r"}, "spec": {"taint": {"key": "k", "effect": "None"}}});
    taints.default(&mut rule);
    taints.prepare_for_create(&mut rule);
    assert!(rule["spec"]["taint"]["timeAdded"].is_string());
    let mut old = rule.clone();
    old["spec"]["taint"]["timeAdded"] = json!("2020-01-01T00:00:00Z");
    let mut new = old.clone();
    new["spec"]["taint"]["effect"] = json!("NoExecute");
    taints.prepare_for_update(&mut new, &old);
    assert_ne!(
        new["spec"]["taint"]["timeAdded"],
        old["spec"]["taint"]["timeAdded"]
    );
    let asked = |driver: String| {
        let object = json!({"metadata": {"name": "r"}, "spec": {"driver": driver, "limit": 1}});
        let errors = strategy(G, "v1alpha3", "ResourcePoolStatusRequest").validate(&object);
        errors.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    // Drivers of slices have shorter names; a request asks whatever it likes.
    assert!(asked("d".repeat(64)).is_empty());
    assert_eq!(asked(String::new()), ["spec.driver: Required value"]);
}

#[test]
fn what_a_class_is_named_after_is_not_looked_at() {
    let named = |key: &str, name: &str| {
        let mut object = json!({"metadata": {"name": "c"}});
        object["metadata"][key] = json!(name);
        let errors = strategy(G, "v1", "DeviceClass").validate(&object);
        errors.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let long = "a".repeat(254);
    assert!(named("generateName", &long).is_empty());
    assert!(named("generateName", "A_").is_empty());
    let fault = "metadata.generateName: Invalid value: \"a/b\": may not contain '/'";
    assert_eq!(named("generateName", "a/b"), [fault]);
    let fault = format!("metadata.name: Invalid value: \"{long}\": must be no more than 253 bytes");
    assert_eq!(named("name", &long), [fault]);
}

fn classic_faults(kind: &str, obj: &Value) -> Vec<String> {
    let errors = strategy(G, "v1alpha1", kind).validate(obj);
    errors.iter().map(ToString::to_string).collect()
}

/// 127: what the classic kinds accept.
#[test]
fn classic_kinds() {
    let meta = json!({"name": "c", "namespace": "n"});
    let class = json!({"metadata": {"name": "c"}, "driverName": "d.example.com",
        "parametersRef": {"kind": "ConfigMap", "name": "x", "namespace": "n"}});
    assert_eq!(
        classic_faults("ResourceClass", &class),
        Vec::<String>::new()
    );
    let bad = json!({"metadata": {"name": "c"}, "driverName": "", "parametersRef": {"namespace": "A"},
        "suitableNodes": {"nodeSelectorTerms": []}});
    let faults = classic_faults("ResourceClass", &bad);
    for text in [
        "driverName: Required value",
        "parametersRef.kind: Required value",
        "parametersRef.name: Required value",
        "parametersRef.namespace: Invalid value",
        "suitableNodes.nodeSelectorTerms: Required value",
    ] {
        assert!(
            faults.iter().any(|f| f.contains(text)),
            "{text}: {faults:?}"
        );
    }
    let claim = json!({"metadata": meta, "spec": {"resourceClassName": "c", "allocationMode": "Immediate"}});
    assert_eq!(
        classic_faults("ResourceClaim", &claim),
        Vec::<String>::new()
    );
    let bad = json!({"metadata": meta, "spec": {"allocationMode": "Never"}});
    let faults = classic_faults("ResourceClaim", &bad);
    assert_eq!(
        faults,
        [
            "spec.resourceClassName: Required value",
            "spec.allocationMode: Unsupported value: \"Never\": supported values: \"WaitForFirstConsumer\", \"Immediate\"",
        ]
    );
    let template = json!({"metadata": meta, "spec": {"spec": bad["spec"]}});
    let faults = classic_faults("ResourceClaimTemplate", &template);
    assert_eq!(faults.len(), 2, "{faults:?}");
    let nodes = |n: usize| -> Vec<String> { (0..n).map(|i| format!("n{i}")).collect() };
    let scheduling =
        |n| json!({"metadata": meta, "spec": {"selectedNode": "n0", "potentialNodes": nodes(n)}});
    assert_eq!(
        classic_faults("PodScheduling", &scheduling(128)),
        Vec::<String>::new()
    );
    let faults = classic_faults("PodScheduling", &scheduling(129));
    assert_eq!(
        faults,
        ["spec.potentialNodes: Too many: 129: must have at most 128 items"]
    );
    let rules = strategy(G, "v1alpha1", "PodScheduling");
    let mut old = scheduling(1);
    old["metadata"]["resourceVersion"] = json!("1");
    let mut new = old.clone();
    new["status"] = json!({"resourceClaims": [{"name": "a", "unsuitableNodes": nodes(128)}]});
    assert!(rules.validate_status_update(&new, &old).is_empty());
    new["status"] =
        json!({"resourceClaims": [{"name": "a", "unsuitableNodes": nodes(129)}, {"name": "a"}]});
    assert_eq!(rules.validate_status_update(&new, &old).len(), 2);
}

/// 127: the status of a classic claim.
#[test]
fn classic_status() {
    let user =
        |i: usize| json!({"resource": "pods", "name": format!("p{i}"), "uid": format!("u{i}")});
    let users = |n: usize| (0..n).map(user).collect::<Vec<_>>();
    let object = |status: Value| {
        json!({"metadata": {"name": "c", "namespace": "n", "resourceVersion": "1"},
        "spec": {"resourceClassName": "c", "allocationMode": "Immediate"}, "status": status})
    };
    let faults = |new: Value, old: Value| -> Vec<String> {
        let rules = strategy(G, "v1alpha1", "ResourceClaim");
        let errors = rules.validate_status_update(&object(new), &object(old));
        errors.iter().map(ToString::to_string).collect()
    };
    let held = |n: usize, shareable: bool| json!({"driverName": "d", "allocation": {"resourceHandle": "h", "shareable": shareable}, "reservedFor": users(n)});
    let none = Vec::<String>::new();
    assert_eq!(faults(held(1, false), json!({})), none);
    assert_eq!(faults(held(32, true), json!({})), none);
    for (new, old, text) in [
        (
            held(33, true),
            json!({}),
            "status.reservedFor: Too many: 33: must have at most 32 items",
        ),
        (
            held(2, false),
            json!({}),
            "status.reservedFor: Forbidden: may not be reserved more than once",
        ),
        (
            json!({"reservedFor": users(1)}),
            json!({}),
            "may not be specified when `allocated` is not set",
        ),
        (
            json!({"allocation": {}}),
            json!({}),
            "status.driverName: Required value",
        ),
        (
            json!({"driverName": "d", "allocation": {"resourceHandle": "x".repeat(16 * 1024 + 1)}}),
            json!({}),
            "status.allocation.resourceHandle: Too long",
        ),
        (
            json!({"driverName": "d", "allocation": {"resourceHandle": "other"}}),
            held(0, false),
            "status.allocation: Invalid value",
        ),
        (
            json!({"driverName": "d", "allocation": {"resourceHandle": "h"}, "reservedFor": users(1), "deallocationRequested": true}),
            held(1, false),
            "deallocation cannot be requested while `reservedFor` is set",
        ),
        (
            json!({"deallocationRequested": true}),
            json!({}),
            "not allowed when `allocation` is not set",
        ),
        (
            json!({"driverName": "d", "allocation": {"resourceHandle": "h"}, "reservedFor": users(1), "deallocationRequested": true}),
            json!({"driverName": "d", "allocation": {"resourceHandle": "h"}, "deallocationRequested": true}),
            "new users may not be added",
        ),
    ] {
        let faults = faults(new, old);
        assert!(
            faults.iter().any(|f| f.contains(text)),
            "{text}: {faults:?}"
        );
    }
    // What is asked of the driver, and what it then does.
    let asked = json!({"driverName": "d", "allocation": {"resourceHandle": "h"}, "deallocationRequested": true});
    assert_eq!(faults(asked.clone(), held(1, false)), none);
    assert_eq!(faults(json!({}), asked), none);
}

/// 9: the spec of a classic claim never changes, a class may.
#[test]
fn classic_immutability() {
    let rules = strategy(G, "v1alpha1", "ResourceClaim");
    let old = json!({"metadata": {"name": "c", "namespace": "n", "resourceVersion": "1"},
        "spec": {"resourceClassName": "c", "allocationMode": "Immediate"}});
    let mut new = old.clone();
    new["metadata"]["labels"] = json!({"a": "b"});
    assert!(rules.validate_update(&new, &old).is_empty());
    new["spec"]["resourceClassName"] = json!("d");
    assert_eq!(rules.validate_update(&new, &old).len(), 1);
    let rules = strategy(G, "v1alpha1", "ResourceClass");
    let old = json!({"metadata": {"name": "c", "resourceVersion": "1"}, "driverName": "a"});
    let mut new = old.clone();
    new["driverName"] = json!("b");
    assert!(rules.validate_update(&new, &old).is_empty());
}

/// A body has room for fifty thousand of them, and compiling one takes a moment.
#[test]
fn selectors_beyond_the_limit_are_not_compiled() {
    let selector = |text: &str| json!({"cel": {"expression": text}});
    let mut selectors = vec![selector("true"); 32];
    selectors.push(selector("no expression"));
    let claim = json!({"metadata": {"name": "c", "namespace": "n"}, "spec": {"devices": {"requests": [
        {"name": "r", "exactly": {"deviceClassName": "d", "selectors": selectors}}]}}});
    assert_eq!(
        crate::testing::faults("resource.k8s.io", "v1", "ResourceClaim", &claim),
        "spec.devices.requests[0].exactly.selectors: Too many: 33: must have at most 32 items"
    );
}

/// A few letters make a pattern that takes half a megabyte and some milliseconds, and a body has room for thousands of them.
#[test]
fn patterns_of_all_selectors_have_room_together() {
    let selector = |n: usize| {
        let one = |k: usize| format!("device.driver.matches('.{{{}}}{n}')", 900 + k);
        let all: Vec<String> = (0..3).map(one).collect();
        json!({"cel": {"expression": all.join(" || ")}})
    };
    let request = |n: usize| {
        json!({"name": format!("r{n}"), "exactly": {"deviceClassName": "d", "count": 1, "allocationMode": "ExactCount",
            "selectors": (0..32).map(|k| selector(32 * n + k)).collect::<Vec<_>>()}})
    };
    let claim = json!({"metadata": {"name": "c", "namespace": "n"}, "spec": {"devices": {
        "requests": (0..4).map(request).collect::<Vec<_>>()}}});
    let faults = crate::testing::faults("resource.k8s.io", "v1", "ResourceClaim", &claim);
    let refused = faults.matches("too large together").count();
    assert!((30..128).contains(&refused), "{refused} {faults}");
    let few = json!({"metadata": {"name": "c", "namespace": "n"}, "spec": {"devices": {"requests": [
        {"name": "r", "exactly": {"deviceClassName": "d", "count": 1, "allocationMode": "ExactCount", "selectors":
            (0..32).map(|n| json!({"cel": {"expression": format!("device.driver.matches('^[a-z]([-a-z0-9]*[a-z0-9])?{n}$')")}}))
                .collect::<Vec<_>>()}}]}}});
    let faults = crate::testing::faults("resource.k8s.io", "v1", "ResourceClaim", &few);
    assert_eq!(faults, "");
}
