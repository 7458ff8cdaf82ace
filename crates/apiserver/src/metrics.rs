//! Metrics under the names of Kubernetes.

mod access;
mod conversion;
mod flow;
mod stored;
mod webhooks;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

pub(crate) use self::access::AccessMetrics;
pub(crate) use self::conversion::ConversionMetrics;
pub(crate) use self::flow::FlowMetrics;
pub(crate) use self::stored::{ObjectCount, StoredMetrics};
pub(crate) use self::webhooks::WebhookMetrics;
use crate::request_info::RequestInfo;

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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InFlightLabels {
    request_kind: &'static str,
}

/// The server's metrics.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    durations: Family<DurationLabels, Histogram>,
    long_running: Family<DurationLabels, Gauge>,
    in_flight: Family<InFlightLabels, Gauge>,
    pub(crate) webhooks: WebhookMetrics,
    pub(crate) access: Arc<AccessMetrics>,
    pub(crate) conversions: Arc<ConversionMetrics>,
    pub(crate) stored: StoredMetrics,
    pub(crate) watch_events: Counter,
    pub(crate) tls_handshake_errors: Counter,
    pub(crate) panics: Counter,
    pub(crate) audit_events: Counter,
    pub(crate) audit_errors: Counter,
    pub(crate) flow: FlowMetrics,
    resident: Gauge<i64, AtomicI64>,
    virtual_memory: Gauge<i64, AtomicI64>,
    open_files: Gauge<i64, AtomicI64>,
    start_time: Gauge<f64, AtomicU64>,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

const BUCKETS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
];
const PAGE_BYTES: i64 = 4096;

impl Metrics {
    pub(crate) fn new() -> Self {
        let metrics = Self {
            registry: Registry::default(),
            requests: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            long_running: Family::default(),
            in_flight: Family::default(),
            webhooks: WebhookMetrics::new(),
            access: Arc::new(AccessMetrics::new()),
            conversions: Arc::new(ConversionMetrics::new()),
            stored: StoredMetrics::default(),
            watch_events: Counter::default(),
            tls_handshake_errors: Counter::default(),
            panics: Counter::default(),
            audit_events: Counter::default(),
            audit_errors: Counter::default(),
            flow: FlowMetrics::default(),
            resident: Gauge::default(),
            virtual_memory: Gauge::default(),
            open_files: Gauge::default(),
            start_time: Gauge::default(),
        };
        metrics
            .start_time
            .set(jiff::Timestamp::now().as_millisecond() as f64 / 1000.0);
        metrics.registered()
    }

    fn registered(mut self) -> Self {
        let r = &mut self.registry;
        self.webhooks.register(r);
        self.access.register(r);
        self.conversions.register(r);
        self.stored.register(r);
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
        r.register(
            "process_resident_memory_bytes",
            "Resident memory",
            self.resident.clone(),
        );
        r.register(
            "process_virtual_memory_bytes",
            "Virtual memory",
            self.virtual_memory.clone(),
        );
        r.register(
            "process_open_fds",
            "Open file descriptors",
            self.open_files.clone(),
        );
        r.register(
            "process_start_time_seconds",
            "Start of the process, Unix time",
            self.start_time.clone(),
        );
        self
    }

    /// Counts an answered request.
    pub(crate) fn observe(
        &self,
        info: &RequestInfo,
        verb: &str,
        dry_run: bool,
        code: u16,
        took: Duration,
    ) {
        let duration = duration_labels(info, verb);
        self.requests
            .get_or_create(&RequestLabels {
                verb: duration.verb.clone(),
                dry_run: if dry_run {
                    "All".to_owned()
                } else {
                    String::new()
                },
                group: duration.group.clone(),
                version: duration.version.clone(),
                resource: duration.resource.clone(),
                subresource: duration.subresource.clone(),
                scope: duration.scope,
                component: duration.component,
                code,
            })
            .inc();
        if !info.is_long_running() {
            self.durations
                .get_or_create(&duration)
                .observe(took.as_secs_f64());
        }
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

    /// The text form.
    pub(crate) fn text(&self) -> String {
        self.read_process();
        let mut text = String::new();
        // writing to a String cannot fail
        let _ = encode(&mut text, &self.registry);
        text
    }

    fn read_process(&self) {
        if let Ok(statm) = std::fs::read_to_string("/proc/self/statm") {
            let mut pages = statm
                .split_whitespace()
                .filter_map(|word| word.parse::<i64>().ok());
            self.virtual_memory
                .set(pages.next().unwrap_or(0) * PAGE_BYTES);
            self.resident.set(pages.next().unwrap_or(0) * PAGE_BYTES);
        }
        if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
            self.open_files
                .set(i64::try_from(files.count()).unwrap_or(i64::MAX));
        }
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
