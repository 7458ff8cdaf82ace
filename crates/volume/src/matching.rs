//! Which volume fits a claim.
//!
//! Controller and scheduler ask the same question with different means: the controller knows no node and prefers the
//! volume with the fewest access modes, the scheduler looks for the smallest that the node can reach. A volume that is
//! kept for the claim goes before all others. Among equals the smaller capacity wins, then the name, so that the order in
//! which volumes are listed never decides.

use crate::binding::{claim_ref, is_bound_to};
use crate::class::{BindingMode, claim_class, volume_class};
use davit_api::quantity::Quantity;
use davit_api::selector::{Labels, Selector, selects_node};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

const DEFAULT_MODE: &str = "Filesystem";
const STORAGE: &str = "storage";

/// Why the volume that a claim names cannot be bound to it. Shown as Kubernetes words it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch {
    /// The volume of this name is being deleted.
    Deleted(String),
    /// Its capacity is below the request.
    TooSmall,
    /// It has another class.
    Class,
    /// It has other attributes.
    AttributesClass,
    /// One is a file system, the other a device.
    VolumeMode,
    /// It lacks an access mode.
    AccessModes,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleted(name) => write!(f, "the volume is marked for deletion {name:?}"),
            Self::TooSmall => f.write_str("requested PV is too small"),
            Self::Class => f.write_str("storageClassName does not match"),
            Self::AttributesClass => f.write_str("volumeAttributesClassName does not match"),
            Self::VolumeMode => f.write_str("incompatible volumeMode"),
            Self::AccessModes => f.write_str("incompatible accessMode"),
        }
    }
}

/// The capacity of a volume; one without has none.
pub fn capacity_of(volume: &PersistentVolume) -> Quantity {
    storage_in(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()))
}

/// What a claim requests.
pub fn request_of(claim: &PersistentVolumeClaim) -> Quantity {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    storage_in(resources.and_then(|resources| resources.requests.as_ref()))
}

/// Texts that are no quantities do not pass the API server.
/// The size that a bound claim has now; zero where it does not say.
pub fn size_of(claim: &PersistentVolumeClaim) -> Quantity {
    storage_in(
        claim
            .status
            .as_ref()
            .and_then(|status| status.capacity.as_ref()),
    )
}

fn storage_in(amounts: Option<&BTreeMap<String, Text>>) -> Quantity {
    let text = amounts.and_then(|amounts| amounts.get(STORAGE));
    let parsed = text.and_then(|text| Quantity::parse(&text.0).ok());
    parsed.unwrap_or(Quantity::ZERO)
}

/// Whether one of the two is a file system and the other a device.
pub fn modes_differ(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let wanted = claim.spec.as_ref().and_then(|s| s.volume_mode.as_deref());
    let given = volume.spec.as_ref().and_then(|s| s.volume_mode.as_deref());
    wanted.unwrap_or(DEFAULT_MODE) != given.unwrap_or(DEFAULT_MODE)
}

/// Whether the volume has all access modes that the claim requests.
pub fn has_access_modes(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let given = access_modes(volume);
    let wanted = claim.spec.iter().flat_map(|spec| &spec.access_modes);
    wanted.flatten().all(|mode| given.contains(mode.as_str()))
}

fn access_modes(volume: &PersistentVolume) -> BTreeSet<&str> {
    let modes = volume.spec.iter().flat_map(|spec| &spec.access_modes);
    modes.flatten().map(String::as_str).collect()
}

fn attributes_differ(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let wanted = claim.spec.as_ref();
    let wanted = wanted.and_then(|s| s.volume_attributes_class_name.as_deref());
    let given = volume.spec.as_ref();
    let given = given.and_then(|s| s.volume_attributes_class_name.as_deref());
    wanted.unwrap_or("") != given.unwrap_or("")
}

/// Whether a node with these labels can reach the volume.
pub fn fits_node(volume: &PersistentVolume, labels: &Labels) -> bool {
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    required.is_none_or(|selector| selects_node(selector, "", labels))
}

