//! What is to become of claims, without any call.

use super::{FINALIZER, made};
use davit_reconcile::pods::{is_terminal, node_of};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{
    ResourceClaim, ResourceClaimConsumerReference, ResourceClaimStatus,
};

/// Whether the pod will never use its claims (again).
pub(super) fn is_done(pod: &Pod) -> bool {
    let never_ran = pod.metadata.deletion_timestamp.is_some() && node_of(pod).is_none();
    is_terminal(pod) || never_ran
}

/// The claim's name that the pod's status has for an entry.
pub(super) fn name_in_status<'a>(pod: &'a Pod, entry: &str) -> Option<&'a str> {
    let status = pod.status.iter().flat_map(|s| &s.resource_claim_statuses);
    let status = status.flatten().find(|s| s.name == entry)?;
    status.resource_claim_name.as_deref()
}

/// Whether the pod's status says that an entry needs no claim: it is there, without a name.
pub(super) fn does_without(pod: &Pod, entry: &str) -> bool {
    let status = pod.status.iter().flat_map(|s| &s.resource_claim_statuses);
    let mut status = status.flatten().filter(|s| s.name == entry);
    status
        .next()
        .is_some_and(|s| s.resource_claim_name.is_none())
}

/// The claim with a reservation for a consumer; `None` if it is not allocated or has one.
pub(super) fn with_reservation(
    claim: &ResourceClaim,
    consumer: ResourceClaimConsumerReference,
) -> Option<ResourceClaim> {
    let status = claim.status.as_ref()?;
    status.allocation.as_ref()?;
    let mut users = status.reserved_for.iter().flatten();
    if claim.metadata.deletion_timestamp.is_some() || users.any(|u| u.uid == consumer.uid) {
        return None;
    }
    let mut claim = claim.clone();
    let status = claim.status.get_or_insert_default();
    let users = status.reserved_for.get_or_insert_default();
    users.push(consumer);
    Some(claim)
}

/// Whom the claim is reserved for.
pub(super) fn users(claim: &ResourceClaim) -> Vec<ResourceClaimConsumerReference> {
    let status = claim.status.as_ref();
    status
        .and_then(|s| s.reserved_for.clone())
        .unwrap_or_default()
}

pub(super) fn is_protected(claim: &ResourceClaim) -> bool {
    let finalizers = claim.metadata.finalizers.iter().flatten();
    finalizers.into_iter().any(|f| f == FINALIZER)
}

/// The status with the users that are left, if that changes anything: the last user to go takes the
/// allocation along, and so does a deletion nobody has to wait for. A claim that vanishes with its finalizer takes everything
/// along by itself.
pub(super) fn freed_status(
    claim: &ResourceClaim,
    users: Vec<ResourceClaimConsumerReference>,
) -> Option<ResourceClaimStatus> {
    if users.is_empty() && vanishes_unprotected(claim) {
        return None;
    }
    let status = claim.status.as_ref()?;
    let before = status.reserved_for.as_ref().map_or(0, Vec::len);
    let left = users.len() != before;
    let deleted = claim.metadata.deletion_timestamp.is_some();
    let frees =
        users.is_empty() && (left || deleted) && status.allocation.is_some() && is_protected(claim);
    if !left && !frees {
        return None;
    }
    let mut status = status.clone();
    status.reserved_for = (!users.is_empty()).then_some(users);
    if frees {
        status.allocation = None;
        status.devices = None;
    }
    Some(status)
}

/// Whether the claim is gone as soon as the finalizer is taken off.
fn vanishes_unprotected(claim: &ResourceClaim) -> bool {
    let finalizers = claim.metadata.finalizers.as_deref();
    claim.metadata.deletion_timestamp.is_some()
        && finalizers.is_some_and(|all| all.iter().all(|f| f == FINALIZER) && !all.is_empty())
}

