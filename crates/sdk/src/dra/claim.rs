//! Claims as a driver sees them: only its own devices, with the parameters that hold for each.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Refusal;

/// Which claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId {
    /// Namespace of the claim.
    pub namespace: String,
    /// Name of the claim.
    pub name: String,
    /// UID of the claim: two claims of one name have different ones.
    pub uid: String,
}

impl std::fmt::Display for ClaimId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Why a claim is not handed to the driver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// It is not there any more.
    #[error("ResourceClaim {0}: not found")]
    Gone(ClaimId),
    /// There is another claim of the same name.
    #[error("ResourceClaim {id}: replaced by another one, whose UID is {found}")]
    Replaced {
        /// The claim that was meant.
        id: ClaimId,
        /// UID of the one that is there.
        found: String,
    },
    /// It is not allocated.
    #[error("ResourceClaim {0}: not allocated")]
    NotAllocated(ClaimId),
    /// The API server did not give it.
    #[error("ResourceClaim {id}: {cause}")]
    Fetch {
        /// The claim.
        id: ClaimId,
        /// Why.
        cause: String,
    },
}

/// One device of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocatedDevice {
    /// The request it was given for, `request` or `request/subrequest`.
    pub request: String,
    /// Its pool.
    pub pool: String,
    /// Its name in the pool.
    pub device: String,
    /// Which share of a device that several claims may use at once.
    pub share_id: Option<String>,
    /// What is taken of the capacities of such a device, as quantities.
    pub consumed_capacity: BTreeMap<String, String>,
    /// Given for supervision, though others may hold it.
    pub admin_access: bool,
}

impl AllocatedDevice {
    /// The request without the name of the alternative that was chosen.
    pub fn main_request(&self) -> &str {
        main_request(&self.request)
    }

    fn from_result(result: &DeviceRequestAllocationResult) -> Self {
        let consumed = result.consumed_capacity.iter().flatten();
        Self {
            request: result.request.clone(),
            pool: result.pool.clone(),
            device: result.device.clone(),
            share_id: result.share_id.clone(),
            consumed_capacity: consumed.map(|(k, q)| (k.clone(), q.0.clone())).collect(),
            admin_access: result.admin_access == Some(true),
        }
    }
}

/// The part of a request's name that containers use.
pub(super) fn main_request(request: &str) -> &str {
    request.split_once('/').map_or(request, |(main, _)| main)
}

/// An allocated claim, reduced to the devices of one driver.
#[derive(Debug, Clone, PartialEq)]
pub struct AllocatedClaim {
    id: ClaimId,
    devices: Vec<AllocatedDevice>,
    config: Vec<DeviceAllocationConfiguration>,
    object: ResourceClaim,
}

impl AllocatedClaim {
    /// The part of `driver` in a claim.
    ///
    /// # Errors
    /// The claim is another one than `id`, or it is not allocated.
    pub fn new(object: ResourceClaim, id: &ClaimId, driver: &str) -> Result<Self, ClaimError> {
        let found = object.metadata.uid.clone().unwrap_or_default();
        if found != id.uid {
            let id = id.clone();
            return Err(ClaimError::Replaced { id, found });
        }
        let status = object.status.as_ref();
        let allocation: &AllocationResult = status
            .and_then(|s| s.allocation.as_ref())
            .ok_or_else(|| ClaimError::NotAllocated(id.clone()))?;
        let given = allocation.devices.as_ref();
        let results = given.into_iter().flat_map(|d| d.results.iter().flatten());
        let config = given.into_iter().flat_map(|d| d.config.iter().flatten());
        let is_ours = |c: &&DeviceAllocationConfiguration| {
            c.opaque.as_ref().is_some_and(|o| o.driver == driver)
        };
        Ok(Self {
            id: id.clone(),
            devices: results
                .filter(|r| r.driver == driver)
                .map(AllocatedDevice::from_result)
                .collect(),
            config: config.filter(is_ours).cloned().collect(),
            object,
        })
    }

    /// Namespace, name and UID.
    pub fn id(&self) -> &ClaimId {
        &self.id
    }

    /// The whole object.
    pub fn object(&self) -> &ResourceClaim {
        &self.object
    }

    /// The driver's devices in it.
    pub fn devices(&self) -> &[AllocatedDevice] {
        &self.devices
    }

