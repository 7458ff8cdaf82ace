//! Metrics of the process, and of what it was built from.

use std::sync::atomic::{AtomicI64, AtomicU64};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::version::{self, Build};

const PAGE_BYTES: i64 = 4096;
/// Ticks of the clock in which the kernel tells processor time, a second.
const TICKS: f64 = 100.0;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    major: &'static str,
    minor: &'static str,
    git_version: &'static str,
    git_commit: &'static str,
    build_date: &'static str,
    compiler: &'static str,
    platform: String,
}

/// What the process takes.
#[derive(Debug, Default)]
pub(crate) struct ProcessMetrics {
    resident: Gauge<i64, AtomicI64>,
    virtual_memory: Gauge<i64, AtomicI64>,
    open_files: Gauge<i64, AtomicI64>,
    most_files: Gauge<i64, AtomicI64>,
    start_time: Gauge<f64, AtomicU64>,
    processor: Counter<f64, AtomicU64>,
    build: Family<BuildLabels, Gauge>,
}

impl ProcessMetrics {
    pub(super) fn new() -> Self {
        let metrics = Self::default();
        let now = jiff::Timestamp::now().as_millisecond() as f64;
        metrics.start_time.set(now / 1000.0);
        metrics
    }

    pub(super) fn register(&self, r: &mut Registry) {
        r.register(
            "process_resident_memory_bytes",
            "Resident memory",
            self.resident.clone(),
        );
        r.register(
            "process_virtual_memory_bytes",
            "Virtual memory",
            self.virtual_memory.clone(),
        );
        r.register(
            "process_open_fds",
            "Open file descriptors",
            self.open_files.clone(),
        );
        r.register(
            "process_max_fds",
            "Most file descriptors that may be open",
            self.most_files.clone(),
        );
        r.register(
            "process_start_time_seconds",
            "Start of the process, Unix time",
            self.start_time.clone(),
        );
        r.register(
            "process_cpu_seconds",
            "Processor time of user and system",
            self.processor.clone(),
        );
        r.register(
            "kubernetes_build_info",
            "What the server was built from",
            self.build.clone(),
        );
    }

    /// Says what the binary was built from.
    pub(crate) fn set_build(&self, build: Build) {
        let labels = BuildLabels {
            major: version::MAJOR,
            minor: version::MINOR,
            git_version: version::GIT_VERSION,
            git_commit: build.commit,
            build_date: build.date,
            compiler: "rustc",
            platform: version::platform(),
        };
        self.build.get_or_create(&labels).set(1);
    }

    /// Looks what the process takes now.
    pub(super) fn read(&self) {
        let files = std::fs::read_dir("/proc/self/fd").map(Iterator::count);
        if let Ok(count) = files {
            self.open_files
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let statm = text("/proc/self/statm");
        let mut pages = statm
            .split_whitespace()
            .map(|word| word.parse().unwrap_or(0));
        self.virtual_memory
            .set(pages.next().unwrap_or(0) * PAGE_BYTES);
        self.resident.set(pages.next().unwrap_or(0) * PAGE_BYTES);
        let limits = text("/proc/self/limits");
        let files = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"));
        let files = files.and_then(|line| line.split_whitespace().next());
        if let Some(most) = files.and_then(|word| word.parse().ok()) {
            self.most_files.set(most);
        }
        // what follows the name of the process, which may hold anything
        let stat = text("/proc/self/stat");
        let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
        let times = after.split(' ').skip(11).take(2);
        let ticks: f64 = times.map(|word| word.parse().unwrap_or(0.0)).sum();
        let more = ticks / TICKS - self.processor.get();
        if more > 0.0 {
            self.processor.inc_by(more);
        }
    }
}