/// Whether the finalizer has done its work, with the users that are left. Claims made for a pod or a group keep it until they are deleted.
pub(super) fn drops_finalizer(
    claim: &ResourceClaim,
    users: &[ResourceClaimConsumerReference],
) -> bool {
    if !is_protected(claim) || !users.is_empty() {
        return false;
    }
    if claim.metadata.deletion_timestamp.is_none() && made::owner_of(claim).is_some() {
        return false;
    }
    let status = claim.status.as_ref();
    vanishes_unprotected(claim) || status.is_none_or(|s| s.allocation.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_api::resource_claims::pod_consumer;
    use serde_json::json;

    fn claim(status: serde_json::Value, protected: bool, deleted: bool) -> ResourceClaim {
        let mut claim =
            json!({"metadata": {"name": "c", "namespace": "n"}, "spec": {}, "status": status});
        if protected {
            claim["metadata"]["finalizers"] = json!([FINALIZER]);
        }
        if deleted {
            claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        serde_json::from_value(claim).unwrap()
    }

    fn user(uid: &str) -> serde_json::Value {
        json!({"resource": "pods", "name": uid, "uid": uid})
    }

    /// Checklist 93, 95.
    #[test]
    fn the_last_user_takes_the_allocation_along() {
        let two = claim(
            json!({"allocation": {}, "reservedFor": [user("a"), user("b")]}),
            true,
            false,
        );
        let b: ResourceClaimConsumerReference = serde_json::from_value(user("b")).unwrap();
        let one = freed_status(&two, vec![b]).unwrap();
        assert!(one.allocation.is_some() && one.reserved_for.unwrap().len() == 1);
        let none = freed_status(&two, Vec::new()).unwrap();
        assert!(none.allocation.is_none() && none.reserved_for.is_none());
        // Allocated by hand, or never reserved: it stays.
        let by_hand = claim(
            json!({"allocation": {}, "reservedFor": [user("a")]}),
            false,
            false,
        );
        assert!(
            freed_status(&by_hand, Vec::new())
                .unwrap()
                .allocation
                .is_some()
        );
        let unused = claim(json!({"allocation": {}}), true, false);
        assert_eq!(freed_status(&unused, Vec::new()), None);
        assert!(!drops_finalizer(&unused, &[]));
        let mut deleted = claim(
            json!({"allocation": {}, "reservedFor": [user("a")]}),
            true,
            true,
        );
        let a: ResourceClaimConsumerReference = serde_json::from_value(user("a")).unwrap();
        assert!(!drops_finalizer(&deleted, &[a]));
        assert_eq!(
            freed_status(&deleted, Vec::new()),
            None,
            "it goes as a whole"
        );
        assert!(drops_finalizer(&deleted, &[]));
        let finalizers = deleted.metadata.finalizers.get_or_insert_default();
        finalizers.push("example.com/mine".to_owned());
        let freed = freed_status(&deleted, Vec::new()).unwrap();
        assert!(freed.allocation.is_none() && freed.reserved_for.is_none());
        assert!(!drops_finalizer(&deleted, &[]));
        deleted.status = Some(freed);
        assert!(drops_finalizer(&deleted, &[]));
        assert!(drops_finalizer(&claim(json!({}), true, true), &[]));
        assert!(drops_finalizer(&claim(json!({}), true, false), &[]));
    }

    /// Checklist 94, 96.
    #[test]
    fn reservations_for_pods_on_nodes() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": [], "nodeName": "x"}})).unwrap();
        let allocated = claim(json!({"allocation": {}}), true, false);
        let reserved = with_reservation(&allocated, pod_consumer(&pod)).unwrap();
        assert_eq!(
            reserved
                .status
                .as_ref()
                .unwrap()
                .reserved_for
                .as_ref()
                .unwrap()[0]
                .uid,
            "u"
        );
        assert_eq!(with_reservation(&reserved, pod_consumer(&pod)), None);
        assert_eq!(
            with_reservation(&claim(json!({}), true, false), pod_consumer(&pod)),
            None
        );
        assert!(!is_done(&pod));
    }

    /// Checklist 92.
    #[test]
    fn an_entry_without_a_name_needs_no_claim() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "status": {
            "resourceClaimStatuses": [{"name": "none"}, {"name": "made", "resourceClaimName": "x"}]}}))
        .unwrap();
        assert!(does_without(&pod, "none"));
        assert!(!does_without(&pod, "made") && !does_without(&pod, "unknown"));
    }
}
