//! Slices that no driver should publish and selectors that nobody should write, at random: the allocator answers in
//! bounded time, and what it gives away is there, current, and given once.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use davit_allocator::{
    AllocateError, Allocation, Allocator, Call, Classes, Features, Inventory, NodeView, Plan,
    Question, Selectors, Slice, Usage, check_selector,
};
use davit_cel::PatternRoom;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use proptest::prelude::*;
use serde_json::{Value, json};

/// After so many looks at the clock an attempt is given up, as the scheduler does by time.
const LOOKS: u64 = 20_000;

fn atom() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "device.driver == \"d\"",
        "device.attributes[\"d\"].n == 1",
        "device.attributes[\"d\"].n > 0",
        "device.attributes[\"d\"].?n.orValue(7) == 7",
        "device.attributes[\"none\"].n == 1",
        "device.attributes[\"d\"].model.startsWith(\"a\")",
        "device.attributes[\"d\"].model == 1",
        "\"d\" in device.attributes",
        "device.capacity[\"d\"].memory.compareTo(quantity(\"1Gi\")) >= 0",
        "device.capacity[\"d\"].memory.isGreaterThan(quantity(\"-1\"))",
        "device.allowMultipleAllocations",
        "device.attributes[\"d\"].v.isGreaterThan(semver(\"1.0.0\"))",
        "cel.bind(x, device.attributes[\"d\"], x.n == x.n)",
        "[1, 2, 3].all(i, [1, 2, 3].exists(j, i == j))",
        "device.attributes[\"d\"].n / 0 == 1",
        "device",
        "1 + \"a\" == 2",
        "true",
        "",
        "\u{0}",
        "((((",
        "device.attributes[device.driver][device.driver]",
    ])
    .prop_map(str::to_owned)
}

/// Expressions that mostly parse, and some that do not.
fn expression() -> impl Strategy<Value = String> {
    let whole = atom().prop_recursive(4, 24, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) && ({b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) || ({b})")),
            inner.clone().prop_map(|a| format!("!({a})")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("({a}) ? ({b}) : false")),
        ]
    });
    (
        whole,
        proptest::option::weighted(0.2, any::<prop::sample::Index>()),
    )
        .prop_map(|(mut text, cut)| {
            if let Some(cut) = cut
                && !text.is_empty()
            {
                let at = cut.index(text.len());
                if text.is_char_boundary(at) {
                    text.truncate(at);
                }
            }
            text
        })
}

fn amount() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "0",
        "1",
        "-1",
        "1Gi",
        "2Gi",
        "999999999999Ei",
        "1e18",
        "0.5",
        "3n",
    ])
    .prop_map(str::to_owned)
}

fn device() -> impl Strategy<Value = Value> {
    let attributes = (
        proptest::option::of(-1..3i64),
        proptest::option::of("[ab]{0,2}"),
    );
    let consumes = prop::collection::vec((0..3u8, amount()), 0..3);
    let taint = proptest::option::weighted(
        0.2,
        prop::sample::select(vec!["NoSchedule", "NoExecute", "None", "Odd"]),
    );
    (0..6u8, attributes, amount(), consumes, taint, any::<bool>()).prop_map(
        |(name, (n, model), memory, consumes, taint, shareable)| {
            let mut device = json!({"name": format!("dev-{name}"), "capacity": {"memory": {"value": memory}}});
            if let Some(n) = n {
                device["attributes"]["n"] = json!({"int": n});
            }
            if let Some(model) = model {
                device["attributes"]["d/model"] = json!({"string": model});
            }
            if let Some(effect) = taint {
                device["taints"] = json!([{"key": "t", "effect": effect}]);
            }
            if shareable {
                device["allowMultipleAllocations"] = json!(true);
            }
            let consumes: Vec<Value> = consumes
                .into_iter()
                .map(|(set, amount)| json!({"counterSet": format!("set-{set}"), "counters": {"c": {"value": amount}}}))
                .collect();
            device["consumesCounters"] = json!(consumes);
            device
        },
    )
}

fn slice() -> impl Strategy<Value = Value> {
    let place = (0..3u8, 0..4i64, -1..4i64);
    let sets = prop::collection::vec((0..3u8, amount()), 0..3);
    (place, prop::collection::vec(device(), 0..6),
        sets,
    ).prop_map(
        |((pool, generation, count), devices, sets)| {
            let node = if pool == 2 { "node-2" } else { "node-1" };
            let sets: Vec<Value> = sets
                .into_iter()
                .map(|(set, amount)| json!({"name": format!("set-{set}"), "counters": {"c": {"value": amount}}}))
                .collect();
            json!({"spec": {
                "driver": "d", "nodeName": node, "devices": devices, "sharedCounters": sets,
                "pool": {"name": format!("pool-{pool}"), "generation": generation, "resourceSliceCount": count}}})
        },
    )
}

