//! What binding and reclaiming do next: decisions over stored objects, at most one write at a time.
//!
//! A binding is four writes: the volume's claimRef, its phase, the claim's volumeName, its phase. No state is kept between
//! them; each is planned from what is stored, so that whoever stops after any of them is continued by whoever comes next.

mod claim;
mod reclaim;
mod volume;

#[cfg(test)]
mod tests;

use davit_client::{ObjectKey, object_ref};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use std::sync::Arc;

pub(super) use claim::plan_claim;
pub(super) use volume::{Referenced, plan_volume};

/// What a plan looks up besides the object itself.
pub(super) trait VolumeView {
    /// The volume of this name.
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>>;
    /// The volumes that are kept for the claim, and those of its class that nobody has.
    fn candidates(&self, claim: &PersistentVolumeClaim) -> Vec<Arc<PersistentVolume>>;
    /// The class of this name.
    fn class(&self, name: &str) -> Option<Arc<StorageClass>>;
    /// The class of claims that name none.
    fn default_class(&self) -> Option<Arc<StorageClass>>;
    /// The names of the pods that use the claim, run and are on no node yet.
    fn unscheduled_pods(&self, claim: &PersistentVolumeClaim) -> Vec<String>;
}

/// One object as it shall be stored; with the resourceVersion that it was read with, so that of two who write at once one
/// loses and starts again.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Write {
    Volume(Box<PersistentVolume>),
    VolumeStatus(Box<PersistentVolume>),
    Claim(Box<PersistentVolumeClaim>),
    ClaimStatus(Box<PersistentVolumeClaim>),
}

/// An event to be recorded.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Notice {
    pub(super) object: ObjectReference,
    pub(super) warning: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Notice {
    fn normal<K>(object: &K, reason: &'static str, message: impl Into<String>) -> Self
    where
        K: kube::Resource<DynamicType = ()>,
    {
        Self {
            object: object_ref(object),
            warning: false,
            reason,
            message: message.into(),
        }
    }

    fn warning<K>(object: &K, reason: &'static str, message: impl Into<String>) -> Self
    where
        K: kube::Resource<DynamicType = ()>,
    {
        Self {
            warning: true,
            ..Self::normal(object, reason, message)
        }
    }
}

/// What follows a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Then {
    /// Planning again from what is stored now.
    Plan,
    /// Nothing until something changes, or the next round.
    Wait,
    /// The claim is looked at by its own worker.
    Claim(ObjectKey),
    /// Another attempt later, for this reason.
    Fail(String),
}

/// The next step for an object: the write first, the events when it is stored.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    pub(super) write: Option<Write>,
    pub(super) notices: Vec<Notice>,
    pub(super) then: Then,
}

impl Step {
    fn wait() -> Self {
        Self {
            write: None,
            notices: Vec::new(),
            then: Then::Wait,
        }
    }

    /// A write after which there is more to do.
    fn go_on(write: Write) -> Self {
        Self {
            write: Some(write),
            notices: Vec::new(),
            then: Then::Plan,
        }
    }

    /// The last write, if one is needed.
    fn last(write: Option<Write>) -> Self {
        Self {
            write,
            ..Self::wait()
        }
    }

    fn fail(why: String) -> Self {
        Self {
            then: Then::Fail(why),
            ..Self::wait()
        }
    }

    fn saying(mut self, notice: Notice) -> Self {
        self.notices.push(notice);
        self
    }
}

/// The volume in a phase; `None` if it is in it.
fn in_phase(volume: &PersistentVolume, phase: &str, message: Option<String>) -> Option<Write> {
    if phase_of(volume) == phase {
        return None;
    }
    let mut volume = volume.clone();
    let status = volume.status.get_or_insert_default();
    status.phase = Some(phase.to_owned());
    status.message = message;
    Some(Write::VolumeStatus(Box::new(volume)))
}

fn phase_of(volume: &PersistentVolume) -> &str {
    let status = volume.status.as_ref();
    status.and_then(|s| s.phase.as_deref()).unwrap_or("Pending")
}

fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    let status = claim.status.as_ref();
    status.and_then(|s| s.phase.as_deref()).unwrap_or("Pending")
}

/// The claim that a claimRef names.
pub(super) fn referenced(reference: &ObjectReference) -> ObjectKey {
    ObjectKey {
        namespace: reference.namespace.clone().unwrap_or_default(),
        name: reference.name.clone().unwrap_or_default(),
    }
}

fn name_of<K: kube::Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}
