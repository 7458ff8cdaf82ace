//! Which claims a pod has: today's, and those of the classic API, which share the fields of the pod.

use std::sync::Arc;

use davit_api::classic;
use davit_api::resource_claims::{claims_of_group, group_consumer, is_of_group, pod_consumer};
use k8s_openapi::api::core::v1::PodResourceClaim;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;

use crate::devices::{Devices, allocation, reserved_for};
use crate::pod::PodInfo;

/// A claim that an entry of the pod stands for.
pub(crate) enum Named {
    /// Of today's API.
    Structured(Arc<ResourceClaim>),
    /// Of the classic API.
    Classic(Arc<classic::ResourceClaim>),
}

/// Whether the pod lists claims.
pub(super) fn has_claims(pod: &PodInfo) -> bool {
    let list = pod.spec().resource_claims.as_ref();
    list.is_some_and(|l| !l.is_empty())
}

/// Whether the pod has claims, or one that was made for its extended resources.
pub(super) fn may_hold_devices(pod: &PodInfo) -> bool {
    let status = pod.pod.status.as_ref();
    let extended = status.and_then(|s| s.extended_resource_claim_status.as_ref());
    has_claims(pod) || extended.is_some()
}

/// The claim of one entry; `None` when the pod does without it.
///
/// A claim of today's API goes before a classic one of the same name. A claim that was made from a
/// template and is not named in the pod's status is a classic one: there the name follows from the
/// pod's.
///
/// # Errors
/// Why the pod has to wait: the claim is missing, going away, or somebody else's.
fn of_entry(
    devices: &Devices,
    pod: &PodInfo,
    entry: &PodResourceClaim,
) -> Result<Option<Named>, String> {
    let namespace = &*pod.namespace;
    if let Some(name) = &entry.resource_claim_name {
        if let Some(claim) = devices.claim(namespace, name) {
            return check(&*claim, name).map(|()| Some(Named::Structured(claim)));
        }
        let Some(claim) = devices.classic().claim(namespace, name) else {
            return Err(not_found(name));
        };
        return check(&*claim, name).map(|()| Some(Named::Classic(claim)));
    }
    if entry.resource_claim_template_name.is_none() {
        return Err(format!(
            "pod \"{}\", spec.resourceClaim \"{}\": none of the supported fields are set",
            pod.key(),
            entry.name
        ));
    }
    let status = pod.pod.status.iter();
    let mut known = status.flat_map(|s| &s.resource_claim_statuses).flatten();
    let Some(status) = known.find(|s| s.name == entry.name) else {
        let name = classic::generated_name(&pod.name, &entry.name);
        let Some(claim) = devices.classic().claim(namespace, &name) else {
            return Err(format!(
                "pod \"{}\": ResourceClaim not created yet",
                pod.key()
            ));
        };
        check(&*claim, &name)?;
        if !claim.is_controlled_by(&pod.uid) {
            return Err(not_owner(pod, &name));
        }
        return Ok(Some(Named::Classic(claim)));
    };
    // Without a name the pod does without this claim.
    let Some(name) = &status.resource_claim_name else {
        return Ok(None);
    };
    let claim = devices.claim(namespace, name);
    let claim = claim.ok_or_else(|| not_found(name))?;
    check(&*claim, name)?;
    let consumers = devices.consumers();
    if consumers.is_made_for(&claim, &pod.pod) {
        return Ok(Some(Named::Structured(claim)));
    }
    Err(match consumers.group_of(&pod.pod) {
        None => not_owner(pod, name),
        Some(group) => format!(
            "ResourceClaim {namespace}/{name} was not created for pod {} (neither pod nor PodGroup {group} is the owner)",
            pod.key()
        ),
    })
}

fn not_found(name: &str) -> String {
    format!("resourceclaim.resource.k8s.io \"{name}\" not found")
}

fn not_owner(pod: &PodInfo, name: &str) -> String {
    format!(
        "ResourceClaim {}/{name} was not created for pod {} (pod is not owner)",
        pod.namespace,
        pod.key()
    )
}

fn check<K: kube::Resource>(claim: &K, name: &str) -> Result<(), String> {
    match claim.meta().deletion_timestamp {
        Some(_) => Err(format!("resourceclaim \"{name}\" is being deleted")),
        None => Ok(()),
    }
}

