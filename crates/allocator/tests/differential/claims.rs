//! Claims of random shapes in random inventories: the same devices, or the same refusal.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use davit_allocator::{
    Allocator, Call, Classes, Features, Inventory, NodeView, Plan, Selectors, Slice, Usage,
};
use serde_json::{Map, Value, json};

use crate::oracle::ask;
use crate::seeded::{Seeded, range};

const DRIVERS: [&str; 2] = ["a.example.com", "b.example.com"];

/// What the cluster looks like: slices, classes, what is held, one node.
struct World<'a> {
    random: &'a mut Seeded,
    slices: Vec<Value>,
    /// Driver, pool, device, whether several may share it.
    devices: Vec<(String, String, String, bool)>,
}

impl World<'_> {
    fn fill(&mut self) {
        for pool in 0..1 + self.random.below(4) {
            let driver = self.random.pick(&DRIVERS);
            let name = format!("pool-{pool}");
            let slices = 1 + self.random.below(2);
            let counters = self.random.percent(25);
            let mut place = self.place();
            // now and then a pool that is not whole yet; one of another node would keep only the
            // original from giving all devices here
            let partial = place["nodeName"] == "node" && self.random.percent(5);
            let claimed = slices + usize::from(partial);
            for slice in 0..slices {
                if !partial && self.random.percent(10) {
                    place = self.place();
                }
                let devices: Vec<Value> = (0..self.random.below(7))
                    .map(|n| self.device(driver, &name, &format!("dev-{slice}-{n}"), counters))
                    .collect();
                let mut spec = json!({
                    "driver": driver,
                    "pool": {"name": name, "generation": 1, "resourceSliceCount": claimed + usize::from(counters)},
                    "devices": devices,
                });
                merge(&mut spec, &place);
                self.slices.push(
                    json!({"metadata": {"name": format!("slice-{pool}-{slice}")}, "spec": spec}),
                );
            }
            if counters {
                let mut spec = json!({
                    "driver": driver,
                    "pool": {"name": name, "generation": 1, "resourceSliceCount": claimed + 1},
                    "sharedCounters": [{"name": "set", "counters": {
                        "memory": {"value": format!("{}Gi", 1 + self.random.below(8))},
                        "engines": {"value": format!("{}", 1 + self.random.below(4))},
                    }}],
                });
                merge(&mut spec, &place);
                self.slices.push(
                    json!({"metadata": {"name": format!("slice-{pool}-counters")}, "spec": spec}),
                );
            }
        }
    }

    fn place(&mut self) -> Value {
        match self.random.below(10) {
            0 => json!({"nodeName": "other"}),
            1 => json!({"allNodes": true}),
            2 => json!({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "zone", "operator": "In", "values": [self.random.pick(&["here", "there"])]}
            ]}]}}),
            _ => json!({"nodeName": "node"}),
        }
    }

    fn device(&mut self, driver: &str, pool: &str, name: &str, counters: bool) -> Value {
        let shareable = !counters && self.random.percent(20);
        let mut attributes = Map::new();
        let all = [
            ("model", json!({"string": self.random.pick(&["x", "y"])})),
            ("numa", json!({"int": self.random.below(2)})),
            ("fast", json!({"bool": self.random.percent(50)})),
            (
                "firmware",
                json!({"version": self.random.pick(&["1.0.0", "2.1.0"])}),
            ),
            (
                "shared.example.com/root",
                json!({"string": self.random.pick(&["r0", "r1"])}),
            ),
        ];
        for (key, value) in all {
            if self.random.percent(85) {
                attributes.insert(key.to_owned(), value);
            }
        }
        let mut device = json!({
            "name": name,
            "attributes": attributes,
            "capacity": {"memory": {"value": format!("{}Gi", 1 + self.random.below(8))}},
        });
        if shareable {
            device["allowMultipleAllocations"] = json!(true);
            if self.random.percent(60) {
                device["capacity"]["memory"]["requestPolicy"] = json!({
                    "default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"},
                });
            }
        }
        if self.random.percent(15) {
            let effect = self.random.pick(&["NoSchedule", "NoExecute", "None"]);
            device["taints"] =
                json!([{"key": self.random.pick(&["hot", "old"]), "value": "v", "effect": effect}]);
        }
        if counters {
            device["consumesCounters"] = json!([{"counterSet": "set", "counters": {
                "memory": {"value": format!("{}Gi", 1 + self.random.below(4))},
                "engines": {"value": format!("{}", 1 + self.random.below(2))},
            }}]);
        }
        self.devices.push((
            driver.to_owned(),
            pool.to_owned(),
            name.to_owned(),
            shareable,
        ));
        device
    }

    fn allocated(&mut self) -> Vec<Value> {
        let mut held = Vec::new();
        let devices = std::mem::take(&mut self.devices);
        for (n, (driver, pool, device, shareable)) in devices.iter().enumerate() {
            if !self.random.percent(20) {
                continue;
            }
            let mut result =
                json!({"request": "r", "driver": driver, "pool": pool, "device": device});
            if *shareable {
                result["shareID"] = json!(format!("00000000-0000-0000-0000-{n:012}"));
                result["consumedCapacity"] = json!({"memory": "1Gi"});
            }
            held.push(json!({"devices": {"results": [result]}}));
        }
        self.devices = devices;
        held
    }

    fn selector(&mut self) -> Value {
        let driver = self.random.pick(&DRIVERS);
        let expression = match self.random.below(7) {
            0 => format!("device.driver == \"{driver}\""),
            1 => format!("device.attributes[\"{driver}\"].?fast.orValue(false)"),
            2 => format!("device.attributes[\"{driver}\"].?model.orValue(\"\") == \"x\""),
            3 => format!(
                "\"memory\" in device.capacity[\"{driver}\"] && \
                 device.capacity[\"{driver}\"].memory.compareTo(quantity(\"4Gi\")) >= 0"
            ),
            4 => format!(
                "has(device.attributes[\"{driver}\"].numa) && device.attributes[\"{driver}\"].numa == 0"
            ),
            // fails where the attribute is missing
            5 if self.random.percent(20) => {
                format!("device.attributes[\"{driver}\"].model == \"x\"")
            }
            _ => "true".to_owned(),
        };
        json!({"cel": {"expression": expression}})
    }

    /// What a request asks of each device.
    fn ask(&mut self) -> Value {
        let mut ask = json!({"deviceClassName": self.random.pick(&["class-a", "class-b", "class-any", "class-any"])});
        if self.random.percent(40) {
            ask["selectors"] = json!([self.selector()]);
        }
        if self.random.percent(15) {
            ask["allocationMode"] = json!("All");
        } else {
            ask["allocationMode"] = json!("ExactCount");
            ask["count"] = json!(1 + self.random.below(2));
        }
        if self.random.percent(25) {
            ask["tolerations"] = match self.random.below(3) {
                0 => json!([{"operator": "Exists"}]),
                1 => json!([{"key": "hot", "operator": "Exists", "effect": "NoSchedule"}]),
                _ => json!([{"key": "old", "operator": "Equal", "value": "v"}]),
            };
        }
        if self.random.percent(20) {
            ask["capacity"] =
                json!({"requests": {"memory": format!("{}Gi", 1 + self.random.below(3))}});
        }
        ask
    }

    fn claim(&mut self, name: &str) -> Value {
        let mut requests = Vec::new();
        for r in 0..1 + self.random.below(2) {
            let name = format!("req-{r}");
            if self.random.percent(20) {
                let alternatives: Vec<Value> = (0..1 + self.random.below(3))
                    .map(|s| {
                        let mut ask = self.ask();
                        ask["name"] = json!(format!("sub-{s}"));
                        ask
                    })
                    .collect();
                requests.push(json!({"name": name, "firstAvailable": alternatives}));
                continue;
            }
            let mut ask = self.ask();
            if self.random.percent(5) {
                ask["adminAccess"] = json!(true);
            }
            requests.push(json!({"name": name, "exactly": ask}));
        }
        let mut devices = json!({"requests": requests});
        if self.random.percent(30) {
            let attribute = self.random.pick(&[
                "shared.example.com/root",
                "a.example.com/numa",
                "a.example.com/model",
            ]);
            let kind = self
                .random
                .pick(&["matchAttribute", "matchAttribute", "distinctAttribute"]);
            let mut constraint = json!({kind: attribute});
            if kind == "distinctAttribute" {
                // the original forgets all but the last device of a request
                let requests = devices["requests"].as_array_mut().unwrap();
                requests.iter_mut().for_each(one_device);
            } else if self.random.percent(50) {
                constraint["requests"] = json!(["req-0"]);
            }
            devices["constraints"] = json!([constraint]);
        }
        if self.random.percent(20) {
            let mut config =
                json!({"opaque": {"driver": DRIVERS[0], "parameters": {"kind": "Settings"}}});
            if self.random.percent(50) {
                config["requests"] = json!(["req-0"]);
            }
            devices["config"] = json!([config]);
        }
        json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": {"devices": devices}})
    }
}

