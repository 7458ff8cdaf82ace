//! Resource requests, limits and lists of quantities.

use std::collections::{HashMap, HashSet};

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use davit_api::quantity::Quantity;
use serde_json::{Value, json};

use super::json::{at, entries_at, list_at, str_at};
use super::pod_defaults::{effective, supported_at_pod_level};

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
const NOT_INTEGER: &str = "must be an integer";
const NO_LIMIT: &str = "Limit must be set for non overcommitable resources";

/// Parts of bytes are no amount of memory.
pub(crate) fn fractions(of: &Value, list: &str, path: &str, warnings: &mut Vec<String>) {
    for resource in ["memory", "ephemeral-storage", "storage"] {
        let value = at(of, &[list, resource]);
        let quantity = Quantity::from_json(value).ok().filter(|_| !value.is_null());
        if let Some(quantity) = quantity.filter(|q| q.milli_value() % 1000 != 0) {
            warnings.push(format!(
                "{path}.{list}[{resource}]: fractional byte value \"{quantity}\" is invalid, must be an integer"
            ));
        }
    }
}

/// Resources without a domain that objects can name.
fn is_standard(name: &str) -> bool {
    const STANDARD: &[&str] = &[
        "cpu",
        "memory",
        "ephemeral-storage",
        "storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
        "requests.storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "pods",
        "services",
        "resourcequotas",
        "replicationcontrollers",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
    ];
    STANDARD.contains(&name)
        || names::is_huge_page_resource(name)
        || name.starts_with("requests.hugepages-")
}

/// Whether quotas count a resource of this name, which has no domain.
pub(super) fn counted_by_quota(name: &str) -> bool {
    is_standard(name) && name != "storage"
}

fn is_standard_for_containers(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || names::is_huge_page_resource(name)
}

/// Whether more may be promised than there is.
pub(super) fn overcommit_allowed(name: &str) -> bool {
    names::is_native_resource(name) && !names::is_huge_page_resource(name)
}

/// Faults of a resource name.
pub(super) fn name(name: &str, path: &Path, errors: &mut ErrorList) -> bool {
    let faults = names::check_qualified_name(name);
    if !faults.is_empty() {
        errors.extend(invalid_each(path, name, faults));
        return false;
    }
    if !name.contains('/') && !is_standard(name) {
        let fault = "must be a standard resource type or fully qualified";
        errors.push(FieldError::invalid(path, name, fault));
        return false;
    }
    true
}

/// Faults of the name of a resource of containers.
pub(super) fn container_resource_name(resource: &str, path: &Path, errors: &mut ErrorList) {
    name(resource, path, errors);
    if !resource.contains('/') {
        if !is_standard_for_containers(resource) {
            let fault = "must be a standard resource for containers";
            errors.push(FieldError::invalid(path, resource, fault));
        }
    } else if !names::is_native_resource(resource) && !names::is_extended_resource(resource) {
        let fault = "doesn't follow extended resource name standard";
        errors.push(FieldError::invalid(path, resource, fault));
    }
}

fn parse(value: &Value) -> Option<Quantity> {
    Quantity::from_json(value).ok()
}

/// Faults of the amount of a resource: negative, or a fraction of something countable.
pub(super) fn amount(resource: &str, value: &Value, path: &Path, errors: &mut ErrorList) {
    let Some(quantity) = parse(value) else {
        let fault = "must be a quantity, e.g. 1, 500m or 1Gi";
        errors.push(FieldError::invalid(path, value.clone(), fault));
        return;
    };
    if quantity.signum() < 0 {
        errors.push(FieldError::invalid(
            path,
            quantity.to_string(),
            NOT_NEGATIVE,
        ));
    }
    let countable = matches!(
        resource,
        "pods"
            | "services"
            | "secrets"
            | "configmaps"
            | "replicationcontrollers"
            | "resourcequotas"
            | "persistentvolumeclaims"
            | "services.nodeports"
            | "services.loadbalancers"
    ) || names::is_extended_resource(resource);
    if countable && !quantity.is_integer() {
        errors.push(FieldError::invalid(path, quantity.to_string(), NOT_INTEGER));
    }
}

/// Faults of what a pod takes besides its containers, which is held against what limits of containers are.
pub(super) fn overhead(overhead: &Value, path: &Path, errors: &mut ErrorList) {
    let limits = json!({ "limits": overhead });
    container(&limits, &HashSet::new(), path, errors);
}

