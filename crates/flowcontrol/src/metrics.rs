//! Metrics of priority and fairness.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

const BUCKETS: [f64; 10] = [0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    priority_level: String,
    flow_schema: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RejectedLabels {
    priority_level: String,
    flow_schema: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LevelLabels {
    priority_level: String,
}

/// `apiserver_flowcontrol_*`.
#[derive(Clone)]
pub struct FlowMetrics {
    rejected: Family<RejectedLabels, Counter>,
    dispatched: Family<Labels, Counter>,
    queued: Family<Labels, Gauge>,
    executing: Family<Labels, Gauge>,
    waits: Family<Labels, Histogram>,
    nominal: Family<LevelLabels, Gauge>,
    min: Family<LevelLabels, Gauge>,
    max: Family<LevelLabels, Gauge>,
}

impl Default for FlowMetrics {
    fn default() -> Self {
        Self {
            rejected: Family::default(),
            dispatched: Family::default(),
            queued: Family::default(),
            executing: Family::default(),
            waits: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            nominal: Family::default(),
            min: Family::default(),
            max: Family::default(),
        }
    }
}

impl FlowMetrics {
    /// Puts them on a page of metrics.
    pub fn register(&self, r: &mut Registry) {
        r.register(
            "apiserver_flowcontrol_rejected_requests",
            "Requests refused for want of a seat",
            self.rejected.clone(),
        );
        r.register(
            "apiserver_flowcontrol_dispatched_requests",
            "Requests that got a seat",
            self.dispatched.clone(),
        );
        r.register(
            "apiserver_flowcontrol_current_inqueue_requests",
            "Requests that wait for a seat",
            self.queued.clone(),
        );
        r.register(
            "apiserver_flowcontrol_current_executing_requests",
            "Requests that have a seat",
            self.executing.clone(),
        );
        r.register(
            "apiserver_flowcontrol_request_wait_duration_seconds",
            "Time until a request got its seat",
            self.waits.clone(),
        );
        r.register(
            "apiserver_flowcontrol_nominal_limit_seats",
            "Seats of a level",
            self.nominal.clone(),
        );
        r.register(
            "apiserver_flowcontrol_lower_limit_seats",
            "Seats a level never lends",
            self.min.clone(),
        );
        r.register(
            "apiserver_flowcontrol_upper_limit_seats",
            "Seats a level may hold with borrowed ones",
            self.max.clone(),
        );
    }

    pub(crate) fn limits(&self, level: &str, nominal: usize, min: usize, max: usize) {
        let set = |family: &Family<LevelLabels, Gauge>, seats: usize| {
            let labels = LevelLabels {
                priority_level: level.to_owned(),
            };
            let seats = i64::try_from(seats).unwrap_or(i64::MAX);
            family.get_or_create(&labels).set(seats);
        };
        set(&self.nominal, nominal);
        set(&self.min, min);
        set(&self.max, max);
    }

    pub(crate) fn rejected(&self, level: &str, schema: &str, reason: &'static str) {
        let labels = RejectedLabels {
            priority_level: level.to_owned(),
            flow_schema: schema.to_owned(),
            reason,
        };
        self.rejected.get_or_create(&labels).inc();
    }

    pub(crate) fn queued(&self, level: &str, schema: &str) {
        self.queued.get_or_create(&labels(level, schema)).inc();
    }

    /// A request waits no more.
    pub(crate) fn left(&self, level: &str, schema: &str) {
        self.queued.get_or_create(&labels(level, schema)).dec();
    }

    pub(crate) fn dispatched(&self, level: &str, schema: &str, waited: Duration) {
        let labels = labels(level, schema);
        self.dispatched.get_or_create(&labels).inc();
        self.executing.get_or_create(&labels).inc();
        self.waits
            .get_or_create(&labels)
            .observe(waited.as_secs_f64());
    }

    pub(crate) fn finished(&self, level: &str, schema: &str) {
        self.executing.get_or_create(&labels(level, schema)).dec();
    }
}

fn labels(level: &str, schema: &str) -> Labels {
    Labels {
        priority_level: level.to_owned(),
        flow_schema: schema.to_owned(),
    }
}
