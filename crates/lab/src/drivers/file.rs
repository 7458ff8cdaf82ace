//! What the inventory says of a driver.

use std::collections::{BTreeMap, BTreeSet};

use davit_sdk::dra::{CounterSet, Device, DeviceExt as _, counters, device};
use k8s_openapi::api::resource::v1::NodeAllocatableResourceMapping;
use serde::Deserialize;
use serde_json::Value;

use crate::devices::CallFault;
use crate::player;
use crate::span::Span;

/// Devices of a driver that one file may ask for.
const MAX_DEVICES: usize = 10_000;

/// A driver.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DriverFile {
    /// Its name, a DNS subdomain.
    pub name: String,
    /// Name of its pool; the node's name by default.
    pub pool: Option<String>,
    /// Its devices.
    pub devices: Vec<DeviceGroup>,
    /// What devices share: counters by the name of their set.
    #[serde(default)]
    pub counters: BTreeMap<String, BTreeMap<String, String>>,
    /// Nodes that have it; names with `*` at the end stand for all that begin so. Empty: all.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// How long calls take.
    #[serde(default)]
    pub latency: DriverLatency,
    /// What it does wrong, from the start.
    #[serde(default)]
    pub faults: DriverFaults,
    /// What happens in the course of time.
    #[serde(default)]
    pub script: Vec<DriverStep>,
    /// After this time the script begins anew; without it runs once.
    pub repeat: Option<Span>,
}

/// Devices that are alike.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DeviceGroup {
    /// Name; `{n}` stands for a number from 0.
    pub name: String,
    /// How many.
    #[serde(default = "one")]
    pub count: usize,
    /// Attributes: texts (with `{n}`), whole numbers, yes or no. `"{n}"` alone is a number.
    #[serde(default)]
    pub attributes: BTreeMap<String, Value>,
    /// Capacities as quantities.
    #[serde(default)]
    pub capacity: BTreeMap<String, String>,
    /// What a device takes of the resources of its node, by their names, as in a ResourceSlice (KEP-5517).
    #[serde(default)]
    pub node_allocatable_resource_mappings: BTreeMap<String, NodeAllocatableResourceMapping>,
    /// Counters that a device takes while it is allocated, by the name of their set (with `{n}`).
    #[serde(default)]
    pub consumes: BTreeMap<String, BTreeMap<String, String>>,
    /// Whether several claims may have it at once.
    #[serde(default)]
    pub shareable: bool,
    /// Whether it is there from the start; a script can add it later.
    #[serde(default = "yes")]
    pub present: bool,
}

fn one() -> usize {
    1
}

fn yes() -> bool {
    true
}

/// How long calls take before they are answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct DriverLatency {
    /// NodePrepareResources, each claim.
    pub prepare: Span,
    /// NodeUnprepareResources, each claim.
    pub unprepare: Span,
}

/// What a driver does wrong, by call. `empty` prepares no devices, `lie` names a CDI device that
/// does not exist; a fault that concerns `times: 1` claim leaves a pod with several claims half
/// prepared.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct DriverFaults {
    /// NodePrepareResources.
    pub prepare: CallFault,
    /// NodeUnprepareResources.
    pub unprepare: CallFault,
}

/// A taint.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Taint {
    /// Devices that get it.
    pub devices: Vec<String>,
    /// Its key.
    pub key: String,
    /// Its value.
    #[serde(default)]
    pub value: String,
    /// `NoSchedule`, `NoExecute` or `None`.
    pub effect: String,
}

/// Something that happens.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DriverStep {
    /// When, after the start of the script.
    pub at: Span,
    /// These devices break: told by the health service.
    #[serde(default)]
    pub unhealthy: Vec<String>,
    /// These devices work again.
    #[serde(default)]
    pub healthy: Vec<String>,
    /// These devices are not published any more.
    #[serde(default)]
    pub remove: Vec<String>,
    /// These devices are published.
    #[serde(default)]
    pub add: Vec<String>,
    /// Taints from now on, in the place of those before.
    pub taints: Option<Vec<Taint>>,
    /// From now on calls go wrong like this.
    pub faults: Option<DriverFaults>,
    /// From now on calls take so long.
    pub latency: Option<DriverLatency>,
    /// The node plugin is lost in the middle of whatever it does; it is back after this time.
    pub crash: Option<Span>,
    /// The node plugin ends in good order; it is back after this time.
    pub stop: Option<Span>,
    /// For this time slices are changed as fast as the API server takes them.
    pub storm: Option<Span>,
}

/// A device and whether it is published from the start.
pub(super) struct Described {
    pub(super) device: Device,
    pub(super) present: bool,
}

impl DriverFile {
    /// Whether a node has it.
    pub fn is_on(&self, node: &str) -> bool {
        crate::devices::is_on(&self.nodes, node)
    }