/// What a claim is that a container uses.
const CLAIM_NAMES: &str = "must be one of the names in pod.spec.resourceClaims";

/// Faults of the resource requirements of a container. `claims` are the names of the pod's claims.
pub(super) fn container(
    resources: &Value,
    claims: &HashSet<&str>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let names_allowed = |resource: &str, path: &Path, errors: &mut ErrorList| {
        container_resource_name(resource, path, errors);
    };
    requirements(resources, path, errors, &names_allowed);
    claims_of(
        list_at(resources, &["claims"]),
        claims,
        &path.child("claims"),
        errors,
    );
}

/// Faults of the claims that a container uses, which the pod must name. All requests of a claim are one with each of them.
fn claims_of(used: &[Value], claims: &HashSet<&str>, path: &Path, errors: &mut ErrorList) {
    let mut taken: HashMap<&str, HashSet<&str>> = HashMap::new();
    for (i, claim) in used.iter().enumerate() {
        let path = path.index(i);
        let name = str_at(claim, &["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(&path, ""));
            continue;
        }
        let request = str_at(claim, &["request"]);
        let earlier = taken.entry(name).or_default();
        if earlier.contains("") || (request.is_empty() && !earlier.is_empty()) {
            errors.push(FieldError::duplicate(&path, name));
        } else if !request.is_empty() {
            let faults = names::check_dns1123_label(request);
            errors.extend(invalid_each(&path.child("request"), request, faults));
            if earlier.contains(request) {
                errors.push(FieldError::duplicate(&path, format!("{name}/{request}")));
            }
        }
        earlier.insert(request);
        if !claims.contains(name) {
            let mut there: Vec<&str> = claims.iter().copied().collect();
            there.sort_unstable();
            let mut fault = FieldError::not_found(&path, name);
            fault.detail = match there.join(", ") {
                none if none.is_empty() => format!("{CLAIM_NAMES} which is empty"),
                names => format!("{CLAIM_NAMES}: {names}"),
            };
            errors.push(fault);
        }
    }
}

/// Faults of the resource requirements of a pod as a whole.
pub(super) fn pod(resources: &Value, claims: &HashSet<&str>, path: &Path, errors: &mut ErrorList) {
    let names_allowed = |resource: &str, path: &Path, errors: &mut ErrorList| {
        if name(resource, path, errors) && !supported_at_pod_level(resource) {
            let supported = ["cpu", "hugepages-", "memory"];
            errors.push(FieldError::not_supported(path, resource, &supported));
        }
    };
    // An empty list is one, too.
    if at(resources, &["claims"]).is_array() {
        let why = "claims may not be set for Resources at pod-level";
        errors.push(FieldError::forbidden(&path.child("claims"), why));
    }
    requirements(resources, path, errors, &names_allowed);
    let used = list_at(resources, &["claims"]);
    claims_of(used, claims, &path.child("claims"), errors);
}

/// Faults of what a pod asks for as a whole beside what its containers ask for: quotas and the scheduler count the former,
/// which no container may exceed. `path` is that of the pod's resources.
pub(super) fn pod_and_containers(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let whole = |part: &str| entries_at(spec, &["resources", part]);
    for part in ["requests", "limits"] {
        for (resource, value) in whole(part) {
            // Limits of what can be promised more than once are held to each container.
            let counts = part == "requests" || names::is_huge_page_resource(resource);
            let together = effective(spec, part, resource).filter(|_| counts);
            if let (Some(together), Some(given)) = (together, parse(value))
                && together > given
            {
                let fault = format!(
                    "must be greater than or equal to aggregate container {part} of {together}"
                );
                let path = path.child(part).key(resource);
                errors.push(FieldError::invalid(&path, given.to_string(), fault));
            }
        }
    }
    for (i, container) in list_at(spec, &["containers"]).iter().enumerate() {
        for (resource, value) in whole("limits") {
            let own = parse(at(container, &["resources", "limits", resource]));
            if let (Some(own), Some(given)) = (own, parse(value))
                && own > given
            {
                // so the original calls it
                let path = path
                    .child("containers")
                    .index(i)
                    .key(resource)
                    .child("limits");
                let fault = format!("must be less than or equal to pod limits of {given}");
                errors.push(FieldError::invalid(&path, own.to_string(), fault));
            }
        }
    }
}

fn requirements(
    resources: &Value,
    path: &Path,
    errors: &mut ErrorList,
    names_allowed: &dyn Fn(&str, &Path, &mut ErrorList),
) {
    let (at_limits, at_requests) = (path.child("limits"), path.child("requests"));
    let limits = at(resources, &["limits"]);
    let (mut huge, mut ordinary) = (false, false);
    for (resource, value) in entries_at(limits, &[]) {
        let path = at_limits.key(resource);
        names_allowed(resource, &path, errors);
        amount(resource, value, &path, errors);
        huge |= names::is_huge_page_resource(resource);
        ordinary |= matches!(resource.as_str(), "cpu" | "memory");
    }
    for (resource, value) in entries_at(resources, &["requests"]) {
        let path = at_requests.key(resource);
        names_allowed(resource, &path, errors);
        amount(resource, value, &path, errors);
        huge |= names::is_huge_page_resource(resource);
        ordinary |= matches!(resource.as_str(), "cpu" | "memory");
        let Some(request) = parse(value) else {
            continue;
        };
        match limits.get(resource).and_then(parse) {
            Some(limit) if request != limit && !overcommit_allowed(resource) => {
                let fault = format!("must be equal to {resource} limit of {limit}");
                errors.push(FieldError::invalid(
                    &at_requests,
                    request.to_string(),
                    fault,
                ));
            }
            Some(limit) if request > limit => {
                let fault = format!("must be less than or equal to {resource} limit of {limit}");
                errors.push(FieldError::invalid(
                    &at_requests,
                    request.to_string(),
                    fault,
                ));
            }
            None if !overcommit_allowed(resource) => {
                errors.push(FieldError::required(&at_limits, NO_LIMIT));
            }
            _ => {}
        }
    }
    if huge && !ordinary {
        errors.push(FieldError::forbidden(
            path,
            "HugePages require cpu or memory",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::faults;

    #[test]
    fn overhead_is_a_limit() {
        let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {
            "overhead": {"k": "1"}, "containers": [{"name": "c", "image": "i"}]}});
        let at = "spec.overhead.limits[k]: Invalid value: \"k\": must be a standard resource";
        assert_eq!(
            faults("", "v1", "Pod", &pod),
            format!("{at} type or fully qualified\n{at} for containers")
        );
    }

    /// Quotas count what the pod asks for as a whole, where it does.
    #[test]
    fn no_container_asks_for_more_than_its_pod() {
        let asked = |whole: Value, init: Value, container: Value| {
            let one = |name: &str, resources: Value| json!({"name": name, "image": "i", "resources": resources});
            let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {
                "resources": whole, "initContainers": [one("i", init)],
                "containers": [one("c", container.clone()), one("d", container)]}});
            faults("", "v1", "Pod", &pod)
        };
        let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
        assert_eq!(asked(cpu("2"), cpu("2"), cpu("1")), "");
        assert_eq!(
            asked(cpu("10m"), json!({}), cpu("45")),
            "spec.resources.requests[cpu]: Invalid value: \"10m\": must be greater than or equal to aggregate container \
             requests of 90"
        );
        assert_eq!(
            asked(cpu("2"), cpu("3"), cpu("1")),
            "spec.resources.requests[cpu]: Invalid value: \"2\": must be greater than or equal to aggregate container \
             requests of 3"
        );
        let memory = |request: &str, limit: &str| json!({"requests": {"memory": request}, "limits": {"memory": limit}});
        // Together they may have more than the pod: it is held to its own.
        let whole = memory("2Mi", "3Mi");
        assert_eq!(asked(whole.clone(), json!({}), memory("1Mi", "2Mi")), "");
        assert!(asked(whole, json!({}), memory("1Mi", "1Gi")).contains(
            "spec.resources.containers[0][memory].limits: Invalid value: \"1Gi\": must be less than or equal to pod limits of 3Mi"
        ));
        let huge =
            |amount: &str| json!({"requests": {"cpu": "1m"}, "limits": {"hugepages-2Mi": amount}});
        assert!(
            asked(huge("2Mi"), json!({}), huge("2Mi"))
                .contains("must be greater than or equal to aggregate container limits of 4Mi")
        );
    }
}
