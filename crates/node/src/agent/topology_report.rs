//! Publishes the node's NUMA nodes as a NodeResourceTopology object (topology.node.k8s.io/v1alpha2,
//! the shape of the scheduler-plugins project), so that schedulers bind only what the node accepts.
//!
//! Only nodes with a topology manager policy publish; where the kind is not served yet, the
//! CustomResourceDefinition is created first.

use crate::context::Context;
use davit_topology::published::{ATTRIBUTE, Count, NodeState};
use davit_topology::{NumaMask, PolicyKind};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, PostParams};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Changes that come together are published together.
const SETTLE: Duration = Duration::from_millis(20);
/// Pause after a failure, and the longest time without a look.
const RETRY: Duration = Duration::from_secs(2);
const RESYNC: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_secs(15);

/// Publishes after each change until `cancel`.
pub(super) async fn run(ctx: Arc<Context>, cancel: CancellationToken) {
    if ctx.devices.topology_policy() == PolicyKind::None {
        return cancel.cancelled().await;
    }
    let resource = ApiResource {
        group: "topology.node.k8s.io".to_owned(),
        version: "v1alpha2".to_owned(),
        api_version: "topology.node.k8s.io/v1alpha2".to_owned(),
        kind: "NodeResourceTopology".to_owned(),
        plural: "noderesourcetopologies".to_owned(),
    };
    let api: Api<DynamicObject> = Api::all_with(ctx.client.clone(), &resource);
    let mut changes = ctx.devices.subscribe();
    let mut written: Option<Value> = None;
    let mut pause = Duration::ZERO;
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            changed = changes.changed(), if pause == RESYNC => {
                if changed.is_err() {
                    return;
                }
                tokio::time::sleep(SETTLE).await;
            }
        }
        changes.borrow_and_update();
        let body = content(&ctx.devices.published());
        if pause == RESYNC && written.as_ref() == Some(&body) {
            continue;
        }
        let work = publish(&ctx, &api, &body);
        let published = tokio::select! {
            () = cancel.cancelled() => return,
            published = tokio::time::timeout(DEADLINE, work) => published,
        };
        pause = match published {
            Ok(Ok(())) => {
                written = Some(body);
                RESYNC
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "topology of the node not published");
                RETRY
            }
            Err(_) => RETRY,
        };
    }
}

async fn publish(ctx: &Context, api: &Api<DynamicObject>, body: &Value) -> Result<(), kube::Error> {
    let name = &ctx.options.node_name;
    let mut object = json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name},
    });
    let fields = object.as_object_mut().into_iter();
    fields
        .zip(body.as_object())
        .for_each(|(object, body)| object.extend(body.clone()));
    let found = match api.get_opt(name).await {
        // A cluster without the kind answers like one without the object.
        Ok(found) => found,
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        Err(error) => return Err(error),
    };
    if let Some(old) = found {
        object["metadata"]["resourceVersion"] = json!(old.metadata.resource_version);
        let new: DynamicObject = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
        api.replace(name, &PostParams::default(), &new).await?;
        return Ok(());
    }
    if let Some(node) = ctx.registered_node().await? {
        // It goes with the node.
        object["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "Node", "name": name, "uid": node.metadata.uid,
        }]);
    }
    let new: DynamicObject = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    match api.create(&PostParams::default(), &new).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => {
            define(&ctx.client).await?;
            // Served in a moment; the next try finds it.
            Err(kube::Error::Api(status))
        }
        Err(error) => Err(error),
    }
}

/// Creates the CustomResourceDefinition of NodeResourceTopologies, unless it is there: nodes may not where their
/// identities are those of nodes.
///
/// # Errors
/// The API server cannot be reached or refuses it.
pub async fn define(client: &kube::Client) -> Result<(), kube::Error> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definition = serde_json::from_value(definition()).map_err(kube::Error::SerdeError)?;
    match api.create(&PostParams::default(), &definition).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error),
    }
}

