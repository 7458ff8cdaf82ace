//! What a node writes into its own Node.

use std::collections::BTreeSet;

use davit_registry::object;
use serde_json::{Map, Value};

use super::{RestrictionResult, labels};
use crate::{Attributes, Operation};

const RESTRICTED: &str = "node-restriction.kubernetes.io";

/// What a node does with Node objects.
pub(super) fn check(
    node: &str,
    attributes: &Attributes<'_>,
    object: Option<&Value>,
) -> RestrictionResult {
    let name = match attributes.name {
        "" => object.map(object::name).unwrap_or_default(),
        name => name,
    };
    if name != node {
        return Err(format!(
            "node {node:?} is not allowed to modify node {name:?}"
        ));
    }
    let Some(new) = object else { return Ok(()) };
    match (attributes.operation, attributes.old) {
        (Operation::Create, _) => created(node, new),
        (Operation::Update, Some(old)) => updated(node, new, old),
        _ => Ok(()),
    }
}

/// What a node does not say of itself when it registers: others give it its networks, decide when it goes, and collect it.
const NOT_REGISTERED: [&str; 5] = [
    "/spec/podCIDR",
    "/spec/podCIDRs",
    "/spec/configSource",
    "/metadata/ownerReferences",
    "/metadata/finalizers",
];

fn created(node: &str, new: &Value) -> RestrictionResult {
    if let Some(field) = NOT_REGISTERED.iter().find(|field| !is_empty(new, field)) {
        let field = shown(field);
        return Err(format!("node {node:?} is not allowed to set {field}"));
    }
    let forbidden = forbidden_labels(labels(new), None);
    if forbidden.is_empty() {
        return Ok(());
    }
    Err(format!(
        "node {node:?} is not allowed to set the following labels: {}",
        forbidden.join(", ")
    ))
}

/// Of its specification a node changes nothing once it is registered, save that it may tell where it runs if nobody has:
/// a node that was cordoned or tainted stays so.
fn updated(node: &str, new: &Value, old: &Value) -> RestrictionResult {
    let changed = |field: &str| {
        let of = |object: &Value| object.pointer(field).filter(|v| !nothing(v)).cloned();
        of(new) != of(old)
    };
    let fixed = [
        "/spec/taints",
        "/metadata/ownerReferences",
        "/metadata/finalizers",
    ];
    if let Some(field) = fixed.iter().find(|field| changed(field)) {
        let field = field.rsplit('/').next().unwrap_or_default();
        return Err(format!("node {node:?} is not allowed to modify {field}"));
    }
    let told = is_empty(old, "/spec/providerID");
    let names = [new, old].into_iter().filter_map(|o| o["spec"].as_object());
    let names: BTreeSet<&String> = names.flat_map(Map::keys).collect();
    let changed = names
        .into_iter()
        .filter(|name| !(told && *name == "providerID"))
        .find(|name| changed(&format!("/spec/{name}")));
    if let Some(name) = changed {
        return Err(format!(
            "node {node:?} is not allowed to modify spec.{name}"
        ));
    }
    let forbidden = forbidden_labels(labels(new), labels(old));
    if forbidden.is_empty() {
        return Ok(());
    }
    Err(format!(
        "is not allowed to modify labels: {}",
        forbidden.join(", ")
    ))
}

fn is_empty(object: &Value, field: &str) -> bool {
    object.pointer(field).is_none_or(nothing)
}

/// Whether a value says no more than its absence.
fn nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn shown(pointer: &str) -> String {
    pointer.trim_start_matches('/').replace('/', ".")
}

/// The changed labels that a node may not change, sorted.
fn forbidden_labels(
    new: Option<&Map<String, Value>>,
    old: Option<&Map<String, Value>>,
) -> Vec<String> {
    let keys = |labels: Option<&Map<String, Value>>| -> BTreeSet<String> {
        labels.into_iter().flat_map(Map::keys).cloned().collect()
    };
    let value = |labels: Option<&Map<String, Value>>, key: &str| {
        labels.and_then(|labels| labels.get(key).cloned())
    };
    keys(new)
        .union(&keys(old))
        .filter(|key| value(new, key) != value(old, key))
        .filter(|key| !is_nodes_label(key))
        .cloned()
        .collect()
}

