//! Device health as pod status and the device table show it.

use std::collections::{BTreeMap, BTreeSet};

use davit_api::devices::{Device, Holder};
use davit_topology::devices::DeviceId;
use k8s_openapi::api::core::v1::{ResourceHealth, ResourceStatus};

use super::inventory::{Health, Presence};
use super::manager::Manager;

impl Health {
    fn word(self) -> &'static str {
        match self {
            Self::Healthy => "Healthy",
            Self::Unhealthy | Self::PluginGone => "Unhealthy",
            Self::Unknown => "Unknown",
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Healthy => "",
            Self::Unhealthy => "the plugin says so",
            Self::PluginGone => "the plugin is gone and has not come back in time",
            Self::Unknown => "the plugin does not list the device",
        }
    }
}

impl Manager {
    pub(crate) fn allocated_resources_status(
        &self,
        uid: &str,
        container: &str,
    ) -> Vec<ResourceStatus> {
        let held: Vec<(String, Vec<DeviceId>)> = self.ledger.read(|t| {
            let container = t.pods().get(uid).and_then(|p| p.containers.get(container));
            let resources = container.into_iter().flat_map(|c| &c.devices);
            resources
                .map(|(r, h)| (r.clone(), h.devices.keys().cloned().collect()))
                .collect()
        });
        let state = self.state.lock();
        let resource = |(name, ids): (String, Vec<DeviceId>)| ResourceStatus {
            resources: Some(
                ids.iter()
                    .map(|id| ResourceHealth {
                        resource_id: id.as_str().to_owned(),
                        health: Some(state.inventory.health(&name, id).word().to_owned()),
                        message: None,
                    })
                    .collect(),
            ),
            name,
        };
        held.into_iter().map(resource).collect()
    }

    /// UIDs of the pods that hold one of these devices.
    pub(super) fn holders_of(
        &self,
        resource: &str,
        devices: &BTreeSet<DeviceId>,
    ) -> BTreeSet<String> {
        self.ledger.read(|t| {
            let owners = devices.iter().filter_map(|d| t.owner(resource, d));
            owners.map(str::to_owned).collect()
        })
    }

    /// UIDs of the pods that hold any device of the resource.
    pub(super) fn holders_of_any(&self, resource: &str) -> BTreeSet<String> {
        self.ledger.read(|t| {
            let holds = t.pods().iter().filter(|(_, pod)| {
                let mut containers = pod.containers.values();
                containers.any(|c| c.devices.contains_key(resource))
            });
            holds.map(|(uid, _)| uid.clone()).collect()
        })
    }

    pub(crate) fn devices(&self) -> Vec<Device> {
        let mut holders: BTreeMap<(String, DeviceId), Vec<Holder>> = BTreeMap::new();
        let mut table: BTreeMap<(String, DeviceId), Device> = BTreeMap::new();
        self.ledger.read(|t| {
            for pod in t.pods().values() {
                for (container, held) in &pod.containers {
                    for (resource, devices) in &held.devices {
                        let holder = Holder {
                            namespace: pod.pod.namespace.clone(),
                            pod: pod.pod.name.clone(),
                            uid: pod.pod.uid.clone(),
                            container: container.clone(),
                            since: time(devices.since),
                        };
                        for id in devices.devices.keys() {
                            let key = (resource.clone(), id.clone());
                            holders.entry(key.clone()).or_default().push(holder.clone());
                            table.entry(key).or_insert_with(|| Device {
                                resource: resource.clone(),
                                id: id.as_str().to_owned(),
                                numa_nodes: devices.devices[id].iter().map(i64::from).collect(),
                                ..Default::default()
                            });
                        }
                    }
                }
            }
        });
        let state = self.state.lock();
        for (resource, list, _) in state.inventory.all() {
            for (id, device) in list.iter() {
                table.insert(
                    (resource.clone(), id.clone()),
                    Device {
                        resource: resource.clone(),
                        id: id.as_str().to_owned(),
                        numa_nodes: device.numa.iter().map(i64::from).collect(),
                        ..Default::default()
                    },
                );
            }
        }
        let row = |(key, mut device): ((String, DeviceId), Device)| {
            let (health, reason) = match state.inventory.presence(&key.0) {
                // Pod status keeps the last health for a while; the table says what is known now.
                Some(Presence::Absent(_)) => (Health::Unknown, "the plugin is not connected"),
                _ => {
                    let health = state.inventory.health(&key.0, &key.1);
                    (health, health.reason())
                }
            };
            health.word().clone_into(&mut device.health);
            reason.clone_into(&mut device.reason);
            device.holders = holders.remove(&key).unwrap_or_default();
            device
        };
        table.into_iter().map(row).collect()
    }
}

pub(super) fn time(millis: i64) -> String {
    jiff::Timestamp::from_millisecond(millis).map_or_else(|_| String::new(), |t| t.to_string())
}
