//! What binding a claim and a volume writes to either, and how that is read back.

use crate::annotations::{BIND_COMPLETED, BOUND_BY_CONTROLLER, SELECTED_NODE, YES};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The value of an annotation.
pub fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The claim that a volume is bound to or kept for.
pub fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// The UID of a reference; one from a user has none until the claim is there.
pub fn uid_of(reference: &ObjectReference) -> Option<&str> {
    reference.uid.as_deref().filter(|uid| !uid.is_empty())
}

/// The volume that a claim is bound to or asks for.
pub fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim.spec.as_ref()?.volume_name.as_deref();
    name.filter(|name| !name.is_empty())
}

/// Whether a volume is bound to a claim or kept for it: same namespace and name, and the same UID if it names one.
pub fn is_bound_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(reference) = claim_ref(volume) else {
        return false;
    };
    let named =
        reference.name == claim.metadata.name && reference.namespace == claim.metadata.namespace;
    named && uid_of(reference).is_none_or(|uid| claim.metadata.uid.as_deref() == Some(uid))
}

/// Whether the claim names a volume and its binding was completed once.
pub fn is_fully_bound(claim: &PersistentVolumeClaim) -> bool {
    volume_name(claim).is_some() && annotation(&claim.metadata, BIND_COMPLETED).is_some()
}

/// The node that the scheduler chose for a claim.
pub fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(&claim.metadata, SELECTED_NODE)
}

/// The volume as bound to the claim; `None` if it is already.
pub fn bind_volume(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Option<PersistentVolume> {
    let of_user = is_bound_to(volume, claim);
    if of_user && claim_ref(volume).and_then(uid_of) == claim.metadata.uid.as_deref() {
        return None;
    }
    let mut bound = volume.clone();
    if !of_user {
        annotate(&mut bound.metadata, BOUND_BY_CONTROLLER);
    }
    bound.spec.get_or_insert_default().claim_ref = Some(ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: claim.metadata.namespace.clone(),
        name: claim.metadata.name.clone(),
        uid: claim.metadata.uid.clone(),
        resource_version: claim.metadata.resource_version.clone(),
        field_path: None,
    });
    Some(bound)
}

/// The claim as bound to the volume of this name; `None` if it is already.
pub fn bind_claim(claim: &PersistentVolumeClaim, volume: &str) -> Option<PersistentVolumeClaim> {
    let of_user = volume_name(claim) == Some(volume);
    if of_user && annotation(&claim.metadata, BIND_COMPLETED).is_some() {
        return None;
    }
    let mut bound = claim.clone();
    if !of_user {
        bound.spec.get_or_insert_default().volume_name = Some(volume.to_owned());
        annotate(&mut bound.metadata, BOUND_BY_CONTROLLER);
    }
    annotate(&mut bound.metadata, BIND_COMPLETED);
    Some(bound)
}

/// The volume without the claim; one that the user kept for the claim stays kept for its next incarnation.
pub fn unbind_volume(volume: &PersistentVolume) -> PersistentVolume {
    let mut free = volume.clone();
    let annotations = free.metadata.annotations.as_mut();
    let of_controller = annotations.and_then(|a| a.remove(BOUND_BY_CONTROLLER));
    let spec = free.spec.get_or_insert_default();
    if of_controller.is_some() {
        spec.claim_ref = None;
    } else if let Some(reference) = &mut spec.claim_ref {
        reference.uid = None;
    }
    free
}

/// Sets an annotation whose being there says all; a value that is there stays.
fn annotate(meta: &mut ObjectMeta, key: &str) {
    let annotations = meta.annotations.get_or_insert_default();
    let entry = annotations.entry(key.to_owned());
    entry.or_insert_with(|| YES.to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim() -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": "c", "uid": "u", "resourceVersion": "5"},
        }))
        .unwrap()
    }

    fn volume(reference: serde_json::Value) -> PersistentVolume {
        serde_json::from_value(json!({
            "metadata": {"name": "v"}, "spec": {"claimRef": reference},
        }))
        .unwrap()
    }

    #[test]
    fn binding_writes_both_sides_once() {
        let free = volume(json!(null));
        let bound = bind_volume(&free, &claim()).unwrap();
        assert_eq!(annotation(&bound.metadata, BOUND_BY_CONTROLLER), Some(YES));
        assert_eq!(claim_ref(&bound).and_then(uid_of), Some("u"));
        assert!(is_bound_to(&bound, &claim()));
        assert_eq!(bind_volume(&bound, &claim()), None);
        assert_eq!(unbind_volume(&bound).spec, free.spec);

        let taken = bind_claim(&claim(), "v").unwrap();
        assert!(is_fully_bound(&taken) && !is_fully_bound(&claim()));
        assert_eq!(annotation(&taken.metadata, BOUND_BY_CONTROLLER), Some(YES));
        assert_eq!(bind_claim(&taken, "v"), None);
    }

    #[test]
    fn what_the_user_linked_is_not_marked_and_stays_linked() {
        let kept = volume(json!({"namespace": "n", "name": "c", "uid": ""}));
        let bound = bind_volume(&kept, &claim()).unwrap();
        assert_eq!(annotation(&bound.metadata, BOUND_BY_CONTROLLER), None);
        let free = unbind_volume(&bound);
        assert_eq!(claim_ref(&free).and_then(uid_of), None);
        assert!(is_bound_to(&free, &claim()));

        let mut named = claim();
        named.spec.get_or_insert_default().volume_name = Some("v".to_owned());
        let bound = bind_claim(&named, "v").unwrap();
        assert_eq!(annotation(&bound.metadata, BOUND_BY_CONTROLLER), None);
    }

    #[test]
    fn another_incarnation_is_another_claim() {
        let other = json!({"namespace": "n", "name": "c", "uid": "older"});
        assert!(!is_bound_to(&volume(other), &claim()));
        assert!(!is_bound_to(
            &volume(json!({"namespace": "m", "name": "c"})),
            &claim()
        ));
        assert!(!is_bound_to(&volume(json!(null)), &claim()));
    }
}
