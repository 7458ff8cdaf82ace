//! What objects count for in a `ResourceQuota`: the words shared by the admission plugin, which
//! counts what is about to be made, and the controller, which counts what is there.
//! <https://kubernetes.io/docs/concepts/policy/resource-quotas/>

use std::collections::BTreeMap;

use serde_json::Value;

use crate::amounts::{Amounts, add, of_map, of_pod};
use crate::quantity::{Format, Quantity};

const PODS: &str = "pods";
const NATIVE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// Resources that every container must ask for itself where a quota counts them.
const EXPLICIT: [&str; 6] = [
    "cpu",
    "limits.cpu",
    "limits.memory",
    "memory",
    "requests.cpu",
    "requests.memory",
];
/// Kinds of the core group that are also counted under their plain name.
const PLAIN: [&str; 6] = [
    "configmaps",
    "persistentvolumeclaims",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
];
/// What a claim for all devices of a class counts for: the most one may get.
const ALL_DEVICES: i64 = 32;
const STORAGE: &str = "storageclass.storage.k8s.io";
const DEVICES: &str = "deviceclass.resource.k8s.io/devices";
/// How device classes are asked for as extended resources that have no name of their own, as quotas bound it.
const IMPLICIT: &str = "requests.deviceclass.resource.kubernetes.io/";
const CLASSIC: &str = "resourceclass.resource.k8s.io/claims";

fn one(n: i64) -> Quantity {
    Quantity::new(n, Format::DecimalSi)
}

/// What an object of the resource counts for; `finished` pods count as objects only.
pub fn usage(group: &str, plural: &str, object: &Value) -> Amounts {
    let mut used = Amounts::new();
    used.insert(count_name(group, plural), one(1));
    if group.is_empty() && PLAIN.contains(&plural) {
        used.insert(plural.to_owned(), one(1));
    }
    match (group, plural) {
        ("", PODS) if !is_finished(object) => pod(object, &mut used),
        ("", "services") => service(object, &mut used),
        ("", "persistentvolumeclaims") => volume_claim(object, &mut used),
        ("resource.k8s.io", "resourceclaims") => device_claim(object, &mut used),
        _ => {}
    }
    used
}

/// What quotas count claims by beside themselves: classes that serve extended resources, and pods that were charged for
/// such resources already.
#[derive(Debug, Default)]
pub struct Extended {
    /// The extended resource each class serves.
    names: BTreeMap<String, String>,
    /// Pods of the namespace by UID.
    pods: BTreeMap<String, Value>,
    /// UID of a pod, and the name of the first claim that was made for its extended resources.
    first: BTreeMap<String, (String, String)>,
}

impl Extended {
    /// Whether a quota with these bounds counts extended resources.
    pub fn concerns(hard: &Amounts) -> bool {
        hard.keys().any(|name| is_extended(name))
    }

    /// Whether a bound of this name is one on an extended resource.
    pub fn concerns_name(name: &str) -> bool {
        is_extended(name)
    }

    /// Reads the device classes of the cluster and the pods and claims of a namespace.
    pub fn new(classes: &[Value], pods: Vec<Value>, claims: &[Value]) -> Self {
        let text = |of: &Value, at: &str| {
            let found = of.pointer(at).and_then(Value::as_str);
            found.unwrap_or_default().to_owned()
        };
        let names = classes
            .iter()
            .map(|class| {
                (
                    text(class, "/metadata/name"),
                    text(class, "/spec/extendedResourceName"),
                )
            })
            .filter(|(_, name)| !name.is_empty());
        let mut first: BTreeMap<String, (String, String)> = BTreeMap::new();
        for claim in claims {
            let Some((_, uid)) = served_pod(claim) else {
                continue;
            };
            let made = text(claim, "/metadata/creationTimestamp");
            let this = (made, text(claim, "/metadata/name"));
            let held = first.entry(uid.to_owned()).or_insert_with(|| this.clone());
            if this < *held {
                *held = this;
            }
        }
        Self {
            names: names.collect(),
            pods: pods
                .into_iter()
                .map(|pod| (text(&pod, "/metadata/uid"), pod))
                .collect(),
            first,
        }
    }

