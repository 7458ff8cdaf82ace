//! The file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Deserialize;

use crate::drivers::DriverFile;
use crate::player;
use crate::span::Span;

/// Devices of a resource that one file may ask for: far more than any machine has.
const MAX_DEVICES: usize = 100_000;

/// Why a file is no inventory.
#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    /// It cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Its YAML says something else.
    #[error("not an inventory of devices: {0}")]
    Syntax(String),
    /// A resource contradicts itself.
    #[error("resource {resource:?}: {problem}")]
    Resource {
        /// Its name.
        resource: String,
        /// What is wrong.
        problem: String,
    },
    /// A driver contradicts itself.
    #[error("driver {driver:?}: {problem}")]
    Driver {
        /// Its name.
        driver: String,
        /// What is wrong.
        problem: String,
    },
}

/// What a node has.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Inventory {
    /// The resources.
    #[serde(default)]
    pub resources: Vec<Resource>,
    /// Drivers of dynamic resource allocation.
    #[serde(default)]
    pub drivers: Vec<DriverFile>,
}

/// One extended resource and the plugin that serves it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Resource {
    /// Its name, such as `hardware-vendor.example/foo`.
    pub name: String,
    /// How many devices, named by `prefix` and a number from 0.
    #[serde(default)]
    pub count: usize,
    /// What the IDs begin with; the part of the name behind the slash and a dash by default.
    pub prefix: Option<String>,
    /// NUMA nodes over which the `count` devices are spread in equal blocks; none: no topology.
    #[serde(default)]
    pub numa_nodes: Vec<i64>,
    /// Devices one by one: further ones, or what is different about those of `count`.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// How the agent gets to know the plugin.
    #[serde(default)]
    pub route: RouteKind,
    /// Nodes that have it; names with `*` at the end stand for all that begin so. Empty: all.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// Which devices the plugin prefers.
    #[serde(default)]
    pub preferred: Preference,
    /// Whether it wants to be called before each start of a container.
    #[serde(default)]
    pub pre_start: bool,
    /// What containers get.
    #[serde(default)]
    pub gives: Gives,
    /// How long calls take.
    #[serde(default)]
    pub latency: Latency,
    /// What it does wrong, from the start.
    #[serde(default)]
    pub faults: Faults,
    /// What happens in the course of time.
    #[serde(default)]
    pub script: Vec<Step>,
    /// After this time the script begins anew; without it runs once.
    pub repeat: Option<Span>,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Device {
    /// Its ID.
    pub id: String,
    /// NUMA nodes it is local to.
    pub numa_nodes: Option<Vec<i64>>,
    /// Whether it works.
    pub healthy: Option<bool>,
}

/// How the agent gets to know a plugin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RouteKind {
    /// It calls Register on `device-plugins/kubelet.sock`.
    #[default]
    Register,
    /// Its socket lies in `plugins_registry`.
    Registry,
}

/// Which devices a plugin prefers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Preference {
    /// It does not want to be asked.
    #[default]
    None,
    /// Those with the lowest numbers.
    First,
    /// Those with the highest numbers.
    Last,
}

/// What a container gets; `{id}` stands for a device's ID, `{ids}` for all, with commas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Gives {
    /// Environment variables.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Annotations in the runtime.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// Device nodes; once for each device when `{id}` is in one of the paths.
    #[serde(default)]
    pub devices: Vec<Node>,
    /// Files and folders of the host.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// CDI names; once for each device when `{id}` is in them.
    #[serde(default)]
    pub cdi: Vec<String>,
}

/// A device node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Node {
    /// On the host.
    pub host: String,
    /// In the container.
    pub container: String,
    /// Letters of `r`, `w`, `m`.
    #[serde(default = "read_and_write")]
    pub permissions: String,
}

fn read_and_write() -> String {
    "rw".to_owned()
}

/// A file or folder of the host.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Mount {
    /// On the host.
    pub host: String,
    /// In the container.
    pub container: String,
    /// Whether the container cannot change it.
    #[serde(default)]
    pub read_only: bool,
}

/// How long calls take before they are answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Latency {
    /// GetDevicePluginOptions: a slow dial, as the agent sees it.
    pub options: Span,
    /// Allocate.
    pub allocate: Span,
    /// GetPreferredAllocation.
    pub preferred: Span,
    /// PreStartContainer.
    pub pre_start: Span,
}

/// What a plugin does wrong, by call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Faults {
    /// GetDevicePluginOptions.
    pub options: CallFault,
    /// The device lists.
    pub list: ListFault,
    /// Allocate.
    pub allocate: CallFault,
    /// GetPreferredAllocation.
    pub preferred: CallFault,
    /// PreStartContainer.
    pub pre_start: CallFault,
}

/// What a plugin does wrong in a call: `fail`, or `{manner: fail, times: 2, text: no power}`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum CallFault {
    /// Every time.
    Always(Manner),
    /// In more words.
    In(Fault),
}

impl Default for CallFault {
    fn default() -> Self {
        Self::Always(Manner::None)
    }
}

