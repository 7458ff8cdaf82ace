//! Volumes of claims: nodes that cannot reach a pod's volumes are left out; claims that wait for their first pod get a
//! volume that the chosen node can reach, or have one made for it, before the pod is bound.

mod bind;
mod nodes;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use davit_api::quantity::Quantity;
use davit_volume::binding::{is_fully_bound, volume_name};
use davit_volume::class::{BindingMode, binding_mode, claim_class};
use davit_volume::matching::request_of;
use davit_volume::pod::{claims_of, is_made_for};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use parking_lot::Mutex;

use crate::cache::Snapshot;
use crate::config::VolumeBindingArgs;
use crate::framework::{
    Action, ClusterEvent, CycleState, EventObject, EventResource, Filter, Hint, NodeNames, Plugin,
    Points, PreBind, PreFilter, Reserve, Status,
};
use crate::node::NodeInfo;
use crate::pod::PodInfo;
use davit_volumecache::{StaticBinding, VolumeCache};

/// Refuses pods with claims at the start.
pub(super) const UNKNOWN_YET: &str = "volumes are not known yet";

/// The plugin `VolumeBinding`.
pub struct VolumeBinding {
    client: Option<kube::Client>,
    volumes: VolumeCache,
    /// How long claims may take to be bound.
    timeout: Duration,
}

/// What is known of the pod's claims in this cycle.
#[derive(Clone)]
struct ClaimState(Arc<PodVolumeClaims>);

struct PodVolumeClaims {
    bound: Vec<Arc<PersistentVolumeClaim>>,
    /// Claims that wait for a node, smallest first.
    delayed: Vec<Arc<PersistentVolumeClaim>>,
    /// The volumes of the classes of `delayed`.
    candidates: HashMap<String, Vec<Arc<PersistentVolume>>>,
    /// What was found for each node that fits.
    found: Mutex<HashMap<Arc<str>, PodVolumes>>,
}

/// What the pod's delayed claims get on a node.
#[derive(Debug, Clone, Default)]
struct PodVolumes {
    bindings: Vec<StaticBinding>,
    /// Claims for which volumes are to be made.
    provisions: Vec<Arc<PersistentVolumeClaim>>,
}

impl PodVolumes {
    fn is_empty(&self) -> bool {
        self.bindings.is_empty() && self.provisions.is_empty()
    }
}

/// Whether the pod names this claim.
pub(super) fn names_claim(pod: &PodInfo, claim: &PersistentVolumeClaim) -> bool {
    let name = claim.metadata.name.as_deref();
    claim.metadata.namespace.as_deref() == Some(&*pod.namespace)
        && claims_of(&pod.pod).any(|wanted| Some(&*wanted.claim) == name)
}

/// Why a claim of the name of the pod's ephemeral volume cannot be used.
pub(super) fn not_owner(pod: &PodInfo, claim: &str) -> String {
    let (namespace, name) = (&pod.namespace, &pod.name);
    format!("PVC {namespace}/{claim} was not created for pod {namespace}/{name} (pod is not owner)")
}

/// How large a volume can still be made.
fn largest(capacity: &CSIStorageCapacity) -> Option<Quantity> {
    let limit = capacity.maximum_volume_size.as_ref();
    let limit = limit.or(capacity.capacity.as_ref())?;
    Quantity::parse(&limit.0).ok()
}

impl VolumeBinding {
    /// A plugin that decides by what `volumes` knows. Without a client it writes nothing.
    pub fn new(
        client: Option<kube::Client>,
        volumes: VolumeCache,
        args: &VolumeBindingArgs,
    ) -> Self {
        let timeout = u64::try_from(args.bind_timeout_seconds).unwrap_or(0);
        Self {
            client,
            volumes,
            timeout: Duration::from_secs(timeout),
        }
    }

