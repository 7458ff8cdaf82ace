//! Which writes turn the slices there are into those that should be. Pure.
//!
//! A slice is known by its place in its pool, which its name begins with, so that names sort in the order of the slices
//! and a slice that was deleted comes back under its name.

use std::collections::{BTreeMap, BTreeSet};

use davit_api::quantity::Quantity as Amount;
use jiff::Timestamp;
use k8s_openapi::api::resource::v1::{
    CounterSet, Device, DeviceTaint, ResourcePool, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sha2::{Digest as _, Sha256};

use super::devices::{Content, Pool, Reach, Resources};

/// Whose slices they are.
#[derive(Debug, Clone)]
pub(super) struct Publisher<'a> {
    pub(super) driver: &'a str,
    /// The node, in the scope of one.
    pub(super) node: Option<&'a str>,
}

/// What the server made of what it was sent, by name of the slice: it may leave fields out.
pub(super) type Accepted = BTreeMap<String, (ResourceSliceSpec, ResourceSliceSpec)>;

/// A write of a slice that is there.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Old {
    pub(super) name: String,
    pub(super) uid: Option<String>,
    pub(super) version: Option<String>,
}

/// The writes, in this order.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) delete: Vec<Old>,
    pub(super) update: Vec<(Old, ResourceSliceSpec)>,
    pub(super) create: Vec<(String, ResourceSliceSpec)>,
}

impl Plan {
    pub(super) fn is_empty(&self) -> bool {
        self.delete.is_empty() && self.update.is_empty() && self.create.is_empty()
    }
}

fn old(slice: &ResourceSlice) -> Old {
    Old {
        name: slice.metadata.name.clone().unwrap_or_default(),
        uid: slice.metadata.uid.clone(),
        version: slice.metadata.resource_version.clone(),
    }
}

/// Makes the plan. `existing` are all slices of the publisher, of all pools.
pub(super) fn plan(
    publisher: &Publisher<'_>,
    wanted: &Resources,
    existing: &[ResourceSlice],
    accepted: &Accepted,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan::default();
    let mut of_pools: BTreeMap<&str, Vec<&ResourceSlice>> = BTreeMap::new();
    for slice in existing {
        of_pools
            .entry(&slice.spec.pool.name)
            .or_default()
            .push(slice);
    }
    for (name, pool) in &wanted.pools {
        let existing = of_pools.remove(name.as_str()).unwrap_or_default();
        plan_pool(publisher, name, pool, existing, accepted, now, &mut plan);
    }
    let left = of_pools.into_values().flatten();
    plan.delete.extend(left.map(old));
    plan
}

fn plan_pool(
    publisher: &Publisher<'_>,
    name: &str,
    pool: &Pool,
    mut existing: Vec<&ResourceSlice>,
    accepted: &Accepted,
    now: Timestamp,
    plan: &mut Plan,
) {
    existing.sort_by_key(|s| &s.metadata.name);
    let highest = existing.iter().map(|s| s.spec.pool.generation).max();
    let times = TaintTimes::of(&existing, now);
    let contents = pool.slices();
    let count = contents.len();
    let mut places: BTreeMap<usize, &ResourceSlice> = BTreeMap::new();
    for slice in existing {
        let place = place_in_name(slice).filter(|place| *place < count);
        match place {
            Some(place) if !places.contains_key(&place) => {
                places.insert(place, slice);
            }
            _ => plan.delete.push(old(slice)),
        }
    }
    let desired: Vec<ResourceSliceSpec> = contents
        .into_iter()
        .map(|content| publisher.spec(name, pool, times.fill(content), count))
        .collect();

    // A reader believes in the highest generation only, and when it has all slices of it. So that
    // generation can stay if what there is of it is right, or if one write puts it right.
    let (mut wrong_in_highest, mut writes, mut creations) = (0, 0, 0);
    for (place, spec) in desired.iter().enumerate() {
        let Some(slice) = places.get(&place) else {
            creations += 1;
            continue;
        };
        let is_highest = Some(slice.spec.pool.generation) == highest;
        let is_right = is_same(slice, spec, accepted);
        let counts = slice.spec.pool.resource_slice_count == spec.pool.resource_slice_count;
        if !(is_right && is_highest && counts) {
            writes += 1;
            wrong_in_highest += usize::from(is_highest);
        }
        if is_highest && !counts {
            // No single write mends a count that all slices have wrong.
            wrong_in_highest += usize::from(count > 1);
        }
    }
    let stays = wrong_in_highest == 0 || (wrong_in_highest == 1 && writes + creations == 1);
    let mut generation = match highest {
        Some(highest) if stays => highest,
        Some(highest) => highest.saturating_add(1),
        None => 1,
    };
    generation = generation.max(pool.generation.unwrap_or_default());

    for (place, mut spec) in desired.into_iter().enumerate() {
        spec.pool.generation = generation;
        match places.get(&place) {
            None => plan.create.push((publisher.name(place, name), spec)),
            Some(slice) => {
                let in_place = slice.spec.pool.generation == generation
                    && slice.spec.pool.resource_slice_count == spec.pool.resource_slice_count;
                if !in_place || !is_same(slice, &spec, accepted) {
                    plan.update.push((old(slice), spec));
                }
            }
        }
    }
}

