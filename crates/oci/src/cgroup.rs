//! Control groups on unified (v2), hybrid and legacy (v1) machines.
//!
//! A [`Cgroup`] is one path (`/kubepods/pod<uid>/<id>`) that exists in every hierarchy we use. On a hybrid machine that
//! includes the v2 tree: it carries hugetlb limits, pressure figures and `cgroup.kill` there.

mod breakdown;
mod devices;
mod disk_traffic;
mod pressure;

use davit_beneath::mountinfo::{MountEntry, mount_table};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use breakdown::Breakdown;
pub use devices::{DeviceKind, DeviceRule, default_rules};
pub use disk_traffic::DeviceTraffic;
pub use pressure::{Contended, Pressure, StallTime};

/// A cgroup operation failed; says which file or directory.
#[derive(Debug, thiserror::Error)]
#[error("cgroup: {action} {}: {source}", path.display())]
pub struct Error {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl Error {
    fn new(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| Error {
            action,
            path: path.to_owned(),
            source,
        }
    }
}

type Result<T, E = Error> = std::result::Result<T, E>;

/// The v1 controllers we use. The others (freezer, blkio, net_cls, ...) cost time at each start and give us nothing.
const V1: [&str; 7] = [
    "cpu", "cpuacct", "cpuset", "memory", "devices", "pids", "hugetlb",
];
/// The v2 controllers we enable where they are offered.
const V2: [&str; 6] = ["cpu", "cpuset", "memory", "pids", "io", "hugetlb"];

/// How often what is in a cgroup is killed one by one, each time with what was forked meanwhile.
const KILL_ROUNDS: usize = 64;
/// Cgroups that a container has made, removed before it is looked anew.
const REMOVED_AT_ONCE: usize = 4096;

/// The machine's cgroup hierarchies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchies {
    /// v1 controller name to the directory of its hierarchy.
    v1: BTreeMap<String, PathBuf>,
    /// Root of the v2 tree: the only hierarchy, or the one beside v1 on hybrid machines.
    unified: Option<PathBuf>,
}

impl Hierarchies {
    /// Finds the hierarchies from `/proc/self/mountinfo`.
    pub fn detect() -> Result<Self> {
        let path = Path::new("/proc/self/mountinfo");
        Ok(Self::among(
            mount_table().map_err(Error::new("read", path))?,
        ))
    }

    /// The first mount of a controller counts.
    fn among(table: Vec<MountEntry>) -> Self {
        let mut found = Hierarchies {
            v1: BTreeMap::new(),
            unified: None,
        };
        for mount in table {
            if mount.fs_type == "cgroup2" {
                found.unified.get_or_insert(mount.point);
            } else if mount.fs_type == "cgroup" {
                let known = |option: &String| V1.contains(&option.as_str());
                for controller in mount.options.into_iter().filter(known) {
                    let point = || mount.point.clone();
                    found.v1.entry(controller).or_insert_with(point);
                }
            }
        }
        found
    }

    /// Whether the v2 tree is the only one.
    #[must_use]
    pub fn is_unified(&self) -> bool {
        self.v1.is_empty()
    }

    /// v1 hierarchies as (controller, mount point), for mounts inside a container.
    pub fn v1_mounts(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.v1
            .iter()
            .map(|(name, path)| (name.as_str(), path.as_path()))
    }

    /// The v2 tree, if there is one.
    #[must_use]
    pub fn unified_root(&self) -> Option<&Path> {
        self.unified.as_deref()
    }

    /// The cgroup that this process is in, unless that is the root or not the same in all hierarchies.
    #[must_use]
    pub fn own(&self) -> Option<Cgroup> {
        let text = fs::read_to_string("/proc/self/cgroup").ok()?;
        self.named_in(&text).map(|path| self.cgroup(&path))
    }

