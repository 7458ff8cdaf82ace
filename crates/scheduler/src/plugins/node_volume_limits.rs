//! How many volumes of a storage driver fit on a node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use davit_volume::binding::volume_name;
use davit_volume::class::claim_class;
use davit_volume::pod::{claims_of, is_made_for};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSINode;

use crate::cache::Snapshot;
use crate::framework::{
    Action, ClusterEvent, CycleState, EventObject, EventResource, Filter, Hint, NodeNames, Plugin,
    Points, PreFilter, Status,
};
use crate::node::NodeInfo;
use crate::plugins::volume_binding::{UNKNOWN_YET, names_claim, not_owner};
use crate::pod::PodInfo;
use davit_volumecache::VolumeCache;

/// The plugin `NodeVolumeLimits`.
#[derive(Debug)]
pub struct NodeVolumeLimits {
    volumes: VolumeCache,
}

/// A volume of a CSI driver: one that exists, by its handle, or one that is to be made for a claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum CountedVolume {
    Handle(String),
    Claim(String),
}

/// Drivers with volumes.
type DriverVolumes = BTreeSet<(String, CountedVolume)>;

/// What the pod brings; a refusal is given only when nodes are looked at, as other plugins know better words.
#[derive(Clone)]
struct BroughtVolumes(Arc<Result<DriverVolumes, Status>>);

fn csi_volume(volume: &PersistentVolume) -> Option<(String, CountedVolume)> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    Some((
        csi.driver.clone(),
        CountedVolume::Handle(csi.volume_handle.clone()),
    ))
}

impl NodeVolumeLimits {
    /// A plugin that decides by what `volumes` knows.
    pub fn new(volumes: VolumeCache) -> Self {
        Self { volumes }
    }

    /// The CSI volumes of a pod that is new; of one that is there, as far as they are known.
    fn volumes_of(&self, pod: &PodInfo, new: bool) -> Result<DriverVolumes, Status> {
        let mut volumes = DriverVolumes::new();
        for wanted in claims_of(&pod.pod) {
            let name = &wanted.claim;
            let claim = self.volumes.claim(&pod.namespace, name);
            let claim = match claim {
                Some(claim) if !wanted.ephemeral || is_made_for(&claim, &pod.pod) => claim,
                _ if !new => continue,
                Some(_) => return Err(Status::error(not_owner(pod, name))),
                None => {
                    return Err(Status::unresolvable(format!(
                        "looking up PVC {}/{name}: persistentvolumeclaim {name:?} not found",
                        pod.namespace
                    )));
                }
            };
            volumes.extend(self.volume_of(&claim, &format!("{}/{name}", pod.namespace)));
        }
        Ok(volumes)
    }

    /// The CSI volume that a claim has or will have.
    fn volume_of(
        &self,
        claim: &PersistentVolumeClaim,
        key: &str,
    ) -> Option<(String, CountedVolume)> {
        if let Some(volume) = volume_name(claim).and_then(|name| self.volumes.volume(name)) {
            return csi_volume(&volume);
        }
        let class = claim_class(claim).filter(|class| !class.is_empty())?;
        let driver = self.volumes.class(class)?.provisioner.clone();
        (!driver.is_empty()).then(|| (driver, CountedVolume::Claim(key.to_owned())))
    }

    /// The volumes on a node: those of its pods, and those that are still attached to it.
    fn volumes_on(&self, node: &NodeInfo) -> DriverVolumes {
        let pods = node.pods.iter();
        let mut volumes: DriverVolumes = pods
            .filter_map(|pod| self.volumes_of(pod, false).ok())
            .flatten()
            .collect();
        for attachment in self.volumes.attachments(&node.name) {
            let source = &attachment.spec.source.persistent_volume_name;
            let volume = source.as_ref().and_then(|name| self.volumes.volume(name));
            if let Some((_, handle)) = volume.and_then(|volume| csi_volume(&volume)) {
                volumes.insert((attachment.spec.attacher.clone(), handle));
            }
        }
        volumes
    }
}

/// How many volumes a node takes, by driver; one that is not named has no limit.
fn limits(node: &CSINode) -> BTreeMap<&str, i32> {
    let drivers = node.spec.drivers.iter();
    let limit = |count: Option<i32>, name| count.map(|count| (name, count));
    drivers
        .filter_map(|driver| {
            let count = driver.allocatable.as_ref().and_then(|a| a.count);
            limit(count, driver.name.as_str())
        })
        .collect()
}

