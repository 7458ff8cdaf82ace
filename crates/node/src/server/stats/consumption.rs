//! What something uses, in the words of the summary API. What is not known is left out.

use super::{known, time};
use crate::server::usage::{ContainerUsage, NodeUsage};
use davit_cadvisor::Pressures;
use davit_oci::cgroup::{Cgroup, Pressure, StallTime};
use davit_proto::cri::v1 as cri;
use serde_json::{Value, json as object};

/// How much of processors, memory, swap and disks something uses, and waits for.
#[derive(Debug, Clone, Default)]
pub(super) struct Consumption {
    /// Nanoseconds since the epoch.
    pub(super) time: i64,
    /// Core-nanoseconds.
    pub(super) cpu: Option<u64>,
    /// Core-nanoseconds a second.
    pub(super) cpu_rate: Option<u64>,
    /// Bytes up to the limit, if there is one.
    pub(super) available: Option<u64>,
    /// Bytes.
    pub(super) usage: Option<u64>,
    /// Bytes.
    pub(super) working_set: Option<u64>,
    /// Bytes.
    pub(super) rss: Option<u64>,
    /// Since the beginning, major ones among them.
    pub(super) faults: Option<u64>,
    /// Those that waited for a disk.
    pub(super) major_faults: Option<u64>,
    /// Bytes.
    pub(super) swap: Option<u64>,
    /// Bytes.
    pub(super) swap_available: Option<u64>,
    pub(super) pressure: Pressures,
}

impl Consumption {
    /// A cgroup with all below it.
    pub(super) fn of_group(group: &Cgroup, time: i64) -> Self {
        let now = group.usage();
        let parts = group.breakdown();
        let limit = parts.swap_limit.filter(|limit| *limit < u64::MAX);
        Self {
            time,
            cpu: Some(now.cpu_nanos),
            cpu_rate: None,
            available: now
                .memory_limit
                .map(|limit| limit.saturating_sub(now.memory_working_set)),
            usage: Some(now.memory_usage),
            working_set: Some(now.memory_working_set),
            rss: Some(now.memory_rss),
            faults: Some(now.page_faults),
            major_faults: Some(now.major_page_faults),
            swap: parts.swap,
            swap_available: limit.and_then(|limit| Some(limit.saturating_sub(parts.swap?))),
            pressure: Pressures::of(group),
        }
    }

    pub(super) fn of_machine(node: &NodeUsage) -> Self {
        Self {
            time: node.time,
            cpu: node.cpu_nanos,
            cpu_rate: node.cpu_rate,
            available: Some(node.memory_available),
            usage: Some(node.memory_total.saturating_sub(node.memory_free)),
            working_set: Some(node.working_set()),
            rss: node.anonymous,
            faults: node.faults,
            major_faults: node.major_faults,
            swap: Some(node.swap_total.saturating_sub(node.swap_free)),
            swap_available: Some(node.swap_free),
            pressure: Pressures::of_machine(),
        }
    }

    /// What the runtime says of a container.
    pub(super) fn of_container(container: &ContainerUsage, pressure: Pressures) -> Self {
        let number = |n: &Option<cri::UInt64Value>| n.as_ref().map(|n| n.value);
        let stats = &container.stats;
        let (cpu, memory, swap) = (
            stats.cpu.unwrap_or_default(),
            stats.memory.unwrap_or_default(),
            stats.swap.unwrap_or_default(),
        );
        Self {
            time: cpu.timestamp.max(memory.timestamp),
            cpu: number(&cpu.usage_core_nano_seconds),
            cpu_rate: number(&cpu.usage_nano_cores),
            available: number(&memory.available_bytes),
            usage: number(&memory.usage_bytes),
            working_set: number(&memory.working_set_bytes),
            rss: number(&memory.rss_bytes),
            faults: number(&memory.page_faults),
            major_faults: number(&memory.major_page_faults),
            swap: number(&swap.swap_usage_bytes),
            swap_available: number(&swap.swap_available_bytes),
            pressure,
        }
    }

    /// The fields of the API.
    pub(super) fn fields(&self) -> Vec<(&'static str, Value)> {
        let at = || ("time", time(self.time));
        let cpu = [
            ("usageNanoCores", number(self.cpu_rate)),
            ("usageCoreNanoSeconds", number(self.cpu)),
            ("psi", self.pressure.cpu.map_or(Value::Null, pressure)),
        ];
        let memory = [
            ("availableBytes", number(self.available)),
            ("usageBytes", number(self.usage)),
            ("workingSetBytes", number(self.working_set)),
            ("rssBytes", number(self.rss)),
            ("pageFaults", number(self.faults)),
            ("majorPageFaults", number(self.major_faults)),
            ("psi", self.pressure.memory.map_or(Value::Null, pressure)),
        ];
        let io = [("psi", self.pressure.io.map_or(Value::Null, pressure))];
        let swap = [
            ("swapAvailableBytes", number(self.swap_available)),
            ("swapUsageBytes", number(self.swap)),
        ];
        let part = |name, numbers: &[(&'static str, Value)]| {
            if numbers.iter().all(|(_, value)| value.is_null()) {
                return (name, Value::Null);
            }
            (
                name,
                known(std::iter::once(at()).chain(numbers.iter().cloned())),
            )
        };
        vec![
            part("cpu", &cpu),
            part("memory", &memory),
            part("io", &io),
            part("swap", &swap),
        ]
    }
}

pub(super) fn number(n: Option<u64>) -> Value {
    n.map_or(Value::Null, Value::from)
}

fn pressure(of: Pressure) -> Value {
    let waiting = |w: StallTime| object!({"total": w.total, "avg10": w.avg10, "avg60": w.avg60, "avg300": w.avg300});
    object!({"full": waiting(of.full), "some": waiting(of.some)})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_left_out() {
        let used = Consumption {
            cpu: Some(5),
            swap: Some(0),
            pressure: Pressures {
                io: Pressure::parse("some avg10=1 avg60=2 avg300=3 total=4"),
                ..Pressures::default()
            },
            ..Consumption::default()
        };
        let shown = known(used.fields());
        assert_eq!(shown["cpu"]["usageCoreNanoSeconds"], 5);
        assert!(shown["cpu"].get("psi").is_none());
        assert!(shown.get("memory").is_none());
        assert_eq!(shown["io"]["psi"]["some"]["total"], 4);
        assert_eq!(shown["io"]["psi"]["full"]["avg10"], 0.0);
        assert_eq!(shown["swap"]["swapUsageBytes"], 0);
    }
}
