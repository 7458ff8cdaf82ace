//! The next step for a volume.

use super::reclaim::{Reclaim, reclaim};
use super::{Notice, Step, Then, Write, in_phase, name_of, phase_of, referenced};
use davit_client::ObjectKey;
use davit_volume::annotations::{EXTERNAL_PROVISIONER, IN_TREE_PROVISIONER, PROVISIONED_BY};
use davit_volume::binding::{annotation, claim_ref, uid_of, unbind_volume, volume_name};
use davit_volume::class::IN_TREE_PREFIX;
use davit_volume::matching::modes_differ;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

/// Where the claim of a volume's claimRef is to be looked for, so that no stale cache releases a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Referenced {
    /// There is no claim to look for.
    Nowhere,
    /// What is known is enough.
    Cache,
    /// Only the API server can say that it is gone.
    Server,
}

impl Referenced {
    /// `known` is what the cache has under the name.
    pub(in super::super) fn by(
        volume: &PersistentVolume,
        known: Option<&PersistentVolumeClaim>,
    ) -> Self {
        let Some(uid) = claim_ref(volume).and_then(uid_of) else {
            return Self::Nowhere;
        };
        match known {
            Some(claim) if claim.metadata.uid.as_deref() == Some(uid) => Self::Cache,
            None if is_given_up(volume) => Self::Cache,
            _ => Self::Server,
        }
    }
}

fn is_given_up(volume: &PersistentVolume) -> bool {
    matches!(phase_of(volume), "Released" | "Failed")
}

/// The next step for a volume; `claim` is the one under the name of its claimRef, found as [`Referenced`] says.
pub(in super::super) fn plan_volume(
    volume: &PersistentVolume,
    claim: Option<&PersistentVolumeClaim>,
) -> Step {
    if let Some(write) = finalizers(volume) {
        return Step::go_on(write);
    }
    let available = || Step::last(in_phase(volume, "Available", None));
    let Some(reference) = claim_ref(volume) else {
        return available();
    };
    let Some(uid) = uid_of(reference) else {
        // kept for a claim that may be waiting for it
        return Step {
            then: Then::Claim(referenced(reference)),
            ..available()
        };
    };
    let Some(claim) = claim.filter(|claim| claim.metadata.uid.as_deref() == Some(uid)) else {
        return release(volume);
    };
    match volume_name(claim) {
        Some(name) if name == name_of(volume) => Step::last(in_phase(volume, "Bound", None)),
        Some(_) => bound_elsewhere(volume),
        None => unfinished(volume, claim),
    }
}

/// The claim does not know of the volume yet.
fn unfinished(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Step {
    if modes_differ(claim, volume) {
        let to_volume = format!(
            "Cannot bind PersistentVolume to requested PersistentVolumeClaim {:?} due to incompatible volumeMode.",
            name_of(claim)
        );
        let to_claim = format!(
            "Cannot bind PersistentVolume {:?} to requested PersistentVolumeClaim due to incompatible volumeMode.",
            name_of(volume)
        );
        return Step::wait()
            .saying(Notice::warning(volume, "VolumeMismatch", to_volume))
            .saying(Notice::warning(claim, "VolumeMismatch", to_claim));
    }
    Step {
        then: Then::Claim(ObjectKey::of(claim)),
        ..Step::wait()
    }
}

/// The claim has another volume: one that was made for it goes, any other is free again.
fn bound_elsewhere(volume: &PersistentVolume) -> Step {
    let made = annotation(&volume.metadata, PROVISIONED_BY).is_some();
    if made && policy(volume) == "Delete" {
        return release(volume);
    }
    Step::go_on(Write::Volume(Box::new(unbind_volume(volume))))
}

/// Nobody has the volume any more. One that failed stays so: the reason is to be seen.
fn release(volume: &PersistentVolume) -> Step {
    if !is_given_up(volume)
        && let Some(write) = in_phase(volume, "Released", None)
    {
        return Step::go_on(write);
    }
    let Reclaim::Fail { reason, message } = reclaim(volume) else {
        return Step::wait();
    };
    let Some(write) = in_phase(volume, "Failed", Some(message.clone())) else {
        return Step::wait();
    };
    Step::last(Some(write)).saying(Notice::warning(volume, reason, message))
}

pub(super) fn policy(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    policy.unwrap_or("Retain")
}

/// Volumes of provisioners that Kubernetes brings carry this controller's finalizer while they are to be deleted, and
/// never that of external ones.
fn finalizers(volume: &PersistentVolume) -> Option<Write> {
    let provisioner = annotation(&volume.metadata, PROVISIONED_BY)?;
    if !provisioner.starts_with(IN_TREE_PREFIX) {
        return None;
    }
    let before = volume.metadata.finalizers.clone().unwrap_or_default();
    let mut after = before.clone();
    after.retain(|f| f != EXTERNAL_PROVISIONER);
    let held = after.iter().any(|f| f == IN_TREE_PROVISIONER);
    match policy(volume) {
        // what is being deleted takes no new ones
        "Delete" if !held && volume.metadata.deletion_timestamp.is_none() => {
            after.push(IN_TREE_PROVISIONER.to_owned());
        }
        "Retain" | "Recycle" => after.retain(|f| f != IN_TREE_PROVISIONER),
        _ => {}
    }
    (after != before).then(|| {
        let mut volume = volume.clone();
        volume.metadata.finalizers = Some(after);
        Write::Volume(Box::new(volume))
    })
}
