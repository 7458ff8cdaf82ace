//! Which claims a pod has.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;

use crate::devices::Devices;
use crate::pod::PodInfo;

/// Whether the pod lists claims.
pub(super) fn has_claims(pod: &PodInfo) -> bool {
    let list = pod.spec().resource_claims.as_ref();
    list.is_some_and(|l| !l.is_empty())
}

/// The names of the pod's claims that exist by now: name, whether it was generated for the pod.
///
/// # Errors
/// When a claim has not been generated yet.
pub(crate) fn names(pod: &Pod) -> Result<Vec<(String, bool)>, String> {
    let mut names = Vec::new();
    let spec = pod.spec.iter().flat_map(|s| &s.resource_claims).flatten();
    for entry in spec {
        if let Some(name) = &entry.resource_claim_name {
            names.push((name.clone(), false));
            continue;
        }
        let full = || {
            let meta = &pod.metadata;
            let namespace = meta.namespace.as_deref().unwrap_or_default();
            format!("{namespace}/{}", meta.name.as_deref().unwrap_or_default())
        };
        if entry.resource_claim_template_name.is_none() {
            return Err(format!(
                "pod \"{}\", spec.resourceClaim \"{}\": none of the supported fields are set",
                full(),
                entry.name
            ));
        }
        let status = pod.status.iter().flat_map(|s| &s.resource_claim_statuses);
        let known = status.flatten().find(|s| s.name == entry.name);
        match known {
            Some(status) => {
                // Without a name the pod does without this claim.
                if let Some(name) = &status.resource_claim_name {
                    names.push((name.clone(), true));
                }
            }
            None => {
                return Err(format!("pod \"{}\": ResourceClaim not created yet", full()));
            }
        }
    }
    Ok(names)
}

/// The pod's claims, each once.
///
/// # Errors
/// Why the pod has to wait: a claim is missing, going away, or somebody else's.
pub(super) fn of_pod(devices: &Devices, pod: &PodInfo) -> Result<Vec<Arc<ResourceClaim>>, String> {
    let mut claims: Vec<Arc<ResourceClaim>> = Vec::new();
    for (name, generated) in names(&pod.pod)? {
        let Some(claim) = devices.claim(&pod.namespace, &name) else {
            return Err(format!(
                "resourceclaim.resource.k8s.io \"{name}\" not found"
            ));
        };
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("resourceclaim \"{name}\" is being deleted"));
        }
        if generated && !is_owned_by(&claim, &pod.uid) {
            return Err(format!(
                "ResourceClaim {}/{name} was not created for pod {} (pod is not owner)",
                pod.namespace,
                pod.key()
            ));
        }
        if !claims.iter().any(|c| c.metadata.uid == claim.metadata.uid) {
            claims.push(claim);
        }
    }
    Ok(claims)
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