/// A fault in more words.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Fault {
    /// What is wrong.
    pub manner: Manner,
    /// How many calls it concerns; all when not given.
    pub times: Option<u32>,
    /// The text of the error.
    pub text: Option<String>,
}

/// How a call goes wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Manner {
    /// It does not.
    #[default]
    None,
    /// An error is answered.
    Fail,
    /// It is never answered.
    Hang,
    /// The answer is empty.
    Empty,
    /// The answer is wrong: device nodes that are not there, devices that were not offered.
    Lie,
    /// The plugin dies in the middle of the call and is back after a second.
    Crash,
}

/// How device lists go wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ListFault {
    /// They do not.
    #[default]
    None,
    /// Every device twice, the second time unhealthy.
    Duplicates,
    /// A health that the interface does not know.
    OddHealth,
    /// NUMA nodes that no machine has.
    WrongNuma,
    /// No devices.
    Empty,
    /// No topology at all.
    NoTopology,
}

/// Something that happens. Several things may happen in one step.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Step {
    /// When, after the start of the script.
    pub at: Span,
    /// These devices break.
    #[serde(default)]
    pub unhealthy: Vec<String>,
    /// These devices work again.
    #[serde(default)]
    pub healthy: Vec<String>,
    /// These devices vanish from the list.
    #[serde(default)]
    pub remove: Vec<String>,
    /// These devices appear.
    #[serde(default)]
    pub add: Vec<Device>,
    /// From now on calls go wrong like this.
    pub faults: Option<Faults>,
    /// From now on calls take so long.
    pub latency: Option<Latency>,
    /// The plugin is killed, its socket stays behind; after this time it is started again.
    pub crash: Option<Span>,
    /// The plugin ends in good order; after this time it is started again.
    pub stop: Option<Span>,
    /// For this time lists are sent as fast as the agent takes them, with health going to and fro.
    pub flood: Option<Span>,
}

impl Inventory {
    /// Reads and checks an inventory.
    ///
    /// # Errors
    /// It is not YAML of this form, or contradicts itself.
    pub fn parse(text: &str) -> Result<Self, InventoryError> {
        let mut inventory: Self =
            serde_saphyr::from_str(text).map_err(|e| InventoryError::Syntax(e.to_string()))?;
        let mut names = BTreeSet::new();
        for resource in &mut inventory.resources {
            let problem = resource.problem().or_else(|| {
                let new = names.insert((resource.name.clone(), resource.nodes.clone()));
                (!new).then(|| "it is there twice".to_owned())
            });
            if let Some(problem) = problem {
                return Err(InventoryError::Resource {
                    resource: resource.name.clone(),
                    problem,
                });
            }
        }
        let mut names = BTreeSet::new();
        for driver in &inventory.drivers {
            let new = names.insert((driver.name.clone(), driver.nodes.clone()));
            let twice = || (!new).then(|| "it is there twice".to_owned());
            if let Some(problem) = driver.problem().or_else(twice) {
                return Err(InventoryError::Driver {
                    driver: driver.name.clone(),
                    problem,
                });
            }
        }
        Ok(inventory)
    }

    /// Reads and checks the inventory of a file.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), or the file cannot be read.
    pub fn read(path: &std::path::Path) -> Result<Self, InventoryError> {
        let text = std::fs::read_to_string(path).map_err(|source| InventoryError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text)
    }

    /// What this node has of it; everything when there is no talk of nodes.
    #[must_use]
    pub fn for_node(&self, node: Option<&str>) -> Self {
        let has = |r: &&Resource| node.is_none_or(|node| r.is_on(node));
        let runs = |d: &&DriverFile| node.is_none_or(|node| d.is_on(node));
        Self {
            resources: self.resources.iter().filter(has).cloned().collect(),
            drivers: self.drivers.iter().filter(runs).cloned().collect(),
        }
    }
}

impl Resource {
    /// Whether a node has it.
    pub fn is_on(&self, node: &str) -> bool {
        is_on(&self.nodes, node)
    }

    /// The devices as they are at the start, in the order of the file.
    pub fn initial(&self) -> Vec<davit_sdk::deviceplugin::Device> {
        let prefix = self.prefix.clone().unwrap_or_else(|| {
            let name = self.name.rsplit('/').next().unwrap_or_default();
            format!("{name}-")
        });
        let mut all: Vec<_> = (0..self.count)
            .map(|n| davit_sdk::deviceplugin::Device {
                id: format!("{prefix}{n}"),
                healthy: true,
                numa_nodes: self.block(n).into_iter().collect(),
            })
            .collect();
        for device in &self.devices {
            put(&mut all, device);
        }
        all
    }

    /// The NUMA node of the n-th device: equal blocks, as slots of a machine are.
    fn block(&self, n: usize) -> Option<i64> {
        let nodes = self.numa_nodes.len();
        (nodes > 0).then(|| self.numa_nodes[n * nodes / self.count])
    }

