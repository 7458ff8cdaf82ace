//! The next step for a claim.

use super::{Notice, Step, VolumeView, Write, claim_phase, in_phase, name_of};
use davit_api::quantity::Quantity;
use davit_client::ObjectKey;
use davit_volume::annotations::{
    BETA_STORAGE_PROVISIONER, BIND_COMPLETED, BOUND_BY_CONTROLLER, PRE_RESIZE_CAPACITY,
    STORAGE_PROVISIONER,
};
use davit_volume::binding::{
    annotation, bind_claim, bind_volume, claim_ref, is_bound_to, selected_node, volume_name,
};
use davit_volume::class::{BindingMode, IN_TREE_PREFIX, binding_mode, claim_class};
use davit_volume::matching::{find_volume, mismatch};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use std::collections::BTreeMap;

const NO_REFERENCE: &str =
    "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
const NO_VOLUME: &str = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
const MISBOUND: &str = "Two claims are bound to the same volume, this one is bound incorrectly";
const NOTHING_TO_BIND: &str =
    "no persistent volumes available for this claim and no storage class is set";

/// The next step that brings a claim to its volume.
pub(in super::super) fn plan_claim(claim: &PersistentVolumeClaim, view: &dyn VolumeView) -> Step {
    let completed = annotation(&claim.metadata, BIND_COMPLETED).is_some();
    match (completed, volume_name(claim)) {
        (true, None) => lost(claim, "ClaimLost", NO_REFERENCE),
        (true, Some(name)) => once_bound(claim, name, view),
        (false, Some(name)) => with_named_volume(claim, name, view),
        (false, None) => any_volume(claim, view),
    }
}

/// The claim has been bound before: its link is repaired, or given up.
fn once_bound(claim: &PersistentVolumeClaim, name: &str, view: &dyn VolumeView) -> Step {
    let Some(volume) = view.volume(name) else {
        return lost(claim, "ClaimLost", NO_VOLUME);
    };
    if claim_ref(&volume).is_none() || is_bound_to(&volume, claim) {
        return bind(&volume, claim);
    }
    lost(claim, "ClaimMisbound", MISBOUND)
}

/// The user has said which volume it shall be.
fn with_named_volume(claim: &PersistentVolumeClaim, name: &str, view: &dyn VolumeView) -> Step {
    let pending = || Step::last(status(claim, "Pending", None));
    let Some(volume) = view.volume(name) else {
        return pending();
    };
    if is_bound_to(&volume, claim) {
        return bind(&volume, claim);
    }
    if claim_ref(&volume).is_none() {
        let Some(why) = mismatch(&volume, claim) else {
            return bind(&volume, claim);
        };
        let text = format!("Cannot bind to requested volume {name:?}: {why}");
        return pending().saying(Notice::warning(claim, "VolumeMismatch", text));
    }
    let text = format!("volume {name:?} already bound to a different claim.");
    let notice = Notice::warning(claim, "FailedBinding", text);
    if annotation(&claim.metadata, BOUND_BY_CONTROLLER).is_none() {
        return pending().saying(notice);
    }
    let key = ObjectKey::of(claim);
    let why = format!("claim {key} was bound to volume {name}, which another claim has");
    Step::fail(why).saying(notice)
}

fn any_volume(claim: &PersistentVolumeClaim, view: &dyn VolumeView) -> Step {
    let name = claim_class(claim);
    let class = name.filter(|name| !name.is_empty());
    let class = class.map(|name| (name, view.class(name)));
    let found = class.as_ref().and_then(|(_, class)| class.as_deref());
    let mode = binding_mode(found);
    let candidates = view.candidates(claim);
    if let Some(volume) = find_volume(claim, candidates.iter().map(|volume| &**volume), mode) {
        return bind(volume, claim);
    }
    if name.is_none()
        && let Some(default) = view.default_class()
    {
        return Step::go_on(with_class(claim, name_of(&*default)));
    }
    let pending = || Step::last(status(claim, "Pending", None));
    if mode == BindingMode::WaitForFirstConsumer && selected_node(claim).is_none() {
        return pending().saying(waits_for_pod(claim, view));
    }
    match class {
        None => pending().saying(Notice::normal(claim, "FailedBinding", NOTHING_TO_BIND)),
        Some((_, Some(class))) => provision(claim, &class.provisioner),
        Some((name, None)) => {
            let text = format!("storageclass.storage.k8s.io {name:?} not found");
            Step::wait().saying(Notice::warning(claim, "ProvisioningFailed", text))
        }
    }
}

