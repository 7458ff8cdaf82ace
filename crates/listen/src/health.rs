//! What health checks have answered, as `/metrics/slis` tells it.
//! <https://kubernetes.io/docs/reference/instrumentation/slis/>

use std::collections::BTreeMap;
use std::fmt::Write as _;

use parking_lot::Mutex;

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    passed: u64,
    failed: u64,
    is_well: bool,
}

/// How often each check of a server has passed and failed.
#[derive(Debug, Default)]
pub struct HealthTallies {
    /// By the name of the check and the endpoint.
    seen: Mutex<BTreeMap<(&'static str, &'static str), Tally>>,
}

impl HealthTallies {
    /// A check was made for an endpoint (`healthz`, `livez`, `readyz`).
    pub fn count(&self, endpoint: &'static str, check: &'static str, passed: bool) {
        let mut seen = self.seen.lock();
        let tally = seen.entry((check, endpoint)).or_default();
        tally.is_well = passed;
        *(match passed {
            true => &mut tally.passed,
            false => &mut tally.failed,
        }) += 1;
    }

    /// The page, in the text form of Prometheus.
    #[must_use]
    pub fn page(&self) -> String {
        let seen = self.seen.lock();
        let (mut last, mut totals) = (String::new(), String::new());
        // Writing into a String cannot fail.
        for ((name, endpoint), tally) in &*seen {
            let well = u8::from(tally.is_well);
            let _ = writeln!(
                last,
                "kubernetes_healthcheck{{name=\"{name}\",type=\"{endpoint}\"}} {well}"
            );
            for (status, count) in [("error", tally.failed), ("success", tally.passed)] {
                if count > 0 {
                    let _ = writeln!(
                        totals,
                        "kubernetes_healthchecks_total{{name=\"{name}\",status=\"{status}\",type=\"{endpoint}\"}} {count}"
                    );
                }
            }
        }
        if seen.is_empty() {
            return String::new();
        }
        format!(
            "# HELP kubernetes_healthcheck Whether a health check passed the last time\n\
             # TYPE kubernetes_healthcheck gauge\n{last}\
             # HELP kubernetes_healthchecks_total Health checks by their results\n\
             # TYPE kubernetes_healthchecks_total counter\n{totals}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_result_and_all_of_them_are_told() {
        let tallies = HealthTallies::default();
        assert_eq!(tallies.page(), "");
        for passed in [true, false, true, false] {
            tallies.count("readyz", "etcd", passed);
        }
        tallies.count("livez", "etcd", true);
        let page = tallies.page();
        let samples: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                r#"kubernetes_healthcheck{name="etcd",type="livez"} 1"#,
                r#"kubernetes_healthcheck{name="etcd",type="readyz"} 0"#,
                r#"kubernetes_healthchecks_total{name="etcd",status="success",type="livez"} 1"#,
                r#"kubernetes_healthchecks_total{name="etcd",status="error",type="readyz"} 2"#,
                r#"kubernetes_healthchecks_total{name="etcd",status="success",type="readyz"} 2"#,
            ]
        );
    }
}