    /// As [`usage`], with what claims use of extended resources. What the pod of a claim was charged for is not counted
    /// twice.
    pub fn usage(&self, group: &str, plural: &str, object: &Value) -> Amounts {
        let mut used = usage(group, plural, object);
        if (group, plural) != ("resource.k8s.io", "resourceclaims") {
            return used;
        }
        let mut more = Amounts::new();
        for (name, amount) in &used {
            let class = name.strip_suffix(DEVICES).and_then(|c| c.strip_suffix('.'));
            let Some(class) = class.filter(|class| !class.is_empty()) else {
                continue;
            };
            more.insert(format!("{IMPLICIT}{class}"), *amount);
            if let Some(name) = self.names.get(class) {
                *more.entry(format!("requests.{name}")).or_default() += *amount;
            }
        }
        let charged = self.charged_to_pod(object);
        for (name, mut amount) in more {
            if let Some(held) = charged.get(&name) {
                amount -= *held;
            }
            if amount > Quantity::ZERO {
                used.insert(name, amount);
            }
        }
        used
    }

    /// What the pod was charged for whose extended resources the claim serves.
    fn charged_to_pod(&self, claim: &Value) -> Amounts {
        let own = claim["metadata"]["name"].as_str().unwrap_or_default();
        let found = served_pod(claim).and_then(|(name, uid)| {
            let pod = self.pods.get(uid)?;
            let told = pod.pointer("/status/extendedResourceClaimStatus/resourceClaimName");
            let is_it = match told.and_then(Value::as_str) {
                Some(told) => told == own,
                // one that is being made comes after all others
                None => self.first.get(uid).is_none_or(|(_, first)| first == own),
            };
            (is_it && pod["metadata"]["name"] == name).then_some(pod)
        });
        found.map_or_else(Amounts::new, |pod| usage("", PODS, pod))
    }
}

/// Name and UID of the pod for whose extended resources a claim was made.
fn served_pod(claim: &Value) -> Option<(&str, &str)> {
    let annotations = claim.pointer("/metadata/annotations")?;
    if annotations.get("resource.kubernetes.io/extended-resource-claim")? != "true" {
        return None;
    }
    let owners = claim.pointer("/metadata/ownerReferences")?.as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    let is_pod = owner["kind"] == "Pod" && owner["apiVersion"] == "v1";
    is_pod.then_some((owner["name"].as_str()?, owner["uid"].as_str()?))
}

/// A bound on an extended resource.
fn is_extended(name: &str) -> bool {
    name.strip_prefix("requests.")
        .is_some_and(|resource| resource.contains('/'))
}

/// `count/pods`, `count/deployments.apps`.
pub fn count_name(group: &str, plural: &str) -> String {
    if group.is_empty() {
        format!("count/{plural}")
    } else {
        format!("count/{plural}.{group}")
    }
}

/// Group and plural name of the kinds whose objects count for a resource name.
pub fn counted_kinds(name: &str) -> impl Iterator<Item = (&str, &str)> {
    let claims = is_extended(name).then_some(("resource.k8s.io", "resourceclaims"));
    counted_kind(name).into_iter().chain(claims)
}

/// The kind whose objects count for a resource name in the first place; none for a name that nothing counts for.
fn counted_kind(name: &str) -> Option<(&str, &str)> {
    if let Some(kind) = name.strip_prefix("count/") {
        return Some(match kind.split_once('.') {
            Some((plural, group)) => (group, plural),
            None => ("", kind),
        });
    }
    if PLAIN.contains(&name) {
        return Some(("", name));
    }
    if name == "requests.storage" || name.contains(STORAGE) {
        return Some(("", "persistentvolumeclaims"));
    }
    if name.starts_with("services.") {
        return Some(("", "services"));
    }
    if name.ends_with(DEVICES) || name.ends_with(CLASSIC) {
        return Some(("resource.k8s.io", "resourceclaims"));
    }
    let of_pods = name == PODS
        || NATIVE.contains(&name)
        || name.starts_with("requests.")
        || name.starts_with("limits.")
        || name.starts_with("hugepages-");
    of_pods.then_some(("", PODS))
}

