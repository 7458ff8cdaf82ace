//! The text form of Prometheus, made from that of OpenMetrics.
//!
//! The two differ in the names of families: OpenMetrics names a counter without the suffix `_total` of its samples.

use std::collections::HashSet;

/// The media type of [`prometheus`].
pub(crate) const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
/// The media type of what it is made from.
pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Counters that Kubernetes names without the suffix: gauges in OpenMetrics, which insists on it.
const PLAIN_COUNTERS: [&str; 2] = ["authentication_attempts", "authenticated_user_requests"];

/// OpenMetrics text as Prometheus text.
pub(crate) fn prometheus(open: &str) -> String {
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
