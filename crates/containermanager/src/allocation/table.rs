//! Who holds what, in memory. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use davit_topology::CpuSet;
use davit_topology::devices::{ContainerKind, DeviceId, DeviceMap};
use davit_topology::memory::MemoryBlock;

use super::record::{Change, ClaimHold, ComputeHold, DeviceHold, PodName, cpu_ids};

/// The name under which the owners of CPUs are kept; no device plugin can have it.
pub(crate) const CPU: &str = "cpu";

/// A device is in other hands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("device {device} of {resource} is held by pod {holder}")]
pub struct Conflict {
    /// The resource.
    pub resource: String,
    /// The device.
    pub device: DeviceId,
    /// UID of the pod that holds it, or that is about to.
    pub holder: String,
}

/// Devices of one resource that one container holds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HeldDevices {
    /// The devices with their NUMA nodes.
    pub(crate) devices: DeviceMap,
    /// The plugin's ContainerAllocateResponse, protobuf.
    pub(crate) response: Vec<u8>,
    /// When they were allocated, milliseconds since 1970.
    pub(crate) since: i64,
}

/// Everything one container holds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ContainerHoldings {
    /// The kind of container.
    pub(crate) kind: ContainerKind,
    /// Devices by resource name.
    pub(crate) devices: BTreeMap<String, HeldDevices>,
    /// CPUs for its exclusive use.
    pub(crate) cpus: CpuSet,
    /// Memory set aside for it.
    pub(crate) memory: Vec<MemoryBlock>,
    /// When CPUs and memory were allocated, milliseconds since 1970.
    pub(crate) compute_since: i64,
}

impl ContainerHoldings {
    fn new(kind: ContainerKind) -> Self {
        Self {
            kind,
            devices: BTreeMap::new(),
            cpus: CpuSet::new(),
            memory: Vec::new(),
            compute_since: 0,
        }
    }
}

/// Everything one pod holds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodHoldings {
    /// The pod.
    pub(crate) pod: PodName,
    /// By container name.
    pub(crate) containers: BTreeMap<String, ContainerHoldings>,
}

/// What the log knows about a resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ResourceRecord {
    /// Its plugin wants PreStartContainer calls.
    pub(crate) pre_start: bool,
}

/// The owner of one device: a pod, and in it one container for good, or init containers that
/// hand it on, or both.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    pod: String,
    keeper: Option<String>,
    inits: BTreeSet<String>,
}

/// The state that the log's changes add up to.
#[derive(Debug, Clone, Default)]
pub struct Table {
    pods: BTreeMap<String, Arc<PodHoldings>>,
    owners: BTreeMap<String, BTreeMap<DeviceId, Owner>>,
    known: BTreeMap<String, ResourceRecord>,
    claims: BTreeMap<String, Arc<ClaimHold>>,
}

impl Table {
    /// Makes a container the owner of a device, or finds that it is already. This is the one
    /// place where a device gets an owner.
    ///
    /// # Errors
    /// Another pod has the device, or another container of the pod that keeps it. A keeper may
    /// take over what ordinary init containers of its own pod hold.
    pub(crate) fn claim(
        &mut self,
        uid: &str,
        container: &str,
        kind: ContainerKind,
        resource: &str,
        device: &DeviceId,
    ) -> Result<(), Conflict> {
        let owners = self.owners.entry(resource.to_owned()).or_default();
        let owner = owners.entry(device.clone()).or_insert_with(|| Owner {
            pod: uid.to_owned(),
            keeper: None,
            inits: BTreeSet::new(),
        });
        let free = match kind {
            ContainerKind::Init => owner.keeper.is_none() || owner.inits.contains(container),
            ContainerKind::Sidecar | ContainerKind::App => owner
                .keeper
                .as_deref()
                .is_none_or(|keeper| keeper == container),
        };
        if owner.pod != uid || !free {
            return Err(Conflict {
                resource: resource.to_owned(),
                device: device.clone(),
                holder: owner.pod.clone(),
            });
        }
        match kind {
            ContainerKind::Init => {
                owner.inits.insert(container.to_owned());
            }
            ContainerKind::Sidecar | ContainerKind::App => {
                owner.keeper = Some(container.to_owned());
            }
        }
        Ok(())
    }

