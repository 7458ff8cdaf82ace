//! What is known of the devices of a node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use davit_proto::podresources::v1::{AllocatableResourcesResponse, PodResources};
use davit_sdk::podresources::devices;
use tokio::time::Instant;

/// How long a device that is neither offered nor held is remembered.
const REMEMBERED: Duration = Duration::from_secs(60 * 60);
/// Devices that are remembered at most.
const MOST: usize = 200_000;

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// Namespace of its pod.
    pub namespace: String,
    /// Name of its pod.
    pub pod: String,
    /// Its name.
    pub container: String,
}

/// How a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceState {
    /// Healthy, in a container's hands.
    Allocated,
    /// Healthy, in nobody's hands.
    Free,
    /// The agent does not offer it any more: it is broken, or gone, or its plugin is away.
    Unhealthy,
    /// The agent does not answer.
    Unknown,
}

impl DeviceState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Allocated, Self::Free, Self::Unhealthy, Self::Unknown];

    /// As in the metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Free => "free",
            Self::Unhealthy => "unhealthy",
            Self::Unknown => "unknown",
        }
    }
}

/// A device of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// How it is.
    pub state: DeviceState,
    /// NUMA nodes it is local to.
    pub numa: BTreeSet<i64>,
    /// Who holds it.
    pub owners: BTreeSet<Owner>,
}

/// A device of a DRA driver in a container's hands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimed {
    /// Its driver.
    pub driver: String,
    /// Its pool.
    pub pool: String,
    /// Its name.
    pub device: String,
    /// Which share of it, if it is shared.
    pub share: String,
    /// Namespace of the claim.
    pub claim_namespace: String,
    /// Name of the claim.
    pub claim: String,
    /// Who holds it.
    pub owner: Owner,
}

/// What one look has shown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// Whether the agent answered.
    pub up: bool,
    /// Devices by resource and ID.
    pub devices: BTreeMap<(String, String), Device>,
    /// Devices of claims.
    pub claimed: BTreeSet<Claimed>,
    /// Exclusive CPUs by container.
    pub cpus: BTreeMap<Owner, usize>,
    /// Pinned memory in bytes by container, type and NUMA nodes.
    pub memory: BTreeMap<(Owner, String, BTreeSet<i64>), u64>,
    /// CPUs that can be exclusive.
    pub allocatable_cpus: Option<usize>,
}

struct Known {
    numa: BTreeSet<i64>,
    seen: Instant,
}

/// What is remembered from look to look: devices that were there.
#[derive(Default)]
pub struct Memory {
    known: BTreeMap<(String, String), Known>,
}

impl Memory {
    /// Takes in what the agent says now.
    pub fn look(
        &mut self,
        pods: &[PodResources],
        allocatable: Option<&AllocatableResourcesResponse>,
        now: Instant,
    ) -> Snapshot {
        let mut snapshot = held(pods);
        snapshot.up = true;
        // An agent that does not say what it offers leaves only what is held to tell of.
        let offered: Option<BTreeMap<(String, String), BTreeSet<i64>>> = allocatable.map(|a| {
            let all = devices(&a.devices).into_iter();
            all.map(|d| ((d.resource, d.id), d.numa_nodes)).collect()
        });
        snapshot.allocatable_cpus = allocatable.map(|a| a.cpu_ids.len());
        for (key, numa) in offered.iter().flatten() {
            self.known.insert(
                key.clone(),
                Known {
                    numa: numa.clone(),
                    seen: now,
                },
            );
        }
        for (key, device) in &snapshot.devices {
            let numa = device.numa.clone();
            self.known
                .entry(key.clone())
                .or_insert(Known { numa, seen: now })
                .seen = now;
        }
        self.known
            .retain(|_, known| now.duration_since(known.seen) < REMEMBERED);
        while self.known.len() > MOST {
            self.known.pop_last();
        }
        for (key, known) in &self.known {
            let healthy = offered
                .as_ref()
                .is_none_or(|offered| offered.contains_key(key));
            let device = snapshot
                .devices
                .entry(key.clone())
                .or_insert_with(|| Device {
                    state: DeviceState::Free,
                    numa: known.numa.clone(),
                    owners: BTreeSet::new(),
                });
            device.state = match (healthy, device.owners.is_empty()) {
                (false, _) => DeviceState::Unhealthy,
                (true, true) if offered.is_none() => DeviceState::Unknown,
                (true, true) => DeviceState::Free,
                (true, false) => DeviceState::Allocated,
            };
        }
        snapshot
    }

    /// The agent does not answer: the devices are somewhere, more is not known.
    pub fn unknown(&self) -> Snapshot {
        let device = |(key, known): (&(String, String), &Known)| {
            let device = Device {
                state: DeviceState::Unknown,
                numa: known.numa.clone(),
                owners: BTreeSet::new(),
            };
            (key.clone(), device)
        };
        Snapshot {
            devices: self.known.iter().map(device).collect(),
            ..Snapshot::default()
        }
    }
}

