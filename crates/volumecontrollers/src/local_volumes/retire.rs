//! The end of local volumes: the object goes after the data, or with the node that had it.

use super::Shared;
use async_trait::async_trait;
use davit_client::{ObjectKey, object_ref};
use davit_reconcile::{Context, Error, Next, Reconcile, gone_is_none};
use davit_volume::annotations::EXTERNAL_PROVISIONER;
use davit_volume::local::{self, State};
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// When to look again whether a node has come back that is not there.
const RETRY: Duration = Duration::from_secs(30);

pub(super) struct Volumes(pub(super) Arc<Shared>);

/// What is to be done with a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It is in use, or stays as it is.
    Keep,
    /// Its node has removed the data, or the data stays by the administrator's will: the finalizer goes.
    LetGo,
    /// As [`LetGo`](Self::LetGo), and the object is deleted.
    Delete,
    /// The data waits for its node.
    Wait,
}

fn next_step(volume: &PersistentVolume) -> Step {
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|s| s.persistent_volume_reclaim_policy.as_deref());
    let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
    let deleting = volume.metadata.deletion_timestamp.is_some();
    match (phase, policy, deleting) {
        (Some("Released"), Some("Delete"), _) => match (State::of(&volume.metadata), deleting) {
            (Some(State::Removed), false) => Step::Delete,
            (Some(State::Removed), true) => Step::LetGo,
            _ => Step::Wait,
        },
        // Who deletes the object of a volume that is to be kept, keeps the data.
        (Some("Released"), _, true) => Step::LetGo,
        _ => Step::Keep,
    }
}

#[async_trait]
impl Reconcile for Volumes {
    const NAME: &'static str = "local-volumes-end";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(volume) = self.0.informers.volumes.get(None, &key.name) else {
            return Ok(Next::Wait);
        };
        let mut step = next_step(&volume);
        if step == Step::Wait {
            if !self.is_node_gone(&volume).await? {
                return Ok(Next::Wait);
            }
            let text = "the node that kept the volume is gone, and its data with it";
            let reference = object_ref(&*volume);
            self.0.events.warning(&reference, "VolumeDelete", text);
            step = Step::Delete;
        }
        match step {
            Step::Keep | Step::Wait => return Ok(Next::After(RETRY)),
            Step::LetGo => self.let_go(&volume).await?,
            Step::Delete => {
                self.delete(&volume).await?;
                self.let_go(&volume).await?;
            }
        }
        Ok(Next::Wait)
    }
}

impl Volumes {
    /// Only the API server itself knows that a node is not there any more.
    async fn is_node_gone(&self, volume: &PersistentVolume) -> Result<bool, Error> {
        if self.0.keeper(volume).is_some() {
            return Ok(false);
        }
        let nodes: Api<Node> = Api::all(self.0.client.clone());
        let live = nodes.list(&ListParams::default()).await;
        let live = live.context(|| "list nodes".to_owned())?;
        let labels = volume.metadata.labels.as_ref();
        let keeps = |node: &Node| {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            local::is_kept_by(labels, name)
        };
        Ok(!live.items.iter().any(keeps))
    }

    async fn delete(&self, volume: &PersistentVolume) -> Result<(), Error> {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let api: Api<PersistentVolume> = Api::all(self.0.client.clone());
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: volume.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        gone_is_none(api.delete(name, &params).await)
            .context(|| format!("delete persistent volume {name}"))?;
        Ok(())
    }

    async fn let_go(&self, volume: &PersistentVolume) -> Result<(), Error> {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let api: Api<PersistentVolume> = Api::all(self.0.client.clone());
        let live = gone_is_none(api.get(name).await)
            .context(|| format!("read persistent volume {name}"))?;
        let Some(live) = live.filter(|live| live.metadata.uid == volume.metadata.uid) else {
            return Ok(());
        };
        let held = live.metadata.finalizers.unwrap_or_default();
        let left: Vec<&String> = held.iter().filter(|f| *f != EXTERNAL_PROVISIONER).collect();
        if left.len() == held.len() {
            return Ok(());
        }
        let patch = json!({"metadata": {
            "resourceVersion": live.metadata.resource_version, "finalizers": left,
        }});
        let patched = api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        gone_is_none(patched).context(|| format!("release persistent volume {name}"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_goes_after_the_data() {
        let volume = |phase: &str, policy: &str, state: &str, deleting: bool| -> PersistentVolume {
            let mut made = json!({
                "metadata": {"name": "pvc-1", "annotations": {(local::STATE): state}},
                "spec": {"persistentVolumeReclaimPolicy": policy}, "status": {"phase": phase},
            });
            if deleting {
                made["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            serde_json::from_value(made).unwrap()
        };
        for (volume, step) in [
            (volume("Bound", "Delete", "Ready", false), Step::Keep),
            (volume("Bound", "Delete", "Ready", true), Step::Keep),
            (volume("Released", "Retain", "Ready", false), Step::Keep),
            (volume("Released", "Retain", "Ready", true), Step::LetGo),
            (volume("Released", "Delete", "Ready", false), Step::Wait),
            (volume("Released", "Delete", "Removed", false), Step::Delete),
            (volume("Released", "Delete", "Removed", true), Step::LetGo),
        ] {
            assert_eq!(next_step(&volume), step);
        }
    }
}
