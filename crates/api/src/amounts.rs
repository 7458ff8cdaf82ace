//! Amounts of resources by name: of containers, of pods, of quotas.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::quantity::Quantity;

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

fn containers<'a>(spec: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    spec[list].as_array().into_iter().flatten()
}

/// A JSON map of quantities; what is none is left out.
pub fn of_map(value: Option<&Value>) -> Amounts {
    let entries = value.and_then(Value::as_object).into_iter().flatten();
    entries
        .filter_map(|(name, value)| Some((name.clone(), Quantity::from_json(value).ok()?)))
        .collect()
}

/// Adds `other` to `sum`.
pub fn add(sum: &mut Amounts, other: &Amounts) {
    for (name, value) in other {
        let held = sum.entry(name.clone()).or_default();
        *held += *value;
    }
}

/// Raises `sum` to at least `other`.
fn raise(sum: &mut Amounts, other: &Amounts) {
    for (name, value) in other {
        let held = sum.entry(name.clone()).or_default();
        if *value > *held {
            *held = *value;
        }
    }
}

/// What a pod as a whole requests or may use at most (`requests`, `limits`): the sum of its
/// containers with the sidecars that start before each, or the peak of its init containers,
/// whichever is more; its overhead on top. Resources of the pod level stand for those of the
/// containers. <https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers>
pub fn of_pod(pod: &Value, which: &str) -> Amounts {
    let spec = &pod["spec"];
    let of = |container: &Value| of_map(container["resources"].get(which));
    let mut sum = Amounts::new();
    for container in containers(spec, "containers") {
        add(&mut sum, &of(container));
    }
    let mut sidecars = Amounts::new();
    let mut peak = Amounts::new();
    for container in containers(spec, "initContainers") {
        let mut now = of(container);
        if container["restartPolicy"] == "Always" {
            add(&mut sum, &now);
            add(&mut sidecars, &now);
            now.clone_from(&sidecars);
        } else {
            add(&mut now, &sidecars);
        }
        raise(&mut peak, &now);
    }
    raise(&mut sum, &peak);
    for (name, value) in of_map(spec["resources"].get(which)) {
        sum.insert(name, value);
    }
    let overhead = of_map(spec.get("overhead"));
    if which == "requests" {
        add(&mut sum, &overhead);
    } else {
        // only what is limited at all is limited with the overhead
        for (name, value) in overhead {
            if let Some(held) = sum.get_mut(&name)
                && !held.is_zero()
            {
                *held += value;
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_requests_the_larger_of_its_phases() {
        let c = |cpu: &str| json!({ "resources": { "requests": { "cpu": cpu } } });
        let mut sidecar = c("100m");
        sidecar["restartPolicy"] = json!("Always");
        let pod = json!({ "spec": {
            "containers": [c("200m"), c("300m")],
            "initContainers": [sidecar, c("700m")],
            "overhead": { "cpu": "10m" },
        } });
        assert_eq!(of_pod(&pod, "requests")["cpu"].to_string(), "810m");
        assert!(of_pod(&pod, "limits").is_empty());
    }
}
