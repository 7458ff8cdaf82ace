//! What containers hold beside devices of plugins, for the device table: devices of claims, CPUs and memory of their own.

use std::sync::Arc;

use davit_api::devices::{Device, Holder};
use davit_api::quantity::Quantity;
use k8s_openapi::api::core::v1::Pod;

use super::health::time;
use super::inventory::Presence;
use super::manager::Manager;
use crate::allocation::{ClaimHold, PodName, PreparedDevice, Table};
use crate::dra::view::dynamic_resources;

impl Manager {
    /// Devices of claims by driver and name, then CPUs and memory by who holds them.
    pub(crate) fn holdings(&self, pods: &[Arc<Pod>]) -> Vec<Device> {
        self.ledger.read(|table| {
            let claims = table.claims().values();
            let mut held: Vec<Device> = claims.flat_map(|c| of_claim(c, pods, table)).collect();
            held.sort_by(|a, b| (&a.resource, &a.id).cmp(&(&b.resource, &b.id)));
            held.extend(compute(table));
            held
        })
    }

    /// Resources whose plugin is connected and lists no device.
    pub(crate) fn empty_resources(&self) -> Vec<String> {
        let state = self.state.lock();
        let empty = state.inventory.all().filter(|(_, list, presence)| {
            list.is_empty() && !matches!(presence, Presence::Absent(_) | Presence::Gone)
        });
        empty.map(|(name, ..)| name.clone()).collect()
    }
}

fn of_claim(hold: &ClaimHold, pods: &[Arc<Pod>], table: &Table) -> Vec<Device> {
    let claim = format!("{}/{}", hold.claim.namespace, hold.claim.name);
    let mut rows = Vec::new();
    for (driver, part) in &hold.drivers {
        let (health, reason) = match part.prepared {
            true => ("", ""),
            false => ("Unknown", "its driver has not prepared it yet"),
        };
        rows.extend(part.devices.iter().map(|device| Device {
            resource: driver.clone(),
            id: format!("{}/{}", device.pool, device.device),
            claim: claim.clone(),
            health: health.to_owned(),
            reason: reason.to_owned(),
            holders: users(hold, driver, device, pods, table),
            ..Device::default()
        }));
    }
    rows
}

/// The containers that see a device of a claim; of a pod that is not known any more, the pod.
fn users(
    hold: &ClaimHold,
    driver: &str,
    device: &PreparedDevice,
    pods: &[Arc<Pod>],
    table: &Table,
) -> Vec<Holder> {
    let holder = |pod: &PodName, container: &str| Holder {
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        uid: pod.uid.clone(),
        container: container.to_owned(),
        since: time(hold.since),
    };
    let sees = |pod: &Pod, container: &k8s_openapi::api::core::v1::Container| {
        let claims = dynamic_resources(pod, container, table).into_iter();
        let mut devices = claims
            .filter(|c| c.claim_name == hold.claim.name)
            .flat_map(|c| c.claim_resources);
        devices.any(|d| {
            d.driver_name == driver && d.pool_name == device.pool && d.device_name == device.device
        })
    };
    let of_pod = |name: &PodName| {
        let pod = pods
            .iter()
            .find(|p| p.metadata.uid.as_deref() == Some(name.uid.as_str()));
        let spec = pod.and_then(|p| p.spec.as_ref());
        let containers = spec
            .into_iter()
            .flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
        let found: Vec<Holder> = containers
            .filter(|c| pod.is_some_and(|pod| sees(pod, c)))
            .map(|c| holder(name, &c.name))
            .collect();
        match found.is_empty() {
            true => vec![holder(name, "")],
            false => found,
        }
    };
    hold.pods.iter().flat_map(of_pod).collect()
}

fn compute(table: &Table) -> Vec<Device> {
    let mut rows = Vec::new();
    for (pod, container, held) in table.containers() {
        let row = |resource: &str, id: String, numa_nodes: Vec<i64>| Device {
            resource: resource.to_owned(),
            id,
            numa_nodes,
            holders: vec![Holder {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                uid: pod.uid.clone(),
                container: container.clone(),
                since: time(held.compute_since),
            }],
            ..Device::default()
        };
        if !held.cpus.is_empty() {
            rows.push(row("cpu", held.cpus.to_string(), Vec::new()));
        }
        for block in &held.memory {
            let size = Quantity::from_bytes(i64::try_from(block.size).unwrap_or(i64::MAX));
            let nodes = block.nodes.iter().map(i64::from).collect();
            rows.push(row(&block.kind, size.to_string(), nodes));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::{Change, ClaimDriver, ClaimName, ComputeHold};
    use davit_topology::NumaMask;
    use davit_topology::devices::ContainerKind;
    use davit_topology::memory::MemoryBlock;
    use serde_json::json;

    fn name() -> PodName {
        PodName {
            uid: "u".to_owned(),
            namespace: "n".to_owned(),
            name: "p".to_owned(),
        }
    }

    #[test]
    fn claims_cpus_and_memory_have_their_containers() {
        let mut table = Table::default();
        let compute_hold = ComputeHold {
            pod: name(),
            container: "c".to_owned(),
            kind: ContainerKind::App,
            cpus: "2-3".parse().unwrap(),
            memory: vec![MemoryBlock {
                nodes: NumaMask::from_bits(1),
                kind: "memory".to_owned(),
                size: 1 << 30,
            }],
            since: 0,
        };
        table.apply(&Change::Compute(compute_hold)).unwrap();
        let device = PreparedDevice {
            pool: "node".to_owned(),
            device: "gpu-0".to_owned(),
            ..PreparedDevice::default()
        };
        let driver = ClaimDriver {
            prepared: true,
            devices: vec![device],
            ..ClaimDriver::default()
        };
        let hold = ClaimHold {
            claim: ClaimName {
                uid: "claim".to_owned(),
                namespace: "n".to_owned(),
                name: "gpu".to_owned(),
            },
            classic: false,
            pods: vec![name()],
            drivers: [("d.example.com".to_owned(), driver)].into(),
            since: 0,
        };
        table.apply(&Change::Claim(hold.clone())).unwrap();
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"resourceClaims": [{"name": "g", "resourceClaimName": "gpu"}], "containers": [
                {"name": "without"}, {"name": "with", "resources": {"claims": [{"name": "g"}]}}]},
        });
        let pods = [Arc::new(serde_json::from_value(pod).unwrap())];
        let rows = of_claim(&hold, &pods, &table);
        let of = |d: &Device| {
            (
                d.resource.clone(),
                d.id.clone(),
                d.holders[0].container.clone(),
            )
        };
        let wanted = ("d.example.com".into(), "node/gpu-0".into(), "with".into());
        assert_eq!(rows.iter().map(of).collect::<Vec<_>>(), [wanted]);
        assert_eq!(rows[0].claim, "n/gpu");
        // a pod that is gone from the API still holds it
        assert_eq!(of_claim(&hold, &[], &table)[0].holders[0].container, "");
        let rows: Vec<_> = compute(&table).iter().map(of).collect();
        let cpus = ("cpu".into(), "2-3".into(), "c".into());
        assert_eq!(rows, [cpus, ("memory".into(), "1Gi".into(), "c".into())]);
    }
}
