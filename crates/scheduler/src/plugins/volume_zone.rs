//! Volumes whose labels say that they are in a zone are used from nodes of that zone.

use std::collections::BTreeSet;
use std::sync::Arc;

use davit_volume::binding::volume_name;
use davit_volume::class::{BindingMode, binding_mode, claim_class};
use k8s_openapi::api::core::v1::PersistentVolume;

use crate::cache::Snapshot;
use crate::framework::{
    Action, ClusterEvent, CycleState, EventObject, EventResource, Filter, Hint, NodeNames, Plugin,
    Points, PreFilter, Status,
};
use crate::node::NodeInfo;
use crate::plugins::volume_binding::{UNKNOWN_YET, names_claim};
use crate::pod::PodInfo;
use davit_volumecache::VolumeCache;

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
/// Labels and what they are called today.
const LABELS: [(&str, &str); 4] = [
    ("failure-domain.beta.kubernetes.io/zone", ZONE),
    ("failure-domain.beta.kubernetes.io/region", REGION),
    (ZONE, ZONE),
    (REGION, REGION),
];
/// Stands between the zones of a volume that is in several.
const SEPARATOR: &str = "__";

/// The plugin `VolumeZone`.
#[derive(Debug)]
pub struct VolumeZone {
    volumes: VolumeCache,
}

/// A label that nodes must have, with one of these values.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ZoneLabel {
    label: &'static str,
    /// What the label is called today.
    current: &'static str,
    values: BTreeSet<String>,
}

/// What the pod's volumes ask of nodes.
#[derive(Clone)]
struct VolumeZones(Arc<Vec<ZoneLabel>>);

/// Where a volume is. A label that cannot be read says nothing.
fn places_of(volume: &PersistentVolume) -> Vec<ZoneLabel> {
    let labels = volume.metadata.labels.as_ref();
    let place = |(label, current): (&'static str, &'static str)| {
        let value = labels?.get(label)?;
        let values = value.split(SEPARATOR).map(|v| v.trim().to_owned());
        let values: BTreeSet<String> = values.collect();
        (!values.contains("")).then_some(ZoneLabel {
            label,
            current,
            values,
        })
    };
    LABELS.into_iter().filter_map(place).collect()
}

impl VolumeZone {
    /// A plugin that decides by what `volumes` knows.
    pub fn new(volumes: VolumeCache) -> Self {
        Self { volumes }
    }

    fn places(&self, pod: &PodInfo) -> Result<Vec<ZoneLabel>, Status> {
        let mut places = Vec::new();
        for key in &pod.claims {
            let name = key.split_once('/').map_or(&**key, |(_, name)| name);
            let missing =
                |kind: &str, name: &str| Status::unresolvable(format!("{kind} {name:?} not found"));
            let claim = self.volumes.claim(&pod.namespace, name);
            let claim = claim.ok_or_else(|| missing("persistentvolumeclaim", name))?;
            let Some(volume) = volume_name(&claim) else {
                let class = claim_class(&claim).unwrap_or("");
                if class.is_empty() {
                    let text = "PersistentVolumeClaim had no pv name and storageClass name";
                    return Err(Status::unresolvable(text));
                }
                let known = self.volumes.class(class);
                let known = known.ok_or_else(|| missing("storageclass.storage.k8s.io", class))?;
                if binding_mode(Some(&known)) == BindingMode::WaitForFirstConsumer {
                    continue;
                }
                return Err(Status::unresolvable("PersistentVolume had no name"));
            };
            let known = self.volumes.volume(volume);
            let known = known.ok_or_else(|| missing("persistentvolume", volume))?;
            places.extend(places_of(&known));
        }
        Ok(places)
    }
}

impl Plugin for VolumeZone {
    fn name(&self) -> &'static str {
        "VolumeZone"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.pre_filter.push(self.clone());
        points.filter.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        let change = Action::ADD | Action::UPDATE;
        vec![
            ClusterEvent::new(EventResource::StorageClass, Action::ADD),
            ClusterEvent::new(EventResource::Node, Action::ADD | Action::UPDATE_LABEL),
            ClusterEvent::new(EventResource::PersistentVolumeClaim, change),
            ClusterEvent::new(EventResource::PersistentVolume, change),
        ]
    }

    fn hint(&self, _: &ClusterEvent, pod: &PodInfo, object: &EventObject) -> Hint {
        let helps = match object {
            EventObject::StorageClass {
                new: Some(class), ..
            } => binding_mode(Some(class)) == BindingMode::WaitForFirstConsumer,
            EventObject::VolumeClaim {
                new: Some(claim), ..
            } => names_claim(pod, claim),
            EventObject::Volume {
                old: Some(old),
                new: Some(new),
            } => places_of(old) != places_of(new),
            _ => true,
        };
        if helps { Hint::Queue } else { Hint::Skip }
    }
}