impl Plugin for NodeVolumeLimits {
    fn name(&self) -> &'static str {
        "NodeVolumeLimits"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.pre_filter.push(self.clone());
        points.filter.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        vec![
            ClusterEvent::new(EventResource::CsiNode, Action::ADD | Action::UPDATE),
            ClusterEvent::new(EventResource::AssignedPod, Action::DELETE),
            ClusterEvent::new(EventResource::PersistentVolumeClaim, Action::ADD),
            ClusterEvent::new(EventResource::VolumeAttachment, Action::DELETE),
        ]
    }

    fn hint(&self, _: &ClusterEvent, pod: &PodInfo, object: &EventObject) -> Hint {
        let helps = match object {
            EventObject::CsiNode {
                old: Some(old),
                new: Some(new),
            } => {
                let old = limits(old);
                let mut new = limits(new).into_iter();
                new.any(|(driver, count)| count > old.get(driver).copied().unwrap_or(0))
            }
            EventObject::Pod {
                old: Some(gone), ..
            } => claims_of(&gone.pod).next().is_some(),
            EventObject::VolumeClaim {
                new: Some(claim), ..
            } => names_claim(pod, claim),
            EventObject::VolumeAttachment { .. } => claims_of(&pod.pod).next().is_some(),
            _ => true,
        };
        if helps { Hint::Queue } else { Hint::Skip }
    }
}

impl PreFilter for NodeVolumeLimits {
    fn pre_filter(
        &self,
        state: &mut CycleState,
        pod: &PodInfo,
        _: &Snapshot,
    ) -> (Status, NodeNames) {
        if claims_of(&pod.pod).next().is_none() {
            return (Status::skip(), None);
        }
        if !self.volumes.is_synced() {
            return (Status::unresolvable(UNKNOWN_YET), None);
        }
        let brought = self.volumes_of(pod, true);
        if brought.as_ref().is_ok_and(BTreeSet::is_empty) {
            return (Status::skip(), None);
        }
        state.put(BroughtVolumes(Arc::new(brought)));
        (Status::success(), None)
    }
}

