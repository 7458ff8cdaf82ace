//! What users do in a run: decided by its seed alone.

use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use crate::faults::stream;
use crate::kubelet::{DRIVER, FAILS, RESOURCE, RUNS};

/// Namespaces of the workload.
pub const NAMESPACES: [&str; 2] = ["a", "b"];
/// The class of devices.
const CLASS: &str = "simulated";
/// The priority class of pods before which others go.
const URGENT: &str = "urgent";

/// One thing that a user does.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Creates an object of a collection.
    Create(String, Value),
    /// Changes an object by a merge patch.
    Change(String, Value),
    /// Deletes an object.
    Delete(String, Value),
    /// Makes a node take no pods, and evicts what is there.
    Drain(String),
    /// Lets a node take pods again.
    Uncordon(String),
    /// Deletes one of the pods that are there, by a number that says which.
    DeletePod(usize),
}

/// An action and how long after the one before.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// How long after the one before.
    pub after: Duration,
    /// What.
    pub action: Action,
}

/// What there is that can be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Deployment,
        Self::ReplicaSet,
        Self::StatefulSet,
        Self::DaemonSet,
        Self::Job,
        Self::CronJob,
    ];

    fn collection(self, namespace: &str) -> String {
        let (group, plural) = match self {
            Self::Deployment => ("apps", "deployments"),
            Self::ReplicaSet => ("apps", "replicasets"),
            Self::StatefulSet => ("apps", "statefulsets"),
            Self::DaemonSet => ("apps", "daemonsets"),
            Self::Job => ("batch", "jobs"),
            Self::CronJob => ("batch", "cronjobs"),
        };
        format!("/apis/{group}/v1/namespaces/{namespace}/{plural}")
    }

    fn is_scaled(self) -> bool {
        matches!(
            self,
            Self::Deployment | Self::ReplicaSet | Self::StatefulSet
        )
    }
}

struct Thing {
    kind: Kind,
    namespace: &'static str,
    name: String,
}

impl Thing {
    fn path(&self) -> String {
        format!("{}/{}", self.kind.collection(self.namespace), self.name)
    }
}

/// Makes the steps of a seed.
struct Generator {
    rng: StdRng,
    things: Vec<Thing>,
    made: usize,
    devices: usize,
    nodes: usize,
}

/// What there is before anybody does anything.
pub fn foundation() -> Vec<Action> {
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": CLASS},
        "spec": {"selectors": [{"cel": {"expression": format!("device.driver == '{DRIVER}'")}}]},
    });
    let urgent = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": URGENT}, "value": 1000,
    });
    let mut actions = vec![
        Action::Create("/apis/resource.k8s.io/v1/deviceclasses".to_owned(), class),
        Action::Create(
            "/apis/scheduling.k8s.io/v1/priorityclasses".to_owned(),
            urgent,
        ),
    ];
    actions.extend(NAMESPACES.into_iter().flat_map(namespace));
    actions
}

/// A namespace with what pods of it refer to.
pub fn namespace(name: &str) -> Vec<Action> {
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let one =
        json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": CLASS}}]}});
    let template = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "one"},
        "spec": {"spec": one},
    });
    let shared = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "shared"},
        "spec": one,
    });
    let below = format!("/apis/resource.k8s.io/v1/namespaces/{name}");
    vec![
        Action::Create("/api/v1/namespaces".to_owned(), object),
        Action::Create(format!("{below}/resourceclaimtemplates"), template),
        Action::Create(format!("{below}/resourceclaims"), shared),
    ]
}

/// What users do in the run of a seed, on a cluster of so many nodes.
pub fn of_seed(seed: u64, nodes: usize) -> Vec<Step> {
    let mut generator = Generator {
        rng: stream(seed, 3),
        things: Vec::new(),
        made: 0,
        devices: 0,
        nodes,
    };
    let count = generator.rng.random_range(6..=18);
    let mut steps = Vec::new();
    for _ in 0..count {
        let after = Duration::from_millis(match generator.rng.random_range(0..3) {
            0 => generator.rng.random_range(0..300),
            1 => generator.rng.random_range(300..3000),
            _ => generator.rng.random_range(3000..15_000),
        });
        let action = generator.action();
        steps.push(Step { after, action });
    }
    steps
}

