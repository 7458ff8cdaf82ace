//! What cgroups above containers are limited to, as the kubelet computes it.
//!
//! A pod's weight is what it requests, so that containers of different pods share a busy machine by their requests. It
//! is held to its limits as a whole only where all of it has limits, or the pod as such has one (KEP-2837).

use davit_oci::cgroup::Limits;
use davit_pods::resources::{
    Amounts, CpuQuotas, Qos, cpu_shares, hugepage_resource, hugepage_size_text, pod_limit,
    pod_limits, pod_requests,
};
use k8s_openapi::api::core::v1::Pod;

/// No limit.
const NONE: i64 = -1;

fn shares(milli: i64) -> Option<u64> {
    u64::try_from(cpu_shares(milli)).ok()
}

/// The limits of a pod as a whole. `unthrottled`: a container has CPUs to itself, and nobody takes time on them away.
/// `pids`: how many processes and threads it may have.
pub(super) fn of_pod(pod: &Pod, unthrottled: bool, pids: Option<i64>, quotas: CpuQuotas) -> Limits {
    let requested = pod_requests(pod).get("cpu").copied().unwrap_or(0);
    let best_effort = Qos::of(pod) == Qos::BestEffort;
    let quota = pod_limit(pod, "cpu").filter(|_| quotas.enforced && !unthrottled);
    Limits {
        cpu_shares: shares(if best_effort { 0 } else { requested }),
        cpu_quota: Some(quota.map_or(NONE, |milli| quotas.of(milli))),
        cpu_period: Some(quotas.period.cast_unsigned()),
        memory: Some(pod_limit(pod, "memory").unwrap_or(NONE)),
        pids,
        ..Limits::default()
    }
}

/// What a pod may have of huge pages of each of these sizes. A page that a file of a volume holds is no longer counted for a
/// container that has ended, but for its pod.
pub(super) fn huge_pages(pod: &Pod, sizes: &[u64]) -> Vec<(String, i64)> {
    let limits = pod_limits(pod);
    let limit = |size| limits.get(&hugepage_resource(size)).copied().unwrap_or(0);
    sizes
        .iter()
        .map(|size| (hugepage_size_text(*size), limit(*size)))
        .collect()
}

/// Limits under which both what has the one and what has the other can live, for the time in which containers change.
pub(super) fn either(one: &Limits, other: &Limits) -> Limits {
    let more = |a: Option<i64>, b: Option<i64>| match (a, b) {
        (Some(a), Some(b)) if a >= 0 && b >= 0 => Some(a.max(b)),
        (None, None) => None,
        _ => Some(NONE),
    };
    Limits {
        cpu_shares: one.cpu_shares.max(other.cpu_shares),
        cpu_quota: more(one.cpu_quota, other.cpu_quota),
        memory: more(one.memory, other.memory),
        ..other.clone()
    }
}

/// The weight of all burstable pods together.
pub(super) fn of_burstable<'a>(pods: impl Iterator<Item = &'a Pod>) -> Limits {
    let burstable = pods.filter(|pod| Qos::of(pod) == Qos::Burstable);
    let requested = burstable.map(|pod| pod_requests(pod).get("cpu").copied().unwrap_or(0));
    Limits {
        cpu_shares: shares(requested.sum()),
        ..Limits::default()
    }
}

/// The weight of all pods that request nothing together.
pub(super) fn of_best_effort() -> Limits {
    Limits {
        cpu_shares: shares(0),
        ..Limits::default()
    }
}

/// What burstable pods and those that request nothing may have of this much memory, where `percent` of what others request is
/// kept for those (`qosReserved`).
pub(super) fn of_classes<'a>(
    memory: i64,
    percent: i64,
    pods: impl Iterator<Item = &'a Pod>,
) -> [Limits; 2] {
    let (mut guaranteed, mut burstable) = (0_i64, 0_i64);
    for pod in pods {
        let requested = pod_requests(pod).get("memory").copied().unwrap_or(0);
        match Qos::of(pod) {
            Qos::Guaranteed => guaranteed += requested,
            Qos::Burstable => burstable += requested,
            Qos::BestEffort => {}
        }
    }
    let kept = |requested: i64| requested.saturating_mul(percent) / 100;
    let burstable_limit = memory - kept(guaranteed);
    let best_effort_limit = burstable_limit - kept(burstable);
    [burstable_limit, best_effort_limit].map(|bytes| Limits {
        // none at all is no limit to the kernel's files
        memory: Some(bytes.max(1)),
        ..Limits::default()
    })
}