    /// Takes a claim back, unless the container holds the device by a change of the log.
    pub(super) fn unclaim(
        &mut self,
        uid: &str,
        container: &str,
        resource: &str,
        device: &DeviceId,
    ) {
        let held = if resource == CPU {
            let holdings = self.pods.get(uid).and_then(|p| p.containers.get(container));
            holdings.is_some_and(|h| cpu_ids(&h.cpus).contains(device))
        } else {
            self.held(uid, container, resource)
                .is_some_and(|h| h.devices.contains_key(device))
        };
        if !held {
            self.disown(uid, container, resource, device);
        }
    }

    fn disown(&mut self, uid: &str, container: &str, resource: &str, device: &DeviceId) {
        let Some(owners) = self.owners.get_mut(resource) else {
            return;
        };
        if let Some(owner) = owners.get_mut(device)
            && owner.pod == uid
        {
            owner.inits.remove(container);
            if owner.keeper.as_deref() == Some(container) {
                owner.keeper = None;
            }
            if owner.keeper.is_none() && owner.inits.is_empty() {
                owners.remove(device);
            }
        }
        if owners.is_empty() {
            self.owners.remove(resource);
        }
    }

    /// Applies one change.
    ///
    /// # Errors
    /// The change gives a device to a second owner; nothing has changed then.
    pub fn apply(&mut self, change: &Change) -> Result<(), Conflict> {
        match change {
            Change::Hold(hold) => self.hold(hold)?,
            Change::Compute(hold) => self.hold_compute(hold)?,
            Change::Release { uid } => self.release(uid),
            Change::Claim(hold) => {
                let uid = hold.claim.uid.clone();
                self.claims.insert(uid, Arc::new(hold.clone()));
            }
            Change::ClaimGone { claim } => {
                self.claims.remove(claim);
            }
            Change::Learned {
                resource,
                pre_start,
            } => {
                self.known.insert(
                    resource.clone(),
                    ResourceRecord {
                        pre_start: *pre_start,
                    },
                );
            }
            Change::Forgotten { resource } => {
                self.known.remove(resource);
            }
        }
        Ok(())
    }

    fn hold(&mut self, hold: &DeviceHold) -> Result<(), Conflict> {
        let uid = &hold.pod.uid;
        let mut claimed = Vec::new();
        for device in hold.devices.keys() {
            if let Err(conflict) =
                self.claim(uid, &hold.container, hold.kind, &hold.resource, device)
            {
                for device in claimed {
                    self.unclaim(uid, &hold.container, &hold.resource, device);
                }
                return Err(conflict);
            }
            claimed.push(device);
        }
        let container = self.container(&hold.pod, &hold.container, hold.kind);
        let new = HeldDevices {
            devices: hold.devices.clone(),
            response: hold.response.clone(),
            since: hold.since,
        };
        if let Some(old) = container.devices.insert(hold.resource.clone(), new) {
            for device in old.devices.keys().filter(|d| !hold.devices.contains_key(d)) {
                self.disown(uid, &hold.container, &hold.resource, device);
            }
        }
        Ok(())
    }

    fn hold_compute(&mut self, hold: &ComputeHold) -> Result<(), Conflict> {
        let uid = &hold.pod.uid;
        let ids = hold.cpu_ids();
        let mut claimed = Vec::new();
        for cpu in &ids {
            if let Err(conflict) = self.claim(uid, &hold.container, hold.kind, CPU, cpu) {
                for cpu in claimed {
                    self.unclaim(uid, &hold.container, CPU, cpu);
                }
                return Err(conflict);
            }
            claimed.push(cpu);
        }
        let container = self.container(&hold.pod, &hold.container, hold.kind);
        let old = std::mem::replace(&mut container.cpus, hold.cpus.clone());
        container.memory.clone_from(&hold.memory);
        container.compute_since = hold.since;
        for cpu in cpu_ids(&old.difference(&hold.cpus)) {
            self.disown(uid, &hold.container, CPU, &cpu);
        }
        Ok(())
    }

    fn container(
        &mut self,
        pod: &PodName,
        container: &str,
        kind: ContainerKind,
    ) -> &mut ContainerHoldings {
        let holdings = self.pods.entry(pod.uid.clone()).or_insert_with(|| {
            Arc::new(PodHoldings {
                pod: pod.clone(),
                containers: BTreeMap::new(),
            })
        });
        Arc::make_mut(holdings)
            .containers
            .entry(container.to_owned())
            .or_insert_with(|| ContainerHoldings::new(kind))
    }

