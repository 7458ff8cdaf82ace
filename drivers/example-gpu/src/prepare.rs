//! Preparing claims: a CDI file for each, which is also the memory of what is prepared.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use davit_sdk::dra::cdi::{CdiFiles, Edits};
use davit_sdk::dra::{
    AllocatedClaim, AllocatedDevice, ClaimId, DeviceAttribute, DeviceHealth, Driver,
    PreparedDevice, Refusal,
};
use davit_sdk::{async_trait, watch};

use crate::Options;
use crate::inventory::{is_shareable, uuid};
use crate::parameters::{GpuConfig, Sharing, Strategy};

/// The node half of the driver.
pub(crate) struct Gpus {
    node: String,
    device_nodes: bool,
    slow: Duration,
    files: CdiFiles,
    health: watch::Sender<Vec<DeviceHealth>>,
    /// Makes looking and writing one step.
    writing: Mutex<()>,
}

impl Gpus {
    pub(crate) fn new(
        options: &Options,
        files: CdiFiles,
        health: watch::Sender<Vec<DeviceHealth>>,
    ) -> Result<Self> {
        let known = files.claims().context("read CDI files")?;
        tracing::info!(claims = known.len(), "prepared before");
        Ok(Self {
            node: options.node_name.clone(),
            device_nodes: options.device_nodes,
            slow: Duration::from_millis(options.slow),
            files,
            health,
            writing: Mutex::new(()),
        })
    }

    /// Another claim that holds a device of this one, which nobody may share.
    ///
    /// The files are read each time: another instance of the driver may have written some.
    fn rival(&self, claim: &AllocatedClaim) -> Result<Option<(String, String)>, Refusal> {
        let known = self.files.claims().map_err(Refusal::because)?;
        let own = claim.devices().iter().map(key);
        let exclusive: Vec<String> = own.filter(|key| is_exclusive(key)).collect();
        let others = known.into_iter().filter(|(uid, _)| *uid != claim.id().uid);
        let mut rivals = others.filter_map(|(uid, held)| {
            let device = held.into_iter().find(|d| exclusive.contains(d))?;
            Some((uid, device))
        });
        Ok(rivals.next())
    }

    fn edits(&self, claim: &AllocatedClaim, device: &AllocatedDevice, sharing: &Sharing) -> Edits {
        let upper = device.device.to_uppercase().replace(['-', '.'], "_");
        let name = |what: &str| format!("GPU_DEVICE_{upper}{what}");
        let mut edits = Edits::new()
            .env(name(""), uuid(&self.node, &device.device))
            .env(name("_CLAIM"), &claim.id().uid)
            .env(name("_SHARING"), format!("{:?}", sharing.strategy));
        match sharing.strategy {
            Strategy::TimeSlicing => {
                let slice = sharing.time_slice.unwrap_or_default();
                edits = edits.env(name("_TIMESLICE"), format!("{slice:?}"));
            }
            Strategy::SpacePartitioning => {
                let count = sharing.partition_count.unwrap_or(1);
                edits = edits.env(name("_PARTITIONS"), count.to_string());
            }
        }
        if let Some(memory) = device.consumed_capacity.get("memory") {
            edits = edits.env(name("_MEMORY"), memory);
        }
        if device.admin_access {
            edits = edits.env(name("_ADMIN"), "true");
        }
        if self.device_nodes {
            let path = format!("/dev/davit-gpu/{}", device.device);
            edits = edits.device("/dev/null", path, "rw");
        }
        edits
    }
}

/// The name of an allocated device in a CDI file. Devices that only one claim may hold go by
/// their own name.
fn key(device: &AllocatedDevice) -> String {
    let mut key = device.device.clone();
    if device.admin_access {
        key.push_str(".admin");
    }
    if let Some(share) = &device.share_id {
        key.push('.');
        key.push_str(share);
    }
    key
}

fn is_exclusive(key: &str) -> bool {
    !key.contains('.') && !is_shareable(key)
}

