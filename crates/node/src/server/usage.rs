//! What the node, its pods and their containers use, as the runtime and `/proc` say it.

use crate::context::Context;
use crate::runtime_state::keys;
use davit_cadvisor::CpuRates;
use davit_oci::runtime::Error;
use davit_proto::cri::v1 as cri;
use jiff::Timestamp;
use std::collections::{BTreeMap, HashMap};

/// Ticks a second in `/proc/stat`; the kernel's interface fixes them.
const TICKS: u64 = 100;

/// One look at everything.
#[derive(Debug)]
pub(super) struct Usage {
    pub(super) node: NodeUsage,
    /// Sorted by namespace and name.
    pub(super) pods: Vec<PodUsage>,
}

/// The whole machine.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NodeUsage {
    /// Nanoseconds since the epoch.
    pub(super) time: i64,
    /// Core-nanoseconds since boot; what was idle or waited for a disk does not count.
    pub(super) cpu_nanos: Option<u64>,
    /// Bytes.
    pub(super) memory_total: u64,
    /// Bytes; without what can be taken back.
    pub(super) memory_free: u64,
    /// Bytes.
    pub(super) memory_available: u64,
    /// Bytes.
    pub(super) swap_total: u64,
    /// Bytes.
    pub(super) swap_free: u64,
    /// Core-nanoseconds a second.
    pub(super) cpu_rate: Option<u64>,
    /// Memory of processes that is no file's, in bytes.
    pub(super) anonymous: Option<u64>,
    /// Page faults since boot, major ones among them.
    pub(super) faults: Option<u64>,
    /// Faults that waited for a disk.
    pub(super) major_faults: Option<u64>,
    /// When the machine started, in nanoseconds since the epoch.
    pub(super) booted: Option<i64>,
}

impl NodeUsage {
    pub(super) fn working_set(&self) -> u64 {
        self.memory_total.saturating_sub(self.memory_available)
    }

    fn read() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let events = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
        Self::parse(&stat, &memory, &events)
    }

    fn parse(stat: &str, memory: &str, events: &str) -> Self {
        let known = |name: &str| {
            let line = memory
                .lines()
                .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok())
                .map(|k| k * 1024)
        };
        let bytes = |name: &str| known(name).unwrap_or(0);
        let event = |name: &str| {
            let line = events.lines().find_map(|l| l.strip_prefix(name));
            line?.strip_prefix(' ')?.parse().ok()
        };
        Self {
            time: now(),
            cpu_nanos: cpu_nanos(stat),
            memory_total: bytes("MemTotal"),
            memory_free: bytes("MemFree"),
            memory_available: bytes("MemAvailable"),
            swap_total: bytes("SwapTotal"),
            swap_free: bytes("SwapFree"),
            cpu_rate: None,
            anonymous: known("AnonPages"),
            faults: event("pgfault"),
            major_faults: event("pgmajfault"),
            booted: booted(stat),
        }
    }
}

/// The line `btime` of `/proc/stat`, in nanoseconds.
fn booted(stat: &str) -> Option<i64> {
    let seconds = stat.lines().find_map(|l| l.strip_prefix("btime "))?;
    seconds
        .trim()
        .parse::<i64>()
        .ok()?
        .checked_mul(1_000_000_000)
}

/// user, nice, system, irq, softirq and steal of the first line of `/proc/stat`; guests are part of user.
fn cpu_nanos(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|l| l.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .map_while(|n| n.parse().ok())
        .collect();
    let busy: u64 = [0, 1, 2, 5, 6, 7]
        .iter()
        .filter_map(|i| ticks.get(*i))
        .sum();
    (ticks.len() >= 4).then(|| busy.saturating_mul(1_000_000_000 / TICKS))
}

/// One pod.
#[derive(Debug)]
pub(super) struct PodUsage {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// Sorted by name.
    pub(super) containers: Vec<ContainerUsage>,
}

impl PodUsage {
    /// A number of all containers together, with the time of the newest; nothing when no container has it.
    pub(super) fn sum(
        &self,
        number: impl Fn(&cri::ContainerStats) -> Option<(i64, u64)>,
    ) -> Option<(i64, u64)> {
        self.containers
            .iter()
            .filter_map(|c| number(&c.stats))
            .reduce(|a, b| (a.0.max(b.0), a.1.saturating_add(b.1)))
    }

