//! Metrics of the device manager, the plugin registry and podresources, under the kubelet's
//! names without the prefix.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::compute::ComputeError;
use crate::counted_names::CountedNames;

/// Resources that are counted by their names: plugins register whatever names they like, and none is forgotten.
const MAX_NAMES: usize = 2 * super::inventory::MAX_RESOURCES;

/// Label `resource_name`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ResourceLabel {
    resource_name: String,
}

/// Label `server_api_version`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct VersionLabel {
    server_api_version: &'static str,
}

/// Labels of a plugin socket.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PluginLabel {
    pub(crate) socket_path: String,
    pub(crate) state: &'static str,
}

/// Labels of alignment: `container` or `pod`; `numa_node`, `physical_cpu` or `uncore_cache`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct AlignmentLabel {
    scope: &'static str,
    boundary: &'static str,
}

/// Label `numa_node`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct NumaLabel {
    numa_node: u32,
}

/// Labels of exclusive allocations; without pod-level managers the source is the node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct SourceLabel {
    resource_name: &'static str,
    source: &'static str,
}

/// Labels of containers by what they were given.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct AssignmentLabel {
    resource_name: &'static str,
    assignment_type: &'static str,
}

/// Counters that the kubelet names without the suffix `_total`; counters of the exposition
/// library always carry it, so these are exposed as gauges that only rise.
pub(crate) type Rising = Family<VersionLabel, Gauge>;

