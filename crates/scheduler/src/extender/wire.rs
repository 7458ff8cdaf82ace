//! What goes over the wire: the types of `k8s.io/kube-scheduler/extender/v1`, whose fields have the names of Go. In answers
//! the case of the names does not matter.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::answers::NodeVictims;
use crate::node::NodeInfo;
use crate::pod::PodInfo;

/// Longest sentence that is passed on, in characters.
const LONGEST_REASON: usize = 1024;

/// Longest name that is passed on, in characters: no object has a longer one.
const LONGEST_NAME: usize = 253;

/// A name as the extender writes it, which need not be one.
pub(super) fn shown(name: &str) -> String {
    name.chars().take(LONGEST_NAME).collect()
}

/// An object without `apiVersion` and `kind`, which objects in lists and fields do not have.
fn untyped(object: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    value
}

/// A pod with its status, even if that is empty.
pub(super) fn pod(pod: &PodInfo) -> Value {
    let mut value = untyped(&*pod.pod);
    if value["status"].is_null() {
        value["status"] = json!({});
    }
    value
}

/// A question about nodes: names for an extender that knows the nodes, else their objects.
pub(super) fn nodes(pod: &Value, nodes: &[Arc<NodeInfo>], names_only: bool) -> Value {
    if names_only {
        let names: Vec<&str> = nodes.iter().map(|n| &*n.name).collect();
        return json!({"Pod": pod, "Nodes": null, "NodeNames": names});
    }
    let objects = nodes.iter().filter_map(|n| n.node.as_deref());
    let items: Vec<Value> = objects.map(|node: &Node| untyped(node)).collect();
    json!({"Pod": pod, "Nodes": {"metadata": {}, "items": items}, "NodeNames": null})
}

/// A question about preemptions.
pub(super) fn victims(pod: &Value, candidates: &[NodeVictims], names_only: bool) -> Value {
    let mut by_node = Map::new();
    for candidate in candidates {
        let pods = candidate.pods.iter();
        let pods: Vec<Value> = if names_only {
            pods.map(|p| json!({"UID": &*p.uid})).collect()
        } else {
            pods.map(|p| self::pod(p)).collect()
        };
        let violations = candidate.violations;
        by_node.insert(
            candidate.node.name.to_string(),
            json!({"Pods": pods, "NumPDBViolations": violations}),
        );
    }
    let (whole, meta) = if names_only {
        (Value::Null, Value::Object(by_node))
    } else {
        (Value::Object(by_node), Value::Null)
    };
    json!({"Pod": pod, "NodeNameToVictims": whole, "NodeNameToMetaVictims": meta})
}

/// A request to bind.
pub(super) fn binding(pod: &PodInfo, node: &str) -> Value {
    json!({
        "PodName": &*pod.name,
        "PodNamespace": &*pod.namespace,
        "PodUID": &*pod.uid,
        "Node": node,
    })
}

/// A field of an answer.
fn field<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let fields = answer.as_object().into_iter().flatten();
    let mut fields = fields.filter(|(key, _)| key.eq_ignore_ascii_case(name));
    fields.next().map_or(&Value::Null, |(_, value)| value)
}

/// What the extender says went wrong.
pub(super) fn error_of(answer: &Value) -> Option<String> {
    let error = field(answer, "Error").as_str()?;
    (!error.is_empty()).then(|| error.chars().take(LONGEST_REASON).collect())
}

/// The nodes that the answer leaves; `None`: it leaves none.
pub(super) fn left(answer: &Value, names_only: bool) -> Option<Vec<String>> {
    if names_only && let Some(names) = field(answer, "NodeNames").as_array() {
        let names = names.iter().filter_map(Value::as_str);
        return Some(names.map(str::to_owned).collect());
    }
    let items = field(field(answer, "Nodes"), "items").as_array()?;
    let name = |node: &Value| {
        field(field(node, "metadata"), "name")
            .as_str()
            .map(str::to_owned)
    };
    Some(items.iter().filter_map(name).collect())
}

/// Sentences about nodes.
pub(super) fn reasons(answer: &Value, name: &str) -> BTreeMap<String, String> {
    let entries = field(answer, name).as_object().into_iter().flatten();
    entries
        .map(|(node, reason)| {
            let reason = reason.as_str().unwrap_or_default();
            (node.clone(), reason.chars().take(LONGEST_REASON).collect())
        })
        .collect()
}

/// Scores by node.
pub(super) fn scores(answer: &Value) -> impl Iterator<Item = (&str, i64)> {
    let list = answer.as_array().into_iter().flatten();
    list.filter_map(|entry| {
        Some((
            field(entry, "Host").as_str()?,
            field(entry, "Score").as_i64()?,
        ))
    })
}

/// By node: the UIDs of its victims and how many budgets they break.
pub(super) fn preemptions(answer: &Value) -> Vec<(String, Vec<String>, usize)> {
    let by_node = field(answer, "NodeNameToMetaVictims").as_object();
    let uid = |pod: &Value| field(pod, "UID").as_str().map(str::to_owned);
    by_node
        .into_iter()
        .flatten()
        .map(|(node, victims)| {
            let pods = field(victims, "Pods").as_array().into_iter().flatten();
            let violations = field(victims, "NumPDBViolations").as_u64().unwrap_or(0);
            let violations = usize::try_from(violations).unwrap_or(usize::MAX);
            (node.clone(), pods.filter_map(uid).collect(), violations)
        })
        .collect()
}