/// What containers hold.
fn held(pods: &[PodResources]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for pod in pods {
        for container in &pod.containers {
            let owner = Owner {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                container: container.name.clone(),
            };
            for device in devices(&container.devices) {
                let key = (device.resource, device.id);
                let entry = snapshot.devices.entry(key).or_insert_with(|| Device {
                    state: DeviceState::Allocated,
                    numa: BTreeSet::new(),
                    owners: BTreeSet::new(),
                });
                entry.numa.extend(device.numa_nodes);
                entry.owners.insert(owner.clone());
            }
            for claim in &container.dynamic_resources {
                snapshot
                    .claimed
                    .extend(claim.claim_resources.iter().map(|device| Claimed {
                        driver: device.driver_name.clone(),
                        pool: device.pool_name.clone(),
                        device: device.device_name.clone(),
                        share: device.share_id.clone().unwrap_or_default(),
                        claim_namespace: claim.claim_namespace.clone(),
                        claim: claim.claim_name.clone(),
                        owner: owner.clone(),
                    }));
            }
            if !container.cpu_ids.is_empty() {
                snapshot.cpus.insert(owner.clone(), container.cpu_ids.len());
            }
            for block in &container.memory {
                let nodes = block
                    .topology
                    .iter()
                    .flat_map(|t| &t.nodes)
                    .map(|n| n.id)
                    .collect();
                let key = (owner.clone(), block.memory_type.clone(), nodes);
                *snapshot.memory.entry(key).or_default() += block.size;
            }
        }
    }
    snapshot
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_proto::podresources::v1 as pb;

    fn entry(id: &str, node: Option<i64>) -> pb::ContainerDevices {
        pb::ContainerDevices {
            resource_name: "a.example/foo".to_owned(),
            device_ids: vec![id.to_owned()],
            topology: node.map(|id| pb::TopologyInfo {
                nodes: vec![pb::NumaNode { id }],
            }),
        }
    }

    fn pod(name: &str, devices: Vec<pb::ContainerDevices>) -> PodResources {
        let main = pb::ContainerResources {
            name: "main".to_owned(),
            devices,
            ..Default::default()
        };
        PodResources {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            containers: vec![main],
            ..Default::default()
        }
    }

    fn offer(devices: Vec<pb::ContainerDevices>) -> AllocatableResourcesResponse {
        AllocatableResourcesResponse {
            devices,
            ..Default::default()
        }
    }

    fn states(snapshot: &Snapshot) -> Vec<(&str, &str, usize)> {
        let all = snapshot.devices.iter();
        all.map(|((_, id), d)| (id.as_str(), d.state.as_str(), d.owners.len()))
            .collect()
    }

    #[test]
    fn each_device_has_one_state_and_a_reason_when_nobody_holds_it() {
        let mut memory = Memory::default();
        let now = Instant::now();
        let all = offer(vec![
            entry("a", Some(0)),
            entry("a", Some(1)),
            entry("b", None),
            entry("c", None),
        ]);
        let pods = [pod("p", vec![entry("a", Some(0)), entry("a", Some(1))])];
        let first = memory.look(&pods, Some(&all), now);
        assert_eq!(
            states(&first),
            [("a", "allocated", 1), ("b", "free", 0), ("c", "free", 0)]
        );
        let a = &first.devices[&("a.example/foo".to_owned(), "a".to_owned())];
        assert_eq!(a.numa, BTreeSet::from([0, 1]));

        // a is held and breaks, b breaks.
        let less = offer(vec![entry("c", None)]);
        let second = memory.look(&pods, Some(&less), now);
        assert_eq!(
            states(&second),
            [
                ("a", "unhealthy", 1),
                ("b", "unhealthy", 0),
                ("c", "free", 0)
            ]
        );

        let away = memory.unknown();
        assert!(!away.up);
        assert_eq!(
            states(&away),
            [
                ("a", "unknown", 0),
                ("b", "unknown", 0),
                ("c", "unknown", 0)
            ]
        );

        // After an hour what is gone is forgotten.
        let later = memory.look(&[], Some(&less), now + REMEMBERED);
        assert_eq!(states(&later), [("c", "free", 0)]);
    }

    #[test]
    fn an_agent_that_does_not_say_what_it_offers_still_shows_who_holds_what() {
        let mut memory = Memory::default();
        let now = Instant::now();
        let first = memory.look(&[pod("p", vec![entry("a", None)])], None, now);
        assert_eq!(states(&first), [("a", "allocated", 1)]);
        assert_eq!(states(&memory.look(&[], None, now)), [("a", "unknown", 0)]);
    }
}