    /// The parameters that hold for a device, in the order of their weight: what the class says
    /// comes first, and what the claim says later overrides it.
    pub fn parameters<'a>(
        &'a self,
        device: &'a AllocatedDevice,
    ) -> impl Iterator<Item = Parameters<'a>> {
        let about = move |c: &&DeviceAllocationConfiguration| {
            let requests = c.requests.as_deref().unwrap_or_default();
            requests.is_empty()
                || requests
                    .iter()
                    .any(|r| *r == device.request || r == device.main_request())
        };
        self.config.iter().filter(about).filter_map(|c| {
            Some(Parameters {
                from_class: c.source == "FromClass",
                value: &c.opaque.as_ref()?.parameters.0,
            })
        })
    }

    /// The parameters of a device that weigh most and are of this type; `None` when there are
    /// none at all.
    ///
    /// # Errors
    /// The parameters are not of the type. The text names the claim's part they come from.
    pub fn last_parameters<T: DeserializeOwned>(
        &self,
        device: &AllocatedDevice,
    ) -> Result<Option<T>, Refusal> {
        self.parameters(device)
            .last()
            .map(|p| p.decode())
            .transpose()
    }
}

/// Parameters a user wrote for this driver into a class or a claim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters<'a> {
    /// Written by the administrator into the class, not by the user into the claim.
    pub from_class: bool,
    /// What was written: always an object.
    pub value: &'a Value,
}

impl Parameters<'_> {
    /// The parameters as a type of the driver. Have it `deny_unknown_fields`, so that typing
    /// errors come to light.
    ///
    /// # Errors
    /// They are not of the type.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        serde_json::from_value(self.value.clone()).map_err(|e| {
            let origin = if self.from_class { "class" } else { "claim" };
            Refusal::new(format!("opaque parameters of the {origin}: {e}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const DRIVER: &str = "gpu.example.com";

    fn id() -> ClaimId {
        ClaimId {
            namespace: "ns".into(),
            name: "c".into(),
            uid: "u".into(),
        }
    }

    fn claim() -> ResourceClaim {
        let config = |source: &str, requests: &[&str], driver: &str, n: i32| {
            json!({"source": source, "requests": requests,
                "opaque": {"driver": driver, "parameters": {"n": n}}})
        };
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "c", "uid": "u"},
            "spec": {},
            "status": {"allocation": {"devices": {
                "results": [
                    {"request": "a", "driver": DRIVER, "pool": "p", "device": "0"},
                    {"request": "b/small", "driver": DRIVER, "pool": "p", "device": "1",
                        "shareID": "s", "consumedCapacity": {"memory": "1Gi"}, "adminAccess": true},
                    {"request": "a", "driver": "other", "pool": "p", "device": "0"}],
                "config": [
                    config("FromClass", &[], DRIVER, 1),
                    config("FromClass", &["a"], "other", 2),
                    config("FromClaim", &["b"], DRIVER, 3),
                    config("FromClaim", &["b/small"], DRIVER, 4),
                    config("FromClaim", &["b/big"], DRIVER, 5)]}}},
        }))
        .unwrap()
    }

    #[test]
    fn a_driver_sees_its_own_part() {
        let claim = AllocatedClaim::new(claim(), &id(), DRIVER).unwrap();
        let [first, second] = claim.devices() else {
            panic!("{:?}", claim.devices())
        };
        let numbers = |d| -> Vec<i64> {
            let all = claim.parameters(d);
            all.map(|p| p.value["n"].as_i64().unwrap()).collect()
        };
        assert_eq!(numbers(first), [1]);
        assert_eq!(numbers(second), [1, 3, 4]);
        assert_eq!(second.main_request(), "b");
        assert_eq!(second.consumed_capacity["memory"], "1Gi");
        assert!(second.admin_access && !first.admin_access);
        let refused = claim.last_parameters::<Vec<i32>>(second).unwrap_err();
        assert!(refused.0.starts_with("opaque parameters of the claim: "));
    }

    #[test]
    fn item_123_replaced_and_unallocated_claims_are_refused() {
        let mut other = claim();
        other.metadata.uid = Some("v".into());
        let error = AllocatedClaim::new(other, &id(), DRIVER).unwrap_err();
        assert_eq!(
            error.to_string(),
            "ResourceClaim ns/c: replaced by another one, whose UID is v"
        );
        let mut free = claim();
        free.status = None;
        let error = AllocatedClaim::new(free, &id(), DRIVER).unwrap_err();
        assert_eq!(error, ClaimError::NotAllocated(id()));
    }
}
