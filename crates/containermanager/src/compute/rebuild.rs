//! Who had which CPUs for itself, from what runs: for the day on which both the allocation log and
//! the state file are lost.

use davit_topology::CpuSet;
use davit_topology::cpu::CpuPolicy;
use davit_topology::devices::ContainerKind;

use crate::allocation::{ComputeHold, PodName};

/// A running container as the runtime describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedContainer {
    /// UID of its pod.
    pub pod_uid: String,
    /// Namespace of its pod.
    pub namespace: String,
    /// Name of its pod.
    pub pod: String,
    /// Its name in the pod's spec.
    pub container: String,
    /// `cpuset_cpus`.
    pub cpuset: String,
    /// `cpu_shares`: 1024 for each CPU that was asked for.
    pub cpu_shares: i64,
    /// `cpu_quota`; not positive without a limit, as containers with CPUs of their own have it.
    pub cpu_quota: i64,
}

/// The containers that had CPUs for themselves. Such a container runs on as many CPUs as it asked
/// for, without a quota, on none that is reserved, and on none where another one runs.
pub(crate) fn exclusive(policy: &CpuPolicy, running: &[PinnedContainer]) -> Vec<ComputeHold> {
    let sets: Vec<CpuSet> = running
        .iter()
        .map(|c| c.cpuset.parse().unwrap_or_default())
        .collect();
    let since = jiff::Timestamp::now().as_millisecond();
    let mut holds = Vec::new();
    for (at, (container, cpus)) in running.iter().zip(&sets).enumerate() {
        let alone = sets
            .iter()
            .enumerate()
            .all(|(other, set)| other == at || set.is_disjoint(cpus));
        let asked = i64::try_from(cpus.len())
            .unwrap_or(i64::MAX)
            .saturating_mul(1024);
        let fits = !cpus.is_empty()
            && container.cpu_quota <= 0
            && container.cpu_shares == asked
            && cpus.is_disjoint(&policy.reserved)
            && cpus.difference(policy.topology.all()).is_empty();
        if alone && fits {
            holds.push(ComputeHold {
                pod: PodName {
                    uid: container.pod_uid.clone(),
                    namespace: container.namespace.clone(),
                    name: container.pod.clone(),
                },
                container: container.container.clone(),
                kind: ContainerKind::App,
                cpus: cpus.clone(),
                memory: Vec::new(),
                since,
            });
        }
    }
    holds
}

#[cfg(test)]
mod tests {
    use super::*;
    use davit_topology::Hardware;
    use davit_topology::cpu::{CpuOptions, CpuTopology};

    fn container(name: &str, cpuset: &str, cpu_shares: i64, cpu_quota: i64) -> PinnedContainer {
        PinnedContainer {
            pod_uid: format!("uid-{name}"),
            namespace: "default".to_owned(),
            pod: name.to_owned(),
            container: "main".to_owned(),
            cpuset: cpuset.to_owned(),
            cpu_shares,
            cpu_quota,
        }
    }

    #[test]
    fn only_what_can_be_nothing_else_is_exclusive() {
        let policy = CpuPolicy {
            topology: CpuTopology::new(&Hardware::grid(1, 1, 8, 1, 1 << 30)),
            options: CpuOptions::default(),
            reserved: "0".parse().unwrap(),
        };
        let running = [
            container("own", "1-2", 2048, -1),
            container("shared", "0,4-7", 5120, -1),
            container("limited", "0,4-7", 2, 100_000),
            container("more", "3", 2048, -1),
            container("odd", "", 1024, 0),
            container("gone", "9", 1024, 0),
        ];
        let found = exclusive(&policy, &running);
        let names: Vec<&str> = found.iter().map(|h| h.pod.name.as_str()).collect();
        assert_eq!(names, ["own"]);
        assert_eq!(found[0].cpus.to_string(), "1-2");
    }
}
