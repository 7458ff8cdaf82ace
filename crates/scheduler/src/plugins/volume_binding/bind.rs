//! Decided bindings are written, and others do their part: the PersistentVolume controller and provisioners.

use std::sync::Arc;
use std::time::Duration;

use davit_client::message_of;
use davit_volume::binding::{
    bind_volume, claim_ref, is_bound_to, is_fully_bound, selected_node, uid_of, volume_name,
};
use davit_volume::matching::fits_node;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::api::{Api, PostParams};

use super::{PodVolumes, VolumeBinding};
use crate::pod::PodInfo;
use crate::selector::Labels;
use davit_volumecache::{AssumeError, StaticBinding, with_selected_node};

/// How long one write may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// Why a pod's volumes were not bound, in kube-scheduler's words.
#[derive(Debug, thiserror::Error)]
pub(super) enum VolumeBindError {
    #[error("{what}: {}", message_of(.error))]
    Write { what: String, error: kube::Error },
    #[error("{0}: not answered within {DEADLINE:?}")]
    NoAnswer(String),
    #[error(transparent)]
    Taken(#[from] AssumeError),
    #[error("there is no client to write with")]
    NoClient,
    #[error("binding volumes: {0}")]
    Wait(WaitError),
}

/// What ended the waiting.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WaitError {
    #[error(
        "pv {volume:?} node affinity doesn't match node {node:?}: no matching NodeSelectorTerms"
    )]
    OutOfReach { volume: String, node: String },
    #[error("provisioning failed for PVC {0:?}")]
    ProvisioningFailed(String),
    #[error("selectedNode annotation reset for PVC {0:?}")]
    Reset(String),
    #[error("ClaimRef got reset for pv {0:?}")]
    ClaimRefReset(String),
    #[error("pod does not exist any more: pod {0:?} not found")]
    NoPod(String),
    #[error("failed to get node {0:?}: node {0:?} not found")]
    NoNode(String),
    #[error("failed to check binding: {kind} {name:?} not found")]
    Gone { kind: &'static str, name: String },
    #[error("context deadline exceeded")]
    Deadline,
}

async fn within<T>(
    what: String,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, VolumeBindError> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(VolumeBindError::Write { what, error }),
        Err(_) => Err(VolumeBindError::NoAnswer(what)),
    }
}

impl VolumeBinding {
    /// Writes what was decided and waits until all claims are bound.
    pub(super) async fn bind(
        &self,
        wanted: &PodVolumes,
        pod: &PodInfo,
        node: &str,
    ) -> Result<(), VolumeBindError> {
        for binding in &wanted.bindings {
            self.write_volume(binding).await?;
        }
        for claim in &wanted.provisions {
            self.write_claim(claim, node).await?;
        }
        let look = || self.look(wanted, pod, node).transpose();
        let waiting = self.volumes.wait(look);
        let ended = tokio::time::timeout(self.timeout, waiting).await;
        ended
            .unwrap_or(Err(WaitError::Deadline))
            .map_err(VolumeBindError::Wait)
    }

    /// Keeps a volume for its claim.
    async fn write_volume(&self, binding: &StaticBinding) -> Result<(), VolumeBindError> {
        let name = &binding.volume;
        let known = self.volumes.written_volume(name);
        let known = known.ok_or_else(|| AssumeError::NoVolume(name.clone()))?;
        if claim_ref(&known).is_some() && !is_bound_to(&known, &binding.claim) {
            return Err(AssumeError::OtherClaim(name.clone()).into());
        }
        let Some(bound) = bind_volume(&known, &binding.claim) else {
            return Ok(());
        };
        let client = self.client.clone().ok_or(VolumeBindError::NoClient)?;
        let api: Api<PersistentVolume> = Api::all(client);
        let params = PostParams::default();
        let write = api.replace(name, &params, &bound);
        let written = within(format!("update persistentvolume {name:?}"), write).await?;
        self.volumes.set_volume(None, Some(Arc::new(written)));
        Ok(())
    }