fn request() -> impl Strategy<Value = Value> {
    let mode = prop_oneof![
        Just(json!({"allocationMode": "All"})),
        (-1..40i64).prop_map(|n| json!({"allocationMode": "ExactCount", "count": n})),
        Just(json!({"allocationMode": "Odd"})),
    ];
    let selectors = prop::collection::vec(expression(), 0..3);
    (
        mode,
        selectors,
        any::<bool>(),
        proptest::option::weighted(0.2, amount()),
    )
        .prop_map(|(mut request, selectors, tolerant, memory)| {
            request["deviceClassName"] = json!("class");
            let selectors: Vec<Value> = selectors
                .into_iter()
                .map(|e| json!({"cel": {"expression": e}}))
                .collect();
            request["selectors"] = json!(selectors);
            if tolerant {
                request["tolerations"] = json!([{"operator": "Exists"}]);
            }
            if let Some(memory) = memory {
                request["capacity"] = json!({"requests": {"memory": memory}});
            }
            request
        })
}

fn claim() -> impl Strategy<Value = Value> {
    let constraint = proptest::option::of(prop::sample::select(vec![
        json!({"matchAttribute": "d/n"}),
        json!({"distinctAttribute": "d/n"}),
        json!({"matchAttribute": "d/model", "requests": ["r0", "nobody"]}),
    ]));
    (
        prop::collection::vec((request(), any::<bool>()), 1..4),
        constraint,
    )
        .prop_map(|(requests, constraint)| {
            let requests: Vec<Value> = requests
                .into_iter()
                .enumerate()
                .map(|(n, (request, alternative))| {
                    let name = format!("r{n}");
                    if alternative {
                        let mut request = request;
                        request["name"] = json!("first");
                        json!({"name": name, "firstAvailable": [request]})
                    } else {
                        json!({"name": name, "exactly": request})
                    }
                })
                .collect();
            let mut claim =
                json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}});
            if let Some(constraint) = constraint {
                claim["spec"]["devices"]["constraints"] = json!([constraint]);
            }
            claim
        })
}

type Outcome = Result<Option<Allocation>, AllocateError>;

fn run(slices: &[ResourceSlice], claims: &[Arc<ResourceClaim>]) -> Outcome {
    let mut inventory = Inventory::default();
    for slice in slices {
        if let Ok(slice) = Slice::new(slice, &[]) {
            inventory.set(Arc::new(slice));
        }
    }
    let class = json!({"metadata": {"name": "class"}, "spec": {}});
    let classes = Classes::new([Arc::new(serde_json::from_value(class).unwrap())]);
    let selectors = Arc::new(Selectors::kubernetes());
    let features = Features::default();
    let plan = Plan::new(claims, features, &classes, &selectors)?;
    let allocator = Allocator::new(features, Arc::new(inventory), Usage::default(), selectors);
    let looks = Cell::new(0);
    let ids = Cell::new(0);
    let call = Call {
        node: NodeView {
            name: "node-1",
            labels: &BTreeMap::new(),
        },
        released: None,
        stop: &|| {
            looks.set(looks.get() + 1);
            looks.get() > LOOKS
        },
        share_id: &|| {
            ids.set(ids.get() + 1);
            format!("share-{}", ids.get())
        },
    };
    allocator.allocate(&plan, call)
}

/// The devices of this node in the newest generation of each pool, and whether they may be shared.
fn current(slices: &[ResourceSlice]) -> BTreeMap<(String, String), bool> {
    let mut newest: BTreeMap<&str, i64> = BTreeMap::new();
    for slice in slices {
        let pool = &slice.spec.pool;
        let highest = newest.entry(&pool.name).or_insert(pool.generation);
        *highest = pool.generation.max(*highest);
    }
    let of_newest = slices.iter().filter(|s| {
        s.spec.pool.generation == newest[s.spec.pool.name.as_str()]
            && s.spec.node_name.as_deref() == Some("node-1")
    });
    let devices = of_newest.flat_map(|s| {
        let devices = s.spec.devices.iter().flatten();
        devices.map(|d| {
            let key = (s.spec.pool.name.clone(), d.name.clone());
            (key, d.allow_multiple_allocations == Some(true))
        })
    });
    devices.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn hostile_slices_and_selectors_harm_nobody(
        slices in prop::collection::vec(slice(), 0..6),
        claims in prop::collection::vec(claim(), 1..3),
    ) {
        let slices: Vec<ResourceSlice> = slices
            .into_iter()
            .enumerate()
            .map(|(n, mut slice)| {
                slice["metadata"] = json!({"name": format!("slice-{n}")});
                serde_json::from_value(slice).unwrap()
            })
            .collect();
        let claims: Vec<Arc<ResourceClaim>> = claims
            .into_iter()
            .map(|claim| Arc::new(serde_json::from_value(claim).unwrap()))
            .collect();
        let outcome = run(&slices, &claims);
        prop_assert_eq!(&outcome, &run(&slices, &claims), "the same question, another answer");
        let Ok(Some(allocation)) = outcome else {
            return Ok(());
        };
        prop_assert_eq!(allocation.results.len(), claims.len());
        let current = current(&slices);
        let mut taken = BTreeSet::new();
        for result in &allocation.results {
            let results = result.devices.iter().flat_map(|d| d.results.iter().flatten());
            let results: Vec<_> = results.collect();
            prop_assert!(results.len() <= 32);
            for device in results {
                let key = (device.pool.clone(), device.device.clone());
                let shareable = current.get(&key);
                prop_assert!(shareable.is_some(), "{key:?} is not there any more, or elsewhere");
                prop_assert_eq!(device.share_id.is_some(), *shareable.unwrap());
                prop_assert!(*shareable.unwrap() || taken.insert(key), "given twice");
            }
        }
    }

    #[test]
    fn any_text_is_a_selector_or_an_error(text in "\\PC{0,80}", near in expression()) {
        for expression in [text, near] {
            if let Err(why) = check_selector(&expression, true, &PatternRoom::default()) {
                prop_assert!(!why.is_empty());
            }
        }
    }
}

