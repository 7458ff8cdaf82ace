//! Nodes with the same signature give the same answer, whatever their devices are called; nodes of one kind have the same.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use davit_allocator::{
    AllocateError, Allocator, Call, Classes, Features, Inventory, NodeSignature, NodeView, Plan,
    Selectors, Slice, Usage,
};
use k8s_openapi::api::resource::v1::ResourceClaim;
use proptest::prelude::*;
use serde_json::{Value, json};

const DRIVER: &str = "driver-a";
const ZONES: usize = 2;

/// A device: what it is like, what is held of it.
type DeviceKind = (usize, usize);

#[derive(Debug, Clone)]
struct NodeKind {
    /// By pool.
    pools: Vec<Vec<DeviceKind>>,
    zone: usize,
    /// What is unusual about the first pool.
    flaw: usize,
}

#[derive(Debug, Clone)]
struct Cluster {
    nodes: Vec<NodeKind>,
    /// Devices that all nodes, or those of a zone, can reach, if there are some.
    shared: Option<(usize, Vec<DeviceKind>)>,
}

fn cluster() -> impl Strategy<Value = Cluster> {
    let device = (0..10usize, prop_oneof![3 => Just(0usize), 2 => 1..4usize]);
    let pool = proptest::collection::vec(device, 1..4);
    let node = (
        proptest::collection::vec(pool.clone(), 1..3),
        0..ZONES,
        prop_oneof![8 => Just(0usize), 1 => 1..4usize],
    );
    let node = node.prop_map(|(pools, zone, flaw)| NodeKind { pools, zone, flaw });
    // Every kind of node twice or more, so that there are equal signatures.
    let nodes = (
        proptest::collection::vec(node, 1..4),
        proptest::collection::vec(any::<prop::sample::Index>(), 4..9),
    );
    let nodes = nodes.prop_map(|(kinds, picks)| {
        let of = |pick: prop::sample::Index| kinds[pick.index(kinds.len())].clone();
        picks.into_iter().map(of).collect()
    });
    let shared = proptest::option::weighted(0.3, (0..=ZONES, pool));
    (nodes, shared).prop_map(|(nodes, shared)| Cluster { nodes, shared })
}

