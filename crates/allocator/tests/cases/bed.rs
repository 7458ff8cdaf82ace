//! A bed for allocator cases: objects as JSON, results as short texts.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use davit_allocator::{
    AllocateError, Allocation, Allocator, Attribute, Call, Classes, CompileSelector, DeviceView,
    EvaluateSelector, Features, Inventory, NodeView, Plan, Refusal, Selectors, Slice, Usage,
};
use serde_json::{Value, json};

/// Just enough of a selector language for the cases: comparisons joined by `&&`.
pub(crate) struct Words;

struct Clauses(Vec<Clause>);

enum Clause {
    Driver(String),
    Shareable(bool),
    Attribute {
        domain: String,
        id: String,
        value: String,
    },
}

impl CompileSelector for Words {
    fn compile(&self, expression: &str) -> Result<Box<dyn EvaluateSelector>, String> {
        let clause = |text: &str| {
            let (left, right) = text.split_once("==").ok_or("no comparison")?;
            let (left, right) = (left.trim(), right.trim());
            if left == "device.driver" {
                return Ok(Clause::Driver(right.trim_matches('"').to_owned()));
            }
            if left == "device.allowMultipleAllocations" {
                return Ok(Clause::Shareable(right == "true"));
            }
            let rest = left
                .strip_prefix("device.attributes[\"")
                .ok_or("not known")?;
            let (domain, id) = rest.split_once("\"].").ok_or("not known")?;
            Ok::<_, String>(Clause::Attribute {
                domain: domain.to_owned(),
                id: id.to_owned(),
                value: right.to_owned(),
            })
        };
        let clauses: Result<Vec<_>, _> = expression.split("&&").map(clause).collect();
        Ok(Box::new(Clauses(clauses?)))
    }
}

