//! What becomes of a volume that nobody has any more.
//!
//! Storage is deleted by whoever made it: provisioners and CSI drivers look for released volumes themselves. There is no
//! deleter in this controller: a directory of some host is not its to remove.

use super::name_of;
use super::volume::policy;
use davit_volume::annotations::{MIGRATED_TO, PROVISIONED_BY};
use davit_volume::binding::annotation;
use davit_volume::class::IN_TREE_PREFIX;
use k8s_openapi::api::core::v1::PersistentVolume;

/// What is to be done with a released volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reclaim {
    /// Nothing here: it is retained, or others delete it.
    Leave,
    /// Nobody can do what its policy asks for.
    Fail {
        reason: &'static str,
        message: String,
    },
}

/// What the policy asks for now: it may have changed at any time before.
pub(super) fn reclaim(volume: &PersistentVolume) -> Reclaim {
    let migrated = annotation(&volume.metadata, MIGRATED_TO);
    if migrated.is_some_and(|driver| !driver.is_empty()) {
        return Reclaim::Leave;
    }
    let (reason, message) = match policy(volume) {
        "Retain" => return Reclaim::Leave,
        "Delete" => match undeletable(volume) {
            None => return Reclaim::Leave,
            Some(message) => ("VolumeFailedDelete", message),
        },
        "Recycle" => (
            "VolumeFailedRecycle",
            "No recycler plugin found for the volume!".to_owned(),
        ),
        _ => (
            "VolumeUnknownReclaimPolicy",
            "Volume has unrecognized PersistentVolumeReclaimPolicy".to_owned(),
        ),
    };
    Reclaim::Fail { reason, message }
}

/// Why nobody deletes the volume, unless somebody does.
fn undeletable(volume: &PersistentVolume) -> Option<String> {
    let provisioner = annotation(&volume.metadata, PROVISIONED_BY).unwrap_or("");
    if provisioner.starts_with(IN_TREE_PREFIX) {
        return Some(format!("no volume plugin matched name: {provisioner}"));
    }
    let spec = volume.spec.as_ref()?;
    if !provisioner.is_empty() || spec.csi.is_some() {
        return None;
    }
    let known = spec.host_path.is_some() || spec.nfs.is_some();
    let why = if known {
        "no deletable volume plugin matched"
    } else {
        "no volume plugin matched"
    };
    let name = name_of(volume);
    Some(format!(
        "error getting deleter volume plugin for volume {name:?}: {why}"
    ))
}
