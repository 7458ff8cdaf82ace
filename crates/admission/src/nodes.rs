//! Plugins about nodes: TaintNodesByCondition, PodTopologyLabels, NodeDeclaredFeatureValidator and
//! PodResizeValidator.

use std::sync::Arc;

use davit_api::amounts::{of_map, of_pod};
use davit_api::declared_features::{missing, needed_for_update};
use davit_api::quantity::Quantity;
use davit_api::status::Status;
use serde_json::{Value, from_value, json};

use super::{Attributes, Mutating, Operation, Validating, forbidden};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const TOPOLOGY: [&str; 2] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
];

/// A new node gets no pods before it has said that it is ready.
pub(super) struct TaintNodesByCondition;

impl Mutating for TaintNodesByCondition {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let creates = attributes.is("", "nodes") && attributes.operation == Operation::Create;
        let Some(node) = object.filter(|_| creates) else {
            return Ok(());
        };
        if !node["spec"].is_object() {
            node["spec"] = json!({});
        }
        let taints = &mut node["spec"]["taints"];
        if !taints.is_array() {
            *taints = json!([]);
        }
        if let Some(taints) = taints.as_array_mut() {
            let is_there =
                |taint: &Value| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule";
            if !taints.iter().any(is_there) {
                taints.push(json!({ "key": NOT_READY, "effect": "NoSchedule" }));
            }
        }
        Ok(())
    }
}

/// A pod learns the zone and region of its node when it is bound to it.
/// KEP-4742.
pub(super) struct PodTopologyLabels;

impl Mutating for PodTopologyLabels {
    async fn admit(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Value>,
    ) -> Result<(), Status> {
        let binds = attributes.operation == Operation::Create && attributes.kind().2 == "Binding";
        let Some(binding) = object.filter(|_| binds) else {
            return Ok(());
        };
        let node = binding.pointer("/target/name").and_then(Value::as_str);
        let Some(node) = node.filter(|name| !name.is_empty()) else {
            return Ok(());
        };
        let Some(node) = attributes.server.object("", "nodes", "", node).await? else {
            return Ok(());
        };
        let labels = davit_api::meta::labels(&node);
        for key in TOPOLOGY {
            if let Some(value) = labels.and_then(|labels| labels.get(key)) {
                if !binding["metadata"]["labels"].is_object() {
                    binding["metadata"]["labels"] = json!({});
                }
                binding["metadata"]["labels"][key] = value.clone();
            }
        }
        Ok(())
    }
}

/// A pod on a node changes only in ways that the node says it can follow.
/// KEP-5328.
pub(super) struct DeclaredFeatures;

impl Validating for DeclaredFeatures {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let changes = attributes.about("", "pods")
            && matches!(attributes.subresource, "" | "resize")
            && attributes.operation == Operation::Update;
        let (Some(pod), Some(old)) = (object.filter(|_| changes), attributes.old) else {
            return Ok(());
        };
        let Some(name) = changed_on(pod, old) else {
            return Ok(());
        };
        let (before, now) = (old["spec"].clone(), pod["spec"].clone());
        let (Ok(before), Ok(now)) = (from_value(before), from_value(now)) else {
            return Ok(());
        };
        let needed = needed_for_update(&before, &now);
        if needed.is_empty() {
            return Ok(());
        }
        let node = node_of(attributes, pod, name).await?;
        let declared = node["status"]["declaredFeatures"].as_array();
        let declared = declared.into_iter().flatten().filter_map(Value::as_str);
        let declared: Vec<String> = declared.map(str::to_owned).collect();
        let missing = missing(&needed, &declared);
        if missing.is_empty() {
            return Ok(());
        }
        let list = missing.join(", ");
        let why =
            format!("pod update requires features {list} which are not available on node {name:?}");
        Err(forbidden(attributes, Some(pod), why))
    }
}

/// The node of a pod whose spec changes.
fn changed_on<'a>(pod: &'a Value, old: &Value) -> Option<&'a str> {
    let name = pod.pointer("/spec/nodeName").and_then(Value::as_str)?;
    (!name.is_empty() && pod["spec"] != old["spec"]).then_some(name)
}

async fn node_of(
    attributes: &Attributes<'_>,
    pod: &Value,
    name: &str,
) -> Result<Arc<Value>, Status> {
    let node = attributes.server.object("", "nodes", "", name).await?;
    node.ok_or_else(|| forbidden(attributes, Some(pod), format!("node {name:?} not found")))
}

/// A pod does not grow beyond what its node has at all.
/// KEP-1287.
pub(super) struct PodResize;

impl Validating for PodResize {
    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
    ) -> Result<(), Status> {
        let resizes = attributes.about("", "pods")
            && attributes.subresource == "resize"
            && attributes.operation == Operation::Update;
        let (Some(pod), Some(old)) = (object.filter(|_| resizes), attributes.old) else {
            return Ok(());
        };
        let Some(name) = changed_on(pod, old) else {
            return Ok(());
        };
        let node = node_of(attributes, pod, name).await?;
        let refused = |why: String, cause: &str| {
            Err(forbidden(attributes, Some(pod), why).with_cause(cause, "", ""))
        };
        let os = davit_api::meta::labels(&node).and_then(|l| l.get("kubernetes.io/os"));
        if let Some(os) = os.and_then(Value::as_str).filter(|os| *os != "linux") {
            let why =
                format!("pod resize is only supported on linux nodes, node {name:?} is {os:?}");
            return refused(why, "UnsupportedPlatform");
        }
        let requests = of_pod(pod, "requests");
        let allocatable = of_map(node["status"].get("allocatable"));
        let too_much = |resource: &str, amount: fn(Quantity) -> i64| {
            let asked = requests.get(resource).copied().unwrap_or_default();
            let there = allocatable.get(resource).copied().unwrap_or_default();
            (asked > there).then(|| {
                let (asked, there) = (amount(asked), amount(there));
                format!("{resource}, requested: {asked}, allocatable: {there}")
            })
        };
        let faults: Vec<String> = [
            too_much("cpu", Quantity::milli_value),
            too_much("memory", Quantity::value),
        ]
        .into_iter()
        .flatten()
        .collect();
        if faults.is_empty() {
            return Ok(());
        }
        let list = faults.join("; ");
        let why = format!("node didn't have enough allocatable resources: {list}");
        refused(why, "NodeCapacity")
    }
}