/// Labels of kubernetes.io that nodes set themselves.
const NODES_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// Whole label domains that nodes set themselves.
const NODES_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Whether a node may give itself a label of this key: any, but of Kubernetes' own domains only those agreed upon.
pub fn is_nodes_label(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let within = |of: &str| {
        domain == of
            || domain
                .strip_suffix(of)
                .is_some_and(|rest| rest.ends_with('.'))
    };
    if within(RESTRICTED) {
        return false;
    }
    if !within("kubernetes.io") && !within("k8s.io") {
        return true;
    }
    NODES_LABELS.contains(&key) || NODES_DOMAINS.iter().any(|of| within(of))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_of_other_domains_and_the_agreed_ones_are_the_nodes_own() {
        for key in [
            "example.com/a",
            "plain",
            "kubernetes.io/hostname",
            "node.kubernetes.io/anything",
            "sub.kubelet.kubernetes.io/x",
        ] {
            assert!(is_nodes_label(key), "{key}");
        }
        for key in [
            "node-restriction.kubernetes.io/a",
            "a.node-restriction.kubernetes.io/a",
            "kubernetes.io/other",
            "node-role.kubernetes.io/control-plane",
            "other.k8s.io/x",
        ] {
            assert!(!is_nodes_label(key), "{key}");
        }
    }

    #[test]
    fn a_node_registers_itself_and_no_more() {
        let plain = json!({
            "metadata": {"name": "n", "labels": {"kubernetes.io/hostname": "n"}, "ownerReferences": []},
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "unschedulable": true, "providerID": "p"},
        });
        assert_eq!(created("n", &plain), Ok(()));
        for field in NOT_REGISTERED {
            let mut with = plain.clone();
            let value = match field {
                "/spec/podCIDR" => json!("10.0.0.0/8"),
                "/spec/configSource" => json!({"configMap": {}}),
                _ => json!(["x"]),
            };
            let (parent, name) = field.rsplit_once('/').unwrap();
            with.pointer_mut(parent).unwrap()[name] = value;
            assert!(created("n", &with).is_err(), "{field}");
        }
    }

    #[test]
    fn a_registered_node_does_not_free_or_remove_itself() {
        let old = json!({
            "metadata": {"name": "n", "finalizers": ["a/b"]},
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "unschedulable": true},
        });
        let with = |change: &dyn Fn(&mut Value)| {
            let mut new = old.clone();
            change(&mut new);
            updated("n", &new, &old)
        };
        assert_eq!(with(&|new| new["spec"]["podCIDRs"] = json!([])), Ok(()));
        assert_eq!(with(&|new| new["spec"]["providerID"] = json!("p")), Ok(()));
        assert_eq!(
            with(&|new| new["metadata"]["annotations"] = json!({"a": "b"})),
            Ok(())
        );
        let refused = |field: &str| Err(format!("node \"n\" is not allowed to modify {field}"));
        let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "u"}]);
        assert_eq!(
            with(&|new| new["metadata"]["ownerReferences"] = owner.clone()),
            refused("ownerReferences")
        );
        assert_eq!(
            with(&|new| new["metadata"]["finalizers"] = json!([])),
            refused("finalizers")
        );
        assert_eq!(
            with(&|new| new["spec"]["taints"] = json!([])),
            refused("taints")
        );
        assert_eq!(
            with(&|new| new["spec"]["unschedulable"] = json!(false)),
            refused("spec.unschedulable")
        );
        assert_eq!(
            with(&|new| new["spec"]["podCIDR"] = json!("10.0.0.0/8")),
            refused("spec.podCIDR")
        );
        let told = json!({"spec": {"providerID": "p"}});
        let moved = json!({"spec": {"providerID": "q"}});
        assert_eq!(updated("n", &moved, &told), refused("spec.providerID"));
        assert!(
            updated("n", &json!({}), &old).is_err(),
            "no specification at all"
        );
    }
}
