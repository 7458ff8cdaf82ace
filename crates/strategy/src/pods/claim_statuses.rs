//! What a pod's status says of its claims: their names, the claim for its extended resources, what their devices take of the node.

use std::collections::HashSet;

use davit_api::field::{ErrorList, FieldError, Path, invalid_each};
use davit_api::names;
use davit_api::quantity::Quantity;
use serde_json::Value;

use super::super::json::{at, entries_at, has, list_at, str_at};

/// Faults of what a pod's status says of its claims.
pub(super) fn check(pod: &Value, path: &Path, errors: &mut ErrorList) {
    names_of_claims(pod, &path.child("resourceClaimStatuses"), errors);
    let extended = at(pod, &["status", "extendedResourceClaimStatus"]);
    if !extended.is_null() {
        let path = path.child("extendedResourceClaimStatus");
        extended_resources(pod, extended, &path, errors);
    }
    let path = path.child("nodeAllocatableResourceClaimStatuses");
    for (i, taken) in list_at(pod, &["status", "nodeAllocatableResourceClaimStatuses"])
        .iter()
        .enumerate()
    {
        node_resources(pod, taken, &path.index(i), errors);
    }
}

fn names_of_claims(pod: &Value, path: &Path, errors: &mut ErrorList) {
    let claims = list_at(pod, &["spec", "resourceClaims"]);
    let mut seen = HashSet::new();
    let statuses = list_at(pod, &["status", "resourceClaimStatuses"]);
    for (i, status) in statuses.iter().enumerate() {
        let (name, path) = (str_at(status, &["name"]), path.index(i));
        let at_name = path.child("name");
        if !claims.iter().any(|c| str_at(c, &["name"]) == name) {
            let fault = "must match the name of an entry in `spec.resourceClaims`";
            errors.push(FieldError::invalid(&at_name, name, fault));
        }
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&at_name, name));
        }
        if has(status, &["resourceClaimName"]) {
            claim_name(status, &path, errors);
        }
    }
}

fn claim_name(of: &Value, path: &Path, errors: &mut ErrorList) {
    let name = str_at(of, &["resourceClaimName"]);
    let faults = names::check_dns1123_subdomain(name);
    errors.extend(invalid_each(&path.child("resourceClaimName"), name, faults));
}

fn extended_resources(pod: &Value, status: &Value, path: &Path, errors: &mut ErrorList) {
    let mappings = list_at(status, &["requestMappings"]);
    let at_mappings = path.child("requestMappings");
    if mappings.is_empty() {
        let fault = "at least one request mapping is required";
        errors.push(FieldError::required(&at_mappings, fault));
    }
    let lists = ["initContainers", "containers"].map(|list| list_at(pod, &["spec", list]));
    let mut seen = HashSet::new();
    for (i, mapping) in mappings.iter().enumerate() {
        let path_of = at_mappings.index(i);
        let keys = ["containerName", "resourceName", "requestName"];
        let [container, resource, request] = keys.map(|key| str_at(mapping, &[key]));
        let mut containers = lists.into_iter().flatten();
        match containers.find(|c| str_at(c, &["name"]) == container) {
            Some(found) if has(found, &["resources", "requests", resource]) => {}
            Some(_) => {
                let fault = "must match the extended resource name of an entry in \
                             spec.initContainers.resources.requests or spec.containers.resources.requests";
                let path = path_of.child("resourceName");
                errors.push(FieldError::invalid(&path, resource, fault));
            }
            None => {
                let fault = "must match the name of an entry in spec.initContainers.name or spec.containers.name";
                let path = path_of.child("containerName");
                errors.push(FieldError::invalid(&path, container, fault));
            }
        }
        let faults = names::check_dns1123_label(request);
        // As upstream: without the index.
        errors.extend(invalid_each(&path.child("requestName"), request, faults));
        if !seen.insert([container, resource, request]) {
            for (key, value) in keys.into_iter().zip([container, resource, request]) {
                errors.push(FieldError::duplicate(&path_of.child(key), value));
            }
        }
    }
    if str_at(status, &["resourceClaimName"]).is_empty() {
        errors.push(FieldError::required(&path.child("resourceClaimName"), ""));
    } else {
        claim_name(status, path, errors);
    }
}