    /// The pod's claims, or why it cannot be scheduled with them anywhere.
    fn claims(&self, pod: &PodInfo) -> Result<Vec<Arc<PersistentVolumeClaim>>, String> {
        let claim = |wanted: davit_volume::pod::PodClaim<'_>| {
            let name = &wanted.claim;
            let Some(claim) = self.volumes.claim(&pod.namespace, name) else {
                return Err(if wanted.ephemeral {
                    format!(
                        "waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}"
                    )
                } else {
                    format!("persistentvolumeclaim {name:?} not found")
                });
            };
            let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
            if phase == Some("Lost") {
                let volume = volume_name(&claim).unwrap_or("");
                return Err(format!(
                    "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
                ));
            }
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
            }
            if wanted.ephemeral && !is_made_for(&claim, &pod.pod) {
                return Err(not_owner(pod, name));
            }
            Ok(claim)
        };
        let mut claims: Vec<Arc<PersistentVolumeClaim>> = Vec::new();
        for wanted in claims_of(&pod.pod) {
            let claim = claim(wanted)?;
            if !claims.iter().any(|c| c.metadata.uid == claim.metadata.uid) {
                claims.push(claim);
            }
        }
        Ok(claims)
    }

    /// Sorts the pod's claims by what is to be done about them.
    fn sort(&self, claims: Vec<Arc<PersistentVolumeClaim>>) -> Result<PodVolumeClaims, String> {
        let (bound, unbound): (Vec<_>, Vec<_>) =
            claims.into_iter().partition(|claim| is_fully_bound(claim));
        let waits = |claim: &Arc<PersistentVolumeClaim>| {
            let class = claim_class(claim).and_then(|class| self.volumes.class(class));
            volume_name(claim).is_none()
                && binding_mode(class.as_deref()) == BindingMode::WaitForFirstConsumer
        };
        if !unbound.iter().all(waits) {
            return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
        }
        let mut delayed = unbound;
        delayed.sort_by_cached_key(|claim| request_of(claim));
        let mut candidates = HashMap::new();
        for class in delayed.iter().filter_map(|claim| claim_class(claim)) {
            candidates
                .entry(class.to_owned())
                .or_insert_with(|| self.volumes.volumes_of_class(class));
        }
        Ok(PodVolumeClaims {
            bound,
            delayed,
            candidates,
            found: Mutex::default(),
        })
    }
}

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        "VolumeBinding"
    }

    fn attach(self: Arc<Self>, points: &mut Points) {
        points.pre_filter.push(self.clone());
        points.filter.push(self.clone());
        points.reserve.push(self.clone());
        points.pre_bind.push(self);
    }

    fn events(&self) -> Vec<ClusterEvent> {
        let change = Action::ADD | Action::UPDATE;
        vec![
            ClusterEvent::new(EventResource::StorageClass, change),
            ClusterEvent::new(EventResource::PersistentVolumeClaim, change),
            ClusterEvent::new(EventResource::PersistentVolume, change),
            ClusterEvent::new(EventResource::Node, Action::ADD | Action::UPDATE_LABEL),
            ClusterEvent::new(EventResource::CsiNode, Action::ADD),
            ClusterEvent::new(EventResource::CsiDriver, Action::UPDATE),
            ClusterEvent::new(EventResource::CsiStorageCapacity, change),
        ]
    }

    fn hint(&self, _: &ClusterEvent, pod: &PodInfo, object: &EventObject) -> Hint {
        let helps = match object {
            EventObject::VolumeClaim {
                new: Some(claim), ..
            } => names_claim(pod, claim),
            EventObject::StorageClass {
                old: Some(old),
                new: Some(new),
            } => old.allowed_topologies != new.allowed_topologies,
            EventObject::CsiStorageCapacity {
                old: Some(old),
                new: Some(new),
            } => largest(new) > largest(old),
            EventObject::CsiDriver {
                old: Some(old),
                new: Some(new),
            } => old.spec.storage_capacity == Some(true) && new.spec.storage_capacity != Some(true),
            _ => true,
        };
        if helps { Hint::Queue } else { Hint::Skip }
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
        if !self.volumes.is_synced() {
            return (Status::unresolvable(UNKNOWN_YET), None);
        }
        match self.claims(pod).and_then(|claims| self.sort(claims)) {
            Err(why) => (Status::unresolvable(why), None),
            Ok(claims) => {
                state.put(ClaimState(Arc::new(claims)));
                (Status::success(), None)
            }
        }
    }
}

impl Filter for VolumeBinding {
    fn filter(&self, state: &CycleState, _: &PodInfo, node: &NodeInfo) -> Status {
        let Some(ClaimState(claims)) = state.get() else {
            return Status::success();
        };
        match self.find(claims, node) {
            Err(refusal) => refusal,
            Ok(found) => {
                claims.found.lock().insert(node.name.clone(), found);
                Status::success()
            }
        }
    }
}

impl Reserve for VolumeBinding {
    fn reserve(&self, state: &mut CycleState, pod: &PodInfo, node: &str) -> Status {
        let found = found(state, node);
        if found.is_empty() {
            return Status::success();
        }
        let (bindings, provisions) = (&found.bindings, &found.provisions);
        match self.volumes.assume(&pod.uid, node, bindings, provisions) {
            Ok(()) => Status::success(),
            Err(error) => Status::error(error.to_string()),
        }
    }

    fn unreserve(&self, _: &mut CycleState, pod: &PodInfo, _: &str) {
        self.volumes.revert(&pod.uid);
    }
}

/// What was found for a node.
fn found(state: &CycleState, node: &str) -> PodVolumes {
    let claims = state.get::<ClaimState>();
    let found = claims.and_then(|ClaimState(claims)| claims.found.lock().get(node).cloned());
    found.unwrap_or_default()
}

#[async_trait]
impl PreBind for VolumeBinding {
    async fn pre_bind(&self, state: &CycleState, pod: &PodInfo, node: &str) -> Status {
        let found = found(state, node);
        if found.is_empty() {
            return Status::skip();
        }
        let bound = self.bind(&found, pod, node).await;
        self.volumes.end_binding(&pod.uid);
        match bound {
            Ok(()) => Status::success(),
            Err(error) => Status::error(error.to_string()),
        }
    }
}
