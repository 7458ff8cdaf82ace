//! Names, types and values of cAdvisor's series. Pure.

use super::{Disk, Host, QUOTA_PERIOD, Subject, labels};
use crate::server::exposition::{Sample, bytes, family, quoted, seconds};
use davit_oci::runtime::InterfaceTraffic;
use std::collections::BTreeMap;

/// A label of a series beside those that all have, and a value.
type Values = Vec<(Option<(&'static str, String)>, f64)>;

/// A name without its prefix `container_`, type, description, and the values of a subject.
type Series = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Subject) -> Values,
);

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

fn one(value: Option<f64>) -> Values {
    value.map(|value| (None, value)).into_iter().collect()
}

fn labelled(key: &'static str, label: &str, value: Option<f64>) -> Values {
    let value = value.map(|value| (Some((key, label.to_owned())), value));
    value.into_iter().collect()
}

fn times(nanos: Option<u64>) -> Values {
    one(nanos.map(seconds))
}

fn count(number: Option<u64>) -> Values {
    one(number.map(bytes))
}

/// Of containers that have a quota; others are never held back.
fn of_quota(subject: &Subject, number: Option<f64>) -> Values {
    one(number.filter(|_| subject.spec.is_some_and(|spec| spec.quota > 0)))
}

#[allow(
    clippy::cast_precision_loss,
    reason = "the format's numbers are floats"
)]
fn signed(number: Option<i64>) -> Values {
    one(number.map(|number| number as f64))
}

fn of_disk(subject: &Subject, number: fn(&Disk) -> Option<u64>) -> Values {
    let number = subject.disk.as_ref().and_then(number);
    labelled("device", "", number.map(bytes))
}

fn faults(subject: &Subject) -> Values {
    let Some(memory) = subject.memory else {
        return Values::new();
    };
    let kinds = [
        ("pgfault", memory.faults),
        ("pgmajfault", memory.major_faults),
    ];
    kinds
        .into_iter()
        .flat_map(|(kind, number)| labelled("failure_type", kind, number.map(bytes)))
        .collect()
}

fn traffic(subject: &Subject, number: fn(&InterfaceTraffic) -> Option<u64>) -> Values {
    let each = subject.interfaces.iter();
    each.flat_map(|i| labelled("interface", &i.name, number(i).map(bytes)))
        .collect()
}