/// Why a volume that a claim names does not satisfy it, if it does not.
pub fn mismatch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<Mismatch> {
    if volume.metadata.deletion_timestamp.is_some() {
        let name = volume.metadata.name.clone().unwrap_or_default();
        return Some(Mismatch::Deleted(name));
    }
    let tests = [
        (capacity_of(volume) < request_of(claim), Mismatch::TooSmall),
        (
            volume_class(volume) != claim_class(claim).unwrap_or(""),
            Mismatch::Class,
        ),
        (attributes_differ(claim, volume), Mismatch::AttributesClass),
        (modes_differ(claim, volume), Mismatch::VolumeMode),
        (!has_access_modes(claim, volume), Mismatch::AccessModes),
    ];
    tests
        .into_iter()
        .find_map(|(differs, why)| differs.then_some(why))
}

/// The volume that the controller binds to a claim: the one kept for it, else, for a class that binds at once, the
/// available one with the fewest access modes and of these the smallest.
pub fn find_volume<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = &'a PersistentVolume>,
    mode: BindingMode,
) -> Option<&'a PersistentVolume> {
    let wanted = Wanted::of(claim);
    let fitting = volumes
        .into_iter()
        .filter(|volume| wanted.could_be(volume) && has_access_modes(claim, volume));
    let bindable = fitting.filter(|volume| {
        is_bound_to(volume, claim) || (mode == BindingMode::Immediate && wanted.is_free(volume))
    });
    bindable.min_by_key(|volume| {
        let other = !is_bound_to(volume, claim);
        (other, access_modes(volume).len(), size_then_name(volume))
    })
}

/// The volume that the scheduler can bind to a claim of a pod on a node with these labels: the smallest available one,
/// without those that `is_taken` says other claims of the pod have been given. If volumes are kept for the claim, it is
/// one of them or none.
pub fn find_volume_on_node<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = &'a PersistentVolume>,
    labels: &Labels,
    is_taken: impl Fn(&PersistentVolume) -> bool,
) -> Option<&'a PersistentVolume> {
    let wanted = Wanted::of(claim);
    let could_be = volumes
        .into_iter()
        .filter(|volume| wanted.could_be(volume) && !is_taken(volume));
    let (kept, others): (Vec<_>, Vec<_>) = could_be.partition(|volume| is_bound_to(volume, claim));
    if !kept.is_empty() {
        let reachable = kept.into_iter().filter(|volume| fits_node(volume, labels));
        return reachable.min_by_key(|volume| size_then_name(volume));
    }
    let free = others
        .into_iter()
        .filter(|volume| wanted.is_free(volume) && has_access_modes(claim, volume));
    let reachable = free.filter(|volume| fits_node(volume, labels));
    reachable.min_by_key(|volume| size_then_name(volume))
}

fn size_then_name(volume: &PersistentVolume) -> (Quantity, Option<&str>) {
    (capacity_of(volume), volume.metadata.name.as_deref())
}

/// What a claim asks for, read once for many volumes.
struct Wanted<'a> {
    claim: &'a PersistentVolumeClaim,
    size: Quantity,
    class: &'a str,
    selector: Option<Selector>,
}

impl<'a> Wanted<'a> {
    fn of(claim: &'a PersistentVolumeClaim) -> Self {
        let selector = claim.spec.as_ref().and_then(|s| s.selector.as_ref());
        Self {
            claim,
            size: request_of(claim),
            class: claim_class(claim).unwrap_or(""),
            selector: selector.map(|selector| Selector::new(Some(selector))),
        }
    }

    /// What also a volume that is kept for the claim must be.
    fn could_be(&self, volume: &PersistentVolume) -> bool {
        let of_another = claim_ref(volume).is_some() && !is_bound_to(volume, self.claim);
        !of_another
            && volume.metadata.deletion_timestamp.is_none()
            && capacity_of(volume) >= self.size
            && !modes_differ(self.claim, volume)
            && !attributes_differ(self.claim, volume)
    }

    /// What a volume must be that nobody keeps for the claim.
    fn is_free(&self, volume: &PersistentVolume) -> bool {
        let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
        let none = Labels::new();
        let labels = volume.metadata.labels.as_ref().unwrap_or(&none);
        phase == Some("Available")
            && volume_class(volume) == self.class
            && self.selector.as_ref().is_none_or(|s| s.matches(labels))
    }
}
