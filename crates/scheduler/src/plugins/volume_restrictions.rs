//! Volumes that only one pod may use, or only one for writing.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Volume;

use crate::cache::Snapshot;
use crate::framework::{
    Action, ClusterEvent, CycleState, EventObject, EventResource, Filter, Hint, NodeNames, Plugin,
    Points, PreFilter, Status,
};
use crate::node::NodeInfo;
use crate::plugins::volume_binding::{UNKNOWN_YET, names_claim};
use crate::pod::PodInfo;
use davit_volumecache::VolumeCache;

const ONE_POD: &str = "ReadWriteOncePod";
const CLAIM_IN_USE: &str = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";
const DISK_IN_USE: &str = "node(s) had no available disk";

/// The plugin `VolumeRestrictions`.
#[derive(Debug)]
pub struct VolumeRestrictions {
    volumes: VolumeCache,
}

impl VolumeRestrictions {
    /// A plugin that decides by what `volumes` knows.
    pub fn new(volumes: VolumeCache) -> Self {
        Self { volumes }
    }

    /// The claims of the pod that it must have for itself.
    fn exclusive_claims(&self, pod: &PodInfo) -> Result<BTreeSet<Arc<str>>, Status> {
        let mut exclusive = BTreeSet::new();
        for key in &pod.claims {
            let name = key.split_once('/').map_or(&**key, |(_, name)| name);
            let claim = self.volumes.claim(&pod.namespace, name).ok_or_else(|| {
                Status::unresolvable(format!("persistentvolumeclaim {name:?} not found"))
            })?;
            let modes = claim.spec.iter().flat_map(|spec| &spec.access_modes);
            if modes.flatten().any(|mode| mode == ONE_POD) {
                exclusive.insert(key.clone());
            }
        }
        Ok(exclusive)
    }
}

/// What is known of the pod's exclusive claims.
#[derive(Clone)]
struct ExclusiveClaims {
    claims: Arc<BTreeSet<Arc<str>>>,
    /// How many uses of them there are.
    users: i64,
}

impl ExclusiveClaims {
    fn count(&self, pod: &PodInfo) -> i64 {
        let used = pod
            .claims
            .iter()
            .filter(|claim| self.claims.contains(*claim));
        i64::try_from(used.count()).unwrap_or(i64::MAX)
    }
}

/// Whether a volume is of a kind that cannot be used by any two pods.
fn is_restricted(volume: &Volume) -> bool {
    volume.gce_persistent_disk.is_some()
        || volume.aws_elastic_block_store.is_some()
        || volume.iscsi.is_some()
        || volume.rbd.is_some()
}

fn restricted(pod: &PodInfo) -> impl Iterator<Item = &Volume> {
    let volumes = pod.spec().volumes.iter().flatten();
    volumes.filter(|volume| is_restricted(volume))
}

/// Whether two volumes are one disk that they cannot share.
fn conflict(a: &Volume, b: &Volume) -> bool {
    let writes = |a: Option<bool>, b: Option<bool>| a != Some(true) || b != Some(true);
    let gce = match (&a.gce_persistent_disk, &b.gce_persistent_disk) {
        (Some(a), Some(b)) => a.pd_name == b.pd_name && writes(a.read_only, b.read_only),
        _ => false,
    };
    let aws = match (&a.aws_elastic_block_store, &b.aws_elastic_block_store) {
        (Some(a), Some(b)) => a.volume_id == b.volume_id,
        _ => false,
    };
    let iscsi = match (&a.iscsi, &b.iscsi) {
        (Some(a), Some(b)) => a.iqn == b.iqn && writes(a.read_only, b.read_only),
        _ => false,
    };
    let rbd = match (&a.rbd, &b.rbd) {
        (Some(a), Some(b)) => {
            let pool = |pool: &Option<String>| pool.clone().unwrap_or_else(|| "rbd".to_owned());
            a.monitors
                .iter()
                .any(|monitor| b.monitors.contains(monitor))
                && pool(&a.pool) == pool(&b.pool)
                && a.image == b.image
                && writes(a.read_only, b.read_only)
        }
        _ => false,
    };
    gce || aws || iscsi || rbd
}

fn conflicts_with(pod: &PodInfo, other: &PodInfo) -> bool {
    restricted(pod).any(|a| restricted(other).any(|b| conflict(a, b)))
}

impl Plugin for VolumeRestrictions {
    fn name(&self) -> &'static str {
        "VolumeRestrictions"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.pre_filter.push(self.clone());
        points.filter.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        vec![
            ClusterEvent::new(EventResource::AssignedPod, Action::DELETE),
            ClusterEvent::new(EventResource::Node, Action::ADD),
            ClusterEvent::new(EventResource::PersistentVolumeClaim, Action::ADD),
        ]
    }

    fn hint(&self, _: &ClusterEvent, pod: &PodInfo, object: &EventObject) -> Hint {
        let helps = match object {
            EventObject::Pod {
                old: Some(gone), ..
            } => {
                let shared = gone.claims.iter().any(|claim| pod.claims.contains(claim));
                shared || conflicts_with(pod, gone)
            }
            EventObject::VolumeClaim {
                new: Some(claim), ..
            } => names_claim(pod, claim),
            _ => true,
        };
        if helps { Hint::Queue } else { Hint::Skip }
    }
}

