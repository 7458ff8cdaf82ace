//! Metrics under the names of Kubernetes.

mod aggregation;
mod process;
mod stored;

use std::sync::Arc;
use std::time::Duration;

use davit_access::{AccessMetrics, RequestInfo};
use davit_admission::{AdmissionMetrics, WebhookMetrics};
use davit_api::kinds::ResourceRow;
use davit_flowcontrol::FlowMetrics;
use davit_listen::HealthTallies;
use davit_registry::custom::ConversionMetrics;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

pub(crate) use self::aggregation::AggregationMetrics;
pub(crate) use self::process::ProcessMetrics;
pub(crate) use self::stored::{ObjectCount, StoredMetrics};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: String,
    dry_run: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    component: &'static str,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    component: &'static str,
}

/// As [`DurationLabels`] where trials are told apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TrialLabels {
    verb: String,
    dry_run: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
    component: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    group: &'static str,
    version: &'static str,
    resource: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeprecatedLabels {
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    subresource: String,
    removed_release: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InFlightLabels {
    request_kind: &'static str,
}

/// The server's metrics.
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<RequestLabels, Counter>,
    durations: Family<TrialLabels, Histogram, fn() -> Histogram>,
    /// What objectives are measured by. Time in queues and of webhooks is not left out.
    objectives: Family<DurationLabels, Histogram, fn() -> Histogram>,
    sizes: Family<DurationLabels, Histogram, fn() -> Histogram>,
    deprecated: Family<DeprecatedLabels, Gauge>,
    long_running: Family<DurationLabels, Gauge>,
    in_flight: Family<InFlightLabels, Gauge>,
    pub(crate) webhooks: WebhookMetrics,
    pub(crate) access: Arc<AccessMetrics>,
    pub(crate) conversions: Arc<ConversionMetrics>,
    pub(crate) stored: StoredMetrics,
    pub(crate) aggregation: AggregationMetrics,
    pub(crate) admission: AdmissionMetrics,
    pub(crate) process: ProcessMetrics,
    /// On a page of its own.
    pub(crate) health: HealthTallies,
    watch_events: Family<EventLabels, Counter>,
    pub(crate) tls_handshake_errors: Counter,
    pub(crate) panics: Counter,
    pub(crate) audit_events: Counter,
    pub(crate) audit_errors: Counter,
    pub(crate) flow: FlowMetrics,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

const DURATIONS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];
const SIZES: [f64; 7] = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

