//! One scheduling cycle on 5 000 nodes: bring the snapshot up to date, decide, assume.
#![allow(missing_docs)]

use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use davit_allocator::Selectors;
use davit_scheduler::cache::{Cache, Snapshot};
use davit_scheduler::cycle::{Inputs, Outcome, attempt};
use davit_scheduler::devices::Devices;
use davit_scheduler::framework::Profile;
use davit_scheduler::nominator::Nominated;
use davit_scheduler::plugins::{Budgets, default_profile};
use davit_scheduler::pod::PodInfo;
use serde_json::{Value, json};

const NODES: usize = 5000;
const PODS_PER_NODE: usize = 10;

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
    cache: Cache,
    snapshot: Snapshot,
    profile: Profile,
    nominated: Nominated,
    start: usize,
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
        let profile = default_profile(
            "default-scheduler",
            None,
            Budgets::default(),
            &Devices::new(Arc::new(Selectors::kubernetes())),
        );
        let mut bed = Self {
            cache,
            snapshot: Snapshot::default(),
            profile,
            nominated: Nominated::default(),
            start: 0,
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
        };
        let outcome = attempt(&inputs, &mut self.start).outcome;
        if let Outcome::Node(at) = outcome {
            let name = self.snapshot.node(at).name.clone();
            self.cache
                .assume(pod.clone(), &name)
                .expect("the pod is new");
            self.cache.forget(&pod.uid);
        }
        outcome
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
    let spread = json!({"topologySpreadConstraints": [{
        "maxSkew": 5, "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector,
    }]});
    let spread = pod("spread", None, &requests, &spread);
    group.bench_function("5000_nodes/spread", |b| {
        b.iter(|| bed.cycle(&spread));
    });
    let nowhere = pod(
        "nowhere",
        None,
        &json!({"example.com/foo": "9"}),
        &json!({}),
    );
    group.bench_function("5000_nodes/unschedulable", |b| {
        b.iter(|| bed.cycle(&nowhere));
    });
    group.finish();
}

criterion_group!(benches, scheduling_cycle);
criterion_main!(benches);