/// Lets a request and its alternatives ask for one device.
fn one_device(request: &mut Value) {
    let one = |ask: &mut Value| {
        ask["allocationMode"] = json!("ExactCount");
        ask["count"] = json!(1);
    };
    if let Some(alternatives) = request["firstAvailable"].as_array_mut() {
        alternatives.iter_mut().for_each(one);
    } else {
        one(&mut request["exactly"]);
    }
}

fn merge(into: &mut Value, from: &Value) {
    for (key, value) in from.as_object().unwrap() {
        into[key] = value.clone();
    }
}

fn question(seed: u64) -> Value {
    let random = &mut Seeded::new(seed.wrapping_mul(31));
    let mut world = World {
        random,
        slices: Vec::new(),
        devices: Vec::new(),
    };
    world.fill();
    let allocated = world.allocated();
    let claims: Vec<Value> = (0..1 + world.random.below(2))
        .map(|n| world.claim(&format!("claim-{n}")))
        .collect();
    let class = |name: &str, expression: String| json!({"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}});
    let mut any = class("class-any", "true".to_owned());
    any["spec"]["config"] =
        json!([{"opaque": {"driver": DRIVERS[1], "parameters": {"kind": "Class"}}}]);
    json!({
        "node": {"metadata": {"name": "node", "labels": {"zone": "here"}}},
        "slices": world.slices,
        "classes": [
            class("class-a", format!("device.driver == \"{}\"", DRIVERS[0])),
            class("class-b", format!("device.driver == \"{}\"", DRIVERS[1])),
            any,
        ],
        "claims": claims,
        "allocated": allocated,
    })
}

fn read<T: serde::de::DeserializeOwned>(list: &Value) -> Vec<T> {
    let items = list.as_array().unwrap().iter();
    items
        .map(|item| serde_json::from_value(item.clone()).unwrap())
        .collect()
}

/// What this crate answers: results, none, or an error.
fn ours(question: &Value) -> Result<Option<Value>, String> {
    let features = Features::default();
    let mut inventory = Inventory::default();
    for slice in read(&question["slices"]) {
        inventory.set(Arc::new(Slice::new(&slice, &[]).unwrap()));
    }
    let mut usage = Usage::default();
    for allocation in read(&question["allocated"]) {
        usage.add(&allocation);
    }
    let classes = Classes::new(read(&question["classes"]).into_iter().map(Arc::new));
    let claims: Vec<_> = read(&question["claims"])
        .into_iter()
        .map(Arc::new)
        .collect();
    let selectors = Arc::new(Selectors::kubernetes());
    let plan = Plan::new(&claims, features, &classes, &selectors).map_err(|e| e.to_string())?;
    let allocator = Allocator::new(features, Arc::new(inventory), usage, selectors);
    let next = Cell::new(0);
    let share_id = || {
        next.set(next.get() + 1);
        format!("share-{}", next.get())
    };
    let looks = Cell::new(0u64);
    let call = Call {
        node: NodeView {
            name: "node",
            labels: &BTreeMap::from([("zone".to_owned(), "here".to_owned())]),
        },
        released: None,
        stop: &|| {
            looks.set(looks.get() + 1);
            looks.get() > 100_000
        },
        share_id: &share_id,
    };
    let found = allocator.allocate(&plan, call).map_err(|e| e.to_string())?;
    Ok(found.map(|found| json!(found.results)))
}

/// Takes away what differs from run to run, and how empty things are written.
fn plain(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("allocationTimestamp");
            if map.contains_key("shareID") {
                map.insert("shareID".to_owned(), json!("share"));
            }
            for inner in map.values_mut() {
                plain(inner);
            }
            let empty = |v: &Value| {
                v.is_null()
                    || v.as_array().is_some_and(Vec::is_empty)
                    || v.as_object().is_some_and(Map::is_empty)
            };
            map.retain(|_, inner| !empty(inner));
        }
        Value::Array(list) => list.iter_mut().for_each(plain),
        _ => {}
    }
}