/// An expression may take as long as its costs let it, and is asked about each device: no claim has more of the scheduler's
/// time than it is given, which would be taken from all pods.
#[test]
fn selectors_are_not_evaluated_after_the_time_is_up() {
    let devices: Vec<Value> = (0..100)
        .map(|n| json!({"name": format!("d{n}"), "attributes": {"n": {"int": n}}}))
        .collect();
    let slice: ResourceSlice = serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {
        "driver": "d", "nodeName": "node", "devices": devices,
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}}))
    .unwrap();
    let expression = "device.attributes['d'].n < 0";
    let claim_with = |expression: &str| -> ResourceClaim {
        let selectors = json!([{"cel": {"expression": expression}}]);
        let exactly = json!({"deviceClassName": "class", "selectors": selectors});
        serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {"devices": {
            "requests": [{"name": "r", "exactly": exactly}]}}}))
        .unwrap()
    };
    let claim = claim_with(expression);
    let class = serde_json::from_value(json!({"metadata": {"name": "class"}, "spec": {}}));
    let classes = Classes::new([Arc::new(class.unwrap())]);
    let mut inventory = Inventory::default();
    inventory.set(Arc::new(Slice::new(&slice, &[]).unwrap()));
    let selectors = Arc::new(Selectors::kubernetes());
    let features = Features::default();
    let plan = Plan::new(&[Arc::new(claim)], features, &classes, &selectors).unwrap();
    let usage = Usage::default();
    let allocator = Allocator::new(features, Arc::new(inventory), usage, selectors.clone());
    let asked = Cell::new(0);
    let labels = BTreeMap::new();
    let call = Call {
        node: NodeView {
            name: "node",
            labels: &labels,
        },
        released: None,
        stop: &|| {
            asked.set(asked.get() + 1);
            asked.get() > 3
        },
        share_id: &String::new,
    };
    assert_eq!(
        allocator.allocate(&plan, call),
        Err(AllocateError::Interrupted)
    );
    assert_eq!(selectors.evaluations(), 3);
    let why = allocator.explain(&plan, call);
    assert!(why.summary().contains("took longer"), "{why:?}");
    assert!(why.requests[0].devices.is_empty(), "{why:?}");
    assert_eq!(selectors.evaluations(), 3);
    // What is said of a device is short, however long the expression is.
    let claim = claim_with(&format!("{expression}{}", " && true".repeat(1000)));
    let plan = Plan::new(&[Arc::new(claim)], features, &classes, &selectors).unwrap();
    let patient = Call {
        stop: &|| false,
        ..call
    };
    let why = allocator.explain(&plan, patient);
    assert_eq!(why.requests[0].devices.len(), 100);
    assert!(format!("{why:?}").len() < 100 << 10);
}

/// A pod may have 32 claims, each as long as an object may be.
#[test]
fn selectors_of_many_claims_are_not_made_ready() {
    let expression = format!("device.driver == 'd' || '{}' == ''", "x".repeat(10_000));
    let list: Vec<Value> = (0..32)
        .map(|_| json!({"cel": {"expression": expression}}))
        .collect();
    let claim: ResourceClaim =
        serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {"devices": {
        "requests": [{"name": "r", "exactly": {"deviceClassName": "class", "selectors": list}}]}}}))
        .unwrap();
    let claim = Arc::new(claim);
    let class = serde_json::from_value(json!({"metadata": {"name": "class"}, "spec": {}}));
    let classes = Classes::new([Arc::new(class.unwrap())]);
    let selectors = Selectors::kubernetes();
    let features = Features::default();
    let plan = |count| Plan::new(&vec![claim.clone(); count], features, &classes, &selectors);
    assert!(plan(6).is_ok());
    let refused = plan(7).unwrap_err().to_string();
    assert!(refused.contains("longer than 2 MiB"), "{refused}");
    // Nor is what is asked remembered.
    assert!(Question::new(std::slice::from_ref(&claim), features).is_none());
}
