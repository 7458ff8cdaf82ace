//! The ranges of Services' addresses (ServiceCIDR, KEP-1880): a range is ready when it is protected, and goes when no address
//! would be left in no range. What claims and Services say of each other is repaired beside that.

mod repair;

use async_trait::async_trait;
use davit_client::{Informer, ObjectKey};
use davit_netplan::Network;
use davit_reconcile::{Context, Error, Next, Reconcile, Spawner, gone_is_none};
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
/// Who made a claim (a label).
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";
/// How long API servers may take to learn that a range gives no addresses any more.
const GRACE: Duration = Duration::from_secs(10);
const NOT_SYNCED: Duration = Duration::from_secs(1);
const READY: &str = "Kubernetes Service CIDR is ready";
const STILL_USED: &str = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";

pub(crate) fn spawn(spawner: &mut Spawner<'_>) {
    let ranges: Informer<ServiceCIDR> = spawner.informer();
    let claims: Informer<IPAddress> = spawner.informer();
    repair::spawn(spawner, &ranges, &claims);
    let Some(spawner) = &mut spawner.start("service-cidr-controller") else {
        return;
    };
    let queue = spawner.controller(Ranges {
        client: spawner.client.clone(),
        ranges: ranges.clone(),
        claims: claims.clone(),
    });
    let all = ranges.clone();
    spawner.feed(&ranges, &queue, move |range: &ServiceCIDR| {
        let mut keys = going(&all);
        keys.push(ObjectKey::of(range));
        keys
    });
    let all = ranges.clone();
    spawner.feed(&claims, &queue, move |_: &IPAddress| going(&all));
}

/// The ranges that wait to go.
fn going(ranges: &Informer<ServiceCIDR>) -> Vec<ObjectKey> {
    let all = ranges.list();
    let going = all.iter().filter(|range| is_going(range));
    going.map(|range| ObjectKey::of(range.as_ref())).collect()
}

fn is_going(range: &ServiceCIDR) -> bool {
    range.metadata.deletion_timestamp.is_some()
}

/// The networks of a range.
fn networks(range: &ServiceCIDR) -> Vec<Network> {
    let spec = range.spec.as_ref();
    let cidrs = spec.and_then(|spec| spec.cidrs.as_ref());
    let cidrs = cidrs.into_iter().flatten();
    cidrs.filter_map(|cidr| cidr.parse().ok()).collect()
}

fn address(claim: &IPAddress) -> Option<IpAddr> {
    claim.metadata.name.as_ref()?.parse().ok()
}

/// Whether the API server made the claim for a Service.
fn is_allocated(claim: &IPAddress) -> bool {
    let labels = claim.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(MANAGED_BY))
        .is_some_and(|by| by == ALLOCATOR)
}

/// Whether some address would be in no range any more. One that is going as well is no place to stay: two that hold the same
/// address would both go.
fn is_needed(range: &ServiceCIDR, ranges: &[Arc<ServiceCIDR>], claims: &[Arc<IPAddress>]) -> bool {
    let others = ranges
        .iter()
        .filter(|other| other.metadata.name != range.metadata.name && !is_going(other));
    let others: Vec<Network> = others.flat_map(|other| networks(other)).collect();
    let own = networks(range);
    let claims = claims.iter().filter(|claim| is_allocated(claim));
    claims.filter_map(|claim| address(claim)).any(|ip| {
        own.iter().any(|network| network.contains(ip))
            && !others.iter().any(|network| network.contains(ip))
    })
}

struct Ranges {
    client: kube::Client,
    ranges: Informer<ServiceCIDR>,
    claims: Informer<IPAddress>,
}

#[async_trait]
impl Reconcile for Ranges {
    const NAME: &'static str = "service-cidr-controller";
    const WORKERS: usize = 1;

