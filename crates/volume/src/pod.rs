//! The claims of pods.

use crate::names::ephemeral_claim_name;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Volume};

/// A claim that a volume of a pod names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodClaim<'a> {
    /// The name of the pod's volume.
    pub volume: &'a str,
    /// The name of the claim, in the pod's namespace.
    pub claim: String,
    /// Whether the claim is made for the pod from a template and ends with it.
    pub ephemeral: bool,
    /// Whether the pod only reads.
    pub read_only: bool,
}

/// The claims that a pod names, those of its generic ephemeral volumes included.
pub fn claims_of(pod: &Pod) -> impl Iterator<Item = PodClaim<'_>> {
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| &spec.volumes).flatten();
    volumes.filter_map(move |volume| claim_of(pod_name, volume))
}

fn claim_of<'a>(pod_name: &str, volume: &'a Volume) -> Option<PodClaim<'a>> {
    let (claim, ephemeral, read_only) = match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => (
            source.claim_name.clone(),
            false,
            source.read_only.unwrap_or(false),
        ),
        (None, Some(_)) => (ephemeral_claim_name(pod_name, &volume.name), true, false),
        (None, None) => return None,
    };
    Some(PodClaim {
        volume: &volume.name,
        claim,
        ephemeral,
        read_only,
    })
}

/// Whether a claim was made for this very pod, which is its controller.
pub fn is_made_for(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    let uid = controller.map(|owner| owner.uid.as_str());
    claim.metadata.namespace == pod.metadata.namespace
        && uid.is_some()
        && uid == pod.metadata.uid.as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_by_name_and_by_template() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [], "volumes": [
                {"name": "a", "persistentVolumeClaim": {"claimName": "data", "readOnly": true}},
                {"name": "scratch", "ephemeral": {}},
                {"name": "e", "emptyDir": {}},
            ]},
        }))
        .unwrap();
        let claims: Vec<PodClaim<'_>> = claims_of(&pod).collect();
        assert_eq!(claims.len(), 2);
        assert!(claims[0].claim == "data" && !claims[0].ephemeral && claims[0].read_only);
        assert!(claims[1].claim == "p-scratch" && claims[1].ephemeral);

        let claim = |uid: &str, controller: bool| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"metadata": {"name": "p-scratch", "namespace": "n",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid,
                    "controller": controller}]}}))
            .unwrap()
        };
        assert!(is_made_for(&claim("u", true), &pod));
        assert!(!is_made_for(&claim("u", false), &pod));
        assert!(!is_made_for(&claim("older", true), &pod));
        assert!(!is_made_for(
            &PersistentVolumeClaim::default(),
            &Pod::default()
        ));
    }
}
