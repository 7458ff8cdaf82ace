//! Where the devices of a pod's claims are, so that its CPUs, memory and other devices can be chosen beside them.
//!
//! A claim's devices were chosen by the scheduler; the node cannot change them. Each claim is one fixed hint to the
//! solver. Which NUMA node a device is on, its ResourceSlice tells.

use super::Error;
use super::claims::{self, Entry};
use super::manager::Manager;
use super::pod;
use super::view;
use davit_topology::claims::{self as topology, Bus, ClaimPlace, Devices, numa_node};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{AllocationResult, Device, ResourceSlice};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// Pause between looks at what is not known yet.
const LOOK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// What the containers of a pod have of its claims, by the names of the containers.
pub(crate) type Places = BTreeMap<String, Vec<ClaimPlace>>;

impl Manager {
    /// Where the claimed devices of a pod are. Waits, for [`super::Options::places_wait`] at most, for what is not known
    /// yet: claims that the scheduler is about to allocate, slices that a driver publishes anew. What stays unknown has
    /// no place.
    pub(crate) async fn places(
        &self,
        pod: &Pod,
        deadline: Instant,
        waiting: &(dyn Fn(&str) + Send + Sync),
    ) -> Places {
        let entries = claims::entries(pod);
        if entries.iter().all(|e| e.guessed) {
            return Places::new();
        }
        let until = deadline.min(Instant::now() + self.options.places_wait);
        let (mut pause, mut said) = (LOOK.0, String::new());
        loop {
            let (places, unknown) = self.look_for_places(pod, &entries).await;
            let Some(unknown) = unknown else {
                return places;
            };
            let now = Instant::now();
            if now >= until {
                tracing::warn!(
                    pod = pod::name(pod),
                    namespace = pod::namespace(pod),
                    unknown,
                    "the claimed devices of the pod are not aligned"
                );
                return places;
            }
            // Most of it is known in a moment.
            if pause == LOOK.1 && unknown != said {
                waiting(&format!(
                    "waiting to align the pod with its resource claims: {unknown}"
                ));
                said = unknown;
            }
            tokio::time::sleep(pause.min(until - now)).await;
            pause = (pause * 2).min(LOOK.1);
        }
    }

    /// What is known now, and a sentence about what is not.
    async fn look_for_places(&self, pod: &Pod, entries: &[Entry]) -> (Places, Option<String>) {
        let mut unknown = None;
        let mut allocations = BTreeMap::new();
        for entry in entries.iter().filter(|e| !e.guessed) {
            match self.allocation(pod, entry).await {
                Ok(Some(allocation)) => {
                    allocations.insert(entry.claim.clone(), allocation);
                }
                Ok(None) => {}
                Err(error) => {
                    unknown.get_or_insert(error);
                }
            }
        }
        if allocations.is_empty() {
            return (Places::new(), unknown);
        }
        let slices = match self.options.api.slices().await {
            Ok(slices) => slices,
            Err(error) => return (Places::new(), unknown.or(Some(error))),
        };
        let (pod, sysfs) = (pod.clone(), self.options.sysfs.clone());
        let nodes = self.nodes();
        let found = tokio::task::spawn_blocking(move || {
            find(&pod, &allocations, &slices, &|device, driver| {
                let node = numa_node(device, driver, &Sysfs(&sysfs))?;
                nodes.contains(node).then_some(node)
            })
        });
        match found.await {
            Ok((places, lacking)) => (places, unknown.or(lacking)),
            Err(error) => (Places::new(), Some(error.to_string())),
        }
    }

    /// NUMA nodes of the machine's PCIe root complexes, for schedulers.
    pub(crate) fn pcie_roots(&self) -> BTreeMap<String, u32> {
        let nodes = self.nodes();
        let entries = std::fs::read_dir(self.options.sysfs.join("devices"));
        let names = entries.into_iter().flatten().flatten();
        let names = names.filter_map(|e| e.file_name().into_string().ok());
        let roots = names.filter_map(|root| {
            let node = by_pcie_root(&self.options.sysfs, &root)?;
            nodes.contains(node).then_some((root, node))
        });
        roots.collect()
    }

    /// The allocation of a claim that the pod may use; `None` when it never will be known here.
    async fn allocation(
        &self,
        pod: &Pod,
        entry: &Entry,
    ) -> Result<Option<AllocationResult>, String> {
        let place = (&*self.options.node_name, self.options.consumers);
        let Some(claim) = self
            .options
            .api
            .claim(pod::namespace(pod), &entry.claim)
            .await?
        else {
            return Ok(None);
        };
        match claims::structured(pod, entry, &claim, place, Timestamp::now().as_millisecond()) {
            Ok(_) => Ok(claim.status.and_then(|s| s.allocation)),
            Err(error @ (Error::NotAllocated(_) | Error::NotReserved { .. })) => {
                Err(error.to_string())
            }
            // The pod will hear of it when the claim is prepared.
            Err(_) => Ok(None),
        }
    }
}

