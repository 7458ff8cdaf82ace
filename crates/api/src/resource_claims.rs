//! Whose a resource claim is: a pod's, or that of the group that the pod belongs to (KEP-4381, and KEP-5729 with the gate
//! `DRAWorkloadResourceClaims`).
//!
//! A group shares a claim with those of its pods that list it as the group does: under the same name, with the same claim
//! or template. Pods do not know the UID of their group, only its name.

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::features::{Features, WORKLOAD_CLAIMS};
use crate::pod_groups::pod_group_of;

/// The API group of [`PodGroup`].
const SCHEDULING: &str = "scheduling.k8s.io";
/// Groups as consumers of claims.
const POD_GROUPS: &str = "podgroups";

/// For whom claims can be made and reserved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ClaimConsumers {
    /// For pods. What is reserved for a group counts for none of its pods.
    #[default]
    Pods,
    /// For pods, and for groups of pods.
    PodsAndGroups,
}

impl From<&Features> for ClaimConsumers {
    fn from(features: &Features) -> Self {
        if features.is_on(WORKLOAD_CLAIMS) {
            Self::PodsAndGroups
        } else {
            Self::Pods
        }
    }
}

impl ClaimConsumers {
    /// The name of the group with which a pod may share claims.
    pub fn group_of(self, pod: &Pod) -> Option<&str> {
        pod_group_of(pod).filter(|_| self == Self::PodsAndGroups)
    }

    /// Whether a claim was made for the pod, or for its group.
    pub fn is_made_for(self, claim: &ResourceClaim, pod: &Pod) -> bool {
        let (claim, pod_uid) = (&claim.metadata, pod.metadata.uid.as_deref());
        let mut owners = claim.owner_references.iter().flatten();
        let Some(owner) = owners.find(|owner| owner.controller == Some(true)) else {
            return false;
        };
        claim.namespace == pod.metadata.namespace
            && (pod_uid == Some(owner.uid.as_str())
                || is_group(owner) && self.group_of(pod) == Some(&owner.name))
    }

    /// Whether a claim is reserved for the pod, or for its group.
    pub fn is_reserved_for(self, claim: &ResourceClaim, pod: &Pod) -> bool {
        let status = claim.status.iter();
        let mut consumers = status.flat_map(|s| &s.reserved_for).flatten();
        let (uid, group) = (pod.metadata.uid.as_deref(), self.group_of(pod));
        consumers.any(|consumer| {
            uid == Some(consumer.uid.as_str())
                || is_pod_group(consumer) && group == Some(&consumer.name)
        })
    }
}

/// Whether the owner of an object is a group, of whatever version.
fn is_group(owner: &OwnerReference) -> bool {
    let group = owner.api_version.split_once('/').map(|(group, _)| group);
    owner.kind == "PodGroup" && group == Some(SCHEDULING)
}

/// The UID of the group that a claim was made for.
pub fn group_made_for(claim: &ResourceClaim) -> Option<&str> {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    is_group(owner).then_some(&*owner.uid)
}

/// Whether a consumer of a claim is a pod.
pub fn is_pod(consumer: &ResourceClaimConsumerReference) -> bool {
    consumer.api_group.as_deref().is_none_or(str::is_empty) && consumer.resource == "pods"
}

/// Whether a consumer of a claim is a group of pods.
pub fn is_pod_group(consumer: &ResourceClaimConsumerReference) -> bool {
    consumer.api_group.as_deref() == Some(SCHEDULING) && consumer.resource == POD_GROUPS
}

/// Whether a pod's claim is the one that its group lists.
pub fn is_of_group(group: &PodGroup, entry: &PodResourceClaim) -> bool {
    let mut claims = group.spec.resource_claims.iter().flatten();
    claims.any(|claim| {
        claim.name == entry.name
            && claim.resource_claim_name == entry.resource_claim_name
            && claim.resource_claim_template_name == entry.resource_claim_template_name
    })
}

/// The name of the claim that a group's status has for an entry with a template; `None` inside: the group does without.
pub fn name_in_group<'a>(group: &'a PodGroup, entry: &str) -> Option<Option<&'a str>> {
    let status = group.status.iter();
    let mut statuses = status.flat_map(|s| &s.resource_claim_statuses).flatten();
    let status = statuses.find(|status| status.name == entry)?;
    Some(status.resource_claim_name.as_deref())
}

/// The names of the claims that a group lists: those it names, and those that were made for it from templates.
pub fn claims_of_group(group: &PodGroup) -> impl Iterator<Item = &str> {
    let entries = group.spec.resource_claims.iter().flatten();
    entries.filter_map(|entry| {
        let direct = entry.resource_claim_name.as_deref();
        direct.or_else(|| name_in_group(group, &entry.name)?)
    })
}

