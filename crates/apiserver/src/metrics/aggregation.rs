//! Metrics of aggregated API servers.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServiceName {
    name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failure {
    name: String,
    reason: String,
}

/// Which APIServices can be used.
#[derive(Debug, Default)]
pub(crate) struct AggregationMetrics {
    unavailable: Family<ServiceName, Gauge>,
    // not by the name that the text form gives to counters: it would be the other's
    failures: Family<Failure, Gauge>,
    /// Of those that there are.
    names: Mutex<BTreeSet<String>>,
}

impl AggregationMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "aggregator_unavailable_apiservice",
            "APIServices that are unavailable, by name",
            self.unavailable.clone(),
        );
        registry.register(
            "aggregator_unavailable_apiservice_total",
            "How often APIServices have become unavailable, by name and reason",
            self.failures.clone(),
        );
    }

    /// These are all that there are. One that is new is available until something else is heard of it.
    pub(crate) fn exist(&self, all: BTreeSet<String>) {
        let mut names = self.names.lock();
        for name in names.difference(&all) {
            let name = name.clone();
            self.unavailable.remove(&ServiceName { name });
        }
        for name in all.difference(&names) {
            self.gauge(name).set(0);
        }
        *names = all;
    }

    /// What a look at one has found; `reason` where it was available before and is so no more.
    pub(crate) fn found(&self, name: &str, available: bool, reason: Option<&str>) {
        // One that was deleted meanwhile is not told of.
        if self.names.lock().contains(name) {
            self.gauge(name).set(i64::from(!available));
        }
        if let Some(reason) = reason {
            let (name, reason) = (name.to_owned(), reason.to_owned());
            let failure = Failure { name, reason };
            self.failures.get_or_create(&failure).inc();
        }
    }

    fn gauge(&self, name: &str) -> Gauge {
        let name = name.to_owned();
        self.unavailable.get_or_create_owned(&ServiceName { name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;

    #[test]
    fn each_api_service_is_told_of_while_it_is_there() {
        let metrics = AggregationMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let samples = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            lines.map(str::to_owned).collect::<BTreeSet<_>>()
        };
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        metrics.exist(set(&["v1.", "v1.x"]));
        metrics.found("v1.x", false, Some("MissingEndpoints"));
        let down = r#"aggregator_unavailable_apiservice{name="v1.x"} 1"#;
        let up = r#"aggregator_unavailable_apiservice{name="v1."} 0"#;
        let count =
            r#"aggregator_unavailable_apiservice_total{name="v1.x",reason="MissingEndpoints"} 1"#;
        assert_eq!(samples(), set(&[down, up, count]));
        metrics.exist(set(&["v1."]));
        metrics.found("v1.x", false, None);
        assert_eq!(samples(), set(&[up, count]));
    }
}