    /// Asks for a volume that the node can use.
    async fn write_claim(
        &self,
        claim: &PersistentVolumeClaim,
        node: &str,
    ) -> Result<(), VolumeBindError> {
        let name = claim.name_any();
        let namespace = claim.namespace().unwrap_or_default();
        let known = self
            .volumes
            .written_claim(&(namespace.clone(), name.clone()));
        let known = known.filter(|known| known.uid() == claim.uid());
        let known = known.ok_or_else(|| AssumeError::NoClaim(name.clone()))?;
        match selected_node(&known) {
            Some(selected) if selected == node => return Ok(()),
            Some(selected) => {
                let node = selected.to_owned();
                return Err(AssumeError::OtherNode { claim: name, node }.into());
            }
            None => {}
        }
        let client = self.client.clone().ok_or(VolumeBindError::NoClient)?;
        let api: Api<PersistentVolumeClaim> = Api::namespaced(client, &namespace);
        let selected = with_selected_node(&known, node);
        let params = PostParams::default();
        let write = api.replace(&name, &params, &selected);
        let written = within(format!("update persistentvolumeclaim {name:?}"), write).await?;
        self.volumes.set_claim(None, Some(Arc::new(written)));
        Ok(())
    }

    /// Whether all claims are bound; `None` while that can still happen.
    fn look(
        &self,
        wanted: &PodVolumes,
        pod: &PodInfo,
        node: &str,
    ) -> Result<Option<()>, WaitError> {
        let known = self.volumes.node(node);
        let known = known.ok_or_else(|| WaitError::NoNode(node.to_owned()))?;
        if !self.volumes.is_binding(&pod.uid) {
            return Err(WaitError::NoPod(pod.name.to_string()));
        }
        let mut all_bound = true;
        for binding in &wanted.bindings {
            all_bound &= self.look_at_binding(binding, &known)?;
        }
        for claim in &wanted.provisions {
            all_bound &= self.look_at_provision(claim, &known)?;
        }
        Ok(all_bound.then_some(()))
    }

    fn written(
        &self,
        claim: &PersistentVolumeClaim,
    ) -> Result<Arc<PersistentVolumeClaim>, WaitError> {
        let name = claim.name_any();
        let key = (claim.namespace().unwrap_or_default(), name.clone());
        let written = self.volumes.written_claim(&key);
        let written = written.filter(|written| written.uid() == claim.uid());
        written.ok_or(WaitError::Gone {
            kind: "persistentvolumeclaim",
            name,
        })
    }

    fn look_at_binding(&self, binding: &StaticBinding, node: &Node) -> Result<bool, WaitError> {
        let name = &binding.volume;
        let volume = self.volumes.written_volume(name);
        let volume = volume.ok_or_else(|| WaitError::Gone {
            kind: "persistentvolume",
            name: name.clone(),
        })?;
        check_reach(&volume, node)?;
        if claim_ref(&volume).and_then(uid_of).is_none() {
            return Err(WaitError::ClaimRefReset(name.clone()));
        }
        Ok(is_fully_bound(&*self.written(&binding.claim)?))
    }

    fn look_at_provision(
        &self,
        claim: &PersistentVolumeClaim,
        node: &Node,
    ) -> Result<bool, WaitError> {
        let claim = self.written(claim)?;
        let name = claim.name_any();
        if claim.metadata.annotations.is_none() {
            return Err(WaitError::Reset(name));
        }
        if selected_node(&claim) != node.metadata.name.as_deref() {
            return Err(WaitError::ProvisioningFailed(name));
        }
        if let Some(volume) = volume_name(&claim) {
            // It may be known a moment later.
            let Some(volume) = self.volumes.written_volume(volume) else {
                return Ok(false);
            };
            check_reach(&volume, node)?;
        }
        Ok(is_fully_bound(&claim))
    }
}

fn check_reach(volume: &PersistentVolume, node: &Node) -> Result<(), WaitError> {
    let none = Labels::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&none);
    if fits_node(volume, labels) {
        return Ok(());
    }
    Err(WaitError::OutOfReach {
        volume: volume.name_any(),
        node: node.name_any(),
    })
}
