//! What the runtime is told of a container's and a pod's resources, by how the node enforces limits.

use super::{
    Amounts, Qos, amount, container_limit, container_request, cpu_shares, hugepage_resource,
    hugepage_size_text, is_critical, oom_score_adj, pod_level, pod_limits, pod_requests,
};
use crate::pod::{PodExt, Role};
use davit_proto::cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, Pod};

const MIN_QUOTA: i64 = 1000;

/// How limits of CPU become quotas of time (`cpuCFSQuota`, `cpuCFSQuotaPeriod`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuQuotas {
    /// Whether they do.
    pub enforced: bool,
    /// Of which time a quota is the part, in microseconds.
    pub period: i64,
}

impl Default for CpuQuotas {
    fn default() -> Self {
        Self {
            enforced: true,
            period: 100_000,
        }
    }
}

impl CpuQuotas {
    /// The quota in microseconds for so many millicores; 0 = no limit.
    pub fn of(self, milli: i64) -> i64 {
        match self.enforced && milli != 0 {
            true => (milli.saturating_mul(self.period) / 1000).max(MIN_QUOTA),
            false => 0,
        }
    }
}

/// Who may swap (KEP-2400).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SwapBehavior {
    /// Nobody.
    #[default]
    NoSwap,
    /// Containers of burstable pods with a request of memory below their limit, as much of the machine's swap as their request is
    /// of its memory; on cgroups v2.
    LimitedSwap,
}

impl SwapBehavior {
    /// The name in a `KubeletConfiguration`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSwap => "NoSwap",
            Self::LimitedSwap => "LimitedSwap",
        }
    }
}

/// What limits of containers follow from, beside the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitRules {
    /// The machine's memory in bytes.
    pub memory: i64,
    /// The machine's swap in bytes.
    pub swap: i64,
    /// Who may swap, where the kernel counts it; nothing is said of it without.
    pub swapping: Option<SwapBehavior>,
    /// Sizes of the machine's huge pages in bytes.
    pub hugepage_sizes: Vec<u64>,
    /// Whether cgroup v2 is in use.
    pub unified: bool,
    /// Whether out of memory ends one process of a container and not all; on cgroups v2.
    pub single_kill: bool,
    /// How limits of CPU become quotas.
    pub quotas: CpuQuotas,
}

/// What a container's cgroup gets.
pub fn linux_resources(
    pod: &Pod,
    role: Role,
    container: &Container,
    rules: &LimitRules,
) -> cri::LinuxContainerResources {
    let level = pod_level(pod);
    let pod_limit = |name: &str| level.as_ref().and_then(|l| container_limit(l, name));
    let cpu_request = container_request(container, "cpu");
    let cpu_limit = container_limit(container, "cpu")
        .or_else(|| pod_limit("cpu"))
        .unwrap_or(0);
    let quotas = rules.quotas;
    let mut out = cri::LinuxContainerResources {
        cpu_period: if quotas.enforced { quotas.period } else { 0 },
        cpu_quota: quotas.of(cpu_limit),
        cpu_shares: cpu_shares(cpu_request.unwrap_or(0)),
        memory_limit_in_bytes: container_limit(container, "memory")
            .or_else(|| pod_limit("memory"))
            .unwrap_or(0),
        oom_score_adj: oom_score_adj(pod, role, container, rules.memory),
        ..cri::LinuxContainerResources::default()
    };
    for size in &rules.hugepage_sizes {
        let name = hugepage_resource(*size);
        let limit = container_limit(container, &name)
            .or_else(|| pod_limit(&name))
            .unwrap_or(0);
        out.hugepage_limits.push(cri::HugepageLimit {
            page_size: hugepage_size_text(*size),
            limit: u64::try_from(limit).unwrap_or(0),
        });
    }
    if rules.unified && !rules.single_kill && role != Role::Ephemeral {
        out.unified
            .insert("memory.oom.group".to_owned(), "1".to_owned());
    }
    if let Some(behavior) = rules.swapping {
        if rules.unified {
            let swap = swap_limit(pod, container, behavior, rules);
            out.unified
                .insert("memory.swap.max".to_owned(), swap.to_string());
        } else {
            // Memory and swap together may be no more than memory alone.
            out.memory_swap_limit_in_bytes = out.memory_limit_in_bytes;
        }
    }
    out
}

/// How much a container may swap, in bytes.
fn swap_limit(pod: &Pod, container: &Container, behavior: SwapBehavior, rules: &LimitRules) -> i64 {
    let request = container_request(container, "memory").unwrap_or(0);
    let limit = container_limit(container, "memory").unwrap_or(0);
    let may = behavior == SwapBehavior::LimitedSwap
        && !is_critical(pod)
        && Qos::of(pod) == Qos::Burstable
        && request != limit
        && (1..=rules.memory).contains(&request);
    if !may {
        return 0;
    }
    let part = i128::from(request) * i128::from(rules.swap) / i128::from(rules.memory);
    i64::try_from(part).unwrap_or(i64::MAX)
}

