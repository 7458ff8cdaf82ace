//! Pods whose devices have a NoExecute taint that their claims do not tolerate are evicted, when the toleration ends;
//! rules say in their status how far that is.

mod plan;

use crate::resourceclaim;
use davit_api::resource_claims::ClaimConsumers;
use davit_client::{EventRecorder, Informer, object_ref};
use davit_reconcile::Spawner;
use davit_reconcile::pods::{disrupt, node_of};
use futures::stream::{self, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How often what is due is looked for.
const PERIOD: Duration = Duration::from_secs(1);
/// How often the status of rules is written.
const STATUS_PERIOD: Duration = Duration::from_secs(10);
/// How long one call may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// How many pods are evicted at a time, as upstream: a device that fails may take a node's pods with it.
const WORKERS: usize = 50;

struct Evictor {
    client: kube::Client,
    events: EventRecorder,
    pods: Informer<Pod>,
    claims: Informer<ResourceClaim>,
    slices: Informer<ResourceSlice>,
    rules: Informer<DeviceTaintRule>,
    consumers: ClaimConsumers,
    workers: usize,
}

/// Starts the controller.
pub(crate) fn spawn(
    spawner: &mut Spawner<'_>,
    claims: Informer<ResourceClaim>,
    slices: Informer<ResourceSlice>,
    rules: Informer<DeviceTaintRule>,
    consumers: ClaimConsumers,
) {
    let Some(spawner) = &mut spawner.start("device-taint-eviction-controller") else {
        return;
    };
    let evictor = Evictor {
        client: spawner.client.clone(),
        events: spawner.events("device-taint-eviction"),
        pods: spawner.informers.pods.clone(),
        claims,
        slices,
        rules,
        consumers,
        workers: spawner.workers.unwrap_or(WORKERS),
    };
    spawner.task("device-taint-eviction", async move { evictor.run().await });
}

impl Evictor {
    fn is_synced(&self) -> bool {
        self.claims.is_synced() && self.slices.is_synced() && self.rules.is_synced()
    }

    async fn run(self) {
        let mut slice_changes = self.slices.subscribe();
        let mut rule_changes = self.rules.subscribe();
        let mut claim_changes = self.claims.subscribe();
        let mut pod_changes = self.pods.subscribe();
        // Whether pods are concerned of which no claim tells.
        let mut groups = false;
        let mut evictions: Vec<plan::Eviction> = Vec::new();
        let mut dirty = true;
        let mut evicted: BTreeMap<String, usize> = BTreeMap::new();
        let mut next_status = Instant::now();
        loop {
            tokio::time::sleep(PERIOD).await;
            while slice_changes.try_next().is_some() {
                dirty = true;
            }
            while rule_changes.try_next().is_some() {
                dirty = true;
            }
            while claim_changes.try_next().is_some() {
                dirty = true;
            }
            while pod_changes.try_next().is_some() {
                dirty |= groups;
            }
            if !self.is_synced() {
                continue;
            }
            if dirty {
                (evictions, groups) = self.plan();
                dirty = false;
            }
            let now = Timestamp::now();
            let (due, later): (Vec<_>, Vec<_>) = evictions.into_iter().partition(|e| e.at <= now);
            evictions = later;
            for (eviction, done) in self.evict_all(due).await {
                if done {
                    for rule in &eviction.rules {
                        *evicted.entry(rule.clone()).or_default() += 1;
                    }
                } else {
                    evictions.push(eviction);
                }
            }
            if Instant::now() >= next_status {
                next_status = Instant::now() + STATUS_PERIOD;
                evicted.retain(|rule, _| self.rules.get(None, rule).is_some());
                for rule in self.rules.list() {
                    self.report(&rule, &evictions, &evicted).await;
                }
            }
        }
    }

    /// Who is to be evicted, and whether pods of groups are, or would be.
    fn plan(&self) -> (Vec<plan::Eviction>, bool) {
        let (slices, rules) = (self.slices.list(), self.rules.list());
        let groups = Cell::new(false);
        let members = |claim: &ResourceClaim, group: &str| {
            groups.set(true);
            self.members(claim, group)
        };
        let evictions = plan::evictions(&self.claims.list(), &slices, &rules, &members);
        (evictions, groups.get())
    }

    /// The pods of a group, by its name, that have nodes and use a claim of it.
    fn members(&self, claim: &ResourceClaim, group: &str) -> Vec<Arc<Pod>> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let mut pods = self.pods.list_namespace(namespace);
        pods.retain(|pod| {
            self.consumers.group_of(pod) == Some(group)
                && node_of(pod).is_some()
                && resourceclaim::uses(pod, claim)
        });
        pods
    }

    /// Evicts pods, some at a time, and says of each whether that is done.
    async fn evict_all(&self, due: Vec<plan::Eviction>) -> Vec<(plan::Eviction, bool)> {
        let evicting = stream::iter(due).map(|eviction| async {
            let done = self.evict(&eviction).await;
            (eviction, done)
        });
        evicting.buffer_unordered(self.workers).collect().await
    }

    /// Evicts a pod; false if that has to be tried again.
    async fn evict(&self, eviction: &plan::Eviction) -> bool {
        let Some(pod) = self.pods.get(Some(&eviction.namespace), &eviction.pod) else {
            return true;
        };
        let gone = pod.metadata.uid.as_deref() != Some(&*eviction.uid)
            || pod.metadata.deletion_timestamp.is_some()
            || davit_reconcile::pods::is_terminal(&pod);
        if gone {
            return true;
        }
        let message = "Device Taint manager: deleting due to NoExecute taint";
        let evicting = disrupt(&self.client, &pod, "DeletionByDeviceTaintManager", message);
        match tokio::time::timeout(DEADLINE, evicting).await {
            Ok(Ok(())) => {
                let text = "Marking for deletion by the device taint eviction controller";
                self.events
                    .normal(&object_ref(&*pod), "DeviceTaintManagerEviction", text);
                true
            }
            Ok(Err(error)) => {
                tracing::warn!(pod = eviction.pod, %error, "pod not evicted, trying again");
                false
            }
            Err(_) => false,
        }
    }

    /// Brings the condition of a rule up to date.
    async fn report(
        &self,
        rule: &DeviceTaintRule,
        evictions: &[plan::Eviction],
        evicted: &BTreeMap<String, usize>,
    ) {
        let name = rule.metadata.name.clone().unwrap_or_default();
        let done = evicted.get(&name).copied().unwrap_or(0);
        let (claims, slices) = (self.claims.list(), self.slices.list());
        let wanted = plan::condition(rule, evictions, done, &claims, &slices, &|claim, group| {
            self.members(claim, group)
        });
        if plan::has_condition(rule, &wanted) {
            return;
        }
        let patch =
            json!({"metadata": {"uid": rule.metadata.uid}, "status": {"conditions": [wanted]}});
        let api: kube::Api<DeviceTaintRule> = kube::Api::all(self.client.clone());
        let params = PatchParams::default();
        let patch = Patch::Merge(&patch);
        let write = api.patch_status(&name, &params, &patch);
        match tokio::time::timeout(DEADLINE, write).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(rule = name, %error, "status not written"),
            Err(_) => tracing::debug!(rule = name, "status write not answered"),
        }
    }
}
