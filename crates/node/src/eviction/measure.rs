//! Measuring what is left.

use super::signals::Signal;
use super::state::{Observation, Observations};
use async_trait::async_trait;
use davit_beneath::DiskUse;
use davit_oci::runtime::Runtime;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Measures the node. What cannot be measured is left out.
#[async_trait]
pub trait Measure: Send + Sync {
    /// What is left now.
    async fn observe(&self, runtime: &dyn Runtime) -> Observations;
}

/// The machine at hand.
#[derive(Debug, Clone)]
pub(crate) struct SystemMeasure {
    root: PathBuf,
}

impl SystemMeasure {
    /// `root` is the node's directory, on the file system called nodefs.
    #[must_use]
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }
}

#[async_trait]
impl Measure for SystemMeasure {
    async fn observe(&self, runtime: &dyn Runtime) -> Observations {
        let mut out = Observations::new();
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        out.extend(memory(&read("/proc/meminfo")).map(|o| (Signal::MemoryAvailable, o)));
        let most = [
            read("/proc/sys/kernel/pid_max"),
            read("/proc/sys/kernel/threads-max"),
        ];
        let pids = processes(&most, &read("/proc/loadavg"));
        out.extend(pids.map(|o| (Signal::PidAvailable, o)));
        if let Some((space, inodes)) = file_system(&self.root) {
            out.insert(Signal::NodefsAvailable, space);
            out.extend(inodes.map(|o| (Signal::NodefsInodesFree, o)));
        }
        if let Some((space, inodes)) = images(runtime).await.and_then(|dir| file_system(&dir)) {
            out.insert(Signal::ImagefsAvailable, space);
            out.extend(inodes.map(|o| (Signal::ImagefsInodesFree, o)));
        }
        out
    }
}

/// Where the runtime keeps images.
async fn images(runtime: &dyn Runtime) -> Option<PathBuf> {
    runtime.image_directory().await.ok()?
}

/// Space of the file system with the images.
pub(crate) async fn image_space(runtime: &dyn Runtime) -> Option<Observation> {
    let dir = images(runtime).await?;
    file_system(&dir).map(|(space, _)| space)
}

/// Space in bytes and inodes of the file system a directory is on; some file systems have no fixed number of inodes.
fn file_system(dir: &Path) -> Option<(Observation, Option<Observation>)> {
    let stat = rustix::fs::statvfs(dir).ok()?;
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let space = Observation {
        available: number(stat.f_bavail.saturating_mul(stat.f_frsize)),
        capacity: number(stat.f_blocks.saturating_mul(stat.f_frsize)),
    };
    let inodes = Observation {
        available: number(stat.f_ffree),
        capacity: number(stat.f_files),
    };
    Some((space, (stat.f_files > 0).then_some(inodes)))
}

/// What is not in the working set: free memory, and the cache of files that were not used lately.
fn memory(meminfo: &str) -> Option<Observation> {
    let bytes = |name: &str| {
        let value = meminfo
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: i64 = value.split_whitespace().next()?.parse().ok()?;
        Some(kib * 1024)
    };
    Some(Observation {
        available: bytes("MemFree")? + bytes("Inactive(file)").unwrap_or(0),
        capacity: bytes("MemTotal")?,
    })
}

fn processes(most: &[String], loadavg: &str) -> Option<Observation> {
    let numbers = most
        .iter()
        .filter_map(|text| text.trim().parse::<i64>().ok());
    let capacity = numbers.min()?;
    let running = loadavg.split_whitespace().nth(3)?.split_once('/')?.1;
    Some(Observation {
        available: capacity - running.parse::<i64>().ok()?,
        capacity,
    })
}

/// What is below a directory that containers write; what was found before where it takes longer than `until`, and nothing
/// where that is not known either.
pub(crate) fn directory(dir: &Path, until: Instant) -> Option<OnDisk> {
    davit_beneath::disk_use(dir, until).map(OnDisk::from)
}

/// What is on the node's disks, in the numbers of quantities.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OnDisk {
    /// Bytes.
    pub bytes: i64,
    /// Files and directories.
    pub inodes: i64,
    /// There is more, nobody knows how much.
    pub in_part: bool,
}

impl From<DiskUse> for OnDisk {
    fn from(found: DiskUse) -> Self {
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        Self {
            bytes: number(found.bytes),
            inodes: number(found.inodes),
            in_part: found.in_part,
        }
    }
}

impl OnDisk {
    /// This and something else.
    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
            in_part: self.in_part || other.in_part,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_the_kernel() {
        let text =
            "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 1 kB\nInactive(file): 20 kB\n";
        let seen = memory(text).unwrap();
        assert_eq!((seen.available, seen.capacity), (120 << 10, 1000 << 10));
        let most = ["400\n".to_owned(), "300\n".to_owned()];
        let seen = processes(&most, "0.1 0.2 0.3 2/120 999\n").unwrap();
        assert_eq!((seen.available, seen.capacity), (180, 300));
    }

    #[test]
    fn a_directory_counts_what_it_holds() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        std::fs::write(dir.path().join("d/f"), vec![1; 10_000]).unwrap();
        std::fs::hard_link(dir.path().join("d/f"), dir.path().join("g")).unwrap();
        let later = Instant::now() + std::time::Duration::from_secs(60);
        let seen = directory(dir.path(), later).unwrap();
        assert_eq!((seen.inodes, seen.in_part), (2, false));
        assert!(seen.bytes >= 10_000, "{seen:?}");
        let (space, _) = file_system(dir.path()).unwrap();
        assert!(space.capacity >= space.available && space.available > 0);
    }
}
