//! Keeps claims that pods use, volumes that claims use, and attribute classes that either names, from going away under
//! them: puts the protection finalizers on, and takes them off when nothing uses the object any more.

use async_trait::async_trait;
use davit_client::{Informer, ObjectKey};
use davit_reconcile::finalizers::settle;
use davit_reconcile::pods::node_of;
use davit_reconcile::{Context, Error, Informers, Next, Reconcile, Spawner};
use davit_volume::annotations::{ATTRIBUTES_CLASS_PROTECTION, CLAIM_PROTECTION, VOLUME_PROTECTION};
use davit_volume::pod::{claims_of, is_made_for};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use kube::api::ListParams;

struct Claims {
    client: kube::Client,
    informers: Informers,
}

struct Volumes {
    client: kube::Client,
    informers: Informers,
}

struct AttributesClasses {
    client: kube::Client,
    informers: Informers,
    classes: Informer<VolumeAttributesClass>,
}

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    protect_claims(spawner);
    protect_volumes(spawner);
    protect_classes(spawner);
}

fn protect_claims(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("persistentvolumeclaim-protection-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let claims = spawner.controller(Claims {
        client: spawner.client.clone(),
        informers: informers.clone(),
    });
    spawner.feed(
        &informers.claims,
        &claims,
        |claim: &PersistentVolumeClaim| vec![ObjectKey::of(claim)],
    );
    spawner.feed(&informers.pods, &claims, |pod: &Pod| claim_keys(pod));
}

fn protect_volumes(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("persistentvolume-protection-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let volumes = spawner.controller(Volumes {
        client: spawner.client.clone(),
        informers: informers.clone(),
    });
    spawner.feed(&informers.volumes, &volumes, |volume: &PersistentVolume| {
        vec![ObjectKey::of(volume)]
    });
}

fn protect_classes(spawner: &mut Spawner<'_>) {
    let Some(spawner) = &mut spawner.start("volumeattributesclass-protection-controller") else {
        return;
    };
    let informers = spawner.informers.clone();
    let classes: Informer<VolumeAttributesClass> = spawner.informer();
    let protection = spawner.controller(AttributesClasses {
        client: spawner.client.clone(),
        informers: informers.clone(),
        classes: classes.clone(),
    });
    spawner.feed(&classes, &protection, |class: &VolumeAttributesClass| {
        vec![ObjectKey::of(class)]
    });
    // a claim or volume that changes may have let go of a class: those that wait to go are looked at again
    let waiting = classes.clone();
    spawner.feed(
        &informers.claims,
        &protection,
        move |_: &PersistentVolumeClaim| going(&waiting),
    );
    spawner.feed(
        &informers.volumes,
        &protection,
        move |_: &PersistentVolume| going(&classes),
    );
}

/// The classes that are being deleted.
fn going(classes: &Informer<VolumeAttributesClass>) -> Vec<ObjectKey> {
    let classes = classes.list();
    let going = classes
        .iter()
        .filter(|class| class.metadata.deletion_timestamp.is_some());
    going.map(|class| ObjectKey::of(&**class)).collect()
}

/// Whether a claim has the class, asks for it, or is on its way to it.
fn claim_names(claim: &PersistentVolumeClaim, class: &str) -> bool {
    let asked = claim.spec.as_ref();
    let asked = asked.and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let status = claim.status.as_ref();
    let current = status.and_then(|s| s.current_volume_attributes_class_name.as_deref());
    let target = status.and_then(|s| s.modify_volume_status.as_ref());
    let target = target.and_then(|m| m.target_volume_attributes_class_name.as_deref());
    [asked, current, target].contains(&Some(class))
}

fn volume_names(volume: &PersistentVolume, class: &str) -> bool {
    let spec = volume.spec.as_ref();
    spec.and_then(|s| s.volume_attributes_class_name.as_deref()) == Some(class)
}

/// The keys of the claims that a pod names.
fn claim_keys(pod: &Pod) -> Vec<ObjectKey> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let claims = claims_of(pod);
    let keys = claims.map(|named| ObjectKey {
        namespace: namespace.clone(),
        name: named.claim,
    });
    keys.collect()
}

/// Whether the pod holds the claim. One that has ended may have it mounted still; one that was never placed has not.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let meta = &pod.metadata;
    // The claim of an ephemeral volume goes with its pod, which nothing of it is left of on the node.
    let shut_down =
        meta.deletion_timestamp.is_some() && meta.deletion_grace_period_seconds == Some(0);
    let named = claims_of(pod).any(|named| {
        let same = Some(&named.claim) == claim.metadata.name.as_ref();
        same && (!named.ephemeral || (!shut_down && is_made_for(claim, pod)))
    });
    named && node_of(pod).is_some()
}

#[async_trait]
impl Reconcile for Claims {
    const NAME: &'static str = "pvc-protection";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(claim) = self.informers.claims.get(Some(&key.namespace), &key.name) else {
            return Ok(Next::Wait);
        };
        let api: kube::Api<PersistentVolumeClaim> =
            kube::Api::namespaced(self.client.clone(), &key.namespace);
        let deleting = claim.metadata.deletion_timestamp.is_some();
        if deleting {
            let pods = self.informers.pods.list_namespace(&key.namespace);
            if pods.iter().any(|pod| uses(pod, &claim)) {
                return Ok(Next::Wait);
            }
            // The informer may lag behind: only the API server knows that nothing uses it.
            let pods: kube::Api<Pod> = kube::Api::namespaced(self.client.clone(), &key.namespace);
            let pods = pods.list(&ListParams::default()).await;
            let pods = pods.context(|| format!("list pods that use claim {key}"))?;
            if pods.items.iter().any(|pod| uses(pod, &claim)) {
                return Ok(Next::Wait);
            }
        }
        settle(&api, &*claim, CLAIM_PROTECTION, deleting).await?;
        Ok(Next::Wait)
    }
}

