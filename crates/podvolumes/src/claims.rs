//! From a pod's volume to the persistent volume that its claim is bound to.

use super::error::Cause;
use davit_pods::objects::ObjectSource;
use davit_pods::pod::PodExt;
use davit_volume::annotations::{CLAIM_PROTECTION, MOUNT_OPTIONS};
use davit_volume::binding::{annotation, claim_ref, uid_of, volume_name};
use davit_volume::pod::{PodClaim, claims_of, is_made_for};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use std::collections::BTreeMap;

/// How containers use a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Use {
    /// As a directory (`volumeMounts`).
    pub(super) mounted: bool,
    /// As a device (`volumeDevices`).
    pub(super) device: bool,
}

/// The volumes that some container names. Others are not made, and images are mounted by the runtime.
pub(super) fn used(pod: &Pod) -> BTreeMap<String, Use> {
    let mut out = BTreeMap::<String, Use>::new();
    for (_, container) in pod.all_containers() {
        for mount in container.volume_mounts.iter().flatten() {
            out.entry(mount.name.clone()).or_default().mounted = true;
        }
        for device in container.volume_devices.iter().flatten() {
            out.entry(device.name.clone()).or_default().device = true;
        }
    }
    let volumes = pod.pod_spec().volumes.iter().flatten();
    for image in volumes.filter(|volume| volume.image.is_some()) {
        out.remove(&image.name);
    }
    out
}

/// A persistent volume that a pod uses by a claim.
#[derive(Debug, Clone)]
pub(super) struct Claimed {
    /// The claim.
    pub(super) claim: PersistentVolumeClaim,
    /// The volume that it is bound to.
    pub(super) volume: PersistentVolume,
    /// The pod asks for it to be read only.
    pub(super) read_only: bool,
}

impl Claimed {
    /// Name of the persistent volume.
    pub(super) fn name(&self) -> &str {
        self.volume.metadata.name.as_deref().unwrap_or_default()
    }

    /// Whether containers get a device.
    pub(super) fn is_block(&self) -> bool {
        let spec = self.volume.spec.as_ref();
        spec.and_then(|s| s.volume_mode.as_deref()) == Some("Block")
    }

    /// Whether one pod at a time may use it.
    pub(super) fn is_for_one_pod(&self) -> bool {
        let spec = self.claim.spec.as_ref();
        let modes = spec.and_then(|s| s.access_modes.as_ref());
        modes.into_iter().flatten().any(|m| m == "ReadWriteOncePod")
    }

    /// Options that the administrator wants it mounted with.
    pub(super) fn mount_options(&self) -> Vec<String> {
        if let Some(old) = annotation(&self.volume.metadata, MOUNT_OPTIONS) {
            return old.split(',').map(str::to_owned).collect();
        }
        let spec = self.volume.spec.as_ref();
        spec.and_then(|s| s.mount_options.clone())
            .unwrap_or_default()
    }
}

/// The persistent volume behind a volume of the pod; `None` for volumes that need no claim.
///
/// # Errors
/// The claim or its volume is missing, not bound, or not what the pod uses it for.
pub(super) async fn resolve(
    pod: &Pod,
    volume: &Volume,
    usage: Use,
    objects: &dyn ObjectSource,
) -> Result<Option<Claimed>, Cause> {
    let Some(wanted) = claims_of(pod).find(|claim| claim.volume == volume.name) else {
        return Ok(None);
    };
    let name = &wanted.claim;
    let failed =
        |why: String| Cause::Claim(format!("error processing PVC {}/{name}: {why}", pod.ns()));
    let claim = objects.claim(pod.ns(), name).await;
    let claim = claim
        .map_err(|error| failed(format!("failed to fetch PVC from API server: {error}")))?
        .ok_or_else(|| {
            failed(format!(
                "failed to fetch PVC from API server: persistentvolumeclaims \"{name}\" not found"
            ))
        })?;
    let bound = bound_to(pod, &wanted, &claim).map_err(&failed)?;
    let found = objects.volume(&bound).await;
    let found = found
        .map_err(|error| failed(format!("failed to fetch PV {bound} from API server: {error}")))?
        .ok_or_else(|| {
            failed(format!(
                "failed to fetch PV {bound} from API server: persistentvolumes \"{bound}\" not found"
            ))
        })?;
    let claimed = Claimed {
        claim,
        volume: found,
        read_only: wanted.read_only,
    };
    check_reference(&claimed).map_err(&failed)?;
    check_use(&volume.name, usage, claimed.is_block())?;
    Ok(Some(claimed))
}