impl PreFilter for VolumeZone {
    fn pre_filter(
        &self,
        state: &mut CycleState,
        pod: &PodInfo,
        _: &Snapshot,
    ) -> (Status, NodeNames) {
        if !pod.claims.is_empty() && !self.volumes.is_synced() {
            return (Status::unresolvable(UNKNOWN_YET), None);
        }
        match self.places(pod) {
            Err(refusal) => (refusal, None),
            Ok(places) if places.is_empty() => (Status::skip(), None),
            Ok(places) => {
                state.put(VolumeZones(Arc::new(places)));
                (Status::success(), None)
            }
        }
    }
}

impl Filter for VolumeZone {
    fn filter(&self, state: &CycleState, _: &PodInfo, node: &NodeInfo) -> Status {
        // A node of a cluster without zones can reach everything.
        if LABELS.iter().all(|(label, _)| node.label(label).is_none()) {
            return Status::success();
        }
        let places = state.get::<VolumeZones>().map(|places| &**places.0);
        let reaches = |place: &ZoneLabel| {
            let value = node
                .label(place.label)
                .or_else(|| node.label(place.current));
            value.is_some_and(|value| place.values.contains(value))
        };
        if places.unwrap_or_default().iter().all(reaches) {
            Status::success()
        } else {
            Status::unresolvable("node(s) had no available volume zone")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{Bed, Shelf, pod};
    use serde_json::{Value, json};

    fn bed() -> Bed {
        let mut bed = Bed::new();
        let labels = |labels: Value| json!({"metadata": {"labels": labels}});
        bed.node("a", labels(json!({ZONE: "z1", REGION: "r"})));
        bed.node(
            "b",
            labels(json!({"failure-domain.beta.kubernetes.io/zone": "z1"})),
        );
        bed.node("c", labels(json!({ZONE: "z2"})));
        bed.node("d", json!({}));
        bed
    }

    fn verdicts(labels: Value) -> Vec<bool> {
        let shelf = Shelf::new();
        shelf.claim("data", json!({"volumeName": "pv"}));
        shelf.volume("pv", &labels, json!({}));
        let plugin = VolumeZone::new(shelf.volumes);
        let using =
            json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]});
        let verdicts = bed().verdicts(&plugin, &pod("p", using));
        let refused = Status::unresolvable("node(s) had no available volume zone");
        assert!(verdicts.iter().all(|v| v.is_success() || *v == refused));
        verdicts.iter().map(Status::is_success).collect()
    }

    #[test]
    fn volumes_are_reached_from_their_zones() {
        let beta = "failure-domain.beta.kubernetes.io/zone";
        // The order of the snapshot alternates between zones.
        let names: Vec<String> = bed()
            .snapshot
            .nodes()
            .iter()
            .map(|n| n.name.to_string())
            .collect();
        let reached = |labels: Value| -> Vec<String> {
            let reached = names.iter().zip(verdicts(labels));
            let mut names: Vec<String> = reached
                .filter(|(_, r)| *r)
                .map(|(n, _)| n.clone())
                .collect();
            names.sort();
            names
        };
        assert_eq!(reached(json!({ZONE: "z1"})), ["a", "d"]);
        assert_eq!(reached(json!({ZONE: "z1__z2"})), ["a", "c", "d"]);
        assert_eq!(reached(json!({beta: "z1"})), ["a", "b", "d"]);
        assert_eq!(reached(json!({ZONE: "z1", REGION: "r"})), ["a", "d"]);
        assert_eq!(reached(json!({ZONE: "z9"})), ["d"]);
        assert_eq!(
            reached(json!({ZONE: "z9__"})),
            ["a", "b", "c", "d"],
            "unreadable"
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        let shelf = Shelf::new();
        shelf.class(
            "late",
            json!({"provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"}),
        );
        shelf.class(
            "now",
            json!({"provisioner": "x", "volumeBindingMode": "Immediate"}),
        );
        shelf.claim("lost", json!({"volumeName": "pv"}));
        shelf.claim("delayed", json!({"storageClassName": "late"}));
        shelf.claim("immediate", json!({"storageClassName": "now"}));
        shelf.claim("strange", json!({"storageClassName": "none"}));
        shelf.claim("bare", json!({"storageClassName": ""}));
        let plugin = VolumeZone::new(shelf.volumes);
        let refusal = |claim: &str| {
            let using =
                json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]});
            let (status, _) = bed().pre_filter(&plugin, &pod("p", using));
            (!status.is_skip()).then(|| status.message())
        };
        assert_eq!(refusal("delayed"), None);
        for (claim, expected) in [
            ("absent", "persistentvolumeclaim \"absent\" not found"),
            ("lost", "persistentvolume \"pv\" not found"),
            ("strange", "storageclass.storage.k8s.io \"none\" not found"),
            ("immediate", "PersistentVolume had no name"),
            (
                "bare",
                "PersistentVolumeClaim had no pv name and storageClass name",
            ),
        ] {
            assert_eq!(refusal(claim).as_deref(), Some(expected));
        }
    }
}
