//! Metrics of admission webhooks.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

const BUCKETS: [f64; 7] = [0.005, 0.025, 0.1, 0.5, 1.0, 10.0, 25.0];
/// Codes of webhooks' own making are not label values.
const OTHER_CODE: u16 = 600;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    name: String,
    r#type: &'static str,
    operation: &'static str,
    rejected: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    name: String,
    r#type: &'static str,
    operation: &'static str,
    code: u16,
    rejected: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RejectionLabels {
    name: String,
    r#type: &'static str,
    operation: &'static str,
    error_type: &'static str,
    rejection_code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OpenLabels {
    name: String,
    r#type: &'static str,
}

/// What became of the calls.
#[derive(Debug)]
pub struct WebhookMetrics {
    durations: Family<DurationLabels, Histogram>,
    requests: Family<RequestLabels, Counter>,
    // these two lack the suffix that the text form gives to counters
    rejections: Family<RejectionLabels, Gauge>,
    open: Family<OpenLabels, Gauge>,
}

impl Default for WebhookMetrics {
    fn default() -> Self {
        Self {
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            requests: Family::default(),
            rejections: Family::default(),
            open: Family::default(),
        }
    }
}

impl WebhookMetrics {
    /// Puts them on a page of metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "apiserver_admission_webhook_admission_duration_seconds",
            "Time an admission webhook took",
            self.durations.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_request",
            "Calls of admission webhooks by their outcome",
            self.requests.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_rejection_count",
            "Requests that admission webhooks refused or whose call failed",
            self.rejections.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_fail_open_count",
            "Failed calls of admission webhooks that were ignored by their policy",
            self.open.clone(),
        );
    }

    /// Counts a call of the webhook `name` (`admit` or `validating`).
    #[allow(clippy::too_many_arguments, reason = "one call is one line of labels")]
    pub(crate) fn observe(
        &self,
        name: &str,
        kind: &'static str,
        operation: &'static str,
        rejected: bool,
        error_type: &'static str,
        code: u16,
        took: Duration,
    ) {
        let code = code.min(OTHER_CODE);
        let rejected_text = if rejected { "true" } else { "false" };
        self.durations
            .get_or_create(&DurationLabels {
                name: name.to_owned(),
                r#type: kind,
                operation,
                rejected: rejected_text,
            })
            .observe(took.as_secs_f64());
        self.requests
            .get_or_create(&RequestLabels {
                name: name.to_owned(),
                r#type: kind,
                operation,
                code,
                rejected: rejected_text,
            })
            .inc();
        if rejected {
            self.rejections
                .get_or_create(&RejectionLabels {
                    name: name.to_owned(),
                    r#type: kind,
                    operation,
                    error_type,
                    rejection_code: if error_type == "no_error" { code } else { 0 },
                })
                .inc();
        }
    }

    /// Counts a failure that was ignored.
    pub(crate) fn failed_open(&self, name: &str, kind: &'static str) {
        let labels = OpenLabels {
            name: name.to_owned(),
            r#type: kind,
        };
        self.open.get_or_create(&labels).inc();
    }
}
