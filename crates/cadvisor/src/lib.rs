//! cAdvisor's page of metrics (<https://github.com/google/cadvisor/blob/master/docs/storage/prometheus.md>), as the kubelet serves it:
//! whoever knows the containers hands in what they use, and gets the page. What only this page asks for of processes and
//! disks is read here.

mod cpu_rates;
mod disks;
pub mod exposition;
mod page;
mod processes;
mod series;
mod values;

pub use cpu_rates::CpuRates;
pub use disks::DiskActivity;
pub use page::encode;
pub use processes::{Effort, Processes};

use davit_oci::cgroup::{Breakdown, Cgroup, Contended, DeviceTraffic, Pressure};
use davit_oci::runtime::InterfaceTraffic;
use std::collections::BTreeMap;

/// Something with numbers of its own: a container, a pod, its sandbox, the machine.
#[derive(Debug, Clone, Default)]
pub struct CountedGroup {
    /// Path of its cgroup.
    pub id: String,
    /// What the runtime calls it.
    pub name: String,
    /// Its image.
    pub image: String,
    /// Its pod's namespace.
    pub namespace: String,
    /// Its pod's name.
    pub pod: String,
    /// Its name in the pod.
    pub container: String,
    /// When it was looked at, in nanoseconds since the epoch.
    pub time: i64,
    /// When it was made, in nanoseconds since the epoch.
    pub started: Option<i64>,
    /// Core-nanoseconds.
    pub cpu: Option<u64>,
    /// Memory.
    pub memory: Option<MemoryInUse>,
    /// What its use consists of.
    pub parts: Breakdown,
    /// What it has on a disk.
    pub disk: Option<Disk>,
    /// By the names of devices.
    pub disk_traffic: Vec<(String, DeviceTraffic)>,
    /// The disks themselves, where it is the machine.
    pub disks: Vec<DiskActivity>,
    /// What it waits for.
    pub pressure: Pressures,
    /// Its processes.
    pub processes: Option<Processes>,
    /// Processes and threads.
    pub tasks: Option<u64>,
    /// How many of its processes were killed for want of memory.
    pub oom_kills: Option<u64>,
    /// What it is limited to.
    pub spec: Option<Spec>,
    /// What went over its network.
    pub interfaces: Vec<InterfaceTraffic>,
}

/// What it waits for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pressures {
    /// Processors.
    pub cpu: Option<Pressure>,
    /// Memory.
    pub memory: Option<Pressure>,
    /// Disks.
    pub io: Option<Pressure>,
}

impl Pressures {
    /// Of a cgroup.
    #[must_use]
    pub fn of(group: &Cgroup) -> Self {
        Self {
            cpu: group.pressure(Contended::Cpu),
            memory: group.pressure(Contended::Memory),
            io: group.pressure(Contended::Io),
        }
    }

    /// Of the whole machine.
    #[must_use]
    pub fn of_machine() -> Self {
        Self {
            cpu: Pressure::of_machine(Contended::Cpu),
            memory: Pressure::of_machine(Contended::Memory),
            io: Pressure::of_machine(Contended::Io),
        }
    }
}

/// Bytes, and faults.
#[derive(Debug, Clone, Copy)]
pub struct MemoryInUse {
    /// With page cache.
    pub usage: u64,
    /// Without page cache that was not used lately.
    pub working_set: u64,
    /// What is no file's.
    pub rss: Option<u64>,
    /// Page faults, major ones among them.
    pub faults: Option<u64>,
    /// Those that waited for a disk.
    pub major_faults: Option<u64>,
}

/// What a container is limited to; 0 is no limit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spec {
    /// CPU shares, as of cgroups v1.
    pub shares: i64,
    /// Microseconds in a period.
    pub quota: i64,
    /// The period in microseconds.
    pub period: i64,
    /// Bytes.
    pub memory: i64,
}

/// What is on a disk; limits are those of its file system.
#[derive(Debug, Clone, Copy)]
pub struct Disk {
    /// Bytes.
    pub used: u64,
    /// Bytes.
    pub limit: Option<u64>,
    /// Files of the file system.
    pub inodes: Option<u64>,
    /// Files that can still be made there.
    pub inodes_free: Option<u64>,
}

/// The machine itself.
#[derive(Debug, Default)]
pub struct Host {
    /// In the order of the format: boot, machine, system.
    pub ids: [String; 3],
    /// Logical processors.
    pub cores: u64,
    /// Of which several may be one core.
    pub physical_cores: Option<u64>,
    /// Sockets with processors in them.
    pub sockets: Option<u64>,
    /// Bytes.
    pub memory: u64,
    /// Bytes.
    pub swap: u64,
    /// The kernel's version.
    pub kernel: String,
    /// The system's name.
    pub os: String,
}

/// The labels that every series has, in the order of their names.
fn labels(subject: &CountedGroup) -> BTreeMap<&'static str, &str> {
    BTreeMap::from([
        ("container", subject.container.as_str()),
        ("id", &subject.id),
        ("image", &subject.image),
        ("name", &subject.name),
        ("namespace", &subject.namespace),
        ("pod", &subject.pod),
    ])
}