/// What all pods may use together: the machine, less what is reserved for the system.
pub(super) fn of_all_pods(cpus: i64, memory: i64, reserved: &Amounts) -> Limits {
    let left = |name: &str, all: i64| (all - reserved.get(name).copied().unwrap_or(0)).max(0);
    Limits {
        cpu_shares: shares(left("cpu", cpus)),
        memory: Some(left("memory", memory)).filter(|n| *n > 0),
        ..Limits::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: &Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    fn container(requests: &Value, limits: &Value) -> Value {
        json!({"name": "c", "resources": {"requests": requests, "limits": limits}})
    }

    fn whole(pod: &Pod, unthrottled: bool, pids: Option<i64>) -> Limits {
        of_pod(pod, unthrottled, pids, CpuQuotas::default())
    }

    fn shape(limits: &Limits) -> (u64, i64, i64) {
        let of = |n: Option<i64>| n.unwrap_or(0);
        (
            limits.cpu_shares.unwrap_or(0),
            of(limits.cpu_quota),
            of(limits.memory),
        )
    }

    #[test]
    fn a_pod_weighs_what_it_requests_and_is_limited_where_all_of_it_is() {
        let both = json!({"cpu": "500m", "memory": "64Mi"});
        let one = container(&both, &both);
        let none = json!({"name": "d"});
        let all_limited = pod(&json!({"containers": [one, one]}));
        assert_eq!(
            shape(&whole(&all_limited, false, None)),
            (1024, 100_000, 128 << 20)
        );
        assert_eq!(
            shape(&whole(&all_limited, true, None)),
            (1024, -1, 128 << 20)
        );
        let partly = pod(&json!({"containers": [one, none]}));
        assert_eq!(shape(&whole(&partly, false, None)), (512, -1, -1));
        let open_init = pod(&json!({"containers": [one], "initContainers": [none]}));
        assert_eq!(shape(&whole(&open_init, false, None)), (512, -1, -1));
        let nothing = pod(&json!({"containers": [none]}));
        assert_eq!(shape(&whole(&nothing, false, None)), (2, -1, -1));
    }

    #[test]
    fn a_limit_of_the_pod_counts_whatever_its_containers_have() {
        let p = pod(&json!({
            "containers": [{"name": "a"}, {"name": "b"}],
            "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}},
        }));
        assert_eq!(shape(&whole(&p, false, Some(100))), (1024, -1, 1 << 30));
        assert_eq!(whole(&p, false, Some(100)).pids, Some(100));
    }

    #[test]
    fn a_pod_has_the_huge_pages_of_its_limits_and_no_others() {
        let both = json!({"cpu": "1", "hugepages-2Mi": "4Mi"});
        let p = pod(&json!({"containers": [container(&both, &both), container(&both, &both)]}));
        let wanted = [("2MB".to_owned(), 8 << 20), ("1GB".to_owned(), 0)];
        assert_eq!(huge_pages(&p, &[2 << 20, 1 << 30]), wanted);
    }

    #[test]
    fn the_overhead_comes_on_top() {
        let both = json!({"cpu": "500m", "memory": "64Mi"});
        let p = pod(&json!({
            "containers": [container(&both, &both)],
            "overhead": {"cpu": "500m", "memory": "64Mi"},
        }));
        assert_eq!(shape(&whole(&p, false, None)), (1024, 100_000, 128 << 20));
    }

    #[test]
    fn while_containers_change_the_larger_counts() {
        let of = |shares, quota, memory| Limits {
            cpu_shares: Some(shares),
            cpu_quota: Some(quota),
            memory: Some(memory),
            ..Limits::default()
        };
        let both = either(&of(2, 50_000, -1), &of(512, 20_000, 1 << 20));
        assert_eq!(shape(&both), (512, 50_000, -1));
    }

    #[test]
    fn quotas_by_another_period_or_none() {
        let both = json!({"cpu": "500m"});
        let p = pod(&json!({"containers": [container(&both, &both)]}));
        let quotas = CpuQuotas {
            enforced: true,
            period: 10_000,
        };
        let limits = of_pod(&p, false, None, quotas);
        assert_eq!(
            (limits.cpu_quota, limits.cpu_period),
            (Some(5000), Some(10_000))
        );
        let none = CpuQuotas {
            enforced: false,
            ..quotas
        };
        assert_eq!(of_pod(&p, false, None, none).cpu_quota, Some(-1));
    }

    #[test]
    fn memory_is_kept_for_those_who_asked_for_it() {
        let gib = |n: i64| json!({"memory": format!("{n}Gi"), "cpu": "1"});
        let pods = [
            pod(&json!({"containers": [container(&gib(2), &gib(2))]})),
            pod(&json!({"containers": [container(&gib(1), &gib(2))]})),
            pod(&json!({"containers": [{"name": "x"}]})),
        ];
        let memory = |percent| of_classes(8 << 30, percent, pods.iter()).map(|l| l.memory.unwrap());
        assert_eq!(memory(100), [6 << 30, 5 << 30]);
        assert_eq!(memory(50), [7 << 30, (7 << 30) - (1 << 29)]);
        assert_eq!(memory(0), [8 << 30, 8 << 30]);
    }

    #[test]
    fn classes_and_the_machine() {
        let request =
            |cpu: &str| pod(&json!({"containers": [container(&json!({"cpu": cpu}), &json!({}))]}));
        let pods = [
            request("1"),
            request("250m"),
            pod(&json!({"containers": [{"name": "x"}]})),
        ];
        assert_eq!(of_burstable(pods.iter()).cpu_shares, Some(1280));
        assert_eq!(of_burstable(pods[2..].iter()).cpu_shares, Some(2));
        assert_eq!(of_best_effort().cpu_shares, Some(2));
        let reserved = Amounts::from([("cpu".to_owned(), 500), ("memory".to_owned(), 1 << 30)]);
        let all = of_all_pods(4000, 8 << 30, &reserved);
        assert_eq!(shape(&all), (3584, 0, 7 << 30));
    }
}