    /// The path in a `/proc/PID/cgroup` for the hierarchies that count processors and memory.
    fn named_in(&self, text: &str) -> Option<String> {
        let of = |controller: &str| {
            text.lines().find_map(|line| {
                let (_, named) = line.split_once(':')?;
                let (controllers, path) = named.split_once(':')?;
                controllers
                    .split(',')
                    .any(|name| name == controller)
                    .then(|| path.to_owned())
            })
        };
        let path = if self.is_unified() {
            of("")?
        } else {
            of("memory").filter(|path| of("cpuacct").as_ref() == Some(path))?
        };
        (path != "/" && !path.contains("..")).then_some(path)
    }

    /// The cgroup of that path, which begins with `/`; nothing is created.
    #[must_use]
    pub fn cgroup(&self, path: &str) -> Cgroup {
        Cgroup {
            hierarchies: self.clone(),
            path: path.trim_matches('/').to_owned(),
        }
    }

    fn roots(&self) -> Vec<&Path> {
        let mut roots: Vec<&Path> = self
            .v1
            .values()
            .map(PathBuf::as_path)
            .chain(self.unified.as_deref())
            .collect();
        roots.sort_unstable();
        roots.dedup();
        roots
    }
}

/// Limits for one container; `None` leaves a value alone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// CPU weight in v1 shares (2..=262144).
    pub cpu_shares: Option<u64>,
    /// CPU time in µs per period; -1 is unlimited.
    pub cpu_quota: Option<i64>,
    /// The period in µs.
    pub cpu_period: Option<u64>,
    /// CPUs in list format.
    pub cpus: Option<String>,
    /// Memory nodes in list format.
    pub mems: Option<String>,
    /// Memory in bytes; -1 is unlimited.
    pub memory: Option<i64>,
    /// Memory plus swap in bytes; -1 is unlimited.
    pub memory_swap: Option<i64>,
    /// Number of processes.
    pub pids: Option<i64>,
    /// Page size as the kernel names it (`2MB`) and bytes.
    pub hugepages: Vec<(String, i64)>,
    /// v2 files by name.
    pub unified: BTreeMap<String, String>,
}

/// Resource use of a cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in nanoseconds.
    pub cpu_nanos: u64,
    /// Memory in bytes, page cache included.
    pub memory_usage: u64,
    /// Memory without inactive page cache.
    pub memory_working_set: u64,
    /// Anonymous memory.
    pub memory_rss: u64,
    /// Minor and major page faults.
    pub page_faults: u64,
    /// Major page faults.
    pub major_page_faults: u64,
    /// The memory limit, `None` when there is none.
    pub memory_limit: Option<u64>,
    /// Number of processes.
    pub processes: u64,
}

/// One control group, in every hierarchy of the machine.
#[derive(Debug, Clone)]
pub struct Cgroup {
    hierarchies: Hierarchies,
    path: String,
}

fn write(path: &Path, value: &str) -> Result<()> {
    // One write(2) with the whole value, no create: the kernel reads each write as a command of its own.
    let mut file = fs::OpenOptions::new()
        .write(true)
        .open(path)
        .map_err(Error::new("open", path))?;
    io::Write::write_all(&mut file, value.as_bytes()).map_err(Error::new("write", path))
}

fn read_u64(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Reads `key value` lines.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.strip_prefix(key)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    })
}