fn with_class(claim: &PersistentVolumeClaim, class: &str) -> Write {
    let mut claim = claim.clone();
    claim.spec.get_or_insert_default().storage_class_name = Some(class.to_owned());
    Write::Claim(Box::new(claim))
}

fn waits_for_pod(claim: &PersistentVolumeClaim, view: &dyn VolumeView) -> Notice {
    let (reason, text) = match &view.unscheduled_pods(claim)[..] {
        [] => (
            "WaitForFirstConsumer",
            "waiting for first consumer to be created before binding".to_owned(),
        ),
        [pod] => (
            "WaitForPodScheduled",
            format!("waiting for pod {pod} to be scheduled"),
        ),
        pods => (
            "WaitForPodScheduled",
            format!("waiting for pods {} to be scheduled", pods.join(",")),
        ),
    };
    Notice::normal(claim, reason, text)
}

/// Asks the provisioner of the class for a volume, which it makes for this very claim.
fn provision(claim: &PersistentVolumeClaim, provisioner: &str) -> Step {
    if provisioner.starts_with(IN_TREE_PREFIX) {
        let text = format!("no volume plugin matched name: {provisioner}");
        return Step::wait().saying(Notice::warning(claim, "ProvisioningFailed", text));
    }
    let asked = annotation(&claim.metadata, STORAGE_PROVISIONER) == Some(provisioner);
    let write = (!asked).then(|| {
        let mut claim = claim.clone();
        let annotations = claim.metadata.annotations.get_or_insert_default();
        for key in [STORAGE_PROVISIONER, BETA_STORAGE_PROVISIONER] {
            annotations.insert(key.to_owned(), provisioner.to_owned());
        }
        Write::Claim(Box::new(claim))
    });
    let text = format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' \
         or manually by the system administrator. If volume creation is delayed, please verify that \
         the provisioner is running and correctly registered."
    );
    Step::last(write).saying(Notice::normal(claim, "ExternalProvisioning", text))
}

/// The next of the four writes of a binding.
fn bind(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Step {
    if let Some(bound) = bind_volume(volume, claim) {
        return Step::go_on(Write::Volume(Box::new(bound)));
    }
    if let Some(write) = in_phase(volume, "Bound", None) {
        return Step::go_on(write);
    }
    if let Some(bound) = bind_claim(claim, name_of(volume)) {
        return Step::go_on(Write::Claim(Box::new(bound)));
    }
    Step::last(status(claim, "Bound", Some(volume)))
}

fn lost(claim: &PersistentVolumeClaim, reason: &'static str, text: &str) -> Step {
    if claim_phase(claim) == "Lost" {
        return Step::wait();
    }
    let step = Step::last(status(claim, "Lost", None));
    step.saying(Notice::warning(claim, reason, text))
}

/// The claim's status in a phase, with what its volume gives; `None` if it is so.
fn status(
    claim: &PersistentVolumeClaim,
    phase: &str,
    volume: Option<&PersistentVolume>,
) -> Option<Write> {
    let before = claim.status.clone().unwrap_or_default();
    let mut status = before.clone();
    status.phase = Some(phase.to_owned());
    match volume.and_then(|volume| Some((volume, volume.spec.as_ref()?))) {
        None => {
            status.access_modes = None;
            status.capacity = None;
            status.current_volume_attributes_class_name = None;
        }
        Some((volume, spec)) => {
            status.access_modes.clone_from(&spec.access_modes);
            // Of a claim that is bound already, size and attributes are the resizer's.
            if claim_phase(claim) != phase {
                status.capacity = capacity_given_by(volume);
            }
            if claim_phase(claim) == "Pending" {
                let attributes = &spec.volume_attributes_class_name;
                let current = &mut status.current_volume_attributes_class_name;
                current.clone_from(attributes);
            }
        }
    }
    (status != before).then(|| {
        let mut claim = claim.clone();
        claim.status = Some(status);
        Write::ClaimStatus(Box::new(claim))
    })
}

/// The volume's capacity, or what its file system has while that has not grown with it.
fn capacity_given_by(volume: &PersistentVolume) -> Option<BTreeMap<String, Text>> {
    let mut capacity = volume.spec.as_ref()?.capacity.clone()?;
    let before = annotation(&volume.metadata, PRE_RESIZE_CAPACITY);
    if let Some(size) = before.filter(|text| Quantity::parse(text).is_ok()) {
        capacity.insert("storage".to_owned(), Text(size.to_owned()));
    }
    Some(capacity)
}