    fn release(&mut self, uid: &str) {
        let Some(pod) = self.pods.remove(uid) else {
            return;
        };
        for (name, container) in &pod.containers {
            for (resource, held) in &container.devices {
                for device in held.devices.keys() {
                    self.disown(uid, name, resource, device);
                }
            }
            for cpu in cpu_ids(&container.cpus) {
                self.disown(uid, name, CPU, &cpu);
            }
        }
    }

    /// All resource claims that are prepared, or may be in part, by UID.
    pub(crate) fn claims(&self) -> &BTreeMap<String, Arc<ClaimHold>> {
        &self.claims
    }

    /// The claims a pod uses.
    pub(crate) fn claims_of(&self, pod: &str) -> impl Iterator<Item = &Arc<ClaimHold>> {
        let uses = move |c: &&Arc<ClaimHold>| c.pods.iter().any(|p| p.uid == pod);
        self.claims.values().filter(uses)
    }

    /// All pods that hold something, by UID.
    pub(crate) fn pods(&self) -> &BTreeMap<String, Arc<PodHoldings>> {
        &self.pods
    }

    /// What one container holds of one resource.
    pub(crate) fn held(&self, uid: &str, container: &str, resource: &str) -> Option<&HeldDevices> {
        self.pods
            .get(uid)?
            .containers
            .get(container)?
            .devices
            .get(resource)
    }

    /// Whether a device has an owner, or is about to get one.
    pub(crate) fn is_owned(&self, resource: &str, device: &DeviceId) -> bool {
        self.owners
            .get(resource)
            .is_some_and(|o| o.contains_key(device))
    }

    /// UID of the pod that has a device, or is about to get it.
    pub(crate) fn owner(&self, resource: &str, device: &DeviceId) -> Option<&str> {
        Some(self.owners.get(resource)?.get(device)?.pod.as_str())
    }

    /// Resources of device plugins of which some device has an owner.
    pub(crate) fn owned_resources(&self) -> impl Iterator<Item = (&String, usize)> {
        let devices = self.owners.iter().filter(|(r, _)| *r != CPU);
        devices.map(|(r, o)| (r, o.len()))
    }

    /// Every container with what it holds.
    pub(crate) fn containers(
        &self,
    ) -> impl Iterator<Item = (&PodName, &String, &ContainerHoldings)> {
        self.pods
            .values()
            .flat_map(|p| p.containers.iter().map(|(name, c)| (&p.pod, name, c)))
    }

    /// Resources whose plugins have registered and not gone for good.
    pub(crate) fn known(&self) -> &BTreeMap<String, ResourceRecord> {
        &self.known
    }

    /// The changes that lead from nothing to this table.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let known = self.known.iter().map(|(resource, r)| Change::Learned {
            resource: resource.clone(),
            pre_start: r.pre_start,
        });
        let mut changes: Vec<Change> = known.collect();
        let claims = self.claims.values();
        changes.extend(claims.map(|c| Change::Claim(c.as_ref().clone())));
        for pod in self.pods.values() {
            // Those that hand devices on come first: a keeper takes over from them, not they from it.
            let mut containers: Vec<_> = pod.containers.iter().collect();
            containers.sort_by_key(|(_, c)| c.kind != ContainerKind::Init);
            for (name, container) in containers {
                changes.extend(container.devices.iter().map(|(resource, held)| {
                    Change::Hold(DeviceHold {
                        pod: pod.pod.clone(),
                        container: name.clone(),
                        kind: container.kind,
                        resource: resource.clone(),
                        devices: held.devices.clone(),
                        response: held.response.clone(),
                        since: held.since,
                    })
                }));
                if !container.cpus.is_empty() || !container.memory.is_empty() {
                    changes.push(Change::Compute(ComputeHold {
                        pod: pod.pod.clone(),
                        container: name.clone(),
                        kind: container.kind,
                        cpus: container.cpus.clone(),
                        memory: container.memory.clone(),
                        since: container.compute_since,
                    }));
                }
            }
        }
        changes
    }

    /// Every device with the pods whose holdings name it: for checks of the invariant that do
    /// not rely on the owners' index.
    #[cfg(test)]
    pub(crate) fn holders(&self) -> BTreeMap<(String, DeviceId), BTreeSet<String>> {
        let mut found: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
        for (uid, pod) in &self.pods {
            for container in pod.containers.values() {
                for (resource, held) in &container.devices {
                    for id in held.devices.keys() {
                        found
                            .entry((resource.clone(), id.clone()))
                            .or_default()
                            .insert(uid.clone());
                    }
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests;