/// A pod that uses nothing any more.
fn is_finished(pod: &Value) -> bool {
    matches!(
        pod.pointer("/status/phase").and_then(Value::as_str),
        Some("Succeeded" | "Failed")
    )
}

fn pod(object: &Value, used: &mut Amounts) {
    used.insert(PODS.to_owned(), one(1));
    add(
        used,
        &compute(&of_pod(object, "requests"), &of_pod(object, "limits")),
    );
}

/// The names under which requests and limits are counted.
fn compute(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut used = Amounts::new();
    for (name, value) in requests {
        let huge = name.starts_with("hugepages-");
        if NATIVE.contains(&name.as_str()) || huge {
            used.insert(name.clone(), *value);
        }
        if NATIVE.contains(&name.as_str()) || huge || name.contains('/') {
            used.insert(format!("requests.{name}"), *value);
        }
    }
    for (name, value) in limits {
        if NATIVE.contains(&name.as_str()) {
            used.insert(format!("limits.{name}"), *value);
        }
    }
    used
}

fn service(object: &Value, used: &mut Amounts) {
    let spec = &object["spec"];
    let ports = spec["ports"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let all = i64::try_from(ports.len()).unwrap_or(i64::MAX);
    let (nodes, balancers) = match spec["type"].as_str() {
        Some("NodePort") => (all, 0),
        Some("LoadBalancer") if spec["allocateLoadBalancerNodePorts"] == false => {
            let set = ports
                .iter()
                .filter(|port| port["nodePort"].as_i64().unwrap_or(0) != 0);
            (i64::try_from(set.count()).unwrap_or(i64::MAX), 1)
        }
        Some("LoadBalancer") => (all, 1),
        _ => (0, 0),
    };
    used.insert("services.nodeports".to_owned(), one(nodes));
    used.insert("services.loadbalancers".to_owned(), one(balancers));
}

fn volume_claim(object: &Value, used: &mut Amounts) {
    let class = object["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"]
        .as_str()
        .or_else(|| object["spec"]["storageClassName"].as_str())
        .unwrap_or_default();
    if !class.is_empty() {
        used.insert(format!("{class}.{STORAGE}/persistentvolumeclaims"), one(1));
    }
    let requests = of_map(object.pointer("/spec/resources/requests"));
    if let Some(size) = requests.get("storage") {
        used.insert("requests.storage".to_owned(), *size);
        if !class.is_empty() {
            used.insert(format!("{class}.{STORAGE}/requests.storage"), *size);
        }
    }
}

fn device_claim(object: &Value, used: &mut Amounts) {
    // the classic form names one class for the whole claim
    if let Some(class) = object["spec"]["resourceClassName"].as_str() {
        used.insert(format!("{class}.{CLASSIC}"), one(1));
    }
    let requests = object
        .pointer("/spec/devices/requests")
        .and_then(Value::as_array);
    for request in requests.into_iter().flatten() {
        let mut wanted: Vec<(String, i64)> = Vec::new();
        let exact = request.get("exactly").filter(|exact| exact.is_object());
        wanted.extend(devices(exact.unwrap_or(request)));
        // of alternatives only one is taken, whichever it is
        for alternative in request["firstAvailable"].as_array().into_iter().flatten() {
            if let Some((class, count)) = devices(alternative) {
                match wanted.iter_mut().find(|(held, _)| *held == class) {
                    Some((_, held)) => *held = count.max(*held),
                    None => wanted.push((class, count)),
                }
            }
        }
        for (class, count) in wanted {
            let held = used.entry(format!("{class}.{DEVICES}")).or_default();
            *held += one(count);
        }
    }
}

fn devices(request: &Value) -> Option<(String, i64)> {
    let class = request["deviceClassName"]
        .as_str()
        .filter(|class| !class.is_empty())?;
    let count = match request["allocationMode"].as_str() {
        Some("All") => ALL_DEVICES,
        _ => request["count"].as_i64().unwrap_or(1),
    };
    Some((class.to_owned(), count))
}

/// Whether the scopes of a quota choose an object.
pub fn in_scope(quota: &Value, group: &str, plural: &str, object: &Value) -> bool {
    let spec = &quota["spec"];
    let scopes = spec["scopes"].as_array().into_iter().flatten();
    let plain = scopes
        .filter_map(Value::as_str)
        .map(|scope| (scope, "Exists", &Value::Null));
    let selected = spec["scopeSelector"]["matchExpressions"].as_array();
    let selected = selected.into_iter().flatten().map(|term| {
        let text = |key: &str| term[key].as_str().unwrap_or_default();
        (text("scopeName"), text("operator"), &term["values"])
    });
    plain
        .chain(selected)
        .all(|(scope, operator, values)| chosen(scope, operator, values, group, plural, object))
}

/// Whether a pod's spec is in the scope `Terminating`: it has a deadline.
pub fn is_terminating(spec: &Value) -> bool {
    let deadline = spec["activeDeadlineSeconds"].as_i64();
    deadline.is_some_and(|seconds| seconds >= 0)
}

fn chosen(
    scope: &str,
    operator: &str,
    values: &Value,
    group: &str,
    plural: &str,
    object: &Value,
) -> bool {
    let spec = &object["spec"];
    if (group, plural) == ("", "persistentvolumeclaims") {
        let class = spec["volumeAttributesClassName"]
            .as_str()
            .unwrap_or_default();
        return scope == "VolumeAttributesClass" && compares(class, operator, values);
    }
    if (group, plural) != ("", PODS) {
        return false;
    }
    match scope {
        "Terminating" => is_terminating(spec),
        "NotTerminating" => !is_terminating(spec),
        "BestEffort" => is_best_effort(spec),
        "NotBestEffort" => !is_best_effort(spec),
        "PriorityClass" => {
            let class = spec["priorityClassName"].as_str().unwrap_or_default();
            compares(class, operator, values)
        }
        "CrossNamespacePodAffinity" => reaches_other_namespaces(spec),
        _ => false,
    }
}

fn compares(held: &str, operator: &str, values: &Value) -> bool {
    let among = values
        .as_array()
        .is_some_and(|list| list.iter().any(|value| value == held));
    match operator {
        "In" => among,
        "NotIn" => !among,
        "Exists" => !held.is_empty(),
        "DoesNotExist" => held.is_empty(),
        _ => false,
    }
}

fn is_best_effort(spec: &Value) -> bool {
    let asks = |of: &Value| {
        ["requests", "limits"].iter().any(|which| {
            let amounts = of_map(of["resources"].get(*which));
            amounts
                .iter()
                .any(|(name, value)| matches!(name.as_str(), "cpu" | "memory") && !value.is_zero())
        })
    };
    let containers = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| spec[*list].as_array().into_iter().flatten());
    !asks(spec) && !containers.into_iter().any(asks)
}