impl Publisher<'_> {
    /// `<place>-<driver>-<node>-<hash of driver, node and pool>`, cut where it gets too long.
    fn name(&self, place: usize, pool: &str) -> String {
        let node = self.node.unwrap_or("cluster");
        let whole = format!("{}\n{node}\n{pool}", self.driver);
        let digest = Sha256::digest(whole);
        let hash: String = digest.iter().take(4).map(|b| format!("{b:02x}")).collect();
        let mut middle = format!("{}-{node}", self.driver);
        middle.truncate(200);
        let middle = middle.trim_end_matches(['.', '-']);
        format!("{place:05x}-{middle}-{hash}")
    }

    fn spec(&self, name: &str, pool: &Pool, content: Content, count: usize) -> ResourceSliceSpec {
        let mut spec = ResourceSliceSpec {
            driver: self.driver.to_owned(),
            pool: ResourcePool {
                name: name.to_owned(),
                generation: 0,
                resource_slice_count: i64::try_from(count).unwrap_or(i64::MAX),
            },
            devices: (!content.devices.is_empty()).then_some(content.devices),
            shared_counters: (!content.counters.is_empty()).then_some(content.counters),
            ..ResourceSliceSpec::default()
        };
        match &pool.reach {
            Reach::Node => spec.node_name = self.node.map(str::to_owned),
            Reach::Nodes(selector) => spec.node_selector = Some(selector.clone()),
            Reach::AllNodes => spec.all_nodes = Some(true),
            Reach::PerDevice => spec.per_device_node_selection = Some(true),
        }
        spec
    }
}

/// The place of a slice in its pool, from its name.
fn place_in_name(slice: &ResourceSlice) -> Option<usize> {
    let (place, _) = slice.metadata.name.as_ref()?.split_once('-')?;
    let is_hex = place
        .bytes()
        .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    (place.len() == 5 && is_hex)
        .then(|| usize::from_str_radix(place, 16).ok())
        .flatten()
}

/// Whether a slice says what it should, its generation and the number of slices aside. What the
/// server left out before counts as said.
fn is_same(slice: &ResourceSlice, desired: &ResourceSliceSpec, accepted: &Accepted) -> bool {
    let (there, desired) = (comparable(&slice.spec), comparable(desired));
    if there == desired {
        return true;
    }
    let name = slice.metadata.name.as_deref().unwrap_or_default();
    accepted.get(name).is_some_and(|(sent, stored)| {
        timeless(comparable(sent)) == timeless(desired) && comparable(stored) == there
    })
}

/// A spec without the times of taints: those of taints that the server drops are new each time.
fn timeless(mut spec: ResourceSliceSpec) -> ResourceSliceSpec {
    for device in spec.devices.iter_mut().flatten() {
        for taint in device.taints.iter_mut().flatten() {
            taint.time_added = None;
        }
    }
    spec
}

/// A spec without what does not tell slices apart: the place of the slice, and how amounts and
/// emptiness are written.
pub(super) fn comparable(spec: &ResourceSliceSpec) -> ResourceSliceSpec {
    let mut spec = spec.clone();
    spec.pool.generation = 0;
    spec.pool.resource_slice_count = 0;
    spec.all_nodes = spec.all_nodes.filter(|b| *b);
    spec.per_device_node_selection = spec.per_device_node_selection.filter(|b| *b);
    spec.devices = spec.devices.filter(|d| !d.is_empty());
    spec.shared_counters = spec.shared_counters.filter(|c| !c.is_empty());
    for set in spec.shared_counters.iter_mut().flatten() {
        level_counters(set);
    }
    for device in spec.devices.iter_mut().flatten() {
        level_device(device);
    }
    spec
}

fn level_counters(set: &mut CounterSet) {
    for counter in set.counters.values_mut() {
        level(&mut counter.value);
    }
}