impl Filter for NodeVolumeLimits {
    fn filter(&self, state: &CycleState, _: &PodInfo, node: &NodeInfo) -> Status {
        let Some(brought) = state.get::<BroughtVolumes>() else {
            return Status::success();
        };
        let brought = match &*brought.0 {
            Ok(brought) => brought,
            Err(refusal) => return refusal.clone(),
        };
        let Some(csi_node) = self.volumes.csi_node(&node.name) else {
            return Status::success();
        };
        let limits = limits(&csi_node);
        if brought
            .iter()
            .all(|(driver, _)| !limits.contains_key(driver.as_str()))
        {
            return Status::success();
        }
        let there = self.volumes_on(node);
        let exceeds = |(driver, limit): (&str, i32)| {
            let of_driver = |(d, _): &&(String, CountedVolume)| d == driver;
            let new = brought.difference(&there).filter(of_driver).count();
            let limit = usize::try_from(limit).unwrap_or(0);
            new > 0 && there.iter().filter(of_driver).count() + new > limit
        };
        if limits.into_iter().any(exceeds) {
            Status::unschedulable("node(s) exceed max volume count")
        } else {
            Status::success()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{Bed, Shelf, pod};
    use serde_json::json;

    const DRIVER: &str = "csi.example.com";

    fn using(name: &str, claims: &[&str]) -> Arc<PodInfo> {
        let volume =
            |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
        let volumes: Vec<_> = claims.iter().map(volume).collect();
        pod(name, json!({ "volumes": volumes }))
    }

    /// Node `a` takes two volumes, node `b` as many as you like. Claims `c1` to `c4` have volumes.
    fn cluster() -> (Shelf, Bed) {
        let shelf = Shelf::new();
        shelf.csi_node(
            "a",
            json!([{"name": DRIVER, "nodeID": "a", "topologyKeys": [],
            "allocatable": {"count": 2}}]),
        );
        for i in 1..5 {
            shelf.claim(&format!("c{i}"), json!({"volumeName": format!("pv{i}")}));
            let csi = json!({"csi": {"driver": DRIVER, "volumeHandle": format!("h{i}")}});
            shelf.volume(&format!("pv{i}"), &json!({}), csi);
        }
        let mut bed = Bed::new();
        bed.node("a", json!({}));
        bed.node("b", json!({}));
        (shelf, bed)
    }

    fn fits(shelf: &Shelf, bed: &Bed, pod: &PodInfo) -> Vec<bool> {
        let plugin = NodeVolumeLimits::new(shelf.volumes.clone());
        let verdicts = bed.verdicts(&plugin, pod);
        let refused = Status::unschedulable("node(s) exceed max volume count");
        assert!(verdicts.iter().all(|v| v.is_success() || *v == refused));
        verdicts.iter().map(Status::is_success).collect()
    }

    #[test]
    fn volumes_count_once_however_many_pods_use_them() {
        let (shelf, mut bed) = cluster();
        bed.place(&using("p", &["c1"]), "a");
        bed.place(&using("q", &["c1"]), "a");
        assert_eq!(fits(&shelf, &bed, &using("r", &["c2"])), [true, true]);
        assert_eq!(
            fits(&shelf, &bed, &using("r", &["c2", "c3"])),
            [false, true]
        );
        bed.place(&using("r", &["c2"]), "a");
        assert_eq!(fits(&shelf, &bed, &using("s", &["c3"])), [false, true]);
        assert_eq!(fits(&shelf, &bed, &using("s", &["c1"])), [true, true]);
    }

    #[test]
    fn attached_volumes_count_until_they_are_detached() {
        let (shelf, mut bed) = cluster();
        bed.place(&using("p", &["c1"]), "a");
        shelf.attachment("va1", "a", DRIVER, "pv1");
        assert_eq!(fits(&shelf, &bed, &using("r", &["c3"])), [true, true]);
        shelf.attachment("va2", "a", DRIVER, "pv2");
        assert_eq!(fits(&shelf, &bed, &using("r", &["c3"])), [false, true]);
        shelf.detach("va2", "a", DRIVER, "pv2");
        assert_eq!(fits(&shelf, &bed, &using("r", &["c3"])), [true, true]);
    }

    #[test]
    fn volumes_to_be_made_count_by_their_class() {
        let (shelf, mut bed) = cluster();
        shelf.class("fast", json!({"provisioner": DRIVER}));
        shelf.class("slow", json!({"provisioner": "other.example.com"}));
        shelf.claim("new", json!({"storageClassName": "fast"}));
        shelf.claim("other", json!({"storageClassName": "slow"}));
        bed.place(&using("p", &["c1", "c2"]), "a");
        assert_eq!(fits(&shelf, &bed, &using("r", &["new"])), [false, true]);
        assert_eq!(fits(&shelf, &bed, &using("r", &["other"])), [true, true]);
    }

    #[test]
    fn a_missing_claim_is_named_when_nodes_are_looked_at() {
        let (shelf, bed) = cluster();
        let plugin = NodeVolumeLimits::new(shelf.volumes.clone());
        let text = "looking up PVC default/gone: persistentvolumeclaim \"gone\" not found";
        let verdicts = bed.verdicts(&plugin, &using("p", &["gone"]));
        assert_eq!(
            verdicts,
            [Status::unresolvable(text), Status::unresolvable(text)]
        );
    }

    #[test]
    fn more_room_wakes() {
        let (shelf, _) = cluster();
        let plugin = NodeVolumeLimits::new(shelf.volumes.clone());
        let node = |count: i32| {
            let drivers = json!([{"name": DRIVER, "nodeID": "a", "allocatable": {"count": count}}]);
            let node = json!({"metadata": {"name": "a"}, "spec": {"drivers": drivers}});
            Some(Arc::new(serde_json::from_value(node).unwrap()))
        };
        let event = ClusterEvent::new(EventResource::CsiNode, Action::UPDATE_OTHER);
        let hint = |old, new| {
            let object = EventObject::CsiNode {
                old: node(old),
                new: node(new),
            };
            plugin.hint(&event, &using("p", &["c1"]), &object)
        };
        assert_eq!(hint(2, 3), Hint::Queue);
        assert_eq!(hint(3, 2), Hint::Skip);
    }
}