    fn problem(&self) -> Option<String> {
        if let Err(problem) = check_name(&self.name) {
            return Some(problem);
        }
        if self.count > MAX_DEVICES || self.devices.len() > MAX_DEVICES {
            return Some(format!("more than {MAX_DEVICES} devices"));
        }
        let all = self.initial();
        if let Some(bad) = all.iter().find(|d| d.id.is_empty() || d.id.len() > 63) {
            return Some(format!(
                "device ID {:?} is not 1 to 63 characters long",
                bad.id
            ));
        }
        let known: BTreeSet<&str> = all
            .iter()
            .map(|d| d.id.as_str())
            .chain(
                self.script
                    .iter()
                    .flat_map(|s| s.add.iter().map(|d| d.id.as_str())),
            )
            .collect();
        let both = |s: &&Step| s.crash.is_some() && s.stop.is_some();
        if let Some(step) = self.script.iter().find(both) {
            return Some(format!("the script at {} has both crash and stop", step.at));
        }
        let steps = self.script.iter().map(|step| {
            let lists = [&step.unhealthy, &step.healthy, &step.remove];
            (step.at, lists.into_iter().flatten())
        });
        player::problem(steps, self.repeat, |name| known.contains(name))
    }
}

/// Whether a node is among patterns with `*` at their end; no patterns are for all nodes.
pub(crate) fn is_on(patterns: &[String], node: &str) -> bool {
    let is = |pattern: &String| match pattern.strip_suffix('*') {
        Some(start) => node.starts_with(start),
        None => node == pattern,
    };
    patterns.is_empty() || patterns.iter().any(is)
}

impl CallFault {
    /// What is wrong, how often, and with which text.
    pub(crate) fn parts(self) -> (Manner, Option<u32>, Option<String>) {
        match self {
            Self::Always(manner) => (manner, None, None),
            Self::In(fault) => (fault.manner, fault.times, fault.text),
        }
    }
}

/// Puts a device into a list, or changes the one of the same ID.
pub(super) fn put(all: &mut Vec<davit_sdk::deviceplugin::Device>, device: &Device) {
    let at = all
        .iter()
        .position(|d| d.id == device.id)
        .unwrap_or_else(|| {
            all.push(davit_sdk::deviceplugin::Device::healthy(&device.id));
            all.len() - 1
        });
    if let Some(nodes) = &device.numa_nodes {
        all[at].numa_nodes.clone_from(nodes);
    }
    if let Some(healthy) = device.healthy {
        all[at].healthy = healthy;
    }
}

/// Whether a name is one of an extended resource.
///
/// # Errors
/// What is wrong with it.
fn check_name(name: &str) -> Result<(), String> {
    davit_containermanager::devices::check_resource_name(name).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
resources:
- name: hardware-vendor.example/foo
  count: 4
  numaNodes: [0, 1]
  devices:
  - id: foo-3
    numaNodes: [0, 1]
    healthy: false
  - id: spare
  latency: {allocate: 200ms}
  faults:
    allocate: {manner: fail, times: 2, text: no power}
    list: oddHealth
  script:
  - at: 10s
    crash: 3s
  - at: 5s
    unhealthy: [foo-1]
    add: [{id: new}]
  repeat: 1m
- name: hardware-vendor.example/bar
  count: 1
  nodes: [sim-1*, edge]
";

    #[test]
    fn a_file_is_read() {
        let inventory = Inventory::parse(FILE).unwrap();
        let foo = &inventory.resources[0];
        let devices = foo.initial();
        let nodes: Vec<&[i64]> = devices.iter().map(|d| d.numa_nodes.as_slice()).collect();
        assert_eq!(nodes, [&[0][..], &[0], &[1], &[0, 1], &[]]);
        assert!(!devices[3].healthy && devices[4].id == "spare");
        assert_eq!(foo.script[1].unhealthy, ["foo-1"]);
        assert_eq!(foo.script[0].crash.unwrap().0.as_secs(), 3);
        let CallFault::In(fault) = &foo.faults.allocate else {
            panic!("in more words")
        };
        assert_eq!((fault.manner, fault.times), (Manner::Fail, Some(2)));
        assert_eq!(inventory.for_node(Some("sim-12")).resources.len(), 2);
        assert_eq!(inventory.for_node(Some("sim-2")).resources.len(), 1);
        assert_eq!(inventory.for_node(None).resources.len(), 2);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |resource: &str| {
            Inventory::parse(&format!("resources: [{resource}]"))
                .unwrap_err()
                .to_string()
        };
        assert!(
            error("{name: cpu}").contains("\"cpu\""),
            "{}",
            error("{name: cpu}")
        );
        assert!(error("{name: a.com/x, cuont: 3}").contains("cuont"));
        let unknown = error("{name: a.com/x, count: 1, script: [{at: 1s, unhealthy: [y]}]}");
        assert!(unknown.contains("unknown device \"y\""), "{unknown}");
        assert!(error("{name: a.com/x}, {name: a.com/x}").contains("twice"));
        assert!(error("{name: a.com/x, latency: {allocate: 5}}").contains("span"));
    }
}
