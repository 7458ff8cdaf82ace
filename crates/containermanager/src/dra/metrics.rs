//! Metrics of dynamic resource allocation, under the kubelet's names. They have no prefix `kubelet_`.

use crate::allocation::Table;
use crate::counted_names::CountedNames;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::time::Duration;
use tonic::Code;

/// The value of `driver_name` that counts all claims.
const ANY: &str = "<any>";
/// Drivers that are counted by their names: they register by whatever name they like, and allocations name as many.
const MAX_DRIVERS: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabel {
    operation_name: &'static str,
    is_error: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabel {
    driver_name: String,
    method_name: &'static str,
    grpc_status_code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DriverLabel {
    driver_name: String,
}

type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.1, 1.75, 10))
}

/// All of them; clones share the values.
#[derive(Debug, Clone)]
pub(super) struct Metrics {
    drivers: CountedNames,
    operations: Durations<OperationLabel>,
    calls: Durations<CallLabel>,
    claims: Family<DriverLabel, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            drivers: CountedNames::new(MAX_DRIVERS),
            operations: Family::new_with_constructor(durations),
            calls: Family::new_with_constructor(durations),
            claims: Family::default(),
        }
    }
}

impl Metrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "dra_operations_duration_seconds",
            "Latency in seconds for the duration of handling all ResourceClaims referenced by a pod when the pod starts or stops",
            self.operations.clone(),
        );
        registry.register(
            "dra_grpc_operations_duration_seconds",
            "Duration in seconds of the gRPC calls to DRA drivers",
            self.calls.clone(),
        );
        registry.register(
            "dra_resource_claims_in_use",
            "Number of ResourceClaims in use on the node, by driver; <any> for all drivers",
            self.claims.clone(),
        );
    }

    /// One pod's claims have been prepared (`PrepareResources`) or undone (`UnprepareResources`).
    pub(super) fn operation(&self, name: &'static str, failed: bool, took: Duration) {
        let label = OperationLabel {
            operation_name: name,
            is_error: failed.to_string(),
        };
        let series = self.operations.get_or_create(&label);
        series.observe(took.as_secs_f64());
    }

    /// A driver has answered, or has not.
    pub(super) fn call(&self, driver: &str, method: &'static str, code: Code, took: Duration) {
        let label = CallLabel {
            driver_name: self.drivers.label(driver),
            method_name: method,
            // As Go prints it.
            grpc_status_code: match code {
                Code::Ok => "OK".to_owned(),
                Code::Cancelled => "Canceled".to_owned(),
                code => format!("{code:?}"),
            },
        };
        let series = self.calls.get_or_create(&label);
        series.observe(took.as_secs_f64());
    }

    /// Counts the claims in use.
    pub(super) fn count(&self, table: &Table) {
        let mut counts = BTreeMap::from([(ANY.to_owned(), 0_i64)]);
        let in_use = table.claims().values().filter(|h| !h.pods.is_empty());
        for hold in in_use {
            let drivers = hold.drivers.keys().cloned();
            for name in drivers.chain([ANY.to_owned()]) {
                *counts.entry(name).or_default() += 1;
            }
        }
        self.claims.clear();
        for (driver_name, count) in counts {
            let gauge = self.claims.get_or_create(&DriverLabel { driver_name });
            gauge.set(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counted_names::OTHERS;

    /// A plugin that registers ever new drivers, and answers each in its own way.
    #[test]
    fn drivers_that_are_counted_have_an_end() {
        let metrics = Metrics::default();
        let calls = |driver: &str| {
            let label = CallLabel {
                driver_name: driver.to_owned(),
                method_name: "m",
                grpc_status_code: "OK".to_owned(),
            };
            metrics.calls.get(&label).is_some()
        };
        for number in 0..2 * MAX_DRIVERS {
            let driver = format!("d{number}.example");
            metrics.call(&driver, "m", Code::Ok, Duration::ZERO);
        }
        assert!(calls("d0.example") && calls(OTHERS));
        assert!(!calls(&format!("d{}.example", 2 * MAX_DRIVERS - 1)));
    }
}