/// The name of the volume that the claim is bound to.
fn bound_to(
    pod: &Pod,
    wanted: &PodClaim<'_>,
    claim: &PersistentVolumeClaim,
) -> Result<String, String> {
    if wanted.ephemeral && !is_made_for(claim, pod) {
        return Err(format!(
            "PVC {0}/{1} was not created for pod {0}/{2} (pod is not owner)",
            pod.ns(),
            wanted.claim,
            pod.pod_name()
        ));
    }
    let meta = &claim.metadata;
    let mut finalizers = meta.finalizers.iter().flatten();
    if meta.deletion_timestamp.is_some() && !finalizers.any(|f| f == CLAIM_PROTECTION) {
        return Err("PVC is being deleted".to_owned());
    }
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
    match volume_name(claim) {
        Some(name) if phase == Some("Bound") => Ok(name.to_owned()),
        _ => Err("PVC is not bound".to_owned()),
    }
}

/// The volume has to say the same: a claim's word alone would give anyone any volume.
fn check_reference(claimed: &Claimed) -> Result<(), String> {
    let says = claim_ref(&claimed.volume).and_then(uid_of);
    let uid = claimed.claim.metadata.uid.as_deref();
    if says.is_some() && says == uid {
        return Ok(());
    }
    Err(format!(
        "found PV object {} but its pv.Spec.ClaimRef.UID {} does not point to claim.UID {}",
        claimed.name(),
        says.unwrap_or_default(),
        uid.unwrap_or_default()
    ))
}

fn check_use(volume: &str, usage: Use, is_block: bool) -> Result<(), Cause> {
    let wrong = match (is_block, usage) {
        (true, Use { mounted: true, .. }) => "Block, but is specified in volumeMounts",
        (false, Use { device: true, .. }) => "Filesystem, but is specified in volumeDevices",
        _ => return Ok(()),
    };
    Err(Cause::Claim(format!(
        "volume {volume} has volumeMode {wrong}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_pods::objects::FixedObjects;
    use serde_json::{Value, json};

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data", "readOnly": true}},
                    {"name": "unused", "emptyDir": {}}]},
        }))
        .unwrap()
    }

    fn claim(phase: &str) -> Value {
        json!({"kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "ns", "uid": "c1"},
            "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOncePod"]}, "status": {"phase": phase}})
    }

    fn volume(uid: &str, mode: &str) -> Value {
        json!({"kind": "PersistentVolume", "metadata": {"name": "pv"},
            "spec": {"volumeMode": mode, "claimRef": {"uid": uid}, "mountOptions": ["noexec"], "local": {"path": "/x"}}})
    }

    async fn resolved(objects: &[Value]) -> Result<Claimed, String> {
        let (pod, objects) = (pod(), FixedObjects::from_json(objects));
        let usage = used(&pod);
        assert_eq!(usage.keys().collect::<Vec<_>>(), ["v"]);
        let volume = &pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0];
        let found = resolve(&pod, volume, usage["v"], &objects).await;
        found.map(Option::unwrap).map_err(|e| e.to_string())
    }

    #[tokio::test]
    async fn items_046_and_047_claims_that_cannot_be_used_say_why() {
        let found = resolved(&[claim("Bound"), volume("c1", "Filesystem")]).await;
        let found = found.unwrap();
        assert!(found.read_only && found.is_for_one_pod() && !found.is_block());
        assert_eq!(found.mount_options(), ["noexec"]);
        for (objects, text) in [
            (
                vec![],
                "error processing PVC ns/data: failed to fetch PVC from API server: persistentvolumeclaims \"data\" not found",
            ),
            (
                vec![claim("Pending"), volume("c1", "Filesystem")],
                "error processing PVC ns/data: PVC is not bound",
            ),
            (
                vec![claim("Bound"), volume("other", "Filesystem")],
                "error processing PVC ns/data: found PV object pv but its pv.Spec.ClaimRef.UID other does not point to claim.UID c1",
            ),
            (
                vec![claim("Bound"), volume("c1", "Block")],
                "volume v has volumeMode Block, but is specified in volumeMounts",
            ),
        ] {
            assert_eq!(resolved(&objects).await.unwrap_err(), text);
        }
    }
}
