//! Metrics of the device manager, the plugin registry and podresources, under the kubelet's
//! names without the prefix.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

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
        }
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