    /// When its first container was made, in nanoseconds since the epoch.
    pub(super) fn started(&self) -> Option<i64> {
        self.containers.iter().filter_map(|c| c.started).min()
    }
}

/// One container that runs.
#[derive(Debug)]
pub(super) struct ContainerUsage {
    pub(super) name: String,
    /// As the runtime calls it.
    pub(super) image: String,
    /// Nanoseconds since the epoch.
    pub(super) started: Option<i64>,
    pub(super) stats: cri::ContainerStats,
}

impl ContainerUsage {
    /// Says how fast processor time is used, where the runtime does not.
    fn rate(&mut self, rates: &CpuRates) {
        let Some((time, used)) = cpu(&self.stats) else {
            return;
        };
        let id = self.stats.attributes.as_ref().map(|a| a.id.as_str());
        let rate = rates.at(id.unwrap_or_default(), time, used);
        if let Some(cpu) = &mut self.stats.cpu
            && cpu.usage_nano_cores.is_none()
        {
            cpu.usage_nano_cores = rate.map(|value| cri::UInt64Value { value });
        }
    }
}

/// Processor time so far, with its time stamp.
pub(super) fn cpu(stats: &cri::ContainerStats) -> Option<(i64, u64)> {
    let cpu = stats.cpu.as_ref()?;
    Some((cpu.timestamp, cpu.usage_core_nano_seconds.as_ref()?.value))
}

/// The working set, with its time stamp.
pub(super) fn working_set(stats: &cri::ContainerStats) -> Option<(i64, u64)> {
    let memory = stats.memory.as_ref()?;
    Some((memory.timestamp, memory.working_set_bytes.as_ref()?.value))
}

/// Swap in use, with its time stamp.
pub(super) fn swap(stats: &cri::ContainerStats) -> Option<(i64, u64)> {
    let swap = stats.swap.as_ref()?;
    Some((swap.timestamp, swap.swap_usage_bytes.as_ref()?.value))
}

/// The swap a container may use, with its time stamp.
pub(super) fn swap_limit(stats: &cri::ContainerStats) -> Option<(i64, u64)> {
    let swap = stats.swap.as_ref()?;
    let used = swap.swap_usage_bytes.as_ref().map_or(0, |n| n.value);
    let free = swap.swap_available_bytes.as_ref()?.value;
    Some((swap.timestamp, free.saturating_add(used)))
}