impl EvaluateSelector for Clauses {
    fn matches(&self, device: DeviceView<'_>) -> Result<bool, String> {
        for clause in &self.0 {
            let yes = match clause {
                Clause::Driver(driver) => driver == device.driver,
                Clause::Shareable(wanted) => *wanted == device.shareable,
                Clause::Attribute { domain, id, value } => {
                    let full = format!("{domain}/{id}");
                    let own = (domain == device.driver).then(|| device.attributes.get(id));
                    let found = device.attributes.get(&full).or(own.flatten());
                    let found = found.ok_or_else(|| format!("no such key: {id}"))?;
                    match found {
                        Attribute::String(s) => format!("{s:?}") == *value,
                        other => other.to_string() == *value,
                    }
                }
            };
            if !yes {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) features: Features,
    pub(crate) slices: Vec<Value>,
    pub(crate) classes: Vec<Value>,
    pub(crate) claims: Vec<Value>,
    pub(crate) allocated: Vec<Value>,
    pub(crate) node: String,
    pub(crate) labels: BTreeMap<String, String>,
}

/// What came of a case.
pub(crate) type Outcome = Result<Option<Allocation>, AllocateError>;

impl Case {
    /// Two classes, node `node-1` in region `region-1`.
    pub(crate) fn new() -> Self {
        let class = |name: &str, driver: &str| json!({"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": format!("device.driver == {driver:?}")}}]}});
        Self {
            features: Features::default(),
            slices: Vec::new(),
            classes: vec![class("class-a", "driver-a"), class("class-b", "driver-b")],
            claims: Vec::new(),
            allocated: Vec::new(),
            node: "node-1".to_owned(),
            labels: BTreeMap::from([("region".to_owned(), "region-1".to_owned())]),
        }
    }

    pub(crate) fn features(mut self, change: impl FnOnce(&mut Features)) -> Self {
        change(&mut self.features);
        self
    }

    pub(crate) fn slice(mut self, slice: Value) -> Self {
        self.slices.push(slice);
        self
    }

    pub(crate) fn claim(mut self, requests: Value) -> Self {
        let name = format!("claim-{}", self.claims.len());
        self.claims
            .push(json!({"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}));
        self
    }

    /// Adds to the devices part of the last claim.
    pub(crate) fn with(mut self, key: &str, value: Value) -> Self {
        self.claims.last_mut().unwrap()["spec"]["devices"][key] = value;
        self
    }

    pub(crate) fn class(mut self, class: Value) -> Self {
        self.classes.push(class);
        self
    }

    /// A device that some other claim holds.
    pub(crate) fn allocated(self, driver: &str, pool: &str, device: &str) -> Self {
        self.allocated_as(json!({"driver": driver, "pool": pool, "device": device}))
    }

    pub(crate) fn allocated_as(mut self, mut result: Value) -> Self {
        result["request"] = json!("r");
        self.allocated
            .push(json!({"devices": {"results": [result]}}));
        self
    }

    pub(crate) fn node(mut self, name: &str, region: &str) -> Self {
        name.clone_into(&mut self.node);
        self.labels.insert("region".to_owned(), region.to_owned());
        self
    }

    fn on<T>(&self, f: impl FnOnce(&Allocator, Result<Plan, AllocateError>, Call<'_>) -> T) -> T {
        let mut inventory = Inventory::default();
        for slice in &self.slices {
            let slice = serde_json::from_value(slice.clone()).unwrap();
            inventory.set(Arc::new(Slice::new(&slice, &[]).unwrap()));
        }
        let mut usage = Usage::default();
        for allocation in &self.allocated {
            usage.add(&serde_json::from_value(allocation.clone()).unwrap());
        }
        let classes = self.classes.iter();
        let classes =
            Classes::new(classes.map(|c| Arc::new(serde_json::from_value(c.clone()).unwrap())));
        let claims: Vec<_> = self
            .claims
            .iter()
            .map(|c| Arc::new(serde_json::from_value(c.clone()).unwrap()))
            .collect();
        let selectors = Arc::new(Selectors::new(Words));
        let plan = Plan::new(&claims, self.features, &classes, &selectors);
        let allocator = Allocator::new(self.features, Arc::new(inventory), usage, selectors);
        let next = Cell::new(0);
        let share_id = || {
            next.set(next.get() + 1);
            format!("share-{}", next.get())
        };
        let looks = Cell::new(0u64);
        let call = Call {
            node: NodeView {
                name: &self.node,
                labels: &self.labels,
            },
            released: None,
            stop: &|| {
                looks.set(looks.get() + 1);
                looks.get() > 100_000
            },
            share_id: &share_id,
        };
        f(&allocator, plan, call)
    }

    pub(crate) fn run(&self) -> Outcome {
        self.on(|allocator, plan, call| allocator.allocate(&plan?, call))
    }

    pub(crate) fn explain(&self) -> Refusal {
        self.on(|allocator, plan, call| allocator.explain(&plan.unwrap(), call))
    }

    /// Asserts the devices of all claims, as `request driver/pool/device` in order.
    #[track_caller]
    pub(crate) fn gets(&self, expected: &[&[&str]]) {
        let found = self.run().unwrap().expect("devices for all claims");
        assert_eq!(devices(&found), expected);
    }

    #[track_caller]
    pub(crate) fn gets_nothing(&self) {
        assert_eq!(self.run(), Ok(None));
    }

    #[track_caller]
    pub(crate) fn fails(&self, text: &str) {
        let error = self.run().unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

/// The devices of an allocation in short.
pub(crate) fn devices(allocation: &Allocation) -> Vec<Vec<String>> {
    let short = |r: &k8s_openapi::api::resource::v1::DeviceRequestAllocationResult| {
        let mut text = format!("{} {}/{}/{}", r.request, r.driver, r.pool, r.device);
        if r.admin_access == Some(true) {
            text.push_str(" admin");
        }
        for (name, amount) in r.consumed_capacity.iter().flatten() {
            text.push_str(&format!(" {name}={}", amount.0));
        }
        text
    };
    let of = |r: &k8s_openapi::api::resource::v1::AllocationResult| {
        let results = r.devices.iter().flat_map(|d| &d.results).flatten();
        results.map(short).collect()
    };
    allocation.results.iter().map(of).collect()
}

/// A slice of node `node-1` (or what `place` says), the only one of its pool.
pub(crate) fn slice(name: &str, pool: &str, driver: &str, devices: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "driver": driver, "nodeName": "node-1", "devices": devices,
        "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
    }})
}

/// Devices of these names.
pub(crate) fn named(names: &[&str]) -> Value {
    names.iter().map(|n| json!({"name": n})).collect()
}

/// Puts a slice elsewhere: `place` is merged into its spec, with the node name taken out.
pub(crate) fn at(mut slice: Value, place: Value) -> Value {
    slice["spec"].as_object_mut().unwrap().remove("nodeName");
    merge(slice, place)
}

/// Merges members into the spec.
pub(crate) fn merge(mut slice: Value, members: Value) -> Value {
    for (key, value) in members.as_object().unwrap() {
        slice["spec"][key] = value.clone();
    }
    slice
}

/// Changes generation and count of the pool.
pub(crate) fn generation(mut slice: Value, generation: i64, count: i64) -> Value {
    slice["spec"]["pool"]["generation"] = json!(generation);
    slice["spec"]["pool"]["resourceSliceCount"] = json!(count);
    slice
}

/// A request for so many devices of a class.
pub(crate) fn request(name: &str, class: &str, count: i64) -> Value {
    json!({"name": name, "exactly": {"deviceClassName": class, "allocationMode": "ExactCount", "count": count}})
}

/// A request for all devices of a class.
pub(crate) fn all(name: &str, class: &str) -> Value {
    json!({"name": name, "exactly": {"deviceClassName": class, "allocationMode": "All"}})
}

/// Adds members to a request.
pub(crate) fn also(mut request: Value, members: Value) -> Value {
    for (key, value) in members.as_object().unwrap() {
        match request.get_mut("exactly") {
            Some(exactly) => exactly[key] = value.clone(),
            None => request[key] = value.clone(),
        }
    }
    request
}

/// A list of selectors.
pub(crate) fn cel(expressions: &[&str]) -> Value {
    expressions
        .iter()
        .map(|e| json!({"cel": {"expression": e}}))
        .collect()
}

/// A request with alternatives.
pub(crate) fn first(name: &str, subs: &[Value]) -> Value {
    json!({"name": name, "firstAvailable": subs})
}

/// An alternative.
pub(crate) fn sub(name: &str, class: &str, count: i64) -> Value {
    json!({"name": name, "deviceClassName": class, "allocationMode": "ExactCount", "count": count})
}
