//! `/metrics/resource`: what metrics servers read, under the kubelet's names.

use super::exposition::serve_text;
use super::usage::{self, Usage};
use crate::context::Context;
use davit_cadvisor::exposition::{Sample, bytes, family, quoted, seconds};
use davit_streaming::Body;
use http::Response;

/// A number of a container, with its time where it has one.
type Reader<'a> = &'a dyn Fn(&usage::ContainerUsage) -> Option<(f64, Option<i64>)>;

pub(super) async fn serve(ctx: &Context) -> Response<Body> {
    let usage = usage::collect(ctx).await.inspect_err(|error| {
        tracing::warn!(%error, "cannot read the use of resources from the runtime");
    });
    serve_text(encode(usage.as_ref().ok()))
}

/// The text, or only the mark of an error when nothing is known.
fn encode(usage: Option<&Usage>) -> String {
    let mut out = String::new();
    if let Some(usage) = usage {
        containers(&mut out, usage);
        node(&mut out, usage);
        pods(&mut out, usage);
    }
    let failed = if usage.is_some() { 0.0 } else { 1.0 };
    let help = "1 if there was an error while getting container metrics, 0 otherwise";
    let sample = vec![(String::new(), failed, None)];
    let help = format!("[STABLE] {help}");
    family(&mut out, "resource_scrape_error", "gauge", &help, sample);
    out
}

fn containers(out: &mut String, usage: &Usage) {
    let each = |number: Reader<'_>| {
        let mut samples: Vec<Sample> = Vec::new();
        for pod in &usage.pods {
            for container in &pod.containers {
                let Some((value, time)) = number(container) else {
                    continue;
                };
                let labels = format!(
                    "{{container={},namespace={},pod={}}}",
                    quoted(&container.name),
                    quoted(&pod.namespace),
                    quoted(&pod.name)
                );
                samples.push((labels, value, time));
            }
        }
        samples
    };
    let name = "container_cpu_usage_seconds_total";
    let help = "[STABLE] Cumulative cpu time consumed by the container in core-seconds";
    let samples = each(&|c| usage::cpu(&c.stats).map(|(t, n)| (seconds(n), Some(t))));
    family(out, name, "counter", help, samples);
    let name = "container_memory_working_set_bytes";
    let help = "[STABLE] Current working set of the container in bytes";
    let samples = each(&|c| usage::working_set(&c.stats).map(|(t, n)| (bytes(n), Some(t))));
    family(out, name, "gauge", help, samples);
    let name = "container_start_time_seconds";
    let help = "[STABLE] Start time of the container since unix epoch in seconds";
    let samples = each(&|c| Some((seconds(u64::try_from(c.started?).ok()?), None)));
    family(out, name, "gauge", help, samples);
    let name = "container_swap_limit_bytes";
    let help = "[ALPHA] Current amount of the container swap limit in bytes";
    let samples = each(&|c| usage::swap_limit(&c.stats).map(|(t, n)| (bytes(n), Some(t))));
    family(out, name, "gauge", help, samples);
    let name = "container_swap_usage_bytes";
    let help = "[ALPHA] Current amount of the container swap usage in bytes";
    let samples = each(&|c| usage::swap(&c.stats).map(|(t, n)| (bytes(n), Some(t))));
    family(out, name, "gauge", help, samples);
}

fn node(out: &mut String, usage: &Usage) {
    let node = &usage.node;
    let one = |value: f64| vec![(String::new(), value, Some(node.time))];
    let name = "node_cpu_usage_seconds_total";
    let help = "[STABLE] Cumulative cpu time consumed by the node in core-seconds";
    let samples = node.cpu_nanos.map(|n| one(seconds(n))).unwrap_or_default();
    family(out, name, "counter", help, samples);
    let name = "node_memory_working_set_bytes";
    let help = "[STABLE] Current working set of the node in bytes";
    family(out, name, "gauge", help, one(bytes(node.working_set())));
    let name = "node_swap_usage_bytes";
    let help = "[ALPHA] Current swap usage of the node in bytes";
    let used = node.swap_total.saturating_sub(node.swap_free);
    family(out, name, "gauge", help, one(bytes(used)));
}

fn pods(out: &mut String, usage: &Usage) {
    let each = |number: fn(&davit_proto::cri::v1::ContainerStats) -> Option<(i64, u64)>,
                scale: fn(u64) -> f64| {
        let mut samples: Vec<Sample> = Vec::new();
        for pod in &usage.pods {
            if let Some((time, n)) = pod.sum(number) {
                let labels = format!(
                    "{{namespace={},pod={}}}",
                    quoted(&pod.namespace),
                    quoted(&pod.name)
                );
                samples.push((labels, scale(n), Some(time)));
            }
        }
        samples
    };
    let name = "pod_cpu_usage_seconds_total";
    let help = "[STABLE] Cumulative cpu time consumed by the pod in core-seconds";
    family(out, name, "counter", help, each(usage::cpu, seconds));
    let name = "pod_memory_working_set_bytes";
    let help = "[STABLE] Current working set of the pod in bytes";
    family(out, name, "gauge", help, each(usage::working_set, bytes));
    let name = "pod_swap_usage_bytes";
    let help = "[ALPHA] Current amount of the pod swap usage in bytes";
    family(out, name, "gauge", help, each(usage::swap, bytes));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::usage::tests::example;

    #[test]
    fn names_labels_and_times_are_the_kubelets() {
        let text = encode(Some(&example()));
        for line in [
            "# TYPE container_cpu_usage_seconds_total counter",
            r#"container_cpu_usage_seconds_total{container="main",namespace="default",pod="b"} 1 5"#,
            r#"container_memory_working_set_bytes{container="side",namespace="default",pod="b"} 10 6"#,
            r#"container_start_time_seconds{container="main",namespace="default",pod="a"} 1.5"#,
            "node_cpu_usage_seconds_total 1.71 7",
            "node_memory_working_set_bytes 61440 7",
            "node_swap_usage_bytes 2048 7",
            r#"pod_cpu_usage_seconds_total{namespace="default",pod="b"} 1.5 5"#,
            r#"pod_memory_working_set_bytes{namespace="default",pod="a"} 30 6"#,
            "resource_scrape_error 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
        assert!(!text.contains("container_swap"), "{text}");
        // deprecated since 1.29 and hidden since
        assert!(!text.contains("\nscrape_error"), "{text}");
    }

    #[test]
    fn without_an_answer_of_the_runtime_the_error_is_marked() {
        let text = encode(None);
        assert!(
            text.lines().any(|l| l == "resource_scrape_error 1"),
            "{text}"
        );
        assert!(!text.contains("node_cpu"), "{text}");
    }
}
