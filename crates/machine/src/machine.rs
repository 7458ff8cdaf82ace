//! What the machine has: processors, memory, disk, identity.

mod sysfs;

pub use sysfs::read as read_hardware;

use davit_pods::resources::{Amounts, Quantities, amount, hugepage_resource, quantity};
use davit_topology::Hardware;
use davit_topology::hardware::CpuGroup;
use k8s_openapi::api::core::v1::{NodeSwapStatus, NodeSystemInfo};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeSet;
use std::path::Path;

/// Facts about the machine, read once at start.
#[derive(Debug, Clone)]
pub struct MachineFacts {
    /// Processors this process may use.
    pub cpus: usize,
    /// Physical cores; none where that is not known.
    pub cores: usize,
    /// Sockets; none where that is not known.
    pub sockets: usize,
    /// Memory in bytes.
    pub memory: i64,
    /// Size of the file system that holds the node's directory, in bytes.
    pub disk: i64,
    /// Huge pages: (page size in bytes, bytes reserved).
    pub hugepages: Vec<(u64, u64)>,
    /// What may be swapped out, in bytes.
    pub swap: i64,
    /// Whether there is anything to swap to.
    pub swaps: bool,
    /// Whether cgroups count what is swapped.
    pub counts_swap: bool,
    /// Whether cgroups are mounted as a single v2 tree.
    pub unified_cgroup: bool,
    /// What is kept for the system and the agent, by resource name; not allocatable.
    pub reserved: Amounts,
    /// `status.nodeInfo` without the runtime's version.
    pub info: NodeSystemInfo,
}

/// Version the node reports, the API level it follows.
pub const VERSION: &str = "v1.36.0+davit";

const CGROUP2_MAGIC: u64 = 0x6367_7270;

impl MachineFacts {
    /// The CPUs in thousandths.
    pub fn milli_cpus(&self) -> i64 {
        i64::try_from(self.cpus).unwrap_or(i64::MAX / 1000) * 1000
    }