#[async_trait]
impl Driver for Gpus {
    async fn prepare(&self, claim: &AllocatedClaim) -> Result<Vec<PreparedDevice>, Refusal> {
        tokio::time::sleep(self.slow).await;
        let mut edits = BTreeMap::new();
        for device in claim.devices() {
            let sharing = GpuConfig::of(claim, device)?;
            edits.insert(key(device), self.edits(claim, device, &sharing));
        }
        let names = {
            let _step = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((uid, device)) = self.rival(claim)? {
                return Err(Refusal::new(format!(
                    "device {device} is prepared for the claim {uid}"
                )));
            }
            let written = self.files.write(&claim.id().uid, edits);
            written.map_err(Refusal::because)?
        };
        tokio::time::sleep(self.slow).await;
        let devices = claim.devices().iter();
        let prepared = devices.map(|d| {
            let uuid = DeviceAttribute {
                string: Some(uuid(&self.node, &d.device)),
                ..DeviceAttribute::default()
            };
            PreparedDevice::of(d)
                .cdi(&names[&key(d)])
                .attribute("uuid", &uuid)
        });
        Ok(prepared.collect())
    }

    async fn unprepare(&self, claim: &ClaimId) -> Result<(), Refusal> {
        tokio::time::sleep(self.slow).await;
        self.files.remove(&claim.uid).map_err(Refusal::because)?;
        tokio::time::sleep(self.slow).await;
        Ok(())
    }

    fn health(&self) -> Option<watch::Receiver<Vec<DeviceHealth>>> {
        Some(self.health.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_sdk::k8s_openapi::api::resource::v1::ResourceClaim;
    use serde_json::{Value, json};

    fn gpus(dir: &std::path::Path) -> Gpus {
        Gpus {
            node: "n".into(),
            device_nodes: true,
            slow: Duration::ZERO,
            files: CdiFiles::new(dir, "gpu.davit.dev"),
            health: watch::Sender::new(Vec::new()),
            writing: Mutex::new(()),
        }
    }

    fn claim(uid: &str, results: &Value, parameters: &Value) -> AllocatedClaim {
        let mut results = results.clone();
        for result in results.as_array_mut().unwrap() {
            result["driver"] = json!("gpu.davit.dev");
            result["pool"] = json!("n");
            result["request"] = json!("r");
        }
        let object: ResourceClaim = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "c", "uid": uid}, "spec": {},
            "status": {"allocation": {"devices": {"results": results, "config": [
                {"source": "FromClaim", "opaque": {"driver": "gpu.davit.dev", "parameters": parameters}}]}}}}))
        .unwrap();
        let id = ClaimId {
            namespace: "ns".into(),
            name: "c".into(),
            uid: uid.into(),
        };
        AllocatedClaim::new(object, &id, "gpu.davit.dev").unwrap()
    }

    fn fine() -> Value {
        json!({"apiVersion": "gpu.davit.dev/v1", "kind": "GpuConfig", "sharing": {"timeSlice": "Short"}})
    }

    #[tokio::test]
    async fn a_device_is_for_one_claim_unless_it_is_shared() {
        let dir = tempfile::tempdir().unwrap();
        let gpus = gpus(dir.path());
        let whole = json!([{"device": "gpu-0"}]);
        let first = claim("u-1", &whole, &fine());
        let prepared = gpus.prepare(&first).await.unwrap();
        assert_eq!(prepared[0].cdi, ["gpu.davit.dev/claim=u-1-gpu-0"]);
        assert_eq!(gpus.prepare(&first).await.unwrap(), prepared);
        let second = claim("u-2", &whole, &fine());
        // Also after a restart.
        let gpus = self::gpus(dir.path());
        let refused = gpus.prepare(&second).await.unwrap_err();
        assert_eq!(refused.0, "device gpu-0 is prepared for the claim u-1");
        let admin = json!([{"device": "gpu-0", "adminAccess": true}]);
        gpus.prepare(&claim("u-3", &admin, &fine())).await.unwrap();
        for n in 4..6 {
            let share = json!([{"device": "shared-0", "shareID": format!("s-{n}"),
                "consumedCapacity": {"memory": "4Gi"}}]);
            let claim = claim(&format!("u-{n}"), &share, &fine());
            gpus.prepare(&claim).await.unwrap();
        }
        gpus.unprepare(first.id()).await.unwrap();
        gpus.unprepare(first.id()).await.unwrap();
        gpus.prepare(&second).await.unwrap();
    }

    #[tokio::test]
    async fn wrong_parameters_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let wrong = json!({"apiVersion": "gpu.davit.dev/v2", "kind": "GpuConfig"});
        let claim = claim("u-1", &json!([{"device": "gpu-0"}]), &wrong);
        let refused = gpus(dir.path()).prepare(&claim).await.unwrap_err();
        assert_eq!(
            refused.0,
            "opaque parameters: gpu.davit.dev/v2 GpuConfig is not gpu.davit.dev/v1 GpuConfig"
        );
    }
}
