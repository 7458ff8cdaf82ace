//! Metrics under the names of kube-scheduler.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::framework::PointTimes;
use crate::queue::Counts;

/// How an attempt ended, for the label `result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptResult {
    /// The pod was bound.
    Scheduled,
    /// No node takes the pod.
    Unschedulable,
    /// Something went wrong.
    Error,
}

impl AttemptResult {
    fn label(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Unschedulable => "unschedulable",
            Self::Error => "error",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AttemptLabels {
    profile: String,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    queue: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CacheLabels {
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct IncomingLabels {
    event: &'static str,
    queue: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ExtenderLabels {
    extender: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PointLabels {
    extension_point: &'static str,
    status: &'static str,
    profile: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusingLabels {
    plugin: &'static str,
    profile: String,
}

/// Points are quick: 0.1 ms to 200 ms.
fn point_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 12))
}

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

/// How many attempts a pod has taken: a number, `15+` from there on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PodAttemptsLabels {
    attempts: String,
}

/// Pods may wait for long: 10 ms to an hour and a half.
fn pod_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.01, 2.0, 20))
}

/// The scheduler's metrics. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    attempts: Family<AttemptLabels, Counter>,
    attempt_seconds: Family<AttemptLabels, Histogram, fn() -> Histogram>,
    algorithm_seconds: Histogram,
    pending: Family<QueueLabels, Gauge>,
    cache_size: Family<CacheLabels, Gauge>,
    pod_attempts: Histogram,
    pod_seconds: Family<PodAttemptsLabels, Histogram, fn() -> Histogram>,
    preemptions: Counter,
    preemption_victims: Histogram,
    point_seconds: Family<PointLabels, Histogram, fn() -> Histogram>,
    unschedulable: Family<RefusingLabels, Gauge>,
    incoming: Family<IncomingLabels, Counter>,
    group_attempts: Family<AttemptLabels, Counter>,
    group_attempt_seconds: Family<AttemptLabels, Histogram, fn() -> Histogram>,
    group_algorithm_seconds: Histogram,
    extender_failures: Family<ExtenderLabels, Counter>,
    extenders_left_alone: Family<ExtenderLabels, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            attempts: Family::default(),
            attempt_seconds: Family::new_with_constructor(seconds as fn() -> Histogram),
            algorithm_seconds: seconds(),
            pending: Family::default(),
            cache_size: Family::default(),
            pod_attempts: Histogram::new(exponential_buckets(1.0, 2.0, 5)),
            pod_seconds: Family::new_with_constructor(pod_seconds as fn() -> Histogram),
            preemptions: Counter::default(),
            preemption_victims: Histogram::new(exponential_buckets(1.0, 2.0, 7)),
            point_seconds: Family::new_with_constructor(point_seconds as fn() -> Histogram),
            unschedulable: Family::default(),
            incoming: Family::default(),
            group_attempts: Family::default(),
            group_attempt_seconds: Family::new_with_constructor(seconds as fn() -> Histogram),
            group_algorithm_seconds: seconds(),
            extender_failures: Family::default(),
            extenders_left_alone: Family::default(),
        }
    }
}

