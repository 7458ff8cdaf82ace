//! LimitRanger: defaults and bounds for the resources of single pods, containers and claims.
//! <https://kubernetes.io/docs/concepts/policy/limit-range/>

use davit_api::quantity::Quantity;
use davit_api::status::Status;
use serde_json::{Value, json};

use super::pods::{Amounts, amounts, containers, containers_mut, total};
use super::{Attributes, Mutating, Operation, Validating, forbidden};

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// The plugin.
pub(super) struct LimitRanger;

/// Requests that limit ranges are about: new pods and claims, claims that grow, pods resized.
fn concerns(attributes: &Attributes<'_>) -> bool {
    match attributes.operation {
        Operation::Create => {
            attributes.is("", "pods") || attributes.is("", "persistentvolumeclaims")
        }
        Operation::Update => {
            attributes.is("", "persistentvolumeclaims")
                || (attributes.about("", "pods") && attributes.subresource == "resize")
        }
        _ => false,
    }
}

async fn ranges(attributes: &Attributes<'_>) -> Result<Vec<Value>, Status> {
    let namespace = Some(attributes.namespace);
    attributes
        .server
        .objects("", "limitranges", namespace)
        .await
}

fn limits(range: &Value) -> impl Iterator<Item = &Value> {
    let list = range.pointer("/spec/limits").and_then(Value::as_array);
    list.into_iter().flatten()
}

impl Mutating for LimitRanger {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let is_pod = attributes.is("", "pods") && attributes.operation == Operation::Create;
        let Some(pod) = object.filter(|_| is_pod) else {
            return Ok(());
        };
        for range in ranges(attributes).await? {
            fill(pod, &range);
        }
        Ok(())
    }
}

impl Validating for LimitRanger {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(object) = object.filter(|_| concerns(attributes)) else {
            return Ok(());
        };
        let is_pod = attributes.about("", "pods");
        for range in ranges(attributes).await? {
            let faults = if is_pod {
                pod_faults(object, &range)
            } else {
                claim_faults(object, &range)
            };
            match faults.as_slice() {
                [] => {}
                [one] => return Err(forbidden(attributes, Some(object), one.clone())),
                many => {
                    let why = format!("[{}]", many.join(", "));
                    return Err(forbidden(attributes, Some(object), why));
                }
            }
        }
        Ok(())
    }
}