/// Nanoseconds since the epoch.
pub(super) fn now() -> i64 {
    i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

/// Looks at the node and asks the runtime.
///
/// # Errors
/// Those of the runtime.
pub(super) async fn collect(ctx: &Context) -> Result<Usage, Error> {
    let stats = ctx.runtime.list_container_stats(None).await?;
    let containers = ctx.runtime.list_containers(None).await?;
    let mut node = NodeUsage::read();
    node.cpu_rate = node
        .cpu_nanos
        .and_then(|nanos| ctx.cpu_rates.at("/", node.time, nanos));
    let mut pods = by_pod(stats, &containers);
    for container in pods.iter_mut().flat_map(|pod| &mut pod.containers) {
        container.rate(&ctx.cpu_rates);
    }
    Ok(Usage { node, pods })
}

fn by_pod(stats: Vec<cri::ContainerStats>, containers: &[cri::Container]) -> Vec<PodUsage> {
    let running = cri::ContainerState::ContainerRunning as i32;
    let known: HashMap<&str, &cri::Container> =
        containers.iter().map(|c| (c.id.as_str(), c)).collect();
    let mut pods: BTreeMap<(String, String, String), Vec<ContainerUsage>> = BTreeMap::new();
    for one in stats {
        let Some(attributes) = &one.attributes else {
            continue;
        };
        let container = known.get(attributes.id.as_str());
        if container.is_some_and(|c| c.state != running) {
            continue;
        }
        let label = |key: &str| attributes.labels.get(key).cloned().unwrap_or_default();
        let pod = (
            label(keys::POD_NAMESPACE),
            label(keys::POD_NAME),
            label(keys::POD_UID),
        );
        if pod.1.is_empty() {
            continue;
        }
        pods.entry(pod).or_default().push(ContainerUsage {
            name: label(keys::CONTAINER_NAME),
            image: container
                .and_then(|c| c.image.as_ref())
                .map(|image| match image.user_specified_image.as_str() {
                    "" => image.image.clone(),
                    named => named.to_owned(),
                })
                .unwrap_or_default(),
            started: container.map(|c| c.created_at).filter(|t| *t > 0),
            stats: one,
        });
    }
    pods.into_iter()
        .map(|((namespace, name, uid), mut containers)| {
            containers.sort_by(|a, b| a.name.cmp(&b.name));
            PodUsage {
                namespace,
                name,
                uid,
                containers,
            }
        })
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A container of a pod as the runtime reports it.
    pub(crate) fn reported(pod: &str, name: &str, nanos: u64, bytes: u64) -> cri::ContainerStats {
        let number = |value| Some(cri::UInt64Value { value });
        let label = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        cri::ContainerStats {
            attributes: Some(cri::ContainerAttributes {
                id: format!("{pod}-{name}"),
                labels: [
                    label(keys::POD_NAMESPACE, "default"),
                    label(keys::POD_NAME, pod),
                    label(keys::POD_UID, "u"),
                    label(keys::CONTAINER_NAME, name),
                ]
                .into(),
                ..cri::ContainerAttributes::default()
            }),
            cpu: Some(cri::CpuUsage {
                timestamp: 5_000_000,
                usage_core_nano_seconds: number(nanos),
                ..cri::CpuUsage::default()
            }),
            memory: Some(cri::MemoryUsage {
                timestamp: 6_000_000,
                working_set_bytes: number(bytes),
                ..cri::MemoryUsage::default()
            }),
            ..cri::ContainerStats::default()
        }
    }

    /// Two pods, one of them with a container that has ended.
    pub(crate) fn example() -> Usage {
        let container = |id: &str, state: cri::ContainerState| cri::Container {
            id: id.to_owned(),
            state: state as i32,
            created_at: 1_500_000_000,
            ..cri::Container::default()
        };
        let stats = vec![
            reported("b", "side", 500_000_000, 10),
            reported("b", "main", 1_000_000_000, 20),
            reported("a", "main", 2_000_000_000, 30),
            reported("a", "init", 9_000_000_000, 90),
        ];
        let containers = [
            container("b-side", cri::ContainerState::ContainerRunning),
            container("b-main", cri::ContainerState::ContainerRunning),
            container("a-main", cri::ContainerState::ContainerRunning),
            container("a-init", cri::ContainerState::ContainerExited),
        ];
        let memory = "MemTotal: 100 kB\nMemAvailable: 40 kB\nSwapTotal: 8 kB\nSwapFree: 6 kB\n";
        let stat = "cpu  100 20 30 4000 50 6 7 8 0 0\ncpu0 1 1 1 1\nbtime 5\n";
        let mut node = NodeUsage::parse(stat, memory, "pgfault 9\npgmajfault 2\n");
        node.time = 7_000_000;
        Usage {
            node,
            pods: by_pod(stats, &containers),
        }
    }

    #[test]
    fn usage_by_pod() {
        let usage = example();
        let names: Vec<&str> = usage.pods.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(
            usage.pods[0].containers.len(),
            1,
            "what ended does not count"
        );
        assert_eq!(usage.pods[1].sum(cpu), Some((5_000_000, 1_500_000_000)));
        assert_eq!(usage.pods[1].sum(working_set), Some((6_000_000, 30)));
        assert_eq!(usage.pods[1].sum(swap), None);
        assert_eq!(usage.node.cpu_nanos, Some(171 * 10_000_000));
        assert_eq!(usage.node.working_set(), 60 * 1024);
        assert_eq!(
            (usage.node.faults, usage.node.major_faults),
            (Some(9), Some(2))
        );
        assert_eq!(usage.node.booted, Some(5_000_000_000));
        assert_eq!(usage.node.anonymous, None, "not told");
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        assert_eq!(cpu_nanos(""), None);
        assert_eq!(cpu_nanos("cpu  1 2"), None);
    }
}
