//! One scheduling cycle on 5 000 nodes: bring the snapshot up to date, decide, assume; with a claim also reserve its device.
#![allow(missing_docs)]

use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use davit_allocator::Selectors;
use davit_scheduler::cache::{Cache, Snapshot};
use davit_scheduler::cycle::{Attempt, Inputs, NodeSearch, Outcome, attempt};
use davit_scheduler::devices::{Devices, Watched};
use davit_scheduler::framework::Profile;
use davit_scheduler::nominator::Nominated;
use davit_scheduler::plugins::{Budgets, default_profile};
use davit_scheduler::pod::PodInfo;
use serde_json::{Value, json};

const NODES: usize = 5000;
const PODS_PER_NODE: usize = 10;
const DEVICES: usize = 8;
const DRIVER: &str = "gpu.example.com";

fn pod(name: &str, node: Option<&str>, requests: &Value, extra: &Value) -> Arc<PodInfo> {
    let mut spec = json!({
        "nodeName": node,
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        "containers": [{"name": "c", "image": "busybox", "resources": {"requests": requests}}],
    });
    for (key, value) in extra.as_object().expect("an object") {
        spec[key] = value.clone();
    }
    let metadata =
        json!({"name": name, "namespace": "default", "uid": name, "labels": {"app": "x"}});
    let pod = json!({"metadata": metadata, "spec": spec});
    Arc::new(PodInfo::new(Arc::new(
        serde_json::from_value(pod).expect("a pod"),
    )))
}

struct Bed {
    devices: Devices,
    cache: Cache,
    snapshot: Snapshot,
    profile: Profile,
    nominated: Nominated,
    search: NodeSearch,
}

impl Bed {
    fn new() -> Self {
        let mut cache = Cache::new();
        for i in 0..NODES {
            let name = format!("node-{i}");
            let node = json!({
                "metadata": {"name": name, "labels": {
                    "kubernetes.io/hostname": name,
                    "topology.kubernetes.io/zone": format!("zone-{}", i % 3),
                }},
                "status": {"allocatable": {
                    "cpu": "32", "memory": "256Gi", "pods": "110", "example.com/foo": "8",
                }},
            });
            cache.set_node(Arc::new(serde_json::from_value(node).expect("a node")));
            for j in 0..PODS_PER_NODE {
                let requests = json!({"cpu": "500m", "memory": "1Gi"});
                cache.set_pod(pod(
                    &format!("{name}-{j}"),
                    Some(&name),
                    &requests,
                    &json!({}),
                ));
            }
        }
        let devices = Devices::new(Arc::new(Selectors::kubernetes()));
        let profile = default_profile("default-scheduler", None, Budgets::default(), &devices);
        let mut bed = Self {
            devices,
            cache,
            snapshot: Snapshot::default(),
            profile,
            nominated: Nominated::default(),
            search: NodeSearch::default(),
        };
        bed.cache.update(&mut bed.snapshot);
        bed
    }

    /// Decides for the pod, assumes it and takes it off again.
    fn cycle(&mut self, pod: &Arc<PodInfo>) -> Outcome {
        self.cache.update(&mut self.snapshot);
        let inputs = Inputs {
            profile: &self.profile,
            snapshot: &self.snapshot,
            nominated: &self.nominated,
            pod,
            within: None,
        };
        let Attempt {
            outcome, mut state, ..
        } = attempt(&inputs, &mut self.search);
        if let Outcome::Node(at) = outcome {
            let name = self.snapshot.node(at).name.clone();
            self.cache
                .assume(pod.clone(), &name)
                .expect("the pod is new");
            let reserve = &self.profile.points.reserve;
            for plugin in reserve {
                let status = plugin.reserve(&mut state, pod, &name);
                assert!(status.is_success(), "{status:?}");
            }
            for plugin in reserve {
                plugin.unreserve(&mut state, pod, &name);
            }
            self.cache.forget(&pod.uid);
        }
        outcome
    }

