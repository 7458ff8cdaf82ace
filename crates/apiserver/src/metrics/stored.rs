//! Metrics of what is stored, looked up when they are asked for.

use std::sync::atomic::AtomicI64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::registry::Snapshot;

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
    storage_cluster_id: &'static str,
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

    /// Takes in what is served now, and the size of the store where it is known.
    pub(crate) fn set(&self, served: &Snapshot, bytes: Option<u64>) {
        self.objects.clear();
        self.legacy.clear();
        for info in served
            .all()
            .filter(|info| !info.is_virtual() && !info.is_computed())
        {
            let storage = &info.storage;
            // Nobody has looked at the others yet, controllers do at once.
            let Some(count) = storage.cache().object_count() else {
                continue;
            };
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            let (group, resource) = (storage.group(), storage.plural());
            let labels = ResourceLabels { group, resource };
            self.objects.get_or_create(&labels).set(count);
            let resource = info.qualified().to_string();
            self.legacy
                .get_or_create(&LegacyLabels { resource })
                .set(count);
        }
        if let Some(bytes) = bytes {
            let labels = StoreLabels {
                storage_cluster_id: "etcd-0",
            };
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            self.bytes.get_or_create(&labels).set(bytes);
        }
    }
}
