//! What is to become of claims, without any call.

use super::{FINALIZER, POD_CLAIM};
use crate::deployment::short_hash;
use crate::pod_control::{is_terminal, node_of};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{
    ResourceClaim, ResourceClaimConsumerReference, ResourceClaimStatus, ResourceClaimTemplate,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// Longest prefix of a generated name.
const MOST_PREFIX: usize = 57;

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

/// The claim that was made for an entry of a pod, among those of the pod's UID. What others write into other namespaces, with the
/// UID of this pod, is none of its.
pub(super) fn made_for<'a>(
    mut claims: impl Iterator<Item = &'a ResourceClaim>,
    namespace: &str,
    entry: &str,
) -> Option<&'a str> {
    let made = claims.find(|claim| {
        let meta = &claim.metadata;
        let annotations = meta.annotations.as_ref();
        meta.namespace.as_deref() == Some(namespace)
            && meta.deletion_timestamp.is_none()
            && annotations
                .and_then(|all| all.get(POD_CLAIM))
                .is_some_and(|of| of == entry)
    });
    made?.metadata.name.as_deref()
}

/// `<pod>-<entry>-`; if that is too long both parts are shortened in proportion.
fn generate_name(pod: &str, entry: &str) -> String {
    let room = MOST_PREFIX - 2;
    let (mut head, mut tail) = (pod.len(), entry.len());
    let sum = head + tail;
    if sum > room {
        head = (room * head / sum).max(1);
        tail = room - head;
    }
    let cut = |text: &str, n: usize| text.chars().take(n).collect::<String>();
    format!("{}-{}-", cut(pod, head), cut(entry, tail))
}

/// The claim for an entry of a pod. Its name looks like a generated one and follows from the pod's uid, so that whoever
/// makes it again, because nobody told him that it is there, finds it; `attempt` counts names that belong to others.
pub(super) fn from_template(
    pod: &Pod,
    entry: &str,
    template: &ResourceClaimTemplate,
    attempt: u8,
) -> ResourceClaim {
    let meta = template.spec.metadata.clone().unwrap_or_default();
    let name = pod.metadata.name.clone().unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM.to_owned(), entry.to_owned());
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let told_apart = format!("{uid}/{entry}/{attempt}");
    let prefix = generate_name(&name, entry);
    ResourceClaim {
        metadata: ObjectMeta {
            name: Some(format!("{prefix}{}", short_hash(told_apart.bytes()))),
            generate_name: Some(prefix),
            namespace: pod.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: Some(annotations),
            // the scheduler would have to add it, with a write of its own, before it allocates
            finalizers: Some(vec![FINALIZER.to_owned()]),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                uid: pod.metadata.uid.clone().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
                name,
            }]),
            ..ObjectMeta::default()
        },
        spec: template.spec.spec.clone(),
        status: None,
    }
}

