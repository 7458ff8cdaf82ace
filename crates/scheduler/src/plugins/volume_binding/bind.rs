//! Taking volumes for a pod: assumed at once, written before the pod is bound, and waited for.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use davit_volume::annotations::SELECTED_NODE;
use davit_volume::binding::{
    annotation, bind_volume, claim_ref, is_fully_bound, selected_node, uid_of, volume_name,
};
use davit_volume::matching::fits_node;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::PostParams;
use tokio::time::Instant;

use super::{Data, Found, VolumeBinding};
use crate::framework::{CycleState, PreBind, Status};
use crate::pod::PodInfo;
use crate::storage::Storage;

/// How long the API server may take to answer.
const DEADLINE: Duration = Duration::from_secs(30);
/// How often is looked at what is waited for, if nothing is heard of it.
const POLL: Duration = Duration::from_secs(1);

/// Takes what was found, so that no other pod does.
pub(super) fn assume(storage: &Storage, found: &Found, node: &str) -> Found {
    let mut out = Found {
        node: found.node.clone(),
        waits: found.waits.clone(),
        ..Found::default()
    };
    for (claim, volume) in &found.bindings {
        let bound = bind_volume(volume, claim).map_or_else(|| volume.clone(), Arc::new);
        storage.assume_volume(bound.clone());
        out.bindings.push((claim.clone(), bound));
    }
    for claim in &found.provisions {
        let mut selected = (**claim).clone();
        let annotations = selected.metadata.annotations.get_or_insert_default();
        annotations.insert(SELECTED_NODE.to_owned(), node.to_owned());
        let selected = Arc::new(selected);
        storage.assume_claim(selected.clone());
        out.provisions.push(selected);
    }
    out
}

/// Gives back what was taken and may not have been written.
pub(super) fn forget(storage: &Storage, reserved: &Found) {
    for (_, volume) in &reserved.bindings {
        storage.forget_volume(volume.metadata.name.as_deref().unwrap_or_default());
    }
    for claim in &reserved.provisions {
        let meta = &claim.metadata;
        storage.forget_claim(
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        );
    }
}

#[async_trait]
impl PreBind for VolumeBinding {
    async fn pre_bind(&self, state: &CycleState, pod: &PodInfo, node: &str) -> Status {
        let reserved = state
            .get::<Data>()
            .and_then(|data| data.reserved.lock().clone());
        let Some(reserved) = reserved.filter(|reserved| !reserved.waits.is_empty()) else {
            return Status::success();
        };
        let done = async {
            self.write(&reserved).await?;
            self.wait(pod, &reserved, node).await
        };
        match tokio::time::timeout(self.bind_timeout, done).await {
            Ok(Ok(())) => Status::success(),
            Ok(Err(cause)) => Status::error(format!("binding volumes: {cause}")),
            Err(_) => Status::error("binding volumes: context deadline exceeded"),
        }
    }
}

impl VolumeBinding {
    async fn write(&self, reserved: &Found) -> Result<(), String> {
        let Some(client) = &self.client else {
            return Ok(());
        };
        let params = PostParams::default();
        for (_, volume) in &reserved.bindings {
            let name = volume.metadata.name.as_deref().unwrap_or_default();
            let held = self.storage.volume(name);
            if held.is_some_and(|held| {
                held.metadata.resource_version != volume.metadata.resource_version
            }) {
                // Whoever was quicker may have done the same; waiting tells.
                continue;
            }
            let api: Api<PersistentVolume> = Api::all(client.clone());
            let written = answered(api.replace(name, &params, volume)).await?;
            self.storage.assume_volume(Arc::new(written));
        }
        for claim in &reserved.provisions {
            let meta = &claim.metadata;
            let namespace = meta.namespace.as_deref().unwrap_or_default();
            let name = meta.name.as_deref().unwrap_or_default();
            let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
            let written = answered(api.replace(name, &params, claim)).await?;
            self.storage.assume_claim(Arc::new(written));
        }
        Ok(())
    }

    /// Waits until all claims of the pod have their volumes.
    async fn wait(&self, pod: &PodInfo, reserved: &Found, node: &str) -> Result<(), String> {
        let mut changes = self.storage.subscribe();
        loop {
            changes.mark_unchanged();
            if self.is_bound(pod, reserved, node)? {
                return Ok(());
            }
            let _ = tokio::time::timeout_at(Instant::now() + POLL, changes.changed()).await;
        }
    }

    fn is_bound(&self, pod: &PodInfo, reserved: &Found, node: &str) -> Result<bool, String> {
        for (claim, volume) in &reserved.bindings {
            let name = volume.metadata.name.as_deref().unwrap_or_default();
            let held = self.storage.volume(name);
            let reference = held.as_deref().and_then(claim_ref);
            if reference.and_then(uid_of) != claim.metadata.uid.as_deref() {
                return Err(format!("ClaimRef got reset for pv {name:?}"));
            }
        }
        let chosen = |claim: &PersistentVolumeClaim| {
            let mut provisions = reserved.provisions.iter();
            provisions.any(|other| other.metadata.uid == claim.metadata.uid)
        };
        let mut all = true;
        for claim in &reserved.waits {
            let name = claim.metadata.name.as_deref().unwrap_or_default();
            let Some(held) = self.storage.claim(&pod.namespace, name) else {
                return Err(format!("could not find claim {}/{name}", pod.namespace));
            };
            if chosen(claim) && !is_fully_bound(&held) && selected_node(&held) != Some(node) {
                let gone = annotation(&held.metadata, SELECTED_NODE).is_none();
                return Err(if gone {
                    format!("provisioning failed for PVC {name:?}")
                } else {
                    format!("selectedNode annotation reset for PVC {name:?}")
                });
            }
            if !is_fully_bound(&held) {
                all = false;
                continue;
            }
            let volume = volume_name(&held).and_then(|volume| self.storage.volume(volume));
            let Some(volume) = volume else {
                all = false;
                continue;
            };
            check_node(&volume, reserved, node)?;
        }
        Ok(all)
    }
}

/// The provisioner may have made the volume elsewhere.
fn check_node(volume: &PersistentVolume, reserved: &Found, name: &str) -> Result<(), String> {
    let labels = reserved.node.as_ref().map(|node| &node.metadata.labels);
    let none = davit_api::selector::Labels::new();
    let labels = labels.and_then(Option::as_ref).unwrap_or(&none);
    if fits_node(volume, labels) {
        return Ok(());
    }
    let volume = volume.metadata.name.as_deref().unwrap_or_default();
    Err(format!(
        "pv {volume:?} node affinity doesn't match node {name:?}: no matching NodeSelectorTerms"
    ))
}

async fn answered<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("the API server did not answer within {DEADLINE:?}")),
    }
}