fn differs(theirs: &Value, ours: &Result<Option<Value>, String>) -> Option<&'static str> {
    let failed = theirs["error"].as_str();
    if failed.is_some_and(|error| error.contains("context deadline exceeded")) {
        // tries every combination, where this crate sees that none can do
        return None;
    }
    match (failed, ours) {
        (Some(_), Err(_)) => None,
        (Some(_), Ok(_)) | (None, Err(_)) => Some("one fails"),
        (None, Ok(None)) => theirs.get("results").map(|_| "theirs finds devices"),
        (None, Ok(Some(ours))) => {
            let Some(theirs) = theirs.get("results") else {
                return Some("ours finds devices");
            };
            let (mut theirs, mut ours) = (theirs.clone(), ours.clone());
            plain(&mut theirs);
            plain(&mut ours);
            (theirs != ours).then_some("the devices")
        }
    }
}

#[test]
fn claims_get_the_same_devices() {
    let seeds = range(800);
    let questions: Vec<Value> = seeds.clone().map(question).collect();
    let Some(answers) = ask(questions.clone()) else {
        return;
    };
    let mut wrong = Vec::new();
    let mut found = 0;
    for ((seed, question), theirs) in seeds.zip(&questions).zip(&answers) {
        let ours = ours(question);
        found += usize::from(theirs.get("results").is_some());
        if let Some(what) = differs(theirs, &ours) {
            wrong.push(format!(
                "seed {seed}: {what}\n  {question}\n  theirs {theirs}\n  ours   {}",
                match &ours {
                    Ok(found) => json!(found).to_string(),
                    Err(error) => error.clone(),
                }
            ));
        }
    }
    let count = wrong.len();
    wrong.truncate(10);
    assert!(count == 0, "{count} differ:\n{}", wrong.join("\n"));
    assert!(found * 5 > questions.len(), "many are satisfied: {found}");
}