impl Metrics {
    pub(crate) fn new() -> Self {
        let metrics = Self {
            registry: Mutex::default(),
            requests: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(DURATIONS)),
            objectives: Family::new_with_constructor(|| {
                Histogram::new(DURATIONS.into_iter().skip(2))
            }),
            sizes: Family::new_with_constructor(|| Histogram::new(SIZES)),
            deprecated: Family::default(),
            admission: AdmissionMetrics::default(),
            process: ProcessMetrics::new(),
            health: HealthTallies::default(),
            long_running: Family::default(),
            in_flight: Family::default(),
            webhooks: WebhookMetrics::default(),
            access: Arc::new(AccessMetrics::default()),
            conversions: Arc::new(ConversionMetrics::default()),
            stored: StoredMetrics::default(),
            aggregation: AggregationMetrics::default(),
            watch_events: Family::default(),
            tls_handshake_errors: Counter::default(),
            panics: Counter::default(),
            audit_events: Counter::default(),
            audit_errors: Counter::default(),
            flow: FlowMetrics::default(),
        };
        metrics.registered()
    }

    fn registered(mut self) -> Self {
        let r = self.registry.get_mut();
        self.webhooks.register(r);
        self.access.register(r);
        self.conversions.register(r);
        self.stored.register(r);
        self.aggregation.register(r);
        r.register(
            "apiserver_request",
            "Requests by what they asked for and how they ended",
            self.requests.clone(),
        );
        r.register(
            "apiserver_request_duration_seconds",
            "Time to answer, long-running requests left out",
            self.durations.clone(),
        );
        r.register(
            "apiserver_request_sli_duration_seconds",
            "Time to answer, long-running requests left out, for service level indicators",
            self.objectives.clone(),
        );
        r.register(
            "apiserver_response_sizes",
            "Bytes of whole answers",
            self.sizes.clone(),
        );
        r.register(
            "apiserver_requested_deprecated_apis",
            "Deprecated kinds that were asked for",
            self.deprecated.clone(),
        );
        r.register(
            "apiserver_longrunning_requests",
            "Open watches, log streams and the like",
            self.long_running.clone(),
        );
        r.register(
            "apiserver_current_inflight_requests",
            "Requests being answered",
            self.in_flight.clone(),
        );
        r.register(
            "apiserver_watch_events",
            "Watch events sent",
            self.watch_events.clone(),
        );
        r.register(
            "apiserver_tls_handshake_errors",
            "Connections whose TLS handshake failed",
            self.tls_handshake_errors.clone(),
        );
        r.register(
            "apiserver_panics",
            "Requests that ended in a panic",
            self.panics.clone(),
        );
        r.register(
            "apiserver_audit_event",
            "Audit events made",
            self.audit_events.clone(),
        );
        r.register(
            "apiserver_audit_error",
            "Audit events that were lost",
            self.audit_errors.clone(),
        );
        self.flow.register(r);
        // of the whole process: `davit up` has its controllers here
        davit_task::register_metrics(r);
        davit_client::register_queue_metrics(r);
        self.process.register(r);
        self.admission.register(r);
        self
    }

    /// Counts an answered request; `size` is that of a whole answer.
    pub(crate) fn observe(
        &self,
        info: &RequestInfo,
        verb: &str,
        dry_run: bool,
        (code, size): (u16, Option<u64>),
        took: Duration,
    ) {
        let labels = duration_labels(info, verb);
        let dry_run = if dry_run { "All" } else { "" };
        self.requests
            .get_or_create(&RequestLabels {
                verb: labels.verb.clone(),
                dry_run: dry_run.to_owned(),
                group: labels.group.clone(),
                version: labels.version.clone(),
                resource: labels.resource.clone(),
                subresource: labels.subresource.clone(),
                scope: labels.scope,
                component: labels.component,
                code,
            })
            .inc();
        if info.is_long_running() {
            return;
        }
        let took = took.as_secs_f64();
        self.objectives.get_or_create(&labels).observe(took);
        if let Some(size) = size {
            self.sizes.get_or_create(&labels).observe(size as f64);
        }
        let trial = TrialLabels {
            verb: labels.verb,
            dry_run,
            group: labels.group,
            version: labels.version,
            resource: labels.resource,
            subresource: labels.subresource,
            scope: labels.scope,
            component: labels.component,
        };
        self.durations.get_or_create(&trial).observe(took);
    }

    /// Counts an event that a watch of these is sent.
    pub(crate) fn watch_event(&self, row: &ResourceRow) {
        let labels = EventLabels {
            group: row.group,
            version: row.version,
            resource: row.plural,
        };
        self.watch_events.get_or_create(&labels).inc();
    }

    /// Notes that a deprecated kind was asked for.
    pub(crate) fn deprecated(&self, row: &ResourceRow, subresource: &str) {
        let labels = DeprecatedLabels {
            group: row.group,
            version: row.version,
            resource: row.plural,
            subresource: subresource.to_owned(),
            removed_release: row.removed.unwrap_or_default(),
        };
        self.deprecated.get_or_create(&labels).set(1);
    }

    /// Counts an open long-running request until the guard is dropped.
    pub(crate) fn long_running(&self, info: &RequestInfo, verb: &str) -> LongRunning {
        let gauge = self
            .long_running
            .get_or_create(&duration_labels(info, verb))
            .clone();
        gauge.inc();
        LongRunning(gauge)
    }

    /// Sets how many requests are being answered.
    pub(crate) fn set_in_flight(&self, read_only: usize, mutating: usize) {
        let set = |request_kind, count: usize| {
            self.in_flight
                .get_or_create(&InFlightLabels { request_kind })
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        };
        set("readOnly", read_only);
        set("mutating", mutating);
    }

    /// Tells those of another component of this process, too.
    pub(crate) fn include(&self, register: impl FnOnce(&mut Registry)) {
        register(&mut self.registry.lock());
    }

    /// The text form of OpenMetrics.
    pub(crate) fn text(&self) -> String {
        self.process.read();
        let mut text = String::new();
        // writing to a String cannot fail
        let _ = encode(&mut text, &self.registry.lock());
        text
    }
}

fn duration_labels(info: &RequestInfo, verb: &str) -> DurationLabels {
    let scope = if !info.is_resource {
        ""
    } else if !info.name.is_empty() {
        "resource"
    } else if info.namespace.is_some() {
        "namespace"
    } else {
        "cluster"
    };
    DurationLabels {
        verb: verb.to_ascii_uppercase(),
        group: info.group.clone(),
        version: info.version.clone(),
        resource: info.resource.clone(),
        subresource: info.subresource.clone(),
        scope,
        component: "apiserver",
    }
}

/// Holds a long-running request's place in its gauge.
#[derive(Debug)]
pub(crate) struct LongRunning(Gauge);

impl Drop for LongRunning {
    fn drop(&mut self) {
        self.0.dec();
    }
}
