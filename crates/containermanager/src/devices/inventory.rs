//! What plugins say about their devices. Pure: time is passed in.
//!
//! A resource has the plugin instances that are connected, newest last. The newest that has
//! sent a list speaks for the resource; when it goes, the one before it does. Devices of a
//! resource without a connected instance stay known, so that capacity is kept for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use davit_proto::deviceplugin::v1beta1 as pb;
use davit_topology::NumaMask;
use davit_topology::devices::{DeviceId, DeviceMap};
use tokio::time::Instant;

use crate::answer::ResourceCount;

/// Plugin connections kept for one resource; the oldest go first.
pub(super) const MAX_INSTANCES: usize = 8;
/// Resources a node keeps track of.
pub(super) const MAX_RESOURCES: usize = 1024;
/// Resources that one socket may serve: others need room, too.
pub(super) const MAX_OF_A_SOCKET: usize = 64;
/// Devices in one list.
pub(super) const MAX_DEVICES: usize = 1 << 18;
/// Bytes of a device's ID.
const LONGEST_ID: usize = 4096;
/// What all lists together may weigh, which is about the memory that they take.
pub(super) const MAX_WEIGHT: usize = 64 << 20;
/// What a device weighs beside its ID.
const DEVICE_WEIGHT: usize = 64;

/// Number of a plugin connection; rises, never used twice in one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct InstanceId(pub(super) u64);

/// One device as its plugin describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) healthy: bool,
    pub(super) numa: NumaMask,
}

/// A whole list of devices.
pub(super) type List = Arc<BTreeMap<DeviceId, Device>>;

/// The meaning of one ListAndWatch message. A device listed twice counts once, as listed last.
///
/// # Errors
/// An ID that is longer than any.
pub(super) fn list(message: &pb::ListAndWatchResponse) -> Result<List, String> {
    let longest = message.devices.iter().map(|d| d.id.len()).max();
    if longest.is_some_and(|len| len > LONGEST_ID) {
        return Err(format!(
            "the plugin lists a device with an ID of more than {LONGEST_ID} bytes"
        ));
    }
    let device = |d: &pb::Device| {
        let nodes = d.topology.iter().flat_map(|t| &t.nodes);
        // Nodes no machine can have are ignored, as unknown nodes are.
        let numa = nodes
            .filter_map(|n| NumaMask::single(u32::try_from(n.id).ok()?).ok())
            .fold(NumaMask::EMPTY, |mask, n| mask | n);
        let healthy = d.health == pb::HEALTHY;
        (DeviceId::from(&d.id), Device { healthy, numa })
    };
    Ok(Arc::new(message.devices.iter().map(device).collect()))
}

fn weight(list: &List) -> usize {
    list.keys()
        .map(|id| id.as_str().len() + DEVICE_WEIGHT)
        .sum()
}

#[derive(Debug)]
struct Instance {
    id: InstanceId,
    list: Option<List>,
    weight: usize,
}

/// Whether a resource has a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// A connected plugin has told its devices.
    Live,
    /// No plugin is connected, or it has not told its devices yet, since then.
    Absent(Instant),
    /// No plugin has come back within the grace period.
    Gone,
}

#[derive(Debug)]
struct Resource {
    instances: Vec<Instance>,
    /// What the instance that speaks last said; kept when there is none.
    list: List,
    weight: usize,
    /// Since when no instance speaks.
    absent_since: Option<Instant>,
    gone: bool,
}

/// What one change did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Something that node status or the device table shows has changed.
    pub(super) changed: bool,
    /// Devices whose health in pod status has changed.
    pub(super) health: BTreeSet<DeviceId>,
}

/// Health of a device as pod status shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    Healthy,
    Unhealthy,
    /// Its plugin is gone for good.
    PluginGone,
    /// No longer listed, or not listed yet.
    Unknown,
}

/// All resources of the node.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    resources: BTreeMap<String, Resource>,
}

impl Resource {
    fn absent(now: Instant) -> Self {
        Self {
            instances: Vec::new(),
            list: List::default(),
            weight: 0,
            absent_since: Some(now),
            gone: false,
        }
    }

    fn speaking(&self) -> Option<&Instance> {
        self.instances.iter().rev().find(|i| i.list.is_some())
    }

    fn health(&self, device: &DeviceId) -> Health {
        if self.gone {
            return Health::PluginGone;
        }
        match self.list.get(device) {
            Some(d) if d.healthy => Health::Healthy,
            Some(_) => Health::Unhealthy,
            None => Health::Unknown,
        }
    }