/// A device of a kind, with a serial number and roots of its own node.
fn device(owner: &str, at: usize, kind: usize) -> Value {
    let mut device = json!({"name": format!("{owner}-{at}"), "attributes": {
        "uuid": {"string": format!("uuid-{owner}-{at}")},
        "model": {"string": "x"},
        "root": {"string": format!("root-{owner}-{}", at % 2)},
    }, "capacity": {"memory": {"value": "8Gi"}}});
    match kind {
        1 => device["attributes"]["model"] = json!({"string": "y"}),
        2 => device["taints"] = json!([{"key": "hot", "value": "v", "effect": "NoSchedule"}]),
        3 | 4 => {
            device["allowMultipleAllocations"] = json!(true);
            if kind == 4 {
                device["capacity"]["memory"]["requestPolicy"] =
                    json!({"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}});
            }
        }
        5 => {
            device["consumesCounters"] =
                json!([{"counterSet": "set", "counters": {"engines": {"value": "2"}}}]);
        }
        6 => {
            device["attributes"]["root"] =
                json!({"strings": [format!("root-{owner}-0"), format!("root-{owner}-1")]});
        }
        7 => device["attributes"]["firmware"] = json!({"version": "none"}),
        8 => {
            let attributes = device["attributes"].as_object_mut().unwrap();
            let root = attributes.remove("root").unwrap();
            attributes.insert(format!("{DRIVER}/root"), root);
        }
        9 => {
            device["bindingConditions"] = json!(["ready"]);
            device["bindingFailureConditions"] = json!(["broken"]);
        }
        _ => {}
    }
    device
}

fn slices(owner: &str, pool: &str, kinds: &[DeviceKind], flaw: usize, place: &Value) -> Vec<Value> {
    let mut devices: Vec<Value> = kinds
        .iter()
        .enumerate()
        .map(|(at, (kind, _))| device(owner, at, *kind))
        .collect();
    if flaw == 1 {
        devices.push(devices[0].clone());
    }
    let counted = kinds.iter().any(|(kind, _)| *kind == 5);
    let count = 1 + usize::from(counted && flaw != 3) + usize::from(flaw == 2);
    let spec = |members: Value| {
        let mut spec = json!({"driver": DRIVER,
            "pool": {"name": pool, "generation": 1, "resourceSliceCount": count}});
        for (key, value) in members
            .as_object()
            .unwrap()
            .iter()
            .chain(place.as_object().unwrap())
        {
            spec[key] = value.clone();
        }
        spec
    };
    let mut all = vec![json!({"metadata": {"name": format!("{pool}-devices")},
        "spec": spec(json!({"devices": devices}))})];
    if counted && flaw != 3 {
        all.push(
            json!({"metadata": {"name": format!("{pool}-counters")}, "spec": spec(json!({
            "sharedCounters": [{"name": "set", "counters": {"engines": {"value": "3"}}}]}))}),
        );
    }
    all
}

fn hold(usage: &mut Usage, owner: &str, pool: &str, kinds: &[DeviceKind]) {
    for (at, (kind, held)) in kinds.iter().enumerate() {
        let mut result = json!({"request": "r", "driver": DRIVER, "pool": pool, "device": format!("{owner}-{at}")});
        if matches!(kind, 3 | 4) && *held > 0 {
            result["shareID"] = json!(format!("{owner}-{at}"));
            result["consumedCapacity"] = json!({"memory": format!("{held}Gi")});
        } else if *held != 1 {
            continue;
        }
        usage.add(&serde_json::from_value(json!({"devices": {"results": [result]}})).unwrap());
    }
}

fn claims() -> Vec<Vec<Arc<ResourceClaim>>> {
    let one = |count: usize, more: Value| {
        let mut request = json!({"name": "r", "exactly": {
            "deviceClassName": "class-a", "allocationMode": "ExactCount", "count": count}});
        for (key, value) in more.as_object().unwrap() {
            request["exactly"][key] = value.clone();
        }
        request
    };
    let model = |m: &str| json!([{"cel": {"expression": format!("device.attributes['{DRIVER}'].model == '{m}'")}}]);
    let of = |requests: Value, constraints: Value| -> Arc<ResourceClaim> {
        let claim = json!({"metadata": {"name": "c", "namespace": "d"}, "spec": {"devices": {
            "requests": requests, "constraints": constraints}}});
        Arc::new(serde_json::from_value(claim).unwrap())
    };
    let matching = json!([{"matchAttribute": "driver-a/root"}]);
    let distinct = json!([{"distinctAttribute": "driver-a/root"}]);
    let gigs = json!({"capacity": {"requests": {"memory": "3Gi"}}});
    vec![
        vec![of(json!([one(1, json!({}))]), json!([]))],
        vec![of(
            json!([one(2, json!({"selectors": model("x")}))]),
            json!([]),
        )],
        vec![of(json!([one(2, json!({}))]), matching.clone())],
        vec![of(json!([one(2, json!({}))]), distinct)],
        vec![of(json!([one(1, gigs)]), json!([]))],
        vec![of(
            json!([{"name": "r", "exactly": {"deviceClassName": "class-a", "allocationMode": "All"}}]),
            json!([]),
        )],
        vec![of(
            json!([one(
                1,
                json!({"tolerations": [{"operator": "Exists"}], "adminAccess": true})
            )]),
            json!([]),
        )],
        vec![of(
            json!([{"name": "r", "firstAvailable": [
                {"name": "three", "deviceClassName": "class-a", "allocationMode": "ExactCount", "count": 3, "selectors": model("x")},
                {"name": "one", "deviceClassName": "class-a", "allocationMode": "ExactCount", "count": 1, "selectors": model("y")}]}]),
            json!([]),
        )],
        // Serial numbers matter here.
        vec![of(
            json!([one(
                1,
                json!({"selectors": [{"cel": {"expression":
                format!("device.attributes['{DRIVER}'].uuid.endsWith('node-1-0')")}}]})
            )]),
            json!([]),
        )],
        vec![
            of(json!([one(1, json!({"selectors": model("y")}))]), json!([])),
            of(json!([one(1, json!({}))]), matching),
        ],
    ]
}

/// A cluster as the allocator has it.
struct Bed {
    allocator: Allocator,
    classes: Classes,
    selectors: Arc<Selectors>,
    features: Features,
}

impl Bed {
    fn new(cluster: &Cluster) -> Self {
        let (mut inventory, mut usage) = (Inventory::default(), Usage::default());
        let mut add = |slices: Vec<Value>| {
            for slice in slices {
                let slice = serde_json::from_value(slice).unwrap();
                inventory.set(Arc::new(Slice::new(&slice, &[]).unwrap()));
            }
        };
        for (n, node) in cluster.nodes.iter().enumerate() {
            let owner = format!("node-{n}");
            for (p, kinds) in node.pools.iter().enumerate() {
                let pool = format!("{owner}-pool-{p}");
                let flaw = if p == 0 { node.flaw } else { 0 };
                add(slices(
                    &owner,
                    &pool,
                    kinds,
                    flaw,
                    &json!({"nodeName": owner}),
                ));
                hold(&mut usage, &owner, &pool, kinds);
            }
        }
        if let Some((zone, kinds)) = &cluster.shared {
            let place = if *zone == ZONES {
                json!({"allNodes": true})
            } else {
                json!({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "zone", "operator": "In", "values": [zone.to_string()]}]}]}})
            };
            // Its roots are those of a node.
            add(slices("node-1", "shared", kinds, 0, &place));
            hold(&mut usage, "node-1", "shared", kinds);
        }
        let class = json!({"metadata": {"name": "class-a"}, "spec": {"selectors": [
            {"cel": {"expression": format!("device.driver == '{DRIVER}'")}}]}});
        let selectors = Arc::new(Selectors::kubernetes());
        let features = Features {
            list_attributes: true,
            ..Features::default()
        };
        Self {
            allocator: Allocator::new(features, Arc::new(inventory), usage, selectors.clone()),
            classes: Classes::new([Arc::new(serde_json::from_value(class).unwrap())]),
            selectors,
            features,
        }
    }

    fn plan(&self, claims: &[Arc<ResourceClaim>]) -> Plan {
        Plan::new(claims, self.features, &self.classes, &self.selectors).unwrap()
    }

    /// The signature of a node, and what the search finds there, with the node's name left out.
    fn ask(
        &self,
        plan: &Plan,
        node: usize,
        zone: usize,
    ) -> (NodeSignature, Result<Option<String>, &'static str>) {
        let name = format!("node-{node}");
        let labels = BTreeMap::from([("zone".to_owned(), zone.to_string())]);
        let view = NodeView {
            name: &name,
            labels: &labels,
        };
        let call = Call {
            node: view,
            released: None,
            stop: &|| false,
            share_id: &String::new,
        };
        let found = match self.allocator.allocate(plan, call) {
            Ok(found) => Ok(found.map(|found| {
                let text = serde_json::to_string(&found.results).unwrap();
                let text = text.replace("node-1-", &format!("{name}-"));
                format!("{} {:?}", text.replace(&name, "node"), found.chosen)
            })),
            Err(AllocateError::Node(_)) => Err("node"),
            Err(_) => Err("failed"),
        };
        (self.allocator.signature(plan, view), found)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn equal_signatures_mean_equal_answers(cluster in cluster()) {
        let bed = Bed::new(&cluster);
        for claims in claims() {
            let plan = bed.plan(&claims);
            let mut known = HashMap::new();
            for (n, node) in cluster.nodes.iter().enumerate() {
                let (signature, found) = bed.ask(&plan, n, node.zone);
                let (first, answer) = known.entry(signature).or_insert((n, found.clone()));
                prop_assert_eq!(&found, answer, "nodes {} and {} {:?}", first, n, claims);
            }
        }
    }
}

/// Checklist 72 and 80: nodes of one kind have as many signatures as states, whatever their serial numbers, and a selector is
/// evaluated once for each kind of device.
#[test]
fn nodes_of_a_kind_have_one_signature() {
    let node = |held| NodeKind {
        pools: vec![vec![(0, held), (1, 0), (5, 0), (4, 2)]],
        zone: 0,
        flaw: 0,
    };
    let cluster = Cluster {
        nodes: (0..100).map(|n| node(n % 2)).collect(),
        shared: None,
    };
    let bed = Bed::new(&cluster);
    for (kind, claims) in claims().into_iter().enumerate() {
        let plan = bed.plan(&claims);
        let before = bed.selectors.evaluations();
        let asked = (0..100).map(|n| bed.ask(&plan, n, 0).0);
        let signature: std::collections::HashSet<NodeSignature> = asked.collect();
        let by_serial = kind == 8;
        assert_eq!(
            signature.len(),
            if by_serial { 100 } else { 2 },
            "{claims:?}"
        );
        let evaluations = bed.selectors.evaluations() - before;
        assert!(by_serial || evaluations <= 8, "{evaluations}: {claims:?}");
    }
}