/// In the order of their names.
const SERIES: [Series; 36] = [
    (
        "cpu_cfs_periods_total",
        COUNTER,
        "Number of elapsed enforcement period intervals.",
        |s| of_quota(s, s.parts.periods.map(bytes)),
    ),
    (
        "cpu_cfs_throttled_periods_total",
        COUNTER,
        "Number of throttled period intervals.",
        |s| of_quota(s, s.parts.throttled_periods.map(bytes)),
    ),
    (
        "cpu_cfs_throttled_seconds_total",
        COUNTER,
        "Total time duration the container has been throttled.",
        |s| of_quota(s, s.parts.throttled_nanos.map(seconds)),
    ),
    (
        "cpu_system_seconds_total",
        COUNTER,
        "Cumulative system cpu time consumed in seconds.",
        |s| times(s.parts.system_nanos),
    ),
    (
        "cpu_usage_seconds_total",
        COUNTER,
        "Cumulative cpu time consumed in seconds.",
        |s| labelled("cpu", "total", s.cpu.map(seconds)),
    ),
    (
        "cpu_user_seconds_total",
        COUNTER,
        "Cumulative user cpu time consumed in seconds.",
        |s| times(s.parts.user_nanos),
    ),
    ("fs_inodes_free", GAUGE, "Number of available Inodes", |s| {
        of_disk(s, |disk| disk.inodes_free)
    }),
    ("fs_inodes_total", GAUGE, "Number of Inodes", |s| {
        of_disk(s, |disk| disk.inodes)
    }),
    (
        "fs_limit_bytes",
        GAUGE,
        "Number of bytes that can be consumed by the container on this filesystem.",
        |s| of_disk(s, |disk| disk.limit),
    ),
    (
        "fs_usage_bytes",
        GAUGE,
        "Number of bytes that are consumed by the container on this filesystem.",
        |s| of_disk(s, |disk| Some(disk.used)),
    ),
    (
        "last_seen",
        GAUGE,
        "Last time a container was seen by the exporter",
        |s| one(u64::try_from(s.time / 1_000_000_000).ok().map(bytes)),
    ),
    (
        "memory_cache",
        GAUGE,
        "Number of bytes of page cache memory.",
        |s| count(s.parts.cache),
    ),
    (
        "memory_failures_total",
        COUNTER,
        "Cumulative count of memory allocation failures.",
        faults,
    ),
    (
        "memory_mapped_file",
        GAUGE,
        "Size of memory mapped files in bytes.",
        |s| count(s.parts.mapped_file),
    ),
    (
        "memory_max_usage_bytes",
        GAUGE,
        "Maximum memory usage recorded in bytes",
        |s| count(s.parts.peak),
    ),
    ("memory_rss", GAUGE, "Size of RSS in bytes.", |s| {
        count(s.memory.and_then(|m| m.rss))
    }),
    (
        "memory_swap",
        GAUGE,
        "Container swap usage in bytes.",
        |s| count(s.parts.swap),
    ),
    (
        "memory_usage_bytes",
        GAUGE,
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        |s| count(s.memory.map(|m| m.usage)),
    ),
    (
        "memory_working_set_bytes",
        GAUGE,
        "Current working set in bytes.",
        |s| count(s.memory.map(|m| m.working_set)),
    ),
    (
        "network_receive_bytes_total",
        COUNTER,
        "Cumulative count of bytes received",
        |s| traffic(s, |i| Some(i.received_bytes)),
    ),
    (
        "network_receive_errors_total",
        COUNTER,
        "Cumulative count of errors encountered while receiving",
        |s| traffic(s, |i| Some(i.receive_errors)),
    ),
    (
        "network_receive_packets_dropped_total",
        COUNTER,
        "Cumulative count of packets dropped while receiving",
        |s| traffic(s, |i| i.receive_drops),
    ),
    (
        "network_receive_packets_total",
        COUNTER,
        "Cumulative count of packets received",
        |s| traffic(s, |i| i.received_packets),
    ),
    (
        "network_transmit_bytes_total",
        COUNTER,
        "Cumulative count of bytes transmitted",
        |s| traffic(s, |i| Some(i.sent_bytes)),
    ),
    (
        "network_transmit_errors_total",
        COUNTER,
        "Cumulative count of errors encountered while transmitting",
        |s| traffic(s, |i| Some(i.send_errors)),
    ),
    (
        "network_transmit_packets_dropped_total",
        COUNTER,
        "Cumulative count of packets dropped while transmitting",
        |s| traffic(s, |i| i.send_drops),
    ),
    (
        "network_transmit_packets_total",
        COUNTER,
        "Cumulative count of packets transmitted",
        |s| traffic(s, |i| i.sent_packets),
    ),
    (
        "oom_events_total",
        COUNTER,
        "Count of out of memory events observed for the container",
        |s| count(s.oom_kills),
    ),
    (
        "spec_cpu_period",
        GAUGE,
        "CPU period of the container.",
        |s| signed(s.spec.map(|_| QUOTA_PERIOD)),
    ),
    (
        "spec_cpu_quota",
        GAUGE,
        "CPU quota of the container.",
        |s| signed(s.spec.map(|spec| spec.quota).filter(|quota| *quota > 0)),
    ),
    (
        "spec_cpu_shares",
        GAUGE,
        "CPU share of the container.",
        |s| signed(s.spec.map(|spec| spec.shares)),
    ),
    (
        "spec_memory_limit_bytes",
        GAUGE,
        "Memory limit for the container.",
        |s| signed(s.spec.map(|spec| spec.memory)),
    ),
    (
        "spec_memory_reservation_limit_bytes",
        GAUGE,
        "Memory reservation limit for the container.",
        |s| signed(s.spec.map(|_| 0)),
    ),
    (
        "spec_memory_swap_limit_bytes",
        GAUGE,
        "Memory swap limit for the container.",
        |s| signed(s.spec.map(|_| 0)),
    ),
    (
        "start_time_seconds",
        GAUGE,
        "Start time of the container since unix epoch in seconds.",
        |s| times(s.started.and_then(|at| u64::try_from(at).ok())),
    ),
    (
        "threads",
        GAUGE,
        "Number of threads running inside the container",
        |s| count(s.tasks),
    ),
];

/// All series.
pub(super) fn encode(host: &Host, subjects: &[Subject]) -> String {
    let mut out = String::new();
    machine(&mut out, host);
    for (name, kind, help, values) in SERIES {
        let samples = subjects.iter().flat_map(|subject| {
            let own = labels(subject);
            values(subject).into_iter().map(move |(extra, value)| {
                let mut labels = own.clone();
                let extra = extra.as_ref();
                labels.extend(extra.map(|(key, value)| (*key, value.as_str())));
                if name == "memory_failures_total" {
                    labels.insert("scope", "container");
                }
                (braces(&labels), value, Some(subject.time))
            })
        });
        let samples: Vec<Sample> = samples.collect();
        family(&mut out, &format!("container_{name}"), kind, help, samples);
    }
    out
}

fn braces(labels: &BTreeMap<&str, &str>) -> String {
    let pairs = labels
        .iter()
        .map(|(key, value)| format!("{key}={}", quoted(value)));
    format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
}

