//! What the use of a cgroup consists of, beside the sums of [`Usage`](super::Usage).

use super::{Cgroup, keyed, read_u64};
use std::fs;
use std::path::Path;

/// Ticks a second in v1's `cpuacct.stat`; the kernel's interface fixes them.
const TICK_NANOS: u64 = 1_000_000_000 / 100;

/// Numbers of a cgroup; `None` for what this kernel does not account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Breakdown {
    /// CPU time outside of the kernel in nanoseconds.
    pub user_nanos: Option<u64>,
    /// CPU time in the kernel in nanoseconds.
    pub system_nanos: Option<u64>,
    /// Periods of CFS in which something ran.
    pub periods: Option<u64>,
    /// Those in which it was held back by its quota.
    pub throttled_periods: Option<u64>,
    /// For how many nanoseconds in all.
    pub throttled_nanos: Option<u64>,
    /// Page cache in bytes.
    pub cache: Option<u64>,
    /// Mapped files in bytes.
    pub mapped_file: Option<u64>,
    /// Swap in bytes.
    pub swap: Option<u64>,
    /// The most memory it has ever used, in bytes.
    pub peak: Option<u64>,
    /// How often it was about to pass its limit of memory.
    pub limit_hits: Option<u64>,
    /// How many processes and threads it may have; 0 where there is no limit.
    pub tasks_max: Option<u64>,
    /// Swap it may use in bytes, `u64::MAX` where there is no limit.
    pub swap_limit: Option<u64>,
}

/// What v1 shows where memory is not limited is the largest multiple of a page.
const UNLIMITED: u64 = i64::MAX as u64 - 65_536;

/// The limit of processes and threads; 0 where there is none.
fn tasks_max(dir: &Path) -> Option<u64> {
    let text = fs::read_to_string(dir.join("pids.max")).ok()?;
    match text.trim() {
        "max" => Some(0),
        number => number.parse().ok(),
    }
}

impl Cgroup {
    /// What the cgroup's use consists of.
    #[must_use]
    pub fn breakdown(&self) -> Breakdown {
        if self.hierarchies.is_unified() {
            self.breakdown_v2()
        } else {
            self.breakdown_v1()
        }
    }

    fn breakdown_v1(&self) -> Breakdown {
        let text = |controller: &str, file: &str| {
            let dir = self.v1(controller);
            dir.and_then(|dir| fs::read_to_string(dir.join(file)).ok())
                .unwrap_or_default()
        };
        let (times, quota) = (text("cpuacct", "cpuacct.stat"), text("cpu", "cpu.stat"));
        let memory = text("memory", "memory.stat");
        let ticks = |key: &str| keyed(&times, key).map(|n| n.saturating_mul(TICK_NANOS));
        let of_memory = |file: &str| self.v1("memory").and_then(|dir| read_u64(&dir.join(file)));
        Breakdown {
            user_nanos: ticks("user"),
            system_nanos: ticks("system"),
            periods: keyed(&quota, "nr_periods"),
            throttled_periods: keyed(&quota, "nr_throttled"),
            throttled_nanos: keyed(&quota, "throttled_time"),
            cache: keyed(&memory, "total_cache"),
            mapped_file: keyed(&memory, "total_mapped_file"),
            swap: keyed(&memory, "total_swap"),
            peak: of_memory("memory.max_usage_in_bytes"),
            limit_hits: of_memory("memory.failcnt"),
            tasks_max: self.v1("pids").and_then(|dir| tasks_max(&dir)),
            swap_limit: of_memory("memory.memsw.limit_in_bytes").and_then(|both| {
                let alone = both.checked_sub(of_memory("memory.limit_in_bytes")?)?;
                Some(if both >= UNLIMITED { u64::MAX } else { alone })
            }),
        }
    }

    fn breakdown_v2(&self) -> Breakdown {
        let Some(dir) = self.v2() else {
            return Breakdown::default();
        };
        let text = |file: &str| fs::read_to_string(dir.join(file)).unwrap_or_default();
        let (cpu, memory) = (text("cpu.stat"), text("memory.stat"));
        let micros = |key: &str| keyed(&cpu, key).map(|n| n.saturating_mul(1000));
        Breakdown {
            user_nanos: micros("user_usec"),
            system_nanos: micros("system_usec"),
            periods: keyed(&cpu, "nr_periods"),
            throttled_periods: keyed(&cpu, "nr_throttled"),
            throttled_nanos: micros("throttled_usec"),
            cache: keyed(&memory, "file"),
            mapped_file: keyed(&memory, "file_mapped"),
            swap: read_u64(&dir.join("memory.swap.current")),
            peak: read_u64(&dir.join("memory.peak")),
            limit_hits: keyed(&text("memory.events"), "max"),
            tasks_max: tasks_max(&dir),
            swap_limit: match text("memory.swap.max").trim() {
                "max" => Some(u64::MAX),
                bytes => bytes.parse().ok(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Hierarchies;
    use std::collections::BTreeMap;

    #[test]
    fn both_versions_tell_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("a");
        fs::create_dir(&group).unwrap();
        for (file, text) in [
            ("cpuacct.stat", "user 150\nsystem 50\n"),
            ("memory.max_usage_in_bytes", "99\n"),
            ("memory.peak", "99\n"),
            ("memory.swap.current", "3\n"),
            ("memory.failcnt", "4\n"),
            ("memory.events", "low 0\nhigh 1\nmax 4\noom 0\n"),
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.memsw.limit_in_bytes", "1500\n"),
            ("memory.swap.max", "500\n"),
            ("pids.max", "max\n"),
        ] {
            fs::write(group.join(file), text).unwrap();
        }
        let quota = "nr_periods 9\nnr_throttled 2\nthrottled_time 7000\nthrottled_usec 7\n";
        let times = "user_usec 1500000\nsystem_usec 500000\n";
        fs::write(group.join("cpu.stat"), format!("{quota}{times}")).unwrap();
        let v1 = "total_cache 1\ntotal_mapped_file 2\ntotal_swap 3\n";
        fs::write(
            group.join("memory.stat"),
            format!("{v1}file 1\nfile_mapped 2\n"),
        )
        .unwrap();
        let root = || dir.path().to_owned();
        let named = ["cpu", "cpuacct", "memory", "pids"].map(|name| (name.to_owned(), root()));
        let legacy = Hierarchies {
            v1: BTreeMap::from(named),
            unified: None,
        };
        let unified = Hierarchies {
            v1: BTreeMap::new(),
            unified: Some(root()),
        };
        let wanted = Breakdown {
            user_nanos: Some(1_500_000_000),
            system_nanos: Some(500_000_000),
            periods: Some(9),
            throttled_periods: Some(2),
            throttled_nanos: Some(7000),
            cache: Some(1),
            mapped_file: Some(2),
            swap: Some(3),
            peak: Some(99),
            limit_hits: Some(4),
            tasks_max: Some(0),
            swap_limit: Some(500),
        };
        assert_eq!(legacy.cgroup("/a").breakdown(), wanted);
        assert_eq!(unified.cgroup("/a").breakdown(), wanted);
        assert_eq!(unified.cgroup("/b").breakdown(), Breakdown::default());
    }
}