/// Gives containers what they do not say themselves, and notes it in an annotation.
fn fill(pod: &mut Value, range: &Value) {
    let mut requests = serde_json::Map::new();
    let mut caps = serde_json::Map::new();
    for limit in limits(range).filter(|limit| limit["type"] == "Container") {
        requests.extend(
            limit["defaultRequest"]
                .as_object()
                .cloned()
                .unwrap_or_default(),
        );
        caps.extend(limit["default"].as_object().cloned().unwrap_or_default());
    }
    let mut notes = Vec::new();
    for (list, what) in [
        ("containers", "container"),
        ("initContainers", "init container"),
    ] {
        for container in containers_mut(&mut pod["spec"], &[list]) {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            for (which, defaults, word) in [
                ("requests", &requests, "request"),
                ("limits", &caps, "limit"),
            ] {
                let set = fill_one(container, which, defaults);
                if !set.is_empty() {
                    notes.push(format!("{} {word} for {what} {name}", set.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        if !pod["metadata"]["annotations"].is_object() {
            pod["metadata"]["annotations"] = json!({});
        }
        let note = format!("LimitRanger plugin set: {}", notes.join("; "));
        pod["metadata"]["annotations"][ANNOTATION] = json!(note);
    }
}

fn fill_one(
    container: &mut Value,
    which: &str,
    defaults: &serde_json::Map<String, Value>,
) -> Vec<String> {
    let mut set = Vec::new();
    for (name, value) in defaults {
        if !container["resources"][which][name.as_str()].is_null() {
            continue;
        }
        for path in [None, Some(which)] {
            let target = match path {
                None => &mut container["resources"],
                Some(key) => &mut container["resources"][key],
            };
            if !target.is_object() {
                *target = json!({});
            }
        }
        container["resources"][which][name.as_str()] = value.clone();
        set.push(name.clone());
    }
    set.sort_unstable();
    set
}

fn pod_faults(pod: &Value, range: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    for limit in limits(range) {
        match limit["type"].as_str() {
            Some("Container") => {
                for container in containers(&pod["spec"], &["containers", "initContainers"]) {
                    let resources = &container["resources"];
                    let requests = amounts(resources.get("requests"));
                    let caps = amounts(resources.get("limits"));
                    bounds(limit, "Container", &requests, &caps, &mut faults);
                }
            }
            Some("Pod") => {
                let (requests, caps) = (total(pod, "requests"), total(pod, "limits"));
                bounds(limit, "Pod", &requests, &caps, &mut faults);
            }
            _ => {}
        }
    }
    faults
}

fn bounds(limit: &Value, what: &str, requests: &Amounts, caps: &Amounts, faults: &mut Vec<String>) {
    for (name, bound) in amounts(limit.get("min")) {
        let usage = format!("minimum {name} usage per {what} is {bound}");
        match (requests.get(&name), caps.get(&name)) {
            (None, _) => faults.push(format!("{usage}.  No request is specified")),
            (Some(request), _) if *request < bound => {
                faults.push(format!("{usage}, but request is {request}"));
            }
            (_, Some(cap)) if *cap < bound => {
                faults.push(format!("{usage}, but limit is {cap}"));
            }
            _ => {}
        }
    }
    for (name, bound) in amounts(limit.get("max")) {
        let usage = format!("maximum {name} usage per {what} is {bound}");
        match (requests.get(&name), caps.get(&name)) {
            (_, None) => faults.push(format!("{usage}.  No limit is specified")),
            (_, Some(cap)) if *cap > bound => {
                faults.push(format!("{usage}, but limit is {cap}"));
            }
            (Some(request), _) if *request > bound => {
                faults.push(format!("{usage}, but request is {request}"));
            }
            _ => {}
        }
    }
    for (name, bound) in amounts(limit.get("maxLimitRequestRatio")) {
        let usage = format!("{name} max limit to request ratio per {what} is {bound}");
        let given = |held: Option<&Quantity>| held.copied().filter(|value| !value.is_zero());
        let Some(request) = given(requests.get(&name)) else {
            faults.push(format!(
                "{usage}, but no request is specified or request is 0"
            ));
            continue;
        };
        let Some(cap) = given(caps.get(&name)) else {
            faults.push(format!("{usage}, but no limit is specified or limit is 0"));
            continue;
        };
        let ratio = cap.as_f64() / request.as_f64();
        if ratio > bound.as_f64() {
            faults.push(format!("{usage}, but provided ratio is {ratio:.6}"));
        }
    }
}

fn claim_faults(claim: &Value, range: &Value) -> Vec<String> {
    const WHAT: &str = "PersistentVolumeClaim";
    let requests = amounts(claim.pointer("/spec/resources/requests"));
    let mut faults = Vec::new();
    for limit in limits(range).filter(|limit| limit["type"] == WHAT) {
        for (key, word) in [("min", "minimum"), ("max", "maximum")] {
            for (name, bound) in amounts(limit.get(key)) {
                let usage = format!("{word} {name} usage per {WHAT} is {bound}");
                match requests.get(&name) {
                    None => faults.push(format!("{usage}.  No request is specified")),
                    Some(held)
                        if (key == "min" && *held < bound) || (key == "max" && *held > bound) =>
                    {
                        faults.push(format!("{usage}, but request is {held}"));
                    }
                    Some(_) => {}
                }
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range() -> Value {
        json!({ "spec": { "limits": [{
            "type": "Container",
            "default": { "cpu": "200m" }, "defaultRequest": { "cpu": "100m", "memory": "1Mi" },
            "min": { "cpu": "50m" }, "max": { "cpu": "1" },
            "maxLimitRequestRatio": { "cpu": "4" },
        }] } })
    }

    #[test]
    fn item_177_defaults_are_filled_and_noted() {
        let mut pod = json!({ "metadata": {}, "spec": { "containers": [{ "name": "c" }] } });
        fill(&mut pod, &range());
        let resources = &pod["spec"]["containers"][0]["resources"];
        assert_eq!(resources["limits"], json!({ "cpu": "200m" }));
        assert_eq!(
            resources["requests"],
            json!({ "cpu": "100m", "memory": "1Mi" })
        );
        assert_eq!(
            pod["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu, memory request for container c; cpu limit for container c"
        );
        assert!(pod_faults(&pod, &range()).is_empty());
    }

    #[test]
    fn item_177_what_is_out_of_bounds_is_told() {
        let faults = |request: &str, limit: &str| {
            let resources = json!({ "requests": { "cpu": request }, "limits": { "cpu": limit } });
            let pod =
                json!({ "spec": { "containers": [{ "name": "c", "resources": resources }] } });
            pod_faults(&pod, &range())
        };
        assert_eq!(
            faults("500m", "2"),
            ["maximum cpu usage per Container is 1, but limit is 2"]
        );
        assert_eq!(
            faults("10m", "40m"),
            ["minimum cpu usage per Container is 50m, but request is 10m"]
        );
        assert_eq!(
            faults("100m", "500m"),
            ["cpu max limit to request ratio per Container is 4, but provided ratio is 5.000000"]
        );
    }
}
