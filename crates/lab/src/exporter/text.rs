//! The text that Prometheus reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use super::model::{DeviceState, Owner, Snapshot};

/// About the look itself.
pub(super) struct Scrape<'a> {
    pub(super) node: &'a str,
    pub(super) took: Duration,
    pub(super) errors: u64,
    pub(super) success: Option<SystemTime>,
}

/// Writes families one after the other.
struct Page<'a> {
    out: String,
    node: &'a str,
    name: &'static str,
}

impl Page<'_> {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        // Writing into a String cannot fail.
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        self.name = name;
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let _ = write!(self.out, "{}{{node=\"", self.name);
        escape(&mut self.out, self.node);
        for (label, text) in labels {
            let _ = write!(self.out, "\",{label}=\"");
            escape(&mut self.out, text);
        }
        let _ = writeln!(self.out, "\"}} {value}");
    }
}

fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

fn nodes(numa: &BTreeSet<i64>) -> String {
    numa.iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

/// The labels of an owner, as Kubernetes names them.
fn owned(owner: &Owner) -> [(&'static str, &str); 3] {
    [
        ("namespace", &owner.namespace),
        ("pod", &owner.pod),
        ("container", &owner.container),
    ]
}

pub(super) fn render(snapshot: &Snapshot, scrape: &Scrape<'_>) -> String {
    let mut page = Page {
        out: String::new(),
        node: scrape.node,
        name: "",
    };
    about(&mut page, snapshot, scrape);
    devices(&mut page, snapshot);
    others(&mut page, snapshot);
    page.out
}

fn about(page: &mut Page<'_>, snapshot: &Snapshot, scrape: &Scrape<'_>) {
    page.family(
        "davit_podresources_up",
        "gauge",
        "Whether the node agent answered.",
    );
    page.sample(&[], u8::from(snapshot.up));
    page.family(
        "davit_podresources_duration_seconds",
        "gauge",
        "How long the node agent took to answer.",
    );
    page.sample(&[], scrape.took.as_secs_f64());
    page.family(
        "davit_podresources_errors_total",
        "counter",
        "How often the node agent did not answer.",
    );
    page.sample(&[], scrape.errors);
    let success = scrape
        .success
        .and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    if let Some(success) = success {
        page.family(
            "davit_podresources_last_success_timestamp_seconds",
            "gauge",
            "When the node agent answered last.",
        );
        page.sample(&[], success.as_secs_f64());
    }
}

fn devices(page: &mut Page<'_>, snapshot: &Snapshot) {
    page.family(
        "davit_device_state",
        "gauge",
        "The state a device is in: allocated, free, unhealthy (not offered any more) or unknown (the node agent does not answer).",
    );
    for ((resource, id), device) in &snapshot.devices {
        let numa = nodes(&device.numa);
        let labels = [
            ("resource", resource.as_str()),
            ("device", id),
            ("numa_nodes", &numa),
            ("state", device.state.as_str()),
        ];
        page.sample(&labels, 1);
    }
    page.family(
        "davit_device_owner",
        "gauge",
        "A container that holds a device.",
    );
    for ((resource, id), device) in &snapshot.devices {
        for owner in &device.owners {
            let [namespace, pod, container] = owned(owner);
            page.sample(
                &[
                    ("resource", resource),
                    ("device", id),
                    namespace,
                    pod,
                    container,
                ],
                1,
            );
        }
    }
    page.family(
        "davit_device_without_owner",
        "gauge",
        "A device that no container holds, and why: free, unhealthy or unknown.",
    );
    for ((resource, id), device) in &snapshot.devices {
        if device.owners.is_empty() {
            let why = device.state.as_str();
            page.sample(
                &[("resource", resource), ("device", id), ("reason", why)],
                1,
            );
        }
    }
    let mut counts: BTreeMap<&str, BTreeMap<DeviceState, usize>> = BTreeMap::new();
    for ((resource, _), device) in &snapshot.devices {
        *counts
            .entry(resource)
            .or_default()
            .entry(device.state)
            .or_default() += 1;
    }
    page.family(
        "davit_devices",
        "gauge",
        "Number of devices by resource and state.",
    );
    for (resource, states) in counts {
        for state in DeviceState::ALL {
            let count = states.get(&state).copied().unwrap_or_default();
            page.sample(&[("resource", resource), ("state", state.as_str())], count);
        }
    }
}

fn others(page: &mut Page<'_>, snapshot: &Snapshot) {
    page.family(
        "davit_claimed_device_owner",
        "gauge",
        "A container that holds a device of a resource claim.",
    );
    for claimed in &snapshot.claimed {
        let [namespace, pod, container] = owned(&claimed.owner);
        let labels = [
            ("driver", claimed.driver.as_str()),
            ("pool", &claimed.pool),
            ("device", &claimed.device),
            ("share_id", &claimed.share),
            ("claim_namespace", &claimed.claim_namespace),
            ("claim", &claimed.claim),
            namespace,
            pod,
            container,
        ];
        page.sample(&labels, 1);
    }
    page.family(
        "davit_container_exclusive_cpus",
        "gauge",
        "CPUs that a container has for itself.",
    );
    for (owner, count) in &snapshot.cpus {
        page.sample(&owned(owner), count);
    }
    page.family(
        "davit_container_pinned_memory_bytes",
        "gauge",
        "Memory and huge pages that a container has on NUMA nodes.",
    );
    for ((owner, kind, numa), size) in &snapshot.memory {
        let [namespace, pod, container] = owned(owner);
        let numa = nodes(numa);
        page.sample(
            &[
                namespace,
                pod,
                container,
                ("type", kind),
                ("numa_nodes", &numa),
            ],
            size,
        );
    }
    if let Some(cpus) = snapshot.allocatable_cpus {
        page.family(
            "davit_allocatable_exclusive_cpus",
            "gauge",
            "CPUs that containers can have for themselves; 0 without a static CPU manager.",
        );
        page.sample(&[], cpus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut page = Page {
            out: String::new(),
            node: "n",
            name: "x",
        };
        page.sample(&[("a", "q\"b\\c\nd")], 1);
        assert_eq!(page.out, "x{node=\"n\",a=\"q\\\"b\\\\c\\nd\"} 1\n");
    }
}
