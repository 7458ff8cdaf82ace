//! `/metrics/probes`: how probes ended and how long they took, under the kubelet's names.

use super::Kind;
use super::check::Outcome;
use davit_pods::pod::PodExt;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

/// The kubelet's buckets, in seconds.
const BUCKETS: [f64; 11] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// Labels of a count.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProbeCount {
    probe_type: &'static str,
    result: &'static str,
    container: String,
    pod: String,
    namespace: String,
    pod_uid: String,
}

/// Labels of a duration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProbeDuration {
    probe_type: &'static str,
    container: String,
    pod: String,
    namespace: String,
}

/// What is counted of probes.
#[derive(Debug)]
pub(crate) struct ProbeMetrics {
    registry: Mutex<Registry>,
    total: Family<ProbeCount, Counter>,
    duration: Family<ProbeDuration, Histogram>,
}

/// The words for how a probe ends.
const RESULTS: [&str; 3] = ["successful", "failed", "unknown"];

impl Default for ProbeMetrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let total: Family<ProbeCount, Counter> = Family::default();
        let duration: Family<ProbeDuration, Histogram> =
            Family::new_with_constructor(|| Histogram::new(BUCKETS));
        registry.register(
            "prober_probe",
            "Cumulative number of a liveness, readiness or startup probe for a container by result",
            total.clone(),
        );
        registry.register(
            "prober_probe_duration_seconds",
            "Duration in seconds for a probe response",
            duration.clone(),
        );
        Self {
            registry: Mutex::new(registry),
            total,
            duration,
        }
    }
}

fn counted(pod: &Pod, container: &str, kind: Kind, result: &'static str) -> ProbeCount {
    ProbeCount {
        probe_type: kind.as_str(),
        result,
        container: container.to_owned(),
        pod: pod.pod_name().to_owned(),
        namespace: pod.ns().to_owned(),
        pod_uid: pod.uid().to_owned(),
    }
}

fn timed(pod: &Pod, container: &str, kind: Kind) -> ProbeDuration {
    ProbeDuration {
        probe_type: kind.as_str(),
        container: container.to_owned(),
        pod: pod.pod_name().to_owned(),
        namespace: pod.ns().to_owned(),
    }
}

impl ProbeMetrics {
    /// Takes in how a probe ended; as in the kubelet, durations are those of probes that had an answer.
    pub(super) fn ended(
        &self,
        pod: &Pod,
        container: &str,
        kind: Kind,
        outcome: &Outcome,
        after: Duration,
    ) {
        let result = match outcome {
            Outcome::Success | Outcome::Warning(_) => RESULTS[0],
            Outcome::Failure(_) => RESULTS[1],
            Outcome::Error(_) => RESULTS[2],
        };
        let labels = counted(pod, container, kind, result);
        self.total.get_or_create(&labels).inc();
        if !matches!(outcome, Outcome::Error(_)) {
            let labels = timed(pod, container, kind);
            let histogram = self.duration.get_or_create(&labels);
            histogram.observe(after.as_secs_f64());
        }
    }

    /// Forgets a container of a pod that is gone.
    pub(super) fn forget(&self, pod: &Pod, container: &str, kind: Kind) {
        for result in RESULTS {
            self.total.remove(&counted(pod, container, kind, result));
        }
        self.duration.remove(&timed(pod, container, kind));
    }

    /// As text.
    pub(crate) fn encode(&self) -> String {
        let mut out = String::new();
        // Writing into a String cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut out, &self.registry.lock());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counts_have_the_kubelets_labels_and_go_with_the_pod() {
        let metrics = ProbeMetrics::default();
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let (kind, took) = (Kind::Readiness, Duration::from_millis(20));
        metrics.ended(&pod, "c", kind, &Outcome::Success, took);
        metrics.ended(&pod, "c", kind, &Outcome::Failure(String::new()), took);
        let text = metrics.encode();
        let line = r#"prober_probe_total{probe_type="Readiness",result="failed",container="c",pod="p",namespace="n",pod_uid="u"} 1"#;
        assert!(text.lines().any(|l| l == line), "{text}");
        let count = r#"prober_probe_duration_seconds_count{probe_type="Readiness",container="c",pod="p",namespace="n"} 2"#;
        assert!(text.lines().any(|l| l == count), "{text}");
        metrics.forget(&pod, "c", kind);
        assert!(!metrics.encode().contains("container="));
    }
}
