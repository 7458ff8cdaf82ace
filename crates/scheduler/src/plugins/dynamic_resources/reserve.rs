//! Devices are taken for a pod that has found its node, written before it is bound, and given back where it does not go.

use async_trait::async_trait;
use futures::FutureExt;

use super::{Data, DynamicResources, GroupAllocations, Reserved, bind, node_resources};
use crate::devices::{reserved_for, uid};
use crate::framework::{CycleState, PreBind, Reserve, Status};
use crate::pod::PodInfo;

impl Reserve for DynamicResources {
    fn on_node(&self, state: &CycleState, pod: &PodInfo, node: &str) -> Option<PodInfo> {
        let notes = state.get::<Data>()?.cycle.notes.lock();
        notes.taken.get(node).map(|taken| pod.taking(taken))
    }

    fn reserve(&self, state: &mut CycleState, pod: &PodInfo, node: &str) -> Status {
        let Some(data) = state.get::<Data>() else {
            return Status::success();
        };
        let cycle = &data.cycle;
        let group = state.get::<GroupAllocations>();
        for &at in &cycle.shared {
            let key = uid(&cycle.claims[at]);
            let Some(allocation) = self.devices.join(&key) else {
                return Status::error(format!("claim {key} is not allocated any more"));
            };
            cycle.notes.lock().reserved.push(Reserved {
                key,
                claim: Some(at),
                allocation,
                planned: None,
            });
        }
        let found = cycle.allocation_on(node, &|| false);
        *cycle.search.lock() = None;
        let mut notes = cycle.notes.lock();
        // The others are not needed any more, and they are many.
        notes.found.clear();
        notes.taken.retain(|name, _| **name == *node);
        let Some((found, planned)) = found else {
            if cycle.pending.is_empty() {
                return Status::success();
            }
            return Status::error("claim allocation not found for node");
        };
        if found.results.len() < cycle.pending.len() {
            return Status::error("internal error, allocations do not match the claims");
        }
        for (i, result) in found.results.into_iter().enumerate() {
            let claim = cycle.pending.get(i).copied();
            let key = match claim {
                Some(at) => uid(&cycle.claims[at]),
                // stands for the UID of a claim that does not exist yet
                None => format!("extended-resources-of-{}", pod.uid),
            };
            if !self.devices.start(&key, result.clone()) {
                return Status::error(format!("claim {key} was allocated in the meantime"));
            }
            if let Some(group) = group {
                group.claims.lock().insert(key.clone());
            }
            notes.reserved.push(Reserved {
                key,
                claim,
                allocation: result,
                planned: Some(planned.clone()),
            });
        }
        Status::success()
    }

    fn unreserve(&self, state: &mut CycleState, pod: &PodInfo, _: &str) {
        let Some(data) = state.get::<Data>() else {
            return;
        };
        let cycle = data.cycle.clone();
        let (recorded, reserved, written, created, doubtful) = {
            let mut notes = cycle.notes.lock();
            (
                std::mem::take(&mut notes.recorded),
                std::mem::take(&mut notes.reserved),
                std::mem::take(&mut notes.written),
                notes.created.take(),
                std::mem::take(&mut notes.doubtful),
            )
        };
        for entry in reserved {
            let is_known = doubtful.iter().all(|(key, _)| *key != entry.key);
            if is_known || self.client.is_none() {
                self.devices.finish(&entry.key);
            }
        }
        let Some(client) = self.client.clone() else {
            return;
        };
        for (key, claim) in doubtful {
            let devices = self.devices.clone();
            let booking = bind::Booking { devices, key };
            state.defer_undoing(bind::learn(client.clone(), claim, booking).boxed());
        }
        if recorded {
            let effect = node_resources::take_back(client.clone(), pod.pod.clone());
            state.defer_undoing(effect.boxed());
        }
        let before = cycle
            .claims
            .iter()
            .filter(|c| reserved_for(c).any(|u| u == &*pod.uid));
        for claim in before.chain(&written) {
            let (client, devices) = (client.clone(), self.devices.clone());
            let effect = bind::unreserve(client, devices, claim.clone(), pod.uid.to_string());
            state.defer_undoing(effect.boxed());
        }
        if let Some(claim) = created {
            state.defer_undoing(bind::delete(client, claim).boxed());
        }
    }
}

#[async_trait]
impl PreBind for DynamicResources {
    async fn pre_bind(&self, state: &CycleState, pod: &PodInfo, _: &str) -> Status {
        let Some(data) = state.get::<Data>() else {
            return Status::success();
        };
        match self.write(&data.cycle, pod).await {
            Ok(()) => Status::success(),
            Err(error) => Status::error(error.to_string()),
        }
    }
}