/// The places of all containers, and the first device of this node that no slice describes.
fn find(
    pod: &Pod,
    allocations: &BTreeMap<String, AllocationResult>,
    slices: &[ResourceSlice],
    place: &dyn Fn(&Device, &str) -> Option<u32>,
) -> (Places, Option<String>) {
    let devices = Devices::new(slices.iter().map(|s| &s.spec));
    let mut lacking = None;
    let mut places = Places::new();
    let spec = pod.spec.iter();
    let containers = spec.flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
    for container in containers {
        let mut of_container: BTreeMap<String, ClaimPlace> = BTreeMap::new();
        for used in view::uses(pod, container) {
            let Some(allocation) = allocations.get(&used.claim) else {
                continue;
            };
            let request = used.request.as_deref();
            let (found, missing) =
                topology::place(&used.claim, request, allocation, &devices, place);
            lacking = lacking.or(missing);
            let of_claim = of_container
                .entry(used.claim.clone())
                .or_insert_with(|| ClaimPlace::new(&used.claim));
            of_claim.devices.extend(found.devices);
        }
        of_container.retain(|_, claim| !claim.devices.is_empty());
        if !of_container.is_empty() {
            places.insert(container.name.clone(), of_container.into_values().collect());
        }
    }
    (places, lacking)
}

/// The PCI bus as the kernel shows it.
struct Sysfs<'a>(&'a Path);

impl Bus for Sysfs<'_> {
    fn device(&self, id: &str) -> Option<u32> {
        by_pci_device(self.0, id)
    }

    fn root(&self, id: &str) -> Option<u32> {
        by_pcie_root(self.0, id)
    }
}

fn by_pci_device(sysfs: &Path, id: &str) -> Option<u32> {
    is_plain(id).then(|| read_node(&sysfs.join("bus/pci/devices").join(id)))?
}

/// All devices below one root complex are on one NUMA node; any that says so will do.
fn by_pcie_root(sysfs: &Path, root: &str) -> Option<u32> {
    if !is_plain(root) || !root.starts_with("pci") {
        return None;
    }
    let entries = std::fs::read_dir(sysfs.join("devices").join(root)).ok()?;
    entries.flatten().find_map(|e| read_node(&e.path()))
}

/// Whether a driver's text may be part of a path.
fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == ':' || c == '.')
        && !text.contains("..")
}

/// -1 means that the firmware does not say.
fn read_node(device: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(device.join("numa_node")).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_topology::NumaMask;
    use davit_topology::claims::{PCI_BUS_ID, PCIE_ROOT};
    use serde_json::{Value, json};

    fn device(attributes: &Value) -> Device {
        serde_json::from_value(json!({"name": "d", "attributes": attributes})).unwrap()
    }

    #[test]
    fn a_device_is_where_its_attributes_or_the_bus_say() {
        let dir = tempfile::tempdir().unwrap();
        let write = |device: &str, node: &str| {
            let path = dir.path().join(device);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("numa_node"), node).unwrap();
        };
        write("bus/pci/devices/0000:3b:00.0", "1\n");
        write("bus/pci/devices/0000:3c:00.0", "-1\n");
        write("devices/pci0000:3a/0000:3a:00.0", "3\n");
        let of = |attributes: Value| {
            numa_node(&device(&attributes), "gpu.example.com", &Sysfs(dir.path()))
        };
        assert_eq!(of(json!({"numaNode": {"int": 1}})), Some(1));
        assert_eq!(of(json!({PCI_BUS_ID: {"string": "0000:3b:00.0"}})), Some(1));
        let both =
            json!({PCI_BUS_ID: {"string": "0000:3c:00.0"}, PCIE_ROOT: {"string": "pci0000:3a"}});
        assert_eq!(of(both), Some(3));
        assert_eq!(of(json!({PCI_BUS_ID: {"string": "../../x"}})), None);
    }

    #[test]
    fn each_container_has_the_places_of_the_requests_it_sees() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {
                "resourceClaims": [{"name": "g", "resourceClaimName": "claim"}],
                "containers": [
                    {"name": "all", "resources": {"claims": [{"name": "g"}]}},
                    {"name": "one", "resources": {"claims": [{"name": "g", "request": "r"}]}},
                    {"name": "none"}]}}))
        .unwrap();
        let result = |request: &str, device: &str| json!({"request": request, "driver": "a.dev", "pool": "n", "device": device});
        let allocation = |local: bool| -> AllocationResult {
            let fields = json!({"nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": ["n"]}]}]});
            let mut value = json!({"devices": {"results": [result("r/best", "0"), result("s", "1"), result("s", "2")]}});
            if local {
                value["nodeSelector"] = fields;
            }
            serde_json::from_value(value).unwrap()
        };
        let slice = |generation: i64, names: &[&str]| -> ResourceSlice {
            let devices: Vec<Value> = names.iter().map(|n| json!({"name": n})).collect();
            serde_json::from_value(json!({"metadata": {}, "spec": {"driver": "a.dev", "nodeName": "n",
                "pool": {"name": "n", "generation": generation, "resourceSliceCount": 1}, "devices": devices}}))
            .unwrap()
        };
        let by_name = |d: &Device, _: &str| d.name.parse().ok();
        let claims = |local| BTreeMap::from([("claim".to_owned(), allocation(local))]);
        let old = slice(1, &["0", "1", "2"]);
        let (places, lacking) = find(
            &pod,
            &claims(true),
            &[old.clone(), slice(2, &["0", "1"])],
            &by_name,
        );
        assert_eq!(
            lacking.as_deref(),
            Some("no ResourceSlice of driver a.dev describes device 2")
        );
        let names: Vec<&String> = places.keys().collect();
        assert_eq!(names, ["all", "one"]);
        assert_eq!(places["all"][0].nodes(), NumaMask::from_bits(3));
        assert_eq!(places["one"][0].nodes(), NumaMask::from_bits(1));
        assert_eq!(find(&pod, &claims(true), &[old], &by_name).1, None);
        // Devices of the network: nobody waits for slices that the node cannot see.
        assert_eq!(
            find(&pod, &claims(false), &[], &by_name),
            (Places::new(), None)
        );
    }
}
