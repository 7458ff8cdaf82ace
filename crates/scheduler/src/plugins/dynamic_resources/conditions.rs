//! Binding conditions (KEP-5007): devices that have to be made ready before a pod is bound.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};

use crate::devices::allocation;

/// How far a claim's devices are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Readiness {
    Ready,
    Pending,
    Failed(String),
}

fn results(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let devices = allocation(claim).and_then(|a| a.devices.as_ref());
    devices.into_iter().flat_map(|d| &d.results).flatten()
}

/// Whether any device of the claim has to be made ready.
pub(super) fn has_conditions(claim: &ResourceClaim) -> bool {
    results(claim).any(|r| r.binding_conditions.as_ref().is_some_and(|c| !c.is_empty()))
}

/// How far the claim's devices are at a time.
pub(super) fn readiness(claim: &ResourceClaim, now: Timestamp, patience: Duration) -> Readiness {
    let mut pending = false;
    for result in results(claim) {
        let wanted = result.binding_conditions.iter().flatten();
        let mut wanted = wanted.peekable();
        if wanted.peek().is_none() {
            continue;
        }
        let status = claim.status.iter().flat_map(|s| &s.devices).flatten();
        let mut status = status.filter(|d| {
            d.driver == result.driver
                && d.pool == result.pool
                && d.device == result.device
                && d.share_id == result.share_id
        });
        let conditions = status.next().and_then(|d| d.conditions.clone());
        let conditions = conditions.unwrap_or_default();
        let holds = |name: &String| {
            let mut named = conditions.iter().filter(|c| c.type_ == *name);
            named.any(|c| c.status == "True")
        };
        let mut failures = result.binding_failure_conditions.iter().flatten();
        if let Some(failed) = failures.find(|c| holds(c)) {
            return Readiness::Failed(format!(
                "claim {} binding failed: condition {failed} of device {}/{}/{}",
                claim.metadata.name.as_deref().unwrap_or_default(),
                result.driver,
                result.pool,
                result.device
            ));
        }
        pending |= !wanted.all(holds);
    }
    if !pending {
        return Readiness::Ready;
    }
    let since = allocation(claim).and_then(|a| a.allocation_timestamp.as_ref());
    let over = since.is_some_and(|t| {
        let passed = now.duration_since(t.0);
        passed > jiff::SignedDuration::try_from(patience).unwrap_or(jiff::SignedDuration::MAX)
    });
    if over {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        return Readiness::Failed(format!("claim {name} binding timeout"));
    }
    Readiness::Pending
}