/// A pod as the consumer of a claim.
pub fn pod_consumer(pod: &Pod) -> ResourceClaimConsumerReference {
    ResourceClaimConsumerReference {
        api_group: None,
        resource: "pods".to_owned(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
    }
}

/// A group of pods as the consumer of a claim.
pub fn group_consumer(group: &PodGroup) -> ResourceClaimConsumerReference {
    ResourceClaimConsumerReference {
        api_group: Some(SCHEDULING.to_owned()),
        resource: POD_GROUPS.to_owned(),
        name: group.metadata.name.clone().unwrap_or_default(),
        uid: group.metadata.uid.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "pod-1"},
            "spec": {"containers": [], "schedulingGroup": {"podGroupName": "g"}}}))
        .unwrap()
    }

    fn claim(owner: &Value, consumer: &Value) -> ResourceClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "ns", "ownerReferences": [owner]}, "spec": {},
            "status": {"reservedFor": [consumer]}}))
        .unwrap()
    }

    fn owner(api_version: &str, kind: &str, name: &str, uid: &str) -> Value {
        json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true})
    }

    #[test]
    fn pods_use_what_is_theirs_or_their_groups() {
        let (alone, grouped) = (ClaimConsumers::Pods, ClaimConsumers::PodsAndGroups);
        let pod = pod();
        let of = |owner: Value, consumer: Value| {
            let claim = claim(&owner, &consumer);
            [alone, grouped].map(|who| {
                (
                    who.is_made_for(&claim, &pod),
                    who.is_reserved_for(&claim, &pod),
                )
            })
        };
        let (yes, no) = ((true, true), (false, false));
        let own = json!({"resource": "pods", "name": "p", "uid": "pod-1"});
        assert_eq!(of(owner("v1", "Pod", "p", "pod-1"), own), [yes, yes]);
        let group = |api_group: &str, resource: &str, name: &str| json!({"apiGroup": api_group, "resource": resource, "name": name, "uid": "g-1"});
        let in_group = group(SCHEDULING, POD_GROUPS, "g");
        let by_group =
            |version: &str| owner(&format!("{SCHEDULING}/{version}"), "PodGroup", "g", "g-1");
        for version in ["v1alpha2", "v1"] {
            assert_eq!(of(by_group(version), in_group.clone()), [no, yes]);
        }
        // of other names, kinds and groups
        let other = owner("scheduling.k8s.io/v1alpha2", "PodGroup", "h", "h-1");
        assert_eq!(of(other, group(SCHEDULING, POD_GROUPS, "h")), [no, no]);
        let lookalike = owner("x-scheduling.k8s.io/v1", "PodGroup", "g", "g-1");
        assert_eq!(of(lookalike, group("x", POD_GROUPS, "g")), [no, no]);
        let workload = owner("scheduling.k8s.io/v1alpha2", "Workload", "g", "g-1");
        assert_eq!(of(workload, group(SCHEDULING, "workloads", "g")), [no, no]);
        // an owner that does not control it
        let mut bystander = by_group("v1alpha2");
        bystander["controller"] = json!(false);
        assert_eq!(
            of(
                bystander,
                json!({"resource": "pods", "name": "g", "uid": "g-1"})
            ),
            [no, no]
        );
    }

    #[test]
    fn claims_of_other_namespaces_are_nobodys() {
        let mut claim = claim(
            &owner("v1", "Pod", "p", "pod-1"),
            &json!({"resource": "pods", "name": "p", "uid": "pod-1"}),
        );
        claim.metadata.namespace = Some("other".to_owned());
        assert!(!ClaimConsumers::PodsAndGroups.is_made_for(&claim, &pod()));
    }

    #[test]
    fn a_group_shares_what_is_listed_alike() {
        let group: PodGroup = serde_json::from_value(json!({
            "metadata": {"name": "g", "namespace": "ns", "uid": "g-1"},
            "spec": {"schedulingPolicy": {"basic": {}}, "resourceClaims": [
                {"name": "a", "resourceClaimName": "one"}, {"name": "b", "resourceClaimTemplateName": "t"}]},
            "status": {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "g-b-x"}, {"name": "none"}]}}))
        .unwrap();
        let listed = |entry: Value| is_of_group(&group, &serde_json::from_value(entry).unwrap());
        assert!(listed(json!({"name": "a", "resourceClaimName": "one"})));
        assert!(listed(
            json!({"name": "b", "resourceClaimTemplateName": "t"})
        ));
        assert!(!listed(json!({"name": "a", "resourceClaimName": "two"})));
        assert!(!listed(json!({"name": "c", "resourceClaimName": "one"})));
        assert!(!listed(
            json!({"name": "a", "resourceClaimTemplateName": "one"})
        ));
        assert_eq!(name_in_group(&group, "b"), Some(Some("g-b-x")));
        assert_eq!(name_in_group(&group, "none"), Some(None));
        assert_eq!(name_in_group(&group, "a"), None);
        assert_eq!(
            claims_of_group(&group).collect::<Vec<_>>(),
            ["one", "g-b-x"]
        );
        assert!(is_pod_group(&group_consumer(&group)) && !is_pod(&group_consumer(&group)));
        assert!(is_pod(&pod_consumer(&pod())) && !is_pod_group(&pod_consumer(&pod())));
    }
}
