//! What several plugins ask of pods: their containers and what they request.

use std::collections::BTreeMap;

use davit_api::quantity::Quantity;
use serde_json::{Map, Value};

/// Amounts by resource name.
pub(super) type Amounts = BTreeMap<String, Quantity>;

/// Lists of containers in a pod's spec, ephemeral ones last.
pub(super) const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The containers of the lists named.
pub(super) fn containers<'a>(
    spec: &'a Value,
    lists: &'a [&'a str],
) -> impl Iterator<Item = &'a Value> {
    lists
        .iter()
        .flat_map(|list| spec[*list].as_array().into_iter().flatten())
}

/// The containers of the lists named, for writing.
pub(super) fn containers_mut<'a>(
    spec: &'a mut Value,
    lists: &'a [&'a str],
) -> impl Iterator<Item = &'a mut Value> {
    let found = spec.as_object_mut().into_iter().flat_map(Map::iter_mut);
    found
        .filter(|(key, _)| lists.contains(&key.as_str()))
        .flat_map(|(_, list)| list.as_array_mut().into_iter().flatten())
}

/// A map of quantities.
pub(super) fn amounts(value: Option<&Value>) -> Amounts {
    let entries = value.and_then(Value::as_object).into_iter().flatten();
    entries
        .filter_map(|(name, value)| Some((name.clone(), Quantity::from_json(value).ok()?)))
        .collect()
}

/// Adds `other` to `sum`.
pub(super) fn add(sum: &mut Amounts, other: &Amounts) {
    for (name, value) in other {
        let held = sum.entry(name.clone()).or_default();
        *held = *held + *value;
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
pub(super) fn total(pod: &Value, which: &str) -> Amounts {
    let spec = &pod["spec"];
    let of = |container: &Value| amounts(container["resources"].get(which));
    let mut sum = Amounts::new();
    for container in containers(spec, &["containers"]) {
        add(&mut sum, &of(container));
    }
    let mut sidecars = Amounts::new();
    let mut peak = Amounts::new();
    for container in containers(spec, &["initContainers"]) {
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
    for (name, value) in amounts(spec["resources"].get(which)) {
        sum.insert(name, value);
    }
    let overhead = amounts(spec.get("overhead"));
    if which == "requests" {
        add(&mut sum, &overhead);
    } else {
        // only what is limited at all is limited with the overhead
        for (name, value) in overhead {
            if let Some(held) = sum.get_mut(&name)
                && !held.is_zero()
            {
                *held = *held + value;
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
        assert_eq!(total(&pod, "requests")["cpu"].to_string(), "810m");
        assert!(total(&pod, "limits").is_empty());
    }
}