fn machine(out: &mut String, host: &Host) {
    let plain = |value: f64| vec![(String::new(), value, None)];
    let [boot, machine, system] = &host.ids;
    let ids = BTreeMap::from([
        ("boot_id", boot.as_str()),
        ("machine_id", machine),
        ("system_uuid", system),
    ]);
    let of_machine = |value: u64| vec![(braces(&ids), bytes(value), None)];
    let version = BTreeMap::from([
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", host.kernel.as_str()),
        ("osVersion", &host.os),
    ]);
    let help = "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & cadvisor revision.";
    let samples = vec![(braces(&version), 1.0, None)];
    family(out, "cadvisor_version_info", GAUGE, help, samples);
    let help = "1 if there was an error while getting container metrics, 0 otherwise";
    family(out, "container_scrape_error", GAUGE, help, plain(0.0));
    let help = "Number of logical CPU cores.";
    family(
        out,
        "machine_cpu_cores",
        GAUGE,
        help,
        of_machine(host.cores),
    );
    let help = "Amount of memory installed on the machine.";
    family(
        out,
        "machine_memory_bytes",
        GAUGE,
        help,
        of_machine(host.memory),
    );
    let help = "Amount of swap memory available on the machine.";
    family(
        out,
        "machine_swap_bytes",
        GAUGE,
        help,
        of_machine(host.swap),
    );
    let help = "1 if there was an error while getting machine metrics, 0 otherwise.";
    family(out, "machine_scrape_error", GAUGE, help, plain(0.0));
}

#[cfg(test)]
mod tests {
    use super::super::{Memory, Spec};
    use super::*;

    fn lines(subjects: &[Subject]) -> String {
        let host = Host {
            ids: ["b", "m", "s"].map(str::to_owned),
            cores: 4,
            memory: 1024,
            ..Host::default()
        };
        encode(&host, subjects)
    }

    fn subject() -> Subject {
        Subject {
            id: "/kubepods/podu/c1".to_owned(),
            name: "c1".to_owned(),
            image: "i".to_owned(),
            namespace: "n".to_owned(),
            pod: "p".to_owned(),
            container: "main".to_owned(),
            time: 7_000_000_000,
            cpu: Some(1_500_000_000),
            ..Subject::default()
        }
    }

    #[test]
    fn names_labels_and_types_are_cadvisors() {
        let mut one = subject();
        one.memory = Some(Memory {
            usage: 10,
            working_set: 8,
            rss: Some(4),
            faults: Some(3),
            major_faults: Some(1),
        });
        one.started = Some(2_500_000_000);
        one.interfaces = vec![InterfaceTraffic {
            name: "eth0".to_owned(),
            received_bytes: 5,
            ..InterfaceTraffic::default()
        }];
        let text = lines(&[one]);
        let rest = r#"id="/kubepods/podu/c1",image="i",name="c1",namespace="n",pod="p"} "#;
        let rest_of_network = r#"image="i",interface="eth0",name="c1",namespace="n",pod="p"} "#;
        for line in [
            "# TYPE container_cpu_usage_seconds_total counter".to_owned(),
            format!(
                "container_cpu_usage_seconds_total{{container=\"main\",cpu=\"total\",{rest}1.5 7000"
            ),
            format!("container_memory_working_set_bytes{{container=\"main\",{rest}8 7000"),
            format!("container_memory_rss{{container=\"main\",{rest}4 7000"),
            format!("container_start_time_seconds{{container=\"main\",{rest}2.5 7000"),
            format!(
                "container_network_receive_bytes_total{{container=\"main\",id=\"/kubepods/podu/c1\",{rest_of_network}5 7000"
            ),
            r#"machine_cpu_cores{boot_id="b",machine_id="m",system_uuid="s"} 4"#.to_owned(),
            r#"machine_memory_bytes{boot_id="b",machine_id="m",system_uuid="s"} 1024"#.to_owned(),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
        let faults = text.lines().find(|l| l.contains("pgmajfault")).unwrap();
        assert!(faults.contains(r#"scope="container""#), "{faults}");
        assert!(
            !text.contains("packets_total"),
            "the runtime does not count them"
        );
    }

    #[test]
    fn only_containers_with_a_quota_are_throttled() {
        let of = |quota| {
            let mut one = subject();
            one.parts.throttled_periods = Some(2);
            one.spec = Some(Spec {
                quota,
                shares: 2,
                memory: 0,
            });
            lines(&[one])
        };
        assert!(of(20_000).contains("container_cpu_cfs_throttled_periods_total"));
        assert!(of(20_000).contains("container_spec_cpu_quota"));
        assert!(!of(0).contains("cfs_throttled") && !of(0).contains("cpu_quota"));
        assert!(of(0).contains("container_spec_memory_limit_bytes"));
    }

    #[test]
    fn names_are_in_order_and_known_once() {
        let names: Vec<&str> = SERIES.iter().map(|(name, ..)| *name).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    }
}
