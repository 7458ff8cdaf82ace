//! Metrics of the node under the original's names.

use davit_listen::HealthTallies;
use davit_pods::pod::PodExt;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Label of admission refusals.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Reason {
    /// The reason in the pod's status.
    pub reason: String,
}

/// Label of running containers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ContainerState {
    /// `running`, `exited`, `created`, `unknown`.
    pub container_state: String,
}

/// Label of counts by operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Operation {
    /// `create`, `update`, `kill`, `sync`.
    pub operation_type: String,
}

/// Label of the node's name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct NodeName {
    /// The name.
    pub node: String,
}

/// Label of evictions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct EvictionSignal {
    /// What ran short.
    pub eviction_signal: String,
}

/// The node's metrics.
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    /// `kubelet_admission_rejections_total`.
    pub rejections: Family<Reason, Counter>,
    /// `kubelet_running_pods`.
    pub running_pods: Gauge,
    /// `kubelet_running_containers`.
    pub running_containers: Family<ContainerState, Gauge>,
    /// `kubelet_pod_worker_duration_seconds`.
    pub worker_duration: Family<Operation, Histogram>,
    /// `kubelet_pod_start_duration_seconds`: from the first sight of a pod to its first running container.
    pub pod_start: Histogram,
    /// `kubelet_pleg_relist_duration_seconds`.
    pub relist: Histogram,
    /// `kubelet_pleg_relist_interval_seconds`.
    pub relist_interval: Histogram,
    /// `kubelet_started_containers_total`.
    pub started_containers: Counter,
    /// `kubelet_started_containers_errors_total`.
    pub start_errors: Counter,
    /// `kubelet_started_pods_total`: sandboxes made.
    pub started_pods: Counter,
    /// `kubelet_started_user_namespaced_pods_total`: those of pods with users of their own.
    pub started_users: Counter,
    /// `kubelet_started_user_namespaced_pods_errors_total`: what failed of their sandboxes and containers.
    pub users_errors: Counter,
    /// `kubelet_pod_watch_events_dropped_total`: events of the pods API that slow clients missed.
    pub watch_dropped: Counter,
    /// `kubelet_evictions`: a counter, which goes by the name that the kubelet gives it and not by OpenMetrics'.
    pub evictions: Family<EvictionSignal, Gauge>,
    /// What came of the checks under `/healthz`; on a page of its own.
    pub health: HealthTallies,
}

fn has_users(pod: &Pod) -> bool {
    pod.pod_spec().host_users == Some(false)
}

fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 16))
}

impl Metrics {
    /// Makes and registers the metrics; `more` registers those of other parts, without the prefix `kubelet_` that they
    /// get, `plain` those that have none.
    pub(crate) fn new(
        node_name: &str,
        more: impl FnOnce(&mut Registry),
        plain: impl FnOnce(&mut Registry),
    ) -> Self {
        let mut root = Registry::default();
        let registry = root.sub_registry_with_prefix("kubelet");
        let out = Self {
            registry: Mutex::new(Registry::default()),
            rejections: Family::default(),
            running_pods: Gauge::default(),
            running_containers: Family::default(),
            worker_duration: Family::new_with_constructor(durations),
            pod_start: durations(),
            relist: durations(),
            relist_interval: durations(),
            started_containers: Counter::default(),
            start_errors: Counter::default(),
            started_pods: Counter::default(),
            started_users: Counter::default(),
            users_errors: Counter::default(),
            watch_dropped: Counter::default(),
            evictions: Family::default(),
            health: HealthTallies::default(),
        };
        let name: Family<NodeName, Gauge> = Family::default();
        name.get_or_create(&NodeName {
            node: node_name.to_owned(),
        })
        .set(1);
        registry.register("node_name", "The node's name. The count is always 1.", name);
        registry.register(
            "admission_rejections",
            "Pods refused at admission, by reason",
            out.rejections.clone(),
        );
        registry.register(
            "running_pods",
            "Number of pods that have a running pod sandbox",
            out.running_pods.clone(),
        );
        registry.register(
            "running_containers",
            "Number of containers by state",
            out.running_containers.clone(),
        );
        registry.register(
            "pod_worker_duration_seconds",
            "Duration to sync a single pod",
            out.worker_duration.clone(),
        );
        registry.register(
            "pod_start_duration_seconds",
            "Duration from seeing a pod for the first time to its start",
            out.pod_start.clone(),
        );
        registry.register(
            "pleg_relist_duration_seconds",
            "Duration for relisting pods",
            out.relist.clone(),
        );
        registry.register(
            "pleg_relist_interval_seconds",
            "Interval in seconds between relisting",
            out.relist_interval.clone(),
        );
        registry.register(
            "started_containers",
            "Cumulative number of containers started",
            out.started_containers.clone(),
        );
        registry.register(
            "started_containers_errors",
            "Cumulative number of errors when starting containers",
            out.start_errors.clone(),
        );
        registry.register(
            "started_pods",
            "Cumulative number of pods started",
            out.started_pods.clone(),
        );
        registry.register(
            "started_user_namespaced_pods",
            "Cumulative number of pods with user namespaces started",
            out.started_users.clone(),
        );
        registry.register(
            "started_user_namespaced_pods_errors",
            "Cumulative number of errors when starting pods with user namespaces",
            out.users_errors.clone(),
        );
        registry.register(
            "pod_watch_events_dropped",
            "Cumulative number of pod watch events dropped because a client was too slow",
            out.watch_dropped.clone(),
        );
        registry.register(
            "evictions",
            "Cumulative number of pod evictions by eviction signal",
            out.evictions.clone(),
        );
        more(registry);
        plain(&mut root);
        *out.registry.lock() = root;
        out
    }

    /// Counts a pod of which a sandbox was made.
    pub(crate) fn pod_started(&self, pod: &Pod) {
        self.started_pods.inc();
        if has_users(pod) {
            self.started_users.inc();
        }
    }

    /// Counts a sandbox that could not be made.
    pub(crate) fn pod_failed(&self, pod: &Pod) {
        if has_users(pod) {
            self.users_errors.inc();
        }
    }

    /// Counts a container that could not be made or started.
    pub(crate) fn start_failed(&self, pod: &Pod) {
        self.start_errors.inc();
        self.pod_failed(pod);
    }

    /// Adds metrics that are made when they are asked for, under their whole names.
    pub(crate) fn add_collector(&self, collector: Box<dyn Collector>) {
        self.registry.lock().register_collector(collector);
    }

    /// The metrics as text.
    pub(crate) fn encode(&self) -> String {
        let mut out = String::new();
        // Writing into a String cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut out, &self.registry.lock());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evictions_go_by_the_kubelets_name() {
        let metrics = Metrics::new("n", |_| {}, |_| {});
        let signal = EvictionSignal {
            eviction_signal: "memory.available".to_owned(),
        };
        metrics.evictions.get_or_create(&signal).inc();
        let (_, page) = davit_listen::metrics_page(metrics.encode(), &http::HeaderMap::new());
        for line in [
            "# TYPE kubelet_evictions counter",
            r#"kubelet_evictions{eviction_signal="memory.available"} 1"#,
        ] {
            assert!(page.lines().any(|l| l == line), "{line} in {page}");
        }
    }
}
