//! Metrics of the device manager, the plugin registry and podresources, under the kubelet's
//! names without the prefix.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::compute::ComputeError;

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

/// Counters that the kubelet names without the suffix `_total`; counters of the exposition
/// library always carry it, so these are exposed as gauges that only rise.
pub(crate) type Rising = Family<VersionLabel, Gauge>;

/// All metrics.
#[derive(Clone)]
pub(crate) struct Metrics {
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
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let buckets = || {
            Histogram::new([
                0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
            ])
        };
        Self {
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
        }
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

    pub(crate) fn registered(&self, resource: &str) {
        let label = ResourceLabel {
            resource_name: resource.to_owned(),
        };
        self.registrations.get_or_create(&label).inc();
    }

    pub(crate) fn allocated(&self, resource: &str, took: std::time::Duration) {
        let label = ResourceLabel {
            resource_name: resource.to_owned(),
        };
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
