//! Answers requests for the state of device pools (ResourcePoolStatusRequest): how many devices there are, are allocated,
//! or cannot be had.

use async_trait::async_trait;
use davit_allocator::{Effect, Taint, TaintRule};
use davit_client::{Informer, ObjectKey};
use davit_reconcile::{Context, Error, Next, Reconcile, Spawner, gone_is_none};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1alpha3::{
    PoolStatus, ResourcePoolStatusRequest, ResourcePoolStatusRequestStatus,
};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, PostParams};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// How long answered and unanswered requests are kept.
const KEEP_ANSWERED: SignedDuration = SignedDuration::from_hours(1);
const KEEP_PENDING: SignedDuration = SignedDuration::from_hours(24);
/// How often old requests are looked for.
const SWEEP: Duration = Duration::from_secs(600);
/// How often an incomplete pool is waited for.
const TRIES: u32 = 5;
const BETWEEN_TRIES: Duration = Duration::from_secs(1);
const DEFAULT_LIMIT: i32 = 100;

struct PoolStatuses {
    client: kube::Client,
    requests: Informer<ResourcePoolStatusRequest>,
    slices: Informer<ResourceSlice>,
    claims: Informer<ResourceClaim>,
    rules: Informer<DeviceTaintRule>,
    tries: Mutex<HashMap<ObjectKey, u32>>,
}

/// Starts the controller.
pub(crate) fn spawn(
    spawner: &mut Spawner<'_>,
    claims: Informer<ResourceClaim>,
    slices: Informer<ResourceSlice>,
    rules: Informer<DeviceTaintRule>,
) {
    let Some(spawner) = &mut spawner.start("resourcepoolstatusrequest-controller") else {
        return;
    };
    let requests: Informer<ResourcePoolStatusRequest> = spawner.informer();
    let queue = spawner.controller(PoolStatuses {
        client: spawner.client.clone(),
        requests: requests.clone(),
        tries: Mutex::default(),
        slices,
        claims,
        rules,
    });
    spawner.feed(&requests, &queue, |r: &ResourcePoolStatusRequest| {
        vec![ObjectKey::of(r)]
    });
    let client = spawner.client.clone();
    spawner.task("resourcepool-status-sweep", async move {
        loop {
            tokio::time::sleep(SWEEP).await;
            for request in requests.list() {
                if is_stale(&request, Timestamp::now()) {
                    delete(&client, &request).await;
                }
            }
        }
    });
}

fn is_stale(request: &ResourcePoolStatusRequest, now: Timestamp) -> bool {
    let (since, keep) = match &request.status {
        Some(status) => {
            let conditions = status.conditions.iter().flatten();
            let answered = conditions.map(|c| c.last_transition_time.0).max();
            (answered, KEEP_ANSWERED)
        }
        None => {
            let created = request.metadata.creation_timestamp.as_ref();
            (created.map(|t| t.0), KEEP_PENDING)
        }
    };
    since.is_some_and(|at| now.duration_since(at) > keep)
}

async fn delete(client: &kube::Client, request: &ResourcePoolStatusRequest) {
    let api: kube::Api<ResourcePoolStatusRequest> = kube::Api::all(client.clone());
    let name = request.metadata.name.as_deref().unwrap_or_default();
    if let Err(error) = api.delete(name, &DeleteParams::default()).await {
        tracing::debug!(name, %error, "old request not deleted");
    }
}