impl Generator {
    fn action(&mut self) -> Action {
        let roll = self.rng.random_range(0..100);
        match roll {
            _ if self.things.is_empty() => self.create(),
            0..30 if self.things.len() < 6 => self.create(),
            0..45 => self.scale(),
            45..65 => self.update(),
            65..80 => self.delete(),
            80..84 => Action::Drain(format!("n{}", self.rng.random_range(0..self.nodes))),
            84..88 => Action::Uncordon(format!("n{}", self.rng.random_range(0..self.nodes))),
            88..91 => self.quota(),
            91..93 => self.budget(),
            93..95 => Action::Delete(
                format!("/api/v1/nodes/n{}", self.rng.random_range(0..self.nodes)),
                json!({}),
            ),
            95 => Action::Delete(
                format!("/api/v1/namespaces/{}", self.namespace()),
                json!({}),
            ),
            _ => Action::DeletePod(self.rng.random_range(0..1000)),
        }
    }

    fn namespace(&mut self) -> &'static str {
        NAMESPACES[self.rng.random_range(0..NAMESPACES.len())]
    }

    fn template(&mut self, name: &str, kind: Kind) -> Value {
        let cpu = format!("{}m", self.rng.random_range(1..=5) * 100);
        let mut container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}, "limits": {}}});
        let mut spec = json!({"terminationGracePeriodSeconds": self.rng.random_range(0..=12)});
        let mut annotations = json!({});
        // what needs devices is so little that there is room for all of it in the end
        if self.devices < 4 && kind != Kind::DaemonSet {
            match self.rng.random_range(0..4) {
                0 => {
                    container["resources"]["limits"][RESOURCE] = json!("1");
                    self.devices += 1;
                }
                1 => {
                    container["resources"]["claims"] = json!([{"name": "devices"}]);
                    spec["resourceClaims"] =
                        json!([{"name": "devices", "resourceClaimTemplateName": "one"}]);
                    self.devices += 1;
                }
                // one device for all pods of the namespace, which has them all on its node
                2 if self.rng.random_bool(0.3) => {
                    container["resources"]["claims"] = json!([{"name": "devices"}]);
                    spec["resourceClaims"] =
                        json!([{"name": "devices", "resourceClaimName": "shared"}]);
                }
                _ => {}
            }
        }
        if self.rng.random_bool(0.15) {
            spec["priorityClassName"] = json!(URGENT);
        }
        if matches!(kind, Kind::Job | Kind::CronJob) {
            spec["restartPolicy"] = json!("Never");
            annotations[RUNS] = json!(self.rng.random_range(1..15).to_string());
            annotations[FAILS] = json!((self.rng.random_range(0..3) * 150).to_string());
        }
        spec["containers"] = json!([container]);
        json!({"metadata": {"labels": {"app": name}, "annotations": annotations}, "spec": spec})
    }

    fn create(&mut self) -> Action {
        let kind = *Kind::ALL.choose(&mut self.rng).unwrap_or(&Kind::Deployment);
        let namespace = self.namespace();
        let name = format!("w{}", self.made);
        self.made += 1;
        let template = self.template(&name, kind);
        let selector = json!({"matchLabels": {"app": name}});
        let replicas = self.rng.random_range(0..=4);
        let spec = match kind {
            Kind::Deployment => json!({
                "replicas": replicas, "selector": selector, "template": template,
                "minReadySeconds": self.rng.random_range(0..=3), "strategy": self.strategy(),
            }),
            Kind::ReplicaSet => {
                json!({"replicas": replicas, "selector": selector, "template": template})
            }
            Kind::StatefulSet => json!({
                "replicas": replicas, "selector": selector, "template": template, "serviceName": name,
                "podManagementPolicy": if self.rng.random_bool(0.5) { "Parallel" } else { "OrderedReady" },
            }),
            Kind::DaemonSet => json!({"selector": selector, "template": template}),
            Kind::Job => self.job(&template),
            Kind::CronJob => json!({
                "schedule": "* * * * *", "jobTemplate": {"spec": self.job(&template)},
                "concurrencyPolicy": *["Allow", "Forbid", "Replace"].choose(&mut self.rng).unwrap_or(&"Allow"),
            }),
        };
        let (group, word) = match kind {
            Kind::Job => ("batch/v1", "Job"),
            Kind::CronJob => ("batch/v1", "CronJob"),
            Kind::Deployment => ("apps/v1", "Deployment"),
            Kind::ReplicaSet => ("apps/v1", "ReplicaSet"),
            Kind::StatefulSet => ("apps/v1", "StatefulSet"),
            Kind::DaemonSet => ("apps/v1", "DaemonSet"),
        };
        let object =
            json!({"apiVersion": group, "kind": word, "metadata": {"name": name}, "spec": spec});
        self.things.push(Thing {
            kind,
            namespace,
            name,
        });
        Action::Create(kind.collection(namespace), object)
    }

    fn strategy(&mut self) -> Value {
        match self.rng.random_range(0..4) {
            0 => json!({"type": "Recreate"}),
            1 => {
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}})
            }
            2 => {
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}})
            }
            _ => {
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}})
            }
        }
    }

    fn job(&mut self, template: &Value) -> Value {
        let completions = self.rng.random_range(1..=4);
        json!({
            "completions": completions, "parallelism": self.rng.random_range(1..=3), "backoffLimit": 1000,
            "completionMode": if self.rng.random_bool(0.4) { "Indexed" } else { "NonIndexed" },
            "template": template,
        })
    }

    /// Something of these kinds.
    fn some(&mut self, kinds: impl Fn(Kind) -> bool) -> Option<usize> {
        let fit: Vec<usize> = (0..self.things.len())
            .filter(|at| kinds(self.things[*at].kind))
            .collect();
        fit.choose(&mut self.rng).copied()
    }

    fn scale(&mut self) -> Action {
        let Some(at) = self.some(Kind::is_scaled) else {
            return self.create();
        };
        let replicas = self.rng.random_range(0..=6);
        Action::Change(
            self.things[at].path(),
            json!({"spec": {"replicas": replicas}}),
        )
    }

    fn update(&mut self) -> Action {
        let change = |kind| matches!(kind, Kind::Deployment | Kind::StatefulSet | Kind::DaemonSet);
        let Some(at) = self.some(change) else {
            return self.create();
        };
        // versions come again: a rollout may go back
        let version = format!("v{}", self.rng.random_range(0..4));
        let change = json!({"spec": {"template": {"metadata": {"labels": {"version": version}}}}});
        Action::Change(self.things[at].path(), change)
    }

    fn delete(&mut self) -> Action {
        let Some(at) = self.some(|_| true) else {
            return self.create();
        };
        let thing = self.things.remove(at);
        let cascade = ["Background", "Foreground", "Orphan"]
            .choose(&mut self.rng)
            .copied();
        let options =
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": cascade});
        Action::Delete(thing.path(), options)
    }

    fn quota(&mut self) -> Action {
        let namespace = self.namespace();
        let object = json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "quota"},
            "spec": {"hard": {"pods": self.rng.random_range(2..8).to_string()}},
        });
        Action::Create(
            format!("/api/v1/namespaces/{namespace}/resourcequotas"),
            object,
        )
    }

    fn budget(&mut self) -> Action {
        let Some(at) = self.some(Kind::is_scaled) else {
            return self.create();
        };
        let thing = &self.things[at];
        let object = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": thing.name},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": thing.name}}},
        });
        let path = format!(
            "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
            thing.namespace
        );
        Action::Create(path, object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_its_steps() {
        assert_eq!(of_seed(5, 3), of_seed(5, 3));
        assert_ne!(of_seed(5, 3), of_seed(6, 3));
    }

    #[test]
    fn every_kind_is_created_and_deleted_by_some_seed() {
        let steps: Vec<Step> = (0..200).flat_map(|seed| of_seed(seed, 3)).collect();
        for kind in Kind::ALL {
            let below = kind.collection("a");
            let is_created =
                |step: &Step| matches!(&step.action, Action::Create(path, _) if *path == below);
            let is_deleted = |step: &Step| matches!(&step.action, Action::Delete(path, _) if path.starts_with(&below));
            assert!(steps.iter().any(is_created), "{kind:?}");
            assert!(steps.iter().any(is_deleted), "{kind:?}");
        }
    }
}
