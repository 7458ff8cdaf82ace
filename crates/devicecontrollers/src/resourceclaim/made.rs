//! Claims made from templates, for pods and for groups of pods.

use super::{FINALIZER, POD_CLAIM};
use davit_api::names::short_hash;
use davit_api::resource_claims::group_made_for;
use davit_reconcile::owners::controller_of;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// Longest prefix of a generated name.
const MOST_PREFIX: usize = 57;

/// For whom claims are made.
#[derive(Debug, Clone)]
pub(super) struct ClaimOwner {
    pub(super) namespace: String,
    reference: OwnerReference,
}

impl ClaimOwner {
    fn new<K: kube::Resource<DynamicType = ()>>(object: &K) -> Self {
        let meta = object.meta();
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            reference: OwnerReference {
                api_version: K::api_version(&()).into_owned(),
                kind: K::kind(&()).into_owned(),
                name: meta.name.clone().unwrap_or_default(),
                uid: meta.uid.clone().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            },
        }
    }

    /// A pod, for which the claims are that it alone uses.
    pub(super) fn pod(pod: &Pod) -> Self {
        Self::new(pod)
    }

    /// A group, whose pods share the claims.
    pub(super) fn group(group: &PodGroup) -> Self {
        Self::new(group)
    }

    pub(super) fn uid(&self) -> &str {
        &self.reference.uid
    }

    /// What it is, in a sentence.
    pub(super) fn words(&self) -> &'static str {
        if self.reference.kind == "Pod" {
            "pod"
        } else {
            "group"
        }
    }

    /// Whether a claim was made for this owner. What others write into other namespaces, with its UID, is none of its.
    pub(super) fn owns(&self, claim: &ResourceClaim) -> bool {
        claim.metadata.namespace.as_ref() == Some(&self.namespace)
            && owner_of(claim) == Some(self.uid())
    }
}

/// The UID of the pod or the group that a claim was made for.
pub(super) fn owner_of(claim: &ResourceClaim) -> Option<&str> {
    let owner = controller_of(&claim.metadata)?;
    (owner.kind == "Pod" || group_made_for(claim).is_some()).then_some(&*owner.uid)
}

/// The claim that was made for an entry of an owner, among those of the owner's UID.
pub(super) fn made_for<'a>(
    mut claims: impl Iterator<Item = &'a ResourceClaim>,
    owner: &ClaimOwner,
    entry: &str,
) -> Option<&'a str> {
    let made = claims.find(|claim| {
        let annotations = claim.metadata.annotations.as_ref();
        owner.owns(claim)
            && claim.metadata.deletion_timestamp.is_none()
            && annotations
                .and_then(|all| all.get(POD_CLAIM))
                .is_some_and(|of| of == entry)
    });
    made?.metadata.name.as_deref()
}

/// `<owner>-<entry>-`; if that is too long both parts are shortened in proportion.
fn generate_name(owner: &str, entry: &str) -> String {
    let room = MOST_PREFIX - 2;
    let (mut head, mut tail) = (owner.len(), entry.len());
    let sum = head + tail;
    if sum > room {
        head = (room * head / sum).max(1);
        tail = room - head;
    }
    let cut = |text: &str, n: usize| text.chars().take(n).collect::<String>();
    format!("{}-{}-", cut(owner, head), cut(entry, tail))
}

/// The claim for an entry of an owner. Its name looks like a generated one and follows from the owner's UID, so that whoever
/// makes it again, because nobody told him that it is there, finds it; `attempt` counts names that belong to others.
pub(super) fn from_template(
    owner: &ClaimOwner,
    entry: &str,
    template: &ResourceClaimTemplate,
    attempt: u8,
) -> ResourceClaim {
    let meta = template.spec.metadata.clone().unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM.to_owned(), entry.to_owned());
    let told_apart = format!("{}/{entry}/{attempt}", owner.uid());
    let prefix = generate_name(&owner.reference.name, entry);
    ResourceClaim {
        metadata: ObjectMeta {
            name: Some(format!("{prefix}{}", short_hash(told_apart.bytes()))),
            generate_name: Some(prefix),
            namespace: Some(owner.namespace.clone()),
            labels: meta.labels,
            annotations: Some(annotations),
            // the scheduler would have to add it, with a write of its own, before it allocates
            finalizers: Some(vec![FINALIZER.to_owned()]),
            owner_references: Some(vec![owner.reference.clone()]),
            ..ObjectMeta::default()
        },
        spec: template.spec.spec.clone(),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{drops_finalizer, is_protected};
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    fn pod() -> ClaimOwner {
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}});
        ClaimOwner::pod(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn claims_of_other_namespaces_are_not_a_pods() {
        let of = |namespace: &str, name: &str| -> ResourceClaim {
            let annotations = json!({POD_CLAIM: "gpu"});
            let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true});
            let meta = json!({"name": name, "namespace": namespace, "annotations": annotations, "ownerReferences": [owner]});
            serde_json::from_value(json!({"metadata": meta, "spec": {}})).unwrap()
        };
        let claims = [of("mallory", "theirs"), of("n", "own")];
        assert_eq!(made_for(claims.iter(), &pod(), "gpu"), Some("own"));
        assert_eq!(made_for(claims[..1].iter(), &pod(), "gpu"), None);
        assert_eq!(made_for(claims.iter(), &pod(), "other"), None);
    }

    #[test]
    fn claims_of_pods_and_groups_are_protected_from_their_beginning_to_their_end() {
        let group = json!({"metadata": {"name": "g", "namespace": "n", "uid": "v"},
            "spec": {"schedulingPolicy": {"basic": {}}}});
        let group = ClaimOwner::group(&serde_json::from_value(group).unwrap());
        for owner in [pod(), group] {
            let mut made = from_template(&owner, "gpu", &ResourceClaimTemplate::default(), 0);
            assert!(owner.owns(&made));
            assert!(is_protected(&made) && !drops_finalizer(&made, &[]));
            made.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
            assert!(drops_finalizer(&made, &[]));
        }
    }

    /// Checklist 89, 90.
    #[test]
    fn claims_from_templates() {
        let template = serde_json::from_value(json!({"metadata": {"name": "t"}, "spec": {
            "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "x"}}]}}}})).unwrap();
        let made = from_template(&pod(), "gpu", &template, 0);
        assert_eq!(made.metadata.generate_name.as_deref(), Some("p-gpu-"));
        let name = |entry: &str, attempt| {
            let made = from_template(&pod(), entry, &template, attempt);
            made.metadata.name.unwrap()
        };
        assert!(name("gpu", 0).starts_with("p-gpu-"));
        assert_eq!(name("gpu", 0), name("gpu", 0), "made twice it is one");
        assert_ne!(name("gpu", 0), name("gpu", 1));
        let owner = &made.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((&*owner.api_version, &*owner.kind), ("v1", "Pod"));
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
}
