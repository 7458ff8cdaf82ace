//! How much there is room for on each node, in the objects that the scheduler reads.

use super::Shared;
use async_trait::async_trait;
use davit_client::{Informer, ObjectKey};
use davit_reconcile::{Context, Error, Next, Reconcile, Spawner, exists_is_none, gone_is_none};
use davit_volume::{local, provisioning};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::sync::Arc;

const NAMESPACE: &str = "kube-system";
const HOSTNAME: &str = "kubernetes.io/hostname";
/// Label of the objects of this controller.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

pub(super) struct Capacities {
    shared: Arc<Shared>,
    held: Informer<CSIStorageCapacity>,
}

impl Capacities {
    pub(super) fn new(shared: Arc<Shared>, spawner: &mut Spawner<'_>) -> Self {
        Self {
            shared,
            held: spawner.informer(),
        }
    }
}

fn capacity(class: &str, node: &Node, room: u64) -> Value {
    let meta = &node.metadata;
    let name = meta.name.as_deref().unwrap_or_default();
    let labels = meta.labels.as_ref();
    let hostname = labels.and_then(|labels| labels.get(HOSTNAME));
    json!({
        "metadata": {
            "name": local::capacity_name(class, name), "namespace": NAMESPACE,
            "labels": {(MANAGED_BY): local::PROVISIONER},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": meta.uid}],
        },
        "storageClassName": class,
        "nodeTopology": {"matchLabels": {(HOSTNAME): hostname.map_or(name, String::as_str)}},
        "capacity": room.to_string(),
    })
}

impl Capacities {
    async fn write(&self, class: &str, node: &Node, room: u64) -> Result<(), Error> {
        let name = local::capacity_name(class, node.metadata.name.as_deref().unwrap_or_default());
        let what = || format!("capacity {NAMESPACE}/{name}");
        let api: Api<CSIStorageCapacity> = Api::namespaced(self.shared.client.clone(), NAMESPACE);
        let Some(held) = self.held.get(Some(NAMESPACE), &name) else {
            let new: CSIStorageCapacity = serde_json::from_value(capacity(class, node, room))
                .map_err(|error| Error::Invalid(error.to_string()))?;
            let made = api.create(&PostParams::default(), &new).await;
            exists_is_none(made).context(|| format!("create {}", what()))?;
            return Ok(());
        };
        let told = held.capacity.as_ref().and_then(|q| q.0.parse().ok());
        if told.map(provisioning::bytes) == Some(room) {
            return Ok(());
        }
        let patch = Patch::Merge(json!({"capacity": room.to_string()}));
        let patched = api.patch(&name, &PatchParams::default(), &patch).await;
        gone_is_none(patched).context(|| format!("write {}", what()))?;
        Ok(())
    }

    async fn remove(&self, name: &str) -> Result<(), Error> {
        let api: Api<CSIStorageCapacity> = Api::namespaced(self.shared.client.clone(), NAMESPACE);
        gone_is_none(api.delete(name, &DeleteParams::default()).await)
            .context(|| format!("delete capacity {NAMESPACE}/{name}"))?;
        Ok(())
    }
}

#[async_trait]
impl Reconcile for Capacities {
    const NAME: &'static str = "local-volumes-capacity";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        // The objects of a node that is gone are collected with it.
        let Some(node) = self.shared.informers.nodes.get(None, &key.name) else {
            return Ok(Next::Wait);
        };
        let storage = provisioning::storage_of(&node);
        let kept = self.shared.kept_by(&key.name);
        let promised = provisioning::promised(kept.iter().map(|volume| &**volume));
        let mut wanted = Vec::new();
        for class in self.shared.classes.list() {
            let name = class.metadata.name.clone().unwrap_or_default();
            let Some(storage) = storage
                .as_ref()
                .filter(|_| class.provisioner == local::PROVISIONER)
            else {
                continue;
            };
            let room = provisioning::room(storage, promised);
            self.write(&name, &node, room).await?;
            wanted.push(local::capacity_name(&name, &key.name));
        }
        // Of classes that are gone, or of a node that keeps no volumes any more.
        for held in self.held.list() {
            let meta = &held.metadata;
            let labels = meta.labels.as_ref();
            let ours = labels.and_then(|l| l.get(MANAGED_BY)).map(String::as_str);
            let mut owners = meta.owner_references.iter().flatten();
            let name = meta.name.as_deref().unwrap_or_default();
            let stale = ours == Some(local::PROVISIONER)
                && owners.any(|owner| owner.name == key.name)
                && !wanted.iter().any(|wanted| wanted == name);
            if stale {
                self.remove(name).await?;
            }
        }
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capacity_is_of_one_class_on_one_node() {
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "n1", "uid": "u"}})).unwrap();
        let made: CSIStorageCapacity =
            serde_json::from_value(capacity("standard", &node, 42)).unwrap();
        assert_eq!(made.capacity.unwrap().0, "42");
        assert_eq!(
            json!(made.node_topology),
            json!({"matchLabels": {(HOSTNAME): "n1"}})
        );
    }
}
