//! Plugins about nodes: TaintNodesByCondition, PodTopologyLabels and NodeDeclaredFeatureValidator.

use davit_api::declared_features::{missing, needed_for_update};
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
        let node = pod.pointer("/spec/nodeName").and_then(Value::as_str);
        let Some(name) = node.filter(|name| !name.is_empty()) else {
            return Ok(());
        };
        if pod["spec"] == old["spec"] {
            return Ok(());
        }
        let (before, now) = (old["spec"].clone(), pod["spec"].clone());
        let (Ok(before), Ok(now)) = (from_value(before), from_value(now)) else {
            return Ok(());
        };
        let needed = needed_for_update(&before, &now);
        if needed.is_empty() {
            return Ok(());
        }
        let refused = |why: String| forbidden(attributes, Some(pod), &why);
        let Some(node) = attributes.server.object("", "nodes", "", name).await? else {
            return Err(refused(format!("node {name:?} not found")));
        };
        let declared = node["status"]["declaredFeatures"].as_array();
        let declared = declared.into_iter().flatten().filter_map(Value::as_str);
        let declared: Vec<String> = declared.map(str::to_owned).collect();
        let missing = missing(&needed, &declared);
        if missing.is_empty() {
            return Ok(());
        }
        let list = missing.join(", ");
        Err(refused(format!(
            "pod update requires features {list} which are not available on node {name:?}"
        )))
    }
}
