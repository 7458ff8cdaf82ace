//! Whether a cluster that is left alone has come to rest as it should.

use std::collections::{BTreeMap, BTreeSet};

use davit_store::KeyValue;
use serde_json::Value;

use crate::checks::{controller, is_going, is_over, items, text};
use crate::workload::NAMESPACES;

/// The objects of a store.
pub struct StoredState {
    objects: BTreeMap<String, Value>,
}

impl std::fmt::Debug for StoredState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StoredState({})", self.objects.len())
    }
}

/// What every cluster has and nobody here changes.
const GIVEN: [&str; 2] = [
    "/registry/rbac.authorization.k8s.io/",
    "/registry/flowcontrol.apiserver.k8s.io/",
];

impl StoredState {
    /// Of these pairs those that are objects.
    pub fn of(pairs: &[KeyValue]) -> Self {
        let changes = |pair: &&KeyValue| !GIVEN.iter().any(|given| pair.key.starts_with(given));
        let objects = pairs.iter().filter(changes).filter_map(|pair| {
            let object: Value = serde_json::from_slice(&pair.value).ok()?;
            Some((pair.key.to_string(), object))
        });
        Self {
            objects: objects.collect(),
        }
    }

    /// The objects of a resource, as `apps/deployments`.
    pub fn of_resource(&self, resource: &str) -> impl Iterator<Item = (&String, &Value)> {
        let prefix = format!("/registry/{resource}/");
        self.objects
            .iter()
            .filter(move |(key, _)| key.starts_with(&prefix))
    }

    /// What is still to be done until the workloads are as they were asked for.
    pub fn unsettled(&self) -> Vec<String> {
        let mut open = Vec::new();
        self.going(&mut open);
        self.orphans(&mut open);
        self.workloads(&mut open);
        self.pods(&mut open);
        self.claims(&mut open);
        self.quotas(&mut open);
        open
    }

    /// What is left of the workload's namespaces.
    pub fn remains(&self) -> Vec<String> {
        let of_workload = |key: &String| {
            NAMESPACES.iter().any(|ns| {
                key.contains(&format!("/{ns}/")) || key.ends_with(&format!("/namespaces/{ns}"))
            })
        };
        let left = self.objects.iter().filter(|(key, _)| of_workload(key));
        left.map(|(key, object)| {
            format!(
                "{key} is left: finalizers {}",
                object["metadata"]["finalizers"]
            )
        })
        .collect()
    }

    fn going(&self, open: &mut Vec<String>) {
        for (key, object) in &self.objects {
            if is_going(object) {
                open.push(format!(
                    "{key} is to go: finalizers {}",
                    object["metadata"]["finalizers"]
                ));
            }
        }
    }

    fn orphans(&self, open: &mut Vec<String>) {
        let uids: BTreeSet<&str> = self
            .objects
            .values()
            .map(|object| text(object, "/metadata/uid"))
            .collect();
        for (key, object) in &self.objects {
            let mut owners = items(object, "/metadata/ownerReferences").peekable();
            if owners.peek().is_some() && !owners.any(|owner| uids.contains(text(owner, "/uid"))) {
                open.push(format!("{key} has lost its owner"));
            }
        }
    }

    fn workloads(&self, open: &mut Vec<String>) {
        let mut want = |key: &String, what: &str, object: &Value, wanted: i64, pointer: &str| {
            let has = object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
            if has != wanted {
                open.push(format!("{key} has {has} {what} of {wanted}"));
            }
        };
        let replicas = |object: &Value| object["spec"]["replicas"].as_i64().unwrap_or(1);
        for (key, d) in self.of_resource("apps/deployments") {
            let n = replicas(d);
            want(key, "replicas", d, n, "/status/replicas");
            want(key, "updated", d, n, "/status/updatedReplicas");
            want(key, "available", d, n, "/status/availableReplicas");
            want(
                key,
                "generation",
                d,
                d["metadata"]["generation"].as_i64().unwrap_or(0),
                "/status/observedGeneration",
            );
        }
        for (key, set) in self.of_resource("apps/replicasets") {
            want(key, "replicas", set, replicas(set), "/status/replicas");
            want(
                key,
                "available",
                set,
                replicas(set),
                "/status/availableReplicas",
            );
        }
        for (key, set) in self.of_resource("apps/statefulsets") {
            let n = replicas(set);
            want(key, "replicas", set, n, "/status/replicas");
            want(key, "ready", set, n, "/status/readyReplicas");
            want(key, "updated", set, n, "/status/updatedReplicas");
        }
        let nodes = i64::try_from(self.of_resource("core/nodes").count()).unwrap_or(0);
        for (key, set) in self.of_resource("apps/daemonsets") {
            want(key, "wanted", set, nodes, "/status/desiredNumberScheduled");
            want(key, "ready", set, nodes, "/status/numberReady");
            want(key, "updated", set, nodes, "/status/updatedNumberScheduled");
        }
        for (key, job) in self.of_resource("batch/jobs") {
            let mut conditions = items(job, "/status/conditions");
            if !conditions.any(|c| c["type"] == "Complete" && c["status"] == "True") {
                open.push(format!("{key} is not complete: {}", job["status"]));
            }
        }
    }

    fn pods(&self, open: &mut Vec<String>) {
        let mut owned: BTreeMap<&str, i64> = BTreeMap::new();
        for (key, pod) in self.of_resource("core/pods") {
            if is_over(pod) {
                continue;
            }
            let ready = items(pod, "/status/conditions")
                .any(|c| c["type"] == "Ready" && c["status"] == "True");
            if !ready {
                open.push(format!(
                    "{key} is not ready: {} {}",
                    text(pod, "/spec/nodeName"),
                    pod["status"]
                ));
            }
            if let Some(owner) = controller(pod, "ReplicaSet").or(controller(pod, "StatefulSet")) {
                *owned.entry(owner).or_default() += 1;
            }
        }
        let sets = self
            .of_resource("apps/replicasets")
            .chain(self.of_resource("apps/statefulsets"));
        for (key, set) in sets {
            let has = owned.get(text(set, "/metadata/uid")).copied().unwrap_or(0);
            if set["spec"]["replicas"].as_i64().unwrap_or(1) != has {
                open.push(format!(
                    "{key} is to have {} pods, there are {has}",
                    set["spec"]["replicas"]
                ));
            }
        }
    }

    fn claims(&self, open: &mut Vec<String>) {
        let live: BTreeSet<&str> = self
            .of_resource("core/pods")
            .filter(|(_, pod)| !is_over(pod))
            .map(|(_, pod)| text(pod, "/metadata/uid"))
            .collect();
        for (key, claim) in self.of_resource("resource.k8s.io/resourceclaims") {
            let mut reserved = items(claim, "/status/reservedFor").peekable();
            if reserved.peek().is_none() && claim.pointer("/status/allocation").is_some() {
                open.push(format!("{key} holds devices for nobody"));
            }
            if reserved.any(|consumer| !live.contains(text(consumer, "/uid"))) {
                open.push(format!("{key} is reserved for a pod that has ended"));
            }
        }
    }

    fn quotas(&self, open: &mut Vec<String>) {
        for (key, quota) in self.of_resource("core/resourcequotas") {
            let namespace = text(quota, "/metadata/namespace");
            let pods = self.of_resource("core/pods");
            let there = pods
                .filter(|(_, pod)| text(pod, "/metadata/namespace") == namespace && !is_over(pod))
                .count();
            let used = text(quota, "/status/used/pods");
            if used != there.to_string() {
                open.push(format!("{key} counts {used:?} pods, there are {there}"));
            }
        }
    }
}
