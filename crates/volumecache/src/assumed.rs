//! Bindings that are decided and not yet written.

use std::collections::BTreeSet;
use std::sync::Arc;

use davit_volume::annotations::SELECTED_NODE;
use davit_volume::binding::{bind_volume, claim_ref, is_bound_to, selected_node, volume_name};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::{ClaimKey, Inner, VolumeCache, key};

/// A claim and the volume that it is given.
#[derive(Debug, Clone)]
pub struct StaticBinding {
    /// The volume's name.
    pub volume: String,
    /// The claim as it is.
    pub claim: Arc<PersistentVolumeClaim>,
}

/// Somebody else was faster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssumeError {
    /// The volume is gone.
    #[error("persistentvolume {0:?} not found")]
    NoVolume(String),
    /// The volume is another claim's.
    #[error("volume {0:?} already bound to a different claim.")]
    OtherClaim(String),
    /// The claim is gone.
    #[error("persistentvolumeclaim {0:?} not found")]
    NoClaim(String),
    /// The claim's volume is made for another node.
    #[error("node {node:?} is already selected for persistentvolumeclaim {claim:?}")]
    OtherNode {
        /// The claim's name.
        claim: String,
        /// That node.
        node: String,
    },
}

/// A volume that pods are to use through a claim.
pub(crate) struct AssumedVolume {
    claim: Arc<PersistentVolumeClaim>,
    /// The UIDs of the pods.
    pods: BTreeSet<Arc<str>>,
    /// The volume as bound to the claim.
    pub(crate) object: Arc<PersistentVolume>,
}

/// A claim for which a volume is to be made that a node can use.
pub(crate) struct AssumedClaim {
    node: String,
    /// The UIDs of the pods.
    pods: BTreeSet<Arc<str>>,
    /// The claim with the node.
    pub(crate) object: Arc<PersistentVolumeClaim>,
}

/// The claim with the node that was chosen for it.
pub fn with_selected_node(claim: &PersistentVolumeClaim, node: &str) -> PersistentVolumeClaim {
    let mut selected = claim.clone();
    let annotations = selected.annotations_mut();
    annotations.insert(SELECTED_NODE.to_owned(), node.to_owned());
    selected
}

/// Whether the volume can be given to the claim, or has been.
fn can_bind(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    claim_ref(volume).is_none() || is_bound_to(volume, claim)
}

impl VolumeCache {
    /// Keeps volumes for a pod's claims, and claims for a node. All or nothing.
    ///
    /// # Errors
    /// When one of them was given away meanwhile.
    pub fn assume(
        &self,
        pod: &Arc<str>,
        node: &str,
        bindings: &[StaticBinding],
        provisions: &[Arc<PersistentVolumeClaim>],
    ) -> Result<(), AssumeError> {
        let mut inner = self.inner.write();
        for binding in bindings {
            let name = &binding.volume;
            let volume = inner.volume(name);
            let volume = volume.ok_or_else(|| AssumeError::NoVolume(name.clone()))?;
            if !can_bind(volume, &binding.claim) {
                return Err(AssumeError::OtherClaim(name.clone()));
            }
        }
        for claim in provisions {
            inner.check_node(claim, node)?;
        }
        for binding in bindings {
            inner.assume_volume(pod, binding);
        }
        for claim in provisions {
            inner.assume_claim(pod, claim, node);
        }
        inner.binding.insert(pod.clone());
        Ok(())
    }

    /// Takes back what is kept for a pod and not written.
    pub fn revert(&self, pod: &Arc<str>) {
        let mut inner = self.inner.write();
        inner.binding.remove(pod);
        inner.assumed_volumes.retain(|_, assumed| {
            let held = assumed.pods.remove(pod);
            !(held && assumed.pods.is_empty())
        });
        inner.assumed_claims.retain(|_, assumed| {
            let held = assumed.pods.remove(pod);
            !(held && assumed.pods.is_empty())
        });
    }

    /// A pod is gone, or its volumes are bound.
    pub fn end_binding(&self, pod: &str) {
        if self.inner.write().binding.remove(pod) {
            self.changed.notify_waiters();
        }
    }

    /// Whether the pod is still there and waits for its volumes.
    pub fn is_binding(&self, pod: &str) -> bool {
        self.inner.read().binding.contains(pod)
    }
}

impl Inner {
    fn check_node(&self, claim: &PersistentVolumeClaim, node: &str) -> Result<(), AssumeError> {
        let key = key(claim);
        let known = self.claims.get(&key).filter(|c| c.uid() == claim.uid());
        let known = known.ok_or_else(|| AssumeError::NoClaim(claim.name_any()))?;
        let assumed = self.assumed_claims.get(&key).map(|a| a.node.as_str());
        match assumed.or_else(|| selected_node(known)) {
            Some(selected) if selected != node => Err(AssumeError::OtherNode {
                claim: claim.name_any(),
                node: selected.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    fn assume_volume(&mut self, pod: &Arc<str>, binding: &StaticBinding) {
        if let Some(assumed) = self.assumed_volumes.get_mut(&binding.volume) {
            assumed.pods.insert(pod.clone());
        } else if let Some(volume) = self.volumes.get(&binding.volume)
            && let Some(bound) = bind_volume(volume, &binding.claim)
        {
            let assumed = AssumedVolume {
                claim: binding.claim.clone(),
                pods: BTreeSet::from([pod.clone()]),
                object: Arc::new(bound),
            };
            self.assumed_volumes.insert(binding.volume.clone(), assumed);
        }
    }

    fn assume_claim(&mut self, pod: &Arc<str>, claim: &PersistentVolumeClaim, node: &str) {
        let key = key(claim);
        if let Some(assumed) = self.assumed_claims.get_mut(&key) {
            assumed.pods.insert(pod.clone());
        } else if let Some(known) = self.claims.get(&key)
            && selected_node(known).is_none()
        {
            let assumed = AssumedClaim {
                node: node.to_owned(),
                pods: BTreeSet::from([pod.clone()]),
                object: Arc::new(with_selected_node(known, node)),
            };
            self.assumed_claims.insert(key, assumed);
        }
    }

    /// Brings what is assumed of a volume up to date with a new state; it ends when that says the same, or otherwise.
    pub(crate) fn renew_assumed_volume(&mut self, name: &str, volume: &Arc<PersistentVolume>) {
        let Some(assumed) = self.assumed_volumes.get_mut(name) else {
            return;
        };
        match bind_volume(volume, &assumed.claim) {
            Some(bound) if can_bind(volume, &assumed.claim) => assumed.object = Arc::new(bound),
            _ => {
                self.assumed_volumes.remove(name);
            }
        }
    }

    /// Brings what is assumed of a claim up to date with a new state; it ends when that says the same, or otherwise.
    pub(crate) fn renew_assumed_claim(
        &mut self,
        key: &ClaimKey,
        claim: &Arc<PersistentVolumeClaim>,
    ) {
        let Some(assumed) = self.assumed_claims.get_mut(key) else {
            return;
        };
        let settled = selected_node(claim).is_some() || volume_name(claim).is_some();
        if settled || claim.uid() != assumed.object.uid() {
            self.assumed_claims.remove(key);
        } else {
            assumed.object = Arc::new(with_selected_node(claim, &assumed.node));
        }
    }
}
