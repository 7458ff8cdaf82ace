//! What the status of a controller of pods can be: numbers that fit each other.

use davit_api::field::{ErrorList, FieldError, Path};
use serde_json::Value;

use super::super::fields::counts;
use super::super::json::{at, int_at};

const ABOVE_REPLICAS: &str = "cannot be greater than status.replicas";

pub(super) fn deployment(new: &Value, old: &Value, errors: &mut ErrorList) {
    let keys = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ];
    let bounded = ["updatedReplicas", "readyReplicas", "availableReplicas"];
    replicas(new, &keys, &bounded, "readyReplicas", errors);
    collisions(new, old, errors);
}

/// Of replica sets and replication controllers.
pub(super) fn replica_set(new: &Value, errors: &mut ErrorList) {
    let keys = [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ];
    let bounded = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    replicas(new, &keys, &bounded, "readyReplicas", errors);
}

pub(super) fn stateful_set(new: &Value, old: &Value, errors: &mut ErrorList) {
    let keys = [
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ];
    let bounded = [
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
    ];
    replicas(new, &keys, &bounded, "status.readyReplicas", errors);
    collisions(new, old, errors);
}

pub(super) fn daemon_set(new: &Value, old: &Value, errors: &mut ErrorList) {
    let keys = [
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ];
    counts(at(new, &["status"]), &keys, &Path::new("status"), errors);
    collisions(new, old, errors);
}

fn replicas(new: &Value, keys: &[&str], bounded: &[&str], ready: &str, errors: &mut ErrorList) {
    let path = Path::new("status");
    let status = at(new, &["status"]);
    counts(status, keys, &path, errors);
    let of = |key: &str| int_at(status, &[key]).unwrap_or(0);
    for key in bounded {
        if of(key) > of("replicas") {
            errors.push(FieldError::invalid(
                &path.child(key),
                of(key),
                ABOVE_REPLICAS,
            ));
        }
    }
    let available = of("availableReplicas");
    if available > of("readyReplicas") {
        let fault = format!("cannot be greater than {ready}");
        let path = path.child("availableReplicas");
        errors.push(FieldError::invalid(&path, available, fault));
    }
}

fn collisions(new: &Value, old: &Value, errors: &mut ErrorList) {
    let of = |obj| int_at(obj, &["status", "collisionCount"]);
    let now = of(new).unwrap_or(0);
    if of(old).is_some_and(|before| of(new).is_none() || now < before) {
        let path = Path::new("status").child("collisionCount");
        errors.push(FieldError::invalid(&path, now, "cannot be decremented"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::status_faults;

    #[test]
    fn numbers_of_a_status_fit_each_other() {
        let of = |status: Value| json!({"metadata": {"name": "x", "namespace": "default"}, "spec": {}, "status": status});
        let old = of(json!({"collisionCount": 2}));
        let cases = [
            (
                "Deployment",
                json!({"replicas": 1, "readyReplicas": 2, "collisionCount": 2}),
                "status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas",
            ),
            (
                "Deployment",
                json!({"replicas": 2, "readyReplicas": 1, "availableReplicas": 2, "collisionCount": 2}),
                "status.availableReplicas: Invalid value: 2: cannot be greater than readyReplicas",
            ),
            (
                "Deployment",
                json!({"collisionCount": 1}),
                "status.collisionCount: Invalid value: 1: cannot be decremented",
            ),
            (
                "ReplicaSet",
                json!({"replicas": -1}),
                "status.replicas: Invalid value: -1: must be greater than or equal to 0\n\
                 status.fullyLabeledReplicas: Invalid value: 0: cannot be greater than status.replicas\n\
                 status.readyReplicas: Invalid value: 0: cannot be greater than status.replicas\n\
                 status.availableReplicas: Invalid value: 0: cannot be greater than status.replicas",
            ),
            (
                "StatefulSet",
                json!({"replicas": 2, "readyReplicas": 1, "availableReplicas": 2, "collisionCount": 2}),
                "status.availableReplicas: Invalid value: 2: cannot be greater than status.readyReplicas",
            ),
            (
                "DaemonSet",
                json!({"numberReady": -1, "collisionCount": 2}),
                "status.numberReady: Invalid value: -1: must be greater than or equal to 0",
            ),
        ];
        for (kind, status, wanted) in cases {
            assert_eq!(status_faults("apps", "v1", kind, &of(status), &old), wanted);
        }
    }
}