    /// What is kept of it.
    fn weight(&self) -> usize {
        let of_instances: usize = self.instances.iter().map(|i| i.weight).sum();
        // The list of the instance that speaks is the resource's.
        let own = if self.speaking().is_some() {
            0
        } else {
            self.weight
        };
        of_instances + own
    }

    /// The heaviest list, and the instance that sent it, if that is still there.
    fn heaviest(&self) -> (usize, Option<InstanceId>) {
        let of_instances = self.instances.iter().map(|i| (i.weight, Some(i.id)));
        let own = self.speaking().is_none().then_some((self.weight, None));
        of_instances.chain(own).max().unwrap_or_default()
    }

    /// Makes the list of the instance that speaks the resource's list.
    fn settle(&mut self, now: Instant) -> Outcome {
        let Some(list) = self.speaking().and_then(|i| i.list.clone()) else {
            let was_live = self.absent_since.is_none();
            self.absent_since.get_or_insert(now);
            return Outcome {
                changed: was_live,
                health: BTreeSet::new(),
            };
        };
        let changed = self.absent_since.is_some() || self.gone || *self.list != *list;
        let of = |list: &List, id| list.get(id).map(|d: &Device| d.healthy);
        let before = self.list.clone();
        self.absent_since = None;
        self.gone = false;
        self.weight = weight(&list);
        self.list = list;
        let known = before.keys().chain(self.list.keys());
        let health = known.filter(|id| of(&before, id) != of(&self.list, id));
        Outcome {
            changed,
            health: health.cloned().collect(),
        }
    }
}

impl Inventory {
    /// A resource the log remembers from an earlier run.
    pub(super) fn remember(&mut self, resource: &str, now: Instant) {
        self.resources
            .entry(resource.to_owned())
            .or_insert_with(|| Resource::absent(now));
    }

    /// Whether one more resource may be tracked.
    pub(super) fn has_room_for(&self, resource: &str) -> bool {
        self.resources.contains_key(resource) || self.resources.len() < MAX_RESOURCES
    }

    /// Forgets resources whose plugins are gone for good, but for those in `held`.
    pub(super) fn forget_gone(&mut self, held: &BTreeSet<String>) {
        self.resources
            .retain(|name, resource| !resource.gone || held.contains(name));
    }

    /// A plugin has connected. Until its first list the state stays as it was. Returns the
    /// instances that are one too many and are to be disconnected.
    pub(super) fn connected(
        &mut self,
        resource: &str,
        id: InstanceId,
        now: Instant,
    ) -> Vec<InstanceId> {
        let entry = self
            .resources
            .entry(resource.to_owned())
            .or_insert_with(|| Resource::absent(now));
        if entry.gone {
            // A new beginning: pods wait for its first list, the old one is no promise.
            entry.gone = false;
            entry.absent_since = Some(now);
            entry.list = List::default();
            entry.weight = 0;
        }
        entry.instances.push(Instance {
            id,
            list: None,
            weight: 0,
        });
        let surplus = entry.instances.len().saturating_sub(MAX_INSTANCES);
        entry.instances.iter().take(surplus).map(|i| i.id).collect()
    }

    /// A plugin has sent its list. Unknown instances are ignored.
    pub(super) fn listed(
        &mut self,
        resource: &str,
        id: InstanceId,
        list: List,
        now: Instant,
    ) -> Outcome {
        let Some(entry) = self.resources.get_mut(resource) else {
            return Outcome::default();
        };
        let Some(instance) = entry.instances.iter_mut().find(|i| i.id == id) else {
            return Outcome::default();
        };
        instance.weight = weight(&list);
        instance.list = Some(list);
        entry.settle(now)
    }

    /// Takes out the heaviest lists until what is kept weighs no more than it may: whoever lists without end harms himself.
    /// Returns the resources and instances that they were of; those are to be disconnected.
    pub(super) fn shed(&mut self, now: Instant) -> Vec<(String, Option<InstanceId>)> {
        let mut shed = Vec::new();
        while self.resources.values().map(Resource::weight).sum::<usize>() > MAX_WEIGHT {
            let heaviest = self
                .resources
                .iter_mut()
                .max_by_key(|(_, r)| r.heaviest().0);
            let Some((name, entry)) = heaviest else {
                break;
            };
            let (_, id) = entry.heaviest();
            let spoke = id.is_none() || entry.speaking().map(|i| i.id) == id;
            entry.instances.retain(|i| Some(i.id) != id);
            if spoke {
                (entry.list, entry.weight) = (List::default(), 0);
                entry.settle(now);
            }
            shed.push((name.clone(), id));
        }
        shed
    }