/// The pod's claims by entry.
///
/// # Errors
/// Why the pod has to wait.
pub(crate) fn all_of_pod<'a>(
    devices: &Devices,
    pod: &'a PodInfo,
) -> Result<Vec<(&'a str, Named)>, String> {
    let mut all = Vec::new();
    for entry in pod.spec().resource_claims.iter().flatten() {
        if let Some(claim) = of_entry(devices, pod, entry)? {
            all.push((entry.name.as_str(), claim));
        }
    }
    Ok(all)
}

/// The pod's claims of today's API, each once.
///
/// # Errors
/// Why the pod has to wait: a claim is missing, going away, or somebody else's.
pub(super) fn of_pod(devices: &Devices, pod: &PodInfo) -> Result<Vec<Arc<ResourceClaim>>, String> {
    let mut claims: Vec<Arc<ResourceClaim>> = Vec::new();
    for (_, claim) in all_of_pod(devices, pod)? {
        if let Named::Structured(claim) = claim
            && !claims.iter().any(|c| c.metadata.uid == claim.metadata.uid)
        {
            claims.push(claim);
        }
    }
    Ok(claims)
}

/// Whom these claims of the pod are to be reserved for: its group, where that lists the claim as the pod does, or the pod.
pub(super) fn consumers(
    devices: &Devices,
    pod: &PodInfo,
    group: Option<&PodGroup>,
    claims: &[Arc<ResourceClaim>],
) -> Vec<ResourceClaimConsumerReference> {
    let shared = |claim: &Arc<ResourceClaim>| {
        let group = group?;
        let entries = pod.spec().resource_claims.iter().flatten();
        let mut of_group = entries.filter(|entry| is_of_group(group, entry));
        let is_it = |named| match named {
            Ok(Some(Named::Structured(named))) => named.metadata.uid == claim.metadata.uid,
            _ => false,
        };
        let found = of_group.any(|entry| is_it(of_entry(devices, pod, entry)));
        found.then(|| group_consumer(group))
    };
    let consumers = claims.iter();
    let consumers = consumers.map(|claim| shared(claim).unwrap_or_else(|| pod_consumer(&pod.pod)));
    consumers.collect()
}

/// The allocated claims that a group lists and that are reserved for it.
pub(super) fn reserved_for_group(devices: &Devices, group: &PodGroup) -> Vec<Arc<ResourceClaim>> {
    let namespace = group.metadata.namespace.as_deref().unwrap_or_default();
    let claims = claims_of_group(group).filter_map(|name| devices.claim(namespace, name));
    let group = group.metadata.uid.as_deref();
    let own = claims.filter(|claim| {
        let mut users = reserved_for(claim);
        allocation(claim).is_some() && users.any(|user| Some(user) == group)
    });
    own.collect()
}

/// Whether an entry of the pod, or what its status says of one, names this claim.
pub(super) fn names(pod: &PodInfo, claim: &ResourceClaim) -> bool {
    let meta = &claim.metadata;
    if meta.namespace.as_deref() != Some(&*pod.namespace) {
        return false;
    }
    let name = meta.name.as_deref();
    pod.claim_names().any(|named| Some(named) == name)
}

/// Whether an entry of the pod can stand for a classic claim of this name.
pub(crate) fn may_name(pod: &PodInfo, claim: &classic::ResourceClaim) -> bool {
    let meta = &claim.metadata;
    let name = meta.name.as_deref().unwrap_or_default();
    meta.namespace.as_deref() == Some(&*pod.namespace)
        && pod.spec().resource_claims.iter().flatten().any(|entry| {
            entry.resource_claim_name.as_deref().map_or_else(
                || classic::generated_name(&pod.name, &entry.name) == name,
                |direct| direct == name,
            )
        })
}

/// Whether the pod of this UID is the claim's controller.
fn is_owned_by(claim: &ResourceClaim, uid: &str) -> bool {
    let owners = claim.metadata.owner_references.iter().flatten();
    owners
        .into_iter()
        .any(|o| o.controller == Some(true) && o.uid == uid)
}

/// The claim that was made for the pod's extended resources, if there is one.
pub(super) fn for_extended(devices: &Devices, pod: &PodInfo) -> Option<Arc<ResourceClaim>> {
    let status = pod.pod.status.as_ref()?;
    let status = status.extended_resource_claim_status.as_ref()?;
    let claim = devices.claim(&pod.namespace, &status.resource_claim_name)?;
    is_owned_by(&claim, &pod.uid).then_some(claim)
}
