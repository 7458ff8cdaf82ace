//! What the node itself needs, apart from pods: the agent, the runtime, and the group of all pods.

use super::consumption::Consumption;
use super::{known, time};
use crate::context::Context;
use davit_oci::cgroup::Cgroup;
use serde_json::Value;
use std::time::UNIX_EPOCH;

/// Ticks a second in `/proc/PID/stat`; the kernel's interface fixes them.
const TICK_NANOS: u64 = 1_000_000_000 / 100;

/// The runtime's name of itself where it is a part of this process.
const EMBEDDED: &str = "davit";

/// `kubelet`, `runtime` where that is the agent itself, `pods` where the agent keeps their cgroup. `booted` is when the
/// machine started.
pub(super) fn containers(ctx: &Context, at: i64, booted: Option<i64>) -> Vec<Value> {
    let groups = ctx.cgroups.as_ref();
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let process = Process::parse(&stat, &status);
    let own = groups.and_then(davit_machine::PodCgroups::own);
    let agent = own.map_or_else(
        || process.as_ref().map(|process| process.consumption(at)),
        |group| Some(Consumption::of_group(&group, at)),
    );
    let started = process.and_then(|process| Some(booted? + process.started_after()));
    let mut shown = Vec::new();
    if let Some(agent) = agent {
        let mut names = vec!["kubelet"];
        if ctx.runtime_name == EMBEDDED {
            names.push("runtime");
        }
        let agent = rated(ctx, "system/kubelet", agent);
        shown.extend(
            names
                .into_iter()
                .map(|name| container(name, started, &agent)),
        );
    }
    if let Some(group) = groups.map(davit_machine::PodCgroups::of_all) {
        let used = rated(ctx, "system/pods", Consumption::of_group(&group, at));
        shown.push(container("pods", made(&group), &used));
    }
    shown
}

fn rated(ctx: &Context, name: &str, mut used: Consumption) -> Consumption {
    used.cpu_rate = used
        .cpu
        .and_then(|nanos| ctx.cpu_rates.at(name, used.time, nanos));
    used
}

fn container(name: &str, started: Option<i64>, used: &Consumption) -> Value {
    let head = [
        ("name", name.into()),
        ("startTime", started.map_or(Value::Null, time)),
    ];
    known(head.into_iter().chain(used.fields()))
}

/// As cAdvisor: when the directory was last changed.
fn made(group: &Cgroup) -> Option<i64> {
    let since = group.changed_at()?.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_nanos()).ok()
}

/// What the kernel says of one process.
#[derive(Debug, PartialEq, Eq)]
struct Process {
    minor_faults: u64,
    major_faults: u64,
    /// Outside of the kernel and in it.
    ticks: u64,
    /// Ticks after boot.
    started: u64,
    /// Bytes in memory.
    resident: Option<u64>,
    /// Those that are no file's.
    anonymous: Option<u64>,
}

impl Process {
    /// Reads `stat` and `status` in `/proc/PID`; the name in parentheses may hold anything.
    fn parse(stat: &str, status: &str) -> Option<Self> {
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // The first one is the third of proc(5).
        let at = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let bytes = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name));
            let number = line?.strip_prefix(':')?.split_whitespace().next()?;
            number.parse::<u64>().ok()?.checked_mul(1024)
        };
        Some(Self {
            minor_faults: at(10)?,
            major_faults: at(12)?,
            ticks: at(14)?.saturating_add(at(15)?),
            started: at(22)?,
            resident: bytes("VmRSS"),
            anonymous: bytes("RssAnon"),
        })
    }

    /// Nanoseconds between boot and its start.
    fn started_after(&self) -> i64 {
        i64::try_from(self.started.saturating_mul(TICK_NANOS)).unwrap_or(i64::MAX)
    }

    fn consumption(&self, time: i64) -> Consumption {
        Consumption {
            time,
            cpu: Some(self.ticks.saturating_mul(TICK_NANOS)),
            usage: self.resident,
            working_set: self.resident,
            rss: self.anonymous,
            faults: Some(self.minor_faults.saturating_add(self.major_faults)),
            major_faults: Some(self.major_faults),
            ..Consumption::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_by_its_line() {
        let line = "7 (a) b) S 1 7 7 0 -1 4194560 500 0 3 0 20 5 0 0 20 0 9 0 1000 4096 25 99\n";
        let status = "Name: x\nVmRSS:\t      8 kB\nRssAnon:\t   4 kB\n";
        let process = Process::parse(line, status).unwrap();
        let wanted = Process {
            minor_faults: 500,
            major_faults: 3,
            ticks: 25,
            started: 1000,
            resident: Some(8192),
            anonymous: Some(4096),
        };
        assert_eq!(process, wanted);
        assert_eq!(process.started_after(), 10_000_000_000);
        assert_eq!(process.consumption(1).cpu, Some(250_000_000));
        assert_eq!(process.consumption(1).faults, Some(503));
        assert_eq!(Process::parse("", ""), None);
        let own = ["stat", "status"]
            .map(|file| std::fs::read_to_string(format!("/proc/self/{file}")).unwrap());
        assert!(Process::parse(&own[0], &own[1]).unwrap().resident > Some(0));
    }
}
