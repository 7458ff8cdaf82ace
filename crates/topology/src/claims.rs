//! Where the devices of a pod's resource claims are: the same rules for the node, which has to align CPUs and memory
//! with them, and for the scheduler, which asks beforehand whether the node can.
//!
//! A claim's devices are chosen for it and stay where they are: each claim is one fixed hint. Which NUMA node a device
//! is on, its ResourceSlice tells.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    AllocationResult, Device, DeviceAttribute, DeviceRequestAllocationResult, ResourceSliceSpec,
};

use crate::numa::NumaMask;

/// Attribute that says it outright (proposed in KEP-6072).
pub const NUMA_NODE: &str = "resource.kubernetes.io/numaNode";
/// Names under which drivers say it in domains of their own.
const NUMA_NAMES: [&str; 2] = ["numaNode", "numaNodeID"];
/// Attribute with the place of a device on the PCI bus.
pub const PCI_BUS_ID: &str = "resource.kubernetes.io/pciBusID";
/// Attribute with the root complex of a device, `pci<domain>:<bus>`.
pub const PCIE_ROOT: &str = "resource.kubernetes.io/pcieRoot";

/// Devices of one resource claim that a container uses. Others have chosen them, and they stay where they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimPlace {
    /// Name of the claim.
    pub claim: String,
    /// NUMA nodes of the devices, by `driver/pool/device`.
    pub devices: BTreeMap<String, NumaMask>,
}

impl ClaimPlace {
    /// A claim without devices.
    pub fn new(claim: &str) -> Self {
        Self {
            claim: claim.to_owned(),
            devices: BTreeMap::new(),
        }
    }

    /// All NUMA nodes it has devices on.
    pub fn nodes(&self) -> NumaMask {
        let bits = self.devices.values().fold(0, |all, mask| all | mask.bits());
        NumaMask::from_bits(bits)
    }
}

/// What the machine knows of its PCI bus.
pub trait Bus {
    /// The NUMA node of the device at `<domain>:<bus>:<device>.<function>`.
    fn device(&self, id: &str) -> Option<u32>;
    /// The NUMA node of the root complex `pci<domain>:<bus>`.
    fn root(&self, id: &str) -> Option<u32>;
}

/// NUMA nodes by root complex, `pci<domain>:<bus>`. A device belongs to the root whose bus number is the last before
/// its own: the buses of one root are consecutive.
impl Bus for BTreeMap<String, u32> {
    fn device(&self, id: &str) -> Option<u32> {
        let (domain, rest) = id.split_once(':')?;
        let number = |bus: &str| u8::from_str_radix(bus, 16).ok();
        let bus = number(rest.split_once(':')?.0)?;
        let roots = self.iter().filter_map(|(root, node)| {
            let (of, first) = root.strip_prefix("pci")?.split_once(':')?;
            let first = number(first).filter(|first| of == domain && *first <= bus)?;
            Some((first, *node))
        });
        roots.max().map(|(_, node)| node)
    }

    fn root(&self, id: &str) -> Option<u32> {
        self.get(id).copied()
    }
}

/// The NUMA node of a device: by an attribute that says it, or by its place on the PCI bus.
pub fn numa_node(device: &Device, driver: &str, bus: &dyn Bus) -> Option<u32> {
    let attributes = device.attributes.as_ref()?;
    let number = |a: &DeviceAttribute| a.int.and_then(|n| u32::try_from(n).ok());
    if let Some(attribute) = attributes.get(NUMA_NODE) {
        return number(attribute);
    }
    let own = |name: &&str| {
        let qualified = attributes.get(&format!("{driver}/{name}"));
        attributes.get(*name).or(qualified)
    };
    let others = attributes.iter().filter(|(id, _)| {
        let name = id.rsplit('/').next().unwrap_or_default();
        NUMA_NAMES.contains(&name)
    });
    let told = NUMA_NAMES.iter().filter_map(own);
    if let Some(node) = told.chain(others.map(|(_, a)| a)).find_map(number) {
        return Some(node);
    }
    let text = |id: &str| attributes.get(id)?.string.as_deref();
    let by_bus = text(PCI_BUS_ID).and_then(|id| bus.device(id));
    by_bus.or_else(|| bus.root(text(PCIE_ROOT)?))
}

/// The devices in the slices of one node, those of each pool's newest generation.
#[derive(Debug)]
pub struct Devices<'a>(BTreeMap<(&'a str, &'a str, &'a str), &'a Device>);

impl<'a> Devices<'a> {
    /// Those of these slices.
    pub fn new(slices: impl IntoIterator<Item = &'a ResourceSliceSpec>) -> Self {
        let specs: Vec<&ResourceSliceSpec> = slices.into_iter().collect();
        let mut generations: BTreeMap<(&str, &str), i64> = BTreeMap::new();
        for spec in &specs {
            let newest = generations
                .entry((&spec.driver, &spec.pool.name))
                .or_insert(spec.pool.generation);
            *newest = spec.pool.generation.max(*newest);
        }
        let current = specs
            .into_iter()
            .filter(|s| generations.get(&(&*s.driver, &*s.pool.name)) == Some(&s.pool.generation));
        let devices = current.flat_map(|s| {
            let devices = s.devices.iter().flatten();
            devices.map(move |d| ((&*s.driver, &*s.pool.name, &*d.name), d))
        });
        Self(devices.collect())
    }
}