/// What a pod's overhead (of its runtime class) is to the runtime.
pub fn overhead(pod: &Pod, quotas: CpuQuotas) -> cri::LinuxContainerResources {
    let overhead = pod.pod_spec().overhead.as_ref();
    let get = |name: &str| {
        let quantity = overhead.and_then(|list| list.get(name));
        quantity.map(|q| amount(name, q)).unwrap_or_default()
    };
    match overhead {
        None => cri::LinuxContainerResources::default(),
        Some(_) => plain_resources(get("cpu"), get("cpu"), get("memory"), quotas),
    }
}

/// What all containers of a pod are given together, without the overhead: for runtimes that set up a machine a pod.
pub fn sandbox_resources(pod: &Pod, quotas: CpuQuotas) -> cri::LinuxContainerResources {
    let mut bare = pod.clone();
    if let Some(spec) = &mut bare.spec {
        spec.overhead = None;
    }
    let requests = pod_requests(&bare);
    let limits = pod_limits(&bare);
    let get = |list: &Amounts, name: &str| list.get(name).copied().unwrap_or_default();
    plain_resources(
        get(&requests, "cpu"),
        get(&limits, "cpu"),
        get(&limits, "memory"),
        quotas,
    )
}

fn plain_resources(
    cpu_request: i64,
    cpu_limit: i64,
    memory: i64,
    quotas: CpuQuotas,
) -> cri::LinuxContainerResources {
    let shares_of = if cpu_request == 0 {
        cpu_limit
    } else {
        cpu_request
    };
    cri::LinuxContainerResources {
        cpu_period: if quotas.enforced { quotas.period } else { 0 },
        cpu_quota: quotas.of(cpu_limit),
        cpu_shares: cpu_shares(shares_of),
        memory_limit_in_bytes: memory,
        ..cri::LinuxContainerResources::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{c, pod};
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_sandbox_is_told() {
        let pod = pod(json!({
            "overhead": {"cpu": "250m", "memory": "10Mi"},
            "containers": [c("a", "1", "100Mi"), {"name": "b", "resources": {"requests": {"cpu": "500m"}}}],
        }));
        let own = overhead(&pod, CpuQuotas::default());
        assert_eq!((own.cpu_shares, own.cpu_quota), (256, 25_000));
        assert_eq!(own.memory_limit_in_bytes, 10 << 20);
        let all = sandbox_resources(&pod, CpuQuotas::default());
        assert_eq!((all.cpu_shares, all.cpu_quota), (1536, 100_000));
        assert_eq!(all.memory_limit_in_bytes, 100 << 20);
    }

    #[test]
    fn quotas_by_period_or_none() {
        let quotas = CpuQuotas::default();
        assert_eq!((quotas.of(5), quotas.of(1500)), (1000, 150_000));
        let shorter = CpuQuotas {
            period: 5000,
            ..quotas
        };
        assert_eq!((shorter.of(5), shorter.of(1500)), (1000, 7500));
        let none = CpuQuotas {
            enforced: false,
            ..quotas
        };
        assert_eq!(none.of(1500), 0);
    }

    #[test]
    fn burstable_containers_may_swap_their_part() {
        let of = |resources: serde_json::Value, behavior, unified| {
            let p = pod(json!({"containers": [{"name": "a", "resources": resources}]}));
            let rules = LimitRules {
                memory: 8 << 30,
                swap: 4 << 30,
                swapping: Some(behavior),
                unified,
                ..LimitRules::default()
            };
            linux_resources(&p, Role::Main, &p.pod_spec().containers[0], &rules)
        };
        let swap = |resources, behavior| {
            let all = of(resources, behavior, true);
            assert_eq!(all.memory_swap_limit_in_bytes, 0);
            all.unified["memory.swap.max"].parse::<i64>().unwrap()
        };
        let burstable = json!({"requests": {"memory": "2Gi"}, "limits": {"memory": "3Gi"}});
        let guaranteed = json!({"limits": {"memory": "2Gi", "cpu": "1"}});
        let limited = SwapBehavior::LimitedSwap;
        assert_eq!(swap(burstable.clone(), limited), 1 << 30);
        assert_eq!(swap(burstable.clone(), SwapBehavior::NoSwap), 0);
        assert_eq!(swap(guaranteed.clone(), limited), 0);
        assert_eq!(swap(json!({"requests": {"cpu": "1"}}), limited), 0);
        assert_eq!(swap(json!({"limits": {"memory": "1Gi"}}), limited), 0);
        assert_eq!(swap(json!({"requests": {"memory": "9Gi"}}), limited), 0);
        let older = of(burstable, limited, false);
        assert_eq!(older.memory_swap_limit_in_bytes, 3 << 30);
        assert!(older.unified.is_empty());
    }

    #[test]
    fn pods_that_the_node_needs_do_not_swap() {
        let resources = json!({"requests": {"memory": "1Gi"}});
        let containers = json!([{"name": "a", "resources": resources}]);
        let p = pod(json!({"priority": 2_000_000_000, "containers": containers}));
        let rules = LimitRules {
            memory: 8 << 30,
            swap: 4 << 30,
            ..LimitRules::default()
        };
        let container = &p.pod_spec().containers[0];
        let behavior = SwapBehavior::LimitedSwap;
        assert_eq!(swap_limit(&p, container, behavior, &rules), 0);
    }
}