    async fn sync(&self, key: &ObjectKey) -> Result<Next, Error> {
        let Some(range) = self.ranges.get(None, &key.name) else {
            return Ok(Next::Wait);
        };
        let Some(deleted) = &range.metadata.deletion_timestamp else {
            if !is_protected(&range) {
                self.set_finalizers(&range, with_finalizer(&range)).await?;
            }
            self.report(&range, "True", "", READY).await?;
            return Ok(Next::Wait);
        };
        if self.claims.wait_synced(NOT_SYNCED).await.is_err() {
            return Ok(Next::After(NOT_SYNCED));
        }
        if is_needed(&range, &self.ranges.list(), &self.claims.list()) {
            self.report(&range, "False", "Terminating", STILL_USED)
                .await?;
            return Ok(Next::Wait);
        }
        let gone_for = Duration::try_from(Timestamp::now().duration_since(deleted.0));
        let left = GRACE.saturating_sub(gone_for.unwrap_or_default());
        if !left.is_zero() {
            return Ok(Next::After(left));
        }
        if is_protected(&range) {
            let finalizers = range.metadata.finalizers.iter().flatten();
            let others = finalizers.filter(|name| *name != FINALIZER).cloned();
            self.set_finalizers(&range, others.collect()).await?;
        }
        Ok(Next::Wait)
    }
}

fn is_protected(range: &ServiceCIDR) -> bool {
    let finalizers = range.metadata.finalizers.as_ref();
    finalizers.is_some_and(|all| all.iter().any(|name| name == FINALIZER))
}

fn with_finalizer(range: &ServiceCIDR) -> Vec<String> {
    let mut all = range.metadata.finalizers.clone().unwrap_or_default();
    all.push(FINALIZER.to_owned());
    all
}

impl Ranges {
    async fn set_finalizers(&self, range: &ServiceCIDR, all: Vec<String>) -> Result<(), Error> {
        let name = range.metadata.name.as_deref().unwrap_or_default();
        let patch = json!({ "metadata": {
            "finalizers": all,
            "resourceVersion": range.metadata.resource_version,
        } });
        let api: kube::Api<ServiceCIDR> = kube::Api::all(self.client.clone());
        let patched = api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        let patched = gone_is_none(patched);
        patched
            .context(|| format!("protect service CIDR {name}"))
            .map(drop)
    }

    /// Writes the condition, if it is another one.
    async fn report(
        &self,
        range: &ServiceCIDR,
        status: &str,
        reason: &str,
        message: &str,
    ) -> Result<(), Error> {
        let held = range
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref());
        let mut held = held.into_iter().flatten();
        if held.any(|c| {
            c.type_ == "Ready" && (&*c.status, &*c.reason, &*c.message) == (status, reason, message)
        }) {
            return Ok(());
        }
        let name = range.metadata.name.as_deref().unwrap_or_default();
        let patch = json!({ "status": { "conditions": [{
            "type": "Ready", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": Time(Timestamp::now()),
        }] } });
        let api: kube::Api<ServiceCIDR> = kube::Api::all(self.client.clone());
        let patched = api
            .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        let patched = gone_is_none(patched);
        patched
            .context(|| format!("report on service CIDR {name}"))
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(name: &str, cidr: &str, going: bool) -> Arc<ServiceCIDR> {
        let mut range: ServiceCIDR = serde_json::from_value(json!({
            "metadata": { "name": name }, "spec": { "cidrs": [cidr] },
        }))
        .unwrap();
        range.metadata.deletion_timestamp = going.then_some(Time(Timestamp::UNIX_EPOCH));
        Arc::new(range)
    }

    fn claim(name: &str, by: &str) -> Arc<IPAddress> {
        Arc::new(
            serde_json::from_value(
                json!({ "metadata": { "name": name, "labels": { MANAGED_BY: by } } }),
            )
            .unwrap(),
        )
    }

    #[test]
    fn a_range_is_needed_while_an_address_is_in_no_other() {
        let own = range("own", "10.1.0.0/24", true);
        let used = [claim("10.1.0.7", ALLOCATOR)];
        let needed = |others: &[Arc<ServiceCIDR>], claims: &[Arc<IPAddress>]| {
            let all: Vec<_> = others.iter().cloned().chain([own.clone()]).collect();
            is_needed(&own, &all, claims)
        };
        assert!(needed(&[], &used));
        assert!(!needed(&[], &[claim("10.2.0.7", ALLOCATOR)]));
        assert!(!needed(&[], &[claim("10.1.0.7", "somebody")]));
        assert!(!needed(&[range("larger", "10.0.0.0/8", false)], &used));
        assert!(!needed(&[range("part", "10.1.0.0/28", false)], &used));
        assert!(needed(&[range("going", "10.0.0.0/8", true)], &used));
        assert!(needed(&[range("else", "10.1.0.128/28", false)], &used));
    }
}