#[async_trait]
impl Reconcile for Volumes {
    const NAME: &'static str = "pv-protection";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(volume) = self.informers.volumes.get(None, &key.name) else {
            return Ok(Next::Wait);
        };
        let api: kube::Api<PersistentVolume> = kube::Api::all(self.client.clone());
        let deleting = volume.metadata.deletion_timestamp.is_some();
        let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
        if deleting && phase == Some("Bound") {
            return Ok(Next::Wait);
        }
        settle(&api, &*volume, VOLUME_PROTECTION, deleting).await?;
        Ok(Next::Wait)
    }
}

#[async_trait]
impl Reconcile for AttributesClasses {
    const NAME: &'static str = "volumeattributesclass-protection";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(class) = self.classes.get(None, &key.name) else {
            return Ok(Next::Wait);
        };
        let deleting = class.metadata.deletion_timestamp.is_some();
        if deleting && self.is_used(&key.name).await? {
            return Ok(Next::Wait);
        }
        let api: kube::Api<VolumeAttributesClass> = kube::Api::all(self.client.clone());
        settle(&api, &*class, ATTRIBUTES_CLASS_PROTECTION, deleting).await?;
        Ok(Next::Wait)
    }
}

impl AttributesClasses {
    /// Asked of the informers first; that nothing uses it only the API server knows.
    async fn is_used(&self, class: &str) -> Result<bool, Error> {
        let by_claim = |claim: &PersistentVolumeClaim| claim_names(claim, class);
        let by_volume = |volume: &PersistentVolume| volume_names(volume, class);
        if self.informers.claims.list().iter().any(|c| by_claim(c))
            || self.informers.volumes.list().iter().any(|v| by_volume(v))
        {
            return Ok(true);
        }
        let why = || format!("list what uses the volume attributes class {class}");
        let claims: kube::Api<PersistentVolumeClaim> = kube::Api::all(self.client.clone());
        let claims = claims.list(&ListParams::default()).await.context(why)?;
        let volumes: kube::Api<PersistentVolume> = kube::Api::all(self.client.clone());
        let volumes = volumes.list(&ListParams::default()).await.context(why)?;
        Ok(claims.items.iter().any(by_claim) || volumes.items.iter().any(by_volume))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn classes_are_held_by_what_names_them() {
        let claim = |spec: serde_json::Value, status: serde_json::Value| -> PersistentVolumeClaim {
            let claim = json!({ "metadata": { "name": "c" }, "spec": spec, "status": status });
            serde_json::from_value(claim).unwrap()
        };
        let named = json!({ "volumeAttributesClassName": "gold" });
        assert!(claim_names(&claim(named.clone(), json!({})), "gold"));
        assert!(!claim_names(&claim(named, json!({})), "silver"));
        let has = json!({ "currentVolumeAttributesClassName": "gold" });
        assert!(claim_names(&claim(json!({}), has), "gold"));
        let wants = json!({ "modifyVolumeStatus": {
            "status": "Pending", "targetVolumeAttributesClassName": "gold" } });
        assert!(claim_names(&claim(json!({}), wants), "gold"));
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": { "name": "v" }, "spec": { "volumeAttributesClassName": "gold" } }))
        .unwrap();
        assert!(volume_names(&volume, "gold") && !volume_names(&volume, "silver"));
    }

    #[test]
    fn placed_pods_hold_the_claims_they_name() {
        let pod = |node: &str, phase: &str, gone: bool| -> Pod {
            serde_json::from_value(json!({
                "metadata": { "name": "p", "namespace": "n", "uid": "u",
                    "deletionTimestamp": gone.then_some("2026-01-01T00:00:00Z"),
                    "deletionGracePeriodSeconds": gone.then_some(0) },
                "spec": { "nodeName": node, "containers": [], "volumes": [
                    { "name": "a", "persistentVolumeClaim": { "claimName": "data" } },
                    { "name": "scratch", "ephemeral": {} }, { "name": "e", "emptyDir": {} } ] },
                "status": { "phase": phase },
            }))
            .unwrap()
        };
        let claim = |name: &str, owner: &str| -> PersistentVolumeClaim {
            serde_json::from_value(json!({ "metadata": { "name": name, "namespace": "n",
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner,
                    "controller": true }] } }))
            .unwrap()
        };
        let running = pod("node", "Running", false);
        let names = claim_keys(&running).into_iter().map(|key| key.to_string());
        assert_eq!(names.collect::<Vec<_>>(), ["n/data", "n/p-scratch"]);
        let data = claim("data", "other");
        assert!(uses(&running, &data) && !uses(&running, &claim("other", "other")));
        assert!(!uses(&pod("", "Pending", false), &data));
        // what has ended may be mounted still
        assert!(uses(&pod("node", "Succeeded", false), &data));
        assert!(uses(&pod("node", "Succeeded", true), &data));
        let scratch = claim("p-scratch", "u");
        assert!(uses(&pod("node", "Succeeded", false), &scratch));
        assert!(!uses(&pod("node", "Succeeded", true), &scratch));
        assert!(!uses(&running, &claim("p-scratch", "older")));
    }
}
