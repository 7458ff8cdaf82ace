//! Claims of pods: bound volumes hold a pod to where they can be reached; claims that wait for their first pod get a
//! volume, or a node to be provisioned on, before the pod is bound
//! (<https://kubernetes.io/docs/concepts/storage/storage-classes/#volume-binding-mode>; spec storage.md 2.1).

mod bind;
mod capacity;
mod find;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use davit_volume::binding::{is_fully_bound, volume_name};
use davit_volume::class::{BindingMode, binding_mode, claim_class};
use davit_volume::pod::{claims_of, is_made_for};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use parking_lot::Mutex;

use crate::cache::Snapshot;
use crate::framework::{
    Action, ClusterEvent, CycleState, EventResource, Filter, NodeNames, Plugin, Points, PreFilter,
    Reserve, Status,
};
use crate::node::NodeInfo;
use crate::pod::PodInfo;
use crate::storage::Storage;
use find::Found;

/// The plugin's name.
pub(crate) const NAME: &str = "VolumeBinding";

/// The plugin `VolumeBinding`.
pub struct VolumeBinding {
    client: Option<kube::Client>,
    storage: Storage,
    bind_timeout: Duration,
}

impl VolumeBinding {
    /// A plugin that decides by what `storage` knows. Without a client it writes nothing. A pod waits for its claims to be
    /// bound for at most `bind_timeout`.
    pub fn new(client: Option<kube::Client>, storage: Storage, bind_timeout: Duration) -> Self {
        Self {
            client,
            storage,
            bind_timeout,
        }
    }

    /// The pod's claims, by what is to be done about them.
    fn sort(&self, pod: &PodInfo) -> Result<PodClaims, Status> {
        let mut out = PodClaims::default();
        let mut immediate = false;
        for wanted in claims_of(&pod.pod) {
            let name = &wanted.claim;
            let Some(claim) = self.storage.claim(&pod.namespace, name) else {
                return Err(Status::unresolvable(if wanted.ephemeral {
                    format!(
                        "waiting for ephemeral volume controller to create the persistentvolumeclaim \"{name}\""
                    )
                } else {
                    format!("persistentvolumeclaim \"{name}\" not found")
                }));
            };
            check(pod, name, wanted.ephemeral, &claim)?;
            if is_fully_bound(&claim) {
                out.bound.push(claim);
                continue;
            }
            let class = claim_class(&claim).and_then(|name| self.storage.class(name));
            let delayed = binding_mode(class.as_deref()) == BindingMode::WaitForFirstConsumer;
            if delayed && volume_name(&claim).is_none() {
                out.delayed.push(claim);
            } else {
                immediate = true;
            }
        }
        if immediate {
            let text = "pod has unbound immediate PersistentVolumeClaims";
            return Err(Status::unresolvable(text));
        }
        Ok(out)
    }
}

/// What rules a claim out on all nodes.
fn check(
    pod: &PodInfo,
    name: &str,
    ephemeral: bool,
    claim: &PersistentVolumeClaim,
) -> Result<(), Status> {
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
    let why = if phase == Some("Lost") {
        let volume = volume_name(claim).unwrap_or_default();
        format!(
            "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \"{volume}\""
        )
    } else if claim.metadata.deletion_timestamp.is_some() {
        format!("persistentvolumeclaim \"{name}\" is being deleted")
    } else if ephemeral && !is_made_for(claim, &pod.pod) {
        format!(
            "PVC {0}/{name} was not created for pod {0}/{1} (pod is not owner)",
            pod.namespace, pod.name
        )
    } else {
        return Ok(());
    };
    Err(Status::unresolvable(why))
}

/// The claims of a pod.
#[derive(Debug, Clone, Default)]
struct PodClaims {
    /// They have their volumes.
    bound: Vec<Arc<PersistentVolumeClaim>>,
    /// They get a volume where the pod goes.
    delayed: Vec<Arc<PersistentVolumeClaim>>,
}

/// What the plugin remembers between the points of a cycle.
#[derive(Clone)]
struct Data {
    claims: Arc<PodClaims>,
    /// All volumes as they were when the cycle began.
    volumes: Arc<Vec<Arc<PersistentVolume>>>,
    found: Arc<Mutex<BTreeMap<Arc<str>, Found>>>,
    /// What Reserve has assumed, and PreBind writes.
    reserved: Arc<Mutex<Option<Found>>>,
}

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.pre_filter.push(self.clone());
        points.filter.push(self.clone());
        points.reserve.push(self.clone());
        points.pre_bind.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        let changed = Action::ADD | Action::UPDATE;
        vec![
            ClusterEvent::new(EventResource::StorageClass, changed),
            ClusterEvent::new(EventResource::PersistentVolumeClaim, changed),
            ClusterEvent::new(EventResource::PersistentVolume, changed),
            ClusterEvent::new(EventResource::Node, Action::ADD | Action::UPDATE_LABEL),
            ClusterEvent::new(EventResource::CsiNode, changed),
            ClusterEvent::new(EventResource::CsiDriver, Action::UPDATE),
            ClusterEvent::new(EventResource::CsiStorageCapacity, changed),
        ]
    }
}

impl PreFilter for VolumeBinding {
    fn pre_filter(
        &self,
        state: &mut CycleState,
        pod: &PodInfo,
        _: &Snapshot,
    ) -> (Status, NodeNames) {
        if claims_of(&pod.pod).next().is_none() {
            return (Status::skip(), None);
        }
        let claims = match self.sort(pod) {
            Ok(claims) => claims,
            Err(status) => return (status, None),
        };
        let volumes = if claims.delayed.is_empty() {
            Vec::new()
        } else {
            self.storage.volumes()
        };
        state.put(Data {
            claims: Arc::new(claims),
            volumes: Arc::new(volumes),
            found: Arc::default(),
            reserved: Arc::default(),
        });
        (Status::success(), None)
    }
}

impl Filter for VolumeBinding {
    fn filter(&self, state: &CycleState, _: &PodInfo, node: &NodeInfo) -> Status {
        let Some(data) = state.get::<Data>() else {
            return Status::success();
        };
        match find::on_node(&self.storage, data, node) {
            Ok(found) => {
                data.found.lock().insert(node.name.clone(), found);
                Status::success()
            }
            Err(status) => status,
        }
    }
}

impl Reserve for VolumeBinding {
    fn reserve(&self, state: &mut CycleState, _: &PodInfo, node: &str) -> Status {
        let Some(data) = state.get::<Data>() else {
            return Status::success();
        };
        let Some(found) = data.found.lock().get(node).cloned() else {
            return Status::success();
        };
        let reserved = bind::assume(&self.storage, &found, node);
        *data.reserved.lock() = Some(reserved);
        Status::success()
    }

    fn unreserve(&self, state: &mut CycleState, _: &PodInfo, _: &str) {
        let Some(data) = state.get::<Data>() else {
            return;
        };
        if let Some(reserved) = data.reserved.lock().take() {
            bind::forget(&self.storage, &reserved);
        }
    }
}

#[cfg(test)]
mod tests;