/// The v2 weight (1..=10000) for v1 shares (2..=262144).
fn weight(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

impl Cgroup {
    fn dir(&self, root: &Path) -> PathBuf {
        root.join(&self.path)
    }

    fn v1(&self, controller: &str) -> Option<PathBuf> {
        self.hierarchies
            .v1
            .get(controller)
            .map(|root| self.dir(root))
    }

    fn v2(&self) -> Option<PathBuf> {
        self.hierarchies
            .unified
            .as_deref()
            .map(|root| self.dir(root))
    }

    /// The path below the hierarchies' roots, without a leading slash.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The directories that are not there, in the hierarchies that limit CPU, memory, processes and huge pages.
    #[must_use]
    pub fn missing(&self) -> Vec<PathBuf> {
        let limiting = ["cpu", "memory", "pids", "hugetlb"];
        let mut dirs: Vec<PathBuf> = match self.hierarchies.is_unified() {
            true => self.v2().into_iter().collect(),
            false => limiting.iter().filter_map(|name| self.v1(name)).collect(),
        };
        dirs.retain(|dir| !dir.is_dir());
        dirs.dedup();
        dirs
    }

    /// Makes the directories, with the parents they need, so that limits can be set and processes added.
    pub fn create(&self) -> Result<()> {
        for root in self.hierarchies.roots() {
            let is_v2 = self.hierarchies.unified.as_deref() == Some(root);
            let is_cpuset = self
                .hierarchies
                .v1
                .get("cpuset")
                .is_some_and(|path| path == root);
            if self.dir(root).is_dir() {
                continue;
            }
            let mut dir = root.to_owned();
            for part in Path::new(&self.path) {
                if is_v2 {
                    enable_controllers(&dir);
                }
                let parent = dir.clone();
                dir.push(part);
                match fs::create_dir(&dir) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(Error::new("create", &dir)(error));
                    }
                    _ => {}
                }
                if is_cpuset {
                    inherit_cpuset(&parent, &dir)?;
                }
            }
        }
        Ok(())
    }

    /// Moves a process into the cgroup in all hierarchies.
    pub fn add(&self, pid: Pid) -> Result<()> {
        let pid = pid.to_string();
        for root in self.hierarchies.roots() {
            write(&self.dir(root).join("cgroup.procs"), &pid)?;
        }
        Ok(())
    }

    /// Sets limits, at creation or in place.
    pub fn apply(&self, limits: &Limits) -> Result<()> {
        if self.hierarchies.is_unified() {
            self.apply_v2(limits)?;
        } else {
            self.apply_v1(limits)?;
        }
        self.apply_hugepages(limits)?;
        // `unified` entries have a meaning only where v2 carries the controllers.
        if let (true, Some(dir)) = (self.hierarchies.is_unified(), self.v2()) {
            for (file, value) in &limits.unified {
                if file.contains('/') {
                    let error = io::Error::from(io::ErrorKind::InvalidInput);
                    return Err(Error::new("write", &dir.join(file))(error));
                }
                write(&dir.join(file), value)?;
            }
        }
        Ok(())
    }

    fn apply_v1(&self, limits: &Limits) -> Result<()> {
        if let Some(dir) = self.v1("cpu") {
            if let Some(shares) = limits.cpu_shares.filter(|v| *v > 0) {
                write(&dir.join("cpu.shares"), &shares.to_string())?;
            }
            if let Some(period) = limits.cpu_period.filter(|v| *v > 0) {
                write(&dir.join("cpu.cfs_period_us"), &period.to_string())?;
            }
            if let Some(quota) = limits.cpu_quota.filter(|v| *v != 0) {
                write(&dir.join("cpu.cfs_quota_us"), &quota.to_string())?;
            }
        }
        if let Some(dir) = self.v1("cpuset") {
            write_nonempty(&dir.join("cpuset.cpus"), limits.cpus.as_deref())?;
            write_nonempty(&dir.join("cpuset.mems"), limits.mems.as_deref())?;
        }
        if let Some(dir) = self.v1("memory") {
            apply_memory_v1(&dir, limits)?;
        }
        if let (Some(dir), Some(pids)) = (self.v1("pids"), limits.pids) {
            write(&dir.join("pids.max"), &max_or(pids))?;
        }
        Ok(())
    }

    fn apply_v2(&self, limits: &Limits) -> Result<()> {
        let Some(dir) = self.v2() else { return Ok(()) };
        if let Some(shares) = limits.cpu_shares.filter(|v| *v > 0) {
            write(&dir.join("cpu.weight"), &weight(shares).to_string())?;
        }
        if limits.cpu_quota.is_some_and(|v| v != 0) || limits.cpu_period.is_some_and(|v| v > 0) {
            let quota = limits
                .cpu_quota
                .filter(|v| *v != 0)
                .map_or_else(|| "max".to_owned(), max_or);
            let value = match limits.cpu_period.filter(|v| *v > 0) {
                Some(period) => format!("{quota} {period}"),
                None => quota,
            };
            write_limit(&dir.join("cpu.max"), &value)?;
        }
        write_nonempty(&dir.join("cpuset.cpus"), limits.cpus.as_deref())?;
        write_nonempty(&dir.join("cpuset.mems"), limits.mems.as_deref())?;
        if let Some(memory) = limits.memory.filter(|v| *v != 0) {
            write_limit(&dir.join("memory.max"), &max_or(memory))?;
        }
        if let Some(swap) = limits.memory_swap.filter(|v| *v != 0) {
            // CRI and OCI give memory plus swap, v2 counts swap alone. No file without swap accounting.
            let alone = if swap < 0 {
                -1
            } else {
                (swap - limits.memory.unwrap_or(0)).max(0)
            };
            let file = dir.join("memory.swap.max");
            if file.exists() {
                write(&file, &max_or(alone))?;
            }
        }
        if let Some(pids) = limits.pids {
            write(&dir.join("pids.max"), &max_or(pids))?;
        }
        Ok(())
    }

    fn apply_hugepages(&self, limits: &Limits) -> Result<()> {
        if limits.hugepages.is_empty() {
            return Ok(());
        }
        let v1 = self.v1("hugetlb");
        let Some(dir) = v1.clone().or_else(|| self.v2()) else {
            return Ok(());
        };
        let suffix = if v1.is_some() {
            "limit_in_bytes"
        } else {
            "max"
        };
        for (size, limit) in &limits.hugepages {
            // The reservation limit turns exhaustion into ENOMEM at mmap instead of SIGBUS at first touch.
            for kind in ["", "rsvd."] {
                let file = dir.join(format!("hugetlb.{size}.{kind}{suffix}"));
                if file.exists() {
                    write(&file, &limit.max(&0).to_string())?;
                } else if *limit > 0 && kind.is_empty() {
                    return Err(Error::new("set", &file)(io::ErrorKind::Unsupported.into()));
                }
            }
        }
        Ok(())
    }

    /// Restricts which devices may be used. The list is complete: what no rule allows is refused.
    pub fn set_devices(&self, rules: &[DeviceRule]) -> Result<()> {
        if let Some(dir) = self.v1("devices") {
            write(&dir.join("devices.deny"), "a")?;
            for rule in rules {
                write(
                    &dir.join(if rule.allow {
                        "devices.allow"
                    } else {
                        "devices.deny"
                    }),
                    &rule.v1(),
                )?;
            }
            return Ok(());
        }
        let Some(dir) = self.v2() else { return Ok(()) };
        let fd = fs::File::open(&dir).map_err(Error::new("open", &dir))?;
        crate::sys::attach_device_program(fd, &devices::program(rules))
            .map_err(Error::new("attach device program to", &dir))
    }

    /// The processes in the cgroup.
    #[must_use]
    pub fn pids(&self) -> Vec<Pid> {
        let Some(root) = self.hierarchies.roots().into_iter().next() else {
            return Vec::new();
        };
        let text = fs::read_to_string(self.dir(root).join("cgroup.procs")).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.trim().parse().ok())
            .map(Pid::from_raw)
            .collect()
    }

    /// The processes in the cgroup and those below it, of so many cgroups and processes at most.
    #[must_use]
    pub fn all_pids(&self, most: usize) -> Vec<Pid> {
        let Some(root) = self.hierarchies.roots().into_iter().next() else {
            return Vec::new();
        };
        let mut below = vec![self.dir(root)];
        let (mut pids, mut looked) = (Vec::new(), 0);
        while let Some(dir) = below.pop().filter(|_| looked < most && pids.len() < most) {
            looked += 1;
            let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            let numbers = text.lines().filter_map(|line| line.trim().parse().ok());
            pids.extend(numbers.map(Pid::from_raw));
            let dirs = fs::read_dir(dir).into_iter().flatten().flatten();
            let dirs = dirs.filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()));
            below.extend(dirs.map(|entry| entry.path()).take(most));
        }
        pids.truncate(most);
        pids
    }

    /// Sends SIGKILL to everything in the cgroup and below it.
    pub fn kill(&self) {
        if let Some(file) = self.v2().map(|dir| dir.join("cgroup.kill"))
            && write(&file, "1").is_ok()
        {
            return;
        }
        self.kill_one_by_one();
    }

    /// The same where the kernel does not do it at once: those that fork meanwhile are not to get away.
    fn kill_one_by_one(&self) {
        let limit = self.v1("pids").map(|dir| dir.join("pids.max"));
        let before = limit.as_deref().map(fs::read_to_string);
        if let Some(limit) = &limit {
            let _ = write(limit, "0");
        }
        for _ in 0..KILL_ROUNDS {
            let pids = self.all_pids(usize::MAX);
            let opened = |pid: &Pid| {
                let pid = rustix::process::Pid::from_raw(pid.as_raw())?;
                Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?))
            };
            let handles: Vec<_> = pids.iter().filter_map(opened).collect();
            // A number may have become another's before it was opened.
            let still: HashSet<i32> = self
                .all_pids(usize::MAX)
                .iter()
                .map(|p| p.as_raw())
                .collect();
            if still.is_empty() {
                break;
            }
            for (pid, handle) in handles {
                if still.contains(&pid.as_raw_nonzero().get()) {
                    let _ = pidfd_send_signal(handle, Signal::KILL);
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if let (Some(limit), Some(Ok(before))) = (&limit, before) {
            let _ = write(limit, before.trim());
        }
    }

    /// How many processes of the cgroup the kernel killed for lack of memory.
    #[must_use]
    pub fn oom_kills(&self) -> u64 {
        let file = match self.v1("memory") {
            Some(dir) => dir.join("memory.oom_control"),
            None => match self.v2() {
                Some(dir) => dir.join("memory.events"),
                None => return 0,
            },
        };
        keyed(&fs::read_to_string(file).unwrap_or_default(), "oom_kill").unwrap_or(0)
    }

    /// Since when it has been as it is: a cgroup's directory says when something was last made or removed in it.
    #[must_use]
    pub fn changed_at(&self) -> Option<std::time::SystemTime> {
        let root = self.hierarchies.roots().into_iter().next()?;
        fs::metadata(self.dir(root)).ok()?.modified().ok()
    }

    /// What the cgroup uses now; zero for what is not accounted.
    #[must_use]
    pub fn usage(&self) -> Usage {
        if self.hierarchies.is_unified() {
            self.usage_v2()
        } else {
            self.usage_v1()
        }
    }

    fn usage_v1(&self) -> Usage {
        let mut usage = Usage::default();
        if let Some(dir) = self.v1("cpuacct") {
            usage.cpu_nanos = read_u64(&dir.join("cpuacct.usage")).unwrap_or(0);
        }
        if let Some(dir) = self.v1("memory") {
            let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
            usage.memory_usage = read_u64(&dir.join("memory.usage_in_bytes")).unwrap_or(0);
            usage.memory_working_set = usage
                .memory_usage
                .saturating_sub(keyed(&stat, "total_inactive_file").unwrap_or(0));
            usage.memory_rss = keyed(&stat, "total_rss").unwrap_or(0);
            usage.page_faults = keyed(&stat, "total_pgfault").unwrap_or(0);
            usage.major_page_faults = keyed(&stat, "total_pgmajfault").unwrap_or(0);
            usage.memory_limit = read_u64(&dir.join("memory.limit_in_bytes"))
                .filter(|v| *v < i64::MAX as u64 - 4096);
        }
        if let Some(dir) = self.v1("pids") {
            usage.processes = read_u64(&dir.join("pids.current")).unwrap_or(0);
        }
        usage
    }

    fn usage_v2(&self) -> Usage {
        let Some(dir) = self.v2() else {
            return Usage::default();
        };
        let text = |file: &str| fs::read_to_string(dir.join(file)).unwrap_or_default();
        let stat = text("memory.stat");
        let memory_usage = read_u64(&dir.join("memory.current")).unwrap_or(0);
        Usage {
            cpu_nanos: keyed(&text("cpu.stat"), "usage_usec")
                .unwrap_or(0)
                .saturating_mul(1000),
            memory_usage,
            memory_working_set: memory_usage
                .saturating_sub(keyed(&stat, "inactive_file").unwrap_or(0)),
            memory_rss: keyed(&stat, "anon").unwrap_or(0),
            page_faults: keyed(&stat, "pgfault").unwrap_or(0),
            major_page_faults: keyed(&stat, "pgmajfault").unwrap_or(0),
            memory_limit: read_u64(&dir.join("memory.max")),
            processes: read_u64(&dir.join("pids.current")).unwrap_or(0),
        }
    }

    /// Removes the cgroup from all hierarchies, with what the container made below it. Processes that are still dying
    /// are waited for, at most `patience`.
    pub fn remove(&self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        for root in self.hierarchies.roots() {
            let dir = self.dir(root);
            loop {
                match fs::remove_dir(&dir) {
                    Ok(()) => break,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    Err(error) if Instant::now() >= deadline => {
                        return Err(Error::new("remove", &dir)(error));
                    }
                    Err(_) => {
                        remove_children(&dir);
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Containers may make cgroups of their own below theirs, as many and as deep as they like: so many are removed in one round,
/// the deepest first.
fn remove_children(dir: &Path) {
    let (mut found, mut left) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(at) = left.pop().filter(|_| found.len() < REMOVED_AT_ONCE) {
        let entries = fs::read_dir(&at).into_iter().flatten().flatten();
        let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        left.extend(dirs.map(|entry| entry.path()).take(REMOVED_AT_ONCE));
        found.push(at);
    }
    for below in found.iter().skip(1).rev() {
        let _ = fs::remove_dir(below);
    }
}

/// No limit is what a group without the controller has anyway.
fn write_limit(file: &Path, value: &str) -> Result<()> {
    if value.starts_with("max") && !file.exists() {
        return Ok(());
    }
    write(file, value)
}

fn max_or(value: i64) -> String {
    if value < 0 {
        "max".to_owned()
    } else {
        value.to_string()
    }
}

fn write_nonempty(file: &Path, value: Option<&str>) -> Result<()> {
    match value {
        Some(value) if !value.is_empty() => write(file, value),
        _ => Ok(()),
    }
}

fn apply_memory_v1(dir: &Path, limits: &Limits) -> Result<()> {
    let Some(memory) = limits.memory.filter(|v| *v != 0) else {
        return Ok(());
    };
    let (limit, with_swap) = (
        dir.join("memory.limit_in_bytes"),
        dir.join("memory.memsw.limit_in_bytes"),
    );
    let swap = limits.memory_swap.filter(|v| *v != 0 && with_swap.exists());
    // The sum may never be below the part, so raising sets the sum first and lowering sets it last.
    if write(&limit, &memory.to_string()).is_err() {
        if let Some(swap) = swap {
            write(&with_swap, &swap.to_string())?;
        }
        write(&limit, &memory.to_string())?;
    }
    if let Some(swap) = swap {
        write(&with_swap, &swap.to_string())?;
    }
    Ok(())
}

/// Turns on the controllers for the children of `dir`, each alone: one that cannot be had must not cost the others.
fn enable_controllers(dir: &Path) {
    let control = dir.join("cgroup.subtree_control");
    let on = fs::read_to_string(&control).unwrap_or_default();
    let offered = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
    for name in offered.split_whitespace().filter(|name| V2.contains(name)) {
        if !on.split_whitespace().any(|other| other == name) {
            let _ = write(&control, &format!("+{name}"));
        }
    }
}

/// A new v1 cpuset is empty, and no process can enter it; it gets what its parent has.
fn inherit_cpuset(parent: &Path, dir: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = dir.join(file);
        let current = fs::read_to_string(&own).map_err(Error::new("read", &own))?;
        if current.trim().is_empty() {
            let path = parent.join(file);
            let value = fs::read_to_string(&path).map_err(Error::new("read", &path))?;
            write(&own, value.trim())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_cgroup_of_a_process_is_one_for_all_controllers() {
        let v1 = ["memory", "cpuacct"].map(|name| (name.to_owned(), PathBuf::from("/x")));
        let legacy = Hierarchies {
            v1: v1.into(),
            unified: None,
        };
        let text = "5:pids:/a\n4:cpu,cpuacct:/system/d\n3:memory:/system/d\n0::/\n";
        assert_eq!(legacy.named_in(text).as_deref(), Some("/system/d"));
        assert_eq!(
            legacy.named_in(&text.replace("3:memory:/system/d", "3:memory:/b")),
            None
        );
        let unified = Hierarchies {
            v1: BTreeMap::new(),
            unified: Some("/x".into()),
        };
        assert_eq!(
            unified.named_in("0::/s/d.service\n").as_deref(),
            Some("/s/d.service")
        );
        assert_eq!(unified.named_in("0::/\n"), None);
        assert_eq!(unified.named_in("0::/../d\n"), None);
    }

    use super::*;

    const HYBRID: &str = "\
30 25 0:26 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
32 30 0:28 / /sys/fs/cgroup/memory rw,relatime shared:3 - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
34 30 0:30 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn layouts() {
        let parse = |text: &str| {
            Hierarchies::among(davit_beneath::mountinfo::read_table(text.as_bytes()).unwrap())
        };
        let hybrid = parse(HYBRID);
        assert!(!hybrid.is_unified());
        assert_eq!(hybrid.v1.keys().collect::<Vec<_>>(), ["cpu", "memory"]);
        assert_eq!(
            hybrid.unified_root(),
            Some(Path::new("/sys/fs/cgroup/unified"))
        );
        assert_eq!(hybrid.roots().len(), 3);
        let unified =
            parse("31 30 0:27 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
        assert!(unified.is_unified());
        let joined =
            parse("31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n");
        assert_eq!(joined.roots().len(), 1);
    }

    /// Without `cgroup.kill` (kernels before 5.14, machines with v1 alone).
    #[test]
    fn nothing_gets_away_by_forking() {
        let hierarchies = Hierarchies {
            unified: None,
            ..Hierarchies::detect().unwrap()
        };
        if !hierarchies.v1.contains_key("pids") || !rustix::process::geteuid().is_root() {
            println!("skipped: no cgroup v1 for processes, or no root");
            return;
        }
        let name = format!("/davit-test-{}", std::process::id());
        let cgroup = hierarchies.cgroup(&name);
        cgroup.create().unwrap();
        let pids = Limits {
            pids: Some(400),
            ..Limits::default()
        };
        cgroup.apply(&pids).unwrap();
        let dir = cgroup.v1("pids").unwrap();
        let below = hierarchies.cgroup(&format!("{name}/below"));
        below.create().unwrap();
        // Each ends as soon as it has begun the next: no number is there for long.
        let tmp = tempfile::tempdir().unwrap();
        let script = tmp.path().join("next");
        fs::write(&script, "sh \"$0\" &\n").unwrap();
        let enter = |into: &Cgroup| {
            let entries = into.hierarchies.roots().into_iter().map(|root| {
                let file = into.dir(root).join("cgroup.procs");
                format!("echo $$ > {}; ", file.display())
            });
            let begin = format!("sh {} & ", script.display()).repeat(8);
            let mut shell = std::process::Command::new("sh");
            shell
                .arg("-c")
                .arg(format!("{}{begin}", entries.collect::<String>()));
            shell.stdout(std::process::Stdio::null());
            shell.stderr(std::process::Stdio::null());
            shell.spawn().unwrap()
        };
        let mut shells = [enter(&cgroup), enter(&below)];
        std::thread::sleep(Duration::from_millis(300));
        assert!(cgroup.all_pids(usize::MAX).len() > 2);
        cgroup.kill();
        for shell in &mut shells {
            shell.wait().unwrap();
        }
        assert_eq!(
            fs::read_to_string(dir.join("pids.max")).unwrap().trim(),
            "400"
        );
        // The dead take a moment to go. One that lives would have become four hundred.
        let until = Instant::now() + Duration::from_secs(10);
        let is_empty = || cgroup.all_pids(usize::MAX).is_empty();
        while !is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let ended = is_empty();
        let _ = write(&dir.join("pids.max"), "0");
        cgroup.kill();
        let removed = below
            .remove(Duration::from_secs(5))
            .and(cgroup.remove(Duration::from_secs(5)));
        assert!(ended);
        removed.unwrap();
    }

    #[test]
    fn cgroups_of_containers_are_removed_however_deep_they_are() {
        let tmp = tempfile::tempdir().unwrap();
        let top = tmp.path().join("top");
        let mut deep = top.clone();
        for _ in 0..900 {
            deep.push("aaa");
        }
        fs::create_dir_all(&deep).unwrap();
        for n in 0..5000 {
            fs::create_dir(top.join(format!("b{n}"))).unwrap();
        }
        let mut rounds = 0;
        while fs::remove_dir(&top).is_err() {
            rounds += 1;
            assert!(rounds < 10);
            // As from a thread of a server, whose stack is small.
            let top = top.clone();
            let thread = std::thread::Builder::new().stack_size(256 << 10);
            thread
                .spawn(move || remove_children(&top))
                .unwrap()
                .join()
                .unwrap();
        }
    }

    #[test]
    fn weights() {
        assert_eq!(
            (weight(2), weight(1024), weight(262_144), weight(0)),
            (1, 39, 10_000, 1)
        );
    }

    #[test]
    fn v2_files() {
        let dir = tempfile::tempdir().unwrap();
        let hierarchies = Hierarchies {
            v1: BTreeMap::new(),
            unified: Some(dir.path().to_owned()),
        };
        let cgroup = hierarchies.cgroup("/a/b");
        cgroup.create().unwrap();
        let group = dir.path().join("a/b");
        for file in [
            "cpu.weight",
            "cpu.max",
            "cpuset.cpus",
            "memory.max",
            "pids.max",
            "hugetlb.2MB.max",
            "memory.oom.group",
        ] {
            fs::write(group.join(file), "").unwrap();
        }
        let limits = Limits {
            cpu_shares: Some(1024),
            cpu_quota: Some(-1),
            cpu_period: Some(100_000),
            cpus: Some("1".into()),
            memory: Some(1 << 20),
            pids: Some(-1),
            hugepages: vec![("2MB".into(), 4 << 20), ("1GB".into(), 0)],
            unified: [("memory.oom.group".to_owned(), "1".to_owned())].into(),
            ..Limits::default()
        };
        cgroup.apply(&limits).unwrap();
        let read = |file: &str| fs::read_to_string(group.join(file)).unwrap();
        assert_eq!(read("cpu.weight"), "39");
        assert_eq!(read("cpu.max"), "max 100000");
        assert_eq!(read("memory.max"), "1048576");
        assert_eq!(read("pids.max"), "max");
        assert_eq!(read("hugetlb.2MB.max"), "4194304");
        assert_eq!(read("memory.oom.group"), "1");
        fs::remove_file(group.join("memory.max")).unwrap();
        let memory = |bytes| Limits {
            memory: Some(bytes),
            ..Limits::default()
        };
        cgroup.apply(&memory(-1)).unwrap();
        assert!(cgroup.apply(&memory(1 << 20)).is_err());
        let missing = Limits {
            hugepages: vec![("1GB".into(), 1 << 30)],
            ..Limits::default()
        };
        assert!(cgroup.apply(&missing).is_err());
    }
}