    /// Reads the machine; `root` is the node's directory, whose file system is reported as ephemeral storage.
    pub fn discover(root: &Path) -> Self {
        let read = |path: &str| {
            std::fs::read_to_string(path)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        let disk = rustix::fs::statvfs(root).map_or(0, |s| {
            i64::try_from(s.f_blocks * s.f_frsize).unwrap_or(i64::MAX)
        });
        let unified = rustix::fs::statfs("/sys/fs/cgroup")
            .is_ok_and(|s| u64::try_from(s.f_type).is_ok_and(|t| t == CGROUP2_MAGIC));
        let swap = memory(&read("/proc/meminfo"), "SwapTotal:");
        let machine_id = [read("/etc/machine-id"), read("/var/lib/dbus/machine-id")]
            .into_iter()
            .find(|s| !s.is_empty());
        let boot_id = read("/proc/sys/kernel/random/boot_id");
        let uuid = read("/sys/class/dmi/id/product_uuid").to_lowercase();
        let machine_id = machine_id.unwrap_or_else(|| uuid.replace('-', ""));
        Self {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cores: 0,
            sockets: 0,
            memory: memory(&read("/proc/meminfo"), "MemTotal:"),
            swap,
            // below a line of titles
            swaps: read("/proc/swaps").lines().count() > 1,
            counts_swap: counts_swap(unified, &read("/proc/self/cgroup")),
            disk,
            hugepages: hugepages(Path::new("/sys/kernel/mm/hugepages")),
            unified_cgroup: unified,
            reserved: Amounts::new(),
            info: NodeSystemInfo {
                architecture: davit_api::architecture().to_owned(),
                boot_id,
                kernel_version: read("/proc/sys/kernel/osrelease"),
                kubelet_version: VERSION.to_owned(),
                kube_proxy_version: String::new(),
                operating_system: "linux".to_owned(),
                os_image: os_name(&read("/etc/os-release")),
                system_uuid: if uuid.is_empty() {
                    machine_id.clone()
                } else {
                    uuid
                },
                machine_id,
                swap: (swap != 0).then_some(NodeSwapStatus {
                    capacity: Some(swap),
                }),
                ..NodeSystemInfo::default()
            },
        }
    }

    /// Enters what the CPUs are made of.
    pub fn count(&mut self, hardware: &Hardware) {
        let cores = |group: &CpuGroup| group.cpus.len().div_ceil(group.threads.max(1) as usize);
        self.cores = hardware.cpus.iter().map(cores).sum();
        let sockets: BTreeSet<u32> = hardware.cpus.iter().map(|group| group.socket).collect();
        self.sockets = sockets.len();
    }

    /// Shows another machine than the one at hand: its CPUs, memory and huge pages.
    pub fn describe(&mut self, hardware: &Hardware) {
        self.cpus = hardware.all_cpus().len();
        self.memory = i64::try_from(hardware.memory()).unwrap_or(i64::MAX);
        self.hugepages = hardware.hugepages().into_iter().collect();
    }

    /// Sizes of huge pages in bytes.
    pub fn hugepage_sizes(&self) -> Vec<u64> {
        self.hugepages.iter().map(|(size, _)| *size).collect()
    }

    /// Capacity of the node without devices.
    pub fn capacity(&self, max_pods: u32) -> Quantities {
        let mut out = Quantities::from([
            ("cpu".to_owned(), Quantity(self.cpus.to_string())),
            (
                "memory".to_owned(),
                Quantity(format!("{}Ki", self.memory / 1024)),
            ),
            (
                "ephemeral-storage".to_owned(),
                Quantity(format!("{}Ki", self.disk / 1024)),
            ),
            ("pods".to_owned(), Quantity(max_pods.to_string())),
        ]);
        for (size, bytes) in &self.hugepages {
            out.insert(
                hugepage_resource(*size),
                Quantity(if *bytes == 0 {
                    "0".to_owned()
                } else {
                    format!("{}Ki", bytes / 1024)
                }),
            );
        }
        out
    }

    /// Allocatable of the node without devices: huge pages are taken off the memory, a tenth of the disk is kept back.
    pub fn allocatable(&self, max_pods: u32) -> Quantities {
        let mut out = self.capacity(max_pods);
        let huge: i64 = self
            .hugepages
            .iter()
            .map(|(_, bytes)| i64::try_from(*bytes).unwrap_or(i64::MAX))
            .sum();
        out.insert(
            "memory".to_owned(),
            Quantity(format!("{}Ki", (self.memory - huge).max(0) / 1024)),
        );
        out.insert(
            "ephemeral-storage".to_owned(),
            Quantity((self.disk / 10 * 9).to_string()),
        );
        for (name, kept) in &self.reserved {
            if let Some(all) = out.get_mut(name) {
                let left = (amount(name, all) - kept).max(0);
                *all = if name == "memory" {
                    Quantity(format!("{}Ki", left / 1024))
                } else {
                    quantity(name, left)
                };
            }
        }
        out
    }
}

/// Whether the kernel has a limit of swap. The root of the v2 tree itself has none, groups below it do.
fn counts_swap(unified: bool, own: &str) -> bool {
    let root = Path::new("/sys/fs/cgroup");
    if !unified {
        return root.join("memory/memory.memsw.limit_in_bytes").exists();
    }
    const FILE: &str = "memory.swap.max";
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    if own.is_some_and(|own| !own.is_empty()) {
        return root.join(own.unwrap_or_default()).join(FILE).exists();
    }
    let below = std::fs::read_dir(root).into_iter().flatten().flatten();
    below
        .into_iter()
        .any(|group| group.path().join(FILE).exists())
}

/// A number of `/proc/meminfo` in bytes.
fn memory(meminfo: &str, name: &str) -> i64 {
    let line = meminfo.lines().find_map(|l| l.strip_prefix(name));
    let kib: i64 = line
        .and_then(|l| l.split_whitespace().next())
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    kib * 1024
}

fn os_name(os_release: &str) -> String {
    let line = os_release
        .lines()
        .find_map(|l| l.strip_prefix("PRETTY_NAME="));
    line.map_or_else(|| "Linux".to_owned(), |l| l.trim_matches('"').to_owned())
}

fn hugepages(dir: &Path) -> Vec<(u64, u64)> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut out: Vec<(u64, u64)> = entries
        .flatten()
        .filter_map(|e| {
            let name = e.file_name().to_string_lossy().into_owned();
            let kib: u64 = name
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?
                .parse()
                .ok()?;
            let count: u64 = std::fs::read_to_string(e.path().join("nr_hugepages"))
                .ok()?
                .trim()
                .parse()
                .ok()?;
            Some((kib * 1024, kib * 1024 * count))
        })
        .collect();
    out.sort_unstable();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_something() {
        let machine = MachineFacts::discover(Path::new("/"));
        assert!(machine.cpus > 0 && machine.memory > 0 && machine.disk > 0);
        let capacity = machine.capacity(110);
        assert_eq!(capacity["pods"].0, "110");
        assert!(capacity["memory"].0.ends_with("Ki"));
    }

    #[test]
    fn another_machine_can_be_described_and_parts_kept_back() {
        let mut machine = MachineFacts::discover(Path::new("/"));
        let described = Hardware::grid(2, 1, 4, 2, 8 << 30);
        machine.count(&described);
        assert_eq!((machine.sockets, machine.cores), (2, 8));
        machine.describe(&described);
        machine.reserved =
            Amounts::from([("cpu".to_owned(), 1500), ("memory".to_owned(), 1 << 30)]);
        assert_eq!(machine.capacity(110)["cpu"].0, "16");
        let allocatable = machine.allocatable(110);
        assert_eq!(allocatable["cpu"].0, "14500m");
        assert_eq!(allocatable["memory"].0, format!("{}Ki", 15 << 20));
    }

    #[test]
    fn parses_files() {
        let info = "MemTotal:       1024 kB\nMemFree: 1 kB\nSwapTotal: 2 kB\n";
        assert_eq!(memory(info, "MemTotal:"), 1 << 20);
        assert_eq!(memory(info, "SwapTotal:"), 2048);
        assert_eq!(os_name("NAME=x\nPRETTY_NAME=\"Debian 12\"\n"), "Debian 12");
    }
}
