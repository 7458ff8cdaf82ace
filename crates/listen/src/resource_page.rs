//! Reading what a node serves under `/metrics/resource` (Prometheus' text format,
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::collections::HashMap;

use crate::samples::MetricSample;

/// Nanoseconds of a second and of a millisecond.
const SECOND: f64 = 1e9;
const MILLISECOND: i64 = 1_000_000;

/// Whose a container is: namespace, pod, container.
pub type ContainerUseKey = (String, String, String);

/// What was measured of a node or container at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeasuredUse {
    /// Nanoseconds since the epoch.
    pub at: i64,
    /// Core-nanoseconds so far.
    pub cpu: u64,
    /// Working set in bytes.
    pub memory: u64,
    /// When it was started, in nanoseconds since the epoch, where that is known.
    pub started: Option<i64>,
}

/// One answer of a node.
#[derive(Debug, Default)]
pub struct ResourceScrape {
    /// The node as a whole, if both of its numbers are there.
    pub node: Option<MeasuredUse>,
    /// Its containers of which both numbers are there.
    pub containers: HashMap<ContainerUseKey, MeasuredUse>,
}

/// What is known of one so far.
#[derive(Debug, Default)]
struct Partly {
    at: Option<i64>,
    cpu: Option<f64>,
    memory: Option<f64>,
    started: Option<f64>,
}

impl Partly {
    /// Something that lacks one of its two numbers is left out.
    fn complete(&self, now: i64) -> Option<MeasuredUse> {
        Some(MeasuredUse {
            at: self.at.unwrap_or(now),
            cpu: whole(self.cpu? * SECOND)?,
            memory: whole(self.memory?)?,
            started: match self.started {
                Some(seconds) => i64::try_from(whole(seconds * SECOND)?).ok(),
                None => None,
            },
        })
    }
}

/// A number that counts something, rounded; nothing for what cannot.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range is checked"
)]
fn whole(value: f64) -> Option<u64> {
    (0.0..9e18).contains(&value).then(|| value.round() as u64)
}

/// Reads an answer that was received at `now` (nanoseconds since the epoch). Lines of no interest and those that cannot
/// be read are passed over.
pub fn read_resource_page(text: &str, now: i64) -> ResourceScrape {
    let mut node = Partly::default();
    let mut containers: HashMap<ContainerUseKey, Partly> = HashMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some(sample) = MetricSample::read(line) else {
            continue;
        };
        let at = match sample.milliseconds {
            None => None,
            Some(time) => match time.checked_mul(MILLISECOND) {
                Some(at) => Some(at),
                None => continue,
            },
        };
        let Some(what) = sample.name.strip_prefix("container_") else {
            match sample.name {
                "node_cpu_usage_seconds_total" => {
                    node.cpu = Some(sample.value);
                    node.at = at;
                }
                "node_memory_working_set_bytes" => node.memory = Some(sample.value),
                _ => {}
            }
            continue;
        };
        if !matches!(
            what,
            "cpu_usage_seconds_total" | "memory_working_set_bytes" | "start_time_seconds"
        ) {
            continue;
        }
        let Some(key) = key(&sample) else {
            continue;
        };
        let known = containers.entry(key).or_default();
        match what {
            "cpu_usage_seconds_total" => {
                known.cpu = Some(sample.value);
                known.at = at;
            }
            "memory_working_set_bytes" => known.memory = Some(sample.value),
            _ => known.started = Some(sample.value),
        }
    }
    let containers = containers.into_iter();
    ResourceScrape {
        node: node.complete(now),
        containers: containers
            .filter_map(|(key, known)| Some((key, known.complete(now)?)))
            .collect(),
    }
}

fn key(sample: &MetricSample<'_>) -> Option<ContainerUseKey> {
    let label = |name: &str| sample.label(name).map(str::to_owned);
    Some((label("namespace")?, label("pod")?, label("container")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP container_cpu_usage_seconds_total Cumulative cpu time
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="main",namespace="n",pod="p"} 1.25 5000
container_cpu_usage_seconds_total{container="only-cpu",namespace="n",pod="p"} 1 5000
container_memory_working_set_bytes{container="main",namespace="n",pod="p"} 4.096e+06 5001
container_start_time_seconds{container="main",namespace="n",pod="p"} 2.5
container_swap_usage_bytes{container="main",namespace="n",pod="p"} 3 5000
node_cpu_usage_seconds_total 12.5 6000
node_memory_working_set_bytes 1000
pod_cpu_usage_seconds_total{namespace="n",pod="p"} 2 5000
"#;

    #[test]
    fn numbers_and_times_of_nodes_and_containers() {
        let read = read_resource_page(TEXT, 9);
        let node = read.node.unwrap();
        assert_eq!(
            (node.at, node.cpu, node.memory, node.started),
            (6_000_000_000, 12_500_000_000, 1000, None)
        );
        let key = ("n".to_owned(), "p".to_owned(), "main".to_owned());
        let main = read.containers[&key];
        assert_eq!(
            (main.at, main.cpu, main.memory, main.started),
            (5_000_000_000, 1_250_000_000, 4_096_000, Some(2_500_000_000))
        );
        assert_eq!(read.containers.len(), 1, "what lacks a number is left out");
    }

    #[test]
    fn what_cannot_be_read_is_passed_over() {
        for text in [
            "",
            "\n{\n}\n{}",
            "node_cpu_usage_seconds_total",
            "node_cpu_usage_seconds_total -1\nnode_memory_working_set_bytes 1",
            "node_cpu_usage_seconds_total NaN\nnode_memory_working_set_bytes 1",
            "node_cpu_usage_seconds_total 1 9223372036854775807\nnode_memory_working_set_bytes 1",
            "container_cpu_usage_seconds_total{container=\"",
            "container_cpu_usage_seconds_total{container=\"a\\",
            "container_cpu_usage_seconds_total{container} 1",
        ] {
            let read = read_resource_page(text, 1);
            assert!(read.node.is_none() && read.containers.is_empty(), "{text}");
        }
    }
}