#[async_trait]
impl Reconcile for PoolStatuses {
    const NAME: &'static str = "resource-pool-status-request";

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        if !self.slices.is_synced() || !self.claims.is_synced() || !self.rules.is_synced() {
            return Ok(Next::After(Duration::from_millis(200)));
        }
        let Some(request) = self.requests.get(None, &key.name) else {
            self.tries.lock().remove(key);
            return Ok(Next::Wait);
        };
        if request.status.is_some() {
            self.tries.lock().remove(key);
            return Ok(Next::Wait);
        }
        let (slices, claims, rules) = (self.slices.list(), self.claims.list(), self.rules.list());
        let (status, complete) = compute(&request, &slices, &claims, &rules);
        if !complete {
            let mut tries = self.tries.lock();
            let tried = tries.entry(key.clone()).or_default();
            *tried += 1;
            if *tried <= TRIES {
                return Ok(Next::After(BETWEEN_TRIES));
            }
        }
        let mut answered = (*request).clone();
        answered.status = Some(status);
        let api: kube::Api<ResourcePoolStatusRequest> = kube::Api::all(self.client.clone());
        let written = api
            .replace_status(&key.name, &PostParams::default(), &answered)
            .await;
        gone_is_none(written).context(|| format!("answer request {}", key.name))?;
        Ok(Next::Wait)
    }
}

fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// The answer, and whether all slices of all pools were there.
fn compute(
    request: &ResourcePoolStatusRequest,
    slices: &[Arc<ResourceSlice>],
    claims: &[Arc<ResourceClaim>],
    rules: &[Arc<DeviceTaintRule>],
) -> (ResourcePoolStatusRequestStatus, bool) {
    let driver = &request.spec.driver;
    let wanted = |pool: &str| {
        let only = request.spec.pool_name.as_deref();
        only.is_none_or(|p| p == pool)
    };
    let mut pools: BTreeMap<&str, Vec<&Arc<ResourceSlice>>> = BTreeMap::new();
    for slice in slices {
        if slice.spec.driver != *driver || !wanted(&slice.spec.pool.name) {
            continue;
        }
        let known = pools.entry(&slice.spec.pool.name).or_default();
        let newest = known.first().map_or(i64::MIN, |s| s.spec.pool.generation);
        if slice.spec.pool.generation > newest {
            known.clear();
        }
        if slice.spec.pool.generation >= newest {
            known.push(slice);
        }
    }
    // Pool, device, and the node that the allocation is for: a device of a node's own is none that is allocated on another.
    let mut allocated: HashSet<(&str, &str, Option<&str>)> = HashSet::new();
    for claim in claims {
        let allocation = claim.status.as_ref().and_then(|s| s.allocation.as_ref());
        let devices = allocation.and_then(|a| a.devices.as_ref());
        let node = allocation.and_then(davit_allocator::node_of);
        for result in devices.into_iter().flat_map(|d| &d.results).flatten() {
            if result.driver == *driver && result.admin_access != Some(true) {
                allocated.insert((&result.pool, &result.device, node));
            }
        }
    }
    let anywhere: HashSet<(&str, &str)> = allocated.iter().map(|(p, d, _)| (*p, *d)).collect();
    let held = |pool, owner: Option<&str>, device| match owner {
        None => anywhere.contains(&(pool, device)),
        owner => [None, owner].map(|of| allocated.contains(&(pool, device, of))) != [false; 2],
    };
    let rules: Vec<TaintRule> = rules.iter().filter_map(|r| TaintRule::new(r)).collect();
    let rules: Vec<&TaintRule> = rules
        .iter()
        .filter(|r| r.taint.effect != Effect::None)
        .collect();
    let limit = usize::try_from(request.spec.limit.unwrap_or(DEFAULT_LIMIT)).unwrap_or(1);
    let mut complete = true;
    let mut list = Vec::new();
    let pool_count = count(pools.len());
    for (pool, slices) in pools.into_iter().take(limit) {
        let spec = &slices[0].spec;
        let whole = i64::try_from(slices.len()) == Ok(spec.pool.resource_slice_count);
        complete &= whole;
        let node = spec.node_name.clone();
        let same_node = slices.iter().all(|s| s.spec.node_name == node);
        let devices: Vec<_> = slices
            .iter()
            .flat_map(|s| &s.spec.devices)
            .flatten()
            .collect();
        let own = slices
            .iter()
            .map(|s| (s.spec.node_name.as_deref(), &s.spec.devices));
        let own = own.flat_map(|(owner, list)| list.iter().flatten().map(move |d| (owner, d)));
        let used = own.filter(|(owner, d)| held(pool, *owner, &d.name)).count();
        let tainted = devices.iter().filter(|d| {
            let own = d.taints.iter().flatten().map(Taint::from);
            own.into_iter().any(|t| t.effect != Effect::None)
                || rules.iter().any(|r| r.covers(driver, pool, &d.name))
        });
        let unavailable = tainted.count();
        let total = devices.len();
        let left = total.saturating_sub(used).saturating_sub(unavailable);
        let some = |n: usize| whole.then(|| count(n));
        let missing = format!(
            "pool is incomplete: {} of {} slices are there",
            slices.len(),
            spec.pool.resource_slice_count
        );
        list.push(PoolStatus {
            driver: driver.clone(),
            pool_name: pool.to_owned(),
            node_name: node.filter(|_| same_node),
            generation: spec.pool.generation,
            resource_slice_count: some(slices.len()),
            total_devices: some(total),
            allocated_devices: some(used),
            unavailable_devices: some(unavailable),
            available_devices: some(left),
            validation_error: (!whole).then_some(missing),
        });
    }
    let condition = Condition {
        type_: "Complete".to_owned(),
        status: "True".to_owned(),
        reason: "CalculationComplete".to_owned(),
        message: format!(
            "calculated the status of {} of {pool_count} pools",
            list.len()
        ),
        last_transition_time: Time(Timestamp::now()),
        observed_generation: request.metadata.generation,
    };
    let status = ResourcePoolStatusRequestStatus {
        conditions: Some(vec![condition]),
        pool_count,
        pools: Some(list),
    };
    (status, complete)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Checklist 100.
    #[test]
    fn counts_of_a_pool() {
        let slice = |name: &str, count: i64, devices: serde_json::Value| -> Arc<ResourceSlice> {
            Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"driver": "d", "nodeName": "n",
                "pool": {"name": "p", "generation": 1, "resourceSliceCount": count}, "devices": devices}})).unwrap())
        };
        let devices = json!([{"name": "a"}, {"name": "b"}, {"name": "c", "taints": [{"key": "k", "effect": "NoSchedule"}]}, {"name": "e"}]);
        let claim: ResourceClaim = serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {}, "status": {"allocation": {"devices": {"results": [
            {"request": "r", "driver": "d", "pool": "p", "device": "a"},
            {"request": "r", "driver": "d", "pool": "p", "device": "b", "adminAccess": true}]}}}})).unwrap();
        let request: ResourcePoolStatusRequest =
            serde_json::from_value(json!({"metadata": {"name": "r"}, "spec": {"driver": "d"}}))
                .unwrap();
        let claims = [Arc::new(claim)];
        let (status, complete) = compute(&request, &[slice("s", 1, devices.clone())], &claims, &[]);
        assert!(complete);
        let pool = &status.pools.unwrap()[0];
        let counts = (
            pool.total_devices,
            pool.allocated_devices,
            pool.unavailable_devices,
            pool.available_devices,
        );
        assert_eq!(counts, (Some(4), Some(1), Some(1), Some(2)));
        assert_eq!(pool.node_name.as_deref(), Some("n"));
        let (status, complete) = compute(&request, &[slice("s", 2, devices)], &claims, &[]);
        assert!(!complete);
        assert_eq!(status.pools.unwrap()[0].total_devices, None);
    }

    #[test]
    fn old_requests_go() {
        let now: Timestamp = "2026-01-02T00:00:01Z".parse().unwrap();
        let pending: ResourcePoolStatusRequest = serde_json::from_value(json!({"metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"driver": "d"}})).unwrap();
        assert!(is_stale(&pending, now));
        assert!(!is_stale(&pending, "2026-01-01T23:00:00Z".parse().unwrap()));
    }
}