fn level_device(device: &mut Device) {
    device.all_nodes = device.all_nodes.filter(|b| *b);
    device.allow_multiple_allocations = device.allow_multiple_allocations.filter(|b| *b);
    device.binds_to_node = device.binds_to_node.filter(|b| *b);
    device.attributes = device.attributes.take().filter(|a| !a.is_empty());
    device.capacity = device.capacity.take().filter(|c| !c.is_empty());
    device.consumes_counters = device.consumes_counters.take().filter(|c| !c.is_empty());
    device.taints = device.taints.take().filter(|t| !t.is_empty());
    device.binding_conditions = device.binding_conditions.take().filter(|c| !c.is_empty());
    let failures = device.binding_failure_conditions.take();
    device.binding_failure_conditions = failures.filter(|c| !c.is_empty());
    let mappings = device.node_allocatable_resource_mappings.take();
    device.node_allocatable_resource_mappings = mappings.filter(|m| !m.is_empty());
    for mapping in device
        .node_allocatable_resource_mappings
        .iter_mut()
        .flatten()
    {
        let one = || Quantity("1".to_owned());
        level(mapping.1.allocation_multiplier.get_or_insert_with(one));
    }
    for taint in device.taints.iter_mut().flatten() {
        taint.value = taint.value.take().filter(|v| !v.is_empty());
    }
    for consumption in device.consumes_counters.iter_mut().flatten() {
        for counter in consumption.counters.values_mut() {
            level(&mut counter.value);
        }
    }
    for (_, capacity) in device.capacity.iter_mut().flatten() {
        level(&mut capacity.value);
        let Some(policy) = &mut capacity.request_policy else {
            continue;
        };
        policy.default.iter_mut().for_each(level);
        policy.valid_values.iter_mut().flatten().for_each(level);
        if let Some(range) = &mut policy.valid_range {
            level(&mut range.min);
            range.max.iter_mut().for_each(level);
            range.step.iter_mut().for_each(level);
        }
    }
}

fn level(quantity: &mut Quantity) {
    if let Ok(canonical) = Amount::canonicalize(&quantity.0) {
        quantity.0 = canonical.into_owned();
    }
}

/// When taints were added: what is known of a taint that has not changed, else now.
struct TaintTimes<'a> {
    known: Vec<(&'a str, &'a DeviceTaint)>,
    now: Timestamp,
}

impl<'a> TaintTimes<'a> {
    fn of(existing: &[&'a ResourceSlice], now: Timestamp) -> Self {
        let devices = existing
            .iter()
            .flat_map(|s| s.spec.devices.iter().flatten());
        let known = devices.flat_map(|d| d.taints.iter().flatten().map(|t| (d.name.as_str(), t)));
        let whole = Timestamp::from_second(now.as_second()).unwrap_or(now);
        Self {
            known: known.collect(),
            now: whole,
        }
    }

    fn fill(&self, mut content: Content) -> Content {
        for device in &mut content.devices {
            for taint in device.taints.iter_mut().flatten() {
                if taint.time_added.is_none() {
                    taint.time_added = Some(self.time(&device.name, taint));
                }
            }
        }
        content
    }

    fn time(&self, device: &str, taint: &DeviceTaint) -> Time {
        let value = |t: &DeviceTaint| t.value.clone().unwrap_or_default();
        let same = |t: &DeviceTaint| {
            t.key == taint.key && t.effect == taint.effect && value(t) == value(taint)
        };
        let mut known = self.known.iter().filter(|(d, t)| *d == device && same(t));
        let time = known.find_map(|(_, t)| t.time_added.clone());
        time.unwrap_or(Time(self.now))
    }
}

/// Which of the things that a feature gate turns off are in what was sent and not in what came
/// back, by the names of the gates; a description of the rest.
pub(super) fn dropped(sent: &ResourceSliceSpec, stored: &ResourceSliceSpec) -> Vec<&'static str> {
    let (sent, stored) = (comparable(sent), comparable(stored));
    let mut gates = BTreeSet::new();
    if sent.shared_counters != stored.shared_counters
        || sent.per_device_node_selection != stored.per_device_node_selection
    {
        gates.insert("DRAPartitionableDevices");
    }
    let devices = sent.devices.iter().flatten();
    for (sent, stored) in devices.zip(stored.devices.iter().flatten()) {
        let mut differ = |differ: bool, gate: &'static str| {
            if differ {
                gates.insert(gate);
            }
        };
        differ(sent.taints != stored.taints, "DRADeviceTaints");
        differ(
            sent.consumes_counters != stored.consumes_counters
                || sent.node_name != stored.node_name
                || sent.node_selector != stored.node_selector
                || sent.all_nodes != stored.all_nodes,
            "DRAPartitionableDevices",
        );
        differ(
            sent.binds_to_node != stored.binds_to_node
                || sent.binding_conditions != stored.binding_conditions
                || sent.binding_failure_conditions != stored.binding_failure_conditions,
            "DRADeviceBindingConditions",
        );
        differ(
            sent.allow_multiple_allocations != stored.allow_multiple_allocations
                || sent.capacity != stored.capacity,
            "DRAConsumableCapacity",
        );
        differ(
            sent.attributes != stored.attributes,
            "DRAListTypeAttributes",
        );
        differ(
            sent.node_allocatable_resource_mappings != stored.node_allocatable_resource_mappings,
            "DRANodeAllocatableResources",
        );
    }
    if gates.is_empty() && sent != stored {
        gates.insert("unknown");
    }
    gates.into_iter().collect()
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