fn definition() -> Value {
    let text = json!({"type": "string"});
    let amount = json!({"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true});
    let pairs = json!({"type": "array", "items": {
        "type": "object", "required": ["name", "value"], "properties": {"name": text, "value": text}}});
    let resources = json!({"type": "array", "items": {
        "type": "object", "required": ["name", "capacity", "allocatable", "available"],
        "properties": {"name": text, "capacity": amount, "allocatable": amount, "available": amount}}});
    let costs = json!({"type": "array", "items": {
        "type": "object", "required": ["name", "value"],
        "properties": {"name": text, "value": {"type": "integer", "format": "int64"}}}});
    let zones = json!({"type": "array", "items": {
        "type": "object", "required": ["name", "type"],
        "properties": {"name": text, "type": text, "parent": text, "costs": costs,
                       "attributes": pairs, "resources": resources}}});
    let schema = json!({
        "type": "object", "required": ["zones"],
        "properties": {
            "apiVersion": text, "kind": text, "metadata": {"type": "object"},
            "topologyPolicies": {"type": "array", "items": text},
            "attributes": pairs, "zones": zones,
        },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "noderesourcetopologies.topology.node.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"},
        },
        "spec": {
            "group": "topology.node.k8s.io",
            "scope": "Cluster",
            "names": {"kind": "NodeResourceTopology", "listKind": "NodeResourceTopologyList",
                      "plural": "noderesourcetopologies", "singular": "noderesourcetopology",
                      "shortNames": ["node-res-topo"]},
            "versions": [{"name": "v1alpha2", "served": true, "storage": true,
                          "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

/// The object without its metadata.
fn content(state: &NodeState) -> Value {
    let zone_name = |id: u32| format!("node-{id}");
    let zones: Vec<Value> = state
        .nodes
        .iter()
        .enumerate()
        .map(|(row, id)| {
            let costs: Vec<Value> = state
                .distances
                .get(row)
                .into_iter()
                .flatten()
                .zip(&state.nodes)
                .map(|(distance, to)| json!({"name": zone_name(*to), "value": distance}))
                .collect();
            json!({
                "name": zone_name(*id),
                "type": "Node",
                "costs": costs,
                "resources": resources(state, *id),
            })
        })
        .collect();
    let policy = serde_json::to_value(state.policy).unwrap_or_default();
    let scope = if state.pod_scope { "pod" } else { "container" };
    json!({
        "topologyPolicies": [old_policy_name(state)],
        "attributes": [
            {"name": "topologyManagerPolicy", "value": policy},
            {"name": "topologyManagerScope", "value": scope},
            {"name": ATTRIBUTE, "value": serde_json::to_string(state).unwrap_or_default()},
        ],
        "zones": zones,
    })
}

/// The policy and scope in one word, as consumers before the attributes read them.
fn old_policy_name(state: &NodeState) -> &'static str {
    match (state.policy, state.pod_scope) {
        (PolicyKind::None, _) => "None",
        (PolicyKind::BestEffort, false) => "BestEffortContainerLevel",
        (PolicyKind::BestEffort, true) => "BestEffortPodLevel",
        (PolicyKind::Restricted, false) => "RestrictedContainerLevel",
        (PolicyKind::Restricted, true) => "RestrictedPodLevel",
        (PolicyKind::SingleNumaNode, false) => "SingleNUMANodeContainerLevel",
        (PolicyKind::SingleNumaNode, true) => "SingleNUMANodePodLevel",
    }
}

fn resources(state: &NodeState, id: u32) -> Vec<Value> {
    let node = NumaMask::single(id).unwrap_or(NumaMask::EMPTY);
    let amounts = |name: &str, [all, reserved, available]: [u64; 3]| {
        let allocatable = all.saturating_sub(reserved);
        json!({"name": name, "capacity": all.to_string(), "allocatable": allocatable.to_string(),
               "available": available.to_string()})
    };
    let sum = |counts: &[Count], of: fn(&Count) -> usize| -> u64 {
        let here = counts.iter().filter(|c| c.nodes.intersects(node));
        here.map(|c| of(c) as u64).sum()
    };
    let mut found: Vec<Value> = state
        .counts
        .iter()
        .map(|(name, counts)| {
            let of: [fn(&Count) -> usize; 3] = [|c| c.all, |c| c.reserved, |c| c.available];
            amounts(name, of.map(|of| sum(counts, of)))
        })
        .collect();
    let memory = state.memory.iter().filter_map(|m| m.nodes().get(&id));
    for (kind, table) in memory.flat_map(|n| &n.memory) {
        found.push(json!({"name": kind, "capacity": table.total.to_string(),
            "allocatable": table.allocatable.to_string(), "available": table.free.to_string()}));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_carry_what_the_scheduler_plugins_read() {
        let state: NodeState = serde_json::from_value(json!({
            "policy": "single-numa-node", "nodes": [0, 1], "distances": [[10, 21], [21, 10]],
            "counts": {"cpu": [{"nodes": 1, "all": 4, "available": 3}, {"nodes": 2, "all": 4, "available": 3, "reserved": 1}],
                       "a.com/x": [{"nodes": 3, "all": 2, "available": 1}]},
        }))
        .unwrap();
        let object = content(&state);
        assert_eq!(
            object["topologyPolicies"][0],
            "SingleNUMANodeContainerLevel"
        );
        assert_eq!(object["attributes"][0]["value"], "single-numa-node");
        let zone = &object["zones"][1];
        assert_eq!(
            (&zone["name"], &zone["type"]),
            (&json!("node-1"), &json!("Node"))
        );
        assert_eq!(zone["costs"][0], json!({"name": "node-0", "value": 21}));
        assert_eq!(
            zone["resources"],
            json!([
                {"name": "a.com/x", "capacity": "2", "allocatable": "2", "available": "1"},
                {"name": "cpu", "capacity": "4", "allocatable": "3", "available": "3"},
            ])
        );
        let carried = object["attributes"][2]["value"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<NodeState>(carried).unwrap(), state);
        let _: CustomResourceDefinition = serde_json::from_value(definition()).unwrap();
    }
}
