//! Pages of metrics, in the text form of OpenMetrics or in that of Prometheus, which is made from it.
//!
//! The two differ in the names of families: OpenMetrics names a counter without the suffix `_total` of its samples.

use std::collections::HashSet;

use hyper::HeaderMap;
use hyper::header::ACCEPT;

/// The media type of Prometheus' text form.
pub const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Counters that Kubernetes names without the suffix, or as a gauge with it: gauges in OpenMetrics, which insists on it.
const PLAIN_COUNTERS: [&str; 4] = [
    "aggregator_unavailable_apiservice_total",
    "authentication_attempts",
    "authenticated_user_requests",
    "kubelet_evictions",
];

/// A page of metrics as a client asks for it: its media type and its text. `open` is that of OpenMetrics, which goes to those
/// that name it.
#[must_use]
pub fn metrics_page(open: String, asked: &HeaderMap) -> (&'static str, String) {
    let accepts = asked.get_all(ACCEPT).iter();
    let mut accepts = accepts.filter_map(|value| value.to_str().ok());
    match accepts.any(|value| value.contains("application/openmetrics-text")) {
        true => (OPEN_METRICS, open),
        false => (PROMETHEUS, prometheus(&open)),
    }
}

/// OpenMetrics text as Prometheus text.
fn prometheus(open: &str) -> String {
    let counters: HashSet<&str> = open
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut text = String::with_capacity(open.len());
    for line in open.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        let mut words = comment.splitn(3, ' ');
        let (Some(word), Some(name), Some(rest)) = (words.next(), words.next(), words.next())
        else {
            // the end is not marked
            continue;
        };
        if word == "UNIT" {
            continue;
        }
        let suffix = if counters.contains(name) {
            "_total"
        } else {
            ""
        };
        let rest = if word == "TYPE" && PLAIN_COUNTERS.contains(&name) {
            "counter"
        } else {
            rest
        };
        text.push_str(&format!("# {word} {name}{suffix} {rest}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_names_openmetrics_gets_it() {
        let page = |accept: &'static str| {
            let headers = [(ACCEPT, accept.parse().unwrap())].into_iter().collect();
            metrics_page("# TYPE a counter\na_total 1\n# EOF\n".to_owned(), &headers)
        };
        let (kind, text) = page("application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
        assert_eq!((kind, text.ends_with("# EOF\n")), (OPEN_METRICS, true));
        let (kind, text) = page("text/plain");
        assert_eq!(
            (kind, &*text),
            (PROMETHEUS, "# TYPE a_total counter\na_total 1\n")
        );
    }

    #[test]
    fn families_of_counters_carry_the_names_of_their_samples() {
        let open = "# HELP apiserver_request Requests.\n# TYPE apiserver_request counter\n\
                    apiserver_request_total{code=\"200\"} 3\n# HELP authentication_attempts Tries.\n\
                    # TYPE authentication_attempts gauge\nauthentication_attempts 1\n# UNIT x seconds\n# EOF\n";
        assert_eq!(
            prometheus(open),
            "# HELP apiserver_request_total Requests.\n# TYPE apiserver_request_total counter\n\
             apiserver_request_total{code=\"200\"} 3\n# HELP authentication_attempts Tries.\n\
             # TYPE authentication_attempts counter\nauthentication_attempts 1\n"
        );
    }
}