/// All metrics.
#[derive(Clone)]
pub(crate) struct Metrics {
    names: CountedNames,
    registrations: Family<ResourceLabel, Counter>,
    alloc_duration: Family<ResourceLabel, Histogram>,
    pub(crate) plugins: Family<PluginLabel, Gauge>,
    podresources_total: Family<VersionLabel, Counter>,
    pub(crate) list: Rising,
    pub(crate) list_errors: Rising,
    pub(crate) get: Rising,
    pub(crate) get_errors: Rising,
    pub(crate) allocatable: Rising,
    pub(crate) allocatable_errors: Rising,
    topology_requests: Counter,
    topology_errors: Counter,
    cpu_requests: Counter,
    cpu_errors: Counter,
    memory_requests: Counter,
    memory_errors: Counter,
    shared_pool: Gauge,
    exclusive_cpus: Gauge,
    topology_duration: Histogram,
    aligned: Family<AlignmentLabel, Gauge>,
    misaligned: Family<AlignmentLabel, Gauge>,
    cpus_per_node: Family<NumaLabel, Gauge>,
    allocations: Family<SourceLabel, Counter>,
    allocation_errors: Family<SourceLabel, Counter>,
    assignments: Family<AssignmentLabel, Gauge>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let buckets = || {
            Histogram::new([
                0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
            ])
        };
        Self {
            names: CountedNames::new(MAX_NAMES),
            registrations: Family::default(),
            alloc_duration: Family::new_with_constructor(buckets),
            plugins: Family::default(),
            podresources_total: Family::default(),
            list: Family::default(),
            list_errors: Family::default(),
            get: Family::default(),
            get_errors: Family::default(),
            allocatable: Family::default(),
            allocatable_errors: Family::default(),
            topology_requests: Counter::default(),
            topology_errors: Counter::default(),
            cpu_requests: Counter::default(),
            cpu_errors: Counter::default(),
            memory_requests: Counter::default(),
            memory_errors: Counter::default(),
            shared_pool: Gauge::default(),
            exclusive_cpus: Gauge::default(),
            topology_duration: Histogram::new(exponential_buckets(0.05, 2.0, 15)),
            aligned: Family::default(),
            misaligned: Family::default(),
            cpus_per_node: Family::default(),
            allocations: Family::default(),
            allocation_errors: Family::default(),
            assignments: Family::default(),
        }
    }

    /// Counts one outcome that was to be aligned.
    pub(crate) fn aligned(&self, scope: &'static str, boundary: &'static str, aligned: bool) {
        let family = if aligned {
            &self.aligned
        } else {
            &self.misaligned
        };
        family
            .get_or_create(&AlignmentLabel { scope, boundary })
            .inc();
    }

    /// Notes how long one attempt to admit a pod took.
    pub(crate) fn topology_took(&self, time: std::time::Duration) {
        self.topology_duration.observe(time.as_secs_f64() * 1000.0);
    }

    /// Shows the CPUs in exclusive use on one NUMA node.
    pub(crate) fn cpus_on_node(&self, numa_node: u32, count: usize) {
        self.cpus_per_node
            .get_or_create(&NumaLabel { numa_node })
            .set(count as i64);
    }

    fn exclusive(&self, resource_name: &'static str, failed: bool) {
        let label = SourceLabel {
            resource_name,
            source: "node",
        };
        if failed {
            self.allocation_errors.get_or_create(&label).inc();
            return;
        }
        self.allocations.get_or_create(&label).inc();
        let label = AssignmentLabel {
            resource_name,
            assignment_type: "node_exclusive",
        };
        self.assignments.get_or_create(&label).inc();
    }

    /// Counts one decision of the topology manager.
    pub(crate) fn topology_request(&self, admitted: bool) {
        self.topology_requests.inc();
        if !admitted {
            self.topology_errors.inc();
        }
    }

    /// Counts one choice of CPUs, memory, or both.
    pub(crate) fn pinned(&self, cpus: bool, memory: bool, error: Option<&ComputeError>) {
        if cpus {
            self.cpu_requests.inc();
        }
        if memory {
            self.memory_requests.inc();
        }
        // Memory is not reached when there are too few CPUs.
        let cpu_failed = matches!(error, Some(ComputeError::Cpu(_)));
        if cpus {
            self.exclusive("cpu", cpu_failed);
        }
        if memory && !cpu_failed {
            self.exclusive("memory", error.is_some());
        }
        match error {
            Some(ComputeError::Cpu(_)) => drop(self.cpu_errors.inc()),
            Some(ComputeError::Memory(_)) => drop(self.memory_errors.inc()),
            None => {}
        }
    }

    /// Shows the CPUs of the shared pool and those in exclusive use.
    pub(crate) fn cpus(&self, shared: usize, exclusive: usize) {
        self.shared_pool.set(shared as i64 * 1000);
        self.exclusive_cpus.set(exclusive as i64);
    }

    fn register_managers(&self, registry: &mut Registry) {
        let mut counter = |name: &str, help: &str, metric: &Counter| {
            registry.register(name, help, metric.clone());
        };
        counter(
            "topology_manager_admission_requests",
            "The number of admission requests where resources have to be aligned",
            &self.topology_requests,
        );
        counter(
            "topology_manager_admission_errors",
            "The number of admission request failures where resources could not be aligned",
            &self.topology_errors,
        );
        counter(
            "cpu_manager_pinning_requests",
            "The number of cpu core allocations which required pinning",
            &self.cpu_requests,
        );
        counter(
            "cpu_manager_pinning_errors",
            "The number of cpu core allocations which required pinning failed",
            &self.cpu_errors,
        );
        counter(
            "memory_manager_pinning_requests",
            "The number of memory pages allocations which required pinning",
            &self.memory_requests,
        );
        counter(
            "memory_manager_pinning_errors",
            "The number of memory pages allocations which required pinning that failed",
            &self.memory_errors,
        );
        registry.register(
            "topology_manager_admission_duration_ms",
            "Duration in milliseconds to serve a pod admission request",
            self.topology_duration.clone(),
        );
        registry.register(
            "container_aligned_compute_resources_count",
            "Cumulative number of aligned compute resources allocated to containers by alignment type",
            self.aligned.clone(),
        );
        registry.register(
            "container_aligned_compute_resources_failure_count",
            "Cumulative number of failures to allocate aligned compute resources to containers by alignment type",
            self.misaligned.clone(),
        );
        registry.register(
            "cpu_manager_allocation_per_numa",
            "Number of CPUs allocated per NUMA node",
            self.cpus_per_node.clone(),
        );
        registry.register(
            "resource_manager_allocations",
            "Cumulative number of exclusive resource allocations by a manager",
            self.allocations.clone(),
        );
        registry.register(
            "resource_manager_allocation_errors",
            "Cumulative number of errors of exclusive resource allocation by a manager",
            self.allocation_errors.clone(),
        );
        registry.register(
            "resource_manager_container_assignments",
            "Cumulative number of containers by the type of their resource assignment",
            self.assignments.clone(),
        );
        registry.register(
            "cpu_manager_shared_pool_size_millicores",
            "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores",
            self.shared_pool.clone(),
        );
        registry.register(
            "cpu_manager_exclusive_cpu_allocation_count",
            "The total number of CPUs exclusively allocated to containers running on this node",
            self.exclusive_cpus.clone(),
        );
    }

    fn label(&self, resource: &str) -> ResourceLabel {
        ResourceLabel {
            resource_name: self.names.label(resource),
        }
    }

    pub(crate) fn registered(&self, resource: &str) {
        let label = self.label(resource);
        self.registrations.get_or_create(&label).inc();
    }

    pub(crate) fn allocated(&self, resource: &str, took: std::time::Duration) {
        let label = self.label(resource);
        self.alloc_duration
            .get_or_create(&label)
            .observe(took.as_secs_f64());
    }

    /// Counts one podresources request of an API version; `per_method` is the method's own
    /// counter, which only v1 has.
    pub(crate) fn request(&self, version: &'static str, per_method: Option<&Rising>) {
        let label = VersionLabel {
            server_api_version: version,
        };
        self.podresources_total.get_or_create(&label).inc();
        if let Some(metric) = per_method {
            metric.get_or_create(&label).inc();
        }
    }

    pub(crate) fn error(&self, version: &'static str, per_method: &Rising) {
        let label = VersionLabel {
            server_api_version: version,
        };
        per_method.get_or_create(&label).inc();
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        self.register_managers(registry);
        registry.register(
            "device_plugin_registration",
            "Cumulative number of device plugin registrations. Broken down by resource name",
            self.registrations.clone(),
        );
        registry.register(
            "device_plugin_alloc_duration_seconds",
            "Duration in seconds to serve a device plugin Allocation request. Broken down by resource name",
            self.alloc_duration.clone(),
        );
        registry.register(
            "plugin_manager_total_plugins",
            "Number of plugins by socket and state",
            self.plugins.clone(),
        );
        registry.register(
            "pod_resources_endpoint_requests",
            "Number of requests to the podresources endpoint, by API version",
            self.podresources_total.clone(),
        );
        for (name, help, metric) in [
            ("requests_list", "Requests of List", &self.list),
            ("errors_list", "Failed requests of List", &self.list_errors),
            ("requests_get", "Requests of Get", &self.get),
            ("errors_get", "Failed requests of Get", &self.get_errors),
            (
                "requests_get_allocatable",
                "Requests of GetAllocatableResources",
                &self.allocatable,
            ),
            (
                "errors_get_allocatable",
                "Failed requests of GetAllocatableResources",
                &self.allocatable_errors,
            ),
        ] {
            registry.register(
                format!("pod_resources_endpoint_{name}"),
                help,
                metric.clone(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counted_names::OTHERS;

    /// Who registers ever new names gets no memory for them.
    #[test]
    fn names_that_are_counted_have_an_end() {
        let metrics = Metrics::new();
        let count = |name: &str| {
            let label = ResourceLabel {
                resource_name: name.to_owned(),
            };
            metrics
                .registrations
                .get(&label)
                .map(|counter| counter.get())
        };
        for number in 0..2 * MAX_NAMES {
            metrics.registered(&format!("a.example/r{number}"));
        }
        metrics.registered("a.example/r0");
        assert_eq!(count("a.example/r0"), Some(2));
        assert_eq!(count(&format!("a.example/r{}", 2 * MAX_NAMES - 1)), None);
        assert_eq!(count(OTHERS), Some(u64::try_from(MAX_NAMES).unwrap()));
    }
}
