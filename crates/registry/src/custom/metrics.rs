//! Metrics of conversion webhooks.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

const BUCKETS: [f64; 9] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    crd_name: String,
    succeeded: &'static str,
}

/// How long conversion webhooks took.
#[derive(Debug)]
pub struct ConversionMetrics {
    durations: Family<Labels, Histogram>,
}

impl Default for ConversionMetrics {
    fn default() -> Self {
        Self {
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
        }
    }
}

impl ConversionMetrics {
    /// Puts them on a page of metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_crd_conversion_webhook_duration_seconds",
            "Time a conversion webhook took",
            self.durations.clone(),
        );
    }

    /// Counts a call.
    pub(crate) fn observe(&self, definition: &str, succeeded: bool, took: Duration) {
        let labels = Labels {
            crd_name: definition.to_owned(),
            succeeded: if succeeded { "true" } else { "false" },
        };
        self.durations
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }
}
