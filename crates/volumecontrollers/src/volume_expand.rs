//! Watches over growing volumes: says who is waited for, and forgets the old size when the file system has grown. Has the
//! drivers of FlexVolumes grow theirs.
//!
//! Other volumes are grown by others, by external resizers and the agents of nodes; see
//! <https://kubernetes.io/docs/concepts/storage/persistent-volumes/#expanding-persistent-volumes-claims>.

mod flex;

use async_trait::async_trait;
use davit_client::{EventRecorder, ObjectKey, object_ref};
use davit_flexvolume::{FlexDrivers, FlexVolume};
use davit_reconcile::{Context, Error, Informers, Next, Reconcile, Spawner, gone_is_none};
use davit_volume::annotations::PRE_RESIZE_CAPACITY;
use davit_volume::binding::{annotation, claim_ref, uid_of, volume_name};
use davit_volume::matching::{capacity_of, request_of, size_of};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams};
use std::sync::Arc;

const WAITING: &str = "waiting for an external controller to expand this PVC";

struct Expansion {
    client: kube::Client,
    informers: Informers,
    events: EventRecorder,
    flex_drivers: Arc<FlexDrivers>,
}

/// Starts the controller.
pub(crate) fn spawn(spawner: &mut Spawner<'_>, flex_drivers: Arc<FlexDrivers>) {
    let Some(spawner) = &mut spawner.start("persistentvolume-expander-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let events = spawner.events("volume_expand");
    let queue = spawner.controller(Expansion {
        client: spawner.client.clone(),
        informers: informers.clone(),
        events,
        flex_drivers,
    });
    spawner.feed_changes(
        &informers.claims,
        &queue,
        |old: &PersistentVolumeClaim, new| {
            request_of(new) > request_of(old) || size_of(new) > size_of(old)
        },
        |claim: &PersistentVolumeClaim| vec![ObjectKey::of(claim)],
    );
}

/// What is to be done about a bound claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expand {
    /// It has the size that it asks for.
    Nothing,
    /// The file system has grown with its volume: the mark of the old size goes.
    Unmark,
    /// Somebody else has to act.
    Wait,
}

fn plan(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Expand {
    let marked = annotation(&volume.metadata, PRE_RESIZE_CAPACITY).is_some();
    let size = size_of(claim);
    // after a smaller wish, the volume may still be larger than what is asked for
    if marked && size >= request_of(claim) && size >= capacity_of(volume) {
        return Expand::Unmark;
    }
    if request_of(claim) > size {
        return Expand::Wait;
    }
    Expand::Nothing
}

#[async_trait]
impl Reconcile for Expansion {
    const NAME: &'static str = "persistentvolume-expander";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(claim) = self.informers.claims.get(Some(&key.namespace), &key.name) else {
            return Ok(Next::Wait);
        };
        let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
        let Some(name) = volume_name(&claim).filter(|_| phase == Some("Bound")) else {
            return Ok(Next::Wait);
        };
        let volumes: kube::Api<PersistentVolume> = kube::Api::all(self.client.clone());
        let volume = volumes.get_opt(name).await;
        let Some(volume) = volume.context(|| format!("get volume {name}"))? else {
            return Ok(Next::Wait);
        };
        if claim_ref(&volume).and_then(uid_of) != claim.metadata.uid.as_deref() {
            // a broken link is the binder's to judge
            return Ok(Next::Wait);
        }
        match plan(&claim, &volume) {
            Expand::Nothing => {}
            Expand::Wait => {
                // One whose driver has no name that a driver can have is grown by nobody here.
                if let Some(Ok(flex)) = FlexVolume::persistent(&volume, false) {
                    return self.grow_flex(&claim, &volume, &flex).await;
                }
                let claim = object_ref(&*claim);
                self.events.normal(&claim, "ExternalExpanding", WAITING);
            }
            Expand::Unmark => {
                let patch = serde_json::json!({ "metadata": {
                    "uid": volume.metadata.uid, "resourceVersion": volume.metadata.resource_version,
                    "annotations": { PRE_RESIZE_CAPACITY: null },
                } });
                let patched = volumes
                    .patch(name, &PatchParams::default(), &Patch::Merge(patch))
                    .await;
                gone_is_none(patched)
                    .context(|| format!("remove the old size of volume {name}"))?;
            }
        }
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn waits_until_the_claim_has_its_size_and_then_forgets_the_old_one() {
        let claim = |asks: &str, has: &str| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"metadata": {},
                "spec": {"resources": {"requests": {"storage": asks}}},
                "status": {"capacity": {"storage": has}}}))
            .unwrap()
        };
        let volume = |size: &str, before: Option<&str>| -> PersistentVolume {
            serde_json::from_value(json!({
                "metadata": {"annotations": before.map(|size| json!({PRE_RESIZE_CAPACITY: size}))},
                "spec": {"capacity": {"storage": size}}}))
            .unwrap()
        };
        let small = volume("1Gi", None);
        assert_eq!(plan(&claim("1Gi", "1Gi"), &small), Expand::Nothing);
        assert_eq!(plan(&claim("2Gi", "1Gi"), &small), Expand::Wait);
        let growing = volume("2Gi", Some("1Gi"));
        assert_eq!(plan(&claim("2Gi", "1Gi"), &growing), Expand::Wait);
        assert_eq!(plan(&claim("1Gi", "1Gi"), &growing), Expand::Nothing);
        assert_eq!(plan(&claim("2Gi", "2Gi"), &growing), Expand::Unmark);
        assert_eq!(
            plan(&claim("2Gi", "2048Mi"), &volume("2Gi", None)),
            Expand::Nothing
        );
    }
}