fn reaches_other_namespaces(spec: &Value) -> bool {
    let of = |kind: &str, list: &str| {
        let terms = spec["affinity"][kind][list].as_array();
        terms.cloned().unwrap_or_default()
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let required = of(kind, "requiredDuringSchedulingIgnoredDuringExecution");
        let preferred = of(kind, "preferredDuringSchedulingIgnoredDuringExecution");
        let preferred = preferred.iter().map(|term| &term["podAffinityTerm"]);
        required.iter().chain(preferred).any(|term| {
            term["namespaces"]
                .as_array()
                .is_some_and(|list| !list.is_empty())
                || term["namespaceSelector"].is_object()
        })
    })
}

/// What a pod's containers must ask for themselves because a quota counts it: the text of the
/// refusal, if something is missing.
pub fn missing(pod: &Value, counted: &Amounts) -> Option<String> {
    let spec = &pod["spec"];
    let mut texts = Vec::new();
    let at_pod = compute(
        &of_map(spec["resources"].get("requests")),
        &of_map(spec["resources"].get("limits")),
    );
    for name in EXPLICIT.iter().filter(|name| counted.contains_key(**name)) {
        if at_pod.contains_key(*name) {
            continue;
        }
        let mut silent: Vec<&str> = ["containers", "initContainers"]
            .iter()
            .flat_map(|list| spec[*list].as_array().into_iter().flatten())
            .filter(|container| {
                let of = |which: &str| of_map(container["resources"].get(which));
                !compute(&of("requests"), &of("limits")).contains_key(*name)
            })
            .filter_map(|container| container["name"].as_str())
            .collect();
        silent.sort_unstable();
        if !silent.is_empty() {
            texts.push(format!("{name} for: {}", silent.join(",")));
        }
    }
    (!texts.is_empty()).then(|| format!("must specify {}", texts.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(used: &Amounts) -> Vec<String> {
        used.iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    #[test]
    fn item_177_pods_count_for_requests_limits_and_devices() {
        let mut pod = json!({ "spec": { "containers": [{ "name": "c", "resources": {
            "requests": { "cpu": "100m", "vendor.com/device": "2" },
            "limits": { "cpu": "1", "vendor.com/device": "2" },
        } }] } });
        let used = usage("", "pods", &pod);
        assert_eq!(
            shown(&used),
            [
                "count/pods=1",
                "cpu=100m",
                "limits.cpu=1",
                "pods=1",
                "requests.cpu=100m",
                "requests.vendor.com/device=2",
            ]
        );
        let counted = of_map(Some(
            &json!({ "requests.memory": "1Gi", "requests.cpu": "1" }),
        ));
        assert_eq!(
            missing(&pod, &counted).unwrap(),
            "must specify requests.memory for: c"
        );
        pod["status"] = json!({ "phase": "Succeeded" });
        assert_eq!(shown(&usage("", "pods", &pod)), ["count/pods=1"]);
    }

    #[test]
    fn item_177_claims_count_for_the_devices_of_their_classes() {
        let claim = json!({ "spec": { "devices": { "requests": [
            { "name": "a", "exactly": { "deviceClassName": "gpu", "count": 2 } },
            { "name": "b", "exactly": { "deviceClassName": "nic", "allocationMode": "All" } },
            { "name": "c", "firstAvailable": [
                { "deviceClassName": "gpu", "count": 1 }, { "deviceClassName": "gpu", "count": 3 },
            ] },
        ] } } });
        assert_eq!(
            shown(&usage("resource.k8s.io", "resourceclaims", &claim)),
            [
                "count/resourceclaims.resource.k8s.io=1",
                "gpu.deviceclass.resource.k8s.io/devices=5",
                "nic.deviceclass.resource.k8s.io/devices=32",
            ]
        );
    }

    #[test]
    fn item_88_extended_resources_are_counted_once() {
        let classes = [
            json!({ "metadata": { "name": "gpu" }, "spec": { "extendedResourceName": "example.com/gpu" } }),
            json!({ "metadata": { "name": "nic" }, "spec": {} }),
        ];
        let pod = json!({
            "metadata": { "name": "p", "uid": "u" },
            "spec": { "containers": [{ "resources": { "requests": { "example.com/gpu": "2" } } }] },
        });
        let request = |class: &str, count: i32| {
            json!({ "name": "r", "exactly": {
            "deviceClassName": class, "allocationMode": "ExactCount", "count": count } })
        };
        let made = |name: &str, at: &str, count: i32| {
            json!({
                "metadata": {
                    "name": name, "creationTimestamp": at,
                    "annotations": { "resource.kubernetes.io/extended-resource-claim": "true" },
                    "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true }],
                },
                "spec": { "devices": { "requests": [request("gpu", count)] } },
            })
        };
        let (first, second) = (
            made("b", "2026-01-01T00:00:00Z", 3),
            made("a", "2026-01-01T00:00:01Z", 3),
        );
        let claims = [first.clone(), second.clone()];
        let extended = Extended::new(&classes, vec![pod.clone()], &claims);
        let of = |extended: &Extended, claim: &Value| {
            shown(&extended.usage("resource.k8s.io", "resourceclaims", claim))
        };
        assert_eq!(
            of(&extended, &first),
            [
                "count/resourceclaims.resource.k8s.io=1",
                "gpu.deviceclass.resource.k8s.io/devices=3",
                "requests.deviceclass.resource.kubernetes.io/gpu=3",
                "requests.example.com/gpu=1",
            ]
        );
        // the second claim of the pod is charged in full, as one without a pod is
        let whole = [
            "count/resourceclaims.resource.k8s.io=1",
            "gpu.deviceclass.resource.k8s.io/devices=3",
            "requests.deviceclass.resource.kubernetes.io/gpu=3",
            "requests.example.com/gpu=3",
        ];
        assert_eq!(of(&extended, &second), whole);
        let without = Extended::new(&classes, Vec::new(), &claims);
        assert_eq!(of(&without, &first), whole);
        let mut told = pod;
        told["status"]["extendedResourceClaimStatus"]["resourceClaimName"] = json!("a");
        let extended = Extended::new(&classes, vec![told], &claims);
        assert_eq!(of(&extended, &first), whole);
        let plain = json!({ "spec": { "devices": { "requests": [request("nic", 1)] } } });
        assert_eq!(
            of(&extended, &plain),
            [
                "count/resourceclaims.resource.k8s.io=1",
                "nic.deviceclass.resource.k8s.io/devices=1",
                "requests.deviceclass.resource.kubernetes.io/nic=1",
            ]
        );
        let kinds: Vec<_> = counted_kinds("requests.example.com/gpu").collect();
        assert_eq!(kinds, [("", "pods"), ("resource.k8s.io", "resourceclaims")]);
        assert_eq!(counted_kinds("requests.cpu").count(), 1);
    }

    #[test]
    fn services_and_volume_claims_have_counts_of_their_own() {
        let service = json!({ "spec": { "type": "LoadBalancer", "ports": [{}, {}] } });
        let used = usage("", "services", &service);
        assert_eq!(used["services.nodeports"], one(2));
        assert_eq!(used["services.loadbalancers"], one(1));
        let claim = json!({ "spec": {
            "storageClassName": "fast", "resources": { "requests": { "storage": "2Gi" } },
        } });
        let used = usage("", "persistentvolumeclaims", &claim);
        assert_eq!(
            used["fast.storageclass.storage.k8s.io/requests.storage"].to_string(),
            "2Gi"
        );
        for name in used.keys() {
            assert_eq!(
                counted_kind(name),
                Some(("", "persistentvolumeclaims")),
                "{name}"
            );
        }
    }

    #[test]
    fn scopes_choose_pods() {
        let pod = json!({ "spec": {
            "priorityClassName": "high", "activeDeadlineSeconds": 5, "containers": [{}],
        } });
        let quota = |spec: Value| json!({ "spec": spec });
        let matches = |spec: Value| in_scope(&quota(spec), "", "pods", &pod);
        assert!(matches(json!({})));
        assert!(matches(json!({ "scopes": ["Terminating", "BestEffort"] })));
        assert!(!matches(json!({ "scopes": ["NotTerminating"] })));
        let by_class = |operator: &str, values: Value| {
            json!({ "scopeSelector": { "matchExpressions": [
                { "scopeName": "PriorityClass", "operator": operator, "values": values },
            ] } })
        };
        assert!(matches(by_class("In", json!(["high"]))));
        assert!(!matches(by_class("NotIn", json!(["high"]))));
        assert!(!in_scope(
            &quota(json!({ "scopes": ["BestEffort"] })),
            "",
            "secrets",
            &json!({})
        ));
    }
}