    /// Gives every node eight devices, and makes the claim that is to be scheduled.
    fn furnish(&self) {
        let class = json!({"metadata": {"name": "gpu"}, "spec": {"selectors": [
            {"cel": {"expression": format!("device.driver == '{DRIVER}'")}}]}});
        let class = serde_json::from_value(class).expect("a class");
        self.devices.set_class("gpu", Some(Arc::new(class)));
        for node in 0..NODES {
            let device = |d| {
                json!({"name": format!("gpu-{d}"), "attributes": {
                    "model": {"string": "a1"}, "numa": {"int": d % 2}, "uuid": {"string": format!("gpu-{node}-{d}")}}})
            };
            let devices: Vec<Value> = (0..DEVICES).map(device).collect();
            let slice = json!({"metadata": {"name": format!("slice-{node}")},
                "spec": {"driver": DRIVER, "nodeName": format!("node-{node}"), "devices": devices,
                    "pool": {"name": format!("node-{node}"), "generation": 1, "resourceSliceCount": 1}}});
            let slice = serde_json::from_value(slice).expect("a slice");
            self.devices.set_slice(&slice);
        }
        self.claim("wanted", &Value::Null);
        for what in [
            Watched::Slices,
            Watched::Classes,
            Watched::Claims,
            Watched::Rules,
        ] {
            self.devices.synced(what);
        }
        self.devices.classic().set_absent();
    }

    fn claim(&self, name: &str, status: &Value) {
        let claim = json!({"metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}, "status": status});
        let claim = serde_json::from_value(claim).expect("a claim");
        self.devices.set_claim(Arc::new(claim));
    }

    /// Claims that hold devices of all nodes but some.
    fn hold(&self, from: usize, to: usize, nodes: usize) {
        for node in 0..nodes {
            for device in from..to {
                let status = json!({"allocation": {"devices": {"results": [{"request": "gpu", "driver": DRIVER,
                    "pool": format!("node-{node}"), "device": format!("gpu-{device}")}]}}});
                self.claim(&format!("held-{node}-{device}"), &status);
            }
        }
    }
}

fn scheduling_cycle(c: &mut Criterion) {
    let mut bed = Bed::new();
    let mut group = c.benchmark_group("scheduling_cycle");
    let requests = json!({"cpu": "1", "memory": "2Gi", "example.com/foo": "1"});
    let plain = pod("new", None, &requests, &json!({}));
    group.bench_function("5000_nodes/device", |b| {
        b.iter(|| bed.cycle(&plain));
    });
    let selector = json!({"matchLabels": {"app": "x"}});
    for (name, key) in [
        ("spread", "topology.kubernetes.io/zone"),
        ("spread_over_nodes", "kubernetes.io/hostname"),
    ] {
        let spread = json!({"topologySpreadConstraints": [{
            "maxSkew": 5, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector,
        }]});
        let spread = pod(name, None, &requests, &spread);
        group.bench_function(format!("5000_nodes/{name}"), |b| {
            b.iter(|| bed.cycle(&spread));
        });
    }
    let nowhere = pod(
        "nowhere",
        None,
        &json!({"example.com/foo": "9"}),
        &json!({}),
    );
    group.bench_function("5000_nodes/unschedulable", |b| {
        b.iter(|| bed.cycle(&nowhere));
    });
    bed.furnish();
    let claiming = json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "wanted"}]});
    let claiming = pod("claiming", None, &json!({}), &claiming);
    // One node in a hundred keeps its last devices.
    for (taken, from, to, nodes) in [
        ("none", 0, 0, 0),
        ("half", 0, DEVICES / 2, NODES),
        ("nearly_all", DEVICES / 2, DEVICES, NODES - NODES / 100),
        ("all", DEVICES / 2, DEVICES, NODES),
    ] {
        bed.hold(from, to, nodes);
        group.bench_function(format!("5000_nodes/claim_{taken}_taken"), |b| {
            b.iter(|| bed.cycle(&claiming));
        });
    }
    group.finish();
}

criterion_group!(benches, scheduling_cycle);
criterion_main!(benches);