impl Metrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let scheduler = registry.sub_registry_with_prefix("scheduler");
        scheduler.register(
            "schedule_attempts",
            "Number of attempts to schedule pods, by the result",
            self.attempts.clone(),
        );
        scheduler.register(
            "scheduling_attempt_duration_seconds",
            "Scheduling attempt latency in seconds (scheduling algorithm + binding)",
            self.attempt_seconds.clone(),
        );
        scheduler.register(
            "scheduling_algorithm_duration_seconds",
            "Scheduling algorithm latency in seconds",
            self.algorithm_seconds.clone(),
        );
        scheduler.register(
            "extender_failures",
            "Number of calls that an extender has not answered as it should",
            self.extender_failures.clone(),
        );
        scheduler.register(
            "extender_left_alone",
            "1 while an extender is not asked because it has failed too often",
            self.extenders_left_alone.clone(),
        );
        scheduler.register(
            "pending_pods",
            "Number of pending pods, by the queue type",
            self.pending.clone(),
        );
        scheduler.register(
            "cache_size",
            "Number of nodes, pods, and assumed pods in the scheduler cache",
            self.cache_size.clone(),
        );
        scheduler.register(
            "pod_scheduling_attempts",
            "Number of attempts to successfully schedule a pod",
            self.pod_attempts.clone(),
        );
        scheduler.register(
            "pod_scheduling_sli_duration_seconds",
            "Latency of a pod from its first attempt until it is bound, over all attempts",
            self.pod_seconds.clone(),
        );
        scheduler.register(
            "preemption_attempts",
            "Total preemption attempts in the cluster till now",
            self.preemptions.clone(),
        );
        scheduler.register(
            "preemption_victims",
            "Number of selected preemption victims",
            self.preemption_victims.clone(),
        );
        scheduler.register(
            "framework_extension_point_duration_seconds",
            "Latency for running all plugins of a specific extension point",
            self.point_seconds.clone(),
        );
        scheduler.register(
            "unschedulable_pods",
            "The number of unschedulable pods broken down by plugin name; one counts for each plugin that refuses it",
            self.unschedulable.clone(),
        );
        scheduler.register(
            "queue_incoming_pods",
            "Number of pods added to scheduling queues by event and queue type",
            self.incoming.clone(),
        );
        scheduler.register(
            "podgroup_schedule_attempts",
            "Number of attempts to schedule pod groups, by the result",
            self.group_attempts.clone(),
        );
        scheduler.register(
            "podgroup_scheduling_attempt_duration_seconds",
            "Pod group scheduling attempt latency in seconds",
            self.group_attempt_seconds.clone(),
        );
        scheduler.register(
            "podgroup_scheduling_algorithm_duration_seconds",
            "Pod group scheduling algorithm latency in seconds",
            self.group_algorithm_seconds.clone(),
        );
    }

    pub(crate) fn group_attempt(&self, profile: &str, result: &'static str, took: Duration) {
        let labels = AttemptLabels {
            profile: profile.to_owned(),
            result,
        };
        self.group_attempts.get_or_create(&labels).inc();
        self.group_attempt_seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    pub(crate) fn group_algorithm(&self, took: Duration) {
        self.group_algorithm_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn attempt(&self, profile: &str, result: AttemptResult, took: Duration) {
        let labels = AttemptLabels {
            profile: profile.to_owned(),
            result: result.label(),
        };
        self.attempts.get_or_create(&labels).inc();
        self.attempt_seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    pub(crate) fn algorithm(&self, took: Duration) {
        self.algorithm_seconds.observe(took.as_secs_f64());
    }

    /// A pod is bound: after how many attempts, and how long after the first began.
    pub(crate) fn scheduled_after(&self, attempts: u32, took: Duration) {
        const MANY: u32 = 15;
        self.pod_attempts.observe(f64::from(attempts));
        let labels = PodAttemptsLabels {
            attempts: if attempts < MANY {
                attempts.to_string()
            } else {
                format!("{MANY}+")
            },
        };
        self.pod_seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    /// Room is made for a pod: so many others go.
    pub(crate) fn preemption(&self, victims: usize) {
        self.preemptions.inc();
        self.preemption_victims.observe(victims as f64);
    }

    /// How long the points of an attempt took.
    pub(crate) fn points(&self, profile: &str, times: &PointTimes) {
        for time in times.iter() {
            let labels = PointLabels {
                extension_point: time.point.label(),
                status: time.code.label(),
                profile: profile.to_owned(),
            };
            self.point_seconds
                .get_or_create(&labels)
                .observe(time.took.as_secs_f64());
        }
    }

    /// So many waiting pods are refused by a plugin.
    pub(crate) fn unschedulable(&self, plugin: &'static str, profile: &str, pods: usize) {
        let labels = RefusingLabels {
            plugin,
            profile: profile.to_owned(),
        };
        let pods = i64::try_from(pods).unwrap_or(i64::MAX);
        self.unschedulable.get_or_create(&labels).set(pods);
    }

    /// A call to an extender failed.
    pub(crate) fn extender_failed(&self, extender: &'static str) {
        let labels = ExtenderLabels { extender };
        self.extender_failures.get_or_create(&labels).inc();
    }

    /// Whether an extender is left alone.
    pub(crate) fn extender_left_alone(&self, extender: &'static str, is: bool) {
        let labels = ExtenderLabels { extender };
        let gauge = self.extenders_left_alone.get_or_create(&labels);
        gauge.set(i64::from(is));
    }

    /// A change woke so many pods.
    pub(crate) fn woken(&self, event: &'static str, pods: usize) {
        if pods > 0 {
            let labels = IncomingLabels {
                event,
                queue: "active",
            };
            self.incoming.get_or_create(&labels).inc_by(pods as u64);
        }
    }

    pub(crate) fn sizes(&self, queue: Counts, nodes: usize, pods: usize, assumed: usize) {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        for (name, count) in [
            ("active", queue.active),
            ("backoff", queue.backoff),
            ("unschedulable", queue.unschedulable),
            ("gated", queue.gated),
        ] {
            self.pending
                .get_or_create(&QueueLabels { queue: name })
                .set(number(count));
        }
        for (name, count) in [("nodes", nodes), ("pods", pods), ("assumed_pods", assumed)] {
            self.cache_size
                .get_or_create(&CacheLabels { r#type: name })
                .set(number(count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_kube_scheduler() {
        let metrics = Metrics::default();
        metrics.attempt(
            "default-scheduler",
            AttemptResult::Scheduled,
            Duration::from_millis(3),
        );
        metrics.scheduled_after(2, Duration::from_secs(1));
        metrics.scheduled_after(20, Duration::from_mins(1));
        metrics.preemption(3);
        metrics.sizes(
            Counts {
                active: 2,
                ..Counts::default()
            },
            1,
            2,
            3,
        );
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"scheduled\"} 1",
            "scheduler_preemption_victims_sum 3.0",
            "scheduler_pending_pods{queue=\"active\"} 2",
            "scheduler_cache_size{type=\"assumed_pods\"} 3",
            "scheduler_pod_scheduling_sli_duration_seconds_count{attempts=\"2\"} 1",
            "scheduler_pod_scheduling_sli_duration_seconds_sum{attempts=\"15+\"} 60.0",
            "scheduler_scheduling_attempt_duration_seconds_count{profile=\"default-scheduler\",result=\"scheduled\"} 1",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
