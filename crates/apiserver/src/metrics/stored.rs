//! Metrics of what is stored, looked up when they are asked for.

use std::sync::atomic::AtomicI64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResourceLabels {
    group: &'static str,
    resource: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LegacyLabels {
    resource: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StoreLabels {
    storage_cluster_id: String,
}

/// How many objects there are of a resource.
pub(crate) struct ObjectCount {
    pub(crate) group: &'static str,
    pub(crate) plural: &'static str,
    /// The resource with its group, as messages name it.
    pub(crate) qualified: String,
    pub(crate) count: usize,
}

/// How many objects there are, and what they take.
#[derive(Debug, Default)]
pub(crate) struct StoredMetrics {
    objects: Family<ResourceLabels, Gauge>,
    /// Under the older name, which dashboards still use.
    legacy: Family<LegacyLabels, Gauge>,
    bytes: Family<StoreLabels, Gauge<i64, AtomicI64>>,
}

impl StoredMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_resource_objects",
            "Stored objects by kind",
            self.objects.clone(),
        );
        registry.register(
            "apiserver_storage_objects",
            "Stored objects by kind",
            self.legacy.clone(),
        );
        registry.register(
            "apiserver_storage_size_bytes",
            "What the store takes on its disk",
            self.bytes.clone(),
        );
    }

    /// Takes in how many objects there are of each resource, and the size of each store where it is known.
    pub(crate) fn set(&self, counts: impl Iterator<Item = ObjectCount>, sizes: &[Option<u64>]) {
        self.objects.clear();
        self.legacy.clear();
        for counted in counts {
            let count = i64::try_from(counted.count).unwrap_or(i64::MAX);
            let labels = ResourceLabels {
                group: counted.group,
                resource: counted.plural,
            };
            self.objects.get_or_create(&labels).set(count);
            let resource = counted.qualified;
            self.legacy
                .get_or_create(&LegacyLabels { resource })
                .set(count);
        }
        for (number, bytes) in sizes.iter().enumerate() {
            let Some(bytes) = *bytes else { continue };
            let labels = StoreLabels {
                storage_cluster_id: format!("etcd-{number}"),
            };
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            self.bytes.get_or_create(&labels).set(bytes);
        }
    }
}