/// The claim with a reservation for the pod; `None` if it is not allocated or has one.
pub(super) fn with_reservation(claim: &ResourceClaim, pod: &Pod) -> Option<ResourceClaim> {
    let status = claim.status.as_ref()?;
    status.allocation.as_ref()?;
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let mut users = status.reserved_for.iter().flatten();
    if claim.metadata.deletion_timestamp.is_some() || users.any(|u| u.uid == uid) {
        return None;
    }
    let mut claim = claim.clone();
    let status = claim.status.get_or_insert_default();
    let users = status.reserved_for.get_or_insert_default();
    users.push(ResourceClaimConsumerReference {
        api_group: None,
        resource: "pods".to_owned(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid,
    });
    Some(claim)
}

/// Whom the claim is reserved for.
pub(super) fn users(claim: &ResourceClaim) -> Vec<ResourceClaimConsumerReference> {
    let status = claim.status.as_ref();
    status
        .and_then(|s| s.reserved_for.clone())
        .unwrap_or_default()
}

fn is_protected(claim: &ResourceClaim) -> bool {
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

/// Whether the finalizer has done its work, with the users that are left. Claims made for a pod keep it until they are deleted.
pub(super) fn drops_finalizer(
    claim: &ResourceClaim,
    users: &[ResourceClaimConsumerReference],
) -> bool {
    if !is_protected(claim) || !users.is_empty() {
        return false;
    }
    if claim.metadata.deletion_timestamp.is_none() && super::pod_of(claim).is_some() {
        return false;
    }
    let status = claim.status.as_ref();
    vanishes_unprotected(claim) || status.is_none_or(|s| s.allocation.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
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

    #[test]
    fn claims_of_other_namespaces_are_not_a_pods() {
        let of = |namespace: &str, name: &str| -> ResourceClaim {
            let annotations = json!({POD_CLAIM: "gpu"});
            let meta = json!({"name": name, "namespace": namespace, "annotations": annotations});
            serde_json::from_value(json!({"metadata": meta, "spec": {}})).unwrap()
        };
        let claims = [of("mallory", "theirs"), of("n", "own")];
        assert_eq!(made_for(claims.iter(), "n", "gpu"), Some("own"));
        assert_eq!(made_for(claims[..1].iter(), "n", "gpu"), None);
        assert_eq!(made_for(claims.iter(), "n", "other"), None);
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

    #[test]
    fn claims_of_pods_are_protected_from_their_beginning_to_their_end() {
        let pod: Pod = serde_json::from_value(
            json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}}),
        )
        .unwrap();
        let mut made = from_template(&pod, "gpu", &ResourceClaimTemplate::default(), 0);
        assert!(is_protected(&made) && !drops_finalizer(&made, &[]));
        made.metadata.deletion_timestamp = claim(json!({}), true, true).metadata.deletion_timestamp;
        assert!(drops_finalizer(&made, &[]));
    }

    /// Checklist 89, 90.
    #[test]
    fn claims_from_templates() {
        let pod: Pod = serde_json::from_value(
            json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}}),
        )
        .unwrap();
        let template = serde_json::from_value(json!({"metadata": {"name": "t"}, "spec": {
            "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "x"}}]}}}})).unwrap();
        let made = from_template(&pod, "gpu", &template, 0);
        assert_eq!(made.metadata.generate_name.as_deref(), Some("p-gpu-"));
        let name = |entry: &str, attempt| {
            let made = from_template(&pod, entry, &template, attempt);
            made.metadata.name.unwrap()
        };
        assert!(name("gpu", 0).starts_with("p-gpu-"));
        assert_eq!(name("gpu", 0), name("gpu", 0), "made twice it is one");
        assert_ne!(name("gpu", 0), name("gpu", 1));
        let owner = &made.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!(
            (owner.controller, owner.block_owner_deletion),
            (Some(true), Some(true))
        );
        let annotations = made.metadata.annotations.unwrap();
        assert_eq!(
            (annotations[POD_CLAIM].as_str(), annotations["c"].as_str()),
            ("gpu", "d")
        );
        assert_eq!(made.metadata.labels.unwrap()["a"], "b");
        assert_eq!(made.spec, template.spec.spec);
        let long = generate_name(&"p".repeat(63), &"e".repeat(63));
        assert_eq!(long.len(), MOST_PREFIX);
        assert!(long.starts_with("ppp") && long.ends_with("eee-"));
        assert_eq!(generate_name("pod", "claim"), "pod-claim-");
    }

    /// Checklist 94, 96.
    #[test]
    fn reservations_for_pods_on_nodes() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": [], "nodeName": "x"}})).unwrap();
        let allocated = claim(json!({"allocation": {}}), true, false);
        let reserved = with_reservation(&allocated, &pod).unwrap();
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
        assert_eq!(with_reservation(&reserved, &pod), None);
        assert_eq!(with_reservation(&claim(json!({}), true, false), &pod), None);
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