fn node_resources(pod: &Value, taken: &Value, path: &Path, errors: &mut ErrorList) {
    let (name, at_name) = (
        str_at(taken, &["resourceClaimName"]),
        path.child("resourceClaimName"),
    );
    if name.is_empty() {
        errors.push(FieldError::required(&at_name, "must not be empty"));
    }
    let named = list_at(pod, &["spec", "resourceClaims"]).iter();
    let mut known = named.chain(list_at(pod, &["status", "resourceClaimStatuses"]));
    if !known.any(|c| at(c, &["resourceClaimName"]) == name) {
        let fault = "no mapping found in pod reference";
        errors.push(FieldError::invalid(&at_name, name, fault));
    }
    if list_at(taken, &["containers"]).is_empty() {
        let path = path.child("containers");
        errors.push(FieldError::required(&path, "must not be empty"));
    }
    let path = path.child("resources");
    if entries_at(taken, &["resources"]).count() == 0 {
        errors.push(FieldError::required(&path, "must not be empty"));
    }
    for (resource, amount) in entries_at(taken, &["resources"]) {
        let path = path.key(resource);
        if !names::is_native_resource(resource) {
            let fault = "must be a node allocatable resource name";
            errors.push(FieldError::invalid(&path, resource.as_str(), fault));
        }
        let amount = Quantity::from_json(amount).unwrap_or(Quantity::ZERO);
        if amount < Quantity::ZERO {
            let fault = "must be non-negative";
            errors.push(FieldError::invalid(&path, amount.to_string(), fault));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{strategy, testing::lines};
    use serde_json::{Value, json};

    fn faults(status: Value) -> String {
        let container = json!({"name": "c", "image": "i", "resources": {
            "requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}, "claims": [{"name": "a"}]}});
        let old = json!({"metadata": {"name": "p", "namespace": "n", "resourceVersion": "1"},
            "spec": {"containers": [container], "resourceClaims": [
                {"name": "a", "resourceClaimName": "direct"}, {"name": "b", "resourceClaimTemplateName": "t"}]},
            "status": {"phase": "Pending"}});
        let mut new = old.clone();
        new["status"] = status;
        let strategy = strategy("", "v1", "Pod");
        lines(&strategy.validate_subresource_update("status", &new, &old))
    }

    #[test]
    fn what_devices_take_of_the_node() {
        let good = json!({"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "made"}],
            "nodeAllocatableResourceClaimStatuses": [
                {"resourceClaimName": "direct", "containers": ["c"], "resources": {"cpu": "2"}},
                {"resourceClaimName": "made", "containers": ["c"], "resources": {"hugepages-2Mi": "0"}}]});
        assert_eq!(faults(good), "");
        let bad = json!({"nodeAllocatableResourceClaimStatuses": [
            {"resourceClaimName": "made", "resources": {"cpu": "-1", "example.com/gpu": "1"}},
            {"containers": ["c"]}]});
        let at = "status.nodeAllocatableResourceClaimStatuses";
        let expected = format!(
            "{at}[0].resourceClaimName: Invalid value: \"made\": no mapping found in pod reference\n\
             {at}[0].containers: Required value: must not be empty\n\
             {at}[0].resources[cpu]: Invalid value: \"-1\": must be non-negative\n\
             {at}[0].resources[example.com/gpu]: Invalid value: \"example.com/gpu\": must be a node allocatable resource name\n\
             {at}[1].resourceClaimName: Required value: must not be empty\n\
             {at}[1].resourceClaimName: Invalid value: \"\": no mapping found in pod reference\n\
             {at}[1].resources: Required value: must not be empty"
        );
        assert_eq!(faults(bad).trim(), expected);
    }

    #[test]
    fn names_of_claims_and_the_claim_for_extended_resources() {
        let mapping = json!({"containerName": "c", "resourceName": "example.com/gpu", "requestName": "container-0-request-0"});
        let extended = |mappings: Value, claim: &str| {
            faults(
                json!({"extendedResourceClaimStatus": {"requestMappings": mappings, "resourceClaimName": claim}}),
            )
        };
        assert_eq!(extended(json!([mapping]), "p-extended-resources-x"), "");
        let at = "status.extendedResourceClaimStatus";
        for (mappings, claim, fault) in [
            (
                json!([]),
                "x",
                "requestMappings: Required value: at least one request mapping is required",
            ),
            (
                json!([mapping, mapping]),
                "x",
                "requestMappings[1].requestName: Duplicate value",
            ),
            (
                json!([{"containerName": "d"}]),
                "x",
                "requestMappings[0].containerName: Invalid value: \"d\"",
            ),
            (
                json!([{"containerName": "c", "resourceName": "cpu"}]),
                "x",
                "requestMappings[0].resourceName: Invalid value: \"cpu\"",
            ),
            (json!([mapping]), "", "resourceClaimName: Required value"),
            (
                json!([mapping]),
                "A",
                "resourceClaimName: Invalid value: \"A\"",
            ),
        ] {
            let told = extended(mappings, claim);
            assert!(told.contains(&format!("{at}.{fault}")), "{told}");
        }
        let twice = faults(
            json!({"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "X"}, {"name": "b"}, {"name": "z"}]}),
        );
        for fault in [
            "[0].resourceClaimName: Invalid value: \"X\"",
            "[1].name: Duplicate value: \"b\"",
            "[2].name: Invalid value: \"z\"",
        ] {
            assert!(twice.contains(fault), "{twice}");
        }
    }
}