    pub(super) fn counter_sets(&self) -> Vec<CounterSet> {
        let set = |(name, amounts): (&String, &BTreeMap<String, String>)| {
            counters(name, amounts.iter().map(|(k, v)| (k.as_str(), v.as_str())))
        };
        self.counters.iter().map(set).collect()
    }

    /// All devices, in the order of the file.
    pub(super) fn described(&self) -> Vec<Described> {
        self.devices
            .iter()
            .flat_map(DeviceGroup::described)
            .collect()
    }

    pub(crate) fn problem(&self) -> Option<String> {
        let count: usize = self.devices.iter().map(|d| d.count).sum();
        if count > MAX_DEVICES {
            return Some(format!("more than {MAX_DEVICES} devices"));
        }
        let described = self.described();
        let mut names = BTreeSet::new();
        for device in &described {
            if !names.insert(device.device.name.as_str()) {
                return Some(format!("device {:?} is there twice", device.device.name));
            }
        }
        let odd = self.devices.iter().flat_map(|d| &d.attributes);
        let mut odd =
            odd.filter(|(_, value)| !(value.is_string() || value.is_i64() || value.is_boolean()));
        if let Some((name, value)) = odd.next() {
            return Some(format!(
                "attribute {name}: {value} is no text, whole number, true or false"
            ));
        }
        let steps = self.script.iter().map(|step| {
            let lists = [&step.unhealthy, &step.healthy, &step.remove, &step.add];
            let tainted = step.taints.iter().flatten().flat_map(|t| &t.devices);
            (step.at, lists.into_iter().flatten().chain(tainted))
        });
        player::problem(steps, self.repeat, |name| names.contains(name))
    }
}

impl DeviceGroup {
    fn described(&self) -> impl Iterator<Item = Described> {
        (0..self.count).map(|n| Described {
            device: self.device(n),
            present: self.present,
        })
    }

    fn device(&self, n: usize) -> Device {
        let fill = |text: &str| text.replace("{n}", &n.to_string());
        let mut made = device(fill(&self.name));
        for (name, value) in &self.attributes {
            made = match value {
                Value::String(text) if text == "{n}" => {
                    made.int(name, i64::try_from(n).unwrap_or(i64::MAX))
                }
                Value::String(text) => made.text(name, fill(text)),
                Value::Bool(flag) => made.flag(name, *flag),
                other => made.int(name, other.as_i64().unwrap_or_default()),
            };
        }
        for (name, amount) in &self.capacity {
            made = made.capacity(name, amount);
        }
        if !self.node_allocatable_resource_mappings.is_empty() {
            made.node_allocatable_resource_mappings =
                Some(self.node_allocatable_resource_mappings.clone());
        }
        for (set, amounts) in &self.consumes {
            made = made.consumes(
                &fill(set),
                amounts.iter().map(|(k, v)| (k.as_str(), v.as_str())),
            );
        }
        if self.shareable {
            made.shareable()
        } else {
            made
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::devices::Inventory;

    #[test]
    fn a_driver_is_read() {
        let inventory = Inventory::parse(
            "
drivers:
- name: gpu.vendor.example
  counters: {card-0: {slices: '7'}}
  devices:
  - {name: 'gpu-{n}', count: 2, attributes: {model: A100, index: '{n}', fast: true, numaNode: 1}, capacity: {memory: 40Gi},
     nodeAllocatableResourceMappings: {cpu: {allocationMultiplier: '2'}, memory: {capacityKey: memory}}}
  - {name: 'part-{n}', count: 7, consumes: {card-0: {slices: '1'}}, present: false}
  script: [{at: 1s, add: [part-0], unhealthy: [gpu-1], taints: [{devices: [gpu-0], key: a.b/c, effect: NoSchedule}]}]
",
        )
        .unwrap();
        let devices = inventory.drivers[0].described();
        assert_eq!(devices.len(), 9);
        let attributes = devices[1].device.attributes.as_ref().unwrap();
        assert_eq!(attributes["index"].int, Some(1));
        assert_eq!(attributes["model"].string.as_deref(), Some("A100"));
        assert_eq!(attributes["fast"].bool, Some(true));
        assert!(devices[1].present && !devices[2].present);
        let mappings = devices[1]
            .device
            .node_allocatable_resource_mappings
            .as_ref()
            .unwrap();
        assert_eq!(
            mappings["cpu"].allocation_multiplier.as_ref().unwrap().0,
            "2"
        );
        assert_eq!(mappings["memory"].capacity_key.as_deref(), Some("memory"));
        let error = |text: &str| Inventory::parse(text).unwrap_err().to_string();
        assert!(error("drivers: [{name: a.b, devices: [{name: x, count: 2}]}]").contains("twice"));
        assert!(
            error("drivers: [{name: a.b, devices: [{name: x, attributes: {y: 1.5}}]}]")
                .contains("1.5")
        );
        assert!(
            error("drivers: [{name: a.b, devices: [], script: [{at: 1s, add: [z]}]}]")
                .contains("\"z\"")
        );
    }
}