/// The place of what a container has of a claim, all requests or one; and the first device of this node that no slice
/// describes. `place` says where a device is, `None` for what is near everywhere.
pub fn place(
    claim: &str,
    request: Option<&str>,
    allocation: &AllocationResult,
    devices: &Devices<'_>,
    place: &dyn Fn(&Device, &str) -> Option<u32>,
) -> (ClaimPlace, Option<String>) {
    let mut found = ClaimPlace::new(claim);
    let mut lacking = None;
    for result in results(allocation, request) {
        let key = (&*result.driver, &*result.pool, &*result.device);
        let device = devices.0.get(&key);
        if device.is_none() && is_local(allocation) {
            lacking.get_or_insert_with(|| {
                format!(
                    "no ResourceSlice of driver {} describes device {}",
                    result.driver, result.device
                )
            });
        }
        let node = device.and_then(|d| place(d, &result.driver));
        if let Some(mask) = node.and_then(|n| NumaMask::single(n).ok()) {
            let name = format!("{}/{}/{}", result.driver, result.pool, result.device);
            found.devices.insert(name, mask);
        }
    }
    (found, lacking)
}

/// The devices that a container gets of a claim. Those it may only look at count as well: they are as near or far.
fn results<'a>(
    allocation: &'a AllocationResult,
    request: Option<&'a str>,
) -> impl Iterator<Item = &'a DeviceRequestAllocationResult> {
    let results = allocation.devices.iter().flat_map(|d| &d.results).flatten();
    results.filter(move |r| match request {
        None => true,
        Some(request) => r.request == request || r.request.split('/').next() == Some(request),
    })
}

/// Whether the devices are one node's own: only then that node sees their slices.
fn is_local(allocation: &AllocationResult) -> bool {
    let terms = allocation
        .node_selector
        .iter()
        .flat_map(|s| &s.node_selector_terms);
    let mut fields = terms.flat_map(|t| t.match_fields.iter().flatten());
    fields.any(|f| f.key == "metadata.name")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_device_is_where_its_attributes_or_the_bus_say() {
        let roots = [("pci0000:00", 0), ("pci0000:3a", 1), ("pci0001:20", 2)];
        let roots: BTreeMap<String, u32> = roots.map(|(r, n)| (r.to_owned(), n)).into();
        let of = |attributes: Value| {
            let device = json!({"name": "d", "attributes": attributes});
            let device: Device = serde_json::from_value(device).unwrap();
            numa_node(&device, "gpu.example.com", &roots)
        };
        let standard = json!({NUMA_NODE: {"int": 2}, "numaNode": {"int": 1}});
        assert_eq!(of(standard), Some(2));
        assert_eq!(of(json!({"numaNode": {"int": 1}})), Some(1));
        let own = json!({"gpu.example.com/numaNode": {"int": 1}, "a.dev/numaNode": {"int": 0}});
        assert_eq!(of(own), Some(1));
        assert_eq!(of(json!({"dra.net/numaNode": {"int": 0}})), Some(0));
        assert_eq!(of(json!({"dra.cpu/numaNodeID": {"int": 3}})), Some(3));
        assert_eq!(of(json!({NUMA_NODE: {"int": -1}})), None);
        let bus = |id: &str| of(json!({PCI_BUS_ID: {"string": id}}));
        assert_eq!(bus("0000:3a:00.0"), Some(1));
        assert_eq!(bus("0000:ff:1f.7"), Some(1));
        assert_eq!(bus("0000:39:00.0"), Some(0));
        assert_eq!(bus("0001:21:00.0"), Some(2));
        assert_eq!(bus("0001:1f:00.0"), None);
        assert_eq!(bus("../../x"), None);
        assert_eq!(of(json!({PCIE_ROOT: {"string": "pci0000:3a"}})), Some(1));
        assert_eq!(of(json!({PCIE_ROOT: {"string": "pci0000:3b"}})), None);
        assert_eq!(of(json!({"model": {"string": "x"}})), None);
    }

    #[test]
    fn a_container_has_the_places_of_the_requests_it_sees() {
        let result = |request: &str, device: &str| json!({"request": request, "driver": "a.dev", "pool": "n", "device": device});
        let allocation = |local: bool| -> AllocationResult {
            let fields = json!({"nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": ["n"]}]}]});
            let results = [result("r/best", "0"), result("s", "1"), result("s", "2")];
            let mut value = json!({"devices": {"results": results}});
            if local {
                value["nodeSelector"] = fields;
            }
            serde_json::from_value(value).unwrap()
        };
        let slice = |generation: i64, names: &[&str]| -> ResourceSliceSpec {
            let devices: Vec<Value> = names.iter().map(|n| json!({"name": n})).collect();
            serde_json::from_value(json!({"driver": "a.dev", "nodeName": "n",
                "pool": {"name": "n", "generation": generation, "resourceSliceCount": 1}, "devices": devices}))
            .unwrap()
        };
        let by_name = |d: &Device, _: &str| d.name.parse().ok();
        let find = |slices: &[ResourceSliceSpec], request: Option<&str>, local| {
            place(
                "c",
                request,
                &allocation(local),
                &Devices::new(slices),
                &by_name,
            )
        };
        let old = slice(1, &["0", "1", "2"]);
        let both = [old.clone(), slice(2, &["0", "1"])];
        let (all, lacking) = find(&both, None, true);
        assert_eq!(
            lacking.as_deref(),
            Some("no ResourceSlice of driver a.dev describes device 2")
        );
        assert_eq!(all.nodes(), NumaMask::from_bits(3));
        let (one, _) = find(&both, Some("r"), true);
        assert_eq!(one.nodes(), NumaMask::from_bits(1));
        assert_eq!(find(&[old], None, true).1, None);
        // Devices of the network: nobody waits for slices that the node cannot see.
        assert_eq!(find(&[], None, false), (ClaimPlace::new("c"), None));
    }
}