impl PreFilter for VolumeRestrictions {
    fn pre_filter(
        &self,
        state: &mut CycleState,
        pod: &PodInfo,
        snapshot: &Snapshot,
    ) -> (Status, NodeNames) {
        if !pod.claims.is_empty() && !self.volumes.is_synced() {
            return (Status::unresolvable(UNKNOWN_YET), None);
        }
        let claims = match self.exclusive_claims(pod) {
            Ok(claims) => claims,
            Err(refusal) => return (refusal, None),
        };
        if claims.is_empty() && restricted(pod).next().is_none() {
            return (Status::skip(), None);
        }
        let users = claims
            .iter()
            .map(|claim| i64::from(snapshot.claim_users(claim)));
        state.put(ExclusiveClaims {
            users: users.sum(),
            claims: Arc::new(claims),
        });
        (Status::success(), None)
    }

    fn add_pod(
        &self,
        state: &mut CycleState,
        _: &PodInfo,
        added: &PodInfo,
        _: &NodeInfo,
        _: &Snapshot,
    ) {
        if let Some(claims) = state.get_mut::<ExclusiveClaims>() {
            claims.users += claims.count(added);
        }
    }

    fn remove_pod(
        &self,
        state: &mut CycleState,
        _: &PodInfo,
        removed: &PodInfo,
        _: &NodeInfo,
        _: &Snapshot,
    ) {
        if let Some(claims) = state.get_mut::<ExclusiveClaims>() {
            claims.users -= claims.count(removed);
        }
    }
}

impl Filter for VolumeRestrictions {
    fn filter(&self, state: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        if restricted(pod).next().is_some() && node.pods.iter().any(|p| conflicts_with(pod, p)) {
            return Status::unschedulable(DISK_IN_USE);
        }
        match state.get::<ExclusiveClaims>() {
            Some(claims) if claims.users > 0 => Status::unschedulable(CLAIM_IN_USE),
            _ => Status::success(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{Bed, Shelf, pod};
    use serde_json::json;

    fn using(name: &str, claim: &str) -> Arc<PodInfo> {
        pod(
            name,
            json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}),
        )
    }

    fn two_nodes() -> Bed {
        let mut bed = Bed::new();
        bed.node("a", json!({}));
        bed.node("b", json!({}));
        bed
    }

    #[test]
    fn a_claim_for_one_pod_rules_all_nodes_out_until_that_pod_goes() {
        let shelf = Shelf::new();
        shelf.claim("one", json!({"accessModes": ["ReadWriteOncePod"]}));
        shelf.claim("many", json!({"accessModes": ["ReadWriteOnce"]}));
        let plugin = VolumeRestrictions::new(shelf.volumes.clone());
        let mut bed = two_nodes();
        let first = using("p", "one");
        assert!(bed.verdicts(&plugin, &first).iter().all(Status::is_success));
        bed.place(&first, "a");
        bed.place(&using("r", "many"), "a");
        let second = using("q", "one");
        let refused = Status::unschedulable(CLAIM_IN_USE);
        assert_eq!(bed.verdicts(&plugin, &second), [refused.clone(), refused]);
        assert!(
            bed.verdicts(&plugin, &using("s", "many"))
                .iter()
                .all(Status::is_success)
        );
        let mut state = CycleState::new();
        plugin.pre_filter(&mut state, &second, &bed.snapshot);
        let node = bed.snapshot.node(0);
        plugin.remove_pod(&mut state, &second, &first, node, &bed.snapshot);
        assert!(plugin.filter(&state, &second, node).is_success());
        plugin.add_pod(&mut state, &second, &first, node, &bed.snapshot);
        assert!(!plugin.filter(&state, &second, node).is_success());
    }

    #[test]
    fn missing_claims_are_named() {
        let plugin = VolumeRestrictions::new(Shelf::new().volumes);
        let (status, _) = two_nodes().pre_filter(&plugin, &using("p", "data"));
        let expected = Status::unresolvable("persistentvolumeclaim \"data\" not found");
        assert_eq!(status, expected);
    }

    #[test]
    fn disks_are_shared_by_readers_only() {
        let plugin = VolumeRestrictions::new(Shelf::new().volumes);
        let iscsi = |name: &str, iqn: &str, read_only: bool| {
            let disk = json!({"iqn": iqn, "targetPortal": "t", "lun": 0, "readOnly": read_only});
            pod(name, json!({"volumes": [{"name": "v", "iscsi": disk}]}))
        };
        let mut bed = two_nodes();
        bed.place(&iscsi("p", "x", true), "a");
        let taken = Status::unschedulable("node(s) had no available disk");
        let verdicts = |pod: &Arc<PodInfo>| bed.verdicts(&plugin, pod);
        assert_eq!(
            verdicts(&iscsi("q", "x", false)),
            [taken, Status::success()]
        );
        assert!(
            verdicts(&iscsi("q", "x", true))
                .iter()
                .all(Status::is_success)
        );
        assert!(
            verdicts(&iscsi("q", "y", false))
                .iter()
                .all(Status::is_success)
        );
    }

    #[test]
    fn only_what_frees_a_claim_or_disk_wakes() {
        let plugin = VolumeRestrictions::new(Shelf::new().volumes);
        let event = ClusterEvent::new(EventResource::AssignedPod, Action::DELETE);
        let hint = |gone: Arc<PodInfo>| {
            let object = EventObject::Pod {
                old: Some(gone),
                new: None,
            };
            plugin.hint(&event, &using("p", "one"), &object)
        };
        assert_eq!(hint(using("q", "one")), Hint::Queue);
        assert_eq!(hint(using("q", "other")), Hint::Skip);
    }
}