    /// A plugin's connection has ended.
    pub(super) fn disconnected(&mut self, resource: &str, id: InstanceId, now: Instant) -> Outcome {
        let Some(entry) = self.resources.get_mut(resource) else {
            return Outcome::default();
        };
        let before = entry.instances.len();
        entry.instances.retain(|i| i.id != id);
        if entry.instances.len() == before {
            return Outcome::default();
        }
        // A plugin that never listed anything leaves the waiting clock as it was, but one that
        // failed at once starts the grace period anew: it did register.
        if entry.instances.is_empty() && entry.absent_since.is_some() {
            entry.absent_since = Some(now);
        }
        entry.settle(now)
    }

    /// Declares resources without plugin gone after the grace period. Returns their names: by that the health of their devices
    /// in pod status has changed, of those, too, that were not listed any more.
    pub(super) fn expire(&mut self, grace: Duration, now: Instant) -> Vec<String> {
        let mut expired = Vec::new();
        for (name, entry) in &mut self.resources {
            let over = entry.absent_since.is_some_and(|since| now >= since + grace);
            if over && !entry.gone && entry.instances.is_empty() {
                entry.gone = true;
                expired.push(name.clone());
            }
        }
        expired
    }

    /// When [`expire`](Self::expire) has something to do next.
    pub(super) fn next_expiry(&self, grace: Duration) -> Option<Instant> {
        let waiting = self
            .resources
            .values()
            .filter(|r| !r.gone && r.instances.is_empty());
        waiting.filter_map(|r| Some(r.absent_since? + grace)).min()
    }

    /// Whether a resource has a plugin; `None` when it was never heard of.
    pub(super) fn presence(&self, resource: &str) -> Option<Presence> {
        let entry = self.resources.get(resource)?;
        Some(match entry.absent_since {
            _ if entry.gone => Presence::Gone,
            Some(since) => Presence::Absent(since),
            None => Presence::Live,
        })
    }

    /// The instance that speaks for a resource.
    pub(super) fn serving(&self, resource: &str) -> Option<InstanceId> {
        let entry = self.resources.get(resource)?;
        Some(entry.speaking().or(entry.instances.last())?.id)
    }

    /// Whether an instance is connected.
    pub(super) fn is_connected(&self, resource: &str, id: InstanceId) -> bool {
        let entry = self.resources.get(resource);
        entry.is_some_and(|r| r.instances.iter().any(|i| i.id == id))
    }

    /// The last list of a resource.
    pub(super) fn devices(&self, resource: &str) -> Option<List> {
        Some(self.resources.get(resource)?.list.clone())
    }

    /// Devices that may be given out: healthy, of a live resource.
    pub(super) fn healthy(&self, resource: &str) -> DeviceMap {
        let live = self
            .resources
            .get(resource)
            .filter(|r| r.absent_since.is_none());
        let devices = live.into_iter().flat_map(|r| r.list.iter());
        devices
            .filter(|(_, d)| d.healthy)
            .map(|(id, d)| (id.clone(), d.numa))
            .collect()
    }

    /// Health of a device as pod status shows it.
    pub(super) fn health(&self, resource: &str, device: &DeviceId) -> Health {
        self.resources
            .get(resource)
            .map_or(Health::Unknown, |r| r.health(device))
    }

    /// All resources with their lists.
    pub(super) fn all(&self) -> impl Iterator<Item = (&String, &List, Presence)> {
        self.resources.iter().map(|(name, r)| {
            let presence = self.presence(name).unwrap_or(Presence::Gone);
            (name, &r.list, presence)
        })
    }

    /// Capacity and allocatable by resource.
    pub(super) fn counts(&self) -> BTreeMap<String, ResourceCount> {
        let count = |r: &Resource| {
            let all = if r.gone { 0 } else { r.list.len() };
            let healthy = r.list.values().filter(|d| d.healthy).count();
            ResourceCount {
                capacity: all as u64,
                allocatable: if r.absent_since.is_some() {
                    0
                } else {
                    healthy as u64
                },
            }
        };
        self.resources
            .iter()
            .map(|(name, r)| (name.clone(), count(r)))
            .collect()
    }
}

#[cfg(test)]
mod tests;
